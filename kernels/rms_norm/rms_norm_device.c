/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rms_norm/rms_norm_device.h"

#include "kernels/op/op.h"

enum { FLT_MAX_BITS = 0x7f7fffff, MAX_HIDDEN = 1 << 24, WARP = 32, MAX_THREADS = 1024 };

static bool is_float(int64_t dtype) { return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t rows = params[RMS_NORM_DEVICE_ROWS], hidden = params[RMS_NORM_DEVICE_HIDDEN];
    const int64_t count_index = params[RMS_NORM_DEVICE_COUNT_INDEX], threads = params[RMS_NORM_DEVICE_THREADS];
    const int64_t eps = params[RMS_NORM_DEVICE_EPS_BITS];
    if (rows < 1 || rows > OP_MAX_ROWS) return "ROWS is not in 1..2^20";
    if (count_index < 0 || count_index > 1) return "COUNT_INDEX is not 0 or 1";
    if (hidden < 1 || hidden > MAX_HIDDEN) return "HIDDEN is not in 1..2^24";
    if (!is_float(params[RMS_NORM_DEVICE_DTYPE])) return "WEIGHT_DTYPE is not F32, F16 or BF16";
    if (eps < 0 || eps > FLT_MAX_BITS) return "EPS_BITS are not of a finite float >= 0";
    if (!is_float(params[RMS_NORM_DEVICE_OUT_DTYPE])) return "OUT_DTYPE is not F32, F16 or BF16";
    if (params[RMS_NORM_HAS_RESIDUAL]) return "HAS_RESIDUAL is not 0";
    if (threads < WARP || threads > MAX_THREADS || threads % WARP) return "THREADS is not a multiple of 32 in 32..1024";
    *geometry = (struct device_geometry){{(uint32_t)rows, 1, 1}, {(uint32_t)threads, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[RMS_NORM_DEVICE_ROWS], hidden = (uint64_t)params[RMS_NORM_DEVICE_HIDDEN];
    const uint64_t weight = dtype_bytes((enum dtype)params[RMS_NORM_DEVICE_DTYPE]);
    const uint64_t out = dtype_bytes((enum dtype)params[RMS_NORM_DEVICE_OUT_DTYPE]);
    *bytes = rows * hidden * (sizeof(float) + out) + hidden * weight;
    *flops = 4 * rows * hidden;
}

int rms_norm_device_candidates(const int64_t *params, const struct device_facts *gpu,
                               int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    /* Few rows: as many loads in flight as one row has vectors. Many rows: small blocks, several on a multiprocessor. */
    static const int64_t few[] = {1024, 512, 256, 128, 64}, many[] = {512, 256, 128, 1024, 64};
    const int64_t *threads = params[RMS_NORM_DEVICE_ROWS] <= gpu->multiprocessors ? few : many;
    const int64_t vectors = (params[RMS_NORM_DEVICE_HIDDEN] + 3) / 4;
    int count = 0;
    for (int i = 0; i < (int)(sizeof few / sizeof few[0]) && count < capacity; i++) {
        struct device_geometry geometry;
        int64_t *out = params_out[count];
        for (int p = 0; p < RMS_NORM_DEVICE_PARAMS; p++) out[p] = p == RMS_NORM_DEVICE_THREADS ? threads[i] : params[p];
        if (threads[i] > 64 && threads[i] / 2 >= vectors) continue; /* half of the threads would idle */
        if (!launch(out, gpu, &geometry)) count++;
    }
    return count;
}

static const char *const param_names[RMS_NORM_DEVICE_PARAMS] = {"ROWS",         "COUNT_INDEX", "HIDDEN",
                                                                "WEIGHT_DTYPE", "EPS_BITS",    "OUT_DTYPE",
                                                                "HAS_RESIDUAL", "THREADS"};

const struct device_kernel device_rms_norm = {
    .name = "rms_norm",
    .source = "kernels/rms_norm/rms_norm.cu",
    .op = OP_RMS_NORM,
    .least_capability = 80,
    .param_count = RMS_NORM_DEVICE_PARAMS,
    .param_names = param_names,
    .first_tunable = RMS_NORM_DEVICE_THREADS,
    .operand_count = RMS_NORM_DEVICE_OPERANDS,
    .launch = launch,
    .candidates = rms_norm_device_candidates,
    .cost = cost,
};
