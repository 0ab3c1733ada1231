/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of codes on the host, by quantise or, with BY_NORM, by rms_norm: KERNEL_PARAMS is the problem and its tunable, VALID its valid
 * rows, at least 5. Rows in turn: random ones, of zeros, with a NaN, with an infinity, of tiny numbers. Compares every code and scale
 * with plain code, those of a norm within the rounding of its float32; prints what differs and exits with 1. SPOIL: 1 to 3 what a
 * kernel with a defect could leave, for the checks to see; 0 nothing. emulation_test.py includes it in a namespace for each case,
 * after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/quantise/quantise.cuh"
#include "kernels/rms_norm/rms_norm.cuh"

struct params {
    KERNEL_PARAMS
};

enum {
    WIDTH = params::WIDTH,
    COUNT = params::ROWS * WIDTH,
    ENCODING = params::OUT_DTYPE == DTYPE_I8 ? PAGED_INT8 : PAGED_E4M3
};

static int counts[2] = {VALID, 1 << 30};
alignas(64) static u8 x[COUNT * 4];
alignas(64) static float weight[WIDTH], values[COUNT];       /* of the rows before they become codes */
alignas(64) static float scales[params::ROWS], zeros[COUNT]; /* a residual that changes nothing */
static guarded<COUNT> out;

template <class P, bool BY> struct kernel {
    static void run() { quantise_body<P>::run(counts, (const uint4 *)x, (uint4 *)out.bytes, scales); }
};
template <class P> struct kernel<P, true> {
    static void run()
    {
        rms_norm_body<P>::run(counts, (const float *)x, weight, out.bytes, zeros, zeros, nullptr, nullptr, scales,
                              nullptr, nullptr);
    }
};

static void draw_rows()
{
    memset(x, 0xff, sizeof x); /* NaN beyond the valid rows */
    for (float &value : weight) value = draw(0.5f, 1.5f);
    for (int r = 0; r < VALID; r++) {
        const float tiny = params::X_DTYPE == DTYPE_F16 ? 0x1p-22f : 0x1p-120f;
        const float most = r % 5 == 1 ? 0 : r % 5 == 4 ? tiny : 20;
        for (int k = 0; k < WIDTH; k++) store_element<params::X_DTYPE>(x, r * WIDTH + k, draw(-most, most));
        if (r % 5 == 2) store_element<params::X_DTYPE>(x, r * WIDTH + WIDTH / 2, NAN);
        if (r % 5 == 3) store_element<params::X_DTYPE>(x, r * WIDTH + WIDTH - 1, -INFINITY);
    }
}

static void find_values(int row)
{
    double squares = 0;
    for (int k = 0; k < WIDTH; k++) {
        values[row * WIDTH + k] = load_element<params::X_DTYPE>(x, row * WIDTH + k);
        squares += (double)values[row * WIDTH + k] * (double)values[row * WIDTH + k];
    }
    const double factor = 1 / std::sqrt(squares / WIDTH + 1e-5);
    for (int k = 0; BY_NORM && k < WIDTH; k++)
        values[row * WIDTH + k] = (float)(values[row * WIDTH + k] * factor * (double)weight[k]);
}

static void check_row(int row)
{
    const float *value = values + row * WIDTH;
    const double slack = BY_NORM ? 1e-6 : 0;
    float largest = 0;
    for (int k = 0; k < WIDTH; k++) largest = max_or_nan(largest, fabsf(value[k]));
    const float scale = largest / (ENCODING == PAGED_INT8 ? 127 : 448) + largest * 0;
    const bool is_zero = !(scale > 0);
    if (std::isnan(scale) ? !std::isnan(scales[row]) : !(std::fabs(scales[row] - (double)scale) <= slack * scale))
        problem("row %d: scale %g, expected %g", row, scales[row], scale);
    for (int place = 0; place < WIDTH; place++) {
        const int k = place / 16 * 16 + place % 16 / 4 * 2 + place % 4 / 2 + place % 2 * 8;
        const u8 code = out.bytes[row * WIDTH + place];
        const float quotient = is_zero ? 0 : value[k] / scale;
        const double number = ENCODING == PAGED_INT8 ? (signed char)code : e4m3_value(code);
        const double error = code_step(ENCODING, quotient) * 0.5 + 1e-6 * std::fabs(quotient);
        const bool good = is_zero || (!BY_NORM && value[k] != 0)
                              ? code == (is_zero ? 0 : nearest_code(ENCODING, quotient))
                              : std::fabs(number - quotient) <= error * 1.0001;
        if (!good) problem("row %d element %d: code %d, expected that of %g", row, k, code, quotient);
    }
}

static void run_thread_of_kernel() { kernel<params, BY_NORM>::run(); }

int main()
{
    draw_rows();
    out.poison();
    for (int i = 0; i < params::ROWS; i++) run_block(i, params::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) out.bytes[WIDTH - 2] ^= 2;
    if (SPOIL == 2) scales[0] *= 1.001f;
    if (SPOIL == 3) out.bytes[VALID * WIDTH] = 0;
    for (int r = 0; r < VALID; r++) find_values(r), check_row(r);
    out.expect_poison("out", VALID * WIDTH);
    return problems != 0;
}
