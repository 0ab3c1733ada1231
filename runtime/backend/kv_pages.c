/* SPDX-License-Identifier: Apache-2.0 */
/* The size of the KV pool, for every backend. */
#include <inttypes.h>

#include "formats/base/checked.h"
#include "runtime/backend/backend.h"

bool backend_kv_pages(const struct plan_geometry *geometry, const struct backend_options *options, uint64_t room,
                      uint64_t *pages, struct status *status)
{
    uint64_t most, least = 1;
    if (!checked_mul(geometry->slots, geometry->pages_per_slot, &most)) most = INT32_MAX;
    if (most > INT32_MAX) most = INT32_MAX; /* page numbers are int32 */
    if (options->kv_tokens) {
        *pages = options->kv_tokens / geometry->page_tokens + (options->kv_tokens % geometry->page_tokens != 0);
    } else if (options->kv_bytes) {
        *pages = options->kv_bytes / geometry->page_bytes;
    } else {
        *pages = room / geometry->page_bytes;
        least = geometry->pages_per_slot;
        if (*pages < least) *pages = least;
    }
    if (*pages > most) *pages = most; /* more could never be used */
    if (*pages >= least) return true;
    return status_fail(status, STATUS_USAGE,
                       "eng_session_create: kv_bytes: expected at least one page of %" PRIu64 " bytes (%" PRIu64
                       " tokens), found %" PRIu64,
                       geometry->page_bytes, geometry->page_tokens, options->kv_bytes);
}
