/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn_inputs as a kernel of its own: attention_cudnn_inputs.cuh. */
#include "kernels/attention_cudnn_inputs/attention_cudnn_inputs.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS           \
    PARAM(ROWS) = 512;          \
    PARAM(COUNT_INDEX) = 0;     \
    PARAM(KV_HEADS) = 8;        \
    PARAM(HEAD_DIM) = 128;      \
    PARAM(PAGE_TOKENS) = 64;    \
    PARAM(PAGES_PER_SLOT) = 64; \
    PARAM(PAGE_BYTES) = 262144; \
    PARAM(SLOT_COUNT) = 8;
#endif

struct attention_cudnn_inputs_params {
    KERNEL_PARAMS
};
typedef attention_cudnn_inputs_body<attention_cudnn_inputs_params> attention_cudnn_inputs_kernel;

extern "C" __global__ void __launch_bounds__(attention_cudnn_inputs_kernel::THREADS)
    attention_cudnn_inputs(const int *__restrict__ counts, const int *__restrict__ slots,
                           const int *__restrict__ positions, const int *__restrict__ page_table, char *__restrict__ kv,
                           char *__restrict__ workspace)
{
    attention_cudnn_inputs_kernel::run(counts, slots, positions, page_table, kv, workspace);
}
