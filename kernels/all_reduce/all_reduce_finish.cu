/* What follows the sum where a library has formed it (contract: all_reduce_nccl.h). A thread block does a row. */
#ifndef THREADS
#define THREADS 256
#endif
#include "kernels/all_reduce/all_reduce_row.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    all_reduce_finish(const int *__restrict__ counts, const uint4 *sum, float *out
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
    uint4 sums[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int vector = threadIdx.x + s * THREADS;
        if (vector < VECTORS) sums[s] = sum[(i64)row * VECTORS + vector];
    }
    finish_row(row, sums, end);
}
