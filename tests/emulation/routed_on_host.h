/* SPDX-License-Identifier: Apache-2.0 */
/* A router with its matrix and the activations of the experts that it chooses, by plain code in double, with the operands of both; and a
 * launch whose blocks run at the same time. Included in the namespace of a case, after `params`, the parameters of routed_matmul_body, and `body`.
 * No include guard. */
#include "tests/emulation/matmul_weights_on_host.h"

enum {
    ROWS = params::ROWS,
    K = params::K,
    ELEMENT = params::MATRIX_DTYPE, /* that is multiplied */
    LOGITS = params::ROUTED,
    SCORED = LOGITS - params::SHARED_GATE,
    TOP_K = params::ROUTE_WIDTH / 2,
    CHOSEN = TOP_K - params::SHARED,
    MATRIX_N = params::N / params::EXPERTS,
    GATED = EPILOGUE_IS_GATED(params::EPILOGUE),
    COLUMNS = GATED ? MATRIX_N / 2 : MATRIX_N,
};

static int counts[2] = {VALID, 1 << 30}, seeds[ROWS], wrong;
alignas(64) static float x[ROWS * K], norm_weights[K], bias[params::N];
alignas(64) static float router_bias[LOGITS], claim_bias[LOGITS], scales[LOGITS];
alignas(64) static unsigned short x_halves[ROWS * K], matrix[LOGITS * K];
static drawn_weights w;

static_assert((int)body::LAYOUT.bytes <= SHARED_BYTES, "shared memory of the host's blocks");

/* Errors of float32: a sum's, relative to its addends; a weight's of a choice, relative to it. */
static constexpr double FLOAT_ERROR = 1e-6, WEIGHT_ERROR = 1e-5;

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
        const double y = float_of_half<ELEMENT>(
            params::HAS_NORM ? half_of_float<ELEMENT>(x[row * K + k] * norm_weights[k]) : x_halves[row * K + k]);
        sum += y * number(k);
        *magnitude += std::fabs(y * number(k));
        squares += (double)x[row * K + k] * (double)x[row * K + k];
    }
    const double factor = params::HAS_NORM ? 1 / std::sqrt(squares / K + (double)__int_as_float(params::EPS_BITS)) : 1;
    *magnitude *= factor;
    return sum * factor;
}

static double sigmoid_on_host(double value) { return 1 / (1 + std::exp(-value)); }

struct choice_on_host {
    int expert;
    double weight;
};

/* Scores and claims are of different sizes in these cases, so that float32 orders them as double does. */
static void choose_on_host(int row, choice_on_host (&choices)[TOP_K])
{
    double logits[LOGITS], claims[LOGITS], scores[LOGITS], all = 0, chosen = 0, magnitude;
    bool taken[LOGITS] = {};
    for (int e = 0; e < LOGITS; e++) {
        logits[e] = dot(
            row, [&](int k) { return (double)float_of_half<ELEMENT>(matrix[e * K + k]); }, &magnitude);
        if (params::HAS_ROUTER_BIAS) logits[e] += (double)router_bias[e];
    }
    for (int e = 0; e < SCORED; e++) all += std::exp(logits[e]);
    for (int e = 0; e < SCORED; e++) {
        scores[e] = params::SCORE == ROUTER_SIGMOID ? sigmoid_on_host(logits[e]) : std::exp(logits[e]) / all;
        claims[e] = scores[e] + (params::HAS_CLAIM_BIAS ? (double)claim_bias[e] : 0);
        if (params::HAS_SEEDS && seeds[row]) claims[e] = (double)router_seeded_claim(seeds[row], e);
    }
    for (int c = 0; c < CHOSEN; c++) {
        int best = -1;
        for (int e = 0; e < SCORED; e++)
            if (!taken[e] && (best < 0 || claims[e] > claims[best])) best = e;
        taken[best] = true, choices[c].expert = best, chosen += scores[best];
    }
    const bool divided = params::SCORE == ROUTER_SOFTMAX_CHOSEN || params::RENORMALISE != ROUTER_AS_THEY_ARE;
    for (int c = 0; c < TOP_K; c++) {
        if (c >= CHOSEN)
            choices[c] = {SCORED + c - CHOSEN, params::SHARED_GATE ? sigmoid_on_host(logits[SCORED]) : 1};
        else
            choices[c].weight = scores[choices[c].expert] / (divided ? chosen : 1) *
                                (double)__int_as_float(params::ROUTER_SCALE_BITS) *
                                (params::HAS_SCALES ? (double)scales[choices[c].expert] : 1);
    }
}

/* *error: of float32, at most. */
static double activation_on_host(int row, int expert, int column, double *error)
{
    const int first = expert * MATRIX_N + (GATED ? column / 8 * 16 + column % 8 : column);
    double values[2] = {}, errors[2] = {};
    for (int half = 0; half < (GATED ? 2 : 1); half++) {
        const int n = first + half * 8;
        values[half] = dot(
            row, [&](int k) { return (double)w.values[(size_t)n * K + k]; }, &errors[half]);
        if (params::HAS_BIAS) values[half] += (double)bias[n];
        errors[half] *= FLOAT_ERROR;
    }
    const double positive = values[0] < 0 ? 0 : values[0];
    const double activation =
        GATED ? values[0] * sigmoid_on_host(values[0]) * values[1] : positive * positive; /* SiLU, or RELU2 */
    *error = (GATED ? 1.2 * errors[0] * (std::fabs(values[1]) + errors[1]) + std::fabs(values[0]) * errors[1]
                    : errors[0] * (2 * std::fabs(values[0]) + errors[0])) +
             FLOAT_ERROR * std::fabs(activation) + 1e-7;
    return activation;
}

/* `spoil`: of draw_weights. */
static void draw_operands(int spoil)
{
    for (int i = 0; i < ROWS * K; i++) {
        x[i] = draw(-1, 1);
        x_halves[i] = i / K < VALID ? half_of_float<ELEMENT>(x[i]) : 0xffff; /* NaN beyond the valid rows */
        if (i / K >= VALID) x[i] = __builtin_nanf("");
    }
    for (unsigned short &value : matrix) value = half_of_float<ELEMENT>(draw(-0.3f, 0.3f));
    for (float &value : norm_weights) value = draw(0.5f, 1.5f);
    for (float &value : bias) value = draw(-1, 1);
    for (int e = 0; e < LOGITS; e++)
        router_bias[e] = draw(-1, 1), claim_bias[e] = draw(-0.5f, 0.5f), scales[e] = draw(0.5f, 2);
    for (int row = 0; row < ROWS; row++) seeds[row] = row % 2 ? row + 1 : 0;
    w = draw_weights(params::DTYPE, params::N, K, spoil);
}

/* Weights as the kernel takes them: the operand's type chooses. */
static void take_weights(const u16 **operand, const drawn_weights &own, int)
{
    *operand = (const u16 *)own.panels.data();
}
static void take_weights(tensor_map *operand, const drawn_weights &own, int tile_groups)
{
    *operand = tensor_map_on_host(own.panels.data(), own.n, own.k, 8 * tile_groups);
}

/* Copies are complete at once, or as late as the waits permit. */
static void run_blocks(int threads, void (*thread)(), bool late)
{
    std::vector<std::thread> blocks;
    copies_are_late = late;
    for (int i = 0; i < BLOCKS_IN_ALL; i++)
        blocks.emplace_back([i, threads, thread] {
            memset(shared_memory, 0xff, SHARED_BYTES); /* NaN */
            gridDim.x = BLOCKS_IN_ALL;
            run_block(i, threads, thread);
        });
    for (std::thread &block : blocks) block.join();
}
