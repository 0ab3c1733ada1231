/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/graph/graph.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/matmul/panel.h"

void graph_init(struct graph *graph, const struct model_config *config, enum plan_kind kind)
{
    memset(graph, 0, sizeof *graph);
    graph->config = config;
    graph->kind = kind;
    graph->target = TARGET_CPU;
    graph->ranks = 1;
}

void graph_free(struct graph *graph)
{
    for (int w = 0; w < graph->weight_count; w++) {
        for (int i = 0; i < graph->weights[w].source_count; i++) source_free(&graph->weights[w].sources[i]);
        free(graph->weights[w].sources);
    }
    free(graph->nodes);
    free(graph->values);
    free(graph->weights);
    memset(graph, 0, sizeof *graph);
}

/* Room for one more element; marks the graph on failure. */
static bool grow(struct graph *graph, void **array, int count, int *capacity, size_t element_bytes)
{
    if (graph->out_of_memory) return false;
    if (count < *capacity) return true;
    int wanted = *capacity ? *capacity * 2 : 64;
    void *larger = realloc(*array, (size_t)wanted * element_bytes);
    if (!larger) {
        graph->out_of_memory = true;
        return false;
    }
    *array = larger;
    *capacity = wanted;
    return true;
}

int graph_value(struct graph *graph, enum row_space rows, uint64_t width, const char *format, ...)
{
    /* Formatted before the array may move: the arguments can be names of other values. */
    char name[GRAPH_NAME_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (!grow(graph, (void **)&graph->values, graph->value_count, &graph->value_capacity, sizeof *graph->values))
        return -1;
    struct graph_value *value = &graph->values[graph->value_count];
    memset(value, 0, sizeof *value);
    memcpy(value->name, name, sizeof name);
    value->rows = rows;
    value->width = width;
    value->dtype = DTYPE_F32;
    return graph->value_count++;
}

/* Without sources and name; -1 after an allocation failure. */
static int new_weight(struct graph *graph, uint32_t layer, enum weight_form form)
{
    if (!grow(graph, (void **)&graph->weights, graph->weight_count, &graph->weight_capacity, sizeof *graph->weights))
        return -1;
    struct graph_weight *weight = &graph->weights[graph->weight_count];
    memset(weight, 0, sizeof *weight);
    weight->form = form;
    weight->layer = layer;
    weight->used = true;
    return graph->weight_count++;
}

/* Room for `count` more. */
static bool reserve_sources(struct graph *graph, struct graph_weight *weight, int count)
{
    const size_t wanted = (size_t)(weight->source_count + count);
    struct weight_source *larger = graph->out_of_memory ? NULL : realloc(weight->sources, wanted * sizeof *larger);
    if (!larger) {
        graph->out_of_memory = true;
        return false;
    }
    weight->sources = larger;
    return true;
}

/* Takes what `source` owns, whatever happens. */
static void append_source(struct graph *graph, int id, struct weight_source source)
{
    struct graph_weight *weight = id < 0 ? NULL : &graph->weights[id];
    if (!weight || !reserve_sources(graph, weight, 1)) {
        source_free(&source);
        return;
    }
    source_complete(&source);
    weight->sources[weight->source_count++] = source;
    weight->rows += source.rows;
    weight->columns = weight->depth = source.columns;
}

static char *formatted(struct graph *graph, const char *format, va_list arguments)
{
    char *name = NULL;
    if (vasprintf(&name, format, arguments) >= 0) return name;
    graph->out_of_memory = true;
    return NULL;
}

/* A part of a tensor has its rows (and columns) after the tensor's name, so that names of weights differ. */
static void name_part(struct graph_weight *weight)
{
    const struct weight_source *source = &weight->sources[0];
    const unsigned long long first = source->first_row, end = first + source->rows, first_column = source->first_column;
    const size_t size = sizeof weight->name;
    if (!source->tensor || source_elements(source) == source_tensor_rows(source) * source_tensor_columns(source))
        return;
    if (source->columns == 0 || source->columns == source_tensor_columns(source))
        snprintf(weight->name, size, "%s[%llu:%llu]", source->tensor, first, end);
    else
        snprintf(weight->name, size, "%s[%llu:%llu,%llu:%llu]", source->tensor, first, end, first_column,
                 first_column + source->columns);
}

static int weight_from(struct graph *graph, uint32_t layer, enum weight_form form, const struct weight_source *source,
                       const char *format, va_list arguments)
{
    struct weight_source owned = *source;
    char *name = formatted(graph, format, arguments);
    if (!name) return -1;
    int id = new_weight(graph, layer, form);
    if (id >= 0) snprintf(graph->weights[id].name, GRAPH_NAME_BYTES, "%s", name);
    if (source->shape[0])
        owned.tensor = name;
    else
        free(name);
    append_source(graph, id, owned);
    if (graph->out_of_memory) return -1;
    name_part(&graph->weights[id]);
    return id;
}

int graph_weight_from(struct graph *graph, uint32_t layer, enum weight_form form, const struct weight_source *source,
                      const char *tensor_format, ...)
{
    va_list arguments;
    va_start(arguments, tensor_format);
    int id = weight_from(graph, layer, form, source, tensor_format, arguments);
    va_end(arguments);
    return id;
}

void graph_weight_append(struct graph *graph, int weight, const struct weight_source *source, const char *tensor_format,
                         ...)
{
    struct weight_source owned = *source;
    if (source->shape[0]) {
        va_list arguments;
        va_start(arguments, tensor_format);
        owned.tensor = formatted(graph, tensor_format, arguments);
        va_end(arguments);
    }
    append_source(graph, weight, owned);
}

bool graph_weight_join(struct graph *graph, int to, int from)
{
    struct graph_weight *weight = &graph->weights[to], *other = &graph->weights[from];
    if (!reserve_sources(graph, weight, other->source_count)) return false;
    for (int i = 0; i < other->source_count; i++) weight->sources[weight->source_count++] = other->sources[i];
    other->source_count = 0;
    weight->rows += other->rows;
    return true;
}

int graph_matrix(struct graph *graph, uint32_t layer, uint64_t rows, uint64_t columns, enum weight_form form,
                 const char *tensor_format, ...)
{
    const struct weight_source source = {.shape = {rows, columns}};
    va_list arguments;
    va_start(arguments, tensor_format);
    int id = weight_from(graph, layer, form, &source, tensor_format, arguments);
    va_end(arguments);
    return id;
}

int graph_vector(struct graph *graph, uint32_t layer, uint64_t rows, const char *tensor_format, ...)
{
    const struct weight_source source = {.shape = {rows}};
    va_list arguments;
    va_start(arguments, tensor_format);
    int id = weight_from(graph, layer, WEIGHT_ROW_MAJOR, &source, tensor_format, arguments);
    va_end(arguments);
    return id;
}

int graph_constant(struct graph *graph, const float *values, uint64_t count, const char *name)
{
    struct weight_source source = {.rows = count, .values = malloc(count * sizeof *values)};
    if (!source.values) {
        graph->out_of_memory = true;
        return -1;
    }
    memcpy(source.values, values, count * sizeof *values);
    int id = new_weight(graph, GRAPH_NO_LAYER, WEIGHT_ROW_MAJOR);
    append_source(graph, id, source);
    if (graph->out_of_memory) return -1;
    snprintf(graph->weights[id].name, GRAPH_NAME_BYTES, "%s", name);
    return id;
}

struct graph_node *graph_insert(struct graph *graph, int index, enum plan_op op, uint32_t layer)
{
    if (!grow(graph, (void **)&graph->nodes, graph->node_count, &graph->node_capacity, sizeof *graph->nodes))
        return NULL;
    struct graph_node *node = &graph->nodes[index];
    memmove(node + 1, node, (size_t)(graph->node_count - index) * sizeof *node);
    graph->node_count++;
    memset(node, 0, sizeof *node);
    node->op = op;
    node->layer = layer;
    for (int i = 0; i < GRAPH_MAX_INPUTS; i++) node->inputs[i] = -1;
    for (int i = 0; i < GRAPH_MAX_OUTPUTS; i++) node->outputs[i] = -1;
    for (int i = 0; i < GRAPH_MAX_WEIGHTS; i++) node->weights[i] = -1;
    return node;
}

struct graph_node *graph_append(struct graph *graph, enum plan_op op, uint32_t layer)
{
    return graph_insert(graph, graph->node_count, op, layer);
}

uint64_t graph_interleave(const struct graph *graph) { return graph->target == TARGET_CPU ? PANEL_ROWS : 8; }

bool graph_has_panels(const struct graph *graph) { return graph->target == TARGET_CPU; }

bool graph_weight_has_panels(const struct graph *graph, const struct graph_weight *weight)
{
    return graph_has_panels(graph) && weight->form == WEIGHT_MATRIX && encoding_is_plain(weight->encoding);
}

bool graph_is_narrow(const struct graph *graph, int value)
{
    /* Out rows of a prefill: the last token. */
    if (graph->values[value].rows == ROWS_OUT && graph->kind == PLAN_PREFILL) return true;
    return graph->narrow;
}

void graph_shard(struct graph *graph, int weight, enum shard shard)
{
    for (int i = 0; weight >= 0 && i < graph->weights[weight].source_count; i++)
        graph->weights[weight].sources[i].shard = shard;
}

int graph_producer(const struct graph *graph, int value)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        for (int o = 0; !node->removed && o < GRAPH_MAX_OUTPUTS; o++)
            if (node->outputs[o] == value) return n;
    }
    return -1;
}

int graph_use_count(const struct graph *graph, int value)
{
    int uses = 0;
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; !graph->nodes[n].removed && i < GRAPH_MAX_INPUTS; i++)
            uses += graph->nodes[n].inputs[i] == value;
    return uses;
}

void graph_replace_uses(struct graph *graph, int from, int to)
{
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < GRAPH_MAX_INPUTS; i++)
            if (graph->nodes[n].inputs[i] == from) graph->nodes[n].inputs[i] = to;
}

bool graph_is_row_wise(enum plan_op op)
{
    return op == OP_RMS_NORM || op == OP_MATMUL || op == OP_SWIGLU || op == OP_ADD || plan_op_is_collective(op);
}

/* One live node's own rules; returns what is wrong or NULL. */
static const char *node_fault(const struct graph *graph, const struct graph_node *node)
{
    const struct graph_value *values = graph->values;
    int required_inputs = 0, required_outputs = 1, required_weights = 0;
    switch (node->op) {
    case OP_EMBED:
    case OP_ROPE_TABLE: required_weights = 1; break;
    case OP_RMS_NORM:
    case OP_MATMUL: required_inputs = required_weights = 1; break;
    case OP_SWIGLU:
    case OP_ADD: required_inputs = 2; break;
    case OP_ROPE_APPEND:
    case OP_ATTENTION:
    case OP_ROPE_ATTENTION:
    case OP_SELECT_ROWS:
    case OP_SAMPLE:
    case OP_ALL_REDUCE:
    case OP_ALL_GATHER: required_inputs = 1; break;
    default: return "is of an unknown op";
    }
    for (int i = 0; i < required_inputs; i++)
        if (node->inputs[i] < 0) return "lacks an input";
    for (int i = 0; i < required_outputs; i++)
        if (node->outputs[i] < 0) return "lacks an output";
    for (int i = 0; i < required_weights; i++)
        if (node->weights[i] < 0) return "lacks a weight";
    for (int i = 0; i < GRAPH_MAX_WEIGHTS; i++)
        if (node->weights[i] >= graph->weight_count) return "names a weight that is not there";
    if (graph_is_row_wise(node->op)) {
        for (int i = 0; i < GRAPH_MAX_INPUTS; i++)
            if (node->inputs[i] >= 0 && values[node->inputs[i]].rows != values[node->outputs[0]].rows)
                return "mixes token rows and out rows";
    }
    if (node->op == OP_MATMUL) {
        const struct graph_weight *weight = &graph->weights[node->weights[0]];
        if (weight->depth != values[node->inputs[0]].width) return "has an input whose width is not K";
        uint64_t width = node->swiglu ? weight->rows / 2 : weight->rows;
        if (width != values[node->outputs[0]].width) return "has an output whose width is not N";
    }
    if (node->op == OP_ADD && (values[node->inputs[0]].width != values[node->outputs[0]].width ||
                               values[node->inputs[1]].width != values[node->outputs[0]].width))
        return "adds values of different width";
    if (node->op == OP_ALL_REDUCE && values[node->inputs[0]].width != values[node->outputs[0]].width)
        return "sums values of different width";
    if (node->op == OP_ALL_REDUCE && (node->weights[0] >= 0) != (node->outputs[1] >= 0))
        return "has a norm without an output for it";
    if (node->op == OP_RMS_NORM && (node->inputs[1] >= 0) != (node->outputs[1] >= 0))
        return "has a residual without a sum";
    return NULL;
}

bool graph_check(const struct graph *graph, const char *after, struct status *status)
{
    if (graph->out_of_memory) return status_fail(status, STATUS_MACHINE, "out of memory while building the graph");
    const char *fault = NULL;
    int at = 0;
    bool *produced = calloc((size_t)graph->value_count + 1, sizeof *produced);
    if (!produced) return status_fail(status, STATUS_MACHINE, "out of memory while checking the graph");
    for (at = 0; at < graph->node_count; at++) {
        const struct graph_node *node = &graph->nodes[at];
        if (node->removed) continue;
        for (int i = 0; i < GRAPH_MAX_INPUTS; i++) {
            if (node->inputs[i] < 0) continue;
            if (node->inputs[i] >= graph->value_count || !produced[node->inputs[i]]) {
                fault = "reads a value that nothing before it produces";
                goto done;
            }
        }
        for (int o = 0; o < GRAPH_MAX_OUTPUTS; o++) {
            if (node->outputs[o] < 0) continue;
            if (node->outputs[o] >= graph->value_count || produced[node->outputs[o]]) {
                fault = "produces a value twice";
                goto done;
            }
            produced[node->outputs[o]] = true;
        }
        fault = node_fault(graph, node);
        if (fault) goto done;
    }
done:
    free(produced);
    if (!fault) return true;
    return status_fail(status, STATUS_INTERNAL, "graph after %s: node %d (%s) %s", after, at,
                       plan_op_name(graph->nodes[at].op), fault);
}

static void dump_value(const struct graph *graph, int id, FILE *out)
{
    const struct graph_value *value = &graph->values[id];
    fprintf(out, "%%%s[%s,%llu]", value->name, value->rows == ROWS_TOKENS ? "T" : "R",
            (unsigned long long)value->width);
}

static void dump_weight(const struct graph *graph, int id, FILE *out)
{
    const struct graph_weight *weight = &graph->weights[id];
    const bool matrix = weight->form == WEIGHT_MATRIX, constant = weight->source_count && weight->sources[0].values;
    const char *form = weight->interleave ? (matrix ? "gate/up" : "bias gate/up")
                       : constant         ? "constant"
                       : matrix           ? "matrix"
                                          : "row-major";
    fprintf(out, "@%s[%llu", weight->name, (unsigned long long)weight->rows);
    if (weight->columns) fprintf(out, ",%llu", (unsigned long long)weight->columns);
    fprintf(out, " %s]", form);
}

void graph_dump(const struct graph *graph, FILE *out)
{
    fprintf(out, "# %s graph of %s; T = token rows, R = rows that need logits",
            graph->kind == PLAN_DECODE ? "decode" : "prefill", graph->config->model_type);
    if (graph->ranks > 1) fprintf(out, "; %u ranks", graph->ranks);
    fputc('\n', out);
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (node->removed) continue;
        const char *separator = "";
        for (int o = 0; o < GRAPH_MAX_OUTPUTS; o++) {
            if (node->outputs[o] < 0) continue;
            fputs(separator, out);
            dump_value(graph, node->outputs[o], out);
            separator = ", ";
        }
        fprintf(out, " = %s(", plan_op_name(node->op));
        separator = "";
        for (int i = 0; i < GRAPH_MAX_INPUTS; i++) {
            if (node->inputs[i] < 0) continue;
            fprintf(out, "%s%%%s", separator, graph->values[node->inputs[i]].name);
            separator = ", ";
        }
        for (int w = 0; w < GRAPH_MAX_WEIGHTS; w++) {
            if (node->weights[w] < 0) continue;
            fputs(separator, out);
            dump_weight(graph, node->weights[w], out);
            separator = ", ";
        }
        fputs(")", out);
        if (node->op == OP_MATMUL && node->swiglu) fputs(" epilogue=swiglu", out);
        if ((node->op == OP_MATMUL || node->op == OP_ALL_REDUCE) && node->inputs[1] >= 0)
            fputs(" epilogue=residual", out);
        if (node->op == OP_ALL_REDUCE && node->weights[0] >= 0)
            fprintf(out, " epilogue=rms_norm eps=%g", (double)node->eps);
        if (node->op == OP_MATMUL && node->weights[2] >= 0) fputs(" prologue=rms_norm", out);
        if (node->op == OP_RMS_NORM || (node->op == OP_MATMUL && node->weights[2] >= 0))
            fprintf(out, " eps=%g", (double)node->eps);
        if (node->op == OP_ATTENTION || node->op == OP_ROPE_ATTENTION) {
            fprintf(out, " scale=%.9g", (double)node->scale);
            if (node->window) fprintf(out, " window=%llu", (unsigned long long)node->window);
        }
        if (node->layer != GRAPH_NO_LAYER) fprintf(out, " # layer %u", node->layer);
        fputc('\n', out);
    }
}
