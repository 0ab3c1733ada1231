/* SPDX-License-Identifier: Apache-2.0 */
/* The models that need no merges: Unigram (the segmentation of the highest sum of log-probabilities, by Viterbi's
 * algorithm), WordPiece (the longest token first) and WordLevel. Each position walks down the trie of the vocabulary as
 * far as the text goes; the steps are charged, since a hostile vocabulary can make each walk long. */
#include <stdlib.h>

#include "formats/tokenizer/tokenizer_internal.h"

/* The best segmentation of the text up to one place. */
struct unigram_place {
    double score;  /* sum of the log-probabilities */
    int32_t start; /* of the last token, -1: none ends here */
    int32_t id;    /* of the last token */
};

static bool no_unknown_token(struct encode_scratch *scratch, const char *text)
{
    uint32_t character;
    text_read(text, &character);
    return status_fail(scratch->status, STATUS_BAD_INPUT,
                       "the text at U+%04X is covered by no token, and the tokenizer has no unknown token",
                       (unsigned)character);
}

static bool append_unknown(struct encode_scratch *scratch, const char *text)
{
    int32_t id = scratch->tokenizer->header->unknown_id;
    return id < 0 ? no_unknown_token(scratch, text) : tokenizer_token_append(scratch->tokens, id, scratch->status);
}

static bool reserve_places(struct encode_scratch *scratch, size_t size)
{
    if (size >= INT32_MAX)
        return status_fail(scratch->status, STATUS_TOO_LONG, "one word of %zu bytes is too long to encode", size);
    if (size < scratch->place_capacity) return true;
    size_t capacity = size + size / 2 + 64;
    void *places = realloc(scratch->places, capacity * sizeof *scratch->places);
    if (!places) return status_fail(scratch->status, STATUS_MACHINE, "out of memory while encoding text");
    scratch->places = places;
    scratch->place_capacity = capacity;
    return true;
}

/* The first of several segmentations with one score counts, as in Hugging Face. */
static bool improves(const struct unigram_place *place, double score)
{
    return place->start < 0 || score > place->score;
}

static bool find_best(struct encode_scratch *scratch, const char *text, size_t size)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    struct unigram_place *places = scratch->places;
    for (size_t i = 0; i <= size; i++) places[i] = (struct unigram_place){0, -1, -1};
    for (size_t start = 0; start < size;) {
        uint32_t character, node = 0;
        const size_t length = text_read(text + start, &character);
        const double before = places[start].score;
        bool is_known = false;
        size_t at = start;
        while (at < size && (node = token_trie_child(&tokenizer->trie, node, (uint8_t)text[at])) != 0) {
            const int32_t id = tokenizer->trie.nodes[node].id;
            at++;
            if (id < 0 || encode_scratch_is_text(scratch, id)) continue;
            const double score = tokenizer->scores[id] + before;
            if (improves(&places[at], score)) places[at] = (struct unigram_place){score, (int32_t)start, id};
            is_known |= at == start + length;
        }
        if (!encode_scratch_charge_trie(scratch, at - start + 1)) return false;
        struct unigram_place *next = &places[start + length];
        const double score = tokenizer->unknown_score + before;
        if (!is_known && improves(next, score)) {
            if (tokenizer->header->unknown_id < 0) return no_unknown_token(scratch, text + start);
            *next = (struct unigram_place){score, (int32_t)start, tokenizer->header->unknown_id};
        }
        start += length;
    }
    return true;
}

/* Text that no token covers: a token of exactly this text, which has a lower score; else its bytes; else unknown. */
static bool append_uncovered(struct encode_scratch *scratch, const char *text, size_t size)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    int32_t id = tokenizer_model_token(scratch, text, size);
    bool has_bytes = (tokenizer->header->model_flags & MODEL_BYTE_FALLBACK) != 0;
    if (id >= 0) return tokenizer_token_append(scratch->tokens, id, scratch->status);
    for (size_t i = 0; has_bytes && i < size; i++) has_bytes = tokenizer->byte_ids[(uint8_t)text[i]] >= 0;
    if (!has_bytes) return append_unknown(scratch, text);
    for (size_t i = 0; i < size; i++)
        if (!tokenizer_token_append(scratch->tokens, tokenizer->byte_ids[(uint8_t)text[i]], scratch->status))
            return false;
    return true;
}

bool tokenizer_unigram_word(struct encode_scratch *scratch, const char *text, size_t size)
{
    const int32_t unknown_id = scratch->tokenizer->header->unknown_id;
    if (!reserve_places(scratch, size) || !find_best(scratch, text, size)) return false;
    /* turn the links around: from each token to the end of the next one */
    struct unigram_place *places = scratch->places;
    int32_t end = (int32_t)size, after = -1;
    while (end > 0) {
        const int32_t start = places[end].start;
        places[end].start = after;
        after = end;
        end = start;
    }
    for (int32_t start = 0; after >= 0;) {
        end = after;
        if (places[end].id == unknown_id) { /* neighbours are one, whose text is looked up again */
            while (places[end].start >= 0 && places[places[end].start].id == unknown_id) end = places[end].start;
            if (!append_uncovered(scratch, text + start, (size_t)(end - start))) return false;
        } else if (!tokenizer_token_append(scratch->tokens, places[end].id, scratch->status)) {
            return false;
        }
        start = end;
        after = places[end].start;
    }
    return true;
}

/* Longer words than the limit, and those with a part that no token covers, are unknown as a whole. */
bool tokenizer_word_piece(struct encode_scratch *scratch, const char *text, size_t size)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    const struct image_extension *extension = tokenizer->extension;
    const char *prefix = tokenizer->pool + extension->prefix_offset;
    const size_t count = scratch->tokens->count;
    size_t characters = 0;
    for (size_t i = 0; i < size; i++) characters += ((uint8_t)text[i] & 0xC0) != 0x80;
    if (characters > extension->word_limit) return append_unknown(scratch, text);
    for (size_t start = 0; start < size;) {
        uint32_t node = 0;
        int32_t found = -1;
        size_t at = start, end = start;
        bool lives = true;
        for (uint32_t i = 0; start > 0 && lives && i < extension->prefix_bytes; i++)
            lives = (node = token_trie_child(&tokenizer->trie, node, (uint8_t)prefix[i])) != 0;
        while (lives && at < size && (node = token_trie_child(&tokenizer->trie, node, (uint8_t)text[at])) != 0) {
            const int32_t id = tokenizer->trie.nodes[node].id;
            at++;
            if (id < 0 || encode_scratch_is_text(scratch, id)) continue;
            found = id;
            end = at;
        }
        if (!encode_scratch_charge_trie(scratch, at - start + extension->prefix_bytes + 1)) return false;
        if (found < 0) {
            scratch->tokens->count = count;
            return append_unknown(scratch, text);
        }
        if (!tokenizer_token_append(scratch->tokens, found, scratch->status)) return false;
        start = end;
    }
    return true;
}

bool tokenizer_word_level(struct encode_scratch *scratch, const char *text, size_t size)
{
    int32_t id = tokenizer_model_token(scratch, text, size);
    return id < 0 ? append_unknown(scratch, text) : tokenizer_token_append(scratch->tokens, id, scratch->status);
}
