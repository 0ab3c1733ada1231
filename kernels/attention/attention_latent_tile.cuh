/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of attention_latent in shared memory: rows of tokens and of queries on their way into it, and the scores of a tile. */
#ifndef KERNELS_ATTENTION_ATTENTION_LATENT_TILE_CUH
#define KERNELS_ATTENTION_ATTENTION_LATENT_TILE_CUH

#include "kernels/attention/attention_layout.cuh"
#include "kernels/cuda/include/kv.cuh"
#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/ptx.cuh"

template <class P> struct attention_latent_tile {
    static constexpr int threads = 32 * P::WARPS_Q * P::WARPS_V;
    typedef kv_pages<P> pages_layout;
    static constexpr bool coded = pages_layout::CODED;
    static constexpr attention_latent_layout layout =
        attention_latent_lay_out(P::HEADS, P::HEAD_DIM, P::VALUE_DIM, P::WARPS_Q, P::WARPS_V, P::KEY_TILE, P::SPLIT,
                                 P::GROUPS);
    static constexpr int key_warps = (int)layout.key_warps, dim_warps = (int)layout.dim_warps;
    static constexpr int warp_keys = P::KEY_TILE / key_warps;
    static constexpr int tile = (int)layout.entries, dim = (int)layout.dim, row_bytes = (int)layout.row_bytes;
    static constexpr int stage_offset = (int)layout.stages_offset, stage_bytes = (int)layout.stage_bytes;
    static constexpr int token_bytes = P::HEAD_DIM * pages_layout::ELEMENT_BYTES;
    static constexpr int copy_elements = 16 / pages_layout::ELEMENT_BYTES;
    static_assert((warp_keys == 8 || warp_keys % 16 == 0) && dim_warps <= 2, "launch checks");
    static_assert(P::HEAD_DIM % 8 == 0 && P::VALUE_DIM % 8 == 0, "launch checks");

    /* Where a warp stands: its sixteen entries, and its part of their tokens and columns. */
    struct place {
        int warp_q, part, lane;
    };

    /* The warp's part of a tile's tokens; whether it has their scores, which it shares with another one if dim_warps is 2. */
    static __device__ __forceinline__ int key_part(const place &at)
    {
        return dim_warps > 1 ? at.part % key_warps : at.part;
    }
    static __device__ __forceinline__ bool has_scores(const place &at) { return dim_warps == 1 || at.part < key_warps; }

    /* Pages of a sequence. */
    struct sequence {
        const u8 *kv;
        const i32 *pages;
    };

    /* Columns [column, column + COLUMNS) of tokens [begin, end) into `rows`, PITCH bytes each, that of `begin` first. IN_TILE: all
     * are of one tile. Reads past the L1 cache, which may hold a line of before the step's tokens were written. */
    template <int COLUMNS, int PITCH, bool IN_TILE>
    static __device__ __forceinline__ void load_tokens(u8 *rows, const sequence &from, int begin, int end, int column)
    {
        constexpr int copies = COLUMNS / copy_elements;
        constexpr bool one_page = IN_TILE && P::PAGE_TOKENS % P::KEY_TILE == 0;
        constexpr int unrolled = threads > 256 ? 1 : 4; /* large blocks leave few registers */
        static_assert(COLUMNS % copy_elements == 0, "whole copies");
        if (begin >= end) return;
        int page = one_page ? from.pages[begin / P::PAGE_TOKENS] : 0;
#pragma unroll(unrolled)
        for (int i = (int)threadIdx.x; i < (end - begin) * copies; i += threads) {
            const int token = begin + i / copies, part = i % copies;
            if constexpr (!one_page) page = from.pages[token / P::PAGE_TOKENS];
            const u8 *block = from.kv + page * (i64)P::PAGE_BYTES;
            const u8 *source =
                block + (token % P::PAGE_TOKENS) * token_bytes + column * pages_layout::ELEMENT_BYTES + part * 16;
            u8 *to = rows + i / copies * PITCH + part * copy_elements * 2;
            if constexpr (coded) {
                alignas(16) u32 codes[4];
                load_written(codes, source);
                const float scale =
                    load_written_float((const float *)(block + pages_layout::SCALES) + token % P::PAGE_TOKENS);
                kv_load_codes<P::KV_DTYPE, P::X_DTYPE>(to, (const u8 *)codes, scale * kv_codes<P::KV_DTYPE>::FACTOR);
            } else {
                copy_async<16>(shared_address(to), source);
            }
        }
    }

    /* The first COLUMNS columns of `count` rows become zero: NaN times a weight of zero is NaN. */
    template <int COLUMNS, int PITCH> static __device__ __forceinline__ void clear_tokens(u8 *rows, int count)
    {
        constexpr int pieces = COLUMNS / 8;
        for (int i = (int)threadIdx.x; i < count * pieces; i += threads)
            *(uint4 *)(rows + i / pieces * PITCH + i % pieces * 16) = make_uint4(0, 0, 0, 0);
    }

    /* Asks for the entries' rows of q; those that there are not become zero. */
    static __device__ __forceinline__ void load_queries(u8 *memory, const u16 *q, int first_entry, int entries)
    {
        constexpr int pieces = dim / 8;
        for (int i = (int)threadIdx.x; i < tile * pieces; i += threads) {
            const int entry = i / pieces, column = i % pieces * 8;
            const bool is_there = column < P::HEAD_DIM && entry < entries;
            const i64 from = ((i64)first_entry + entry) * P::HEAD_DIM + column;
            copy_async_if<16>(shared_address(memory + entry * row_bytes + column * 2), is_there ? q + from : q,
                              is_there);
        }
    }

    /* The lane's addresses for ldmatrix: of its entries, and of its part of the keys in a stage. */
    static __device__ __forceinline__ u32 query_address(const u8 *memory, const struct place &at)
    {
        return shared_address(memory) + (u32)((at.warp_q * 16 + at.lane % 16) * row_bytes + at.lane / 16 * 16);
    }
    static __device__ __forceinline__ u32 key_offset(const struct place &at)
    {
        const int key = warp_keys == 8 ? at.lane % 8 : at.lane % 8 + at.lane / 16 * 8;
        return (u32)((key_part(at) * warp_keys + key) * row_bytes + at.lane / 8 % 2 * 16);
    }

    /* `q`, `k`: the lane's addresses for ldmatrix. A chain of products waits for each of them: there are several. */
    static __device__ __forceinline__ void score_part(float (&scores)[warp_keys / 8][4], u32 q, u32 k, const place &at)
    {
        constexpr int tiles = warp_keys / 8, chains = tiles < 4 ? 4 / tiles : 1, all_steps = dim / 16;
        constexpr int steps = (all_steps + dim_warps - 1) / dim_warps; /* of a warp, at most */
        const int begin = has_scores(at) ? 0 : steps, own_steps = min(steps, all_steps - begin);
        q += (u32)(32 * begin), k += (u32)(32 * begin);
        float sums[chains][tiles][4];
#pragma unroll
        for (int c = 0; c < chains; c++)
#pragma unroll
            for (int n = 0; n < tiles; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[c][n][i] = 0;
#pragma unroll 2
        for (int first = 0; first < steps; first += chains) {
#pragma unroll
            for (int c = 0; c < chains; c++) {
                const int s = first + c;
                u32 a[4];
                if ((steps % chains || all_steps % dim_warps) && s >= own_steps) continue;
                load_matrices(a, q + 32 * s);
                if constexpr (warp_keys == 8) {
                    u32 b[2];
                    load_matrices(b, k + 32 * s);
                    mma<P::X_DTYPE>(sums[c][0], a[0], a[1], a[2], a[3], b[0], b[1]);
                } else {
#pragma unroll
                    for (int n = 0; n < tiles; n += 2) {
                        u32 b[4];
                        load_matrices(b, k + n * 8 * row_bytes + 32 * s);
                        mma<P::X_DTYPE>(sums[c][n], a[0], a[1], a[2], a[3], b[0], b[1]);
                        mma<P::X_DTYPE>(sums[c][n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
                    }
                }
            }
        }
#pragma unroll
        for (int n = 0; n < tiles; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[n][i] = sums[0][n][i];
#pragma unroll
                for (int c = 1; c < chains; c++) scores[n][i] += sums[c][n][i];
            }
    }

    /* Scores of the warp's tokens, in the warps that have_scores. Called by all threads. */
    static __device__ __forceinline__ void score_keys(u8 *memory, float (&scores)[warp_keys / 8][4], u32 q, u32 k,
                                                      const place &at)
    {
        score_part(scores, q, k, at);
        if constexpr (dim_warps > 1) {
            float4 *parts = (float4 *)(memory + layout.scores_offset) +
                            (at.warp_q * key_warps + key_part(at)) * (warp_keys / 8) * 32 + at.lane;
            if (!has_scores(at)) {
#pragma unroll
                for (int n = 0; n < warp_keys / 8; n++)
                    parts[n * 32] = make_float4(scores[n][0], scores[n][1], scores[n][2], scores[n][3]);
            }
            __syncthreads();
            if (has_scores(at)) {
#pragma unroll
                for (int n = 0; n < warp_keys / 8; n++) {
                    const float4 part = parts[n * 32];
                    scores[n][0] += part.x, scores[n][1] += part.y, scores[n][2] += part.z, scores[n][3] += part.w;
                }
            }
        }
    }

    static __device__ __forceinline__ float *maxima(u8 *memory) { return (float *)(memory + layout.maxima_offset); }

    /* The largest scores of the warp's tokens, of a warp that has them. */
    static __device__ __forceinline__ void leave_maxima(u8 *memory, const float (&scores)[warp_keys / 8][4],
                                                        const struct place &at)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float max = -infinity();
#pragma unroll
            for (int n = 0; n < warp_keys / 8; n++) max = fmaxf(max, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
            if (at.lane % 4 == 0) maxima(memory)[key_part(at) * tile + at.warp_q * 16 + at.lane / 4 + 8 * i] = max;
        }
    }
};

#endif
