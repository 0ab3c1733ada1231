/* SPDX-License-Identifier: Apache-2.0 */
/* delta_rule on the host: KERNEL_PARAMS is the problem and the tunables, RUNS the steps, each ended by END_OF_STEP, WALKERS those of the
 * grid. Compares every row with plain code in double over the whole sequence; prints what differs and exits with 1. SPOIL: 1 an output,
 * 2 the state of another layer is changed, for the checks to see; 0 nothing. emulation_test.py includes it in a namespace for each
 * case, after these headers. */
#include "tests/emulation/recurrent_on_host.h"

#include "kernels/delta_rule/delta_rule.cuh"

struct params {
    KERNEL_PARAMS
};
typedef delta_rule_body<params> body;

enum {
    KEY_DIM = params::KEY_DIM,
    VALUE_DIM = params::VALUE_DIM,
    VALUES = params::VALUE_HEADS * VALUE_DIM,
    KEYS = params::KEY_HEADS * KEY_DIM,
    QKV = 2 * KEYS + VALUES,
    BA = 2 * params::VALUE_HEADS,
    ELEMENT = params::X_DTYPE == DTYPE_F32 ? 4 : 2,
    TOKENS = 80,
};

struct token {
    alignas(16) u8 qkv[QKV * ELEMENT], z[VALUES * ELEMENT];
    float ba[BA];
    double out[VALUES];
};

static const run_of_rows runs[] = {RUNS};
static int counts[2] = {0, 1 << 30}, slots[params::ROWS], positions[params::ROWS], is_discarded[params::ROWS];
static token sequences[params::SLOT_COUNT][TOKENS];
alignas(64) static u8 qkv[params::ROWS * QKV * ELEMENT], z[params::ROWS * VALUES * ELEMENT];
alignas(64) static float ba[params::ROWS * BA];
alignas(64) static u8 a_log[params::VALUE_HEADS * 4], dt_bias[params::VALUE_HEADS * 4], norm[VALUE_DIM * 4];
static guarded<params::ROWS * VALUES * ELEMENT> out;
static states_on_host<params, (long)params::VALUE_HEADS * KEY_DIM * VALUE_DIM * 4> states;

static double element(const void *from, int index) { return (double)load_element<params::X_DTYPE>(from, index); }

static void normalise(const void *from, int first, double factor, double *to)
{
    double squares = 1e-6;
    for (int i = 0; i < KEY_DIM; i++) squares += element(from, first + i) * element(from, first + i);
    for (int i = 0; i < KEY_DIM; i++) to[i] = element(from, first + i) / sqrt(squares) * factor;
}

static void expect_head(token *tokens, int head)
{
    const int key_head = head / (params::VALUE_HEADS / params::KEY_HEADS);
    std::vector<double> state((size_t)KEY_DIM * VALUE_DIM);
    for (int t = 0; t < TOKENS; t++) {
        token &own = tokens[t];
        double q[KEY_DIM], k[KEY_DIM], o[VALUE_DIM], squares = 0;
        normalise(own.qkv, key_head * KEY_DIM, 1 / sqrt((double)KEY_DIM), q);
        normalise(own.qkv, KEYS + key_head * KEY_DIM, 1, k);
        const double alpha =
            (double)own.ba[params::VALUE_HEADS + head] + (double)load_element<params::DT_DTYPE>(dt_bias, head);
        const double decay = exp(-exp((double)load_element<params::A_DTYPE>(a_log, head)) * log1p(exp(alpha)));
        const double beta = 1 / (1 + exp(-(double)own.ba[head]));
        for (int j = 0; j < VALUE_DIM; j++) {
            double held = 0;
            for (int i = 0; i < KEY_DIM; i++) held += decay * state[i * VALUE_DIM + j] * k[i];
            const double delta = beta * (element(own.qkv, 2 * KEYS + head * VALUE_DIM + j) - held);
            o[j] = 0;
            for (int i = 0; i < KEY_DIM; i++) {
                double &value = state[i * VALUE_DIM + j];
                value = decay * value + k[i] * delta;
                o[j] += value * q[i];
            }
            squares += o[j] * o[j];
        }
        const double scale = 1 / sqrt(squares / VALUE_DIM + (double)float_of_bits(params::EPS_BITS));
        for (int j = 0; j < VALUE_DIM; j++) {
            const double gate = element(own.z, head * VALUE_DIM + j);
            own.out[head * VALUE_DIM + j] =
                o[j] * scale * (double)load_element<params::NORM_DTYPE>(norm, j) * gate / (1 + exp(-gate));
        }
    }
}

static void run_thread_of_kernel()
{
    body::run((u8 *)shared_memory, counts, qkv, z, ba, a_log, dt_bias, norm, out.bytes, slots, positions,
              states.first());
}

static void run_step()
{
    out.poison();
    memset(qkv, 0xff, sizeof qkv);
    memset(z, 0xff, sizeof z);
    memset(ba, 0xff, sizeof ba);
    for (int r = 0; r < counts[0]; r++) {
        const token &own = sequences[slots[r]][positions[r]];
        memcpy(qkv + (long)r * QKV * ELEMENT, own.qkv, sizeof own.qkv);
        memcpy(z + (long)r * VALUES * ELEMENT, own.z, sizeof own.z);
        memcpy(ba + (long)r * BA, own.ba, sizeof own.ba);
        for (int i = 0; is_discarded[r] && i < QKV; i++)
            store_element<params::X_DTYPE>(qkv, (long)r * QKV + i, draw(-2, 2));
    }
    const int blocks = body::SPLIT * params::VALUE_HEADS * WALKERS;
    gridDim.x = (unsigned)blocks;
    for (int i = 0; i < blocks; i += body::SPLIT) {
        if (body::SPLIT > 1)
            run_cluster(i, body::SPLIT, blocks, body::THREADS, run_thread_of_kernel);
        else
            run_block(i, body::THREADS, run_thread_of_kernel);
    }
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
    for (int i = 0; i < params::VALUE_HEADS; i++) {
        store_element<params::A_DTYPE>(a_log, i, draw(-3, 1));
        store_element<params::DT_DTYPE>(dt_bias, i, draw(-1, 1));
    }
    for (int i = 0; i < VALUE_DIM; i++) store_element<params::NORM_DTYPE>(norm, i, draw(0.5f, 1.5f));
    for (auto &slot : sequences) {
        for (token &own : slot) {
            for (int i = 0; i < QKV; i++) store_element<params::X_DTYPE>(own.qkv, i, draw(-2, 2));
            for (int i = 0; i < VALUES; i++) store_element<params::X_DTYPE>(own.z, i, draw(-2, 2));
            for (float &value : own.ba) value = draw(-2, 2);
        }
        for (int head = 0; head < params::VALUE_HEADS; head++) expect_head(slot, head);
    }
    states.poison();
    const run_of_rows *next = runs, *end = runs + sizeof runs / sizeof *runs;
    while (next < end) {
        next = fill_step<params::ROWS>(next, counts, slots, positions, is_discarded);
        run_step();
    }
    return problems != 0;
}
