/* SPDX-License-Identifier: Apache-2.0 */
/* KV memory of a sequence by window, for reports. */
#ifndef FORMATS_ENGINE_PAGE_GROUPS_H
#define FORMATS_ENGINE_PAGE_GROUPS_H

#include <jansson.h>

#include "formats/engine/plan.h"

/* What all page groups with the same window take together. */
struct page_group_sum {
    uint64_t window; /* 0: none */
    uint64_t groups;
    uint64_t pages; /* of one sequence */
};
/* The sums for a sequence of `tokens` tokens, in the order of the windows' first groups; see plan_group_pages. Returns how many. */
unsigned page_group_sums(const struct plan_geometry *geometry, uint64_t tokens, uint64_t chunk,
                         struct page_group_sum sums[PLAN_MAX_PAGE_GROUPS]);

/* {"tokens": of a sequence with the whole context, "pages", "bytes": of each rank, "windows": [the same of each window]}. NULL: no
 * memory. */
json_t *page_groups_json(const struct plan_geometry *geometry, uint64_t chunk);

#endif
