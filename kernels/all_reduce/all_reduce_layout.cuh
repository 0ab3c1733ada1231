/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of all_reduce share: a row's end, once the sum is there. Contract: all_reduce_device.h. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_LAYOUT_CUH
#define KERNELS_ALL_REDUCE_ALL_REDUCE_LAYOUT_CUH

#include "kernels/cuda/include/comm.cuh"

#ifndef ROWS
#define ROWS 16
#endif
#ifndef COUNT_INDEX
#define COUNT_INDEX 0
#endif
#ifndef WIDTH
#define WIDTH 4096
#endif
#ifndef RANKS
#define RANKS 2
#endif
#ifndef X_DTYPE
#define X_DTYPE DTYPE_BF16
#endif
#ifndef HAS_RESIDUAL
#define HAS_RESIDUAL 1 /* 2: the rank's own rows of it are there */
#endif
#ifndef HAS_NORM
#define HAS_NORM 1 /* 2: formed by a row's owner */
#endif
#ifndef NORM_DTYPE
#define NORM_DTYPE DTYPE_BF16
#endif
#ifndef EPS_BITS
#define EPS_BITS 0x3727c5ac /* 1e-5 */
#endif
#ifndef OUT_DTYPE
#define OUT_DTYPE DTYPE_BF16
#endif

constexpr int ELEMENT_BYTES = X_DTYPE == DTYPE_F32 ? 4 : 2;
constexpr int VECTOR = 16 / ELEMENT_BYTES; /* elements of one 16-byte access */
constexpr int VECTORS = WIDTH / VECTOR;    /* of a row */
static_assert(WIDTH % VECTOR == 0, "whole vectors");

__device__ __forceinline__ void unpack(uint4 packed, float value[VECTOR])
{
    const u32 words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if constexpr (X_DTYPE == DTYPE_F32)
            value[i] = float_of_bits(words[i]);
        else
            value[i] = float_of_half<X_DTYPE>((u16)(words[i / 2] >> (16 * (i % 2))));
    }
}

__device__ __forceinline__ uint4 pack(const float value[VECTOR])
{
    if constexpr (X_DTYPE == DTYPE_F32)
        return make_uint4(bits_of_float(value[0]), bits_of_float(value[1]), bits_of_float(value[2]),
                          bits_of_float(value[3]));
    else
        return make_uint4(pack_halves<X_DTYPE>(value[0], value[1]), pack_halves<X_DTYPE>(value[2], value[3]),
                          pack_halves<X_DTYPE>(value[4 % VECTOR], value[5 % VECTOR]),
                          pack_halves<X_DTYPE>(value[6 % VECTOR], value[7 % VECTOR]));
}

__device__ __forceinline__ void load_floats(const float *from, float value[VECTOR])
{
#pragma unroll
    for (int i = 0; i < VECTOR; i += 4) {
        const float4 vector = *(const float4 *)(from + i);
        value[i] = vector.x, value[i + 1] = vector.y, value[i + 2] = vector.z, value[i + 3] = vector.w;
    }
}

__device__ __forceinline__ void store_floats(float *to, const float value[VECTOR])
{
#pragma unroll
    for (int i = 0; i < VECTOR; i += 4)
        *(float4 *)(to + i) = make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
}

/* The norm's weights at `column`. */
__device__ __forceinline__ void load_scale(const void *weight, int column, float value[VECTOR])
{
    if constexpr (NORM_DTYPE == DTYPE_F32) {
        load_floats((const float *)weight + column, value);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i += 4) {
            const uint2 packed = *(const uint2 *)((const u16 *)weight + column + i);
            value[i] = float_of_half<NORM_DTYPE>((u16)packed.x);
            value[i + 1] = float_of_half<NORM_DTYPE>((u16)(packed.x >> 16));
            value[i + 2] = float_of_half<NORM_DTYPE>((u16)packed.y);
            value[i + 3] = float_of_half<NORM_DTYPE>((u16)(packed.y >> 16));
        }
    }
}

__device__ __forceinline__ void store_normed(void *to, i64 index, const float value[VECTOR])
{
    if constexpr (OUT_DTYPE == DTYPE_F32) {
        store_floats((float *)to + index, value);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i += 4)
            *(uint2 *)((u16 *)to + index + i) = make_uint2(pack_halves<OUT_DTYPE>(value[i], value[i + 1]),
                                                           pack_halves<OUT_DTYPE>(value[i + 2], value[i + 3]));
    }
}

#endif
