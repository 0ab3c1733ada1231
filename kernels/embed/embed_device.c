/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/embed/embed.h"

#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, VECTOR = 8, MAX_PITCH = 1 << 24 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t rows = params[EMBED_ROWS], hidden = params[EMBED_HIDDEN], pitch = params[EMBED_PITCH];
    const char *why = op_params_illegal(&op_embed, params);
    if (why) return why;
    if (pitch > MAX_PITCH) return "parameter pitch is above 2^24";
    if (params[EMBED_LAYOUT] == LAYOUT_PANEL16)
        return "parameter layout is PANEL16, which kernels for GPUs do not read";
    const bool row_major = params[EMBED_LAYOUT] == LAYOUT_ROW_MAJOR;
    const int64_t vector =
        row_major && !params[EMBED_HAS_POSITIONS] && hidden % VECTOR == 0 && pitch % VECTOR == 0 ? VECTOR : 1;
    const int64_t blocks = (hidden / vector + THREADS - 1) / THREADS * rows;
    if (blocks > INT32_MAX) return "rows * hidden is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

const struct device_kernel device_embed = {
    .name = "embed",
    .op = OP_EMBED,
    .problem = &op_embed,
    .launch = launch,
    .cost = embed_cost,
};
