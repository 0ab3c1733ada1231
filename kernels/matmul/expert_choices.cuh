/* SPDX-License-Identifier: Apache-2.0 */
/* The choices of a few rows (router.h), kept by the lanes of a warp: lane l has those of l, l + 32, ... */
#ifndef KERNELS_MATMUL_EXPERT_CHOICES_CUH
#define KERNELS_MATMUL_EXPERT_CHOICES_CUH

#include "kernels/cuda/include/ptx.cuh"

/* Waits, by a whole warp of a launch that follows routed_matmul, until that launch, which may still run, has written its routes and
 * lists. `total`: the end of the last list, which is 0 from before this launch could begin until they are written. After
 * a while, until it has ended. Requires: a row has choices. */
__device__ __forceinline__ void await_routes(const int *total)
{
    enum { LOOKS = 1000, PAUSE_NS = 20 };
    bool is_there = false;
    for (int i = 0; i < LOOKS && !is_there; i++) {
        is_there = __shfl_sync(0xffffffffu, load_acquire(total), 0) != 0; /* one answer for all lanes */
        if (!is_there) nanosleep(PAUSE_NS);
    }
    if (!is_there) device_wait();
    __syncwarp();
}

/* EXPERTS 0: there are none, and everything belongs to matrix 0. All functions: by the whole warp. */
template <int EXPERTS, int ROWS, int TOP_K> struct expert_choices {
    static constexpr int PER_LANE = (ROWS * TOP_K + 31) / 32;

    float experts[PER_LANE], weights[PER_LANE];

    /* Once earlier launches have ended, or await_routes has returned. All rows are loaded, so that a caller need not wait for the number of
     * valid ones first. */
    __device__ __forceinline__ void load(const float *routes)
    {
        load_by([&](int at) { return load_written_float(routes + at); });
    }
    /* The same of routes in shared memory. */
    __device__ __forceinline__ void load_shared_routes(u32 routes)
    {
        load_by([&](int at) { return load_shared_float(routes + 4 * (u32)at); });
    }

    template <class LOAD> __device__ __forceinline__ void load_by(LOAD element)
    {
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int choice = lane + 32 * i, row = choice / TOP_K, at = row * (2 * TOP_K) + choice % TOP_K;
            if (row >= ROWS) continue;
            weights[i] = element(at);
            experts[i] = element(at + TOP_K);
        }
    }

    static __device__ __forceinline__ float of_choice(const float (&values)[PER_LANE], int choice)
    {
        float value = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const float other = __shfl_sync(0xffffffff, values[i], choice % 32);
            if (choice / 32 == i) value = other;
        }
        return value;
    }

    /* -1 if the choice names no expert. */
    __device__ __forceinline__ int expert_of(int choice) const
    {
        if constexpr (EXPERTS == 0) return 0;
        const float expert = of_choice(experts, choice);
        return expert >= 0 && expert < (float)EXPERTS ? (int)expert : -1;
    }

    __device__ __forceinline__ float weight_of(int choice) const { return of_choice(weights, choice); }
};

#endif
