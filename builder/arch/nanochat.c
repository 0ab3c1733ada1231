/* SPDX-License-Identifier: Apache-2.0 */
/* nanochat: norms have no weights, the embedding and each head of q and k are normalised, too; an MLP of squared ReLU without a
 * gate; logits are capped. q and k turn the other way round than those of a Llama. They are normalised after that, which without
 * weights is the same as before. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = 1e-6,
    .bos_token = 0,
    .eos_token = 1,
    .pad_token = 1,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_cap(config, reader, 15, status) &&
           config_activation(config, reader, "hidden_act", ACTIVATION_RELU2, status);
}

const struct architecture arch_nanochat = {
    "nanochat",
    "NanoChatForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM,
     .qk_norm = QK_NORM_HEAD,
     .norm = NORM_RMS_PLAIN,
     .plain_mlp = true,
     .embedding_norm = true,
     .turns_back = true,
     .norms_rotated = true,
     .modules = {.up = "mlp.fc1", .down = "mlp.fc2"}},
    .about = "small*: nanochat: norms without weights, MLPs without a gate",
};
