/* SPDX-License-Identifier: Apache-2.0 */
/* rope_append on the host: KERNEL_PARAMS is the problem, VALID its valid rows. Compares q and every element of the pages
 * with plain code in double; prints what differs and exits with 1. SPOIL: 1 to 3 what a kernel with a defect could leave,
 * for the checks to see; 0 nothing. emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/rope_append/rope_append.cuh"

struct params {
    KERNEL_PARAMS
};
typedef rope_append_body<params> body;

enum {
    DIM = params::HEAD_DIM,
    ROTATED = params::ROTARY_DIM ? params::ROTARY_DIM : DIM,
    WIDTH = (params::HEADS + 2 * params::KV_HEADS) * DIM,
    NORM_HEADS_Q = rope_append_own_weights(params::NORM_SCOPE) ? params::HEADS : 1,
    NORM_HEADS_K = rope_append_own_weights(params::NORM_SCOPE) ? params::KV_HEADS : 1,
};

static int counts[2] = {VALID, 1 << 30}, slots[params::ROWS], positions[params::ROWS];
alignas(64) static u16 qkv[params::ROWS * WIDTH], norm_q[NORM_HEADS_Q * DIM], norm_k[NORM_HEADS_K * DIM];
alignas(64) static float table[params::ROWS * ROTATED], means[params::ROWS * MEAN_SQUARES_WIDTH];
static guarded<params::ROWS * params::HEADS * DIM * 2> q;
static pages_on_host<params> pages;

/* With HAS_MEANS the mean square of a row's q or k. */
static const float *mean_of(int row, int column)
{
    return params::HAS_MEANS ? means + row * MEAN_SQUARES_WIDTH + column : nullptr;
}

static void expect_q(int row, int head)
{
    double expected[DIM];
    prepare_on_host<params>(qkv + row * WIDTH, params::HEADS, head, norm_q, table + row * ROTATED, expected,
                            mean_of(row, MEAN_SQUARES_OF_Q));
    for (int i = 0; i < DIM; i++) {
        const double found = load_element<params::X_DTYPE>(q.bytes, (row * params::HEADS + head) * DIM + i);
        if (!(std::fabs(found - expected[i]) <= rounding_of(params::X_DTYPE) * 1.01 * std::fabs(expected[i]) + 2e-6))
            problem("q row %d head %d element %d: %g, expected %g", row, head, i, found, expected[i]);
    }
}

static void run_thread_of_kernel()
{
    body::run(counts, qkv, table, slots, positions, pages.table, pages.kv(), (u16 *)q.bytes, norm_q, norm_k,
              pages.static_scales, means);
}

static void store(u16 *to, float value) { store_element<params::X_DTYPE>(to, 0, value); }

int main()
{
    for (u16 &x : qkv) store(&x, draw(-2, 2));
    for (float &x : table) x = draw(-1, 1);
    memset(means, 0xff, sizeof means); /* NaN in the columns that nothing reads, and beyond the valid rows */
    for (int i = 0; i < VALID * MEAN_SQUARES_WIDTH; i++)
        if (i % MEAN_SQUARES_WIDTH <= MEAN_SQUARES_OF_K) means[i] = draw(0.5f, 3);
    for (u16 &x : norm_q) store_element<params::NORM_DTYPE>(&x, 0, draw(0.5f, 1.5f));
    for (u16 &x : norm_k) store_element<params::NORM_DTYPE>(&x, 0, draw(0.5f, 1.5f));
    for (int i = 0; i < DIM; i++) store(&qkv[WIDTH - DIM + i], 0);              /* the last v of row 0 is zero, */
    store(&qkv[2 * WIDTH - 1], INFINITY);                                       /* that of row 1 has an infinity, */
    for (int i = VALID * WIDTH; i < params::ROWS * WIDTH; i++) qkv[i] = 0xffff; /* rows that are not valid NaN */
    q.poison();
    pages.poison();
    for (int r = 0; r < params::ROWS; r++) { /* beyond the valid rows: nothing that could be an index */
        slots[r] = r < VALID ? r % params::SLOT_COUNT : NO_INDEX;
        positions[r] = r < VALID ? r / params::SLOT_COUNT * 3 + 1 : NO_INDEX;
        if (r < VALID) pages.map(slots[r], positions[r], positions[r]);
    }
    const int groups = body::THREADS / body::LANES, heads = params::HEADS + 2 * params::KV_HEADS;
    const int blocks = body::SUMS_ROWS ? params::ROWS : (params::ROWS * heads + groups - 1) / groups;
    for (int i = 0; i < blocks; i++) run_block(i, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) q.bytes[VALID * params::HEADS * DIM * 2 - 1] ^= 1;
    if (SPOIL == 2) pages.row(slots[0], positions[0], 0, true)[0] ^= 1;
    if (SPOIL == 3) pages.pool[sizeof pages.pool - 1] = 0;

    for (int r = 0; r < VALID; r++) {
        const u16 *x = qkv + r * WIDTH, *keys = x + params::HEADS * DIM, *values = keys + params::KV_HEADS * DIM;
        for (int h = 0; h < params::HEADS; h++) expect_q(r, h);
        for (int g = 0; g < params::KV_HEADS; g++) {
            double k[DIM], v[DIM];
            prepare_on_host<params>(keys, params::KV_HEADS, g, norm_k, table + r * ROTATED, k,
                                    mean_of(r, MEAN_SQUARES_OF_K));
            prepare_value_on_host<params>(values, g, v);
            pages.expect_row("k", slots[r], positions[r], g, false, k, false);
            pages.expect_row("v", slots[r], positions[r], g, true, v, !params::NORM_V);
        }
    }
    q.expect_poison("q", VALID * params::HEADS * DIM * 2);
    pages.expect_untouched();
    return problems != 0;
}
