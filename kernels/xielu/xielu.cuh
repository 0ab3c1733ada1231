/* SPDX-License-Identifier: Apache-2.0 */
/* xielu (contract: xielu.h). A thread does VECTOR neighbouring elements, of all rows in a row. */
#ifndef KERNELS_XIELU_XIELU_CUH
#define KERNELS_XIELU_XIELU_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"

template <class P> struct xielu_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int VECTOR = (int)layout_elementwise_vector(P::WIDTH), VECTORS = P::WIDTH / VECTOR;

    static __device__ __forceinline__ float softplus(float x) { return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x)); }

    /* `out` may be `x`. */
    static __device__ __forceinline__ void run(const int *counts, const void *x, const void *numbers, void *out)
    {
        device_trigger();
        const i64 vector = (i64)blockIdx.x * THREADS + threadIdx.x;
        const float beta = load_element<P::NUMBERS_DTYPE>(numbers, 2), eps = load_element<P::NUMBERS_DTYPE>(numbers, 3);
        const float positive = softplus(load_element<P::NUMBERS_DTYPE>(numbers, 0));
        const float negative = beta + softplus(load_element<P::NUMBERS_DTYPE>(numbers, 1));
        device_wait();
        if (vector >= (i64)min(counts[P::COUNT_INDEX], P::ROWS) * VECTORS) return;
        float value[VECTOR];
        if constexpr (VECTOR > 1)
            load_elements<P::X_DTYPE>(value, x, vector * VECTOR);
        else
            value[0] = load_element<P::X_DTYPE>(x, vector);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const float in = value[i], least = in < eps ? in : eps;
            const float bent = in > 0 ? positive * in * in : (expm1f(least) - in) * negative;
            value[i] = bent + beta * in;
        }
        if constexpr (VECTOR > 1)
            store_elements<P::X_DTYPE>(out, vector * VECTOR, value);
        else
            store_element<P::X_DTYPE>(out, vector, value[0]);
    }
};

#endif
