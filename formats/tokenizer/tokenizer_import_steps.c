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

static bool normalizer(struct tokenizer_import *import, json_t *part, const char *path, int depth)
{
    static const struct {
        const char *type;
        uint32_t kind;
    } plain[] = {{"NFC", STEP_NFC},
                 {"NFD", STEP_NFD},
                 {"NFKC", STEP_NFKC},
                 {"NFKD", STEP_NFKD},
                 {"Lowercase", STEP_LOWERCASE}};
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
    } else {
        refuse_type(import, path, type, "NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, Sequence");
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

static bool import_split(struct tokenizer_import *import, struct json_reader *reader, const char *path)
{
    static const char *const behaviors[] = {
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *pattern, *name = "";
    bool regex, invert = false;
    if (!read_pattern(import, reader, path, &pattern, &regex) ||
        !json_reader_string(reader, "behavior", true, &name, import->status) ||
        !json_reader_bool(reader, "invert", true, &invert, import->status))
        return false;
    for (uint32_t i = 0; i < sizeof behaviors / sizeof *behaviors; i++)
        if (strcmp(name, behaviors[i]) == 0)
            return add_step(import, true, regex ? STEP_SPLIT_REGEX : STEP_SPLIT_STRING,
                            i | (invert ? SPLIT_INVERT : 0u), pattern, NULL);
    return tokenizer_import_fail(import,
                                 "%s: behavior '%.80s' is not supported (supported: Isolated, Removed, "
                                 "MergedWithPrevious, MergedWithNext, Contiguous)",
                                 path, name);
}

/* Hugging Face prepends at pieces that begin at offset 0 of the original text, which it tracks through all steps. Here
 * a piece knows whether it is the first one, which is equivalent only if no earlier step makes a character from none or
 * from several. */
static bool check_first_scheme(struct tokenizer_import *import, const char *path)
{
    for (uint32_t i = 0; i < import->header.normalizer_count; i++) {
        const struct image_step *step = &import->normalizers[i];
        uint32_t character;
        bool one_for_one = step->kind == STEP_REPLACE_STRING && step->content_bytes > 0 &&
                           text_read(import->pool.text + step->pattern_offset, &character) == step->pattern_bytes &&
                           text_read(import->pool.text + step->content_offset, &character) == step->content_bytes;
        if (!one_for_one)
            return tokenizer_import_fail(import,
                                         "%s: prepend_scheme 'first' after a normalizer other than Replace of one "
                                         "character by one character is not supported",
                                         path);
    }
    for (uint32_t i = 0; i < import->header.splitter_count; i++)
        if (import->splitters[i].kind == STEP_SPACE_FIRST || import->splitters[i].kind == STEP_METASPACE)
            return tokenizer_import_fail(import,
                                         "%s: prepend_scheme 'first' after another step that prepends is not supported",
                                         path);
    return true;
}

static bool import_metaspace(struct tokenizer_import *import, struct json_reader *reader, const char *path)
{
    struct metaspace_fields fields;
    if (!tokenizer_import_metaspace(import, reader, &fields)) return false;
    if (fields.scheme == METASPACE_FIRST && !check_first_scheme(import, path)) return false;
    return add_step(import, true, STEP_METASPACE, fields.scheme, NULL, fields.replacement) &&
           (!fields.split ||
            add_step(import, true, STEP_SPLIT_STRING, SPLIT_MERGED_WITH_NEXT, fields.replacement, NULL));
}

static bool pre_tokenizer(struct tokenizer_import *import, json_t *part, const char *path, int depth)
{
    struct json_reader reader;
    const char *type = "";
    bool individual = false, good = false;
    if (!open_part(import, part, path, &reader, &type)) goto done;
    if (strcmp(type, "Sequence") == 0) {
        good = each_member(import, &reader, "pretokenizers", path, depth, pre_tokenizer);
    } else if (strcmp(type, "ByteLevel") == 0) {
        good = import_byte_level(import, &reader, path);
    } else if (strcmp(type, "Split") == 0) {
        good = import_split(import, &reader, path);
    } else if (strcmp(type, "Metaspace") == 0) {
        good = import_metaspace(import, &reader, path);
    } else if (strcmp(type, "Digits") == 0) {
        good = json_reader_bool(&reader, "individual_digits", true, &individual, import->status) &&
               add_step(import, true, STEP_DIGITS, individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, NULL, NULL);
    } else {
        refuse_type(import, path, type, "ByteLevel, Split, Digits, Metaspace, Sequence");
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
        return tokenizer_import_fail(import, "%s: a second TemplateProcessing is not supported", path);
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
    } else {
        refuse_type(import, path, type, "ByteLevel, TemplateProcessing, Sequence");
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
