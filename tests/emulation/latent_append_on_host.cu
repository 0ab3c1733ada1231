/* SPDX-License-Identifier: Apache-2.0 */
/* latent_append on the host: KERNEL_PARAMS is the problem, VALID its valid rows. Compares q and every element of the pages
 * with plain code in double; prints what differs and exits with 1. SPOIL: 1 to 3 what a kernel with a defect could leave,
 * for the checks to see; 0 nothing. emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/latent_append/latent_append.cuh"

struct params {
    KERNEL_PARAMS
};
typedef latent_append_body<params> body;

enum { DIM = params::HEAD_DIM, LATENT = params::VALUE_DIM, ROPE = DIM - LATENT, HALF = ROPE / 2 };
enum {
    Q_PITCH = params::Q_PITCH ? params::Q_PITCH : params::HEADS * ROPE,
    KV_PITCH = params::KV_PITCH ? params::KV_PITCH : DIM,
    KV_FIRST = KV_PITCH - DIM,
};

static int counts[2] = {VALID, 1 << 30}, slots[params::ROWS], positions[params::ROWS];
alignas(64) static u16 q_latent[params::ROWS * params::HEADS * LATENT], q_rope[params::ROWS * Q_PITCH];
alignas(64) static u16 kv_row[params::ROWS * KV_PITCH], norm[LATENT];
alignas(64) static float table[params::ROWS * ROPE];
static guarded<params::ROWS * params::HEADS * DIM * 2> q;
static pages_on_host<params> pages;

static double x_element(const u16 *x, int i) { return (double)load_element<params::X_DTYPE>(x, i); }

static void rotate_on_host(const u16 *x, const float *angles, double *to)
{
    for (int i = 0; i < HALF; i++) {
        const double low = x_element(x, i), high = x_element(x, HALF + i);
        to[i] = low * (double)angles[i] - high * (double)angles[HALF + i];
        to[HALF + i] = high * (double)angles[i] + low * (double)angles[HALF + i];
    }
}

static void expect_q(int row, int head)
{
    double expected[DIM];
    const int of_head = row * params::HEADS + head;
    for (int i = 0; i < LATENT; i++) expected[i] = x_element(q_latent, of_head * LATENT + i);
    rotate_on_host(q_rope + row * Q_PITCH + params::Q_FIRST + head * ROPE, table + row * ROPE, expected + LATENT);
    for (int i = 0; i < DIM; i++) {
        const double found = (double)load_element<params::X_DTYPE>(q.bytes, of_head * DIM + i);
        if (!(std::fabs(found - expected[i]) <= rounding_of(params::X_DTYPE) * 1.01 * std::fabs(expected[i]) + 2e-6))
            problem("q row %d head %d element %d: %g, expected %g", row, head, i, found, expected[i]);
    }
}

static void expect_key(int row)
{
    double key[DIM], squares = 0;
    const u16 *x = kv_row + row * KV_PITCH + KV_FIRST;
    for (int i = 0; i < LATENT; i++) squares += x_element(x, i) * x_element(x, i);
    const double scale = 1 / std::sqrt(squares / LATENT + (double)__int_as_float(params::EPS_BITS));
    for (int i = 0; i < LATENT; i++)
        key[i] = x_element(x, i) * scale * (double)load_element<params::NORM_DTYPE>(norm, i);
    rotate_on_host(x + LATENT, table + row * ROPE, key + LATENT);
    pages.expect_row("k", slots[row], positions[row], 0, false, key, false);
}

static void run_thread_of_kernel()
{
    body::run(counts, q_latent, q_rope, kv_row, table, slots, positions, pages.table, pages.kv().at, (u16 *)q.bytes,
              norm);
}

/* Random numbers in the valid rows, NaN in the others. */
template <int COUNT> static void fill(u16 (&to)[COUNT])
{
    for (int i = 0; i < COUNT; i++)
        if (i < COUNT / params::ROWS * VALID)
            store_element<params::X_DTYPE>(&to[i], 0, draw(-2, 2));
        else
            to[i] = 0xffff;
}

int main()
{
    fill(q_latent), fill(q_rope), fill(kv_row);
    for (int i = 0; i < params::ROWS * KV_PITCH; i++)
        if (i % KV_PITCH < KV_FIRST) kv_row[i] = 0xffff; /* others' columns: NaN */
    for (int i = 0; i < params::ROWS * Q_PITCH; i++)
        if (i % Q_PITCH < params::Q_FIRST || i % Q_PITCH >= params::Q_FIRST + params::HEADS * ROPE) q_rope[i] = 0xffff;
    for (float &x : table) x = draw(-1, 1);
    for (u16 &x : norm) store_element<params::NORM_DTYPE>(&x, 0, draw(0.5f, 1.5f));
    store_element<params::X_DTYPE>(kv_row, 2 * KV_PITCH - 1, INFINITY); /* of the key of row 1 */
    q.poison();
    pages.poison();
    for (int r = 0; r < params::ROWS; r++) { /* beyond the valid rows: nothing that could be an index */
        slots[r] = r < VALID ? r % params::SLOT_COUNT : NO_INDEX;
        positions[r] = r < VALID ? r / params::SLOT_COUNT * 17 + 1 : NO_INDEX;
        if (r < VALID) pages.map(slots[r], positions[r], positions[r]);
    }
    table[ROPE + HALF - 1] = 0.5f; /* no 0 times the infinity */
    table[2 * ROPE - 1] = 0.5f;
    const int warps = body::THREADS / 32, blocks = (params::ROWS * (params::HEADS + 1) + warps - 1) / warps;
    for (int i = 0; i < blocks; i++) run_block(i, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) q.bytes[VALID * params::HEADS * DIM * 2 - 1] ^= 1;
    if (SPOIL == 2) pages.row(slots[0], positions[0], 0, false)[1] ^= 1;
    if (SPOIL == 3) pages.pool[0] = 0;

    for (int r = 0; r < VALID; r++) {
        for (int h = 0; h < params::HEADS; h++) expect_q(r, h);
        if (r != 1) expect_key(r);
    }
    pages.accept(slots[1], positions[1], 0, false); /* its codes are 0 and its scale NaN, or it is not finite */
    if (pages_on_host<params>::CODED && !std::isnan(*pages.scale(slots[1], positions[1], 0, false)))
        problem("the scale of a row with an infinity");
    q.expect_poison("q", VALID * params::HEADS * DIM * 2);
    pages.expect_untouched();
    return problems != 0;
}
