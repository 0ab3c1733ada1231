/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/weight_layout.h"

#include "formats/base/checked.h"

enum tensor_layout weight_layout_of(enum engine_target target, int64_t encoding)
{
    struct panel_form form;
    if (target == TARGET_CPU) return LAYOUT_PANEL16;
    return fragment_form(encoding, &form) ? LAYOUT_FRAGMENT16 : LAYOUT_ROW_MAJOR;
}

bool weight_layout_form(enum tensor_layout layout, int64_t encoding, struct panel_form *form)
{
    switch (layout) {
    case LAYOUT_ROW_MAJOR: break;
    case LAYOUT_PANEL16: return panel_form(encoding, form);
    case LAYOUT_FRAGMENT16: return fragment_form(encoding, form);
    }
    return false;
}

bool weight_layout_has(enum tensor_layout layout, int64_t encoding)
{
    struct panel_form form;
    const struct encoding *known = encoding_find(encoding);
    if (layout == LAYOUT_ROW_MAJOR) return known && encoding_is_plain(known->id);
    return weight_layout_form(layout, encoding, &form);
}

bool weight_layout_bytes(enum tensor_layout layout, int64_t encoding, uint64_t n, uint64_t k, uint64_t *bytes)
{
    if (!weight_layout_has(layout, encoding)) return false;
    const uint64_t row_major[] = {n, k, encoding_find(encoding)->bits / 8};
    switch (layout) {
    case LAYOUT_ROW_MAJOR: break;
    case LAYOUT_PANEL16: return checked_mul(panel_count(n), panel_bytes(k, encoding), bytes);
    case LAYOUT_FRAGMENT16: return checked_mul(panel_count(n), fragment_bytes(k, encoding), bytes);
    }
    return checked_product(row_major, 3, bytes);
}
