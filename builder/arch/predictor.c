/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the tensors of the layer that predicts the token after the next one. */
#include <stdlib.h>
#include <string.h>

#include "builder/arch/family.h"

const struct predictor_names predictor_qwen_names = {
    .layer = "mtp.layers.0",
    .token_norm = "mtp.pre_fc_norm_embedding",
    .state_norm = "mtp.pre_fc_norm_hidden",
    .projection = "mtp.fc",
    .norm = "mtp.norm",
};

/* The tensor's name after its layer's, or NULL: it is of another layer. */
static const char *in_layer(const char *tensor, uint32_t layer)
{
    char prefix[48];
    const int length = snprintf(prefix, sizeof prefix, "model.layers.%u.", layer);
    return strncmp(tensor, prefix, (size_t)length) == 0 ? tensor + length : NULL;
}

/* Allocated; NULL: memory is lacking. */
static char *renamed(const char *rest, const struct predictor_names *names)
{
    const struct {
        const char *usual, *name;
    } modules[] = {{"enorm.", names->token_norm},
                   {"hnorm.", names->state_norm},
                   {"eh_proj.", names->projection},
                   {"shared_head.norm.", names->norm}};
    const char *module = names->layer;
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        const size_t length = strlen(modules[i].usual);
        if (strncmp(rest, modules[i].usual, length) != 0) continue;
        module = modules[i].name;
        rest += length;
        break;
    }
    const size_t bytes = strlen(module) + strlen(rest) + 2;
    char *name = malloc(bytes);
    if (name) snprintf(name, bytes, "%s.%s", module, rest);
    return name;
}

void predictor_rename(struct graph *graph, int first, uint32_t layer, const struct predictor_names *names)
{
    for (int w = first; w < graph->weight_count; w++)
        for (int i = 0; i < graph->weights[w].source_count; i++) {
            char **tensor = &graph->weights[w].sources[i].tensor;
            const char *rest = *tensor ? in_layer(*tensor, layer) : NULL;
            if (!rest) continue;
            char *name = renamed(rest, names);
            if (!name) {
                graph->out_of_memory = true;
                return;
            }
            free(*tensor);
            *tensor = name;
        }
}
