/* SPDX-License-Identifier: Apache-2.0 */
/* AFMoE (Arcee's Trinity): norms before and after attention and MLP, attention with an output gate, through a window in most layers,
 * which alone rotate; experts with sigmoid scores and a selection bias. */
#include <math.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/router/router.h"

static const struct config_defaults defaults = {
    .head_dim = 128,
    .max_position = 16384,
    .rms_norm_eps = 1e-5,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 64, .top_k = 6, .intermediate_size = 1408};
static const struct shared_experts_defaults shared = {.count_key = "num_shared_experts",
                                                      .dense_key = "num_dense_layers",
                                                      .count = 2,
                                                      .dense = 1};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};
static const char *const own_code[] = {"configuration_afmoe.AfmoeConfig", "modeling_afmoe.AfmoeModel",
                                       "modeling_afmoe.AfmoeForCausalLM"};

/* Keys of the authors' own configuration class. */
static const struct field_rule rules[] = {
    {"route_norm", FIELD_TRUE},
    {"n_group", FIELD_ONE},
    {"topk_group", FIELD_ONE},
    {"num_expert_groups", FIELD_ONE},
    {"num_limited_groups", FIELD_ONE},
    {"use_grouped_mm", FIELD_NO_EFFECT},     /* how products are computed */
    {"load_balance_coeff", FIELD_NO_EFFECT}, /* of training */
};

static bool read_windows(struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t period = 4;
    if (json_reader_is_null(reader, "sliding_window"))
        return json_reader_fail(reader, "sliding_window", "an integer",
                                json_object_get(reader->object, "sliding_window"), status);
    return config_no_window_pattern(reader, status) &&
           json_reader_u64(reader, "global_attn_every_n_layers", false, 1, MODEL_MAX_LAYERS, &period, status) &&
           config_window_rotates(config, reader, period, 1024, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool scales = false;
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !read_windows(config, reader, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts, status) ||
        !config_factor(reader, "route_scale", &config->experts.scale, status) ||
        !config_shared_experts(config, reader, &shared, status) ||
        !config_fixed_text(reader, "score_func", "sigmoid", status) ||
        !json_reader_bool(reader, "mup_enabled", false, &scales, status) ||
        !field_rules_check(reader, rules, sizeof rules / sizeof *rules, status) ||
        !config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status))
        return false;
    if (scales) config->embedding_scale = sqrt((double)config->hidden_size);
    config->experts.score = ROUTER_SIGMOID;
    config->experts.renormalise = ROUTER_SUM_PLUS_EPS;
    config->experts.eps = 1e-20;
    return true;
}

static const struct expert_names names = {
    .router = "mlp.router.gate",
    .selection_bias = "mlp.expert_bias",
    .bias_dimensions = 1,
    .experts = "mlp.experts",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .shared = "mlp.shared_experts",
};

const struct architecture arch_afmoe = {
    "afmoe",
    "AfmoeForCausalLM",
    read_config,
    {.norms = {.attention_in = "input_layernorm",
               .attention_out = "post_attention_layernorm",
               .mlp_in = "pre_mlp_layernorm",
               .mlp_out = "post_mlp_layernorm"},
     .qk_norm = QK_NORM_HEAD,
     .modules = {.output_gate = "self_attn.gate_proj"},
     .experts = &names},
    .about =
        "small*: Trinity: four norms in a layer, an output gate, windows in some layers, which alone rotate; experts "
        "with sigmoid scores, a selection bias and shared experts",
};
