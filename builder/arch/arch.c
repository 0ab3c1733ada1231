/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/arch/arch.h"

#include <string.h>

static const struct architecture *const architectures[] = {
    &import_llama,
    &import_mistral,
    &import_qwen2,
    &import_qwen3,
};

bool import_graph(struct graph *graph, struct status *status)
{
    const struct model_config *config = graph->config;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        const struct architecture *candidate = architectures[i];
        if (strcmp(candidate->model_type, config->model_type) != 0) continue;
        if (config->architecture[0] && strcmp(candidate->architecture, config->architecture) != 0)
            return status_fail(status, STATUS_BAD_INPUT,
                               "config.json: architectures: expected '%s' for model_type '%s', found '%s'",
                               candidate->architecture, config->model_type, config->architecture);
        return candidate->import(graph, status) && graph_check(graph, "import", status);
    }
    return status_fail(status, STATUS_BAD_INPUT,
                       "config.json: model_type '%s' is not supported (supported: llama, mistral, qwen2, qwen3)",
                       config->model_type);
}
