/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention_cudnn_inputs/attention_cudnn_inputs_device.h"

#include "kernels/attention/attention_device.h"
#include "kernels/cuda/include/layout.cuh"

enum {
    THREADS = LAYOUT_ELEMENTWISE_THREADS,
    MOST_ROWS = 1 << 20,
    MOST_HEADS = 1 << 12,
    MOST_HEAD_DIM = 256,
    MOST_SLOTS = 1 << 20,
    MOST_TOKENS = 1 << 30, /* of a slot */
    VECTOR_BYTES = 16,
};
static const int64_t most_page_bytes = (int64_t)1 << 40;

void attention_cudnn_inputs_params(const int64_t *attention_params, int64_t *params)
{
    params[ATTENTION_CUDNN_INPUTS_ROWS] = attention_params[ATTENTION_DEVICE_ROWS];
    params[ATTENTION_CUDNN_INPUTS_COUNT_INDEX] = attention_params[ATTENTION_DEVICE_COUNT_INDEX];
    params[ATTENTION_CUDNN_INPUTS_KV_HEADS] = attention_params[ATTENTION_DEVICE_KV_HEADS];
    params[ATTENTION_CUDNN_INPUTS_HEAD_DIM] = attention_params[ATTENTION_DEVICE_HEAD_DIM];
    params[ATTENTION_CUDNN_INPUTS_PAGE_TOKENS] = attention_params[ATTENTION_DEVICE_PAGE_TOKENS];
    params[ATTENTION_CUDNN_INPUTS_PAGES_PER_SLOT] = attention_params[ATTENTION_DEVICE_PAGES_PER_SLOT];
    params[ATTENTION_CUDNN_INPUTS_PAGE_BYTES] = attention_params[ATTENTION_DEVICE_PAGE_BYTES];
    params[ATTENTION_CUDNN_INPUTS_SLOT_COUNT] = attention_params[ATTENTION_DEVICE_SLOT_COUNT];
}

static bool in_range(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

/* Products of the checked parameters fit 64 bits: 4 * 2^12 * 2^30 * 2^8. */
static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t heads = params[ATTENTION_CUDNN_INPUTS_KV_HEADS], dim = params[ATTENTION_CUDNN_INPUTS_HEAD_DIM];
    const int64_t page_tokens = params[ATTENTION_CUDNN_INPUTS_PAGE_TOKENS];
    const int64_t page_bytes = params[ATTENTION_CUDNN_INPUTS_PAGE_BYTES];
    if (!in_range(params[ATTENTION_CUDNN_INPUTS_ROWS], 1, MOST_ROWS)) return "ROWS is not in 1..2^20";
    if (!in_range(params[ATTENTION_CUDNN_INPUTS_COUNT_INDEX], 0, 1)) return "COUNT_INDEX is not 0 or 1";
    if (!in_range(heads, 1, MOST_HEADS)) return "KV_HEADS is not in 1..2^12";
    if (!in_range(dim, 8, MOST_HEAD_DIM) || dim % 8) return "HEAD_DIM is not a multiple of 8 in 8..256";
    if (!in_range(page_tokens, 1, MOST_TOKENS)) return "PAGE_TOKENS is not in 1..2^30";
    if (!in_range(params[ATTENTION_CUDNN_INPUTS_PAGES_PER_SLOT], 1, MOST_TOKENS / page_tokens))
        return "PAGES_PER_SLOT is not positive or makes more than 2^30 tokens";
    if (!in_range(page_bytes, 1, most_page_bytes) || page_bytes % VECTOR_BYTES)
        return "PAGE_BYTES is not a multiple of 16 in 1..2^40";
    if (page_bytes < 4 * heads * page_tokens * dim) return "PAGE_BYTES is less than K and V of a page";
    if (!in_range(params[ATTENTION_CUDNN_INPUTS_SLOT_COUNT], 1, MOST_SLOTS)) return "SLOT_COUNT is not in 1..2^20";
    *geometry = (struct device_geometry){{(uint32_t)heads, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
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
    .source = "kernels/attention_cudnn_inputs/attention_cudnn_inputs.cu",
    .op = OP_ATTENTION_CUDNN_INPUTS,
    .least_capability = 80,
    .problem = &op_attention_cudnn_inputs,
    .operand_count = ATTENTION_CUDNN_INPUTS_OPERANDS,
    .launch = launch,
    .cost = cost,
};
