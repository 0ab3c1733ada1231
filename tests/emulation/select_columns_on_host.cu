/* SPDX-License-Identifier: Apache-2.0 */
/* select_columns on the host: KERNEL_PARAMS is the problem, VALID its valid rows. Compares every element of out with plain code; prints
 * what differs and exits with 1. SPOIL: 1 and 2 what a kernel with a defect could leave, for the checks to see; 0 nothing.
 * emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/select_columns/select_columns.cuh"

struct params {
    KERNEL_PARAMS
};
typedef select_columns_body<params> body;

enum { WIDTH = params::WIDTH, COUNT = params::ROWS * WIDTH, OUT_BYTES = params::OUT_DTYPE == DTYPE_F32 ? 4 : 2 };

static int counts[2] = {VALID, 1 << 30};
alignas(64) static float x[COUNT], order[WIDTH]; /* x: of a dtype that may have 16 bits */
static guarded<COUNT * OUT_BYTES> out;

static void run_thread_of_kernel() { body::run(counts, x, order, out.bytes); }

int main()
{
    memset(x, 0xff, sizeof x); /* NaN beyond the valid rows */
    for (int i = 0; i < VALID * WIDTH; i++) store_element<params::X_DTYPE>(x, i, draw(-2, 2));
    for (int i = 0; i < WIDTH; i++) order[i] = (float)(int)draw(-1.5f, WIDTH + 1.5f); /* some are outside */
    order[0] = NAN;
    out.poison();
    const int blocks = (params::ROWS * body::VECTORS + body::THREADS - 1) / body::THREADS;
    for (int i = 0; i < blocks; i++) run_block(i, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) out.bytes[VALID * WIDTH * OUT_BYTES - 1] ^= 1;
    if (SPOIL == 2) out.after[0] = 0;
    for (int i = 0; i < VALID * WIDTH; i++) {
        const float place = order[i % WIDTH];
        const bool inside = place >= 0 && place < WIDTH;
        float expected[1], found = load_element<params::OUT_DTYPE>(out.bytes, i);
        store_element<params::OUT_DTYPE>(expected, 0,
                                         inside ? load_element<params::X_DTYPE>(x, i / WIDTH * WIDTH + (int)place) : 0);
        if (found != load_element<params::OUT_DTYPE>(expected, 0)) problem("out element %d: %g", i, (double)found);
    }
    out.expect_poison("out", VALID * WIDTH * OUT_BYTES);
    return problems != 0;
}
