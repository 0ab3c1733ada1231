/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3 (dense): each head of q and k is normalised before the rotation. */
#include "builder/arch/arch.h"

static bool import(struct graph *graph, struct status *status)
{
    const struct model_config *config = graph->config;
    const struct decoder_traits traits = {
        .qkv_bias = config->attention_bias,
        .output_bias = config->attention_bias,
        .qk_norm = true,
    };
    return import_decoder(graph, &traits, status);
}

const struct architecture import_qwen3 = {"qwen3", "Qwen3ForCausalLM", import};
