/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rms_norm/rms_norm.h"

#include "kernels/cuda/kernel.h"

enum { MAX_HIDDEN = 1 << 24, WARP = 32, MAX_THREADS = 1024, MOST_KEPT = 32 /* elements, by a thread */ };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t rows = params[RMS_NORM_ROWS], hidden = params[RMS_NORM_HIDDEN];
    const int64_t threads = params[RMS_NORM_DEVICE_THREADS];
    const char *why = op_params_illegal(&op_rms_norm, params);
    if (why) return why;
    if (hidden > MAX_HIDDEN) return "parameter hidden is above 2^24";
    if (threads < WARP || threads > MAX_THREADS || threads % WARP) return "THREADS is not a multiple of 32 in 32..1024";
    if (params[RMS_NORM_HAS_SCALES] && hidden > MOST_KEPT * threads)
        return "parameter hidden is above 32 * THREADS, and the row becomes codes";
    if (params[RMS_NORM_HAS_RESIDUAL] && hidden > MOST_KEPT * threads)
        return "parameter hidden is above 32 * THREADS, with a residual";
    *geometry = (struct device_geometry){{(uint32_t)rows, 1, 1}, {(uint32_t)threads, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    /* Few rows: as many loads in flight as one row has vectors. Many rows: small blocks, several on a multiprocessor. */
    static const int64_t few[] = {1024, 512, 256, 128, 64}, many[] = {512, 256, 128, 1024, 64};
    const int64_t *threads = params[RMS_NORM_ROWS] <= gpu->multiprocessors ? few : many;
    const int64_t vectors = (params[RMS_NORM_HIDDEN] + 3) / 4;
    int count = 0;
    for (int i = 0; i < (int)(sizeof few / sizeof few[0]); i++) {
        if (threads[i] > 64 && threads[i] / 2 >= vectors) continue; /* half of the threads would idle */
        count = device_add_candidate(&device_rms_norm, params, &threads[i], gpu, params_out, count, capacity);
    }
    return count;
}

const struct device_kernel device_rms_norm = {
    .name = "rms_norm",
    .op = OP_RMS_NORM,
    .problem = &op_rms_norm,
    DEVICE_OWN_NAMES(RMS_NORM_DEVICE_PARAMS - RMS_NORM_PARAMS, "THREADS"),
    .launch = launch,
    .candidates = candidates,
    .cost = rms_norm_cost,
};
