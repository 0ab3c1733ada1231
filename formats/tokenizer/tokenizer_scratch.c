/* SPDX-License-Identifier: Apache-2.0 */
/* State of one encode call. */
#include <stdlib.h>
#include <string.h>

#include "formats/tokenizer/tokenizer_internal.h"

/* Limit of the bytes that all steps may write. Real tokenizers write each byte of text a few times, some three times as
 * long; a hostile one multiplies in every step. */
enum { WORK_BASE = 1 << 16, WORK_PER_BYTE = 256, WORK_PER_BYTE_OF_GROWTH = 8 };

/* The longest tokens of real vocabularies have about 100 bytes, and a text in which every position begins such a token
 * is unusual; steps of the pre-tokenizer may make three bytes of one. */
enum { TRIE_BASE = 1 << 20, TRIE_PER_BYTE = 1024 };

bool encode_scratch_open(struct encode_scratch *scratch, const struct tokenizer *tokenizer, struct token_buffer *tokens,
                         size_t text_size, struct status *status)
{
    memset(scratch, 0, sizeof *scratch);
    scratch->tokenizer = tokenizer;
    scratch->tokens = tokens;
    scratch->status = status;
    scratch->work_left = WORK_BASE + WORK_PER_BYTE * (uint64_t)text_size;
    scratch->trie_left = TRIE_BASE + TRIE_PER_BYTE * (uint64_t)text_size;
    return tokenizer_matcher_open(&scratch->matcher, text_size, status);
}

bool encode_scratch_charge(struct encode_scratch *scratch, size_t size)
{
    if (size > scratch->work_left)
        return status_fail(scratch->status, STATUS_BAD_INPUT,
                           "the tokenizer's steps make the text grow beyond all measure");
    scratch->work_left -= size;
    return true;
}

bool encode_scratch_charge_growth(struct encode_scratch *scratch, size_t before, size_t size)
{
    return encode_scratch_charge(scratch, size + (size > before ? WORK_PER_BYTE_OF_GROWTH * (size - before) : 0));
}

bool encode_scratch_charge_trie(struct encode_scratch *scratch, size_t steps)
{
    if (steps > scratch->trie_left)
        return status_fail(scratch->status, STATUS_BAD_INPUT,
                           "the tokenizer's vocabulary takes too much work for this text: long tokens begin alike at "
                           "too many places");
    scratch->trie_left -= steps;
    return true;
}

bool encode_scratch_is_text(const struct encode_scratch *scratch, int32_t id)
{
    if (!scratch->plain) return false;
    for (size_t i = 0; i < scratch->marker_count; i++)
        if (scratch->markers[i] == id) return true;
    return (scratch->tokenizer->tokens[id].flags & TOKEN_SPECIAL) != 0;
}

void encode_scratch_close(struct encode_scratch *scratch)
{
    tokenizer_matcher_close(&scratch->matcher);
    text_buffer_free(&scratch->repaired);
    for (size_t i = 0; i < 2; i++) {
        text_buffer_free(&scratch->normalized[i]);
        free(scratch->added[i].found);
    }
    for (size_t i = 0; i < TOKENIZER_STEP_LIMIT; i++) text_buffer_free(&scratch->stages[i]);
    text_buffer_free(&scratch->whole);
    text_buffer_free(&scratch->marks);
    free(scratch->merge.symbols);
    free(scratch->merge.heap);
    free(scratch->places);
}
