/* SPDX-License-Identifier: Apache-2.0 */
/* Ministral 3 and Devstral Small 2: a Mistral with YaRN, whose queries are multiplied by
 * 1 + llama_4_scaling_beta * log(1 + floor(position / original_max_position_embeddings)). That factor is exactly 1 up to
 * original_max_position_embeddings; an engine has these positions alone. */
#include <string.h>

#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .head_dim = 128,
    .max_position = 262144,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 11,
};

/* The class has it for a config.json without such an object, with a beta of 0.1. */
static const struct rope_config default_rope = {
    .type = ROPE_YARN,
    .factor = 16,
    .beta_fast = 32,
    .beta_slow = 1,
    .mscale = 1,
    .mscale_all_dim = 1,
    .truncate = true,
    .original_max_position = 16384,
};

static void limit_positions(struct model_config *config, uint64_t positions)
{
    if (positions >= config->max_position) return;
    config->max_position = positions;
    config->position_limit = "original_max_position_embeddings: at later positions llama_4_scaling_beta scales "
                             "queries, which engines do not "
                             "compute";
}

/* Takes the keys that only this class has out of an object that describes the rotary embedding. */
static bool take_scaling(struct model_config *config, json_t *rope, const char *path, struct status *status)
{
    static const char beta_key[] = "llama_4_scaling_beta", original_key[] = "original_max_position_embeddings";
    struct json_reader reader;
    uint64_t original = 0;
    double beta = 0;
    if (!json_reader_open(&reader, rope, path, status)) return false;
    bool ok = json_reader_double(&reader, beta_key, false, &beta, status) &&
              json_reader_u64(&reader, original_key, false, 1, MODEL_MAX_POSITION, &original, status);
    if (ok && beta != 0 && !original)
        ok = json_reader_fail(&reader, original_key, "an integer, as llama_4_scaling_beta is not 0", NULL, status);
    json_reader_close(&reader);
    if (!ok) return false;
    if (beta != 0) limit_positions(config, original);
    json_object_del(rope, beta_key);
    json_object_del(rope, "max_position_embeddings"); /* a copy of the model's, which the class does not read */
    return true;
}

bool config_llama_4_scaling(struct model_config *config, struct json_reader *reader, bool *given, struct status *status)
{
    static const char *const objects[] = {"rope_parameters", "rope_scaling"};
    *given = false;
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        char path[300];
        json_t *rope = json_object_get(reader->object, objects[i]);
        *given |= rope && !json_is_null(rope);
        if (!json_is_object(rope)) continue;
        snprintf(path, sizeof path, "%.200s: %s", reader->path, objects[i]);
        if (!take_scaling(config, rope, path, status)) return false;
    }
    return true;
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool given;
    if (!config_sizes(config, reader, &defaults, status) ||
        !config_window(config, reader, CONFIG_WINDOW_ALWAYS, 0, status) ||
        !config_llama_4_scaling(config, reader, &given, status))
        return false;
    if (given) return true;
    config->rope = default_rope;
    limit_positions(config, default_rope.original_max_position);
    return config_rope_defaults(config, reader, 1e6, 1, status);
}

const struct architecture arch_ministral3 = {
    "ministral3",
    "Ministral3ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM},
    .about = "small*: Ministral 3, Devstral Small 2: contexts up to `original_max_position_embeddings`, beyond which "
             "`llama_4_scaling_beta` scales queries",
};
