/* SPDX-License-Identifier: Apache-2.0 */
/* draft on the host: KERNEL_PARAMS is the problem, VALID its valid rows. Compares drafted tokens and, with FEEDBACK, the next step's inputs
 * with plain code; prints what differs and exits with 1. SPOIL: 1 what a kernel with a defect could leave, for the checks to see; 0
 * nothing. emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/draft/draft.cuh"

struct params {
    KERNEL_PARAMS
};
typedef draft_body<params> body;

enum { VOCAB = params::VOCAB };

static int counts[2] = {1 << 30, VALID}, out_rows[params::ROWS], next[params::ROWS];
static int drafted[params::ROWS], tokens[params::IN_ROWS], positions[params::IN_ROWS];
alignas(64) static float logits[params::ROWS * VOCAB];

static void run_thread_of_kernel() { body::run(counts, logits, drafted, out_rows, next, tokens, positions); }

static int expected_of(const float *row)
{
    int best = 0;
    for (int t = 1; t < VOCAB; t++)
        if (row[t] > row[best] || (row[best] != row[best] && row[t] == row[t])) best = t;
    return best;
}

int main()
{
    for (float &logit : logits) logit = floorf(draw(-40, 40)); /* many are equal */
    for (int r = 0; r < params::ROWS; r++) {
        float *row = logits + r * VOCAB;
        row[r * 13 % VOCAB] = NAN;
        row[r * 29 % VOCAB] = r % 2 ? INFINITY : -0.0f;
        if (r % 3 == 2)
            for (int t = 0; t < VOCAB; t++) row[t] = t == VOCAB / 2 ? -INFINITY : NAN;
        drafted[r] = -7;
        out_rows[r] = r < VALID - 1 ? VALID - 2 - r : -1;
        next[r] = 1000 + r;
    }
    for (int r = 0; r < params::IN_ROWS; r++) tokens[r] = -7, positions[r] = 50 * r;
    for (int i = 0; i < params::ROWS; i++) run_block(i, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) drafted[0] ^= 1;
    for (int r = 0; r < params::ROWS; r++) {
        const int expected = r < VALID ? expected_of(logits + r * VOCAB) : -7;
        if (drafted[r] != expected) problem("row %d: token %g", r, (double)drafted[r]);
    }
    for (int r = 0; r < params::IN_ROWS; r++) {
        const bool fed = params::FEEDBACK && r < VALID - 1;
        if (tokens[r] != (fed ? 1000 + VALID - 2 - r : -7)) problem("tokens[%d] is %g", r, (double)tokens[r]);
        if (positions[r] != 50 * r + fed) problem("positions[%d] is %g", r, (double)positions[r]);
    }
    return problems != 0;
}
