/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/routed_mlp/routed_mlp.h"

#include <string.h>

#include "kernels/matmul/panel.h"
#include "kernels/routed_matmul/routed_matmul_schema.h"

void routed_mlp_as_down(const int64_t *params, int64_t *matmul)
{
    const int64_t values[MATMUL_FIRST_TUNABLE] = {
        [MATMUL_ROWS] = params[ROUTED_MATMUL_ROWS],
        [MATMUL_COUNT_INDEX] = params[ROUTED_MATMUL_COUNT_INDEX],
        [MATMUL_N] = params[ROUTED_MLP_DOWN_N],
        [MATMUL_K] = params[ROUTED_MLP_DOWN_K],
        [MATMUL_DTYPE] = params[ROUTED_MLP_DOWN_DTYPE],
        [MATMUL_OUT_DTYPE] = params[ROUTED_MLP_DOWN_OUT_DTYPE],
        [MATMUL_HAS_BIAS] = params[ROUTED_MLP_HAS_DOWN_BIAS],
        [MATMUL_BIAS_DTYPE] = params[ROUTED_MLP_DOWN_BIAS_DTYPE],
        [MATMUL_HAS_RESIDUAL] = params[ROUTED_MLP_HAS_RESIDUAL],
        [MATMUL_NORM_DTYPE] = DTYPE_BF16,
        [MATMUL_INPUT_DTYPE] = params[ROUTED_MATMUL_OUT_DTYPE],
        [MATMUL_SCALE_BITS] = params[ROUTED_MLP_DOWN_SCALE_BITS],
        [MATMUL_COMPUTE_DTYPE] = DTYPE_F32,
        [MATMUL_CAP_BITS] = OP_FLOAT_ONE_BITS,
        [MATMUL_EXPERTS] = params[ROUTED_MATMUL_EXPERTS],
        [MATMUL_ROUTE_WIDTH] = params[ROUTED_MATMUL_ROUTE_WIDTH],
    };
    memcpy(matmul, values, sizeof values);
}

bool routed_mlp_fits(int64_t rows, int64_t k, int64_t matrix_rows, int64_t top_k, int64_t inner_k, int64_t shared_bytes)
{
    enum { RINGS_BYTES = 96 << 10, OTHER_BYTES = 12 << 10, X_ELEMENT_BYTES = 2, LEAST_ROWS = 4, MOST_ROWS = 8 };
    if (matrix_rows > MOST_ROWS) return false;
    if (matrix_rows < LEAST_ROWS) matrix_rows = LEAST_ROWS;
    return (rows + matrix_rows) * k * X_ELEMENT_BYTES + rows * top_k * inner_k * X_ELEMENT_BYTES + RINGS_BYTES +
               OTHER_BYTES <=
           shared_bytes;
}

bool routed_mlp_is_balanced(int64_t columns, int64_t multiprocessors)
{
    enum { TILE = 16, LEAST_PERCENT = 80 };
    const int64_t tiles = (columns + TILE - 1) / TILE, turns = (tiles + multiprocessors - 1) / multiprocessors;
    return turns <= 1 || 100 * tiles >= LEAST_PERCENT * turns * multiprocessors;
}

static const char *illegal(const int64_t *params)
{
    int64_t up[PLAN_MAX_PARAMS] = {0}, down[PLAN_MAX_PARAMS] = {0};
    const char *why = routed_matmul_illegal(params);
    if (why) return why;
    if (params[ROUTED_MATMUL_OUT_DTYPE] == DTYPE_F32) return "parameter out_dtype has no 16 bits";
    routed_matmul_as_matmul(params, up);
    routed_mlp_as_down(params, down);
    if (params[ROUTED_MLP_DOWN_K] != matmul_expert_n(up) / (matmul_is_gated(up) ? 2 : 1))
        return "parameter down_k is not the activations of a choice";
    if (encoding_is_plain((enum encoding_id)params[ROUTED_MATMUL_DTYPE]) !=
        encoding_is_plain((enum encoding_id)params[ROUTED_MLP_DOWN_DTYPE]))
        return "one of the matmuls has codes";
    return op_params_illegal(&op_matmul, down);
}

static uint64_t out_width(const int64_t *params)
{
    return (uint64_t)(params[ROUTED_MLP_DOWN_N] / params[ROUTED_MATMUL_EXPERTS]);
}

static bool down_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                       uint64_t *bytes)
{
    int64_t matmul[PLAN_MAX_PARAMS] = {0};
    routed_mlp_as_down(params, matmul);
    return op_operand_bytes(&op_matmul, target, matmul, geometry, MATMUL_W, bytes);
}

static const struct op_param param_schema[ROUTED_MLP_PROBLEM_PARAMS] = {
    ROUTED_MATMUL_SAME_PARAMS,
    [ROUTED_MATMUL_OUT_DTYPE] = {"out_dtype", 6, PARAM_DTYPE, PARAM_OF_NODE, .fallback = DTYPE_BF16},
    [ROUTED_MATMUL_ROUTE_WIDTH] = {"route_width", 16, PARAM_INTEGER, PARAM_OF_NODE, .least = 2,
                                   .most = 2 * ROUTER_MAX_TOP_K},
    [ROUTED_MLP_DOWN_N] = {"down_n", 36, PARAM_INTEGER, PARAM_OF_HEIGHT, ROUTED_MLP_DOWN, .least = 1,
                           .most = OP_MAX_WIDTH},
    [ROUTED_MLP_DOWN_K] = {"down_k", 37, PARAM_INTEGER, PARAM_OF_PITCH, ROUTED_MLP_DOWN, .least = 1,
                           .most = OP_MAX_WIDTH},
    [ROUTED_MLP_DOWN_DTYPE] = {"down_dtype", 38, PARAM_ENCODING, PARAM_OF_DTYPE, ROUTED_MLP_DOWN},
    [ROUTED_MLP_DOWN_OUT_DTYPE] = {"down_out_dtype", 39, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MLP_OUT,
                                   .fallback = DTYPE_F32},
    [ROUTED_MLP_DOWN_SCALE_BITS] = {"down_scale_bits", 40, PARAM_FLOAT, PARAM_OF_NODE, .least = OP_FLOAT_MIN_BITS,
                                    .most = OP_FLOAT_MAX_BITS, .fallback = OP_FLOAT_ONE_BITS},
    [ROUTED_MLP_HAS_DOWN_BIAS] = {"has_down_bias", 41, PARAM_INTEGER, PARAM_OF_PRESENT, ROUTED_MLP_DOWN_BIAS,
                                  .most = 1},
    [ROUTED_MLP_DOWN_BIAS_DTYPE] = {"down_bias_dtype", 42, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MLP_DOWN_BIAS,
                                    .fallback = DTYPE_BF16},
    [ROUTED_MLP_HAS_RESIDUAL] = {"has_residual", 43, PARAM_INTEGER, PARAM_OF_PRESENT, ROUTED_MLP_RESIDUAL, .most = 1},
};
static const struct op_operand operand_schema[ROUTED_MLP_OPERANDS] = {
    ROUTED_MATMUL_SAME_OPERANDS,
    [ROUTED_MLP_W] = {"w", ROLE_WEIGHT, .dtype = ROUTED_MATMUL_DTYPE, .rows = ROUTED_MATMUL_N,
                      .columns = ROUTED_MATMUL_K, .bytes = routed_matmul_weight_bytes},
    [ROUTED_MLP_OUT] = {"out", ROLE_OUTPUT, .dtype = ROUTED_MLP_DOWN_OUT_DTYPE, .rows = ROUTED_MATMUL_ROWS,
                        .width = out_width, .replaces = 1u << ROUTED_MLP_RESIDUAL | 1u << ROUTED_MATMUL_X},
    [ROUTED_MLP_DOWN] = {"down", ROLE_WEIGHT, .dtype = ROUTED_MLP_DOWN_DTYPE, .rows = ROUTED_MLP_DOWN_N,
                         .columns = ROUTED_MLP_DOWN_K, .bytes = down_bytes},
    [ROUTED_MLP_DOWN_BIAS] = {"down_bias", ROLE_WEIGHT, .present = ROUTED_MLP_HAS_DOWN_BIAS,
                              .dtype = ROUTED_MLP_DOWN_BIAS_DTYPE, .rows = OP_NONE, .columns = ROUTED_MLP_DOWN_N},
    [ROUTED_MLP_RESIDUAL] = {"residual", ROLE_INPUT, .present = ROUTED_MLP_HAS_RESIDUAL, .fixed = DTYPE_F32,
                             .rows = ROUTED_MATMUL_ROWS, .width = out_width},
};

/* A CPU runs the ops that it is made of. */
const struct op_descriptor op_routed_mlp = {
    .id = OP_ROUTED_MLP,
    .name = "routed_mlp",
    .finds_out_rows = true,
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
};
