/* SPDX-License-Identifier: Apache-2.0 */
/* The hash tables of an image: tokens by their texts, ranks of merges by their pairs. */
#include <string.h>

#include "formats/base/hash.h"
#include "formats/tokenizer/tokenizer_internal.h"

int32_t tokenizer_lookup_from(const struct tokenizer *tokenizer, uint32_t slot, const char *text, size_t size)
{
    uint32_t mask = tokenizer->header->token_slot_count - 1;
    for (int probe = 0; probe <= TOKENIZER_PROBE_LIMIT; probe++, slot = (slot + 1) & mask) {
        uint32_t entry = tokenizer->token_slots[slot];
        if (entry == 0) return -1;
        const struct image_token *token = &tokenizer->tokens[entry - 1];
        if (token->text_bytes == size && memcmp(tokenizer->pool + token->text_offset, text, size) == 0)
            return (int32_t)(entry - 1);
    }
    return -1;
}

int32_t tokenizer_lookup(const struct tokenizer *tokenizer, const char *text, size_t size)
{
    uint32_t slot = (uint32_t)hash64(text, size) & (tokenizer->header->token_slot_count - 1);
    return tokenizer_lookup_from(tokenizer, slot, text, size);
}

uint32_t tokenizer_merge_rank(const struct tokenizer *tokenizer, uint32_t left, uint32_t right)
{
    uint32_t mask = tokenizer->header->merge_slot_count - 1;
    uint32_t slot = tokenizer_merge_home(left, right) & mask;
    for (int probe = 0; probe <= TOKENIZER_PROBE_LIMIT; probe++, slot = (slot + 1) & mask) {
        uint32_t entry = tokenizer->merge_slots[slot];
        if (entry == 0) return UINT32_MAX;
        const struct image_merge *merge = &tokenizer->merges[entry - 1];
        if (merge->left == left && merge->right == right) return entry - 1;
    }
    return UINT32_MAX;
}

int32_t tokenizer_model_token(const struct encode_scratch *scratch, const char *text, size_t size)
{
    int32_t id = tokenizer_lookup(scratch->tokenizer, text, size);
    /* a special token may also be in the model's vocabulary */
    return id >= 0 && (scratch->tokenizer->tokens[id].flags & TOKEN_MODEL) && !encode_scratch_is_text(scratch, id) ? id
                                                                                                                   : -1;
}
