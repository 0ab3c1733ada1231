/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/draft/draft.h"

#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_draft, params);
    if (why) return why;
    *geometry =
        (struct device_geometry){{(uint32_t)params[DRAFT_ROWS], 1, 1}, {LAYOUT_DRAFT_THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

const struct device_kernel device_draft = {
    .name = "draft",
    .op = OP_DRAFT,
    .problem = &op_draft,
    .launch = launch,
    .cost = draft_cost,
};
