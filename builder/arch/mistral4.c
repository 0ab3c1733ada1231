/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral Small 4: the latent attention and the experts of a DeepSeek-V3, but for scores that are a softmax without a bias, and queries that
 * are multiplied at positions beyond original_max_position_embeddings, as in Ministral 3. */
#include <inttypes.h>

#include "builder/arch/family.h"
#include "kernels/router/router.h"

static const struct config_defaults defaults = {
    .head_dim = 64,
    .max_position = 1048576,
    .rms_norm_eps = 1e-6,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 11,
};
static const struct model_latent latent = {.q_rank = 1024,
                                           .kv_rank = 256,
                                           .nope_dim = 64,
                                           .rope_dim = 64,
                                           .value_dim = 128};
static const struct biased_experts_defaults experts = {
    .count_keys = {"n_routed_experts", "num_local_experts"},
    .experts = {.count = 128, .top_k = 4, .intermediate_size = 2048},
    .shared = {.count = 1, .dense = 0},
    .groups = 1,
    .top_groups = 1,
    .scale = 1,
    .renormalise = true,
};
enum { MOST_HEAD_DIM = 2 * MODEL_MAX_HEAD_DIM };

/* head_dim has both parts of a head of q, unlike that of other models with latent attention. 0: config.json has none. */
static bool take_head_dim(struct json_reader *reader, uint64_t *head_dim, struct status *status)
{
    *head_dim = 0;
    if (!json_reader_u64(reader, "head_dim", false, 1, MOST_HEAD_DIM, head_dim, status)) return false;
    json_object_del(reader->object, "head_dim");
    return true;
}

/* partial_rotary_factor is the part of such a head that rotates. */
static bool take_rotary_part(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "partial_rotary_factor";
    json_t *rope = json_object_get(reader->object, "rope_parameters");
    const json_t *part = json_object_get(rope, key);
    const double qk_dim = (double)(config->latent.nope_dim + config->latent.rope_dim);
    if (!json_is_number(part)) return true;
    if (json_number_value(part) * qk_dim != (double)config->latent.rope_dim)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: rope_parameters: field '%s': expected the part of qk_rope_head_dim (%" PRIu64
                           ") in qk_nope_head_dim plus qk_rope_head_dim, found %g",
                           reader->path, key, config->latent.rope_dim, json_number_value(part));
    json_object_del(rope, key);
    return true;
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool given;
    uint64_t head_dim;
    config->rotary_pairs = true;
    if (!take_head_dim(reader, &head_dim, status) || !config_sizes(config, reader, &defaults, status) ||
        !config_latent(config, reader, &latent, status) ||
        !json_reader_bool(reader, "rope_interleave", false, &config->rotary_pairs, status) ||
        !config_biased_experts(config, reader, &experts, status) || !take_rotary_part(config, reader, status) ||
        !config_llama_4_scaling(config, reader, &given, status))
        return false;
    config->experts.score = ROUTER_SOFTMAX;
    if (head_dim && head_dim != config->latent.nope_dim + config->latent.rope_dim)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'head_dim': expected qk_nope_head_dim plus qk_rope_head_dim (%" PRIu64
                           "), found %" PRIu64,
                           reader->path, config->latent.nope_dim + config->latent.rope_dim, head_dim);
    return given || status_fail(status, STATUS_BAD_INPUT, "%s: field 'rope_parameters': expected an object, found none",
                                reader->path);
}

/* As transformers stores them. */
static const struct expert_names fused_names = {
    .router = "mlp.gate",
    .gate = "mlp.experts.gate_up_proj",
    .down = "mlp.experts.down_proj",
    .parameters = true,
    .shared = "mlp.shared_experts",
};

const struct architecture arch_mistral4 = {
    "mistral4",
    "Mistral4ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .experts = &expert_latent_names, .fused_experts = &fused_names},
    .about =
        "small*: Mistral Small 4: latent attention and experts as in `deepseek_v3`, softmax scores; contexts up to "
        "`original_max_position_embeddings`, as in `ministral3`",
};
