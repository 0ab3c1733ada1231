/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/gguf_model.h"

#include <inttypes.h>

#include "formats/base/json.h"
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

static void expect_refused(const char *words)
{
    test_expect_failure(parse(), &status, STATUS_BAD_INPUT, words);
    test_expect_message(&status, "m.gguf");
    assert_null(file.tensors);
    test_gguf_begin(&writer);
}

/* ---- container ---- */

TEST(test_good)
{
    static const uint8_t bytes[24] = {1, 2, 3};
    static const char *const words[] = {"a", "", "ccc"};
    for (uint32_t version = 2; version <= 3; version++) {
        test_gguf_begin(&writer);
        writer.version = version;
        writer.alignment = 64;
        test_gguf_u32(&writer, "general.alignment", 64);
        test_gguf_string(&writer, "b", "text");
        test_gguf_number(&writer, "a.bool", GGUF_BOOL, 1);
        test_gguf_number(&writer, "a.u8", GGUF_U8, 200);
        test_gguf_number(&writer, "a.i16", GGUF_I16, 0xfffe);
        test_gguf_number(&writer, "a.u64", GGUF_U64, UINT64_MAX);
        test_gguf_number(&writer, "a.f64", GGUF_F64, 0x3ff8000000000000);
        test_gguf_f32(&writer, "a.f32", 0.25f);
        test_gguf_strings(&writer, "a.words", words, 3);
        test_gguf_numbers(&writer, "a.numbers", GGUF_I32, (const uint32_t[]){7, 8}, 2);
        test_gguf_tensor(&writer, "z", GGUF_TENSOR_F32, 2, 3, bytes, 24);
        test_gguf_tensor(&writer, "y", GGUF_TENSOR_F16, 0, 5, bytes, 10);
        test_expect_success(parse(), &status);

        assert_int_equal(file.tensor_count, 2);
        assert_string_equal(file.tensors[0].name, "y");
        const struct gguf_tensor *z = gguf_find_tensor(&file, "z");
        assert_ptr_equal(z, &file.tensors[1]);
        assert_int_equal(z->rank, 2);
        assert_int_equal(z->shape[0], 2);
        assert_int_equal(z->shape[1], 3);
        assert_int_equal(z->bytes, 24);
        assert_int_equal(z->data[2], 3);
        assert_int_equal((z->data - image) % 64, 0);
        assert_null(gguf_find_tensor(&file, "x"));

        uint64_t whole = 1;
        double real = 0;
        bool flag = false;
        const char *text;
        size_t length;
        const struct gguf_value *array;
        test_expect_success(gguf_get_u64(&file, "a.u8", true, &whole, &status), &status);
        assert_int_equal(whole, 200);
        test_expect_success(gguf_get_u64(&file, "a.u64", true, &whole, &status), &status);
        assert_true(whole == UINT64_MAX);
        test_expect_success(gguf_get_u64(&file, "none", false, &whole, &status), &status);
        test_expect_success(gguf_get_real(&file, "a.f64", true, &real, &status), &status);
        assert_true(real == 1.5);
        test_expect_success(gguf_get_real(&file, "a.f32", true, &real, &status), &status);
        assert_true(real == 0.25);
        test_expect_success(gguf_get_bool(&file, "a.bool", true, &flag, &status), &status);
        assert_true(flag);
        test_expect_success(gguf_get_string(&file, "b", true, &text, &length, &status), &status);
        assert_true(length == 4 && memcmp(text, "text", 4) == 0);
        test_expect_success(gguf_get_array(&file, "a.words", true, GGUF_STRING, &array, &status), &status);
        const uint8_t *at = array->data;
        for (size_t i = 0; i < 3; i++) {
            gguf_next_string(&at, &text, &length);
            assert_true(length == strlen(words[i]) && memcmp(text, words[i], length) == 0);
        }
        test_expect_success(gguf_get_array(&file, "a.numbers", true, GGUF_I32, &array, &status), &status);
        assert_int_equal(array->count, 2);
        assert_int_equal(gguf_u32_at(array->data, 1), 8);

        test_expect_failure(gguf_get_u64(&file, "a.i16", true, &whole, &status), &status, STATUS_BAD_INPUT,
                            "m.gguf|'a.i16'|0 or more|negative");
        test_expect_failure(gguf_get_u64(&file, "b", true, &whole, &status), &status, STATUS_BAD_INPUT,
                            "'b'|integer|found string");
        test_expect_failure(gguf_get_u64(&file, "none", true, &whole, &status), &status, STATUS_BAD_INPUT,
                            "'none'|found nothing");
        test_expect_failure(gguf_get_real(&file, "a.u8", true, &real, &status), &status, STATUS_BAD_INPUT,
                            "f32 or f64|found u8");
        test_expect_failure(gguf_get_bool(&file, "a.u8", true, &flag, &status), &status, STATUS_BAD_INPUT, "a bool");
        test_expect_failure(gguf_get_string(&file, "a.words", true, &text, &length, &status), &status, STATUS_BAD_INPUT,
                            "a string|array of strings");
        test_expect_failure(gguf_get_array(&file, "a.numbers", true, GGUF_STRING, &array, &status), &status,
                            STATUS_BAD_INPUT, "array of string|array of numbers");
    }
}

TEST(test_truncations)
{
    static const char *const words[] = {"one", "two"};
    test_gguf_u32(&writer, "a", 1);
    test_gguf_string(&writer, "b", "text");
    test_gguf_strings(&writer, "c", words, 2);
    test_gguf_numbers(&writer, "d", GGUF_U16, (const uint32_t[]){1, 2, 3}, 3);
    test_gguf_tensor(&writer, "t", GGUF_TENSOR_F32, 2, 2, NULL, 16);
    test_gguf_tensor(&writer, "u", GGUF_TENSOR_Q8_0, 1, 64, NULL, 68);
    test_expect_success(parse(), &status);
    gguf_free(&file);
    for (size_t size = 0; size < image_bytes; size++) {
        uint8_t *part = malloc(size + !size);
        assert_non_null(part);
        memcpy(part, image, size);
        test_expect_failure(gguf_parse(&file, part, size, "m.gguf", &status), &status, STATUS_BAD_INPUT, "m.gguf: ");
        free(part);
    }
    uint8_t *longer = calloc(1, image_bytes + 64);
    assert_non_null(longer);
    memcpy(longer, image, image_bytes);
    test_expect_success(gguf_parse(&file, longer, image_bytes + 31 - (image_bytes + 31) % 32, "m.gguf", &status),
                        &status); /* padding after the last tensor */
    gguf_free(&file);
    test_expect_failure(gguf_parse(&file, longer, image_bytes + 64, "m.gguf", &status), &status, STATUS_BAD_INPUT,
                        "expected the end|64 more bytes");
    free(longer);
}

/* Every byte of the header replaced by some others: no read beyond the file (a sanitizer sees it), and a message. */
TEST(test_damage)
{
    static const char *const words[] = {"one", "two"};
    test_gguf_strings(&writer, "c", words, 2);
    test_gguf_numbers(&writer, "d", GGUF_U16, (const uint32_t[]){1, 2, 3}, 3);
    test_gguf_tensor(&writer, "t", GGUF_TENSOR_F32, 2, 2, NULL, 16);
    test_expect_success(parse(), &status);
    gguf_free(&file);
    static const uint8_t values[] = {0, 1, 8, 9, 10, 0x7f, 0x80, 0xff};
    for (size_t i = 0; i < image_bytes; i++) {
        const uint8_t before = image[i];
        for (size_t v = 0; v < sizeof values; v++) {
            image[i] = values[v];
            if (gguf_parse(&file, image, image_bytes, "m.gguf", &status))
                gguf_free(&file);
            else
                test_expect_message(&status, "m.gguf: ");
        }
        image[i] = before;
    }
}

TEST(test_bad_headers)
{
    writer.version = 1;
    expect_refused("version 2 or 3, found 1");
    writer.version = 4;
    expect_refused("version 2 or 3, found 4");
    writer.version = 0x03000000;
    expect_refused("little-endian|big-endian");
    writer.key_count = 1;
    expect_refused("number of keys|found 1");
    writer.key_count = UINT64_MAX;
    expect_refused("number of keys|found 18446744073709551615");
    writer.tensor_count = UINT64_MAX / 8;
    expect_refused("number of tensors");
    test_gguf_u32(&writer, "general.alignment", 0);
    expect_refused("'general.alignment'|power of two, found 0");
    test_gguf_u32(&writer, "general.alignment", 48);
    expect_refused("'general.alignment'|power of two, found 48");
    test_gguf_string(&writer, "general.alignment", "32");
    expect_refused("'general.alignment'|expected u32, found string");
}

TEST(test_bad_keys)
{
    test_gguf_u32(&writer, "a", 1);
    test_gguf_u32(&writer, "b", 1);
    test_gguf_u32(&writer, "a", 2);
    expect_refused("key 'a': expected once, found twice");
    test_gguf_u32(&writer, "", 1);
    expect_refused("the name of a key|0 bytes");
    test_gguf_u32(&writer, "a b", 1);
    expect_refused("the name of a key|other characters");
    test_gguf_u32(&writer, "a\xc3\xa4", 1);
    expect_refused("printable ASCII");
    test_gguf_number(&writer, "a", GGUF_BOOL, 2);
    expect_refused("key 'a'|bool of 0 or 1, found 2");
    test_gguf_u32(&writer, "a", 1);
    writer.keys[9] = 13;
    expect_refused("key 'a'|from 0 to 12, found 13");
    test_gguf_numbers(&writer, "a", GGUF_U8, (const uint32_t[]){1}, 1);
    writer.keys[13] = GGUF_ARRAY;
    expect_refused("key 'a'|type 9 (arrays)");
    test_gguf_numbers(&writer, "a", GGUF_U64, (const uint32_t[]){1}, 1);
    memset(writer.keys + 17, 0xff, 8);
    expect_refused("key 'a'|exceeds 64 bits");
    test_gguf_string(&writer, "a", "x");
    memset(writer.keys + 13, 0xff, 8);
    expect_refused("key 'a'|ends within a string|18446744073709551615");
}

/* A tensor whose fields are as given. */
static void raw_tensor(const char *name, uint32_t rank, const uint64_t *shape, uint32_t type, uint64_t offset)
{
    test_gguf_text(writer.tensors, &writer.tensor_bytes, name);
    test_gguf_put(writer.tensors, &writer.tensor_bytes, rank, 4);
    for (uint32_t i = 0; i < rank && i < 8; i++) test_gguf_put(writer.tensors, &writer.tensor_bytes, shape[i], 8);
    test_gguf_put(writer.tensors, &writer.tensor_bytes, type, 4);
    test_gguf_put(writer.tensors, &writer.tensor_bytes, offset, 8);
    writer.tensor_count++;
    writer.data_bytes = 256;
}

TEST(test_bad_tensors)
{
    static const struct {
        uint32_t rank;
        uint64_t shape[8];
        uint32_t type;
        uint64_t offset;
        const char *words;
    } cases[] = {
        {0, {0}, 0, 0, "1 to 4 dimensions, found 0"},
        {5, {1, 1, 1, 1, 1}, 0, 0, "1 to 4 dimensions, found 5"},
        {UINT32_MAX, {1, 1, 1, 1, 1, 1, 1, 1}, 0, 0, "1 to 4 dimensions"},
        {2, {4, 0}, 0, 0, "no dimension of 0"},
        {1, {4}, 9, 0, "F32, F16, BF16|found Q8_1 (9)|use a file with other types"},
        {1, {4}, 36, 0, "found an unknown type (36)"},
        {1, {4}, UINT32_MAX, 0, "unknown type"},
        {1, {4}, 0, 32, "offset|expected 0, found 32"},
        {1, {4}, 0, 1, "offset|expected 0, found 1"},
        {1, {65}, 0, 0, "truncated|expected 260, found 256"},
        {2, {UINT64_MAX, UINT64_MAX}, 0, 0, "exceeds 64 bits"},
        {1, {UINT64_MAX / 4}, 0, 0, "truncated"},
        {1, {UINT64_MAX / 2}, 0, 0, "exceeds 64 bits"},
        {2, {33, 1}, GGUF_TENSOR_Q8_0, 0, "multiple of 32 elements, as Q8_0|found 33"},
        {2, {128, 1}, GGUF_TENSOR_Q4_K, 0, "multiple of 256 elements, as Q4_K"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        raw_tensor("some.tensor", cases[i].rank, cases[i].shape, cases[i].type, cases[i].offset);
        expect_refused(test_text("some.tensor|%s", cases[i].words));
    }
    test_gguf_tensor(&writer, "t", GGUF_TENSOR_F32, 0, 4, NULL, 16);
    test_gguf_tensor(&writer, "t", GGUF_TENSOR_F32, 0, 4, NULL, 16);
    expect_refused("tensor 't': expected once, found twice");
    raw_tensor("a", 1, (const uint64_t[]){64}, 0, 0);
    raw_tensor("b", 1, (const uint64_t[]){4}, 0, 0); /* overlaps */
    expect_refused("tensor 'b'|offset|expected 256, found 0");
}

/* ---- configuration ---- */

static char *config_text; /* what the reader of families got, with sorted keys */

static bool read_family(struct model_config *config, struct json_reader *reader, struct status *out)
{
    const char *key;
    json_t *value;
    free(config_text);
    config_text = json_format(reader->object, JSON_SORT_KEYS | JSON_COMPACT);
    json_object_foreach (reader->object, key, value)
        if (strcmp(key, "bos_token_id") != 0 && strcmp(key, "eos_token_id") != 0) json_reader_get(reader, key);
    config->hidden_size = config->intermediate_size = config->layers = config->heads = config->kv_heads = 1;
    config->head_dim = 2;
    config->vocab_size = config->max_position = 100;
    config->bos_token = config->pad_token = -1;
    return true;
}

static void put_model(const char *architecture)
{
    static const struct {
        const char *name;
        uint32_t value;
    } sizes[] = {{"embedding_length", 64}, {"feed_forward_length", 96}, {"block_count", 2},
                 {"context_length", 512},  {"attention.head_count", 4}, {"attention.head_count_kv", 2}};
    test_gguf_begin(&writer);
    test_gguf_string(&writer, "general.architecture", architecture);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        test_gguf_u32(&writer, test_text("%s.%s", architecture, sizes[i].name), sizes[i].value);
    test_gguf_f32(&writer, test_text("%s.attention.layer_norm_rms_epsilon", architecture), 0.0078125f);
    test_gguf_tensor(&writer, "token_embd.weight", GGUF_TENSOR_F16, 8, 4, NULL, 64);
}

static bool read_config(struct model_config *config)
{
    test_expect_success(parse(), &status);
    return gguf_read_config(&file, config, read_family, &status);
}

static void expect_config(const char *text, bool rotary_pairs)
{
    struct model_config config;
    test_expect_success(read_config(&config), &status);
    assert_non_null(config_text);
    for (char *c = config_text; *c; c++)
        if (*c == '"') *c = '\'';
    assert_string_equal(config_text, text);
    assert_int_equal(config.rotary_pairs, rotary_pairs);
}

static void expect_bad_config(const char *words)
{
    struct model_config config;
    test_expect_failure(read_config(&config), &status, STATUS_BAD_INPUT, words);
    test_expect_message(&status, "m.gguf");
}

TEST(test_config)
{
    put_model("qwen2");
    expect_config("{'bos_token_id':null,'eos_token_id':null,'head_dim':16,'hidden_size':64,'intermediate_size':96,"
                  "'max_position_embeddings':512,'model_type':'qwen2','num_attention_heads':4,'num_hidden_layers':2,"
                  "'num_key_value_heads':2,'pad_token_id':null,'rms_norm_eps':0.0078125,'tie_word_embeddings':true,"
                  "'vocab_size':8}",
                  false);

    put_model("llama");
    test_gguf_tensor(&writer, "output.weight", GGUF_TENSOR_F16, 8, 4, NULL, 64);
    test_gguf_tensor(&writer, "blk.0.attn_q.bias", GGUF_TENSOR_F32, 0, 4, NULL, 16);
    test_gguf_u32(&writer, "llama.attention.key_length", 32);
    test_gguf_u32(&writer, "llama.attention.value_length", 32);
    test_gguf_u32(&writer, "llama.rope.dimension_count", 16);
    test_gguf_u32(&writer, "llama.vocab_size", 8);
    test_gguf_f32(&writer, "llama.rope.freq_base", 500000.0f);
    test_gguf_string(&writer, "llama.rope.scaling.type", "linear");
    test_gguf_f32(&writer, "llama.rope.scaling.factor", 4.0f);
    test_gguf_string(&writer, "tokenizer.ggml.model", "llama");
    test_gguf_u32(&writer, "tokenizer.ggml.eos_token_id", 3);
    test_gguf_u32(&writer, "tokenizer.ggml.eot_token_id", 4);
    test_gguf_u32(&writer, "tokenizer.ggml.eom_token_id", 3);
    test_gguf_u32(&writer, "quantize.imatrix.chunks_count", 3);
    expect_config("{'attention_bias':true,'eos_token_id':[3,4],'head_dim':32,'hidden_size':64,'intermediate_size':96,"
                  "'max_position_embeddings':512,'mlp_bias':false,'model_type':'llama','num_attention_heads':4,"
                  "'num_hidden_layers':2,'num_key_value_heads':2,'partial_rotary_factor':0.5,"
                  "'rms_norm_eps':0.0078125,'rope_scaling':{'factor':4.0,'rope_type':'linear'},'rope_theta':500000.0,"
                  "'tie_word_embeddings':false,'vocab_size':8}",
                  true);

    put_model("qwen3");
    test_gguf_string(&writer, "qwen3.rope.scaling.type", "yarn");
    test_gguf_f32(&writer, "qwen3.rope.scaling.factor", 4.0f);
    test_gguf_u32(&writer, "qwen3.rope.scaling.original_context_length", 128);
    expect_config("{'attention_bias':false,'bos_token_id':null,'eos_token_id':null,'head_dim':16,'hidden_size':64,"
                  "'intermediate_size':96,'max_position_embeddings':512,'model_type':'qwen3','num_attention_heads':4,"
                  "'num_hidden_layers':2,'num_key_value_heads':2,'pad_token_id':null,'rms_norm_eps':0.0078125,"
                  "'rope_scaling':{'factor':4.0,'original_max_position_embeddings':128,'rope_type':'yarn'},"
                  "'tie_word_embeddings':true,'vocab_size':8}",
                  false);

    put_model("llama");
    test_gguf_u32(&writer, "llama.expert_count", 4);
    test_gguf_u32(&writer, "llama.expert_used_count", 2);
    expect_config("{'bos_token_id':null,'eos_token_id':null,'head_dim':16,'hidden_size':64,'intermediate_size':96,"
                  "'max_position_embeddings':512,'model_type':'mixtral','num_attention_heads':4,"
                  "'num_experts_per_tok':2,'num_hidden_layers':2,'num_key_value_heads':2,'num_local_experts':4,"
                  "'pad_token_id':null,'rms_norm_eps':0.0078125,'rope_theta':10000.0,'tie_word_embeddings':true,"
                  "'vocab_size':8}",
                  true);

    put_model("qwen3moe");
    test_gguf_u32(&writer, "qwen3moe.expert_count", 4);
    test_gguf_u32(&writer, "qwen3moe.expert_used_count", 2);
    test_gguf_u32(&writer, "qwen3moe.expert_feed_forward_length", 32);
    test_gguf_f32(&writer, "qwen3moe.rope.freq_base", 500000.0f);
    expect_config("{'attention_bias':false,'bos_token_id':null,'eos_token_id':null,'head_dim':16,'hidden_size':64,"
                  "'intermediate_size':96,'max_position_embeddings':512,'model_type':'qwen3_moe',"
                  "'moe_intermediate_size':32,'norm_topk_prob':true,'num_attention_heads':4,'num_experts':4,"
                  "'num_experts_per_tok':2,'num_hidden_layers':2,'num_key_value_heads':2,'pad_token_id':null,"
                  "'rms_norm_eps':0.0078125,'rope_theta':500000.0,'tie_word_embeddings':true,'vocab_size':8}",
                  false);

    /* Llama 3.1: frequencies divided by what the file says. */
    put_model("llama");
    test_gguf_tensor(&writer, "rope_freqs.weight", GGUF_TENSOR_F32, 0, 2, (const float[]){1, 8}, 8);
    test_gguf_u32(&writer, "llama.attention.key_length", 4);
    struct model_config config;
    test_expect_success(read_config(&config), &status);
    assert_non_null(strstr(config_text, "\"rope_scaling\":{\"long_factor\":[1.0,8.0],"
                                        "\"original_max_position_embeddings\":512,\"rope_type\":\"longrope\","
                                        "\"short_factor\":[1.0,8.0]}"));
}

TEST(test_bad_config)
{
    test_gguf_begin(&writer);
    expect_bad_config("'general.architecture'|found nothing");
    put_model("gemma3");
    expect_bad_config("'general.architecture'|'llama', 'qwen2', 'qwen3' or 'qwen3moe', found 'gemma3'");
    test_gguf_begin(&writer);
    test_gguf_string(&writer, "general.architecture", "llama\n");
    expect_bad_config("'general.architecture'|other text");
    put_model("llama");
    test_gguf_string(&writer, "general.type", "adapter");
    expect_bad_config("'general.type'|'model'");
    put_model("llama");
    test_gguf_number(&writer, "split.count", GGUF_U16, 3);
    expect_bad_config("one of 3 parts|llama-gguf-split --merge");
    put_model("llama");
    test_gguf_u32(&writer, "llama.attention.sliding_window", 512);
    expect_bad_config("'llama.attention.sliding_window' is not understood");
    put_model("llama");
    test_gguf_u32(&writer, "llama.expert_count", 8);
    expect_bad_config("'llama.expert_used_count'|found nothing");
    put_model("llama");
    test_gguf_u32(&writer, "llama.expert_used_count", 2);
    expect_bad_config("'llama.expert_used_count': expected 0, found 2");
    put_model("qwen2");
    test_gguf_u32(&writer, "qwen2.expert_count", 8);
    expect_bad_config("'qwen2.expert_count': expected 0, found 8");
    put_model("qwen3moe");
    expect_bad_config("'qwen3moe.expert_count'|found nothing");
    put_model("qwen3moe");
    test_gguf_u32(&writer, "qwen3moe.expert_count", 0);
    expect_bad_config("'qwen3moe.expert_count': expected 1 or more, found 0");
    put_model("llama");
    test_gguf_u32(&writer, "llama.vocab_size", 9);
    expect_bad_config("'llama.vocab_size': expected 8, found 9");
    put_model("llama");
    test_gguf_u32(&writer, "llama.attention.value_length", 8);
    expect_bad_config("'llama.attention.value_length': expected 16, found 8");
    put_model("llama");
    test_gguf_string(&writer, "llama.rope.scaling.type", "longrope");
    expect_bad_config("'llama.rope.scaling.type': expected 'none', 'linear' or 'yarn'");
    put_model("llama");
    test_gguf_string(&writer, "llama.rope.scaling.type", "yarn");
    test_gguf_f32(&writer, "llama.rope.scaling.attn_factor", 0.5f);
    expect_bad_config("'llama.rope.scaling.attn_factor': expected 1");
    put_model("llama");
    test_gguf_number(&writer, "llama.rope.freq_base", GGUF_F32, 0x7f800000);
    expect_bad_config("'llama.rope.freq_base': expected a finite number");
    put_model("llama");
    test_gguf_tensor(&writer, "rope_freqs.weight", GGUF_TENSOR_F16, 0, 2, NULL, 4);
    expect_bad_config("'rope_freqs.weight'|F32");
    put_model("llama");
    writer.tensor_count = writer.tensor_bytes = writer.data_bytes = 0;
    expect_bad_config("'token_embd.weight': expected a matrix, found nothing");
    test_gguf_begin(&writer);
    test_gguf_string(&writer, "general.architecture", "llama");
    expect_bad_config("'llama.embedding_length': expected an integer of 0 or more, found nothing");
    free(config_text);
    config_text = NULL;
}

int main(void) { return test_run_with(NULL, begin, close_all, NULL); }
