/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 2: a Gemma with norms before and after attention and MLP, caps on scores and logits, and a sliding window in every
 * other layer. */
#include "builder/arch/family.h"

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_gemma(config, reader, 4, 8192, status) && config_scalar_and_caps(config, reader, 50, 30, status) &&
           config_window_pattern(config, reader, 2, 4096, status);
}

const struct architecture arch_gemma2 = {
    "gemma2",
    "Gemma2ForCausalLM",
    read_config,
    {.norms = DECODER_BOTH_NORMS, .norm = NORM_RMS_PLUS_ONE},
    .about = "small*: text only; windows in some layers, caps on scores and logits",
};
