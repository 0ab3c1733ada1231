/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses in the paged KV pool (layout: kernels/rope_append/rope_append.h), for ops that write or read it. */
#ifndef KERNELS_CPU_PAGES_H
#define KERNELS_CPU_PAGES_H

#include <stddef.h>
#include <stdint.h>

struct pages {
    uint8_t *first;           /* this layer's block in page 0 */
    const int32_t *table;     /* [slots, per_slot] */
    int64_t per_slot, tokens; /* pages per slot, tokens per page */
    int64_t page_bytes;
    int64_t token_bytes; /* one head's k or v of one token */
    int64_t head_bytes;  /* one head's k or v of a page */
    int64_t values;      /* distance from a k to the v of the same head and token */
};

static inline struct pages pages_of(void *first, const void *table, int64_t per_slot, int64_t tokens,
                                    int64_t page_bytes, int64_t kv_heads, int64_t token_bytes)
{
    return (struct pages){.first = first,
                          .table = table,
                          .per_slot = per_slot,
                          .tokens = tokens,
                          .page_bytes = page_bytes,
                          .token_bytes = token_bytes,
                          .head_bytes = tokens * token_bytes,
                          .values = kv_heads * tokens * token_bytes};
}

/* The k of a token; its v is `values` bytes further. */
static inline uint8_t *pages_key(const struct pages *pages, int64_t slot, int64_t position, int64_t kv_head)
{
    int64_t page = pages->table[slot * pages->per_slot + position / pages->tokens];
    return pages->first + page * pages->page_bytes + kv_head * pages->head_bytes +
           position % pages->tokens * pages->token_bytes;
}

#endif
