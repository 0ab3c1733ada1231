/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/session/page_pool.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"

enum { FIRST_NUMBER = 16 }; /* above those of the empty text */

struct page_block {
    uint64_t number;      /* 0: not in the cache */
    uint64_t before;      /* number of the block before */
    int32_t next;         /* in the bucket */
    int32_t older, newer; /* if idle */
    bool is_proven;
};

static bool open_cache(struct page_pool *pool)
{
    const size_t count = pool->count;
    uint32_t buckets = 1;
    while (buckets < count && buckets < UINT32_C(1) << 30) buckets *= 2;
    pool->bucket_mask = buckets - 1;
    pool->blocks = calloc(count, sizeof *pool->blocks);
    pool->members = calloc(count * pool->groups, sizeof *pool->members);
    pool->block_of = malloc(count * sizeof *pool->block_of);
    pool->tokens = calloc(count * pool->page_tokens, sizeof *pool->tokens);
    pool->buckets = malloc(buckets * sizeof *pool->buckets);
    if (!pool->blocks || !pool->members || !pool->block_of || !pool->tokens || !pool->buckets) return false;
    for (size_t i = 0; i < count; i++) pool->block_of[i] = PAGE_POOL_NONE;
    for (size_t i = 0; i < buckets; i++) pool->buckets[i] = PAGE_POOL_NONE;
    return true;
}

bool page_pool_open(struct page_pool *pool, uint32_t count, uint32_t groups, uint32_t page_tokens, bool caches)
{
    *pool = (struct page_pool){.count = count,
                               .free_count = count,
                               .groups = groups,
                               .page_tokens = page_tokens,
                               .oldest = PAGE_POOL_NONE,
                               .newest = PAGE_POOL_NONE,
                               .last_number = FIRST_NUMBER};
    pool->free = calloc(count ? count : 1, sizeof *pool->free);
    pool->holders = calloc(count ? count : 1, sizeof *pool->holders);
    if (!pool->free || !pool->holders) return false;
    for (uint32_t i = 0; i < count; i++) pool->free[i] = (int32_t)(count - 1 - i); /* page 0 on top */
    return !caches || !count || open_cache(pool);
}

void page_pool_close(struct page_pool *pool)
{
    free(pool->free);
    free(pool->holders);
    free(pool->blocks);
    free(pool->members);
    free(pool->block_of);
    free(pool->tokens);
    free(pool->buckets);
    *pool = (struct page_pool){0};
}

uint32_t page_pool_available(const struct page_pool *pool)
{
    return pool->free_count + pool->idle_count + pool->spare_count;
}

/* ---- idle blocks ---- */

static void leave_idle(struct page_pool *pool, int32_t block)
{
    struct page_block *own = &pool->blocks[block];
    if (own->older == PAGE_POOL_NONE)
        pool->oldest = own->newer;
    else
        pool->blocks[own->older].newer = own->newer;
    if (own->newer == PAGE_POOL_NONE)
        pool->newest = own->older;
    else
        pool->blocks[own->newer].older = own->older;
    pool->idle_count -= pool->groups;
}

static void become_idle(struct page_pool *pool, int32_t block)
{
    struct page_block *own = &pool->blocks[block];
    own->older = pool->newest;
    own->newer = PAGE_POOL_NONE;
    if (pool->newest == PAGE_POOL_NONE)
        pool->oldest = block;
    else
        pool->blocks[pool->newest].newer = block;
    pool->newest = block;
    pool->idle_count += pool->groups;
}

/* ---- the cache ---- */

static int32_t *bucket_of(const struct page_pool *pool, uint64_t before, const int32_t *tokens)
{
    const uint64_t hash = hash64(tokens, pool->page_tokens * sizeof *tokens) ^ before * UINT64_C(0x9e3779b97f4a7c15);
    return &pool->buckets[(hash ^ hash >> 32) & pool->bucket_mask];
}

static int32_t *tokens_of(const struct page_pool *pool, int32_t block)
{
    return pool->tokens + (size_t)block * pool->page_tokens;
}

/* Its pages stay where they are. */
static void leave_cache(struct page_pool *pool, int32_t block)
{
    struct page_block *own = &pool->blocks[block];
    int32_t *at = bucket_of(pool, own->before, tokens_of(pool, block));
    while (*at != block) at = &pool->blocks[*at].next;
    *at = own->next;
    own->number = 0;
    for (uint32_t g = 0; g < pool->groups; g++)
        pool->block_of[pool->members[(size_t)block * pool->groups + g]] = PAGE_POOL_NONE;
}

int32_t page_pool_find(const struct page_pool *pool, uint64_t before, const int32_t *tokens)
{
    if (!pool->blocks) return PAGE_POOL_NONE;
    for (int32_t block = *bucket_of(pool, before, tokens); block != PAGE_POOL_NONE; block = pool->blocks[block].next)
        if (pool->blocks[block].before == before &&
            memcmp(tokens_of(pool, block), tokens, pool->page_tokens * sizeof *tokens) == 0)
            return block;
    return PAGE_POOL_NONE;
}

uint64_t page_pool_number(const struct page_pool *pool, int32_t block) { return pool->blocks[block].number; }

bool page_pool_is_idle(const struct page_pool *pool, int32_t block) { return pool->holders[block] == 0; }

const int32_t *page_pool_hold(struct page_pool *pool, int32_t block)
{
    const int32_t *pages = pool->members + (size_t)block * pool->groups;
    if (page_pool_is_idle(pool, block)) leave_idle(pool, block);
    for (uint32_t g = 0; g < pool->groups; g++) pool->holders[pages[g]]++;
    return pages;
}

uint64_t page_pool_keep(struct page_pool *pool, uint64_t before, const int32_t *tokens, const int32_t *pages)
{
    const int32_t known = page_pool_find(pool, before, tokens), block = pages[0];
    if (known != PAGE_POOL_NONE) return pool->blocks[known].number;
    int32_t *bucket = bucket_of(pool, before, tokens);
    pool->blocks[block] = (struct page_block){.number = ++pool->last_number, .before = before, .next = *bucket};
    *bucket = block;
    memcpy(tokens_of(pool, block), tokens, pool->page_tokens * sizeof *tokens);
    for (uint32_t g = 0; g < pool->groups; g++) {
        pool->members[(size_t)block * pool->groups + g] = pages[g];
        pool->block_of[pages[g]] = block;
    }
    return pool->last_number;
}

void page_pool_prove(struct page_pool *pool, int32_t page)
{
    const int32_t block = pool->block_of[page];
    if (block != PAGE_POOL_NONE) pool->blocks[block].is_proven = true;
}

void page_pool_forget(struct page_pool *pool, int32_t page)
{
    const int32_t block = pool->block_of[page];
    if (block != PAGE_POOL_NONE && !pool->blocks[block].is_proven) leave_cache(pool, block);
}

/* ---- pages ---- */

uint64_t page_pool_evict(struct page_pool *pool)
{
    const int32_t block = pool->oldest;
    const uint64_t number = page_pool_number(pool, block);
    leave_idle(pool, block);
    leave_cache(pool, block);
    for (uint32_t g = 0; g < pool->groups; g++)
        pool->free[pool->free_count++] = pool->members[(size_t)block * pool->groups + g];
    return number;
}

int32_t page_pool_take(struct page_pool *pool)
{
    if (!pool->free_count) page_pool_evict(pool);
    const int32_t page = pool->free[--pool->free_count];
    pool->holders[page] = 1;
    return page;
}

void page_pool_share(struct page_pool *pool, int32_t page) { pool->holders[page]++; }

void page_pool_drop(struct page_pool *pool, int32_t page)
{
    if (--pool->holders[page]) return;
    const int32_t block = pool->blocks ? pool->block_of[page] : PAGE_POOL_NONE;
    if (block == PAGE_POOL_NONE)
        pool->free[pool->free_count++] = page;
    else if (block == page)
        become_idle(pool, block);
}
