/* SPDX-License-Identifier: Apache-2.0 */
/* pass_eight_bit_inputs: which matmuls read codes, and what makes them. */
#include "builder/arch/arch.h"
#include "builder/passes/pass.h"
#include "builder/test_device_model.h"
#include "builder/test_graph.h"
#include "builder/weights/weights.h"
#include "formats/base/test_program.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul.h"
#include "kernels/quantise/quantise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/select_columns/select_columns.h"
#include "kernels/select_rows/select_rows.h"

/* ---- graphs made by hand ---- */

static const struct model_config no_config = {.model_type = "llama"};

enum { WIDTH = 32 };

/* Codes of activations, and a weight's encoding that goes with them. */
static const struct kind {
    enum dtype codes;
    enum encoding_id encoding;
} kinds[] = {{DTYPE_F8_E4M3, ENCODING_E4M3_CHANNEL}, {DTYPE_I8, ENCODING_INT8_CHANNEL}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void begin(struct graph *graph, enum plan_kind kind)
{
    graph_init(graph, &no_config, kind);
    graph->target = TARGET_CUDA;
    graph->compute_dtype = DTYPE_BF16;
    graph->input_codes = DTYPE_F8_E4M3;
}

static int new_value(struct graph *graph, const char *name)
{
    return graph_value(graph, ROWS_TOKENS, WIDTH, "%s", name);
}

static int embed(struct graph *graph, const char *name)
{
    const int table = graph_matrix(graph, GRAPH_NO_LAYER, 50, WIDTH, WEIGHT_ROW_MAJOR, "w.%s", name);
    const int value = new_value(graph, name);
    struct graph_node *node = graph_append(graph, OP_EMBED, GRAPH_NO_LAYER);
    node->operands[EMBED_TABLE] = table;
    node->operands[EMBED_OUT] = value;
    return value;
}

static int norm(struct graph *graph, int x, const char *name)
{
    const int weight = graph_vector(graph, GRAPH_NO_LAYER, WIDTH, "w.%s", name), value = new_value(graph, name);
    struct graph_node *node = graph_append(graph, OP_RMS_NORM, GRAPH_NO_LAYER);
    node->operands[RMS_NORM_X] = x;
    node->operands[RMS_NORM_WEIGHT] = weight;
    node->operands[RMS_NORM_OUT] = value;
    return value;
}

static int multiply(struct graph *graph, int x, enum encoding_id encoding, const char *name)
{
    const int weight = graph_matrix(graph, GRAPH_NO_LAYER, WIDTH, WIDTH, WEIGHT_MATRIX, "w.%s", name);
    const int value = new_value(graph, name);
    struct graph_node *node = graph_append(graph, OP_MATMUL, GRAPH_NO_LAYER);
    graph->weights[weight].encoding = encoding;
    node->operands[MATMUL_X] = x;
    node->operands[MATMUL_W] = weight;
    node->operands[MATMUL_OUT] = value;
    return value;
}

static void run(struct graph *graph)
{
    static const struct pass *const both[] = {&pass_eight_bit_inputs, &pass_activation_dtypes};
    struct status status = {0};
    test_expect_success(graph_check(graph, "the test", &status), &status);
    for (int p = 0; p < 2; p++) {
        test_expect_success(both[p]->run(graph, &status), &status);
        test_expect_success(graph_check(graph, both[p]->name, &status), &status);
    }
}

static int live(const struct graph *graph, enum plan_op op)
{
    int count = 0;
    for (int n = 0; n < graph->node_count; n++) count += !graph->nodes[n].removed && graph->nodes[n].op == op;
    return count;
}

/* The value of a name has this dtype. */
static void expect_dtype(const struct graph *graph, const char *name, enum dtype expected)
{
    for (int v = 0; v < graph->value_count; v++)
        if (strcmp(graph->values[v].name, name) == 0) {
            if (graph->values[v].dtype != expected)
                fail_msg("%s: expected %s, found %s", name, dtype_name(expected), dtype_name(graph->values[v].dtype));
            return;
        }
    fail_msg("no value %s", name);
}

TEST(a_norm_makes_codes_that_all_readers_take)
{
    struct graph graph;
    begin(&graph, PLAN_DECODE);
    const int normed = norm(&graph, embed(&graph, "x"), "normed");
    multiply(&graph, normed, ENCODING_E4M3_CHANNEL, "a");
    multiply(&graph, normed, ENCODING_E4M3_BLOCK128, "b");
    run(&graph);
    test_graph_expect(&graph, "%x[T,32] = embed(table=@w.x[50,32 row-major])\n"
                              "%normed[T,32], %normed.scales[T,1] = rms_norm(x=%x, weight=@w.normed[32 row-major])\n"
                              "%a[T,32] = matmul(x=%normed, w=@w.a[32,32 matrix], x_scales=%normed.scales)\n"
                              "%b[T,32] = matmul(x=%normed, w=@w.b[32,32 matrix], x_scales=%normed.scales)\n");
    expect_dtype(&graph, "normed", DTYPE_F8_E4M3);
    expect_dtype(&graph, "normed.scales", DTYPE_F32);
    expect_dtype(&graph, "a", DTYPE_BF16);
    graph_free(&graph);
}

TEST(codes_are_of_int8_where_weights_are)
{
    struct graph graph;
    begin(&graph, PLAN_DECODE);
    graph.input_codes = DTYPE_I8;
    const int normed = norm(&graph, embed(&graph, "x"), "normed");
    const int a = multiply(&graph, normed, ENCODING_INT8_CHANNEL, "a");
    multiply(&graph, a, ENCODING_INT8_CHANNEL, "b");
    multiply(&graph, a, ENCODING_E4M3_CHANNEL, "c");
    run(&graph);
    test_graph_expect(&graph, "%x[T,32] = embed(table=@w.x[50,32 row-major])\n"
                              "%normed[T,32], %normed.scales[T,1] = rms_norm(x=%x, weight=@w.normed[32 row-major])\n"
                              "%a[T,32] = matmul(x=%normed, w=@w.a[32,32 matrix], x_scales=%normed.scales)\n"
                              "%a.codes[T,32], %a.scales[T,1] = quantise(x=%a)\n"
                              "%b[T,32] = matmul(x=%a.codes, w=@w.b[32,32 matrix], x_scales=%a.scales)\n"
                              "%c[T,32] = matmul(x=%a, w=@w.c[32,32 matrix])\n");
    expect_dtype(&graph, "normed", DTYPE_I8);
    expect_dtype(&graph, "normed.scales", DTYPE_F32);
    expect_dtype(&graph, "a", DTYPE_BF16);
    expect_dtype(&graph, "a.codes", DTYPE_I8);
    graph_free(&graph);
}

/* Codes are made of x after its columns have been reordered, not by the norm before. */
TEST(codes_of_selected_columns)
{
    struct graph graph;
    begin(&graph, PLAN_DECODE);
    const int normed = norm(&graph, embed(&graph, "x"), "normed"), selected = new_value(&graph, "selected");
    const int order = graph_vector(&graph, GRAPH_NO_LAYER, WIDTH, "w.order");
    struct graph_node *node = graph_append(&graph, OP_SELECT_COLUMNS, GRAPH_NO_LAYER);
    node->operands[SELECT_COLUMNS_X] = normed;
    node->operands[SELECT_COLUMNS_ORDER] = order;
    node->operands[SELECT_COLUMNS_OUT] = selected;
    multiply(&graph, selected, ENCODING_E4M3_CHANNEL, "a");
    multiply(&graph, normed, ENCODING_BF16, "b");
    run(&graph);
    test_graph_expect(&graph, "%x[T,32] = embed(table=@w.x[50,32 row-major])\n"
                              "%normed[T,32] = rms_norm(x=%x, weight=@w.normed[32 row-major])\n"
                              "%selected[T,32] = select_columns(x=%normed, order=@w.order[32 row-major])\n"
                              "%selected.codes[T,32], %selected.scales[T,1] = quantise(x=%selected)\n"
                              "%a[T,32] = matmul(x=%selected.codes, w=@w.a[32,32 matrix], x_scales=%selected.scales)\n"
                              "%b[T,32] = matmul(x=%normed, w=@w.b[32,32 matrix])\n");
    expect_dtype(&graph, "normed", DTYPE_BF16);
    expect_dtype(&graph, "selected", DTYPE_BF16);
    expect_dtype(&graph, "selected.codes", DTYPE_F8_E4M3);
    graph_free(&graph);
}

/* Readers that take no codes leave the norm as it is; the others share one quantise. */
TEST(mixed_readers_share_one_quantise)
{
    enum { PLAIN, INT8, AS_RESIDUAL, SELECTED, CASES };
    for (int variant = 0; variant < CASES; variant++) {
        struct graph graph;
        begin(&graph, PLAN_DECODE);
        const int normed = norm(&graph, embed(&graph, "x"), "normed");
        multiply(&graph, normed, ENCODING_E4M3_CHANNEL, "a");
        const int last = variant == PLAIN  ? multiply(&graph, normed, ENCODING_BF16, "plain")
                         : variant == INT8 ? multiply(&graph, normed, ENCODING_INT8_CHANNEL, "plain")
                                           : multiply(&graph, normed, ENCODING_MXFP8, "b");
        if (variant == AS_RESIDUAL) graph.nodes[graph.node_count - 1].operands[MATMUL_RESIDUAL] = normed;
        if (variant == SELECTED) {
            const int selected = graph_value(&graph, ROWS_OUT, WIDTH, "selected");
            struct graph_node *node = graph_append(&graph, OP_SELECT_ROWS, GRAPH_NO_LAYER);
            node->operands[SELECT_ROWS_X] = normed;
            node->operands[SELECT_ROWS_OUT] = selected;
        }
        assert_true(last >= 0);
        run(&graph);
        assert_int_equal(live(&graph, OP_QUANTISE), 1);
        expect_dtype(&graph, "normed", DTYPE_BF16);
        expect_dtype(&graph, "normed.codes", DTYPE_F8_E4M3);
        expect_dtype(&graph, "normed.scales", DTYPE_F32);
        if (variant == PLAIN)
            test_graph_expect(&graph,
                              "%x[T,32] = embed(table=@w.x[50,32 row-major])\n"
                              "%normed[T,32] = rms_norm(x=%x, weight=@w.normed[32 row-major])\n"
                              "%normed.codes[T,32], %normed.scales[T,1] = quantise(x=%normed)\n"
                              "%a[T,32] = matmul(x=%normed.codes, w=@w.a[32,32 matrix], x_scales=%normed.scales)\n"
                              "%plain[T,32] = matmul(x=%normed, w=@w.plain[32,32 matrix])\n");
        graph_free(&graph);
    }
}

/* A product, a copy of a sum and what a collective makes become codes after their op. */
TEST(other_makers_are_followed_by_a_quantise)
{
    struct graph graph;
    begin(&graph, PLAN_DECODE);
    const int x = embed(&graph, "x"), product = multiply(&graph, x, ENCODING_E4M3_CHANNEL, "product");
    const int sum = norm(&graph, multiply(&graph, product, ENCODING_E4M3_TENSOR, "inner"), "sum");
    const int copy = new_value(&graph, "sum.copy");
    graph.nodes[graph.node_count - 1].operands[RMS_NORM_ADD_TO] = x;
    graph.nodes[graph.node_count - 1].operands[RMS_NORM_COPY] = copy;
    multiply(&graph, copy, ENCODING_E4M3_CHANNEL, "a"), multiply(&graph, copy, ENCODING_E4M3_CHANNEL, "b");
    run(&graph);
    test_graph_expect(&graph,
                      "%x[T,32] = embed(table=@w.x[50,32 row-major])\n"
                      "%x.codes[T,32], %x.scales[T,1] = quantise(x=%x)\n"
                      "%product[T,32] = matmul(x=%x.codes, w=@w.product[32,32 matrix], x_scales=%x.scales)\n"
                      "%product.codes[T,32], %product.scales[T,1] = quantise(x=%product)\n"
                      "%inner[T,32] = matmul(x=%product.codes, w=@w.inner[32,32 matrix], x_scales=%product.scales)\n"
                      "%sum[T,32], %sum.copy[T,32] = rms_norm(x=%inner, weight=@w.sum[32 row-major], add_to=%x)\n"
                      "%sum.copy.codes[T,32], %sum.copy.scales[T,1] = quantise(x=%sum.copy)\n"
                      "%a[T,32] = matmul(x=%sum.copy.codes, w=@w.a[32,32 matrix], x_scales=%sum.copy.scales)\n"
                      "%b[T,32] = matmul(x=%sum.copy.codes, w=@w.b[32,32 matrix], x_scales=%sum.copy.scales)\n");
    assert_int_equal(graph.values[sum].dtype, DTYPE_F32);
    assert_int_equal(graph.values[copy].dtype, DTYPE_BF16);
    expect_dtype(&graph, "inner", DTYPE_F32); /* what a norm reads */
    graph_free(&graph);

    begin(&graph, PLAN_DECODE);
    graph.ranks = 2;
    const int part = embed(&graph, "part"), whole = new_value(&graph, "whole"), normed = new_value(&graph, "normed");
    const int weight = graph_vector(&graph, GRAPH_NO_LAYER, WIDTH, "w.normed");
    struct graph_node *reduce = graph_append(&graph, OP_ALL_REDUCE, GRAPH_NO_LAYER);
    reduce->operands[ALL_REDUCE_X] = part;
    reduce->operands[ALL_REDUCE_OUT] = whole;
    reduce->operands[ALL_REDUCE_NORM] = weight;
    reduce->operands[ALL_REDUCE_NORMED] = normed;
    multiply(&graph, normed, ENCODING_E4M3_CHANNEL, "a");
    run(&graph);
    test_graph_expect(&graph, "%part[T,32] = embed(table=@w.part[50,32 row-major])\n"
                              "%whole[T,32], %normed[T,32] = all_reduce(x=%part, norm=@w.normed[32 row-major])\n"
                              "%normed.codes[T,32], %normed.scales[T,1] = quantise(x=%normed)\n"
                              "%a[T,32] = matmul(x=%normed.codes, w=@w.a[32,32 matrix], x_scales=%normed.scales)\n");
    graph_free(&graph);
}

/* Gives every value and weight this width. */
static void widen(struct graph *graph, uint64_t width)
{
    for (int v = 0; v < graph->value_count; v++) graph->values[v].width = width;
    for (int w = 0; w < graph->weight_count; w++) {
        struct graph_weight *weight = &graph->weights[w];
        if (weight->columns) weight->columns = weight->depth = width;
        if (weight->rows == WIDTH) weight->rows = width;
    }
}

enum stays { OTHER_ENCODING, NOT_ASKED, ODD_WIDTH, WITH_NORM, OF_OUT_ROWS, TOO_DEEP };

/* The pass leaves a graph whose one matmul has a weight of this encoding as it is. */
static void expect_unchanged(enum dtype codes, enum encoding_id encoding, enum stays reason)
{
    struct graph graph;
    struct status status = {0};
    begin(&graph, PLAN_PREFILL);
    graph.input_codes = reason == NOT_ASKED ? DTYPE_NONE : codes;
    const int x = embed(&graph, "x"), normed = norm(&graph, x, "normed");
    const int product = multiply(&graph, normed, encoding, "a");
    struct graph_node *matmul = &graph.nodes[graph.node_count - 1];
    if (reason == WITH_NORM) matmul->operands[MATMUL_NORM] = graph.nodes[1].operands[RMS_NORM_WEIGHT];
    if (reason == OF_OUT_ROWS) graph.values[normed].rows = graph.values[product].rows = graph.values[x].rows = ROWS_OUT;
    if (reason == ODD_WIDTH) widen(&graph, WIDTH + 8);
    if (reason == TOO_DEEP) widen(&graph, 1 << 17); /* sums of int8 codes would not fit 32 bits */
    char *before = test_graph_text(&graph);
    test_expect_success(pass_eight_bit_inputs.run(&graph, &status), &status);
    char *after = test_graph_text(&graph);
    assert_string_equal(after, before);
    free(before), free(after);
    graph_free(&graph);
}

TEST(other_matmuls_stay)
{
    static const enum encoding_id others[] = {ENCODING_BF16,           ENCODING_INT4_G32, ENCODING_INT4_G128_ZEROS,
                                              ENCODING_NVFP4,          ENCODING_MXFP4,    ENCODING_INT8_G128,
                                              ENCODING_INT8_G32_ZEROS, ENCODING_NONE};
    for (int k = 0; k < KINDS; k++) {
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            expect_unchanged(kinds[k].codes, others[i], OTHER_ENCODING);
        expect_unchanged(kinds[k].codes, kinds[1 - k].encoding, OTHER_ENCODING);
        for (enum stays reason = NOT_ASKED; reason <= OF_OUT_ROWS; reason++)
            expect_unchanged(kinds[k].codes, kinds[k].encoding, reason);
    }
    expect_unchanged(DTYPE_I8, ENCODING_INT8_CHANNEL, TOO_DEEP);
}

/* ---- whole models ---- */

/* The graph as a build makes it: build_make_eight_bit_graph. */
static void open_graph(struct graph *graph, const struct test_device_model *model, enum dtype codes,
                       enum plan_kind kind)
{
    struct status status = {0};
    const struct graph *bound = &model->graphs[TEST_LARGE_BATCH];
    graph_init(graph, &model->config, kind);
    graph->target = TARGET_CUDA;
    graph->compute_dtype = DTYPE_BF16;
    graph->input_codes = codes;
    graph->ranks = model->ranks;
    if (model->ranks > 1) graph->rank_config = &model->rank_config;
    test_expect_success(import_graph(graph, &status), &status);
    test_expect_success(share_encodings(graph, bound, &status), &status);
    test_expect_success(run_passes(graph, NULL, NULL, &status), &status);
    test_expect_success(share_weights(graph, bound, &status), &status);
}

static void expect_legal(const struct graph *graph)
{
    const struct graph_step step = {.rows = 32, .out_rows = 32, .kv_dtype = ENCODING_BF16};
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        int64_t params[PLAN_MAX_PARAMS] = {0};
        if (node->op != OP_MATMUL && node->op != OP_QUANTISE && node->op != OP_RMS_NORM) continue;
        graph_node_params(graph, node, &step, params);
        const char *why = op_params_illegal(op_find(node->op), params);
        if (why) fail_msg("node %d (%s): %s", n, op_find(node->op)->name, why);
    }
}

/* Every matmul of token rows multiplies codes, and no other; no sum between ranks is of codes. */
static void check_graph(const struct test_device_model *model, const struct graph *graph)
{
    int coded = 0, normed = 0, quantised = 0;
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        normed += node->op == OP_RMS_NORM && node->operands[RMS_NORM_SCALES] >= 0;
        quantised += node->op == OP_QUANTISE;
        if (node->op == OP_ALL_REDUCE)
            assert_true(graph->values[node->operands[ALL_REDUCE_X]].dtype != graph->input_codes);
        if (node->op != OP_MATMUL) continue;
        const bool wanted = graph_node_rows(graph, node) == ROWS_TOKENS &&
                            graph->weights[node->operands[MATMUL_W]].depth % QUANTISE_GROUP == 0;
        assert_int_equal(node->operands[MATMUL_X_SCALES] >= 0, wanted);
        assert_int_equal(graph->values[node->operands[MATMUL_X]].dtype == graph->input_codes, wanted);
        coded += wanted;
    }
    const int layers = (int)model->config.layers;
    /* Prefill: the matmuls after the last attention are of one row. */
    assert_in_range(coded, graph->kind == PLAN_DECODE ? 3 * layers : 3 * layers - 2, 4 * layers + 1);
    assert_in_range(quantised, 1, 4 * layers + 1);
    /* Norms before matmuls make codes, unless a collective does their work. */
    static const char *const fewer[] = {"olmo2", "olmo3", "exaone4", "cohere2", "cohere", "phi"};
    bool has_both = true; /* a norm before attention and another one before the MLP */
    for (size_t i = 0; i < sizeof fewer / sizeof *fewer; i++)
        has_both &= strcmp(model->config.model_type, fewer[i]) != 0;
    if (model->ranks == 1 && has_both) assert_true(normed >= 2 * layers - 1);
    expect_legal(graph);
}

static void check_model(const char *source, const struct kind *kind, uint32_t ranks)
{
    static struct test_device_model model;
    static const enum plan_kind plans[] = {PLAN_DECODE, PLAN_PREFILL};
    if (!test_device_model_open_ranks(&model, source, kind->encoding, ranks)) return;
    for (int p = 0; p < 2; p++) {
        struct graph graph;
        open_graph(&graph, &model, kind->codes, plans[p]);
        check_graph(&model, &graph);
        graph_free(&graph);
    }
    test_device_model_close(&model);
}

TEST(models_multiply_codes)
{
    const char *source;
    for (size_t m = 0; (source = test_device_model_source(m)); m++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++)
            for (int k = 0; k < KINDS; k++) check_model(source, &kinds[k], ranks);
}

/* ---- checkpoints ---- */

TEST(checkpoints_say_what_activations_are)
{
    static const struct {
        const char *folder;
        bool fp8, int8;
    } cases[] = {{"ct-fp8-channel", .fp8 = true}, {"fp8-block", .fp8 = true},     {"fp8-tensor-static", .fp8 = true},
                 {"ct-w8a8-int", .int8 = true},   {"awq-w4-g32", .fp8 = false},   {"ct-mxfp4", .fp8 = false},
                 {"ct-nvfp4", .fp8 = false},      {"ct-w4a16-g32", .fp8 = false}, {"gptq-w8-channel-v2", .fp8 = false},
                 {"modelopt-nvfp4", .fp8 = false}};
    if (!test_shared()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct checkpoint checkpoint;
        struct status status = {0};
        char path[512];
        snprintf(path, sizeof path, "%s/models/quantised/%s", test_shared(), cases[i].folder);
        test_expect_success(checkpoint_open(&checkpoint, path, false, arch_read_config, &status), &status);
        const struct quant_config *found = &checkpoint.config.quantisation;
        if (found->fp8_inputs != cases[i].fp8 || found->int8_inputs != cases[i].int8) fail_msg("%s", cases[i].folder);
        checkpoint_close(&checkpoint);
    }
}

int main(void) { return test_run(); }
