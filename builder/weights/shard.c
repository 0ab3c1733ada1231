/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/shard.h"

#include <inttypes.h>

#include "formats/engine/manifest.h"

static bool divides(uint32_t ranks, uint64_t count, const char *what, const char *key, struct status *status)
{
    if (count % ranks == 0) return true;
    return status_fail(status, STATUS_BAD_INPUT,
                       "--gpus: %u GPUs cannot share %" PRIu64 " %s equally (config.json: %s); expected a number that "
                       "divides it",
                       ranks, count, what, key);
}

static bool share_recurrent(const struct model_recurrent *whole, uint32_t ranks, struct model_recurrent *rank,
                            struct status *status)
{
    if (!divides(ranks, whole->channels, "channels of a convolution", "hidden_size, or linear_* of all heads",
                 status) ||
        !divides(ranks, whole->key_heads, "key heads", "linear_num_key_heads", status) ||
        !divides(ranks, whole->value_heads, "value heads", "linear_num_value_heads", status))
        return false;
    rank->channels /= ranks;
    rank->key_heads /= ranks;
    rank->value_heads /= ranks;
    return true;
}

/* Groups of B and C are shared like KV heads. A norm of several groups has whole ones on each rank; one group is shared by all. */
static bool share_state_space(const struct model_recurrent *whole, uint32_t ranks, struct model_recurrent *rank,
                              struct status *status)
{
    if (!divides(ranks, whole->value_heads, "heads of a state space", "mamba_n_heads, mamba_num_heads", status) ||
        (whole->norm_groups > 1 &&
         !divides(ranks, whole->norm_groups, "groups of a norm", "mamba_n_groups, n_groups", status)))
        return false;
    if (whole->key_heads % ranks != 0 && ranks % whole->key_heads != 0)
        return status_fail(status, STATUS_BAD_INPUT,
                           "--gpus: %u GPUs cannot share %" PRIu64 " groups of heads (config.json: mamba_n_groups, "
                           "n_groups); expected a number that divides it, or a multiple of it",
                           ranks, whole->key_heads);
    rank->key_heads = rank_kv_heads(whole->key_heads, ranks);
    rank->value_heads /= ranks;
    rank->norm_groups = rank_kv_heads(whole->norm_groups, ranks);
    rank->channels = 2 * rank->key_heads * rank->key_dim + rank->value_heads * rank->value_dim;
    return true;
}

bool shard_config(const struct model_config *whole, uint32_t ranks, struct model_config *rank, struct status *status)
{
    *rank = *whole;
    if (!divides(ranks, whole->heads, "attention heads", "num_attention_heads", status) ||
        !divides(ranks, whole->intermediate_size, "rows of the MLP", "intermediate_size", status))
        return false;
    if (whole->experts.count &&
        (!divides(ranks, whole->experts.intermediate_size, "rows of an expert", "moe_intermediate_size", status) ||
         !divides(ranks, whole->experts.shared_size, "rows of the shared expert", "shared experts", status)))
        return false;
    if (whole->kv_heads % ranks != 0 && ranks % whole->kv_heads != 0)
        return status_fail(status, STATUS_BAD_INPUT,
                           "--gpus: %u GPUs cannot share %" PRIu64 " KV heads (config.json: num_key_value_heads); "
                           "expected a number that divides it, or a multiple of it",
                           ranks, whole->kv_heads);
    for (uint64_t l = 0; l < whole->layers; l++) {
        const uint64_t kv_heads = whole->layer[l].kv_heads;
        if (kv_heads && kv_heads % ranks != 0 && ranks % kv_heads != 0)
            return status_fail(status, STATUS_BAD_INPUT,
                               "--gpus: %u GPUs cannot share the %" PRIu64 " KV heads of layer %" PRIu64
                               "; expected a number that divides them, or a multiple of it",
                               ranks, kv_heads, l);
        if (kv_heads) rank->layer[l].kv_heads = rank_kv_heads(kv_heads, ranks);
        rank->layer[l].inner = whole->layer[l].inner / ranks;
    }
    if (!(whole->recurrent.dt_max > 0 ? share_state_space : share_recurrent)(&whole->recurrent, ranks, &rank->recurrent,
                                                                             status))
        return false;
    rank->heads = whole->heads / ranks;
    rank->kv_heads = rank_kv_heads(whole->kv_heads, ranks);
    rank->intermediate_size = whole->intermediate_size / ranks;
    rank->experts.intermediate_size = whole->experts.intermediate_size / ranks;
    rank->experts.shared_size = whole->experts.shared_size / ranks;
    return true;
}

struct shard_slice shard_slice(const struct weight_source *source, uint32_t rank, uint32_t ranks)
{
    struct shard_slice slice = {.rows = source->rank_rows};
    switch (source->shard) {
    case SHARD_NONE:
    case SHARD_MATRICES: break;
    case SHARD_ROWS:
    case SHARD_KV_ROWS:
    case SHARD_GROUP_ROWS: {
        /* As many different parts as ranks, or fewer: then neighbouring ranks share one. */
        uint64_t parts = source->rows / source->rank_rows;
        slice.first_row = rank * parts / ranks * source->rank_rows;
        break;
    }
    case SHARD_VOCABULARY: {
        uint64_t first = rank * source->rank_rows, left = first < source->rows ? source->rows - first : 0;
        slice.first_row = left ? first : 0;
        if (slice.rows > left) slice.rows = left;
        break;
    }
    case SHARD_COLUMNS: slice.first_column = rank * source->rank_columns; break;
    case SHARD_FIRST_RANK:
        if (rank > 0) slice.rows = 0;
        break;
    }
    return slice;
}
