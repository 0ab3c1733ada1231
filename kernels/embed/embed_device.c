/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/embed/embed_device.h"

#include "kernels/op/op.h"
#include "kernels/cuda/include/layout.cuh"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, VECTOR = 8, MAX_HIDDEN = 1 << 24 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t rows = params[EMBED_DEVICE_ROWS], hidden = params[EMBED_DEVICE_HIDDEN];
    const int64_t pitch = params[EMBED_DEVICE_PITCH], dtype = params[EMBED_DEVICE_DTYPE];
    if (rows < 1 || rows > OP_MAX_ROWS) return "ROWS is not in 1..2^20";
    if (params[EMBED_DEVICE_COUNT_INDEX] < 0 || params[EMBED_DEVICE_COUNT_INDEX] > 1)
        return "COUNT_INDEX is not 0 or 1";
    if (hidden < 1 || hidden > MAX_HIDDEN) return "HIDDEN is not in 1..2^24";
    if (pitch < hidden || pitch > MAX_HIDDEN) return "PITCH is not in HIDDEN..2^24";
    if (params[EMBED_DEVICE_VOCAB] < 1 || params[EMBED_DEVICE_VOCAB] > OP_MAX_WIDTH) return "VOCAB is not in 1..2^31-1";
    if (dtype != DTYPE_F32 && dtype != DTYPE_F16 && dtype != DTYPE_BF16) return "TABLE_DTYPE is not F32, F16 or BF16";
    const int64_t out_dtype = params[EMBED_DEVICE_OUT_DTYPE], sharded = params[EMBED_DEVICE_SHARDED];
    if (params[EMBED_LAYOUT] != LAYOUT_ROW_MAJOR) return "LAYOUT is not row-major";
    if (sharded < 0 || sharded > 1) return "SHARDED is not 0 or 1";
    if (out_dtype != DTYPE_F32 && out_dtype != DTYPE_F16 && out_dtype != DTYPE_BF16)
        return "OUT_DTYPE is not F32, F16 or BF16";
    const int64_t vector = hidden % VECTOR == 0 && pitch % VECTOR == 0 ? VECTOR : 1;
    const int64_t blocks = (hidden / vector + THREADS - 1) / THREADS * rows;
    if (blocks > INT32_MAX) return "ROWS * HIDDEN is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t element = dtype_bytes((enum dtype)params[EMBED_DEVICE_DTYPE]);
    const uint64_t out = dtype_bytes((enum dtype)params[EMBED_DEVICE_OUT_DTYPE]);
    *bytes = (uint64_t)params[EMBED_DEVICE_ROWS] *
             ((uint64_t)params[EMBED_DEVICE_HIDDEN] * (element + out) + sizeof(int32_t));
    *flops = 0;
}

static const char *const param_names[EMBED_DEVICE_PARAMS] = {"ROWS",    "COUNT_INDEX", "HIDDEN",
                                                             "PITCH",   "VOCAB",       "TABLE_DTYPE",
                                                             "SHARDED", "OUT_DTYPE",   "LAYOUT"};

const struct device_kernel device_embed = {
    .name = "embed",
    .source = "kernels/embed/embed.cu",
    .op = OP_EMBED,
    .least_capability = 80,
    .param_count = EMBED_DEVICE_PARAMS,
    .param_names = param_names,
    .first_tunable = EMBED_DEVICE_PARAMS,
    .operand_count = EMBED_DEVICE_OPERANDS,
    .launch = launch,
    .cost = cost,
};
