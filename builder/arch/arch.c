/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/arch/arch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "builder/arch/family.h"
#include "builder/arch/missing.h"
#include "builder/arch/wrappers.h"
#include "kernels/matmul/panel.h"

/* Every family, in the order of messages. */
#define FAMILIES(row)                                                                                               \
    row(llama) row(mistral) row(ministral) row(ministral3) row(qwen2) row(qwen3) row(granite) row(hyperclovax)      \
        row(arcee) row(helium) row(cwm) row(ernie4_5) row(hunyuan_v1_dense) row(apertus) row(olmo) row(olmo2)       \
            row(phi3) row(smollm3) row(seed_oss) row(glm) row(glm4) row(exaone4) row(olmo3) row(gemma) row(gemma2)  \
                row(vaultgemma) row(gemma3) row(gemma4) row(cohere) row(cohere2) row(stablelm) row(starcoder2)      \
                    row(nemotron) row(jais2) row(nanochat) row(phi) row(falcon) row(opt) row(gpt2) row(gpt_bigcode) \
                        row(gpt_neo) row(gptj) row(gpt_neox) row(mixtral) row(qwen2_moe) row(qwen3_moe) row(mellum) \
                            row(olmoe) row(flex_olmo) row(granitemoe) row(granitemoeshared) row(ernie4_5_moe)       \
                                row(hunyuan_v1_moe) row(hy_v3) row(glm4_moe) row(dots1) row(exaone_moe)             \
                                    row(solar_open) row(minimax_m2) row(afmoe) row(gpt_oss) row(deepseek_v2)        \
                                        row(deepseek_v3) row(kimi_k2) row(axk1) row(mistral4) row(glm4_moe_lite)    \
                                            row(youtu) row(minicpm3) row(qwen3_next) row(qwen3_5) row(qwen3_5_moe)  \
                                                row(lfm2) row(lfm2_moe) row(granitemoehybrid) row(bamba)            \
                                                    row(nemotron_h) row(falcon_h1)

#define DECLARE(name) extern const struct architecture arch_##name;
FAMILIES(DECLARE)

#define ADDRESS(name) &arch_##name,
static const struct architecture *const families[] = {FAMILIES(ADDRESS)};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

const char *arch_model_type(size_t index)
{
    return index < FAMILY_COUNT ? families[index]->model_type : wrapper_model_type(index - FAMILY_COUNT);
}

bool arch_about(size_t index, char *about)
{
    if (!arch_model_type(index)) return false;
    if (index < FAMILY_COUNT)
        snprintf(about, ARCH_ABOUT_BYTES, "%s%s", families[index]->about,
                 families[index]->untried_on_gpu ? "; not yet on a GPU" : "");
    else
        wrapper_about(index - FAMILY_COUNT, about, ARCH_ABOUT_BYTES);
    return true;
}

static const struct architecture *find_family(const char *model_type)
{
    for (size_t i = 0; i < FAMILY_COUNT; i++)
        if (strcmp(families[i]->model_type, model_type) == 0) return families[i];
    return NULL;
}

static bool has_experts(const json_t *config)
{
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(config, keys[i])) return true;
    return false;
}

/* Encoders have sizes of the same names, but neither a causal mask nor a cache. */
static bool is_encoder(const json_t *config)
{
    static const char *const keys[] = {"type_vocab_size", "hidden_dropout_prob", "image_size", "num_channels"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(config, keys[i])) return true;
    return json_is_true(json_object_get(config, "is_encoder_decoder"));
}

/* The family whose name begins as the model_type does; else one with the same kind of layers. NULL: the fields are not those of a
 * decoder. */
static const struct architecture *nearest_family(const char *model_type, const json_t *config)
{
    enum { LEAST_COMMON = 4, EXPERTS = 3 };
    const struct architecture *nearest = NULL;
    long best = 0;
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        const char *name = families[i]->model_type;
        size_t common = 0;
        while (name[common] && name[common] == model_type[common]) common++;
        if (common < LEAST_COMMON || 2 * common < strlen(name)) continue;
        const long score = 2 * (long)common - (long)strlen(name + common) +
                           ((families[i]->decoder.experts != NULL) == has_experts(config) ? EXPERTS : 0);
        if (!nearest || score > best) nearest = families[i], best = score;
    }
    if (nearest) return nearest;
    if (!json_object_get(config, "hidden_size") || !json_object_get(config, "num_attention_heads") ||
        is_encoder(config))
        return NULL;
    return find_family(json_object_get(config, "kv_lora_rank")     ? "deepseek_v3"
                       : has_experts(config)                       ? "mixtral"
                       : json_object_get(config, "sliding_window") ? "mistral"
                                                                   : "llama");
}

/* The configuration of the part that reads and writes text, in a model that may have others. */
static const json_t *text_part(const json_t *config)
{
    static const char *const keys[] = {"text_config", "llm_config", "language_config", "thinker_config"};
    for (int depth = 0; depth < 2; depth++) /* a thinker has a text_config */
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            const json_t *inner = json_object_get(config, keys[i]);
            if (json_is_object(inner)) config = inner;
        }
    return config;
}

/* What the nearest family says of the same fields. `within`: they are those of the text part; `doubt`: nothing else says what the
 * family lacks. */
static void describe_nearest(const struct architecture *nearest, const json_t *config, bool within, bool doubt,
                             char *text, size_t size)
{
    struct model_config parsed;
    struct status status = {0};
    json_t *copy = json_copy((json_t *)config); /* its values are shared */
    char *fields = NULL;
    if (copy && json_object_set_new(copy, "model_type", json_string(nearest->model_type)) == 0) {
        json_object_del(copy, "architectures");
        json_object_del(copy, "auto_map");
        fields = json_dumps(copy, JSON_COMPACT);
    }
    json_decref(copy);
    snprintf(text, size, "the nearest supported one%s is '%s'", within ? " to its text part" : "", nearest->model_type);
    const size_t used = strlen(text);
    if (fields) {
        const bool same = model_config_parse(&parsed, fields, strlen(fields), "config.json", arch_read_config, &status);
        if (same && doubt)
            snprintf(text + used, size - used, ", which has all of these fields, but may compute something else");
        else if (!same)
            snprintf(text + used, size - used, ", of which it differs: %.300s", status.message);
    }
    free(fields);
}

static bool refuse(const char *model_type, const struct json_reader *reader, struct status *status)
{
    char about[400] = "no supported one is like it";
    const json_t *text = text_part(reader->object);
    const char *text_type = json_string_value(json_object_get(text, "model_type")), *known = NULL;
    const char *missing = missing_block(model_type, text, &known);
    const struct architecture *nearest =
        known ? find_family(known) : nearest_family(text_type ? text_type : model_type, text);
    if (nearest) describe_nearest(nearest, text, text != reader->object, missing == NULL, about, sizeof about);
    return status_fail(status, STATUS_BAD_INPUT,
                       "%s: model_type '%.80s' is not supported (engbuild --list-models prints those that are)%s%s; %s",
                       reader->path, model_type, missing ? ": " : "", missing ? missing : "", about);
}

static bool read_architecture(struct model_config *config, struct json_reader *reader,
                              const struct architecture *family, struct status *status)
{
    const json_t *architectures = json_reader_get(reader, "architectures");
    if (!architectures) return true;
    const char *first = json_string_value(json_array_get(architectures, 0));
    const bool own = first && family->own_class && strcmp(first, family->own_class) == 0;
    if (!first || (strcmp(first, family->architecture) != 0 && !own))
        return status_fail(status, STATUS_BAD_INPUT, "%s: field 'architectures': expected [\"%s\"], found \"%.80s\"",
                           reader->path, family->architecture, first ? first : json_type_name(architectures));
    snprintf(config->architecture, sizeof config->architecture, "%s", first);
    return true;
}

/* The classes of most families rotate whole heads. */
static bool check_rotation(const struct model_config *config, const struct json_reader *reader,
                           const struct architecture *family, struct status *status)
{
    return family->decoder.partial_rotary || config->rope.rotary_dim == rope_whole_dim(config) ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: field 'partial_rotary_factor': expected 1 for model_type '%s', found a rotation of %" PRIu64
                       " of the %" PRIu64 " elements of a head",
                       reader->path, config->model_type, config->rope.rotary_dim, rope_whole_dim(config));
}

/* A norm after the rotation undoes the factor by which these scale q and k. */
static bool check_scaling(const struct model_config *config, const struct json_reader *reader,
                          const struct architecture *family, struct status *status)
{
    const bool scales = config->rope.type == ROPE_YARN || config->rope.type == ROPE_LONGROPE;
    return !family->decoder.norms_rotated || !scales ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: rope_type: expected default, linear or llama3 for model_type '%s', whose heads are "
                       "normalised after their rotation, found %s",
                       reader->path, config->model_type, config->rope.type == ROPE_YARN ? "yarn" : "longrope");
}

bool arch_read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    const char *model_type = NULL;
    if (!wrapper_enter(config, reader, status) || !json_reader_string(reader, "model_type", true, &model_type, status))
        return false;
    const struct architecture *family = find_family(model_type);
    if (!family) return refuse(model_type, reader, status);
    if (family->sections && !wrapper_drop_sections(reader->object, reader->path, status)) return false;
    return read_architecture(config, reader, family, status) && family->read_config(config, reader, status) &&
           config_read_unclaimed(config, reader, status) && rope_config_parse(config, reader, status) &&
           check_rotation(config, reader, family, status) && check_scaling(config, reader, family, status);
}

bool arch_add_predictor(struct model_config *config, struct status *status)
{
    const struct architecture *family = find_family(config->model_type);
    if (!family || !family->predicts) {
        char names[256] = "";
        for (size_t i = 0; i < FAMILY_COUNT; i++)
            if (families[i]->predicts)
                snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? ", " : "",
                         families[i]->model_type);
        return status_fail(status, STATUS_BAD_INPUT,
                           "--mtp: expected a model_type whose layer that predicts further tokens is supported (%s), "
                           "found '%s'; build without --mtp",
                           names, config->model_type);
    }
    const struct predictor_names *predictor = family->decoder.predictor;
    if (!config->ignored_layers || config->layers >= MODEL_MAX_LAYERS)
        return status_fail(
            status, STATUS_BAD_INPUT,
            "--mtp: config.json: fields 'num_nextn_predict_layers' and 'mtp_num_hidden_layers': expected a layer that "
            "predicts further tokens, in a model of fewer than %d layers, found %" PRIu64 " after %" PRIu64
            "; build without --mtp",
            MODEL_MAX_LAYERS, config->ignored_layers, config->layers);
    uint64_t like = config->layers - 1;
    while (like > 0 && config->layer[like].mixer != MIXER_ATTENTION) like--;
    config->layer[config->layers] = config->layer[like];
    /* The dense layers are the first ones. */
    config->layer[config->layers].experts = config->experts.count > 0 && !(predictor && predictor->is_dense);
    config->layers++;
    config->ignored_layers--;
    config->predicts = true;
    return true;
}

/* The GPU's kernels have no padding between the rows of experts. */
static bool check_expert_rows(const struct graph *graph, struct status *status)
{
    const struct model_config *config = graph->config;
    return graph->target == TARGET_CPU || config->experts.count == 0 || config->hidden_size % PANEL_ROWS == 0 ||
           status_fail(status, STATUS_BAD_INPUT,
                       "config.json: field 'hidden_size': expected a multiple of %d in a model with experts on a GPU, "
                       "found %" PRIu64,
                       (int)PANEL_ROWS, config->hidden_size);
}

bool import_graph(struct graph *graph, struct status *status)
{
    const struct architecture *family = find_family(graph->config->model_type);
    if (!family)
        return status_fail(status, STATUS_BAD_INPUT, "config.json: model_type '%s' is not supported",
                           graph->config->model_type);
    struct decoder_traits traits = family->decoder;
    if (graph->config->no_qk_norm) traits.qk_norm = QK_NORM_NONE;
    if (graph->config->head_norms) traits.qk_norm = QK_NORM_HEADS;
    struct expert_names fused;
    if (graph->config->fused_experts && traits.fused_experts) {
        fused = *traits.fused_experts;
        fused.transposed = graph->config->fused_transposed;
        traits.experts = &fused;
    }
    return check_expert_rows(graph, status) && import_decoder(graph, &traits, status) &&
           graph_check(graph, "import", status);
}
