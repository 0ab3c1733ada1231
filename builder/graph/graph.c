/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/graph/graph.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/matmul/matmul_device.h"
#include "kernels/routed_mlp/routed_mlp.h"
#include "kernels/matmul/weight_layout.h"

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

/* Takes ownership of the memory of `source`, even on failure. */
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
    weight->rows = graph_weight_rows(weight);
    return true;
}

bool graph_weight_interleave(struct graph *graph, int to, int from, uint64_t group)
{
    graph->weights[to].interleave = group;
    return graph_weight_join(graph, to, from);
}

uint64_t graph_weight_rows(const struct graph_weight *weight)
{
    const uint64_t group = weight->interleave ? weight->interleave : 1;
    uint64_t rows = 0;
    for (int i = 0; i < weight->source_count; i++) rows += (weight->sources[i].rank_rows + group - 1) / group * group;
    return rows;
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
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) node->operands[i] = GRAPH_ABSENT;
    const struct op_descriptor *schema = op_find(op);
    for (int i = 0; i < schema->param_count; i++)
        if (schema->params[i].source == PARAM_OF_NODE) node->params[i] = schema->params[i].fallback;
    return node;
}

struct graph_node *graph_append(struct graph *graph, enum plan_op op, uint32_t layer)
{
    struct graph_node *node = graph_insert(graph, graph->node_count, op, layer);
    return node ? node : &graph->lost;
}

uint64_t graph_interleave(const struct graph *graph) { return graph->target == TARGET_CPU ? PANEL_ROWS : 8; }

enum tensor_layout graph_weight_layout(const struct graph *graph, const struct graph_weight *weight)
{
    const bool coded = weight->encoding != ENCODING_NONE && !encoding_is_plain(weight->encoding);
    return coded || weight->form == WEIGHT_MATRIX ? weight_layout_of(graph->target, weight->encoding)
                                                  : LAYOUT_ROW_MAJOR;
}

bool graph_gemv_has_experts(const struct graph *graph, const struct graph_node *matmul, uint32_t rows)
{
    const int64_t top_k = (int64_t)graph->values[matmul->operands[MATMUL_ROUTES]].width / 2;
    if (matmul_shares_x(matmul->params)) return rows * top_k <= MATMUL_GEMV_MOST_CHOICES;
    return matmul_gemv_sums_choices(rows, matmul->params[MATMUL_EXPERTS], top_k,
                                    (int64_t)graph->weights[matmul->operands[MATMUL_W]].depth);
}

/* Whether a launch that only the kernels for few rows have takes so many: sums over choices, norms of their x, routed_matmul, routed_mlp. */
static bool takes_rows(const struct graph *graph, const struct graph_node *node, uint32_t rows)
{
    if (node->removed) return true;
    if (node->op == OP_ROUTED_MATMUL)
        return rows * graph->values[node->operands[ROUTED_MATMUL_ROUTES]].width / 2 <= MATMUL_GEMV_MOST_CHOICES;
    if (node->op == OP_ROUTED_MLP) /* whose sums have the stricter limit */
        return matmul_gemv_sums_choices(rows, node->params[ROUTED_MATMUL_EXPERTS],
                                        node->params[ROUTED_MATMUL_ROUTE_WIDTH] / 2,
                                        (int64_t)graph->weights[node->operands[ROUTED_MLP_DOWN]].depth);
    if (node->op != OP_MATMUL || !node->params[MATMUL_EXPERTS]) return true;
    if (!matmul_sums_choices(node->params) && node->operands[MATMUL_NORM] < 0) return true;
    return graph_gemv_has_experts(graph, node, rows);
}

uint32_t graph_small_batch_rows(const struct graph *graph)
{
    uint32_t rows = GRAPH_SMALL_BATCH;
    for (int n = 0; n < graph->node_count; n++)
        while (rows > 1 && !takes_rows(graph, &graph->nodes[n], rows)) rows--;
    return rows;
}

static bool has_op(const struct graph *graph, enum plan_op op)
{
    for (int n = 0; n < graph->node_count; n++)
        if (!graph->nodes[n].removed && graph->nodes[n].op == op) return true;
    return false;
}

uint32_t graph_routed_mlp_rows(const struct graph *graph)
{
    return has_op(graph, OP_ROUTED_MLP) ? graph_small_batch_rows(graph) : 0;
}

uint32_t graph_router_batch_rows(const struct graph *graph)
{
    return has_op(graph, OP_NORM_ROUTER) ? GRAPH_ROUTER_BATCH : 0;
}

uint32_t graph_least_rows_of_codes(const struct graph *graph)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (node->removed || node->op != OP_MATMUL || node->operands[MATMUL_X_SCALES] < 0) continue;
        if (encoding_find(graph->weights[node->operands[MATMUL_W]].encoding)->bits == 4) return GRAPH_FOUR_BIT_ROWS;
    }
    return GRAPH_EIGHT_BIT_ROWS;
}

bool graph_is_small_batch(const struct graph *graph, int value)
{
    /* Out rows of a prefill: the last token. */
    return (graph->values[value].rows == ROWS_OUT && graph->kind == PLAN_PREFILL) || graph_has_few_rows(graph);
}

bool graph_may_join(const struct graph *graph, uint32_t layer, enum graph_join join)
{
    return graph->joins && graph->joins[layer] & join;
}

void graph_mark_join(struct graph *graph, int weight, enum graph_join join, int from)
{
    if (weight < 0) return;
    graph->weights[weight].join = (uint8_t)join;
    graph->weights[weight].joined_from = from;
}

void graph_shard(struct graph *graph, int weight, enum shard shard)
{
    for (int i = 0; weight >= 0 && i < graph->weights[weight].source_count; i++)
        graph->weights[weight].sources[i].shard = shard;
}
