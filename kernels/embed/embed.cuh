/* SPDX-License-Identifier: Apache-2.0 */
/* embed (contract: embed.h). One thread block per row and chunk of columns. */
#ifndef KERNELS_EMBED_EMBED_CUH
#define KERNELS_EMBED_EMBED_CUH

#include "kernels/cuda/include/comm.cuh"
#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"
#include "kernels/matmul/fragment_element.cuh"

template <class P> struct embed_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr bool CODED = fragment_is_coded(P::TABLE_DTYPE);
    /* Elements per thread: 16 bytes of a 16-bit table, where rows keep that alignment; one of a coded table, where 32 codes
     * of 4 bits lie in 64 bytes. */
    static constexpr int VECTOR = !CODED && !P::HAS_POSITIONS && P::HIDDEN % 8 == 0 && P::PITCH % 8 == 0 ? 8 : 1;
    static constexpr int BLOCKS_PER_ROW = (P::HIDDEN / VECTOR + THREADS - 1) / THREADS;

    static __device__ __forceinline__ float element(const void *table, u32 token, i64 column)
    {
        if constexpr (CODED)
            return fragment_element<P::TABLE_DTYPE>::load(table, token, (u32)column, P::PITCH);
        else
            return load_element<P::TABLE_DTYPE>(table, (i64)token * P::PITCH + column);
    }

    static __device__ __forceinline__ u32 token_of(const int *counts, const int *tokens, const int *following,
                                                   const int *drawn, int row)
    {
        if constexpr (!P::FOLLOWS) return (u32)tokens[row];
        if (following[row] >= 0) return (u32)following[row];
        const int out_row = ~following[row];
        return out_row < min(counts[1], P::OUT_ROWS) ? (u32)drawn[out_row] : ~0u;
    }

    /* `header`: null without SHARDED. `positions`, `position_table`: null without HAS_POSITIONS; `following`, `drawn`: without FOLLOWS. */
    static __device__ __forceinline__ void run(const int *counts, const int *tokens, const void *table, void *out,
                                               const comm_header *header, const int *positions,
                                               const void *position_table, const int *following, const int *drawn)
    {
        device_trigger();
        const u32 first = P::SHARDED ? header->rank * (u32)P::VOCAB : 0;
        device_wait();
        const int row = blockIdx.x / BLOCKS_PER_ROW;
        const i64 column = ((i64)(blockIdx.x % BLOCKS_PER_ROW) * THREADS + threadIdx.x) * VECTOR;
        if (row >= counts[P::COUNT_INDEX] || column >= P::HIDDEN) return;
        const u32 token = token_of(counts, tokens, following, drawn, row) - first;
        const i64 to = (i64)row * P::HIDDEN + column;
        const bool here = token < P::VOCAB;
        if constexpr (VECTOR == 1) {
            float value = here ? scaled<P::SCALE_BITS>(element(table, token, column)) : 0.0f;
            if constexpr (P::HAS_POSITIONS)
                if (here)
                    value += load_element<P::POSITION_DTYPE>(position_table, (i64)positions[row] * P::HIDDEN + column);
            store_element<P::OUT_DTYPE>(out, to, value);
        } else {
            float values[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            if (here) load_elements<P::TABLE_DTYPE>(values, table, (i64)token * P::PITCH + column);
#pragma unroll
            for (int i = 0; i < 8; i++) values[i] = scaled<P::SCALE_BITS>(values[i]);
            store_elements<P::OUT_DTYPE>(out, to, values);
        }
    }
};

#endif
