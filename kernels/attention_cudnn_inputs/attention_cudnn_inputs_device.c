/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention_cudnn_inputs/attention_cudnn_inputs.h"

#include "kernels/attention/attention_device.h"
#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

void attention_cudnn_inputs_params(const int64_t *attention_params, int64_t *params)
{
    static const int sources[ATTENTION_CUDNN_INPUTS_PARAMS] = {
        [ATTENTION_CUDNN_INPUTS_ROWS] = ATTENTION_ROWS,
        [ATTENTION_CUDNN_INPUTS_COUNT_INDEX] = ATTENTION_COUNT_INDEX,
        [ATTENTION_CUDNN_INPUTS_KV_HEADS] = ATTENTION_KV_HEADS,
        [ATTENTION_CUDNN_INPUTS_HEAD_DIM] = ATTENTION_HEAD_DIM,
        [ATTENTION_CUDNN_INPUTS_PAGE_TOKENS] = ATTENTION_PAGE_TOKENS,
        [ATTENTION_CUDNN_INPUTS_PAGES_PER_SLOT] = ATTENTION_PAGES_PER_SLOT,
        [ATTENTION_CUDNN_INPUTS_PAGE_BYTES] = ATTENTION_PAGE_BYTES,
        [ATTENTION_CUDNN_INPUTS_SLOT_COUNT] = ATTENTION_SLOT_COUNT,
    };
    for (int i = 0; i < ATTENTION_CUDNN_INPUTS_PARAMS; i++) params[i] = attention_params[sources[i]];
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_attention_cudnn_inputs, params);
    if (why) return why;
    *geometry = (struct device_geometry){{(uint32_t)params[ATTENTION_CUDNN_INPUTS_KV_HEADS], 1, 1},
                                         {LAYOUT_ELEMENTWISE_THREADS, 1, 1},
                                         {1, 1, 1},
                                         0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    const uint64_t token_bytes =
        2 * (uint64_t)(params[ATTENTION_CUDNN_INPUTS_KV_HEADS] * params[ATTENTION_CUDNN_INPUTS_HEAD_DIM]);
    const uint64_t page_tokens = (uint64_t)params[ATTENTION_CUDNN_INPUTS_PAGE_TOKENS];
    *bytes = 2 * sizeof(int32_t) * (uint64_t)params[ATTENTION_CUDNN_INPUTS_PAGES_PER_SLOT] +
             (page_tokens - 1 - (context + page_tokens - 1) % page_tokens) * token_bytes;
    *flops = 0;
}

const struct device_kernel device_attention_cudnn_inputs = {
    .name = "attention_cudnn_inputs",
    .op = OP_ATTENTION_CUDNN_INPUTS,
    .problem = &op_attention_cudnn_inputs,
    .launch = launch,
    .cost = cost,
};
