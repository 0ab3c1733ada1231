/* SPDX-License-Identifier: Apache-2.0 */
/* GLM 4 (0414): a GLM with norms before and after attention and MLP. */
#include "builder/arch/family.h"

const struct architecture arch_glm4 = {
    "glm4",
    "Glm4ForCausalLM",
    config_glm,
    {.norms = {.attention_in = "input_layernorm",
               .attention_out = "post_self_attn_layernorm",
               .mlp_in = "post_attention_layernorm",
               .mlp_out = "post_mlp_layernorm"},
     .partial_rotary = true,
     .fused_gate_up = "mlp.gate_up_proj"},
    .about = "small*: four norms in a layer, rotation of a half of each head",
};
