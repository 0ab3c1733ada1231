/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/decoded.h"

#include <string.h>

#include "builder/weights/coded.h"

static bool has_codes(const struct graph_weight *weight, const struct checkpoint *checkpoint)
{
    for (int i = 0; i < weight->source_count; i++) {
        const char *name = weight->sources[i].tensor;
        const struct tensor_view *tensor = name ? checkpoint_find(checkpoint, name) : NULL;
        if (tensor && tensor->quantised) return true;
    }
    return false;
}

static const char *reason_of(const struct graph *graph, const struct graph_weight *weight,
                             const struct checkpoint *checkpoint, const struct weight_types *types)
{
    const char *why = "with rows that are looked up";
    if (!graph_is_multiplied(weight)) return why;
    const bool exactly = graph->target == TARGET_CPU;
    if (coded_encoding(weight, checkpoint, graph->ranks, exactly, &why) == ENCODING_NONE) return why;
    return weight_types_ask(types, weight) != ENCODING_NONE ? "for which another type was asked"
                                                            : "of which an engine has no codes";
}

void decoded_matrices_count(const struct graph *graph, const struct checkpoint *checkpoint,
                            const struct weight_types *types, struct decoded_matrices counts[DECODED_MOST_REASONS])
{
    memset(counts, 0, DECODED_MOST_REASONS * sizeof *counts);
    for (int w = 0; w < graph->weight_count; w++) {
        const struct graph_weight *weight = &graph->weights[w];
        if (!weight->used || weight->keeps_codes || !has_codes(weight, checkpoint)) continue;
        const char *reason = reason_of(graph, weight, checkpoint, types);
        int i = 0;
        while (i < DECODED_MOST_REASONS - 1 && counts[i].count && strcmp(counts[i].reason, reason) != 0) i++;
        counts[i].reason = reason;
        counts[i].count++;
    }
}
