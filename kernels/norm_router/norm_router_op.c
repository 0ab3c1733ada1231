/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm_router/norm_router.h"

#include <string.h>

void norm_router_as_router(const int64_t *params, int64_t *router)
{
    const int64_t values[ROUTER_PARAMS] = {
        [ROUTER_ROWS] = params[NORM_ROUTER_ROWS],
        [ROUTER_COUNT_INDEX] = params[NORM_ROUTER_COUNT_INDEX],
        [ROUTER_EXPERTS] = params[NORM_ROUTER_ROUTED],
        [ROUTER_ROUTE_WIDTH] = params[NORM_ROUTER_ROUTE_WIDTH],
        [ROUTER_SCORE] = params[NORM_ROUTER_SCORE],
        [ROUTER_RENORMALISE] = params[NORM_ROUTER_RENORMALISE],
        [ROUTER_EPS_BITS] = params[NORM_ROUTER_ROUTER_EPS_BITS],
        [ROUTER_SCALE_BITS] = params[NORM_ROUTER_ROUTER_SCALE_BITS],
        [ROUTER_GROUPS] = params[NORM_ROUTER_ROUTER_GROUPS],
        [ROUTER_TOP_GROUPS] = params[NORM_ROUTER_TOP_GROUPS],
        [ROUTER_GROUP_SCORE] = params[NORM_ROUTER_GROUP_SCORE],
        [ROUTER_HAS_BIAS] = params[NORM_ROUTER_HAS_CLAIM_BIAS],
        [ROUTER_BIAS_DTYPE] = params[NORM_ROUTER_CLAIM_BIAS_DTYPE],
        [ROUTER_HAS_SEEDS] = params[NORM_ROUTER_HAS_SEEDS],
        [ROUTER_STEP_ROWS] = params[NORM_ROUTER_STEP_ROWS],
        [ROUTER_HAS_SCALES] = params[NORM_ROUTER_HAS_SCALES],
        [ROUTER_SCALES_DTYPE] = params[NORM_ROUTER_SCALES_DTYPE],
        [ROUTER_SHARED] = params[NORM_ROUTER_SHARED],
        [ROUTER_SHARED_GATE] = params[NORM_ROUTER_SHARED_GATE],
    };
    memcpy(router, values, sizeof values);
}

static const char *illegal(const int64_t *params)
{
    int64_t router[PLAN_MAX_PARAMS] = {0};
    norm_router_as_router(params, router);
    return op_params_illegal(&op_router, router);
}

static uint64_t list_width(const int64_t *params)
{
    const int64_t experts = params[NORM_ROUTER_ROUTED] - params[NORM_ROUTER_SHARED_GATE] + params[NORM_ROUTER_SHARED];
    return (uint64_t)router_list_width(experts, params[NORM_ROUTER_ROUTE_WIDTH] / 2);
}

static const struct op_param param_schema[NORM_ROUTER_PROBLEM_PARAMS] = {
    OP_ROWS_PARAMS,
    [NORM_ROUTER_K] = {"k", 3, PARAM_INTEGER, PARAM_OF_WIDTH, NORM_ROUTER_X, .least = 1, .most = OP_MAX_WIDTH},
    [NORM_ROUTER_NORM_DTYPE] = {"norm_dtype", 4, PARAM_DTYPE, PARAM_OF_DTYPE, NORM_ROUTER_NORM},
    [NORM_ROUTER_EPS_BITS] = {"eps_bits", 5, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [NORM_ROUTER_OUT_DTYPE] = {"out_dtype", 6, PARAM_DTYPE, PARAM_OF_DTYPE, NORM_ROUTER_OUT, .fallback = DTYPE_BF16},
    [NORM_ROUTER_MATRIX_DTYPE] = {"matrix_dtype", 7, PARAM_DTYPE, PARAM_OF_DTYPE, NORM_ROUTER_MATRIX,
                                  .fallback = DTYPE_BF16},
    [NORM_ROUTER_ROUTED] = {"routed", 8, PARAM_INTEGER, PARAM_OF_HEIGHT, NORM_ROUTER_MATRIX, .least = 1,
                            .most = ROUTER_MAX_EXPERTS},
    [NORM_ROUTER_HAS_ROUTER_BIAS] = {"has_router_bias", 9, PARAM_INTEGER, PARAM_OF_PRESENT, NORM_ROUTER_ROUTER_BIAS,
                                     .most = 1},
    [NORM_ROUTER_ROUTER_BIAS_DTYPE] = {"router_bias_dtype", 10, PARAM_DTYPE, PARAM_OF_DTYPE, NORM_ROUTER_ROUTER_BIAS,
                                       .fallback = DTYPE_BF16},
    [NORM_ROUTER_ROUTE_WIDTH] = {"route_width", 11, PARAM_INTEGER, PARAM_OF_WIDTH, NORM_ROUTER_ROUTES, .least = 2,
                                 .most = 2 * ROUTER_MAX_TOP_K},
    [NORM_ROUTER_SCORE] = {"score", 12, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_SCORES - 1},
    [NORM_ROUTER_RENORMALISE] = {"renormalise", 13, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_RENORMALISES - 1},
    [NORM_ROUTER_ROUTER_EPS_BITS] = {"router_eps_bits", 14, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [NORM_ROUTER_ROUTER_SCALE_BITS] = {"router_scale_bits", 15, PARAM_FLOAT, PARAM_OF_NODE, .least = OP_FLOAT_MIN_BITS,
                                       .most = OP_FLOAT_MAX_BITS, .fallback = OP_FLOAT_ONE_BITS},
    [NORM_ROUTER_ROUTER_GROUPS] = {"router_groups", 16, PARAM_INTEGER, PARAM_OF_NODE, .least = 1,
                                   .most = ROUTER_MAX_EXPERTS, .fallback = 1},
    [NORM_ROUTER_TOP_GROUPS] = {"top_groups", 17, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = ROUTER_MAX_EXPERTS,
                                .fallback = 1},
    [NORM_ROUTER_GROUP_SCORE] = {"group_score", 18, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_GROUP_SCORES - 1},
    [NORM_ROUTER_HAS_CLAIM_BIAS] = {"has_claim_bias", 19, PARAM_INTEGER, PARAM_OF_PRESENT, NORM_ROUTER_CLAIM_BIAS,
                                    .most = 1},
    [NORM_ROUTER_CLAIM_BIAS_DTYPE] = {"claim_bias_dtype", 20, PARAM_DTYPE, PARAM_OF_DTYPE, NORM_ROUTER_CLAIM_BIAS,
                                      .fallback = DTYPE_F32},
    [NORM_ROUTER_HAS_SEEDS] = {"has_seeds", 21, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [NORM_ROUTER_STEP_ROWS] = {"step_rows", 22, PARAM_INTEGER, PARAM_OF_STEP, .least = 1, .most = OP_MAX_ROWS,
                               .fallback = 1},
    [NORM_ROUTER_HAS_SCALES] = {"has_scales", 23, PARAM_INTEGER, PARAM_OF_PRESENT, NORM_ROUTER_SCALES, .most = 1},
    [NORM_ROUTER_SCALES_DTYPE] = {"scales_dtype", 24, PARAM_DTYPE, PARAM_OF_DTYPE, NORM_ROUTER_SCALES,
                                  .fallback = DTYPE_F32},
    [NORM_ROUTER_SHARED] = {"shared", 25, PARAM_INTEGER, PARAM_OF_NODE, .most = ROUTER_MAX_TOP_K - 1},
    [NORM_ROUTER_SHARED_GATE] = {"shared_gate", 26, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
};
static const struct op_operand operand_schema[NORM_ROUTER_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [NORM_ROUTER_X] = {"x", ROLE_INPUT, .fixed = DTYPE_F32, .rows = NORM_ROUTER_ROWS, .columns = NORM_ROUTER_K},
    [NORM_ROUTER_NORM] = {"norm", ROLE_WEIGHT, .dtype = NORM_ROUTER_NORM_DTYPE, .rows = OP_NONE,
                          .columns = NORM_ROUTER_K},
    [NORM_ROUTER_OUT] = {"out", ROLE_OUTPUT, .dtype = NORM_ROUTER_OUT_DTYPE, .rows = NORM_ROUTER_ROWS,
                         .columns = NORM_ROUTER_K},
    [NORM_ROUTER_ROUTES] = {"routes", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = NORM_ROUTER_ROWS,
                            .columns = NORM_ROUTER_ROUTE_WIDTH},
    [NORM_ROUTER_LISTS] = {"lists", ROLE_OUTPUT, .fixed = DTYPE_I32, .rows = NORM_ROUTER_ROWS, .width = list_width},
    [NORM_ROUTER_MATRIX] = {"matrix", ROLE_WEIGHT, .dtype = NORM_ROUTER_MATRIX_DTYPE, .rows = NORM_ROUTER_ROUTED,
                            .columns = NORM_ROUTER_K},
    [NORM_ROUTER_ROUTER_BIAS] = {"router_bias", ROLE_WEIGHT, .present = NORM_ROUTER_HAS_ROUTER_BIAS,
                                 .dtype = NORM_ROUTER_ROUTER_BIAS_DTYPE, .rows = OP_NONE,
                                 .columns = NORM_ROUTER_ROUTED},
    [NORM_ROUTER_CLAIM_BIAS] = {"claim_bias", ROLE_WEIGHT, .present = NORM_ROUTER_HAS_CLAIM_BIAS,
                                .dtype = NORM_ROUTER_CLAIM_BIAS_DTYPE, .rows = OP_NONE, .columns = NORM_ROUTER_ROUTED},
    [NORM_ROUTER_SEEDS] = {"seeds", ROLE_STEP, .field = STEP_ROUTE_SEEDS, .present = NORM_ROUTER_HAS_SEEDS,
                           .fixed = DTYPE_I32, .rows = NORM_ROUTER_STEP_ROWS, .columns = OP_NONE},
    [NORM_ROUTER_INDEX] = {"index", ROLE_STEP, .field = STEP_OUT_ROWS, .present = NORM_ROUTER_COUNT_INDEX,
                           .fixed = DTYPE_I32, .rows = NORM_ROUTER_ROWS, .columns = OP_NONE},
    [NORM_ROUTER_SCALES] = {"scales", ROLE_WEIGHT, .present = NORM_ROUTER_HAS_SCALES, .dtype = NORM_ROUTER_SCALES_DTYPE,
                            .rows = OP_NONE, .columns = NORM_ROUTER_ROUTED},
};

/* A CPU runs the ops that it is made of. */
const struct op_descriptor op_norm_router = {
    .id = OP_NORM_ROUTER,
    .name = "norm_router",
    .finds_out_rows = true,
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
};
