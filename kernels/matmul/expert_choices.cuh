/* SPDX-License-Identifier: Apache-2.0 */
/* The choices of a few rows (router.h), kept by the lanes of a warp: lane l has those of l, l + 32, ... */
#ifndef KERNELS_MATMUL_EXPERT_CHOICES_CUH
#define KERNELS_MATMUL_EXPERT_CHOICES_CUH

#include "kernels/cuda/include/ptx.cuh"

/* In the place of an expert's number, from before the launch that follows a routed_matmul can begin until the number is written. */
constexpr u32 EXPERT_TO_COME = 0xffffffffu;

/* EXPERTS 0: there are none, and everything belongs to matrix 0. All functions: by the whole warp. */
template <int EXPERTS, int ROWS, int TOP_K> struct expert_choices {
    static constexpr int PER_LANE = (ROWS * TOP_K + 31) / 32;

    float experts[PER_LANE], weights[PER_LANE];

    /* Once earlier launches have ended. All rows are loaded, so that a caller need not wait for the number of
     * valid ones first. */
    __device__ __forceinline__ void load(const float *routes)
    {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            if (!has(i)) continue;
            weights[i] = load_written_float(routes + place(i));
            experts[i] = load_written_float(routes + place(i) + TOP_K);
        }
    }
    /* The experts alone, f32 [ROWS][TOP_K] in shared memory. */
    __device__ __forceinline__ void load_shared_experts(u32 from)
    {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (has(i)) experts[i] = load_shared_float(from + 4 * (u32)own_choice(i));
    }

    /* The weights alone, likewise. */
    __device__ __forceinline__ void load_shared_weights(u32 from)
    {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (has(i)) weights[i] = load_shared_float(from + 4 * (u32)own_choice(i));
    }

    /* For launches that follow a routed_matmul, which may still run: `ask` for the experts, then `await` them. `rows`: that are valid. */
    __device__ __forceinline__ void ask(const float *routes)
    {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (has(i)) experts[i] = float_of_bits(load_relaxed((const u32 *)routes + place(i) + TOP_K));
    }
    /* After a while, until that launch has ended. */
    __device__ __forceinline__ void await(const float *routes, int rows)
    {
        enum { LOOKS = 1000, PAUSE_NS = 20 };
        for (int i = 0; !are_there(rows); i++) {
            if (i == LOOKS) {
                device_wait();
                return load(routes);
            }
            nanosleep(PAUSE_NS);
            ask(routes);
        }
    }
    __device__ __forceinline__ bool are_there(int rows) const
    {
        bool there = true;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            there &= own_choice(i) / TOP_K >= rows || bits_of_float(experts[i]) != EXPERT_TO_COME;
        return __all_sync(0xffffffff, there);
    }

    /* The lane's choice `i`, and where its weight lies in the routes. */
    static __device__ __forceinline__ int own_choice(int i) { return (int)threadIdx.x % 32 + 32 * i; }
    static __device__ __forceinline__ bool has(int i) { return own_choice(i) < ROWS * TOP_K; }
    static __device__ __forceinline__ int place(int i)
    {
        return own_choice(i) / TOP_K * (2 * TOP_K) + own_choice(i) % TOP_K;
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
        return names_expert(expert) ? (int)expert : -1;
    }
    static __device__ __forceinline__ bool names_expert(float expert) { return expert >= 0 && expert < (float)EXPERTS; }

    /* Which choices name an expert: bit l of word i is choice l + 32 * i. */
    __device__ __forceinline__ void find_named(u32 (&named)[PER_LANE]) const
    {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) named[i] = __ballot_sync(0xffffffff, has(i) && names_expert(experts[i]));
    }
    static __device__ __forceinline__ bool is_named(const u32 (&named)[PER_LANE], int choice)
    {
        u32 word = 0; /* by masks: of a choice the compiler makes an array in local memory */
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) word |= named[i] & (0u - (u32)(choice / 32 == i));
        return word >> choice % 32 & 1;
    }

    __device__ __forceinline__ float weight_of(int choice) const { return of_choice(weights, choice); }
};

#endif
