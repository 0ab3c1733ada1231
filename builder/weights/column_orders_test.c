/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices in act-order: which of them get an order, what then makes x, and that the engine has their elements where the
 * order says. */
#include "builder/weights/column_orders.h"
#include "builder/weights/decoded.h"

#include <math.h>

#include "builder/arch/family.h"
#include "builder/weights/shard.h"
#include "builder/weights/weights.h"
#include "formats/base/test_support.h"
#include "formats/checkpoint/test_quantised.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/weight_layout.h"
#include "kernels/select_columns/select_columns.h"

/* Codes of a matrix take less than a page: packing gives whole ones back. */
enum { WIDTH = 128, INNER = 96, GROUP = 32 };

struct fixture {
    struct test_checkpoint files;
    struct checkpoint checkpoint;
    struct column_orders orders;
    struct model_config rank_config;
    struct graph graph;
    struct weight_types types;
};

static void add_module(struct fixture *f, const char *name, uint64_t rows, uint64_t columns)
{
    const struct test_quantised what = {TEST_GPTQ, TEST_ACT_ORDER, rows, columns, GROUP, 4, DTYPE_F16, 0};
    test_quantised_add(&f->files, name, &what);
}

static const uint8_t *groups_of(struct fixture *f, const char *name)
{
    return test_quantised_find(&f->files, test_text("%s.g_idx", name))->data;
}

static void share_groups(struct fixture *f, const char *from, const char *to, uint64_t columns)
{
    struct tensor_view *tensor = test_quantised_find(&f->files, test_text("%s.g_idx", to));
    memcpy((uint8_t *)(uintptr_t)tensor->data, groups_of(f, from), columns * sizeof(uint32_t));
}

/* After all modules have been added. */
static void open_graph(struct fixture *f, uint32_t ranks, enum engine_target target)
{
    struct status status = {0};
    struct model_config *config = &f->checkpoint.config;
    test_quantised_sort(&f->files);
    test_expect_success(quantised_open(&f->checkpoint.quantised, &f->files.config, f->files.tensors, f->files.count,
                                       &status),
                        &status);
    f->checkpoint.tensors = f->checkpoint.quantised.tensors;
    f->checkpoint.tensor_count = f->checkpoint.quantised.count;
    config->quantisation = f->files.config;
    config->heads = config->kv_heads = 6, config->intermediate_size = INNER;
    test_expect_success(shard_config(config, ranks, &f->rank_config, &status), &status);
    test_expect_success(column_orders_open(&f->orders, &f->checkpoint, &status), &status);
    graph_init(&f->graph, config, PLAN_DECODE);
    f->graph.target = target;
    f->graph.compute_dtype = target == TARGET_CUDA ? DTYPE_BF16 : DTYPE_F32;
    f->graph.ranks = ranks;
    f->graph.rank_config = &f->rank_config;
}

static void close_graph(struct fixture *f)
{
    graph_free(&f->graph);
    column_orders_close(&f->orders);
    quantised_close(&f->checkpoint.quantised);
    test_quantised_free(&f->files);
    *f = (struct fixture){0};
}

static int matrix(struct fixture *f, const char *name, uint64_t rows, uint64_t columns)
{
    return graph_matrix(&f->graph, 0, rows, columns, WEIGHT_MATRIX, "%s.weight", name);
}

static int multiply(struct fixture *f, int x, int weight, int epilogue)
{
    return node_matmul(&f->graph, x, 0, (struct projection){weight, -1}, epilogue, 1.0, "y");
}

static void add_orders(struct fixture *f)
{
    struct status status = {0};
    test_expect_success(column_orders_add(&f->graph, &f->orders, &f->checkpoint, &f->types, &status), &status);
}

static int count_selections(const struct graph *graph)
{
    int count = 0;
    for (int n = 0; n < graph->node_count; n++) count += graph->nodes[n].op == OP_SELECT_COLUMNS;
    return count;
}

/* Columns by rising group, each group's by rising number. */
static void expect_order(const struct column_order *order, const uint8_t *groups, uint64_t columns)
{
    assert_non_null(order);
    assert_int_equal(order->count, columns);
    for (uint64_t i = 1; i < columns; i++) {
        uint32_t before, group;
        memcpy(&before, groups + 4 * order->columns[i - 1], sizeof before);
        memcpy(&group, groups + 4 * order->columns[i], sizeof group);
        assert_true(before < group || (before == group && order->columns[i - 1] < order->columns[i]));
    }
}

/* The node that makes a value. */
static const struct graph_node *maker_of(const struct graph *graph, int value)
{
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
            if (graph_makes(&graph->nodes[n], i) && graph->nodes[n].operands[i] == value) return &graph->nodes[n];
    return NULL;
}

/* ---- which matrices get an order ---- */

/* q, k and v of one x, in one weight, and a gate of the same x: one selection for both. */
TEST(equal_orders_share_a_selection)
{
    static struct fixture f;
    const char *const names[] = {"k", "q", "v", "gate"};
    for (int i = 0; i < 4; i++) add_module(&f, names[i], 32, WIDTH);
    for (int i = 1; i < 4; i++) share_groups(&f, "k", names[i], WIDTH);
    open_graph(&f, 2, TARGET_CPU);
    const int x = graph_value(&f.graph, ROWS_TOKENS, WIDTH, "x"), qkv = matrix(&f, "q", 32, WIDTH);
    for (int i = 0; i < 3; i += 2) graph_weight_join(&f.graph, qkv, matrix(&f, names[i], 32, WIDTH));
    graph_shard(&f.graph, qkv, SHARD_ROWS);
    const int gate = matrix(&f, "gate", 32, WIDTH);
    multiply(&f, x, gate, ACTIVATION_NONE);
    multiply(&f, x, qkv, ACTIVATION_NONE);
    add_orders(&f);
    assert_int_equal(f.orders.count, 1);
    assert_int_equal(f.graph.node_count, 3);
    const struct graph_node *nodes = f.graph.nodes;
    assert_int_equal(nodes[0].op, OP_SELECT_COLUMNS);
    assert_int_equal(nodes[0].operands[SELECT_COLUMNS_X], x);
    assert_int_equal(nodes[1].operands[MATMUL_X], nodes[0].operands[SELECT_COLUMNS_OUT]);
    assert_int_equal(nodes[2].operands[MATMUL_X], nodes[0].operands[SELECT_COLUMNS_OUT]);
    const struct graph_weight *order = &f.graph.weights[nodes[0].operands[SELECT_COLUMNS_ORDER]];
    assert_string_equal(order->name, "gate.weight.order");
    assert_int_equal(order->rows, WIDTH);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(f.graph.weights[qkv].sources[i].column_order, f.orders.orders);
        assert_null(f.graph.weights[qkv].sources[i].row_order);
    }
    expect_order(f.orders.orders, groups_of(&f, "q"), WIDTH);
    close_graph(&f);
}

TEST(unequal_orders_are_decoded)
{
    static struct fixture f;
    struct status status = {0};
    add_module(&f, "q", 32, WIDTH);
    add_module(&f, "k", 32, WIDTH);
    open_graph(&f, 1, TARGET_CPU);
    const int x = graph_value(&f.graph, ROWS_TOKENS, WIDTH, "x"), qk = matrix(&f, "q", 32, WIDTH);
    graph_weight_join(&f.graph, qk, matrix(&f, "k", 32, WIDTH));
    multiply(&f, x, qk, ACTIVATION_NONE);
    assert_int_equal(f.orders.count, 2);
    add_orders(&f);
    assert_int_equal(f.graph.node_count, 1);
    assert_null(f.graph.weights[qk].sources[0].column_order);
    test_expect_success(bind_weights(&f.graph, &f.checkpoint, &f.types, &status), &status);
    assert_int_equal(f.graph.weights[qk].encoding, ENCODING_F32);
    struct decoded_matrices decoded[DECODED_MOST_REASONS];
    decoded_matrices_count(&f.graph, &f.checkpoint, &f.types, decoded);
    assert_string_equal(decoded[0].reason, "in act-order");
    assert_int_equal(decoded[0].count, 1);
    assert_int_equal(decoded[1].count, 0);
    close_graph(&f);
}

/* What makes an order impossible, or useless. */
enum hindrance { NOTHING, EXPERTS, READ_TWICE, ANOTHER_TYPE, PATTERN, SHARED_COLUMNS, A_PART, HINDRANCES };

TEST(hindrances)
{
    static struct fixture f;
    for (int why = NOTHING; why < HINDRANCES; why++) {
        add_module(&f, "o", 32, WIDTH);
        open_graph(&f, why == SHARED_COLUMNS ? 2 : 1, TARGET_CPU);
        const struct weight_source part = {.shape = {32, WIDTH}, .columns = 64};
        const int x = graph_value(&f.graph, ROWS_TOKENS, why == A_PART ? 64 : WIDTH, "x");
        const int o = why == A_PART ? graph_weight_from(&f.graph, 0, WEIGHT_MATRIX, &part, "o.weight")
                                    : matrix(&f, "o", 32, WIDTH);
        if (why == EXPERTS) f.graph.weights[o].experts = 2;
        if (why == ANOTHER_TYPE) f.types.matrices = ENCODING_INT8_CHANNEL;
        if (why == PATTERN) {
            snprintf(f.types.kept[0].pattern, sizeof f.types.kept[0].pattern, "*o.weight");
            f.types.kept[0].encoding = ENCODING_BF16, f.types.kept_count = 1;
        }
        graph_shard(&f.graph, o, SHARD_COLUMNS);
        for (int i = 0; i <= (why == READ_TWICE); i++) multiply(&f, x, o, ACTIVATION_NONE);
        add_orders(&f);
        assert_int_equal(count_selections(&f.graph), why == NOTHING);
        assert_int_equal(f.graph.weights[o].sources[0].column_order != NULL, why == NOTHING);
        close_graph(&f);
    }
}

TEST(one_group_has_no_order)
{
    static struct fixture f;
    struct status status = {0};
    const struct test_quantised what = {TEST_GPTQ, TEST_ACT_ORDER, 32, WIDTH, 0, 4, DTYPE_F16, 0};
    test_quantised_add(&f.files, "o", &what);
    open_graph(&f, 1, TARGET_CPU);
    const int o = matrix(&f, "o", 32, WIDTH);
    multiply(&f, graph_value(&f.graph, ROWS_TOKENS, WIDTH, "x"), o, ACTIVATION_NONE);
    add_orders(&f);
    assert_int_equal(f.orders.count, 0);
    assert_int_equal(f.graph.node_count, 1);
    test_expect_success(bind_weights(&f.graph, &f.checkpoint, &f.types, &status), &status);
    assert_int_equal(f.graph.weights[o].encoding, ENCODING_INT4_G128_ZEROS);
    close_graph(&f);
}

/* ---- elements ---- */

/* Reads every element of a matrix from the engine, on each rank. */
static void expect_elements(const struct fixture *f, const uint8_t *weights, uint64_t bytes, int w)
{
    const struct graph *graph = &f->graph;
    const struct graph_weight *weight = &graph->weights[w];
    const enum tensor_layout layout = graph_weight_layout(graph, weight);
    float *found = malloc(weight->depth * sizeof *found);
    struct panel_form form;
    assert_true(weight->keeps_codes);
    assert_true(weight_layout_form(layout, weight->encoding, &form));
    for (uint32_t rank = 0; rank < graph->ranks; rank++)
        for (int s = 0; s < weight->source_count; s++) {
            const struct weight_source *source = &weight->sources[s];
            const struct quantised *quantised = checkpoint_find(&f->checkpoint, source->tensor)->quantised;
            const struct shard_slice slice = shard_slice(source, rank, graph->ranks);
            const uint64_t group = weight->interleave, count = (uint64_t)weight->source_count;
            for (uint64_t row = 0; row < slice.rows; row++) {
                const uint64_t place = group ? (row / group * count + (uint64_t)s) * group + row % group : row;
                const uint64_t at = slice.first_row + row,
                               from = source->row_order ? source->row_order->columns[at] : at;
                panel_read(&form, weights + bytes / graph->ranks * rank + weight->offset, place, weight->depth, 0,
                           weight->depth, found);
                for (uint64_t k = 0; k < weight->columns; k++) {
                    float expected;
                    quantised_read(quantised, from, source->column_order->columns[slice.first_column + k], 1,
                                   &expected);
                    if (fabsf(found[k] - expected) > 1e-6f * fabsf(expected))
                        fail_msg("%s rank %d row %d column %d: %g, expected %g", weight->name, (int)rank, (int)row,
                                 (int)k, (double)found[k], (double)expected);
                }
            }
        }
    free(found);
}

/* Shares the weights as pass_shard does, binds and packs them. */
static uint8_t *pack(struct fixture *f, uint64_t *bytes)
{
    struct status status = {0};
    for (int w = 0; w < f->graph.weight_count; w++) {
        struct graph_weight *weight = &f->graph.weights[w];
        for (int i = 0; i < weight->source_count; i++) {
            struct weight_source *source = &weight->sources[i];
            if (source->shard == SHARD_ROWS) source->rank_rows /= f->graph.ranks;
            if (source->shard == SHARD_COLUMNS) source->rank_columns /= f->graph.ranks;
            weight->columns = weight->depth = source->rank_columns;
        }
        weight->used = weight->source_count > 0;
        weight->rows = graph_weight_rows(weight);
    }
    test_expect_success(bind_weights(&f->graph, &f->checkpoint, &f->types, &status) &&
                            plan_weights(&f->graph, bytes, &status),
                        &status);
    uint8_t *weights = malloc(*bytes);
    assert_non_null(weights);
    struct packer *packer = packer_open(&f->graph, &f->checkpoint, *bytes, &status);
    test_expect_success(packer && packer_read(packer, 0, *bytes, weights, &status), &status);
    packer_close(packer);
    return weights;
}

/* Every kind of code, with zeros and without, groups that an encoding has parts of, a last group that is short. */
TEST(columns_lie_by_their_groups)
{
    static const struct {
        struct test_quantised what;
        enum encoding_id encoding;
    } kinds[] = {
        {{TEST_GPTQ, TEST_SYMMETRIC | TEST_ACT_ORDER, 16, 128, 32, 4, DTYPE_F16, 0}, ENCODING_INT4_G32},
        {{TEST_GPTQ, TEST_LESS_ONE | TEST_ACT_ORDER, 24, 192, 64, 4, DTYPE_F16, 0}, ENCODING_INT4_G64_ZEROS},
        {{TEST_GPTQ, TEST_ACT_ORDER, 16, 200, 64, 4, DTYPE_F16, 0}, ENCODING_INT4_G64_ZEROS},
        {{TEST_GPTQ, TEST_ACT_ORDER, 32, 192, 96, 3, DTYPE_F16, 0}, ENCODING_INT4_G32_ZEROS},
        {{TEST_GPTQ, TEST_SYMMETRIC | TEST_ACT_ORDER, 16, 256, 128, 2, DTYPE_F16, 0}, ENCODING_INT4_G128},
        {{TEST_GPTQ, TEST_ACT_ORDER, 16, 192, 32, 8, DTYPE_F16, 0}, ENCODING_INT8_G32_ZEROS},
        {{TEST_CT_PACKED, TEST_SYMMETRIC | TEST_ACT_ORDER, 16, 192, 64, 4, DTYPE_F16, 0}, ENCODING_INT4_G64},
        {{TEST_CT_PACKED, TEST_ACT_ORDER, 16, 128, 32, 4, DTYPE_F16, 0}, ENCODING_INT4_G32_ZEROS},
    };
    static struct fixture f;
    struct decoded_matrices decoded[DECODED_MOST_REASONS];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (enum engine_target target = TARGET_CPU; target <= TARGET_CUDA; target++) {
            const struct test_quantised *what = &kinds[i].what;
            uint64_t bytes;
            test_quantised_add(&f.files, "o", what);
            open_graph(&f, 1, target);
            const int o = matrix(&f, "o", what->rows, what->columns);
            multiply(&f, graph_value(&f.graph, ROWS_TOKENS, what->columns, "x"), o, ACTIVATION_NONE);
            add_orders(&f);
            assert_int_equal(count_selections(&f.graph), 1);
            uint8_t *weights = pack(&f, &bytes);
            assert_int_equal(f.graph.weights[o].encoding, kinds[i].encoding);
            decoded_matrices_count(&f.graph, &f.checkpoint, &f.types, decoded);
            assert_int_equal(decoded[0].count, 0);
            expect_elements(&f, weights, bytes, o);
            const struct graph_weight *order = &f.graph.weights[f.graph.nodes[0].operands[SELECT_COLUMNS_ORDER]];
            assert_int_equal(order->encoding, ENCODING_F32);
            for (uint64_t k = 0; k < what->columns; k++) {
                float place;
                memcpy(&place, weights + order->offset + k * sizeof place, sizeof place);
                assert_true(place == (float)f.orders.orders[0].columns[k]);
            }
            free(weights);
            close_graph(&f);
        }
}

/* The rows of gate and up, and of their bias, come in the order of the columns of down, on one rank and on several. */
TEST(rows_move_instead_of_x)
{
    static struct fixture f;
    for (uint32_t ranks = 1; ranks <= 3; ranks += 2)
        for (int gated = 0; gated < 2; gated++) {
            uint64_t bytes;
            add_module(&f, "down", 32, INNER);
            add_module(&f, "up", INNER, 64);
            if (gated) add_module(&f, "gate", INNER, 64), share_groups(&f, "up", "gate", 64);
            memset(test_quantised_tensor(&f.files, "up.bias", DTYPE_F32, 1, INNER, 0), 0, 4);
            open_graph(&f, ranks, TARGET_CPU);
            const int x = graph_value(&f.graph, ROWS_TOKENS, 64, "x"),
                      up = matrix(&f, gated ? "gate" : "up", INNER, 64);
            if (gated) graph_weight_interleave(&f.graph, up, matrix(&f, "up", INNER, 64), graph_interleave(&f.graph));
            const int bias = graph_vector(&f.graph, 0, INNER, "up.bias"), down = matrix(&f, "down", 32, INNER);
            if (gated) { /* a bias of gate that is zero */
                const struct weight_source zeros = {.rows = INNER};
                graph_weight_append(&f.graph, bias, &zeros, "none");
            }
            graph_shard(&f.graph, up, SHARD_ROWS);
            graph_shard(&f.graph, bias, SHARD_ROWS);
            graph_shard(&f.graph, down, SHARD_COLUMNS);
            const int y = node_matmul(&f.graph, x, 0, (struct projection){up, bias},
                                      gated ? ACTIVATION_SILU : EPILOGUE_PLAIN + ACTIVATION_GELU, 1.0, "activated");
            multiply(&f, y, down, ACTIVATION_NONE);
            add_orders(&f);
            assert_int_equal(count_selections(&f.graph), 1); /* of x */
            const struct graph_node *maker = maker_of(&f.graph, y);
            assert_int_equal(f.graph.nodes[2].operands[MATMUL_X], y);
            const struct column_order *order = f.graph.weights[down].sources[0].column_order;
            expect_order(order, groups_of(&f, "down"), INNER);
            for (int i = 0; i <= gated; i++) {
                assert_ptr_equal(f.graph.weights[maker->operands[MATMUL_W]].sources[i].row_order, order);
                assert_ptr_equal(f.graph.weights[maker->operands[MATMUL_BIAS]].sources[i].row_order, i ? NULL : order);
            }
            uint8_t *weights = pack(&f, &bytes);
            expect_elements(&f, weights, bytes, up);
            expect_elements(&f, weights, bytes, down);
            free(weights);
            close_graph(&f);
        }
}

/* Three ranks have a group of down each, two would divide one. */
TEST(groups_that_ranks_divide_are_decoded)
{
    static struct fixture f;
    for (uint32_t ranks = 2; ranks <= 3; ranks++) {
        add_module(&f, "down", 32, INNER);
        add_module(&f, "up", INNER, 64);
        open_graph(&f, ranks, TARGET_CPU);
        const int x = graph_value(&f.graph, ROWS_TOKENS, 64, "x"), up = matrix(&f, "up", INNER, 64);
        const int down = matrix(&f, "down", 32, INNER);
        graph_shard(&f.graph, up, SHARD_ROWS);
        graph_shard(&f.graph, down, SHARD_COLUMNS);
        multiply(&f, multiply(&f, x, up, ACTIVATION_NONE), down, ACTIVATION_NONE);
        add_orders(&f);
        assert_int_equal(f.graph.weights[down].sources[0].column_order != NULL, ranks == 3);
        assert_int_equal(f.graph.weights[up].sources[0].row_order != NULL, ranks == 3);
        close_graph(&f);
    }
}

/* A value that something else reads, too, and rows that are not those of the columns, stay as they are. */
TEST(x_is_selected_where_rows_cannot_move)
{
    static struct fixture f;
    for (int shared = 0; shared < 2; shared++) {
        add_module(&f, "down", 32, INNER);
        add_module(&f, "up", INNER, 64);
        add_module(&f, "other", 32, INNER);
        open_graph(&f, 1, TARGET_CPU);
        const int x = graph_value(&f.graph, ROWS_TOKENS, 64, "x"), up = matrix(&f, "up", INNER, 64);
        const int y = multiply(&f, x, up, ACTIVATION_NONE);
        multiply(&f, y, matrix(&f, "down", 32, INNER), ACTIVATION_NONE);
        if (shared) multiply(&f, y, matrix(&f, "other", 32, INNER), ACTIVATION_NONE);
        add_orders(&f);
        assert_int_equal(count_selections(&f.graph), shared ? 3 : 1);
        assert_int_equal(f.graph.weights[up].sources[0].row_order != NULL, !shared);
        close_graph(&f);
    }
}

int main(void) { return test_run(); }
