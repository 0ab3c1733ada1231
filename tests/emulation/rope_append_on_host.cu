/* SPDX-License-Identifier: Apache-2.0 */
/* rope_append on the host: KERNEL_PARAMS is the problem, VALID its valid rows. Compares q and every element of the pages
 * with plain code in double; prints what differs and exits with 1. SPOIL: 1 to 3 what a kernel with a defect could leave,
 * for the checks to see; 0 nothing. emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/cuda_on_host.h"

#include "kernels/rope_append/rope_append.cuh"

#include <cstdio>

struct params {
    KERNEL_PARAMS
};
typedef rope_append_body<params> body;

enum {
    ROTATED = params::ROTARY_DIM ? params::ROTARY_DIM : params::HEAD_DIM,
    WIDTH = (params::HEADS + 2 * params::KV_HEADS) * params::HEAD_DIM,
    PAGES = params::SLOT_COUNT * params::PAGES_PER_SLOT,
    NORM_HEADS_Q = params::NORM_SCOPE ? params::HEADS : 1,
    NORM_HEADS_K = params::NORM_SCOPE ? params::KV_HEADS : 1,
};
static const unsigned short POISON = 0xffff;

static int counts[2] = {VALID, 1 << 30}, slots[params::ROWS], positions[params::ROWS], page_table[PAGES];
alignas(64) static unsigned short qkv[params::ROWS * WIDTH], q[params::ROWS * params::HEADS * params::HEAD_DIM];
alignas(64) static float table[params::ROWS * ROTATED];
alignas(64) static unsigned short kv[PAGES * (long)params::PAGE_BYTES / 2];
alignas(64) static unsigned short norm_q[NORM_HEADS_Q * params::HEAD_DIM], norm_k[NORM_HEADS_K * params::HEAD_DIM];
static bool due[sizeof kv / sizeof *kv];
static int wrong;

static float draw(float low, float high)
{
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return low + (high - low) * (float)(state >> 8) / 16777216.0f;
}

static float value_of(unsigned short half) { return float_of_half<3>(half); }

static void expect(const char *what, int row, int head, int i, unsigned short found, double expected)
{
    const double error = std::fabs((double)value_of(found) - expected);
    if (error <= 4.4e-3 * std::fabs(expected) + 4e-6) return;
    if (wrong++ < 5)
        printf("%s row %d head %d element %d: %g, expected %g\n", what, row, head, i, (double)value_of(found),
               expected);
}

/* Head `head` of `heads` at x, as it is stored. */
static void expect_head(const char *what, int row, const unsigned short *x, int heads, int head,
                        const unsigned short *norm, const unsigned short *found)
{
    const int dim = params::HEAD_DIM, half = ROTATED / 2, first = params::NORM_SCOPE ? 0 : head;
    const int last = params::NORM_SCOPE ? heads : head + 1;
    double values[params::HEAD_DIM], squares = 0;
    for (int i = first * dim; i < last * dim; i++) squares += (double)value_of(x[i]) * value_of(x[i]);
    const double scale = 1 / std::sqrt(squares / ((last - first) * dim) + (double)__int_as_float(params::EPS_BITS));
    for (int i = 0; i < dim; i++) {
        values[i] = value_of(x[head * dim + i]);
        if (params::HAS_NORM) values[i] *= scale * value_of(norm[(params::NORM_SCOPE ? head * dim : 0) + i]);
    }
    for (int i = 0; i < dim; i++) {
        const float *angles = table + row * ROTATED;
        double expected = values[i];
        if (i < half) expected = values[i] * angles[i] - values[i + half] * angles[half + i];
        if (i >= half && i < ROTATED) expected = values[i] * angles[i - half] + values[i - half] * angles[i];
        expect(what, row, head, i, found[i], expected);
    }
}

static unsigned short *entry(int row, int head, bool is_value)
{
    const int page = page_table[slots[row] * params::PAGES_PER_SLOT + positions[row] / params::PAGE_TOKENS];
    const long at =
        page * (long)params::PAGE_BYTES / 2 + ((long)((is_value ? params::KV_HEADS : 0) + head) * params::PAGE_TOKENS +
                                               positions[row] % params::PAGE_TOKENS) *
                                                  params::HEAD_DIM;
    for (int i = 0; i < params::HEAD_DIM; i++) due[at + i] = true;
    return kv + at;
}

static void run_thread_of_kernel()
{
    body::run(counts, qkv, table, slots, positions, page_table, (u8 *)kv, q, norm_q, norm_k);
}

int main()
{
    for (unsigned short &x : qkv) x = half_of_float<3>(draw(-2, 2));
    for (float &x : table) x = draw(-1, 1);
    for (unsigned short &x : norm_q) x = half_of_float<3>(draw(0.5f, 1.5f));
    for (unsigned short &x : norm_k) x = half_of_float<3>(draw(0.5f, 1.5f));
    for (unsigned short &x : q) x = POISON;
    for (unsigned short &x : kv) x = POISON;
    for (int i = 0; i < PAGES; i++) page_table[i] = PAGES - 1 - i;
    for (int r = 0; r < params::ROWS; r++) { /* beyond the valid rows: nothing that could be an index */
        slots[r] = r < VALID ? r % params::SLOT_COUNT : 1 << 30;
        positions[r] = r < VALID ? r / params::SLOT_COUNT * 3 + 1 : 1 << 30;
    }
    const int groups = body::THREADS / body::LANES, heads = params::HEADS + 2 * params::KV_HEADS;
    const int blocks = params::NORM_SCOPE ? params::ROWS : (params::ROWS * heads + groups - 1) / groups;
    for (int i = 0; i < blocks; i++) run_block(i, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) q[VALID * params::HEADS * params::HEAD_DIM - 1] ^= 0x0100;
    if (SPOIL == 2) *entry(0, 0, true) ^= 1;
    if (SPOIL == 3) kv[sizeof kv / sizeof *kv - 1] = 0;

    for (int r = 0; r < VALID; r++) {
        const unsigned short *x = qkv + r * WIDTH, *keys = x + params::HEADS * params::HEAD_DIM;
        const unsigned short *values = keys + params::KV_HEADS * params::HEAD_DIM;
        for (int h = 0; h < params::HEADS; h++)
            expect_head("q", r, x, params::HEADS, h, norm_q, q + (r * params::HEADS + h) * params::HEAD_DIM);
        for (int g = 0; g < params::KV_HEADS; g++) {
            expect_head("k", r, keys, params::KV_HEADS, g, norm_k, entry(r, g, false));
            if (memcmp(entry(r, g, true), values + g * params::HEAD_DIM, params::HEAD_DIM * 2) != 0) {
                wrong++;
                printf("v of row %d head %d is not as it was\n", r, g);
            }
        }
    }
    for (int i = VALID * params::HEADS * params::HEAD_DIM; i < params::ROWS * params::HEADS * params::HEAD_DIM; i++)
        if (q[i] != POISON && wrong++ < 5) printf("q of a row that is not valid was written\n");
    for (size_t i = 0; i < sizeof kv / sizeof *kv; i++)
        if (!due[i] && kv[i] != POISON && wrong++ < 5) printf("element %zu of the pages was written\n", i);
    return wrong != 0;
}
