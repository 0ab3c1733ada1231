/* SPDX-License-Identifier: Apache-2.0 */
/* norm_router on the host: KERNEL_PARAMS is the problem and the tunables, VALID its valid rows. Compares y with a norm in double, and routes
 * and lists with what plain code makes of that y; prints what differs and exits with 1. SPOIL: 1 to 3 what a kernel with a defect could
 * leave, for the checks to see; 0 nothing. emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/norm_router/norm_router.cuh"

struct params {
    KERNEL_PARAMS
};
typedef norm_router_body<params> body;
typedef body::router_params router_problem;
#include "tests/emulation/router_rows_on_host.h"

enum { K = params::K, COUNT = params::ROWS * K };

static int counts[2] = {VALID, 1 << 30};
static int index_of_rows[params::ROWS], token_seeds[params::ROWS + 2];
alignas(64) static float x[COUNT], norm_weight[K], router_bias[LOGITS];
alignas(64) static float claim_bias[LOGITS], expert_scales[LOGITS];
alignas(64) static u16 matrix[LOGITS * K];
static guarded<COUNT * 2> y;

static void run_thread_of_kernel()
{
    body::run((u8 *)shared_memory, counts, x, norm_weight, y.bytes, (float *)out.bytes, (int *)lists.bytes,
              {matrix, params::HAS_ROUTER_BIAS ? router_bias : nullptr, params::HAS_CLAIM_BIAS ? claim_bias : nullptr,
               params::HAS_SCALES ? expert_scales : nullptr, params::HAS_SEEDS ? token_seeds : nullptr,
               params::COUNT_INDEX ? index_of_rows : nullptr});
}

static float y_of(int row, int k) { return load_element<params::OUT_DTYPE>(y.bytes, row * K + k); }

static void expect_y(int row)
{
    double squares = 0;
    for (int k = 0; k < K; k++) squares += (double)x[row * K + k] * (double)x[row * K + k];
    const double factor = 1 / std::sqrt(squares / K + (double)__int_as_float(params::EPS_BITS));
    for (int k = 0; k < K; k++) {
        const double expected =
            (double)x[row * K + k] * factor * (double)load_element<params::NORM_DTYPE>(norm_weight, k);
        if (!(std::fabs((double)y_of(row, k) - expected) <=
              rounding_of(params::OUT_DTYPE) * 1.01 * std::fabs(expected) + 4e-6))
            problem("y row %d element %d: %g, expected %g", row, k, (double)y_of(row, k), expected);
    }
}

static void expect_routes(int row)
{
    float logits[LOGITS];
    for (int e = 0; e < LOGITS; e++) {
        double sum = params::HAS_ROUTER_BIAS ? (double)load_element<params::ROUTER_BIAS_DTYPE>(router_bias, e) : 0;
        for (int k = 0; k < K; k++)
            sum += (double)y_of(row, k) * (double)float_of_half<params::MATRIX_DTYPE>(matrix[e * K + k]);
        logits[e] = (float)sum;
    }
    expect_row(row, logits, 1e-4);
}

int main()
{
    memset(x, 0xff, sizeof x); /* NaN beyond the valid rows */
    for (int i = 0; i < VALID * K; i++) x[i] = draw(-2, 2);
    for (int k = 0; k < K; k++) store_element<params::NORM_DTYPE>(norm_weight, k, draw(0.5f, 1.5f));
    for (u16 &value : matrix) value = half_of_float<params::MATRIX_DTYPE>(draw(-0.3f, 0.3f));
    for (int e = 3; e < LOGITS; e += 5)
        memcpy(matrix + e * K, matrix + (e - 1) * K, K * sizeof *matrix); /* equal logits */
    draw_router();
    for (int e = 0; e < LOGITS; e++) store_element<params::ROUTER_BIAS_DTYPE>(router_bias, e, draw(-1, 1));
    for (int e = 0; e < ROUTED; e++) { /* plain code has what the launch reads */
        store_element<params::CLAIM_BIAS_DTYPE>(claim_bias, e, bias[e]);
        store_element<params::SCALES_DTYPE>(expert_scales, e, scales[e]);
        bias[e] = load_element<params::CLAIM_BIAS_DTYPE>(claim_bias, e);
        scales[e] = load_element<params::SCALES_DTYPE>(expert_scales, e);
    }
    for (int r = 0; r < params::ROWS; r++) {
        index_of_rows[r] = params::COUNT_INDEX ? params::ROWS + 1 - r : r;
        token_seeds[index_of_rows[r]] = seeds[r];
    }
    counts[params::COUNT_INDEX] = VALID;
    y.poison();
    copies_are_late = true;
    run_cluster(0, params::BLOCKS, params::BLOCKS, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) ((float *)out.bytes)[CHOICES - 1] *= 1.001f;
    if (SPOIL == 2) ((int *)lists.bytes)[ALL + 1] = VALID * CHOICES;
    if (SPOIL == 3) y.bytes[VALID * K * 2] = 0;
    for (int r = 0; r < VALID; r++) expect_y(r), expect_routes(r);
    expect_lists();
    y.expect_poison("y", VALID * K * 2);
    out.expect_poison("out", VALID * 2 * CHOICES * 4);
    lists.expect_poison("lists", (ALL + 1 + VALID * CHOICES) * 4);
    return problems != 0;
}
