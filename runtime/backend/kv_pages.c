/* SPDX-License-Identifier: Apache-2.0 */
/* The size of the KV pool, for every backend. */
#include <inttypes.h>

#include "formats/base/checked.h"
#include "runtime/backend/backend.h"

/* A pool beside a larger one has this part of the room. */
enum { PARTS_BESIDE = 8 };

/* Pages for so many tokens, however they are divided among the slots; `chunk`: see plan_ring_pages. */
static uint64_t pages_for_tokens(const struct plan_geometry *geometry, uint64_t tokens, uint64_t chunk)
{
    const uint64_t all = tokens / geometry->page_tokens + (tokens % geometry->page_tokens != 0);
    uint64_t pages = 0;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++) {
        uint64_t own = plan_group_pages(geometry, g, geometry->max_context, chunk);
        if (!checked_mul(own, geometry->slots, &own) || own > all) own = all;
        if (!checked_add(pages, own, &pages)) return UINT64_MAX;
    }
    return pages;
}

bool backend_kv_pages(const struct plan_geometry *geometry, const struct backend_options *options, uint64_t room,
                      uint64_t *pages, struct status *status)
{
    const uint64_t chunk = options->chunk ? options->chunk : 1;
    const bool is_beside = options->sequences && options->sequences < geometry->slots;
    uint64_t most, least = plan_page_groups(geometry);
    if (!checked_mul(is_beside ? options->sequences : geometry->slots,
                     plan_sequence_pages(geometry, geometry->max_context, chunk), &most))
        most = INT32_MAX;
    if (most > INT32_MAX) most = INT32_MAX; /* page numbers are int32 */
    if (options->kv_tokens) {
        *pages = pages_for_tokens(geometry, options->kv_tokens, chunk);
    } else if (options->kv_bytes) {
        *pages = options->kv_bytes / geometry->page_bytes;
    } else {
        *pages = room / (options->sequences ? PARTS_BESIDE : 1) / geometry->page_bytes;
        least = plan_sequence_pages(geometry, geometry->max_context, chunk);
        if (*pages < least) *pages = least;
    }
    if (*pages > most) *pages = most; /* more could never be used */
    if (*pages >= least) return true;
    return status_fail(status, STATUS_USAGE,
                       "eng_session_create: kv_bytes: expected room for %" PRIu64 " KV pages of %" PRIu64
                       " bytes (%" PRIu64 " tokens), found %" PRIu64,
                       least, geometry->page_bytes, geometry->page_tokens, options->kv_bytes);
}
