/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_gather/all_gather.h"

#include "kernels/cuda/kernel.h"

enum { WARP = 32, MAX_THREADS = 1024, VECTOR = 4 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t rows = params[ALL_GATHER_ROWS], width = params[ALL_GATHER_WIDTH];
    const int64_t out_width = params[ALL_GATHER_OUT_WIDTH], threads = params[ALL_GATHER_DEVICE_THREADS];
    const char *why = op_params_illegal(&op_all_gather, params);
    if (why) return why;
    if (threads < WARP || threads > MAX_THREADS || threads % WARP) return "THREADS is not a multiple of 32 in 32..1024";
    const int64_t vector = width % VECTOR == 0 && out_width % VECTOR == 0 ? VECTOR : 1;
    const int64_t blocks = (rows * (width / vector) + threads - 1) / threads;
    if (blocks > INT32_MAX) return "ROWS * WIDTH is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {(uint32_t)threads, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    static const int64_t threads[] = {256, 128, 512, 1024};
    int count = 0;
    for (int t = 0; t < 4; t++)
        count = device_add_candidate(&device_all_gather, params, &threads[t], gpu, params_out, count, capacity);
    return count;
}

/* Bytes of this GPU's memory; RANKS - 1 times the bytes of x go over the link. */
static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t columns = (uint64_t)params[ALL_GATHER_WIDTH] + (uint64_t)params[ALL_GATHER_OUT_WIDTH];
    *bytes = (uint64_t)params[ALL_GATHER_ROWS] * columns * sizeof(float);
    *flops = 0;
}

const struct device_kernel device_all_gather = {
    .name = "all_gather",
    .op = OP_ALL_GATHER,
    .problem = &op_all_gather,
    DEVICE_OWN_NAMES(ALL_GATHER_DEVICE_PARAMS - ALL_GATHER_PARAMS, "THREADS"),
    .launch = launch,
    .candidates = candidates,
    .cost = cost,
};
