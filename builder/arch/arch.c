/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/arch/arch.h"

#include <inttypes.h>
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

/* `path`: the file for messages. */
static const struct architecture *find_family(const char *model_type, const char *path, struct status *status)
{
    char supported[1024];
    size_t used = 0;
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        if (strcmp(families[i]->model_type, model_type) == 0) return families[i];
        if (used < sizeof supported)
            used += (size_t)snprintf(supported + used, sizeof supported - used, "%s%s", i ? ", " : "",
                                     families[i]->model_type);
    }
    status_fail(status, STATUS_BAD_INPUT, "%s: model_type '%.80s' is not supported; supported: %s", path, model_type,
                supported);
    return NULL;
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
    const struct architecture *family = find_family(model_type, reader->path, status);
    return family && read_architecture(config, reader, family, status) && family->read_config(config, reader, status) &&
           config_read_unclaimed(config, reader, status) && rope_config_parse(config, reader, status) &&
           check_rotation(config, reader, family, status);
}

bool import_graph(struct graph *graph, struct status *status)
{
    const struct architecture *family = find_family(graph->config->model_type, "config.json", status);
    if (!family) return false;
    struct decoder_traits traits = family->decoder;
    if (graph->config->no_qk_norm) traits.qk_norm = QK_NORM_NONE;
    return import_decoder(graph, &traits, status) && graph_check(graph, "import", status);
}
