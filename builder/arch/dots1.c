/* SPDX-License-Identifier: Apache-2.0 */
/* dots.llm1: attention of a Qwen 3, experts of a DeepSeek-V3. */
#include <string.h>

#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 32,
    .max_position = 2048,
    .rms_norm_eps = 1e-6,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
/* The class has no default of how many experts there are and how many a row chooses. */
static const struct biased_experts_defaults experts = {
    .count_keys = {"n_routed_experts", "num_local_experts"},
    .experts = {.intermediate_size = 1408},
    .groups = 1,
    .top_groups = 1,
    .scale = 1,
};

/* The class reads neither this key nor topk_method; writers have the method's name for both. */
static bool check_scoring(struct json_reader *reader, struct status *status)
{
    static const char key[] = "scoring_func";
    const char *scoring = json_string_value(json_object_get(reader->object, key));
    const bool is_method = scoring && strcmp(scoring, "noaux_tc") == 0;
    return config_fixed_text(reader, key, is_method ? scoring : "sigmoid", status) &&
           config_fixed_text(reader, "topk_method", "noaux_tc", status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_window(config, reader, CONFIG_WINDOW_FROM_LAYER, 4096, status) &&
           config_biased_experts(config, reader, &experts, status) && check_scoring(reader, status);
}

const struct architecture arch_dots1 = {
    "dots1",
    "Dots1ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .qk_norm = QK_NORM_HEAD, .experts = &expert_biased_names},
    .about = "small*: dots.llm1: normalised heads; experts as in `deepseek_v3`",
};
