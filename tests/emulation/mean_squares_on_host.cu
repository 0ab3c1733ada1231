/* SPDX-License-Identifier: Apache-2.0 */
/* mean_squares on the host: KERNEL_PARAMS is the problem, VALID its valid rows. Compares every element of out with plain code in double;
 * prints what differs and exits with 1. SPOIL: 1 and 2 what a kernel with a defect could leave, for the checks to see; 0 nothing.
 * emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/mean_squares/mean_squares.cuh"

struct params {
    KERNEL_PARAMS
};
typedef mean_squares_body<params> body;

enum { WIDTH = body::Q_WIDTH + 2 * body::K_WIDTH, ROW_BYTES = MEAN_SQUARES_WIDTH * 4 };

static int counts[2] = {VALID, 1 << 30};
alignas(64) static u16 qkv[params::ROWS * WIDTH];
static guarded<params::ROWS * ROW_BYTES> out;

static void run_thread_of_kernel() { body::run(counts, qkv, (float *)out.bytes); }

static double mean_of(int from, int count)
{
    double squares = 0;
    for (int i = 0; i < count; i++) {
        const double value = load_element<params::X_DTYPE>(qkv, from + i);
        squares += value * value;
    }
    return count ? squares / count / params::RANKS : 0;
}

int main()
{
    memset(qkv, 0xff, sizeof qkv); /* NaN beyond the valid rows */
    for (int i = 0; i < VALID * WIDTH; i++) store_element<params::X_DTYPE>(qkv, i, draw(-2, 2));
    out.poison();
    for (int i = 0; i < params::ROWS; i++) run_block(i, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) out.bytes[VALID * ROW_BYTES - 1] = 0x40;
    if (SPOIL == 2) out.bytes[VALID * ROW_BYTES] = 0;
    for (int row = 0; row < VALID; row++) {
        const double expected[MEAN_SQUARES_WIDTH] = {mean_of(row * WIDTH, body::Q_WIDTH),
                                                     mean_of(row * WIDTH + body::Q_WIDTH, body::K_WIDTH)};
        for (int i = 0; i < MEAN_SQUARES_WIDTH; i++) {
            const double found = ((const float *)out.bytes)[row * MEAN_SQUARES_WIDTH + i];
            if (!(std::fabs(found - expected[i]) <= 1e-5 * expected[i]))
                problem("out row %d column %d: %g, expected %g", row, i, found, expected[i]);
        }
    }
    out.expect_poison("out", VALID * ROW_BYTES);
    return problems != 0;
}
