/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn_inputs: what cuDNN wants to know of a chunk as arrays, from the step's own (contract:
 * attention_cudnn.h). One block for each kv head; the first one writes the arrays. */
#include "kernels/attention/attention_cudnn_layout.cuh"
#include "kernels/cuda/include/device.cuh"

#ifndef ROWS
#define ROWS 512
#endif
#ifndef COUNT_INDEX
#define COUNT_INDEX 0
#endif
#ifndef KV_HEADS
#define KV_HEADS 8
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef PAGE_TOKENS
#define PAGE_TOKENS 64
#endif
#ifndef PAGES_PER_SLOT
#define PAGES_PER_SLOT 64
#endif
#ifndef PAGE_BYTES
#define PAGE_BYTES 262144
#endif
#ifndef SLOT_COUNT
#define SLOT_COUNT 8
#endif

constexpr int INPUTS_THREADS = 256; /* as attention_cudnn_inputs.c */
constexpr int MOST_TOKENS = PAGES_PER_SLOT * PAGE_TOKENS;
constexpr int PADDED_PAGES = ATTENTION_CUDNN_PADDED_PAGES(PAGES_PER_SLOT, PAGE_TOKENS);
constexpr int VECTORS = HEAD_DIM / 8; /* of 16 bytes, in a head of v */

extern "C" __global__ void __launch_bounds__(INPUTS_THREADS)
    attention_cudnn_inputs(const int *__restrict__ counts, const int *__restrict__ slots,
                           const int *__restrict__ positions, const int *__restrict__ page_table, char *__restrict__ kv,
                           char *__restrict__ workspace)
{
    device_trigger();
    device_wait();
    const int rows = min(counts[COUNT_INDEX], ROWS), head = blockIdx.x;
    const bool none = rows < 1 || (u32)slots[0] >= SLOT_COUNT;
    const int tokens = none ? 0 : min(min(max(positions[0], 0), MOST_TOKENS) + rows, MOST_TOKENS);
    const int last = none ? 0 : (tokens - 1) / PAGE_TOKENS;
    const int *pages = page_table + (i64)(none ? 0 : slots[0]) * PAGES_PER_SLOT;
    if (head == 0) {
        if (threadIdx.x == 0) {
            *(int *)(workspace + ATTENTION_CUDNN_ROW_COUNT_AT) = none ? 0 : rows;
            *(int *)(workspace + ATTENTION_CUDNN_TOKEN_COUNT_AT) = tokens;
        }
        /* Entries behind the last page in use may be anything: cuDNN must not follow them. */
        for (int i = threadIdx.x; i < PADDED_PAGES; i += INPUTS_THREADS)
            ((int *)(workspace + ATTENTION_CUDNN_PAGES_AT))[i] = none ? 0 : pages[min(i, last)];
    }
    const int used = tokens - last * PAGE_TOKENS;
    if (none || used == PAGE_TOKENS) return;
    char *values = kv + (i64)pages[last] * PAGE_BYTES + ((i64)(KV_HEADS + head) * PAGE_TOKENS + used) * HEAD_DIM * 2;
    for (int i = threadIdx.x; i < (PAGE_TOKENS - used) * VECTORS; i += INPUTS_THREADS)
        ((uint4 *)values)[i] = make_uint4(0, 0, 0, 0);
}
