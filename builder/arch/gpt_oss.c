/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss: attention with a sink for each head, in every other layer through a window; all MLPs are experts with biases and a
 * clamped SwiGLU, in released checkpoints as codes of MXFP4. */
#include <inttypes.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/router/router.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .head_dim = 64,
    .max_position = 131072,
    .rms_norm_eps = 1e-5,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 128, .top_k = 4};
static const char *const count_keys[] = {"num_local_experts", "num_experts"};
static const struct rope_config rope = {
    .type = ROPE_YARN,
    .factor = 32,
    .beta_fast = 32,
    .beta_slow = 1,
    .original_max_position = 4096,
};

/* Keys of OpenAI's own format, which released files have beside those of transformers. */
static const struct field_rule unused[] = {{"initial_context_length", FIELD_NO_EFFECT}}; /* the rope's says it */

static bool read_top_k(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t same = config->experts.top_k;
    if (!json_reader_u64(reader, "experts_per_token", false, 1, MODEL_MAX_TOP_K, &same, status)) return false;
    return same == config->experts.top_k ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: field 'experts_per_token': expected num_experts_per_tok (%" PRIu64 "), found %" PRIu64,
                       reader->path, config->experts.top_k, same);
}

/* The class computes the clamped SwiGLU whatever hidden_act says. */
static bool read_activation(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_activation(config, reader, "hidden_act", ACTIVATION_SILU, status)) return false;
    if (config->activation != ACTIVATION_SILU)
        return json_reader_fail(reader, "hidden_act", "\"silu\" for this model_type",
                                json_object_get(reader->object, "hidden_act"), status);
    config->activation = ACTIVATION_CLAMPED;
    config->swiglu_limit = 7;
    return config_factor(reader, "swiglu_limit", &config->swiglu_limit, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->qkv_bias = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !config_fixed(reader, "mlp_bias", true, status) || !config_window_pattern(config, reader, 2, 128, status) ||
        !read_activation(config, reader, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", NULL, &experts, status) ||
        !read_top_k(config, reader, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status))
        return false;
    config->mlp_bias = true;
    config->experts.score = ROUTER_SOFTMAX_CHOSEN;
    config->rope = rope;
    return config_rope_defaults(config, reader, 150000, 1, status);
}

static const struct expert_names names = {
    .router = "mlp.router",
    .router_bias = true,
    .gate = "mlp.experts.gate_up_proj",
    .down = "mlp.experts.down_proj",
    .parameters = true,
    .by_turns = true,
    .transposed = true,
};

const struct architecture arch_gpt_oss = {
    "gpt_oss",
    "GptOssForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .sinks = "self_attn.sinks", .experts = &names},
    .about =
        "gpt-oss: attention sinks, clamped SwiGLU; codes of MXFP4 are kept where ranks can share their groups of 32",
};
