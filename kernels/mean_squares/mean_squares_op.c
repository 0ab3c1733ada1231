/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/mean_squares/mean_squares.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/mean_squares/mean_squares_vector.h"

static uint64_t qkv_width(const int64_t *params)
{
    return ((uint64_t)params[MEAN_SQUARES_HEADS] + 2 * (uint64_t)params[MEAN_SQUARES_KV_HEADS]) *
           (uint64_t)params[MEAN_SQUARES_HEAD_DIM];
}

uint64_t mean_squares_width(const int64_t *params)
{
    (void)params;
    return MEAN_SQUARES_WIDTH;
}

void mean_squares_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[MEAN_SQUARES_ROWS], head_dim = (uint64_t)params[MEAN_SQUARES_HEAD_DIM];
    const uint64_t width = ((uint64_t)params[MEAN_SQUARES_HEADS] + (uint64_t)params[MEAN_SQUARES_KV_HEADS]) * head_dim;
    *bytes =
        rows * (width * dtype_bytes((enum dtype)params[MEAN_SQUARES_X_DTYPE]) + MEAN_SQUARES_WIDTH * sizeof(float));
    *flops = 2 * rows * width;
}

static double mean_of(const struct op_call *call, const float *x, int64_t count)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += (double)x[i] * (double)x[i];
    return count ? squares / (double)(call->params[MEAN_SQUARES_RANKS] * count) : 0;
}

static void reference(const struct op_call *call)
{
    const int64_t head_dim = call->params[MEAN_SQUARES_HEAD_DIM];
    const int64_t q_width = call->params[MEAN_SQUARES_HEADS] * head_dim;
    const int64_t k_width = call->params[MEAN_SQUARES_KV_HEADS] * head_dim;
    for (int64_t row = 0; row < op_valid_rows(call); row++) {
        const float *x = (const float *)call->operands[MEAN_SQUARES_QKV] + row * (q_width + 2 * k_width);
        float *out = (float *)call->operands[MEAN_SQUARES_OUT] + row * MEAN_SQUARES_WIDTH;
        for (int i = 0; i < MEAN_SQUARES_WIDTH; i++) out[i] = 0;
        out[MEAN_SQUARES_OF_Q] = (float)mean_of(call, x, q_width);
        out[MEAN_SQUARES_OF_K] = (float)mean_of(call, x + q_width, k_width);
    }
}

static const char *illegal(const int64_t *params)
{
    return params[MEAN_SQUARES_HEAD_DIM] % 2 ? "head_dim is odd" : NULL;
}

static const char *cpu_illegal(const int64_t *params)
{
    return params[MEAN_SQUARES_X_DTYPE] == DTYPE_F32 ? NULL : "parameter x_dtype is not F32";
}

static const struct op_param param_schema[MEAN_SQUARES_PARAMS] = {
    OP_ROWS_PARAMS,
    [MEAN_SQUARES_HEADS] = {"heads", 3, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_HEADS, .least = 1,
                            .most = OP_MAX_HEADS},
    [MEAN_SQUARES_KV_HEADS] = {"kv_heads", 4, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_KV_HEADS, .least = 0,
                               .most = OP_MAX_HEADS},
    [MEAN_SQUARES_HEAD_DIM] = {"head_dim", 5, PARAM_INTEGER, PARAM_OF_NODE, .least = 2, .most = OP_MAX_HEAD_DIM},
    [MEAN_SQUARES_RANKS] = {"ranks", 6, PARAM_INTEGER, PARAM_OF_ENGINE, .field = offsetof(struct plan_geometry, ranks),
                            .least = 2, .most = PLAN_MAX_RANKS},
    [MEAN_SQUARES_X_DTYPE] = {"x_dtype", 7, PARAM_DTYPE, PARAM_OF_DTYPE, MEAN_SQUARES_QKV, .fallback = DTYPE_F32},
};
static const struct op_operand operand_schema[MEAN_SQUARES_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [MEAN_SQUARES_QKV] = {"qkv", ROLE_INPUT, .dtype = MEAN_SQUARES_X_DTYPE, .rows = MEAN_SQUARES_ROWS,
                          .width = qkv_width},
    [MEAN_SQUARES_OUT] = {"out", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = MEAN_SQUARES_ROWS,
                          .width = mean_squares_width},
};

const struct op_descriptor op_mean_squares = {
    .id = OP_MEAN_SQUARES,
    .name = "mean_squares",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = mean_squares_cost,
    .cpu_illegal = cpu_illegal,
    .reference = reference,
    OP_NARROW_VECTOR_RUN(mean_squares),
};
