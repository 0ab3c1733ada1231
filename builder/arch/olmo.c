/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo 1: a Llama whose norms take the mean off and have no weights. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const double EPS = 1e-5; /* of the class, which has no key for it */
static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = EPS,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = 50279,
    .pad_token = 1,
};

static const struct field_rule fixed[] = {{"clip_qkv", FIELD_ABSENT}};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status))
        return false;
    if (config->rms_norm_eps != EPS)
        return json_reader_fail(reader, "rms_norm_eps", "1e-5", json_object_get(reader->object, "rms_norm_eps"),
                                status);
    return field_rules_check(reader, fixed, sizeof fixed / sizeof *fixed, status);
}

const struct architecture arch_olmo = {
    "olmo",
    "OlmoForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .norm = NORM_LAYER_PLAIN},
    .about = "small*: OLMo 1 without `clip_qkv`: layer norms without weights",
};
