/* SPDX-License-Identifier: Apache-2.0 */
/* mean_squares (contract: mean_squares.h). A block has a row. */
#ifndef KERNELS_MEAN_SQUARES_MEAN_SQUARES_CUH
#define KERNELS_MEAN_SQUARES_MEAN_SQUARES_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/include/reduce.cuh"
#include "kernels/mean_squares/mean_squares_layout.cuh"

template <class P> struct mean_squares_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int Q_WIDTH = P::HEADS * P::HEAD_DIM, K_WIDTH = P::KV_HEADS * P::HEAD_DIM;
    static constexpr int VECTOR = P::HEAD_DIM % 8 == 0 ? 8 : P::HEAD_DIM % 4 == 0 ? 4 : 2;

    struct alignas(2 * VECTOR) halves {
        u16 at[VECTOR];
    };

    /* A thread's part of the sum of squares of `width` elements. */
    static __device__ __forceinline__ float squares_of(const u16 *x, int width)
    {
        float squares = 0;
#pragma unroll 4
        for (int i = threadIdx.x * VECTOR; i < width; i += THREADS * VECTOR) {
            const halves values = *(const halves *)(x + i);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                const float value = float_of_half<P::X_DTYPE>(values.at[j]);
                squares = fmaf(value, value, squares);
            }
        }
        return squares;
    }

    static __device__ __forceinline__ void run(const int *counts, const u16 *qkv, float *out)
    {
        device_trigger();
        device_wait();
        const i64 row = blockIdx.x;
        if (row >= counts[P::COUNT_INDEX]) return;
        const u16 *x = qkv + row * (Q_WIDTH + 2 * K_WIDTH);
        const float of_q = squares_of(x, Q_WIDTH), of_k = squares_of(x + Q_WIDTH, K_WIDTH);
        const float q_mean = block_sum<THREADS, false>(of_q) * (1.0f / Q_WIDTH / P::RANKS);
        float k_mean = 0;
        if constexpr (K_WIDTH > 0) k_mean = block_sum<THREADS, true>(of_k) * (1.0f / K_WIDTH / P::RANKS);
        if (threadIdx.x >= MEAN_SQUARES_WIDTH) return;
        out[row * MEAN_SQUARES_WIDTH + threadIdx.x] = threadIdx.x == MEAN_SQUARES_OF_Q   ? q_mean
                                                      : threadIdx.x == MEAN_SQUARES_OF_K ? k_mean
                                                                                         : 0.0f;
    }
};

#endif
