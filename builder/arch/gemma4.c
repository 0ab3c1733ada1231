/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 4 (text): as Gemma 3 with norms of plain weights, values that are normalised, and scores that are not scaled. Layers without a
 * window have larger heads, of which a quarter of the pairs turns, and may have fewer KV heads, whose keys may be their values, too. The
 * last layers may read the keys and values of earlier ones. Each layer may get an input of its own (per_layer.c). */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/router/router.h"

static const struct config_defaults defaults = {
    .kv_heads = 4,
    .head_dim = 256,
    .max_position = 131072,
    .rms_norm_eps = 1e-6,
    .bos_token = 2,
    .eos_token = 1,
    .pad_token = 0,
};

/* Without enable_moe_block these have no effect. */
static const struct field_rule without_experts[] = {
    {"moe_intermediate_size", FIELD_NO_EFFECT},
    {"num_experts", FIELD_NO_EFFECT},
    {"top_k_experts", FIELD_NO_EFFECT},
};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};

static bool check_heads(struct json_reader *reader, const char *key, uint64_t kv_heads, uint64_t head_dim,
                        const struct model_config *config, struct status *status)
{
    if (config->heads % kv_heads == 0 && head_dim % 2 == 0 && config->heads * head_dim <= MODEL_MAX_ATTENTION_WIDTH)
        return true;
    return status_fail(status, STATUS_BAD_INPUT,
                       "%s: field '%s': expected an even size of heads, at most %d elements of all %" PRIu64
                       " heads, and a number of KV heads that divides them; found %" PRIu64 " KV heads of %" PRIu64,
                       reader->path, key, MODEL_MAX_ATTENTION_WIDTH, config->heads, kv_heads, head_dim);
}

/* global_head_dim and num_global_key_value_heads: of layers without a window. */
static bool read_global_heads(struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t head_dim = 512, kv_heads = config->kv_heads;
    bool keys_are_values = false;
    const bool given = json_object_get(reader->object, "num_global_key_value_heads") != NULL;
    uint64_t global_heads = config->kv_heads;
    if (!json_reader_u64(reader, "global_head_dim", false, 2, MODEL_MAX_HEAD_DIM, &head_dim, status) ||
        !json_reader_u64(reader, "num_global_key_value_heads", false, 1, MODEL_MAX_HEADS, &global_heads, status) ||
        !json_reader_bool(reader, "attention_k_eq_v", false, &keys_are_values, status))
        return false;
    if (keys_are_values && given) kv_heads = global_heads; /* the class ignores the number otherwise */
    if (!check_heads(reader, "global_head_dim", kv_heads, head_dim, config, status)) return false;
    for (uint64_t i = 0; i < config->layers; i++) {
        struct model_layer *layer = &config->layer[i];
        if (layer->window) continue;
        layer->head_dim = head_dim;
        layer->kv_heads = kv_heads;
        layer->keys_are_values = keys_are_values;
    }
    return true;
}

/* per_layer_config, as transformers writes it: heads of layers, by their numbers; the others have the model's. */
static bool read_layer_heads(struct model_config *config, struct json_reader *reader, struct status *status)
{
    json_t *layers = json_reader_get(reader, "per_layer_config"), *value;
    const char *key;
    if (!layers) return true;
    if (!json_is_object(layers)) return json_reader_fail(reader, "per_layer_config", "an object", layers, status);
    for (uint64_t i = 0; i < config->layers; i++) config->layer[i].head_dim = config->layer[i].kv_heads = 0;
    json_object_foreach (layers, key, value) {
        char path[300], *end;
        struct json_reader inner;
        const unsigned long index = strtoul(key, &end, 10);
        snprintf(path, sizeof path, "%.200s: per_layer_config: %.20s", reader->path, key);
        if (key[0] < '0' || key[0] > '9' || *end || index >= config->layers)
            return status_fail(status, STATUS_BAD_INPUT, "%s: expected the number of a layer below %" PRIu64, path,
                               config->layers);
        uint64_t head_dim = config->head_dim, kv_heads = config->kv_heads;
        bool done = json_reader_open(&inner, value, path, status);
        done = done && json_reader_u64(&inner, "head_dim", false, 2, MODEL_MAX_HEAD_DIM, &head_dim, status) &&
               json_reader_u64(&inner, "num_key_value_heads", false, 1, MODEL_MAX_HEADS, &kv_heads, status) &&
               json_reader_all_consumed(&inner, status) &&
               check_heads(reader, "per_layer_config", kv_heads, head_dim, config, status);
        json_reader_close(&inner);
        if (!done) return false;
        config->layer[index].head_dim = head_dim;
        config->layer[index].kv_heads = kv_heads;
    }
    json_object_del(reader->object, "per_layer_config"); /* all other families refuse it */
    return true;
}

/* Layers of a kind, with a window or without, share their rotary embedding, so that they have heads of one size. */
static bool check_kinds(const struct model_config *config, const struct json_reader *reader, struct status *status)
{
    for (uint64_t i = 0; i < config->layers; i++)
        for (uint64_t j = 0; j < i; j++) {
            const bool alike = !config->layer[i].window == !config->layer[j].window;
            if (!alike || (model_head_dim(config, i) == model_head_dim(config, j) &&
                           model_kv_heads(config, i) == model_kv_heads(config, j)))
                continue;
            return status_fail(status, STATUS_BAD_INPUT,
                               "%s: field 'per_layer_config': expected the same heads in all layers of a kind, found "
                               "others in layers %" PRIu64 " and %" PRIu64,
                               reader->path, j, i);
        }
    return true;
}

/* num_kv_shared_layers: the last layers, which read the keys and values of the last one of their kind before them. */
static bool read_sharing(struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t shared = 0;
    bool wide = false;
    if (!json_reader_u64(reader, "num_kv_shared_layers", false, 0, config->layers - 1, &shared, status) ||
        !json_reader_bool(reader, "use_double_wide_mlp", false, &wide, status))
        return false;
    const uint64_t first = config->layers - shared;
    if (wide && 2 * config->intermediate_size > MODEL_MAX_INTERMEDIATE)
        return json_reader_fail(reader, "use_double_wide_mlp", "false with such an intermediate_size",
                                json_object_get(reader->object, "use_double_wide_mlp"), status);
    for (uint64_t i = first; i < config->layers; i++) {
        uint64_t from = first;
        while (from > 0 && !config->layer[from - 1].window != !config->layer[i].window) from--;
        if (from == 0)
            return status_fail(status, STATUS_BAD_INPUT,
                               "%s: field 'num_kv_shared_layers': expected a layer of the kind of layer %" PRIu64
                               " among the first %" PRIu64 ", whose keys and values it would read; found none",
                               reader->path, i, first);
        config->layer[i].shares = (uint32_t)from;
        if (wide) config->layer[i].inner = 2 * config->intermediate_size;
    }
    return true;
}

/* hidden_size_per_layer_input, for each layer, and its vocabulary. */
static bool read_inputs(struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t vocab = 262144;
    config->per_layer_size = 256;
    if (!json_reader_u64(reader, "hidden_size_per_layer_input", false, 0, MODEL_MAX_HIDDEN / 64,
                         &config->per_layer_size, status) ||
        !json_reader_u64(reader, "vocab_size_per_layer_input", false, 1, MODEL_MAX_VOCAB, &vocab, status))
        return false;
    return config->per_layer_size == 0 || vocab == config->vocab_size ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: field 'vocab_size_per_layer_input': expected vocab_size (%" PRIu64 "), found %" PRIu64,
                       reader->path, config->vocab_size, vocab);
}

/* Images and sound may be seen in both directions ("vision"), text only in one. */
static bool read_direction(struct json_reader *reader, struct status *status)
{
    const char *kind = NULL;
    if (!json_reader_string(reader, "use_bidirectional_attention", false, &kind, status)) return false;
    return !kind || strcmp(kind, "vision") == 0 ||
           json_reader_fail(reader, "use_bidirectional_attention", "null or \"vision\"",
                            json_object_get(reader->object, "use_bidirectional_attention"), status);
}

/* enable_moe_block: all layers have experts beside the MLP. */
static bool read_experts(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const struct experts_defaults required = {0};
    bool enabled = false;
    if (!json_reader_bool(reader, "enable_moe_block", false, &enabled, status)) return false;
    if (!enabled)
        return field_rules_check(reader, without_experts, sizeof without_experts / sizeof *without_experts, status);
    const json_t *size = json_object_get(reader->object, "moe_intermediate_size");
    if (!size || json_is_null(size))
        return json_reader_fail(reader, "moe_intermediate_size", "an integer with enable_moe_block", size, status);
    if (!config_experts(config, reader, count_keys, "top_k_experts", "moe_intermediate_size", &required, status))
        return false;
    config->experts.renormalise = ROUTER_SUM_PLUS_EPS;
    config->experts_beside = true;
    return true;
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !read_experts(config, reader, status) || !read_direction(reader, status) ||
        !config_window_pattern(config, reader, 6, 512, status) || !config_cap(config, reader, 0, status) ||
        !config_activation(config, reader, "hidden_activation", ACTIVATION_GELU_TANH, status))
        return false;
    config->layer[config->layers - 1].window = 0; /* as the class has it, whatever layer_types says */
    if (!read_global_heads(config, reader, status) || !read_layer_heads(config, reader, status) ||
        !check_kinds(config, reader, status) || !read_sharing(config, reader, status) ||
        !read_inputs(config, reader, status))
        return false;
    config->embedding_scale = sqrt((double)config->hidden_size);
    config->attention_scale = 1;
    config->value_norms = config->layer_scalars = true;
    config_local_rope(config, 10000);
    const uint64_t dim = rope_whole_dim(config);
    config->rope = (struct rope_config){.type = ROPE_PROPORTIONAL,
                                        .theta = 1e6,
                                        .factor = 1,
                                        .rotary_dim = dim,
                                        .turning_pairs = dim / 8};
    return true;
}

static const struct expert_names names = {
    .router = "router.proj",
    .scales = "router.per_expert_scale",
    .gate = "experts.gate_up_proj",
    .down = "experts.down_proj",
    .parameters = true,
};

const struct architecture arch_gemma4 = {
    "gemma4_text",
    "Gemma4ForCausalLM",
    read_config,
    {.norms = DECODER_BOTH_NORMS, .qk_norm = QK_NORM_HEAD, .experts = &names},
    .about = "small*: text only (E2B, E4B, 26B-A4B, 31B): heads of two sizes, shared keys and values, inputs of each "
             "layer, experts beside the MLP",
};
