/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of the CUDA target: what remains of every model's graph, in which order, in which dtypes. */
#include <math.h>

#include "builder/passes/pass.h"
#include "formats/base/test_program.h"
#include "builder/test_device_model.h"
#include "kernels/add/add.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/attention/attention.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/rope_table/rope_table.h"
#include "kernels/sample/sample.h"
#include "kernels/select_rows/select_rows.h"

/* ---- what a graph must be, written down from the model's side ---- */

enum { MOST_NODES = 256 };

/* An expected node; a name of a value, or part of a name of a weight; NULL: absent. */
struct expected {
    enum plan_op op;
    bool swiglu;
    const char *input, *residual, *weight, *bias, *norm, *output;
};

struct expectation {
    struct expected nodes[MOST_NODES];
    char names[4 * MOST_NODES][GRAPH_NAME_BYTES];
    int node_count, name_count;
    bool fuses_norms; /* not with fp16, whose range the fused form leaves */
};

static const char *name_of(struct expectation *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
static const char *name_of(struct expectation *e, const char *format, ...)
{
    va_list arguments;
    assert_true(e->name_count < 4 * MOST_NODES);
    va_start(arguments, format);
    vsnprintf(e->names[e->name_count], GRAPH_NAME_BYTES, format, arguments);
    va_end(arguments);
    return e->names[e->name_count++];
}

static void expect_node(struct expectation *e, struct expected node)
{
    assert_true(e->node_count < MOST_NODES);
    e->nodes[e->node_count++] = node;
}

/* The normalised `x` as a matmul's input: with few rows x itself and the norm as the matmul's weight. */
static const char *norm_in(struct expectation *e, bool few_rows, const char *x, const char *output, const char *weight,
                           const char **fused)
{
    *fused = few_rows && e->fuses_norms ? weight : NULL;
    if (*fused) return x;
    expect_node(e, (struct expected){.op = OP_RMS_NORM, .input = x, .weight = weight, .output = output});
    return output;
}

static void expect_layer(struct expectation *e, const struct test_device_model *model, enum test_graph which,
                         uint32_t layer, const char **x)
{
    bool prefill = which == TEST_PREFILL, last = prefill && layer + 1 == model->config.layers;
    bool qwen3 = strcmp(model->config.model_type, "qwen3") == 0;
    bool qkv_bias = model->config.qkv_bias;
    const char *norm, *qkv = name_of(e, "qkv%u", layer), *mixed = name_of(e, "attention%u", layer);
    const char *norm_q = qwen3 ? name_of(e, "layers.%u.self_attn.q_norm.weight", layer) : NULL;
    const char *norm_k = qwen3 ? name_of(e, "layers.%u.self_attn.k_norm.weight", layer) : NULL;
    const char *input = norm_in(e, which == TEST_SMALL_BATCH, *x, name_of(e, "attention_in%u", layer),
                                name_of(e, "layers.%u.input_layernorm.weight", layer), &norm);
    expect_node(e, (struct expected){.op = OP_MATMUL,
                                     .input = input,
                                     .weight = name_of(e, "layers.%u.self_attn.qkv_proj.weight", layer),
                                     .bias = qkv_bias ? name_of(e, "layers.%u.self_attn.qkv_proj.bias", layer) : NULL,
                                     .norm = norm,
                                     .output = qkv});
    if (prefill) {
        const char *rotated = name_of(e, "rotated%u", layer);
        expect_node(e, (struct expected){.op = OP_ROPE_APPEND,
                                         .input = qkv,
                                         .weight = norm_q,
                                         .bias = norm_k,
                                         .output = rotated});
        expect_node(e, (struct expected){.op = OP_ATTENTION, .input = rotated, .output = mixed});
    } else {
        expect_node(e, (struct expected){.op = OP_ROPE_ATTENTION,
                                         .input = qkv,
                                         .weight = norm_q,
                                         .bias = norm_k,
                                         .output = mixed});
    }
    if (last) { /* from here on the last token alone; the residual is selected where the sum was formed */
        const char *selected = name_of(e, "last_%s", mixed), *stream = name_of(e, "last_%s", *x);
        expect_node(e, (struct expected){.op = OP_SELECT_ROWS, .input = mixed, .output = selected});
        expect_node(e, (struct expected){.op = OP_SELECT_ROWS, .input = *x, .output = stream});
        mixed = selected;
        *x = stream;
    }
    bool few_rows = which == TEST_SMALL_BATCH || last, output_bias = model->config.output_bias;
    const char *sum = name_of(e, "after_attention%u", layer), *inner = name_of(e, "activated%u", layer);
    expect_node(e, (struct expected){.op = OP_MATMUL,
                                     .input = mixed,
                                     .residual = *x,
                                     .weight = name_of(e, "layers.%u.self_attn.o_proj.weight", layer),
                                     .bias = output_bias ? name_of(e, "layers.%u.self_attn.o_proj.bias", layer) : NULL,
                                     .output = sum});
    input = norm_in(e, few_rows, sum, name_of(e, "mlp_in%u", layer),
                    name_of(e, "layers.%u.post_attention_layernorm.weight", layer), &norm);
    bool mlp_bias = model->config.mlp_bias;
    expect_node(e, (struct expected){.op = OP_MATMUL,
                                     .swiglu = true,
                                     .input = input,
                                     .weight = name_of(e, "layers.%u.mlp.gate_up_proj.weight", layer),
                                     .bias = mlp_bias ? name_of(e, "layers.%u.mlp.gate_up_proj.bias", layer) : NULL,
                                     .norm = norm,
                                     .output = inner});
    *x = name_of(e, "after_mlp%u", layer);
    expect_node(e, (struct expected){.op = OP_MATMUL,
                                     .input = inner,
                                     .residual = sum,
                                     .weight = name_of(e, "layers.%u.mlp.down_proj.weight", layer),
                                     .bias = mlp_bias ? name_of(e, "layers.%u.mlp.down_proj.bias", layer) : NULL,
                                     .output = *x});
}

static void expect_model(struct expectation *e, const struct test_device_model *model, enum test_graph which)
{
    const char *x = "embedded", *norm;
    e->node_count = e->name_count = 0;
    expect_node(e, (struct expected){.op = OP_EMBED, .weight = "model.embed_tokens.weight", .output = x});
    expect_node(e, (struct expected){.op = OP_ROPE_TABLE, .weight = "rope.inv_freq", .output = "rope"});
    for (uint32_t layer = 0; layer < model->config.layers; layer++) expect_layer(e, model, which, layer, &x);
    const char *input = norm_in(e, which != TEST_LARGE_BATCH, x, "final", "model.norm.weight", &norm);
    expect_node(e,
                (struct expected){.op = OP_MATMUL,
                                  .input = input,
                                  .weight = model->config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head",
                                  .norm = norm,
                                  .output = "logits"});
    expect_node(e, (struct expected){.op = OP_SAMPLE, .input = "logits"});
}

/* ---- comparing ---- */

static void fail_with_dump(const struct graph *graph, int node, const char *what, const char *expected,
                           const char *found)
{
    graph_dump(graph, stderr);
    fail_msg("node %d: %s: expected '%s', found '%s'", node, what, expected ? expected : "none",
             found ? found : "none");
}

static void compare_value(const struct graph *graph, int node, const char *what, int id, const char *expected)
{
    const char *found = id >= 0 ? graph->values[id].name : NULL;
    if (!found != !expected || (found && strcmp(found, expected) != 0))
        fail_with_dump(graph, node, what, expected, found);
}

static void compare_weight(const struct graph *graph, int node, const char *what, int id, const char *expected)
{
    const char *found = id >= 0 ? graph->weights[id].name : NULL;
    if (!found != !expected || (found && !strstr(found, expected))) fail_with_dump(graph, node, what, expected, found);
    if (found) assert_true(graph->weights[id].used);
}

/* Operands that the expectation names, at their places in the op's schema; 0: the op has none such. */
struct places {
    int input, residual, table, weight, bias, norm, output;
};
static const struct places places[OP_COUNT] = {
    [OP_EMBED] = {.weight = EMBED_TABLE, .output = EMBED_OUT},
    [OP_ROPE_TABLE] = {.weight = ROPE_TABLE_INV_FREQ, .output = ROPE_TABLE_OUT},
    [OP_RMS_NORM] = {RMS_NORM_X, RMS_NORM_RESIDUAL, 0, RMS_NORM_WEIGHT, 0, 0, RMS_NORM_OUT},
    [OP_MATMUL] = {MATMUL_X, MATMUL_RESIDUAL, 0, MATMUL_W, MATMUL_BIAS, MATMUL_NORM, MATMUL_OUT},
    [OP_ROPE_APPEND] = {ROPE_APPEND_QKV, 0, ROPE_APPEND_TABLE, ROPE_APPEND_NORM_Q, ROPE_APPEND_NORM_K, 0,
                        ROPE_APPEND_Q},
    [OP_ROPE_ATTENTION] = {ROPE_ATTENTION_QKV, 0, ROPE_ATTENTION_TABLE, ROPE_ATTENTION_NORM_Q, ROPE_ATTENTION_NORM_K, 0,
                           ROPE_ATTENTION_OUT},
    [OP_ATTENTION] = {.input = ATTENTION_Q, .output = ATTENTION_OUT},
    [OP_SELECT_ROWS] = {.input = SELECT_ROWS_X, .output = SELECT_ROWS_OUT},
    [OP_SAMPLE] = {.input = SAMPLE_LOGITS},
};

/* The text at a place; empty if the place does not exist. */
static int at(const struct graph_node *node, int place) { return place ? node->operands[place] : GRAPH_ABSENT; }

static void compare(const struct graph *graph, const struct expectation *e)
{
    for (int n = 0; n < graph->node_count && n < e->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        const struct expected *expected = &e->nodes[n];
        const struct places *p = &places[node->op];
        if (node->op != expected->op)
            fail_with_dump(graph, n, "op", plan_op_name(expected->op), plan_op_name(node->op));
        assert_false(node->removed);
        assert_int_equal(node->op == OP_MATMUL && node->params[MATMUL_EPILOGUE] == ACTIVATION_SILU, expected->swiglu);
        compare_value(graph, n, "input", at(node, p->input), expected->input);
        compare_value(graph, n, "residual", at(node, p->residual), expected->residual);
        compare_value(graph, n, "table", at(node, p->table), p->table ? "rope" : NULL);
        compare_weight(graph, n, "weight", at(node, p->weight), expected->weight);
        compare_weight(graph, n, "second weight", at(node, p->bias), expected->bias);
        compare_weight(graph, n, "norm", at(node, p->norm), expected->norm);
        compare_value(graph, n, "output", at(node, p->output), expected->output);
    }
    if (graph->node_count != e->node_count) graph_dump(graph, stderr);
    assert_int_equal(graph->node_count, e->node_count);
}

/* Residual stream, table and logits are float32; all that tensor cores read is of the weights' dtype. */
static void check_dtypes(const struct graph *graph)
{
    static const char *const wide[] = {"embedded",       "rope",   "after_attention", "after_mlp",
                                       "last_after_mlp", "logits", "last_embedded"};
    for (int n = 0; n < graph->node_count; n++) {
        if (graph->nodes[n].op == OP_SAMPLE) continue;
        const struct graph_value *value = &graph->values[at(&graph->nodes[n], places[graph->nodes[n].op].output)];
        bool is_wide = false;
        for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
            is_wide |= strncmp(value->name, wide[i], strlen(wide[i])) == 0;
        if (value->dtype != (is_wide ? DTYPE_F32 : graph->compute_dtype))
            fail_with_dump(graph, n, value->name, dtype_name(is_wide ? DTYPE_F32 : graph->compute_dtype),
                           dtype_name(value->dtype));
    }
}

static uint64_t expected_width(const struct test_device_model *model, const struct graph_node *node)
{
    const struct model_config *config = &model->config;
    switch (node->op) {
    case OP_ROPE_TABLE: return config->rope.rotary_dim;
    case OP_ROPE_APPEND:
    case OP_ROPE_ATTENTION:
    case OP_ATTENTION: return config->heads * config->head_dim;
    default: return config->hidden_size;
    }
}

/* Numbers that the fusions must carry along. */
static void check_attributes(const struct test_device_model *model, const struct graph *graph)
{
    const struct model_config *config = &model->config;
    bool selected = false;
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        bool qwen3 = strcmp(config->model_type, "qwen3") == 0;
        const int64_t eps = float_to_bits((float)config->rms_norm_eps);
        if (node->op == OP_SAMPLE) {
            assert_int_equal(node->params[SAMPLE_FEEDBACK], graph->kind == PLAN_DECODE);
            continue;
        }
        const struct graph_value *out = &graph->values[at(node, places[node->op].output)];
        if (node->op == OP_RMS_NORM) assert_int_equal(node->params[RMS_NORM_EPS_BITS], eps);
        if (node->op == OP_EMBED)
            assert_int_equal(node->params[EMBED_SCALE_BITS], float_to_bits((float)config->embedding_scale));
        if (node->op == OP_MATMUL) {
            const bool is_head = node->layer == GRAPH_NO_LAYER, adds = node->operands[MATMUL_RESIDUAL] >= 0;
            const double scale = is_head ? config->logits_scale : adds ? config->residual_scale : 1.0;
            assert_int_equal(node->params[MATMUL_SCALE_BITS], float_to_bits((float)scale));
        }
        if (node->op == OP_MATMUL)
            assert_int_equal(node->params[MATMUL_EPS_BITS], node->operands[MATMUL_NORM] >= 0 ? eps : 0);
        if (node->op == OP_ROPE_APPEND) assert_int_equal(node->params[ROPE_APPEND_EPS_BITS], qwen3 ? eps : 0);
        if (node->op == OP_ROPE_ATTENTION) assert_int_equal(node->params[ROPE_ATTENTION_EPS_BITS], qwen3 ? eps : 0);
        if (node->op == OP_ATTENTION || node->op == OP_ROPE_ATTENTION) {
            const bool fused = node->op == OP_ROPE_ATTENTION;
            assert_int_equal(node->params[fused ? (int)ROPE_ATTENTION_SCALE_BITS : (int)ATTENTION_SCALE_BITS],
                             float_to_bits((float)config->attention_scale));
            assert_int_equal(node->params[fused ? (int)ROPE_ATTENTION_WINDOW : (int)ATTENTION_WINDOW],
                             config->layer[node->layer].window);
            assert_int_equal(node->params[PAGED_HEADS], config->heads);
            assert_int_equal(node->params[PAGED_KV_HEADS], config->kv_heads);
        }
        if (node->op == OP_MATMUL && node->params[MATMUL_EPILOGUE] == ACTIVATION_SILU) {
            uint64_t padded = (config->intermediate_size + 7) / 8 * 8;
            assert_int_equal(out->width, padded);
            assert_int_equal(graph->weights[node->operands[MATMUL_W]].rows, 2 * padded);
        } else if (node->op == OP_MATMUL) {
            assert_int_equal(out->width, graph->weights[node->operands[MATMUL_W]].rows);
        } else if (node->op != OP_SELECT_ROWS) {
            assert_int_equal(out->width, expected_width(model, node));
        }
        if (node->op == OP_SELECT_ROWS)
            assert_int_equal(out->dtype, graph->values[node->operands[SELECT_ROWS_X]].dtype);
        /* A prefill's rows after the selection are the last token's. */
        if (graph->kind == PLAN_PREFILL && node->op == OP_SELECT_ROWS) selected = true;
        assert_int_equal(out->rows, selected ? ROWS_OUT : ROWS_TOKENS);
    }
}

TEST(every_model_becomes_the_expected_graph)
{
    static struct test_device_model model;
    static struct expectation e;
    static const enum dtype halves[] = {DTYPE_BF16, DTYPE_F16};
    const char *source;
    for (size_t m = 0; (source = test_device_model_source(m)); m++)
        for (int h = 0; h < 2; h++) {
            test_device_model_open(&model, source, halves[h]);
            /* Norms after attention and MLP: norms_add_and_copy. */
            const bool is_pre_norm = strcmp(model.config.model_type, "olmo2") != 0;
            for (int g = 0; is_pre_norm && g < TEST_GRAPHS; g++) {
                struct status status = {0};
                const struct graph *graph = &model.graphs[g];
                test_expect_success(graph_check(graph, "test", &status), &status);
                e.fuses_norms = halves[h] != DTYPE_F16;
                expect_model(&e, &model, (enum test_graph)g);
                compare(graph, &e);
                check_dtypes(graph);
                check_attributes(&model, graph);
            }
            test_device_model_close(&model);
        }
}

/* ---- single passes on graphs made by hand ---- */

static const struct model_config no_config = {.model_type = "llama"};

static void begin(struct graph *graph, enum plan_kind kind, bool small_batch)
{
    graph_init(graph, &no_config, kind);
    graph->target = TARGET_CUDA;
    graph->compute_dtype = DTYPE_BF16;
    graph->small_batch = small_batch;
}

enum { WIDTH = 8 };

/* Appends a node of square shape; the new value. `b`: the residual or second summand. */
static int node(struct graph *graph, enum plan_op op, int a, int b, const char *output)
{
    int weight = op == OP_MATMUL       ? graph_matrix(graph, 0, WIDTH, WIDTH, WEIGHT_MATRIX, "w.%s", output)
                 : op == OP_EMBED      ? graph_matrix(graph, 0, WIDTH, WIDTH, WEIGHT_ROW_MAJOR, "w.%s", output)
                 : op == OP_RMS_NORM   ? graph_vector(graph, 0, WIDTH, "w.%s", output)
                 : op == OP_ROPE_TABLE ? graph_vector(graph, 0, WIDTH / 2, "w.%s", output)
                                       : -1;
    int value = graph_value(graph, ROWS_TOKENS, WIDTH, "%s", output);
    struct graph_node *made = graph_append(graph, op, 0);
    struct places p = places[op];
    assert_non_null(made);
    if (op == OP_ADD) p = (struct places){.input = ADD_A, .residual = ADD_B, .output = ADD_OUT};
    if (op == OP_ALL_REDUCE) p = (struct places){.input = ALL_REDUCE_X, .output = ALL_REDUCE_OUT};
    if (p.input) made->operands[p.input] = a;
    if (p.residual) made->operands[p.residual] = b;
    if (p.weight) made->operands[p.weight] = weight;
    made->operands[p.output] = value;
    if (op == OP_RMS_NORM) made->params[RMS_NORM_EPS_BITS] = float_to_bits(0.5f);
    return value;
}

static int producer(const struct graph *graph, int value)
{
    struct graph_index index;
    struct status status = {0};
    test_expect_success(graph_index_open(&index, graph, &status), &status);
    const int found = index.producer[value];
    graph_index_close(&index);
    return found;
}

static void run(struct graph *graph, const struct pass *pass)
{
    struct status status = {0};
    test_expect_success(graph_check(graph, "the test", &status), &status);
    test_expect_success(pass->run(graph, &status), &status);
    test_expect_success(graph_check(graph, pass->name, &status), &status);
}

static int live(const struct graph *graph, enum plan_op op)
{
    int count = 0;
    for (int n = 0; n < graph->node_count; n++) count += !graph->nodes[n].removed && graph->nodes[n].op == op;
    return count;
}

/* The other summand may be made after the product: the fused matmul waits for it. */
TEST(the_fused_matmul_stands_where_the_addition_stood)
{
    for (int side = 0; side < 2; side++) {
        struct graph graph;
        begin(&graph, PLAN_DECODE, false);
        int x = node(&graph, OP_EMBED, -1, -1, "x"), product = node(&graph, OP_MATMUL, x, -1, "product");
        int late = node(&graph, OP_RMS_NORM, x, -1, "late");
        int sum = node(&graph, OP_ADD, side ? late : product, side ? product : late, "sum");
        node(&graph, OP_RMS_NORM, sum, -1, "after");
        int matrix = graph.nodes[1].operands[MATMUL_W];
        graph.nodes[1].params[MATMUL_SCALE_BITS] = float_to_bits(0.22f);
        run(&graph, &pass_fuse_residual_matmul);
        assert_int_equal(live(&graph, OP_ADD), 0);
        assert_int_equal(live(&graph, OP_MATMUL), 1);
        assert_true(graph.nodes[1].removed);
        const struct graph_node *fused = &graph.nodes[3];
        assert_int_equal(fused->op, OP_MATMUL);
        assert_int_equal(fused->operands[MATMUL_X], x);
        assert_int_equal(fused->operands[MATMUL_RESIDUAL], late);
        assert_int_equal(fused->params[MATMUL_SCALE_BITS], float_to_bits(0.22f));
        assert_int_equal(fused->operands[MATMUL_W], matrix);
        assert_int_equal(fused->operands[MATMUL_OUT], sum);
        graph_free(&graph);
    }
}

/* ---- what joins the sum of several ranks ---- */

static void begin_ranks(struct graph *graph)
{
    begin(graph, PLAN_DECODE, false);
    graph->ranks = 2;
    graph->rank_config = &no_config;
}

/* Addition and norm after a sum become part of it, at the place of the addition. */
TEST(a_sum_takes_residual_and_norm)
{
    for (int variant = 0; variant < 8; variant++) {
        bool left = variant & 1, has_add = variant & 2, has_norm = variant & 4;
        struct graph graph;
        begin_ranks(&graph);
        int part = node(&graph, OP_EMBED, -1, -1, "part"), stream = node(&graph, OP_ALL_REDUCE, part, -1, "stream");
        int product = node(&graph, OP_MATMUL, stream, -1, "product");
        int sum = node(&graph, OP_ALL_REDUCE, product, -1, "sum");
        int late = node(&graph, OP_RMS_NORM, stream, -1, "late"), end = sum, normed = -1, weight = -1;
        if (has_add) end = node(&graph, OP_ADD, left ? late : sum, left ? sum : late, "added");
        if (has_norm) {
            normed = node(&graph, OP_RMS_NORM, end, -1, "normed");
            weight = graph.nodes[graph.node_count - 1].operands[RMS_NORM_WEIGHT];
            node(&graph, OP_MATMUL, normed, -1, "last");
        }
        node(&graph, OP_MATMUL, end, -1, "reader");
        run(&graph, &pass_fuse_all_reduce);
        assert_int_equal(live(&graph, OP_ADD), 0);
        assert_int_equal(live(&graph, OP_RMS_NORM), 0); /* "late" went into the first sum */
        assert_int_equal(live(&graph, OP_ALL_REDUCE), 2);
        const struct graph_node *fused = &graph.nodes[producer(&graph, end)];
        assert_int_equal(fused->op, OP_ALL_REDUCE);
        assert_ptr_equal(fused, &graph.nodes[has_add ? 5 : 3]);
        assert_int_equal(fused->operands[ALL_REDUCE_X], product);
        assert_int_equal(fused->operands[ALL_REDUCE_RESIDUAL], has_add ? late : -1);
        assert_int_equal(fused->operands[ALL_REDUCE_OUT], end);
        assert_int_equal(fused->operands[ALL_REDUCE_NORMED], normed);
        assert_int_equal(fused->operands[ALL_REDUCE_NORM], weight);
        assert_int_equal(fused->params[ALL_REDUCE_EPS_BITS], has_norm ? float_to_bits(0.5f) : 0);
        graph_free(&graph);
    }
}

/* A sum that another node reads without the addition stays as it is; a second norm stays a separate launch. */
TEST(a_sum_with_other_readers_stays)
{
    struct graph graph;
    begin_ranks(&graph);
    int part = node(&graph, OP_EMBED, -1, -1, "part"), sum = node(&graph, OP_ALL_REDUCE, part, -1, "sum");
    int added = node(&graph, OP_ADD, sum, node(&graph, OP_MATMUL, sum, -1, "other"), "added");
    int first = node(&graph, OP_RMS_NORM, sum, -1, "first"), second = node(&graph, OP_RMS_NORM, sum, -1, "second");
    node(&graph, OP_MATMUL, first, second, "a");
    node(&graph, OP_MATMUL, added, -1, "b");
    run(&graph, &pass_fuse_all_reduce);
    assert_int_equal(live(&graph, OP_ADD), 1);
    assert_int_equal(live(&graph, OP_RMS_NORM), 1);
    assert_int_equal(graph.nodes[1].op, OP_ALL_REDUCE);
    assert_int_equal(graph.nodes[1].operands[ALL_REDUCE_OUT], sum);
    assert_int_equal(graph.nodes[1].operands[ALL_REDUCE_NORMED], first);
    assert_int_equal(graph.nodes[1].operands[ALL_REDUCE_RESIDUAL], -1);
    assert_int_equal(graph.nodes[producer(&graph, second)].op, OP_RMS_NORM);
    graph_free(&graph);
}

/* A product that another node also reads, or that has an epilogue already, stays; the remaining addition is refused,
 * since no device kernel adds. */
TEST(additions_that_stay_are_refused)
{
    for (int variant = 0; variant < 4; variant++) {
        struct graph graph;
        struct status status = {0};
        begin(&graph, PLAN_DECODE, false);
        int x = node(&graph, OP_EMBED, -1, -1, "x"), product = node(&graph, OP_MATMUL, x, -1, "product");
        if (variant == 1) { /* with a residual already */
            graph.nodes[1].operands[MATMUL_RESIDUAL] = x;
        } else if (variant == 2) { /* of no matmul */
            product = node(&graph, OP_RMS_NORM, product, -1, "normed");
        } else if (variant == 3) {
            graph.nodes[1].params[MATMUL_EPILOGUE] = ACTIVATION_SILU;
            graph.weights[graph.nodes[1].operands[MATMUL_W]].rows *= 2;
        }
        node(&graph, OP_ADD, x, product, "sum");
        if (variant == 0) node(&graph, OP_RMS_NORM, product, -1, "other reader");
        run(&graph, &pass_fuse_residual_matmul);
        assert_int_equal(live(&graph, OP_ADD), 1);
        test_expect_failure(pass_activation_dtypes.run(&graph, &status), &status, STATUS_BAD_INPUT,
                            "neither a matmul nor a norm produces|--target cpu");
        graph_free(&graph);
    }
}

/* A decoder with norms after attention and MLP: sums become part of the norms, and matmuls read 16-bit copies of them. */
TEST(norms_add_and_copy)
{
    struct graph graph;
    begin(&graph, PLAN_DECODE, false);
    int x = node(&graph, OP_EMBED, -1, -1, "x"), product = node(&graph, OP_MATMUL, x, -1, "product");
    int normed = node(&graph, OP_RMS_NORM, product, -1, "normed"), sum = node(&graph, OP_ADD, x, normed, "sum");
    int next = node(&graph, OP_MATMUL, sum, -1, "next"), other = node(&graph, OP_MATMUL, sum, -1, "other");
    run(&graph, &pass_fuse_norm_add);
    assert_int_equal(live(&graph, OP_ADD), 0);
    assert_int_equal(live(&graph, OP_RMS_NORM), 1);
    const struct graph_node *norm = &graph.nodes[producer(&graph, sum)];
    assert_int_equal(norm->op, OP_RMS_NORM);
    assert_int_equal(norm->operands[RMS_NORM_X], product);
    assert_int_equal(norm->operands[RMS_NORM_ADD_TO], x);
    assert_int_equal(norm->operands[RMS_NORM_COPY], -1);

    run(&graph, &pass_matmul_inputs);
    norm = &graph.nodes[producer(&graph, sum)];
    const int copy = norm->operands[RMS_NORM_COPY];
    assert_true(copy >= 0);
    assert_int_equal(graph.nodes[producer(&graph, next)].operands[MATMUL_X], copy);
    assert_int_equal(graph.nodes[producer(&graph, other)].operands[MATMUL_X], copy);
    assert_int_equal(live(&graph, OP_EMBED), 2);
    const int lookup = graph.nodes[producer(&graph, product)].operands[MATMUL_X];
    assert_int_not_equal(lookup, x);
    assert_int_equal(graph.nodes[producer(&graph, lookup)].op, OP_EMBED);
    assert_int_equal(graph.nodes[producer(&graph, lookup)].operands[EMBED_TABLE],
                     graph.nodes[producer(&graph, x)].operands[EMBED_TABLE]);

    run(&graph, &pass_activation_dtypes);
    assert_int_equal(graph.values[x].dtype, DTYPE_F32);
    assert_int_equal(graph.values[sum].dtype, DTYPE_F32);
    assert_int_equal(graph.values[product].dtype, DTYPE_F32); /* what a norm reads */
    assert_int_equal(graph.values[copy].dtype, graph.compute_dtype);
    assert_int_equal(graph.values[lookup].dtype, graph.compute_dtype);
    graph_free(&graph);

    /* A result of the norm that something else reads, too, stays apart; a sum in a matmul has no copy. */
    begin(&graph, PLAN_DECODE, false);
    x = node(&graph, OP_EMBED, -1, -1, "x"), normed = node(&graph, OP_RMS_NORM, x, -1, "normed");
    node(&graph, OP_ADD, x, normed, "sum"), node(&graph, OP_MATMUL, normed, x, "reader");
    run(&graph, &pass_fuse_norm_add);
    assert_int_equal(live(&graph, OP_ADD), 1);
    struct status status = {0};
    node(&graph, OP_MATMUL, graph.nodes[3].operands[MATMUL_OUT], -1, "after the sum");
    test_expect_failure(pass_matmul_inputs.run(&graph, &status), &status, STATUS_BAD_INPUT,
                        "no norm follows|--target cpu");
    graph_free(&graph);
}

TEST(norms_join_all_their_readers_or_none)
{
    enum { ONE, TWO, ALSO_RESIDUAL, ALSO_ADDED, WIDE, UNREAD, CASES };
    for (int variant = 0; variant < CASES; variant++) {
        struct graph graph;
        begin(&graph, PLAN_DECODE, variant != WIDE);
        int x = node(&graph, OP_EMBED, -1, -1, "x"), normed = node(&graph, OP_RMS_NORM, x, -1, "normed");
        int norm = graph.nodes[1].operands[RMS_NORM_WEIGHT];
        if (variant != UNREAD) node(&graph, OP_MATMUL, normed, variant == ALSO_RESIDUAL ? normed : -1, "a");
        if (variant == TWO) node(&graph, OP_MATMUL, normed, x, "b");
        if (variant == ALSO_ADDED) node(&graph, OP_ADD, x, normed, "b");
        run(&graph, &pass_fuse_norm_matmul);
        bool fused = variant == ONE || variant == TWO;
        assert_int_equal(live(&graph, OP_RMS_NORM), !fused);
        for (int n = 2; n < graph.node_count; n++) {
            const struct graph_node *matmul = &graph.nodes[n];
            if (matmul->op != OP_MATMUL) continue;
            assert_int_equal(matmul->operands[MATMUL_NORM], fused ? norm : -1);
            assert_int_equal(matmul->operands[MATMUL_X], fused ? x : normed);
            assert_int_equal(matmul->params[MATMUL_EPS_BITS], fused ? float_to_bits(0.5f) : 0);
        }
        graph_free(&graph);
    }
}

TEST(rotation_joins_attention_in_decode_alone)
{
    enum { FUSED, PARTIAL, PREFILL, READ_TWICE, WIDE_NORM, CASES };
    for (int variant = 0; variant < CASES; variant++) {
        struct graph graph;
        begin(&graph, variant == PREFILL ? PLAN_PREFILL : PLAN_DECODE, true);
        int x = node(&graph, OP_EMBED, -1, -1, "x"), table = node(&graph, OP_ROPE_TABLE, -1, -1, "table");
        int matrix = graph_matrix(&graph, 0, 3 * WIDTH, WIDTH, WEIGHT_MATRIX, "qkv");
        int qkv = graph_value(&graph, ROWS_TOKENS, 3 * WIDTH, "qkv");
        struct graph_node *project = graph_append(&graph, OP_MATMUL, 0);
        assert_non_null(project);
        project->operands[MATMUL_X] = x;
        project->operands[MATMUL_W] = matrix;
        project->operands[MATMUL_OUT] = qkv;
        int q = node(&graph, OP_ROPE_APPEND, qkv, -1, "q"), rope = graph.node_count - 1;
        const int norm_q = graph_vector(&graph, 0, WIDTH, "norm_q"), norm_k = graph_vector(&graph, 0, WIDTH, "norm_k");
        graph.nodes[rope].operands[ROPE_APPEND_TABLE] = table;
        graph.nodes[rope].operands[ROPE_APPEND_NORM_Q] = norm_q;
        graph.nodes[rope].operands[ROPE_APPEND_NORM_K] = norm_k;
        graph.nodes[rope].params[ROPE_APPEND_EPS_BITS] = float_to_bits(0.5f);
        if (variant == WIDE_NORM) graph.nodes[rope].params[ROPE_APPEND_NORM_SCOPE] = ROPE_APPEND_NORM_WIDTH;
        if (variant == PARTIAL) {
            graph.nodes[rope].params[ROPE_APPEND_ROTARY_DIM] = WIDTH / 2;
            graph.values[table].width = WIDTH / 2;
            graph.weights[graph.nodes[1].operands[ROPE_TABLE_INV_FREQ]].rows = WIDTH / 4;
        }
        int mixed = node(&graph, OP_ATTENTION, q, -1, "mixed"), last = graph.node_count - 1;
        graph.nodes[last].params[ATTENTION_SCALE_BITS] = float_to_bits(0.25f);
        graph.nodes[last].params[ATTENTION_WINDOW] = 7;
        for (int n = rope; n <= last; n++) {
            graph.nodes[n].params[PAGED_HEADS] = graph.nodes[n].params[PAGED_KV_HEADS] = 1;
            graph.nodes[n].params[PAGED_HEAD_DIM] = WIDTH;
        }
        if (variant == READ_TWICE) node(&graph, OP_RMS_NORM, q, -1, "other reader");
        run(&graph, &pass_fuse_rope_attention);
        const struct graph_node *attention = &graph.nodes[last];
        const bool fused = variant == FUSED || variant == PARTIAL;
        assert_int_equal(graph.nodes[rope].removed, fused);
        assert_int_equal(attention->op, fused ? OP_ROPE_ATTENTION : OP_ATTENTION);
        if (fused) {
            assert_int_equal(attention->params[ROPE_ATTENTION_ROTARY_DIM], variant == PARTIAL ? WIDTH / 2 : 0);
            assert_int_equal(attention->operands[ROPE_ATTENTION_QKV], qkv);
            assert_int_equal(attention->operands[ROPE_ATTENTION_TABLE], table);
            assert_int_equal(attention->operands[ROPE_ATTENTION_NORM_Q], norm_q);
            assert_int_equal(attention->operands[ROPE_ATTENTION_NORM_K], norm_k);
            assert_int_equal(attention->operands[ROPE_ATTENTION_OUT], mixed);
            assert_int_equal(attention->params[PAGED_HEADS], 1);
            assert_int_equal(attention->params[PAGED_HEAD_DIM], WIDTH);
            assert_int_equal(attention->params[ROPE_ATTENTION_EPS_BITS], float_to_bits(0.5f));
            assert_int_equal(attention->params[ROPE_ATTENTION_SCALE_BITS], float_to_bits(0.25f));
            assert_int_equal(attention->params[ROPE_ATTENTION_WINDOW], 7);
        }
        graph_free(&graph);
    }
}

int main(void) { return test_run(); }
