/* SPDX-License-Identifier: Apache-2.0 */
/* attention_prefill: causal grouped-query attention of the rows of one prompt chunk over its sequence's KV pages.
 *
 *   out[r, h, :] = sum over t of softmax_t(SCALE * q[r, h] . k[t, g]) * v[t, g],  g = h / (HEADS / KV_HEADS),
 *   t from max(0, positions[r] - WINDOW + 1) (WINDOW 0: from 0) to positions[r] inclusive.
 *
 * All valid rows belong to slots[0], and positions[r] = positions[0] + r; k and v of the chunk are in the pages.
 *
 * Operands: counts i32[2]; q: tensor map of X_DTYPE[ROWS, HEADS * HEAD_DIM], boxes of 64 x 64; slots i32[ROWS];
 * positions i32[ROWS]; page_table i32[SLOT_COUNT, PAGES_PER_SLOT]; kv: tensor map of KV_DTYPE[rows, HEAD_DIM] over the
 * pool behind the layer's offset, boxes of 64 columns x min(PAGE_TOKENS, KEY_TILE) rows; out X_DTYPE[ROWS, HEADS *
 * HEAD_DIM], 16-byte aligned, may be q's memory.
 *
 * As FlashAttention-3: a block has a producer warp and TILE_Q / 64 consumer warpgroups of 64 rows each. The producer
 * loads q tiles and a ring of STAGES tiles of k, and of v, KEY_TILE tokens each, by TMA. A consumer issues the scores
 * of the next tile and the second product of the current one together; with PING_PONG the warpgroups take turns at
 * that, so that one's exponentials run beside the other's products. Keys are taken from the last tile down: only the
 * first and, with a window, the last ones need masks.
 *
 * Blocks are persistent. Tiles of q are numbered from the longest context to the shortest, heads of a group side by
 * side so that they meet in L2, and dealt to the blocks to and fro, which gives all about the same number of products.
 *
 * With SPLIT > 1 every tile of q has a cluster of its own, the blocks of which share its keys. They leave their partial
 * results in shared memory, and each merges some of the rows, always in the same order.
 *
 * Accumulation f32, softmax online in base 2, p rounded to X_DTYPE before the second product but summed unrounded. Two
 * runs give the same bits; another chunking of the prompt or other tunables give other roundings. */
#include "kernels/attention/attention_wgmma.cuh"

#ifndef ROWS
#define ROWS 2048
#endif
#ifndef COUNT_INDEX
#define COUNT_INDEX 0
#endif
#ifndef HEADS
#define HEADS 32
#endif
#ifndef KV_HEADS
#define KV_HEADS 8
#endif
#ifndef HEAD_DIM /* a multiple of 16, at most 256 */
#define HEAD_DIM 128
#endif
#ifndef PAGE_TOKENS /* a power of two from 16 to 256, the most rows of a box */
#define PAGE_TOKENS 64
#endif
#ifndef PAGES_PER_SLOT
#define PAGES_PER_SLOT 128
#endif
#ifndef PAGE_BYTES /* a multiple of HEAD_DIM * 2: the pool is one matrix with a token's k or v in each row */
#define PAGE_BYTES 8388608
#endif
#ifndef SLOT_COUNT
#define SLOT_COUNT 8
#endif
#ifndef KV_DTYPE
#define KV_DTYPE DTYPE_BF16
#endif
#ifndef X_DTYPE
#define X_DTYPE DTYPE_BF16
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef SCALE_BITS
#define SCALE_BITS 0x3db504f3 /* 1 / sqrt(128) */
#endif
#ifndef TILE_Q /* 64, 128, 192: a warpgroup for each 64 rows; more read each key less often */
#define TILE_Q 128
#endif
#ifndef KEY_TILE /* 64, 128 tokens: what the scores' registers hold */
#define KEY_TILE 128
#endif
#ifndef STAGES /* 2..4 */
#define STAGES 2
#endif
#ifndef PING_PONG /* 0, 1; without effect for one warpgroup */
#define PING_PONG 1
#endif
#ifndef SPLIT /* 1, 2, 4, 8: blocks of a cluster that share the keys of one tile of q; more for few rows */
#define SPLIT 1
#endif
#ifndef BLOCKS_PER_SM /* 1, 2: registers and shared memory are shared */
#define BLOCKS_PER_SM 1
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

constexpr int consumers = TILE_Q / 64; /* warpgroups */
constexpr int threads = 128 * (consumers + 1);
constexpr int group = HEADS / KV_HEADS;
constexpr int columns = (HEAD_DIM + 63) / 64; /* blocks of 64 columns */
constexpr int box_rows = PAGE_TOKENS < KEY_TILE ? PAGE_TOKENS : KEY_TILE;
constexpr int boxes = KEY_TILE / box_rows; /* of a tile and 64 columns */
constexpr int page_rows = (int)(PAGE_BYTES / (HEAD_DIM * 2));
constexpr int v_rows = KV_HEADS * PAGE_TOKENS; /* from a token's k to its v */
static_assert(KV_DTYPE == X_DTYPE && HEADS % KV_HEADS == 0 && HEAD_DIM % 16 == 0 && PAGE_BYTES % (HEAD_DIM * 2) == 0,
              "launch checks");

constexpr u32 q_block = 64 * 128; /* bytes: 64 rows of 64 columns */
constexpr u32 q_bytes = consumers * columns * q_block;
constexpr u32 key_block = KEY_TILE * 128;
constexpr u32 key_bytes = columns * key_block;
constexpr u32 tiles_offset = 1024; /* behind the barriers, keeps the alignment of the swizzle */

/* Registers of a thread: the producer gives its own away. One consumer and one block have all they want. */
constexpr int producer_registers = 24;
constexpr int consumer_budget = (65536 / BLOCKS_PER_SM - 128 * producer_registers) / (128 * consumers) / 8 * 8;
constexpr int consumer_registers = consumer_budget < 240 ? consumer_budget : 240;
constexpr bool moves_registers = consumers * BLOCKS_PER_SM > 1;

enum {
    TURN_BARRIER = 1, /* and the next ones, one for each consumer */
    WARPGROUP_BARRIER = TURN_BARRIER + consumers,
    /* likewise, and one for all of them */
};

struct barriers {
    u64 q_full, q_empty;
    u64 k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

/* A ring's next stage, and how often it came round. */
struct ring {
    u32 stage, phase;
};

__device__ __forceinline__ void advance(struct ring &ring)
{
    if (++ring.stage == STAGES) {
        ring.stage = 0;
        ring.phase ^= 1;
    }
}

struct chunk {
    int valid, first_position, last_position;
};

/* One tile of q: rows [row, row + TILE_Q) of a head, tiles of keys [begin, end); none for a part of a short context. */
struct work {
    int row, head, begin, end;
};

/* The block's n-th piece of work; false: there is none, and none after it. */
__device__ __forceinline__ bool next_work(struct work &work, const struct chunk &chunk, int n)
{
    int tiles = (chunk.valid + TILE_Q - 1) / TILE_Q;
    int blocks = (int)gridDim.x / SPLIT, block = (int)blockIdx.x / SPLIT, part = (int)blockIdx.x % SPLIT;
    int index = n * blocks + (n % 2 ? blocks - 1 - block : block);
    if (index >= tiles * HEADS) return false;
    work.row = (tiles - 1 - index / HEADS) * TILE_Q;
    work.head = index % HEADS;
    int first = chunk.first_position + work.row, last = min(first + TILE_Q - 1, chunk.last_position);
    int begin = WINDOW > 0 ? max(0, first - WINDOW + 1) / KEY_TILE : 0, count = last / KEY_TILE + 1 - begin;
    work.begin = begin + count * part / SPLIT;
    work.end = begin + count * (part + 1) / SPLIT;
    return true;
}

/* A tile's k (offset 0) or v (offset v_rows). Boxes behind the last token take the last page, for their entries of the
 * page table mean nothing; what is loaded there is masked. */
__device__ __forceinline__ void load_keys(u32 to, const struct tensor_map *map, const i32 *pages,
                                          const struct chunk &chunk, int tile, int row_offset, u32 barrier)
{
    barrier_arrive_expect(barrier, key_bytes);
#pragma unroll
    for (int i = 0; i < boxes; i++) {
        int token = tile * KEY_TILE + i * box_rows;
        int row = pages[min(token, chunk.last_position) / PAGE_TOKENS] * page_rows + token % PAGE_TOKENS + row_offset;
#pragma unroll
        for (int c = 0; c < columns; c++) tile_load(to + c * key_block + i * box_rows * 128, map, c * 64, row, barrier);
    }
}

__device__ __forceinline__ void produce(const struct tensor_map *q_map, const struct tensor_map *kv_map,
                                        const i32 *pages, const struct chunk &chunk, struct barriers *barriers,
                                        u32 q_tile, u32 k_tiles, u32 v_tiles)
{
    struct ring k_ring = {0, 1}, v_ring = {0, 1};
    struct work work;
    for (int n = 0; next_work(work, chunk, n); n++) {
        if (work.begin == work.end) continue;
        int k_offset = work.head / group * PAGE_TOKENS;
        barrier_wait_tight(shared_address(&barriers->q_empty), (u32)(n + 1) % 2);
        u32 q_full = shared_address(&barriers->q_full);
        barrier_arrive_expect(q_full, q_bytes);
#pragma unroll
        for (int w = 0; w < consumers; w++) {
#pragma unroll
            for (int c = 0; c < columns; c++)
                tile_load(q_tile + (u32)(w * columns + c) * q_block, q_map, work.head * HEAD_DIM + c * 64,
                          work.row + w * 64, q_full);
        }
        /* k runs one tile ahead of v, as the consumers do. */
        for (int tile = work.end - 1; tile >= work.begin - 1; tile--) {
            if (tile >= work.begin) {
                barrier_wait_tight(shared_address(&barriers->k_empty[k_ring.stage]), k_ring.phase);
                load_keys(k_tiles + k_ring.stage * key_bytes, kv_map, pages, chunk, tile, k_offset,
                          shared_address(&barriers->k_full[k_ring.stage]));
                advance(k_ring);
            }
            if (tile < work.end - 1) {
                barrier_wait_tight(shared_address(&barriers->v_empty[v_ring.stage]), v_ring.phase);
                load_keys(v_tiles + v_ring.stage * key_bytes, kv_map, pages, chunk, tile + 1, k_offset + v_rows,
                          shared_address(&barriers->v_full[v_ring.stage]));
                advance(v_ring);
            }
        }
    }
}

__device__ __forceinline__ float exp2_approximate(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* To 1 ulp; a division by the book would be a call. */
__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float infinity() { return float_of_bits(0x7f800000); }

/* What a consumer's thread knows of its rows lane / 4 and lane / 4 + 8 of the warp's sixteen. Element 4n + 2i + j of an
 * accumulator is row i, column 8n + 2 (lane % 4) + j. */
struct consumer {
    float out[HEAD_DIM / 2];
    float max[2], sum[2]; /* of the scores; sum: of this thread's columns */
    u32 weights[KEY_TILE / 4];
};

__device__ __forceinline__ void issue_scores(float (&scores)[KEY_TILE / 2], u32 q, u32 k)
{
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++)
        multiply_scores<X_DTYPE, KEY_TILE>(scores, matrix_descriptor(q + i / 4 * q_block + i % 4 * 32, 16),
                                           matrix_descriptor(k + i / 4 * key_block + i % 4 * 32, 16), i > 0);
}

__device__ __forceinline__ void issue_values(struct consumer &c, u32 v)
{
#pragma unroll
    for (int k = 0; k < KEY_TILE / 16; k++) {
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 128; d++)
            multiply_values<X_DTYPE, 128>(c.out + 64 * d, c.weights + 4 * k,
                                          matrix_descriptor(v + 2 * d * key_block + k * 2048, key_block));
        constexpr int rest = HEAD_DIM % 128, d = HEAD_DIM / 128 * 64;
        if constexpr (rest >= 64)
            multiply_values<X_DTYPE, 64>(c.out + d, c.weights + 4 * k,
                                         matrix_descriptor(v + d / 32 * key_block + k * 2048, key_block));
        constexpr int tail = rest % 64, e = d + rest / 64 * 32;
        if constexpr (tail > 0)
            multiply_values<X_DTYPE, tail>(c.out + e, c.weights + 4 * k,
                                           matrix_descriptor(v + e / 32 * key_block + k * 2048, key_block));
    }
}

/* Scores of tokens outside [position - WINDOW + 1, position] become -infinity. `token`: this thread's first column;
 * `position`: of its first row. */
__device__ __forceinline__ void mask_scores(float (&scores)[KEY_TILE / 2], int token, int position)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int last = position + 8 * i - token, first = last - WINDOW + 1;
#pragma unroll
        for (int n = 0; n < KEY_TILE / 8; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (8 * n + j > last || (WINDOW > 0 && 8 * n + j < first)) scores[4 * n + 2 * i + j] = -infinity();
            }
        }
    }
}

/* scores becomes the weights, maximum and sum follow; factor: what turns earlier sums into those of the new maximum. */
__device__ __forceinline__ void weigh_scores(struct consumer &c, float (&scores)[KEY_TILE / 2], float (&factor)[2])
{
    const float scale = float_of_bits(SCALE_BITS) * 1.44269504088896f; /* log2(e) */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float even = c.max[i], odd = scores[2 * i + 1];
#pragma unroll
        for (int n = 0; n < KEY_TILE / 8; n++) {
            even = fmaxf(even, scores[4 * n + 2 * i]);
            odd = fmaxf(odd, scores[4 * n + 2 * i + 1]);
        }
        float max = fmaxf(even, odd);
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
        /* No token seen yet: any finite number serves. */
        float base = max == -infinity() ? 0 : max * scale;
        factor[i] = exp2_approximate(c.max[i] * scale - base);
        c.max[i] = max;
        even = c.sum[i] * factor[i];
        odd = 0;
#pragma unroll
        for (int n = 0; n < KEY_TILE / 8; n++) {
            float *pair = scores + 4 * n + 2 * i;
            pair[0] = exp2_approximate(pair[0] * scale - base);
            pair[1] = exp2_approximate(pair[1] * scale - base);
            even += pair[0];
            odd += pair[1];
        }
        c.sum[i] = even + odd;
    }
}

/* An accumulator's pairs of columns stand in the order in which the second product wants its left side. */
__device__ __forceinline__ void round_weights(struct consumer &c, const float (&scores)[KEY_TILE / 2])
{
#pragma unroll
    for (int i = 0; i < KEY_TILE / 4; i++) c.weights[i] = pack_halves<X_DTYPE>(scores[2 * i], scores[2 * i + 1]);
}

__device__ __forceinline__ void scale_out(struct consumer &c, const float (&factor)[2])
{
    /* A new maximum is rare after the first tiles. */
    if (!__any_sync(0xffffffffu, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) c.out[i] *= factor[i / 2 % 2];
}

/* v of tokens behind the chunk may be anything, and 0 * NaN is NaN. All consumers do it, each for itself. */
__device__ __forceinline__ void clear_values(u32 v, int first, int consumer)
{
    for (int i = (int)threadIdx.x % 128; i < columns * (KEY_TILE - first) * 8; i += 128) {
        int part = i % 8, row = first + i / 8 % (KEY_TILE - first), block = i / 8 / (KEY_TILE - first);
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(v + (u32)block * key_block + (u32)row * 128 +
                                                                      (u32)part * 16),
                     "r"(0)
                     : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    named_barrier(WARPGROUP_BARRIER + consumer, 128);
}

/* Word `word` of the four lanes of a quad becomes four words of one lane: lane t gets word t of lanes 0 to 3. */
__device__ __forceinline__ uint4 transpose_quad(u32 w0, u32 w1, u32 w2, u32 w3)
{
    bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
    u32 mine0 = upper ? w2 : w0, mine1 = upper ? w3 : w1;
    u32 theirs0 = __shfl_xor_sync(0xffffffffu, upper ? w0 : w2, 2);
    u32 theirs1 = __shfl_xor_sync(0xffffffffu, upper ? w1 : w3, 2);
    u32 a = odd ? mine1 : mine0, b = odd ? theirs1 : theirs0;
    u32 c = __shfl_xor_sync(0xffffffffu, odd ? mine0 : mine1, 1);
    u32 d = __shfl_xor_sync(0xffffffffu, odd ? theirs0 : theirs1, 1);
    u32 near0 = odd ? c : a, near1 = odd ? a : c, far0 = odd ? d : b, far1 = odd ? b : d;
    return upper ? make_uint4(far0, far1, near0, near1) : make_uint4(near0, near1, far0, far1);
}

__device__ __forceinline__ void store_out(const struct consumer &c, u16 *out, int head, int row, int valid)
{
    int lane = (int)threadIdx.x % 32, column = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = c.sum[i];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float factor = reciprocal(sum);
        u32 words[HEAD_DIM / 8];
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            words[n] = pack_halves<X_DTYPE>(c.out[4 * n + 2 * i] * factor, c.out[4 * n + 2 * i + 1] * factor);
        bool is_valid = row + 8 * i < valid;
        u16 *to = out + ((i64)(row + 8 * i) * HEADS + head) * HEAD_DIM;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 32; n++) {
            uint4 quad = transpose_quad(words[4 * n], words[4 * n + 1], words[4 * n + 2], words[4 * n + 3]);
            if (is_valid) *(uint4 *)(to + 32 * n + 8 * column) = quad;
        }
#pragma unroll
        for (int n = HEAD_DIM / 32 * 4; n < HEAD_DIM / 8; n++)
            if (is_valid) *(u32 *)(to + 8 * n + 2 * column) = words[n];
    }
}

__device__ __forceinline__ void release(u64 *barrier)
{
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(barrier));
}

struct tiles {
    u32 q, k, v; /* shared addresses; q: of this warpgroup's rows */
};

/* One piece of work; n: how many came before. */
__device__ __forceinline__ void attend(struct consumer &c, const struct work &work, const struct chunk &chunk,
                                       struct barriers *barriers, const struct tiles &tiles, struct ring &k_ring,
                                       struct ring &v_ring, int index, int n)
{
    constexpr bool takes_turns = PING_PONG && consumers > 1;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x % 128 / 32;
    /* Of the warpgroup's first row, and of this thread's. Rows that are not valid may become NaN, alone. */
    int first = chunk.first_position + work.row + index * 64, position = first + warp * 16 + lane / 4;
    int existing = chunk.last_position + 1 - (work.end - 1) * KEY_TILE; /* tokens of the first tile that exist */
    float scores[KEY_TILE / 2], factor[2];

    barrier_wait_tight(shared_address(&barriers->q_full), (u32)n % 2);
    barrier_wait_tight(shared_address(&barriers->k_full[k_ring.stage]), k_ring.phase);
    products_fence(scores);
    wgmma_begin();
    issue_scores(scores, tiles.q, tiles.k + k_ring.stage * key_bytes);
    wgmma_commit();
    wgmma_wait<0>();
    products_fence(scores);
    release(&barriers->k_empty[k_ring.stage]);
    advance(k_ring);
    mask_scores(scores, (work.end - 1) * KEY_TILE + 2 * (lane % 4), position);
    weigh_scores(c, scores, factor);
    round_weights(c, scores);
    barrier_wait_tight(shared_address(&barriers->v_full[v_ring.stage]), v_ring.phase);
    if (existing < KEY_TILE) clear_values(tiles.v + v_ring.stage * key_bytes, existing, index);

    for (int tile = work.end - 2; tile >= work.begin; tile--) {
        barrier_wait_tight(shared_address(&barriers->k_full[k_ring.stage]), k_ring.phase);
        if (takes_turns) named_barrier(TURN_BARRIER + index, 256);
        products_fence(scores);
        products_fence(c.out);
        wgmma_begin();
        issue_scores(scores, tiles.q, tiles.k + k_ring.stage * key_bytes);
        wgmma_commit();
        barrier_wait_tight(shared_address(&barriers->v_full[v_ring.stage]), v_ring.phase);
        wgmma_begin();
        issue_values(c, tiles.v + v_ring.stage * key_bytes);
        wgmma_commit();
        if (takes_turns) named_barrier_arrive(TURN_BARRIER + (index + 1) % consumers, 256);
        wgmma_wait<1>();
        products_fence(scores);
        release(&barriers->k_empty[k_ring.stage]);
        advance(k_ring);
        bool is_last = (tile + 1) * KEY_TILE - 1 > first;
        bool is_first = WINDOW > 0 && tile * KEY_TILE < first + 63 - WINDOW + 1;
        if (is_last || is_first) mask_scores(scores, tile * KEY_TILE + 2 * (lane % 4), position);
        weigh_scores(c, scores, factor);
        wgmma_wait<0>();
        products_fence(c.out);
        release(&barriers->v_empty[v_ring.stage]);
        advance(v_ring);
        round_weights(c, scores);
        scale_out(c, factor);
    }
    release(&barriers->q_empty);
    barrier_wait_tight(shared_address(&barriers->v_full[v_ring.stage]), v_ring.phase);
    products_fence(c.out);
    wgmma_begin();
    issue_values(c, tiles.v + v_ring.stage * key_bytes);
    wgmma_commit();
    wgmma_wait<0>();
    products_fence(c.out);
    release(&barriers->v_empty[v_ring.stage]);
    advance(v_ring);
}

/* Partial results take the place of the tiles: for each row the accumulated v, then maximum and sum. */
constexpr int partial_floats = HEAD_DIM + 4; /* keeps 16-byte alignment and spreads rows over the banks */
static_assert(TILE_Q * partial_floats * 4 <= q_bytes + 2 * STAGES * key_bytes, "partial results fit the tiles");

__device__ __forceinline__ void leave_partial(const struct consumer &c, u32 partial, int row)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = c.sum[i];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        u32 to = partial + (u32)((row + 8 * i) * partial_floats * 4);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + 32 * n + 8 * (lane % 4)),
                         "f"(c.out[4 * n + 2 * i]), "f"(c.out[4 * n + 2 * i + 1])
                         : "memory");
        if (lane % 4 == 0)
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + HEAD_DIM * 4), "f"(c.max[i]), "f"(sum)
                         : "memory");
    }
}

/* This block's rows of the tile, eight columns at a time, from the partial results of all blocks of the cluster. */
__device__ __forceinline__ void merge_partials(u16 *out, const struct work &work, u32 partial, int valid)
{
    constexpr int rows = TILE_Q / SPLIT, chunks = HEAD_DIM / 8;
    const float scale = float_of_bits(SCALE_BITS) * 1.44269504088896f;
    int part = (int)blockIdx.x % SPLIT;
    for (int i = (int)threadIdx.x - 128; i < rows * chunks; i += 128 * consumers) {
        int row = part * rows + i / chunks, column = i % chunks * 8;
        if (work.row + row >= valid) continue;
        u32 from = partial + (u32)(row * partial_floats * 4);
        float max = -infinity(), sum = 0, values[8] = {0};
#pragma unroll
        for (int b = 0; b < SPLIT; b++) max = fmaxf(max, cluster_load(cluster_address(from + HEAD_DIM * 4, b)).x);
#pragma unroll
        for (int b = 0; b < SPLIT; b++) {
            u32 address = cluster_address(from, b);
            float4 state = cluster_load(address + HEAD_DIM * 4);
            float4 low = cluster_load(address + column * 4), high = cluster_load(address + column * 4 + 16);
            float factor = exp2_approximate((state.x - max) * scale);
            sum += state.y * factor;
            const float eight[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int j = 0; j < 8; j++) values[j] += eight[j] * factor;
        }
        float factor = reciprocal(sum);
        uint4 words = make_uint4(pack_halves<X_DTYPE>(values[0] * factor, values[1] * factor),
                                 pack_halves<X_DTYPE>(values[2] * factor, values[3] * factor),
                                 pack_halves<X_DTYPE>(values[4] * factor, values[5] * factor),
                                 pack_halves<X_DTYPE>(values[6] * factor, values[7] * factor));
        *(uint4 *)(out + ((i64)(work.row + row) * HEADS + work.head) * HEAD_DIM + column) = words;
    }
}

__device__ __forceinline__ void consume(u16 *out, const struct chunk &chunk, struct barriers *barriers, int index,
                                        u32 q_tile, u32 k_tiles, u32 v_tiles)
{
    struct ring k_ring = {0, 0}, v_ring = {0, 0};
    const struct tiles tiles = {q_tile + (u32)(index * columns) * q_block, k_tiles, v_tiles};
    int row = index * 64 + (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4; /* in the tile */
    struct work work;
    if (PING_PONG && consumers > 1 && index == consumers - 1) named_barrier_arrive(TURN_BARRIER, 256);
    for (int n = 0; next_work(work, chunk, n); n++) {
        struct consumer c;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) c.out[i] = 0;
        c.max[0] = c.max[1] = -infinity();
        c.sum[0] = c.sum[1] = 0;
        if (SPLIT == 1 || work.begin < work.end) attend(c, work, chunk, barriers, tiles, k_ring, v_ring, index, n);
        if constexpr (SPLIT == 1) {
            store_out(c, out, work.head, work.row + row, chunk.valid);
        } else {
            /* The last round of a cluster is its only one: nothing more is loaded into the tiles. */
            named_barrier(WARPGROUP_BARRIER + consumers, 128 * consumers);
            leave_partial(c, q_tile, row);
            cluster_sync();
            merge_partials(out, work, q_tile, chunk.valid);
            cluster_sync();
        }
    }
}

extern __shared__ u8 shared[];

extern "C" __global__ void __launch_bounds__(threads, BLOCKS_PER_SM)
    attention_prefill(const i32 *counts, const __grid_constant__ struct tensor_map q_map, const i32 *slots,
                      const i32 *positions, const i32 *page_table, const __grid_constant__ struct tensor_map kv_map,
                      u16 *out)
{
    u32 base = (shared_address(shared) + 1023) & ~1023u;
    struct barriers *barriers = (struct barriers *)(shared + (base - shared_address(shared)));
    u32 q_tile = base + tiles_offset, k_tiles = q_tile + q_bytes, v_tiles = k_tiles + STAGES * key_bytes;
    int warpgroup = (int)threadIdx.x / 128;
    device_trigger();
    if (threadIdx.x == 0) {
        tile_prefetch_map(&q_map);
        tile_prefetch_map(&kv_map);
        barrier_init(shared_address(&barriers->q_full), 1);
        barrier_init(shared_address(&barriers->q_empty), 4 * consumers);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared_address(&barriers->k_full[i]), 1);
            barrier_init(shared_address(&barriers->v_full[i]), 1);
            barrier_init(shared_address(&barriers->k_empty[i]), 4 * consumers);
            barrier_init(shared_address(&barriers->v_empty[i]), 4 * consumers);
        }
        barrier_init_done();
    }
    __syncthreads();
    device_wait();
    struct chunk chunk;
    chunk.valid = min(counts[COUNT_INDEX], ROWS);
    chunk.first_position = positions[0];
    int slot = slots[0];
    chunk.last_position = chunk.first_position + chunk.valid - 1;
    if (warpgroup == 0) {
        if constexpr (moves_registers) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(producer_registers));
        if (threadIdx.x == 0 && chunk.valid > 0)
            produce(&q_map, &kv_map, page_table + (i64)slot * PAGES_PER_SLOT, chunk, barriers, q_tile, k_tiles,
                    v_tiles);
    } else {
        if constexpr (moves_registers) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(consumer_registers));
        /* The same for all threads of the warp, which the compiler cannot know. */
        consume(out, chunk, barriers, __shfl_sync(0xffffffffu, warpgroup - 1, 0), q_tile, k_tiles, v_tiles);
    }
}

#else

extern "C" __global__ void attention_prefill(const i32 *, const __grid_constant__ struct tensor_map, const i32 *,
                                             const i32 *, const i32 *, const __grid_constant__ struct tensor_map, u16 *)
{
}

#endif
