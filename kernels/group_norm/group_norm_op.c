/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/group_norm/group_norm.h"

#include <math.h>

#include "kernels/cpu/vector_portable.h"
#include "kernels/group_norm/group_norm_vector.h"

static const char *illegal(const int64_t *params)
{
    if (params[GROUP_NORM_WIDTH] % params[GROUP_NORM_GROUPS]) return "width is not a multiple of groups";
    return params[GROUP_NORM_HAS_MEANS] && params[GROUP_NORM_GROUPS] > 1 ? "means of more than one group" : NULL;
}

static const char *cpu_illegal(const int64_t *params)
{
    return params[GROUP_NORM_X_DTYPE] == DTYPE_F32 ? NULL : "parameter x_dtype is not F32";
}

void group_norm_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[GROUP_NORM_ROWS], width = (uint64_t)params[GROUP_NORM_WIDTH];
    *bytes = 2 * rows * width * dtype_bytes((enum dtype)params[GROUP_NORM_X_DTYPE]) +
             width * dtype_bytes((enum dtype)params[GROUP_NORM_WEIGHT_DTYPE]);
    *flops = 4 * rows * width;
}

static void reference(const struct op_call *call)
{
    const int64_t *params = call->params;
    const int64_t groups = params[GROUP_NORM_GROUPS], columns = params[GROUP_NORM_WIDTH] / groups;
    const float *means = call->operands[GROUP_NORM_MEANS];
    for (int64_t row = 0; row < op_valid_rows(call); row++)
        for (int64_t group = 0; group < groups; group++) {
            const int64_t at = (row * groups + group) * columns;
            const float *x = (const float *)call->operands[GROUP_NORM_X] + at;
            float *out = (float *)call->operands[GROUP_NORM_OUT] + at;
            double squares = 0;
            for (int64_t i = 0; i < columns; i++) squares += (double)x[i] * (double)x[i];
            const double mean =
                means ? (double)means[row * MEAN_SQUARES_WIDTH + MEAN_SQUARES_OF_Q] : squares / (double)columns;
            const double scale = 1 / sqrt(mean + (double)op_float_param(params, GROUP_NORM_EPS_BITS));
            for (int64_t i = 0; i < columns; i++)
                out[i] = (float)((double)x[i] * scale *
                                 (double)op_element(call->operands[GROUP_NORM_WEIGHT], group * columns + i,
                                                    (enum dtype)params[GROUP_NORM_WEIGHT_DTYPE]));
        }
}

static const struct op_param param_schema[GROUP_NORM_PARAMS] = {
    OP_ROWS_PARAMS,
    [GROUP_NORM_GROUPS] = {"groups", 3, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_KV_HEADS, .least = 1,
                           .most = OP_MAX_HEADS},
    [GROUP_NORM_WIDTH] = {"width", 4, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_HEADS, .least = 1,
                          .most = OP_MAX_WIDTH},
    [GROUP_NORM_EPS_BITS] = {"eps_bits", 5, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [GROUP_NORM_WEIGHT_DTYPE] = {"weight_dtype", 6, PARAM_DTYPE, PARAM_OF_DTYPE, GROUP_NORM_WEIGHT},
    [GROUP_NORM_HAS_MEANS] = {"has_means", 7, PARAM_INTEGER, PARAM_OF_PRESENT, GROUP_NORM_MEANS, .most = 1},
    [GROUP_NORM_X_DTYPE] = {"x_dtype", 8, PARAM_DTYPE, PARAM_OF_DTYPE, GROUP_NORM_X, .fallback = DTYPE_F32},
};
static const struct op_operand operand_schema[GROUP_NORM_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [GROUP_NORM_X] = {"x", ROLE_INPUT, .dtype = GROUP_NORM_X_DTYPE, .rows = GROUP_NORM_ROWS,
                      .columns = GROUP_NORM_WIDTH},
    [GROUP_NORM_WEIGHT] = {"weight", ROLE_WEIGHT, .dtype = GROUP_NORM_WEIGHT_DTYPE, .rows = OP_NONE,
                           .columns = GROUP_NORM_WIDTH},
    [GROUP_NORM_OUT] = {"out", ROLE_OUTPUT, .dtype = GROUP_NORM_X_DTYPE, .rows = GROUP_NORM_ROWS,
                        .columns = GROUP_NORM_WIDTH},
    [GROUP_NORM_MEANS] = {"means", ROLE_INPUT, .present = GROUP_NORM_HAS_MEANS, .fixed = DTYPE_F32,
                          .rows = GROUP_NORM_ROWS, .width = mean_squares_width},
};

const struct op_descriptor op_group_norm = {
    .id = OP_GROUP_NORM,
    .name = "group_norm",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = group_norm_cost,
    .cpu_illegal = cpu_illegal,
    .reference = reference,
    OP_NARROW_VECTOR_RUN(group_norm),
};
