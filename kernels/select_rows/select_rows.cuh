/* SPDX-License-Identifier: Apache-2.0 */
/* select_rows: out[o, :] = x[index[o], :] (contract: select_rows.h). A thread copies 16 bytes where rows keep
 * that alignment, else one 32-bit word. */
#ifndef KERNELS_SELECT_ROWS_SELECT_ROWS_CUH
#define KERNELS_SELECT_ROWS_SELECT_ROWS_CUH

#include "kernels/cuda/include/device.cuh"
#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"

template <class P> struct select_rows_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int WORDS =
        P::X_DTYPE == DTYPE_F32 ? P::WIDTH : P::WIDTH / 2; /* of 32 bits, whatever is in them */
    static constexpr int VECTOR = WORDS % 4 == 0 ? 4 : 1;
    static constexpr int BLOCKS_PER_ROW = (WORDS / VECTOR + THREADS - 1) / THREADS;

    static __device__ __forceinline__ void run(const int *counts, const float *x, const int *index, float *out)
    {
        device_trigger();
        device_wait();
        const int row = blockIdx.x / BLOCKS_PER_ROW;
        const int column = ((blockIdx.x % BLOCKS_PER_ROW) * THREADS + threadIdx.x) * VECTOR;
        if (row >= counts[P::COUNT_INDEX] || column >= WORDS) return;
        const u32 from = (u32)index[row];
        float *to = out + (i64)row * WORDS + column;
        if constexpr (VECTOR == 4)
            *(float4 *)to =
                from < P::IN_ROWS ? *(const float4 *)(x + (i64)from * WORDS + column) : make_float4(0, 0, 0, 0);
        else
            *to = from < P::IN_ROWS ? x[(i64)from * WORDS + column] : 0.0f;
    }
};

#endif
