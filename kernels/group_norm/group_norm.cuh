/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm (contract: group_norm.h). A block has a group of a row. */
#ifndef KERNELS_GROUP_NORM_GROUP_NORM_CUH
#define KERNELS_GROUP_NORM_GROUP_NORM_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/include/reduce.cuh"
#include "kernels/mean_squares/mean_squares_layout.cuh"

template <class P> struct group_norm_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS, COLUMNS = P::WIDTH / P::GROUPS; /* of a group */
    static constexpr int VECTOR = COLUMNS % 8 == 0 ? 8 : COLUMNS % 4 == 0 ? 4 : 1;

    template <int ELEMENT> static __device__ __forceinline__ void load(float (&to)[VECTOR], const void *from, i64 index)
    {
        if constexpr (VECTOR > 1)
            load_elements<ELEMENT>(to, from, index);
        else
            to[0] = load_element<ELEMENT>(from, index);
    }

    static __device__ __forceinline__ float mean_of(const void *x, i64 first)
    {
        float squares = 0;
#pragma unroll 4
        for (int i = (int)threadIdx.x * VECTOR; i < COLUMNS; i += THREADS * VECTOR) {
            float values[VECTOR];
            load<P::X_DTYPE>(values, x, first + i);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) squares = fmaf(values[j], values[j], squares);
        }
        return block_sum<THREADS, false>(squares) * (1.0f / COLUMNS);
    }

    /* `means`: null without HAS_MEANS. */
    static __device__ __forceinline__ void run(const int *counts, const void *x, const void *weight, void *out,
                                               const float *means)
    {
        device_trigger();
        device_wait();
        const i64 row = (int)blockIdx.x / P::GROUPS;
        const int group = (int)blockIdx.x % P::GROUPS;
        if (row >= counts[P::COUNT_INDEX]) return;
        const i64 first = row * P::WIDTH + group * COLUMNS;
        float mean;
        if constexpr (P::HAS_MEANS)
            mean = load_written_float(means + row * MEAN_SQUARES_WIDTH + MEAN_SQUARES_OF_Q);
        else
            mean = mean_of(x, first);
        const float scale = 1 / sqrtf(mean + float_of_bits(P::EPS_BITS));
#pragma unroll 4
        for (int i = (int)threadIdx.x * VECTOR; i < COLUMNS; i += THREADS * VECTOR) {
            float values[VECTOR], by[VECTOR];
            load<P::X_DTYPE>(values, x, first + i);
            load<P::WEIGHT_DTYPE>(by, weight, group * COLUMNS + i);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) values[j] *= scale * by[j];
            if constexpr (VECTOR > 1)
                store_elements<P::X_DTYPE>(out, first + i, values);
            else
                store_element<P::X_DTYPE>(out, first + i, values[0]);
        }
    }
};

#endif
