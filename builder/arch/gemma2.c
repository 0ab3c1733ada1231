/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 2: a Gemma with norms before and after attention and MLP, caps on scores and logits, and a sliding window in every
 * other layer. */
#include <inttypes.h>

#include "builder/arch/family.h"

enum { DEFAULT_WINDOW = 4096 };

/* sliding_window_size, which published 9B and 27B models have beside sliding_window. The class does not read it. */
static bool check_window_size(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "sliding_window_size";
    uint64_t window = 0;
    for (uint64_t layer = 0; !window && layer < config->layers; layer++) window = config->layer[layer].window;
    uint64_t same = window;
    char expected[64];
    if (!json_reader_u64(reader, key, false, 0, MODEL_MAX_POSITION, &same, status)) return false;
    snprintf(expected, sizeof expected, "the same as sliding_window (%" PRIu64 ")", window);
    return same == window || json_reader_fail(reader, key, expected, json_object_get(reader->object, key), status);
}

bool config_gemma2(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_gemma(config, reader, 4, 8192, status) && config_scalar_and_caps(config, reader, 50, 30, status) &&
           config_window_pattern(config, reader, 2, DEFAULT_WINDOW, status) &&
           check_window_size(config, reader, status);
}

const struct architecture arch_gemma2 = {
    "gemma2",
    "Gemma2ForCausalLM",
    config_gemma2,
    {.norms = DECODER_BOTH_NORMS, .norm = NORM_RMS_PLUS_ONE},
    .about = "small*: text only; windows in some layers, caps on scores and logits",
};
