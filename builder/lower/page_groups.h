/* SPDX-License-Identifier: Apache-2.0 */
/* Division of a model's layers into page groups (plan_geometry.page_groups), so that layers with a window hold the KV cache of their
 * window alone. All pages have the same size: groups differ in window and layers, and pages of the last group of a window may end in
 * unused bytes. */
#ifndef BUILDER_LOWER_PAGE_GROUPS_H
#define BUILDER_LOWER_PAGE_GROUPS_H

#include "formats/checkpoint/model_config.h"
#include "formats/engine/manifest.h"

/* Sets page_groups, page_window and page_bytes so that a sequence of max_context tokens takes the fewest bytes, then so that there
 * are the fewest groups. One group without a window if no window saves a page. `chunk`: most tokens that a step appends to a
 * sequence. Requires: max_context, page_tokens and pages_per_slot are set. False on overflow. */
bool page_groups_choose(const struct model_config *config, enum encoding_id kv_dtype, uint64_t chunk,
                        struct plan_geometry *geometry);

/* The layer's group, and where its block begins in the group's pages. Requires: geometry from page_groups_choose for the same
 * config and type, or one group of all layers. */
struct page_place {
    unsigned group;
    uint64_t offset, bytes;
};
struct page_place page_place_of(const struct model_config *config, enum encoding_id kv_dtype,
                                const struct plan_geometry *geometry, uint32_t layer);

#endif
