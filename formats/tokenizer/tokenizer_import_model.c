/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the "model" (its kind; vocabulary and merges of BPE) and the "added_tokens" of tokenizer.json. */
#include <stdlib.h>
#include <string.h>

#include "formats/tokenizer/tokenizer_import.h"

static bool out_of_memory(struct tokenizer_import *import)
{
    return status_fail(import->status, STATUS_MACHINE, "out of memory");
}

static bool place_token(struct tokenizer_import *import, uint32_t id, const char *text, size_t size, uint32_t flags)
{
    struct image_token *token = &import->tokens[id];
    token->flags = flags | TOKEN_PRESENT;
    return tokenizer_import_pool(import, text, size, &token->text_offset, &token->text_bytes);
}

/* Splits "left right" at its only space, or reads ["left", "right"]. */
static bool merge_parts(json_t *merge, char *buffer, const char **left, const char **right)
{
    if (json_is_string(merge)) {
        size_t size = json_string_length(merge);
        if (size > 2 * TOKENIZER_TEXT_LIMIT) return false;
        memcpy(buffer, json_string_value(merge), size + 1);
        char *space = strchr(buffer, ' ');
        if (!space || strchr(space + 1, ' ')) return false;
        *space = '\0';
        *left = buffer;
        *right = space + 1;
        return true;
    }
    *left = json_string_value(json_array_get(merge, 0));
    *right = json_string_value(json_array_get(merge, 1));
    return json_is_array(merge) && json_array_size(merge) == 2 && *left && *right;
}

static bool read_merges(struct tokenizer_import *import, json_t *merges)
{
    char *buffer = NULL, *joined = NULL;
    const uint32_t prefix_bytes = import->extension.prefix_bytes;
    bool good = false;
    size_t index;
    json_t *merge;
    if (!json_is_array(merges) || json_array_size(merges) > TOKENIZER_MERGE_LIMIT)
        return tokenizer_import_fail(import, "model: field 'merges': expected an array of at most %d, found %s",
                                     TOKENIZER_MERGE_LIMIT, json_type_name(merges));
    import->merges = calloc(json_array_size(merges) + 1, sizeof *import->merges);
    buffer = malloc(2 * TOKENIZER_TEXT_LIMIT + 2);
    joined = malloc(2 * TOKENIZER_TEXT_LIMIT + 2);
    if (!import->merges || !buffer || !joined) {
        out_of_memory(import);
        goto done;
    }
    json_array_foreach (merges, index, merge) {
        const char *left, *right;
        if (json_typeof(merge) != json_typeof(json_array_get(merges, 0))) {
            tokenizer_import_fail(import, "merge %zu is of another kind than the first one", index);
            goto done;
        }
        /* first line of an old merges.txt, which some converters kept */
        if (json_is_string(merge) && strncmp(json_string_value(merge), "#version", 8) == 0) continue;
        if (!merge_parts(merge, buffer, &left, &right)) {
            tokenizer_import_fail(import, "merge %zu: expected \"left right\" or [\"left\", \"right\"]", index);
            goto done;
        }
        int64_t ids[3] = {tokenizer_import_find(import, left), tokenizer_import_find(import, right), -1};
        /* the prefix that follows the start of a word is dropped where it ends up inside a token */
        if (strlen(right) < prefix_bytes || ((uint8_t)right[prefix_bytes] & 0xC0) == 0x80) {
            tokenizer_import_fail(import, "merge %zu: '%.80s' does not begin with a prefix of %u bytes", index, right,
                                  prefix_bytes);
            goto done;
        }
        const char *appended = right + prefix_bytes;
        if (strlen(left) + strlen(appended) <= 2 * TOKENIZER_TEXT_LIMIT) {
            memcpy(joined, left, strlen(left));
            memcpy(joined + strlen(left), appended, strlen(appended) + 1);
            ids[2] = tokenizer_import_find(import, joined);
        }
        if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0) {
            tokenizer_import_fail(import, "merge %zu: '%.80s' is not in the vocabulary", index,
                                  ids[0] < 0   ? left
                                  : ids[1] < 0 ? right
                                               : joined);
            goto done;
        }
        import->merges[import->header.merge_count++] =
            (struct image_merge){(uint32_t)ids[0], (uint32_t)ids[1], (uint32_t)ids[2]};
    }
    good = true;
done:
    free(buffer);
    free(joined);
    return good;
}

/* Checked before the vocabulary, whose form depends on the type. */
static bool read_type(struct tokenizer_import *import, struct json_reader *reader, json_t *vocabulary)
{
    static const char *const types[] = {"BPE", "Unigram", "WordPiece", "WordLevel"}; /* enum tokenizer_model */
    /* files of the first versions have no type */
    const char *type = json_is_array(vocabulary) ? "Unigram" : "BPE";
    if (!json_reader_string(reader, "type", false, &type, import->status)) return false;
    for (uint32_t i = 0; i < MODEL_COUNT; i++) {
        import->extension.model = i;
        if (strcmp(type, types[i]) == 0) return true;
    }
    return tokenizer_import_fail(import,
                                 "%s: type '%.80s' is not supported (supported: BPE, Unigram, WordPiece, WordLevel); "
                                 "a folder without tokenizer.json makes an engine that takes and gives token ids alone",
                                 reader->path, type);
}

static bool read_options(struct tokenizer_import *import, struct json_reader *reader)
{
    const char *unknown = NULL;
    double dropout = 0;
    bool fuse = false, fallback = false, ignore = false;
    struct image_header *header = &import->header;
    if (!json_reader_double(reader, "dropout", false, &dropout, import->status) ||
        !tokenizer_import_affix(import, reader, "continuing_subword_prefix", "", &import->extension.prefix_offset,
                                &import->extension.prefix_bytes) ||
        !tokenizer_import_affix(import, reader, "end_of_word_suffix", "", &import->extension.suffix_offset,
                                &import->extension.suffix_bytes) ||
        !json_reader_bool(reader, "fuse_unk", false, &fuse, import->status) ||
        !json_reader_bool(reader, "byte_fallback", false, &fallback, import->status) ||
        !json_reader_bool(reader, "ignore_merges", false, &ignore, import->status) ||
        !json_reader_string(reader, "unk_token", false, &unknown, import->status))
        return false;
    if (dropout != 0) /* dropout, for training, makes encoding random */
        return tokenizer_import_fail(import, "%s: field 'dropout' is %g; only null and 0 are supported", reader->path,
                                     dropout);
    int64_t unknown_id = unknown ? tokenizer_import_find(import, unknown) : -1;
    header->unknown_id = (int32_t)unknown_id;
    header->model_flags = (fuse ? MODEL_FUSE_UNKNOWN : 0u) | (fallback ? MODEL_BYTE_FALLBACK : 0u) |
                          (ignore ? MODEL_IGNORE_MERGES : 0u) |
                          (unknown && unknown_id < 0 ? MODEL_UNKNOWN_MISSING : 0u);
    return true;
}

static bool read_bpe(struct tokenizer_import *import, struct json_reader *reader, json_t *vocabulary)
{
    json_t *merges = json_reader_get(reader, "merges");
    return tokenizer_import_vocabulary(import, vocabulary) && read_options(import, reader) &&
           read_merges(import, merges);
}

bool tokenizer_import_model(struct tokenizer_import *import, json_t *model)
{
    struct json_reader reader = {0};
    bool good = false;
    if (!json_reader_open(&reader, model, "model", import->status)) goto done;
    json_t *vocabulary = json_reader_get(&reader, "vocab");
    if (!read_type(import, &reader, vocabulary)) goto done;
    switch (import->extension.model) {
    case MODEL_UNIGRAM: good = tokenizer_import_unigram(import, &reader, vocabulary); break;
    case MODEL_WORD_PIECE: good = tokenizer_import_words(import, &reader, vocabulary, true); break;
    case MODEL_WORD_LEVEL: good = tokenizer_import_words(import, &reader, vocabulary, false); break;
    default: good = read_bpe(import, &reader, vocabulary);
    }
    good = good && json_reader_all_consumed(&reader, import->status);
done:
    json_reader_close(&reader);
    return good;
}

static bool read_added(struct tokenizer_import *import, json_t *object, const char *path, struct added_token *added)
{
    struct json_reader reader = {0};
    bool single_word = false, strip_left = false, strip_right = false;
    uint64_t id = 0;
    bool good = json_reader_open(&reader, object, path, import->status) &&
                json_reader_string(&reader, "content", true, &added->content, import->status) &&
                json_reader_u64(&reader, "id", true, 0, TOKENIZER_TOKEN_LIMIT - 1, &id, import->status) &&
                json_reader_bool(&reader, "single_word", true, &single_word, import->status) &&
                json_reader_bool(&reader, "lstrip", true, &strip_left, import->status) &&
                json_reader_bool(&reader, "rstrip", true, &strip_right, import->status) &&
                json_reader_bool(&reader, "normalized", true, &added->is_normalized, import->status) &&
                json_reader_bool(&reader, "special", true, &added->special, import->status) &&
                json_reader_all_consumed(&reader, import->status);
    json_reader_close(&reader);
    if (!good) return false;
    added->id = (uint32_t)id;
    added->flags = (single_word ? ADDED_SINGLE_WORD : 0u) | (strip_left ? ADDED_STRIP_LEFT : 0u) |
                   (strip_right ? ADDED_STRIP_RIGHT : 0u);
    added->content_size = strlen(added->content);
    if (added->content_size <= TOKENIZER_ADDED_BYTES_LIMIT) return true;
    return tokenizer_import_fail(import, "added token %u is longer than %d bytes", added->id,
                                 TOKENIZER_ADDED_BYTES_LIMIT);
}

static bool place_vocabulary(struct tokenizer_import *import)
{
    import->tokens = calloc(import->header.token_count, sizeof *import->tokens);
    if (!import->tokens) return out_of_memory(import);
    for (uint32_t id = 0; id < import->header.token_count; id++) {
        const char *text = id < import->vocabulary_ids ? import->texts[id] : NULL;
        if (text && !place_token(import, id, text, strlen(text), TOKEN_MODEL)) return false;
    }
    return true;
}

/* Hugging Face gives an added token the id that its content has in the model, or else the next free id after the
 * vocabulary, and only warns if the file has another one. Here the file must agree. */
bool tokenizer_import_added(struct tokenizer_import *import, json_t *list)
{
    static const char path[] = "added_tokens";
    size_t index, kept = 0, count = json_array_size(list);
    uint32_t next = (uint32_t)import->vocabulary_count, highest = import->header.token_count - 1;
    json_t *object, *ids = json_object(); /* content -> id, of model and added tokens */
    bool good = false;
    import->added = calloc(count + 1, sizeof *import->added);
    if (!import->added || !ids) {
        out_of_memory(import);
        goto done;
    }
    if ((list && !json_is_array(list)) || count > TOKENIZER_ADDED_LIMIT) {
        tokenizer_import_fail(import, "%s: expected an array of at most %d, found %s", path, TOKENIZER_ADDED_LIMIT,
                              json_type_name(list));
        goto done;
    }
    json_array_foreach (list, index, object) {
        struct added_token *added = &import->added[kept];
        if (!read_added(import, object, path, added)) goto done;
        if (added->content_size == 0) continue; /* ignored by Hugging Face */
        if (json_object_get(ids, added->content)) {
            tokenizer_import_fail(import, "%s: '%.80s' is added twice", path, added->content);
            goto done;
        }
        int64_t model_id = tokenizer_import_find(import, added->content);
        uint32_t expected = model_id >= 0 ? (uint32_t)model_id : next++;
        if (added->id != expected) {
            tokenizer_import_fail(import, "%s: '%.80s' has id %u, but its place in the file gives it %u", path,
                                  added->content, added->id, expected);
            goto done;
        }
        if (model_id < 0 && added->id < import->vocabulary_ids && import->texts[added->id]) {
            tokenizer_import_fail(import, "%s: id %u is given to both '%.80s' and '%.80s'", path, added->id,
                                  import->texts[added->id], added->content);
            goto done;
        }
        if (!json_put(ids, added->content, json_integer(added->id))) {
            out_of_memory(import);
            goto done;
        }
        if (added->id > highest) highest = added->id;
        kept++;
    }
    import->added_count = kept;
    import->header.token_count = highest + 1;
    if (!place_vocabulary(import)) goto done;
    for (size_t i = 0; i < kept; i++) {
        const struct added_token *added = &import->added[i];
        struct image_token *token = &import->tokens[added->id];
        if (!(token->flags & TOKEN_PRESENT) && !place_token(import, added->id, added->content, added->content_size, 0))
            goto done;
        if (added->special) token->flags |= TOKEN_SPECIAL;
    }
    good = true;
done:
    json_decref(ids);
    return good;
}
