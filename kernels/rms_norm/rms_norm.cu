/* SPDX-License-Identifier: Apache-2.0 */
/* rms_norm: one thread block per row (contract: rms_norm_device.h). A thread's share of the row stays in registers
 * between the sum of squares and the scaling, unless the row is too long for that; then it is read again. */
#include "kernels/cuda/include/device.cuh"

#ifndef ROWS
#define ROWS 16
#endif
#ifndef COUNT_INDEX
#define COUNT_INDEX 0
#endif
#ifndef HIDDEN
#define HIDDEN 4096
#endif
#ifndef WEIGHT_DTYPE
#define WEIGHT_DTYPE DTYPE_BF16
#endif
#ifndef EPS_BITS
#define EPS_BITS 0x3727c5ac /* 1e-5 */
#endif
#ifndef OUT_DTYPE
#define OUT_DTYPE DTYPE_BF16
#endif
#ifndef THREADS
#define THREADS 256
#endif

constexpr int VECTOR = HIDDEN % 4 == 0 ? 4 : 1; /* elements of one access */
constexpr int STRIDE = THREADS * VECTOR;
constexpr int STEPS = (HIDDEN + STRIDE - 1) / STRIDE;
constexpr bool KEEP = STEPS * VECTOR <= 32; /* registers for the row: half of what 1024 threads may have */
constexpr int KEPT = KEEP ? STEPS : 1;

__device__ __forceinline__ void load_vector(const float *from, float value[VECTOR])
{
    if constexpr (VECTOR == 4) {
        const float4 vector = *(const float4 *)from;
        value[0] = vector.x, value[1] = vector.y, value[2] = vector.z, value[3] = vector.w;
    } else {
        value[0] = *from;
    }
}

__device__ __forceinline__ void load_weight(const void *weight, int column, float value[VECTOR])
{
    if constexpr (VECTOR == 4 && WEIGHT_DTYPE == DTYPE_F32) {
        load_vector((const float *)weight + column, value);
    } else if constexpr (VECTOR == 4) {
        const uint2 packed = *(const uint2 *)((const u16 *)weight + column);
        value[0] = float_of_half<WEIGHT_DTYPE>((u16)packed.x),
        value[1] = float_of_half<WEIGHT_DTYPE>((u16)(packed.x >> 16));
        value[2] = float_of_half<WEIGHT_DTYPE>((u16)packed.y),
        value[3] = float_of_half<WEIGHT_DTYPE>((u16)(packed.y >> 16));
    } else {
        value[0] = load_element<WEIGHT_DTYPE>(weight, column);
    }
}

__device__ __forceinline__ void store_vector(void *out, i64 index, const float value[VECTOR])
{
    if constexpr (VECTOR == 4 && OUT_DTYPE == DTYPE_F32)
        *(float4 *)((float *)out + index) = make_float4(value[0], value[1], value[2], value[3]);
    else if constexpr (VECTOR == 4)
        *(uint2 *)((u16 *)out + index) =
            make_uint2(pack_halves<OUT_DTYPE>(value[0], value[1]), pack_halves<OUT_DTYPE>(value[2], value[3]));
    else
        store_element<OUT_DTYPE>(out, index, value[0]);
}

/* Sum over the block, the same bits in every thread. */
__device__ __forceinline__ float block_sum(float value)
{
    __shared__ float partial[THREADS / 32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < THREADS / 32 ? partial[threadIdx.x % 32] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm(const int *__restrict__ counts, const float *x, const void *__restrict__ weight, void *out)
{
    device_trigger();
    const int first = threadIdx.x * VECTOR;
    float scale[KEPT][VECTOR], value[KEPT][VECTOR];
    if constexpr (KEEP) /* constants: before the wait */
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (first + s * STRIDE < HIDDEN) load_weight(weight, first + s * STRIDE, scale[s]);
    device_wait();

    const i64 row = (i64)blockIdx.x * HIDDEN;
    float squares = 0;
    if constexpr (KEEP) {
        /* Rows beyond the valid ones are read along with the count instead of after it: nothing waits twice. */
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (first + s * STRIDE < HIDDEN) load_vector(x + row + first + s * STRIDE, value[s]);
        if ((int)blockIdx.x >= counts[COUNT_INDEX]) return;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (first + s * STRIDE < HIDDEN)
#pragma unroll
                for (int i = 0; i < VECTOR; i++) squares = fmaf(value[s][i], value[s][i], squares);
    } else {
        if ((int)blockIdx.x >= counts[COUNT_INDEX]) return;
        for (int column = first; column < HIDDEN; column += STRIDE) {
            load_vector(x + row + column, value[0]);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) squares = fmaf(value[0][i], value[0][i], squares);
        }
    }
    const float factor = 1.0f / sqrtf(block_sum(squares) * (1.0f / HIDDEN) + float_of_bits(EPS_BITS));
#pragma unroll
    for (int s = 0; s < (KEEP ? STEPS : 1); s++) {
        for (int column = first + s * STRIDE; column < HIDDEN; column += KEEP ? HIDDEN : STRIDE) {
            if constexpr (!KEEP) load_vector(x + row + column, value[s]);
            if constexpr (!KEEP) load_weight(weight, column, scale[s]);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) value[s][i] = value[s][i] * factor * scale[s][i];
            store_vector(out, row + column, value[s]);
        }
    }
}
