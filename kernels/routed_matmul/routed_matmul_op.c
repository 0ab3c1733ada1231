/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/routed_matmul/routed_matmul_schema.h"

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

const char *routed_matmul_illegal(const int64_t *params)
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

bool routed_matmul_weight_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                                uint64_t *bytes)
{
    int64_t matmul[PLAN_MAX_PARAMS] = {0};
    routed_matmul_as_matmul(params, matmul);
    return op_operand_bytes(&op_matmul, target, matmul, geometry, MATMUL_W, bytes);
}

static const struct op_param param_schema[ROUTED_MATMUL_PROBLEM_PARAMS] = {
    ROUTED_MATMUL_SAME_PARAMS,
    [ROUTED_MATMUL_OUT_DTYPE] = {"out_dtype", 6, PARAM_DTYPE, PARAM_OF_DTYPE, ROUTED_MATMUL_OUT, .fallback = DTYPE_F32},
    [ROUTED_MATMUL_ROUTE_WIDTH] = {"route_width", 16, PARAM_INTEGER, PARAM_OF_WIDTH, ROUTED_MATMUL_ROUTES, .least = 2,
                                   .most = 2 * ROUTER_MAX_TOP_K},
};
static const struct op_operand operand_schema[ROUTED_MATMUL_OPERANDS] = {
    ROUTED_MATMUL_SAME_OPERANDS,
    [ROUTED_MATMUL_W] = {"w", ROLE_WEIGHT, .dtype = ROUTED_MATMUL_DTYPE, .rows = ROUTED_MATMUL_N,
                         .columns = ROUTED_MATMUL_K, .bytes = routed_matmul_weight_bytes},
    [ROUTED_MATMUL_OUT] = {"out", ROLE_OUTPUT, .dtype = ROUTED_MATMUL_OUT_DTYPE, .rows = ROUTED_MATMUL_ROWS,
                           .width = out_width},
    [ROUTED_MATMUL_ROUTES] = {"routes", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = ROUTED_MATMUL_ROWS,
                              .columns = ROUTED_MATMUL_ROUTE_WIDTH},
    [ROUTED_MATMUL_LISTS] = {"lists", ROLE_OUTPUT, .fixed = DTYPE_I32, .rows = ROUTED_MATMUL_ROWS, .width = list_width},
};

/* A CPU runs the ops that it is made of. */
const struct op_descriptor op_routed_matmul = {
    .id = OP_ROUTED_MATMUL,
    .name = "routed_matmul",
    .finds_out_rows = true,
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = routed_matmul_illegal,
};
