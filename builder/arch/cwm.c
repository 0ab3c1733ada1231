/* SPDX-License-Identifier: Apache-2.0 */
/* Code World Model: a Llama in which three layers of four attend through a sliding window. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .head_dim = 128,
    .max_position = 131072,
    .rms_norm_eps = 1e-5,
    .bos_token = 128000,
    .eos_token = 128001,
    .more_eos_tokens = {128008, 128009},
    .pad_token = CONFIG_NO_TOKEN,
};

/* The class has it for a config.json without such an object. */
static const struct rope_config default_rope = {
    .type = ROPE_LLAMA3,
    .factor = 16,
    .low_freq_factor = 1,
    .high_freq_factor = 4,
    .original_max_position = 8192,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    enum { PERIOD = 4 };
    if (!config_sizes(config, reader, &defaults, status) || !config_mlp_bias(config, reader, status) ||
        !config_no_window_pattern(reader, status) || !config_window_pattern(config, reader, PERIOD, 8192, status))
        return false;
    if (!json_object_get(reader->object, "layer_types")) { /* the first of each four has none, not the last */
        const uint64_t window = config->layer[0].window;
        for (size_t i = 0; i < config->layers; i++) config->layer[i].window = i % PERIOD ? window : 0;
    }
    const json_t *parameters = json_object_get(reader->object, "rope_parameters");
    if (!json_object_size(json_object_get(reader->object, "rope_scaling"))) {
        json_object_del(reader->object, "rope_scaling"); /* null and {} count as none */
        if (!parameters || json_is_null(parameters)) {
            double theta = 1e6; /* part of the default object */
            config->rope = default_rope;
            if (!json_reader_double(reader, "rope_theta", false, &theta, status)) return false;
            if (theta != 1e6)
                return json_reader_fail(reader, "rope_theta",
                                        "1e6, as the class reads no other without rope_parameters",
                                        json_object_get(reader->object, "rope_theta"), status);
        }
    }
    return config_rope_defaults(config, reader, 1e6, 1, status);
}

const struct architecture arch_cwm = {
    "cwm",
    "CwmForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM},
    .about = "small*: Code World Model: windows in some layers",
};
