/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/test_model.h"

#include <math.h>

#include "formats/checkpoint/safetensors.h"

const struct test_sizes test_sizes = {TEST_INNER, TEST_HEADS, TEST_KV_HEADS, TEST_VOCAB};

static const char *config_of(enum test_family family, const struct test_sizes *sizes)
{
    static char texts[TEST_FAMILIES][640];
    static const char *const traits[TEST_FAMILIES] = {
        [TEST_LLAMA] = "\"model_type\": \"llama\"",
        [TEST_LLAMA_BIASED_TIED] = "\"model_type\": \"llama\", \"attention_bias\": true, \"mlp_bias\": true, "
                                   "\"tie_word_embeddings\": true",
        [TEST_MISTRAL] = "\"model_type\": \"mistral\", \"sliding_window\": 4",
        [TEST_QWEN2] = "\"model_type\": \"qwen2\", \"tie_word_embeddings\": true",
        [TEST_QWEN3] = "\"model_type\": \"qwen3\"",
        [TEST_GRANITE] = "\"model_type\": \"granite\", \"attention_bias\": true, \"mlp_bias\": true, "
                         "\"embedding_multiplier\": 3.0, \"attention_multiplier\": 0.2, "
                         "\"residual_multiplier\": 0.5, \"logits_scaling\": 2.0",
        [TEST_PHI3] = "\"model_type\": \"phi3\", \"sliding_window\": 4, \"partial_rotary_factor\": 0.75",
        [TEST_OLMO2] = "\"model_type\": \"olmo2\"",
    };
    int length = snprintf(
        texts[family], sizeof texts[family],
        "{%s, \"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
        "\"num_key_value_heads\": %d, \"head_dim\": %d, \"vocab_size\": %d, \"max_position_embeddings\": 64, "
        "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"bos_token_id\": 1, "
        "\"eos_token_id\": 2}",
        traits[family], TEST_HIDDEN, (int)sizes->inner, TEST_LAYERS, (int)sizes->heads, (int)sizes->kv_heads,
        TEST_HEAD_DIM, (int)sizes->vocab);
    assert_true(length > 0 && (size_t)length < sizeof texts[family]);
    return texts[family];
}

const char *test_family_config(enum test_family family) { return config_of(family, &test_sizes); }

void test_model_add(struct test_model *model, const char *name, enum dtype dtype, uint64_t rows, uint64_t columns)
{
    assert_true(model->count < TEST_MAX_TENSORS);
    struct test_tensor *tensor = &model->tensors[model->count++];
    *tensor = (struct test_tensor){.dtype = dtype, .rows = rows, .columns = columns, .scale = 1};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
}

static void add_in_layer(struct test_model *model, int layer, const char *name, enum dtype dtype, uint64_t rows,
                         uint64_t columns)
{
    char full[80];
    snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    test_model_add(model, full, dtype, rows, columns);
}

void test_model_init(struct test_model *model, enum test_family family, enum dtype dtype)
{
    test_model_init_sizes(model, family, dtype, &test_sizes);
}

void test_model_init_sizes(struct test_model *model, enum test_family family, enum dtype dtype,
                           const struct test_sizes *sizes)
{
    const uint64_t hidden = TEST_HIDDEN, inner = sizes->inner, q = sizes->heads * TEST_HEAD_DIM;
    const uint64_t kv = sizes->kv_heads * TEST_HEAD_DIM;
    bool biased = family == TEST_LLAMA_BIASED_TIED || family == TEST_GRANITE, post_norm = family == TEST_OLMO2;
    bool fused = family == TEST_PHI3;
    *model = (struct test_model){.family = family, .sizes = *sizes};
    test_model_add(model, "model.embed_tokens.weight", dtype, sizes->vocab, hidden);
    for (int layer = 0; layer < TEST_LAYERS; layer++) {
        add_in_layer(model, layer, post_norm ? "post_feedforward_layernorm.weight" : "input_layernorm.weight", dtype,
                     hidden, 0);
        if (fused) {
            add_in_layer(model, layer, "self_attn.qkv_proj.weight", dtype, q + 2 * kv, hidden);
            add_in_layer(model, layer, "mlp.gate_up_proj.weight", dtype, 2 * inner, hidden);
        } else {
            add_in_layer(model, layer, "self_attn.q_proj.weight", dtype, q, hidden);
            add_in_layer(model, layer, "self_attn.k_proj.weight", dtype, kv, hidden);
            add_in_layer(model, layer, "self_attn.v_proj.weight", dtype, kv, hidden);
            add_in_layer(model, layer, "mlp.gate_proj.weight", dtype, inner, hidden);
            add_in_layer(model, layer, "mlp.up_proj.weight", dtype, inner, hidden);
        }
        add_in_layer(model, layer, "self_attn.o_proj.weight", dtype, hidden, q);
        if (biased || family == TEST_QWEN2) {
            add_in_layer(model, layer, "self_attn.q_proj.bias", dtype, q, 0);
            add_in_layer(model, layer, "self_attn.k_proj.bias", dtype, kv, 0);
            add_in_layer(model, layer, "self_attn.v_proj.bias", dtype, kv, 0);
        }
        if (family == TEST_QWEN3 || post_norm) {
            add_in_layer(model, layer, "self_attn.q_norm.weight", dtype, post_norm ? q : TEST_HEAD_DIM, 0);
            add_in_layer(model, layer, "self_attn.k_norm.weight", dtype, post_norm ? kv : TEST_HEAD_DIM, 0);
        }
        add_in_layer(model, layer, "post_attention_layernorm.weight", dtype, hidden, 0);
        add_in_layer(model, layer, "mlp.down_proj.weight", dtype, hidden, inner);
        if (!biased) continue;
        add_in_layer(model, layer, "self_attn.o_proj.bias", dtype, hidden, 0);
        add_in_layer(model, layer, "mlp.gate_proj.bias", dtype, inner, 0);
        add_in_layer(model, layer, "mlp.up_proj.bias", dtype, inner, 0);
        add_in_layer(model, layer, "mlp.down_proj.bias", dtype, hidden, 0);
    }
    test_model_add(model, "model.norm.weight", dtype, hidden, 0);
    if (family != TEST_LLAMA_BIASED_TIED && family != TEST_QWEN2)
        test_model_add(model, "lm_head.weight", dtype, sizes->vocab, hidden);
}

struct test_tensor *test_model_find(struct test_model *model, const char *name)
{
    for (size_t t = 0; t < model->count; t++)
        if (strcmp(model->tensors[t].name, name) == 0) return &model->tensors[t];
    return NULL;
}

void test_model_remove(struct test_model *model, const char *name)
{
    struct test_tensor *tensor = test_model_find(model, name);
    assert_non_null(tensor);
    *tensor = model->tensors[--model->count];
}

size_t test_model_pieces(const struct test_model *model, struct test_piece *pieces)
{
    const uint64_t q = model->sizes.heads * TEST_HEAD_DIM, kv = model->sizes.kv_heads * TEST_HEAD_DIM;
    const struct {
        const char *whole, *part;
        uint64_t rows;
    } parts[] = {
        {"qkv_proj.", "q_proj.", q},
        {"qkv_proj.", "k_proj.", kv},
        {"qkv_proj.", "v_proj.", kv},
        {"gate_up_proj.", "gate_proj.", model->sizes.inner},
        {"gate_up_proj.", "up_proj.", model->sizes.inner},
    };
    size_t count = 0;
    for (size_t t = 0; t < model->count; t++) {
        const struct test_tensor *tensor = &model->tensors[t];
        uint64_t row = 0;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            const char *at = strstr(tensor->name, parts[i].whole);
            if (!at) continue;
            struct test_piece *piece = &pieces[count++];
            *piece = (struct test_piece){.tensor = tensor, .rows = parts[i].rows, .columns = tensor->columns};
            snprintf(piece->name, sizeof piece->name, "%.*s%s%s", (int)(at - tensor->name), tensor->name, parts[i].part,
                     at + strlen(parts[i].whole));
            piece->first_row = row;
            row += piece->rows;
        }
        if (row) continue;
        pieces[count] = (struct test_piece){.tensor = tensor, .rows = tensor->rows, .columns = tensor->columns};
        snprintf(pieces[count++].name, sizeof pieces->name, "%s", tensor->name);
    }
    return count;
}

float test_piece_value(const struct test_piece *piece, uint64_t row, uint64_t column)
{
    return test_tensor_value(piece->tensor, (piece->first_row + row) * (piece->columns ? piece->columns : 1) + column);
}

static uint16_t half_bits(enum dtype dtype, float value)
{
    return dtype == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
}

float test_tensor_value(const struct test_tensor *tensor, uint64_t index)
{
    uint64_t state = index;
    for (const char *c = tensor->twin ? tensor->twin : tensor->name; *c; c++)
        state = (state ^ (uint64_t)(unsigned char)*c) * UINT64_C(0x100000001b3);
    state = (state ^ (state >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    float value = (float)((int64_t)state >> 40) * 0x1p-23f * tensor->scale;
    if (tensor->has_odd_value && index == tensor->odd_index) value = tensor->odd_value;
    if (tensor->dtype == DTYPE_F16) return f16_to_float(f16_from_float(value));
    return tensor->dtype == DTYPE_BF16 ? bf16_to_float(bf16_from_float(value)) : value;
}

static uint64_t element_count(const struct test_tensor *tensor)
{
    return tensor->rows * (tensor->columns ? tensor->columns : 1);
}

static void write_tensor(struct file_output *output, const struct test_tensor *tensor)
{
    struct status status = {0};
    const uint64_t count = element_count(tensor), bytes = dtype_bytes(tensor->dtype);
    uint8_t *data = malloc(count * bytes);
    assert_non_null(data);
    for (uint64_t i = 0; i < count; i++) {
        float value = test_tensor_value(tensor, i);
        uint16_t half = half_bits(tensor->dtype, value);
        memcpy(data + i * bytes, tensor->dtype == DTYPE_F32 ? (const void *)&value : (const void *)&half, bytes);
    }
    test_expect_success(file_output_write(output, data, count * bytes, &status), &status);
    free(data);
}

void test_model_write(const struct test_model *model, const char *folder)
{
    struct status status = {0};
    struct file_output output;
    struct tensor_view views[TEST_MAX_TENSORS] = {{0}};
    test_write_text(test_path(folder, "config.json"), config_of(model->family, &model->sizes));
    for (size_t t = 0; t < model->count; t++) {
        const struct test_tensor *tensor = &model->tensors[t];
        views[t] = (struct tensor_view){
            .name = tensor->name,
            .dtype = tensor->dtype,
            .rank = tensor->columns ? 2 : 1,
            .shape = {tensor->rows, tensor->columns},
            .bytes = element_count(tensor) * dtype_bytes(tensor->dtype),
        };
    }
    test_expect_success(file_output_open(&output, test_path(folder, "model.safetensors"), &status), &status);
    test_expect_success(safetensors_write_header(&output, views, model->count, &status), &status);
    for (size_t t = 0; t < model->count; t++) write_tensor(&output, &model->tensors[t]);
    test_expect_success(file_output_commit(&output, &status), &status);
}

bool test_model_pack(const struct graph *graph, const struct checkpoint *checkpoint, struct engine_writer *writer,
                     uint64_t total_bytes, pack_progress *progress, void *context, const uint8_t **weights,
                     struct status *status)
{
    struct team *team = team_create(3, status);
    assert_non_null(team);
    bool ok = pack_weights(graph, checkpoint, writer, total_bytes, team, progress, context, status);
    team_destroy(team);
    if (!ok) return false;
    test_expect_success(engine_writer_map_weights(writer, weights, status), status);
    return true;
}
