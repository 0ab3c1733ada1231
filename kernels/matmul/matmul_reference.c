/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle of matmul: one output at a time, sums in double. */

#include "kernels/matmul/matmul.h"

static double element(const void *data, enum dtype dtype, uint64_t index)
{
    if (dtype == DTYPE_F32) return ((const float *)data)[index];
    uint16_t half = ((const uint16_t *)data)[index];
    return dtype == DTYPE_BF16 ? bf16_to_float(half) : f16_to_float(half);
}

/* x[row] . W[n] + bias[n] */
static double dot(const struct op_call *call, int64_t row, int64_t n)
{
    enum { PART = 256 };
    const int64_t *params = call->params;
    const uint64_t k_count = (uint64_t)params[MATMUL_K];
    const float *x = (const float *)call->operands[MATMUL_X] + row * params[MATMUL_K];
    float weights[PART], values[PART];
    double sum = 0;
    struct panel_form form;
    panel_form(params[MATMUL_DTYPE], &form);
    for (uint64_t first = 0; first < k_count; first += PART) {
        const uint64_t count = k_count - first < PART ? k_count - first : PART;
        panel_read(&form, call->operands[MATMUL_W], (uint64_t)n, k_count, first, count, weights);
        matmul_round(x + first, (int64_t)count, (enum encoding_id)params[MATMUL_COMPUTE_DTYPE], values);
        for (uint64_t i = 0; i < count; i++) sum += (double)values[i] * (double)weights[i];
    }
    const void *bias = call->operands[MATMUL_BIAS];
    if (bias) sum += element(bias, (enum dtype)params[MATMUL_BIAS_DTYPE], (uint64_t)n);
    return sum;
}

void matmul_reference_range(const struct op_call *call, int64_t first, int64_t last)
{
    const int64_t *params = call->params;
    int64_t rows = op_valid_rows(call), n_count = params[MATMUL_N];
    float *out = call->operands[MATMUL_OUT];
    const float *residual = call->operands[MATMUL_RESIDUAL];
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t n = first; n < last; n++) {
            if (matmul_is_gated(params)) {
                if (n / PANEL_ROWS % 2 != 0) continue; /* an up row: done with its gate row */
                double gate = dot(call, row, n), up = dot(call, row, n + PANEL_ROWS);
                int64_t column = n / (2 * PANEL_ROWS) * PANEL_ROWS + n % PANEL_ROWS;
                out[row * (n_count / 2) + column] = (float)(activate_exactly(matmul_activation(params), gate) * up);
            } else {
                double sum = dot(call, row, n) * (double)op_float_param(params, MATMUL_SCALE_BITS);
                if (residual) sum += (double)residual[row * n_count + n];
                sum = activate_capped((enum activation)matmul_activation(params),
                                      op_float_param(params, MATMUL_CAP_BITS), sum);
                out[row * n_count + n] = (float)sum;
            }
        }
    }
}
