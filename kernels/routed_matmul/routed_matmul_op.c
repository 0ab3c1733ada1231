/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/routed_matmul/routed_matmul.h"

#include <string.h>

void routed_matmul_as_matmul(const int64_t *params, int64_t *matmul)
{
    const int64_t values[MATMUL_FIRST_TUNABLE] = {
        [MATMUL_ROWS] = params[ROUTED_MATMUL_ROWS],
        [MATMUL_COUNT_INDEX] = params[ROUTED_MATMUL_COUNT_INDEX],
        [MATMUL_N] = params[ROUTED_MATMUL_N],
        [MATMUL_K] = params[ROUTED_MATMUL_K],
        [MATMUL_DTYPE] = params[ROUTED_MATMUL_DTYPE],
        [MATMUL_OUT_DTYPE] = params[ROUTED_MATMUL_OUT_DTYPE],
        [MATMUL_EPILOGUE] = params[ROUTED_MATMUL_EPILOGUE],
        [MATMUL_HAS_BIAS] = params[ROUTED_MATMUL_HAS_BIAS],
        [MATMUL_BIAS_DTYPE] = params[ROUTED_MATMUL_BIAS_DTYPE],
        [MATMUL_HAS_NORM] = params[ROUTED_MATMUL_HAS_NORM],
        [MATMUL_NORM_DTYPE] = params[ROUTED_MATMUL_NORM_DTYPE],
        [MATMUL_EPS_BITS] = params[ROUTED_MATMUL_EPS_BITS],
        [MATMUL_INPUT_DTYPE] = params[ROUTED_MATMUL_INPUT_DTYPE],
        [MATMUL_SCALE_BITS] = OP_FLOAT_ONE_BITS,
        [MATMUL_COMPUTE_DTYPE] = DTYPE_F32,
        [MATMUL_CAP_BITS] = params[ROUTED_MATMUL_CAP_BITS],
        [MATMUL_EXPERTS] = params[ROUTED_MATMUL_EXPERTS],
        [MATMUL_ROUTE_WIDTH] = params[ROUTED_MATMUL_ROUTE_WIDTH],
    };
    memcpy(matmul, values, sizeof values);
}

void routed_matmul_as_router(const int64_t *params, int64_t *router)
{
    const int64_t values[ROUTER_PARAMS] = {
        [ROUTER_ROWS] = params[ROUTED_MATMUL_ROWS],
        [ROUTER_COUNT_INDEX] = params[ROUTED_MATMUL_COUNT_INDEX],
        [ROUTER_EXPERTS] = params[ROUTED_MATMUL_ROUTED],
        [ROUTER_ROUTE_WIDTH] = params[ROUTED_MATMUL_ROUTE_WIDTH],
        [ROUTER_SCORE] = params[ROUTED_MATMUL_SCORE],
        [ROUTER_RENORMALISE] = params[ROUTED_MATMUL_RENORMALISE],
        [ROUTER_EPS_BITS] = params[ROUTED_MATMUL_ROUTER_EPS_BITS],
        [ROUTER_SCALE_BITS] = params[ROUTED_MATMUL_ROUTER_SCALE_BITS],
        [ROUTER_GROUPS] = params[ROUTED_MATMUL_ROUTER_GROUPS],
        [ROUTER_TOP_GROUPS] = params[ROUTED_MATMUL_TOP_GROUPS],
        [ROUTER_GROUP_SCORE] = params[ROUTED_MATMUL_GROUP_SCORE],
        [ROUTER_HAS_BIAS] = params[ROUTED_MATMUL_HAS_CLAIM_BIAS],
        [ROUTER_BIAS_DTYPE] = params[ROUTED_MATMUL_CLAIM_BIAS_DTYPE],
        [ROUTER_HAS_SEEDS] = params[ROUTED_MATMUL_HAS_SEEDS],
        [ROUTER_STEP_ROWS] = params[ROUTED_MATMUL_STEP_ROWS],
        [ROUTER_HAS_SCALES] = params[ROUTED_MATMUL_HAS_SCALES],
        [ROUTER_SCALES_DTYPE] = params[ROUTED_MATMUL_SCALES_DTYPE],
        [ROUTER_SHARED] = params[ROUTED_MATMUL_SHARED],
        [ROUTER_SHARED_GATE] = params[ROUTED_MATMUL_SHARED_GATE],
    };
    memcpy(router, values, sizeof values);
}

static const char *illegal(const int64_t *params)
{
    int64_t matmul[PLAN_MAX_PARAMS] = {0}, router[PLAN_MAX_PARAMS] = {0};
    routed_matmul_as_matmul(params, matmul);
    routed_matmul_as_router(params, router);
    if (!matmul_shares_x(matmul)) return "parameter epilogue is no activation";
    if (params[ROUTED_MATMUL_EXPERTS] !=
        params[ROUTED_MATMUL_ROUTED] - params[ROUTED_MATMUL_SHARED_GATE] + params[ROUTED_MATMUL_SHARED])
        return "parameter experts is not routed and shared ones";
    const char *why = op_params_illegal(&op_matmul, matmul);
    return why ? why : op_params_illegal(&op_router, router);
}

static uint64_t out_width(const int64_t *params)
{
    const bool gated = EPILOGUE_IS_GATED(params[ROUTED_MATMUL_EPILOGUE]);
    return (uint64_t)(params[ROUTED_MATMUL_N] / params[ROUTED_MATMUL_EXPERTS] / (gated ? 2 : 1)) *
           (uint64_t)(params[ROUTED_MATMUL_ROUTE_WIDTH] / 2);
}

static uint64_t list_width(const int64_t *params)
{
    return (uint64_t)router_list_width(params[ROUTED_MATMUL_EXPERTS], params[ROUTED_MATMUL_ROUTE_WIDTH] / 2);
}

static bool weight_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                         uint64_t *bytes)
{
    int64_t matmul[PLAN_MAX_PARAMS] = {0};
    routed_matmul_as_matmul(params, matmul);
    return op_operand_bytes(&op_matmul, target, matmul, geometry, MATMUL_W, bytes);
}

static const struct op_param param_schema[ROUTED_MATMUL_PROBLEM_PARAMS] = {
    OP_ROWS_PARAMS,
    [ROUTED_MATMUL_N] = {"n", 3, PARAM_INTEGER, PARAM_OF_HEIGHT, ROUTED_MATMUL_W, .least = 1, .most = OP_MAX_WIDTH},
    [ROUTED_MATMUL_K] = {"k", 4, PARAM_INTEGER, PARAM_OF_PITCH, ROUTED_MATMUL_W, .least = 1, .most = OP_MAX_WIDTH},
    [ROUTED_MATMUL_DTYPE] = {"dtype", 5, PARAM_ENCODING, PARAM_OF_DTYPE, ROUTED_MATMUL_W},
    [ROUTED_MATMUL_OUT_DTYPE] = {"out_dtype", 6, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_OUT, .fallback = DTYPE_F32},
    [ROUTED_MATMUL_EPILOGUE] = {"epilogue", 7, PARAM_INTEGER, PARAM_OF_NODE, .least = ACTIVATION_NONE + 1,
                                .most = EPILOGUE_COUNT - 1},
    [ROUTED_MATMUL_HAS_BIAS] = {"has_bias", 8, PARAM_INTEGER, PARAM_OF_PRESENT, ROUTED_MATMUL_BIAS, .most = 1},
    [ROUTED_MATMUL_BIAS_DTYPE] = {"bias_dtype", 9, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_BIAS,
                                  .fallback = DTYPE_BF16},
    [ROUTED_MATMUL_HAS_NORM] = {"has_norm", 10, PARAM_INTEGER, PARAM_OF_PRESENT, ROUTED_MATMUL_NORM, .most = 1},
    [ROUTED_MATMUL_NORM_DTYPE] = {"norm_dtype", 11, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_NORM,
                                  .fallback = DTYPE_BF16},
    [ROUTED_MATMUL_EPS_BITS] = {"eps_bits", 12, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [ROUTED_MATMUL_INPUT_DTYPE] = {"input_dtype", 13, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_X,
                                   .fallback = DTYPE_F32},
    [ROUTED_MATMUL_CAP_BITS] = {"cap_bits", 14, PARAM_FLOAT, PARAM_OF_NODE, .least = OP_FLOAT_MIN_BITS,
                                .most = OP_FLOAT_MAX_BITS, .fallback = OP_FLOAT_ONE_BITS},
    [ROUTED_MATMUL_EXPERTS] = {"experts", 15, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = ROUTER_MAX_EXPERTS},
    [ROUTED_MATMUL_ROUTE_WIDTH] = {"route_width", 16, PARAM_INTEGER, PARAM_OF_WIDTH, ROUTED_MATMUL_ROUTES, .least = 2,
                                   .most = 2 * ROUTER_MAX_TOP_K},
    [ROUTED_MATMUL_MATRIX_DTYPE] = {"matrix_dtype", 17, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_MATRIX,
                                    .fallback = DTYPE_BF16},
    [ROUTED_MATMUL_ROUTED] = {"routed", 18, PARAM_INTEGER, PARAM_OF_HEIGHT, ROUTED_MATMUL_MATRIX, .least = 1,
                              .most = ROUTER_MAX_EXPERTS},
    [ROUTED_MATMUL_HAS_ROUTER_BIAS] = {"has_router_bias", 19, PARAM_INTEGER, PARAM_OF_PRESENT,
                                       ROUTED_MATMUL_ROUTER_BIAS, .most = 1},
    [ROUTED_MATMUL_ROUTER_BIAS_DTYPE] = {"router_bias_dtype", 20, PARAM_DTYPE, PARAM_OF_DTYPE,
                                         ROUTED_MATMUL_ROUTER_BIAS, .fallback = DTYPE_BF16},
    [ROUTED_MATMUL_SCORE] = {"score", 21, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_SCORES - 1},
    [ROUTED_MATMUL_RENORMALISE] = {"renormalise", 22, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_RENORMALISES - 1},
    [ROUTED_MATMUL_ROUTER_EPS_BITS] = {"router_eps_bits", 23, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [ROUTED_MATMUL_ROUTER_SCALE_BITS] = {"router_scale_bits", 24, PARAM_FLOAT, PARAM_OF_NODE,
                                         .least = OP_FLOAT_MIN_BITS, .most = OP_FLOAT_MAX_BITS,
                                         .fallback = OP_FLOAT_ONE_BITS},
    [ROUTED_MATMUL_ROUTER_GROUPS] = {"router_groups", 25, PARAM_INTEGER, PARAM_OF_NODE, .least = 1,
                                     .most = ROUTER_MAX_EXPERTS, .fallback = 1},
    [ROUTED_MATMUL_TOP_GROUPS] = {"top_groups", 26, PARAM_INTEGER, PARAM_OF_NODE, .least = 1,
                                  .most = ROUTER_MAX_EXPERTS, .fallback = 1},
    [ROUTED_MATMUL_GROUP_SCORE] = {"group_score", 27, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_GROUP_SCORES - 1},
    [ROUTED_MATMUL_HAS_CLAIM_BIAS] = {"has_claim_bias", 28, PARAM_INTEGER, PARAM_OF_PRESENT, ROUTED_MATMUL_CLAIM_BIAS,
                                      .most = 1},
    [ROUTED_MATMUL_CLAIM_BIAS_DTYPE] = {"claim_bias_dtype", 29, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_CLAIM_BIAS,
                                        .fallback = DTYPE_F32},
    [ROUTED_MATMUL_HAS_SEEDS] = {"has_seeds", 30, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [ROUTED_MATMUL_STEP_ROWS] = {"step_rows", 31, PARAM_INTEGER, PARAM_OF_STEP, .least = 1, .most = OP_MAX_ROWS,
                                 .fallback = 1},
    [ROUTED_MATMUL_HAS_SCALES] = {"has_scales", 32, PARAM_INTEGER, PARAM_OF_PRESENT, ROUTED_MATMUL_SCALES, .most = 1},
    [ROUTED_MATMUL_SCALES_DTYPE] = {"scales_dtype", 33, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_SCALES,
                                    .fallback = DTYPE_F32},
    [ROUTED_MATMUL_SHARED] = {"shared", 34, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_MAX_TOP_K - 1},
    [ROUTED_MATMUL_SHARED_GATE] = {"shared_gate", 35, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
};
static const struct op_operand operand_schema[ROUTED_MATMUL_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ROUTED_MATMUL_X] = {"x", ROLE_INPUT, .dtype = ROUTED_MATMUL_INPUT_DTYPE, .rows = ROUTED_MATMUL_ROWS,
                         .columns = ROUTED_MATMUL_K},
    [ROUTED_MATMUL_W] = {"w", ROLE_WEIGHT, .dtype = ROUTED_MATMUL_DTYPE, .rows = ROUTED_MATMUL_N,
                         .columns = ROUTED_MATMUL_K, .bytes = weight_bytes},
    [ROUTED_MATMUL_OUT] = {"out", ROLE_OUTPUT, .dtype = ROUTED_MATMUL_OUT_DTYPE, .rows = ROUTED_MATMUL_ROWS,
                           .width = out_width},
    [ROUTED_MATMUL_ROUTES] = {"routes", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = ROUTED_MATMUL_ROWS,
                              .columns = ROUTED_MATMUL_ROUTE_WIDTH},
    [ROUTED_MATMUL_LISTS] = {"lists", ROLE_OUTPUT, .fixed = DTYPE_I32, .rows = ROUTED_MATMUL_ROWS, .width = list_width},
    [ROUTED_MATMUL_MATRIX] = {"matrix", ROLE_WEIGHT, .dtype = ROUTED_MATMUL_MATRIX_DTYPE, .rows = ROUTED_MATMUL_ROUTED,
                              .columns = ROUTED_MATMUL_K},
    [ROUTED_MATMUL_WORKSPACE] = {"workspace", ROLE_COUNTERS, .rows = OP_NONE, .columns = OP_NONE,
                                 .element_bytes = PLAN_ALIGNMENT /* with any parameters */},
    [ROUTED_MATMUL_BIAS] = {"bias", ROLE_WEIGHT, .present = ROUTED_MATMUL_HAS_BIAS, .dtype = ROUTED_MATMUL_BIAS_DTYPE,
                            .rows = OP_NONE, .columns = ROUTED_MATMUL_N},
    [ROUTED_MATMUL_NORM] = {"norm", ROLE_WEIGHT, .present = ROUTED_MATMUL_HAS_NORM, .dtype = ROUTED_MATMUL_NORM_DTYPE,
                            .rows = OP_NONE, .columns = ROUTED_MATMUL_K},
    [ROUTED_MATMUL_ROUTER_BIAS] = {"router_bias", ROLE_WEIGHT, .present = ROUTED_MATMUL_HAS_ROUTER_BIAS,
                                   .dtype = ROUTED_MATMUL_ROUTER_BIAS_DTYPE, .rows = OP_NONE,
                                   .columns = ROUTED_MATMUL_ROUTED},
    [ROUTED_MATMUL_CLAIM_BIAS] = {"claim_bias", ROLE_WEIGHT, .present = ROUTED_MATMUL_HAS_CLAIM_BIAS,
                                  .dtype = ROUTED_MATMUL_CLAIM_BIAS_DTYPE, .rows = OP_NONE,
                                  .columns = ROUTED_MATMUL_ROUTED},
    [ROUTED_MATMUL_SEEDS] = {"seeds", ROLE_STEP, .field = STEP_ROUTE_SEEDS, .present = ROUTED_MATMUL_HAS_SEEDS,
                             .fixed = DTYPE_I32, .rows = ROUTED_MATMUL_STEP_ROWS, .columns = OP_NONE},
    [ROUTED_MATMUL_INDEX] = {"index", ROLE_STEP, .field = STEP_OUT_ROWS, .present = ROUTED_MATMUL_COUNT_INDEX,
                             .fixed = DTYPE_I32, .rows = ROUTED_MATMUL_ROWS, .columns = OP_NONE},
    [ROUTED_MATMUL_SCALES] = {"scales", ROLE_WEIGHT, .present = ROUTED_MATMUL_HAS_SCALES,
                              .dtype = ROUTED_MATMUL_SCALES_DTYPE, .rows = OP_NONE, .columns = ROUTED_MATMUL_ROUTED},
};

/* A CPU runs the ops that it is made of. */
const struct op_descriptor op_routed_matmul = {
    .id = OP_ROUTED_MATMUL,
    .name = "routed_matmul",
    .finds_out_rows = true,
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
};
