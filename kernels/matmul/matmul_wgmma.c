#include "kernels/matmul/matmul_wgmma.h"

#include <string.h>

enum { SHARED_RESERVED = 1024 }; /* bytes of an SM's shared memory that the system takes for each block */

static bool one_of(int64_t value, const int64_t *values, int count)
{
    for (int i = 0; i < count; i++)
        if (values[i] == value) return true;
    return false;
}

static bool in_range(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t stage_bytes(const int64_t *params)
{
    return (params[MATMUL_WGMMA_TILE_N] + params[MATMUL_WGMMA_TILE_M]) * params[MATMUL_WGMMA_TILE_K] * 2;
}

/* The layout at the top of matmul_wgmma.cu: ring, two halves of staging for each warpgroup, barriers. */
static int64_t shared_bytes(const int64_t *params)
{
    const bool wide = params[MATMUL_DEVICE_OUT_DTYPE] == DTYPE_F32;
    const int64_t columns = params[MATMUL_DEVICE_EPILOGUE] == MATMUL_EPILOGUE_SWIGLU ? 32 : 64;
    const int64_t rows = smaller(params[MATMUL_WGMMA_TILE_M], wide ? 16 : 32);
    const int64_t staged = rows * (columns * (wide ? 4 : 2) + 16);
    return params[MATMUL_WGMMA_STAGES] * (stage_bytes(params) + 16) + params[MATMUL_WGMMA_WARPGROUPS] * 2 * staged;
}

static int64_t sums_per_thread(const int64_t *params)
{
    return params[MATMUL_WGMMA_TILE_N] / (64 * params[MATMUL_WGMMA_WARPGROUPS]) * params[MATMUL_WGMMA_TILE_M] / 2;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    static const int64_t tile_m_values[] = {8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256};
    const int64_t tile_n = params[MATMUL_WGMMA_TILE_N], tile_m = params[MATMUL_WGMMA_TILE_M];
    const int64_t tile_k = params[MATMUL_WGMMA_TILE_K], warpgroups = params[MATMUL_WGMMA_WARPGROUPS];
    const int64_t split_k = params[MATMUL_WGMMA_SPLIT_K], multicast = params[MATMUL_WGMMA_MULTICAST];
    const int64_t persistent = params[MATMUL_WGMMA_PERSISTENT];
    const char *illegal = matmul_device_illegal(params);
    if (illegal) return illegal;
    if (gpu->capability != 90) return "matmul_wgmma is for compute capability 9.0";
    if (params[MATMUL_DEVICE_HAS_NORM]) return "matmul_wgmma has no HAS_NORM";
    if (!in_range(warpgroups, 1, 3)) return "WARPGROUPS is not in 1..3";
    if ((tile_n != 64 * warpgroups && tile_n != 128 * warpgroups) || tile_n > 256)
        return "TILE_N is not 64 or 128 times WARPGROUPS, at most 256";
    if (!one_of(tile_m, tile_m_values, sizeof tile_m_values / sizeof tile_m_values[0]))
        return "TILE_M is not 8, 16, 24, 32, 48, 64, 96, 128, 160, 192 or 256";
    if (sums_per_thread(params) > (warpgroups == 3 ? 96 : 128)) return "a tile does not fit the registers";
    if (tile_k != 64 && tile_k != 128) return "TILE_K is not 64 or 128";
    if (!in_range(params[MATMUL_WGMMA_STAGES], 2, MATMUL_WGMMA_MOST_STAGES)) return "STAGES is not in 2..24";
    if (!in_range(split_k, 1, MATMUL_WGMMA_MOST_SPLIT)) return "SPLIT_K is not in 1..8";
    if (multicast != 1 && multicast != 2) return "MULTICAST is not 1 or 2";
    if (tile_m % (8 * multicast)) return "TILE_M is not a multiple of 8 * MULTICAST";
    if (!in_range(persistent, 0, 4)) return "PERSISTENT is not in 0..4";
    if (!in_range(params[MATMUL_WGMMA_ROW_GROUP], 1, 1024)) return "ROW_GROUP is not in 1..1024";
    if (!in_range(params[MATMUL_WGMMA_PREFETCH], 0, 1)) return "PREFETCH is not 0 or 1";
    if (split_k > 1) {
        if (multicast > 1 || persistent) return "SPLIT_K with MULTICAST or PERSISTENT";
        if (split_k > divide_up(params[MATMUL_DEVICE_K], tile_k)) return "SPLIT_K is more than the steps along K";
        if (tile_n * tile_m * 4 > params[MATMUL_WGMMA_STAGES] * stage_bytes(params))
            return "the sums of SPLIT_K do not fit the ring";
    }
    const int64_t shared = shared_bytes(params), on_sm = persistent ? persistent : 1;
    if (shared > gpu->shared_per_block) return "the ring does not fit the shared memory of a block";
    if (on_sm * (shared + SHARED_RESERVED) > gpu->shared_per_sm) return "PERSISTENT blocks do not fit an SM";

    const int64_t row_tiles = divide_up(params[MATMUL_DEVICE_ROWS], tile_m);
    const int64_t column_tiles = divide_up(params[MATMUL_DEVICE_N], tile_n * multicast);
    const int64_t cluster = split_k * multicast;
    int64_t clusters = row_tiles * column_tiles;
    if (clusters > INT32_MAX / cluster) return "more blocks than a grid holds";
    if (persistent) {
        const int64_t resident = persistent * gpu->multiprocessors / cluster;
        clusters = smaller(clusters, resident > 0 ? resident : 1);
    }
    memset(geometry, 0, sizeof *geometry);
    for (int i = 0; i < 3; i++) geometry->grid[i] = geometry->block[i] = geometry->cluster[i] = 1;
    geometry->grid[0] = (uint32_t)(clusters * cluster);
    const bool reallocate =
        warpgroups == 3 || (warpgroups == 2 && sums_per_thread(params) > 64); /* as matmul_wgmma.cu */
    geometry->block[0] = (uint32_t)(128 * warpgroups + (reallocate ? 128 : 32));
    geometry->cluster[0] = (uint32_t)cluster;
    geometry->shared_bytes = (uint32_t)shared;
    return NULL;
}

static bool tensor_map(const int64_t *params, int operand, struct plan_tensor_map *map)
{
    if (operand != MATMUL_DEVICE_X && operand != MATMUL_DEVICE_W) return false;
    const bool is_x = operand == MATMUL_DEVICE_X;
    *map = (struct plan_tensor_map){
        .dtype = params[MATMUL_DEVICE_DTYPE],
        .columns = params[MATMUL_DEVICE_K],
        .rows = is_x ? params[MATMUL_DEVICE_ROWS] : params[MATMUL_DEVICE_N],
        .pitch = params[MATMUL_DEVICE_K] * 2,
        .box_columns = 64,
        .box_rows = is_x ? params[MATMUL_WGMMA_TILE_M] / params[MATMUL_WGMMA_MULTICAST] : params[MATMUL_WGMMA_TILE_N],
        .swizzle = 128,
    };
    return true;
}

/* Candidates: every legal choice from short lists is given an estimate of its time, and the best are kept. */

enum {
    MACS_PER_CLOCK = 2048,       /* of an SM's tensor cores */
    L2_BYTES_PER_CLOCK = 40,     /* that an SM gets while all others read, too */
    DRAM_BYTES_PER_CLOCK = 2600, /* of the GPU */
    BLOCK_CLOCKS = 2500,         /* from a block's begin to its first product, and its end */
};

struct estimate {
    double clocks;
    int64_t params[MATMUL_WGMMA_PARAMS];
};

/* Clocks until all blocks are done, at `resident` blocks on an SM. */
static double estimate_clocks(const int64_t *params, const struct device_facts *gpu, int64_t resident,
                              const struct device_geometry *geometry)
{
    const double tile_n = (double)params[MATMUL_WGMMA_TILE_N], tile_m = (double)params[MATMUL_WGMMA_TILE_M];
    const int64_t cluster = params[MATMUL_WGMMA_SPLIT_K] * params[MATMUL_WGMMA_MULTICAST];
    const int64_t tiles =
        divide_up(params[MATMUL_DEVICE_ROWS], params[MATMUL_WGMMA_TILE_M]) *
        divide_up(params[MATMUL_DEVICE_N], params[MATMUL_WGMMA_TILE_N] * params[MATMUL_WGMMA_MULTICAST]);
    const double depth = (double)divide_up(params[MATMUL_DEVICE_K], params[MATMUL_WGMMA_SPLIT_K]);
    const double multiply = depth * tile_n * tile_m / MACS_PER_CLOCK;
    const double load = depth * 2 * (tile_n + tile_m / (double)params[MATMUL_WGMMA_MULTICAST]) / L2_BYTES_PER_CLOCK;
    const double begin_end = (BLOCK_CLOCKS + tile_n * tile_m / 16) / (double)resident;
    const double block = (multiply > load ? multiply : load) + begin_end;
    const double on_sm = (double)divide_up(tiles * cluster, gpu->multiprocessors);
    uint64_t bytes, flops;
    (void)geometry;
    matmul_device_cost(params, 0, &bytes, &flops);
    const double memory = (double)bytes / DRAM_BYTES_PER_CLOCK, work = on_sm * block;
    /* Bandwidth is shared: an SM with fewer blocks leaves its part to the others. */
    const double even = (double)(tiles * cluster) / gpu->multiprocessors * block;
    const double bound = memory > even ? memory : even;
    return bound + 0.5 * (work - even) + begin_end;
}

/* Keeps `list` in order of the estimates, the earlier of equals first. */
static void insert(struct estimate *list, int *count, int most, const struct estimate *entry)
{
    int at = *count;
    while (at > 0 && list[at - 1].clocks > entry->clocks) at--;
    if (at >= most) return;
    if (*count < most) (*count)++;
    memmove(list + at + 1, list + at, (size_t)(*count - 1 - at) * sizeof *list);
    list[at] = *entry;
}

/* The deepest ring with which `resident` blocks fit an SM. */
static int64_t deepest_ring(int64_t *params, const struct device_facts *gpu, int64_t resident)
{
    int64_t room = gpu->shared_per_sm / resident - SHARED_RESERVED;
    if (room > gpu->shared_per_block) room = gpu->shared_per_block;
    for (int64_t stages = MATMUL_WGMMA_MOST_STAGES; stages >= 3; stages--) {
        params[MATMUL_WGMMA_STAGES] = stages;
        if (shared_bytes(params) <= room) return stages;
    }
    return 0;
}

int matmul_wgmma_candidates(const int64_t *params, const struct device_facts *gpu,
                            int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    enum { MOST = 24 };
    static const struct {
        int64_t tile_n, warpgroups;
    } shapes[] = {{128, 2}, {256, 2}, {64, 1}, {128, 1}, {192, 3}};
    static const int64_t tile_m_values[] = {256, 192, 160, 128, 96, 64, 48, 32, 24, 16, 8};
    struct estimate list[MOST], entry = {0};
    int count = 0;
    int64_t *p = entry.params;
    if (matmul_device_illegal(params) || params[MATMUL_DEVICE_HAS_NORM] ||
        params[MATMUL_DEVICE_ROWS] < MATMUL_WGMMA_LEAST_ROWS)
        return 0;
    const int64_t rows = params[MATMUL_DEVICE_ROWS];
    for (int i = 0; i < MATMUL_DEVICE_FIRST_TUNABLE; i++) p[i] = params[i];
    p[MATMUL_WGMMA_PREFETCH] = 1;
    for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++)
        for (size_t m = 0; m < sizeof tile_m_values / sizeof tile_m_values[0]; m++) {
            const int64_t tile_m = tile_m_values[m];
            const bool covers = tile_m >= rows, next_covers = m + 1 < sizeof tile_m_values / sizeof tile_m_values[0] &&
                                                              tile_m_values[m + 1] >= rows;
            if (covers && next_covers) continue;  /* a smaller tile does */
            if (!covers && tile_m < 64) continue; /* weights would be read over and over */
            p[MATMUL_WGMMA_TILE_N] = shapes[shape].tile_n;
            p[MATMUL_WGMMA_WARPGROUPS] = shapes[shape].warpgroups;
            p[MATMUL_WGMMA_TILE_M] = tile_m;
            p[MATMUL_WGMMA_ROW_GROUP] = tile_m >= 2048 ? 1 : 2048 / tile_m;
            for (int variant = 0; variant < 2 * 4 * 2 * 2 * 2; variant++) {
                const int64_t resident = 1 + variant % 2;
                p[MATMUL_WGMMA_SPLIT_K] = 1 << variant / 2 % 4;
                p[MATMUL_WGMMA_MULTICAST] = 1 + variant / 8 % 2;
                p[MATMUL_WGMMA_TILE_K] = 64 << variant / 16 % 2;
                p[MATMUL_WGMMA_PERSISTENT] = variant / 32 ? resident : 0;
                struct device_geometry geometry;
                if (p[MATMUL_WGMMA_TILE_K] > 64 && tile_m > 64) continue;
                if (resident > 1 && (sums_per_thread(p) > 64 || shapes[shape].warpgroups > 2)) continue;
                if (!deepest_ring(p, gpu, resident) || launch(p, gpu, &geometry)) continue;
                if (p[MATMUL_WGMMA_PERSISTENT]) { /* without effect if every tile has a block at once */
                    struct device_geometry each;
                    p[MATMUL_WGMMA_PERSISTENT] = 0;
                    const bool same = !launch(p, gpu, &each) && each.grid[0] == geometry.grid[0];
                    p[MATMUL_WGMMA_PERSISTENT] = resident;
                    if (same) continue;
                }
                entry.clocks = estimate_clocks(p, gpu, resident, &geometry);
                insert(list, &count, MOST, &entry);
            }
        }
    if (count > capacity) count = capacity;
    for (int i = 0; i < count; i++) {
        memset(params_out[i], 0, sizeof params_out[i]);
        memcpy(params_out[i], list[i].params, sizeof list[i].params);
    }
    return count;
}

static const char *const param_names[] = {MATMUL_DEVICE_PARAM_NAMES,
                                          "TILE_N",
                                          "TILE_M",
                                          "TILE_K",
                                          "WARPGROUPS",
                                          "STAGES",
                                          "SPLIT_K",
                                          "MULTICAST",
                                          "PERSISTENT",
                                          "ROW_GROUP",
                                          "PREFETCH"};
_Static_assert(sizeof param_names / sizeof param_names[0] == MATMUL_WGMMA_PARAMS, "a name for each parameter");

const struct device_kernel device_matmul_wgmma = {
    .name = "matmul_wgmma",
    .source = "kernels/matmul/matmul_wgmma.cu",
    .op = OP_MATMUL,
    .least_capability = 90,
    .most_capability = 90,
    .param_count = MATMUL_WGMMA_PARAMS,
    .param_names = param_names,
    .first_tunable = MATMUL_DEVICE_FIRST_TUNABLE,
    .operand_count = MATMUL_DEVICE_MOST_OPERANDS - 1, /* no norm */
    .launch = launch,
    .tensor_map = tensor_map,
    .cost = matmul_device_cost,
    .candidates = matmul_wgmma_candidates,
};
