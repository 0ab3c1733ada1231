/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/matmul_device.h"

#include <string.h>

#include "kernels/matmul/matmul_mma_layout.cuh"

static bool in_range(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

static bool power_of_two_to(int64_t value, int64_t most)
{
    return in_range(value, 1, most) && (value & (value - 1)) == 0;
}

static int64_t thread_count(const int64_t *params)
{
    return 32 * params[MATMUL_MMA_WARPS_N] * params[MATMUL_MMA_WARPS_M] * params[MATMUL_MMA_WARPS_K];
}

static struct matmul_mma_layout layout_of(const int64_t *params)
{
    return matmul_mma_lay_out(params[MATMUL_DTYPE], params[MATMUL_MMA_TILE_N], params[MATMUL_MMA_TILE_M],
                              params[MATMUL_MMA_TILE_K], params[MATMUL_MMA_STAGES], params[MATMUL_MMA_WARPS_K],
                              (int64_t)dtype_bytes((enum dtype)params[MATMUL_OUT_DTYPE]), matmul_is_gated(params),
                              matmul_matrices(params) > 0);
}

static int64_t shared_bytes(const int64_t *params) { return layout_of(params).bytes; }

/* Most tiles of rows of x: over experts each tile is of the rows of one expert, with blocks of one part of the rows. */
static int64_t row_tiles(const int64_t *params, int64_t tile_m)
{
    const int64_t rows = params[MATMUL_ROWS], blocks = matmul_blocks(params);
    return params[MATMUL_EXPERTS] ? expert_tiles(matmul_slots(params, rows), params[MATMUL_EXPERTS], tile_m)
                                  : layout_divide_up(rows, tile_m) * (blocks ? blocks : 1);
}

/* Rows of x that are multiplied by the same matrix; over experts on average, at least 1. */
static int64_t rows_of_matrix(const int64_t *params)
{
    const int64_t experts = params[MATMUL_EXPERTS], slots = matmul_slots(params, params[MATMUL_ROWS]);
    return experts ? layout_divide_up(slots, layout_smaller(experts, slots)) : params[MATMUL_ROWS];
}

/* Sums of a thread that leave enough registers; sums of groups need as many again. */
static int64_t most_sums(const int64_t *params)
{
    const bool many_threads = thread_count(params) > 256;
    if (!matmul_is_coded(params)) return many_threads ? 64 : 128;
    return (many_threads ? 32 : 128) / (fragment_sum_scales(fragment_lay_out(params[MATMUL_DTYPE])) ? 2 : 1);
}

static const char *tile_k_illegal(const int64_t *params)
{
    const int64_t tile_k = params[MATMUL_MMA_TILE_K], warps_k = params[MATMUL_MMA_WARPS_K];
    if (matmul_is_coded(params)) {
        if (tile_k % FRAGMENT_STRIP_K || !power_of_two_to(tile_k, 8 * FRAGMENT_STRIP_K))
            return "TILE_K is not 128, 256, 512 or 1024 with coded weights";
        if (tile_k % (FRAGMENT_STRIP_K * warps_k))
            return "TILE_K is not a multiple of 128 * WARPS_K with coded weights";
        return NULL;
    }
    if (tile_k != 32 && tile_k != 64 && tile_k != 128) return "TILE_K is not 32, 64 or 128";
    if (tile_k % (16 * warps_k)) return "TILE_K is not a multiple of 16 * WARPS_K";
    return NULL;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const int64_t tile_n = params[MATMUL_MMA_TILE_N], tile_m = params[MATMUL_MMA_TILE_M];
    const int64_t warps_n = params[MATMUL_MMA_WARPS_N], warps_m = params[MATMUL_MMA_WARPS_M];
    const int64_t warps_k = params[MATMUL_MMA_WARPS_K];
    const char *illegal = matmul_device_illegal(params);
    if (illegal) return illegal;
    if (matmul_sums_choices(params)) return "matmul_mma has no sum over experts";
    if (gpu->capability < 80) return "matmul_mma needs compute capability 8.0";
    if (params[MATMUL_HAS_NORM]) return "matmul_mma has no HAS_NORM";
    if (params[MATMUL_HAS_X_SCALES]) return "matmul_mma has no HAS_X_SCALES";
    if (!power_of_two_to(warps_n, 8)) return "WARPS_N is not 1, 2, 4 or 8";
    if (!power_of_two_to(warps_m, 4)) return "WARPS_M is not 1, 2 or 4";
    if (!power_of_two_to(warps_k, 8)) return "WARPS_K is not 1, 2, 4 or 8";
    if (thread_count(params) > 512) return "more than 512 threads";
    if (!in_range(tile_n, 16, 256) || tile_n % (16 * warps_n) || tile_n / warps_n > 64)
        return "TILE_N is not 16, 32, 48 or 64 times WARPS_N, at most 256";
    if (!in_range(tile_m, 8, 256) || tile_m % (8 * warps_m) || tile_m / warps_m > 64)
        return "TILE_M is not a multiple of 8, at most 64, times WARPS_M";
    if (tile_n / warps_n * (tile_m / warps_m) / 32 > most_sums(params)) return "a tile does not fit the registers";
    illegal = tile_k_illegal(params);
    if (illegal) return illegal;
    if (!in_range(params[MATMUL_MMA_STAGES], 2, 8)) return "STAGES is not in 2..8";
    if (shared_bytes(params) > gpu->shared_per_block) return "the ring does not fit the shared memory of a block";
    const int64_t blocks = row_tiles(params, tile_m) * layout_divide_up(matmul_expert_n(params), tile_n);
    if (blocks > INT32_MAX) return "more blocks than a grid holds";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1},
                                         {(uint32_t)thread_count(params), 1, 1},
                                         {1, 1, 1},
                                         (uint32_t)shared_bytes(params)};
    return NULL;
}

/* Candidates: shapes from a short list, in order of an estimate of their time. */

/* Clocks of the GPU; the figures are of a Hopper GPU's mma.sync, others differ by a factor that is common to all. */
static double estimate_clocks(const int64_t *params, const struct device_facts *gpu)
{
    enum { MACS_PER_CLOCK = 1200, L2_BYTES_PER_CLOCK = 40, DRAM_BYTES_PER_CLOCK = 20, BLOCK_CLOCKS = 3000 };
    enum { CODES_PER_CLOCK = 64, SCALES_PER_CLOCK = 128 };
    const double tile_n = (double)params[MATMUL_MMA_TILE_N], tile_m = (double)params[MATMUL_MMA_TILE_M];
    const bool coded = matmul_is_coded(params);
    const struct fragment_layout fragments = fragment_lay_out(params[MATMUL_DTYPE]);
    const int64_t tile_k = params[MATMUL_MMA_TILE_K];
    const double k = (double)(coded ? layout_divide_up(params[MATMUL_K], tile_k) * tile_k : params[MATMUL_K]);
    const int64_t all = matmul_matrices(params), slots = matmul_slots(params, params[MATMUL_ROWS]);
    const int64_t matrices = all ? layout_smaller(all, slots) : 1;
    const int64_t blocks = matrices * layout_divide_up(rows_of_matrix(params), params[MATMUL_MMA_TILE_M]) *
                           layout_divide_up(matmul_expert_n(params), params[MATMUL_MMA_TILE_N]);
    const double resident = (double)(gpu->shared_per_sm / (shared_bytes(params) + 1024));
    const double w_bytes = (double)layout_of(params).w_bytes; /* of a stage */
    double multiply = k * tile_n * tile_m / MACS_PER_CLOCK;
    if (coded) multiply += k * tile_n * (double)params[MATMUL_MMA_WARPS_M] / CODES_PER_CLOCK;
    if (fragment_sum_scales(fragments)) multiply += k * tile_n * tile_m / fragments.group / SCALES_PER_CLOCK;
    const double load = k * (w_bytes / (double)tile_k + 2 * tile_m) / L2_BYTES_PER_CLOCK;
    const double even = (double)blocks / gpu->multiprocessors,
                 uneven = (double)layout_divide_up(blocks, gpu->multiprocessors);
    const double work = (even + uneven) / 2 * (multiply > load ? multiply : load);
    uint64_t bytes, flops;
    matmul_device_cost(params, 0, &bytes, &flops);
    /* Little's law: the memory is busy when about 64 KiB of weights are in flight to each SM. */
    const double running =
        (double)blocks / gpu->multiprocessors < resident ? (double)blocks / gpu->multiprocessors : resident;
    const double under_way = running * (double)(params[MATMUL_MMA_STAGES] - 1) * w_bytes;
    const double memory = (double)bytes / (DRAM_BYTES_PER_CLOCK * gpu->multiprocessors) * (1 + 65536 / under_way);
    return (work > memory ? work : memory) + BLOCK_CLOCKS * uneven / resident;
}

/* TILE_N, TILE_M, TILE_K, WARPS_N, WARPS_M, WARPS_K */
static const int64_t plain_shapes[][6] = {
    {16, 8, 128, 1, 1, 4},   {32, 8, 128, 2, 1, 4},   {64, 8, 128, 4, 1, 2},   {16, 16, 128, 1, 1, 4},
    {32, 16, 128, 2, 1, 4},  {64, 16, 128, 4, 1, 2},  {64, 16, 64, 4, 1, 1},   {32, 32, 128, 2, 1, 4},
    {64, 32, 128, 4, 1, 2},  {64, 32, 64, 4, 1, 1},   {128, 32, 64, 4, 1, 2},  {32, 64, 128, 2, 1, 4},
    {64, 64, 128, 2, 2, 2},  {64, 64, 64, 2, 2, 1},   {128, 64, 64, 4, 2, 1},  {128, 64, 64, 2, 2, 1},
    {64, 128, 64, 2, 2, 1},  {128, 128, 64, 4, 2, 1}, {128, 128, 32, 4, 2, 1}, {256, 128, 64, 4, 2, 1},
    {128, 256, 64, 2, 4, 1},
};
/* Those of 128 sums a thread: without scales that multiply sums. */
static const int64_t coded_shapes[][6] = {
    {16, 8, 512, 1, 1, 4},    {16, 8, 1024, 1, 1, 8},   {32, 8, 512, 2, 1, 4},    {64, 8, 256, 4, 1, 2},
    {64, 8, 512, 2, 1, 4},    {16, 16, 512, 1, 1, 4},   {32, 16, 512, 2, 1, 4},   {64, 16, 256, 4, 1, 2},
    {64, 16, 512, 2, 1, 4},   {128, 16, 256, 4, 1, 2},  {32, 32, 256, 2, 1, 2},   {32, 32, 512, 2, 1, 4},
    {64, 32, 256, 4, 1, 2},   {64, 32, 256, 2, 1, 2},   {128, 32, 128, 4, 1, 1},  {128, 32, 256, 4, 1, 2},
    {32, 64, 256, 2, 1, 2},   {64, 64, 256, 4, 1, 2},   {64, 64, 128, 2, 2, 1},   {64, 64, 128, 4, 1, 1},
    {128, 64, 128, 4, 1, 1},  {128, 64, 128, 4, 2, 1},  {64, 128, 128, 2, 2, 1},  {128, 128, 128, 4, 2, 1},
    {128, 128, 128, 2, 2, 1}, {256, 128, 128, 4, 2, 1}, {128, 256, 128, 2, 4, 1},
};

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    static const int64_t stage_counts[] = {8, 5, 3, 2};
    const bool coded = matmul_is_coded(params);
    const int64_t(*const shapes)[6] = coded ? coded_shapes : plain_shapes;
    const size_t shape_count = (coded ? sizeof coded_shapes : sizeof plain_shapes) / sizeof *shapes;
    const size_t stage_count = sizeof stage_counts / sizeof *stage_counts - (coded ? 0 : 1);
    struct matmul_ranking ranking = {.most = 16};
    int64_t p[PLAN_MAX_PARAMS] = {0};
    if (matmul_device_illegal(params) || matmul_sums_choices(params) || params[MATMUL_HAS_NORM] ||
        params[MATMUL_HAS_X_SCALES])
        return 0;
    const int64_t rows = rows_of_matrix(params);
    memcpy(p, params, MATMUL_FIRST_TUNABLE * sizeof *params);
    for (size_t i = 0; i < shape_count; i++)
        for (size_t j = 0; j < stage_count; j++) {
            struct device_geometry geometry;
            const int64_t *shape = shapes[i];
            p[MATMUL_MMA_TILE_N] = shape[0];
            p[MATMUL_MMA_TILE_M] = shape[1];
            p[MATMUL_MMA_TILE_K] = shape[2];
            p[MATMUL_MMA_STAGES] = stage_counts[j];
            p[MATMUL_MMA_WARPS_N] = shape[3];
            p[MATMUL_MMA_WARPS_M] = shape[4];
            p[MATMUL_MMA_WARPS_K] = shape[5];
            if (shape[1] >= 2 * rows && shape[1] > 8) continue; /* a smaller tile suffices */
            if (shape[1] < rows && shape[1] < 64) continue;     /* weights would be read over and over */
            if (!launch(p, gpu, &geometry)) matmul_device_rank(&ranking, p, estimate_clocks(p, gpu));
        }
    return matmul_device_ranked(&ranking, params_out, capacity);
}

const struct device_kernel device_matmul_mma = {
    .name = "matmul_mma",
    .op = OP_MATMUL,
    .problem = &op_matmul,
    DEVICE_OWN_NAMES(MATMUL_MMA_PARAMS - MATMUL_FIRST_TUNABLE, "TILE_N", "TILE_M", "TILE_K", "STAGES", "WARPS_N",
                     "WARPS_M", "WARPS_K"),
    .launch = launch,
    .candidates = candidates,
    .cost = matmul_device_cost,
};
