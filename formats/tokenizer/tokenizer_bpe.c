/* SPDX-License-Identifier: Apache-2.0 */
/* Byte pair encoding of one word: characters become tokens, then the adjacent pair of the lowest rank (the leftmost
 * among equals) is merged until no pair has a rank.
 *
 * For short words, each merge scans all pairs. Long words keep candidates in a heap, O(n log n). A candidate is stale
 * if its position no longer has that pair; symbols only grow, so a changed pair never recurs.
 *
 * A SentencePiece-style tokenizer has no pre-tokenizer, so the whole text is one word. Since no token of such a
 * vocabulary extends over the start of a word, the text is merged in pieces. */
#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"
#include "formats/tokenizer/tokenizer_internal.h"

enum { SCAN_LIMIT = 32 /* symbols; above, the heap is faster */ };

static const uint32_t no_rank = UINT32_MAX;

static bool out_of_memory(struct status *status)
{
    return status_fail(status, STATUS_MACHINE, "out of memory while encoding text");
}

static int32_t model_token(const struct tokenizer *tokenizer, const char *text, size_t size)
{
    int32_t id = tokenizer_lookup(tokenizer, text, size);
    return id >= 0 && (tokenizer->tokens[id].flags & TOKEN_MODEL) ? id : -1;
}

static bool reserve_symbols(struct merge_scratch *merge, size_t count, struct status *status)
{
    if (count > INT32_MAX)
        return status_fail(status, STATUS_TOO_LONG, "one word of %zu bytes is too long to encode", count);
    if (count <= merge->symbol_capacity) return true;
    size_t capacity = count + count / 2 + 64;
    void *symbols = realloc(merge->symbols, capacity * sizeof *merge->symbols);
    if (!symbols) return out_of_memory(status);
    merge->symbols = symbols;
    merge->symbol_capacity = capacity;
    return true;
}

static void add_symbol(struct merge_scratch *merge, int32_t id)
{
    int32_t index = (int32_t)merge->symbol_count++;
    merge->symbols[index] = (struct merge_symbol){id, index - 1, index + 1};
}

/* A character as the first symbol that it makes: with the model's prefix and suffix. Returns the size. */
enum { SYMBOL_BYTES = TEXT_CHARACTER_BYTES + 2 * TOKENIZER_AFFIX_LIMIT };
static size_t write_symbol(const struct tokenizer *tokenizer, const char *here, size_t length, bool is_first,
                           bool is_last, char symbol[SYMBOL_BYTES])
{
    const struct image_extension *extension = tokenizer->extension;
    size_t size = 0;
    if (!is_first) {
        memcpy(symbol, tokenizer->pool + extension->prefix_offset, extension->prefix_bytes);
        size += extension->prefix_bytes;
    }
    memcpy(symbol + size, here, length);
    size += length;
    if (is_last) {
        memcpy(symbol + size, tokenizer->pool + extension->suffix_offset, extension->suffix_bytes);
        size += extension->suffix_bytes;
    }
    return size;
}

static bool all_bytes_known(const struct tokenizer *tokenizer, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (tokenizer->byte_ids[(uint8_t)text[i]] < 0) return false;
    return true;
}

/* Splits the word into its initial symbols. An unknown token is pending until the next known character, as in Hugging
 * Face; byte tokens do not end it, so they precede it. */
static bool first_symbols(struct encode_scratch *scratch, const char *text, size_t size)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    const struct image_header *header = tokenizer->header;
    struct merge_scratch *merge = &scratch->merge;
    const uint32_t prefix_bytes = tokenizer->extension->prefix_bytes, suffix_bytes = tokenizer->extension->suffix_bytes;
    const bool has_affixes = prefix_bytes > 0 || suffix_bytes > 0;
    bool pending = false;
    char symbol[SYMBOL_BYTES];
    merge->symbol_count = 0;
    /* a character makes at most as many symbols as it has bytes: byte tokens, one token, or one unknown token */
    if (!reserve_symbols(merge, size * (1 + (size_t)prefix_bytes) + suffix_bytes, scratch->status)) return false;
    for (size_t at = 0; at < size;) {
        uint32_t character;
        const char *here = text + at;
        size_t length = text_read(here, &character);
        at += length;
        if (has_affixes) {
            length = write_symbol(tokenizer, here, length, at == length, at == size, symbol);
            here = symbol;
        }
        int32_t id = character < CHARACTER_TABLE && !has_affixes ? tokenizer->character_ids[character]
                                                                 : model_token(tokenizer, here, length);
        if (id >= 0) {
            if (pending) add_symbol(merge, header->unknown_id);
            pending = false;
            add_symbol(merge, id);
        } else if ((header->model_flags & MODEL_BYTE_FALLBACK) && all_bytes_known(tokenizer, here, length)) {
            for (size_t i = 0; i < length; i++) add_symbol(merge, tokenizer->byte_ids[(uint8_t)here[i]]);
        } else if (header->model_flags & MODEL_UNKNOWN_MISSING) {
            return status_fail(
                scratch->status, STATUS_BAD_INPUT,
                "the text has U+%04X, which no token covers, and the tokenizer's unknown token is not in its "
                "vocabulary",
                (unsigned)character);
        } else if (header->unknown_id >= 0) {
            if (pending && !(header->model_flags & MODEL_FUSE_UNKNOWN)) add_symbol(merge, header->unknown_id);
            pending = true;
        } /* without an unknown token the character is dropped, as in Hugging Face */
    }
    if (pending) add_symbol(merge, header->unknown_id);
    if (merge->symbol_count) merge->symbols[merge->symbol_count - 1].next = -1;
    return true;
}

/* Merges that make a token that this call treats as text have no rank. */
static uint32_t merge_rank(const struct encode_scratch *scratch, int32_t left, int32_t right)
{
    uint32_t rank = tokenizer_merge_rank(scratch->tokenizer, (uint32_t)left, (uint32_t)right);
    if (!scratch->plain || rank == no_rank) return rank;
    return encode_scratch_is_text(scratch, (int32_t)scratch->tokenizer->merges[rank].result) ? no_rank : rank;
}

static void merge_by_scanning(struct encode_scratch *scratch)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    struct merge_scratch *merge = &scratch->merge;
    uint32_t ranks[SCAN_LIMIT]; /* of the pair (i, i + 1) in the shrinking array */
    struct merge_symbol *symbols = merge->symbols;
    size_t count = merge->symbol_count;
    for (size_t i = 0; i + 1 < count; i++) ranks[i] = merge_rank(scratch, symbols[i].id, symbols[i + 1].id);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == no_rank) break;
        symbols[best].id = (int32_t)tokenizer->merges[ranks[best]].result;
        count--;
        for (size_t i = best + 1; i < count; i++) symbols[i].id = symbols[i + 1].id;
        for (size_t i = best + 1; i + 1 < count; i++) ranks[i] = ranks[i + 1];
        if (best > 0) ranks[best - 1] = merge_rank(scratch, symbols[best - 1].id, symbols[best].id);
        if (best + 1 < count) ranks[best] = merge_rank(scratch, symbols[best].id, symbols[best + 1].id);
    }
    merge->symbol_count = count;
}

static bool comes_before(struct merge_candidate a, struct merge_candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.position < b.position;
}

static bool heap_push(struct merge_scratch *merge, struct merge_candidate candidate, struct status *status)
{
    if (merge->heap_count == merge->heap_capacity) {
        size_t capacity = merge->heap_capacity * 2 + 256;
        void *heap = realloc(merge->heap, capacity * sizeof *merge->heap);
        if (!heap) return out_of_memory(status);
        merge->heap = heap;
        merge->heap_capacity = capacity;
    }
    size_t at = merge->heap_count++;
    while (at > 0 && comes_before(candidate, merge->heap[(at - 1) / 2])) {
        merge->heap[at] = merge->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    merge->heap[at] = candidate;
    return true;
}

static struct merge_candidate heap_pop(struct merge_scratch *merge)
{
    struct merge_candidate top = merge->heap[0], last = merge->heap[--merge->heap_count];
    size_t at = 0, count = merge->heap_count;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && comes_before(merge->heap[child + 1], merge->heap[child])) child++;
        if (!comes_before(merge->heap[child], last)) break;
        merge->heap[at] = merge->heap[child];
    }
    merge->heap[at] = last;
    return top;
}

static bool push_pair(struct encode_scratch *scratch, int32_t left)
{
    struct merge_scratch *merge = &scratch->merge;
    int32_t right = merge->symbols[left].next;
    uint32_t rank = merge_rank(scratch, merge->symbols[left].id, merge->symbols[right].id);
    return rank == no_rank || heap_push(merge, (struct merge_candidate){rank, (uint32_t)left}, scratch->status);
}

static bool merge_by_heap(struct encode_scratch *scratch)
{
    struct merge_scratch *merge = &scratch->merge;
    struct merge_symbol *symbols = merge->symbols;
    merge->heap_count = 0;
    for (size_t i = 0; i + 1 < merge->symbol_count; i++)
        if (!push_pair(scratch, (int32_t)i)) return false;
    while (merge->heap_count) {
        struct merge_candidate top = heap_pop(merge);
        const struct image_merge *pair = &scratch->tokenizer->merges[top.rank];
        struct merge_symbol *left = &symbols[top.position];
        if (left->id != (int32_t)pair->left || left->next < 0 || symbols[left->next].id != (int32_t)pair->right)
            continue;
        struct merge_symbol *right = &symbols[left->next];
        left->id = (int32_t)pair->result;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) symbols[left->next].previous = (int32_t)top.position;
        if (left->previous >= 0 && !push_pair(scratch, left->previous)) return false;
        if (left->next >= 0 && !push_pair(scratch, (int32_t)top.position)) return false;
    }
    size_t kept = 0;
    for (size_t i = 0; i < merge->symbol_count; i++)
        if (symbols[i].id >= 0) symbols[kept++].id = symbols[i].id;
    merge->symbol_count = kept;
    return true;
}

size_t tokenizer_next_word(const struct tokenizer *tokenizer, const char *text, size_t size)
{
    const char *start = tokenizer->word_start;
    size_t bytes = tokenizer->word_start_bytes, at = 0;
    while (size - at > bytes) {
        const char *found = text_find(text + at + 1, size - at - 1, start, bytes);
        if (!found) return size;
        at = (size_t)(found - text);
        if (at < bytes || memcmp(found - bytes, start, bytes) != 0) return at;
    }
    return size;
}

static bool merge_piece(struct encode_scratch *scratch, const char *text, size_t size)
{
    struct merge_scratch *merge = &scratch->merge;
    if (!first_symbols(scratch, text, size)) return false;
    if (merge->symbol_count <= SCAN_LIMIT)
        merge_by_scanning(scratch);
    else if (!merge_by_heap(scratch))
        return false;
    for (size_t i = 0; i < merge->symbol_count; i++)
        if (!tokenizer_token_append(scratch->tokens, merge->symbols[i].id, scratch->status)) return false;
    return true;
}

bool tokenizer_merge_word(struct encode_scratch *scratch, const char *text, size_t size)
{
    const struct tokenizer *tokenizer = scratch->tokenizer;
    if (tokenizer->header->model_flags & MODEL_IGNORE_MERGES) {
        int32_t id = tokenizer_model_token(scratch, text, size);
        if (id >= 0) return tokenizer_token_append(scratch->tokens, id, scratch->status);
    }
    while (size > 0) {
        size_t piece = tokenizer->word_start_bytes ? tokenizer_next_word(tokenizer, text, size) : size;
        if (!merge_piece(scratch, text, piece)) return false;
        text += piece;
        size -= piece;
    }
    return true;
}
