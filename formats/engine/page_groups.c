/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/engine/page_groups.h"

#include "formats/base/json.h"

unsigned page_group_sums(const struct plan_geometry *geometry, uint64_t tokens, uint64_t chunk,
                         struct page_group_sum sums[PLAN_MAX_PAGE_GROUPS])
{
    unsigned count = 0;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++) {
        unsigned s = 0;
        while (s < count && sums[s].window != geometry->page_window[g]) s++;
        if (s == count) sums[count++] = (struct page_group_sum){.window = geometry->page_window[g]};
        sums[s].groups++;
        sums[s].pages += plan_group_pages(geometry, g, tokens, chunk);
    }
    return count;
}

json_t *page_groups_json(const struct plan_geometry *geometry, uint64_t chunk)
{
    struct page_group_sum sums[PLAN_MAX_PAGE_GROUPS];
    const unsigned count = page_group_sums(geometry, geometry->max_context, chunk, sums);
    json_t *windows = json_array();
    uint64_t pages = 0;
    bool ok = windows != NULL;
    for (unsigned s = 0; s < count; s++) {
        pages += sums[s].pages;
        ok = ok && json_add(windows, json_pack("{s:I, s:I, s:I, s:I}", "window", (json_int_t)sums[s].window, "groups",
                                               (json_int_t)sums[s].groups, "pages", (json_int_t)sums[s].pages, "bytes",
                                               (json_int_t)(sums[s].pages * geometry->page_bytes)));
    }
    json_t *json =
        json_pack("{s:I, s:I, s:I, s:o}", "tokens", (json_int_t)geometry->max_context, "pages", (json_int_t)pages,
                  "bytes", (json_int_t)(pages * geometry->page_bytes), "windows", windows);
    if (ok) return json;
    json_decref(json);
    return NULL;
}
