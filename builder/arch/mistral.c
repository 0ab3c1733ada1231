/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral: a Llama without biases whose layers may attend through a sliding window (config: layer_slides). */
#include "builder/arch/arch.h"

static bool import(struct graph *graph, struct status *status)
{
    const struct decoder_traits traits = {0};
    return import_decoder(graph, &traits, status);
}

const struct architecture import_mistral = {"mistral", "MistralForCausalLM", import};
