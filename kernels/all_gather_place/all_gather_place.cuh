/* SPDX-License-Identifier: Apache-2.0 */
/* Interleaves the rows of all ranks, which a library gathers one rank after the other (contract: all_gather_place.h). */
#ifndef KERNELS_ALL_GATHER_PLACE_ALL_GATHER_PLACE_CUH
#define KERNELS_ALL_GATHER_PLACE_ALL_GATHER_PLACE_CUH

#include "kernels/cuda/include/device.cuh"

template <class P> struct all_gather_place_body {
    static __device__ __forceinline__ void run(const int *counts, const float *gathered, float *out)
    {
        device_trigger();
        device_wait();
        const int row = blockIdx.y;
        const u32 column = blockIdx.x * P::THREADS + threadIdx.x;
        if (row >= counts[P::COUNT_INDEX] || column >= P::OUT_WIDTH) return;
        out[(i64)row * P::OUT_WIDTH + column] =
            gathered[((i64)(column / P::WIDTH) * P::ROWS + row) * P::WIDTH + column % P::WIDTH];
    }
};

#endif
