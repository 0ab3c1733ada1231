/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_reduce/all_reduce.h"

#include "kernels/all_reduce/all_reduce_layout.cuh"
#include "kernels/cuda/kernel.h"

enum {
    MAX_WIDTH = 1 << 24,
    WARP = 32,
    MAX_THREADS = 1024,
    VECTOR_BYTES = 16,
    MOST_RESIDENT = 16, /* small blocks that fit on every multiprocessor */
    MOST_STEPS = 4,     /* vectors of a thread: they stay in registers */
};

static int64_t row_vectors(const int64_t *params)
{
    return params[ALL_REDUCE_WIDTH] * (int64_t)dtype_bytes((enum dtype)params[ALL_REDUCE_X_DTYPE]) / VECTOR_BYTES;
}

const char *all_reduce_device_illegal(const int64_t *params)
{
    const int64_t width = params[ALL_REDUCE_WIDTH];
    const char *why = op_params_illegal(&op_all_reduce, params);
    if (why) return why;
    return width < 8 || width > MAX_WIDTH || width % 8 ? "WIDTH is not a multiple of 8 in 8..2^24" : NULL;
}

/* Likewise with THREADS. */
static const char *threads_illegal(const int64_t *params)
{
    const int64_t threads = params[ALL_REDUCE_DEVICE_THREADS];
    const char *why = all_reduce_device_illegal(params);
    if (why) return why;
    return threads < WARP || threads > MAX_THREADS || threads % WARP ? "THREADS is not a multiple of 32 in 32..1024"
                                                                     : NULL;
}

static uint64_t row_bytes(const int64_t *params)
{
    return (uint64_t)params[ALL_REDUCE_WIDTH] * dtype_bytes((enum dtype)params[ALL_REDUCE_X_DTYPE]);
}

static const char *launch_one_shot(const int64_t *params, const struct device_facts *gpu,
                                   struct device_geometry *geometry)
{
    const char *illegal = threads_illegal(params);
    if (illegal) return illegal;
    const int64_t rows = params[ALL_REDUCE_ROWS], threads = params[ALL_REDUCE_DEVICE_THREADS];
    const int64_t cluster = params[ALL_REDUCE_DEVICE_BLOCKS];
    if (!all_reduce_device_is_one_shot((uint64_t)rows * row_bytes(params), (uint64_t)params[ALL_REDUCE_RANKS]))
        return "ROWS * WIDTH is more than one shot is for";
    if (params[ALL_REDUCE_HAS_RESIDUAL] == ALL_REDUCE_OWN_ROWS || params[ALL_REDUCE_HAS_NORM] == ALL_REDUCE_OWN_ROWS)
        return "HAS_RESIDUAL or HAS_NORM is 2, but rows have no owners in one shot";
    if (cluster != 1 && cluster != 2 && cluster != 4 && cluster != 8) return "CLUSTER is not 1, 2, 4 or 8";
    if (cluster > 1 && gpu->capability < 90) return "CLUSTER is above 1, but this GPU has no clusters";
    if ((row_vectors(params) + threads * cluster - 1) / (threads * cluster) > MOST_STEPS)
        return "THREADS * CLUSTER is too small for the row to stay in registers";
    *geometry = (struct device_geometry){{(uint32_t)(rows * cluster), 1, 1},
                                         {(uint32_t)threads, 1, 1},
                                         {(uint32_t)cluster, 1, 1},
                                         0};
    return NULL;
}

static int64_t two_shot_most_blocks(const int64_t *params, const struct device_facts *gpu, int64_t threads,
                                    int64_t halves)
{
    const int64_t resident = all_reduce_two_shot_resident(params[ALL_REDUCE_RANKS], row_vectors(params), threads);
    return gpu->multiprocessors * layout_smaller(resident, MOST_RESIDENT) / halves;
}

static const char *launch_two_shot(const int64_t *params, const struct device_facts *gpu,
                                   struct device_geometry *geometry)
{
    const char *illegal = threads_illegal(params);
    if (illegal) return illegal;
    const int64_t threads = params[ALL_REDUCE_DEVICE_THREADS], blocks = params[ALL_REDUCE_DEVICE_BLOCKS];
    const int64_t halves = params[ALL_REDUCE_DEVICE_HALVES];
    if (halves != 1 && halves != 2) return "HALVES is not 1 or 2";
    if (blocks < 1 || blocks > two_shot_most_blocks(params, gpu, threads, halves))
        return "BLOCKS is not in 1..what the GPU runs at once, by HALVES";
    if ((row_vectors(params) + threads - 1) / threads > MOST_STEPS)
        return "THREADS is too small for a row to stay in registers";
    *geometry = (struct device_geometry){{(uint32_t)(halves * blocks), 1, 1}, {(uint32_t)threads, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

/* 1024 threads have 64 registers each: enough for one vector and few ranks. Used only for rows that fewer threads
 * cannot hold. */
static bool lacks_registers(const int64_t *params, int64_t threads, int64_t blocks_of_row)
{
    const int64_t vectors = row_vectors(params), half = threads / 2 * blocks_of_row;
    return threads == MAX_THREADS && vectors <= half * MOST_STEPS &&
           (vectors > threads * blocks_of_row || params[ALL_REDUCE_RANKS] > 4);
}

static int one_shot_candidates(const int64_t *params, const struct device_facts *gpu,
                               int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    /* One vector per thread, so that the whole row is in flight at once; more blocks for few rows. */
    static const int64_t clusters[] = {2, 1, 4, 8};
    static const int64_t threads[] = {256, 512, 128, 1024, 64};
    int count = 0;
    for (int steps = 1; steps <= MOST_STEPS; steps++)
        for (int c = 0; c < 4; c++)
            for (int t = 0; t < 5; t++) {
                const int64_t each = threads[t] * clusters[c], vectors = row_vectors(params);
                if ((vectors + each - 1) / each != steps) continue;
                /* At most half of the threads are idle, except for rows that one warp holds. */
                if (each / 2 >= vectors && threads[t] > 64) continue;
                if (lacks_registers(params, threads[t], clusters[c])) continue;
                if (params[ALL_REDUCE_ROWS] * clusters[c] > 2 * gpu->multiprocessors && clusters[c] > 1) continue;
                const int64_t own[] = {threads[t], clusters[c]};
                count =
                    device_add_candidate(&device_all_reduce_one_shot, params, own, gpu, params_out, count, capacity);
            }
    return count;
}

static int two_shot_candidates(const int64_t *params, const struct device_facts *gpu,
                               int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    static const int64_t threads[] = {512, 256, 1024, 128};
    /* Through host memory the tactics win whose blocks do not poll for sums all the time. */
    static const struct {
        int64_t divisor, halves;
    } shapes[] = {{1, 2}, {1, 1}, {2, 2}, {4, 2}, {2, 1}};
    const int64_t rows = params[ALL_REDUCE_ROWS];
    int count = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int t = 0; t < 4; t++) {
            const int64_t most = two_shot_most_blocks(params, gpu, threads[t], shapes[s].halves) / shapes[s].divisor;
            if (shapes[s].divisor > 1 && most >= rows) continue; /* no fewer than the last number */
            if (threads[t] > 128 && threads[t] / 2 >= row_vectors(params)) continue;
            if (lacks_registers(params, threads[t], 1)) continue;
            const int64_t own[] = {threads[t], rows < most ? rows : most, shapes[s].halves};
            count = device_add_candidate(&device_all_reduce_two_shot, params, own, gpu, params_out, count, capacity);
        }
    return count;
}

/* Bytes of this GPU's memory; the link's bytes are (RANKS - 1) times the rows, or twice their (RANKS - 1) / RANKS. */
static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t elements = (uint64_t)params[ALL_REDUCE_ROWS] * (uint64_t)params[ALL_REDUCE_WIDTH];
    const uint64_t ranks = (uint64_t)params[ALL_REDUCE_RANKS];
    const bool own_norm = params[ALL_REDUCE_HAS_NORM] == ALL_REDUCE_OWN_ROWS;
    const bool own_residual = own_norm || params[ALL_REDUCE_HAS_RESIDUAL] == ALL_REDUCE_OWN_ROWS;
    *bytes = elements * dtype_bytes((enum dtype)params[ALL_REDUCE_X_DTYPE]);
    *bytes += elements * sizeof(float) / (own_norm ? ranks : 1);
    if (params[ALL_REDUCE_HAS_RESIDUAL]) *bytes += elements * sizeof(float) / (own_residual ? ranks : 1);
    if (params[ALL_REDUCE_HAS_NORM]) *bytes += elements * dtype_bytes((enum dtype)params[ALL_REDUCE_OUT_DTYPE]);
    *flops = elements * (ranks + (params[ALL_REDUCE_HAS_NORM] ? 4 : 0)) / (own_norm ? ranks : 1);
}

const struct device_kernel device_all_reduce_one_shot = {
    .name = "all_reduce_one_shot",
    .op = OP_ALL_REDUCE,
    .problem = &op_all_reduce,
    DEVICE_OWN_NAMES(ALL_REDUCE_ONE_SHOT_PARAMS - ALL_REDUCE_PARAMS, "THREADS", "CLUSTER"),
    .launch = launch_one_shot,
    .candidates = one_shot_candidates,
    .cost = cost,
};

const struct device_kernel device_all_reduce_two_shot = {
    .name = "all_reduce_two_shot",
    .op = OP_ALL_REDUCE,
    .problem = &op_all_reduce,
    DEVICE_OWN_NAMES(ALL_REDUCE_DEVICE_PARAMS - ALL_REDUCE_PARAMS, "THREADS", "BLOCKS", "HALVES"),
    .coresident = true,
    .launch = launch_two_shot,
    .candidates = two_shot_candidates,
    .cost = cost,
};
