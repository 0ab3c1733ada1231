/* SPDX-License-Identifier: Apache-2.0 */
/* select_columns (contract: select_columns.h). A thread does VECTOR neighbouring columns of a row of out. `order`, a weight,
 * is read while the op before still writes x. */
#ifndef KERNELS_SELECT_COLUMNS_SELECT_COLUMNS_CUH
#define KERNELS_SELECT_COLUMNS_SELECT_COLUMNS_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"

template <class P> struct select_columns_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int VECTOR = (int)layout_elementwise_vector(P::WIDTH), VECTORS = P::WIDTH / VECTOR;

    static __device__ __forceinline__ void run(const int *counts, const void *x, const float *order, void *out)
    {
        device_trigger();
        const i64 vector = (i64)blockIdx.x * THREADS + threadIdx.x, row = vector / VECTORS;
        const i64 column = vector % VECTORS * VECTOR;
        float place[VECTOR], value[VECTOR];
        if constexpr (VECTOR > 1)
            load_elements<DTYPE_F32>(place, order, column);
        else
            place[0] = order[column];
        device_wait();
        if (row >= min(counts[P::COUNT_INDEX], P::ROWS)) return;
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            value[i] = place[i] >= 0 && place[i] < (float)P::WIDTH
                           ? load_element<P::X_DTYPE>(x, row * P::WIDTH + (int)place[i])
                           : 0.0f;
        if constexpr (VECTOR > 1)
            store_elements<P::OUT_DTYPE>(out, vector * VECTOR, value);
        else
            store_element<P::OUT_DTYPE>(out, vector, value[0]);
    }
};

#endif
