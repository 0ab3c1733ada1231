/* A row of all_reduce whose sum one thread block has in registers: residual and norm. Behind THREADS. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_ROW_CUH
#define KERNELS_ALL_REDUCE_ALL_REDUCE_ROW_CUH

#include "kernels/all_reduce/all_reduce_layout.cuh"

constexpr int STEPS = (VECTORS + THREADS - 1) / THREADS;

__device__ __forceinline__ float block_sum(float value)
{
    __shared__ float partial[THREADS / 32];
    value = warp_sum(value);
    __syncthreads(); /* the row before has been read */
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < THREADS / 32 ? partial[threadIdx.x % 32] : 0.0f);
}

struct row_end {
    float *out;
    const float *residual;
    const void *weight;
    void *normed;
};

/* Residual and norm of a row whose sum every thread has its part of, which is spent. */
__device__ __forceinline__ void finish_row(int row, float sum[STEPS][VECTOR], const row_end &end)
{
    float squares = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int vector = threadIdx.x + s * THREADS;
        if (vector >= VECTORS) continue;
        const i64 index = ((i64)row * VECTORS + vector) * VECTOR;
#if HAS_RESIDUAL
        float base[VECTOR];
        load_floats(end.residual + index, base);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum[s][i] += base[i];
#endif
#pragma unroll
        for (int i = 0; i < VECTOR; i++) squares = fmaf(sum[s][i], sum[s][i], squares);
        store_floats(end.out + index, sum[s]);
    }
#if HAS_NORM
    const float factor = 1.0f / sqrtf(block_sum(squares) * (1.0f / WIDTH) + float_of_bits(EPS_BITS));
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int vector = threadIdx.x + s * THREADS;
        if (vector >= VECTORS) continue;
        float scale[VECTOR];
        load_scale(end.weight, vector * VECTOR, scale);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum[s][i] = sum[s][i] * factor * scale[i];
        store_normed(end.normed, ((i64)row * VECTORS + vector) * VECTOR, sum[s]);
    }
#endif
}

#endif
