/* SPDX-License-Identifier: Apache-2.0 */
/* routed_mlp on the host: KERNEL_PARAMS is the problem and the tunables, VALID its valid rows, BLOCKS_IN_ALL the thread blocks, which run
 * at the same time. IN_PLACE: 1 out is the residual, 2 both are x. Compares out with plain code in double, which rounds the activations
 * as the kernel does, and the workspace with zeros; prints what differs and exits with 1. SPOIL: 1 codes of the first weights, 2 of the
 * second ones, 3 a number of the router's matrix, 4 of the residual, 5 some of the second bias are others than expected, 6 the
 * kernel's words of the workspace end before the last one; 0 nothing. emulation_test.py includes it in a namespace for each case, after
 * the headers. */
#include "tests/emulation/cuda_on_host.h"

struct params {
    KERNEL_PARAMS
};
typedef routed_mlp_body<params> body;

#include "tests/emulation/routed_on_host.h"

enum {
    OUT_N = params::DOWN_N / params::EXPERTS,
    DOWN_K = params::DOWN_K,
    WORDS = (int)routed_mlp_workspace_bytes(ROWS, LOGITS, ROWS *TOP_K, DOWN_K) / 4,
    GUARDS = 64, /* after arrays: the kernel must leave them alone */
    GUARD = 0x7fc12345,
};
static_assert(DOWN_K == COLUMNS, "activations");
static_assert(IN_PLACE != 2 || (params::HAS_NORM && OUT_N == K), "out is x");
static_assert(!IN_PLACE || (params::HAS_RESIDUAL && params::DOWN_OUT_DTYPE == DTYPE_F32), "out is the residual");

static drawn_weights down;
alignas(64) static float down_bias[params::DOWN_N], residual[ROWS * OUT_N],
    x_of_launch[ROWS * OUT_N > ROWS *K ? ROWS *OUT_N : ROWS *K];
alignas(64) static unsigned out[ROWS * OUT_N + GUARDS], workspace[WORDS + GUARDS];
static double expected[ROWS * OUT_N], errors[ROWS * OUT_N];

static double rounded(double activation)
{
    return (double)float_of_half<params::OUT_DTYPE>(half_of_float<params::OUT_DTYPE>((float)activation));
}

/* An activation has one value, but where the float that is rounded may lie on either side of a middle. */
static void expect_row(int row)
{
    const double scale = (double)__int_as_float(params::DOWN_SCALE_BITS);
    choice_on_host choices[TOP_K];
    double magnitudes[OUT_N] = {};
    choose_on_host(row, choices);
    for (int n = 0; n < OUT_N; n++) {
        expected[row * OUT_N + n] = params::HAS_RESIDUAL ? (double)residual[row * OUT_N + n] : 0;
        magnitudes[n] = std::fabs(expected[row * OUT_N + n]);
        errors[row * OUT_N + n] = 1e-6;
    }
    for (const choice_on_host &choice : choices) {
        double activations[DOWN_K], least[DOWN_K], most[DOWN_K];
        for (int k = 0; k < DOWN_K; k++) {
            double error;
            const double activation = activation_on_host(row, choice.expert, k, &error);
            activations[k] = rounded(activation);
            least[k] = rounded(activation - error), most[k] = rounded(activation + error);
        }
        for (int n = 0; n < OUT_N; n++) {
            const int down_row = choice.expert * OUT_N + n;
            double sum = params::HAS_DOWN_BIAS ? (double)down_bias[down_row] : 0, of_rounding = 0;
            double magnitude = std::fabs(sum);
            for (int k = 0; k < DOWN_K; k++) {
                const double number = (double)down.values[(size_t)down_row * DOWN_K + k];
                sum += number * activations[k];
                magnitude += std::fabs(number * activations[k]);
                of_rounding += std::fabs(number) * std::max(most[k] - activations[k], activations[k] - least[k]);
            }
            const double factor = choice.weight * scale;
            expected[row * OUT_N + n] += factor * sum;
            magnitudes[n] += factor * magnitude;
            errors[row * OUT_N + n] += factor * (of_rounding + WEIGHT_ERROR * std::fabs(sum));
        }
    }
    for (int n = 0; n < OUT_N; n++) {
        const double of_out = params::DOWN_OUT_DTYPE == DTYPE_F32    ? 0
                              : params::DOWN_OUT_DTYPE == DTYPE_BF16 ? 0x1p-8
                                                                     : 0x1p-11;
        errors[row * OUT_N + n] += FLOAT_ERROR * magnitudes[n];
        errors[row * OUT_N + n] += of_out * (std::fabs(expected[row * OUT_N + n]) + errors[row * OUT_N + n]);
    }
}

/* The kernel's x, residual and out, which may be the same. */
static void *x_operand() { return params::HAS_NORM ? (void *)x_of_launch : x_halves; }
static float *residual_operand()
{
    return !params::HAS_RESIDUAL ? nullptr : IN_PLACE == 2 ? x_of_launch : IN_PLACE ? (float *)out : residual;
}
static void *out_operand() { return IN_PLACE == 2 ? (void *)x_of_launch : out; }

static double out_at(int at)
{
    const void *own = out_operand();
    return params::DOWN_OUT_DTYPE == DTYPE_F32    ? (double)((const float *)own)[at]
           : params::DOWN_OUT_DTYPE == DTYPE_BF16 ? (double)float_of_half<3>(((const u16 *)own)[at])
                                                  : (double)float_of_half<2>(((const u16 *)own)[at]);
}

static void run_thread_of_kernel()
{
    body::up_weights first;
    body::down_weights second;
    take_weights(&first, w, params::TILE_GROUPS);
    take_weights(&second, down, params::DOWN_GROUPS);
    body::run((u8 *)shared_memory, counts, x_operand(), first, second, out_operand(), params::HAS_BIAS ? bias : nullptr,
              params::HAS_NORM ? norm_weights : nullptr, params::HAS_DOWN_BIAS ? down_bias : nullptr,
              residual_operand(),
              {matrix, workspace, params::HAS_ROUTER_BIAS ? router_bias : nullptr,
               params::HAS_CLAIM_BIAS ? claim_bias : nullptr, params::HAS_SCALES ? scales : nullptr,
               params::HAS_SEEDS ? seeds : nullptr, nullptr});
}

/* Gates, or products without one, that are exactly 0 in every panel. */
static void make_zeros()
{
    for (int n = 5; n < params::N; n += 16)
        for (int k = 0; k < K; k++) {
            w.values[(size_t)n * K + k] = 0;
            memset(&w.panels[((size_t)n * K + k) * 2], 0, 2);
        }
}

int main()
{
    enum { OUT_WORDS = params::DOWN_OUT_DTYPE == DTYPE_F32 ? ROWS * OUT_N : (ROWS * OUT_N + 1) / 2 };
    draw_operands(SPOIL == 1 ? 3 : 0);
    if (params::DTYPE == DTYPE_BF16 || params::DTYPE == DTYPE_F16) make_zeros();
    down = draw_weights(params::DOWN_DTYPE, params::DOWN_N, DOWN_K, SPOIL == 2 ? 3 : 0);
    for (float &value : down_bias) value = draw(-1, 1);
    for (int i = 0; i < ROWS * OUT_N; i++)
        residual[i] = IN_PLACE == 2 ? x[i] : i / OUT_N < VALID ? draw(-1, 1) : __builtin_nanf("");
    for (int row = 0; row < VALID; row++) expect_row(row);
    if (SPOIL == 3) matrix[3] = half_of_float<ELEMENT>(9);
    if (SPOIL == 4) residual[1] += 2;
    if (SPOIL == 5)
        for (int expert = 0; expert < params::EXPERTS; expert++) down_bias[expert * OUT_N + 2] += 2;
    const int words = SPOIL == 6 ? WORDS - 1 : WORDS;
    for (int i = words; i < WORDS + GUARDS; i++) workspace[i] = GUARD;
    for (int run = 0; run < 2; run++) { /* the second finds what the first has left */
        for (unsigned &word : out) word = GUARD;
        memcpy(x_of_launch, x, sizeof x);
        if (IN_PLACE) memcpy(residual_operand(), residual, sizeof residual);
        run_blocks(body::THREADS, run_thread_of_kernel, run == 1);
        for (int at = 0; at < VALID * OUT_N; at++)
            expect(std::fabs(out_at(at) - expected[at]) <= errors[at], "out", at, out_at(at), expected[at]);
        for (int i = OUT_WORDS; i < ROWS * OUT_N + GUARDS; i++)
            expect(out[i] == GUARD, "guards of out", i, out[i], GUARD);
        for (int i = 0; i < WORDS; i++) expect(workspace[i] == 0, "workspace", i, workspace[i], 0);
        for (int i = words; i < WORDS + GUARDS; i++) expect(workspace[i] == GUARD, "guards", i, workspace[i], GUARD);
    }
    return wrong != 0;
}
