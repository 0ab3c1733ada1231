/* SPDX-License-Identifier: Apache-2.0 */
/* xielu on the host: KERNEL_PARAMS is the problem, VALID its valid rows, IN_PLACE: out is x. Compares every element of out with the
 * formula; prints what differs and exits with 1. SPOIL: 1 and 2 what a kernel with a defect could leave, for the checks to see; 0
 * nothing. emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/xielu/xielu.cuh"

struct params {
    KERNEL_PARAMS
};
typedef xielu_body<params> body;

enum { WIDTH = params::WIDTH, COUNT = params::ROWS * WIDTH, OUT_BYTES = params::X_DTYPE == DTYPE_F32 ? 4 : 2 };

static int counts[2] = {VALID, 1 << 30};
alignas(64) static float x[COUNT], numbers[4]; /* of dtypes that may have 16 bits */
static guarded<COUNT * OUT_BYTES> out;

static void run_thread_of_kernel() { body::run(counts, IN_PLACE ? (const void *)out.bytes : x, numbers, out.bytes); }

int main()
{
    const float learned[] = {0.203f, -1.05f, 0.5f, -1e-4f};
    double by[4];
    for (int i = 0; i < 4; i++) {
        store_element<params::NUMBERS_DTYPE>(numbers, i, learned[i]);
        by[i] = (double)load_element<params::NUMBERS_DTYPE>(numbers, i);
    }
    memset(x, 0xff, sizeof x); /* NaN beyond the valid rows */
    for (int i = 0; i < VALID * WIDTH; i++) store_element<params::X_DTYPE>(x, i, draw(-4, 4));
    out.poison();
    if (IN_PLACE) memcpy(out.bytes, x, VALID * WIDTH * OUT_BYTES);
    const int blocks = (params::ROWS * body::VECTORS + body::THREADS - 1) / body::THREADS;
    for (int i = 0; i < blocks; i++) run_block(i, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) out.bytes[VALID * WIDTH * OUT_BYTES - 1] ^= 1;
    if (SPOIL == 2) out.after[0] = 0;
    const double rounding = params::X_DTYPE == DTYPE_F32 ? 0 : params::X_DTYPE == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    for (int i = 0; i < VALID * WIDTH; i++) {
        const double in = (double)load_element<params::X_DTYPE>(x, i), linear = by[2] * in;
        const double bent = in > 0 ? std::log(1 + std::exp(by[0])) * in * in
                                   : (std::expm1(std::min(in, by[3])) - in) * (by[2] + std::log(1 + std::exp(by[1])));
        const double found = (double)load_element<params::X_DTYPE>(out.bytes, i);
        if (!(std::fabs(found - bent - linear) <=
              4e-6 * (std::fabs(bent) + std::fabs(linear)) + rounding * std::fabs(bent + linear) + 1e-7))
            problem("out element %d: %g", i, found);
    }
    out.expect_poison("out", VALID * WIDTH * OUT_BYTES);
    return problems != 0;
}
