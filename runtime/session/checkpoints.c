/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/session/checkpoints.h"

#include <stdlib.h>
#include <string.h>

uint64_t checkpoints_most_pages(const struct plan_geometry *geometry)
{
    uint64_t pages = 0;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++) {
        const uint64_t most = geometry->page_window[g] / geometry->page_tokens + 2;
        if (geometry->page_window[g]) pages += most < geometry->pages_per_slot ? most : geometry->pages_per_slot;
    }
    return pages;
}

bool checkpoints_open(struct checkpoints *checkpoints, struct page_pool *pool, uint32_t count, uint32_t most_pages,
                      int32_t *tokens, uint64_t stride)
{
    *checkpoints = (struct checkpoints){.pool = pool, .most_pages = most_pages};
    if (!count) return true;
    checkpoints->all = calloc(count, sizeof *checkpoints->all);
    checkpoints->pages = calloc((size_t)count * most_pages + 1, sizeof *checkpoints->pages);
    if (!checkpoints->all || !checkpoints->pages) return false;
    for (uint32_t i = 0; i < count; i++) {
        checkpoints->all[i].pages = checkpoints->pages + (size_t)i * most_pages;
        checkpoints->all[i].tokens = tokens + i * stride;
    }
    checkpoints->count = count;
    return true;
}

void checkpoints_close(struct checkpoints *checkpoints)
{
    free(checkpoints->all);
    free(checkpoints->pages);
    *checkpoints = (struct checkpoints){0};
}

/* It is in use, and its tokens are the beginning of `tokens`. */
static bool is_of(const struct session_checkpoint *one, uint64_t root, const int32_t *tokens, uint32_t most)
{
    return one->count && one->count <= most && one->root == root &&
           memcmp(one->tokens, tokens, one->count * sizeof *tokens) == 0;
}

struct session_checkpoint *checkpoints_find(const struct checkpoints *checkpoints, uint64_t root, const int32_t *tokens,
                                            uint32_t most)
{
    struct session_checkpoint *found = NULL;
    for (uint32_t i = 0; i < checkpoints->count; i++) {
        struct session_checkpoint *one = &checkpoints->all[i];
        if ((!found || one->count > found->count) && is_of(one, root, tokens, most)) found = one;
    }
    return found;
}

uint32_t checkpoints_common(const struct checkpoints *checkpoints, uint64_t root, const int32_t *tokens, uint32_t count)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < checkpoints->count; i++) {
        const struct session_checkpoint *one = &checkpoints->all[i];
        const uint32_t end = one->count < count ? one->count : count;
        uint32_t common = 0;
        if (one->root != root) continue;
        while (common < end && one->tokens[common] == tokens[common]) common++;
        if (common > most) most = common;
    }
    return most;
}

void checkpoints_touch(struct checkpoints *checkpoints, struct session_checkpoint *checkpoint)
{
    checkpoint->used = ++checkpoints->clock;
}

void checkpoints_drop(struct checkpoints *checkpoints, struct session_checkpoint *checkpoint)
{
    checkpoints->pool->spare_count -= checkpoint->page_count;
    for (uint32_t i = 0; i < checkpoint->page_count; i++) page_pool_drop(checkpoints->pool, checkpoint->pages[i]);
    checkpoint->count = checkpoint->page_count = 0;
}

void checkpoints_prove(struct checkpoints *checkpoints, uint64_t root, const int32_t *tokens, uint32_t from,
                       uint32_t to)
{
    for (uint32_t i = 0; i < checkpoints->count; i++) {
        struct session_checkpoint *one = &checkpoints->all[i];
        if (one->count > from && !one->is_proven) one->is_proven = is_of(one, root, tokens, to);
    }
}

void checkpoints_forget(struct checkpoints *checkpoints, uint64_t root, const int32_t *tokens, uint32_t from,
                        uint32_t to)
{
    for (uint32_t i = 0; i < checkpoints->count; i++) {
        struct session_checkpoint *one = &checkpoints->all[i];
        if (one->count > from && !one->is_proven && is_of(one, root, tokens, to)) checkpoints_drop(checkpoints, one);
    }
}

/* The one that was used longest ago; NULL: none is in use. */
static struct session_checkpoint *oldest(const struct checkpoints *checkpoints)
{
    struct session_checkpoint *found = NULL;
    for (uint32_t i = 0; i < checkpoints->count; i++) {
        struct session_checkpoint *one = &checkpoints->all[i];
        if (one->count && one != checkpoints->held && (!found || one->used < found->used)) found = one;
    }
    return found;
}

void checkpoints_make_room(struct checkpoints *checkpoints, uint32_t pages)
{
    struct page_pool *pool = checkpoints->pool;
    while (pool->free_count < pages) {
        if (!pool->idle_count) {
            checkpoints_drop(checkpoints, oldest(checkpoints));
            continue;
        }
        const uint64_t block = page_pool_evict(pool);
        for (uint32_t i = 0; i < checkpoints->count; i++) {
            struct session_checkpoint *one = &checkpoints->all[i];
            if (one->count && one->block == block) checkpoints_drop(checkpoints, one);
        }
    }
}

/* A record that is not in use. */
static struct session_checkpoint *take_record(struct checkpoints *checkpoints)
{
    for (uint32_t i = 0; i < checkpoints->count; i++)
        if (!checkpoints->all[i].count) return &checkpoints->all[i];
    struct session_checkpoint *one = oldest(checkpoints);
    if (one) checkpoints_drop(checkpoints, one);
    return one;
}

struct session_checkpoint *checkpoints_add(struct checkpoints *checkpoints, uint64_t root, const int32_t *tokens,
                                           uint32_t count, uint64_t block, uint32_t pages)
{
    struct page_pool *pool = checkpoints->pool;
    if (pages > page_pool_available(pool)) return NULL;
    struct session_checkpoint *one = take_record(checkpoints);
    if (!one) return NULL;
    checkpoints_make_room(checkpoints, pages);
    for (uint32_t i = 0; i < pages; i++) one->pages[i] = page_pool_take(pool);
    one->count = count;
    one->root = root;
    one->block = block;
    one->is_proven = false;
    one->page_count = pages;
    memcpy(one->tokens, tokens, count * sizeof *tokens);
    checkpoints_touch(checkpoints, one);
    pool->spare_count += pages;
    return one;
}

void checkpoints_hold(struct checkpoints *checkpoints, const struct session_checkpoint *checkpoint)
{
    checkpoints->held = checkpoint;
    checkpoints->pool->spare_count -= checkpoint->page_count;
}

void checkpoints_release(struct checkpoints *checkpoints)
{
    checkpoints->pool->spare_count += checkpoints->held->page_count;
    checkpoints->held = NULL;
}
