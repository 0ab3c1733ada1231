/* SPDX-License-Identifier: Apache-2.0 */
/* The KV pages of a session: which are free, how many slots share each, and a cache of those whose content can be used again.
 *
 * A block is what one place of a sequence's page table names: a page of every page group without a window. A block in the cache holds page_tokens tokens
 * of a sequence from a multiple of page_tokens on, and is known by its tokens and by the block before it, which has a number that is
 * never given twice. Tokens and number are compared, not a hash of them, so a block is found only by the text that it was made from.
 * A block in the cache that no slot holds is idle: it lasts until a page is needed and no other is free; the one that was used longest
 * ago goes first. Slots give their blocks back from the last to the first, so that a block goes before those that lead to it. A
 * block without the one before it is not found any more, and goes in its turn.
 *
 * A block is proven once finite logits came from it. Proven blocks stay if other logits that come from them are not finite: those are due
 * to the tokens after them, and one request must not take a shared beginning from all others. If memory of a proven block was damaged,
 * nothing but its turn to go heals it.
 *
 * Requires: one thread at a time. */
#ifndef RUNTIME_SESSION_PAGE_POOL_H
#define RUNTIME_SESSION_PAGE_POOL_H

#include <stdbool.h>
#include <stdint.h>

enum { PAGE_POOL_NONE = -1 };

struct page_block;
struct page_pool {
    uint32_t count, free_count, idle_count; /* pages; idle_count: of idle blocks */
    uint32_t spare_count;                   /* pages that checkpoints would give back (checkpoints.h) */
    uint32_t groups, page_tokens;           /* groups: pages of a block */
    int32_t *free;                          /* a stack */
    uint32_t *holders;                      /* [count]: slots that hold the page */
    /* The cache; NULL without one. A block is numbered by its first page. */
    struct page_block *blocks; /* [count] */
    int32_t *members;          /* [count, groups]: the pages of a block */
    int32_t *block_of;         /* [count]: the block in the cache that the page belongs to, PAGE_POOL_NONE */
    int32_t *tokens;           /* [count, page_tokens] */
    int32_t *buckets;          /* [bucket_mask + 1]: first block with such a hash */
    uint32_t bucket_mask;
    int32_t oldest, newest; /* idle blocks */
    uint64_t last_number;
};

/* All pages are free. `caches`: has a cache; groups is positive then. False: out of memory; page_pool_close is allowed. */
bool page_pool_open(struct page_pool *pool, uint32_t count, uint32_t groups, uint32_t page_tokens, bool caches);
void page_pool_close(struct page_pool *pool);

/* Pages that can be taken: free ones, those of idle blocks and those of checkpoints. */
uint32_t page_pool_available(const struct page_pool *pool);
/* Frees the pages of the idle block that was used longest ago. Returns its number. Requires: a block is idle. */
uint64_t page_pool_evict(struct page_pool *pool);
/* Takes a page for one slot. Requires: one is free, or of an idle block. */
int32_t page_pool_take(struct page_pool *pool);
/* One slot more holds a page, at the place of its group where another slot holds it. Requires: so it is with all pages of its block. */
void page_pool_share(struct page_pool *pool, int32_t page);
/* One slot less holds the page. Requires: so it is with all pages of its block, before anything else is done with the pool. */
void page_pool_drop(struct page_pool *pool, int32_t page);

/* Numbers of the empty text, which the first block follows: one for each set of rotary frequencies. */
static inline uint64_t page_pool_root(int32_t rope_set) { return 1 + (uint64_t)rope_set; }
/* The block with these tokens [page_tokens] after the block with this number; PAGE_POOL_NONE: there is none. */
int32_t page_pool_find(const struct page_pool *pool, uint64_t before, const int32_t *tokens);
uint64_t page_pool_number(const struct page_pool *pool, int32_t block);
bool page_pool_is_idle(const struct page_pool *pool, int32_t block);
/* One slot more holds the pages of a block. Returns them [groups]. */
const int32_t *page_pool_hold(struct page_pool *pool, int32_t block);
/* Puts the pages [groups], which hold these tokens, into the cache, unless it has such a block. Returns the number of that block.
 * Requires: one slot holds the pages, and no step writes to them any more. */
uint64_t page_pool_keep(struct page_pool *pool, uint64_t before, const int32_t *tokens, const int32_t *pages);
/* The block that the page belongs to, if it is in the cache, is proven. Requires: a slot holds the page; so for the next. */
void page_pool_prove(struct page_pool *pool, int32_t page);
/* Unless it is proven, it is not found any more. */
void page_pool_forget(struct page_pool *pool, int32_t page);

#endif
