/* SPDX-License-Identifier: Apache-2.0 */
/* What a library leaves to be done of all_reduce (contract: all_reduce_nccl.h). A thread block does a row. */
#ifndef THREADS
#define THREADS 256
#endif
#ifndef PARTS
#define PARTS 2
#endif
#include "kernels/all_reduce/all_reduce_row.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    all_reduce_finish(const int *__restrict__ counts, const uint4 *parts, float *out
#if HAS_RESIDUAL
                      ,
                      const float *residual
#endif
#if HAS_NORM
                      ,
                      const void *__restrict__ weight, void *__restrict__ normed
#endif
    )
{
    device_trigger();
    row_end end = {out, nullptr, nullptr, nullptr};
#if HAS_RESIDUAL
    end.residual = residual;
#endif
#if HAS_NORM
    end.weight = weight, end.normed = normed;
#endif
    device_wait();
    const int row = blockIdx.x;
    if (row >= counts[COUNT_INDEX]) return;
    float sum[STEPS][VECTOR];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int vector = threadIdx.x + s * THREADS;
        if (vector >= VECTORS) continue;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum[s][i] = 0;
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            float value[VECTOR];
            unpack(parts[((i64)p * ROWS + row) * VECTORS + vector], value);
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
