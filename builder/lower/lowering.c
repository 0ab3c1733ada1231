/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/lowering.h"

#include "formats/base/checked.h"

uint64_t kv_layer_bytes(const struct model_config *config, uint64_t page_tokens, enum encoding_id kv_dtype)
{
    uint64_t bytes;
    return kv_block_bytes(kv_dtype, config->kv_heads, page_tokens, config->head_dim, config->latent.kv_rank, &bytes)
               ? bytes
               : 0;
}

uint64_t kv_block_bytes_of(const struct model_config *config, uint32_t layer, uint64_t page_tokens,
                           enum encoding_id kv_dtype)
{
    uint64_t bytes;
    if (!mixer_attends(config->layer[layer].mixer) || config->layer[layer].shares) return 0;
    return kv_block_bytes(kv_dtype, model_kv_heads(config, layer), page_tokens, model_head_dim(config, layer),
                          config->latent.kv_rank, &bytes)
               ? bytes
               : 0;
}

uint64_t kv_all_bytes(const struct model_config *config, uint64_t page_tokens, enum encoding_id kv_dtype)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < config->layers; layer++)
        if (!checked_add(bytes, kv_block_bytes_of(config, layer, page_tokens, kv_dtype), &bytes)) return 0;
    return bytes;
}

bool lower_comm_bytes(const struct lowering *lowering, uint64_t *bytes)
{
    *bytes = 0;
    return plan_ranks(&lowering->geometry) == 1 ||
           (checked_mul(lowering->exchange_bytes, LOWER_EXCHANGE_BUFFERS, bytes) &&
            checked_add(*bytes, LOWER_EXCHANGE_OFFSET, bytes));
}
