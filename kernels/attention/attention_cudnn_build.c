/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/attention_cudnn_build.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/attention_cudnn_layout.cuh"

/* ---- the operation graph ---- */

/* cuDNN recognises attention by the pattern of its operations, so the graph below keeps to the order of operations that
 * the library documents: page loads, q k^T, scale, padding, causal mask, window, softmax, p v. All tensors have four
 * dimensions: batch (one), heads, rows, columns. */

enum { DIMENSIONS = 4, MOST_DESCRIPTORS = 128, MOST_OPERATIONS = 40 };

struct graph {
    const struct cudnn *cudnn;
    struct status *status;
    bool failed;                                    /* once set, all further calls do nothing */
    cudnn_descriptor descriptors[MOST_DESCRIPTORS]; /* all, in the order of creation */
    cudnn_descriptor operations[MOST_OPERATIONS];   /* those of them that are operations */
    cudnn_descriptor whole;
    int descriptor_count, operation_count;
    int64_t next_id; /* of a virtual tensor */
    int64_t scores[DIMENSIONS], reduced[DIMENSIONS];
};

static void graph_free(struct graph *graph)
{
    while (graph->descriptor_count) cudnn_destroy(graph->cudnn, graph->descriptors[--graph->descriptor_count]);
}

static cudnn_descriptor add(struct graph *graph, enum cudnn_descriptor_type type)
{
    cudnn_descriptor descriptor = NULL;
    if (graph->failed) return NULL;
    if (graph->descriptor_count == MOST_DESCRIPTORS || graph->operation_count == MOST_OPERATIONS) {
        graph->failed = !status_fail(graph->status, STATUS_INTERNAL, "cuDNN attention: the graph is too large");
        return NULL;
    }
    graph->failed = !cudnn_new(graph->cudnn, type, &descriptor, graph->status);
    if (descriptor) graph->descriptors[graph->descriptor_count++] = descriptor;
    return descriptor;
}

static void set(struct graph *graph, cudnn_descriptor descriptor, enum cudnn_attribute attribute,
                enum cudnn_attribute_type type, size_t count, const void *values)
{
    if (graph->failed) return;
    graph->failed = !cudnn_set(graph->cudnn, descriptor, attribute, type, count, values, graph->status);
}

static void set_integer(struct graph *graph, cudnn_descriptor descriptor, enum cudnn_attribute attribute, int64_t value)
{
    set(graph, descriptor, attribute, CUDNN_OF_INT64, 1, &value);
}

static void set_type(struct graph *graph, cudnn_descriptor descriptor, enum cudnn_attribute attribute,
                     enum cudnn_data_type type)
{
    const int value = (int)type;
    set(graph, descriptor, attribute, CUDNN_OF_DATA_TYPE, 1, &value);
}

static void set_descriptor(struct graph *graph, cudnn_descriptor descriptor, enum cudnn_attribute attribute,
                           cudnn_descriptor value)
{
    set(graph, descriptor, attribute, CUDNN_OF_DESCRIPTOR, 1, &value);
}

static void finalize(struct graph *graph, cudnn_descriptor descriptor, const char *what)
{
    if (graph->failed) return;
    graph->failed = !cudnn_finalize(graph->cudnn, descriptor, what, graph->status);
}

static cudnn_descriptor operation(struct graph *graph, enum cudnn_descriptor_type type)
{
    cudnn_descriptor descriptor = add(graph, type);
    if (descriptor) graph->operations[graph->operation_count++] = descriptor;
    return descriptor;
}

enum tensor_kind { IN_MEMORY, BY_VALUE, VIRTUAL };

static cudnn_descriptor tensor(struct graph *graph, int64_t id, enum tensor_kind kind, enum cudnn_data_type type,
                               const int64_t *dimensions, const int64_t *strides)
{
    enum { TENSOR_ALIGNMENT = 16 };
    const bool yes = true;
    cudnn_descriptor descriptor = add(graph, CUDNN_DESCRIPTOR_TENSOR);
    set_type(graph, descriptor, CUDNN_TENSOR_DATA_TYPE, type);
    set(graph, descriptor, CUDNN_TENSOR_DIMENSIONS, CUDNN_OF_INT64, DIMENSIONS, dimensions);
    set(graph, descriptor, CUDNN_TENSOR_STRIDES, CUDNN_OF_INT64, DIMENSIONS, strides);
    set_integer(graph, descriptor, CUDNN_TENSOR_ID, id);
    set_integer(graph, descriptor, CUDNN_TENSOR_ALIGNMENT, TENSOR_ALIGNMENT);
    if (kind == VIRTUAL) set(graph, descriptor, CUDNN_TENSOR_IS_VIRTUAL, CUDNN_OF_BOOLEAN, 1, &yes);
    if (kind == BY_VALUE) set(graph, descriptor, CUDNN_TENSOR_IS_BY_VALUE, CUDNN_OF_BOOLEAN, 1, &yes);
    finalize(graph, descriptor, "a tensor of attention");
    return descriptor;
}

/* Contiguous, of these dimensions. */
static cudnn_descriptor dense(struct graph *graph, int64_t id, enum tensor_kind kind, enum cudnn_data_type type,
                              const int64_t *dimensions)
{
    const int64_t strides[DIMENSIONS] = {dimensions[1] * dimensions[2] * dimensions[3], dimensions[2] * dimensions[3],
                                         dimensions[3], 1};
    return tensor(graph, id, kind, type, dimensions, strides);
}

static cudnn_descriptor scalar(struct graph *graph, int64_t id, enum tensor_kind kind, enum cudnn_data_type type)
{
    static const int64_t one[DIMENSIONS] = {1, 1, 1, 1};
    return dense(graph, id, kind, type, one);
}

/* An intermediate result of the shape of the scores. */
static cudnn_descriptor scores(struct graph *graph, enum cudnn_data_type type)
{
    return dense(graph, graph->next_id++, VIRTUAL, type, graph->scores);
}

/* y = mode(x, b, t) of type `type`, computed in `precision`; b and t NULL if the mode has fewer operands. */
static cudnn_descriptor pointwise(struct graph *graph, enum cudnn_pointwise mode, enum cudnn_data_type precision,
                                  cudnn_descriptor x, cudnn_descriptor b, cudnn_descriptor t, enum cudnn_data_type type,
                                  int64_t axis)
{
    const int value = (int)mode;
    cudnn_descriptor y = scores(graph, type), how = add(graph, CUDNN_DESCRIPTOR_POINTWISE);
    set(graph, how, CUDNN_POINTWISE_MODE, CUDNN_OF_POINTWISE_MODE, 1, &value);
    set_type(graph, how, CUDNN_POINTWISE_PRECISION, precision);
    if (mode == CUDNN_INDEX) set_integer(graph, how, CUDNN_POINTWISE_AXIS, axis);
    finalize(graph, how, "a step of attention");
    cudnn_descriptor step = operation(graph, CUDNN_DESCRIPTOR_OPERATION_POINTWISE);
    set_descriptor(graph, step, CUDNN_OPERATION_POINTWISE_MODE, how);
    set_descriptor(graph, step, CUDNN_OPERATION_POINTWISE_X, x);
    set_descriptor(graph, step, CUDNN_OPERATION_POINTWISE_Y, y);
    if (b) set_descriptor(graph, step, CUDNN_OPERATION_POINTWISE_B, b);
    if (t) set_descriptor(graph, step, CUDNN_OPERATION_POINTWISE_T, t);
    finalize(graph, step, "a step of attention");
    return y;
}

static cudnn_descriptor binary(struct graph *graph, enum cudnn_pointwise mode, enum cudnn_data_type type,
                               cudnn_descriptor x, cudnn_descriptor b)
{
    return pointwise(graph, mode, type, x, b, NULL, type, 0);
}

enum { ROW_AXIS = 2, COLUMN_AXIS = 3 };

static cudnn_descriptor index_of(struct graph *graph, enum cudnn_data_type precision, cudnn_descriptor x, int64_t axis)
{
    return pointwise(graph, CUDNN_INDEX, precision, x, NULL, NULL, CUDNN_INT32, axis);
}

/* x where `mask`, else the value. */
static cudnn_descriptor masked(struct graph *graph, cudnn_descriptor x, int64_t value_id, cudnn_descriptor mask)
{
    cudnn_descriptor value = scalar(graph, value_id, BY_VALUE, CUDNN_FLOAT);
    return pointwise(graph, CUDNN_SELECT, CUDNN_FLOAT, x, value, mask, CUDNN_FLOAT, 0);
}

/* One number for each row of scores, with a place in memory: cuDNN (9.19) stores maxima and sums even if they are
 * virtual, at an undefined address. */
static cudnn_descriptor reduction(struct graph *graph, enum cudnn_reduction mode, int64_t id, cudnn_descriptor x)
{
    const int value = (int)mode;
    cudnn_descriptor y = dense(graph, id, IN_MEMORY, CUDNN_FLOAT, graph->reduced);
    cudnn_descriptor how = add(graph, CUDNN_DESCRIPTOR_REDUCTION);
    set_type(graph, how, CUDNN_REDUCTION_PRECISION, CUDNN_FLOAT);
    set(graph, how, CUDNN_REDUCTION_OPERATOR, CUDNN_OF_REDUCTION_OPERATOR, 1, &value);
    finalize(graph, how, "a reduction of attention");
    cudnn_descriptor step = operation(graph, CUDNN_DESCRIPTOR_OPERATION_REDUCTION);
    set_descriptor(graph, step, CUDNN_OPERATION_REDUCTION_MODE, how);
    set_descriptor(graph, step, CUDNN_OPERATION_REDUCTION_X, x);
    set_descriptor(graph, step, CUDNN_OPERATION_REDUCTION_Y, y);
    finalize(graph, step, "a reduction of attention");
    return y;
}

/* c = a b over the valid rows of a, and tokens as columns of b or as its rows. */
static void matmul(struct graph *graph, cudnn_descriptor a, cudnn_descriptor b, cudnn_descriptor c,
                   cudnn_descriptor row_count, cudnn_descriptor token_count, enum cudnn_attribute tokens)
{
    cudnn_descriptor how = add(graph, CUDNN_DESCRIPTOR_MATMUL);
    set_type(graph, how, CUDNN_MATMUL_PRECISION, CUDNN_FLOAT);
    finalize(graph, how, "a product of attention");
    cudnn_descriptor step = operation(graph, CUDNN_DESCRIPTOR_OPERATION_MATMUL);
    set_descriptor(graph, step, CUDNN_OPERATION_MATMUL_A, a);
    set_descriptor(graph, step, CUDNN_OPERATION_MATMUL_B, b);
    set_descriptor(graph, step, CUDNN_OPERATION_MATMUL_C, c);
    set_descriptor(graph, step, CUDNN_OPERATION_MATMUL_MODE, how);
    set_descriptor(graph, step, CUDNN_OPERATION_MATMUL_M_OVERRIDE, row_count);
    set_descriptor(graph, step, tokens, token_count);
    finalize(graph, step, "a product of attention");
}

/* The slot's k or v as one matrix, from pages. */
static cudnn_descriptor load_pages(struct graph *graph, const int64_t *params, bool keys, enum cudnn_data_type type,
                                   cudnn_descriptor token_count)
{
    const int64_t heads = params[ATTENTION_KV_HEADS], dim = params[ATTENTION_HEAD_DIM];
    const int64_t page_tokens = params[ATTENTION_PAGE_TOKENS];
    const int64_t tokens = graph->scores[3], pages = tokens / page_tokens;
    const int64_t pool[DIMENSIONS] = {ATTENTION_CUDNN_MOST_PAGES, heads, page_tokens, dim};
    const int64_t pool_strides[DIMENSIONS] = {params[ATTENTION_PAGE_BYTES] / 2, page_tokens * dim, dim, 1};
    const int64_t table[DIMENSIONS] = {1, 1, pages, 1};
    const int64_t out[DIMENSIONS] = {1, heads, keys ? dim : tokens, keys ? tokens : dim}; /* keys: transposed */
    const int64_t out_strides[DIMENSIONS] = {heads * tokens * dim, tokens * dim, keys ? 1 : dim, keys ? dim : 1};
    cudnn_descriptor container =
        tensor(graph, keys ? ATTENTION_CUDNN_K : ATTENTION_CUDNN_V, IN_MEMORY, type, pool, pool_strides);
    cudnn_descriptor page_table =
        dense(graph, keys ? ATTENTION_CUDNN_K_PAGES : ATTENTION_CUDNN_V_PAGES, IN_MEMORY, CUDNN_INT32, table);
    cudnn_descriptor y = tensor(graph, graph->next_id++, VIRTUAL, type, out, out_strides);
    cudnn_descriptor step = operation(graph, CUDNN_DESCRIPTOR_OPERATION_PAGED_CACHE_LOAD);
    set_descriptor(graph, step, CUDNN_OPERATION_PAGED_CACHE_LOAD_CONTAINER, container);
    set_descriptor(graph, step, CUDNN_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE, page_table);
    set_descriptor(graph, step, CUDNN_OPERATION_PAGED_CACHE_LOAD_LENGTHS, token_count);
    set_descriptor(graph, step, CUDNN_OPERATION_PAGED_CACHE_LOAD_Y, y);
    finalize(graph, step, "pages of attention");
    return y;
}

/* Scores of existing rows and tokens. */
static cudnn_descriptor mask_padding(struct graph *graph, cudnn_descriptor x, cudnn_descriptor row_count,
                                     cudnn_descriptor token_count)
{
    cudnn_descriptor row = index_of(graph, CUDNN_INT32, x, ROW_AXIS);
    cudnn_descriptor column = index_of(graph, CUDNN_INT32, x, COLUMN_AXIS);
    cudnn_descriptor is_row = binary(graph, CUDNN_LESS, CUDNN_BOOLEAN, row, row_count);
    cudnn_descriptor is_token = binary(graph, CUDNN_LESS, CUDNN_BOOLEAN, column, token_count);
    cudnn_descriptor both = binary(graph, CUDNN_AND, CUDNN_BOOLEAN, is_row, is_token);
    return masked(graph, x, ATTENTION_CUDNN_PADDING_VALUE, both);
}

/* Scores of tokens up to the row's own: row + token_count - row_count >= column. */
static cudnn_descriptor mask_causal(struct graph *graph, cudnn_descriptor x, cudnn_descriptor row_count,
                                    cudnn_descriptor token_count)
{
    cudnn_descriptor row = index_of(graph, CUDNN_FLOAT, x, ROW_AXIS);
    cudnn_descriptor column = index_of(graph, CUDNN_FLOAT, x, COLUMN_AXIS);
    row = binary(graph, CUDNN_ADD, CUDNN_INT32, row, token_count);
    row = binary(graph, CUDNN_SUB, CUDNN_INT32, row, row_count);
    cudnn_descriptor seen = binary(graph, CUDNN_GREATER_OR_EQUAL, CUDNN_BOOLEAN, row, column);
    return masked(graph, x, ATTENTION_CUDNN_CAUSAL_VALUE, seen);
}

/* Scores of tokens in the row's window: column + window - token_count + row_count > row. */
static cudnn_descriptor mask_window(struct graph *graph, cudnn_descriptor x, cudnn_descriptor row_count,
                                    cudnn_descriptor token_count)
{
    cudnn_descriptor window = scalar(graph, ATTENTION_CUDNN_WINDOW_SIZE, BY_VALUE, CUDNN_INT32);
    cudnn_descriptor row = index_of(graph, CUDNN_FLOAT, x, ROW_AXIS);
    cudnn_descriptor column = index_of(graph, CUDNN_FLOAT, x, COLUMN_AXIS);
    column = binary(graph, CUDNN_ADD, CUDNN_INT32, column, window);
    column = binary(graph, CUDNN_SUB, CUDNN_INT32, column, token_count);
    column = binary(graph, CUDNN_ADD, CUDNN_INT32, column, row_count);
    cudnn_descriptor seen = binary(graph, CUDNN_GREATER, CUDNN_BOOLEAN, column, row);
    return masked(graph, x, ATTENTION_CUDNN_WINDOW_VALUE, seen);
}

static cudnn_descriptor softmax(struct graph *graph, cudnn_descriptor x, enum cudnn_data_type type)
{
    cudnn_descriptor maxima = reduction(graph, CUDNN_REDUCE_MAX, ATTENTION_CUDNN_MAXIMA, x);
    cudnn_descriptor shifted = binary(graph, CUDNN_SUB, CUDNN_FLOAT, x, maxima);
    cudnn_descriptor power = pointwise(graph, CUDNN_EXP, CUDNN_FLOAT, shifted, NULL, NULL, CUDNN_FLOAT, 0);
    cudnn_descriptor sums = reduction(graph, CUDNN_REDUCE_ADD, ATTENTION_CUDNN_SUMS, power);
    return pointwise(graph, CUDNN_DIV, CUDNN_FLOAT, power, sums, NULL, type, 0);
}

static bool graph_make(struct graph *graph, const struct cudnn *cudnn, const int64_t *params, struct status *status)
{
    const enum cudnn_data_type type = params[ATTENTION_X_DTYPE] == DTYPE_F16 ? CUDNN_HALF : CUDNN_BFLOAT16;
    const int64_t rows = params[ATTENTION_ROWS], heads = params[ATTENTION_HEADS];
    const int64_t dim = params[ATTENTION_HEAD_DIM];
    const int64_t page_tokens = params[ATTENTION_PAGE_TOKENS];
    const int64_t tokens = page_tokens * ATTENTION_CUDNN_PADDED_PAGES(params[ATTENTION_PAGES_PER_SLOT], page_tokens);
    const int64_t vectors[DIMENSIONS] = {1, heads, rows, dim};
    const int64_t vector_strides[DIMENSIONS] = {rows * heads * dim, dim, heads * dim, 1};
    *graph = (struct graph){.cudnn = cudnn,
                            .status = status,
                            .next_id = ATTENTION_CUDNN_FIRST_VIRTUAL,
                            .scores = {1, heads, rows, tokens},
                            .reduced = {1, heads, rows, 1}};
    cudnn_descriptor q = tensor(graph, ATTENTION_CUDNN_Q, IN_MEMORY, type, vectors, vector_strides);
    cudnn_descriptor out = tensor(graph, ATTENTION_CUDNN_OUT, IN_MEMORY, type, vectors, vector_strides);
    cudnn_descriptor row_count = scalar(graph, ATTENTION_CUDNN_ROW_COUNT, IN_MEMORY, CUDNN_INT32);
    cudnn_descriptor token_count = scalar(graph, ATTENTION_CUDNN_TOKEN_COUNT, IN_MEMORY, CUDNN_INT32);
    cudnn_descriptor scale = scalar(graph, ATTENTION_CUDNN_SCALE, BY_VALUE, CUDNN_FLOAT);

    cudnn_descriptor k = load_pages(graph, params, true, type, token_count);
    cudnn_descriptor x = scores(graph, CUDNN_FLOAT);
    matmul(graph, q, k, x, row_count, token_count, CUDNN_OPERATION_MATMUL_N_OVERRIDE);
    x = binary(graph, CUDNN_MUL, CUDNN_FLOAT, x, scale);
    x = mask_padding(graph, x, row_count, token_count);
    x = mask_causal(graph, x, row_count, token_count);
    if (attention_cudnn_has_window(params)) x = mask_window(graph, x, row_count, token_count);
    cudnn_descriptor p = softmax(graph, x, type);
    cudnn_descriptor v = load_pages(graph, params, false, type, token_count);
    matmul(graph, p, v, out, row_count, token_count, CUDNN_OPERATION_MATMUL_K_OVERRIDE);

    graph->whole = add(graph, CUDNN_DESCRIPTOR_OPERATION_GRAPH);
    set(graph, graph->whole, CUDNN_GRAPH_OPERATIONS, CUDNN_OF_DESCRIPTOR, (size_t)graph->operation_count,
        graph->operations);
    set(graph, graph->whole, CUDNN_GRAPH_HANDLE, CUDNN_OF_HANDLE, 1, &cudnn->handle);
    finalize(graph, graph->whole, "the graph of attention");
    return !graph->failed;
}

/* ---- what the library offers ---- */

enum { MOST_KNOBS = 64, MOST_VALUES = 32, MOST_CONFIGS = 64 };

struct knob {
    int type;
    int64_t value;
};

/* An engine and its knobs that are not at their defaults. */
struct choice {
    int64_t engine;
    int count;
    struct knob knobs[MOST_KNOBS];
};

struct search {
    const struct cudnn *cudnn;
    const struct graph *graph;
    const int64_t *params;
    struct attention_cudnn_blob *blobs;
    int count, capacity;
};

/* Reads an attribute that is an array of descriptors of type `type` into `list`, which the caller frees. Few attributes
 * report their number beforehand, so the call asks for as many as there is room for. */
static int get_list(const struct cudnn *cudnn, cudnn_descriptor from, enum cudnn_attribute attribute,
                    enum cudnn_descriptor_type type, cudnn_descriptor *list, int capacity)
{
    int64_t got = 0;
    int count = 0;
    while (count < capacity && cudnn_new(cudnn, type, &list[count], NULL)) count++;
    if (count && cudnn->GetAttribute(from, (int)attribute, CUDNN_OF_DESCRIPTOR, count, &got, list)) got = 0;
    while (count > got) cudnn_destroy(cudnn, list[--count]);
    return count;
}

static void free_list(const struct cudnn *cudnn, cudnn_descriptor *list, int count)
{
    while (count) cudnn_destroy(cudnn, list[--count]);
}

static bool get_number(const struct cudnn *cudnn, cudnn_descriptor from, enum cudnn_attribute attribute, int64_t *value)
{
    int64_t count = 0;
    return cudnn->GetAttribute(from, (int)attribute, CUDNN_OF_INT64, 1, &count, value) == 0 && count == 1;
}

static bool get_knob_type(const struct cudnn *cudnn, cudnn_descriptor from, enum cudnn_attribute attribute, int *type)
{
    int64_t count = 0;
    return cudnn->GetAttribute(from, (int)attribute, CUDNN_OF_KNOB, 1, &count, type) == 0 && count == 1;
}

static void name_choice(const struct choice *choice, char *name, size_t bytes)
{
    int length = snprintf(name, bytes, "engine %" PRId64, choice->engine);
    for (int i = 0; i < choice->count && length > 0 && (size_t)length < bytes; i++)
        length += snprintf(name + length, bytes - (size_t)length, ", knob %d = %" PRId64, choice->knobs[i].type,
                           choice->knobs[i].value);
}

/* The engine and knobs of a configuration of the heuristics. */
static void read_choice(const struct cudnn *cudnn, cudnn_descriptor config, struct choice *choice)
{
    cudnn_descriptor engine[1], knobs[MOST_KNOBS];
    *choice = (struct choice){.engine = -1};
    int count = get_list(cudnn, config, CUDNN_ENGINE_CONFIG_ENGINE, CUDNN_DESCRIPTOR_ENGINE, engine, 1);
    if (count) get_number(cudnn, engine[0], CUDNN_ENGINE_INDEX, &choice->engine);
    free_list(cudnn, engine, count);
    count = get_list(cudnn, config, CUDNN_ENGINE_CONFIG_KNOB_CHOICES, CUDNN_DESCRIPTOR_KNOB_CHOICE, knobs, MOST_KNOBS);
    for (int i = 0; i < count; i++) {
        struct knob *knob = &choice->knobs[choice->count];
        if (get_knob_type(cudnn, knobs[i], CUDNN_KNOB_CHOICE_TYPE, &knob->type) &&
            get_number(cudnn, knobs[i], CUDNN_KNOB_CHOICE_VALUE, &knob->value))
            choice->count++;
    }
    free_list(cudnn, knobs, count);
}

/* A finalised plan as a blob; the plan's own bytes follow the header. */
static bool make_blob(const struct search *search, cudnn_descriptor plan, struct attention_cudnn_blob *blob)
{
    const struct cudnn *cudnn = search->cudnn;
    int64_t workspace = -1, length = 0, read = 0;
    uint64_t all = 0;
    if (!get_number(cudnn, plan, CUDNN_PLAN_WORKSPACE_BYTES, &workspace) || workspace < 0 ||
        !attention_cudnn_workspace(search->params, (uint64_t)workspace, &all) ||
        cudnn->GetAttribute(plan, CUDNN_PLAN_JSON, CUDNN_OF_CHAR, 0, &length, NULL) || length <= 0)
        return false;
    struct attention_cudnn_header header = {.magic = ATTENTION_CUDNN_MAGIC,
                                            .cudnn_version = cudnn->version,
                                            .workspace_bytes = (uint64_t)workspace};
    char *data = malloc(sizeof header + (size_t)length);
    if (!data) return false;
    if (cudnn->GetAttribute(plan, CUDNN_PLAN_JSON, CUDNN_OF_CHAR, length, &read, data + sizeof header) || read <= 0 ||
        read > length) {
        free(data);
        return false;
    }
    header.plan_bytes = (uint64_t)read;
    memcpy(header.params, search->params, sizeof header.params);
    memcpy(data, &header, sizeof header);
    blob->data = data;
    blob->bytes = sizeof header + (size_t)read;
    return true;
}

/* A configuration that gives no plan, or one that cannot be stored, is skipped. */
static void try_config(struct search *search, cudnn_descriptor config, const struct choice *choice)
{
    const struct cudnn *cudnn = search->cudnn;
    struct attention_cudnn_blob blob = {0};
    name_choice(choice, blob.name, sizeof blob.name);
    for (int i = 0; i < search->count; i++)
        if (strcmp(search->blobs[i].name, blob.name) == 0) return;
    if (search->count == search->capacity) return;
    cudnn_descriptor plan = NULL;
    if (cudnn_new(cudnn, CUDNN_DESCRIPTOR_PLAN, &plan, NULL) &&
        cudnn_set(cudnn, plan, CUDNN_PLAN_HANDLE, CUDNN_OF_HANDLE, 1, &cudnn->handle, NULL) &&
        cudnn_set(cudnn, plan, CUDNN_PLAN_ENGINE_CONFIG, CUDNN_OF_DESCRIPTOR, 1, &config, NULL) &&
        cudnn_finalize(cudnn, plan, "a plan of attention", NULL) && make_blob(search, plan, &blob))
        search->blobs[search->count++] = blob;
    cudnn_destroy(cudnn, plan);
}

static void try_heuristic(struct search *search, enum cudnn_heuristic mode)
{
    const struct cudnn *cudnn = search->cudnn;
    const int value = (int)mode;
    cudnn_descriptor heuristic = NULL, configs[MOST_CONFIGS];
    if (cudnn_new(cudnn, CUDNN_DESCRIPTOR_HEURISTIC, &heuristic, NULL) &&
        cudnn_set(cudnn, heuristic, CUDNN_HEURISTIC_GRAPH, CUDNN_OF_DESCRIPTOR, 1, &search->graph->whole, NULL) &&
        cudnn_set(cudnn, heuristic, CUDNN_HEURISTIC_MODE, CUDNN_OF_HEURISTIC_MODE, 1, &value, NULL) &&
        cudnn_finalize(cudnn, heuristic, "a heuristic", NULL)) {
        int count =
            get_list(cudnn, heuristic, CUDNN_HEURISTIC_RESULTS, CUDNN_DESCRIPTOR_ENGINE_CONFIG, configs, MOST_CONFIGS);
        for (int i = 0; i < count && search->count < search->capacity; i++) {
            struct choice choice;
            read_choice(cudnn, configs[i], &choice);
            try_config(search, configs[i], &choice);
        }
        free_list(cudnn, configs, count);
    }
    cudnn_destroy(cudnn, heuristic);
}

/* The engine with one knob set, or none. */
static void try_choice(struct search *search, cudnn_descriptor engine, const struct choice *choice)
{
    const struct cudnn *cudnn = search->cudnn;
    cudnn_descriptor config = NULL, knob = NULL;
    bool ok = cudnn_new(cudnn, CUDNN_DESCRIPTOR_ENGINE_CONFIG, &config, NULL) &&
              cudnn_set(cudnn, config, CUDNN_ENGINE_CONFIG_ENGINE, CUDNN_OF_DESCRIPTOR, 1, &engine, NULL);
    if (choice->count)
        ok = ok && cudnn_new(cudnn, CUDNN_DESCRIPTOR_KNOB_CHOICE, &knob, NULL) &&
             cudnn_set(cudnn, knob, CUDNN_KNOB_CHOICE_TYPE, CUDNN_OF_KNOB, 1, &choice->knobs[0].type, NULL) &&
             cudnn_set(cudnn, knob, CUDNN_KNOB_CHOICE_VALUE, CUDNN_OF_INT64, 1, &choice->knobs[0].value, NULL) &&
             cudnn_finalize(cudnn, knob, "a knob", NULL) &&
             cudnn_set(cudnn, config, CUDNN_ENGINE_CONFIG_KNOB_CHOICES, CUDNN_OF_DESCRIPTOR, 1, &knob, NULL);
    if (ok && cudnn_finalize(cudnn, config, "a configuration", NULL)) try_config(search, config, choice);
    cudnn_destroy(cudnn, knob);
    cudnn_destroy(cudnn, config);
}

static void try_engine(struct search *search, int64_t index)
{
    const struct cudnn *cudnn = search->cudnn;
    cudnn_descriptor engine = NULL, knobs[MOST_KNOBS];
    if (cudnn_new(cudnn, CUDNN_DESCRIPTOR_ENGINE, &engine, NULL) &&
        cudnn_set(cudnn, engine, CUDNN_ENGINE_GRAPH, CUDNN_OF_DESCRIPTOR, 1, &search->graph->whole, NULL) &&
        cudnn_set(cudnn, engine, CUDNN_ENGINE_INDEX, CUDNN_OF_INT64, 1, &index, NULL) &&
        cudnn_finalize(cudnn, engine, "an engine", NULL)) {
        const struct choice plain = {.engine = index};
        int count = get_list(cudnn, engine, CUDNN_ENGINE_KNOB_INFO, CUDNN_DESCRIPTOR_KNOB_INFO, knobs, MOST_KNOBS);
        for (int i = 0; i < count; i++) {
            struct choice choice = {.engine = index, .count = 1};
            int64_t least = 0, most = -1, stride = 1;
            if (!get_knob_type(cudnn, knobs[i], CUDNN_KNOB_INFO_TYPE, &choice.knobs[0].type) ||
                !get_number(cudnn, knobs[i], CUDNN_KNOB_INFO_MINIMUM, &least) ||
                !get_number(cudnn, knobs[i], CUDNN_KNOB_INFO_MAXIMUM, &most) ||
                !get_number(cudnn, knobs[i], CUDNN_KNOB_INFO_STRIDE, &stride) || least < INT32_MIN ||
                most > INT32_MAX || most < least || stride < 1 || stride > INT32_MAX)
                continue;
            if ((most - least) / stride >= MOST_VALUES) most = least + (MOST_VALUES - 1) * stride;
            for (int64_t value = least; value <= most && search->count < search->capacity; value += stride) {
                choice.knobs[0].value = value;
                try_choice(search, engine, &choice);
            }
        }
        if (!count) try_choice(search, engine, &plain);
        free_list(cudnn, knobs, count);
    }
    cudnn_destroy(cudnn, engine);
}

bool attention_cudnn_enumerate(const struct cudnn *cudnn, const int64_t *params, struct attention_cudnn_blob *blobs,
                               int capacity, int *count, struct status *status)
{
    static const enum cudnn_heuristic modes[] = {CUDNN_HEURISTIC_A, CUDNN_HEURISTIC_B};
    const char *why = attention_cudnn_illegal(params);
    struct graph graph;
    *count = 0;
    if (why) return status_fail(status, STATUS_USAGE, "cuDNN attention: %s", why);
    bool ok = graph_make(&graph, cudnn, params, status);
    if (ok) {
        struct search search = {.cudnn = cudnn,
                                .graph = &graph,
                                .params = params,
                                .blobs = blobs,
                                .capacity = capacity};
        int64_t engines = 0;
        for (size_t i = 0; i < sizeof modes / sizeof *modes && search.count < capacity; i++)
            try_heuristic(&search, modes[i]);
        if (!get_number(cudnn, graph.whole, CUDNN_GRAPH_ENGINE_COUNT, &engines)) engines = 0;
        for (int64_t i = 0; i < engines && search.count < capacity; i++) try_engine(&search, i);
        *count = search.count;
    }
    graph_free(&graph);
    return ok;
}

void attention_cudnn_blob_free(struct attention_cudnn_blob *blob)
{
    free(blob->data);
    *blob = (struct attention_cudnn_blob){0};
}
