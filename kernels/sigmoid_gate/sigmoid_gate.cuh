/* SPDX-License-Identifier: Apache-2.0 */
/* sigmoid_gate (contract: sigmoid_gate.h). A thread does VECTOR neighbouring elements, of all rows in a row. */
#ifndef KERNELS_SIGMOID_GATE_SIGMOID_GATE_CUH
#define KERNELS_SIGMOID_GATE_SIGMOID_GATE_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"

template <class P> struct sigmoid_gate_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int VECTOR = (int)layout_elementwise_vector(P::WIDTH), VECTORS = P::WIDTH / VECTOR;

    /* `out` may be `x` or `gate`. */
    static __device__ __forceinline__ void run(const int *counts, const void *x, const void *gate, void *out)
    {
        device_trigger();
        const i64 vector = (i64)blockIdx.x * THREADS + threadIdx.x;
        device_wait();
        if (vector >= (i64)min(counts[P::COUNT_INDEX], P::ROWS) * VECTORS) return;
        float value[VECTOR], by[VECTOR];
        if constexpr (VECTOR > 1) {
            load_elements<P::X_DTYPE>(value, x, vector * VECTOR);
            load_elements<P::X_DTYPE>(by, gate, vector * VECTOR);
        } else {
            value[0] = load_element<P::X_DTYPE>(x, vector);
            by[0] = load_element<P::X_DTYPE>(gate, vector);
        }
#pragma unroll
        for (int i = 0; i < VECTOR; i++) value[i] = value[i] / (1 + expf(-by[i]));
        if constexpr (VECTOR > 1)
            store_elements<P::X_DTYPE>(out, vector * VECTOR, value);
        else
            store_element<P::X_DTYPE>(out, vector, value[0]);
    }
};

#endif
