/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering for GPUs refuses shapes that no kernel takes and sizes out of range, with messages that name them. */
#include "builder/test_device_model.h"
#include "formats/base/test_program.h"

static const uint32_t decode_rows[] = {1, 2, 3, 7, 8, 9, 16, 33, 64};

#define SHAPE(hidden, heads, kv_heads, head_dim)                                                                      \
    "{\"model_type\": \"llama\", \"hidden_size\": " #hidden ", \"intermediate_size\": 96, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv_heads ", \"head_dim\": " #head_dim           \
    ", \"vocab_size\": 50, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\"}"

static void expect_refused(const struct test_device_model *model, const struct device_facts *gpu,
                           const struct graph *graph, uint32_t rows, const char *words)
{
    struct device_plan plan;
    struct status status = {0};
    memset(&plan, 0xff, sizeof plan);
    bool ok = lower_device_plan(graph, &model->lowering, gpu, rows, &plan, &status);
    test_expect_failure(ok, &status, STATUS_BAD_INPUT, words);
    assert_null(plan.launches);
    assert_int_equal(plan.count, 0);
    device_plan_free(&plan);
}

TEST(shapes_that_no_kernel_takes_are_refused)
{
    static struct test_device_model model;
    static const struct {
        const char *config, *decode, *prefill;
    } cases[] = {
        {SHAPE(20, 4, 2, 16), "matmul|parameter k is not a multiple of 8", "matmul|parameter k is not a multiple of 8"},
        {SHAPE(23, 4, 2, 16), "matmul|parameter k is not a multiple of 8", "matmul|parameter k is not a multiple of 8"},
        {SHAPE(64, 3, 1, 258), "matmul|parameter k is not a multiple of 8",
         "matmul|parameter k is not a multiple of 8"},
        {SHAPE(64, 2, 1, 6), "matmul|parameter k is not a multiple of 8", "matmul|parameter k is not a multiple of 8"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int g = 0; g < TEST_GPUS; g++) {
            static const uint32_t rows[] = {1, 8, 32};
            const struct device_facts *gpu = &test_gpus[g];
            struct status status = {0};
            test_expect_success(test_device_model_try(&model, cases[c].config, DTYPE_BF16, 32, 512, &status), &status);
            test_device_model_scratch(&model, gpu, rows, 3);
            for (int r = 0; r < 3; r++) {
                char words[640];
                snprintf(words, sizeof words, "%s|%s|no kernel for this model", cases[c].decode, gpu->name);
                expect_refused(&model, gpu, test_device_model_graph(&model, PLAN_DECODE, rows[r]), rows[r], words);
                expect_refused(&model, gpu, &model.graphs[TEST_PREFILL], rows[r], cases[c].prefill);
            }
            test_device_model_close(&model);
        }
}

TEST(sizes_out_of_range_are_refused)
{
    static struct test_device_model model;
    const struct device_facts *gpu = &test_gpus[TEST_GPU_90];
    test_device_model_open(&model, test_device_model_source(0), DTYPE_BF16);
    const struct graph *wide = &model.graphs[TEST_LARGE_BATCH], *prefill = &model.graphs[TEST_PREFILL];
    test_device_model_scratch(&model, gpu, decode_rows, sizeof decode_rows / sizeof *decode_rows);
    const struct lowering lowering = model.lowering;
    /* More rows than the contracts count. */
    expect_refused(&model, gpu, wide, 65536, "rope_attention of 65536 rows|ROWS");
    expect_refused(&model, gpu, prefill, (1 << 20) + 1, "parameter rows is 1048577");
    expect_refused(&model, gpu, prefill, UINT32_MAX, "");
    /* Norms inside matmuls are for few rows. */
    expect_refused(&model, gpu, &model.graphs[TEST_SMALL_BATCH], 9, "matmul of 9 rows|ROWS is not in 1..8");
    /* Sizes that overflow. */
    model.lowering.geometry.vocab_size = UINT64_C(1) << 60;
    expect_refused(&model, gpu, wide, 1 << 20, "64-bit");
    model.lowering = lowering;
    model.lowering.geometry.slots = UINT64_C(1) << 61;
    expect_refused(&model, gpu, wide, 1, "64-bit");
    model.lowering = lowering;
    model.lowering.scratch_bytes = UINT64_MAX / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    expect_refused(&model, gpu, wide, 1, "64-bit");
    /* A GPU without code, and one with hardly any shared memory. */
    model.lowering = lowering;
    struct device_facts small = *gpu, old = *gpu;
    old.capability = 75;
    expect_refused(&model, &old, wide, 1, "embed|no kernel runs on this GPU");
    small.shared_per_block = small.shared_per_sm = 1024;
    expect_refused(&model, &small, wide, 9, "made-up H200");
    test_device_model_close(&model);
}

int main(void) { return test_run(); }
