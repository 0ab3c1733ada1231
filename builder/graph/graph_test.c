/* SPDX-License-Identifier: Apache-2.0 */
/* Import, passes, memory planning and lowering on small configurations of every architecture. */
#include <time.h>

#include "builder/arch/arch.h"
#include "formats/base/test_program.h"
#include "builder/lower/lower.h"
#include "builder/lower/plan_memory.h"
#include "builder/passes/pass.h"
#include "builder/weights/shard.h"
#include "builder/weights/weights.h"
#include "kernels/add/add.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/attention/attention.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul.h"
#include "kernels/mean_squares/mean_squares.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_table/rope_table.h"

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
    "{\"model_type\": \"phi3\", \"partial_rotary_factor\": 0.5, \"sliding_window\": 16, " COMMON "}",
    "{\"model_type\": \"granite\", \"residual_multiplier\": 0.22, \"logits_scaling\": 8, " COMMON "}",
};
enum { CONFIGS = sizeof configs / sizeof *configs };

enum { LAYERS = 3, HIDDEN = 64, INNER = 100, HEADS = 4, KV_HEADS = 2, VOCAB = 50 };

struct model {
    struct model_config config, rank_config;
    struct graph graph;
    struct lowering lowering;
};

static void load_ranks(struct model *model, int index, enum plan_kind kind, uint32_t ranks)
{
    struct status status = {0};
    if (!model_config_parse(&model->config, configs[index], strlen(configs[index]), "config.json", arch_read_config,
                            &status))
        fail_msg("%s", status.message);
    if (!shard_config(&model->config, ranks, &model->rank_config, &status)) fail_msg("%s", status.message);
    graph_init(&model->graph, &model->config, kind);
    model->graph.ranks = ranks;
    if (ranks > 1) model->graph.rank_config = &model->rank_config;
    if (!import_graph(&model->graph, &status)) fail_msg("%s", status.message);
    model->lowering = (struct lowering){
        .geometry = {.slots = 4,
                     .max_context = 128,
                     .page_tokens = 16,
                     .pages_per_slot = 8,
                     .vocab_size = VOCAB,
                     .ranks = ranks},
        .kv_dtype = ENCODING_F32,
        .isa = cpu_isa_best(),
        .threads = 2,
    };
    model->lowering.geometry.page_bytes = model->config.layers * kv_layer_bytes(&model->rank_config, 16, ENCODING_F32);
    uint64_t state_bytes;
    assert_true(geometry_place_state(&model->lowering.geometry, &state_bytes));
}

static void load(struct model *model, int index, enum plan_kind kind) { load_ranks(model, index, kind, 1); }

/* After all passes, with weights placed. */
static void load_optimised(struct model *model, int index, enum plan_kind kind, uint32_t ranks)
{
    struct status status = {0};
    uint64_t bytes;
    load_ranks(model, index, kind, ranks);
    if (!run_passes(&model->graph, NULL, NULL, &status)) fail_msg("%s", status.message);
    assume_weights(&model->graph, ENCODING_BF16, NULL, NULL);
    assert_true(plan_weights(&model->graph, &bytes, &status));
}

/* Every launch of the plan is verified. */
static void lower(struct model *model, uint32_t rows, struct plan *plan)
{
    struct status status = {0};
    if (!lower_plan(&model->graph, &model->lowering, rows, plan, &status)) fail_msg("%s", status.message);
    for (uint32_t n = 0; n < plan->header.launch_count; n++)
        if (!op_verify(plan, n, TARGET_CPU, &model->lowering.geometry, "plan", &status)) fail_msg("%s", status.message);
}

static int count_ops(const struct graph *graph, enum plan_op op)
{
    int count = 0;
    for (int n = 0; n < graph->node_count; n++) count += !graph->nodes[n].removed && graph->nodes[n].op == op;
    return count;
}

TEST(import_has_every_part)
{
    for (int c = 0; c < CONFIGS; c++) {
        struct model model;
        load(&model, c, PLAN_DECODE);
        assert_int_equal(count_ops(&model.graph, OP_MATMUL), 3 * 4 + 1);
        assert_int_equal(count_ops(&model.graph, OP_RMS_NORM), 3 * 2 + 1);
        assert_int_equal(count_ops(&model.graph, OP_ADD), 3 * 2);
        assert_int_equal(count_ops(&model.graph, OP_SELECT_ROWS), 1);
        graph_free(&model.graph);
    }
}

TEST(passes_fuse)
{
    for (int c = 0; c < CONFIGS; c++)
        for (int kind = PLAN_DECODE; kind <= PLAN_PREFILL; kind++) {
            struct model model;
            load_optimised(&model, c, (enum plan_kind)kind, 1);
            const struct graph *graph = &model.graph;
            assert_int_equal(count_ops(graph, OP_MATMUL), 3 * 4 + 1);
            assert_int_equal(count_ops(graph, OP_ADD), 0);
            assert_int_equal(count_ops(graph, OP_RMS_NORM), 3 * 2 + 1);
            /* Prefill: the residual stream and the last attention's output are selected, and nothing else. */
            assert_int_equal(count_ops(graph, OP_SELECT_ROWS), kind == PLAN_DECODE ? 0 : 2);
            int out_rows = 0, swiglu = 0;
            for (int n = 0; n < graph->node_count; n++) {
                const struct graph_node *node = &graph->nodes[n];
                if (node->op != OP_MATMUL) continue;
                out_rows += graph->values[node->operands[MATMUL_OUT]].rows == ROWS_OUT;
                if (node->params[MATMUL_EPILOGUE] != ACTIVATION_SILU) continue;
                swiglu++;
                /* 100 gate rows and 100 up rows, each padded to 112. */
                assert_int_equal(graph->weights[node->operands[MATMUL_W]].rows, 224);
                assert_int_equal(graph->values[node->operands[MATMUL_OUT]].width, 112);
            }
            assert_int_equal(swiglu, 3);
            /* o, gate/up, down of the last layer and the LM head see one row only. */
            assert_int_equal(out_rows, kind == PLAN_DECODE ? 0 : 4);
            for (int w = 0; w < graph->weight_count; w++)
                if (strstr(graph->weights[w].name, "down_proj.weight")) assert_int_equal(graph->weights[w].depth, 112);
            graph_free(&model.graph);
        }
}

/* The hidden states are the output of a norm of their own, of rows that get logits alone; every other launch stays. */
TEST(hidden_states_take_one_launch)
{
    for (int c = 0; c < CONFIGS; c++)
        for (int kind = PLAN_DECODE; kind < PLAN_KIND_END; kind++)
            for (uint32_t ranks = 1; ranks <= 2; ranks++) {
                struct model with, without;
                struct plan plan, other;
                uint64_t bytes;
                struct status status = {0};
                load_optimised(&without, c, (enum plan_kind)kind, ranks);
                load_ranks(&with, c, (enum plan_kind)kind, ranks);
                graph_free(&with.graph);
                graph_init(&with.graph, &with.config, (enum plan_kind)kind);
                with.graph.ranks = ranks;
                if (ranks > 1) with.graph.rank_config = &with.rank_config;
                with.graph.gives_hidden = true;
                with.lowering.geometry.hidden_size = HIDDEN;
                if (!import_graph(&with.graph, &status) || !run_passes(&with.graph, NULL, NULL, &status))
                    fail_msg("%s", status.message);
                assume_weights(&with.graph, ENCODING_BF16, NULL, NULL);
                assert_true(plan_weights(&with.graph, &bytes, &status));
                if (ranks > 1) {
                    const uint64_t out_rows = plan_out_rows((uint32_t)kind, 16, 4);
                    assert_true(lower_exchange_bytes(&with.graph, &with.lowering, 16, out_rows,
                                                     &with.lowering.exchange_bytes, &status));
                    without.lowering.exchange_bytes = with.lowering.exchange_bytes;
                }
                lower(&with, 16, &plan);
                lower(&without, 16, &other);
                assert_int_equal(plan.header.launch_count, other.header.launch_count + 1);
                assert_int_equal(plan.header.field_count, other.header.field_count + 1);
                int writers = 0;
                for (uint32_t i = 0; i < plan.header.operand_count; i++)
                    writers += plan.operands[i].space == SPACE_STEP && plan.operands[i].access & ACCESS_WRITE &&
                               plan.operands[i].offset == plan.step[STEP_HIDDEN].offset &&
                               plan.operands[i].bytes == plan.header.out_rows * HIDDEN * sizeof(float);
                assert_int_equal(writers, 1);
                plan_free(&plan);
                plan_free(&other);
                graph_free(&with.graph);
                graph_free(&without.graph);
            }
}

TEST(dumps_are_text)
{
    struct model model;
    struct status status = {0};
    char *text;
    size_t size;
    load(&model, 4, PLAN_PREFILL);
    FILE *out = open_memstream(&text, &size);
    assert_true(run_passes(&model.graph, "shard", out, &status));
    fclose(out);
    assert_non_null(strstr(text, "qkv0"));
    assert_non_null(strstr(text, "epilogue=1"));
    assert_non_null(strstr(text, "q_norm.weight"));
    assert_null(strstr(text, "last_"));
    free(text);
    assert_true(pass_name_known("dead_code", &status));
    assert_false(pass_name_known("nonsense", &status));
    assert_int_equal(status.code, STATUS_USAGE);
    assert_non_null(strstr(status.message, "fuse_residual_norm"));
    graph_free(&model.graph);
}

TEST(broken_graphs_are_noticed)
{
    struct model model;
    struct status status = {0};
    load(&model, 0, PLAN_DECODE);
    struct graph_node *matmul = &model.graph.nodes[3], saved = *matmul;
    const struct {
        int operand, id;
        const char *words;
    } cases[] = {
        {MATMUL_X, model.graph.value_count - 1, "operand x is a value that nothing before it produces"},
        {MATMUL_X, GRAPH_ABSENT, "operand x is missing"},
        {MATMUL_X, model.graph.nodes[1].operands[ROPE_TABLE_OUT], "operand x has width 16, expected 64"},
        {MATMUL_W, GRAPH_ABSENT, "operand w is missing"},
        {MATMUL_W, model.graph.weight_count, "operand w is a weight that does not exist"},
        {MATMUL_OUT, model.graph.nodes[2].operands[RMS_NORM_OUT], "operand out is produced twice"},
        {MATMUL_BIAS, model.graph.nodes[2].operands[RMS_NORM_WEIGHT], "operand bias has width 64, expected 128"},
        {MATMUL_WORKSPACE, 0, "operand workspace is no value and no weight"},
    };
    assert_int_equal(saved.op, OP_MATMUL);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        status_clear(&status);
        matmul->operands[cases[c].operand] = cases[c].id;
        assert_false(graph_check(&model.graph, "test", &status));
        assert_int_equal(status.code, STATUS_INTERNAL);
        if (!strstr(status.message, cases[c].words)) fail_msg("case %zu: %s", c, status.message);
        *matmul = saved;
        assert_true(graph_check(&model.graph, "test", &status));
    }
    graph_free(&model.graph);
}

/* No other value may use a value's memory from the node that makes it to the last that reads it. */
static void check_lifetimes(const struct model *model, const struct memory_plan *memory, uint64_t rows)
{
    const struct graph *graph = &model->graph;
    uint64_t out_rows = graph->kind == PLAN_DECODE ? rows : 1;
    struct graph_index index;
    struct status status = {0};
    assert_true(graph_index_open(&index, graph, &status));
    for (int a = 0; a < graph->value_count; a++) {
        if (memory->value_offset[a] == UINT64_MAX) continue;
        int born = index.producer[a], dies = born;
        for (int n = 0; n < graph->node_count; n++)
            for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
                if (graph_reads(&graph->nodes[n], i) && graph->nodes[n].operands[i] == a) dies = n;
        uint64_t bytes = (graph->values[a].rows == ROWS_TOKENS ? rows : out_rows) * graph->values[a].width * 4;
        assert_true(memory->value_offset[a] % PLAN_ALIGNMENT == 0);
        assert_true(memory->value_offset[a] + bytes <= memory->arena_bytes);
        for (int n = born + 1; n < dies; n++)
            for (int o = 0; o < PLAN_MAX_OPERANDS; o++) {
                int b = graph->nodes[n].operands[o];
                if (!graph_makes(&graph->nodes[n], o) || memory->value_offset[b] == UINT64_MAX) continue;
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
    graph_index_close(&index);
}

TEST(memory_is_never_shared_while_alive)
{
    for (int c = 0; c < 3 * CONFIGS; c++)
        for (int kind = PLAN_DECODE; kind <= PLAN_PREFILL; kind++)
            for (uint64_t rows = 1; rows < 40; rows = rows * 2 + 1) {
                struct model model;
                struct memory_plan memory;
                struct status status = {0};
                load_optimised(&model, c / 3, (enum plan_kind)kind, 1u << c % 3);
                uint64_t out_rows = kind == PLAN_DECODE ? rows : 1;
                assert_true(lower_exchange_bytes(&model.graph, &model.lowering, rows, out_rows,
                                                 &model.lowering.exchange_bytes, &status));
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

TEST(plans_verify_and_are_ordered)
{
    for (int c = 0; c < 3 * CONFIGS; c++)
        for (int kind = PLAN_DECODE; kind <= PLAN_PREFILL; kind++)
            for (uint32_t rows = 1; rows <= 16; rows *= 4) {
                struct model model;
                struct plan plan;
                struct status status = {0};
                load_optimised(&model, c / 3, (enum plan_kind)kind, 1u << c % 3);
                uint64_t out_rows = kind == PLAN_DECODE ? rows : 1;
                assert_true(lower_exchange_bytes(&model.graph, &model.lowering, rows, out_rows,
                                                 &model.lowering.exchange_bytes, &status));
                lower(&model, rows, &plan);
                struct plan_space_sizes sizes = {0};
                struct plan_geometry *geometry = &model.lowering.geometry;
                sizes.bytes[SPACE_STEP] = plan.header.step_bytes;
                assert_true(geometry_place_state(geometry, &sizes.bytes[SPACE_STATE]));
                uint64_t weights;
                assert_true(plan_weights(&model.graph, &weights, &status));
                sizes.bytes[SPACE_WEIGHTS] = weights / model.graph.ranks;
                assert_true(lower_comm_bytes(&model.lowering, &sizes.bytes[SPACE_COMM]));
                assert_int_equal(sizes.bytes[SPACE_COMM] > 0, model.graph.ranks > 1);
                sizes.bytes[SPACE_ARENA] = plan.header.arena_bytes;
                sizes.bytes[SPACE_KV] = geometry->page_bytes;
                if (!plan_verify(&plan, &sizes, "plan", &status)) fail_msg("%s", status.message);
                check_dependencies(&plan);
                plan_free(&plan);
                graph_free(&model.graph);
            }
}

/* ---- several ranks ---- */

static char *dump_after(const char *pass, int index, enum plan_kind kind, uint32_t ranks)
{
    struct model model;
    struct status status = {0};
    char *text;
    size_t size;
    load_ranks(&model, index, kind, ranks);
    FILE *out = open_memstream(&text, &size);
    if (!run_passes(&model.graph, pass, out, &status)) fail_msg("%s", status.message);
    fclose(out);
    graph_free(&model.graph);
    return text;
}

/* Each line exists, after the one before it. */
static void expect_lines(const char *text, const char *const *lines, size_t count)
{
    const char *at = text;
    for (size_t i = 0; i < count; i++) {
        const char *found = strstr(at, lines[i]);
        if (!found) fail_msg("line %zu, '%s', is missing or out of order in\n%s", i, lines[i], text);
        at = found + strlen(lines[i]);
    }
}

TEST(the_dump_shows_what_is_shared)
{
    static const char *const lines[] = {
        "; 4 ranks\n",
        "%embedded.part[T,64] = embed(table=@model.embed_tokens.weight[13,64 matrix])\n",
        "%embedded[T,64] = all_reduce(x=%embedded.part)\n",
        "%attention_in0[T,64] = rms_norm(x=%embedded, ",
        /* 16 rows of q, and a KV head of 2 on 4 ranks */
        "%qkv0[T,48] = matmul(x=%attention_in0, w=@model.layers.0.self_attn.qkv_proj.weight[48,64 matrix], "
        "bias=@model.layers.0.self_attn.qkv_proj.bias[48 row-major])",
        "%rotated0[T,16] = rope_append(qkv=%qkv0, table=%rope) heads=1 kv_heads=1 head_dim=16",
        "%attention0[T,16] = attention(q=%rotated0) heads=1 kv_heads=1 head_dim=16 scale_bits=0.25",
        "%o0.part[T,64] = matmul(x=%attention0, w=@model.layers.0.self_attn.o_proj.weight[64,16 matrix], "
        "bias=@model.layers.0.self_attn.o_proj.bias[64 row-major])",
        "%o0[T,64] = all_reduce(x=%o0.part) # layer 0\n",
        "%after_attention0[T,64] = add(a=%embedded, b=%o0)",
        /* 25 rows each of gate and up, padded to 32 */
        "%activated0[T,32] = matmul(x=%mlp_in0, w=@model.layers.0.mlp.gate_up_proj.weight[64,64 gate/up], "
        "bias=@model.layers.0.mlp.gate_up_proj.bias[64 bias gate/up]) epilogue=1",
        "%down0.part[T,64] = matmul(x=%activated0, w=@model.layers.0.mlp.down_proj.weight[64,25 matrix], "
        "bias=@model.layers.0.mlp.down_proj.bias[64 row-major])",
        "%down0[T,64] = all_reduce(x=%down0.part) # layer 0\n",
        "%down2[T,64] = all_reduce(x=%down2.part) # layer 2\n",
        "logits.part[R,13] = matmul(",
        "[R,50] = all_gather(x=%logits.part)\n",
        "sample(",
    };
    for (int kind = PLAN_DECODE; kind <= PLAN_PREFILL; kind++) {
        char *text = dump_after("shard", 1, (enum plan_kind)kind, 4);
        expect_lines(text, lines, sizeof lines / sizeof *lines);
        assert_non_null(strstr(text, kind == PLAN_DECODE ? "# decode graph" : "# prefill graph"));
        free(text);
    }
}

TEST(one_rank_changes_nothing)
{
    for (int c = 0; c < CONFIGS; c++) {
        char *before = dump_after("import", c, PLAN_PREFILL, 1), *after = dump_after("shard", c, PLAN_PREFILL, 1);
        assert_string_equal(after, before);
        assert_null(strstr(after, "ranks"));
        assert_null(strstr(after, "all_"));
        free(before);
        free(after);
    }
}

/* Each rope_append with a norm over the width takes its own sum over the ranks. */
TEST(norms_over_the_width_take_means_of_all_ranks)
{
    for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
        struct model model;
        struct status status = {0};
        load_ranks(&model, 0, PLAN_DECODE, ranks);
        for (int n = 0; n < model.graph.node_count; n++)
            if (model.graph.nodes[n].op == OP_ROPE_APPEND)
                model.graph.nodes[n].params[ROPE_APPEND_NORM_SCOPE] = ROPE_APPEND_NORM_WIDTH;
        assert_true(pass_shard.run(&model.graph, &status));
        assert_int_equal(count_ops(&model.graph, OP_MEAN_SQUARES), ranks > 1 ? LAYERS : 0);
        for (int n = 0; n < model.graph.node_count && ranks > 1; n++) {
            const struct graph_node *rope = &model.graph.nodes[n], *reduce = rope - 1, *squares = rope - 2;
            if (rope->op != OP_ROPE_APPEND) continue;
            assert_int_equal(reduce->op, OP_ALL_REDUCE);
            assert_int_equal(squares->op, OP_MEAN_SQUARES);
            assert_int_equal(squares->layer, rope->layer);
            assert_int_equal(squares->operands[MEAN_SQUARES_QKV], rope->operands[ROPE_APPEND_QKV]);
            assert_int_equal(squares->operands[MEAN_SQUARES_OUT], reduce->operands[ALL_REDUCE_X]);
            assert_int_equal(reduce->operands[ALL_REDUCE_OUT], rope->operands[ROPE_APPEND_MEANS]);
            assert_int_equal(squares->params[MEAN_SQUARES_HEADS], rope->params[ROPE_APPEND_HEADS]);
            assert_int_equal(squares->params[MEAN_SQUARES_KV_HEADS], rope->params[ROPE_APPEND_KV_HEADS]);
            assert_int_equal(squares->params[MEAN_SQUARES_HEADS], HEADS / ranks);
            assert_int_equal(squares->params[MEAN_SQUARES_HEAD_DIM], rope->params[ROPE_APPEND_HEAD_DIM]);
        }
        graph_free(&model.graph);
    }
}

/* The last layer has only the rows that need logits, and ranks exchange no others. */
TEST(prefill_exchanges_few_rows_at_the_end)
{
    static const char *const lines[] = {
        "%o1[T,64] = all_reduce(",   "%down1[T,64] = all_reduce(", "o2[R,64] = all_reduce(",
        "down2[R,64] = all_reduce(", "[R,50] = all_gather(",
    };
    for (int c = 0; c < CONFIGS; c++) {
        char *text = dump_after("dead_code", c, PLAN_PREFILL, 2);
        expect_lines(text, lines, sizeof lines / sizeof *lines);
        free(text);
    }
}

TEST(collectives_survive_the_passes)
{
    for (int c = 0; c < CONFIGS; c++)
        for (int kind = PLAN_DECODE; kind <= PLAN_PREFILL; kind++)
            for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
                struct model model;
                load_optimised(&model, c, (enum plan_kind)kind, ranks);
                const struct graph *graph = &model.graph;
                assert_int_equal(count_ops(graph, OP_ALL_REDUCE), 1 + 2 * LAYERS);
                assert_int_equal(count_ops(graph, OP_ALL_GATHER), 1);
                assert_int_equal(count_ops(graph, OP_MATMUL), 4 * LAYERS + 1);
                assert_int_equal(count_ops(graph, OP_ADD), 0);
                struct graph_index index;
                struct status status = {0};
                assert_true(graph_index_open(&index, graph, &status));
                assert_ptr_equal(graph->config, &model.rank_config);
                for (int n = 0; n < graph->node_count; n++) {
                    const struct graph_node *node = &graph->nodes[n];
                    if (node->removed) continue;
                    /* Nothing is added before the sum is there, or it would be added once for each rank. */
                    if (node->op == OP_MATMUL) {
                        assert_int_equal(node->operands[MATMUL_RESIDUAL], GRAPH_ABSENT);
                        if (node->params[MATMUL_EPILOGUE] == ACTIVATION_SILU)
                            assert_int_equal(graph->values[node->operands[MATMUL_OUT]].width,
                                             (INNER / ranks + 15) / 16 * 16);
                    }
                    if (node->op == OP_ATTENTION)
                        assert_int_equal(graph->values[node->operands[ATTENTION_OUT]].width,
                                         HEADS / ranks * model.config.head_dim);
                    if (!plan_op_is_collective(node->op)) continue;
                    const int from = index.producer[node->operands[ALL_REDUCE_X]];
                    const struct graph_value *in = &graph->values[node->operands[ALL_REDUCE_X]],
                                             *out = &graph->values[node->operands[ALL_REDUCE_OUT]];
                    assert_true(graph->nodes[from].op == OP_MATMUL || graph->nodes[from].op == OP_EMBED);
                    assert_int_equal(index.uses[node->operands[ALL_REDUCE_X]], 1);
                    assert_int_equal(in->place, VALUE_ARENA);
                    assert_int_equal(in->rows, out->rows);
                    assert_int_equal(in->width, node->op == OP_ALL_REDUCE ? HIDDEN : (VOCAB + ranks - 1) / ranks);
                    assert_int_equal(out->width, node->op == OP_ALL_REDUCE ? HIDDEN : VOCAB);
                    assert_int_equal(out->place, node->op == OP_ALL_REDUCE ? VALUE_ARENA : VALUE_LOGITS);
                }
                graph_index_close(&index);
                graph_free(&model.graph);
            }
}

/* Parameters that tell ranks from one another come from the header alone: one plan for all. */
TEST(launches_state_a_ranks_share)
{
    struct model model;
    struct plan plan;
    struct status status = {0};
    load_optimised(&model, 2, PLAN_DECODE, 4);
    assert_true(lower_exchange_bytes(&model.graph, &model.lowering, 3, 3, &model.lowering.exchange_bytes, &status));
    assert_int_equal(model.lowering.exchange_bytes, 3 * HIDDEN * sizeof(float));
    lower(&model, 3, &plan);
    int found = 0;
    for (uint32_t n = 0; n < plan.header.launch_count; n++) {
        const struct plan_launch *launch = &plan.launches[n];
        int64_t params[PLAN_MAX_PARAMS];
        assert_true(op_params(&plan, launch, 0, params, &status));
        const struct plan_operand *operands = &plan.operands[launch->first_operand];
        if (launch->op == OP_EMBED) {
            assert_int_equal(params[EMBED_VOCAB], 13);
            assert_int_equal(operands[EMBED_HEADER].space, SPACE_COMM);
            assert_int_equal(operands[EMBED_HEADER].access, ACCESS_READ);
        } else if (launch->op == OP_ALL_REDUCE) {
            assert_int_equal(params[ALL_REDUCE_WIDTH], HIDDEN);
            assert_int_equal(params[ALL_REDUCE_RANKS], 4);
            assert_int_equal(operands[ALL_REDUCE_BUFFER].bytes, 3 * HIDDEN * sizeof(float));
        } else if (launch->op == OP_ALL_GATHER) {
            assert_int_equal(params[ALL_GATHER_WIDTH], 13);
            assert_int_equal(params[ALL_GATHER_OUT_WIDTH], VOCAB);
            assert_int_equal(params[ALL_GATHER_RANKS], 4);
            assert_int_equal(operands[ALL_GATHER_BUFFER].bytes, 3 * 13 * sizeof(float));
        } else {
            continue;
        }
        found++;
    }
    assert_int_equal(found, 1 + 1 + 2 * LAYERS + 1);
    plan_free(&plan);
    graph_free(&model.graph);
}

/* Buffers in the COMM space that the plans' collectives use, in order. */
struct turns {
    struct plan_operand buffers[64];
    int count;
};

static void note_turns(const struct plan *plan, uint64_t comm_bytes, struct turns *turns)
{
    turns->count = 0;
    for (uint32_t n = 0; n < plan->header.launch_count; n++) {
        const struct plan_launch *launch = &plan->launches[n];
        if (!plan_op_is_collective(launch->op)) continue;
        _Static_assert((int)ALL_REDUCE_BUFFER == (int)ALL_GATHER_BUFFER, "both alike");
        struct plan_operand buffer = plan->operands[launch->first_operand + ALL_REDUCE_BUFFER];
        assert_int_equal(buffer.space, SPACE_COMM);
        assert_true(buffer.offset >= sizeof(struct comm_header) && buffer.offset + buffer.bytes <= comm_bytes);
        assert_true(turns->count < 64);
        turns->buffers[turns->count++] = buffer;
    }
}

static bool apart(const struct plan_operand *a, const struct plan_operand *b)
{
    return a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
}

/* One sum more than the model has, of a norm's output. */
static void add_collective(struct graph *graph)
{
    for (int n = 0; n < graph->node_count; n++) {
        if (graph->nodes[n].removed || graph->nodes[n].op != OP_RMS_NORM) continue;
        int part = graph->nodes[n].operands[RMS_NORM_OUT];
        struct graph_value before = graph->values[part];
        int whole = graph_value(graph, before.rows, before.width, "again");
        struct graph_node *node = graph_insert(graph, n + 1, OP_ALL_REDUCE, GRAPH_NO_LAYER);
        assert_true(node && whole >= 0);
        graph_replace_uses(graph, part, whole);
        node->operands[ALL_REDUCE_X] = part;
        node->operands[ALL_REDUCE_OUT] = whole;
        return;
    }
    fail_msg("no norm");
}

/* Whichever plan follows whichever, of any size, with an even or odd number of collectives. */
TEST(collectives_take_turns)
{
    enum { SIZES = 4, PLANS = 2 * SIZES };
    static const uint32_t sizes[SIZES] = {1, 3, 4, 16};
    for (int odd = 0; odd < 4; odd++) { /* bits: decode, prefill */
        struct model models[2];
        struct turns turns[PLANS];
        struct status status = {0};
        uint64_t exchange = 0, comm_bytes;
        for (int k = 0; k < 2; k++) {
            load_optimised(&models[k], k, PLAN_DECODE + (enum plan_kind)k, 2);
            if (odd & 1 << k) add_collective(&models[k].graph);
            if (!graph_check(&models[k].graph, "test", &status)) fail_msg("%s", status.message);
            uint64_t bytes;
            assert_true(lower_exchange_bytes(&models[k].graph, &models[k].lowering, 16, k ? 1 : 16, &bytes, &status));
            if (bytes > exchange) exchange = bytes;
        }
        for (int p = 0; p < PLANS; p++) {
            struct model *model = &models[p / SIZES];
            struct plan plan;
            model->lowering.exchange_bytes = exchange;
            assert_true(lower_comm_bytes(&model->lowering, &comm_bytes));
            lower(model, sizes[p % SIZES], &plan);
            note_turns(&plan, comm_bytes, &turns[p]);
            assert_int_equal(turns[p].count, 2 + 2 * LAYERS + (odd >> p / SIZES & 1));
            check_dependencies(&plan);
            plan_free(&plan);
        }
        for (int p = 0; p < PLANS; p++) {
            for (int i = 1; i < turns[p].count; i++) assert_true(apart(&turns[p].buffers[i - 1], &turns[p].buffers[i]));
            for (int q = 0; q < PLANS; q++)
                assert_true(apart(&turns[p].buffers[turns[p].count - 1], &turns[q].buffers[0]));
        }
        for (int k = 0; k < 2; k++) graph_free(&models[k].graph);
    }
}

TEST(one_rank_exchanges_nothing)
{
    struct model model;
    struct status status = {0};
    load_optimised(&model, 0, PLAN_DECODE, 1);
    uint64_t bytes = 1;
    assert_true(lower_exchange_bytes(&model.graph, &model.lowering, 16, 16, &bytes, &status));
    assert_int_equal(bytes, 0);
    bytes = 1;
    assert_true(lower_comm_bytes(&model.lowering, &bytes));
    assert_int_equal(bytes, 0);
    graph_free(&model.graph);
}

TEST(absurd_exchanges_are_refused)
{
    struct model model;
    struct status status = {0};
    uint64_t bytes;
    load_optimised(&model, 0, PLAN_DECODE, 2);
    static const uint64_t rows[] = {UINT64_C(1) << 56, (UINT64_C(1) << 56) + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        status_clear(&status);
        bool fits = lower_exchange_bytes(&model.graph, &model.lowering, rows[i], 1, &bytes, &status);
        if (fits) fail_msg("%llu rows: accepted as %llu bytes", (unsigned long long)rows[i], (unsigned long long)bytes);
        assert_int_equal(status.code, STATUS_BAD_INPUT);
    }
    model.lowering.exchange_bytes = UINT64_MAX / 2;
    assert_false(lower_comm_bytes(&model.lowering, &bytes));
    model.lowering.exchange_bytes = UINT64_MAX / 3;
    assert_false(lower_comm_bytes(&model.lowering, &bytes));
    graph_free(&model.graph);
}

TEST(absurd_sizes_are_refused)
{
    struct model model;
    struct plan plan;
    struct status status = {0};
    load_optimised(&model, 0, PLAN_DECODE, 1);
    model.lowering.geometry.vocab_size = UINT64_C(1) << 60;
    assert_false(lower_plan(&model.graph, &model.lowering, 1 << 20, &plan, &status));
    assert_int_equal(status.code, STATUS_BAD_INPUT);
    graph_free(&model.graph);
}

/* A projection of q alone where q, k and v are expected is noticed, on both targets. */
TEST(a_part_of_the_projection_is_refused)
{
    for (int target = TARGET_CPU; target <= TARGET_CUDA; target++) {
        struct model model;
        struct status status = {0};
        load(&model, 0, PLAN_DECODE);
        model.graph.target = (enum engine_target)target;
        for (int n = 0; n < model.graph.node_count; n++) {
            struct graph_node *node = &model.graph.nodes[n];
            if (node->op != OP_MATMUL || node->layer != 1) continue;
            model.graph.weights[node->operands[MATMUL_W]].rows = HEADS * 16;
            model.graph.values[node->operands[MATMUL_OUT]].width = HEADS * 16;
            break;
        }
        assert_false(graph_check(&model.graph, "test", &status));
        if (!strstr(status.message, "(rope_append): operand qkv has width 64, expected 128"))
            fail_msg("%s", status.message);
        graph_free(&model.graph);
    }
}

/* Passes on very many nodes: with a search over all nodes for each of them this takes minutes. */
TEST(passes_take_time_linear_in_nodes)
{
    enum { NODES = 200000, MOST_SECONDS = 20 };
    struct model model;
    struct status status = {0};
    int first = 0;
    load(&model, 0, PLAN_DECODE);
    struct graph *graph = &model.graph;
    while (graph->nodes[first].op != OP_ADD) first++;
    const int live = graph->node_count;
    int sum = graph->nodes[first].operands[ADD_OUT];
    for (int n = 0; n < NODES; n++) {
        const int next = graph_value(graph, ROWS_TOKENS, graph->values[sum].width, "sum %d", n);
        struct graph_node *add = graph_append(graph, OP_ADD, 0);
        assert_non_null(add);
        add->operands[ADD_A] = add->operands[ADD_B] = sum;
        add->operands[ADD_OUT] = sum = next;
    }
    const clock_t start = clock();
    if (!run_passes(graph, NULL, NULL, &status)) fail_msg("%s", status.message);
    assert_true((clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS);
    assert_in_range(graph->node_count, 1, live); /* the sums have no reader */
    graph_free(graph);
}

int main(void) { return test_run(); }
