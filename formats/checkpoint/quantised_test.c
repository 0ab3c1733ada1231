/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised modules of every container as their libraries lay them out. Damaged ones: quantised_damage_test.c. */
#include "formats/checkpoint/quantised.h"

#include <math.h>

#include "formats/base/test_support.h"
#include "formats/checkpoint/test_quantised.h"

#define FIRST  "model.layers.0.self_attn.k_proj"
#define SECOND "model.layers.1.mlp.down_proj"

static struct test_checkpoint checkpoint;
static struct quantised_tensors result;
static struct status status;

static int free_checkpoint(void **state)
{
    quantised_close(&result);
    result = (struct quantised_tensors){0};
    test_quantised_free(&checkpoint);
    return 0;
}

static int new_checkpoint(void **state)
{
    checkpoint.random = 1;
    return 0;
}

static bool open_checkpoint(void)
{
    test_quantised_sort(&checkpoint);
    return quantised_open(&result, &checkpoint.config, checkpoint.tensors, checkpoint.count, &status);
}

static const struct tensor_view *find(const char *name)
{
    for (size_t i = 0; i < result.count; i++)
        if (strcmp(result.tensors[i].name, name) == 0) return &result.tensors[i];
    return NULL;
}

/* Distance of two floats in representable values; -0 is 0. */
static uint64_t distance(float a, float b)
{
    const int64_t x = float_to_bits(a) & 0x7fffffffu, y = float_to_bits(b) & 0x7fffffffu;
    return (uint64_t)llabs((signbit(a) ? -x : x) - (signbit(b) ? -y : y));
}

/* Columns in any order, some of them more than once. */
static void expect_columns(const struct test_module *module, const struct quantised *matrix)
{
    enum { COUNT = 600 }; /* more than are read at once */
    uint32_t columns[COUNT];
    float values[COUNT];
    for (uint64_t row = 0; matrix->groups && row < matrix->rows; row++) {
        for (int i = 0; i < COUNT; i++)
            columns[i] = (uint32_t)((i < 100 ? (uint64_t)i % 7 : test_random(&checkpoint.random)) % matrix->columns);
        quantised_read_columns(matrix, row, columns, COUNT, values);
        for (int i = 0; i < COUNT; i++)
            if (!(distance(values[i], module->expected[row * matrix->columns + columns[i]]) <= module->ulps))
                fail_msg("row %d, column %d of a list", (int)row, (int)columns[i]);
    }
}

static void expect_elements(const struct test_module *module, const struct quantised *matrix)
{
    const uint64_t columns = module->what.columns;
    assert_int_equal(matrix->rows, module->what.rows);
    assert_int_equal(matrix->columns, columns);
    for (uint64_t row = 0; row < module->what.rows; row++)
        for (int i = 0; i < 4; i++) {
            const uint64_t first = i ? test_random(&checkpoint.random) % columns : 0;
            const uint64_t count = i ? 1 + test_random(&checkpoint.random) % (columns - first) : columns;
            float *values = malloc(count * sizeof *values);
            assert_non_null(values);
            quantised_read(matrix, row, first, count, values);
            for (uint64_t c = 0; c < count; c++) {
                const float expected = module->expected[row * columns + first + c];
                if (!(distance(values[c], expected) <= module->ulps))
                    fail_msg(
                        "container %d, bits %u, flags %u, row %d, column %d (read from %d): expected %.9g, found %.9g",
                        (int)module->what.container, module->what.bits, module->what.flags, (int)row, (int)(first + c),
                        (int)first, (double)expected, (double)values[c]);
            }
            free(values);
        }
    expect_columns(module, matrix);
}

/* The result has the modules' matrices and the tensors of `names`, with their data, and nothing else. */
static void expect_result(const char *const *names, size_t count)
{
    for (size_t i = 0; i < checkpoint.module_count; i++) {
        const struct test_module *module = &checkpoint.modules[i];
        const struct tensor_view *view = find(test_text("%s.weight", module->name));
        assert_non_null(view);
        assert_int_equal(view->dtype, DTYPE_F32);
        assert_int_equal(view->rank, 2);
        assert_int_equal(view->shape[0], module->what.rows);
        assert_int_equal(view->shape[1], module->what.columns);
        assert_null(view->data);
        assert_non_null(view->quantised);
        expect_elements(module, view->quantised);
    }
    for (size_t i = 0; i < count; i++) {
        const struct tensor_view *view = find(names[i]), *original = test_quantised_find(&checkpoint, names[i]);
        assert_non_null(view);
        assert_ptr_equal(view->data, original->data);
        assert_int_equal(view->dtype, original->dtype);
        assert_int_equal(view->bytes, original->bytes);
        assert_null(view->quantised);
    }
    if (result.count != count + checkpoint.module_count) {
        char rest[512] = "";
        for (size_t i = 0; i < result.count; i++)
            snprintf(rest + strlen(rest), sizeof rest - strlen(rest), " %s", result.tensors[i].name);
        fail_msg("expected %zu tensors, found%s", count + checkpoint.module_count, rest);
    }
    for (size_t i = 1; i < result.count; i++)
        assert_true(strcmp(result.tensors[i - 1].name, result.tensors[i].name) < 0);
}

/* Two modules of that kind among plain tensors */
static void expect_read(const struct test_quantised *what)
{
    static const char *const names[] = {"lm_head.weight", FIRST ".bias", "model.norm.weight"};
    free_checkpoint(NULL);
    checkpoint.random = what->bits * 1000 + what->flags * 10 + what->container;
    test_quantised_tensor(&checkpoint, "model.norm.weight", DTYPE_F32, 1, 7, 0);
    test_quantised_tensor(&checkpoint, FIRST ".bias", DTYPE_F16, 1, what->rows, 0);
    test_quantised_tensor(&checkpoint, "lm_head.weight", DTYPE_BF16, 2, 5, 7);
    test_quantised_add(&checkpoint, SECOND, what);
    test_quantised_add(&checkpoint, FIRST, what);
    if (!open_checkpoint())
        fail_msg("container %d, bits %u, flags %u, group %d: refused: %s", (int)what->container, what->bits,
                 what->flags, (int)what->group, status.message);
    expect_result(names, sizeof names / sizeof *names);
}

TEST(gptq)
{
    static const uint32_t bits[] = {2, 3, 4, 8};
    static const uint32_t versions[] = {
        TEST_SYMMETRIC,
        TEST_SYMMETRIC | TEST_LESS_ONE,
        TEST_SYMMETRIC | TEST_MISLABELLED,
        TEST_SYMMETRIC | TEST_LESS_ONE | TEST_MISLABELLED,
        0,
        TEST_LESS_ONE,
        TEST_LESS_ONE | TEST_GPTQMODEL,
    };
    static const struct {
        uint64_t rows, columns, group;
        enum dtype scale;
    } shapes[] = {{32, 128, 32, DTYPE_F16},
                  {64, 192, 64, DTYPE_BF16},
                  {32, 96, 0, DTYPE_F32},
                  {32, 160, 64, DTYPE_F16}};
    for (size_t b = 0; b < sizeof bits / sizeof *bits; b++)
        for (size_t v = 0; v < sizeof versions / sizeof *versions; v++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                for (uint32_t groups = 0; groups <= TEST_ACT_ORDER; groups += TEST_TRIVIAL)
                    expect_read(&(struct test_quantised){TEST_GPTQ, versions[v] | groups, shapes[s].rows,
                                                         shapes[s].columns, shapes[s].group, bits[b], shapes[s].scale,
                                                         0});
}

/* Where rows or columns do not fill a word */
TEST(gptq_with_incomplete_words)
{
    static const uint32_t bits[] = {2, 3, 4, 8};
    for (size_t b = 0; b < sizeof bits / sizeof *bits; b++) {
        expect_read(&(struct test_quantised){TEST_GPTQ, TEST_ACT_ORDER, 21, 77, 32, bits[b], DTYPE_F16, 0});
        expect_read(&(struct test_quantised){TEST_GPTQ, TEST_LESS_ONE | TEST_GPTQMODEL | TEST_TRIVIAL, 21, 77, 32,
                                             bits[b], DTYPE_F16, 0});
        expect_read(&(struct test_quantised){TEST_GPTQ, TEST_SYMMETRIC | TEST_LESS_ONE | TEST_TRIVIAL, 21, 77, 0,
                                             bits[b], DTYPE_F16, 0});
    }
}

TEST(containers)
{
    static const struct test_quantised cases[] = {
        {TEST_AWQ_GEMM, 0, 40, 96, 32, 4, DTYPE_F16, 0},
        {TEST_AWQ_GEMM, 0, 24, 256, 128, 4, DTYPE_BF16, 0},
        {TEST_AWQ_GEMM, 0, 24, 96, 0, 4, DTYPE_F16, 0},
        {TEST_AWQ_GEMM, TEST_SYMMETRIC, 24, 128, 64, 4, DTYPE_F16, 0},
        {TEST_AWQ_GEMM, TEST_SYMMETRIC | TEST_TRIVIAL, 24, 128, 64, 4, DTYPE_F16, 0},
        {TEST_AWQ_GEMV, TEST_SYMMETRIC, 24, 96, 32, 4, DTYPE_F16, 0},
        {TEST_AWQ_GEMV, 0, 17, 96, 32, 4, DTYPE_F16, 0},
        {TEST_AWQ_GEMV, 0, 6, 1088, 32, 4, DTYPE_F16, 0},
        {TEST_AWQ_GEMV, 0, 24, 192, 64, 4, DTYPE_F16, 0},
        {TEST_AWQ_GEMV, 0, 24, 256, 128, 4, DTYPE_F16, 0},
        {TEST_AWQ_FAST, 0, 24, 192, 64, 4, DTYPE_F16, 0},
        {TEST_AWQ_FAST, 0, 8, 256, 128, 4, DTYPE_F16, 0},
        {TEST_CT_PACKED, TEST_SYMMETRIC, 20, 96, 32, 4, DTYPE_BF16, 0},
        {TEST_CT_PACKED, 0, 20, 128, 64, 4, DTYPE_BF16, 0},
        {TEST_CT_PACKED, 0, 24, 100, 0, 4, DTYPE_F16, 0},
        {TEST_CT_PACKED, TEST_SYMMETRIC, 5, 101, 0, 4, DTYPE_F32, 0},
        {TEST_CT_PACKED, TEST_SYMMETRIC, 20, 96, 32, 8, DTYPE_BF16, 0},
        {TEST_CT_PACKED, 0, 22, 128, 64, 8, DTYPE_F16, 0},
        {TEST_CT_PACKED, TEST_SYMMETRIC, 22, 101, 0, 8, DTYPE_BF16, 0},
        {TEST_CT_PACKED, 0, 22, 101, 0, 8, DTYPE_BF16, 0},
        {TEST_CT_PACKED, TEST_SYMMETRIC, 12, 128, 32, 2, DTYPE_BF16, 0},
        {TEST_CT_PACKED, TEST_SYMMETRIC, 12, 256, 64, 3, DTYPE_BF16, 0},
        {TEST_CT_PACKED, TEST_SYMMETRIC | TEST_OLD_WORDS, 12, 256, 64, 3, DTYPE_BF16, 0},
        {TEST_CT_PACKED, TEST_SYMMETRIC, 12, 256, 64, 6, DTYPE_BF16, 0},
        {TEST_CT_PACKED, TEST_SYMMETRIC | TEST_OLD_WORDS, 12, 256, 64, 6, DTYPE_BF16, 0},
        {TEST_CT_PACKED, TEST_SYMMETRIC | TEST_ACT_ORDER, 12, 192, 64, 4, DTYPE_BF16, 0},
        {TEST_CT_PACKED, TEST_ACT_ORDER, 12, 192, 64, 4, DTYPE_BF16, 0},
        {TEST_CT_PACKED, TEST_TRIVIAL, 12, 192, 64, 4, DTYPE_BF16, 0},
        {TEST_CT_INT8, TEST_SYMMETRIC, 12, 50, 0, 8, DTYPE_BF16, 0},
        {TEST_CT_INT8, TEST_SYMMETRIC | TEST_TENSOR, 12, 50, 0, 8, DTYPE_BF16, 0},
        {TEST_CT_INT8, 0, 12, 50, 0, 8, DTYPE_BF16, 0},
        {TEST_CT_INT8, TEST_TENSOR, 12, 50, 0, 8, DTYPE_BF16, 0},
        {TEST_CT_INT8, TEST_SYMMETRIC, 12, 96, 32, 8, DTYPE_BF16, 0},
        {TEST_CT_INT8, 0, 12, 96, 32, 8, DTYPE_F16, 0},
        {TEST_CT_FLOAT8, 0, 12, 50, 0, 8, DTYPE_BF16, 0},
        {TEST_CT_FLOAT8, TEST_TENSOR, 12, 50, 0, 8, DTYPE_F32, 0},
        {TEST_CT_FLOAT8, 0, 12, 96, 32, 8, DTYPE_BF16, 0},
        {TEST_CT_FLOAT8, 0, 192, 320, 128, 8, DTYPE_BF16, 128},
        {TEST_CT_NVFP4, 0, 12, 80, 16, 4, DTYPE_F8_E4M3, 0},
        {TEST_CT_MXFP4, 0, 12, 96, 32, 4, DTYPE_U8, 0},
        {TEST_CT_MXFP8, 0, 12, 96, 32, 8, DTYPE_U8, 0},
        {TEST_FP8_INVERSE, 0, 192, 320, 128, 8, DTYPE_F32, 128},
        {TEST_FP8_INVERSE, 0, 192, 320, 128, 8, DTYPE_BF16, 128},
        {TEST_FP8_INVERSE, 0, 192, 320, 128, 8, DTYPE_U8, 128},
        {TEST_FP8_INVERSE, 0, 192, 320, 128, 8, DTYPE_F8_E8M0, 128},
        {TEST_FP8_INVERSE, 0, 5, 50, 128, 8, DTYPE_F32, 128},
        {TEST_FP8_INVERSE, 0, 12, 96, 32, 8, DTYPE_U8, 1},
        {TEST_FP8_INVERSE, TEST_SCALAR, 12, 50, 0, 8, DTYPE_F32, 0},
        {TEST_FP8_SCALE, TEST_SCALAR, 12, 50, 0, 8, DTYPE_F32, 0},
        {TEST_FP8_SCALE, TEST_TENSOR, 12, 50, 0, 8, DTYPE_F32, 0},
        {TEST_FP8_SCALE, 0, 12, 50, 0, 8, DTYPE_F32, 0},
        {TEST_MODELOPT_FP8, TEST_SCALAR, 12, 50, 0, 8, DTYPE_F32, 0},
        {TEST_MODELOPT_NVFP4, 0, 12, 80, 16, 4, DTYPE_F8_E4M3, 0},
        {TEST_BNB_4BIT, 0, 12, 96, 64, 4, DTYPE_F32, 0},
        {TEST_BNB_4BIT, 0, 6, 33, 64, 4, DTYPE_F32, 0},
        {TEST_BNB_4BIT, TEST_NESTED, 150, 192, 64, 4, DTYPE_U8, 0},
        {TEST_BNB_INT8, 0, 12, 50, 0, 8, DTYPE_F32, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_read(&cases[i]);
}

/* Modules of two kinds, with a scheme for each */
TEST(mixed_schemes)
{
    static const struct test_quantised pairs[][2] = {
        {{TEST_GPTQ, TEST_SYMMETRIC | TEST_TRIVIAL, 32, 128, 32, 4, DTYPE_F16, 0},
         {TEST_GPTQ, TEST_SYMMETRIC | TEST_TRIVIAL, 32, 128, 64, 8, DTYPE_F16, 0}},
        {{TEST_GPTQ, TEST_SYMMETRIC, 64, 256, 64, 4, DTYPE_F16, 0}, {TEST_GPTQ, 0, 64, 256, 64, 3, DTYPE_F16, 0}},
        {{TEST_CT_PACKED, TEST_SYMMETRIC, 8, 128, 32, 4, DTYPE_F16, 0},
         {TEST_CT_PACKED, TEST_SYMMETRIC, 8, 128, 0, 8, DTYPE_F16, 0}},
        {{TEST_CT_PACKED, TEST_SYMMETRIC, 8, 128, 32, 4, DTYPE_F16, 0},
         {TEST_CT_INT8, TEST_SYMMETRIC, 8, 128, 0, 8, DTYPE_F16, 0}},
        {{TEST_CT_PACKED, TEST_SYMMETRIC, 8, 128, 32, 4, DTYPE_F16, 0},
         {TEST_CT_PACKED, 0, 8, 128, 64, 4, DTYPE_F16, 0}},
        {{TEST_CT_PACKED, TEST_SYMMETRIC, 8, 128, 64, 4, DTYPE_F16, 0},
         {TEST_CT_PACKED, TEST_SYMMETRIC, 8, 128, 0, 4, DTYPE_F16, 0}},
        {{TEST_CT_NVFP4, 0, 8, 128, 16, 4, DTYPE_F8_E4M3, 0}, {TEST_CT_FLOAT8, 0, 8, 128, 0, 8, DTYPE_BF16, 0}},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        free_checkpoint(NULL);
        test_quantised_add(&checkpoint, FIRST, &pairs[i][0]);
        test_quantised_add(&checkpoint, SECOND, &pairs[i][1]);
        test_expect_success(open_checkpoint(), &status);
        expect_result(NULL, 0);
    }
}

/* A module is symmetric if its zero points are, where `sym` of the configuration holds for some modules alone. */
TEST(zeros_that_decide)
{
    static const uint32_t versions[] = {0, TEST_LESS_ONE, TEST_MISLABELLED, TEST_LESS_ONE | TEST_MISLABELLED};
    for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
        const struct test_quantised same = {TEST_GPTQ, TEST_SYMMETRIC | versions[v], 32, 128, 32, 4, DTYPE_F16, 0};
        const struct test_quantised other = {TEST_GPTQ, versions[v] & TEST_LESS_ONE, 32, 128, 32, 4, DTYPE_F16, 0};
        free_checkpoint(NULL);
        test_quantised_add(&checkpoint, FIRST, &same);
        test_quantised_add(&checkpoint, SECOND, &other);
        checkpoint.config.zeros_decide = true;
        test_expect_success(open_checkpoint(), &status);
        expect_result(NULL, 0);
        assert_null(find(FIRST ".weight")->quantised->zeros.data);
        assert_non_null(find(SECOND ".weight")->quantised->zeros.data);
    }
}

/* ModelOpt: [blocks of rows, 1, blocks of columns, 1] */
TEST(scales_of_blocks_in_four_dimensions)
{
    static const struct test_quantised what = {TEST_FP8_SCALE, 0, 192, 320, 128, 8, DTYPE_F32, 128};
    test_quantised_add(&checkpoint, FIRST, &what);
    struct tensor_view *scales = test_quantised_find(&checkpoint, "weight_scale");
    scales->rank = 4;
    scales->shape[2] = scales->shape[1], scales->shape[1] = scales->shape[3] = 1;
    test_expect_success(open_checkpoint(), &status);
    expect_result(NULL, 0);
    quantised_close(&result);
    scales = test_quantised_find(&checkpoint, "weight_scale");
    scales->shape[1] = scales->shape[2], scales->shape[2] = 1;
    test_expect_failure(open_checkpoint(), &status, STATUS_BAD_INPUT, "weight_scale|found F32 [2, 3, 1, 1]");
}

/* compressed-tensors leaves -1 where a scheme in act-order has ordered no columns. */
TEST(groups_that_were_never_set)
{
    static const struct test_quantised what = {TEST_CT_PACKED, TEST_TRIVIAL, 12, 192, 64, 4, DTYPE_BF16, 0};
    test_quantised_add(&checkpoint, FIRST, &what);
    struct tensor_view *groups = test_quantised_find(&checkpoint, "weight_g_idx");
    memset((uint8_t *)groups->data, 0xff, groups->bytes);
    test_expect_success(open_checkpoint(), &status);
    expect_result(NULL, 0);
}

/* group_size of the configuration is 0: the scales say it. */
TEST(groups_by_the_tensors_alone)
{
    static const struct test_quantised what = {TEST_CT_PACKED, TEST_SYMMETRIC, 20, 256, 128, 8, DTYPE_BF16, 0};
    test_quantised_add(&checkpoint, FIRST, &what);
    checkpoint.config.schemes[0].group_size = 0;
    test_expect_success(open_checkpoint(), &status);
    expect_result(NULL, 0);
}

/* Experts of gpt-oss: [experts, rows, columns / 32, 16] bytes, with the name of the matrix before _blocks */
TEST(experts_in_blocks)
{
    enum { EXPERTS = 3, ROWS = 4, GROUPS = 5, COLUMNS = 32 * GROUPS };
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    checkpoint.config = (struct quant_config){.method = QUANT_MXFP4,
                                              .name = "mxfp4",
                                              .schemes = {{true, 4, 32, true}},
                                              .scheme_count = 1};
    uint8_t *codes =
        test_quantised_tensor(&checkpoint, "experts.down_proj_blocks", DTYPE_U8, 2, EXPERTS * ROWS, GROUPS * 16);
    uint8_t *scales =
        test_quantised_tensor(&checkpoint, "experts.down_proj_scales", DTYPE_U8, 2, EXPERTS * ROWS, GROUPS);
    for (size_t i = 0; i < EXPERTS * ROWS * GROUPS * 16; i++) codes[i] = (uint8_t)test_random(&checkpoint.random);
    for (size_t i = 0; i < EXPERTS * ROWS * GROUPS; i++)
        scales[i] = (uint8_t)(120 + test_random(&checkpoint.random) % 10);
    static const uint64_t shapes[2][4] = {{EXPERTS, ROWS, GROUPS, 16}, {EXPERTS, ROWS, GROUPS, 0}};
    for (int i = 0; i < 2; i++) {
        checkpoint.tensors[i].rank = 4 - i;
        memcpy(checkpoint.tensors[i].shape, shapes[i], sizeof shapes[i]);
    }
    test_expect_success(open_checkpoint(), &status);
    assert_int_equal(result.count, 1);
    const struct tensor_view *view = find("experts.down_proj");
    assert_non_null(view);
    assert_int_equal(view->rank, 3);
    assert_int_equal(view->shape[0], EXPERTS);
    assert_int_equal(view->shape[1], ROWS);
    assert_int_equal(view->shape[2], COLUMNS);
    for (uint64_t row = 0; row < EXPERTS * ROWS; row++) {
        float values[COLUMNS];
        quantised_read(view->quantised, row, 0, COLUMNS, values);
        for (uint64_t c = 0; c < COLUMNS; c++) {
            const uint32_t code = codes[(row * COLUMNS + c) / 2] >> (c % 2 * 4) & 15;
            const float expected = ldexpf(e2m1[code & 7], scales[row * GROUPS + c / 32] - 127);
            assert_true(values[c] == (code & 8 ? -expected : expected));
        }
    }
    scales[17] = 0xff;
    quantised_close(&result);
    test_expect_failure(open_checkpoint(), &status, STATUS_BAD_INPUT, "experts.down_proj");
}

TEST(scales_of_a_cache_are_left_out)
{
    static const char *const names[] = {"model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.v_scale",
                                        "model.layers.0.self_attn.k_proj.k_scale",
                                        "model.layers.0.self_attn.v_proj.v_scale",
                                        "model.layers.0.self_attn.k_proj.output_scale"};
    static const struct test_quantised cases[] = {{TEST_CT_FLOAT8, 0, 8, 32, 0, 8, DTYPE_BF16, 0},
                                                  {TEST_FP8_SCALE, TEST_SCALAR, 8, 32, 0, 8, DTYPE_F32, 0},
                                                  {TEST_MODELOPT_NVFP4, 0, 8, 32, 16, 4, DTYPE_F8_E4M3, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        free_checkpoint(NULL);
        test_quantised_add(&checkpoint, FIRST, &cases[i]);
        for (size_t n = 0; n < sizeof names / sizeof *names; n++)
            test_quantised_tensor(&checkpoint, names[n], DTYPE_F32, 1, 1, 0);
        test_expect_success(open_checkpoint(), &status);
        expect_result(NULL, 0);
    }
}

static struct quantised_cache_scales scales_of(uint64_t layer)
{
    enum { LAYERS = 13 };
    static struct quantised_cache_scales all[LAYERS];
    memset(all, 0xff, sizeof all);
    test_expect_success(quantised_find_cache_scales(&result, LAYERS, NULL, NULL, all, &status), &status);
    return all[layer];
}

static void add_scale(const char *name, enum dtype dtype, uint64_t count, const float *values)
{
    uint8_t *data = test_quantised_tensor(&checkpoint, name, dtype, 1, count, 0);
    for (uint64_t i = 0; i < count; i++) {
        const uint16_t half = dtype == DTYPE_F16 ? f16_from_float(values[i]) : bf16_from_float(values[i]);
        memcpy(data + i * dtype_bytes(dtype), dtype == DTYPE_F32 ? (const void *)&values[i] : &half,
               dtype_bytes(dtype));
    }
}

/* By every name that writers use; of layers beyond the model's and of names without a layer nothing is found. */
TEST(scales_of_a_cache_are_found)
{
    static const struct test_quantised what = {TEST_CT_FLOAT8, 0, 8, 32, 0, 8, DTYPE_BF16, 0};
    static const float two[2] = {0.5f, 0.25f};
    float found[6] = {0, 0, 0, 0, 0, 0};
    test_quantised_add(&checkpoint, FIRST, &what);
    add_scale("model.layers.0.self_attn.k_scale", DTYPE_F32, 1, two);
    add_scale("model.layers.0.self_attn.v_scale", DTYPE_BF16, 2, two);
    add_scale("model.layers.1.self_attn.k_proj.k_scale", DTYPE_F16, 1, two);
    add_scale("model.layers.1.self_attn.v_proj.v_scale", DTYPE_F16, 1, two + 1);
    add_scale("model.layers.2.self_attn.kv_scale", DTYPE_F32, 1, two);
    add_scale("model.layers.3.self_attn.k_proj.output_scale", DTYPE_F32, 1, two);
    add_scale("model.layers.3.self_attn.v_proj.output_scale", DTYPE_F32, 1, two);
    add_scale("model.layers.3.self_attn.q_proj.output_scale", DTYPE_F32, 1, two);
    add_scale("model.layers.99.self_attn.k_scale", DTYPE_F32, 1, two);
    add_scale("model.layers.99999999999999999999.self_attn.k_scale", DTYPE_F32, 1, two);
    add_scale("model.v_scale", DTYPE_F32, 1, two);
    test_expect_success(open_checkpoint(), &status);
    assert_int_equal(result.cache_scale_count, 8);
    for (uint64_t layer = 0; layer < 4; layer++) {
        const struct quantised_cache_scales scales = scales_of(layer);
        assert_non_null(scales.k);
        assert_non_null(scales.v);
        assert_int_equal(scales.k == scales.v, layer == 2);
    }
    assert_null(scales_of(4).k);
    test_expect_success(quantised_read_cache_scales(scales_of(0).k, 3, 2, 1e-9f, 1, found, &status), &status);
    assert_true(found[0] == 0.5f && found[1] == 0 && found[2] == 0.5f && found[3] == 0 && found[4] == 0.5f);
    test_expect_success(quantised_read_cache_scales(scales_of(0).v, 2, 1, 1e-9f, 1, found, &status), &status);
    assert_true(found[0] == 0.5f && found[1] == 0.25f);
    test_expect_success(quantised_read_cache_scales(scales_of(1).v, 1, 1, 0.25f, 0.25f, found, &status), &status);
    assert_true(found[0] == 0.25f);
}

TEST(scales_of_a_cache_that_do_not_fit_are_refused)
{
    static const struct test_quantised what = {TEST_CT_FLOAT8, 0, 8, 32, 0, 8, DTYPE_BF16, 0};
    static const float bad[] = {0, -1, NAN, INFINITY, 1e-8f, 2};
    struct quantised_cache_scales scales[2];
    float found[4];
    test_quantised_add(&checkpoint, FIRST, &what);
    add_scale("model.layers.1.self_attn.k_scale", DTYPE_F32, 1, bad + 5);
    test_expect_success(open_checkpoint(), &status);
    test_expect_success(quantised_find_cache_scales(&result, 1, NULL, NULL, scales, &status), &status);
    test_expect_failure(quantised_find_cache_scales(&result, 2, NULL, NULL, scales, &status), &status, STATUS_BAD_INPUT,
                        "layers.1.self_attn.k_scale|keys, but layer 1|values");
    add_scale("model.layers.1.self_attn.kv_scale", DTYPE_F32, 1, bad + 5);
    quantised_close(&result);
    test_expect_success(open_checkpoint(), &status);
    test_expect_failure(quantised_find_cache_scales(&result, 2, NULL, NULL, scales, &status), &status, STATUS_BAD_INPUT,
                        "self_attn.k_scale|self_attn.kv_scale|expected one");
    static const bool first[2] = {true};
    test_expect_success(quantised_find_cache_scales(&result, 2, first, NULL, scales, &status), &status);
    assert_null(scales[1].k);
    test_expect_success(quantised_find_cache_scales(&result, 2, NULL, "model.layers.1.", scales, &status), &status);
    assert_null(scales[1].k);
    quantised_close(&result);
    free_checkpoint(NULL);
    test_quantised_add(&checkpoint, FIRST, &what);
    add_scale("model.layers.0.self_attn.kv_scale", DTYPE_F32, 6, bad);
    add_scale("model.layers.1.self_attn.kv_scale", DTYPE_BF16, 3, bad);
    test_quantised_tensor(&checkpoint, "model.layers.2.self_attn.kv_scale", DTYPE_I32, 1, 1, 0);
    test_expect_success(open_checkpoint(), &status);
    struct tensor_view numbers = result.cache_scales[0];
    numbers.shape[0] = 1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        test_expect_failure(quantised_read_cache_scales(&numbers, 2, 1, 1e-7f, 1, found, &status), &status,
                            STATUS_BAD_INPUT, "layers.0|from 1e-07 to 1|found");
        numbers.data = (const uint8_t *)numbers.data + sizeof *bad;
    }
    test_expect_failure(quantised_read_cache_scales(&result.cache_scales[1], 2, 1, 1e-7f, 1, found, &status), &status,
                        STATUS_BAD_INPUT, "layers.1|1 or 2 numbers|BF16 [3]");
    test_expect_failure(quantised_read_cache_scales(&result.cache_scales[2], 2, 1, 1e-7f, 1, found, &status), &status,
                        STATUS_BAD_INPUT, "layers.2|F32, F16 or BF16|I32 [1]");
}

/* What changes the result of a layer beside its weights must not vanish. */
TEST(other_tensors_stay_or_are_refused)
{
    static const char *const names[] = {FIRST ".pre_quant_scale", FIRST ".scales2", "model.layers.0.mlp.act.scales"};
    static const struct test_quantised what = {TEST_MODELOPT_NVFP4, 0, 8, 32, 16, 4, DTYPE_F8_E4M3, 0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        free_checkpoint(NULL);
        test_quantised_add(&checkpoint, FIRST, &what);
        test_quantised_tensor(&checkpoint, names[i], DTYPE_BF16, 1, 32, 0);
        if (open_checkpoint())
            expect_result(&names[i], 1);
        else
            test_expect_message(&status, names[i]);
    }
}

TEST(a_plain_checkpoint_stays)
{
    static const char *const names[] = {"a.weight", "b.weight"};
    for (size_t count = 0; count <= 2; count++) {
        free_checkpoint(NULL);
        for (size_t i = 0; i < count; i++) test_quantised_tensor(&checkpoint, names[i], DTYPE_BF16, 2, 3, 4);
        test_expect_success(open_checkpoint(), &status);
        expect_result(names, count);
    }
}

TEST(codes_that_are_no_numbers)
{
    float values[3];
    test_quantised_add(&checkpoint, FIRST,
                       &(struct test_quantised){TEST_FP8_SCALE, TEST_SCALAR, 4, 8, 0, 8, DTYPE_F32, 0});
    uint8_t *codes = (uint8_t *)test_quantised_find(&checkpoint, "weight")->data;
    codes[9] = 0x7f, codes[10] = 0xff;
    test_expect_success(open_checkpoint(), &status);
    quantised_read(find(FIRST ".weight")->quantised, 1, 0, 3, values);
    assert_true(isfinite(values[0]) && isnan(values[1]) && isnan(values[2]));
}

/* All codes of a row without range are 0, and so may its scale be. */
TEST(scales_of_zero)
{
    static const struct test_quantised cases[] = {{TEST_GPTQ, TEST_SYMMETRIC, 32, 64, 32, 4, DTYPE_F16, 0},
                                                  {TEST_CT_PACKED, TEST_SYMMETRIC, 8, 64, 32, 4, DTYPE_BF16, 0},
                                                  {TEST_CT_FLOAT8, 0, 8, 64, 0, 8, DTYPE_BF16, 0},
                                                  {TEST_CT_NVFP4, 0, 8, 64, 16, 4, DTYPE_F8_E4M3, 0}};
    static const char *const scales[] = {"scales", "weight_scale", "weight_scale", "weight_scale"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float value;
        free_checkpoint(NULL);
        test_quantised_add(&checkpoint, FIRST, &cases[i]);
        memset((uint8_t *)test_quantised_find(&checkpoint, scales[i])->data, 0, 2);
        test_expect_success(open_checkpoint(), &status);
        quantised_read(find(FIRST ".weight")->quantised, 0, 0, 1, &value);
        assert_true(value == 0);
    }
}

int main(void) { return test_run_with(NULL, new_checkpoint, free_checkpoint, NULL); }
