/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/weight_types.h"

#include <fnmatch.h>

#include "builder/graph/graph.h"

bool weight_types_match(const struct weight_kept *kept, const struct graph_weight *weight)
{
    bool matches = fnmatch(kept->pattern, weight->name, 0) == 0;
    for (int i = 0; i < weight->source_count && !matches; i++)
        matches = weight->sources[i].tensor && fnmatch(kept->pattern, weight->sources[i].tensor, 0) == 0;
    return matches;
}

enum encoding_id weight_types_ask(const struct weight_types *types, const struct graph_weight *weight)
{
    enum encoding_id asked = types->matrices;
    if (!graph_is_multiplied(weight)) return ENCODING_NONE;
    if (weight->exact && !encoding_is_plain(asked)) asked = ENCODING_NONE;
    if (weight->layer == GRAPH_NO_LAYER && (types->head_as_it_is || types->head != ENCODING_NONE)) asked = types->head;
    for (int k = 0; k < types->kept_count; k++)
        if (weight_types_match(&types->kept[k], weight)) {
            asked = types->kept[k].encoding;
            break;
        }
    return asked;
}
