/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/arch/arch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "builder/arch/family.h"

/* Every family, in the order of messages. */
#define FAMILIES(row)                                                                                          \
    row(llama) row(mistral) row(qwen2) row(qwen3) row(granite) row(olmo2) row(phi3) row(smollm3) row(seed_oss) \
        row(glm4) row(exaone4) row(olmo3) row(gemma) row(gemma2) row(gemma3) row(cohere2) row(stablelm)        \
            row(starcoder2) row(nemotron) row(gpt2) row(gpt_neox) row(mixtral) row(qwen2_moe) row(qwen3_moe)   \
                row(olmoe) row(granitemoe) row(ernie4_5_moe) row(glm4_moe) row(gpt_oss) row(deepseek_v2)       \
                    row(deepseek_v3) row(qwen3_next) row(lfm2)

#define DECLARE(name) extern const struct architecture arch_##name;
FAMILIES(DECLARE)

#define ADDRESS(name) &arch_##name,
static const struct architecture *const families[] = {FAMILIES(ADDRESS)};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

const char *arch_model_type(size_t index) { return index < FAMILY_COUNT ? families[index]->model_type : NULL; }

const char *arch_about(size_t index) { return index < FAMILY_COUNT ? families[index]->about : NULL; }

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
        if (common < LEAST_COMMON) continue;
        const long score = 2 * (long)common - (long)strlen(name + common) +
                           ((families[i]->decoder.experts != NULL) == has_experts(config) ? EXPERTS : 0);
        if (!nearest || score > best) nearest = families[i], best = score;
    }
    if (nearest) return nearest;
    if (!json_object_get(config, "hidden_size") || !json_object_get(config, "num_attention_heads")) return NULL;
    return find_family(json_object_get(config, "kv_lora_rank")     ? "deepseek_v3"
                       : has_experts(config)                       ? "mixtral"
                       : json_object_get(config, "sliding_window") ? "mistral"
                                                                   : "llama");
}

/* What the nearest family says of the same fields. */
static void describe_nearest(const struct architecture *nearest, const json_t *config, char *text, size_t size)
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
    snprintf(text, size, "the nearest supported one is '%s'", nearest->model_type);
    const size_t used = strlen(text);
    if (fields) {
        if (model_config_parse(&parsed, fields, strlen(fields), "config.json", arch_read_config, &status))
            snprintf(text + used, size - used, ", which has all of these fields, but may compute something else");
        else
            snprintf(text + used, size - used, ", of which it differs: %.200s", status.message);
    }
    free(fields);
}

static bool refuse(const char *model_type, const struct json_reader *reader, struct status *status)
{
    char supported[1024], about[320] = "no supported one is like it";
    size_t used = 0;
    const struct architecture *nearest = nearest_family(model_type, reader->object);
    if (nearest) describe_nearest(nearest, reader->object, about, sizeof about);
    for (size_t i = 0; i < FAMILY_COUNT && used < sizeof supported; i++)
        used +=
            (size_t)snprintf(supported + used, sizeof supported - used, "%s%s", i ? ", " : "", families[i]->model_type);
    return status_fail(status, STATUS_BAD_INPUT, "%s: model_type '%.80s' is not supported; %s; supported: %s",
                       reader->path, model_type, about, supported);
}

static bool read_architecture(struct model_config *config, struct json_reader *reader,
                              const struct architecture *family, struct status *status)
{
    const json_t *architectures = json_reader_get(reader, "architectures");
    if (!architectures) return true;
    const char *first = json_string_value(json_array_get(architectures, 0));
    if (!first || strcmp(first, family->architecture) != 0)
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

bool arch_read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    const char *model_type = NULL;
    if (!json_reader_string(reader, "model_type", true, &model_type, status)) return false;
    const struct architecture *family = find_family(model_type);
    if (!family) return refuse(model_type, reader, status);
    return read_architecture(config, reader, family, status) && family->read_config(config, reader, status) &&
           config_read_unclaimed(config, reader, status) && rope_config_parse(config, reader, status) &&
           check_rotation(config, reader, family, status);
}

bool import_graph(struct graph *graph, struct status *status)
{
    const struct architecture *family = find_family(graph->config->model_type);
    if (!family)
        return status_fail(status, STATUS_BAD_INPUT, "config.json: model_type '%s' is not supported",
                           graph->config->model_type);
    struct decoder_traits traits = family->decoder;
    if (graph->config->no_qk_norm) traits.qk_norm = QK_NORM_NONE;
    return import_decoder(graph, &traits, status) && graph_check(graph, "import", status);
}
