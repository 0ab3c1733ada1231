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
 * always in rising order: results are the same bits in every run.
 *
 * Pages with codes (kernels/op/paged.h) are multiplied in f16: the numbers of codes are exact in it, scales of K multiply
 * scores, those of V the weights. A head of q is stored as f16 times a power of two, weights relative to one: either could
 * otherwise leave the range of f16. */
#ifndef KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_CUH
#define KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_CUH

#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/scores.cuh"
#include "kernels/cuda/include/tma.cuh"
#include "kernels/rope_attention/rope_attention_layout.cuh"
#include "kernels/rope_attention/rope_attention_merge.cuh"
#include "kernels/rope_attention/rope_attention_prepare.cuh"

template <class P> struct rope_attention_body {
    typedef rope_attention_preparation<P> preparation;
    static constexpr int GROUP = preparation::GROUP, TILE_HEADS = preparation::TILE_HEADS;
    static constexpr int HEAD_BLOCKS = (GROUP + TILE_HEADS - 1) / TILE_HEADS;
    static constexpr int BLOCK_HEADS = preparation::BLOCK_HEADS; /* the last block may have fewer */
    static constexpr int THREADS = 32 * P::WARPS;

    typedef kv_pages<P> pages;
    static constexpr bool CODED = pages::CODED;
    static constexpr int MMA_DTYPE = preparation::MMA_DTYPE;
    static constexpr int CHUNK = CODED ? 16 : 8;            /* elements of a row in 16 bytes */
    static constexpr int TOKEN_TILES = P::TILE_TOKENS / 16; /* mma tiles of a warp's tile */
    static constexpr int K_BLOCKS =
        (P::HEAD_DIM + 4 * CHUNK - 1) / (4 * CHUNK); /* 4 lanes: what one read per row covers */
    static constexpr int V_BLOCKS = (P::HEAD_DIM + 8 * CHUNK - 1) / (8 * CHUNK); /* 8 lanes, likewise */
    static constexpr int Q_BLOCKS = K_BLOCKS * CHUNK / 8;                        /* 4 lanes x 8 elements of q */
    static constexpr int PAIRS_OF_CHUNK = CHUNK / 2;
    static constexpr int DIM_8 = (P::HEAD_DIM + 7) / 8 * 8; /* partial results: whole groups of 8 */
    static constexpr int QUADS = BLOCK_HEADS * (DIM_8 / 4); /* a block's result as float4 */
    static constexpr int Q_PITCH = ROPE_ATTENTION_Q_PITCH(P::HEAD_DIM);
    static constexpr float RESCALE_LOG2 = 8; /* exponentials reach 2^8, harmless in f16, bf16 and f32 */
    static constexpr int V_OFFSET = (int)pages::VALUES;

    static constexpr int ROW_BYTES = pages::ROW_BYTES;
    static constexpr int CHUNKS = ROPE_ATTENTION_CHUNKS(ROW_BYTES); /* 16 bytes of a row of K or V */
    static constexpr int PITCH = ROPE_ATTENTION_PITCH(ROW_BYTES);
    static constexpr int STAGE_BYTES = ROPE_ATTENTION_STAGE_BYTES(ROW_BYTES, CODED, P::TILE_TOKENS);
    static constexpr u32 SCALES_AT = P::TILE_TOKENS * PITCH * 16; /* of a stage */
    static constexpr int PART_PITCH = ROPE_ATTENTION_PART_PITCH(P::HEAD_DIM);
    static constexpr int WARP_BYTES =
        ROPE_ATTENTION_WARP_BYTES(P::HEAD_DIM, ROW_BYTES, CODED, P::TILE_TOKENS, P::STAGES, BLOCK_HEADS);
    static constexpr int PAGE_TILES = P::PAGE_TOKENS / P::TILE_TOKENS;
    static constexpr bool ODD = P::STAGES % 2; /* then a stage holds K and V in turn */
    /* K and V of tiles, each, that a warp of a split that is alone asks for before the wait: what the ring does not hold comes into
     * the L2 cache, from where it arrives while others are used; memory would take longer. Where all splits work, memory is busy
     * as it is. */
    static constexpr int ASKED = 2 * P::ALONE_TILES > 16 ? 16 : 2 * P::ALONE_TILES > 4 ? 2 * P::ALONE_TILES : 4;
    static constexpr int LINE = 128; /* bytes of a line of the L2 cache */
    /* q is kept in registers where there are enough, else read for every tile. */
    static constexpr bool Q_HELD = P::HEAD_TILES * Q_BLOCKS <= 4 && THREADS <= 256;

    /* The last block's threads share the splits of a quad, if there are enough of them. */
    static constexpr int SHARES = P::SPLITS == 1 ? 1 : THREADS >= 4 * QUADS ? 4 : THREADS >= 2 * QUADS ? 2 : 1;
    static constexpr int MERGE_BATCH = (P::SPLITS + SHARES - 1) / SHARES < 8 ? (P::SPLITS + SHARES - 1) / SHARES : 8;

    static_assert(P::HEADS % P::KV_HEADS == 0 && P::HEAD_DIM % 2 == 0 && P::PAGE_TOKENS % P::TILE_TOKENS == 0,
                  "shapes");
    static_assert(P::TILE_TOKENS % 16 == 0 && P::SPLITS >= 1 && P::STAGES >= 2 && P::STAGES <= 16, "tunables");
    static_assert((!P::BULK && !CODED) || ROW_BYTES % 16 == 0, "rows begin at multiples of 16 bytes");

    struct shared_data {
        alignas(16) u16 q[TILE_HEADS][Q_PITCH];
        alignas(16) u8 k[CHUNKS * 16], v[CHUNKS * 16];             /* the new token's rows, as in the page */
        float k_scale, v_scale;                                    /* with codes: their scales */
        float q_factor[CODED ? TILE_HEADS : 1];                    /* with codes: of the heads of q */
        float2 part_sums[P::WARPS][BLOCK_HEADS];                   /* maximum (log2) and sum of exponentials */
        alignas(8) u64 arrived[P::BULK ? P::WARPS : 1][P::STAGES]; /* mbarriers */
        bool last;
    };
    static_assert(sizeof(shared_data) <= ROPE_ATTENTION_STATIC_BYTES(P::HEAD_DIM, ROW_BYTES, CODED, P::HEAD_TILES,
                                                                     BLOCK_HEADS, P::WARPS, P::STAGES),
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

    /* Rows first..last - 1 of a tile from `from` into a stage, with their scales; zeros for the others, where there may be
     * NaN. */
    static __device__ __forceinline__ void copy_tile(u32 stage, const u8 *from, const float *scales, int first,
                                                     int last, int lane)
    {
        if constexpr (CODED) {
#pragma unroll
            for (int row = lane; row < P::TILE_TOKENS; row += 32)
                copy_async_if<4>(stage + SCALES_AT + (u32)row * 4, scales + row,
                                 (u32)(row - first) < (u32)(last - first));
        }
        if constexpr (ROW_BYTES % 16 == 0) {
            constexpr int COPIES = (P::TILE_TOKENS * CHUNKS + 31) / 32;
            constexpr int UNROLLED = P::HEAD_DIM > 256 ? 4 : COPIES; /* the widest heads leave few registers */
#pragma unroll(UNROLLED)
            for (int j = 0; j < COPIES; j++) {
                int i = lane + 32 * j, row = i / CHUNKS;
                if (P::TILE_TOKENS * CHUNKS % 32 && row >= P::TILE_TOKENS) continue;
                copy_async_if<16>(stage + chunk_at(row, i % CHUNKS), from + i * 16,
                                  (u32)(row - first) < (u32)(last - first));
            }
        } else { /* by pairs; those that fill up the last chunk are zero */
            for (int i = lane; i < P::TILE_TOKENS * CHUNKS * 4; i += 32) {
                int row = i / (CHUNKS * 4), d = i % (CHUNKS * 4) * 2;
                bool inside = d < P::HEAD_DIM && row >= first && row < last;
                copy_async_if<4>(stage + chunk_at(row, d / 8) + (u32)(d % 8 * 2),
                                 from + (inside ? (row * P::HEAD_DIM + d) * 2 : 0), inside);
            }
        }
    }

    /* The same by the copy engine, a row per lane; the other rows stay as they are, scales are copied for all. Completes a
     * phase of `arrived`. */
    static __device__ __forceinline__ void copy_rows(u32 stage, const u8 *from, const float *scales, int first,
                                                     int last, u32 arrived, int lane)
    {
        constexpr u32 scale_bytes = CODED ? P::TILE_TOKENS * 4 : 0;
        first = max(first, 0), last = min(last, P::TILE_TOKENS);
        if (lane == 0) barrier_arrive_expect(arrived, (u32)(max(last - first, 0) * ROW_BYTES) + scale_bytes);
        __syncwarp();
        if constexpr (CODED) {
            if (lane == 31) bulk_copy(stage + SCALES_AT, scales, scale_bytes, arrived);
        }
#pragma unroll
        for (int j = 0; j < P::TILE_TOKENS; j += 32) {
            const int row = lane + j;
            if (row >= first && row < last)
                bulk_copy(stage + chunk_at(row, 0), from + row * ROW_BYTES, ROW_BYTES, arrived);
        }
    }

    /* Where the tile has the new token's row, it becomes `values`, with *scale; rows of V without weight become zero, since
     * what lies there may be NaN (copy_tile has left zeros). `again`: the stage will be filled once more. By a whole warp. */
    static __device__ __forceinline__ void patch(u32 stage, const u8 *values, const float *scale, int first, int token,
                                                 bool is_v, bool again, int lane)
    {
        if (token < P::TILE_TOKENS) {
            for (int chunk = lane; chunk < CHUNKS; chunk += 32)
                store_shared(stage + chunk_at(token, chunk), *(const uint4 *)(values + chunk * 16));
            if constexpr (CODED) {
                if (lane == 31) store_shared(stage + SCALES_AT + (u32)token * 4, *scale);
            }
        }
        if constexpr (P::BULK) {
#pragma unroll 1 /* in most tiles it does nothing: registers matter more */
            for (int i = lane; is_v && i < P::TILE_TOKENS * CHUNKS; i += 32) {
                const int row = i / CHUNKS;
                if (row < first || row > token) store_shared(stage + chunk_at(row, i % CHUNKS), make_uint4(0, 0, 0, 0));
            }
            if constexpr (CODED) {
#pragma unroll 1
                for (int row = lane; is_v && row < P::TILE_TOKENS; row += 32)
                    if (row < first || row > token) store_shared(stage + SCALES_AT + (u32)row * 4, 0.0f);
            }
            if (again) fence_async_shared(); /* a fence waits for more than these stores */
        }
        __syncwarp();
    }

    /* Rows of a tile from `from`, and their scales, on their way into the L2 cache. */
    static __device__ __forceinline__ void prefetch_tile(const u8 *from, const float *scales, int lane)
    {
#pragma unroll
        for (int i = lane * LINE; i < P::TILE_TOKENS * ROW_BYTES; i += 32 * LINE) prefetch_l2(from + i);
        if constexpr (CODED) {
            if (lane == 0) prefetch_l2(scales);
        }
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

    /* Running attention of one warp. Lane (g, t) holds heads 8n + 2t and 8n + 2t + 1 and, of block b, dimensions CHUNK
     * (8 b + g) + 2 j (out[n][b][j][0 and 1]) and one more (out[n][b][j][2 and 3]). */
    struct state {
        float out[P::HEAD_TILES][V_BLOCKS][PAIRS_OF_CHUNK][4];
        float maximum[P::HEAD_TILES][2], sum[P::HEAD_TILES][2]; /* sum: of this lane's tokens */
        float unit; /* with codes: a power of two, by which `out` has to be multiplied */
    };

    struct queries {
        u32 part[Q_HELD ? P::HEAD_TILES : 1][Q_HELD ? Q_BLOCKS : 1][4];
        float scale[P::HEAD_TILES][2]; /* of scores of heads 8n + 2t and 8n + 2t + 1, in units of log2 */
    };

    /* q in the order in which a lane reads K: 16 bytes, which are 8 elements, or 16 with codes. */
    static __device__ __forceinline__ void load_q(u32 (&q)[4], const shared_data &shared, int n, int b, int lane)
    {
        const int element = CODED ? b / 2 * 64 + lane % 4 * 16 + b % 2 * 8 : b * 32 + lane % 4 * 8;
        load_shared(q, shared_address(&shared.q[n * 8 + lane / 4][element]));
    }

    /* Scales of the tokens of this lane's scores, of the rows of a stage. */
    static __device__ __forceinline__ void load_scales(float (&scales)[TOKEN_TILES][2], u32 stage, int lane)
    {
#pragma unroll
        for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                scales[tt][i] = load_shared_float(stage + SCALES_AT + (u32)(tt * 16 + i * 8 + token_of(lane / 4)) * 4);
    }

    /* scores[tt][n]: rows 16 tt + g (0, 1) and 16 tt + g + 8 (2, 3), in units of log2. */
    static __device__ __forceinline__ void score(float (&scores)[TOKEN_TILES][P::HEAD_TILES][4], u32 stage,
                                                 const queries &held, const shared_data &shared, int lane)
    {
        float sums[TOKEN_TILES][P::HEAD_TILES][2][4] = {}; /* two chains: half the latency */
#pragma unroll
        for (int b = 0; b < K_BLOCKS; b++) {
            u32 low[TOKEN_TILES][4], high[TOKEN_TILES][4]; /* 8 tokens further */
#pragma unroll
            for (int tt = 0; tt < TOKEN_TILES; tt++) {
                load_chunk(low[tt], stage, tt * 16 + token_of(lane / 4), b, 4, lane % 4);
                load_chunk(high[tt], stage, tt * 16 + 8 + token_of(lane / 4), b, 4, lane % 4);
            }
#pragma unroll
            for (int part = 0; part < CHUNK / 8; part++) { /* with codes, halves of the chunks */
                u32 q[P::HEAD_TILES][4];
#pragma unroll
                for (int n = 0; n < P::HEAD_TILES; n++) {
                    const int i = b * (CHUNK / 8) + part;
                    if constexpr (Q_HELD)
                        q[n][0] = held.part[n][i][0], q[n][1] = held.part[n][i][1], q[n][2] = held.part[n][i][2],
                        q[n][3] = held.part[n][i][3];
                    else
                        load_q(q[n], shared, n, i, lane);
                }
#pragma unroll
                for (int tt = 0; tt < TOKEN_TILES; tt++) {
                    u32 x[4], y[4];
#pragma unroll
                    for (int i = 0; i < 4; i += 2) {
                        if constexpr (CODED) {
                            kv_codes<P::KV_DTYPE>::to_pairs(low[tt][2 * part + i / 2], x[i], x[i + 1]);
                            kv_codes<P::KV_DTYPE>::to_pairs(high[tt][2 * part + i / 2], y[i], y[i + 1]);
                        } else {
                            x[i] = low[tt][i], x[i + 1] = low[tt][i + 1], y[i] = high[tt][i],
                            y[i + 1] = high[tt][i + 1];
                        }
                    }
#pragma unroll
                    for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                        for (int s = 0; s < 2; s++)
                            mma<MMA_DTYPE>(sums[tt][n][s], x[2 * s], y[2 * s], x[2 * s + 1], y[2 * s + 1], q[n][2 * s],
                                           q[n][2 * s + 1]);
                }
            }
        }
        float scales[TOKEN_TILES][2];
        if constexpr (CODED) load_scales(scales, stage, lane);
#pragma unroll
        for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    scores[tt][n][i] = (sums[tt][n][0][i] + sums[tt][n][1][i]) * held.scale[n][i % 2];
                    if constexpr (CODED) scores[tt][n][i] *= scales[tt][i / 2];
                    scores[tt][n][i] = capped_score<P>(scores[tt][n][i], 1 / SCORES_LOG2_E);
                }
    }

    /* Weights as columns of the second mma. */
    static __device__ __forceinline__ void round_weights(u32 (&rounded)[2], const float (&weights)[4])
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            rounded[i] = transpose_8x8(pack_halves<MMA_DTYPE>(weights[2 * i], weights[2 * i + 1]));
    }

    /* Scores become weights relative to the running maximum, without codes rounded. */
    static __device__ __forceinline__ void weigh(u32 (&rounded)[TOKEN_TILES][P::HEAD_TILES][2], state &state,
                                                 float (&scores)[TOKEN_TILES][P::HEAD_TILES][4])
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
                        for (int j = 0; j < PAIRS_OF_CHUNK; j++) {
                            state.out[n][b][j][c] *= factor;
                            state.out[n][b][j][c + 2] *= factor;
                        }
                }
        }
#pragma unroll
        for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    scores[tt][n][i] = exp2_approximate(scores[tt][n][i] - state.maximum[n][i % 2]);
                    state.sum[n][i % 2] += scores[tt][n][i];
                }
                if constexpr (!CODED) round_weights(rounded[tt][n], scores[tt][n]);
            }
    }

    /* Weights times the scales of the values in `stage`, relative to state.unit, which rises where they would exceed 2^15:
     * weights are at most 2^RESCALE_LOG2. */
    static __device__ __forceinline__ void scale_weights(u32 (&rounded)[TOKEN_TILES][P::HEAD_TILES][2], state &state,
                                                         float (&weights)[TOKEN_TILES][P::HEAD_TILES][4], u32 stage,
                                                         int lane)
    {
        float scales[TOKEN_TILES][2];
        bool exceeds = false;
        load_scales(scales, stage, lane);
#pragma unroll
        for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
            for (int i = 0; i < 2; i++) exceeds |= scales[tt][i] > state.unit * 128;
        if (__any_sync(0xffffffffu, exceeds)) {
            float largest = state.unit;
#pragma unroll
            for (int tt = 0; tt < TOKEN_TILES; tt++)
                largest = fmaxf(largest, fmaxf(scales[tt][0], scales[tt][1])); /* NaN does not count */
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
            const float unit = float_of_bits(bits_of_float(largest) & 0x7f800000), factor = state.unit / unit;
            state.unit = unit;
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                for (int b = 0; b < V_BLOCKS; b++)
#pragma unroll
                    for (int j = 0; j < PAIRS_OF_CHUNK; j++)
#pragma unroll
                        for (int i = 0; i < 4; i++) state.out[n][b][j][i] *= factor;
        }
        const float inverse = float_of_bits(0x7f000000 - bits_of_float(state.unit));
#pragma unroll
        for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) weights[tt][n][i] *= scales[tt][i / 2] * inverse;
                round_weights(rounded[tt][n], weights[tt][n]);
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
                for (int j = 0; j < PAIRS_OF_CHUNK; j += CODED ? 2 : 1) {
                    u32 a[2][4]; /* without codes a[0] alone */
                    if constexpr (CODED) {
#pragma unroll
                        for (int i = 0; i < 2; i++) { /* bytes of the same dimension of two rows side by side */
                            const u32 first = x[2 * i][j / 2], second = x[2 * i + 1][j / 2];
                            kv_codes<P::KV_DTYPE>::to_pairs(__byte_perm(first, second, 0x5140), a[0][2 * i],
                                                            a[0][2 * i + 1]);
                            kv_codes<P::KV_DTYPE>::to_pairs(__byte_perm(first, second, 0x7362), a[1][2 * i],
                                                            a[1][2 * i + 1]);
                        }
                    } else {
                        a[0][0] = __byte_perm(x[0][j], x[1][j], 0x5410),
                        a[0][1] = __byte_perm(x[0][j], x[1][j], 0x7632);
                        a[0][2] = __byte_perm(x[2][j], x[3][j], 0x5410),
                        a[0][3] = __byte_perm(x[2][j], x[3][j], 0x7632);
                    }
#pragma unroll
                    for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                        for (int i = 0; i < (CODED ? 2 : 1); i++)
                            mma<MMA_DTYPE>(state.out[n][b][j + i], a[i][0], a[i][1], a[i][2], a[i][3],
                                           weights[tt][n][0], weights[tt][n][1]);
                }
            }
    }

    /* The warp's result to shared memory. */
    static __device__ __forceinline__ void store_partial(shared_data &shared, float *part, state &state, int warp,
                                                         int lane)
    {
        const int g = lane / 4, t = lane % 4;
        const float unit = CODED ? state.unit * kv_codes<P::KV_DTYPE>::FACTOR : 1;
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
                    if (b * 8 * CHUNK + g * CHUNK >= DIM_8) continue;
                    const float(&o)[PAIRS_OF_CHUNK][4] = state.out[n][b];
                    float4 *to = (float4 *)(part + head * PART_PITCH + b * 8 * CHUNK + g * CHUNK);
#pragma unroll
                    for (int i = 0; i < PAIRS_OF_CHUNK; i += 4, to += 2) {
                        float4 low =
                            make_float4(o[i][c] * unit, o[i][c + 2] * unit, o[i + 1][c] * unit, o[i + 1][c + 2] * unit);
                        float4 high = make_float4(o[i + 2][c] * unit, o[i + 2][c + 2] * unit, o[i + 3][c] * unit,
                                                  o[i + 3][c + 2] * unit);
                        to[g % 2] = g % 2 ? high : low; /* odd lanes the other half first: no bank conflicts */
                        to[1 - g % 2] = g % 2 ? low : high;
                    }
                }
            }
    }

    /* Quad number `quad` of the block's result, divided by the sum, to OUT. `first_head`: the block's, for the sinks. */
    static __device__ __forceinline__ void store_out(u16 *out, int quad, const merged &all, int heads,
                                                     const void *sinks, int first_head)
    {
        int head = quad / (DIM_8 / 4), d = quad % (DIM_8 / 4) * 4;
        if (head >= heads) return;
        u16 *to = out + head * P::HEAD_DIM + d;
        float inverse = 1 / (all.sum + sink_term<P>(sinks, first_head + head, all.maximum));
        u32 low = pack_halves<P::X_DTYPE>(all.value.x * inverse, all.value.y * inverse);
        u32 high = pack_halves<P::X_DTYPE>(all.value.z * inverse, all.value.w * inverse);
        if constexpr (P::HEAD_DIM % 4 == 0) {
            if (P::HEAD_DIM % 8 == 0 || d < P::HEAD_DIM) *(uint2 *)to = make_uint2(low, high);
        } else {
            if (d < P::HEAD_DIM) *(u32 *)to = low;
            if (d + 2 < P::HEAD_DIM) *(u32 *)(to + 2) = high;
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
                                               const i32 *slots, const i32 *positions, const i32 *page_table, u8 *kv,
                                               u16 *out, void *workspace, const void *norm_q, const void *norm_k,
                                               const void *sinks, const float *kv_scales, const float *means)
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
        /* Where K or V of a tile lies, and its scales. */
        auto rows_of = [&](int page, int tile, int offset, const float *&scales) {
            const u8 *block = kv + (i64)page * P::PAGE_BYTES;
            const int place = kv_head * P::PAGE_TOKENS + tile % PAGE_TILES * P::TILE_TOKENS;
            scales = (const float *)(block + (offset + (int)pages::SCALES + place * 4));
            return block + (offset + place * ROW_BYTES);
        };
        /* K or V of a tile on its way into a stage. */
        auto fetch = [&](int stage, int page, int tile, int offset) {
            const int start = tile * P::TILE_TOKENS, first = work.first - start, last = work.position - start;
            const float *scales;
            const u8 *from = rows_of(page, tile, offset, scales);
            const u32 to = ring + (u32)(stage * STAGE_BYTES);
            if (P::BULK && tile < end) copy_rows(to, from, scales, first, last, arrived + 8 * (u32)stage, lane);
            if (!P::BULK && tile < end) copy_tile(to, from, scales, first, last, lane);
            if (!P::BULK) copy_commit(); /* empty beyond the last tile */
        };
        {
            constexpr int ALL = P::STAGES > ASKED ? P::STAGES : ASKED;
            int ahead[(ALL + 1) / 2];
#pragma unroll
            for (int i = 0; i < (ALL + 1) / 2; i++) ahead[i] = page_of(work.tile + i * P::WARPS);
#pragma unroll
            for (int i = 0; i < P::STAGES; i++)
                fetch(i, ahead[i / 2], work.tile + i / 2 * P::WARPS, i % 2 ? V_OFFSET : 0);
#pragma unroll
            for (int i = P::STAGES; i < ALL; i++) {
                const int tile = work.tile + i / 2 * P::WARPS;
                const float *scales;
                const u8 *from = rows_of(ahead[i / 2], tile, i % 2 ? V_OFFSET : 0, scales);
                if (tile < end && work.active == 1) prefetch_tile(from, scales, lane);
            }
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
        if constexpr (CODED) {
            for (int i = (int)threadIdx.x; i < TILE_HEADS; i += THREADS) shared.q_factor[i] = 1;
        }
        typename preparation::norms norms;
        preparation::load_norms(norms, norm_q, norm_k, kv_head, head_block, warp, lane);
        __syncthreads();
        device_wait();

        const i64 place = kv_head * P::PAGE_TOKENS + work.position % P::PAGE_TOKENS;
        constexpr int QKV_HEADS = P::HEADS + (P::APPENDED ? 0 : 2 * P::KV_HEADS);
        u8 *const new_block = kv + (i64)new_page * P::PAGE_BYTES;
        if constexpr (P::APPENDED) {
            if (with_new) preparation::take(shared, new_block, place);
        }
        preparation::run(shared, qkv + (i64)row * QKV_HEADS * P::HEAD_DIM,
                         table + (i64)row * (2 * preparation::ROTATED), norms, norm_q, norm_k, kv_scales,
                         P::HAS_MEANS ? means + (i64)row * MEAN_SQUARES_WIDTH : nullptr, new_block, place, kv_head,
                         head_block, heads, with_new, warp, lane);
        __syncthreads();
        queries held;
#pragma unroll
        for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                held.scale[n][c] = float_of_bits(P::SCALE_BITS) * 1.44269504f;
                if constexpr (CODED)
                    held.scale[n][c] *= shared.q_factor[n * 8 + lane % 4 * 2 + c] * kv_codes<P::KV_DTYPE>::FACTOR;
            }
        if constexpr (Q_HELD) {
#pragma unroll
            for (int n = 0; n < P::HEAD_TILES; n++)
#pragma unroll
                for (int b = 0; b < Q_BLOCKS; b++) load_q(held.part[n][b], shared, n, b, lane);
        }
        state state = {};
        state.unit = 0x1p-100f;
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
        /* The ticket is asked for in the last round, so that it has come when the warps' results are merged. Each split that works
         * has a tile for its first warp. The last ticket makes the counter zero. */
        u32 ticket = 0;
        for (; work.tile < end; work.tile += P::WARPS) {
            if (P::SPLITS > 1 && threadIdx.x == 0 && work.active > 1 && work.tile + P::WARPS >= end)
                ticket = count_relaxed((u32 *)workspace + block, (u32)work.active - 1);
            const int start = work.tile * P::TILE_TOKENS, first = work.first - start, token = work.position - start;
            const int k_ahead = work.tile + P::STAGES / 2 * P::WARPS,
                      v_ahead = work.tile + (P::STAGES + 1) / 2 * P::WARPS;
            const int coming_page = page_of(v_ahead + P::WARPS);
            float scores[TOKEN_TILES][P::HEAD_TILES][4];
            u32 weights[TOKEN_TILES][P::HEAD_TILES][2];
            const bool edge = first > 0 || token < P::TILE_TOKENS;
            wait();
            if (edge)
                patch(ring + (u32)(stage * STAGE_BYTES), shared.k, &shared.k_scale, first, token, false, k_ahead < end,
                      lane);
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
            if (edge)
                patch(ring + (u32)(stage * STAGE_BYTES), shared.v, &shared.v_scale, first, token, true, v_ahead < end,
                      lane);
            if constexpr (CODED) scale_weights(weights, state, scores, ring + (u32)(stage * STAGE_BYTES), lane);
            accumulate(state, ring + (u32)(stage * STAGE_BYTES), weights, lane);
            __syncwarp();
            fetch(stage, next_page, v_ahead, ODD ? 0 : V_OFFSET);
            next_stage();
            page = next_page;
            next_page = coming_page;
        }
        if (!P::BULK) copies_wait<0>();
        const float *parts = (const float *)rings;
        store_partial(shared, (float *)(rings + warp * WARP_BYTES), state, warp, lane);
        __syncthreads();

        const int first_head = kv_head * GROUP + head_block * TILE_HEADS;
        u16 *block_out = out + (i64)row * P::HEADS * P::HEAD_DIM + first_head * P::HEAD_DIM;
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
                store_out(block_out, quad, all, heads, sinks, first_head);
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
            if (i % SHARES == 0) store_out(block_out, quad, all, heads, sinks, first_head);
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < work.active * BLOCK_HEADS; i += THREADS) space_sums[i] = make_float2(0, 0);
    }
};

#endif
