/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_graph.h"

#include <string.h>

#include "builder/arch/arch.h"
#include "builder/passes/pass.h"
#include "builder/weights/cache_scales.h"
#include "builder/weights/weights.h"

static bool is_coded(enum encoding_id asked) { return asked != ENCODING_NONE && !encoding_is_plain(asked); }

static bool codes_are_asked(const struct weight_types *types)
{
    bool asked = is_coded(types->matrices) || is_coded(types->head);
    for (int k = 0; k < types->kept_count; k++) asked |= is_coded(types->kept[k].encoding);
    return asked;
}

enum dtype build_half_dtype(const struct build *build)
{
    const struct checkpoint *checkpoint = &build->checkpoint;
    const struct weight_types *types = &build->options->types;
    enum dtype found = checkpoint->config.dtype;
    if (codes_are_asked(types)) return DTYPE_BF16;
    if (types->matrices) return (enum dtype)types->matrices;
    /* Tensors of a quantised checkpoint count as F32. */
    for (size_t t = 0; build->has_weights && t < checkpoint->tensor_count; t++) {
        if (checkpoint->tensors[t].rank != 2) continue;
        found = checkpoint->tensors[t].dtype;
        if (found != DTYPE_F16) break; /* mixed: bf16 holds the range of all */
    }
    return found == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;
}

static void init_graph(const struct build *build, struct graph *graph, enum engine_target target, enum plan_kind kind)
{
    graph_init(graph, &build->checkpoint.config, kind);
    graph->target = target;
    if (target == TARGET_CUDA) {
        graph->compute_dtype = build_half_dtype(build);
        graph->has_routed_matmul = build->has_routed_matmul;
        graph->shared_per_block = build->shared_per_block;
        graph->multiprocessors = build->multiprocessors;
    }
    graph->ranks = build->options->gpus;
    graph->gives_hidden = build->lowering.geometry.hidden_size > 0;
    graph->joins = build->joins;
    if (graph->ranks > 1) graph->rank_config = &build->rank_config;
}

/* Dumps show the engine's graphs. */
static bool run_build_passes(const struct build *build, struct graph *graph, bool is_engines, struct status *status)
{
    const char *dump_after = is_engines ? build->options->dump_after : NULL;
    return run_passes(graph, dump_after, build->options->out, status);
}

/* The engine's graphs; those of the unquantised model that it is compared with form a scale for each row. */
static bool import(struct build *build, struct graph *graph, bool is_engines, struct status *status)
{
    if (!import_graph(graph, status) ||
        !column_orders_add(graph, &build->orders, &build->checkpoint, &build->options->types, status))
        return false;
    return !is_engines || build->lowering.kv_dtype != ENCODING_E4M3_CHANNEL ||
           cache_scales_add(graph, &build->checkpoint, &build->scaled_layers, status);
}

const struct graph *build_graph_of(const struct build *build, enum plan_kind kind)
{
    const struct graph *const graphs[PLAN_KIND_END] = {[PLAN_DECODE] = &build->decode,
                                                       [PLAN_PREFILL] = &build->prefill,
                                                       [PLAN_MIXED] = &build->mixed,
                                                       [PLAN_VERIFY] = &build->verify};
    return graphs[kind];
}

const struct graph *build_eight_bit_graph_of(const struct build *build, enum plan_kind kind)
{
    const struct graph *const graphs[PLAN_KIND_END] = {[PLAN_DECODE] = &build->eight_bit_decode,
                                                       [PLAN_PREFILL] = &build->eight_bit_prefill,
                                                       [PLAN_MIXED] = &build->eight_bit_mixed,
                                                       [PLAN_VERIFY] = &build->eight_bit_verify};
    return graphs[kind];
}

enum encoding_id build_assumed_encoding(const struct build *build)
{
    const enum dtype own = build->checkpoint.config.dtype;
    return own ? (enum encoding_id)own : ENCODING_BF16;
}

bool build_choose_joins(struct build *build, struct status *status)
{
    const struct build_options *options = build->options;
    struct graph graph;
    const struct model_config *config = &build->checkpoint.config;
    if (!config->experts.shared_size && !config->latent.kv_rank) return true;
    memset(build->joins, GRAPH_JOIN_SHARED | GRAPH_JOIN_LATENT, sizeof build->joins);
    init_graph(build, &graph, build->target, PLAN_DECODE);
    const bool ok = import_graph(&graph, status) && run_passes(&graph, NULL, NULL, status);
    if (ok)
        choose_joins(build->joins, &graph, build->has_weights ? &build->checkpoint : NULL,
                     build_assumed_encoding(build), &options->types, options->calibrate != NULL);
    graph_free(&graph);
    return ok;
}

bool build_make_graph(struct build *build, struct graph *graph, enum engine_target target, enum plan_kind kind,
                      enum graph_rows plan_rows, enum encoding_id rounds_to, bool is_engines, struct status *status)
{
    init_graph(build, graph, target, kind);
    if (target == TARGET_CPU) graph->rounds_to = rounds_to;
    graph->plan_rows = plan_rows;
    return import(build, graph, is_engines, status) &&
           (!graph_has_few_rows(graph) || share_encodings(graph, &build->decode, status)) &&
           run_build_passes(build, graph, is_engines, status);
}

bool build_make_eight_bit_graph(struct build *build, struct graph *graph, enum plan_kind kind, enum dtype codes,
                                struct status *status)
{
    init_graph(build, graph, TARGET_CUDA, kind);
    graph->input_codes = codes;
    return import(build, graph, true, status) && share_encodings(graph, &build->decode, status) &&
           run_build_passes(build, graph, true, status) && share_weights(graph, &build->decode, status);
}
