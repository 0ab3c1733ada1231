/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/attention_device.h"

#include "kernels/attention/attention_layout.cuh"

enum {
    MOST_TOKENS = 1 << 30, /* of a slot */
    WARP = 32,
    ALIGNMENT = 16, /* of asynchronous copies and of tensor maps */
};

static bool in_range(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

static int64_t element_bytes(int64_t dtype) { return (int64_t)dtype_bytes((enum dtype)dtype); }

static bool has_codes(const int64_t *params) { return op_kv_layout(params).scales != 0; }

static const char *illegal(const int64_t *params)
{
    const char *why = op_params_illegal(&op_attention, params);
    if (why) return why;
    why = op_paged_codes_illegal(params);
    if (why) return why;
    if (params[ATTENTION_VALUE_DIM]) return "v is a part of k";
    if (params[ATTENTION_HEAD_DIM] % 2) return "HEAD_DIM is not even";
    if (params[ATTENTION_PAGES_PER_SLOT] > MOST_TOKENS / params[ATTENTION_PAGE_TOKENS])
        return "PAGES_PER_SLOT is not positive or makes more than 2^30 tokens";
    return params[ATTENTION_PAGE_BYTES] % ALIGNMENT ? "PAGE_BYTES is not a multiple of 16 in 1..2^40" : NULL;
}

/* Each input is read once: q, out, and the context's k and v once for all rows, as the rows of a chunk share them. */
static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    const uint64_t rows = (uint64_t)params[ATTENTION_ROWS], heads = (uint64_t)params[ATTENTION_HEADS];
    const uint64_t kv_heads = (uint64_t)params[ATTENTION_KV_HEADS];
    const uint64_t head_dim = (uint64_t)params[ATTENTION_HEAD_DIM];
    const uint64_t window = (uint64_t)params[ATTENTION_WINDOW];
    const uint64_t x_bytes = (uint64_t)element_bytes(params[ATTENTION_X_DTYPE]);
    uint64_t seen = context; /* tokens that a row attends to, on average */
    if (window && window < seen) seen = window;
    *bytes = 2 * rows * heads * head_dim * x_bytes + 2 * context * kv_heads * op_kv_row_bytes(params);
    *flops = 4 * rows * heads * seen * head_dim;
}

static const char *shared_limit(int64_t bytes, const struct device_facts *gpu)
{
    return bytes > gpu->shared_per_block ? "the tiles do not fit shared memory" : NULL;
}

/* attention_generic */

static bool one_of_1_2_4(int64_t value) { return value == 1 || value == 2 || value == 4; }

static bool generic_is_halves(const int64_t *params)
{
    return params[ATTENTION_X_DTYPE] != DTYPE_F32 &&
           (has_codes(params) || params[ATTENTION_X_DTYPE] == params[ATTENTION_KV_DTYPE]);
}

static const char *generic_launch(const int64_t *params, const struct device_facts *gpu,
                                  struct device_geometry *geometry)
{
    const int64_t warps_q = params[ATTENTION_GENERIC_WARPS_Q], split = params[ATTENTION_GENERIC_SPLIT];
    const int64_t key_tile = params[ATTENTION_GENERIC_KEY_TILE];
    const char *why = illegal(params);
    if (why) return why;
    if (!one_of_1_2_4(warps_q)) return "WARPS_Q is not 1, 2 or 4";
    if (!one_of_1_2_4(split)) return "SPLIT is not 1, 2 or 4";
    if ((key_tile != 16 && key_tile != 32 && key_tile != 64) || key_tile < 16 * split)
        return "KEY_TILE is not 16, 32 or 64, or less than 16 * SPLIT";
    if (split == 4 && key_tile == 64 && params[ATTENTION_HEAD_DIM] > 240 && params[ATTENTION_HEAD_DIM] < 256)
        return "heads of 242 to 254 elements spill registers with SPLIT 4 and KEY_TILE 64";
    const struct attention_generic_layout layout =
        attention_generic_lay_out(params[ATTENTION_HEAD_DIM], generic_is_halves(params) ? 2 : 4, warps_q, split,
                                  key_tile);
    const int64_t group = params[ATTENTION_HEADS] / params[ATTENTION_KV_HEADS], tile = layout.entries;
    const int64_t entries = params[ATTENTION_ROWS] * group;
    if (entries > INT32_MAX - tile - OP_MAX_ROWS) return "ROWS * (HEADS / KV_HEADS) is too large";
    /* Rows of several slots: a tile that is not full for each of them. */
    const int64_t most =
        params[ATTENTION_SLOT_COUNT] < params[ATTENTION_ROWS] ? params[ATTENTION_SLOT_COUNT] : params[ATTENTION_ROWS];
    const int64_t slots = params[ATTENTION_SCATTERED] ? most : 1;
    why = shared_limit(layout.bytes + layout.static_bytes, gpu);
    if (why) return why;
    *geometry = (struct device_geometry){
        .grid = {(uint32_t)((entries - slots) / tile + slots), (uint32_t)params[ATTENTION_KV_HEADS],
                 (uint32_t)layout.parts},
        .block = {(uint32_t)(WARP * warps_q * split), 1, 1},
        .cluster = {1, 1, 1},
        .shared_bytes = (uint32_t)layout.bytes,
    };
    return NULL;
}

static int generic_candidates(const int64_t *params, const struct device_facts *gpu,
                              int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    static const int64_t many[][3] = {{4, 1, 64}, {4, 1, 32}, {2, 2, 64}, {1, 4, 64}, {1, 2, 32}, {1, 1, 16}};
    static const int64_t few[][3] = {{1, 4, 64}, {2, 2, 64}, {4, 1, 64}, {4, 1, 32}, {1, 2, 32}, {1, 1, 16}};
    if (illegal(params)) return 0;
    /* With few rows, large blocks would leave most of the GPU idle. */
    bool is_many = params[ATTENTION_ROWS] * params[ATTENTION_HEADS] >= 64 * 4 * (int64_t)gpu->multiprocessors;
    int count = 0;
    for (size_t i = 0; i < sizeof many / sizeof many[0]; i++)
        count = device_add_candidate(&device_attention_generic, params, is_many ? many[i] : few[i], gpu, params_out,
                                     count, capacity);
    return count;
}

const struct device_kernel device_attention_generic = {
    .name = "attention_generic",
    .op = OP_ATTENTION,
    .problem = &op_attention,
    DEVICE_OWN_NAMES(ATTENTION_GENERIC_PARAMS - ATTENTION_PARAMS, "WARPS_Q", "SPLIT", "KEY_TILE"),
    .launch = generic_launch,
    .candidates = generic_candidates,
    .cost = cost,
};

/* attention_prefill */

enum { BOX_MOST_ROWS = 256 };

static int64_t tile_heads(const int64_t *params)
{
    return attention_prefill_tile_heads(params[ATTENTION_HEADS] / params[ATTENTION_KV_HEADS],
                                        params[ATTENTION_SCATTERED]);
}

/* Most tiles of 64 entries for each of so many warpgroups, of one group of heads. */
static int64_t row_tiles(const int64_t *params, int64_t warpgroups)
{
    const int64_t rows = warpgroups * attention_prefill_part_rows(tile_heads(params));
    const int64_t slots = params[ATTENTION_SCATTERED] ? params[ATTENTION_SLOT_COUNT] : 1;
    return attention_prefill_most_tiles(params[ATTENTION_ROWS], slots, rows);
}

/* Work of the whole launch. */
static int64_t prefill_tiles(const int64_t *params, int64_t warpgroups)
{
    return row_tiles(params, warpgroups) * (params[ATTENTION_HEADS] / tile_heads(params));
}

static const char *prefill_launch(const int64_t *params, const struct device_facts *gpu,
                                  struct device_geometry *geometry)
{
    const int64_t tile_q = params[ATTENTION_PREFILL_TILE_Q], key_tile = params[ATTENTION_PREFILL_KEY_TILE];
    const int64_t stages = params[ATTENTION_PREFILL_STAGES], blocks = params[ATTENTION_PREFILL_BLOCKS_PER_SM];
    const int64_t split = params[ATTENTION_PREFILL_SPLIT];
    const int64_t head_dim = params[ATTENTION_HEAD_DIM], page_tokens = params[ATTENTION_PAGE_TOKENS];
    const char *why = illegal(params);
    if (why) return why;
    if (head_dim % 16) return "HEAD_DIM is not a multiple of 16";
    if (!in_range(page_tokens, 16, BOX_MOST_ROWS) || (page_tokens & (page_tokens - 1)))
        return "PAGE_TOKENS is not a power of two in 16..256";
    if (params[ATTENTION_X_DTYPE] == DTYPE_F32) return "X_DTYPE is not F16 or BF16";
    if (!has_codes(params)) {
        if (params[ATTENTION_PAGE_BYTES] % (head_dim * 2)) return "PAGE_BYTES is not a multiple of HEAD_DIM * 2";
        if (params[ATTENTION_KV_DTYPE] != params[ATTENTION_X_DTYPE]) return "KV_DTYPE is not X_DTYPE";
    }
    if (tile_q != 64 && tile_q != 128 && tile_q != 192) return "TILE_Q is not 64, 128 or 192";
    if (key_tile != 64 && key_tile != 128) return "KEY_TILE is not 64 or 128";
    if (!in_range(stages, 2, 4)) return "STAGES is not in 2..4";
    if (!in_range(params[ATTENTION_PREFILL_PING_PONG], 0, 1)) return "PING_PONG is not 0 or 1";
    if (!in_range(blocks, 1, 2)) return "BLOCKS_PER_SM is not 1 or 2";
    if (split != 1 && split != 2 && split != 4 && split != 8) return "SPLIT is not 1, 2, 4 or 8";
    /* Registers of a thread: scores, p, the accumulated v and others, more with codes and the widest heads (by compiling). */
    const int64_t others = has_codes(params) && head_dim > 240 ? 48 : 32;
    const int64_t registers = key_tile / 2 + key_tile / 4 + head_dim / 2 + others;
    const int64_t budget = attention_prefill_registers(tile_q, blocks, has_codes(params));
    if (registers > budget) return "the accumulators do not fit the registers";
    if (params[ATTENTION_SCATTERED] && has_codes(params) && tile_q > 64)
        return "scattered rows with codes spill registers with more than one warpgroup";
    const int64_t listed = params[ATTENTION_SCATTERED] ? row_tiles(params, tile_q / 64) : 0;
    const int64_t shared = attention_prefill_lay_out(head_dim, tile_q, key_tile, stages, listed).bytes;
    why = shared_limit(shared, gpu);
    if (why) return why;
    if (shared * blocks > gpu->shared_per_sm) return "so many blocks do not fit the shared memory of an SM";
    const int64_t tiles = prefill_tiles(params, tile_q / 64);
    const int64_t resident = blocks * gpu->multiprocessors;
    if (tiles > INT32_MAX / 16 || resident < 1) return "too many tiles";
    *geometry = (struct device_geometry){
        /* A cluster has one tile of q; blocks without one are persistent. */
        .grid = {(uint32_t)(split > 1 || tiles < resident ? tiles * split : resident), 1, 1},
        .block = {(uint32_t)attention_prefill_threads(tile_q), 1, 1},
        .cluster = {(uint32_t)split, 1, 1},
        .shared_bytes = (uint32_t)shared,
    };
    return NULL;
}

static bool prefill_tensor_map(const int64_t *params, int operand, struct plan_tensor_map *map)
{
    const int64_t head_dim = params[ATTENTION_HEAD_DIM], key_tile = params[ATTENTION_PREFILL_KEY_TILE];
    const int64_t page_tokens = params[ATTENTION_PAGE_TOKENS];
    const int64_t columns = operand == ATTENTION_Q ? params[ATTENTION_HEADS] * head_dim : head_dim;
    if (operand != ATTENTION_Q && (operand != ATTENTION_KV || has_codes(params))) return false;
    *map = (struct plan_tensor_map){
        .dtype = params[ATTENTION_X_DTYPE],
        .columns = columns,
        .pitch = columns * 2,
        .box_columns = ATTENTION_PREFILL_BLOCK_COLUMNS,
        .swizzle = ATTENTION_PREFILL_BLOCK_ROW_BYTES,
    };
    if (operand == ATTENTION_Q) {
        map->rows = params[ATTENTION_ROWS];
        map->box_rows = attention_prefill_part_rows(tile_heads(params));
    } else {
        map->box_rows = page_tokens < key_tile ? page_tokens : key_tile; /* rows 0: the whole pool */
    }
    return true;
}

static int prefill_candidates(const int64_t *params, const struct device_facts *gpu,
                              int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    /* TILE_Q, KEY_TILE, STAGES, PING_PONG, SPLIT, BLOCKS_PER_SM */
    static const int64_t wide[][6] = {{128, 128, 2, 1, 1, 1}, {128, 64, 2, 1, 1, 1}, {64, 128, 2, 0, 1, 1},
                                      {64, 64, 2, 0, 1, 2},   {64, 64, 2, 0, 2, 2},  {192, 64, 2, 1, 1, 1}};
    static const int64_t narrow[][6] = {{192, 128, 2, 1, 1, 1}, {64, 128, 2, 0, 1, 2}, {128, 128, 2, 1, 1, 1},
                                        {128, 64, 2, 1, 1, 1},  {64, 64, 2, 0, 1, 2},  {64, 64, 2, 0, 2, 2}};
    static const int64_t few[][6] = {{64, 64, 2, 0, 2, 2}, {64, 128, 2, 0, 1, 1}, {64, 64, 2, 0, 4, 2},
                                     {64, 64, 2, 0, 1, 2}, {64, 64, 2, 0, 2, 1},  {128, 128, 2, 1, 1, 1}};
    static const int64_t fewest[][6] = {{64, 64, 2, 0, 4, 2}, {64, 64, 2, 0, 4, 1},  {64, 64, 2, 0, 2, 2},
                                        {64, 64, 2, 0, 1, 2}, {64, 128, 2, 0, 1, 1}, {64, 64, 2, 0, 8, 2}};
    /* No SPLIT: a cluster has one tile, yet each of its blocks would list all of them. */
    static const int64_t scattered[][6] = {{64, 64, 2, 0, 1, 2}, {64, 128, 2, 0, 1, 1},  {64, 64, 4, 0, 1, 1},
                                           {64, 64, 3, 0, 1, 1}, {128, 128, 2, 1, 1, 1}, {128, 64, 2, 1, 1, 1}};
    enum { LENGTH = sizeof wide / sizeof wide[0] };
    if (illegal(params) || gpu->capability != 90) return 0;
    /* Tiles of 64 rows with two blocks on an SM: compares the number of tiles with that of blocks. */
    const int64_t tiles = prefill_tiles(params, 1);
    const int64_t blocks = 2 * (int64_t)gpu->multiprocessors;
    const int64_t(*list)[6] = params[ATTENTION_SCATTERED]        ? scattered
                              : params[ATTENTION_HEAD_DIM] <= 64 ? narrow
                                                                 : wide;
    if (tiles <= blocks) list = few;
    if (tiles <= blocks / 4) list = fewest;
    int count = 0;
    for (size_t i = 0; i < LENGTH; i++)
        count = device_add_candidate(&device_attention_prefill, params, list[i], gpu, params_out, count, capacity);
    return count;
}

const struct device_kernel device_attention_prefill = {
    .name = "attention_prefill",
    .op = OP_ATTENTION,
    .least_capability = 90,
    .most_capability = 90,
    .problem = &op_attention,
    DEVICE_OWN_NAMES(ATTENTION_PREFILL_PARAMS - ATTENTION_PARAMS, "TILE_Q", "KEY_TILE", "STAGES", "PING_PONG", "SPLIT",
                     "BLOCKS_PER_SM"),
    .launch = prefill_launch,
    .candidates = prefill_candidates,
    .tensor_map = prefill_tensor_map,
    .cost = cost,
};
