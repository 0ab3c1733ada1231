/* SPDX-License-Identifier: Apache-2.0 */
/* Residual and norm of a row of all_reduce whose sum one thread block has in registers. Contract:
 * all_reduce.h. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_ROW_CUH
#define KERNELS_ALL_REDUCE_ALL_REDUCE_ROW_CUH

#include "kernels/cuda/include/comm.cuh"
#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/reduce.cuh"

template <class P> struct all_reduce_row {
    static constexpr int VECTOR = VECTOR_OF<P::X_DTYPE>; /* elements of one 16-byte access */
    static constexpr int VECTORS = P::WIDTH / VECTOR;    /* of a row */
    static constexpr int STEPS = (VECTORS + P::THREADS - 1) / P::THREADS;
    static_assert(P::WIDTH % VECTOR == 0, "whole vectors");

    struct row_end {
        float *out;
        const float *residual;
        const void *weight;
        void *normed;
    };

    /* Loads the residual of a thread's vector number s of a row; zero without HAS_RESIDUAL. */
    static __device__ __forceinline__ void load_residual(int row, int s, float (&base)[VECTOR], const row_end &end)
    {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) base[i] = 0;
        if constexpr (P::HAS_RESIDUAL)
            load_elements<DTYPE_F32>(base, end.residual, ((i64)row * VECTORS + threadIdx.x + s * P::THREADS) * VECTOR);
    }

    /* Stores a row, of which every thread has its part in `sum`, and replaces `sum` by the normed row. */
    static __device__ __forceinline__ void finish_row(int row, float sum[STEPS][VECTOR], const row_end &end)
    {
        float squares = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int vector = threadIdx.x + s * P::THREADS;
            if (vector >= VECTORS) continue;
#pragma unroll
            for (int i = 0; i < VECTOR; i++) squares = fmaf(sum[s][i], sum[s][i], squares);
            store_elements<DTYPE_F32>(end.out, ((i64)row * VECTORS + vector) * VECTOR, sum[s]);
        }
        if constexpr (P::HAS_NORM) {
            const float factor =
                rsqrtf(block_sum<P::THREADS, true>(squares) * (1.0f / P::WIDTH) + float_of_bits(P::EPS_BITS));
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int vector = threadIdx.x + s * P::THREADS;
                if (vector >= VECTORS) continue;
                float scale[VECTOR];
                load_elements<P::NORM_DTYPE>(scale, end.weight, vector * VECTOR);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[s][i] = sum[s][i] * factor * scale[i];
            }
        }
    }

    static __device__ __forceinline__ void store_normed_row(int row, const float normed[STEPS][VECTOR],
                                                            const row_end &end)
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int vector = threadIdx.x + s * P::THREADS;
            if (P::HAS_NORM && vector < VECTORS)
                store_elements<P::OUT_DTYPE>(end.normed, ((i64)row * VECTORS + vector) * VECTOR, normed[s]);
        }
    }
};

#endif
