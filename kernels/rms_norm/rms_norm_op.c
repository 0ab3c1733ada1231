/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rms_norm/rms_norm.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/op/op.h"
#include "kernels/quantise/quantise.h"
#include "kernels/rms_norm/rms_norm_vector.h"
#include "kernels/sum_parts/sum_parts.h"

void rms_norm_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    *bytes = 0;
    uint64_t rows = (uint64_t)params[RMS_NORM_ROWS], width = (uint64_t)params[RMS_NORM_HIDDEN];
    uint64_t element_bytes = sizeof(float) + dtype_bytes((enum dtype)params[RMS_NORM_OUT_DTYPE]);
    if (params[RMS_NORM_HAS_RESIDUAL]) element_bytes += (1 + (uint64_t)params[RMS_NORM_PARTS]) * sizeof(float);
    if (params[RMS_NORM_HAS_ADD_TO]) element_bytes += sizeof(float);
    if (params[RMS_NORM_HAS_COPY]) element_bytes += dtype_bytes((enum dtype)params[RMS_NORM_COPY_DTYPE]);
    if (params[RMS_NORM_HAS_SCALES]) *bytes = rows * sizeof(float);
    if (params[RMS_NORM_HAS_BIAS]) *bytes += width * dtype_bytes((enum dtype)params[RMS_NORM_BIAS_DTYPE]);
    if (params[RMS_NORM_HAS_FACTOR]) *bytes += width * dtype_bytes((enum dtype)params[RMS_NORM_FACTOR_DTYPE]);
    *bytes += rows * width * element_bytes + width * dtype_bytes((enum dtype)params[RMS_NORM_WEIGHT_DTYPE]);
    *flops = (params[RMS_NORM_HAS_RESIDUAL] || params[RMS_NORM_HAS_ADD_TO] ? 5u : 4u) * rows * width;
}

static uint64_t x_width(const int64_t *params)
{
    return (uint64_t)params[RMS_NORM_PARTS] * (uint64_t)params[RMS_NORM_HIDDEN];
}

static const char *illegal(const int64_t *params)
{
    if (params[RMS_NORM_HIDDEN] > OP_MAX_WIDTH / params[RMS_NORM_PARTS])
        return "parameter parts times hidden is above 2^31";
    if (params[RMS_NORM_PARTS] > 1 && !params[RMS_NORM_HAS_RESIDUAL]) return "parts without residual";
    if (params[RMS_NORM_HAS_RESIDUAL] && params[RMS_NORM_HAS_ADD_TO]) return "both residual and add_to";
    if (params[RMS_NORM_HAS_FACTOR] && !params[RMS_NORM_HAS_ADD_TO]) return "factor without add_to";
    const bool codes = params[RMS_NORM_OUT_DTYPE] == DTYPE_F8_E4M3 || params[RMS_NORM_OUT_DTYPE] == DTYPE_I8;
    if (!params[RMS_NORM_HAS_SCALES]) return codes ? "codes without scales" : NULL;
    if (!codes) return "scales without codes";
    if (params[RMS_NORM_HAS_ADD_TO]) return "scales with add_to";
    return params[RMS_NORM_HIDDEN] % QUANTISE_GROUP ? "codes of rows that are no multiple of 16" : NULL;
}

static const char *cpu_illegal(const int64_t *params)
{
    if (params[RMS_NORM_HAS_SCALES]) return "CPU code has no scales";
    if (params[RMS_NORM_PARTS] > 1) return "CPU code has no parts";
    return params[RMS_NORM_HAS_ADD_TO] || params[RMS_NORM_HAS_COPY] ? "CPU code has neither add_to nor copy" : NULL;
}

static const struct op_param param_schema[RMS_NORM_PARAMS] = {
    OP_ROWS_PARAMS,
    [RMS_NORM_HIDDEN] = {"hidden", 3, PARAM_INTEGER, PARAM_OF_WIDTH, RMS_NORM_OUT, .least = 1, .most = OP_MAX_WIDTH},
    [RMS_NORM_WEIGHT_DTYPE] = {"weight_dtype", 4, PARAM_DTYPE, PARAM_OF_DTYPE, RMS_NORM_WEIGHT},
    [RMS_NORM_EPS_BITS] = {"eps_bits", 5, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [RMS_NORM_OUT_DTYPE] = {"out_dtype", 6, PARAM_CODES, PARAM_OF_DTYPE, RMS_NORM_OUT, .fallback = DTYPE_F32},
    [RMS_NORM_HAS_RESIDUAL] = {"has_residual", 7, PARAM_INTEGER, PARAM_OF_PRESENT, RMS_NORM_RESIDUAL, .most = 1},
    [RMS_NORM_HAS_ADD_TO] = {"has_add_to", OP_LATER_PARAM_ID, PARAM_INTEGER, PARAM_OF_PRESENT, RMS_NORM_ADD_TO,
                             .most = 1},
    [RMS_NORM_HAS_COPY] = {"has_copy", OP_LATER_PARAM_ID + 1, PARAM_INTEGER, PARAM_OF_PRESENT, RMS_NORM_COPY,
                           .most = 1},
    [RMS_NORM_COPY_DTYPE] = {"copy_dtype", OP_LATER_PARAM_ID + 2, PARAM_DTYPE, PARAM_OF_DTYPE, RMS_NORM_COPY,
                             .fallback = DTYPE_BF16},
    [RMS_NORM_HAS_SCALES] = {"has_scales", OP_LATER_PARAM_ID + 3, PARAM_INTEGER, PARAM_OF_PRESENT, RMS_NORM_SCALES,
                             .most = 1},
    [RMS_NORM_CENTRED] = {"centred", OP_LATER_PARAM_ID + 4, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [RMS_NORM_HAS_BIAS] = {"has_bias", OP_LATER_PARAM_ID + 5, PARAM_INTEGER, PARAM_OF_PRESENT, RMS_NORM_BIAS,
                           .most = 1},
    [RMS_NORM_BIAS_DTYPE] = {"bias_dtype", OP_LATER_PARAM_ID + 6, PARAM_DTYPE, PARAM_OF_DTYPE, RMS_NORM_BIAS,
                             .fallback = DTYPE_BF16},
    [RMS_NORM_HAS_FACTOR] = {"has_factor", OP_LATER_PARAM_ID + 7, PARAM_INTEGER, PARAM_OF_PRESENT, RMS_NORM_FACTOR,
                             .most = 1},
    [RMS_NORM_FACTOR_DTYPE] = {"factor_dtype", OP_LATER_PARAM_ID + 8, PARAM_DTYPE, PARAM_OF_DTYPE, RMS_NORM_FACTOR,
                               .fallback = DTYPE_BF16},
    [RMS_NORM_PARTS] = {"parts", OP_LATER_PARAM_ID + 9, PARAM_INTEGER, PARAM_OF_NODE, .least = 1,
                        .most = SUM_PARTS_MOST, .fallback = 1},
};
static const struct op_operand operand_schema[RMS_NORM_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [RMS_NORM_X] = {"x", ROLE_INPUT, .fixed = DTYPE_F32, .rows = RMS_NORM_ROWS, .width = x_width},
    [RMS_NORM_WEIGHT] = {"weight", ROLE_WEIGHT, .dtype = RMS_NORM_WEIGHT_DTYPE, .rows = OP_NONE,
                         .columns = RMS_NORM_HIDDEN},
    [RMS_NORM_OUT] = {"out", ROLE_OUTPUT, .dtype = RMS_NORM_OUT_DTYPE, .rows = RMS_NORM_ROWS,
                      .columns = RMS_NORM_HIDDEN, .replaces = 1u << RMS_NORM_ADD_TO, .replaces_cpu = 1u << RMS_NORM_X},
    [RMS_NORM_RESIDUAL] = {"residual", ROLE_INPUT, .present = RMS_NORM_HAS_RESIDUAL, .fixed = DTYPE_F32,
                           .rows = RMS_NORM_ROWS, .columns = RMS_NORM_HIDDEN},
    [RMS_NORM_SUM] = {"sum", ROLE_OUTPUT, .present = RMS_NORM_HAS_RESIDUAL, .fixed = DTYPE_F32, .rows = RMS_NORM_ROWS,
                      .columns = RMS_NORM_HIDDEN, .replaces = 1u << RMS_NORM_RESIDUAL},
    [RMS_NORM_ADD_TO] = {"add_to", ROLE_INPUT, .present = RMS_NORM_HAS_ADD_TO, .fixed = DTYPE_F32,
                         .rows = RMS_NORM_ROWS, .columns = RMS_NORM_HIDDEN},
    [RMS_NORM_COPY] = {"copy", ROLE_OUTPUT, .present = RMS_NORM_HAS_COPY, .dtype = RMS_NORM_COPY_DTYPE,
                       .rows = RMS_NORM_ROWS, .columns = RMS_NORM_HIDDEN},
    [RMS_NORM_SCALES] = {"scales", ROLE_OUTPUT, .present = RMS_NORM_HAS_SCALES, .fixed = DTYPE_F32,
                         .rows = RMS_NORM_ROWS, .columns = OP_NONE},
    [RMS_NORM_BIAS] = {"bias", ROLE_WEIGHT, .present = RMS_NORM_HAS_BIAS, .dtype = RMS_NORM_BIAS_DTYPE, .rows = OP_NONE,
                       .columns = RMS_NORM_HIDDEN},
    [RMS_NORM_FACTOR] = {"factor", ROLE_WEIGHT, .present = RMS_NORM_HAS_FACTOR, .dtype = RMS_NORM_FACTOR_DTYPE,
                         .rows = OP_NONE, .columns = RMS_NORM_HIDDEN},
};

const struct op_descriptor op_rms_norm = {
    .id = OP_RMS_NORM,
    .name = "rms_norm",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = rms_norm_cost,
    .cpu_illegal = cpu_illegal,
    .reference = rms_norm_reference,
    OP_VECTOR_RUN(rms_norm),
};
