/* SPDX-License-Identifier: Apache-2.0 */
/* K-EXAONE: attention of an EXAONE 4 between norms of what goes in, experts of a DeepSeek-V3. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .kv_heads = 32,
    .max_position = 2048,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 53,
    .pad_token = 0,
};
static const struct biased_experts_defaults experts = {
    .count_keys = {"num_experts", "num_local_experts"},
    .experts = {.count = 64, .top_k = 8, .intermediate_size = 1024},
    .shared = {.count_key = "num_shared_experts", .count = 1, .dense = 1},
    .groups = 1,
    .top_groups = 1,
    .scale = 2.5,
    .renormalise = true,
};
enum { MOST_PREDICTED = 64 };

/* How many layers is_moe_layer has without experts. */
static const struct field_rule unused[] = {{"first_last_k_dense_replace", FIELD_NO_EFFECT}};

/* The authors' form of mlp_layer_types. */
static bool check_layers(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "is_moe_layer";
    const json_t *layers = json_reader_get(reader, key);
    bool same = !layers || (json_is_array(layers) && json_array_size(layers) == config->layers);
    for (size_t i = 0; layers && same && i < config->layers; i++) {
        const json_t *layer = json_array_get(layers, i);
        same = json_is_boolean(layer) && json_is_true(layer) == config->layer[i].experts;
    }
    return same ||
           json_reader_fail(reader, key, "true for each layer with experts (mlp_layer_types, first_k_dense_replace)",
                            layers, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->ignored_prefix = "mtp."; /* layers that predict further tokens */
    return config_sizes(config, reader, &defaults, status) && config_window_rotates(config, reader, 4, 4096, status) &&
           config_biased_experts(config, reader, &experts, status) && config_mlp_layers(config, reader, true, status) &&
           check_layers(config, reader, status) && config_fixed_text(reader, "scoring_func", "sigmoid", status) &&
           config_fixed_text(reader, "topk_method", "noaux_tc", status) &&
           field_rules_check(reader, unused, sizeof unused / sizeof *unused, status) &&
           json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers,
                           status);
}

static const struct expert_names names = {
    .router = "mlp.gate",
    .selection_bias = "mlp.e_score_correction_bias",
    .bias_dimensions = 1,
    .experts = "mlp.experts",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .shared = "mlp.shared_experts",
};

const struct architecture arch_exaone_moe = {
    "exaone_moe",
    "ExaoneMoeForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .qk_norm = QK_NORM_HEAD, .experts = &names},
    .about = "small*: K-EXAONE: windows in some layers, which alone rotate; experts as in `deepseek_v3`",
    .own_class = "ExaoneMoEForCausalLM",
};
