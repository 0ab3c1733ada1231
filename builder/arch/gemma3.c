/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 3 (text): a Gemma with norms before and after attention and MLP and on each head of q and k; five layers of six attend
 * through a sliding window and have a rotary embedding of their own. */
#include "builder/arch/family.h"

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    double local_theta = 10000;
    if (!config_gemma(config, reader, 4, 131072, status) || !config_scalar_and_caps(config, reader, 0, 0, status) ||
        !config_window_pattern(config, reader, 6, 4096, status) ||
        !config_theta(reader, "rope_local_base_freq", &local_theta, status) ||
        !config_rope_defaults(config, reader, 1e6, 1, status))
        return false;
    config_local_rope(config, local_theta);
    return true;
}

const struct architecture arch_gemma3 = {
    "gemma3_text",
    "Gemma3ForCausalLM",
    read_config,
    {.norms = DECODER_BOTH_NORMS, .norm = NORM_RMS_PLUS_ONE, .qk_norm = QK_NORM_HEAD},
    .about = "small*: text only; windows in some layers",
};
