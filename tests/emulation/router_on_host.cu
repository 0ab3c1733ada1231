/* SPDX-License-Identifier: Apache-2.0 */
/* router on the host: KERNEL_PARAMS is the problem, VALID its valid rows. Compares weights, ids and lists with plain code in double;
 * prints what differs and exits with 1. SPOIL: 1 to 3 what a kernel with a defect could leave, for the checks to see; 0 nothing.
 * emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/router/router.cuh"

struct params {
    KERNEL_PARAMS
};
typedef router_body<params> body;

typedef params router_problem;
#include "tests/emulation/router_rows_on_host.h"

static int counts[2] = {VALID, 1 << 30};
static float logits[params::ROWS * LOGITS];

static void run_thread_of_kernel()
{
    body::run((u8 *)shared_memory, counts, logits, (float *)out.bytes, bias, (int *)lists.bytes, seeds, nullptr,
              scales);
}

int main()
{
    memset(logits, 0xff, sizeof logits); /* NaN beyond the valid rows */
    for (int i = 0; i < VALID * LOGITS; i++) {
        const int expert = i % LOGITS, same = expert % 5 == 3 ? 1 : expert >= 32 && expert % 5 == 1 ? 32 : 0;
        logits[i] = same ? logits[i - same] : draw(-3, 3); /* another lane has the same one, or this lane */
    }
    draw_router();
    gridDim.x = 1;
    run_block(0, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) ((float *)out.bytes)[CHOICES - 1] *= 1.001f;
    if (SPOIL == 2) ((int *)lists.bytes)[ALL + 1] = VALID * CHOICES;
    if (SPOIL == 3) out.after[0] = 0;
    for (int r = 0; r < VALID; r++) expect_row(r, logits + r * LOGITS, 1e-5);
    expect_lists();
    out.expect_poison("out", VALID * 2 * CHOICES * 4);
    lists.expect_poison("lists", (ALL + 1 + VALID * CHOICES) * 4);
    return problems != 0;
}
