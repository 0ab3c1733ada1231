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

bool lower_comm_bytes(const struct lowering *lowering, uint64_t *bytes)
{
    *bytes = 0;
    return plan_ranks(&lowering->geometry) == 1 ||
           (checked_mul(lowering->exchange_bytes, LOWER_EXCHANGE_BUFFERS, bytes) &&
            checked_add(*bytes, LOWER_EXCHANGE_OFFSET, bytes));
}
