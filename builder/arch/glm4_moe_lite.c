/* SPDX-License-Identifier: Apache-2.0 */
/* GLM 4.7 Flash: latent attention and the experts of GLM 4.5, in the layers that mlp_layer_types names. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .head_dim = 64,
    .max_position = 202752,
    .rms_norm_eps = 1e-5,
    .bos_token = 0,
    .eos_token = 1,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct biased_experts_defaults experts = {
    .count_keys = {"n_routed_experts", "num_local_experts"},
    .experts = {.count = 64, .top_k = 4, .intermediate_size = 1536},
    .shared = {.count = 1, .dense = 1},
    .groups = 1,
    .top_groups = 1,
    .scale = 1.8,
    .renormalise = true,
};
static const struct model_latent latent = {.q_rank = 768,
                                           .kv_rank = 512,
                                           .nope_dim = 192,
                                           .rope_dim = 64,
                                           .value_dim = 256};
enum { MOST_PREDICTED = 64 };

/* Without mlp_layer_types the class has one dense layer, whatever first_k_dense_replace is. */
static bool check_dense_layers(struct json_reader *reader, struct status *status)
{
    static const char key[] = "first_k_dense_replace";
    const json_t *dense = json_object_get(reader->object, key);
    return !json_is_integer(dense) || json_object_get(reader->object, "mlp_layer_types") ||
           json_integer_value(dense) == 1 ||
           json_reader_fail(reader, key, "1, as there is no mlp_layer_types", dense, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->rotary_pairs = true;
    return config_sizes(config, reader, &defaults, status) && config_latent(config, reader, &latent, status) &&
           json_reader_bool(reader, "rope_interleave", false, &config->rotary_pairs, status) &&
           config_biased_experts(config, reader, &experts, status) &&
           config_mlp_layers(config, reader, false, status) && check_dense_layers(reader, status) &&
           config_fixed_text(reader, "topk_method", "noaux_tc", status) &&
           config_deepseek_keys(reader, "sigmoid", status) &&
           json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers,
                           status);
}

const struct architecture arch_glm4_moe_lite = {
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .experts = &expert_biased_names},
    .predicts = true,
    .about = "small*: GLM 4.7 Flash: latent attention as in `deepseek_v3`, experts as in `glm4_moe`; the layer that "
             "predicts further tokens with `--mtp`",
};
