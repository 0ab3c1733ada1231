/* SPDX-License-Identifier: Apache-2.0 */
/* Llama 1 to 3, TinyLlama, SmolLM: biases only where config.json says so. */
#include "builder/arch/arch.h"

static bool import(struct graph *graph, struct status *status)
{
    const struct model_config *config = graph->config;
    const struct decoder_traits traits = {
        .qkv_bias = config->attention_bias,
        .output_bias = config->attention_bias,
        .mlp_bias = config->mlp_bias,
    };
    return import_decoder(graph, &traits, status);
}

const struct architecture import_llama = {"llama", "LlamaForCausalLM", import};
