/* SPDX-License-Identifier: Apache-2.0 */
/* attention_generic, attention_latent and attention_prefill on the host: KERNEL_PARAMS is the problem and the tunables of BODY; SLOTS and
 * POSITIONS are those of the valid rows, BLOCKS_IN_ALL the thread blocks for each kv head and part of v (generic) or for all heads. IN_PLACE: out
 * is q's memory. Compares every element of out with plain code in double; prints what differs and exits with 1. COPIES_LATE: see
 * copies_are_late. What launches before write, q and the tokens of the valid rows, comes where a block of attention_latent waits for
 * them. SPOIL: 1 an element of out, 2 of the pages is changed before the checks, 3 the tokens of the rows do not come, for them to see;
 * 0 nothing. The prefill
 * kernel with SPLIT above 1 needs more of clusters than is emulated. emulation_test.py includes it in a namespace for each case, after
 * these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/attention/attention_generic.cuh"
#include "kernels/attention/attention_latent.cuh"
#include "kernels/attention/attention_prefill.cuh"

struct params {
    KERNEL_PARAMS
};
typedef BODY<params> body;
typedef pages_on_host<params> pages_type;

static const int given_slots[] = {SLOTS}, given_positions[] = {POSITIONS};

enum {
    VALID_ROWS = sizeof given_slots / sizeof *given_slots,
    DIM = params::HEAD_DIM,
    OUT_DIM = attention_on_host<params>::OUT_DIM,
    GROUP = params::HEADS / params::KV_HEADS,
    X_BYTES = params::X_DTYPE == DTYPE_F32 ? 4 : 2,
    ROW_BYTES = params::HEADS * DIM * X_BYTES,
    OUT_ROW_BYTES = params::HEADS * OUT_DIM * X_BYTES,
};
static_assert(sizeof given_slots == sizeof given_positions, "one of each for a row");

static int counts[2], slots[params::ROWS], positions[params::ROWS];
alignas(128) static u8 q[params::ROWS * ROW_BYTES];
static guarded<params::ROWS * OUT_ROW_BYTES> out;
static pages_type pages;
static const sinks_on_host<params> sinks;

/* Weights are cut to 10 bits of fraction for tf32 products; q, k and v are, too, if they are float32. */
static double weight_rounding()
{
    if (params::X_DTYPE == DTYPE_F32 || params::KV_DTYPE == DTYPE_F32) return 1.2e-2;
    return pages_type::CODED || params::X_DTYPE == params::KV_DTYPE ? rounding_of(params::X_DTYPE) : 0x1p-10;
}

/* k and v in codes are rounded before they are used. */
static void round_rows(attention_on_host<params> &attention)
{
    if constexpr (pages_type::CODED && params::X_DTYPE != DTYPE_F32) {
        for (double &x : attention.k)
            x = (double)float_of_half<params::X_DTYPE>(half_of_float<params::X_DTYPE>((float)x));
        for (double &x : attention.v)
            x = (double)float_of_half<params::X_DTYPE>(half_of_float<params::X_DTYPE>((float)x));
    }
}

static const void *q_operand() { return IN_PLACE ? out.bytes : q; }

template <class P> static void run_body(attention_generic_body<P> *)
{
    attention_generic_body<P>::run((u8 *)shared_memory, counts, q_operand(), slots, positions, pages.table,
                                   pages.kv().at, out.bytes, sinks.operand());
}

/* Those of attention_latent have room for up to 8 GROUPS. */
alignas(64) static float4 counters_of_blocks[VALID_ROWS * params::HEADS * 2 * (DIM / 4) * 8 + 1024 * 64];

template <class P> static void run_body(attention_latent_body<P> *)
{
    attention_latent_body<P>::run((u8 *)shared_memory, counts, (const u16 *)q, slots, positions, pages.table,
                                  pages.kv().at, (u16 *)out.bytes, counters_of_blocks);
}

/* `memory`: aligned to 16 bytes alone. */
template <class P> static void run_body(attention_prefill_body<P> *)
{
    const tensor_map q_map =
        tensor_map_on_host(q_operand(), P::ROWS, P::HEADS * DIM, attention_prefill_body<P>::part_rows);
    u8 *memory = (u8 *)shared_memory + 16;
    if constexpr (pages_type::CODED) {
        attention_prefill_body<P>::run(memory, counts, q_map, slots, positions, pages.table, pages.kv().at,
                                       (u16 *)out.bytes, sinks.operand());
    } else {
        const long rows = ((long)sizeof pages.pool - pages_type::BLOCK) / pages_type::ROW_BYTES;
        const tensor_map kv_map =
            tensor_map_on_host(pages.kv().at, (int)rows, DIM, attention_prefill_body<P>::box_rows);
        attention_prefill_body<P>::run(memory, counts, q_map, slots, positions, pages.table, kv_map, (u16 *)out.bytes,
                                       sinks.operand());
    }
}

/* Kernels that read whole tiles may read tokens before a row's window, which have been written. */
template <class P> static int first_written(int, attention_prefill_body<P> *) { return 0; }
template <class BODY> static int first_written(int position, BODY *) { return first_token<params>(position); }

/* Blocks that share the columns of v. */
template <class P> static unsigned parts_of(attention_generic_body<P> *) { return attention_generic_body<P>::parts; }
template <class BODY> static unsigned parts_of(BODY *) { return 1; }

/* ---- what the launches before write ---- */

static u8 written_q[sizeof q];

template <class WORK> static void each_written_row(WORK work)
{
    for (int r = 0; r < VALID_ROWS; r++) {
        u8 *row = pages.row(slots[r], positions[r], 0, false);
        work(row, pages_type::ROW_BYTES);
        if (pages_type::CODED) work((u8 *)pages.scale(slots[r], positions[r], 0, false), (int)sizeof(float));
    }
}

static void hide_written()
{
    memset(q, 0xff, sizeof q); /* NaN */
    each_written_row([](u8 *at, int bytes) { memset(at, 0xff, (size_t)bytes); });
}

/* Every thread of a block calls it once. */
static void show_written()
{
    meet(running->all, running->threads);
    if (threadIdx.x == 0) {
        memcpy(q, written_q, sizeof q);
        if (SPOIL != 3)
            each_written_row([](u8 *at, int bytes) { memcpy(at, pages.expected + (at - pages.pool), (size_t)bytes); });
    }
    meet(running->all, running->threads);
}

static void run_thread_of_kernel() { run_body((body *)nullptr); }

static void draw_operands()
{
    int first[params::SLOT_COUNT], last[params::SLOT_COUNT];
    for (int s = 0; s < params::SLOT_COUNT; s++) first[s] = NO_INDEX, last[s] = -1;
    counts[params::COUNT_INDEX] = VALID_ROWS;
    counts[1 - params::COUNT_INDEX] = NO_INDEX;
    memset(q, 0xff, sizeof q); /* NaN beyond the valid rows */
    for (int r = 0; r < params::ROWS; r++) {
        slots[r] = positions[r] = NO_INDEX;
        if (r >= VALID_ROWS) continue;
        const int slot = slots[r] = given_slots[r];
        positions[r] = given_positions[r];
        first[slot] = std::min(first[slot], first_written(positions[r], (body *)nullptr));
        last[slot] = std::max(last[slot], positions[r]);
        for (int i = 0; i < params::HEADS * DIM; i++)
            store_element<params::X_DTYPE>(q, r * params::HEADS * DIM + i, draw(-2, 2));
    }
    for (int s = 0; s < params::SLOT_COUNT; s++) {
        if (last[s] < 0) continue;
        pages.map(s, first[s], last[s]);
        for (int t = first[s]; t <= last[s]; t++) pages.fill(s, t);
    }
    out.poison();
    if (IN_PLACE) memcpy(out.bytes, q, sizeof q);
}

static void expect_attention(int slot, int kv_head)
{
    int first = NO_INDEX, last = -1;
    for (int r = 0; r < VALID_ROWS; r++) {
        if (slots[r] != slot) continue;
        first = std::min(first, first_token<params>(positions[r]));
        last = std::max(last, positions[r]);
    }
    if (last < 0) return;
    attention_on_host<params> attention(pages, slot, kv_head, first, last);
    round_rows(attention);
    for (int i = 0; i < VALID_ROWS * GROUP; i++) {
        const int row = i / GROUP, head = kv_head * GROUP + i % GROUP;
        double values[DIM];
        if (slots[row] != slot) continue;
        for (int d = 0; d < DIM; d++)
            values[d] = (double)load_element<params::X_DTYPE>(q, (row * params::HEADS + head) * DIM + d);
        attention.expect_out(row, head, positions[row], values,
                             out.bytes + row * OUT_ROW_BYTES + head * OUT_DIM * X_BYTES, weight_rounding());
    }
}

int main()
{
    const bool is_generic = std::is_same<body, attention_generic_body<params>>::value;
    const bool is_prefill = std::is_same<body, attention_prefill_body<params>>::value;
    const bool is_latent = std::is_same<body, attention_latent_body<params>>::value;
    const int cluster = is_latent ? params::SPLIT : 1;
    copies_are_late = COPIES_LATE;
    pages.poison();
    draw_operands();
    memcpy(written_q, q, sizeof q);
    at_device_wait = is_latent ? show_written : nullptr;
    gridDim.x = BLOCKS_IN_ALL;
    gridDim.y = is_generic ? params::KV_HEADS : 1;
    gridDim.z = parts_of((body *)nullptr);
    for (unsigned yz = 0; yz < gridDim.y * gridDim.z; yz++)
        for (int i = 0; i < BLOCKS_IN_ALL; i += cluster) {
            blockIdx.y = yz % gridDim.y, blockIdx.z = yz / gridDim.y;
            if (is_latent) hide_written();
            if (cluster > 1) {
                run_cluster(i, cluster, BLOCKS_IN_ALL, body::threads, run_thread_of_kernel);
                continue;
            }
            memset(shared_memory, 0xff, SHARED_BYTES);
            run_block(i, body::threads, run_thread_of_kernel);
            expect_shared_poison((long)body::layout.bytes + (is_prefill ? 16 : 0));
        }
    if (SPOIL == 1) out.bytes[VALID_ROWS * OUT_ROW_BYTES - 1] ^= 2;
    if (SPOIL == 2) pages.pool[0] = 0;
    for (int s = 0; s < params::SLOT_COUNT; s++)
        for (int g = 0; g < params::KV_HEADS; g++) expect_attention(s, g);
    pages.expect_untouched();
    if (!IN_PLACE) out.expect_poison("out", VALID_ROWS * OUT_ROW_BYTES);
    if (IN_PLACE) out.expect_poison("out", (long)sizeof out.bytes);
    return problems != 0;
}
