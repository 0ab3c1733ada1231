/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm on the host: KERNEL_PARAMS is the problem, VALID its valid rows. Compares every element of out with plain code in double;
 * prints what differs and exits with 1. SPOIL: 1 and 2 what a kernel with a defect could leave, for the checks to see; 0 nothing.
 * emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/group_norm/group_norm.cuh"

struct params {
    KERNEL_PARAMS
};
typedef group_norm_body<params> body;

enum { ELEMENT = params::X_DTYPE == DTYPE_F32 ? 4 : 2, ROW_BYTES = params::WIDTH * ELEMENT };

static int counts[2] = {VALID, 1 << 30};
alignas(64) static u8 x[params::ROWS * ROW_BYTES], weight[params::WIDTH * 4];
static float means[params::ROWS * MEAN_SQUARES_WIDTH];
static guarded<params::ROWS * ROW_BYTES> out;

static void run_thread_of_kernel() { body::run(counts, x, weight, out.bytes, params::HAS_MEANS ? means : nullptr); }

static double element(const void *from, int index) { return (double)load_element<params::X_DTYPE>(from, index); }

static double mean_of(int row, int group)
{
    double squares = 0;
    if (params::HAS_MEANS) return (double)means[row * MEAN_SQUARES_WIDTH];
    for (int i = 0; i < body::COLUMNS; i++) {
        const double value = element(x, row * params::WIDTH + group * body::COLUMNS + i);
        squares += value * value;
    }
    return squares / body::COLUMNS;
}

int main()
{
    memset(x, 0xff, sizeof x); /* NaN beyond the valid rows */
    for (int i = 0; i < VALID * params::WIDTH; i++) store_element<params::X_DTYPE>(x, i, draw(-2, 2));
    for (int i = 0; i < params::WIDTH; i++) store_element<params::WEIGHT_DTYPE>(weight, i, draw(0.5f, 1.5f));
    for (float &mean : means) mean = draw(0.1f, 3);
    out.poison();
    for (int i = 0; i < params::ROWS * params::GROUPS; i++) run_block(i, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) out.bytes[VALID * ROW_BYTES - 1] ^= 0x40;
    if (SPOIL == 2) out.bytes[VALID * ROW_BYTES] = 0;
    for (int row = 0; row < VALID; row++)
        for (int i = 0; i < params::WIDTH; i++) {
            const double scale = 1 / sqrt(mean_of(row, i / body::COLUMNS) + (double)float_of_bits(params::EPS_BITS));
            const double want = element(x, row * params::WIDTH + i) * scale *
                                (double)load_element<params::WEIGHT_DTYPE>(weight, i),
                         found = element(out.bytes, row * params::WIDTH + i);
            if (!(fabs(found - want) <= (rounding_of(params::X_DTYPE) * 1.01 + 1e-5) * fabs(want)))
                problem("out row %d column %d: %g, expected %g", row, i, found, want);
        }
    out.expect_poison("out", VALID * ROW_BYTES);
    return problems != 0;
}
