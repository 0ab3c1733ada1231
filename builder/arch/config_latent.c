/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of the configuration keys of latent attention, and of keys that DeepSeek's own configuration classes have. */
#include <inttypes.h>
#include <math.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/op/schema.h"

enum { MOST_Q_RANK = 1 << 16 };

/* A key whose value follows from others. */
static bool check_width(struct json_reader *reader, const char *key, uint64_t value, const char *from,
                        struct status *status)
{
    uint64_t found = value;
    char expected[96];
    if (!json_reader_u64(reader, key, false, 0, UINT32_MAX, &found, status)) return false;
    snprintf(expected, sizeof expected, "%" PRIu64 " (%s)", value, from);
    return found == value || json_reader_fail(reader, key, expected, json_object_get(reader->object, key), status);
}

static bool read_widths(struct model_latent *latent, struct json_reader *reader, struct status *status)
{
    if (json_reader_is_null(reader, "q_lora_rank")) {
        latent->q_rank = 0;
        json_reader_get(reader, "q_lora_rank");
    }
    if (!json_reader_u64(reader, "q_lora_rank", false, 1, MOST_Q_RANK, &latent->q_rank, status) ||
        !json_reader_u64(reader, "kv_lora_rank", false, 1, OP_MAX_LATENT_DIM, &latent->kv_rank, status) ||
        !json_reader_u64(reader, "qk_nope_head_dim", false, 1, MODEL_MAX_HEAD_DIM, &latent->nope_dim, status) ||
        !json_reader_u64(reader, "qk_rope_head_dim", false, 2, MODEL_MAX_HEAD_DIM, &latent->rope_dim, status) ||
        !json_reader_u64(reader, "v_head_dim", false, 1, MODEL_MAX_HEAD_DIM, &latent->value_dim, status))
        return false;
    if (latent->rope_dim % 2)
        return json_reader_fail(reader, "qk_rope_head_dim", "an even number (rotary embedding)",
                                json_object_get(reader->object, "qk_rope_head_dim"), status);
    return latent->kv_rank + latent->rope_dim <= OP_MAX_LATENT_DIM ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: kv_lora_rank plus qk_rope_head_dim: expected at most %d, found %" PRIu64, reader->path,
                       OP_MAX_LATENT_DIM, latent->kv_rank + latent->rope_dim);
}

bool config_latent(struct model_config *config, struct json_reader *reader, const struct model_latent *defaults,
                   struct status *status)
{
    static const struct model_latent usual = {.kv_rank = 512,
                                              .q_rank = 1536,
                                              .nope_dim = 128,
                                              .rope_dim = 64,
                                              .value_dim = 128};
    struct model_latent *latent = &config->latent;
    *latent = defaults ? *defaults : usual;
    if (!read_widths(latent, reader, status)) return false;
    const uint64_t qk_dim = latent->nope_dim + latent->rope_dim;
    if (!check_width(reader, "head_dim", latent->rope_dim, "qk_rope_head_dim", status) ||
        !check_width(reader, "qk_head_dim", qk_dim, "qk_nope_head_dim plus qk_rope_head_dim", status) ||
        !check_width(reader, "num_key_value_heads", config->heads, "num_attention_heads", status) ||
        !config_attention_bias(config, reader, status))
        return false;
    config->kv_heads = 1;
    config->head_dim = latent->kv_rank + latent->rope_dim;
    config->attention_scale = 1.0 / sqrt((double)qk_dim);
    uint64_t widest = config->head_dim;
    if (widest < qk_dim) widest = qk_dim;
    if (widest < latent->nope_dim + latent->value_dim) widest = latent->nope_dim + latent->value_dim;
    return config->heads * widest <= MODEL_MAX_ATTENTION_WIDTH ||
           status_fail(
               status, STATUS_BAD_INPUT,
               "%s: num_attention_heads times the widest of kv_lora_rank + qk_rope_head_dim, qk_nope_head_dim + "
               "qk_rope_head_dim and qk_nope_head_dim + v_head_dim: expected at most %d, found %" PRIu64,
               reader->path, MODEL_MAX_ATTENTION_WIDTH, config->heads * widest);
}

bool config_deepseek_keys(struct json_reader *reader, const char *scoring, struct status *status)
{
    static const struct field_rule rules[] = {
        {"aux_loss_alpha", FIELD_NO_EFFECT}, /* of training, as the next */
        {"seq_aux", FIELD_NO_EFFECT},
        {"ep_size", FIELD_NO_EFFECT}, /* how experts were shared out */
        {"moe_layer_freq", FIELD_ONE},
    };
    return config_fixed_text(reader, "scoring_func", scoring, status) &&
           field_rules_check(reader, rules, sizeof rules / sizeof *rules, status);
}
