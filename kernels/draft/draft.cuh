/* SPDX-License-Identifier: Apache-2.0 */
/* draft (contract: draft.h). One thread block per row: the largest of keys that order as the logits do, then as falling ids. */
#ifndef KERNELS_DRAFT_DRAFT_CUH
#define KERNELS_DRAFT_DRAFT_CUH

#include "kernels/cuda/include/device.cuh"
#include "kernels/cuda/include/layout.cuh"

template <class P> struct draft_body {
    static constexpr int THREADS = LAYOUT_DRAFT_THREADS, WARPS = THREADS / 32;

    /* Rises with the logit, -0 as 0, NaN lowest; among equal logits with falling ids. */
    static __device__ __forceinline__ u64 order_of(float logit, u32 token)
    {
        const u32 bits = bits_of_float(logit + 0.0f);
        const u32 key = logit != logit ? 0 : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
        return (u64)key << 32 | ~token;
    }

    static __device__ __forceinline__ u64 larger(u64 a, u64 b) { return a > b ? a : b; }

    static __device__ __forceinline__ u64 largest_of_warp(u64 order)
    {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2)
            order = larger(order, __shfl_xor_sync(0xffffffffu, order, offset));
        return order;
    }

    /* `out_rows`, `next_tokens`, `tokens`, `positions`: null without FEEDBACK. */
    static __device__ __forceinline__ void run(const int *counts, const float *logits, int *drafted,
                                               const int *out_rows, const int *next_tokens, int *tokens, int *positions)
    {
        __shared__ u64 of_warps[WARPS];
        device_trigger();
        device_wait();
        const int row = blockIdx.x;
        if (row >= counts[P::COUNT_INDEX]) return;
        const float *own = logits + (i64)row * P::VOCAB;
        u64 order = 0;
        for (int t = threadIdx.x; t < P::VOCAB; t += THREADS) order = larger(order, order_of(own[t], (u32)t));
        order = largest_of_warp(order);
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = order;
        __syncthreads();
        if (threadIdx.x >= 32) return;
        order = largest_of_warp(of_warps[threadIdx.x % WARPS]);
        if (threadIdx.x != 0) return;
        drafted[row] = (int)~(u32)order;
        if constexpr (P::FEEDBACK) {
            const u32 in_row = (u32)out_rows[row];
            if (in_row >= P::IN_ROWS) return;
            tokens[in_row] = next_tokens[row];
            positions[in_row] += 1;
        }
    }
};

#endif
