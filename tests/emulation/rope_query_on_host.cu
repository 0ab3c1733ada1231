/* SPDX-License-Identifier: Apache-2.0 */
/* rope_query on the host: KERNEL_PARAMS is the problem, VALID its valid rows; IN_PLACE: out is the memory of x. Compares every element of
 * out with plain code in double; prints what differs and exits with 1. SPOIL: 1 and 2 what a kernel with a defect could leave, for the
 * checks to see; 0 nothing. emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/rope_query/rope_query.cuh"

struct params {
    KERNEL_PARAMS
};
typedef rope_query_body<params> body;

enum { DIM = params::HEAD_DIM, ROTATED = params::ROTARY_DIM, WIDTH = params::HEADS * DIM };

static int counts[2] = {VALID, 1 << 30};
alignas(64) static u16 x[params::ROWS * WIDTH], norm[DIM];
alignas(64) static float table[params::ROWS * ROTATED];
static guarded<params::ROWS * WIDTH * 2> out;

static void run_thread_of_kernel()
{
    body::run(counts, IN_PLACE ? (const u16 *)out.bytes : x, table, (u16 *)out.bytes,
              params::HAS_NORM ? norm : nullptr);
}

int main()
{
    memset(x, 0xff, sizeof x), memset(table, 0xff, sizeof table); /* NaN beyond the valid rows */
    for (int i = 0; i < VALID * WIDTH; i++) store_element<params::X_DTYPE>(x, i, draw(-2, 2));
    for (int i = 0; i < VALID * ROTATED; i++) table[i] = draw(-1, 1);
    for (int i = 0; i < DIM; i++) store_element<params::NORM_DTYPE>(norm, i, draw(0.5f, 1.5f));
    out.poison();
    if (IN_PLACE) memcpy(out.bytes, x, VALID * WIDTH * 2);
    const int groups = body::THREADS / body::append::LANES;
    const int blocks = (params::ROWS * params::HEADS + groups - 1) / groups;
    for (int i = 0; i < blocks; i++) run_block(i, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) out.bytes[VALID * WIDTH * 2 - 1] ^= 1;
    if (SPOIL == 2) out.bytes[VALID * WIDTH * 2] = 0;
    for (int r = 0; r < VALID; r++)
        for (int h = 0; h < params::HEADS; h++) {
            double expected[DIM];
            prepare_on_host<params>(x + r * WIDTH, params::HEADS, h, norm, table + r * ROTATED, expected);
            for (int i = 0; i < DIM; i++) {
                const double found = load_element<params::X_DTYPE>(out.bytes, r * WIDTH + h * DIM + i);
                const double error = rounding_of(params::X_DTYPE) * 1.01 * std::fabs(expected[i]) + 2e-6;
                if (!(std::fabs(found - expected[i]) <= error))
                    problem("q row %d head %d element %d: %g, expected %g", r, h, i, found, expected[i]);
            }
        }
    out.expect_poison("out", VALID * WIDTH * 2);
    return problems != 0;
}
