/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the models without merges of tokenizer.json: Unigram, WordPiece and WordLevel. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/tokenizer/tokenizer_import.h"

static bool out_of_memory(struct tokenizer_import *import)
{
    return status_fail(import->status, STATUS_MACHINE, "out of memory");
}

/* The number that serde_json makes of the shortest text of `value`, which is how tokenizers writes scores: it converts
 * all digits to one number and divides that by a power of ten, which differs in the last bit from the nearest number for
 * one score in seven. Sums of scores that are equal but for such bits decide between segmentations. */
static double as_serde_reads(double value)
{
    char text[40];
    int precision = 0;
    uint64_t digits = 0;
    do snprintf(text, sizeof text, "%.*e", precision, value);
    while (strtod(text, NULL) != value && ++precision < 17);
    const char *at = text;
    int exponent = 0;
    for (bool fraction = false; *at != '\0' && *at != 'e'; at++) {
        if (*at == '.') fraction = true;
        if (*at < '0' || *at > '9') continue;
        digits = digits * 10 + (uint64_t)(*at - '0');
        exponent -= fraction;
    }
    if (*at == 'e') exponent += atoi(at + 1);
    double number = (double)digits;
    if (exponent < -308) { /* no power of ten below this is a normal number */
        number /= 1e308;
        exponent += 308;
    }
    char power[16];
    snprintf(power, sizeof power, "1e%d", exponent < 0 ? -exponent : exponent);
    number = exponent < 0 ? number / strtod(power, NULL) : number * strtod(power, NULL);
    return value < 0 ? -number : number;
}

/* [["text", score], ...]: an index is an id. */
static bool read_scores(struct tokenizer_import *import, json_t *list)
{
    json_t *entry;
    size_t index;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > TOKENIZER_TOKEN_LIMIT)
        return tokenizer_import_fail(import, "model: field 'vocab': expected an array of 1 to %d tokens, found %s",
                                     TOKENIZER_TOKEN_LIMIT,
                                     json_is_array(list) ? "another size" : json_type_name(list));
    import->own_vocabulary = json_object();
    import->scores = calloc(json_array_size(list), sizeof *import->scores);
    if (!import->own_vocabulary || !import->scores) return out_of_memory(import);
    json_array_foreach (list, index, entry) {
        json_t *text = json_array_get(entry, 0), *score = json_array_get(entry, 1);
        if (json_array_size(entry) != 2 || !json_is_string(text) || !json_is_number(score))
            return tokenizer_import_fail(import, "model: token %zu of 'vocab': expected [\"text\", score], found %s",
                                         index, json_type_name(entry));
        if (json_object_get(import->own_vocabulary, json_string_value(text)))
            return tokenizer_import_fail(import, "model: token %zu of 'vocab': '%.80s' has been there before", index,
                                         json_string_value(text));
        import->scores[index] = as_serde_reads(json_number_value(score));
        if (!isfinite(import->scores[index]))
            return tokenizer_import_fail(import, "model: token %zu of 'vocab': its score is no finite number", index);
        if (!json_put(import->own_vocabulary, json_string_value(text), json_integer((json_int_t)index)))
            return out_of_memory(import);
    }
    return tokenizer_import_vocabulary(import, import->own_vocabulary);
}

bool tokenizer_import_unigram(struct tokenizer_import *import, struct json_reader *reader, json_t *vocabulary)
{
    uint64_t unknown = UINT64_MAX;
    bool fallback = false;
    if (!read_scores(import, vocabulary) ||
        !json_reader_u64(reader, "unk_id", false, 0, import->vocabulary_ids - 1, &unknown, import->status) ||
        !json_reader_bool(reader, "byte_fallback", false, &fallback, import->status))
        return false;
    import->header.unknown_id = unknown == UINT64_MAX ? -1 : (int32_t)unknown;
    import->header.model_flags = fallback ? MODEL_BYTE_FALLBACK : 0u;
    return true;
}

bool tokenizer_import_words(struct tokenizer_import *import, struct json_reader *reader, json_t *vocabulary,
                            bool pieces)
{
    const char *unknown = NULL;
    uint64_t limit = 0;
    if (!tokenizer_import_vocabulary(import, vocabulary) ||
        !json_reader_string(reader, "unk_token", true, &unknown, import->status))
        return false;
    if (pieces && (!json_reader_u64(reader, "max_input_chars_per_word", true, 0, INT32_MAX, &limit, import->status) ||
                   !tokenizer_import_affix(import, reader, "continuing_subword_prefix", "##",
                                           &import->extension.prefix_offset, &import->extension.prefix_bytes)))
        return false;
    import->extension.word_limit = (uint32_t)limit;
    import->header.unknown_id = (int32_t)tokenizer_import_find(import, unknown);
    return true;
}

/* qsort has no context argument: elements carry their text. */
struct ordered_token {
    const char *text;
    uint32_t bytes, id;
};

static int compare_texts(const void *a, const void *b)
{
    const struct ordered_token *left = a, *right = b;
    int order = memcmp(left->text, right->text, left->bytes < right->bytes ? left->bytes : right->bytes);
    return order != 0 ? order : (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

bool tokenizer_import_order(struct tokenizer_import *import)
{
    const uint32_t count = import->header.token_count;
    uint32_t kept = 0;
    if (import->extension.model != MODEL_UNIGRAM && import->extension.model != MODEL_WORD_PIECE) return true;
    struct ordered_token *order = calloc(count, sizeof *order);
    double *scores = import->scores ? realloc(import->scores, count * sizeof *scores) : NULL;
    if (scores) import->scores = scores;
    import->order = calloc(count, sizeof *import->order);
    if (!order || !import->order || (import->scores && !scores)) {
        free(order);
        return out_of_memory(import);
    }
    /* added tokens after the model's have no score */
    for (uint32_t id = import->vocabulary_ids; import->scores && id < count; id++) import->scores[id] = 0;
    for (uint32_t id = 0; id < count; id++) {
        const struct image_token *token = &import->tokens[id];
        if ((token->flags & TOKEN_MODEL) && token->text_bytes > 0)
            order[kept++] = (struct ordered_token){import->pool.text + token->text_offset, token->text_bytes, id};
    }
    qsort(order, kept, sizeof *order, compare_texts);
    for (uint32_t i = 0; i < kept; i++) import->order[i] = order[i].id;
    import->extension.order_count = kept;
    free(order);
    return true;
}
