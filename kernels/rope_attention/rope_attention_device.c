/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/op/op.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/rope_attention/rope_attention_layout.cuh"

enum { MAX_SPLITS = 64, MAX_WARPS = 16, MAX_STAGES = 16, STATIC_SHARED_BYTES = 48 * 1024 };
enum { COUNTER_ALIGNMENT = 64, RESERVED_SHARED_BYTES = 1024 /* per block, by the hardware */ };

static bool in_range(const int64_t *params, int index, int64_t low, int64_t high)
{
    return params[index] >= low && params[index] <= high;
}

static bool is_power_of_two(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

static bool is_half(int64_t dtype) { return dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* How the query heads of a kv head are divided among blocks, and the size of one block's result. */
struct division {
    int64_t group, head_blocks, block_heads, dims, quads;
};

static struct division divide(const int64_t *params)
{
    struct division d;
    int64_t most = 8 * params[ROPE_ATTENTION_HEAD_TILES];
    d.group = params[ROPE_ATTENTION_HEADS] / params[ROPE_ATTENTION_KV_HEADS];
    d.head_blocks = divide_up(d.group, most);
    d.block_heads = d.group < most ? d.group : most;
    d.dims = divide_up(params[ROPE_ATTENTION_HEAD_DIM], 8) * 8;
    d.quads = d.block_heads * d.dims / 4;
    return d;
}

static int64_t static_shared_bytes(const int64_t *params, const struct division *d)
{
    return ROPE_ATTENTION_STATIC_BYTES(params[ROPE_ATTENTION_HEAD_DIM], params[ROPE_ATTENTION_HEAD_TILES],
                                       d->block_heads, params[ROPE_ATTENTION_WARPS], params[ROPE_ATTENTION_STAGES]);
}

static int64_t ring_bytes(const int64_t *params, const struct division *d)
{
    return params[ROPE_ATTENTION_WARPS] * ROPE_ATTENTION_WARP_BYTES(params[ROPE_ATTENTION_HEAD_DIM],
                                                                    params[ROPE_ATTENTION_TILE_TOKENS],
                                                                    params[ROPE_ATTENTION_STAGES], d->block_heads);
}

static int64_t shared_bytes(const int64_t *params, const struct division *d)
{
    return ring_bytes(params, d) + static_shared_bytes(params, d);
}

/* Resources that a block may use so that another launch's block fits beside it. */
static int64_t half_shared(const struct device_facts *gpu)
{
    const int64_t half = gpu->shared_per_sm / 2 - RESERVED_SHARED_BYTES;
    return half < gpu->shared_per_block ? half : gpu->shared_per_block;
}

/* More than a third: no multiprocessor then holds a block of this launch and two of the next one, whose blocks come one
 * to each multiprocessor while all of this launch's are there. */
static int64_t least_shared(const struct device_facts *gpu)
{
    const int64_t least = divide_up(gpu->shared_per_sm / 3 - RESERVED_SHARED_BYTES + 1, 128) * 128;
    return least > 0 && least < half_shared(gpu) ? least : 0;
}

/* Registers without which a thread spills: result, scores, and the rest. Found by compiling. */
static int64_t registers_of(const int64_t *params)
{
    enum { REST = 86 };
    int64_t heads = params[ROPE_ATTENTION_HEAD_TILES], tiles = params[ROPE_ATTENTION_TILE_TOKENS] / 16;
    return heads * (divide_up(params[ROPE_ATTENTION_HEAD_DIM], 64) * 16 + tiles * 8) + REST;
}

/* Blocks that may have work. */
static int64_t work_blocks(const int64_t *params, const struct division *d)
{
    return params[ROPE_ATTENTION_ROWS] * params[ROPE_ATTENTION_KV_HEADS] * d->head_blocks *
           params[ROPE_ATTENTION_SPLITS];
}

static const char *check_shape(const int64_t *params)
{
    static const struct {
        int index;
        int64_t low, high;
        const char *message;
    } limits[] = {
        {ROPE_ATTENTION_ROWS, 1, 65535, "ROWS must be 1 to 65535"},
        {ROPE_ATTENTION_COUNT_INDEX, 0, 1, "COUNT_INDEX must be 0 or 1"},
        {ROPE_ATTENTION_HEADS, 1, 4096, "HEADS must be 1 to 4096"},
        {ROPE_ATTENTION_KV_HEADS, 1, 4096, "KV_HEADS must be 1 to 4096"},
        {ROPE_ATTENTION_HEAD_DIM, 2, 256, "HEAD_DIM must be 2 to 256"},
        {ROPE_ATTENTION_PAGE_TOKENS, 16, 4096, "PAGE_TOKENS must be 16 to 4096"},
        {ROPE_ATTENTION_PAGES_PER_SLOT, 1, INT32_MAX, "PAGES_PER_SLOT must be positive"},
        {ROPE_ATTENTION_PAGE_BYTES, 16, (int64_t)1 << 40, "PAGE_BYTES must be 16 to 2^40"},
        {ROPE_ATTENTION_SLOT_COUNT, 1, INT32_MAX, "SLOT_COUNT must be positive"},
        {ROPE_ATTENTION_WINDOW, 0, INT32_MAX, "WINDOW must be 0 to 2^31 - 1"},
        {ROPE_ATTENTION_HAS_NORM, 0, 1, "HAS_NORM must be 0 or 1"},
        {ROPE_ATTENTION_SCALE_BITS, 1, 0x7f7fffff, "SCALE must be a positive float"},
        {ROPE_ATTENTION_EPS_BITS, 0, 0x7f7fffff, "EPS must be a float of at least 0"},
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (!in_range(params, limits[i].index, limits[i].low, limits[i].high)) return limits[i].message;
    if (params[ROPE_ATTENTION_HEADS] % params[ROPE_ATTENTION_KV_HEADS]) return "HEADS must be a multiple of KV_HEADS";
    if (params[ROPE_ATTENTION_HEAD_DIM] % 2) return "HEAD_DIM must be even";
    if (!in_range(params, ROPE_ATTENTION_ROTARY_DIM, 0, params[ROPE_ATTENTION_HEAD_DIM]) ||
        params[ROPE_ATTENTION_ROTARY_DIM] % 2)
        return "ROTARY_DIM must be even, 0 to HEAD_DIM";
    if (!is_power_of_two(params[ROPE_ATTENTION_PAGE_TOKENS])) return "PAGE_TOKENS must be a power of two";
    if (params[ROPE_ATTENTION_PAGE_BYTES] % 16) return "PAGE_BYTES must be a multiple of 16";
    if (!is_half(params[ROPE_ATTENTION_KV_DTYPE])) return "KV_DTYPE must be f16 or bf16";
    if (!is_half(params[ROPE_ATTENTION_X_DTYPE])) return "X_DTYPE must be f16 or bf16";
    int64_t norm = params[ROPE_ATTENTION_NORM_DTYPE];
    if (params[ROPE_ATTENTION_HAS_NORM] && !is_half(norm) && norm != DTYPE_F32)
        return "NORM_DTYPE must be f32, f16 or bf16";
    /* Tokens are counted in int32_t. */
    if (params[ROPE_ATTENTION_PAGES_PER_SLOT] > INT32_MAX / params[ROPE_ATTENTION_PAGE_TOKENS])
        return "PAGES_PER_SLOT * PAGE_TOKENS must be below 2^31";
    int64_t kv = 4 * params[ROPE_ATTENTION_KV_HEADS] * params[ROPE_ATTENTION_PAGE_TOKENS] * /* below 2^34 */
                 params[ROPE_ATTENTION_HEAD_DIM];
    if (kv > params[ROPE_ATTENTION_PAGE_BYTES]) return "PAGE_BYTES must hold K and V of one layer";
    if (kv > INT32_MAX) return "K and V of a layer's page must be below 2^31 bytes";
    return NULL;
}

/* A multiprocessor has 16384 registers for each of four groups of warps. */
static bool registers_fit(const int64_t *params)
{
    enum { MOST = 232 };
    int64_t warps = divide_up(params[ROPE_ATTENTION_WARPS], 4) * 4;
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
    *bytes = rows * (2 * (2 * heads + 2 * kv_heads) * dim + 4 * dim + 4 * kv_heads * dim * (tokens + 1));
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

struct candidates {
    int64_t (*sets)[PLAN_MAX_PARAMS];
    int count, capacity;
    const struct device_facts *gpu;
};

static void add_candidate(struct candidates *found, const int64_t *set)
{
    struct device_geometry geometry;
    if (found->count == found->capacity || launch(set, found->gpu, &geometry)) return;
    for (int i = 0; i < found->count; i++)
        if (memcmp(found->sets[i], set, ROPE_ATTENTION_PARAMS * sizeof *set) == 0) return;
    memcpy(found->sets[found->count++], set, PLAN_MAX_PARAMS * sizeof *set);
}

/* Tiles of the most tokens that registers and stages of `bytes` hold, and the most stages up to `ring` bytes per block
 * that leave room for another launch's block; 2 if none do. */
static void fit_ring(int64_t *set, const struct device_facts *gpu, int64_t bytes, int64_t ring)
{
    struct division d = divide(set);
    int64_t row = 2 * set[ROPE_ATTENTION_HEAD_DIM], *tokens = &set[ROPE_ATTENTION_TILE_TOKENS];
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
int rope_attention_candidates(const int64_t *params, const struct device_facts *gpu,
                              int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    static const struct {
        int64_t warps, stage_bytes, ring_kib, alone_tiles;
    } shapes[] = {{8, 4096, 96, 2}, {8, 4096, 64, 2}, {8, 4096, 96, 1}, {4, 8192, 96, 2},
                  {4, 4096, 96, 4}, {8, 4096, 64, 1}, {6, 4096, 96, 2}, {4, 8192, 96, 1},
                  {4, 4096, 64, 2}, {8, 2048, 96, 4}, {2, 8192, 64, 2}, {1, 4096, 16, 2}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0], LONG_ROW = 128 };
    struct candidates found = {.sets = params_out, .capacity = capacity, .gpu = gpu};
    int64_t set[PLAN_MAX_PARAMS] = {0};
    if (check_shape(params)) return 0;
    memcpy(set, params, ROPE_ATTENTION_PARAMS * sizeof set[0]);
    set[ROPE_ATTENTION_HEAD_TILES] = 1;
    int64_t group = params[ROPE_ATTENTION_HEADS] / params[ROPE_ATTENTION_KV_HEADS];
    while (set[ROPE_ATTENTION_HEAD_TILES] < 4 && 8 * set[ROPE_ATTENTION_HEAD_TILES] < group &&
           2 * set[ROPE_ATTENTION_HEAD_TILES] * params[ROPE_ATTENTION_HEAD_DIM] <= 256)
        set[ROPE_ATTENTION_HEAD_TILES] *= 2;
    set[ROPE_ATTENTION_SPLITS] = splits_for(set, gpu);
    const bool bulk_first = params[ROPE_ATTENTION_HEAD_DIM] >= LONG_ROW && set[ROPE_ATTENTION_SPLITS] > 1;
    for (int i = 0; i < SHAPES; i++)
        for (int64_t bulk = 0; bulk <= 1; bulk++) {
            set[ROPE_ATTENTION_WARPS] = shapes[i].warps;
            set[ROPE_ATTENTION_BULK] = bulk_first ? 1 - bulk : bulk;
            set[ROPE_ATTENTION_ALONE_TILES] = set[ROPE_ATTENTION_SPLITS] > 1 ? shapes[i].alone_tiles : 1;
            fit_ring(set, gpu, shapes[i].stage_bytes, shapes[i].ring_kib * 1024);
            add_candidate(&found, set);
        }
    return found.count;
}

static const char *const tunable_names[] = {"SPLITS", "WARPS", "TILE_TOKENS", "HEAD_TILES",
                                            "STAGES", "BULK",  "ALONE_TILES"};

const struct device_kernel device_rope_attention = {
    .name = "rope_attention",
    .source = "kernels/rope_attention/rope_attention.cu",
    .op = OP_ROPE_ATTENTION,
    .least_capability = 80,
    .problem = &op_rope_attention,
    .own_names = tunable_names,
    .own_count = sizeof tunable_names / sizeof *tunable_names,
    .operand_count = ROPE_ATTENTION_OPERANDS,
    .launch = launch,
    .candidates = rope_attention_candidates,
    .cost = cost,
};
