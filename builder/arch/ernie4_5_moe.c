/* SPDX-License-Identifier: Apache-2.0 */
/* ERNIE 4.5 with experts: rows of rotary pairs are interleaved; some layers have experts, chosen with a bias, and shared
 * experts, which are one MLP. The first layer that predicts further tokens, which has no experts, is used with --mtp, others are
 * left out. */
#include <inttypes.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/router/router.h"

static const struct config_defaults defaults = {
    .kv_heads = 4,
    .max_position = 131072,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 0,
};
static const struct experts_defaults experts = {.count = 64, .top_k = 6, .intermediate_size = 1536};
static const char *const count_keys[] = {"moe_num_experts", "num_experts"};
static const char *const own_code[] = {"configuration_ernie4_5_moe.Ernie4_5_MoeConfig",
                                       "modeling_ernie4_5_moe.Ernie4_5_Model",
                                       "modeling_ernie4_5_moe.Ernie4_5_MoeModel",
                                       "modeling_ernie4_5_moe.Ernie4_5_MoeForCausalLM"};
/* Keys of training: the class in transformers reads none of them. */
static const struct field_rule unused[] = {
    {"moe_capacity", FIELD_NO_EFFECT},
    {"moe_gate", FIELD_NO_EFFECT},
    {"moe_use_aux_free", FIELD_NO_EFFECT},
};
enum { MOST_SHARED = 64, MOST_PREDICTED = 64 };

/* The layers from start to end of which the number, counted from 1, is a multiple of the interval. */
static bool read_layers(struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t interval = 1, start = 1, end = config->layers - 1;
    const json_t *last = json_reader_get(reader, "moe_layer_end_index");
    const bool is_default = last && json_is_integer(last) && json_integer_value(last) == -1;
    if (!json_reader_u64(reader, "moe_layer_interval", false, 1, MODEL_MAX_LAYERS, &interval, status) ||
        !json_reader_u64(reader, "moe_layer_start_index", false, 0, MODEL_MAX_LAYERS, &start, status) ||
        (!is_default && !json_reader_u64(reader, "moe_layer_end_index", false, 0, MODEL_MAX_LAYERS, &end, status)))
        return false;
    for (uint64_t i = 0; i < config->layers; i++)
        config->layer[i].experts = (i + 1) % interval == 0 && i >= start && i <= end;
    return true;
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t shared = 2;
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_fixed(reader, "use_bias", false, status) ||
        !config_experts(config, reader, count_keys, "moe_k", "moe_intermediate_size", &experts, status) ||
        !json_reader_u64(reader, "moe_num_shared_experts", false, 0, MOST_SHARED, &shared, status) ||
        !json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers,
                         status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status) ||
        !config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status) ||
        !read_layers(config, reader, status))
        return false;
    config->ignored_prefix = "model.mtp_"; /* layers that predict further tokens */
    config->rotary_pairs = true;
    config->rope.theta = 5e5;
    config->experts.shared_size = shared * config->experts.intermediate_size;
    config->experts.renormalise = ROUTER_SUM_OR_EPS;
    config->experts.eps = 1e-12;
    if (config->experts.shared_size > MODEL_MAX_INTERMEDIATE)
        return status_fail(
            status, STATUS_BAD_INPUT,
            "%s: moe_num_shared_experts times moe_intermediate_size: expected at most %d, found %" PRIu64, reader->path,
            MODEL_MAX_INTERMEDIATE, config->experts.shared_size);
    if (!json_reader_double(reader, "moe_norm_min", false, &config->experts.eps, status)) return false;
    return (config->experts.eps > 0 && config->experts.eps < 1) ||
           json_reader_fail(reader, "moe_norm_min", "a number above 0 and below 1",
                            json_object_get(reader->object, "moe_norm_min"), status);
}

static const struct expert_names names = {
    .router = "mlp.gate",
    .selection_bias = "mlp.moe_statics.e_score_correction_bias",
    .bias_dimensions = 2,
    .experts = "mlp.experts",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .shared = "mlp.shared_experts",
};

/* As in Baidu's FastDeploy (ernie4_5_mtp.py): the first such layer. */
static const struct predictor_names predictor = {
    .layer = "model.mtp_block.0",
    .token_norm = "model.mtp_emb_norm.0",
    .state_norm = "model.mtp_hidden_norm.0",
    .projection = "model.mtp_linear_proj.0",
    .is_dense = true,
};

const struct architecture arch_ernie4_5_moe = {
    "ernie4_5_moe",
    "Ernie4_5_MoeForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .experts = &names, .predictor = &predictor},
    .predicts = true,
    .about = "ERNIE 4.5 with experts: selection bias, shared experts; the layer that predicts further tokens "
             "(`model.mtp_`) with `--mtp`",
};
