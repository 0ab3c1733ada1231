/* SPDX-License-Identifier: Apache-2.0 */
/* short_conv on the host: KERNEL_PARAMS is the problem, RUNS the steps, each ended by END_OF_STEP. Compares every row with plain code in
 * double over the whole sequence; prints what differs and exits with 1. SPOIL: 1 an output, 2 the state of another layer is changed, for
 * the checks to see; 0 nothing. emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/recurrent_on_host.h"

#include "kernels/short_conv/short_conv.cuh"

struct params {
    KERNEL_PARAMS
};
typedef short_conv_body<params> body;

enum {
    CHANNELS = params::CHANNELS,
    KERNEL_SIZE = params::KERNEL,
    X_WIDTH = CHANNELS * (params::GATED ? 3 : 1),
    TOKENS = 80,
};

static const run_of_rows runs[] = {RUNS};
static int counts[2] = {0, 1 << 30}, slots[params::ROWS], positions[params::ROWS], is_discarded[params::ROWS];
alignas(64) static u8 sequences[params::SLOT_COUNT][TOKENS][X_WIDTH * 4], x[params::ROWS][X_WIDTH * 4];
alignas(64) static u8 w[CHANNELS * KERNEL_SIZE * 4], bias[CHANNELS * 4];
static guarded<params::ROWS * CHANNELS * 4> out;
static states_on_host<params, (KERNEL_SIZE - 1) * CHANNELS * 4> states;

static double at(int slot, int position, int index)
{
    return (double)load_element<params::X_DTYPE>(sequences[slot][position], index);
}

static double expected(int slot, int position, int channel)
{
    double sum = params::HAS_BIAS ? (double)load_element<params::BIAS_DTYPE>(bias, channel) : 0;
    for (int j = 0; j < KERNEL_SIZE; j++) {
        const int from = position - (KERNEL_SIZE - 1) + j;
        if (from < 0) continue;
        const double value = at(slot, from, channel) * (params::GATED ? at(slot, from, 2 * CHANNELS + channel) : 1);
        sum += value * (double)load_element<params::W_DTYPE>(w, channel * KERNEL_SIZE + j);
    }
    if (params::ACTIVATION == ACTIVATION_SILU) sum /= 1 + exp(-sum);
    return params::GATED ? sum * at(slot, position, CHANNELS + channel) : sum;
}

static void run_thread_of_kernel() { body::run(counts, x, w, out.bytes, slots, positions, states.first(), bias); }

static void run_step()
{
    enum { ELEMENT = params::X_DTYPE == DTYPE_F32 ? 4 : 2 };
    out.poison();
    memset(x, 0xff, sizeof x);
    for (int r = 0; r < counts[0]; r++) {
        u8 *row = (u8 *)x + (long)r * X_WIDTH * ELEMENT;
        memcpy(row, sequences[slots[r]][positions[r]], X_WIDTH * ELEMENT);
        for (int i = 0; is_discarded[r] && i < X_WIDTH; i++) store_element<params::X_DTYPE>(row, i, draw(-1, 1));
    }
    for (int i = 0; i < params::ROWS * body::ROW_BLOCKS; i++) run_block(i, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) out.bytes[1] ^= 0x40;
    if (SPOIL == 2) states.bytes[0] = 0;
    for (int r = 0; r < counts[0]; r++)
        for (int c = 0; !is_discarded[r] && c < CHANNELS; c++) {
            const double want = expected(slots[r], positions[r], c);
            const double found = (double)load_element<params::X_DTYPE>(out.bytes, (long)r * CHANNELS + c);
            if (!(fabs(found - want) <= rounding_of(params::X_DTYPE) * 1.01 * fabs(want) + 4e-6))
                problem("slot %d position %d channel %d: %g, expected %g", slots[r], positions[r], c, found, want);
        }
    out.expect_poison("out", (long)counts[0] * CHANNELS * ELEMENT);
    states.expect_others_untouched();
}

int main()
{
    for (auto &slot : sequences)
        for (auto &token : slot)
            for (int i = 0; i < X_WIDTH; i++) store_element<params::X_DTYPE>(token, i, draw(-1, 1));
    for (int i = 0; i < CHANNELS * KERNEL_SIZE; i++) store_element<params::W_DTYPE>(w, i, draw(-1, 1));
    for (int i = 0; i < CHANNELS; i++) store_element<params::BIAS_DTYPE>(bias, i, draw(-1, 1));
    states.poison();
    const run_of_rows *next = runs, *end = runs + sizeof runs / sizeof *runs;
    while (next < end) {
        next = fill_step<params::ROWS>(next, counts, slots, positions, is_discarded);
        run_step();
    }
    return problems != 0;
}
