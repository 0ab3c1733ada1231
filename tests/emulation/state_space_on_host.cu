/* SPDX-License-Identifier: Apache-2.0 */
/* state_space on the host: KERNEL_PARAMS is the problem and the tunables, RUNS the steps, each ended by END_OF_STEP, TOKENS the most of
 * a slot, WALKERS those of the grid. Steps of at least CHUNKED rows are run by state_space_chunk, none if it is 0. Compares every row with plain code in double over the whole sequence; prints what differs and exits
 * with 1. SPOIL: 1 an output, 2 the state of another layer is changed, for the checks to see; 0 nothing. emulation_test.py includes it in
 * a namespace for each case, after these headers. */
#include "tests/emulation/recurrent_on_host.h"

#include "kernels/state_space/state_space.cuh"
#include "kernels/state_space/state_space_chunk.cuh"

struct params {
    KERNEL_PARAMS
};
typedef state_space_body<params> body;

enum {
    STATE_DIM = params::STATE_DIM,
    HEAD_DIM = params::HEAD_DIM,
    VALUES = params::HEADS * HEAD_DIM,
    XBC = VALUES + 2 * params::GROUPS * STATE_DIM,
    ELEMENT = params::X_DTYPE == DTYPE_F32 ? 4 : 2,
};

struct token {
    alignas(16) u8 xbc[XBC * ELEMENT], z[VALUES * ELEMENT];
    float dt[params::HEADS];
    double out[VALUES];
};

static const run_of_rows runs[] = {RUNS};
static int counts[2] = {0, 1 << 30}, slots[params::ROWS], positions[params::ROWS], is_discarded[params::ROWS];
static token sequences[params::SLOT_COUNT][TOKENS];
alignas(64) static u8 xbc[params::ROWS * XBC * ELEMENT], z[params::ROWS * VALUES * ELEMENT];
alignas(64) static float dt[params::ROWS * params::HEADS];
alignas(64) static u8 a_log[params::HEADS * 4], dt_bias[params::HEADS * 4], skip[params::HEADS * 4];
static guarded<params::ROWS * VALUES * ELEMENT> out;
static states_on_host<params, (long)params::HEADS * STATE_DIM * HEAD_DIM * 4> states;

static double element(const void *from, int index) { return (double)load_element<params::X_DTYPE>(from, index); }

static void expect_head(token *tokens, int head)
{
    const int first_b = VALUES + head / (params::HEADS / params::GROUPS) * STATE_DIM;
    const double rate = exp((double)load_element<params::A_DTYPE>(a_log, head));
    std::vector<double> state((size_t)STATE_DIM * HEAD_DIM);
    for (int t = 0; t < TOKENS; t++) {
        token &own = tokens[t];
        const double raw = (double)own.dt[head] + (double)load_element<params::DT_DTYPE>(dt_bias, head);
        const double step = std::fmax(float_of_bits(params::DT_MIN_BITS),
                                      std::fmin(float_of_bits(params::DT_MAX_BITS), log1p(exp(raw))));
        for (int j = 0; j < HEAD_DIM; j++) {
            const double x = element(own.xbc, head * HEAD_DIM + j), gate = element(own.z, head * HEAD_DIM + j);
            double sum = (double)load_element<params::D_DTYPE>(skip, head) * x;
            for (int i = 0; i < STATE_DIM; i++) {
                double &value = state[i * HEAD_DIM + j];
                value = exp(-rate * step) * value + step * x * element(own.xbc, first_b + i);
                sum += value * element(own.xbc, first_b + params::GROUPS * STATE_DIM + i);
            }
            own.out[head * HEAD_DIM + j] = sum * gate / (1 + exp(-gate));
        }
    }
}

static void run_thread_of_kernel()
{
    body::run((u8 *)shared_memory, counts, xbc, z, dt, a_log, dt_bias, skip, out.bytes, slots, positions,
              states.first());
}

#if CHUNKED
typedef state_space_chunk_body<params> chunk_body;
static_assert(chunk_body::AT.bytes <= SHARED_BYTES, "shared memory");

static void run_thread_of_chunk_kernel()
{
    chunk_body::run((u8 *)shared_memory, counts, xbc, z, dt, a_log, dt_bias, skip, out.bytes, slots, positions,
                    states.first());
}
#endif

static void launch(int blocks, int threads, void (*thread)())
{
    gridDim.x = (unsigned)blocks;
    for (int i = 0; i < blocks; i++) run_block(i, threads, thread);
}

static void launch_kernel()
{
#if CHUNKED
    if (counts[0] >= CHUNKED) {
        memset(shared_memory, 0xff, sizeof shared_memory);
        launch(chunk_body::SPLIT * params::HEADS, chunk_body::THREADS, run_thread_of_chunk_kernel);
        return;
    }
#endif
    launch(body::SPLIT * params::HEADS * WALKERS, body::THREADS, run_thread_of_kernel);
}

static void run_step()
{
    out.poison();
    memset(xbc, 0xff, sizeof xbc);
    memset(z, 0xff, sizeof z);
    memset(dt, 0xff, sizeof dt);
    for (int r = 0; r < counts[0]; r++) {
        const token &own = sequences[slots[r]][positions[r]];
        memcpy(xbc + (long)r * XBC * ELEMENT, own.xbc, sizeof own.xbc);
        memcpy(z + (long)r * VALUES * ELEMENT, own.z, sizeof own.z);
        memcpy(dt + (long)r * params::HEADS, own.dt, sizeof own.dt);
        for (int i = 0; is_discarded[r] && i < XBC; i++)
            store_element<params::X_DTYPE>(xbc, (long)r * XBC + i, draw(-2, 2));
    }
    launch_kernel();
    if (SPOIL == 1) out.bytes[1] ^= 0x40;
    if (SPOIL == 2) states.bytes[0] = 0;
    for (int r = 0; r < counts[0]; r++)
        for (int c = 0; !is_discarded[r] && c < VALUES; c++) {
            const double want = sequences[slots[r]][positions[r]].out[c], found = element(out.bytes, r * VALUES + c);
            if (!(fabs(found - want) <= rounding_of(params::X_DTYPE) * 1.01 * fabs(want) + 3e-5))
                problem("slot %d position %d column %d: %g, expected %g", slots[r], positions[r], c, found, want);
        }
    out.expect_poison("out", (long)counts[0] * VALUES * ELEMENT);
    states.expect_others_untouched();
}

int main()
{
    copies_are_late = COPIES_LATE;
    for (int i = 0; i < params::HEADS; i++) {
        store_element<params::A_DTYPE>(a_log, i, draw(-3, 1));
        store_element<params::DT_DTYPE>(dt_bias, i, draw(-1, 1));
        store_element<params::D_DTYPE>(skip, i, draw(0.5f, 1.5f));
    }
    for (auto &slot : sequences) {
        for (token &own : slot) {
            for (int i = 0; i < XBC; i++) store_element<params::X_DTYPE>(own.xbc, i, draw(-2, 2));
            for (int i = 0; i < VALUES; i++) store_element<params::X_DTYPE>(own.z, i, draw(-2, 2));
            for (float &value : own.dt) value = draw(-2, 2);
        }
        for (int head = 0; head < params::HEADS; head++) expect_head(slot, head);
    }
    states.poison();
    const run_of_rows *next = runs, *end = runs + sizeof runs / sizeof *runs;
    while (next < end) {
        next = fill_step<params::ROWS>(next, counts, slots, positions, is_discarded);
        run_step();
    }
    return problems != 0;
}
