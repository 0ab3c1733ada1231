/* SPDX-License-Identifier: Apache-2.0 */
/* attention_latent for a row whose tokens fit one tile of each block of a cluster. Exchanging weights instead of results keeps
 * what blocks send one another small: each block scores its tile and gives every block of the cluster the weights, and then adds
 * up its part of the columns of v over all tokens. What it reads of v, the slab, is a second copy of these columns.
 *
 * Nothing is merged afterwards and nothing of a block is read by another one, so that the cluster meets only twice: a block
 * may write to another one when that has begun, and its weights are complete when all have written. */
#ifndef KERNELS_ATTENTION_ATTENTION_LATENT_SHORT_CUH
#define KERNELS_ATTENTION_ATTENTION_LATENT_SHORT_CUH

#include "kernels/attention/attention_latent_tile.cuh"
#include "kernels/cuda/include/scores.cuh"

template <class P> struct attention_latent_short {
    typedef attention_latent_tile<P> tiles;
    typedef typename tiles::place place;
    typedef typename tiles::sequence sequence;
    static constexpr attention_latent_layout layout = tiles::layout;
    static constexpr int MOST_TOKENS = P::SPLIT * P::KEY_TILE;
    static constexpr int entries = tiles::tile;
    static constexpr int slab_columns = (int)layout.slab_columns, slab_row = (int)layout.slab_row_bytes;
    static constexpr int warp_columns = slab_columns / P::WARPS_V, column_blocks = warp_columns / 8;

    static __device__ __forceinline__ float *floats(u8 *memory, layout_size offset)
    {
        return (float *)(memory + offset);
    }

    /* Asks for the rows of the block's tile and of the slab that belong to tokens [begin, end). */
    static __device__ __forceinline__ void load(u8 *memory, const sequence &from, int rank, int begin, int end)
    {
        u8 *stage = memory + tiles::stage_offset, *slab = stage + tiles::stage_bytes;
        const int first = rank * P::KEY_TILE;
        const int low = max(begin, first), high = min(end, first + P::KEY_TILE);
        tiles::template load_tokens<P::HEAD_DIM, tiles::row_bytes, true>(stage + (low - first) * tiles::row_bytes, from,
                                                                         low, high, 0);
        tiles::template load_tokens<slab_columns, slab_row, false>(slab + begin * slab_row, from, begin, end,
                                                                   rank * slab_columns);
    }

    /* Scores of tokens after `last` become -infinity. `first`: token of the lane's first score. */
    static __device__ __forceinline__ void mask(float (&scores)[tiles::warp_keys / 8][4], int first, int last)
    {
#pragma unroll
        for (int n = 0; n < tiles::warp_keys / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (first + 8 * n + i % 2 > last) scores[n][i] = -infinity();
    }

    /* Where the weights of 16 entries for 8 tokens lie: a lane's two words are those that it holds of a product's operand, so that
     * a warp writes and reads neighbouring bytes. */
    static __device__ __forceinline__ u32 weights_at(int warp_q, int eight, int lane)
    {
        return (u32)(layout.weights_offset + ((warp_q * (MOST_TOKENS / 8) + eight) * 32 + lane) * 8);
    }

    /* Weights of the block's tile, relative to its own maximum, to all blocks of the cluster, by a warp that has scores. */
    static __device__ __forceinline__ void send_weights(u8 *memory, float (&scores)[tiles::warp_keys / 8][4],
                                                        const place &at, int rank)
    {
        constexpr int eights = tiles::warp_keys / 8;
        const float scale = float_of_bits(P::SCALE_BITS) * SCORES_LOG2_E;
        u32 weights[2][eights];
        float maximum[2], sum[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int entry = at.warp_q * 16 + at.lane / 4 + 8 * i;
            float max = -infinity();
#pragma unroll
            for (int part = 0; part < tiles::key_warps; part++)
                max = fmaxf(max, tiles::maxima(memory)[part * entries + entry]);
            maximum[i] = max * scale;
            const float base = max == -infinity() ? 0 : maximum[i];
            sum[i] = 0;
#pragma unroll
            for (int n = 0; n < eights; n++) {
                const float low = exp2_approximate(scores[n][2 * i] * scale - base);
                const float high = exp2_approximate(scores[n][2 * i + 1] * scale - base);
                sum[i] += low + high;
                weights[i][n] = pack_halves<P::X_DTYPE>(low, high);
            }
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
        }
        /* The four lanes of two entries send their sums and, for the whole block, their maxima. */
        const int entry = at.warp_q * 16 + at.lane / 4 + at.lane % 2 * 8;
        const bool is_maximum = at.lane % 4 >= 2;
        const float low = is_maximum ? maximum[0] : sum[0], high = is_maximum ? maximum[1] : sum[1];
        const float number = at.lane % 2 ? high : low;
        const u32 number_at =
            is_maximum ? (u32)(layout.all_maxima_offset + (rank * entries + entry) * 4)
                       : (u32)(layout.all_sums_offset + ((rank * tiles::key_warps + at.part) * entries + entry) * 4);
        const int first = (rank * tiles::key_warps + at.part) * eights;
        cluster_wait(); /* all blocks have begun */
        const u32 base = shared_address(memory);
#pragma unroll
        for (int to = 0; to < P::SPLIT; to++) {
            const u32 there = cluster_address(base, (u32)to);
#pragma unroll
            for (int n = 0; n < eights; n++)
                cluster_store(there + weights_at(at.warp_q, first + n, at.lane),
                              (u64)weights[1][n] << 32 | weights[0][n]);
            if (!is_maximum || at.part == 0) cluster_store(there + number_at, number);
        }
    }

    /* What products of the weights of each of `used` blocks count in the result. */
    static __device__ __forceinline__ void leave_factors(u8 *memory, int used)
    {
        for (int i = (int)threadIdx.x; i < entries * P::SPLIT; i += tiles::threads) { /* whole warps */
            const int entry = i / P::SPLIT, block = i % P::SPLIT;
            float maximum = -infinity(), sum = 0;
            if (block < used) {
                maximum = floats(memory, layout.all_maxima_offset)[block * entries + entry];
#pragma unroll
                for (int part = 0; part < tiles::key_warps; part++)
                    sum += floats(memory, layout.all_sums_offset)[(block * tiles::key_warps + part) * entries + entry];
            }
            float top = maximum;
#pragma unroll
            for (int offset = 1; offset < P::SPLIT; offset *= 2)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
            const float factor = exp2_approximate(maximum - (top == -infinity() ? 0 : top));
            sum *= factor;
#pragma unroll
            for (int offset = 1; offset < P::SPLIT; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            floats(memory, layout.factors_offset)[i] = factor * reciprocal(sum);
        }
    }

    /* sums[block] = weights of the block's tile * the warp's columns of the slab. */
    static __device__ __forceinline__ void add_values(float (&sums)[P::SPLIT][column_blocks][4], const u8 *memory,
                                                      const place &at, int last)
    {
        const u32 base = shared_address(memory);
        const u32 slab =
            base + (u32)(tiles::stage_offset + tiles::stage_bytes + at.lane * slab_row + at.part * warp_columns * 2);
#pragma unroll
        for (int block = 0; block < P::SPLIT; block++) {
#pragma unroll
            for (int n = 0; n < column_blocks; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[block][n][i] = 0;
#pragma unroll
            for (int token = block * P::KEY_TILE; token < (block + 1) * P::KEY_TILE; token += 32) {
                u32 a[4][2];
                if (token > last) continue;
#pragma unroll
                for (int i = 0; i < 4; i++) load_shared(a[i], base + weights_at(at.warp_q, token / 8 + i, at.lane));
#pragma unroll
                for (int n = 0; n < column_blocks; n++) {
                    u32 b[4];
                    load_matrices_transposed(b, slab + token * slab_row + n * 16);
                    mma<P::X_DTYPE>(sums[block][n], a[0][0], a[0][1], a[1][0], a[1][1], b[0], b[1]);
                    mma<P::X_DTYPE>(sums[block][n], a[2][0], a[2][1], a[3][0], a[3][1], b[2], b[3]);
                }
            }
        }
    }

    static __device__ __forceinline__ void store(u16 *out, u8 *memory, const float (&sums)[P::SPLIT][column_blocks][4],
                                                 const place &at, int rank)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int entry = at.warp_q * 16 + at.lane / 4 + 8 * i;
            const float *factors = floats(memory, layout.factors_offset) + entry * P::SPLIT;
            u16 *row = out + entry * P::VALUE_DIM + rank * slab_columns + at.part * warp_columns + at.lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < column_blocks; n++) {
                float low = 0, high = 0;
#pragma unroll
                for (int block = 0; block < P::SPLIT; block++) {
                    low += factors[block] * sums[block][n][2 * i];
                    high += factors[block] * sums[block][n][2 * i + 1];
                }
                *(u32 *)(row + 8 * n) = pack_halves<P::X_DTYPE>(low, high);
            }
        }
    }

    /* Tokens up to `last` of the row whose entries begin at `first_entry`; those before `written` were there before this step. */
    static __device__ __forceinline__ void run(u8 *memory, const u16 *q, u16 *out, const sequence &from,
                                               int first_entry, int last, int written, int rank, const place &at)
    {
        u8 *stage = memory + tiles::stage_offset, *slab = stage + tiles::stage_bytes;
        const int used = last / P::KEY_TILE + 1; /* blocks that have tokens */
        load(memory, from, rank, 0, written);
        tiles::template clear_tokens<slab_columns, slab_row>(slab + (last + 1) * slab_row, 31 - last % 32);
        cluster_arrive();
        device_wait();
        tiles::load_queries(memory, q, first_entry, entries);
        load(memory, from, rank, written, last + 1);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        float scores[tiles::warp_keys / 8][4];
        if (rank < used) {
            tiles::score_keys(memory, scores, tiles::query_address(memory, at),
                              shared_address(stage) + tiles::key_offset(at), at);
            if (tiles::has_scores(at)) {
                mask(scores, rank * P::KEY_TILE + at.part * tiles::warp_keys + at.lane % 4 * 2, last);
                tiles::leave_maxima(memory, scores, at);
            }
            __syncthreads();
        }
        if (rank < used && tiles::has_scores(at))
            send_weights(memory, scores, at, rank);
        else
            cluster_wait();
        cluster_sync(); /* the weights are there */
        float sums[P::SPLIT][column_blocks][4];
        leave_factors(memory, used);
        add_values(sums, memory, at, last);
        __syncthreads();
        store(out + (i64)first_entry * P::VALUE_DIM, memory, sums, at, rank);
    }
};

#endif
