/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/delta_rule/delta_rule.h"

static void normalise(const float *x, int64_t count, double factor, double *out)
{
    double squares = 1e-6;
    for (int64_t i = 0; i < count; i++) squares += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < count; i++) out[i] = (double)x[i] / sqrt(squares) * factor;
}

static double parameter(const struct op_call *call, int operand, int dtype, int64_t index)
{
    return (double)op_element(call->operands[operand], index, (enum dtype)call->params[dtype]);
}

/* The state is float32 between rows, as it is between steps. */
static void run_head(const struct op_call *call, int64_t row, int64_t head)
{
    const int64_t *params = call->params;
    const int64_t key_heads = params[DELTA_RULE_KEY_HEADS], value_heads = params[DELTA_RULE_VALUE_HEADS];
    const int64_t key_dim = params[DELTA_RULE_KEY_DIM], value_dim = params[DELTA_RULE_VALUE_DIM];
    const int64_t key_head = head / (value_heads / key_heads),
                  width = 2 * key_heads * key_dim + value_heads * value_dim;
    const float *qkv = (const float *)call->operands[DELTA_RULE_QKV] + row * width;
    const float *v = qkv + 2 * key_heads * key_dim + head * value_dim;
    const float *z = (const float *)call->operands[DELTA_RULE_Z] + (row * value_heads + head) * value_dim;
    const float *ba = (const float *)call->operands[DELTA_RULE_BA] + row * 2 * value_heads;
    float *state = delta_rule_state(call, row, head);
    float *out = (float *)call->operands[DELTA_RULE_OUT] + (row * value_heads + head) * value_dim;
    double q[DELTA_RULE_MAX_DIM], k[DELTA_RULE_MAX_DIM], o[DELTA_RULE_MAX_DIM], squares = 0;
    if (((const int32_t *)call->operands[DELTA_RULE_POSITIONS])[row] == 0)
        memset(state, 0, (size_t)(key_dim * value_dim) * sizeof *state);
    normalise(qkv + key_head * key_dim, key_dim, 1 / sqrt((double)key_dim), q);
    normalise(qkv + (key_heads + key_head) * key_dim, key_dim, 1, k);
    const double a = (double)ba[value_heads + head] + parameter(call, DELTA_RULE_DT_BIAS, DELTA_RULE_DT_DTYPE, head);
    const double softplus = a > 40 ? a : log1p(exp(a));
    const double decay = exp(-exp(parameter(call, DELTA_RULE_A_LOG, DELTA_RULE_A_DTYPE, head)) * softplus);
    const double beta = 1 / (1 + exp(-(double)ba[head]));
    for (int64_t j = 0; j < value_dim; j++) {
        double held = 0;
        for (int64_t i = 0; i < key_dim; i++) held += decay * (double)state[i * value_dim + j] * k[i];
        const double delta = beta * ((double)v[j] - held);
        o[j] = 0;
        for (int64_t i = 0; i < key_dim; i++) {
            const double value = decay * (double)state[i * value_dim + j] + k[i] * delta;
            state[i * value_dim + j] = (float)value;
            o[j] += value * q[i];
        }
        squares += o[j] * o[j];
    }
    const double scale = 1 / sqrt(squares / (double)value_dim + (double)op_float_param(params, DELTA_RULE_EPS_BITS));
    for (int64_t j = 0; j < value_dim; j++)
        out[j] = (float)(o[j] * scale * parameter(call, DELTA_RULE_NORM, DELTA_RULE_NORM_DTYPE, j) * (double)z[j] /
                         (1 + exp(-(double)z[j])));
}

void delta_rule_reference(const struct op_call *call)
{
    const int64_t rows = op_valid_rows(call);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < call->params[DELTA_RULE_VALUE_HEADS]; head++) run_head(call, row, head);
}
