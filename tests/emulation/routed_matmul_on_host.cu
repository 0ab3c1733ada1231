/* SPDX-License-Identifier: Apache-2.0 */
/* routed_matmul on the host: KERNEL_PARAMS is the problem and the tunables, VALID its valid rows, BLOCKS_IN_ALL the thread blocks, which run
 * at the same time. Compares routes, lists and products with plain code in double, and the workspace with zeros; prints
 * what differs and exits with 1. SPOIL: 1 a code of the weights, 3 a number of the router's matrix is another one than expected;
 * 0 nothing. emulation_test.py includes it in a namespace for each case, after the headers. */
#include "tests/emulation/cuda_on_host.h"

struct params {
    KERNEL_PARAMS
};
typedef routed_matmul_body<params> body;

enum {
    ROWS = params::ROWS,
    N = params::N,
    K = params::K,
    PANELS = (N + 15) / 16,
    LOGITS = params::ROUTED,
    SCORED = LOGITS - params::SHARED_GATE,
    TOP_K = params::ROUTE_WIDTH / 2,
    CHOSEN = TOP_K - params::SHARED,
    MATRIX_N = N / params::EXPERTS,
    GATED = EPILOGUE_IS_GATED(params::EPILOGUE),
    COLUMNS = GATED ? MATRIX_N / 2 : MATRIX_N,
    WORDS = ROUTED_MATMUL_TICKET_BYTES / 4 + ROWS * (LOGITS + 31) / 32 * 32,
};

static int counts[2] = {VALID, 1 << 30}, seeds[ROWS], wrong;
alignas(64) static float x[ROWS * K], norm_weights[K], bias[N], router_bias[LOGITS], claim_bias[LOGITS], scales[LOGITS];
alignas(64) static unsigned short x_halves[ROWS * K], matrix[LOGITS * K];
alignas(64) static float out[ROWS * TOP_K * COLUMNS], routes[ROWS * 2 * TOP_K];
alignas(64) static int lists[params::EXPERTS + 1 + ROWS * TOP_K];
alignas(64) static unsigned workspace[WORDS];

#include "tests/emulation/matmul_weights_on_host.h"

static void expect(bool right, const char *what, int at, double found, double expected)
{
    if (right || wrong++ > 10) return;
    printf("%s[%d]: %.9g, expected %.9g\n", what, at, found, expected);
}

/* y[row] times numbers; *magnitude: of the addends. */
template <class NUMBER> static double dot(int row, NUMBER number, double *magnitude)
{
    double sum = 0, squares = 0;
    *magnitude = 0;
    for (int k = 0; k < K; k++) {
        const double y = float_of_half<3>(params::HAS_NORM ? half_of_float<3>(x[row * K + k] * norm_weights[k])
                                                           : x_halves[row * K + k]);
        sum += y * number(k);
        *magnitude += std::fabs(y * number(k));
        squares += (double)x[row * K + k] * (double)x[row * K + k];
    }
    const double factor = params::HAS_NORM ? 1 / std::sqrt(squares / K + (double)__int_as_float(params::EPS_BITS)) : 1;
    *magnitude *= factor;
    return sum * factor;
}

static double sigmoid_on_host(double value) { return 1 / (1 + std::exp(-value)); }

/* Scores and claims are of different sizes in these cases, so that float32 orders them as double does. */
static void check_row(int row)
{
    const float *weights = routes + row * 2 * TOP_K, *ids = weights + TOP_K;
    double logits[LOGITS], claims[LOGITS], scores[LOGITS], all = 0, chosen = 0, magnitude;
    bool taken[LOGITS] = {};
    for (int e = 0; e < LOGITS; e++) {
        logits[e] = dot(
            row, [&](int k) { return (double)float_of_half<3>(matrix[e * K + k]); }, &magnitude);
        if (params::HAS_ROUTER_BIAS) logits[e] += (double)router_bias[e];
    }
    for (int e = 0; e < SCORED; e++) all += std::exp(logits[e]);
    for (int e = 0; e < SCORED; e++) {
        scores[e] = params::SCORE == ROUTER_SIGMOID ? sigmoid_on_host(logits[e]) : std::exp(logits[e]) / all;
        claims[e] = scores[e] + (params::HAS_CLAIM_BIAS ? (double)claim_bias[e] : 0);
        if (params::HAS_SEEDS && seeds[row]) claims[e] = (double)router_seeded_claim(seeds[row], e);
    }
    int found[TOP_K];
    for (int c = 0; c < CHOSEN; c++) {
        int best = -1;
        for (int e = 0; e < SCORED; e++)
            if (!taken[e] && (best < 0 || claims[e] > claims[best])) best = e;
        taken[best] = true, found[c] = best, chosen += scores[best];
    }
    for (int c = CHOSEN; c < TOP_K; c++) found[c] = SCORED + c - CHOSEN;
    const bool divided = params::SCORE == ROUTER_SOFTMAX_CHOSEN || params::RENORMALISE != ROUTER_AS_THEY_ARE;
    for (int c = 0; c < TOP_K; c++) {
        const double weight = c >= CHOSEN ? (params::SHARED_GATE ? sigmoid_on_host(logits[SCORED]) : 1)
                                          : scores[found[c]] / (divided ? chosen : 1) *
                                                (double)__int_as_float(params::ROUTER_SCALE_BITS) *
                                                (params::HAS_SCALES ? (double)scales[found[c]] : 1);
        expect(ids[c] == (float)found[c], "ids", row * TOP_K + c, (double)ids[c], found[c]);
        expect(std::fabs((double)weights[c] - weight) <= 1e-4 * weight, "weights", row * TOP_K + c, (double)weights[c],
               weight);
        for (int column = 0; column < COLUMNS; column++) {
            const int first = found[c] * MATRIX_N + (GATED ? column / 8 * 16 + column % 8 : column);
            double values[2] = {}, errors[2] = {};
            for (int half = 0; half < (GATED ? 2 : 1); half++) {
                const int n = first + half * 8;
                values[half] = dot(
                    row, [&](int k) { return (double)w[(size_t)n * K + k]; }, &errors[half]);
                if (params::HAS_BIAS) values[half] += (double)bias[n];
                errors[half] *= 1e-5;
            }
            const double positive = values[0] < 0 ? 0 : values[0];
            const double want =
                GATED ? values[0] * sigmoid_on_host(values[0]) * values[1] : positive * positive; /* SiLU, or RELU2 */
            const double error =
                (GATED ? 1.2 * errors[0] * (std::fabs(values[1]) + errors[1]) + std::fabs(values[0]) * errors[1]
                       : errors[0] * (2 * std::fabs(values[0]) + errors[0])) +
                1e-5 * std::fabs(want) + 1e-6;
            const int at = (row * TOP_K + c) * COLUMNS + column;
            expect(std::fabs((double)out[at] - want) <= error, "out", at, (double)out[at], want);
        }
    }
}

static void check_lists()
{
    const int *choices = lists + params::EXPERTS + 1;
    int next = 0;
    for (int expert = 0; expert < params::EXPERTS; expert++) {
        expect(lists[expert] == next, "lists", expert, lists[expert], next);
        for (int choice = 0; choice < VALID * TOP_K; choice++) {
            if (routes[choice / TOP_K * 2 * TOP_K + TOP_K + choice % TOP_K] != (float)expert) continue;
            expect(choices[next] == choice, "choices", next, choices[next], choice);
            next++;
        }
    }
    expect(lists[params::EXPERTS] == next, "lists", params::EXPERTS, lists[params::EXPERTS], next);
}

/* W as the kernel takes it: the operand's type chooses. */
static void take_weights(const u16 **operand) { *operand = (const u16 *)panels.data(); }
static void take_weights(tensor_map *operand)
{
    *operand = tensor_map_on_host(panels.data(), N, K, 8 * params::TILE_GROUPS);
}

static void run_thread_of_kernel()
{
    body::weights_operand weights;
    take_weights(&weights);
    body::run((u8 *)shared_memory, counts, params::HAS_NORM ? (const void *)x : x_halves, weights, out, routes, lists,
              params::HAS_BIAS ? bias : nullptr, params::HAS_NORM ? norm_weights : nullptr,
              {matrix, workspace, params::HAS_ROUTER_BIAS ? router_bias : nullptr,
               params::HAS_CLAIM_BIAS ? claim_bias : nullptr, params::HAS_SCALES ? scales : nullptr,
               params::HAS_SEEDS ? seeds : nullptr, nullptr});
}

int main()
{
    for (int i = 0; i < ROWS * K; i++) {
        x[i] = draw(-1, 1);
        x_halves[i] = i / K < VALID ? half_of_float<3>(x[i]) : 0xffff; /* NaN beyond the valid rows */
        if (i / K >= VALID) x[i] = __builtin_nanf("");
    }
    for (unsigned short &value : matrix) value = half_of_float<3>(draw(-0.3f, 0.3f));
    for (float &value : norm_weights) value = draw(0.5f, 1.5f);
    for (float &value : bias) value = draw(-1, 1);
    for (int e = 0; e < LOGITS; e++)
        router_bias[e] = draw(-1, 1), claim_bias[e] = draw(-0.5f, 0.5f), scales[e] = draw(0.5f, 2);
    for (int row = 0; row < ROWS; row++) seeds[row] = row % 2 ? row + 1 : 0;
    for (float &value : out) value = -1e30f;
    for (int &value : lists) value = -1;
    draw_weights();
    const unsigned short own = matrix[3];
    if (SPOIL == 3) matrix[3] = half_of_float<3>(9);
    for (int run = 0; run < 2; run++) { /* the second finds what the first has left */
        std::vector<std::thread> blocks;
        for (int i = 0; i < BLOCKS_IN_ALL; i++)
            blocks.emplace_back([i] {
                memset(shared_memory, 0xff, SHARED_BYTES); /* NaN */
                gridDim.x = BLOCKS_IN_ALL;
                run_block(i, body::THREADS, run_thread_of_kernel);
            });
        for (std::thread &block : blocks) block.join();
    }
    matrix[3] = own;
    for (int row = 0; row < VALID; row++) check_row(row);
    check_lists();
    for (int i = 0; i < WORDS; i++) expect(workspace[i] == 0, "workspace", i, workspace[i], 0);
    return wrong != 0;
}
