/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/page_groups.h"

#include <string.h>

#include "builder/lower/lowering.h"
#include "formats/base/checked.h"

/* Layers put into pages in their order. A layer follows the previous one of its window, in the same group while there is room. */
struct packing {
    const struct model_config *config;
    enum encoding_id kv_dtype;
    uint64_t page_tokens, page_bytes;
    uint64_t windows
        [PLAN_MAX_PAGE_GROUPS]; /* those that have groups of their own; layers with another one need all tokens */
    unsigned window_count;
    /* groups so far */
    uint64_t group_window[PLAN_MAX_PAGE_GROUPS], used[PLAN_MAX_PAGE_GROUPS];
    unsigned groups;
};

/* Bytes of the layer in a page; 0: it has no KV cache. */
static uint64_t block_bytes(const struct packing *packing, uint32_t layer)
{
    return kv_block_bytes_of(packing->config, layer, packing->page_tokens, packing->kv_dtype);
}

static uint64_t window_of(const struct packing *packing, uint32_t layer)
{
    const uint64_t window = packing->config->layer[layer].window;
    for (unsigned i = 0; i < packing->window_count; i++)
        if (packing->windows[i] == window) return window;
    return 0;
}

/* False: too many groups, or the layer is larger than a page. */
static bool pack_layer(struct packing *packing, uint32_t layer, struct page_place *place)
{
    const uint64_t bytes = block_bytes(packing, layer), window = window_of(packing, layer);
    unsigned group = packing->groups;
    *place = (struct page_place){0};
    if (!bytes) return true;
    if (bytes > packing->page_bytes) return false;
    while (group > 0 && packing->group_window[group - 1] != window) group--;
    if (group == 0 || packing->used[group - 1] > packing->page_bytes - bytes) {
        if (packing->groups == PLAN_MAX_PAGE_GROUPS) return false;
        packing->group_window[packing->groups++] = window;
        group = packing->groups;
    }
    *place = (struct page_place){group - 1, packing->used[group - 1], bytes};
    packing->used[group - 1] += bytes;
    return true;
}

static bool pack_all(struct packing *packing)
{
    struct page_place place;
    packing->groups = 0;
    memset(packing->used, 0, sizeof packing->used);
    for (uint32_t l = 0; l < packing->config->layers; l++)
        if (!pack_layer(packing, l, &place)) return false;
    return packing->groups > 0;
}

/* Windows with which a sequence of max_context tokens holds fewer pages. */
static void find_windows(struct packing *packing, const struct plan_geometry *geometry, uint64_t chunk)
{
    for (uint32_t l = 0; l < packing->config->layers; l++) {
        const uint64_t window = packing->config->layer[l].window;
        struct plan_geometry one = *geometry;
        one.page_window[0] = window;
        if (!window || !block_bytes(packing, l) || window_of(packing, l) == window) continue;
        if (plan_ring_pages(&one, 0, chunk) >= geometry->pages_per_slot) continue;
        if (packing->window_count < PLAN_MAX_PAGE_GROUPS) packing->windows[packing->window_count++] = window;
    }
}

static void take_groups(const struct packing *packing, struct plan_geometry *geometry)
{
    geometry->page_groups = packing->groups;
    geometry->page_bytes = packing->page_bytes;
    memset(geometry->page_window, 0, sizeof geometry->page_window);
    memcpy(geometry->page_window, packing->group_window, packing->groups * sizeof *packing->group_window);
}

/* Bytes of a sequence of max_context tokens; UINT64_MAX on overflow. */
static uint64_t sequence_bytes(const struct plan_geometry *geometry, uint64_t chunk)
{
    uint64_t bytes = plan_sequence_pages(geometry, geometry->max_context, chunk);
    return checked_mul(bytes, geometry->page_bytes, &bytes) ? bytes : UINT64_MAX;
}

bool page_groups_choose(const struct model_config *config, enum encoding_id kv_dtype, uint64_t chunk,
                        struct plan_geometry *geometry)
{
    struct packing packing = {.config = config, .kv_dtype = kv_dtype, .page_tokens = geometry->page_tokens};
    const uint64_t all_bytes = kv_all_bytes(config, geometry->page_tokens, kv_dtype);
    if (!all_bytes) return false;
    packing.page_bytes = all_bytes;
    if (!pack_all(&packing)) return false;
    take_groups(&packing, geometry);
    find_windows(&packing, geometry, chunk);
    if (!packing.window_count) return true;

    /* Pages as large as the first layers of each window: any other size leaves more bytes unused. */
    struct plan_geometry found = *geometry;
    for (uint32_t last = 0; last < config->layers; last++) {
        const uint64_t window = window_of(&packing, last);
        packing.page_bytes = 0;
        for (uint32_t l = 0; l <= last; l++)
            if (window_of(&packing, l) == window) packing.page_bytes += block_bytes(&packing, l);
        if (packing.page_bytes % PLAN_ALIGNMENT || !pack_all(&packing)) continue;
        take_groups(&packing, &found);
        const uint64_t bytes = sequence_bytes(&found, chunk), least = sequence_bytes(geometry, chunk);
        if (bytes < least || (bytes == least && found.page_groups < geometry->page_groups)) *geometry = found;
    }
    return true;
}

struct page_place page_place_of(const struct model_config *config, enum encoding_id kv_dtype,
                                const struct plan_geometry *geometry, uint32_t layer)
{
    struct packing packing = {.config = config,
                              .kv_dtype = kv_dtype,
                              .page_tokens = geometry->page_tokens,
                              .page_bytes = geometry->page_bytes};
    struct page_place place = {0};
    const unsigned groups = plan_page_groups(geometry);
    for (unsigned g = 0; groups > 1 && g < groups; g++)
        if (geometry->page_window[g]) packing.windows[packing.window_count++] = geometry->page_window[g];
    for (uint32_t l = 0; l <= layer && l < config->layers; l++)
        if (!pack_layer(&packing, l, &place)) break;
    return place;
}
