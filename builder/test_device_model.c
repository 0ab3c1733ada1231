/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/test_device_model.h"

#include "builder/arch/arch.h"
#include "builder/lower/plan_memory.h"
#include "builder/lower/recurrent.h"
#include "builder/passes/pass.h"
#include "builder/weights/shard.h"
#include "builder/weights/weights.h"

const struct device_facts test_gpus[TEST_GPUS] = {
    [TEST_GPU_90] = {.name = "made-up H200",
                     .capability = 90,
                     .multiprocessors = 132,
                     .shared_per_sm = 233472,
                     .shared_per_block = 232448,
                     .l2_bytes = 62914560,
                     .driver_version = 13000,
                     .memory_bytes = UINT64_C(150000000000)},
    [TEST_GPU_80] = {.name = "made-up A100",
                     .capability = 80,
                     .multiprocessors = 108,
                     .shared_per_sm = 167936,
                     .shared_per_block = 166912,
                     .l2_bytes = 41943040,
                     .driver_version = 13000,
                     .memory_bytes = UINT64_C(80000000000)},
    [TEST_GPU_120] = {.name = "made-up consumer GPU",
                      .capability = 120,
                      .multiprocessors = 170,
                      .shared_per_sm = 102400,
                      .shared_per_block = 101376,
                      .l2_bytes = 100663296,
                      .driver_version = 13000,
                      .memory_bytes = UINT64_C(32000000000)},
};

#define SIZES_BUT_INNER                                                                                       \
    "\"hidden_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, " \
    "\"vocab_size\": 50, \"max_position_embeddings\": 512"
/* The inner size is no multiple of 8, so gate/up and the K of down are padded. Without a gate nothing is. */
#define SIZES                                                                                \
    SIZES_BUT_INNER ", \"intermediate_size\": 100, \"rms_norm_eps\": 1e-6, \"hidden_act\": " \
                    "\"silu\", \"torch_dtype\": \"bfloat16\""
#define PLAIN_SIZES SIZES_BUT_INNER ", \"intermediate_size\": 96"

static const char *const configs[] = {
    "{\"model_type\": \"llama\", " SIZES "}",
    "{\"model_type\": \"llama\", \"tie_word_embeddings\": true, \"attention_bias\": true, \"mlp_bias\": true, " SIZES
    "}",
    "{\"model_type\": \"mistral\", \"sliding_window\": 16, " SIZES "}",
    "{\"model_type\": \"qwen2\", " SIZES "}",
    "{\"model_type\": \"qwen3\", \"head_dim\": 128, " SIZES "}",
    "{\"model_type\": \"phi3\", \"partial_rotary_factor\": 0.75, \"head_dim\": 64, \"sliding_window\": 16, " SIZES "}",
    "{\"model_type\": \"granite\", \"embedding_multiplier\": 12, \"attention_multiplier\": 0.015625, "
    "\"residual_multiplier\": 0.22, \"logits_scaling\": 8, \"attention_bias\": true, " SIZES "}",
    "{\"model_type\": \"olmo2\", " SIZES "}",
    "{\"model_type\": \"hunyuan_v1_dense\", \"head_dim\": 32, " SIZES "}",
    /* norms without weights, a bias of the LM head, norms of each head, q, k and v by KV head */
    "{\"model_type\": \"nanochat\", \"hidden_act\": \"relu2\", " PLAIN_SIZES "}",
    "{\"model_type\": \"phi\", \"hidden_act\": \"gelu_new\", " PLAIN_SIZES "}",
    "{\"model_type\": \"cohere\", \"use_qk_norm\": true, \"hidden_act\": \"silu\", " PLAIN_SIZES "}",
    "{\"model_type\": \"apertus\", " PLAIN_SIZES "}", /* an activation of its own op */
    "{\"model_type\": \"falcon\", \"new_decoder_architecture\": true, \"hidden_size\": 64, \"ffn_hidden_size\": 96, "
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_kv_heads\": 2, \"vocab_size\": 50, "
    "\"max_position_embeddings\": 512}",
};
static const char *const shared_models[] = {"llama3",   "qwen2",  "qwen3",     "mistral-window", "llama-tied-sharded",
                                            "granite",  "phi3",   "phi4-mini", "olmo2",          "smollm3",
                                            "seed_oss", "glm4",   "exaone4",   "olmo3",          "gemma",
                                            "gemma2",   "gemma3", "cohere2",   "stablelm",       "starcoder2",
                                            "nemotron", "gpt2",   "gpt_neox"};
enum { CONFIGS = sizeof configs / sizeof *configs, SHARED = sizeof shared_models / sizeof *shared_models };

const char *test_device_model_source(size_t index)
{
    static char path[512];
    if (index < CONFIGS) return configs[index];
    if (index == CONFIGS) return "tests/models/fables";
    if (index > CONFIGS + SHARED || !test_shared()) return NULL;
    snprintf(path, sizeof path, "%s/models/hf-tiny/%s", test_shared(), shared_models[index - CONFIGS - 1]);
    return path;
}

static bool make_graph(struct test_device_model *model, enum test_graph which, const struct weight_types *types,
                       bool routed, struct status *status)
{
    struct graph *graph = &model->graphs[which];
    graph_init(graph, &model->config,
               which == TEST_PREFILL  ? PLAN_PREFILL
               : which == TEST_MIXED  ? PLAN_MIXED
               : which == TEST_VERIFY ? PLAN_VERIFY
                                      : PLAN_DECODE);
    graph->target = TARGET_CUDA;
    graph->compute_dtype = types->matrices == ENCODING_F16 ? DTYPE_F16 : DTYPE_BF16;
    if (which == TEST_SMALL_BATCH) graph->plan_rows = GRAPH_ROWS_ROUTED_MLP;
    if (which == TEST_ROUTER_BATCH) graph->plan_rows = GRAPH_ROWS_ROUTER_BATCH;
    graph->has_routed_matmul = routed;
    graph->shared_per_block = routed ? 227 << 10 : 0;
    graph->multiprocessors = routed ? 132 : 0;
    graph->ranks = model->ranks;
    graph->gives_hidden = model->hidden;
    if (model->ranks > 1) graph->rank_config = &model->rank_config;
    return import_graph(graph, status) && column_orders_add(graph, &model->orders, &model->checkpoint, types, status) &&
           (which != TEST_SMALL_BATCH || share_encodings(graph, &model->graphs[TEST_LARGE_BATCH], status)) &&
           run_passes(graph, NULL, NULL, status);
}

static bool try_ranks(struct test_device_model *model, const char *source, int64_t matrices, uint64_t slots,
                      uint64_t context, uint32_t ranks, bool routed, bool hidden, bool predicts, struct status *status)
{
    enum { PAGE_TOKENS = 64 };
    const struct weight_types types = {.matrices = (enum encoding_id)matrices};
    const enum dtype compute_dtype = matrices == ENCODING_F16 ? DTYPE_F16 : DTYPE_BF16;
    memset(model, 0, sizeof *model);
    model->name = source;
    model->ranks = ranks;
    model->hidden = hidden;
    model->has_checkpoint = source[0] != '{';
    if (model->has_checkpoint) {
        test_expect_success(checkpoint_open(&model->checkpoint, source, false, arch_read_config, status), status);
        model->config = model->checkpoint.config;
        test_expect_success(column_orders_open(&model->orders, &model->checkpoint, status), status);
    } else {
        test_expect_success(model_config_parse(&model->config, source, strlen(source), "config.json", arch_read_config,
                                               status),
                            status);
    }
    if (predicts) test_expect_success(arch_add_predictor(&model->config, status), status);
    if (!shard_config(&model->config, ranks, &model->rank_config, status)) return false;
    struct graph *wide = &model->graphs[TEST_LARGE_BATCH];
    if (!make_graph(model, TEST_LARGE_BATCH, &types, routed, status)) return false;
    bool bound = model->has_checkpoint ? bind_weights(wide, &model->checkpoint, &types, status)
                                       : assume_weights(wide, (enum encoding_id)compute_dtype, &types, status);
    if (!bound) return false;
    for (int g = 0; g < TEST_GRAPHS; g++)
        if (g != TEST_LARGE_BATCH && !make_graph(model, (enum test_graph)g, &types, routed, status)) return false;
    if (context > model->config.max_position) context = model->config.max_position;
    test_expect_success(plan_weights(wide, &model->weights_bytes, status), status);
    for (int g = 0; g < TEST_GRAPHS; g++)
        if (g != TEST_LARGE_BATCH) test_expect_success(share_weights(&model->graphs[g], wide, status), status);

    model->lowering = (struct lowering){
        .geometry = {.slots = slots,
                     .max_context = context,
                     .page_tokens = PAGE_TOKENS,
                     .pages_per_slot = (context + PAGE_TOKENS - 1) / PAGE_TOKENS,
                     .page_bytes = kv_all_bytes(&model->rank_config, PAGE_TOKENS, (enum encoding_id)compute_dtype),
                     .vocab_size = model->config.vocab_size,
                     .hidden_size = hidden ? model->config.hidden_size : 0,
                     .ranks = ranks,
                     .drafts = predicts,
                     .recurrent_bytes = recurrent_bytes(&model->rank_config, TARGET_CUDA)},
        .kv_dtype = (enum encoding_id)compute_dtype,
    };
    return true;
}

bool test_device_model_try(struct test_device_model *model, const char *source, int64_t matrices, uint64_t slots,
                           uint64_t context, struct status *status)
{
    return try_ranks(model, source, matrices, slots, context, 1, false, false, false, status);
}

bool test_device_model_open_ranks(struct test_device_model *model, const char *source, int64_t matrices, uint32_t ranks)
{
    struct status status = {0};
    if (try_ranks(model, source, matrices, 64, 512, ranks, false, false, false, &status)) return true;
    test_device_model_close(model);
    return false;
}

bool test_device_model_open_hidden(struct test_device_model *model, const char *source, uint32_t ranks)
{
    struct status status = {0};
    if (try_ranks(model, source, ENCODING_BF16, 64, 512, ranks, false, true, false, &status)) return true;
    test_device_model_close(model);
    return false;
}

void test_device_model_open(struct test_device_model *model, const char *source, int64_t matrices)
{
    struct status status = {0};
    test_expect_success(test_device_model_try(model, source, matrices, 64, 512, &status), &status);
}

void test_device_model_open_routed(struct test_device_model *model, const char *source, uint32_t ranks)
{
    struct status status = {0};
    test_expect_success(try_ranks(model, source, ENCODING_BF16, 64, 512, ranks, true, false, false, &status), &status);
}

void test_device_model_open_predicting(struct test_device_model *model, const char *source, uint32_t ranks)
{
    struct status status = {0};
    test_expect_success(try_ranks(model, source, ENCODING_BF16, 64, 512, ranks, false, false, true, &status), &status);
}

void test_device_model_close(struct test_device_model *model)
{
    for (int g = 0; g < TEST_GRAPHS; g++) graph_free(&model->graphs[g]);
    column_orders_close(&model->orders);
    if (model->has_checkpoint) checkpoint_close(&model->checkpoint);
}

const struct graph *test_device_model_graph(const struct test_device_model *model, enum plan_kind kind, uint32_t rows)
{
    if (kind == PLAN_VERIFY) return &model->graphs[TEST_VERIFY];
    if (kind != PLAN_DECODE) return &model->graphs[kind == PLAN_PREFILL ? TEST_PREFILL : TEST_MIXED];
    const struct graph *small = &model->graphs[TEST_SMALL_BATCH];
    const struct graph *router = &model->graphs[TEST_ROUTER_BATCH];
    if (rows <= graph_small_batch_rows(small)) return small;
    return rows <= graph_router_batch_rows(router) ? router : &model->graphs[TEST_LARGE_BATCH];
}

void test_device_model_scratch(struct test_device_model *model, const struct device_facts *gpu, const uint32_t *rows,
                               size_t count)
{
    model->lowering.scratch_bytes = 0;
    for (size_t i = 0; i < count; i++)
        for (enum plan_kind kind = PLAN_DECODE; kind < PLAN_KIND_END; kind++) {
            const struct graph *graph = test_device_model_graph(model, kind, rows[i]);
            const uint64_t bytes = device_scratch_bytes(graph, &model->lowering, gpu, rows[i]);
            if (bytes > model->lowering.scratch_bytes) model->lowering.scratch_bytes = bytes;
        }
}

void test_device_model_exchange(struct test_device_model *model, uint32_t rows)
{
    struct status status = {0};
    model->lowering.exchange_bytes = 0;
    for (int g = 0; g < TEST_GRAPHS; g++) {
        const uint64_t out_rows = plan_out_rows(model->graphs[g].kind, rows, model->lowering.geometry.slots);
        uint64_t bytes;
        test_expect_success(lower_exchange_bytes(&model->graphs[g], &model->lowering, rows, out_rows, &bytes, &status),
                            &status);
        if (bytes > model->lowering.exchange_bytes) model->lowering.exchange_bytes = bytes;
    }
}

void test_device_model_sizes(const struct test_device_model *model, const struct plan_header *header,
                             struct plan_space_sizes *sizes)
{
    const struct plan_geometry *geometry = &model->lowering.geometry;
    struct plan_field step[STEP_FIELD_COUNT], state[STATE_FIELD_COUNT];
    memset(sizes, 0, sizeof *sizes);
    assert_true(step_layout(header->rows, header->out_rows, geometry->vocab_size, geometry->hidden_size,
                            geometry->drafts, step, &sizes->bytes[SPACE_STEP]));
    assert_true(state_layout(geometry, state, &sizes->bytes[SPACE_STATE]));
    sizes->bytes[SPACE_WEIGHTS] = model->weights_bytes / model->ranks;
    assert_true(lower_comm_bytes(&model->lowering, &sizes->bytes[SPACE_COMM]));
    sizes->bytes[SPACE_ARENA] = header->arena_bytes;
    sizes->bytes[SPACE_KV] = geometry->page_bytes;
}
