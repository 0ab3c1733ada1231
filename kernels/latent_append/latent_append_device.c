/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"
#include "kernels/latent_append/latent_append.h"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS };

static bool is_half(int64_t dtype) { return dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_latent_append, params);
    if (why) return why;
    if (params[LATENT_APPEND_VALUE_DIM] % 2) return "VALUE_DIM is odd";
    if (params[LATENT_APPEND_KV_PITCH] % 2) return "KV_PITCH is odd";
    if (params[LATENT_APPEND_KV_DTYPE] == DTYPE_F32) return "KV_DTYPE is F32";
    if (params[LATENT_APPEND_PAGE_BYTES] % 16) return "PAGE_BYTES is not a multiple of 16";
    why = op_paged_codes_illegal(params);
    if (why) return why;
    if (!is_half(params[LATENT_APPEND_X_DTYPE])) return "X_DTYPE is not F16 or BF16";
    const int64_t warps = params[LATENT_APPEND_ROWS] * (params[LATENT_APPEND_HEADS] + 1);
    const int64_t blocks = layout_divide_up(warps, THREADS / 32);
    if (blocks > INT32_MAX) return "ROWS * HEADS is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    op_latent_append.cost(params, context, bytes, flops);
}

const struct device_kernel device_latent_append = {
    .name = "latent_append",
    .op = OP_LATENT_APPEND,
    .problem = &op_latent_append,
    .launch = launch,
    .cost = cost,
};
