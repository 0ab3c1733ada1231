/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rms_norm/rms_norm.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/op/op.h"
#include "kernels/rms_norm/rms_norm_vector.h"

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    (void)geometry;
    uint64_t rows = (uint64_t)params[RMS_NORM_ROWS], width = (uint64_t)params[RMS_NORM_HIDDEN];
    uint64_t arrays = params[RMS_NORM_HAS_RESIDUAL] ? 4 : 2;
    *bytes = arrays * rows * width * sizeof(float) + width * dtype_bytes((enum dtype)params[RMS_NORM_WEIGHT_DTYPE]);
    *flops = (params[RMS_NORM_HAS_RESIDUAL] ? 5u : 4u) * rows * width;
}

static void run_portable(const struct op_call *call, struct team_member *member) { rms_norm_vector_run(call, member); }

static const struct op_param param_schema[RMS_NORM_PARAMS] = {
    OP_ROWS_PARAMS,
    [RMS_NORM_HIDDEN] = {"hidden", 3, PARAM_INTEGER, PARAM_OF_WIDTH, RMS_NORM_X, .least = 1, .most = OP_MAX_WIDTH},
    [RMS_NORM_WEIGHT_DTYPE] = {"weight_dtype", 4, PARAM_DTYPE, PARAM_OF_DTYPE, RMS_NORM_WEIGHT},
    [RMS_NORM_EPS_BITS] = {"eps_bits", 5, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [RMS_NORM_OUT_DTYPE] = {"out_dtype", 6, PARAM_DTYPE, PARAM_OF_DTYPE, RMS_NORM_OUT, .fallback = DTYPE_F32},
    [RMS_NORM_HAS_RESIDUAL] = {"has_residual", 7, PARAM_INTEGER, PARAM_OF_PRESENT, RMS_NORM_RESIDUAL, .most = 1},
};
static const struct op_operand operand_schema[RMS_NORM_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [RMS_NORM_X] = {"x", ROLE_INPUT, .fixed = DTYPE_F32, .rows = RMS_NORM_ROWS, .columns = RMS_NORM_HIDDEN},
    [RMS_NORM_WEIGHT] = {"weight", ROLE_WEIGHT, .dtype = RMS_NORM_WEIGHT_DTYPE, .rows = OP_NONE,
                         .columns = RMS_NORM_HIDDEN},
    [RMS_NORM_OUT] = {"out", ROLE_OUTPUT, .dtype = RMS_NORM_OUT_DTYPE, .rows = RMS_NORM_ROWS,
                      .columns = RMS_NORM_HIDDEN, .replaces_cpu = 1u << RMS_NORM_X},
    [RMS_NORM_RESIDUAL] = {"residual", ROLE_INPUT, .present = RMS_NORM_HAS_RESIDUAL, .fixed = DTYPE_F32,
                           .rows = RMS_NORM_ROWS, .columns = RMS_NORM_HIDDEN},
    [RMS_NORM_SUM] = {"sum", ROLE_OUTPUT, .present = RMS_NORM_HAS_RESIDUAL, .fixed = DTYPE_F32, .rows = RMS_NORM_ROWS,
                      .columns = RMS_NORM_HIDDEN, .replaces_cpu = 1u << RMS_NORM_RESIDUAL},
};

const struct op_descriptor op_rms_norm = {
    .id = OP_RMS_NORM,
    .name = "rms_norm",
    .params = param_schema,
    .operands = operand_schema,
    .param_count = RMS_NORM_PARAMS,
    .operand_count = RMS_NORM_OPERANDS,
    .cost = cost,
    .reference = rms_norm_reference,
    .run =
        {
            [CPU_PORTABLE] = run_portable,
#if defined(__x86_64__)
            [CPU_AVX2] = rms_norm_run_avx2,
            [CPU_AVX512] = rms_norm_run_avx512,
#endif
        },
};
