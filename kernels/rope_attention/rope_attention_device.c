#include <string.h>

#include "kernels/op_check.h"
#include "kernels/rope_attention/rope_attention.h"

enum { MAX_SPLITS = 64, MAX_CLUSTER = 16, PORTABLE_CLUSTER = 8, MAX_WARPS = 16, STATIC_SHARED_BYTES = 48 * 1024 };
enum { COUNTER_ALIGNMENT = 64 };

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

/* At most what the kernel declares: alignment aside, its struct shared_data. */
static int64_t shared_bytes(const int64_t *params, const struct division *d)
{
    bool cluster = params[ROPE_ATTENTION_CLUSTER] && params[ROPE_ATTENTION_SPLITS] > 1;
    int64_t warps = params[ROPE_ATTENTION_WARPS], splits = params[ROPE_ATTENTION_SPLITS], dims = d->dims;
    int64_t q = 8 * params[ROPE_ATTENTION_HEAD_TILES] * (divide_up(dims, 32) * 32 + 32) * 2;
    int64_t parts = warps * d->block_heads * ((divide_up(dims, 32) * 32 + 4) * 4 + 8);
    int64_t received = cluster ? (d->quads + splits) * 16 + splits * d->block_heads * 8 : 16 + d->block_heads * 8;
    return q + divide_up(dims, 64) * 64 * 2 * 2 + parts + received + 64;
}

/* Registers that a thread needs: tiles of K and V, result, scores, and the rest, at least. Beyond MOST_AHEAD the kernel
 * loads V after K (V_AHEAD), and spills unless the tiles are small; INT16_MAX then. Found by compiling. */
static int64_t registers_of(const int64_t *params)
{
    enum { REST = 50, MOST_AHEAD = 168, MOST_IN_TURN = 128, LARGE = INT16_MAX };
    int64_t k_blocks = divide_up(params[ROPE_ATTENTION_HEAD_DIM], 32), heads = params[ROPE_ATTENTION_HEAD_TILES];
    int64_t v_blocks = divide_up(params[ROPE_ATTENTION_HEAD_DIM], 64), tiles = params[ROPE_ATTENTION_TILE_TOKENS] / 16;
    int64_t k = tiles * k_blocks * 8, v = tiles * v_blocks * 16, held = heads * v_blocks * 16;
    int64_t scores = 4 * (tiles * heads - 1);
    if (held + k + v <= MOST_AHEAD) return held + k + v + scores + REST;
    held += k > v ? k : v;
    return tiles == 1 && held + scores <= MOST_IN_TURN ? held + REST : LARGE;
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

static const char *check_tunables(const int64_t *params, const struct device_facts *gpu)
{
    if (!in_range(params, ROPE_ATTENTION_SPLITS, 1, MAX_SPLITS)) return "SPLITS must be 1 to 64";
    if (!in_range(params, ROPE_ATTENTION_WARPS, 1, MAX_WARPS)) return "WARPS must be 1 to 16";
    int64_t tokens = params[ROPE_ATTENTION_TILE_TOKENS], tiles = params[ROPE_ATTENTION_HEAD_TILES];
    if (tokens != 16 && tokens != 32 && tokens != 64) return "TILE_TOKENS must be 16, 32 or 64";
    if (tokens > params[ROPE_ATTENTION_PAGE_TOKENS]) return "TILE_TOKENS must be at most PAGE_TOKENS";
    if (tiles != 1 && tiles != 2 && tiles != 4) return "HEAD_TILES must be 1, 2 or 4";
    if (!in_range(params, ROPE_ATTENTION_CLUSTER, 0, 1)) return "CLUSTER must be 0 or 1";
    if (!in_range(params, ROPE_ATTENTION_EARLY, 0, 32)) return "EARLY must be 0 to 32";
    if (params[ROPE_ATTENTION_CLUSTER] && params[ROPE_ATTENTION_SPLITS] > 1) {
        if (params[ROPE_ATTENTION_SPLITS] > MAX_CLUSTER) return "SPLITS of a cluster must be at most 16";
        if (gpu->capability < 90) return "CLUSTER needs sm_90";
    }
    if (!in_range(params, ROPE_ATTENTION_LEAST_TILES, 1, 64)) return "LEAST_TILES must be 1 to 64";
    if (!in_range(params, ROPE_ATTENTION_BLOCKS_PER_SM, 1, 4)) return "BLOCKS_PER_SM must be 1 to 4";
    /* A multiprocessor has 16384 registers for each of four groups of warps. */
    int64_t warps = divide_up(params[ROPE_ATTENTION_WARPS], 4) * 4;
    if (registers_of(params) > 232) return "TILE_TOKENS and HEAD_TILES need too many registers at this HEAD_DIM";
    if (registers_of(params) * 32 * warps * params[ROPE_ATTENTION_BLOCKS_PER_SM] > 65536)
        return "WARPS and BLOCKS_PER_SM need too many registers";
    struct division d = divide(params);
    if (d.head_blocks * params[ROPE_ATTENTION_KV_HEADS] > 65535) return "too many head blocks for the grid";
    if (shared_bytes(params, &d) > STATIC_SHARED_BYTES) return "WARPS and HEAD_TILES need too much shared memory";
    return NULL;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const char *message = check_shape(params);
    if (!message) message = check_tunables(params, gpu);
    if (message) return message;
    struct division d = divide(params);
    uint32_t splits = (uint32_t)params[ROPE_ATTENTION_SPLITS];
    *geometry = (struct device_geometry){
        .grid = {splits, (uint32_t)(params[ROPE_ATTENTION_KV_HEADS] * d.head_blocks),
                 (uint32_t)params[ROPE_ATTENTION_ROWS]},
        .block = {32 * (uint32_t)params[ROPE_ATTENTION_WARPS], 1, 1},
        .cluster = {params[ROPE_ATTENTION_CLUSTER] ? splits : 1, 1, 1},
    };
    return NULL;
}

uint64_t rope_attention_workspace_bytes(const int64_t *params)
{
    struct division d = divide(params);
    uint64_t blocks =
        (uint64_t)params[ROPE_ATTENTION_ROWS] * (uint64_t)(params[ROPE_ATTENTION_KV_HEADS] * d.head_blocks);
    uint64_t counters = (blocks * 4 + COUNTER_ALIGNMENT - 1) / COUNTER_ALIGNMENT * COUNTER_ALIGNMENT;
    if (params[ROPE_ATTENTION_CLUSTER] || params[ROPE_ATTENTION_SPLITS] == 1) return COUNTER_ALIGNMENT; /* not used */
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

/* Splits with which the blocks of all rows come to about `blocks_per_sm` for every multiprocessor, at most `most`. */
static int64_t splits_for(const int64_t *params, const struct device_facts *gpu, int64_t blocks_per_sm, int64_t most)
{
    struct division d = divide(params);
    int64_t blocks = params[ROPE_ATTENTION_ROWS] * params[ROPE_ATTENTION_KV_HEADS] * d.head_blocks, splits = 1;
    while (splits < most && splits * 2 * blocks <= blocks_per_sm * gpu->multiprocessors) splits *= 2;
    return splits;
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

/* Measured on an H200 (32 query heads, 8 kv heads): one row is fastest with 128 blocks that merge through the workspace,
 * since clusters of 16 do not spread over all multiprocessors and one of those does not read faster than 42 GB/s; many
 * rows with one block each. Large tiles spare short contexts the merge, small ones leave more blocks per SM. */
int rope_attention_candidates(const int64_t *params, const struct device_facts *gpu,
                              int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    static const struct {
        int64_t warps, tile_tokens, blocks_per_sm;
    } shapes[] = {{8, 32, 1}, {8, 16, 1},  {4, 32, 1}, {8, 32, 2}, {8, 64, 1}, {16, 16, 1},
                  {4, 16, 1}, {12, 16, 1}, {4, 64, 1}, {2, 16, 1}, {1, 16, 1}};
    static const int64_t blocks_per_sm[] = {1, 2, 4};
    enum { SHAPES = sizeof shapes / sizeof shapes[0], LOADS = sizeof blocks_per_sm / sizeof blocks_per_sm[0] };
    struct candidates found = {.sets = params_out, .capacity = capacity, .gpu = gpu};
    int64_t set[PLAN_MAX_PARAMS] = {0};
    if (check_shape(params)) return 0;
    memcpy(set, params, ROPE_ATTENTION_PARAMS * sizeof set[0]);
    set[ROPE_ATTENTION_LEAST_TILES] = 1;
    set[ROPE_ATTENTION_HEAD_TILES] = 1;
    int64_t group = params[ROPE_ATTENTION_HEADS] / params[ROPE_ATTENTION_KV_HEADS];
    while (set[ROPE_ATTENTION_HEAD_TILES] < 4 && 8 * set[ROPE_ATTENTION_HEAD_TILES] < group &&
           2 * set[ROPE_ATTENTION_HEAD_TILES] * params[ROPE_ATTENTION_HEAD_DIM] <= 256)
        set[ROPE_ATTENTION_HEAD_TILES] *= 2;
    bool many = params[ROPE_ATTENTION_ROWS] * params[ROPE_ATTENTION_KV_HEADS] > gpu->multiprocessors;
    for (int load = 0; load < LOADS; load++)
        for (int i = 0; i < SHAPES; i++) {
            int shape = many && i < 2 ? 1 - i : i; /* then the second is the best guess */
            set[ROPE_ATTENTION_WARPS] = shapes[shape].warps;
            set[ROPE_ATTENTION_TILE_TOKENS] = shapes[shape].tile_tokens;
            set[ROPE_ATTENTION_BLOCKS_PER_SM] = shapes[shape].blocks_per_sm;
            for (int64_t early = 1; early <= (i < 2 ? 2 : 1); early++) {
                set[ROPE_ATTENTION_EARLY] = early;
                set[ROPE_ATTENTION_CLUSTER] = 0;
                set[ROPE_ATTENTION_SPLITS] = splits_for(set, gpu, blocks_per_sm[load], MAX_SPLITS);
                add_candidate(&found, set);
                if (gpu->capability < 90 || set[ROPE_ATTENTION_SPLITS] == 1) continue; /* the same code without */
                set[ROPE_ATTENTION_CLUSTER] = 1;
                set[ROPE_ATTENTION_SPLITS] = splits_for(set, gpu, blocks_per_sm[load], PORTABLE_CLUSTER);
                add_candidate(&found, set);
            }
        }
    return found.count;
}

static const char *const param_names[ROPE_ATTENTION_PARAMS] = {
    "ROWS",           "COUNT_INDEX", "HEADS",      "KV_HEADS", "HEAD_DIM",    "PAGE_TOKENS",
    "PAGES_PER_SLOT", "PAGE_BYTES",  "SLOT_COUNT", "KV_DTYPE", "X_DTYPE",     "WINDOW",
    "SCALE_BITS",     "HAS_NORM",    "NORM_DTYPE", "EPS_BITS", "SPLITS",      "WARPS",
    "TILE_TOKENS",    "HEAD_TILES",  "CLUSTER",    "EARLY",    "LEAST_TILES", "BLOCKS_PER_SM",
};

const struct device_kernel device_rope_attention = {
    .name = "rope_attention",
    .source = "kernels/rope_attention/rope_attention.cu",
    .op = OP_ROPE_ATTENTION,
    .least_capability = 80,
    .param_count = ROPE_ATTENTION_PARAMS,
    .param_names = param_names,
    .first_tunable = ROPE_ATTENTION_SPLITS,
    .operand_count = ROPE_ATTENTION_OPERANDS_NORM,
    .launch = launch,
    .candidates = rope_attention_candidates,
    .cost = cost,
};
