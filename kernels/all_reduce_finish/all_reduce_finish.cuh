/* SPDX-License-Identifier: Apache-2.0 */
/* Residual and norm after a library's all_reduce (contract: all_reduce_finish.h). A thread block does a row. */
#ifndef KERNELS_ALL_REDUCE_FINISH_ALL_REDUCE_FINISH_CUH
#define KERNELS_ALL_REDUCE_FINISH_ALL_REDUCE_FINISH_CUH

#include "kernels/all_reduce/all_reduce_row.cuh"

template <class P> struct all_reduce_finish_body : all_reduce_row<P> {
    typedef all_reduce_row<P> base;
    using base::STEPS, base::VECTOR, base::VECTORS, base::finish_row, base::load_residual, base::store_normed_row;
    using typename base::row_end;

    /* `residual`: null without HAS_RESIDUAL; `weight`, `normed`: without HAS_NORM. */
    static __device__ __forceinline__ void run(const int *counts, const uint4 *parts, float *out, const float *residual,
                                               const void *weight, void *normed)
    {
        device_trigger();
        const row_end end = {out, residual, weight, normed};
        device_wait();
        const int row = blockIdx.x;
        if (row >= counts[P::COUNT_INDEX]) return;
        float sum[STEPS][VECTOR];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int vector = threadIdx.x + s * P::THREADS;
            if (vector >= VECTORS) continue;
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[s][i] = 0;
#pragma unroll
            for (int p = 0; p < P::PARTS; p++) {
                float value[VECTOR];
                unpack_elements<P::X_DTYPE>(value, parts[((i64)p * P::ROWS + row) * VECTORS + vector]);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[s][i] += value[i];
            }
            float base[VECTOR];
            load_residual(row, s, base, end);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[s][i] += base[i];
        }
        finish_row(row, sum, end);
        store_normed_row(row, sum, end);
    }
};

#endif
