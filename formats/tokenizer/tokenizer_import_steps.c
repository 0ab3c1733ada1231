/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the "normalizer", "pre_tokenizer" and "post_processor" of tokenizer.json into steps of the image. Compound
 * steps are divided: ByteLevel into a prefix space, a split and the byte alphabet; Metaspace into a rewrite and a
 * split. */
#include <string.h>

#include "formats/tokenizer/tokenizer_import.h"

enum { SEQUENCE_DEPTH_LIMIT = 8 };

/* The split of ByteLevel with use_regex: the pattern of GPT-2. */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* One part of a pipeline: an object with a "type". Opens the reader, which the caller closes in every case. */
static bool open_part(struct tokenizer_import *import, json_t *part, const char *path, struct json_reader *reader,
                      const char **type)
{
    *reader = (struct json_reader){0};
    return json_reader_open(reader, part, path, import->status) &&
           json_reader_string(reader, "type", true, type, import->status);
}

static bool refuse_type(struct tokenizer_import *import, const char *path, const char *type, const char *supported)
{
    return tokenizer_import_fail(import, "%s: type '%.80s' is not supported (supported: %s)", path, type, supported);
}

bool tokenizer_import_character(struct tokenizer_import *import, struct json_reader *reader, const char *key,
                                const char **text, uint32_t *character)
{
    *text = "";
    if (!json_reader_string(reader, key, true, text, import->status)) return false;
    if (**text != '\0' && text_read(*text, character) == strlen(*text)) return true;
    return tokenizer_import_fail(import, "%s: field '%s': expected one character, found '%.40s'", reader->path, key,
                                 *text);
}

bool tokenizer_import_metaspace(struct tokenizer_import *import, struct json_reader *reader,
                                struct metaspace_fields *fields)
{
    static const char *const schemes[] =
        {[METASPACE_NEVER] = "never", [METASPACE_FIRST] = "first", [METASPACE_ALWAYS] = "always"};
    enum { SCHEMES = sizeof schemes / sizeof *schemes };
    const char *scheme = "always", *ignored;
    bool add_prefix_space = true;
    *fields = (struct metaspace_fields){.split = true};
    if (!tokenizer_import_character(import, reader, "replacement", &fields->replacement, &fields->character) ||
        !json_reader_string(reader, "prepend_scheme", false, &scheme, import->status) ||
        !json_reader_bool(reader, "add_prefix_space", false, &add_prefix_space, import->status) ||
        !json_reader_bool(reader, "split", false, &fields->split, import->status) ||
        !json_reader_string(reader, "str_rep", false, &ignored, import->status)) /* a copy of "replacement" */
        return false;
    while (fields->scheme < SCHEMES && strcmp(scheme, schemes[fields->scheme]) != 0) fields->scheme++;
    if (fields->scheme == SCHEMES)
        return tokenizer_import_fail(import,
                                     "%s: prepend_scheme '%.80s' is not supported (supported: always, first, never)",
                                     reader->path, scheme);
    if (add_prefix_space || fields->scheme == METASPACE_NEVER) return true;
    return tokenizer_import_fail(import, "%s: add_prefix_space false contradicts prepend_scheme '%s'", reader->path,
                                 scheme);
}

bool tokenizer_import_byte_level_idle(struct tokenizer_import *import, struct json_reader *reader)
{
    bool ignored;
    return json_reader_bool(reader, "add_prefix_space", false, &ignored, import->status) &&
           json_reader_bool(reader, "trim_offsets", false, &ignored, import->status) &&
           json_reader_bool(reader, "use_regex", false, &ignored, import->status);
}

typedef bool (*part_function)(struct tokenizer_import *import, json_t *part, const char *path, int depth);

/* Members of a Sequence, in order. */
static bool each_member(struct tokenizer_import *import, struct json_reader *reader, const char *key, const char *path,
                        int depth, part_function part)
{
    json_t *list = json_reader_get(reader, key);
    json_t *member;
    size_t index;
    if (depth >= SEQUENCE_DEPTH_LIMIT) return tokenizer_import_fail(import, "%s: sequences nested too deep", path);
    if (!json_is_array(list))
        return tokenizer_import_fail(import, "%s: field '%s': expected an array, found %s", path, key,
                                     json_type_name(list));
    json_array_foreach (list, index, member)
        if (!part(import, member, path, depth + 1)) return false;
    return true;
}

static bool add_step(struct tokenizer_import *import, bool splitter, uint32_t kind, uint32_t flags, const char *pattern,
                     const char *content)
{
    uint32_t *count = splitter ? &import->header.splitter_count : &import->header.normalizer_count;
    struct image_step *step = (splitter ? import->splitters : import->normalizers) + *count;
    if (*count == TOKENIZER_STEP_LIMIT)
        return tokenizer_import_fail(import, "more than %d steps in the %s", TOKENIZER_STEP_LIMIT,
                                     splitter ? "pre_tokenizer" : "normalizer");
    *step = (struct image_step){.kind = kind, .flags = flags};
    ++*count;
    import->needs_extension |= kind >= (splitter ? (uint32_t)STEP_PUNCTUATION : (uint32_t)STEP_NMT);
    return (!pattern ||
            tokenizer_import_pool(import, pattern, strlen(pattern), &step->pattern_offset, &step->pattern_bytes)) &&
           (!content ||
            tokenizer_import_pool(import, content, strlen(content), &step->content_offset, &step->content_bytes));
}

/* "pattern": {"String": text} or {"Regex": text}. */
static bool read_pattern(struct tokenizer_import *import, struct json_reader *reader, const char *path,
                         const char **pattern, bool *regex)
{
    json_t *value = json_reader_get(reader, "pattern");
    json_t *string = json_object_get(value, "String"), *expression = json_object_get(value, "Regex");
    if (!json_is_object(value) || json_object_size(value) != 1 ||
        !(json_is_string(string) || json_is_string(expression)))
        return tokenizer_import_fail(import, "%s: field 'pattern': expected {\"String\": ...} or {\"Regex\": ...}",
                                     path);
    *regex = expression != NULL;
    *pattern = json_string_value(string ? string : expression);
    if (**pattern == '\0') return tokenizer_import_fail(import, "%s: an empty pattern is not supported", path);
    return true;
}

static bool import_bert_normalizer(struct tokenizer_import *import, struct json_reader *reader)
{
    bool clean = true, ideographs = true, lowercase = true, strip = true;
    const bool has_strip = json_is_boolean(json_object_get(reader->object, "strip_accents"));
    if (!json_reader_bool(reader, "clean_text", true, &clean, import->status) ||
        !json_reader_bool(reader, "handle_chinese_chars", true, &ideographs, import->status) ||
        !json_reader_bool(reader, "strip_accents", false, &strip, import->status) ||
        !json_reader_bool(reader, "lowercase", true, &lowercase, import->status))
        return false;
    if (!has_strip) strip = lowercase;
    return (!clean || add_step(import, false, STEP_CLEAN, 0, NULL, NULL)) &&
           (!ideographs || add_step(import, false, STEP_SPACE_IDEOGRAPHS, 0, NULL, NULL)) &&
           (!strip || (add_step(import, false, STEP_NFD, 0, NULL, NULL) &&
                       add_step(import, false, STEP_DROP_MARKS, MARKS_WITHOUT_WIDTH, NULL, NULL))) &&
           (!lowercase || add_step(import, false, STEP_LOWERCASE, 0, NULL, NULL));
}

/* Decodes base64 as RFC 4648 has it, with padding. */
static bool decode_base64(const char *text, size_t size, struct text_buffer *out, struct status *status)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t padding = 0;
    if (size % 4 != 0) return status_fail(status, STATUS_BAD_INPUT, "its length is no multiple of 4");
    while (padding < 2 && padding < size && text[size - 1 - padding] == '=') padding++;
    for (size_t i = 0; i < size; i += 4) {
        uint32_t value = 0;
        for (size_t k = 0; k < 4; k++) {
            const bool pads = i + k >= size - padding;
            const char *digit = pads ? digits : strchr(digits, text[i + k]);
            if (!digit || *digit == '\0')
                return status_fail(status, STATUS_BAD_INPUT, "character %zu is no digit of base64", i + k);
            value = value << 6 | (uint32_t)(digit - digits);
        }
        const uint8_t bytes[3] = {(uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value};
        if (!tokenizer_text_append(out, bytes, i + 4 < size ? 3 : 3 - padding, status)) return false;
    }
    return true;
}

/* SentencePiece's blob: u32 with the size of the double array, the array, the text of the replacements. */
static bool import_precompiled(struct tokenizer_import *import, struct json_reader *reader, const char *path)
{
    const char *encoded = "";
    struct text_buffer blob = {0};
    struct image_character_map map;
    struct status reason = {0};
    uint32_t array_bytes = 0;
    bool good = false;
    if (!json_reader_string(reader, "precompiled_charsmap", true, &encoded, import->status)) return false;
    if (strlen(encoded) > TOKENIZER_TABLE_LIMIT) {
        tokenizer_import_fail(import, "%s: field 'precompiled_charsmap' is longer than %d bytes", path,
                              TOKENIZER_TABLE_LIMIT);
        goto done;
    }
    if (!decode_base64(encoded, strlen(encoded), &blob, &reason)) {
        tokenizer_import_fail(import, "%s: field 'precompiled_charsmap' is no base64: %s", path, reason.message);
        goto done;
    }
    if (blob.size >= sizeof array_bytes) memcpy(&array_bytes, blob.text, sizeof array_bytes);
    if (array_bytes < 4 || array_bytes % 4 != 0 || array_bytes > blob.size - sizeof array_bytes) {
        tokenizer_import_fail(import,
                              "%s: field 'precompiled_charsmap': expected a double array and a text, found %zu bytes "
                              "with an array of %u",
                              path, blob.size, (unsigned)array_bytes);
        goto done;
    }
    map.unit_count = array_bytes / 4;
    map.text_bytes = (uint32_t)(blob.size - sizeof array_bytes - array_bytes);
    if (!text_is_valid((const uint8_t *)blob.text + sizeof array_bytes + array_bytes, map.text_bytes)) {
        tokenizer_import_fail(import, "%s: field 'precompiled_charsmap': its text is not UTF-8", path);
        goto done;
    }
    while (import->tables.size % 4 != 0)
        if (!tokenizer_text_append(&import->tables, "", 1, import->status)) goto done;
    const size_t begin = import->tables.size;
    if (!tokenizer_text_append(&import->tables, &map, sizeof map, import->status) ||
        !tokenizer_text_append(&import->tables, blob.text + sizeof array_bytes, blob.size - sizeof array_bytes,
                               import->status) ||
        !add_step(import, false, STEP_CHARACTER_MAP, 0, NULL, NULL))
        goto done;
    if (import->tables.size > TOKENIZER_TABLE_LIMIT) {
        tokenizer_import_fail(import, "%s: character maps of more than %d bytes", path, TOKENIZER_TABLE_LIMIT);
        goto done;
    }
    import->normalizers[import->header.normalizer_count - 1].pattern_offset = (uint32_t)begin;
    import->normalizers[import->header.normalizer_count - 1].pattern_bytes = (uint32_t)(import->tables.size - begin);
    good = true;
done:
    text_buffer_free(&blob);
    return good;
}

static bool normalizer(struct tokenizer_import *import, json_t *part, const char *path, int depth)
{
    static const struct {
        const char *type;
        uint32_t kind;
    } plain[] = {{"NFC", STEP_NFC},
                 {"NFD", STEP_NFD},
                 {"NFKC", STEP_NFKC},
                 {"NFKD", STEP_NFKD},
                 {"Lowercase", STEP_LOWERCASE},
                 {"StripAccents", STEP_DROP_MARKS},
                 {"Nmt", STEP_NMT},
                 {"ByteLevel", STEP_BYTE_ALPHABET}};
    struct json_reader reader;
    const char *type = "", *pattern = NULL, *content = NULL;
    bool regex = false, left = false, right = false, good = false;
    uint32_t kind = 0;
    if (!open_part(import, part, path, &reader, &type)) goto done;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(type, plain[i].type) == 0) kind = plain[i].kind;
    if (kind) {
        good = add_step(import, false, kind, 0, NULL, NULL);
    } else if (strcmp(type, "Sequence") == 0) {
        good = each_member(import, &reader, "normalizers", path, depth, normalizer);
    } else if (strcmp(type, "Prepend") == 0) {
        good = json_reader_string(&reader, "prepend", true, &content, import->status) &&
               add_step(import, false, STEP_PREPEND, 0, NULL, content);
    } else if (strcmp(type, "Replace") == 0) {
        good = read_pattern(import, &reader, path, &pattern, &regex) &&
               json_reader_string(&reader, "content", true, &content, import->status) &&
               add_step(import, false, regex ? STEP_REPLACE_REGEX : STEP_REPLACE_STRING, 0, pattern, content);
    } else if (strcmp(type, "Strip") == 0) {
        good = json_reader_bool(&reader, "strip_left", true, &left, import->status) &&
               json_reader_bool(&reader, "strip_right", true, &right, import->status) &&
               add_step(import, false, STEP_STRIP, (left ? STRIP_LEFT : 0u) | (right ? STRIP_RIGHT : 0u), NULL, NULL);
    } else if (strcmp(type, "BertNormalizer") == 0) {
        good = import_bert_normalizer(import, &reader);
    } else if (strcmp(type, "Precompiled") == 0) {
        good = import_precompiled(import, &reader, path);
    } else {
        refuse_type(import, path, type,
                    "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, Precompiled, Nmt, "
                    "BertNormalizer, ByteLevel, Sequence");
    }
    good = good && json_reader_all_consumed(&reader, import->status);
done:
    json_reader_close(&reader);
    return good;
}

bool tokenizer_import_normalizer(struct tokenizer_import *import, json_t *part)
{
    return !part || normalizer(import, part, "normalizer", 0);
}

static bool import_byte_level(struct tokenizer_import *import, struct json_reader *reader, const char *path)
{
    bool prefix_space = false, trim_offsets, use_regex = true;
    for (uint32_t i = 0; i < import->header.splitter_count; i++)
        if (import->splitters[i].kind == STEP_BYTE_LEVEL)
            return tokenizer_import_fail(import, "%s: a second ByteLevel is not supported", path);
    return json_reader_bool(reader, "add_prefix_space", true, &prefix_space, import->status) &&
           json_reader_bool(reader, "trim_offsets", true, &trim_offsets,
                            import->status) && /* for offsets, which are not supported */
           json_reader_bool(reader, "use_regex", false, &use_regex, import->status) &&
           (!prefix_space || add_step(import, true, STEP_SPACE_FIRST, 0, NULL, NULL)) &&
           (!use_regex || add_step(import, true, STEP_SPLIT_REGEX, SPLIT_ISOLATED, byte_level_pattern, NULL)) &&
           add_step(import, true, STEP_BYTE_LEVEL, 0, NULL, NULL);
}

/* `absent`: the behaviour where the field may be missing, UINT32_MAX: it may not. */
static bool read_behavior(struct tokenizer_import *import, struct json_reader *reader, const char *path,
                          uint32_t absent, uint32_t *behavior)
{
    static const char *const behaviors[] = {
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *name = NULL;
    *behavior = absent;
    if (!json_reader_string(reader, "behavior", absent == UINT32_MAX, &name, import->status)) return false;
    for (uint32_t i = 0; name && i < sizeof behaviors / sizeof *behaviors; i++) {
        *behavior = i;
        if (strcmp(name, behaviors[i]) == 0) return true;
    }
    return !name || tokenizer_import_fail(import,
                                          "%s: behavior '%.80s' is not supported (supported: Isolated, Removed, "
                                          "MergedWithPrevious, MergedWithNext, Contiguous)",
                                          path, name);
}

static bool import_split(struct tokenizer_import *import, struct json_reader *reader, const char *path)
{
    const char *pattern;
    uint32_t behavior;
    bool regex, invert = false;
    return read_pattern(import, reader, path, &pattern, &regex) &&
           read_behavior(import, reader, path, UINT32_MAX, &behavior) &&
           json_reader_bool(reader, "invert", true, &invert, import->status) &&
           add_step(import, true, regex ? STEP_SPLIT_REGEX : STEP_SPLIT_STRING, behavior | (invert ? SPLIT_INVERT : 0u),
                    pattern, NULL);
}

/* The first version tells whether a piece is the first one, but not what it stands for: a reader of it agrees with
 * Hugging Face only if no earlier step makes a character from none or from several. */
static bool first_version_knows(const struct tokenizer_import *import)
{
    for (uint32_t i = 0; i < import->header.normalizer_count; i++) {
        const struct image_step *step = &import->normalizers[i];
        uint32_t character;
        bool one_for_one = step->kind == STEP_REPLACE_STRING && step->content_bytes > 0 &&
                           text_read(import->pool.text + step->pattern_offset, &character) == step->pattern_bytes &&
                           text_read(import->pool.text + step->content_offset, &character) == step->content_bytes;
        if (!one_for_one) return false;
    }
    for (uint32_t i = 0; i < import->header.splitter_count; i++)
        if (import->splitters[i].kind == STEP_SPACE_FIRST || import->splitters[i].kind == STEP_METASPACE) return false;
    return true;
}

static bool import_metaspace(struct tokenizer_import *import, struct json_reader *reader)
{
    struct metaspace_fields fields;
    if (!tokenizer_import_metaspace(import, reader, &fields)) return false;
    import->needs_extension |= fields.scheme == METASPACE_FIRST && !first_version_knows(import);
    return add_step(import, true, STEP_METASPACE, fields.scheme, NULL, fields.replacement) &&
           (!fields.split ||
            add_step(import, true, STEP_SPLIT_STRING, SPLIT_MERGED_WITH_NEXT, fields.replacement, NULL));
}

static bool import_fixed_length(struct tokenizer_import *import, struct json_reader *reader)
{
    uint64_t length = 5;
    return json_reader_u64(reader, "length", false, 1, INT32_MAX, &length, import->status) &&
           add_step(import, true, STEP_FIXED_LENGTH, (uint32_t)length, NULL, NULL);
}

static bool import_delimiter(struct tokenizer_import *import, struct json_reader *reader)
{
    const char *text;
    uint32_t character;
    return tokenizer_import_character(import, reader, "delimiter", &text, &character) &&
           add_step(import, true, STEP_SPLIT_STRING, SPLIT_REMOVED, text, NULL);
}

static bool pre_tokenizer(struct tokenizer_import *import, json_t *part, const char *path, int depth)
{
    struct json_reader reader;
    const char *type = "";
    bool individual = false, good = false;
    uint32_t behavior;
    if (!open_part(import, part, path, &reader, &type)) goto done;
    if (strcmp(type, "Sequence") == 0) {
        good = each_member(import, &reader, "pretokenizers", path, depth, pre_tokenizer);
    } else if (strcmp(type, "ByteLevel") == 0) {
        good = import_byte_level(import, &reader, path);
    } else if (strcmp(type, "Split") == 0) {
        good = import_split(import, &reader, path);
    } else if (strcmp(type, "Metaspace") == 0) {
        good = import_metaspace(import, &reader);
    } else if (strcmp(type, "Digits") == 0) {
        good = json_reader_bool(&reader, "individual_digits", true, &individual, import->status) &&
               add_step(import, true, STEP_DIGITS, individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, NULL, NULL);
    } else if (strcmp(type, "Punctuation") == 0) {
        good = read_behavior(import, &reader, path, SPLIT_ISOLATED, &behavior) &&
               add_step(import, true, STEP_PUNCTUATION, behavior, NULL, NULL);
    } else if (strcmp(type, "Whitespace") == 0) {
        good = add_step(import, true, STEP_WORDS, 0, NULL, NULL);
    } else if (strcmp(type, "WhitespaceSplit") == 0) {
        good = add_step(import, true, STEP_WHITE_SPACE, SPLIT_REMOVED, NULL, NULL);
    } else if (strcmp(type, "BertPreTokenizer") == 0) {
        good = add_step(import, true, STEP_WHITE_SPACE, SPLIT_REMOVED, NULL, NULL) &&
               add_step(import, true, STEP_PUNCTUATION, SPLIT_ISOLATED, NULL, NULL);
    } else if (strcmp(type, "CharDelimiterSplit") == 0) {
        good = import_delimiter(import, &reader);
    } else if (strcmp(type, "FixedLength") == 0) {
        good = import_fixed_length(import, &reader);
    } else {
        refuse_type(import, path, type,
                    "ByteLevel, Split, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit, "
                    "BertPreTokenizer, CharDelimiterSplit, FixedLength, Sequence");
    }
    good = good && json_reader_all_consumed(&reader, import->status);
done:
    json_reader_close(&reader);
    return good;
}

bool tokenizer_import_pre_tokenizer(struct tokenizer_import *import, json_t *part)
{
    return !part || pre_tokenizer(import, part, "pre_tokenizer", 0);
}

/* {"id": name, "ids": [...], "tokens": [...]}: only the ids are used. */
static bool template_token(struct tokenizer_import *import, json_t *special_tokens, json_t *piece, const char *path,
                           uint32_t *count, uint32_t *ids)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    json_t *list = name ? json_object_get(json_object_get(special_tokens, name), "ids") : NULL;
    json_t *id;
    size_t index;
    if (!name) return tokenizer_import_fail(import, "%s: a SpecialToken without an id", path);
    if (!json_is_array(list))
        return tokenizer_import_fail(import, "%s: '%.80s' has no ids in special_tokens", path, name);
    json_array_foreach (list, index, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOKENIZER_TOKEN_LIMIT)
            return tokenizer_import_fail(import, "%s: '%.80s' has an id that is no token id", path, name);
        if (*count == TOKENIZER_TEMPLATE_LIMIT)
            return tokenizer_import_fail(import, "%s: more than %d special tokens on one side", path,
                                         TOKENIZER_TEMPLATE_LIMIT);
        ids[(*count)++] = (uint32_t)json_integer_value(id);
    }
    return true;
}

/* "single": special tokens around one Sequence A. Ids before it go to template_ids[0...], those after it to
 * template_ids[TOKENIZER_TEMPLATE_LIMIT...]; the assembly closes the gap. */
static bool import_template(struct tokenizer_import *import, struct json_reader *reader, const char *path)
{
    json_t *single = json_reader_get(reader, "single"), *special_tokens = json_reader_get(reader, "special_tokens");
    json_t *piece;
    size_t index, sequences = 0;
    (void)json_reader_get(reader, "pair"); /* for encoding two texts, which is not supported */
    if (import->header.prefix_count || import->header.suffix_count)
        return tokenizer_import_fail(import, "%s: a second processor that adds tokens is not supported", path);
    if (!json_is_array(single))
        return tokenizer_import_fail(import, "%s: field 'single': expected an array, found %s", path,
                                     json_type_name(single));
    json_array_foreach (single, index, piece) {
        json_t *sequence = json_object_get(piece, "Sequence"), *special = json_object_get(piece, "SpecialToken");
        if (json_object_size(piece) != 1 || !(json_is_object(sequence) || json_is_object(special)))
            return tokenizer_import_fail(import, "%s: piece %zu of 'single' is neither a Sequence nor a SpecialToken",
                                         path, index);
        if (special) {
            if (!template_token(import, special_tokens, special, path,
                                sequences ? &import->header.suffix_count : &import->header.prefix_count,
                                import->template_ids + (sequences ? TOKENIZER_TEMPLATE_LIMIT : 0)))
                return false;
        } else {
            const char *name = json_string_value(json_object_get(sequence, "id"));
            if (!name || strcmp(name, "A") != 0)
                return tokenizer_import_fail(import, "%s: 'single' names a Sequence other than A", path);
            sequences++;
        }
    }
    if (sequences != 1)
        return tokenizer_import_fail(import, "%s: 'single' has Sequence A %zu times, expected once", path, sequences);
    return true;
}

/* ["text", id], around the text: "cls" before it, "sep" after it. */
static bool import_pair(struct tokenizer_import *import, struct json_reader *reader, const char *key, const char *path,
                        uint32_t *count, uint32_t *ids)
{
    json_t *pair = json_reader_get(reader, key), *id = json_array_get(pair, 1);
    if (!json_is_array(pair) || json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 0)) ||
        !json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOKENIZER_TOKEN_LIMIT)
        return tokenizer_import_fail(import, "%s: field '%s': expected [\"text\", id], found %s", path, key,
                                     json_type_name(pair));
    if (*count > 0)
        return tokenizer_import_fail(import, "%s: a second processor that adds tokens is not supported", path);
    ids[(*count)++] = (uint32_t)json_integer_value(id);
    return true;
}

static bool import_class_and_separator(struct tokenizer_import *import, struct json_reader *reader, const char *path)
{
    return import_pair(import, reader, "cls", path, &import->header.prefix_count, import->template_ids) &&
           import_pair(import, reader, "sep", path, &import->header.suffix_count,
                       import->template_ids + TOKENIZER_TEMPLATE_LIMIT);
}

static bool post_processor(struct tokenizer_import *import, json_t *part, const char *path, int depth)
{
    struct json_reader reader;
    const char *type = "";
    bool good = false;
    if (!open_part(import, part, path, &reader, &type)) goto done;
    if (strcmp(type, "Sequence") == 0) {
        good = each_member(import, &reader, "processors", path, depth, post_processor);
    } else if (strcmp(type, "TemplateProcessing") == 0) {
        good = import_template(import, &reader, path);
    } else if (strcmp(type, "ByteLevel") == 0) { /* changes offsets, which are not supported */
        good = tokenizer_import_byte_level_idle(import, &reader);
    } else if (strcmp(type, "BertProcessing") == 0) {
        good = import_class_and_separator(import, &reader, path);
    } else if (strcmp(type, "RobertaProcessing") == 0) {
        good = tokenizer_import_byte_level_idle(import, &reader) && import_class_and_separator(import, &reader, path);
    } else {
        refuse_type(import, path, type, "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence");
    }
    good = good && json_reader_all_consumed(&reader, import->status);
done:
    json_reader_close(&reader);
    return good;
}

bool tokenizer_import_post_processor(struct tokenizer_import *import, json_t *part)
{
    return !part || post_processor(import, part, "post_processor", 0);
}
