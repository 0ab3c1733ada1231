/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_query/rope_query.h"

#include <math.h>

#include "kernels/cpu/vector_portable.h"
#include "kernels/rope_query/rope_query_vector.h"

static uint64_t width(const int64_t *params)
{
    return (uint64_t)params[ROPE_QUERY_HEADS] * (uint64_t)params[ROPE_QUERY_HEAD_DIM];
}

void rope_query_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS_ROPE = 3, FLOPS_NORM = 4 /* per element */ };
    (void)context;
    const uint64_t rows = (uint64_t)params[ROPE_QUERY_ROWS];
    *bytes = rows * (2 * width(params) * dtype_bytes((enum dtype)params[ROPE_QUERY_X_DTYPE]) +
                     (uint64_t)params[ROPE_QUERY_ROTARY_DIM] * sizeof(float));
    *flops = rows * width(params) * (params[ROPE_QUERY_HAS_NORM] ? FLOPS_ROPE + FLOPS_NORM : FLOPS_ROPE);
}

static void reference(const struct op_call *call)
{
    const int64_t *params = call->params;
    const int64_t heads = params[ROPE_QUERY_HEADS], head_dim = params[ROPE_QUERY_HEAD_DIM];
    const int64_t rotary_dim = params[ROPE_QUERY_ROTARY_DIM], half = rotary_dim / 2;
    const enum dtype dtype = (enum dtype)params[ROPE_QUERY_NORM_DTYPE];
    for (int64_t unit = 0; unit < op_valid_rows(call) * heads; unit++) {
        const float *x = (const float *)call->operands[ROPE_QUERY_X] + unit * head_dim;
        const float *table = (const float *)call->operands[ROPE_QUERY_TABLE] + unit / heads * rotary_dim;
        float *out = (float *)call->operands[ROPE_QUERY_OUT] + unit * head_dim;
        double normal[OP_MAX_HEAD_DIM], squares = 0;
        for (int64_t i = 0; i < head_dim; i++) squares += (double)x[i] * x[i];
        const double scale = 1 / sqrt(squares / (double)head_dim + (double)op_float_param(params, ROPE_QUERY_EPS_BITS));
        for (int64_t i = 0; i < head_dim; i++)
            normal[i] = !params[ROPE_QUERY_HAS_NORM]
                            ? (double)x[i]
                            : x[i] * scale * (double)op_element(call->operands[ROPE_QUERY_NORM], i, dtype);
        for (int64_t i = 0; i < half; i++) {
            const double cosine = table[i], sine = table[half + i];
            out[i] = (float)(normal[i] * cosine - normal[half + i] * sine);
            out[half + i] = (float)(normal[half + i] * cosine + normal[i] * sine);
        }
        for (int64_t i = rotary_dim; i < head_dim; i++) out[i] = (float)normal[i];
    }
}

static const char *illegal(const int64_t *params)
{
    if (params[ROPE_QUERY_HEAD_DIM] % 2 || params[ROPE_QUERY_ROTARY_DIM] % 2) return "head_dim or rotary_dim is odd";
    return params[ROPE_QUERY_ROTARY_DIM] > params[ROPE_QUERY_HEAD_DIM] ? "rotary_dim is above head_dim" : NULL;
}

static const char *cpu_illegal(const int64_t *params)
{
    return params[ROPE_QUERY_X_DTYPE] == DTYPE_F32 ? NULL : "parameter x_dtype is not F32";
}

static const struct op_param param_schema[ROPE_QUERY_PARAMS] = {
    OP_ROWS_PARAMS,
    [ROPE_QUERY_HEADS] = {"heads", 3, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_HEADS, .least = 1,
                          .most = OP_MAX_HEADS},
    [ROPE_QUERY_HEAD_DIM] = {"head_dim", 4, PARAM_INTEGER, PARAM_OF_NODE, .least = 2, .most = OP_MAX_HEAD_DIM},
    [ROPE_QUERY_ROTARY_DIM] = {"rotary_dim", 5, PARAM_INTEGER, PARAM_OF_NODE, .least = 2, .most = OP_MAX_HEAD_DIM},
    [ROPE_QUERY_HAS_NORM] = {"has_norm", 6, PARAM_INTEGER, PARAM_OF_PRESENT, ROPE_QUERY_NORM, .most = 1},
    [ROPE_QUERY_NORM_DTYPE] = {"norm_dtype", 7, PARAM_DTYPE, PARAM_OF_DTYPE, ROPE_QUERY_NORM, .fallback = DTYPE_F32},
    [ROPE_QUERY_EPS_BITS] = {"eps_bits", 8, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [ROPE_QUERY_X_DTYPE] = {"x_dtype", OP_LATER_PARAM_ID, PARAM_DTYPE, PARAM_OF_DTYPE, ROPE_QUERY_X,
                            .fallback = DTYPE_F32},
};
static const struct op_operand operand_schema[ROPE_QUERY_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ROPE_QUERY_X] = {"x", ROLE_INPUT, .dtype = ROPE_QUERY_X_DTYPE, .rows = ROPE_QUERY_ROWS, .width = width},
    [ROPE_QUERY_TABLE] = {"table", ROLE_INPUT, .fixed = DTYPE_F32, .rows = ROPE_QUERY_ROWS,
                          .columns = ROPE_QUERY_ROTARY_DIM},
    [ROPE_QUERY_OUT] = {"out", ROLE_OUTPUT, .dtype = ROPE_QUERY_X_DTYPE, .rows = ROPE_QUERY_ROWS, .width = width,
                        .replaces = 1u << ROPE_QUERY_X},
    [ROPE_QUERY_NORM] = {"norm", ROLE_WEIGHT, .present = ROPE_QUERY_HAS_NORM, .dtype = ROPE_QUERY_NORM_DTYPE,
                         .rows = OP_NONE, .columns = ROPE_QUERY_HEAD_DIM},
};

const struct op_descriptor op_rope_query = {
    .id = OP_ROPE_QUERY,
    .name = "rope_query",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = rope_query_cost,
    .cpu_illegal = cpu_illegal,
    .reference = reference,
    OP_NARROW_VECTOR_RUN(rope_query),
};
