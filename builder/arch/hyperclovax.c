/* SPDX-License-Identifier: Apache-2.0 */
/* HyperCLOVA X SEED: a Granite with norms after attention and MLP, too, whose logits are multiplied, not divided. */
#include <math.h>

#include "builder/arch/family.h"

/* A null stands for the key's absence. */
static void drop_null(struct json_reader *reader, const char *key)
{
    if (json_reader_is_null(reader, key)) json_object_del(reader->object, key);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char multiplier[] = "residual_multiplier";
    bool post_norm = true;
    drop_null(reader, "attention_multiplier");
    const bool scaled = json_object_get(reader->object, "attention_multiplier") != NULL;
    if (!config_granite(config, reader, status) ||
        !json_reader_bool(reader, "use_post_norm", false, &post_norm, status))
        return false;
    if (!scaled) config->attention_scale = 1.0 / sqrt((double)config->head_dim);
    config->logits_scale = 1.0 / config->logits_scale;
    config->other_norms = !post_norm;
    return !post_norm || config->residual_scale == 1 ||
           json_reader_fail(reader, multiplier, "1, as use_post_norm is true",
                            json_object_get(reader->object, multiplier), status);
}

static const struct decoder_norms pre_norm = DECODER_PRE_NORM;

const struct architecture arch_hyperclovax = {
    "hyperclovax",
    "HyperCLOVAXForCausalLM",
    read_config,
    {.norms = {.attention_in = "input_layernorm",
               .attention_out = "post_norm1",
               .mlp_in = "post_attention_layernorm",
               .mlp_out = "post_norm2"},
     .other_norms = &pre_norm},
    .about = "small*: HyperCLOVA X SEED: multipliers as in `granite`, four norms in a layer",
};
