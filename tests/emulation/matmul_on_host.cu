/* SPDX-License-Identifier: Apache-2.0 */
/* A matmul on the host, with coded weights or bfloat16, and codes of x: KERNEL_PARAMS is the problem and the tunables of BODY; VALID its valid
 * rows, BLOCKS_IN_ALL the thread blocks. A coded W is packed by the functions that engines are built with. Compares every valid output
 * with plain code in double on what panel_read gives; prints what differs and exits with 1. SPOIL: 1 a code, 2 a scale or
 * a factor is changed after the expectation, for the checks to see; 0 nothing. emulation_test.py includes it in a
 * namespace for each case, after the headers. */
#include "tests/emulation/cuda_on_host.h"


#include <cstdio>

struct params {
    KERNEL_PARAMS
};
template <class P> using matmul_gemv_sums = matmul_gemv_sums_body<P, matmul_gemv_body<P>>;
typedef BODY<params> body;

enum {
    ROWS = params::ROWS,
    N = params::N,
    K = params::K,
    GATED = EPILOGUE_IS_GATED(params::EPILOGUE),
    TOP_K = params::EXPERTS ? params::ROUTE_WIDTH / 2 : 1,
    BLOCK_ROWS = (params::BLOCK_N + 15) / 16 * 16,
    BLOCKS = params::BLOCK_N ? N / BLOCK_ROWS : 1, /* parts of a row, each with a matrix of its own */
    CHOICES = ROWS * TOP_K * BLOCKS,
    SHARES_X = params::EXPERTS && params::EPILOGUE != ACTIVATION_NONE,
    SUMMED = params::EXPERTS && !SHARES_X && !params::PARTS,
    MATRIX_N = params::EXPERTS   ? N / params::EXPERTS
               : params::BLOCK_N ? params::BLOCK_N
                                 : N,
    COLUMNS = GATED ? MATRIX_N / 2 : MATRIX_N,
    X_ROWS = SHARES_X ? ROWS : CHOICES,
    X_PITCH = params::X_PITCH ? params::X_PITCH : X_ROWS / ROWS * K, /* of a row of the launch */
    OUT_ROWS = SUMMED ? ROWS : CHOICES,
};

static int counts[2] = {1 << 30, VALID};
alignas(64) static float x[ROWS * X_PITCH], norm_weights[K], bias[N], residual[ROWS * COLUMNS];
alignas(64) static float routes[ROWS * 2 * TOP_K];           /* router.h */
alignas(64) static int lists[params::EXPERTS + 1 + CHOICES]; /* router.h: of the valid rows */
alignas(64) static unsigned short x_halves[ROWS * X_PITCH];
alignas(64) static unsigned char x_codes[ROWS * K]; /* in the order of quantise.h */
alignas(64) static float x_scales[ROWS];
enum { INTEGERS = params::INPUT_DTYPE == DTYPE_I8, CODES = INTEGERS || params::INPUT_DTYPE == DTYPE_F8_E4M3 };
alignas(64) static float out[OUT_ROWS * COLUMNS];
static int wrong;

#include "tests/emulation/matmul_weights_on_host.h"

static drawn_weights w;

static double dot(int row, int n, double *magnitude)
{
    const int parts = X_ROWS / ROWS, at = row / parts * X_PITCH + row % parts * K;
    double sum = 0;
    *magnitude = 0;
    for (int k = 0; k < K; k++) {
        const double element = CODES ? x[at + k]
                                     : float_of_half<3>(params::HAS_NORM ? half_of_float<3>(x[at + k] * norm_weights[k])
                                                                         : x_halves[at + k]);
        sum += element * (double)w.values[(size_t)n * K + k];
        *magnitude += std::fabs(element * (double)w.values[(size_t)n * K + k]);
    }
    if (params::HAS_NORM) {
        double squares = 0;
        for (int k = 0; k < K; k++) squares += (double)x[at + k] * (double)x[at + k];
        const double factor = 1 / std::sqrt(squares / K + (double)__int_as_float(params::EPS_BITS));
        sum *= factor, *magnitude *= factor;
    }
    if (params::HAS_BIAS) sum += (double)bias[n];
    return sum;
}

static double activated(double value)
{
    const double cap = (double)__int_as_float(params::CAP_BITS);
    switch (EPILOGUE_ACTIVATION(params::EPILOGUE)) {
    case ACTIVATION_SILU: return value / (1 + std::exp(-value));
    case ACTIVATION_GELU_TANH:
        return value / 2 * (1 + std::tanh(GELU_TANH_LINEAR * value + GELU_TANH_CUBIC * value * value * value));
    case ACTIVATION_GELU: return value / 2 * (1 + std::erf(value / std::sqrt(2.0)));
    case ACTIVATION_RELU2: return value < 0 ? 0 : value * value;
    case ACTIVATION_RELU: return value < 0 ? 0 : value;
    case ACTIVATION_SOFTCAP: return cap * std::tanh(value / cap);
    default: return value;
    }
}

static double slope(double value)
{
    return EPILOGUE_ACTIVATION(params::EPILOGUE) == ACTIVATION_RELU2 ? 2 * std::fabs(value) + 0.1 : 1.2;
}

/* What row `row` of x gives with the matrix that begins at row `base` of W. */
static double product(int row, int base, int column, double *magnitude)
{
    double up_magnitude;
    const double value = dot(row, base + (GATED ? column / 8 * 16 + column % 8 : column), magnitude);
    if (GATED) {
        const double up = dot(row, base + column / 8 * 16 + column % 8 + 8, &up_magnitude);
        *magnitude = slope(value) * *magnitude * (std::fabs(up) + 1) + std::fabs(value) * up_magnitude;
        return activated(value) * up;
    }
    if (params::EPILOGUE == ACTIVATION_NONE) return value;
    *magnitude = slope(value) * *magnitude + 1;
    return activated(value);
}

/* The same of a choice, with its weight unless there is an activation; 0 if it names no expert. */
static double routed_product(int choice, int column, double *magnitude)
{
    const float *route = routes + choice / TOP_K * 2 * TOP_K + choice % TOP_K;
    const double weight = SHARES_X ? 1 : (double)route[0];
    *magnitude = 0;
    if (!(route[TOP_K] >= 0 && route[TOP_K] < params::EXPERTS)) return 0;
    const double value = product(SHARES_X ? choice / TOP_K : choice, (int)route[TOP_K] * MATRIX_N, column, magnitude);
    *magnitude *= std::fabs(weight);
    return weight * value;
}

static void check(int row, int column)
{
    double magnitude = 0, expected = 0;
    const int terms = SUMMED ? TOP_K : 1;
    for (int i = 0; i < terms; i++) {
        double of_term;
        expected += params::EXPERTS ? routed_product(row * terms + i, column, &of_term)
                                    : product(row, row % BLOCKS * BLOCK_ROWS, column, &of_term);
        magnitude += of_term;
    }
    if (params::HAS_RESIDUAL) expected += (double)residual[row * COLUMNS + column];
    const double found = (double)out[row * COLUMNS + column],
                 error = 4e-6 * magnitude + 2e-6 * std::fabs(expected) + 1e-6;
    if (!(std::fabs(found - expected) <= error) && wrong++ < 5)
        printf("out[%d, %d] is %g, expected %g within %g\n", row, column, found, expected, error);
}

/* Experts of a row differ, and rows share some. The last of several choices of row 0 names none. */
static void draw_routes()
{
    for (int choice = 0; choice < CHOICES && params::EXPERTS; choice++) {
        const int row = choice / TOP_K, i = choice % TOP_K;
        float *route = routes + row * 2 * TOP_K + i;
        route[0] = row < VALID ? draw(0.1f, 1) : __builtin_nanf("");
        route[TOP_K] = (float)((row + i * 3) % params::EXPERTS);
        if (choice == TOP_K - 1 && TOP_K > 1 && SUMMED) route[TOP_K] = -1;
    }
}

static void fill_lists()
{
    int listed = 0;
    for (int &value : lists) value = 1 << 30;
    for (int expert = 0; expert < params::EXPERTS; expert++) {
        lists[expert] = listed;
        for (int choice = 0; choice < VALID * TOP_K; choice++)
            if (routes[choice / TOP_K * 2 * TOP_K + TOP_K + choice % TOP_K] == (float)expert)
                lists[params::EXPERTS + 1 + listed++] = choice;
    }
    lists[params::EXPERTS] = listed;
}

static const void *bias_operand() { return params::HAS_BIAS ? bias : nullptr; }
static const float *residual_operand() { return params::HAS_RESIDUAL ? residual : nullptr; }

template <class P> static void run_body(const void *input, matmul_gemv_body<P> *)
{
    matmul_gemv_body<P>::run((u8 *)shared_memory, counts, input, (const u16 *)w.panels.data(), out, bias_operand(),
                             residual_operand(), P::HAS_NORM ? norm_weights : nullptr, routes);
}

template <class P> static void run_body(const void *input, matmul_gemv_sums<P> *)
{
    matmul_gemv_sums<P>::run((u8 *)shared_memory, counts, input, (const u16 *)w.panels.data(), out, bias_operand(),
                             residual_operand(), nullptr, routes);
}

template <class P> static void run_body(const void *, matmul_grouped_body<P> *)
{
    matmul_grouped_body<P>::run((u8 *)shared_memory, x_halves, (const u16 *)w.panels.data(), out, bias_operand(),
                                routes, lists);
}

template <class P> static void run_body(const void *, matmul_mma_body<P> *)
{
    matmul_mma_body<P>::run((u8 *)shared_memory, counts, x_halves, (const u16 *)w.panels.data(), out, bias_operand(),
                            residual_operand(), routes, lists);
}

template <class P> static tensor_map strips_map()
{
    constexpr fragment_layout layout = fragment_lay_out(P::DTYPE);
    return tensor_map_on_host(w.panels.data(), (N + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS,
                              (int)fragment_strips(K) * layout.strip_bytes / 8, P::TILE_N / FRAGMENT_ROWS, 8,
                              (u64)fragment_panel_bytes(layout, K), (u64)layout.strip_bytes);
}

template <class P> static void run_body(const void *, matmul_wgmma_body<P> *)
{
    const tensor_map map =
        CODES ? tensor_map_on_host(x_codes, ROWS, K, P::TILE_M, 1) : tensor_map_on_host(x_halves, ROWS, K, P::TILE_M);
    if constexpr (P::DTYPE == DTYPE_BF16)
        matmul_wgmma_body<P>::run((u8 *)shared_memory, counts, map,
                                  tensor_map_on_host(w.panels.data(), N, K, P::TILE_N), out, bias_operand(),
                                  residual_operand(), nullptr);
    else if constexpr (matmul_wgmma_has_tiles(P::DTYPE, P::ROWS, P::TILE_M))
        matmul_wgmma_body<P>::run((u8 *)shared_memory, counts, map, strips_map<P>(), out, bias_operand(),
                                  residual_operand(), CODES ? x_scales : nullptr);
    else
        matmul_wgmma_body<P>::run((u8 *)shared_memory, counts, map, w.panels.data(), out, bias_operand(),
                                  residual_operand(), CODES ? x_scales : nullptr);
}

static void run_thread_of_kernel()
{
    const void *input = params::HAS_NORM ? (const void *)x : x_halves;
    run_body(input, (body *)nullptr);
}

/* Codes and scales of the valid rows, and in x the numbers that they stand for; NaN in the other rows. */
static void draw_codes()
{
    for (int i = 0; i < ROWS; i++) x_scales[i] = i < VALID ? draw(0.001f, 0.004f) : __builtin_nanf("");
    for (int i = 0; i < ROWS * K; i++) {
        const int k = i % K, row = i / K;
        const int element = k / 16 * 16 + k % 16 / 4 * 2 + k % 4 / 2 + k % 2 * 8;
        unsigned char code = (unsigned char)draw(0, 255.9f);
        if (INTEGERS ? code == 128 : (code & 127) == 127) code = 0;
        x_codes[i] = row < VALID ? code : 0x7f;
        x[row * K + element] = (INTEGERS ? int8_element(code) : e4m3_element(code)) * x_scales[row];
    }
}

int main()
{
    for (int i = 0; i < ROWS * X_PITCH; i++) {
        const bool is_read = i / X_PITCH < VALID && i % X_PITCH < X_ROWS / ROWS * K;
        x[i] = draw(-1, 1);
        x_halves[i] = is_read ? half_of_float<3>(x[i]) : 0xffff; /* NaN beyond the valid rows and after their parts */
    }
    draw_routes();
    for (int choice = 0; choice < CHOICES && SUMMED; choice++) /* NaN of choices that name no expert */
        if (routes[choice / TOP_K * 2 * TOP_K + TOP_K + choice % TOP_K] < 0)
            for (int k = 0; k < K; k++) x_halves[choice * K + k] = 0xffff;
    fill_lists();
    if (CODES) draw_codes();
    for (float &value : norm_weights) value = draw(0.5f, 1.5f);
    for (float &value : bias) value = draw(-1, 1);
    for (float &value : residual) value = draw(-1, 1);
    for (float &value : out) value = -1e30f;
    w = draw_weights(params::DTYPE, N, K, SPOIL);
    for (int i = 0; i < BLOCKS_IN_ALL; i++) {
        memset(shared_memory, 0xff, SHARED_BYTES); /* NaN */
        gridDim.x = BLOCKS_IN_ALL;
        run_block(i, body::THREADS, run_thread_of_kernel);
    }
    for (int row = 0; row < VALID * (OUT_ROWS / ROWS); row++)
        for (int column = 0; column < COLUMNS; column++) check(row, column);
    return wrong != 0;
}
