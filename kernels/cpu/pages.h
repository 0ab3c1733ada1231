/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses in the paged KV pool (layout: kernels/op/paged.h), for ops that write or read it. */
#ifndef KERNELS_CPU_PAGES_H
#define KERNELS_CPU_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/op/paged.h"

struct pages {
    uint8_t *first;           /* this layer's block in page 0 */
    const int32_t *table;     /* [slots, per_slot] */
    int64_t per_slot, tokens; /* pages per slot, tokens per page */
    int64_t page_bytes;
    int64_t token_bytes; /* one head's k or v of one token */
    int64_t values; /* distance from a k to the v of the same head and token, and from its scale to that of the v */
    int64_t scales; /* from the block to its first scale; 0: rows have no scales */
};

/* `params`: of an op on the KV cache. value_dim: its VALUE_DIM. */
static inline struct pages pages_of_latent(void *first, const void *table, const int64_t *params, int64_t value_dim)
{
    const struct op_kv_layout layout = op_latent_layout(params, value_dim);
    return (struct pages){.first = first,
                          .table = table,
                          .per_slot = params[PAGED_PAGES_PER_SLOT],
                          .tokens = params[PAGED_PAGE_TOKENS],
                          .page_bytes = params[PAGED_PAGE_BYTES],
                          .token_bytes = (int64_t)layout.row_bytes,
                          .values = (int64_t)layout.values,
                          .scales = (int64_t)layout.scales};
}

static inline struct pages pages_of(void *first, const void *table, const int64_t *params)
{
    return pages_of_latent(first, table, params, 0);
}

/* This layer's block in the page of a token. */
static inline uint8_t *pages_block(const struct pages *pages, int64_t slot, int64_t position)
{
    int64_t page = pages->table[slot * pages->per_slot + position / pages->tokens];
    return pages->first + page * pages->page_bytes;
}

/* The k of a token; its v is `values` bytes further, and the next token of the page `token_bytes`. */
static inline uint8_t *pages_key(const struct pages *pages, int64_t slot, int64_t position, int64_t kv_head)
{
    return pages_block(pages, slot, position) +
           (kv_head * pages->tokens + position % pages->tokens) * pages->token_bytes;
}

/* The scale of a k; that of its v is `values` bytes further, and that of the next token of the page 4. Requires: rows have
 * scales. */
static inline uint8_t *pages_key_scale(const struct pages *pages, int64_t slot, int64_t position, int64_t kv_head)
{
    return pages_block(pages, slot, position) + pages->scales +
           (kv_head * pages->tokens + position % pages->tokens) * (int64_t)sizeof(float);
}

#endif
