/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cuda/include/layout.cuh"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/rope_attention/rope_attention_layout.cuh"

enum { MAX_SPLITS = 64, MAX_WARPS = 16, MAX_STAGES = 16, STATIC_SHARED_BYTES = 48 * 1024 };
enum { COUNTER_ALIGNMENT = 64 };

static bool in_range(const int64_t *params, int index, int64_t low, int64_t high)
{
    return params[index] >= low && params[index] <= high;
}

static bool is_half(int64_t dtype) { return dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

/* How the query heads of a kv head are divided among blocks, the size of one block's result, and rows of K and V. */
struct division {
    int64_t group, head_blocks, block_heads, dims, quads;
    int64_t row_bytes, is_coded;
};

static struct division divide(const int64_t *params)
{
    struct division d;
    int64_t most = 8 * params[ROPE_ATTENTION_HEAD_TILES];
    d.group = params[ROPE_ATTENTION_HEADS] / params[ROPE_ATTENTION_KV_HEADS];
    d.head_blocks = layout_divide_up(d.group, most);
    d.block_heads = d.group < most ? d.group : most;
    d.dims = layout_divide_up(params[ROPE_ATTENTION_HEAD_DIM], 8) * 8;
    d.quads = d.block_heads * d.dims / 4;
    d.row_bytes = (int64_t)op_kv_layout(params).row_bytes;
    d.is_coded = op_kv_layout(params).scales != 0;
    return d;
}

static int64_t static_shared_bytes(const int64_t *params, const struct division *d)
{
    return ROPE_ATTENTION_STATIC_BYTES(params[ROPE_ATTENTION_HEAD_DIM], d->row_bytes, d->is_coded,
                                       params[ROPE_ATTENTION_HEAD_TILES], d->block_heads, params[ROPE_ATTENTION_WARPS],
                                       params[ROPE_ATTENTION_STAGES]);
}

static int64_t ring_bytes(const int64_t *params, const struct division *d)
{
    return params[ROPE_ATTENTION_WARPS] * ROPE_ATTENTION_WARP_BYTES(params[ROPE_ATTENTION_HEAD_DIM], d->row_bytes,
                                                                    d->is_coded, params[ROPE_ATTENTION_TILE_TOKENS],
                                                                    params[ROPE_ATTENTION_STAGES], d->block_heads);
}

static int64_t shared_bytes(const int64_t *params, const struct division *d)
{
    return ring_bytes(params, d) + static_shared_bytes(params, d);
}

/* Resources that a block may use so that another launch's block fits beside it. */
static int64_t half_shared(const struct device_facts *gpu)
{
    const int64_t half = gpu->shared_per_sm / 2 - DEVICE_RESERVED_SHARED_BYTES;
    return half < gpu->shared_per_block ? half : gpu->shared_per_block;
}

/* More than a third: no multiprocessor then holds a block of this launch and two of the next one, whose blocks come one
 * to each multiprocessor while all of this launch's are there. */
static int64_t least_shared(const struct device_facts *gpu)
{
    const int64_t least = layout_divide_up(gpu->shared_per_sm / 3 - DEVICE_RESERVED_SHARED_BYTES + 1, 128) * 128;
    return least > 0 && least < half_shared(gpu) ? least : 0;
}

/* HEAD_DIM in whole reads of V. */
static int64_t v_dims(const int64_t *params)
{
    const int64_t span = op_kv_layout(params).scales ? 128 : 64;
    return layout_divide_up(params[ROPE_ATTENTION_HEAD_DIM], span) * span;
}

/* Registers without which a thread spills: result, scores, and the rest. Found by compiling. */
static int64_t registers_of(const int64_t *params)
{
    enum { REST = 86 };
    int64_t heads = params[ROPE_ATTENTION_HEAD_TILES], tiles = params[ROPE_ATTENTION_TILE_TOKENS] / 16;
    return heads * (v_dims(params) / 4 + tiles * 8) + REST;
}

/* Blocks that may have work. */
static int64_t work_blocks(const int64_t *params, const struct division *d)
{
    return params[ROPE_ATTENTION_ROWS] * params[ROPE_ATTENTION_KV_HEADS] * d->head_blocks *
           params[ROPE_ATTENTION_SPLITS];
}

static const char *check_shape(const int64_t *params)
{
    const char *why = op_params_illegal(&op_rope_attention, params);
    if (why) return why;
    if (params[ROPE_ATTENTION_ROWS] > 65535) return "ROWS must be 1 to 65535";
    if (!in_range(params, ROPE_ATTENTION_PAGE_TOKENS, 16, 4096)) return "PAGE_TOKENS must be 16 to 4096";
    if (params[ROPE_ATTENTION_PAGE_TOKENS] & (params[ROPE_ATTENTION_PAGE_TOKENS] - 1))
        return "PAGE_TOKENS must be a power of two";
    if (params[ROPE_ATTENTION_PAGE_BYTES] % 16) return "PAGE_BYTES must be a multiple of 16";
    if (params[ROPE_ATTENTION_KV_DTYPE] == DTYPE_F32) return "KV_DTYPE must not be f32";
    why = op_paged_codes_illegal(params);
    if (why) return why;
    if (!is_half(params[ROPE_ATTENTION_X_DTYPE])) return "X_DTYPE must be f16 or bf16";
    uint64_t kv;
    op_kv_bytes(params, NULL, TARGET_CUDA, &kv);
    return kv > INT32_MAX ? "K and V of a layer's page must be below 2^31 bytes" : NULL;
}

/* A multiprocessor has 16384 registers for each of four groups of warps. */
static bool registers_fit(const int64_t *params)
{
    enum { MOST = 232 };
    int64_t warps = layout_divide_up(params[ROPE_ATTENTION_WARPS], 4) * 4;
    return registers_of(params) <= MOST && registers_of(params) * 32 * warps <= 65536;
}

static const char *check_tunables(const int64_t *params, const struct device_facts *gpu)
{
    if (!in_range(params, ROPE_ATTENTION_SPLITS, 1, MAX_SPLITS)) return "SPLITS must be 1 to 64";
    if (!in_range(params, ROPE_ATTENTION_WARPS, 1, MAX_WARPS)) return "WARPS must be 1 to 16";
    int64_t tokens = params[ROPE_ATTENTION_TILE_TOKENS], tiles = params[ROPE_ATTENTION_HEAD_TILES];
    if (tokens != 16 && tokens != 32 && tokens != 64) return "TILE_TOKENS must be 16, 32 or 64";
    if (tokens > params[ROPE_ATTENTION_PAGE_TOKENS]) return "TILE_TOKENS must be at most PAGE_TOKENS";
    if (tiles != 1 && tiles != 2 && tiles != 4) return "HEAD_TILES must be 1, 2 or 4";
    if (!in_range(params, ROPE_ATTENTION_STAGES, 2, MAX_STAGES)) return "STAGES must be 2 to 16";
    if (!in_range(params, ROPE_ATTENTION_BULK, 0, 1)) return "BULK must be 0 or 1";
    if (params[ROPE_ATTENTION_BULK] && gpu->capability < 90) return "BULK needs sm_90";
    if (params[ROPE_ATTENTION_BULK] && params[ROPE_ATTENTION_HEAD_DIM] % 8)
        return "BULK needs a HEAD_DIM of whole 16 bytes";
    if (!in_range(params, ROPE_ATTENTION_ALONE_TILES, 1, 64)) return "ALONE_TILES must be 1 to 64";
    if (!registers_fit(params)) return "WARPS, TILE_TOKENS and HEAD_TILES need too many registers at this HEAD_DIM";
    struct division d = divide(params);
    if (static_shared_bytes(params, &d) > STATIC_SHARED_BYTES || shared_bytes(params, &d) > gpu->shared_per_block)
        return "WARPS, STAGES and HEAD_TILES need too much shared memory";
    if (work_blocks(params, &d) > INT32_MAX) return "too many blocks for the grid";
    return NULL;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const char *message = check_shape(params);
    if (!message) message = check_tunables(params, gpu);
    if (message) return message;
    struct division d = divide(params);
    int64_t blocks = work_blocks(params, &d), shared = ring_bytes(params, &d);
    if (blocks < gpu->multiprocessors) blocks = gpu->multiprocessors;
    /* Dynamic shared memory; the static part is additional. */
    if (shared < least_shared(gpu)) shared = least_shared(gpu);
    *geometry = (struct device_geometry){
        .grid = {(uint32_t)blocks, 1, 1},
        .block = {32 * (uint32_t)params[ROPE_ATTENTION_WARPS], 1, 1},
        .cluster = {1, 1, 1},
        .shared_bytes = (uint32_t)shared,
    };
    return NULL;
}

uint64_t rope_attention_workspace_bytes(const int64_t *params)
{
    struct division d = divide(params);
    uint64_t blocks =
        (uint64_t)params[ROPE_ATTENTION_ROWS] * (uint64_t)(params[ROPE_ATTENTION_KV_HEADS] * d.head_blocks);
    uint64_t counters = (blocks * 4 + COUNTER_ALIGNMENT - 1) / COUNTER_ALIGNMENT * COUNTER_ALIGNMENT;
    if (params[ROPE_ATTENTION_SPLITS] == 1) return COUNTER_ALIGNMENT; /* not used */
    return counters + blocks * (uint64_t)params[ROPE_ATTENTION_SPLITS] * (uint64_t)(d.quads * 16 + d.block_heads * 8);
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    uint64_t rows = (uint64_t)params[ROPE_ATTENTION_ROWS], heads = (uint64_t)params[ROPE_ATTENTION_HEADS];
    uint64_t kv_heads = (uint64_t)params[ROPE_ATTENTION_KV_HEADS], dim = (uint64_t)params[ROPE_ATTENTION_HEAD_DIM];
    uint64_t window = (uint64_t)params[ROPE_ATTENTION_WINDOW], tokens = window && context > window ? window : context;
    *bytes =
        rows * (2 * (2 * heads + 2 * kv_heads) * dim + 4 * dim + 2 * kv_heads * op_kv_row_bytes(params) * (tokens + 1));
    *flops = rows * heads * dim * 4 * tokens;
}

/* Splits with which the blocks of all rows are at most one for every multiprocessor. */
static int64_t splits_for(const int64_t *params, const struct device_facts *gpu)
{
    struct division d = divide(params);
    int64_t blocks = params[ROPE_ATTENTION_ROWS] * params[ROPE_ATTENTION_KV_HEADS] * d.head_blocks;
    int64_t splits = gpu->multiprocessors / blocks;
    return splits < 1 ? 1 : splits > MAX_SPLITS ? MAX_SPLITS : splits;
}

/* Tiles of the most tokens that registers and stages of `bytes` hold, and the most stages up to `ring` bytes per block
 * that leave room for another launch's block; 2 if none do. */
static void fit_ring(int64_t *set, const struct device_facts *gpu, int64_t bytes, int64_t ring)
{
    struct division d = divide(set);
    int64_t row = d.row_bytes, *tokens = &set[ROPE_ATTENTION_TILE_TOKENS];
    *tokens = 64;
    while (*tokens > 16 && (*tokens > set[ROPE_ATTENTION_PAGE_TOKENS] || *tokens * row > bytes || !registers_fit(set)))
        *tokens /= 2;
    int64_t stages = ring / (set[ROPE_ATTENTION_WARPS] * *tokens * row);
    set[ROPE_ATTENTION_STAGES] = stages > MAX_STAGES ? MAX_STAGES : stages;
    while (set[ROPE_ATTENTION_STAGES] > 2 && shared_bytes(set, &d) > half_shared(gpu)) set[ROPE_ATTENTION_STAGES]--;
    if (set[ROPE_ATTENTION_STAGES] < 2) set[ROPE_ATTENTION_STAGES] = 2;
}

/* Measured on an H200 (32 query heads, 8 kv heads) in whole steps, between the matrices of a layer: one block for every
 * multiprocessor is best; more than 8 warps leave too few registers for the previous and the next launch. The copy
 * engine is faster with rows of 256 bytes, threads with shorter ones. */
static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    static const struct {
        int64_t warps, stage_bytes, ring_kib, alone_tiles;
    } shapes[] = {{8, 4096, 96, 2}, {8, 4096, 64, 2}, {8, 4096, 96, 1}, {4, 8192, 96, 2},
                  {4, 4096, 96, 4}, {8, 4096, 64, 1}, {6, 4096, 96, 2}, {4, 8192, 96, 1},
                  {4, 4096, 64, 2}, {8, 2048, 96, 4}, {2, 8192, 64, 2}, {1, 4096, 16, 2}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0], LONG_ROW = 256 };
    int64_t set[PLAN_MAX_PARAMS] = {0};
    int count = 0;
    if (check_shape(params)) return 0;
    memcpy(set, params, ROPE_ATTENTION_PARAMS * sizeof set[0]);
    set[ROPE_ATTENTION_HEAD_TILES] = 1;
    int64_t group = params[ROPE_ATTENTION_HEADS] / params[ROPE_ATTENTION_KV_HEADS];
    while (set[ROPE_ATTENTION_HEAD_TILES] < 4 && 8 * set[ROPE_ATTENTION_HEAD_TILES] < group &&
           2 * set[ROPE_ATTENTION_HEAD_TILES] * v_dims(params) <= 256)
        set[ROPE_ATTENTION_HEAD_TILES] *= 2;
    set[ROPE_ATTENTION_SPLITS] = splits_for(set, gpu);
    const bool bulk_first = (int64_t)op_kv_layout(params).row_bytes >= LONG_ROW && set[ROPE_ATTENTION_SPLITS] > 1;
    for (int i = 0; i < SHAPES; i++)
        for (int64_t bulk = 0; bulk <= 1; bulk++) {
            set[ROPE_ATTENTION_WARPS] = shapes[i].warps;
            set[ROPE_ATTENTION_BULK] = bulk_first ? 1 - bulk : bulk;
            set[ROPE_ATTENTION_ALONE_TILES] = set[ROPE_ATTENTION_SPLITS] > 1 ? shapes[i].alone_tiles : 1;
            fit_ring(set, gpu, shapes[i].stage_bytes, shapes[i].ring_kib * 1024);
            count = device_add_candidate(&device_rope_attention, params, set + ROPE_ATTENTION_SPLITS, gpu, params_out,
                                         count, capacity);
        }
    return count;
}

const struct device_kernel device_rope_attention = {
    .name = "rope_attention",
    .op = OP_ROPE_ATTENTION,
    .problem = &op_rope_attention,
    DEVICE_OWN_NAMES(ROPE_ATTENTION_PARAMS - ROPE_ATTENTION_PROBLEM_PARAMS, "SPLITS", "WARPS", "TILE_TOKENS",
                     "HEAD_TILES", "STAGES", "BULK", "ALONE_TILES"),
    .launch = launch,
    .candidates = candidates,
    .cost = cost,
    .counter_bytes = rope_attention_workspace_bytes,
};
