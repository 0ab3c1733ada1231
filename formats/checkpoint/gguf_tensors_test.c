/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/gguf_model.h"

#include <math.h>

#include "formats/base/test_support.h"
#include "formats/checkpoint/test_gguf.h"

static struct status status;
static struct test_gguf writer;
static struct gguf file;
static uint8_t *image;
static size_t image_bytes;

static int close_all(void **state)
{
    gguf_free(&file);
    free(image);
    image = NULL;
    return 0;
}

static int begin(void **state)
{
    test_gguf_begin(&writer);
    return 0;
}

/* Parses what was written so far. */
static bool parse(void)
{
    close_all(NULL);
    image = test_gguf_end(&writer, &image_bytes);
    return gguf_parse(&file, image, image_bytes, "m.gguf", &status);
}

/* ---- tensors ---- */

static const char *model_type = "llama";

static void expect_tensors(struct quantised_tensors *tensors)
{
    test_expect_success(parse(), &status);
    test_expect_success(gguf_read_tensors(&file, model_type, tensors, &status), &status);
}

TEST(test_names)
{
    static const char *const names[][2] = {
        {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
        {"blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"},
        {"blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"},
        {"blk.12.attn_output.weight", "model.layers.12.self_attn.o_proj.weight"},
        {"blk.7.ffn_norm.weight", "model.layers.7.post_attention_layernorm.weight"},
        {"blk.1023.ffn_gate.weight", "model.layers.1023.mlp.gate_proj.weight"},
        {"token_embd.weight", "model.embed_tokens.weight"},
        {"output_norm.weight", "model.norm.weight"},
        {"output.weight", "lm_head.weight"},
    };
    static const char *const unknown[] = {"blk.0.attn_q",
                                          "blk.00.attn_q.weight",
                                          "blk..attn_q.weight",
                                          "blk.0.weight",
                                          "blk.0.attn_qkv.weight",
                                          "blk.x.attn_q.weight",
                                          "output.scale",
                                          "attn_q.weight",
                                          "blk.123456.attn_q.weight",
                                          "blk.0.output.weight",
                                          "blk.0.attn_q.weight.weight"};
    struct quantised_tensors tensors;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        test_gguf_begin(&writer);
        test_gguf_tensor(&writer, names[i][0], GGUF_TENSOR_F16, 2, 3, (const uint16_t[]){1, 2, 3, 4, 5, 6}, 12);
        test_gguf_tensor(&writer, "rope_freqs.weight", GGUF_TENSOR_F32, 0, 2, NULL, 8);
        expect_tensors(&tensors);
        assert_int_equal(tensors.count, 1);
        assert_string_equal(tensors.tensors[0].name, names[i][1]);
        assert_int_equal(tensors.tensors[0].dtype, DTYPE_F16);
        assert_int_equal(tensors.tensors[0].shape[0], 2);
        assert_int_equal(tensors.tensors[0].shape[1], 3);
        assert_int_equal(((const uint8_t *)tensors.tensors[0].data)[4], 3);
        quantised_close(&tensors);
    }
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        test_gguf_begin(&writer);
        test_gguf_tensor(&writer, unknown[i], GGUF_TENSOR_F16, 0, 1, NULL, 2);
        test_expect_success(parse(), &status);
        test_expect_failure(gguf_read_tensors(&file, model_type, &tensors, &status), &status, STATUS_BAD_INPUT,
                            test_text("m.gguf|'%s' is not known", unknown[i]));
        quantised_close(&tensors);
    }
    test_gguf_begin(&writer);
    test_gguf_tensor(&writer, "output.weight", GGUF_TENSOR_Q8_0, 0, 32, NULL, 34);
    test_expect_success(parse(), &status);
    test_expect_failure(gguf_read_tensors(&file, model_type, &tensors, &status), &status, STATUS_BAD_INPUT,
                        "'output.weight'|expected a matrix|Q8_0");
    quantised_close(&tensors);
}

/* A tensor of all experts is one for each, whose rows and blocks follow each other. */
TEST(test_experts)
{
    static const struct {
        const char *model_type, *part, *router, *names[2];
    } cases[] = {
        {"mixtral",
         "blk.3.ffn_down_exps.weight",
         "model.layers.3.block_sparse_moe.gate.weight",
         {"model.layers.3.block_sparse_moe.experts.0.w2.weight",
          "model.layers.3.block_sparse_moe.experts.1.w2.weight"}},
        {"qwen3_moe",
         "blk.3.ffn_gate_exps.weight",
         "model.layers.3.mlp.gate.weight",
         {"model.layers.3.mlp.experts.0.gate_proj.weight", "model.layers.3.mlp.experts.1.gate_proj.weight"}},
    };
    uint8_t blocks[2 * 3 * 34];
    struct quantised_tensors tensors;
    for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = (uint8_t)(i % 34 == 0 ? 0 : i % 34 == 1 ? 0x3c : i / 34);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int coded = 0; coded < 2; coded++) {
            model_type = cases[i].model_type;
            test_gguf_begin(&writer);
            test_gguf_tensor(&writer, cases[i].part, coded ? GGUF_TENSOR_Q8_0 : GGUF_TENSOR_F16, 6, 32,
                             coded ? blocks : NULL, coded ? sizeof blocks : 384);
            test_gguf_tensor(&writer, "blk.3.ffn_gate_inp.weight", GGUF_TENSOR_F32, 2, 4, NULL, 32);
            test_expect_success(parse(), &status);
            struct gguf_tensor *all = &file.tensors[strcmp(file.tensors[0].name, cases[i].part) != 0];
            all->rank = 3;
            all->shape[0] = 2, all->shape[1] = 3, all->shape[2] = 32;
            test_expect_success(gguf_read_tensors(&file, model_type, &tensors, &status), &status);
            assert_int_equal(tensors.count, 3);
            bool has_router = false;
            for (size_t t = 0; t < 3; t++) {
                const struct tensor_view *view = &tensors.tensors[t];
                assert_int_equal(view->rank, 2);
                has_router |= strcmp(view->name, cases[i].router) == 0;
                for (int e = 0; e < 2; e++) {
                    float value;
                    if (strcmp(view->name, cases[i].names[e]) != 0) continue;
                    assert_int_equal(view->shape[0], 3);
                    assert_int_equal(view->shape[1], 32);
                    assert_int_equal(view->quantised != NULL, coded);
                    if (!coded) {
                        assert_int_equal(view->bytes, 192);
                        assert_true((const uint8_t *)view->data == all->data + 192 * e);
                        continue;
                    }
                    quantised_read(view->quantised, 2, 31, 1, &value);
                    assert_true(value == (float)(3 * e + 2));
                }
            }
            assert_true(has_router);
            quantised_close(&tensors);
            all->rank = 2;
            test_expect_failure(gguf_read_tensors(&file, model_type, &tensors, &status), &status, STATUS_BAD_INPUT,
                                test_text("'%s'|[experts, rows, columns]", cases[i].part));
            quantised_close(&tensors);
        }
    model_type = "llama";
    test_expect_failure(gguf_read_tensors(&file, model_type, &tensors, &status), &status, STATUS_BAD_INPUT,
                        "is not known");
    quantised_close(&tensors);
}

/* ---- blocks ---- */

enum { ELEMENTS = 1024, CHECKED = 15 };

/* Values that gguf.quants.dequantize (PyPI gguf 0.17) gives for the blocks that make_blocks makes, at these elements. */
static const int checked[CHECKED] = {0, 1, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 511, 700, 1023};
static const struct {
    enum gguf_tensor_type type;
    float values[CHECKED];
} recorded[] = {
    {GGUF_TENSOR_Q4_0,
     {-0x1.6bcp-7f, 0x1.6bcp-6f, 0x1.6bcp-7f, -0x0p+0f, -0x1.a86p-6f, 0x1.6bcp-5f, 0x1.a86p-5f, 0x1.c6bp-5f, 0x1.e5p-6f,
      0x1.2fp-6f, -0x1.6bcp-6f, 0x1.6bcp-5f, 0x1.e5p-8f, -0x1.e5p-8f, 0x1.2f2p-5f}},
    {GGUF_TENSOR_Q8_0,
     {0x1.bb52p-2f, 0x1.642cp-2f, 0x1.4d7p-5f, -0x1.8646p-2f, -0x1.1864p-2f, 0x1.6bcp-6f, -0x1.91a4p-2f, 0x1.5504p-2f,
      0x1.bf1cp-1f, 0x1.20ccp+1f, -0x1.8ddap-2f, -0x1.f428p-2f, 0x1.7ae8p-4f, 0x1.d5d8p-2f, 0x1.093cp-1f}},
    {GGUF_TENSOR_MXFP4,
     {0x1p-6f, -0x1.8p-7f, 0x1.8p-6f, 0x0p+0f, 0x1p-5f, 0x1.8p-4f, 0x1p-5f, 0x1p-3f, -0x1p-3f, -0x1.8p-2f, -0x1p+1f,
      0x1.8p+1f, -0x1.8p+0f, 0x1.8p-4f, -0x1p-1f}},
    {GGUF_TENSOR_Q4_K,
     {-0x1.a86p-1f, -0x1.a86p-1f, -0x1.e5p-3f, -0x1.f428p-1f, -0x1.5c98p-1f, -0x1.4d7p-1f, -0x1.45dcp+0f, -0x1.2f2p+0f,
      -0x1.ce44p-2f, -0x1.3105p+0f, -0x1.ee79p-1f, 0x1.513ap+1f, 0x1.f60dp+0f, 0x1.6611p-1f, -0x1.8fbfp+2f}},
    {GGUF_TENSOR_Q5_K,
     {-0x1.9938p+1f, -0x1.e5p+1f, -0x1.8646p+1f, -0x1.278cp+1f, -0x1.278cp+1f, -0x1.827cp-1f, -0x1.1864p-1f,
      -0x1.36b4p+2f, -0x1.b3bep-1f, -0x1.651e8p+0f, -0x1.5f6f8p+1f, 0x1.b2cb8p+2f, -0x1.e5p-5f, 0x1.012ecp+2f,
      -0x1.6a90ep+4f}},
    {GGUF_TENSOR_Q6_K,
     {-0x1.92d32p+2f, -0x1.7fa48p+2f, -0x1.7fa48p+0f, 0x1.1185ep+2f, -0x1.a6b7ap+2f, -0x1.46ce8p+1f, 0x1.3899p+2f,
      -0x0p+0f, 0x1.46ce8p+1f, -0x1.bfd1ep+2f, -0x1.7354p+1f, 0x1.483a4p+2f, -0x1.bb52p+0f, -0x1.3899p+2f,
      0x1.a86p-1f}},
    {GGUF_TENSOR_Q4_1,
     {-0x1.a86p-6f, -0x1.4d7p-5f, -0x1.e5p-8f, -0x1.8a1p-5f, -0x1.a86p-5f, 0x1.2f2p-4f, 0x1.6bcp-5f, 0x1.3e48p-3f,
      -0x1.e5p-5f, 0x1.2fp-5f, 0x1.6bcp-6f, 0x1.e5p-4f, 0x1.e5p-9f, -0x1.2f2p-5f, 0x1.6bcp-4f}},
    {GGUF_TENSOR_Q5_0,
     {-0x1.a86p-5f, -0x1.6bcp-5f, -0x1.10dp-5f, 0x1.10dp-5f, 0x1.6bcp-6f, 0x1.6bcp-5f, -0x1.6bcp-5f, 0x1.6bcp-5f,
      0x1.e5p-5f, -0x1.ec6p-3f, -0x1.278cp-3f, 0x1.a86p-3f, -0x0p+0f, 0x1.e5p-8f, -0x1.2f2p-5f}},
    {GGUF_TENSOR_Q5_1,
     {-0x1.a86p-6f, -0x1.a86p-6f, -0x1.a86p-5f, -0x1.e5p-6f, -0x1.4d7p-4f, 0x1.a86p-5f, 0x1.8a1p-4f, 0x1.aff4p-3f,
      0x0p+0f, 0x1.092p-3f, 0x1.9938p-4f, 0x1.6bcp-3f, -0x1.e5p-6f, -0x1.2f2p-4f, 0x1.2f2p-5f}},
    {GGUF_TENSOR_IQ4_NL,
     {-0x1.1ff8p-3f, 0x1.3a7ep-2f, 0x1.093cp-3f, -0x1.e5p-9f, -0x1.ac2ap-2f, 0x1.513ap-1f, 0x1.ac2ap-1f, 0x1.882bp-1f,
      0x1.4d7p-2f, 0x1.ec6p-3f, -0x1.f428p-3f, 0x1.1ff8p-1f, 0x1.4d7p-4f, -0x1.8a1p-4f, 0x1.0572p-1f}},
    {GGUF_TENSOR_Q2_K,
     {-0x1.2f2p-6f, -0x1.2f2p-6f, -0x1.2f2p-6f, -0x1.e5p-6f, -0x0p+0f, -0x1.1ff8p-4f, -0x1.6bcp-5f, -0x1.c6bp-4f,
      -0x1.4d7p-3f, -0x1.01a8p-4f, -0x1.6bcp-5f, -0x1.e5p-5f, -0x1.6bcp-5f, 0x1.3e48p-4f, -0x1.4d7p-2f}},
    {GGUF_TENSOR_Q3_K,
     {-0x1.6bcp-5f, 0x1.6bcp-5f, -0x0p+0f, -0x1.5c98p-4f, -0x0p+0f, 0x1.32eap-2f, -0x1.6bcp-2f, 0x1.6bcp-6f,
      0x1.2f2p-2f, -0x1.a86p-4f, 0x1.6bcp-4f, 0x1.f428p-2f, -0x1.6bcp-4f, 0x0p+0f, -0x1.2f2p-3f}},
    {GGUF_TENSOR_IQ4_XS,
     {-0x1.6bcp-4f, -0x1.6bcp-4f, -0x1.411f8p+3f, -0x1.278cp+0f, 0x1.c6bp-1f, -0x1.58cep-1f, 0x1.d029p+0f,
      -0x1.d029p+1f, 0x1.4d7p-4f, -0x1.76a4cp+2f, -0x1.91a4p+0f, 0x1.ea35cp+2f, -0x1.46ce8p+2f, -0x1.8ddap-1f,
      0x1.2712cp+5f}},
};

/* Bytes of a linear congruential generator; float16 scales are small numbers, some negative. */
static size_t make_blocks(enum gguf_tensor_type type, uint8_t *data)
{
    static const uint16_t halves[] = {0x1b94, 0x1f94, 0x21af, 0x2394, 0x24bc}; /* 0.0037 times 1 to 5 */
    const size_t bytes = gguf_block_bytes(type), blocks = ELEMENTS / gguf_block_columns(type);
    const bool two = type == GGUF_TENSOR_Q4_1 || type == GGUF_TENSOR_Q5_1 || type == GGUF_TENSOR_Q2_K ||
                     type == GGUF_TENSOR_Q4_K || type == GGUF_TENSOR_Q5_K;
    const int first = type == GGUF_TENSOR_Q2_K    ? 80
                      : type == GGUF_TENSOR_Q3_K  ? 108
                      : type == GGUF_TENSOR_Q6_K  ? 208
                      : type == GGUF_TENSOR_MXFP4 ? -1
                                                  : 0;
    const int places[2] = {first, two ? first + 2 : -1};
    uint32_t x = 12345;
    for (size_t i = 0; i < blocks * bytes; i++) {
        x = x * 1664525u + 1013904223u;
        data[i] = (uint8_t)(x >> 24);
    }
    for (size_t b = 0; b < blocks; b++) {
        if (type == GGUF_TENSOR_MXFP4) data[b * bytes] = (uint8_t)(120 + b % 9);
        for (size_t k = 0; k < 2; k++) {
            const uint16_t half = (uint16_t)(halves[b % 5] | ((b + k) % 3 == 0 ? 0x8000 : 0));
            if (places[k] >= 0) memcpy(data + b * bytes + places[k], &half, sizeof half);
        }
    }
    return blocks * bytes;
}

static float half(const uint8_t *data)
{
    uint16_t value;
    memcpy(&value, data, sizeof value);
    return f16_to_float(value);
}

static void scale_and_minimum(const uint8_t *s, int i, int *scale, int *minimum)
{
    *scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
    *minimum = i < 4 ? s[i + 4] & 63 : (s[i + 4] >> 4) | (s[i] >> 6) << 4;
}

/* One block by plain loops, in the order in which ggml's dequantize_row functions write. */
static void plain_block(enum gguf_tensor_type type, const uint8_t *b, float *y)
{
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    static const float non_linear[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    int scale, minimum;
    switch (type) {
    case GGUF_TENSOR_Q4_0:
        for (int i = 0; i < 16; i++) {
            y[i] = half(b) * (float)((b[2 + i] & 15) - 8);
            y[i + 16] = half(b) * (float)((b[2 + i] >> 4) - 8);
        }
        break;
    case GGUF_TENSOR_Q4_1:
        for (int i = 0; i < 16; i++) {
            y[i] = half(b) * (float)(b[4 + i] & 15) + half(b + 2);
            y[i + 16] = half(b) * (float)(b[4 + i] >> 4) + half(b + 2);
        }
        break;
    case GGUF_TENSOR_Q5_0:
    case GGUF_TENSOR_Q5_1: {
        const bool one = type == GGUF_TENSOR_Q5_1;
        const uint8_t *high = b + (one ? 4 : 2), *low = high + 4;
        for (int i = 0; i < 32; i++) {
            const int code = (low[i % 16] >> (i < 16 ? 0 : 4) & 15) | (high[i / 8] >> i % 8 & 1) << 4;
            y[i] = one ? half(b) * (float)code + half(b + 2) : half(b) * (float)(code - 16);
        }
        break;
    }
    case GGUF_TENSOR_IQ4_NL:
        for (int i = 0; i < 16; i++) {
            y[i] = half(b) * non_linear[b[2 + i] & 15];
            y[i + 16] = half(b) * non_linear[b[2 + i] >> 4];
        }
        break;
    case GGUF_TENSOR_IQ4_XS:
        for (int j = 0; j < 8; j++) {
            const int high = (b[2] | b[3] << 8) >> 2 * j & 3, factor = (b[4 + j / 2] >> j % 2 * 4 & 15) | high << 4;
            for (int i = 0; i < 16; i++) {
                y[32 * j + i] = half(b) * (float)(factor - 32) * non_linear[b[8 + 16 * j + i] & 15];
                y[32 * j + i + 16] = half(b) * (float)(factor - 32) * non_linear[b[8 + 16 * j + i] >> 4];
            }
        }
        break;
    case GGUF_TENSOR_Q2_K:
        for (int i = 0; i < 256; i++) {
            const int code = b[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
            y[i] = half(b + 80) * (float)(b[i / 16] & 15) * (float)code - half(b + 82) * (float)(b[i / 16] >> 4);
        }
        break;
    case GGUF_TENSOR_Q3_K:
        for (int i = 0; i < 256; i++) {
            const int n = i / 16, low = n < 8 ? b[96 + n] & 15 : b[96 + n - 8] >> 4,
                      high = b[104 + n % 4] >> n / 4 * 2 & 3;
            const int code = b[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
            y[i] = half(b + 108) * (float)((low | high << 4) - 32) * (float)(b[i % 32] >> i / 32 & 1 ? code : code - 4);
        }
        break;
    case GGUF_TENSOR_Q8_0:
        for (int i = 0; i < 32; i++) y[i] = half(b) * (float)(int8_t)b[2 + i];
        break;
    case GGUF_TENSOR_MXFP4:
        for (int i = 0; i < 16; i++) {
            y[i] = ldexpf(e2m1[b[1 + i] & 15], b[0] - 127);
            y[i + 16] = ldexpf(e2m1[b[1 + i] >> 4], b[0] - 127);
        }
        break;
    case GGUF_TENSOR_Q4_K:
    case GGUF_TENSOR_Q5_K: {
        const bool five = type == GGUF_TENSOR_Q5_K;
        const uint8_t *low = b + (five ? 48 : 16), *high = b + 16;
        for (int j = 0; j < 8; j++) {
            scale_and_minimum(b + 4, j, &scale, &minimum);
            for (int l = 0; l < 32; l++) {
                const int nibble = j % 2 ? low[j / 2 * 32 + l] >> 4 : low[j / 2 * 32 + l] & 15;
                const int code = nibble + (five && high[l] >> j & 1 ? 16 : 0);
                *y++ = half(b) * (float)scale * (float)code - half(b + 2) * (float)minimum;
            }
        }
        break;
    }
    case GGUF_TENSOR_Q6_K:
        for (int n = 0; n < 2; n++)
            for (int l = 0; l < 32; l++) {
                const uint8_t *low = b + 64 * n, high = b[128 + 32 * n + l];
                const int codes[4] = {(low[l] & 15) | (high & 3) << 4, (low[l + 32] & 15) | (high >> 2 & 3) << 4,
                                      low[l] >> 4 | (high >> 4 & 3) << 4, low[l + 32] >> 4 | (high >> 6) << 4};
                for (int k = 0; k < 4; k++)
                    y[128 * n + 32 * k + l] =
                        half(b + 208) * (float)(int8_t)b[192 + 8 * n + 2 * k + l / 16] * (float)(codes[k] - 32);
            }
        break;
    default: fail();
    }
}

/* The elements of part of a row, without negative zeros. */
static void read_elements(const struct quantised *matrix, uint64_t row, uint64_t first, uint64_t count, float *values)
{
    quantised_read(matrix, row, first, count, values);
    for (uint64_t i = 0; i < count; i++) values[i] += 0.0f;
}

TEST(test_blocks)
{
    uint8_t data[2048];
    float expected[ELEMENTS], found[ELEMENTS];
    for (size_t t = 0; t < sizeof recorded / sizeof *recorded; t++) {
        const enum gguf_tensor_type type = recorded[t].type;
        const size_t bytes = make_blocks(type, data), columns = gguf_block_columns(type);
        for (size_t i = 0; i < ELEMENTS / columns; i++)
            plain_block(type, data + i * gguf_block_bytes(type), expected + i * columns);
        for (int i = 0; i < ELEMENTS; i++) expected[i] += 0.0f; /* no negative zeros */
        for (int i = 0; i < CHECKED; i++)
            if (expected[checked[i]] != recorded[t].values[i])
                fail_msg("%s: element %d", gguf_tensor_type_name(type), checked[i]);
        /* As one row and as several. */
        for (uint64_t rows = 1; rows <= 2; rows++) {
            struct quantised_tensors tensors;
            test_gguf_begin(&writer);
            test_gguf_tensor(&writer, "output.weight", type, rows, ELEMENTS / rows, data, bytes);
            expect_tensors(&tensors);
            const struct quantised *matrix = tensors.tensors[0].quantised;
            assert_non_null(matrix);
            assert_int_equal(tensors.tensors[0].dtype, DTYPE_F32);
            for (uint64_t r = 0; r < rows; r++)
                read_elements(matrix, r, 0, ELEMENTS / rows, found + r * (ELEMENTS / rows));
            assert_memory_equal(found, expected, sizeof found);
            /* Parts of rows, and what elements share. */
            for (uint64_t first = 0; first < 300; first += 7) {
                read_elements(matrix, rows - 1, first, 101, found);
                assert_memory_equal(found, expected + ELEMENTS / rows * (rows - 1) + first, 101 * sizeof *found);
            }
            if (type == GGUF_TENSOR_Q8_0) assert_true(quantised_group_at(matrix, 0, 40).scale == half(data + 34));
            if (type == GGUF_TENSOR_Q4_0) {
                assert_true(quantised_group_at(matrix, 0, 40).scale == half(data + 18));
                assert_int_equal(quantised_group_at(matrix, 0, 40).zero, 8);
            }
            quantised_close(&tensors);
        }
    }
}

int main(void) { return test_run_with(NULL, begin, close_all, NULL); }
