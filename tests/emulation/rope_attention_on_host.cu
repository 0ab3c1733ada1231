/* SPDX-License-Identifier: Apache-2.0 */
/* rope_attention on the host: KERNEL_PARAMS is the problem and the tunables, POSITIONS the positions of the valid rows. Two launches
 * in a row: the second is the next step of each sequence, with its blocks in falling order. Blocks run one after another, so the last
 * one of a row merges what the others left in the workspace. Compares k, v, out and every byte of the pages and of the workspace with
 * plain code in double; prints what differs and exits with 1. COPIES_LATE: see copies_are_late. SPOIL: 1 to 4 what a kernel with a
 * defect could leave, for the checks to see; 0 nothing. emulation_test.py includes it in a namespace for each case, after these
 * headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/rope_attention/rope_attention.cuh"

struct params {
    KERNEL_PARAMS
};
typedef rope_attention_body<params> body;
typedef pages_on_host<params> pages_type;

static const int first_positions[] = {POSITIONS};

enum {
    VALID_ROWS = sizeof first_positions / sizeof *first_positions,
    DIM = params::HEAD_DIM,
    ROTATED = params::ROTARY_DIM ? params::ROTARY_DIM : DIM,
    WIDTH = (params::HEADS + (params::APPENDED ? 0 : 2 * params::KV_HEADS)) * DIM,
    NORM_HEADS_Q = rope_append_own_weights(params::NORM_SCOPE) ? params::HEADS : 1,
    NORM_HEADS_K = rope_append_own_weights(params::NORM_SCOPE) ? params::KV_HEADS : 1,
    OUT_BYTES = params::HEADS * DIM * 2, /* of a row */
    NORM_BYTES = params::NORM_DTYPE == DTYPE_F32 ? 4 : 2,
    Q_DTYPE = pages_type::CODED ? 2 : params::KV_DTYPE,          /* that q and the weights are rounded to */
    TEAMS = params::ROWS * params::KV_HEADS * body::HEAD_BLOCKS, /* blocks that share a result */
    /* As rope_attention_workspace_bytes. */
    WORKSPACE_BYTES = params::SPLITS == 1 ? 64
                                          : (TEAMS * 4 + 63) / 64 * 64 +
                                                TEAMS * params::SPLITS * (body::QUADS * 16 + body::BLOCK_HEADS * 8),
    IDLE_BLOCKS = 2, /* that a launch has where there are more multiprocessors than work */
};

static int counts[2], slots[params::ROWS], positions[params::ROWS];
alignas(64) static u16 qkv[params::ROWS * WIDTH];
alignas(64) static float table[params::ROWS * ROTATED], means[params::ROWS * MEAN_SQUARES_WIDTH];
alignas(64) static u8 norm_q[NORM_HEADS_Q * DIM * NORM_BYTES], norm_k[NORM_HEADS_K * DIM * NORM_BYTES];
static guarded<params::ROWS * OUT_BYTES> out;
static guarded<WORKSPACE_BYTES> workspace;
static pages_type pages;
static const sinks_on_host<params> sinks;

static void run_thread_of_kernel()
{
    body::run((u8 *)shared_memory, counts, qkv, table, slots, positions, pages.table, pages.kv(), (u16 *)out.bytes,
              workspace.bytes, params::HAS_NORM ? norm_q : nullptr, params::HAS_NORM ? norm_k : nullptr,
              sinks.operand(), pages.static_scales, means);
}

/* The operands of launch `step`; those of rows that are not valid are no index and no number. */
static void draw_operands(int step)
{
    counts[params::COUNT_INDEX] = VALID_ROWS;
    counts[1 - params::COUNT_INDEX] = NO_INDEX;
    memset(qkv, 0xff, sizeof qkv);
    memset(table, 0xff, sizeof table);
    memset(means, 0xff, sizeof means);
    for (int r = 0; r < params::ROWS; r++) {
        slots[r] = positions[r] = NO_INDEX;
        if (r >= VALID_ROWS) continue;
        slots[r] = (r * 2 + 1) % params::SLOT_COUNT;
        positions[r] = first_positions[r] + step;
        for (int i = 0; i < WIDTH; i++) store_element<params::X_DTYPE>(qkv, r * WIDTH + i, draw(-2, 2));
        for (int i = 0; params::HAS_MEANS && i <= MEAN_SQUARES_OF_K; i++)
            means[r * MEAN_SQUARES_WIDTH + i] = draw(1, 3);
        for (int i = 0; i < ROTATED / 2; i++) {
            const float angle = draw(-3, 3);
            table[r * ROTATED + i] = cosf(angle);
            table[r * ROTATED + ROTATED / 2 + i] = sinf(angle);
        }
    }
    out.poison();
}

static void launch(int step)
{
    const int blocks = TEAMS * params::SPLITS + IDLE_BLOCKS;
    gridDim.x = (unsigned)blocks;
    for (int i = 0; i < blocks; i++) {
        memset(shared_memory, 0xff, SHARED_BYTES);
        run_block(step % 2 ? blocks - 1 - i : i, body::THREADS, run_thread_of_kernel);
        expect_shared_poison(params::WARPS * (long)body::WARP_BYTES);
    }
}

/* With HAS_MEANS the mean square of a row's q or k. */
static const float *mean_of(int row, int column)
{
    return params::HAS_MEANS ? means + row * MEAN_SQUARES_WIDTH + column : nullptr;
}

/* With APPENDED they have been there before. */
static void expect_appended(int row)
{
    if (params::APPENDED) return;
    const u16 *keys = qkv + row * WIDTH + params::HEADS * DIM, *values = keys + params::KV_HEADS * DIM;
    for (int g = 0; g < params::KV_HEADS; g++) {
        double k[DIM], v[DIM];
        prepare_on_host<params>(keys, params::KV_HEADS, g, norm_k, table + row * ROTATED, k,
                                mean_of(row, MEAN_SQUARES_OF_K));
        prepare_value_on_host<params>(values, g, v);
        pages.expect_row("k", slots[row], positions[row], g, false, k, false);
        pages.expect_row("v", slots[row], positions[row], g, true, v, !params::NORM_V);
    }
}

/* The new token as it is in its page: later launches read the same. */
static void expect_attention(int row)
{
    for (int g = 0; g < params::KV_HEADS; g++) {
        attention_on_host<params> attention(pages, slots[row], g, first_token<params>(positions[row]), positions[row]);
        for (int h = g * body::GROUP; h < (g + 1) * body::GROUP; h++) {
            double q[DIM];
            prepare_on_host<params>(qkv + row * WIDTH, params::HEADS, h, norm_q, table + row * ROTATED, q,
                                    mean_of(row, MEAN_SQUARES_OF_Q));
            for (double &x : q) x = (double)float_of_half<Q_DTYPE>(half_of_float<Q_DTYPE>((float)x));
            attention.expect_out(row, h, positions[row], q, out.bytes + row * OUT_BYTES + h * DIM * 2,
                                 rounding_of(Q_DTYPE) * (pages_type::CODED ? 2 : 1));
        }
    }
}

static void spoil()
{
    if (SPOIL == 1) out.bytes[VALID_ROWS * OUT_BYTES - 1] ^= 2;
    if (SPOIL == 2) pages.row(slots[0], positions[0], 0, true)[0] ^= 1;
    if (SPOIL == 3) pages.pool[sizeof pages.pool - 1] = 0;
    if (SPOIL == 4) workspace.bytes[0] = 1;
}

int main()
{
    copies_are_late = COPIES_LATE;
    for (int i = 0; i < NORM_HEADS_Q * DIM; i++) store_element<params::NORM_DTYPE>(norm_q, i, draw(0.5f, 1.5f));
    for (int i = 0; i < NORM_HEADS_K * DIM; i++) store_element<params::NORM_DTYPE>(norm_k, i, draw(0.5f, 1.5f));
    pages.poison();
    workspace.poison();
    memset(workspace.bytes, 0, WORKSPACE_BYTES);
    for (int step = 0; step < 2; step++) {
        draw_operands(step);
        for (int r = 0; r < VALID_ROWS; r++) {
            const int first = first_token<params>(positions[r]);
            pages.map(slots[r], first, positions[r]);
            for (int t = first; step == 0 && t < positions[r]; t++) pages.fill(slots[r], t);
            if (params::APPENDED) pages.fill(slots[r], positions[r]);
        }
        launch(step);
        spoil();
        for (int r = 0; r < VALID_ROWS; r++) expect_appended(r);
        for (int r = 0; r < VALID_ROWS; r++) expect_attention(r);
        pages.expect_untouched();
        out.expect_poison("out", VALID_ROWS * OUT_BYTES);
        workspace.expect_poison("the workspace", WORKSPACE_BYTES);
        for (int i = 0; i < WORKSPACE_BYTES; i++)
            if (workspace.bytes[i]) problem("byte %d of the workspace is not zero", i);
    }
    return problems != 0;
}
