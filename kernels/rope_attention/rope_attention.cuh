/* SPDX-License-Identifier: Apache-2.0 */
/* rope_attention: one step of decode attention. Head norms, rotary embedding, append of k and v, attention over the
 * sequence's pages and the merge of its splits, in one launch. The contract stands in rope_attention.h.
 *
 * One block serves one split of one (row, kv head): K and V are loaded once for all query heads of the group. The
 * number of splits that work depends on the context; the others only occupy their multiprocessor until the previous
 * launch has completed. Every warp takes tiles of TILE_TOKENS tokens of its own through a ring of its own in shared
 * memory, in turn K and V, without a barrier among warps. The rings are filled before the previous launch has
 * completed: earlier steps wrote these tokens. A block takes less than half of its multiprocessor, which leaves room
 * for one block of the previous or of the next launch.
 *
 * K and V are the 16-row operand of mma.m16n8k16, the query heads the 8 columns. A lane reads 8 neighbours of the
 * head dimension at once; an mma wants other elements in this lane, but the order within a sum (QK: of the
 * dimension, the same for q) and of result rows (PV: of the dimension) is ours to choose, so the registers are used
 * as they are loaded (V needs a byte permutation to pair tokens).
 *
 * The maximum that the exponentials refer to moves only when a score exceeds it by RESCALE_LOG2: most tiles need one
 * vote and no shuffle. Warps merge through shared memory, splits through the workspace (the last block merges),
 * always in rising order: results are the same bits in every run. */
#ifndef KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_CUH
#define KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_CUH

#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/reduce.cuh"
#include "kernels/cuda/include/tma.cuh"
#include "kernels/rope_attention/rope_attention_layout.cuh"
#include "kernels/rope_attention/rope_attention_merge.cuh"

template <class P> struct rope_attention_body {
    static constexpr int GROUP = P::HEADS / P::KV_HEADS;
    static constexpr int TILE_HEADS = 8 * P::HEAD_TILES;
    static constexpr int HEAD_BLOCKS = (GROUP + TILE_HEADS - 1) / TILE_HEADS;
    static constexpr int BLOCK_HEADS = GROUP < TILE_HEADS ? GROUP : TILE_HEADS; /* the last block may have fewer */
    static constexpr int THREADS = 32 * P::WARPS;

    static constexpr int TOKEN_TILES = P::TILE_TOKENS / 16;  /* mma tiles of a warp's tile */
    static constexpr int K_BLOCKS = (P::HEAD_DIM + 31) / 32; /* 4 lanes x 8 elements: what one read per row covers */
    static constexpr int V_BLOCKS = (P::HEAD_DIM + 63) / 64; /* 8 lanes x 8 elements, likewise */
    static constexpr int DIM_8 = (P::HEAD_DIM + 7) / 8 * 8;  /* partial results: whole groups of 8 */
    static constexpr int QUADS = BLOCK_HEADS * (DIM_8 / 4);  /* a block's result as float4 */
    static constexpr int Q_PITCH = ROPE_ATTENTION_Q_PITCH(P::HEAD_DIM);
    static constexpr float RESCALE_LOG2 = 8; /* exponentials reach 2^8, harmless in f16, bf16 and f32 */
    static constexpr i64 PAGE_ELEMENTS = (i64)(P::PAGE_BYTES) / 2;
    static constexpr int V_OFFSET = P::KV_HEADS * P::PAGE_TOKENS * P::HEAD_DIM;

    static constexpr int CHUNKS = ROPE_ATTENTION_CHUNKS(P::HEAD_DIM); /* 16 bytes of a row of K or V */
    static constexpr int PITCH = ROPE_ATTENTION_PITCH(P::HEAD_DIM);
    static constexpr int STAGE_BYTES = ROPE_ATTENTION_STAGE_BYTES(P::HEAD_DIM, P::TILE_TOKENS);
    static constexpr int PART_PITCH = ROPE_ATTENTION_PART_PITCH(P::HEAD_DIM);
    static constexpr int WARP_BYTES = ROPE_ATTENTION_WARP_BYTES(P::HEAD_DIM, P::TILE_TOKENS, P::STAGES, BLOCK_HEADS);
    static constexpr int PAGE_TILES = P::PAGE_TOKENS / P::TILE_TOKENS;
    static constexpr bool ODD = P::STAGES % 2; /* then a stage holds K and V in turn */
    /* q is kept in registers where there are enough, else read for every tile. */
    static constexpr bool Q_HELD = P::HEAD_TILES * K_BLOCKS <= 4 && THREADS <= 256;

    /* The last block's threads share the splits of a quad, if there are enough of them. */
    static constexpr int SHARES = P::SPLITS == 1 ? 1 : THREADS >= 4 * QUADS ? 4 : THREADS >= 2 * QUADS ? 2 : 1;
    static constexpr int MERGE_BATCH = (P::SPLITS + SHARES - 1) / SHARES < 8 ? (P::SPLITS + SHARES - 1) / SHARES : 8;

    static constexpr int PAIRS = P::HEAD_DIM / 2;                                     /* of elements: see to_low */
    static constexpr int ROTATED = (P::ROTARY_DIM ? P::ROTARY_DIM : P::HEAD_DIM) / 2; /* the first ones: are rotated */
    static constexpr bool ALL_ROTATED = ROTATED == PAIRS;
    static constexpr int VECTOR = PAIRS % 2 == 0 && ROTATED % 2 == 0 ? 2 : 1;
    static constexpr int ROUNDS = (PAIRS + 32 * VECTOR - 1) / (32 * VECTOR);
    static constexpr int TASKS = BLOCK_HEADS + 2; /* vectors to prepare: q heads, k, v */
    static constexpr int WARP_TASKS = (TASKS + P::WARPS - 1) / P::WARPS;

    static_assert(P::HEADS % P::KV_HEADS == 0 && P::HEAD_DIM % 2 == 0 && P::PAGE_TOKENS % P::TILE_TOKENS == 0,
                  "shapes");
    static_assert(P::TILE_TOKENS % 16 == 0 && P::SPLITS >= 1 && P::STAGES >= 2 && P::STAGES <= 16, "tunables");
    static_assert(!P::BULK || P::HEAD_DIM % 8 == 0, "rows begin at multiples of 16 bytes");

    struct shared_data {
        alignas(16) u16 q[TILE_HEADS][Q_PITCH];
        alignas(16) u16 k[CHUNKS * 8], v[CHUNKS * 8];              /* of the new token */
        float2 part_sums[P::WARPS][BLOCK_HEADS];                   /* maximum (log2) and sum of exponentials */
        alignas(8) u64 arrived[P::BULK ? P::WARPS : 1][P::STAGES]; /* mbarriers */
        bool last;
    };
    static_assert(sizeof(shared_data) <=
                      ROPE_ATTENTION_STATIC_BYTES(P::HEAD_DIM, P::HEAD_TILES, BLOCK_HEADS, P::WARPS, P::STAGES),
                  "as the host counts");

    /* Work of one block on one row's sequence. */
    struct work {
        int position, first; /* tokens first..position take part */
        int active;          /* splits that have tiles */
        int tile, end;       /* this warp's next tile, in steps of WARPS; end of the split's tiles */
        const i32 *pages;    /* of the slot */
    };

    /* Chunk `chunk` of row `row` of a stage, in bytes. */
    static __device__ __forceinline__ u32 chunk_at(int row, int chunk) { return (u32)(row * PITCH + chunk) * 16; }

    /* Row r of an mma tile's 8 is this token. Two rows' reads of K (4 lanes each, rows 2i and 2i + 1) and four rows'
     * reads of V (2 lanes each, rows of one parity) are in different banks: tokens 0, 2, 1, 3, 6, 4, 7, 5. */
    static __device__ __forceinline__ int token_of(int row) { return 0x57463120 >> row * 4 & 7; }

    /* Until at most PENDING groups of copies are under way, in all lanes. */
    template <int PENDING> static __device__ __forceinline__ void copies_wait()
    {
        copy_wait<PENDING>();
        __syncwarp();
    }

    /* Rows first..last - 1 of a tile from `from` into a stage; zeros for the others, where there may be NaN. */
    static __device__ __forceinline__ void copy_tile(u32 stage, const u16 *from, int first, int last, int lane)
    {
        if constexpr (P::HEAD_DIM % 8 == 0) {
#pragma unroll
            for (int j = 0; j < (P::TILE_TOKENS * CHUNKS + 31) / 32; j++) {
                int i = lane + 32 * j, row = i / CHUNKS;
                if (P::TILE_TOKENS * CHUNKS % 32 && row >= P::TILE_TOKENS) continue;
                copy_async_if<16>(stage + chunk_at(row, i % CHUNKS), from + i * 8,
                                  (u32)(row - first) < (u32)(last - first));
            }
        } else { /* by pairs; those that fill up the last chunk are zero */
            for (int i = lane; i < P::TILE_TOKENS * CHUNKS * 4; i += 32) {
                int row = i / (CHUNKS * 4), d = i % (CHUNKS * 4) * 2;
                bool inside = d < P::HEAD_DIM && row >= first && row < last;
                copy_async_if<4>(stage + chunk_at(row, d / 8) + (u32)(d % 8 * 2),
                                 from + (inside ? row * P::HEAD_DIM + d : 0), inside);
            }
        }
    }

    /* The same by the copy engine, a row per lane; the other rows stay as they are. Completes a phase of `arrived`. */
    static __device__ __forceinline__ void copy_rows(u32 stage, const u16 *from, int first, int last, u32 arrived,
                                                     int lane)
    {
        first = max(first, 0), last = min(last, P::TILE_TOKENS);
        if (lane == 0) barrier_arrive_expect(arrived, (u32)(max(last - first, 0) * P::HEAD_DIM * 2));
        __syncwarp();
#pragma unroll
        for (int j = 0; j < P::TILE_TOKENS; j += 32) {
            const int row = lane + j;
            if (row >= first && row < last)
                bulk_copy(stage + chunk_at(row, 0), from + row * P::HEAD_DIM, P::HEAD_DIM * 2, arrived);
        }
    }

    /* Where the tile has the new token's row, it becomes `values`; rows of V without weight become zero, since what
     * lies there may be NaN (copy_tile has left zeros). By a whole warp. */
    static __device__ __forceinline__ void patch(u32 stage, const u16 *values, int first, int token, bool is_v,
                                                 int lane)
    {
        if (token < P::TILE_TOKENS)
            for (int chunk = lane; chunk < CHUNKS; chunk += 32)
                store_shared(stage + chunk_at(token, chunk), *(const uint4 *)(values + chunk * 8));
        if constexpr (P::BULK) {
            for (int row = 0; is_v && row < P::TILE_TOKENS; row++)
                if (row < first || row > token)
                    for (int chunk = lane; chunk < CHUNKS; chunk += 32)
                        store_shared(stage + chunk_at(row, chunk), make_uint4(0, 0, 0, 0));
            fence_async_shared(); /* the stage may be filled again */
        }
        __syncwarp();
    }

    /* A chunk of a stage; zeros beyond HEAD_DIM. */
    static __device__ __forceinline__ void load_chunk(u32 (&to)[4], u32 stage, int row, int block, int blocks,
                                                      int within)
    {
        const int chunk = block * blocks + within;
        if ((block + 1) * blocks <= CHUNKS || chunk < CHUNKS)
            load_shared(to, stage + chunk_at(row, chunk));
        else
            to[0] = to[1] = to[2] = to[3] = 0;
    }

    /* Running attention of one warp. Lane (g, t) holds heads 8n + 2t and 8n + 2t + 1 and, of block b, dimensions 64
     * b + 8 g + 2 j (out[n][b][j][0 and 1]) and one more (out[n][b][j][2 and 3]). */
    struct state {
        float out[P::HEAD_TILES][V_BLOCKS][4][4];
        float maximum[P::HEAD_TILES][2], sum[P::HEAD_TILES][2]; /* sum: of this lane's tokens */
    };

    struct queries {
        u32 part[Q_HELD ? P::HEAD_TILES : 1][Q_HELD ? K_BLOCKS : 1][4];
    };

    static __device__ __forceinline__ void load_q(u32 (&q)[4], const shared_data &shared, int n, int b, int lane)
    {
        load_shared(q, shared_address(&shared.q[n * 8 + lane / 4][b * 32 + lane % 4 * 8]));
    }

    /* scores[tt][n]: rows 16 tt + g (0, 1) and 16 tt + g + 8 (2, 3), in units of log2. */
    static __device__ __forceinline__ void score(float (&scores)[TOKEN_TILES][P::HEAD_TILES][4], u32 stage,
                                                 const queries &held, const shared_data &shared, int lane)
    {
        const float scale = float_of_bits(P::SCALE_BITS) * 1.44269504f;
        float sums[TOKEN_TILES][P::HEAD_TILES][2][4] = {}; /* two chains: half the latency */
#pragma unroll
        for (int b = 0; b < K_BLOCKS; b++) {
            u32 q[P::HEAD_TILES][4];
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++) {
                if constexpr (Q_HELD)
                    q[n][0] = held.part[n][b][0], q[n][1] = held.part[n][b][1], q[n][2] = held.part[n][b][2],
                    q[n][3] = held.part[n][b][3];
                else
                    load_q(q[n], shared, n, b, lane);
            }
#pragma unroll
            for (int tt = 0; tt < TOKEN_TILES; tt++) {
                u32 low[4], high[4]; /* 8 tokens further */
                load_chunk(low, stage, tt * 16 + token_of(lane / 4), b, 4, lane % 4);
                load_chunk(high, stage, tt * 16 + 8 + token_of(lane / 4), b, 4, lane % 4);
#pragma unroll
                for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                    for (int s = 0; s < 2; s++)
                        mma<P::KV_DTYPE>(sums[tt][n][s], low[2 * s], high[2 * s], low[2 * s + 1], high[2 * s + 1],
                                         q[n][2 * s], q[n][2 * s + 1]);
            }
        }
#pragma unroll
        for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) scores[tt][n][i] = (sums[tt][n][0][i] + sums[tt][n][1][i]) * scale;
    }

    /* Scores become weights relative to the running maximum, as columns of the second mma. */
    static __device__ __forceinline__ void weigh(u32 (&weights)[TOKEN_TILES][P::HEAD_TILES][2], state &state,
                                                 const float (&scores)[TOKEN_TILES][P::HEAD_TILES][4])
    {
        bool exceeds = false;
#pragma unroll
        for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) exceeds |= scores[tt][n][i] > state.maximum[n][i % 2] + RESCALE_LOG2;
        if (__any_sync(0xffffffffu, exceeds)) {
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float maximum = state.maximum[n][c];
#pragma unroll
                    for (int tt = 0; tt < TOKEN_TILES; tt++)
                        maximum = fmaxf(maximum, fmaxf(scores[tt][n][c], scores[tt][n][c + 2]));
#pragma unroll
                    for (int offset = 4; offset < 32; offset *= 2)
                        maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
                    float factor = exp2_approximate(state.maximum[n][c] - maximum);
                    state.maximum[n][c] = maximum;
                    state.sum[n][c] *= factor;
#pragma unroll
                    for (int b = 0; b < V_BLOCKS; b++)
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            state.out[n][b][j][c] *= factor;
                            state.out[n][b][j][c + 2] *= factor;
                        }
                }
        }
#pragma unroll
        for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++) {
                float w[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    w[i] = exp2_approximate(scores[tt][n][i] - state.maximum[n][i % 2]);
                    state.sum[n][i % 2] += w[i];
                }
                weights[tt][n][0] = transpose_8x8(pack_halves<P::KV_DTYPE>(w[0], w[1]));
                weights[tt][n][1] = transpose_8x8(pack_halves<P::KV_DTYPE>(w[2], w[3]));
            }
    }

    static __device__ __forceinline__ void accumulate(state &state, u32 stage,
                                                      const u32 (&weights)[TOKEN_TILES][P::HEAD_TILES][2], int lane)
    {
#pragma unroll
        for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
            for (int b = 0; b < V_BLOCKS; b++) {
                u32 x[4][4]; /* rows 2t, 2t + 1, 2t + 8, 2t + 9 */
#pragma unroll
                for (int i = 0; i < 4; i++)
                    load_chunk(x[i], stage, tt * 16 + token_of(lane % 4 * 2 + i % 2) + i / 2 * 8, b, 8, lane / 4);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    u32 a0 = __byte_perm(x[0][j], x[1][j], 0x5410), a1 = __byte_perm(x[0][j], x[1][j], 0x7632);
                    u32 a2 = __byte_perm(x[2][j], x[3][j], 0x5410), a3 = __byte_perm(x[2][j], x[3][j], 0x7632);
#pragma unroll
                    for (int n = 0; n < P::HEAD_TILES; n++)
                        mma<P::KV_DTYPE>(state.out[n][b][j], a0, a1, a2, a3, weights[tt][n][0], weights[tt][n][1]);
                }
            }
    }

    /* The warp's result to shared memory. */
    static __device__ __forceinline__ void store_partial(shared_data &shared, float *part, state &state, int warp,
                                                         int lane)
    {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float sum = state.sum[n][c];
#pragma unroll
                for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
                int head = n * 8 + t * 2 + c;
                if (head >= BLOCK_HEADS) continue;
                if (g == 0) shared.part_sums[warp][head] = make_float2(state.maximum[n][c], sum);
#pragma unroll
                for (int b = 0; b < V_BLOCKS; b++) {
                    if (b * 64 + g * 8 >= DIM_8) continue;
                    const float(&o)[4][4] = state.out[n][b];
                    float4 low = make_float4(o[0][c], o[0][c + 2], o[1][c], o[1][c + 2]);
                    float4 high = make_float4(o[2][c], o[2][c + 2], o[3][c], o[3][c + 2]);
                    float4 *to = (float4 *)(part + head * PART_PITCH + b * 64 + g * 8);
                    to[g % 2] = g % 2 ? high : low; /* odd lanes the other half first: no bank conflicts */
                    to[1 - g % 2] = g % 2 ? low : high;
                }
            }
    }

    /* Quad number `quad` of the block's result, divided by the sum, to OUT. */
    static __device__ __forceinline__ void store_out(u16 *out, int quad, const merged &all, int heads)
    {
        int head = quad / (DIM_8 / 4), d = quad % (DIM_8 / 4) * 4;
        if (head >= heads) return;
        u16 *to = out + head * P::HEAD_DIM + d;
        float inverse = 1 / all.sum;
        u32 low = pack_halves<P::X_DTYPE>(all.value.x * inverse, all.value.y * inverse);
        u32 high = pack_halves<P::X_DTYPE>(all.value.z * inverse, all.value.w * inverse);
        if constexpr (P::HEAD_DIM % 4 == 0) {
            if (P::HEAD_DIM % 8 == 0 || d < P::HEAD_DIM) *(uint2 *)to = make_uint2(low, high);
        } else {
            if (d < P::HEAD_DIM) *(u32 *)to = low;
            if (d + 2 < P::HEAD_DIM) *(u32 *)(to + 2) = high;
        }
    }

    /* Pairs of the head vectors that this lane prepares. */
    static __device__ __forceinline__ int pair_index(int lane, int round) { return (round * 32 + lane) * VECTOR; }
    /* From a pair's number to its elements: of the rotated part its two halves, then those of the rest. */
    static __device__ __forceinline__ int to_low(int pair) { return ALL_ROTATED || pair < ROTATED ? 0 : ROTATED; }
    static __device__ __forceinline__ int to_high(int pair) { return ALL_ROTATED || pair >= ROTATED ? PAIRS : ROTATED; }

    /* q, k and v of this block: norm, rope, rounding; into shared memory and, k and v, to their page. */
    static __device__ __forceinline__ void prepare(shared_data &shared, const u16 *qkv, const float *table,
                                                   const void *norm_q, const void *norm_k, u16 *page_row, int kv_head,
                                                   int head_block, int heads, bool with_new, int warp, int lane)
    {
        float low[WARP_TASKS][ROUNDS][VECTOR], high[WARP_TASKS][ROUNDS][VECTOR];
        float cosine[ROUNDS][VECTOR], sine[ROUNDS][VECTOR];
        (void)norm_q, (void)norm_k;
#pragma unroll
        for (int k = 0; k < WARP_TASKS; k++) {
            int task = warp + k * P::WARPS;
            bool used = task < BLOCK_HEADS ? task < heads : task < TASKS && with_new;
            int head = task < BLOCK_HEADS ? kv_head * GROUP + head_block * TILE_HEADS + task
                                          : P::HEADS + kv_head + (task - BLOCK_HEADS) * P::KV_HEADS;
            const u16 *x = qkv + (i64)head * P::HEAD_DIM;
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                int i = pair_index(lane, r);
                bool inside = used && i < PAIRS;
                if constexpr (VECTOR == 2) {
                    u32 a = inside ? *(const u32 *)(x + to_low(i) + i) : 0,
                        b = inside ? *(const u32 *)(x + to_high(i) + i) : 0;
                    low[k][r][0] = float_of_half<P::X_DTYPE>((u16)a),
                    low[k][r][1] = float_of_half<P::X_DTYPE>((u16)(a >> 16));
                    high[k][r][0] = float_of_half<P::X_DTYPE>((u16)b),
                    high[k][r][1] = float_of_half<P::X_DTYPE>((u16)(b >> 16));
                } else {
                    low[k][r][0] = inside ? float_of_half<P::X_DTYPE>(x[to_low(i) + i]) : 0;
                    high[k][r][0] = inside ? float_of_half<P::X_DTYPE>(x[to_high(i) + i]) : 0;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int e = 0; e < VECTOR; e++) {
                int i = pair_index(lane, r) + e;
                cosine[r][e] = i < ROTATED ? table[i] : ALL_ROTATED ? 0 : 1; /* by no angle: as they are */
                sine[r][e] = i < ROTATED ? table[ROTATED + i] : 0;
            }
#pragma unroll
        for (int k = 0; k < WARP_TASKS; k++) {
            int task = warp + k * P::WARPS;
            if (task < BLOCK_HEADS ? task >= heads : task >= TASKS || !with_new) continue;
            bool is_v = task == BLOCK_HEADS + 1;
            float scale = 1;
            if constexpr (P::HAS_NORM) {
                float squares = 0;
#pragma unroll
                for (int r = 0; r < ROUNDS; r++)
#pragma unroll
                    for (int e = 0; e < VECTOR; e++)
                        squares += low[k][r][e] * low[k][r][e] + high[k][r][e] * high[k][r][e];
                scale = rsqrtf(warp_sum(squares) / P::HEAD_DIM + float_of_bits(P::EPS_BITS));
            }
            u16 *to = task < BLOCK_HEADS ? shared.q[task] : is_v ? shared.v : shared.k;
            u16 *page = page_row + (is_v ? V_OFFSET : 0);
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                int i = pair_index(lane, r);
                if (i >= PAIRS) continue;
                float a[VECTOR], b[VECTOR];
#pragma unroll
                for (int e = 0; e < VECTOR; e++) {
                    float x = low[k][r][e], y = high[k][r][e];
                    if (P::HAS_NORM && !is_v) {
                        const void *norm = task < BLOCK_HEADS ? norm_q : norm_k;
                        x *= scale * load_element<P::NORM_DTYPE>(norm, to_low(i) + i + e);
                        y *= scale * load_element<P::NORM_DTYPE>(norm, to_high(i) + i + e);
                    }
                    a[e] = is_v ? x : x * cosine[r][e] - y * sine[r][e];
                    b[e] = is_v ? y : y * cosine[r][e] + x * sine[r][e];
                }
                if constexpr (VECTOR == 2) {
                    u32 first = pack_halves<P::KV_DTYPE>(a[0], a[1]), second = pack_halves<P::KV_DTYPE>(b[0], b[1]);
                    *(u32 *)(to + to_low(i) + i) = first, *(u32 *)(to + to_high(i) + i) = second;
                    if (task >= BLOCK_HEADS && head_block == 0)
                        *(u32 *)(page + to_low(i) + i) = first, *(u32 *)(page + to_high(i) + i) = second;
                } else {
                    u16 first = half_of_float<P::KV_DTYPE>(a[0]), second = half_of_float<P::KV_DTYPE>(b[0]);
                    to[to_low(i) + i] = first, to[to_high(i) + i] = second;
                    if (task >= BLOCK_HEADS && head_block == 0)
                        page[to_low(i) + i] = first, page[to_high(i) + i] = second;
                }
            }
        }
    }

    /* Tiles of the row, split evenly: one split takes ALONE_TILES per warp alone, else all work that get one per
     * warp. */
    static __device__ __forceinline__ work plan_work(const i32 *slots, const i32 *positions, const i32 *page_table,
                                                     int row, int split, int warp)
    {
        work work;
        work.position = positions[row];
        work.first = P::WINDOW > 0 && work.position >= P::WINDOW ? work.position - P::WINDOW + 1 : 0;
        work.pages = page_table + (i64)slots[row] * P::PAGES_PER_SLOT;
        int first_tile = work.first / P::TILE_TOKENS, tiles = work.position / P::TILE_TOKENS + 1 - first_tile;
        work.active = tiles <= P::WARPS * P::ALONE_TILES ? 1 : min(P::SPLITS, (tiles + P::WARPS - 1) / P::WARPS);
        int each = tiles / work.active, more = tiles % work.active; /* the first `more` splits take one more */
        work.tile = first_tile + split * each + min(split, more) + warp;
        work.end = work.tile - warp + each + (split < more);
        return work;
    }

    /* Grid: SPLITS blocks of each of KV_HEADS * HEAD_BLOCKS, of each of ROWS, and as many more as there are
     * multiprocessors left. Blocks without work stay until the previous launch has completed: every multiprocessor
     * then has one block, which leaves room for one block of the next launch, not for two. Counts, slots, positions,
     * page table and KV of tokens before the row's are read before the wait: this step's launches write none of
     * them. `rings`: shared, as rope_attention_layout.cuh says. `norm_q`, `norm_k`: null without HAS_NORM. */
    static __device__ __forceinline__ void run(u8 *rings, const i32 *counts, const u16 *qkv, const float *table,
                                               const i32 *slots, const i32 *positions, const i32 *page_table, u16 *kv,
                                               u16 *out, void *workspace, const void *norm_q, const void *norm_k)
    {
        __shared__ shared_data shared;
        const int split = (int)blockIdx.x % P::SPLITS, block = (int)blockIdx.x / P::SPLITS;
        const int head_block = block % HEAD_BLOCKS, kv_head = block / HEAD_BLOCKS % P::KV_HEADS,
                  row = block / (HEAD_BLOCKS * P::KV_HEADS);
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        const int heads = min(TILE_HEADS, GROUP - head_block * TILE_HEADS);
        device_trigger();
        if (row >= P::ROWS) {
            device_wait();
            return;
        }
        work work = plan_work(slots, positions, page_table, row, split, warp);
        if (row >= counts[P::COUNT_INDEX] ||
            split >= work.active) { /* slots and positions were read, and are not used */
            device_wait();
            return;
        }

        const int end = work.end;
        auto page_of = [&](int tile) { return tile < end ? work.pages[tile / PAGE_TILES] : 0; };
        const u32 ring = shared_address(rings) + (u32)(warp * WARP_BYTES);
        const u32 arrived = shared_address(shared.arrived[P::BULK ? warp : 0]);
        if constexpr (P::BULK) {
            if (lane < P::STAGES) barrier_init(arrived + 8 * (u32)lane, 1);
            barrier_init_done();
            __syncwarp();
        }
        /* K or V of a tile on its way into a stage. */
        auto fetch = [&](int stage, int page, int tile, int offset) {
            const int start = tile * P::TILE_TOKENS, first = work.first - start, last = work.position - start;
            const u16 *from = kv + (i64)page * PAGE_ELEMENTS + offset +
                              (kv_head * P::PAGE_TOKENS + tile % PAGE_TILES * P::TILE_TOKENS) * P::HEAD_DIM;
            const u32 to = ring + (u32)(stage * STAGE_BYTES);
            if (P::BULK && tile < end) copy_rows(to, from, first, last, arrived + 8 * (u32)stage, lane);
            if (!P::BULK && tile < end) copy_tile(to, from, first, last, lane);
            if (!P::BULK) copy_commit(); /* empty beyond the last tile */
        };
        {
            int pages[(P::STAGES + 1) / 2];
#pragma unroll
            for (int i = 0; i < (P::STAGES + 1) / 2; i++) pages[i] = page_of(work.tile + i * P::WARPS);
#pragma unroll
            for (int i = 0; i < P::STAGES; i++)
                fetch(i, pages[i / 2], work.tile + i / 2 * P::WARPS, i % 2 ? V_OFFSET : 0);
        }
        /* In the round of `tile` its K makes room for a fetch of tile + STAGES / 2 rounds, its V for (STAGES + 1) /
         * 2. */
        int page = page_of(work.tile + P::STAGES / 2 * P::WARPS),
            next_page = page_of(work.tile + (P::STAGES + 1) / 2 * P::WARPS);

        const bool with_new = split == work.active - 1;
        int new_page = with_new ? work.pages[work.position / P::PAGE_TOKENS] : 0;
        for (int i = (int)threadIdx.x; i < (int)sizeof shared.q / 4; i += THREADS) ((u32 *)shared.q)[i] = 0;
        for (int i = (int)threadIdx.x; i < (int)(sizeof shared.k + sizeof shared.v) / 4; i += THREADS)
            ((u32 *)shared.k)[i] = 0;
        __syncthreads();
        device_wait();

        u16 *page_row = kv + (i64)new_page * PAGE_ELEMENTS +
                        (kv_head * P::PAGE_TOKENS + work.position % P::PAGE_TOKENS) * P::HEAD_DIM;
        prepare(shared, qkv + (i64)row * (P::HEADS + 2 * P::KV_HEADS) * P::HEAD_DIM, table + (i64)row * (2 * ROTATED),
                norm_q, norm_k, page_row, kv_head, head_block, heads, with_new, warp, lane);
        __syncthreads();
        queries held;
        if constexpr (Q_HELD) {
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                for (int b = 0; b < K_BLOCKS; b++) load_q(held.part[n][b], shared, n, b, lane);
        }
        state state = {};
#pragma unroll
        for (int n = 0; n < P::HEAD_TILES; n++) state.maximum[n][0] = state.maximum[n][1] = -infinity();
        int stage = 0;
        u32 parity = 0;
        auto wait = [&] {
            if constexpr (P::BULK)
                barrier_wait(arrived + 8 * (u32)stage, parity);
            else
                copies_wait<P::STAGES - 1>();
        };
        auto next_stage = [&] {
            if (++stage == P::STAGES) stage = 0, parity ^= 1;
        };
        for (; work.tile < end; work.tile += P::WARPS) {
            const int start = work.tile * P::TILE_TOKENS, first = work.first - start, token = work.position - start;
            const int k_ahead = work.tile + P::STAGES / 2 * P::WARPS,
                      v_ahead = work.tile + (P::STAGES + 1) / 2 * P::WARPS;
            const int coming_page = page_of(v_ahead + P::WARPS);
            float scores[TOKEN_TILES][P::HEAD_TILES][4];
            u32 weights[TOKEN_TILES][P::HEAD_TILES][2];
            const bool edge = first > 0 || token < P::TILE_TOKENS;
            wait();
            if (edge) patch(ring + (u32)(stage * STAGE_BYTES), shared.k, first, token, false, lane);
            score(scores, ring + (u32)(stage * STAGE_BYTES), held, shared, lane);
            __syncwarp();
            fetch(stage, ODD ? page : next_page, k_ahead, ODD ? V_OFFSET : 0);
            next_stage();
            if (edge) {
#pragma unroll
                for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
                    for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            int at = tt * 16 + i / 2 * 8 + token_of(lane / 4);
                            if (at < first || at > token) scores[tt][n][i] = -infinity();
                        }
            }
            weigh(weights, state, scores);
            wait();
            if (edge) patch(ring + (u32)(stage * STAGE_BYTES), shared.v, first, token, true, lane);
            accumulate(state, ring + (u32)(stage * STAGE_BYTES), weights, lane);
            __syncwarp();
            fetch(stage, next_page, v_ahead, ODD ? 0 : V_OFFSET);
            next_stage();
            page = next_page;
            next_page = coming_page;
        }
        if (!P::BULK) copies_wait<0>();
        /* The ticket arrives while the warps' results are merged. */
        u32 *tickets = (u32 *)workspace + block;
        u32 ticket = 0;
        if (P::SPLITS > 1 && threadIdx.x == 0 && work.active > 1) ticket = add_relaxed(tickets, 1);
        const float *parts = (const float *)rings;
        store_partial(shared, (float *)(rings + warp * WARP_BYTES), state, warp, lane);
        __syncthreads();

        u16 *block_out =
            out + (i64)row * P::HEADS * P::HEAD_DIM + (kv_head * GROUP + head_block * TILE_HEADS) * P::HEAD_DIM;
        constexpr i64 TICKET_BYTES = ((i64)P::ROWS * P::KV_HEADS * HEAD_BLOCKS * 4 + 63) / 64 * 64;
        float4 *space = (float4 *)((u8 *)workspace + TICKET_BYTES) + (i64)block * P::SPLITS * QUADS;
        float2 *space_sums = (float2 *)((u8 *)workspace + TICKET_BYTES +
                                        (i64)P::ROWS * P::KV_HEADS * HEAD_BLOCKS * P::SPLITS * QUADS * 16) +
                             (i64)block * P::SPLITS * BLOCK_HEADS;
        for (int quad = (int)threadIdx.x; quad < QUADS; quad += THREADS) {
            int head = quad / (DIM_8 / 4), column = quad % (DIM_8 / 4);
            merged all = merge(&shared.part_sums[0][head], BLOCK_HEADS,
                               (const float4 *)(parts + head * PART_PITCH + column * 4), WARP_BYTES / 16, P::WARPS);
            if (P::SPLITS == 1 || work.active == 1) {
                store_out(block_out, quad, all, heads);
            } else {
                space[split * QUADS + quad] =
                    make_float4(marked(all.value.x), marked(all.value.y), marked(all.value.z), marked(all.value.w));
                if (column == 0)
                    space_sums[split * BLOCK_HEADS + head] = make_float2(marked(all.maximum), marked(all.sum));
            }
        }
        if (P::SPLITS == 1 || work.active == 1) return;
        if (threadIdx.x == 0) shared.last = ticket == (u32)work.active - 1;
        __syncthreads();
        if (!shared.last)
            return; /* the last block merges: blocks whose results are still missing have almost finished */
        const int each = (work.active + SHARES - 1) / SHARES; /* splits that a thread merges */
        for (int start = 0; start < QUADS * SHARES; start += THREADS) {
            const int i = start + (int)threadIdx.x, quad = i / SHARES, from = i % SHARES * each;
            const u32 lanes = __ballot_sync(0xffffffffu, i < QUADS * SHARES);
            if (i >= QUADS * SHARES) continue;
            merged all = merge_arriving<MERGE_BATCH>(space_sums + from * BLOCK_HEADS + quad / (DIM_8 / 4), BLOCK_HEADS,
                                                     space + from * QUADS + quad, QUADS, min(each, work.active - from));
#pragma unroll
            for (int offset = 1; offset < SHARES; offset *= 2) all = merge_across(all, offset, lanes);
            if (i % SHARES == 0) store_out(block_out, quad, all, heads);
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < work.active * BLOCK_HEADS; i += THREADS) space_sums[i] = make_float2(0, 0);
        if (threadIdx.x == 0) *tickets = 0;
    }
};

#endif
