/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised modules of every container, damaged: each is refused by name. */
#include "formats/checkpoint/quantised.h"

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

/* Changes to the first of two modules before they are opened */
enum damage { DROP, DTYPE, SHORTER, RESHAPE, HUGE_SHAPE, VALUE, TEXT, BITS, GROUP, IS_FLOAT, SYMMETRIC, METHOD, BLOCK };

struct damaged {
    const struct test_quantised *what;
    enum damage damage;
    const char *suffix; /* after the module */
    uint64_t a, b;      /* DTYPE: a; RESHAPE: [a] or [a, b]; VALUE: element a becomes b; others: a */
    const char *text;   /* TEXT */
};

static const struct test_quantised gptq_v2 = {TEST_GPTQ, TEST_ACT_ORDER, 32, 96, 32, 4, DTYPE_F16, 0},
                                   gptq_plain = {TEST_GPTQ, TEST_TRIVIAL, 32, 96, 32, 4, DTYPE_F16, 0},
                                   gptq_v1 = {TEST_GPTQ, TEST_LESS_ONE, 32, 96, 32, 4, DTYPE_F16, 0},
                                   gptq_same = {TEST_GPTQ, TEST_SYMMETRIC, 32, 96, 32, 4, DTYPE_F16, 0},
                                   gptq_float = {TEST_GPTQ, TEST_SYMMETRIC, 32, 96, 0, 4, DTYPE_F32, 0},
                                   gemm = {TEST_AWQ_GEMM, 0, 40, 96, 32, 4, DTYPE_F16, 0},
                                   gemv = {TEST_AWQ_GEMV, 0, 24, 96, 32, 4, DTYPE_F16, 0},
                                   fast = {TEST_AWQ_FAST, 0, 24, 192, 64, 4, DTYPE_F16, 0},
                                   packed = {TEST_CT_PACKED, TEST_ACT_ORDER, 24, 96, 32, 4, DTYPE_BF16, 0},
                                   packed_same = {TEST_CT_PACKED, TEST_SYMMETRIC, 24, 96, 32, 4, DTYPE_BF16, 0},
                                   int8 = {TEST_CT_INT8, TEST_SYMMETRIC, 12, 50, 0, 8, DTYPE_BF16, 0},
                                   int8_zeros = {TEST_CT_INT8, 0, 12, 50, 0, 8, DTYPE_BF16, 0},
                                   float8 = {TEST_CT_FLOAT8, 0, 12, 50, 0, 8, DTYPE_F32, 0},
                                   nvfp4 = {TEST_CT_NVFP4, 0, 12, 80, 16, 4, DTYPE_F8_E4M3, 0},
                                   mxfp4 = {TEST_CT_MXFP4, 0, 12, 96, 32, 4, DTYPE_U8, 0},
                                   mxfp8 = {TEST_CT_MXFP8, 0, 12, 96, 32, 8, DTYPE_U8, 0},
                                   blocks = {TEST_FP8_INVERSE, 0, 192, 320, 128, 8, DTYPE_F32, 128},
                                   powers = {TEST_FP8_INVERSE, 0, 192, 320, 128, 8, DTYPE_U8, 128},
                                   scalar = {TEST_FP8_SCALE, TEST_TENSOR, 12, 50, 0, 8, DTYPE_F32, 0},
                                   opt8 = {TEST_MODELOPT_FP8, TEST_SCALAR, 12, 50, 0, 8, DTYPE_F32, 0},
                                   opt4 = {TEST_MODELOPT_NVFP4, 0, 12, 80, 16, 4, DTYPE_F8_E4M3, 0},
                                   nf4 = {TEST_BNB_4BIT, 0, 12, 96, 64, 4, DTYPE_F32, 0},
                                   nested = {TEST_BNB_4BIT, TEST_NESTED, 12, 96, 64, 4, DTYPE_U8, 0},
                                   bytes = {TEST_BNB_INT8, 0, 12, 50, 0, 8, DTYPE_F32, 0};

#define STATE "weight.quant_state.bitsandbytes__nf4"
static const struct damaged damages[] = {
    {&gptq_v2, DROP, "qzeros", 0, 0, NULL},
    {&gptq_v2, DROP, "scales", 0, 0, NULL},
    {&gptq_v2, DTYPE, "qweight", DTYPE_F32, 0, NULL},
    {&gptq_v2, DTYPE, "qzeros", DTYPE_I64, 0, NULL},
    {&gptq_v2, DTYPE, "scales", DTYPE_I32, 0, NULL},
    {&gptq_v2, DTYPE, "g_idx", DTYPE_F32, 0, NULL},
    {&gptq_v2, SHORTER, "qweight", 0, 0, NULL},
    {&gptq_v2, SHORTER, "qzeros", 0, 0, NULL},
    {&gptq_v2, SHORTER, "scales", 0, 0, NULL},
    {&gptq_v2, RESHAPE, "g_idx", 88, 0, NULL},
    {&gptq_v2, RESHAPE, "qweight", 13, 32, NULL},
    {&gptq_v2, RESHAPE, "qweight", 12, 33, NULL},
    {&gptq_v2, RESHAPE, "qweight", 12 * 32, 0, NULL},
    {&gptq_v2, RESHAPE, "qzeros", 4, 4, NULL},
    {&gptq_v2, RESHAPE, "scales", 2, 32, NULL},
    {&gptq_v2, RESHAPE, "scales", 96, 0, NULL},
    {&gptq_v2, HUGE_SHAPE, "qweight", UINT64_C(1) << 62, 0, NULL},
    {&gptq_v2, DROP, "g_idx", 0, 0, NULL},
    {&gptq_v2, VALUE, "g_idx", 5, UINT32_MAX, NULL},
    {&gptq_v2, VALUE, "g_idx", 5, 3, NULL},
    {&gptq_v2, VALUE, "g_idx", 5, INT32_MAX, NULL},
    {&gptq_plain, VALUE, "g_idx", 5, 1, NULL},
    {&gptq_plain, VALUE, "g_idx", 95, 0, NULL},
    {&gptq_v2, VALUE, "scales", 7, 0x7e00, NULL},
    {&gptq_v2, VALUE, "scales", 95, 0xfc00, NULL},
    {&gptq_float, VALUE, "scales", 31, 0x7fc00000, NULL},
    {&gptq_v2, BITS, NULL, 8, 0, NULL},
    {&gptq_v2, BITS, NULL, 3, 0, NULL},
    {&gptq_v2, GROUP, NULL, 64, 0, NULL},
    {&gptq_v2, METHOD, NULL, QUANT_FP8, 0, NULL},
    {&gptq_v1, VALUE, "qzeros", 2, 0xfffffff7, NULL},
    {&gptq_same, VALUE, "qzeros", 0, 0x88888878, NULL},
    {&gptq_same, VALUE, "qzeros", 11, 0x38888888, NULL},
    {&gemm, DROP, "scales", 0, 0, NULL},
    {&gemm, DROP, "qzeros", 0, 0, NULL},
    {&gemm, DTYPE, "qweight", DTYPE_I16, 0, NULL},
    {&gemm, DTYPE, "scales", DTYPE_I16, 0, NULL},
    {&gemm, SHORTER, "qweight", 0, 0, NULL},
    {&gemm, SHORTER, "qzeros", 0, 0, NULL},
    {&gemm, SHORTER, "scales", 0, 0, NULL},
    {&gemm, RESHAPE, "qweight", 64, 5, NULL},
    {&gemm, VALUE, "scales", 100, 0x7c00, NULL},
    {&gemm, BITS, NULL, 8, 0, NULL},
    {&gemm, GROUP, NULL, 128, 0, NULL},
    {&gemv, DROP, "qzeros", 0, 0, NULL},
    {&gemv, DROP, "scales", 0, 0, NULL},
    {&gemv, SHORTER, "qzeros", 0, 0, NULL},
    {&gemv, SHORTER, "scales", 0, 0, NULL},
    {&gemm, SYMMETRIC, NULL, 1, 0, NULL},
    {&gemv, SYMMETRIC, NULL, 1, 0, NULL},
    {&gemv, VALUE, "scales", 0, 0x7c01, NULL},
    {&gemv, GROUP, NULL, 96, 0, NULL},
    {&gemv, GROUP, NULL, 64, 0, NULL},
    {&fast, GROUP, NULL, 192, 0, NULL},
    {&fast, SYMMETRIC, NULL, 1, 0, NULL},
    {&fast, DROP, "qzeros", 0, 0, NULL},
    {&fast, DTYPE, "qweight", DTYPE_I32, 0, NULL},
    {&fast, DTYPE, "qzeros", DTYPE_I32, 0, NULL},
    {&fast, SHORTER, "qweight", 0, 0, NULL},
    {&fast, SHORTER, "scales", 0, 0, NULL},
    {&fast, SHORTER, "qzeros", 0, 0, NULL},
    {&fast, VALUE, "qzeros", 24, 0x7e00, NULL},
    {&packed, DROP, "weight_scale", 0, 0, NULL},
    {&packed, DROP, "weight_zero_point", 0, 0, NULL},
    {&packed, DROP, "weight_shape", 0, 0, NULL},
    {&packed, DTYPE, "weight_packed", DTYPE_I64, 0, NULL},
    {&packed, DTYPE, "weight_scale", DTYPE_I32, 0, NULL},
    {&packed, DTYPE, "weight_shape", DTYPE_F32, 0, NULL},
    {&packed, SHORTER, "weight_packed", 0, 0, NULL},
    {&packed, SHORTER, "weight_scale", 0, 0, NULL},
    {&packed, SHORTER, "weight_shape", 0, 0, NULL},
    {&packed, SHORTER, "weight_zero_point", 0, 0, NULL},
    {&packed, SHORTER, "weight_g_idx", 0, 0, NULL},
    {&packed, VALUE, "weight_shape", 0, 25, NULL},
    {&packed, VALUE, "weight_shape", 1, 104, NULL},
    {&packed, VALUE, "weight_shape", 1, UINT64_MAX, NULL},
    {&packed, VALUE, "weight_shape", 1, UINT64_C(1) << 60, NULL},
    {&packed, DROP, "weight_g_idx", 0, 0, NULL},
    {&packed, VALUE, "weight_g_idx", 0, 3, NULL},
    {&packed, VALUE, "weight_scale", 71, 0x7f80, NULL},
    {&packed, BITS, NULL, 8, 0, NULL},
    {&packed, SYMMETRIC, NULL, 1, 0, NULL},
    {&packed_same, GROUP, NULL, 96, 0, NULL},
    {&packed_same, RESHAPE, "weight_scale", 24, 1, NULL},
    {&packed_same, METHOD, NULL, QUANT_GPTQ, 0, NULL},
    {&int8, DTYPE, "weight_scale", DTYPE_I32, 0, NULL},
    {&int8, SHORTER, "weight_scale", 0, 0, NULL},
    {&int8, RESHAPE, "weight_scale", 12, 3, NULL},
    {&int8, RESHAPE, "weight_scale", 11, 1, NULL},
    {&int8, VALUE, "weight_scale", 11, 0x7fc0, NULL},
    {&int8, IS_FLOAT, NULL, 1, 0, NULL},
    {&int8_zeros, SYMMETRIC, NULL, 1, 0, NULL},
    {&int8_zeros, SHORTER, "weight_zero_point", 0, 0, NULL},
    {&int8_zeros, DROP, "weight_zero_point", 0, 0, NULL},
    {&float8, DTYPE, "weight_scale", DTYPE_I64, 0, NULL},
    {&float8, IS_FLOAT, NULL, 0, 0, NULL},
    {&float8, RESHAPE, "weight_scale", 13, 1, NULL},
    {&float8, VALUE, "weight_scale", 3, 0xff800000, NULL},
    {&nvfp4, DROP, "weight_scale", 0, 0, NULL},
    {&nvfp4, DROP, "weight_global_scale", 0, 0, NULL},
    {&nvfp4, DTYPE, "weight_packed", DTYPE_I32, 0, NULL},
    {&nvfp4, DTYPE, "weight_scale", DTYPE_F32, 0, NULL},
    {&nvfp4, SHORTER, "weight_scale", 0, 0, NULL},
    {&nvfp4, RESHAPE, "weight_packed", 12, 32, NULL},
    {&nvfp4, RESHAPE, "weight_global_scale", 2, 0, NULL},
    {&nvfp4, VALUE, "weight_global_scale", 0, 0, NULL},
    {&nvfp4, VALUE, "weight_global_scale", 0, 0x7fc00000, NULL},
    {&nvfp4, VALUE, "weight_scale", 59, 0x7f, NULL},
    {&mxfp4, DROP, "weight_scale", 0, 0, NULL},
    {&mxfp4, SHORTER, "weight_scale", 0, 0, NULL},
    {&mxfp4, VALUE, "weight_scale", 35, 0xff, NULL},
    {&mxfp4, BITS, NULL, 8, 0, NULL},
    {&mxfp4, GROUP, NULL, 64, 0, NULL},
    {&nvfp4, GROUP, NULL, 32, 0, NULL},
    {&mxfp8, GROUP, NULL, 96, 0, NULL},
    {&opt8, BITS, NULL, 4, 0, NULL},
    {&opt4, BITS, NULL, 8, 0, NULL},
    {&mxfp8, SHORTER, "weight_scale", 0, 0, NULL},
    {&mxfp8, VALUE, "weight_scale", 0, 0xff, NULL},
    {&blocks, DTYPE, "weight_scale_inv", DTYPE_I32, 0, NULL},
    {&blocks, SHORTER, "weight_scale_inv", 0, 0, NULL},
    {&blocks, RESHAPE, "weight_scale_inv", 1, 3, NULL},
    {&blocks, RESHAPE, "weight_scale_inv", 6, 0, NULL},
    {&blocks, RESHAPE, "weight_scale_inv", 2, 2, NULL},
    {&blocks, VALUE, "weight_scale_inv", 5, 0x7f800000, NULL},
    {&blocks, HUGE_SHAPE, "weight_scale_inv", UINT64_MAX, 0, NULL},
    {&blocks, BLOCK, NULL, 64, 0, NULL},
    {&powers, VALUE, "weight_scale_inv", 5, 0xff, NULL},
    {&scalar, RESHAPE, "weight_scale", 2, 0, NULL},
    {&scalar, DTYPE, "weight_scale", DTYPE_I32, 0, NULL},
    {&scalar, VALUE, "weight_scale", 0, 0x7fc00000, NULL},
    {&opt8, VALUE, "weight_scale", 0, 0x7f800000, NULL},
    {&opt4, DROP, "weight_scale", 0, 0, NULL},
    {&opt4, DROP, "weight_scale_2", 0, 0, NULL},
    {&opt4, DTYPE, "weight_scale", DTYPE_U8, 0, NULL},
    {&opt4, DTYPE, "weight_scale_2", DTYPE_I32, 0, NULL},
    {&opt4, SHORTER, "weight_scale", 0, 0, NULL},
    {&opt4, RESHAPE, "weight", 12, 32, NULL},
    {&opt4, VALUE, "weight_scale", 0, 0xff, NULL},
    {&opt4, VALUE, "weight_scale_2", 0, 0x7f800000, NULL},
    {&nf4, DROP, "weight.absmax", 0, 0, NULL},
    {&nf4, DROP, "weight.quant_map", 0, 0, NULL},
    {&nf4, DROP, STATE, 0, 0, NULL},
    {&nf4, DTYPE, "weight.absmax", DTYPE_I32, 0, NULL},
    {&nf4, SHORTER, "weight.absmax", 0, 0, NULL},
    {&nf4, SHORTER, "weight.quant_map", 0, 0, NULL},
    {&nf4, RESHAPE, "weight", 575, 1, NULL},
    {&nf4, VALUE, "weight.absmax", 17, 0x7fc00000, NULL},
    {&nf4, VALUE, "weight.quant_map", 15, 0x7f800000, NULL},
    {&nf4, TEXT, STATE, 0, 0, "{"},
    {&nf4, TEXT, STATE, 0, 0, "[]"},
    {&nf4, TEXT, STATE, 0, 0, "{'quant_type': 'nf4', 'blocksize': 0, 'dtype': 'float16', 'shape': [12, 96]}"},
    {&nf4, TEXT, STATE, 0, 0, "{'quant_type': 'nf4', 'blocksize': 128, 'dtype': 'float16', 'shape': [12, 96]}"},
    {&nf4, TEXT, STATE, 0, 0, "{'quant_type': 'nf4', 'blocksize': 64, 'dtype': 'float16', 'shape': [12, 97]}"},
    {&nf4, TEXT, STATE, 0, 0, "{'quant_type': 'nf4', 'blocksize': 64, 'dtype': 'float16', 'shape': [1152]}"},
    {&nf4, TEXT, STATE, 0, 0, "{'quant_type': 'nf4', 'blocksize': 64, 'dtype': 'float16', 'shape': [-12, -96]}"},
    /* The product is 1152 modulo 2^64. */
    {&nf4, TEXT, STATE, 0, 0, "{'quant_type': 'nf4', 'blocksize': 64, 'shape': [4611686018427387906, 576]}"},
    {&nested, DROP, "weight.nested_absmax", 0, 0, NULL},
    {&nested, DROP, "weight.nested_quant_map", 0, 0, NULL},
    {&nested, SHORTER, "weight.nested_absmax", 0, 0, NULL},
    {&nested, SHORTER, "weight.nested_quant_map", 0, 0, NULL},
    {&nested, VALUE, "weight.nested_absmax", 0, 0x7f800000, NULL},
    {&nested, VALUE, "weight.nested_quant_map", 255, 0x7fc00000, NULL},
    {&nested, TEXT, STATE, 0, 0,
     "{'quant_type': 'nf4', 'blocksize': 64, 'shape': [12, 96], 'nested_blocksize': 0, 'nested_offset': 0.5}"},
    {&bytes, DTYPE, "SCB", DTYPE_I32, 0, NULL},
    {&bytes, SHORTER, "SCB", 0, 0, NULL},
    {&bytes, VALUE, "SCB", 11, 0x7fc00000, NULL},
};

static void drop(struct tensor_view *view)
{
    free((char *)view->name);
    free((uint8_t *)view->data - 1);
    *view = checkpoint.tensors[--checkpoint.count];
}

static void do_damage(const struct damaged *damaged)
{
    struct quant_scheme *scheme = &checkpoint.config.schemes[0];
    struct tensor_view *view = damaged->suffix ? test_quantised_find(&checkpoint, damaged->suffix) : NULL;
    switch (damaged->damage) {
    case DROP: drop(view); break;
    case DTYPE: view->dtype = (enum dtype)damaged->a, test_quantised_resize(view); break;
    case SHORTER: view->shape[view->rank - 1]--, test_quantised_resize(view); break;
    case RESHAPE:
        view->rank = damaged->b ? 2 : 1;
        view->shape[0] = damaged->a, view->shape[1] = damaged->b;
        test_quantised_resize(view);
        break;
    case HUGE_SHAPE: view->shape[0] = damaged->a; break;
    case VALUE: {
        const size_t size = dtype_bytes(view->dtype);
        assert_true((damaged->a + 1) * size <= view->bytes);
        memcpy((uint8_t *)view->data + damaged->a * size, &damaged->b, size); /* lowest byte first */
        break;
    }
    case TEXT:
        view->shape[0] = strlen(damaged->text);
        test_quantised_resize(view);
        memcpy((uint8_t *)view->data, test_json(damaged->text), strlen(damaged->text));
        break;
    case BITS: scheme->bits = (uint32_t)damaged->a; break;
    case GROUP: scheme->group_size = damaged->a; break;
    case IS_FLOAT: scheme->is_float = damaged->a; break;
    case SYMMETRIC: scheme->symmetric = damaged->a; break;
    case METHOD: checkpoint.config.method = (enum quant_method)damaged->a; break;
    case BLOCK: checkpoint.config.block_rows = checkpoint.config.block_columns = damaged->a; break;
    }
}

TEST(damage_is_refused)
{
    int failures = 0;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        free_checkpoint(NULL);
        test_quantised_add(&checkpoint, FIRST, damages[i].what);
        test_quantised_add(&checkpoint, SECOND, damages[i].what);
        do_damage(&damages[i]);
        status_clear(&status);
        const bool opened = open_checkpoint();
        if (!opened && status.code == STATUS_BAD_INPUT && strstr(status.message, FIRST) && !result.tensors) continue;
        /* Codes of a type that no container has are no module, and nothing reads them. */
        if (opened && damages[i].damage == DTYPE && !find(FIRST ".weight") &&
            find(test_text(FIRST ".%s", damages[i].suffix)))
            continue;
        fprintf(stderr, "damage %zu (container %d, damage %d of %s, %llu, %llu): %s\n", i,
                (int)damages[i].what->container, (int)damages[i].damage,
                damages[i].suffix ? damages[i].suffix : "the config", (unsigned long long)damages[i].a,
                (unsigned long long)damages[i].b, opened ? "accepted" : status.message);
        failures++;
    }
    assert_int_equal(failures, 0);
}

/* A matrix without elements, whose number of columns is no number of 64 bits */
TEST(too_many_columns)
{
    checkpoint.config = (struct quant_config){.method = QUANT_GPTQ,
                                              .name = "gptq",
                                              .schemes = {{false, 4, 0, true}},
                                              .scheme_count = 1};
    test_quantised_tensor(&checkpoint, FIRST ".qweight", DTYPE_I32, 2, 0, 0);
    test_quantised_tensor(&checkpoint, FIRST ".qzeros", DTYPE_I32, 2, 1, 0);
    test_quantised_tensor(&checkpoint, FIRST ".scales", DTYPE_F16, 2, 1, 0);
    test_quantised_find(&checkpoint, FIRST ".qweight")->shape[0] = UINT64_C(1) << 62;
    test_expect_failure(open_checkpoint(), &status, STATUS_BAD_INPUT, FIRST);
}

int main(void) { return test_run_with(NULL, new_checkpoint, free_checkpoint, NULL); }
