/* SPDX-License-Identifier: Apache-2.0 */
/* MiniMax M2: q and k are normalised over all heads, a part of each head rotates; all layers have experts with sigmoid scores
 * and a selection bias. */
#include <inttypes.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/router/router.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .head_dim = 128,
    .max_position = 196608,
    .rms_norm_eps = 1e-6,
    .bos_token = 200034,
    .eos_token = 200020,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 256, .top_k = 8};
static const char *const count_keys[] = {"num_local_experts", "num_experts"};
static const char *const own_code[] = {"configuration_minimax_m2.MiniMaxM2Config",
                                       "modeling_minimax_m2.MiniMaxM2ForCausalLM"};

/* Keys of the authors' own configuration class, which has more kinds of layers. */
static const struct field_rule rules[] = {
    {"use_qk_norm", FIELD_TRUE},
    {"use_routing_bias", FIELD_TRUE},
    {"shared_intermediate_size", FIELD_ZERO},
    {"shared_moe_mode", FIELD_NO_EFFECT},       /* of shared experts, of which there are none */
    {"mlp_intermediate_size", FIELD_NO_EFFECT}, /* of dense layers */
    {"layernorm_full_attention_beta", FIELD_ONE},
    {"layernorm_linear_attention_beta", FIELD_ONE},
    {"layernorm_mlp_beta", FIELD_ONE},
    {"use_mtp", FIELD_NO_EFFECT}, /* published checkpoints lack the layers that predict further tokens */
    {"num_mtp_modules", FIELD_NO_EFFECT},
    {"mtp_transformer_layers", FIELD_NO_EFFECT},
};

/* attn_type_list: 1 stands for attention, 0 for lightning attention. */
static bool check_layers(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "attn_type_list";
    const json_t *types = json_reader_get(reader, key);
    bool attends = !types || (json_is_array(types) && json_array_size(types) == config->layers);
    for (size_t i = 0; types && attends && i < config->layers; i++)
        attends = json_integer_value(json_array_get(types, i)) == 1;
    return attends || json_reader_fail(reader, key, "1 for each layer (attention)", types, status);
}

/* rotary_dim: the same as partial_rotary_factor times head_dim. */
static bool read_rotation(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "rotary_dim", factor_key[] = "partial_rotary_factor";
    uint64_t dim = config->head_dim;
    char expected[96];
    const json_t *factor = json_object_get(reader->object, factor_key);
    if (!factor) factor = json_object_get(json_object_get(reader->object, "rope_parameters"), factor_key);
    if (!json_reader_u64(reader, key, false, 2, config->head_dim, &dim, status) ||
        !config_rope_defaults(config, reader, 5e6, 1, status))
        return false;
    const bool given = json_is_integer(json_object_get(reader->object, key));
    const double part = json_is_number(factor) ? json_number_value(factor) : 1;
    snprintf(expected, sizeof expected, "an even number, %s times head_dim (%" PRIu64 ")", factor_key,
             config->head_dim);
    config->rope.rotary_dim = dim;
    return !given || (dim % 2 == 0 && (!factor || (double)dim == part * (double)config->head_dim)) ||
           json_reader_fail(reader, key, expected, json_object_get(reader->object, key), status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_sizes(config, reader, &defaults, status) || !read_rotation(config, reader, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", NULL, &experts, status) ||
        !config_fixed_text(reader, "scoring_func", "sigmoid", status) ||
        !config_fixed_text(reader, "qk_norm_type", "per_layer", status) || !check_layers(config, reader, status) ||
        !field_rules_check(reader, rules, sizeof rules / sizeof *rules, status) ||
        !config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status))
        return false;
    config->experts.score = ROUTER_SIGMOID;
    config->experts.renormalise = ROUTER_SUM_PLUS_EPS;
    return true;
}

static const struct expert_names names = {
    .router = "block_sparse_moe.gate",
    .selection_bias = "block_sparse_moe.e_score_correction_bias",
    .bias_dimensions = 1,
    .experts = "block_sparse_moe.experts",
    .gate = "w1",
    .up = "w3",
    .down = "w2",
};

const struct architecture arch_minimax_m2 = {
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .qk_norm = QK_NORM_WIDTH, .partial_rotary = true, .experts = &names},
    .about = "small*: MiniMax M2: q and k normalised over all heads, rotation of a part of each head; experts with "
             "sigmoid scores and a selection bias",
};
