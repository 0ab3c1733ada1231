/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima over a warp and over a block, the same bits in every thread. */
#ifndef KERNELS_CUDA_INCLUDE_REDUCE_CUH
#define KERNELS_CUDA_INCLUDE_REDUCE_CUH

#include "kernels/cuda/include/device.cuh"
#include "kernels/cuda/include/ptx.cuh"

__device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* Requires: all THREADS threads of the block call it. AGAIN: the block may have called it before. */
template <int THREADS, bool AGAIN> __device__ __forceinline__ float block_sum(float value)
{
    __shared__ float partial[THREADS / 32];
    value = warp_sum(value);
    if constexpr (AGAIN) __syncthreads(); /* the sum before has been read */
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < THREADS / 32 ? partial[threadIdx.x % 32] : 0.0f);
}

/* The largest of magnitudes, NaN if one is. Requires: as block_sum, once in a kernel. */
template <int THREADS> __device__ __forceinline__ float block_largest(float value)
{
    __shared__ float partial[THREADS / 32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value = max_or_nan(value, __shfl_xor_sync(0xffffffffu, value, offset));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < THREADS / 32 ? partial[threadIdx.x % 32] : 0.0f;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value = max_or_nan(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

#endif
