/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/attention_device.h"

#include "kernels/attention/attention_layout.cuh"

enum {
    MOST_TOKENS = 1 << 30 /* of a slot */,
    WARP = 32,
    MOST_THREADS = 512,
    MOST_SUMS = 128 /* of a thread */,
    MOST_GROUPS = 32
};

static bool power_of_two(int64_t value, int64_t least, int64_t most)
{
    return value >= least && value <= most && (value & (value - 1)) == 0;
}

static const char *illegal(const int64_t *params)
{
    const int64_t dtype = params[ATTENTION_X_DTYPE], page_tokens = params[ATTENTION_PAGE_TOKENS];
    const char *why = op_params_illegal(&op_attention, params);
    if (why) return why;
    why = op_paged_codes_illegal(params);
    if (why) return why;
    if (!params[ATTENTION_VALUE_DIM]) return "v is not a part of k";
    if (params[ATTENTION_HEAD_DIM] % 8 || params[ATTENTION_VALUE_DIM] % 8)
        return "HEAD_DIM or VALUE_DIM is not a multiple of 8";
    if (params[ATTENTION_WINDOW] || params[ATTENTION_CAP_BITS] || params[ATTENTION_HAS_SINKS])
        return "latent attention with a window, a cap or sinks";
    if (dtype != DTYPE_F16 && dtype != DTYPE_BF16) return "X_DTYPE is not F16 or BF16";
    if (encoding_is_plain((enum encoding_id)params[ATTENTION_KV_DTYPE]) && params[ATTENTION_KV_DTYPE] != dtype)
        return "KV_DTYPE is not X_DTYPE";
    if (params[ATTENTION_PAGES_PER_SLOT] > MOST_TOKENS / page_tokens)
        return "PAGES_PER_SLOT is not positive or makes more than 2^30 tokens";
    return params[ATTENTION_PAGE_BYTES] % 16 ? "PAGE_BYTES is not a multiple of 16 in 1..2^40" : NULL;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const int64_t warps_q = params[ATTENTION_LATENT_WARPS_Q], warps_v = params[ATTENTION_LATENT_WARPS_V];
    const int64_t key_tile = params[ATTENTION_LATENT_KEY_TILE], split = params[ATTENTION_LATENT_SPLIT];
    const int64_t groups = params[ATTENTION_LATENT_GROUPS];
    const char *why = illegal(params);
    if (why) return why;
    if (!power_of_two(warps_q, 1, 4)) return "WARPS_Q is not 1, 2 or 4";
    if (!power_of_two(warps_v, 2, 8)) return "WARPS_V is not 2, 4 or 8";
    if (!power_of_two(key_tile, 16, 64) || key_tile < 4 * warps_v)
        return "KEY_TILE is not 16, 32 or 64, or less than 4 * WARPS_V";
    if (!power_of_two(split, 1, 8)) return "SPLIT is not 1, 2, 4 or 8";
    if (groups < 1 || groups > MOST_GROUPS) return "GROUPS is not in 1..32";
    if (split > 1 && gpu->capability < 90) return "SPLIT is above 1 without clusters";
    if (WARP * warps_q * warps_v > MOST_THREADS) return "more than 512 threads";
    const int64_t value_blocks = layout_divide_up(params[ATTENTION_VALUE_DIM], 16);
    if (layout_divide_up(value_blocks, warps_v) * 8 > (warps_q * warps_v > 8 ? MOST_SUMS / 2 : MOST_SUMS))
        return "the accumulated v does not fit the registers";
    const struct attention_latent_layout layout =
        attention_latent_lay_out(params[ATTENTION_HEADS], params[ATTENTION_HEAD_DIM], params[ATTENTION_VALUE_DIM],
                                 warps_q, warps_v, key_tile, split, groups);
    if (layout.bytes > gpu->shared_per_block) return "the tiles do not fit shared memory";
    const int64_t entries = params[ATTENTION_ROWS] * params[ATTENTION_HEADS];
    const int64_t tiles = layout_divide_up(entries, layout.entries);
    if (entries > INT32_MAX - layout.entries || tiles > INT32_MAX / split) return "ROWS * HEADS is too large";
    if (groups > 1 && tiles * split * groups > gpu->multiprocessors)
        return "GROUPS make more blocks than multiprocessors";
    *geometry = (struct device_geometry){
        .grid = {(uint32_t)(tiles * split * groups), 1, 1},
        .block = {(uint32_t)(WARP * warps_q * warps_v), 1, 1},
        .cluster = {(uint32_t)split, 1, 1},
        .shared_bytes = (uint32_t)layout.bytes,
    };
    return NULL;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    /* WARPS_Q, WARPS_V, KEY_TILE, SPLIT */
    static const int64_t few[][4] = {{1, 8, 64, 8}, {1, 8, 32, 8}, {1, 8, 64, 4}, {1, 8, 32, 4},
                                     {1, 4, 64, 8}, {1, 4, 32, 8}, {1, 8, 64, 2}, {1, 4, 64, 4},
                                     {1, 4, 32, 4}, {2, 4, 64, 4}, {1, 8, 64, 1}, {2, 4, 32, 2},
                                     {1, 4, 64, 1}, {4, 4, 32, 2}, {1, 4, 32, 1}, {1, 2, 16, 1}};
    static const int64_t many[][4] = {{4, 4, 32, 1}, {2, 4, 64, 1}, {4, 2, 32, 1}, {2, 4, 32, 1}, {2, 8, 64, 1},
                                      {1, 4, 64, 1}, {4, 4, 32, 2}, {1, 4, 32, 1}, {1, 2, 16, 1}};
    if (illegal(params)) return 0;
    const int64_t entries = params[ATTENTION_ROWS] * params[ATTENTION_HEADS];
    const bool is_many = entries >= 64 * (int64_t)gpu->multiprocessors;
    const size_t length = is_many ? sizeof many / sizeof *many : sizeof few / sizeof *few;
    int count = 0;
    for (size_t i = 0; i < length; i++) {
        const int64_t *shape = is_many ? many[i] : few[i];
        const int64_t blocks = layout_divide_up(entries, 16 * shape[0]) * shape[3];
        int64_t groups = gpu->multiprocessors / blocks < MOST_GROUPS ? gpu->multiprocessors / blocks : MOST_GROUPS;
        if (groups < 1) groups = 1;
        const int64_t own[] = {shape[0], shape[1], shape[2], shape[3], groups};
        count = device_add_candidate(&device_attention_latent, params, own, gpu, params_out, count, capacity);
    }
    return count;
}

static uint64_t counter_bytes(const int64_t *params)
{
    enum { PIECE_BYTES = 24 /* of four columns of an entry: their sums, a maximum and a sum */ };
    const int64_t tile = 16 * params[ATTENTION_LATENT_WARPS_Q];
    const int64_t tiles = layout_divide_up(params[ATTENTION_ROWS] * params[ATTENTION_HEADS], tile);
    return (uint64_t)(tiles * (params[ATTENTION_LATENT_GROUPS] - 1) * tile * (params[ATTENTION_VALUE_DIM] / 4)) *
           PIECE_BYTES;
}

/* Each input is read once: q, out, and the context's rows once for all rows, as those of a chunk share them. */
static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    const uint64_t rows = (uint64_t)params[ATTENTION_ROWS], heads = (uint64_t)params[ATTENTION_HEADS];
    const uint64_t widths = (uint64_t)(params[ATTENTION_HEAD_DIM] + params[ATTENTION_VALUE_DIM]);
    *bytes =
        rows * heads * widths * dtype_bytes((enum dtype)params[ATTENTION_X_DTYPE]) + context * op_kv_row_bytes(params);
    *flops = 2 * rows * heads * context * widths;
}

const struct device_kernel device_attention_latent = {
    .name = "attention_latent",
    .op = OP_ATTENTION,
    .problem = &op_attention,
    DEVICE_OWN_NAMES(ATTENTION_LATENT_PARAMS - ATTENTION_PARAMS, "WARPS_Q", "WARPS_V", "KEY_TILE", "SPLIT", "GROUPS"),
    .launch = launch,
    .candidates = candidates,
    .cost = cost,
    .counter_bytes = counter_bytes,
};
