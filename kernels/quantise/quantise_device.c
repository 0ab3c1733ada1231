/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"
#include "kernels/quantise/quantise.h"

enum { WARP = 32, MAX_THREADS = 1024, MOST_STEPS = 8 /* groups of a thread, in registers */ };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t threads = params[QUANTISE_THREADS], dtype = params[QUANTISE_X_DTYPE];
    const char *why = op_params_illegal(&op_quantise, params);
    if (why) return why;
    if (dtype != DTYPE_F16 && dtype != DTYPE_BF16) return "parameter x_dtype is not F16 or BF16";
    if (threads < WARP || threads > MAX_THREADS || threads % WARP) return "THREADS is not a multiple of 32 in 32..1024";
    if (params[QUANTISE_WIDTH] > MOST_STEPS * QUANTISE_GROUP * threads) return "parameter width is above 128 * THREADS";
    *geometry =
        (struct device_geometry){{(uint32_t)params[QUANTISE_ROWS], 1, 1}, {(uint32_t)threads, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    /* Few rows: as many loads in flight as a row has. Many rows: small blocks, several on a multiprocessor. */
    static const int64_t few[] = {1024, 512, 256, 128, 64}, many[] = {256, 128, 512, 64, 1024};
    const int64_t *threads = params[QUANTISE_ROWS] <= gpu->multiprocessors ? few : many;
    const int64_t groups = layout_divide_up(params[QUANTISE_WIDTH], QUANTISE_GROUP);
    int count = 0;
    for (int i = 0; i < (int)(sizeof few / sizeof few[0]); i++) {
        if (threads[i] > 64 && threads[i] / 2 >= groups) continue; /* half of the threads would idle */
        count = device_add_candidate(&device_quantise, params, &threads[i], gpu, params_out, count, capacity);
    }
    return count;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[QUANTISE_ROWS], width = (uint64_t)params[QUANTISE_WIDTH];
    *bytes = rows * (width * (dtype_bytes((enum dtype)params[QUANTISE_X_DTYPE]) + 1) + sizeof(float));
    *flops = 4 * rows * width;
}

const struct device_kernel device_quantise = {
    .name = "quantise",
    .op = OP_QUANTISE,
    .problem = &op_quantise,
    DEVICE_OWN_NAMES(QUANTISE_DEVICE_PARAMS - QUANTISE_PARAMS, "THREADS"),
    .launch = launch,
    .candidates = candidates,
    .cost = cost,
};
