/* SPDX-License-Identifier: Apache-2.0 */
/* multiply (contract: multiply.h). A thread does VECTOR neighbouring elements, of all rows in a row. */
#ifndef KERNELS_MULTIPLY_MULTIPLY_CUH
#define KERNELS_MULTIPLY_MULTIPLY_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"

template <class P> struct multiply_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int VECTOR = (int)layout_elementwise_vector(P::WIDTH), VECTORS = P::WIDTH / VECTOR;
    static constexpr int BY_DTYPE = P::HAS_WEIGHT ? (int)P::WEIGHT_DTYPE : (int)P::BY_DTYPE;

    /* VECTOR elements from `at` on. */
    template <int DTYPE> static __device__ __forceinline__ void load(float (&to)[VECTOR], const void *from, i64 at)
    {
        if constexpr (VECTOR > 1)
            load_elements<DTYPE>(to, from, at);
        else
            to[0] = load_element<DTYPE>(from, at);
    }

    /* `by`: the value, or with HAS_WEIGHT the weight. */
    static __device__ __forceinline__ void run(const int *counts, const void *x, void *out, const void *by)
    {
        device_trigger();
        const i64 vector = (i64)blockIdx.x * THREADS + threadIdx.x;
        float value[VECTOR], factor[VECTOR];
        device_wait();
        if (vector >= (i64)min(counts[P::COUNT_INDEX], P::ROWS) * VECTORS) return;
        load<P::X_DTYPE>(value, x, vector * VECTOR);
        load<BY_DTYPE>(factor, by, (P::HAS_WEIGHT ? vector % VECTORS : vector) * VECTOR);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) value[i] *= factor[i];
        if constexpr (VECTOR > 1)
            store_elements<P::OUT_DTYPE>(out, vector * VECTOR, value);
        else
            store_element<P::OUT_DTYPE>(out, vector, value[0]);
    }
};

#endif
