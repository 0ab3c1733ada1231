/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle of matmul: one output at a time, sums in double. */

#include "kernels/matmul/matmul.h"

static double element(const void *data, enum dtype dtype, uint64_t index)
{
    if (dtype == DTYPE_F32) return ((const float *)data)[index];
    uint16_t half = ((const uint16_t *)data)[index];
    return dtype == DTYPE_BF16 ? bf16_to_float(half) : f16_to_float(half);
}

/* Part `part` of x[row] . W[n] + bias[n]; over experts and with blocks x is cut into parts of K. */
static double dot(const struct op_call *call, int64_t row, int64_t part, int64_t n)
{
    enum { PART = 256 };
    const int64_t *params = call->params;
    const uint64_t k_count = (uint64_t)params[MATMUL_K];
    const float *x = (const float *)call->operands[MATMUL_X] + row * matmul_x_pitch(params) + part * params[MATMUL_K];
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

/* Row `row` over experts: outputs [first, last) of those that one expert gives. */
static void routed_row(const struct op_call *call, int64_t row, int64_t first, int64_t last)
{
    const int64_t *params = call->params;
    const int64_t top_k = matmul_top_k(params), n_count = matmul_expert_n(params), inner = n_count / 2,
                  rows_each = params[MATMUL_N] / params[MATMUL_EXPERTS];
    const float *routes = (const float *)call->operands[MATMUL_ROUTES] + row * 2 * top_k;
    const float *residual = call->operands[MATMUL_RESIDUAL];
    float *out = call->operands[MATMUL_OUT];
    for (int64_t n = first; n < last && n < n_count; n++) {
        double sum = residual ? (double)residual[row * n_count + n] : 0;
        float *parts = params[MATMUL_PARTS] ? out + row * top_k * n_count + n : NULL;
        for (int64_t choice = 0; choice < top_k; choice++) {
            const int64_t expert = router_expert(routes, top_k, choice, params[MATMUL_EXPERTS]);
            const int64_t at = expert * rows_each + n; /* W may have padding after each expert */
            if (!matmul_shares_x(params)) {
                const double part = expert < 0 ? 0
                                               : (double)router_weight(routes, choice) * dot(call, row, choice, at) *
                                                     (double)op_float_param(params, MATMUL_SCALE_BITS);
                if (parts) parts[choice * n_count] = (float)part;
                sum += part;
            } else if (!matmul_is_gated(params)) {
                out[(row * top_k + choice) * n_count + n] =
                    expert < 0
                        ? 0
                        : (float)activate_capped(matmul_activation(params), op_float_param(params, MATMUL_CAP_BITS),
                                                 dot(call, row, 0, at) *
                                                     (double)op_float_param(params, MATMUL_SCALE_BITS));
            } else if (n / PANEL_ROWS % 2 == 0) {
                const int64_t column = n / (2 * PANEL_ROWS) * PANEL_ROWS + n % PANEL_ROWS;
                out[(row * top_k + choice) * inner + column] =
                    expert < 0
                        ? 0
                        : (float)activate_gated(matmul_activation(params), op_float_param(params, MATMUL_CAP_BITS),
                                                dot(call, row, 0, at), dot(call, row, 0, at + PANEL_ROWS));
            }
        }
        if (matmul_sums_choices(params)) out[row * n_count + n] = (float)sum;
    }
}

/* Row `row` with blocks: outputs of rows [first, last) of W, of which padding has none. */
static void blocks_row(const struct op_call *call, int64_t row, int64_t first, int64_t last)
{
    const int64_t *params = call->params;
    const int64_t blocks = matmul_blocks(params), block_n = params[MATMUL_BLOCK_N], padded = params[MATMUL_N] / blocks;
    float *out = (float *)call->operands[MATMUL_OUT] + row * blocks * block_n;
    for (int64_t n = first; n < last; n++)
        if (n % padded < block_n)
            out[n / padded * block_n + n % padded] =
                (float)(dot(call, row, n / padded, n) * (double)op_float_param(params, MATMUL_SCALE_BITS));
}

void matmul_reference_range(const struct op_call *call, int64_t first, int64_t last)
{
    const int64_t *params = call->params;
    int64_t rows = op_valid_rows(call), n_count = params[MATMUL_N];
    float *out = call->operands[MATMUL_OUT];
    const float *residual = call->operands[MATMUL_RESIDUAL];
    for (int64_t row = 0; row < rows; row++) {
        if (matmul_blocks(params)) {
            blocks_row(call, row, first, last);
            continue;
        }
        if (params[MATMUL_EXPERTS] > 0) {
            routed_row(call, row, first, last);
            continue;
        }
        for (int64_t n = first; n < last; n++) {
            if (matmul_is_gated(params)) {
                if (n / PANEL_ROWS % 2 != 0) continue; /* an up row: done with its gate row */
                double gate = dot(call, row, 0, n), up = dot(call, row, 0, n + PANEL_ROWS);
                int64_t column = n / (2 * PANEL_ROWS) * PANEL_ROWS + n % PANEL_ROWS;
                out[row * (n_count / 2) + column] =
                    (float)activate_gated(matmul_activation(params), op_float_param(params, MATMUL_CAP_BITS), gate, up);
            } else {
                double sum = dot(call, row, 0, n) * (double)op_float_param(params, MATMUL_SCALE_BITS);
                if (residual) sum += (double)residual[row * n_count + n];
                sum = activate_capped((enum activation)matmul_activation(params),
                                      op_float_param(params, MATMUL_CAP_BITS), sum);
                out[row * n_count + n] = (float)sum;
            }
        }
    }
}
