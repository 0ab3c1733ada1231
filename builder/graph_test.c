/* Import, passes, memory planning and lowering on small configurations of every architecture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "builder/import.h"
#include "builder/lower.h"
#include "builder/pass.h"
#include "builder/weights.h"
#include "kernels/matmul/matmul.h"

#define COMMON                                                                                                   \
    "\"hidden_size\": 64, \"intermediate_size\": 100, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "    \
    "\"num_key_value_heads\": 2, \"vocab_size\": 50, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6, " \
    "\"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\""

static const char *const configs[] = {
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], " COMMON "}",
    "{\"model_type\": \"llama\", \"tie_word_embeddings\": true, \"attention_bias\": true, \"mlp_bias\": true, " COMMON
    "}",
    "{\"model_type\": \"mistral\", \"sliding_window\": 16, " COMMON "}",
    "{\"model_type\": \"qwen2\", " COMMON "}",
    "{\"model_type\": \"qwen3\", \"head_dim\": 32, " COMMON "}",
};
enum { CONFIGS = sizeof configs / sizeof *configs };

struct model {
    struct model_config config;
    struct graph graph;
    struct lowering lowering;
};

static void load(struct model *model, int index, enum plan_kind kind)
{
    struct status status = {0};
    if (!model_config_parse(&model->config, configs[index], strlen(configs[index]), "config.json", &status))
        fail_msg("%s", status.message);
    graph_init(&model->graph, &model->config, kind);
    if (!import_graph(&model->graph, &status)) fail_msg("%s", status.message);
    model->lowering = (struct lowering){
        .geometry = {.slots = 4, .max_context = 128, .page_tokens = 16, .pages_per_slot = 8, .vocab_size = 50},
        .kv_dtype = DTYPE_F32,
        .isa = cpu_isa_best(),
        .threads = 2,
    };
    model->lowering.geometry.page_bytes = model->config.layers * kv_layer_bytes(&model->config, 16, DTYPE_F32);
}

static void optimise(struct model *model)
{
    struct status status = {0};
    if (!run_passes(&model->graph, NULL, NULL, &status)) fail_msg("%s", status.message);
    uint64_t bytes;
    assume_weights(&model->graph, DTYPE_BF16);
    assert_true(plan_weights(&model->graph, &bytes, &status));
}

static int count_ops(const struct graph *graph, enum plan_op op)
{
    int count = 0;
    for (int n = 0; n < graph->node_count; n++) count += !graph->nodes[n].removed && graph->nodes[n].op == op;
    return count;
}

static void import_has_every_part(void **state)
{
    (void)state;
    for (int c = 0; c < CONFIGS; c++) {
        struct model model;
        load(&model, c, PLAN_DECODE);
        assert_int_equal(count_ops(&model.graph, OP_MATMUL), 3 * 7 + 1);
        assert_int_equal(count_ops(&model.graph, OP_RMS_NORM), 3 * 2 + 1);
        assert_int_equal(count_ops(&model.graph, OP_ADD), 3 * 2);
        assert_int_equal(count_ops(&model.graph, OP_SELECT_ROWS), 1);
        graph_free(&model.graph);
    }
}

static void passes_fuse(void **state)
{
    (void)state;
    for (int c = 0; c < CONFIGS; c++)
        for (int kind = PLAN_DECODE; kind <= PLAN_PREFILL; kind++) {
            struct model model;
            load(&model, c, (enum plan_kind)kind);
            optimise(&model);
            const struct graph *graph = &model.graph;
            assert_int_equal(count_ops(graph, OP_MATMUL), 3 * 4 + 1);
            assert_int_equal(count_ops(graph, OP_SWIGLU), 0);
            assert_int_equal(count_ops(graph, OP_ADD), 0);
            assert_int_equal(count_ops(graph, OP_RMS_NORM), 3 * 2 + 1);
            /* Prefill: the residual stream and the last attention's output are selected, and nothing else. */
            assert_int_equal(count_ops(graph, OP_SELECT_ROWS), kind == PLAN_DECODE ? 0 : 2);
            int out_rows = 0, swiglu = 0;
            for (int n = 0; n < graph->node_count; n++) {
                const struct graph_node *node = &graph->nodes[n];
                out_rows += node->op == OP_MATMUL && graph->values[node->outputs[0]].rows == ROWS_OUT;
                if (!node->swiglu) continue;
                swiglu++;
                /* 100 gate rows and 100 up rows, each padded to 112. */
                assert_int_equal(graph->weights[node->weights[0]].rows, 224);
                assert_int_equal(graph->values[node->outputs[0]].width, 112);
            }
            assert_int_equal(swiglu, 3);
            /* o, gate/up, down of the last layer and the LM head see one row only. */
            assert_int_equal(out_rows, kind == PLAN_DECODE ? 0 : 4);
            for (int w = 0; w < graph->weight_count; w++)
                if (strstr(graph->weights[w].name, "down_proj.weight")) assert_int_equal(graph->weights[w].depth, 112);
            graph_free(&model.graph);
        }
}

static void dumps_are_text(void **state)
{
    (void)state;
    struct model model;
    struct status status = {0};
    char *text;
    size_t size;
    load(&model, 4, PLAN_PREFILL);
    FILE *out = open_memstream(&text, &size);
    assert_true(run_passes(&model.graph, "fuse_gate_up", out, &status));
    fclose(out);
    assert_non_null(strstr(text, "qkv0"));
    assert_non_null(strstr(text, "epilogue=swiglu"));
    assert_non_null(strstr(text, "q_norm.weight"));
    assert_null(strstr(text, "last_"));
    free(text);
    assert_true(pass_name_known("dead_code", &status));
    assert_false(pass_name_known("nonsense", &status));
    assert_int_equal(status.code, STATUS_USAGE);
    assert_non_null(strstr(status.message, "fuse_residual_norm"));
    graph_free(&model.graph);
}

static void broken_graphs_are_noticed(void **state)
{
    (void)state;
    struct model model;
    struct status status = {0};
    load(&model, 0, PLAN_DECODE);
    struct graph_node saved = model.graph.nodes[4];
    model.graph.nodes[4].inputs[0] = model.graph.value_count - 1; /* made only at the end */
    assert_false(graph_check(&model.graph, "test", &status));
    assert_int_equal(status.code, STATUS_INTERNAL);
    model.graph.nodes[4] = saved;
    assert_true(graph_check(&model.graph, "test", &status));
    model.graph.nodes[4].outputs[0] = model.graph.nodes[3].outputs[0]; /* twice */
    assert_false(graph_check(&model.graph, "test", &status));
    graph_free(&model.graph);
}

/* A value's memory must be nobody else's from the node that makes it to the last that reads it. */
static void check_lifetimes(const struct model *model, const struct memory_plan *memory, uint64_t rows)
{
    const struct graph *graph = &model->graph;
    uint64_t out_rows = graph->kind == PLAN_DECODE ? rows : 1;
    for (int a = 0; a < graph->value_count; a++) {
        if (memory->value_offset[a] == UINT64_MAX) continue;
        int born = graph_producer(graph, a), dies = born;
        for (int n = 0; n < graph->node_count; n++)
            for (int i = 0; i < GRAPH_MAX_INPUTS; i++)
                if (graph->nodes[n].inputs[i] == a) dies = n;
        uint64_t bytes = (graph->values[a].rows == ROWS_TOKENS ? rows : out_rows) * graph->values[a].width * 4;
        assert_true(memory->value_offset[a] % PLAN_ALIGNMENT == 0);
        assert_true(memory->value_offset[a] + bytes <= memory->arena_bytes);
        for (int n = born + 1; n < dies; n++)
            for (int o = 0; o < GRAPH_MAX_OUTPUTS; o++) {
                int b = graph->nodes[n].outputs[o];
                if (b < 0 || memory->value_offset[b] == UINT64_MAX) continue;
                uint64_t other = (graph->values[b].rows == ROWS_TOKENS ? rows : out_rows) * graph->values[b].width * 4;
                assert_true(memory->value_offset[b] + other <= memory->value_offset[a] ||
                            memory->value_offset[a] + bytes <= memory->value_offset[b]);
            }
        for (int n = born; n <= dies; n++) {
            if (!memory->workspace_bytes[n]) continue;
            assert_true(memory->workspace_offset[n] + memory->workspace_bytes[n] <= memory->value_offset[a] ||
                        memory->value_offset[a] + bytes <= memory->workspace_offset[n]);
        }
    }
}

static void memory_is_never_shared_while_alive(void **state)
{
    (void)state;
    for (int c = 0; c < CONFIGS; c++)
        for (int kind = PLAN_DECODE; kind <= PLAN_PREFILL; kind++)
            for (uint64_t rows = 1; rows < 40; rows = rows * 2 + 1) {
                struct model model;
                struct memory_plan memory;
                struct status status = {0};
                load(&model, c, (enum plan_kind)kind);
                optimise(&model);
                uint64_t out_rows = kind == PLAN_DECODE ? rows : 1;
                assert_true(plan_memory(&model.graph, &model.lowering, rows, out_rows, &memory, &status));
                check_lifetimes(&model, &memory, rows);
                /* Lifetimes pay: far less than every value at its own place. */
                uint64_t sum = 0;
                for (int v = 0; v < model.graph.value_count; v++)
                    if (memory.value_offset[v] != UINT64_MAX) sum += model.graph.values[v].width * rows * 4;
                if (rows > 8) assert_true(memory.arena_bytes < sum);
                memory_plan_free(&memory);
                graph_free(&model.graph);
            }
}

static bool overlap(const struct plan_operand *a, const struct plan_operand *b)
{
    return a->space == b->space && a->space != SPACE_WEIGHTS && ((a->access | b->access) & ACCESS_WRITE) &&
           a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Every two launches that touch the same bytes, one of them writing, are ordered by dependencies. */
static void check_dependencies(const struct plan *plan)
{
    uint32_t count = plan->header.launch_count;
    bool *reach = calloc((size_t)count * count, sizeof *reach);
    assert_non_null(reach);
    for (uint32_t n = 0; n < count; n++) {
        const struct plan_launch *launch = &plan->launches[n];
        for (uint32_t d = 0; d < launch->dependency_count; d++) {
            uint32_t p = plan->dependencies[launch->first_dependency + d];
            assert_true(p < n);
            assert_false(reach[n * count + p]); /* nothing redundant */
            for (uint32_t i = 0; i < count; i++) reach[n * count + i] |= reach[p * count + i];
            reach[n * count + p] = true;
        }
        for (uint32_t p = 0; p < n; p++)
            for (uint32_t i = 0; i < launch->operand_count; i++)
                for (uint32_t j = 0; j < plan->launches[p].operand_count; j++)
                    if (overlap(&plan->operands[launch->first_operand + i],
                                &plan->operands[plan->launches[p].first_operand + j]))
                        assert_true(reach[n * count + p]);
    }
    free(reach);
}

static void plans_verify_and_are_ordered(void **state)
{
    (void)state;
    for (int c = 0; c < CONFIGS; c++)
        for (int kind = PLAN_DECODE; kind <= PLAN_PREFILL; kind++)
            for (uint32_t rows = 1; rows <= 16; rows *= 4) {
                struct model model;
                struct plan plan;
                struct status status = {0};
                load(&model, c, (enum plan_kind)kind);
                optimise(&model);
                if (!lower_plan(&model.graph, &model.lowering, rows, &plan, &status)) fail_msg("%s", status.message);
                struct plan_field fields[STEP_FIELD_COUNT];
                struct plan_space_sizes sizes = {0};
                const struct plan_geometry *geometry = &model.lowering.geometry;
                assert_true(step_layout(rows, plan.header.out_rows, 50, fields, &sizes.bytes[SPACE_STEP]));
                assert_true(state_layout(geometry, fields, &sizes.bytes[SPACE_STATE]));
                uint64_t weights;
                assert_true(plan_weights(&model.graph, &weights, &status));
                sizes.bytes[SPACE_WEIGHTS] = weights;
                sizes.bytes[SPACE_ARENA] = plan.header.arena_bytes;
                sizes.bytes[SPACE_KV] = geometry->page_bytes;
                if (!plan_verify(&plan, &sizes, "plan", &status)) fail_msg("%s", status.message);
                for (uint32_t n = 0; n < plan.header.launch_count; n++)
                    if (!op_verify(&plan, n, geometry, "plan", &status)) fail_msg("%s", status.message);
                check_dependencies(&plan);
                lowered_plan_free(&plan);
                graph_free(&model.graph);
            }
}

static void absurd_sizes_are_refused(void **state)
{
    (void)state;
    struct model model;
    struct plan plan;
    struct status status = {0};
    load(&model, 0, PLAN_DECODE);
    optimise(&model);
    model.lowering.geometry.vocab_size = UINT64_C(1) << 60;
    assert_false(lower_plan(&model.graph, &model.lowering, 1 << 20, &plan, &status));
    assert_int_equal(status.code, STATUS_BAD_INPUT);
    graph_free(&model.graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(import_has_every_part),
        cmocka_unit_test(passes_fuse),
        cmocka_unit_test(dumps_are_text),
        cmocka_unit_test(broken_graphs_are_noticed),
        cmocka_unit_test(memory_is_never_shared_while_alive),
        cmocka_unit_test(plans_verify_and_are_ordered),
        cmocka_unit_test(absurd_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
