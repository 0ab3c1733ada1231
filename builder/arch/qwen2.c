/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 2 and 2.5: biases on q, k and v always, on nothing else; upper layers may slide. */
#include "builder/arch/arch.h"

static bool import(struct graph *graph, struct status *status)
{
    const struct decoder_traits traits = {.qkv_bias = true};
    return import_decoder(graph, &traits, status);
}

const struct architecture import_qwen2 = {"qwen2", "Qwen2ForCausalLM", import};
