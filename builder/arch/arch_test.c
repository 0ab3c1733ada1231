/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor names and shapes of each architecture, and what happens when a checkpoint has other ones. */
#include "builder/arch/arch.h"
#include "formats/base/test_program.h"
#include "builder/passes/pass.h"
#include "builder/test_model.h"
#include "builder/weights/weights.h"
#include "kernels/matmul/matmul.h"

/* `predicting`: layers after the last that predict further tokens. */
static bool bind_with(const struct test_model *model, uint64_t predicting, struct status *status)
{
    char *folder = test_folder();
    struct checkpoint checkpoint;
    struct graph graph;
    *status = (struct status){0};
    test_model_write(model, folder);
    test_expect_success(checkpoint_open(&checkpoint, folder, false, arch_read_config, status), status);
    checkpoint.config.ignored_layers = predicting;
    graph_init(&graph, &checkpoint.config, PLAN_DECODE);
    test_expect_success(import_graph(&graph, status) && run_passes(&graph, NULL, NULL, status), status);
    bool ok = bind_weights(&graph, &checkpoint, &(struct weight_types){0}, status);
    graph_free(&graph);
    checkpoint_close(&checkpoint);
    test_folder_remove(folder);
    return ok;
}

static bool bind(const struct test_model *model, struct status *status) { return bind_with(model, 0, status); }

/* The graph asks for exactly the tensors of a checkpoint that transformers would write, by name and shape. */
TEST(names_and_shapes)
{
    for (int family = 0; family < TEST_FAMILIES; family++) {
        struct test_model model;
        struct model_config config;
        struct graph graph;
        struct status status = {0};
        const char *text = test_family_config((enum test_family)family);
        uint64_t taken = 0, elements = 0;
        test_model_init(&model, (enum test_family)family, DTYPE_F32);
        test_expect_success(model_config_parse(&config, text, strlen(text), "config.json", arch_read_config, &status),
                            &status);
        graph_init(&graph, &config, PLAN_PREFILL);
        test_expect_success(import_graph(&graph, &status), &status);
        for (int w = 0; w < graph.weight_count; w++) {
            for (int s = 0; s < graph.weights[w].source_count; s++) {
                const struct weight_source *source = &graph.weights[w].sources[s];
                if (source->values) continue;
                const struct test_tensor *tensor = test_model_find(&model, source->tensor);
                if (!tensor) fail_msg("family %d: '%s' is no tensor of it", family, source->tensor);
                assert_int_equal(source->shape[0], tensor->rows);
                assert_int_equal(source->shape[1], tensor->columns);
                assert_true(source_is_exact(source));
                taken += source_elements(source);
            }
        }
        for (size_t t = 0; t < model.count; t++)
            elements += model.tensors[t].rows * (model.tensors[t].columns ? model.tensors[t].columns : 1);
        assert_int_equal(taken, elements); /* bind_weights checks that no element is taken twice */
        graph_free(&graph);
        test_expect_success(bind(&model, &status), &status);
    }
}

TEST(every_tensor_is_needed)
{
    for (int family = 0; family < TEST_FAMILIES; family++) {
        struct test_model whole;
        test_model_init(&whole, (enum test_family)family, DTYPE_BF16);
        for (size_t t = 0; t < whole.count; t++) {
            struct test_model model = whole;
            struct status status;
            test_model_remove(&model, whole.tensors[t].name);
            bool ok = bind(&model, &status);
            test_expect_failure(ok, &status, STATUS_BAD_INPUT, whole.tensors[t].name);
            test_expect_message(&status, "missing");
        }
    }
}

TEST(shapes_must_match)
{
    struct status status;
    struct test_model whole, model;
    test_model_init(&whole, TEST_QWEN3, DTYPE_BF16);
    for (size_t t = 0; t < whole.count; t++) {
        model = whole;
        model.tensors[t].rows++;
        bool ok = bind(&model, &status);
        test_expect_failure(ok, &status, STATUS_BAD_INPUT, whole.tensors[t].name);
        test_expect_message(&status, "expected shape|found [");
    }
    /* As many elements in another arrangement. */
    model = whole;
    struct test_tensor *tensor = test_model_find(&model, "model.layers.0.self_attn.o_proj.weight");
    tensor->rows = 24, tensor->columns = 23;
    test_expect_failure(bind(&model, &status), &status, STATUS_BAD_INPUT, "o_proj|[23, 24]|[24, 23]");
    model = whole;
    tensor = test_model_find(&model, "model.norm.weight");
    tensor->rows = 1, tensor->columns = TEST_HIDDEN;
    test_expect_failure(bind(&model, &status), &status, STATUS_BAD_INPUT, "model.norm.weight|[23]|[1, 23]");
}

TEST(element_types_must_be_plain)
{
    static const enum dtype dtypes[] = {DTYPE_F8_E4M3, DTYPE_I8, DTYPE_I64};
    for (size_t d = 0; d < 3; d++) {
        char *folder = test_folder();
        struct status status = {0};
        struct checkpoint checkpoint;
        struct graph graph;
        struct test_model model;
        test_model_init(&model, TEST_LLAMA, DTYPE_F32);
        test_model_write(&model, folder);
        test_expect_success(checkpoint_open(&checkpoint, folder, false, arch_read_config, &status), &status);
        for (size_t t = 0; t < checkpoint.tensor_count; t++)
            if (strcmp(checkpoint.tensors[t].name, "model.layers.1.mlp.down_proj.weight") == 0)
                checkpoint.tensors[t].dtype = dtypes[d];
        graph_init(&graph, &checkpoint.config, PLAN_DECODE);
        test_expect_success(import_graph(&graph, &status), &status);
        test_expect_failure(bind_weights(&graph, &checkpoint, &(struct weight_types){0}, &status), &status,
                            STATUS_BAD_INPUT, "model.layers.1.mlp.down_proj.weight|F32, F16 or BF16");
        test_expect_message(&status, dtype_name(dtypes[d]));
        graph_free(&graph);
        checkpoint_close(&checkpoint);
        test_folder_remove(folder);
    }
}

TEST(nothing_is_ignored)
{
    static const struct {
        enum test_family family;
        const char *tensor;
        uint64_t rows, columns;
    } extras[] = {
        {TEST_LLAMA, "model.layers.0.self_attn.q_proj.bias", 24, 0},
        {TEST_LLAMA, "model.layers.2.input_layernorm.weight", TEST_HIDDEN, 0},
        {TEST_LLAMA, "model.layers.0.self_attn.q_norm.weight", TEST_HEAD_DIM, 0},
        {TEST_MISTRAL, "model.layers.0.block_sparse_moe.gate.weight", 8, TEST_HIDDEN},
        {TEST_QWEN2, "model.layers.1.self_attn.o_proj.bias", TEST_HIDDEN, 0},
        {TEST_QWEN3, "lm_head.bias", TEST_VOCAB, 0},
        {TEST_OLMO2, "model.layers.0.input_layernorm.weight", TEST_HIDDEN, 0},
        {TEST_LLAMA, "model.layers.00.mlp.up_proj.weight", TEST_INNER, TEST_HIDDEN},
    };
    for (size_t e = 0; e < sizeof extras / sizeof *extras; e++) {
        struct test_model model;
        struct status status;
        test_model_init(&model, extras[e].family, DTYPE_BF16);
        test_model_add(&model, extras[e].tensor, DTYPE_BF16, extras[e].rows, extras[e].columns);
        bool ok = bind(&model, &status);
        test_expect_failure(ok, &status, STATUS_BAD_INPUT, extras[e].tensor);
        test_expect_message(&status, "not used");
    }
}

/* Tensors that some writers add although they say nothing new. */
TEST(redundant_tensors)
{
    struct test_model model;
    struct status status;
    test_model_init(&model, TEST_LLAMA, DTYPE_F32);
    test_model_add(&model, "model.layers.0.self_attn.rotary_emb.inv_freq", DTYPE_F32, TEST_HEAD_DIM / 2, 0);
    test_expect_success(bind(&model, &status), &status);
    /* A tied LM head that is stored all the same must be the embedding. */
    test_model_init(&model, TEST_QWEN2, DTYPE_F32);
    test_model_add(&model, "lm_head.weight", DTYPE_F32, TEST_VOCAB, TEST_HIDDEN);
    test_expect_failure(bind(&model, &status), &status, STATUS_BAD_INPUT, "lm_head.weight|tie_word_embeddings");
    test_model_find(&model, "lm_head.weight")->twin = "model.embed_tokens.weight";
    test_expect_success(bind(&model, &status), &status);
}

TEST(layers_that_predict_further_tokens)
{
    struct test_model model;
    struct status status;
    test_model_init(&model, TEST_LLAMA, DTYPE_F32); /* of two layers */
    test_model_add(&model, "model.layers.2.eh_proj.weight", DTYPE_F32, TEST_HIDDEN, 2 * TEST_HIDDEN);
    test_expect_success(bind_with(&model, 1, &status), &status);
    test_expect_failure(bind(&model, &status), &status, STATUS_BAD_INPUT, "model.layers.2.eh_proj.weight|not used");
    test_model_add(&model, "model.layers.3.eh_proj.weight", DTYPE_F32, TEST_HIDDEN, 2 * TEST_HIDDEN);
    test_expect_failure(bind_with(&model, 1, &status), &status, STATUS_BAD_INPUT, "layers.3.eh_proj.weight|not used");
    test_expect_success(bind_with(&model, 2, &status), &status);
    test_model_add(&model, "model.layers.1.eh_proj.weight", DTYPE_F32, TEST_HIDDEN, 2 * TEST_HIDDEN);
    test_expect_failure(bind_with(&model, 2, &status), &status, STATUS_BAD_INPUT, "layers.1.eh_proj.weight|not used");
}

TEST(other_models_are_refused)
{
    struct status status = {0};
    struct graph graph;
    struct model_config config = {.model_type = "mamba"};
    graph_init(&graph, &config, PLAN_DECODE);
    test_expect_failure(import_graph(&graph, &status), &status, STATUS_BAD_INPUT, "'mamba' is not supported");
    graph_free(&graph);
}

/* A limit that is not the usual one, and a bias on each product, in every layer. */
TEST(gpt_oss_experts)
{
    static const char text[] =
        "{\"model_type\": \"gpt_oss\", \"hidden_size\": 64, \"intermediate_size\": 40, \"num_hidden_layers\": 3,"
        " \"num_attention_heads\": 8, \"vocab_size\": 512, \"num_local_experts\": 6, \"swiglu_limit\": 2.5%s}";
    static const char codes[] = ", \"quantization_config\": {\"quant_method\": \"mxfp4\"}";
    for (int coded = 0; coded < 2; coded++) {
        struct status status = {0};
        struct model_config config;
        struct graph graph;
        char json[512];
        int gates = 0, sums = 0;
        snprintf(json, sizeof json, text, coded ? codes : "");
        test_expect_success(model_config_parse(&config, json, strlen(json), "config.json", arch_read_config, &status),
                            &status);
        graph_init(&graph, &config, PLAN_DECODE);
        test_expect_success(import_graph(&graph, &status), &status);
        for (int n = 0; n < graph.node_count; n++) {
            const struct graph_node *node = &graph.nodes[n];
            if (node->op != OP_MATMUL || node->params[MATMUL_EXPERTS] == 0) continue;
            const bool gated = matmul_is_gated(node->params);
            const struct graph_weight *weight = &graph.weights[node->operands[MATMUL_W]];
            assert_true(node->operands[MATMUL_BIAS] >= 0);
            const struct graph_weight *bias = &graph.weights[node->operands[MATMUL_BIAS]];
            assert_int_equal(node->params[MATMUL_EPILOGUE], gated ? ACTIVATION_CLAMPED : ACTIVATION_NONE);
            assert_int_equal(node->params[MATMUL_CAP_BITS], float_to_bits(gated ? 2.5f : 1));
            assert_int_equal(weight->rows, 6 * (gated ? 2 * 48 : 64)); /* panels of 16 */
            assert_int_equal(bias->rows, weight->rows);
            for (int s = 0; s < weight->source_count; s++) {
                assert_int_equal(weight->sources[s].codes, coded ? ENCODING_MXFP4 : ENCODING_NONE);
                assert_int_equal(weight->sources[s].transposed, !coded);
            }
            *(gated ? &gates : &sums) += 1;
        }
        assert_true(gates == 3 && sums == 3);
        /* Without a checkpoint: matrices that must have codes have them. */
        test_expect_success(assume_weights(&graph, ENCODING_BF16, &(struct weight_types){0}, &status), &status);
        for (int w = 0; w < graph.weight_count; w++) {
            const bool of_experts = graph.weights[w].experts && graph.weights[w].columns;
            if (graph.weights[w].columns && graph.weights[w].source_count) /* else they moved to another weight */
                assert_int_equal(graph.weights[w].encoding, coded && of_experts ? ENCODING_MXFP4 : ENCODING_BF16);
        }
        graph_free(&graph);
    }
}

/* Every model of the shared folder either gives a graph that its tensors fit, or is refused by its type. */
TEST(shared_models)
{
    static const struct {
        const char *name;
        size_t shards, tensors;
    } cases[] = {
        {"stories260K", 1, 47},
        {"stories260K-bf16", 1, 47},
        {"hf-tiny/llama3", 1, 21},
        {"hf-tiny/llama-tied-sharded", 6, 20},
        {"hf-tiny/mistral-window", 1, 21},
        {"hf-tiny/qwen2", 1, 26},
        {"hf-tiny/qwen3", 1, 25},
        {"hf-tiny/granite", 1, 21},
        {"hf-tiny/olmo2", 1, 25},
        {"hf-tiny/qwen3_next", 1, 154},
        {"hf-tiny/lfm2", 1, 40},
        {"hf-tiny/gpt_oss", 1, 37},
        {"quantised/gpt_oss-mxfp4", 1, 37},
        {"hf-tiny/mixtral", 1, 41},
        {"hf-tiny/qwen3_moe", 1, 69},
        {"hf-tiny/glm4_moe", 1, 88},
        {"hf-tiny/granitemoe", 1, 21},
        {"hf-tiny/deepseek_v2", 1, 89},
        {"hf-tiny/deepseek_v3", 1, 91},
    };
    if (!test_shared()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        struct checkpoint checkpoint;
        struct graph graph;
        char path[512];
        snprintf(path, sizeof path, "%s/models/%s", test_shared(), cases[i].name);
        bool done = checkpoint_open(&checkpoint, path, false, arch_read_config, &status);
        if (!cases[i].shards) {
            test_expect_failure(done, &status, STATUS_BAD_INPUT, "model_type|is not supported");
            continue;
        }
        test_expect_success(done, &status);
        assert_int_equal(checkpoint.shard_count, cases[i].shards);
        assert_int_equal(checkpoint.tensor_count, cases[i].tensors);
        graph_init(&graph, &checkpoint.config, PLAN_DECODE);
        test_expect_success(import_graph(&graph, &status) && run_passes(&graph, NULL, NULL, &status), &status);
        test_expect_success(bind_weights(&graph, &checkpoint, &(struct weight_types){0}, &status), &status);
        graph_free(&graph);
        checkpoint_close(&checkpoint);
    }
}

int main(void) { return test_run(); }
