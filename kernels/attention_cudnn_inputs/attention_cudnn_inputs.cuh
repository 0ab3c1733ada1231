/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn_inputs: writes the arrays that cuDNN reads about a chunk, from those of the step (contract:
 * attention_cudnn.h). Each kv head has a block, which clears the unused tokens of v; the first block writes the
 * arrays. */
#ifndef KERNELS_ATTENTION_CUDNN_INPUTS_ATTENTION_CUDNN_INPUTS_CUH
#define KERNELS_ATTENTION_CUDNN_INPUTS_ATTENTION_CUDNN_INPUTS_CUH

#include "kernels/attention/attention_cudnn_layout.cuh"
#include "kernels/cuda/include/device.cuh"
#include "kernels/cuda/include/layout.cuh"

template <class P> struct attention_cudnn_inputs_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int MOST_TOKENS = P::PAGES_PER_SLOT * P::PAGE_TOKENS;
    static constexpr int PADDED_PAGES = ATTENTION_CUDNN_PADDED_PAGES(P::PAGES_PER_SLOT, P::PAGE_TOKENS);
    static constexpr int VECTORS = P::HEAD_DIM / 8; /* of 16 bytes, in a head of v */

    static __device__ __forceinline__ void run(const int *counts, const int *slots, const int *positions,
                                               const int *page_table, char *kv, char *workspace)
    {
        device_trigger();
        device_wait();
        const int rows = min(counts[P::COUNT_INDEX], P::ROWS), head = blockIdx.x;
        const bool none = rows < 1 || (u32)slots[0] >= P::SLOT_COUNT;
        const int tokens = none ? 0 : min(min(max(positions[0], 0), MOST_TOKENS) + rows, MOST_TOKENS);
        const int last = none ? 0 : (tokens - 1) / P::PAGE_TOKENS;
        const int *pages = page_table + (i64)(none ? 0 : slots[0]) * P::PAGES_PER_SLOT;
        if (head == 0) {
            if (threadIdx.x == 0) {
                *(int *)(workspace + ATTENTION_CUDNN_ROW_COUNT_AT) = none ? 0 : rows;
                *(int *)(workspace + ATTENTION_CUDNN_TOKEN_COUNT_AT) = tokens;
            }
            /* Entries after the last page in use are undefined: cuDNN must not follow them. */
            for (int i = threadIdx.x; i < PADDED_PAGES; i += THREADS)
                ((int *)(workspace + ATTENTION_CUDNN_PAGES_AT))[i] = none ? 0 : pages[min(i, last)];
        }
        const int used = tokens - last * P::PAGE_TOKENS;
        if (none || used == P::PAGE_TOKENS) return;
        char *values = kv + (i64)pages[last] * P::PAGE_BYTES +
                       ((i64)(P::KV_HEADS + head) * P::PAGE_TOKENS + used) * P::HEAD_DIM * 2;
        for (int i = threadIdx.x; i < (P::PAGE_TOKENS - used) * VECTORS; i += THREADS)
            ((uint4 *)values)[i] = make_uint4(0, 0, 0, 0);
    }
};

#endif
