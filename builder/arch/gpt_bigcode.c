/* SPDX-License-Identifier: Apache-2.0 */
/* StarCoder 1, SantaCoder and the larger Granite Code models: a GPT-2 with one key and value for all heads. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

/* How it was run, in published configurations. */
static const struct field_rule unused[] = {
    {"attention_softmax_in_fp32", FIELD_NO_EFFECT},
    {"inference_runner", FIELD_NO_EFFECT},
    {"max_batch_size", FIELD_NO_EFFECT},
    {"pad_key_length", FIELD_NO_EFFECT},
    {"pre_allocate_kv_cache", FIELD_NO_EFFECT},
    {"runner_max_sequence_length", FIELD_NO_EFFECT},
    {"scale_attention_softmax_in_fp32", FIELD_NO_EFFECT},
    {"scale_attn_by_inverse_layer_idx", FIELD_FALSE},
    {"validate_runner_input", FIELD_NO_EFFECT},
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool one = true;
    if (!config_gpt2(config, reader, status) || !json_reader_bool(reader, "multi_query", false, &one, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status))
        return false;
    config->kv_heads = one ? 1 : config->heads;
    return true;
}

const struct architecture arch_gpt_bigcode = {
    "gpt_bigcode",
    "GPTBigCodeForCausalLM",
    read_config,
    {.norms = {.attention_in = "ln_1", .mlp_in = "ln_2"},
     .norm = NORM_LAYER_BIAS,
     .plain_mlp = true,
     .fused_qkv = "attn.c_attn",
     .fused = FUSED_BY_KV_HEAD,
     .modules = {.layers = "transformer.h",
                 .embedding = "transformer.wte",
                 .positions = "transformer.wpe",
                 .final_norm = "transformer.ln_f",
                 .output = "attn.c_proj",
                 .up = "mlp.c_fc",
                 .down = "mlp.c_proj"}},
    .about = "small*: StarCoder 1, SantaCoder: learned positions, one KV head",
};
