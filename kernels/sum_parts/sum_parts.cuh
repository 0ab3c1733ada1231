/* SPDX-License-Identifier: Apache-2.0 */
/* sum_parts (contract: sum_parts.h). A thread does VECTOR columns of a row; all parts are under way at once. */
#ifndef KERNELS_SUM_PARTS_SUM_PARTS_CUH
#define KERNELS_SUM_PARTS_SUM_PARTS_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/include/ptx.cuh"

template <class P> struct sum_parts_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int VECTOR = P::WIDTH % 4 == 0 ? 4 : 1, VECTORS = P::WIDTH / VECTOR;

    static __device__ __forceinline__ void load(float (&to)[VECTOR], const float *from)
    {
        if constexpr (VECTOR == 4) {
            u32 words[4];
            load_written(words, from);
#pragma unroll
            for (int i = 0; i < 4; i++) to[i] = float_of_bits(words[i]);
        } else {
            to[0] = load_written_float(from);
        }
    }

    static __device__ __forceinline__ void run(const int *counts, const float *x, void *out, const float *residual)
    {
        device_trigger();
        device_wait();
        const i64 index = (i64)blockIdx.x * THREADS + threadIdx.x, row = index / VECTORS;
        const i64 column = index % VECTORS * VECTOR;
        if (row >= min(counts[P::COUNT_INDEX], P::ROWS)) return;
        float sum[VECTOR] = {};
        if constexpr (P::HAS_RESIDUAL) load(sum, residual + row * P::WIDTH + column);
#pragma unroll 8
        for (int part = 0; part < P::PARTS; part++) {
            float value[VECTOR];
            load(value, x + (row * P::PARTS + part) * P::WIDTH + column);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[i] += value[i];
        }
#pragma unroll
        for (int i = 0; i < VECTOR; i++) store_element<P::OUT_DTYPE>(out, row * P::WIDTH + column + i, sum[i]);
    }
};

#endif
