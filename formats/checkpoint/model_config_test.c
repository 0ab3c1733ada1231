/* SPDX-License-Identifier: Apache-2.0 */
/* What config.json files of all models have in common. The keys of each family: builder/arch/config_test.c. */
#include "formats/checkpoint/model_config.h"

#include "formats/base/test_support.h"
#include "formats/checkpoint/test_config.h"

static struct status status;

static bool parse(struct model_config *config, const char *text)
{
    status_clear(&status);
    return model_config_parse(config, text, strlen(text), "config.json", test_read_config, &status);
}

static const char *with(const char *fields)
{
    static char text[1024];
    int length = snprintf(text, sizeof text, "{" TEST_CONFIG "%s%s}", *fields ? ", " : "", fields);
    assert_true(length > 0 && (size_t)length < sizeof text);
    return test_quote(text);
}

static void expect_refused(const char *fields, enum status_code code, const char *words)
{
    struct model_config config;
    test_expect_failure(parse(&config, with(fields)), &status, code, words);
    test_expect_message(&status, "config.json: ");
}

static struct model_config accepted(const char *fields)
{
    struct model_config config;
    bool done = parse(&config, with(fields));
    if (!done) fail_msg("%s: refused: %s", fields, status.message);
    return config;
}

TEST(test_documents)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"[]", "config.json|object|array"},
        {"{'model_type':", "not valid JSON"},
        {"{'a': 1, 'a': 1}", "duplicate"},
        {"{}", "'model_type'|nothing"},
        {"{'model_type': 3}", "'model_type'|found 3"},
        {"{'model_type': 'other', 'anything': 1}", "model_type 'other' is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config config;
        test_expect_failure(parse(&config, test_json(cases[i].text)), &status, STATUS_BAD_INPUT, cases[i].words);
    }
}

TEST(test_defaults)
{
    struct model_config config = accepted("");
    assert_string_equal(config.model_type, "test");
    assert_int_equal(config.dtype, DTYPE_NONE);
    assert_int_equal(config.bos_token, 1);
    assert_int_equal(config.eos_count, 1);
    assert_false(config.do_sample);
    assert_true(config.temperature == 1.0 && config.top_p == 1.0 && config.repetition_penalty == 1.0);
    assert_int_equal(config.top_k, 0);
    config = accepted("'bos_token_id': 3, 'eos_token_id': [4, 5, 4], 'pad_token_id': 512");
    assert_int_equal(config.bos_token, 3);
    assert_int_equal(config.pad_token, 512);
    assert_int_equal(config.eos_count, 2);
    assert_int_equal(config.eos_tokens[0], 4);
    assert_int_equal(config.eos_tokens[1], 5);
}

/* The last line of defence against a reader that does not check what it reads. */
TEST(test_limits)
{
    static const struct {
        const char *fields, *words;
    } cases[] = {
        {"'hidden_size': 0", "hidden_size is 0|1 to 262144"},
        {"'hidden_size': 262145", "hidden_size is 262145"},
        {"'intermediate_size': 1048577", "intermediate_size"},
        {"'layers': 1025", "layers is 1025|1 to 1024"},
        {"'heads': 4097", "heads is 4097"},
        {"'kv_heads': 0", "kv_heads is 0|1 to 4"},
        {"'kv_heads': 8", "kv_heads is 8|1 to 4"},
        {"'kv_heads': 3", "no multiple of kv_heads"},
        {"'head_dim': 1026", "head_dim is 1026"},
        {"'head_dim': 15", "head_dim is odd"},
        {"'heads': 4096, 'head_dim': 1024", "heads * head_dim is 4194304|1 to 262144"},
        {"'max_position': 1073741825", "max_position"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i].fields, STATUS_INTERNAL, cases[i].words);
    accepted("'layers': 1024, 'heads': 256, 'kv_heads': 256, 'head_dim': 1024, 'hidden_size': 262144, "
             "'max_position': 1073741824");
}

TEST(test_dtypes)
{
    assert_int_equal(accepted("'torch_dtype': 'float16'").dtype, DTYPE_F16);
    assert_int_equal(accepted("'dtype': 'torch.float32'").dtype, DTYPE_F32);
    assert_int_equal(accepted("'dtype': 'bfloat16', 'torch_dtype': 'bfloat16'").dtype, DTYPE_BF16);
    expect_refused("'dtype': 'float64'", STATUS_BAD_INPUT, "'dtype'|bfloat16|found 'float64'");
    expect_refused("'torch_dtype': 'int8'", STATUS_BAD_INPUT, "'torch_dtype'|found 'int8'");
    expect_refused("'dtype': 'float16', 'torch_dtype': 'bfloat16'", STATUS_BAD_INPUT, "disagree|F16|BF16");
}

TEST(test_plain_fields)
{
    accepted("'_name_or_path': 'x', 'is_llama_config': true, 'rope_interleaved': false, 'use_mrope': false,"
             " 'output_attentions': false, 'id2label': {'0': 'a'}, 'pruned_heads': {}, 'unknown': null,"
             " 'max_length': 4096, 'quantization_config': null");
    static const struct {
        const char *fields, *words;
    } cases[] = {
        {"'rope_interleaved': true", "'rope_interleaved'|expected false|found true"},
        {"'is_encoder_decoder': true", "'is_encoder_decoder'|expected false"},
        {"'pruned_heads': {'0': [1]}", "'pruned_heads'|empty|an object with 1 keys"},
        {"'quantization_config': {'quant_method': 'aqlm'}", "quantization_config|aqlm"},
        {"'quantization_config': 4", "quantization_config"},
        {"'compression_config': {}", "compression_config"},
        {"'logit_softcapping': 30.0", "'logit_softcapping'|not understood|refused|found 30"},
        {"'attention_bias': false", "'attention_bias'|not understood"}, /* a family's key */
        {"'num_beams': 4", "'num_beams'|expected 1|found 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i].fields, STATUS_BAD_INPUT, cases[i].words);
}

int main(void) { return test_run(); }
