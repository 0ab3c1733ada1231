/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_append/rope_append.h"

#include "kernels/cuda/kernel.h"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, MAX_PAGE_TOKENS = 65536 };

static bool is_half(int64_t dtype) { return dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

static const char *illegal(const int64_t *params)
{
    const char *why = op_params_illegal(&op_rope_append, params);
    if (why) return why;
    if (params[ROPE_APPEND_NORM_V] && params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_WIDTH)
        return "NORM_V with a norm over the width";
    if (params[ROPE_APPEND_PAGE_TOKENS] > MAX_PAGE_TOKENS) return "PAGE_TOKENS is not in 1..65536";
    if (params[ROPE_APPEND_PAGE_BYTES] > INT32_MAX) return "PAGE_BYTES is above 2^31-1";
    if (params[ROPE_APPEND_PAGE_BYTES] % 16) return "PAGE_BYTES is not a multiple of 16";
    if (params[ROPE_APPEND_KV_DTYPE] == DTYPE_F32) return "KV_DTYPE is F32";
    why = op_paged_codes_illegal(params);
    if (why) return why;
    return is_half(params[ROPE_APPEND_X_DTYPE]) ? NULL : "X_DTYPE is not F16 or BF16";
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = illegal(params);
    if (why) return why;
    const int64_t heads = params[ROPE_APPEND_HEADS] + 2 * params[ROPE_APPEND_KV_HEADS];
    const int64_t rotary_dim = op_rotary_dim(params, ROPE_APPEND_ROTARY_DIM);
    const int64_t groups = THREADS / rope_append_lanes(params[ROPE_APPEND_HEAD_DIM] / 2, rotary_dim / 2);
    const int64_t rows = params[ROPE_APPEND_ROWS];
    const bool a_block_each =
        params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_WIDTH && !params[ROPE_APPEND_HAS_MEANS];
    const int64_t blocks = a_block_each ? rows : (rows * heads + groups - 1) / groups;
    if (blocks > INT32_MAX) return "ROWS * HEADS is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

const struct device_kernel device_rope_append = {
    .name = "rope_append",
    .op = OP_ROPE_APPEND,
    .problem = &op_rope_append,
    .launch = launch,
    .cost = rope_append_cost,
};
