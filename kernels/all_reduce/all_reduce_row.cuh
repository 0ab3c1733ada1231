/* SPDX-License-Identifier: Apache-2.0 */
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

/* The residual of a thread's vector number s of a row; zero where there is none. */
__device__ __forceinline__ void load_residual(int row, int s, float base[VECTOR], const row_end &end)
{
#pragma unroll
    for (int i = 0; i < VECTOR; i++) base[i] = 0;
    if (HAS_RESIDUAL) load_floats(end.residual + ((i64)row * VECTORS + threadIdx.x + s * THREADS) * VECTOR, base);
}

/* Stores a row of which every thread has its part, and turns it into the normed row. */
__device__ __forceinline__ void finish_row(int row, float sum[STEPS][VECTOR], const row_end &end)
{
    float squares = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int vector = threadIdx.x + s * THREADS;
        if (vector >= VECTORS) continue;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) squares = fmaf(sum[s][i], sum[s][i], squares);
        store_floats(end.out + ((i64)row * VECTORS + vector) * VECTOR, sum[s]);
    }
#if HAS_NORM
    const float factor = rsqrtf(block_sum(squares) * (1.0f / WIDTH) + float_of_bits(EPS_BITS));
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int vector = threadIdx.x + s * THREADS;
        if (vector >= VECTORS) continue;
        float scale[VECTOR];
        load_scale(end.weight, vector * VECTOR, scale);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum[s][i] = sum[s][i] * factor * scale[i];
    }
#endif
}

__device__ __forceinline__ void store_normed_row(int row, const float normed[STEPS][VECTOR], const row_end &end)
{
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int vector = threadIdx.x + s * THREADS;
        if (HAS_NORM && vector < VECTORS) store_normed(end.normed, ((i64)row * VECTORS + vector) * VECTOR, normed[s]);
    }
}

#endif
