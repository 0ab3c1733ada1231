/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering for devices: plans of Llama-like models, on one rank and several, in every kind of page groups. */
#include "builder/lower/page_groups.h"
#include "builder/lower/test_lower_cuda.h"
#include "builder/passes/pass.h"
#include "builder/weights/weights.h"
#include "formats/base/test_program.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul_device.h"
#include "kernels/rms_norm/rms_norm.h"

/* Sanitizers see each model on one GPU, and each GPU with some models. */
static bool is_left_out(size_t model, int gpu) { return test_sanitized() && model % TEST_GPUS != (size_t)gpu; }

TEST(every_plan_of_every_model)
{
    static struct test_device_model model;
    const char *source;
    for (size_t m = 0; (source = test_device_model_source(m)); m++)
        for (int half = 0; half < 2; half++) {
            test_device_model_open(&model, source, half ? DTYPE_F16 : DTYPE_BF16);
            for (int g = 0; g < TEST_GPUS; g++) {
                if (is_left_out(m, g)) continue;
                test_lower_all(&model, &test_gpus[g]);
                assert_int_equal(model.lowering.scratch_bytes % PLAN_ALIGNMENT, 0);
                assert_true(model.lowering.scratch_bytes > 0);
            }
            test_device_model_close(&model);
        }
}

/* Each encoding that kernels for GPUs read, on one rank or two. */
TEST(plans_of_coded_matrices)
{
    static struct test_device_model model;
    const char *source;
    size_t coded = 0, tables = 0, e = 0;
    for (size_t m = 0; (source = test_device_model_source(m)); m++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++, e++) {
            struct panel_form form;
            while (!encoding_at(e) || !fragment_form(encoding_at(e)->id, &form)) e = encoding_at(e) ? e + 1 : 0;
            if (!test_device_model_open_ranks(&model, source, encoding_at(e)->id, ranks)) continue;
            const struct graph *graph = &model.graphs[TEST_LARGE_BATCH];
            for (int n = 0; n < graph->node_count; n++) {
                const struct graph_node *node = &graph->nodes[n];
                if (node->op == OP_MATMUL)
                    coded += !encoding_is_plain(graph->weights[node->operands[MATMUL_W]].encoding);
                if (node->op == OP_EMBED)
                    tables += !encoding_is_plain(graph->weights[node->operands[EMBED_TABLE]].encoding);
            }
            if (ranks > 1) test_device_model_exchange(&model, 2048);
            for (int g = 0; g < TEST_GPUS; g++)
                if (!is_left_out(e, g)) test_lower_all(&model, &test_gpus[g]);
            test_device_model_close(&model);
        }
    assert_true(coded > 40 && tables > 2);
}

/* Whether the value is what a norm within a sum makes. */
static bool is_normed(const struct graph *graph, int value)
{
    for (int n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].op == OP_ALL_REDUCE && graph->nodes[n].operands[ALL_REDUCE_NORMED] == value) return true;
    return false;
}

/* One sum for the embedding and for each layer's halves, with everything that follows inside; the logits' columns are
 * gathered. */
static void check_collectives(const struct test_device_model *model, const struct graph *graph)
{
    uint32_t sums = 0, gathers = 0;
    for (int n = 0; n < graph->node_count; n++) /* no sum makes such a norm */
        if (graph->nodes[n].op == OP_RMS_NORM &&
            (graph->nodes[n].params[RMS_NORM_CENTRED] || graph->nodes[n].operands[RMS_NORM_ADD_TO] >= 0))
            return;
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        assert_true(node->op != OP_ADD);
        if (node->op == OP_RMS_NORM)
            assert_true(is_normed(graph, node->operands[RMS_NORM_X])); /* a sum makes one norm */
        if (node->op == OP_MATMUL) assert_true(node->operands[MATMUL_RESIDUAL] < 0 && node->operands[MATMUL_NORM] < 0);
        gathers += node->op == OP_ALL_GATHER;
        if (node->op != OP_ALL_REDUCE) continue;
        assert_int_equal(node->operands[ALL_REDUCE_RESIDUAL] >= 0,
                         sums > 0); /* the embedding is where the residual begins */
        assert_true(node->operands[ALL_REDUCE_NORM] >= 0 && node->operands[ALL_REDUCE_NORMED] >= 0);
        sums++;
    }
    assert_int_equal(sums, 1 + 2 * model->config.layers);
    assert_int_equal(gathers, 1);
}

TEST(every_plan_of_several_ranks)
{
    static struct test_device_model model;
    static const uint32_t rows[] = {1, 8, 9, 64}, chunks[] = {1, 9, 512, 8192};
    const char *source;
    int opened = 0;
    for (size_t m = 0; (source = test_device_model_source(m)); m++)
        for (uint32_t ranks = 2; ranks <= 4; ranks *= 2) {
            if (!test_device_model_open_ranks(&model, source, m % 2 ? DTYPE_F16 : DTYPE_BF16, ranks)) continue;
            opened++;
            test_device_model_exchange(&model, 8192);
            for (int g = 0; g < TEST_GRAPHS; g++) check_collectives(&model, &model.graphs[g]);
            for (int g = 0; g < TEST_GPUS; g++) {
                test_device_model_scratch(&model, &test_gpus[g], rows, 4);
                for (int r = 0; r < 4; r++) test_lower_and_check(&model, &test_gpus[g], PLAN_DECODE, rows[r]);
                for (int r = 0; r < 4; r++) test_lower_and_check(&model, &test_gpus[g], PLAN_PREFILL, chunks[r]);
            }
            test_device_model_close(&model);
        }
    assert_true(opened >= 8);
}

/* One norm more, in float32, whatever becomes of the one before the LM head. */
TEST(plans_with_hidden_states)
{
    static struct test_device_model model;
    const char *source;
    int opened = 0;
    for (size_t m = 0; (source = test_device_model_source(m)); m++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            if (!test_device_model_open_hidden(&model, source, ranks)) continue;
            opened++;
            for (int g = 0; g < TEST_GRAPHS; g++) {
                const struct graph *graph = &model.graphs[g];
                int made = 0;
                for (int n = 0; n < graph->node_count; n++) {
                    const struct graph_node *node = &graph->nodes[n];
                    if (node->op != OP_RMS_NORM || graph->values[node->operands[RMS_NORM_OUT]].place != VALUE_HIDDEN)
                        continue;
                    assert_int_equal(graph->values[node->operands[RMS_NORM_OUT]].dtype, DTYPE_F32);
                    made++;
                }
                assert_int_equal(made, 1);
            }
            if (ranks > 1) test_device_model_exchange(&model, 2048);
            if (!is_left_out(m, TEST_GPU_90)) test_lower_all(&model, &test_gpus[TEST_GPU_90]);
            test_device_model_close(&model);
        }
    assert_true(opened >= 8);
}

/* The wide graph must do for few rows, too: it is what a plan for 9 rows shares its form with. */
/* Layers 0, 1, 3, 4 slide: pages hold two layers, so that there are two groups with a window and one without. */
#define SLIDING_MODEL                                                                                             \
    "{\"model_type\": \"gemma3_text\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 6," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"vocab_size\": 320,"             \
    " \"max_position_embeddings\": 2048, \"sliding_window\": 128, \"sliding_window_pattern\": 3,"                 \
    " \"query_pre_attn_scalar\": 32, \"rms_norm_eps\": 1e-6, \"hidden_activation\": \"gelu_pytorch_tanh\"}"

/* Every launch has the table of its layer's group and the block that is the layer's alone. */
static void check_page_groups(const struct test_device_model *model, const struct device_plan *plan)
{
    const struct plan_geometry *geometry = &model->lowering.geometry;
    const uint64_t layer_bytes = geometry->page_bytes / 2, stride = plan_page_table_stride(geometry);
    static const unsigned groups[] = {0, 0, 1, 2, 2, 1}, places[] = {0, 1, 0, 0, 1, 1};
    struct plan_field state[STATE_FIELD_COUNT];
    uint64_t total;
    unsigned launches = 0;
    assert_true(state_layout(geometry, state, &total));
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct device_launch *launch = &plan->launches[n];
        const struct op_descriptor *op = op_find(launch->op);
        test_check_schema(model, plan, n);
        for (int i = 0; i < op->operand_count; i++) {
            const int at = op_operand_position(op, TARGET_CUDA, launch->tactic.params, i);
            if (at < 0) continue;
            const struct plan_operand *operand = &launch->operands[at];
            const uint32_t layer = launch->layer;
            if (op->operands[i].role == ROLE_STATE && op->operands[i].field == STATE_PAGE_TABLE)
                test_check_place(operand, SPACE_STATE,
                                 (struct plan_field){state[STATE_PAGE_TABLE].offset + groups[layer] * stride,
                                                     geometry->slots * geometry->pages_per_slot * sizeof(int32_t)});
            if (op->operands[i].role != ROLE_KV) continue;
            test_check_place(operand, SPACE_KV, (struct plan_field){places[layer] * layer_bytes, layer_bytes});
            launches++;
        }
    }
    assert_true(launches >= 6);
}

TEST(page_groups_of_sliding_layers)
{
    static struct test_device_model model;
    for (int g = 0; g < TEST_GPUS; g++) {
        const struct device_facts *gpu = &test_gpus[g];
        struct status status = {0};
        test_expect_success(test_device_model_try(&model, SLIDING_MODEL, DTYPE_BF16, 8, 2048, &status), &status);
        struct plan_geometry *geometry = &model.lowering.geometry;
        const uint64_t all_bytes = geometry->page_bytes;
        assert_true(page_groups_choose(&model.rank_config, model.lowering.kv_dtype, 128, geometry));
        assert_int_equal(geometry->page_groups, 3);
        assert_int_equal(geometry->page_bytes, all_bytes / 3);
        assert_true(geometry->page_window[0] == 128 && geometry->page_window[1] == 0 &&
                    geometry->page_window[2] == 128);
        static const uint32_t decode[] = {1, 8};
        test_device_model_scratch(&model, gpu, decode, 2);
        for (int r = 0; r < 3; r++) {
            const enum plan_kind kind = r < 2 ? PLAN_DECODE : PLAN_PREFILL;
            const uint32_t rows = r < 2 ? decode[r] : 128;
            struct device_plan plan;
            bool ok = lower_device_plan(test_device_model_graph(&model, kind, rows), &model.lowering, gpu, rows, &plan,
                                        &status);
            test_expect_success(ok, &status);
            check_page_groups(&model, &plan);
            device_plan_free(&plan);
        }
        test_device_model_close(&model);
    }
}

/* Ranks add their parts before such a norm, and the residual after it. */
TEST(norms_after_sums_of_ranks)
{
    static struct test_device_model model;
    assert_true(test_device_model_open_ranks(&model, SLIDING_MODEL, DTYPE_BF16, 2));
    test_device_model_exchange(&model, 2048);
    for (int g = 0; g < TEST_GPUS; g++) test_lower_all(&model, &test_gpus[g]);
    for (int g = 0; g < TEST_GRAPHS; g++)
        for (int n = 0; n < model.graphs[g].node_count; n++) {
            const struct graph_node *node = &model.graphs[g].nodes[n];
            if (!node->removed && node->op == OP_ALL_REDUCE && node->layer != GRAPH_NO_LAYER)
                assert_true(node->operands[ALL_REDUCE_NORMED] < 0 && node->operands[ALL_REDUCE_RESIDUAL] < 0);
        }
    test_device_model_close(&model);
}

TEST(the_wide_graph_takes_few_rows)
{
    static struct test_device_model model;
    struct device_plan plan;
    struct status status = {0};
    test_device_model_open(&model, test_device_model_source(0), DTYPE_BF16);
    test_device_model_scratch(&model, &test_gpus[0], test_decode_rows, TEST_DECODES);
    for (uint32_t rows = 1; rows <= 8; rows++) {
        const struct graph *graph = &model.graphs[TEST_LARGE_BATCH];
        test_expect_success(lower_device_plan(graph, &model.lowering, &test_gpus[0], rows, &plan, &status), &status);
        test_check_plan(&model, graph, &plan, &test_gpus[0]);
        device_plan_free(&plan);
    }
    test_device_model_close(&model);
}

/* A sum takes the memory of its residual, unless another node still reads that. */
TEST(a_residual_that_is_read_later_stays)
{
    static struct test_device_model model;
    struct device_plan plan;
    struct status status = {0};
    struct graph graph;
    uint64_t total;
    test_device_model_open(&model, test_device_model_source(0), DTYPE_BF16);
    const uint64_t hidden = model.config.hidden_size;
    graph_init(&graph, &model.config, PLAN_DECODE);
    graph.target = TARGET_CUDA;
    graph.compute_dtype = DTYPE_BF16;
    enum { X, NORMED, FIRST, SECOND, VALUES };
    static const enum plan_op ops[VALUES] = {OP_EMBED, OP_RMS_NORM, OP_MATMUL, OP_MATMUL};
    for (int v = 0; v < VALUES; v++) {
        struct graph_node *node = graph_append(&graph, ops[v], 0);
        assert_non_null(node);
        /* embed, rms_norm and matmul have input, weight and output at the same places */
        node->operands[MATMUL_OUT] = graph_value(&graph, ROWS_TOKENS, hidden, "value%d", v);
        node->operands[MATMUL_W] = v == NORMED ? graph_vector(&graph, 0, hidden, "weight%d", v)
                                               : graph_matrix(&graph, 0, hidden, hidden, WEIGHT_MATRIX, "weight%d", v);
        if (v != X) node->operands[MATMUL_X] = v == NORMED ? X : NORMED;
        if (v >= FIRST) node->operands[MATMUL_RESIDUAL] = X;
    }
    test_expect_success(pass_activation_dtypes.run(&graph, &status), &status);
    test_expect_success(graph_check(&graph, "the test", &status), &status);
    assume_weights(&graph, ENCODING_BF16, NULL, NULL);
    test_expect_success(plan_weights(&graph, &total, &status), &status);
    model.lowering.scratch_bytes = PLAN_ALIGNMENT;
    for (uint32_t rows = 1; rows <= 64; rows *= 8) {
        bool ok = lower_device_plan(&graph, &model.lowering, &test_gpus[0], rows, &plan, &status);
        test_expect_success(ok, &status);
        test_check_plan(&model, &graph, &plan, &test_gpus[0]);
        const struct plan_operand *x = &plan.launches[X].operands[EMBED_OUT];
        assert_true(plan.launches[FIRST].operands[MATMUL_OUT].offset != x->offset);
        assert_int_equal(plan.launches[SECOND].operands[MATMUL_OUT].offset, x->offset);
        device_plan_free(&plan);
    }
    graph_free(&graph);
    test_device_model_close(&model);
}

int main(void) { return test_run(); }
