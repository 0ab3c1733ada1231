/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of config.json that each family reads, and the values that it refuses. */
#include "builder/arch/test_config.h"
#include "formats/base/test_program.h"

#include <math.h>

#include "formats/base/file.h"
#include "formats/base/test_support.h"
#include "kernels/op/activation.h"
#include "kernels/router/router.h"

TEST(test_complete)
{
    static const char text[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": true, \"attention_dropout\": 0.1,"
        " \"bos_token_id\": 3, \"eos_token_id\": [4, 5, 4], \"pad_token_id\": 512, \"head_dim\": 16,"
        " \"hidden_act\": \"silu\", \"hidden_size\": 64, \"initializer_range\": 0.02, \"intermediate_size\": 96,"
        " \"max_position_embeddings\": 1024, \"mlp_bias\": true, \"model_type\": \"llama\","
        " \"num_attention_heads\": 6, \"num_hidden_layers\": 4, \"num_key_value_heads\": 2, \"pretraining_tp\": 1,"
        " \"rms_norm_eps\": 1e-05, \"rope_scaling\": null, \"rope_theta\": 500000.0, \"tie_word_embeddings\": true,"
        " \"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.43.0\", \"use_cache\": true,"
        " \"vocab_size\": 512}";
    struct status status = {0};
    struct model_config config;
    test_expect_success(test_config_parse(&config, text, &status), &status);
    assert_string_equal(config.model_type, "llama");
    assert_string_equal(config.architecture, "LlamaForCausalLM");
    assert_int_equal(config.hidden_size, 64);
    assert_int_equal(config.intermediate_size, 96);
    assert_int_equal(config.layers, 4);
    assert_int_equal(config.heads, 6);
    assert_int_equal(config.kv_heads, 2);
    assert_int_equal(config.head_dim, 16);
    assert_int_equal(config.vocab_size, 512);
    assert_int_equal(config.max_position, 1024);
    assert_true(config.rms_norm_eps == 1e-5);
    assert_true(config.tie_word_embeddings && config.qkv_bias && config.output_bias && config.mlp_bias);
    for (int i = 0; i < 4; i++) assert_int_equal(config.layer[i].window, 0);
    assert_int_equal(config.dtype, DTYPE_BF16);
    assert_true(config.rope.theta == 500000.0);
    assert_int_equal(config.bos_token, 3);
    assert_int_equal(config.pad_token, 512);
    assert_int_equal(config.eos_count, 2);
    assert_int_equal(config.eos_tokens[0], 4);
    assert_int_equal(config.eos_tokens[1], 5);
}

#define USUAL_SIZES                                                                \
    "\"hidden_size\": 1024, \"intermediate_size\": 96, \"num_hidden_layers\": 4, " \
    "\"num_attention_heads\": 32"

/* Defaults of the config classes. */
TEST(test_defaults)
{
    /* With 32 heads of 32 elements where the class has no head_dim, and 4 layers. bos, pad: -1: none; eos tokens above the
     * vocabulary count as none. `windows`, `ropes`: of each layer, w: the default window, -: none; m, l, n: enum layer_rope. */
    static const struct {
        const char *model_type;
        uint64_t kv_heads, head_dim, rotary_dim, max_position, window;
        const char *windows, *ropes;
        double theta, eps;
        int64_t bos, pad;
        int eos_count;
        bool tied, qkv_bias;
    } expected[] = {
        {"llama", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-6, 1, -1, 1, false, false},
        {"mistral", 8, 32, 32, 131072, 4096, "wwww", "mmmm", 1e4, 1e-6, 1, -1, 1, false, false},
        {"ministral", 8, 32, 32, 131072, 4096, "wwww", "mmmm", 1e4, 1e-6, 1, -1, 1, false, false},
        {"ministral3", 8, 128, 128, 16384, 0, "----", "mmmm", 1e6, 1e-5, 1, 11, 1, false, false},
        {"qwen2", 32, 32, 32, 32768, 0, "----", "mmmm", 1e4, 1e-6, -1, -1, 0, false, true},
        {"qwen3", 32, 128, 128, 32768, 0, "----", "mmmm", 1e4, 1e-6, -1, -1, 0, false, false},
        {"granite", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-6, 1, -1, 1, false, false},
        {"hyperclovax", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-6, 1, -1, 1, false, false},
        {"arcee", 32, 32, 32, 4096, 0, "----", "mmmm", 1e4, 1e-5, -1, -1, 0, false, false},
        {"helium", 32, 128, 128, 4096, 0, "----", "mmmm", 1e5, 1e-8, 1, 3, 1, false, false},
        {"cwm", 8, 128, 128, 131072, 8192, "-www", "mmmm", 1e6, 1e-5, -1, -1, 0, false, false},
        {"ernie4_5", 2, 128, 128, 131072, 0, "----", "mmmm", 5e5, 1e-5, 1, 0, 1, true, false},
        {"hunyuan_v1_dense", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-5, 1, 0, 1, false, false},
        {"apertus", 32, 32, 32, 65536, 0, "----", "mmmm", 12e6, 1e-5, 1, 3, 1, false, false},
        {"olmo", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-5, -1, 1, 0, false, false},
        {"olmo2", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-5, -1, 1, 0, false, false},
        {"phi3", 32, 32, 32, 4096, 0, "----", "mmmm", 1e4, 1e-5, 1, -1, 0, false, false},
        {"smollm3", 4, 32, 32, 32768, 0, "----", "mmmn", 2e6, 1e-6, -1, -1, 0, true, false},
        {"seed_oss", 8, 128, 128, 524288, 0, "----", "mmmm", 1e4, 1e-6, 0, 1, 1, false, true},
        {"glm", 2, 128, 64, 131072, 0, "----", "mmmm", 1e4, 1.5625e-7, -1, -1, 0, false, true},
        {"glm4", 2, 128, 64, 131072, 0, "----", "mmmm", 1e4, 1.5625e-7, -1, -1, 0, false, true},
        {"exaone4", 32, 32, 32, 2048, 4096, "www-", "mmmn", 1e4, 1e-5, 0, -1, 1, false, false},
        {"olmo3", 32, 32, 32, 2048, 4096, "www-", "lllm", 5e5, 1e-5, -1, 1, 0, false, false},
        {"gemma", 16, 256, 256, 8192, 0, "----", "mmmm", 1e4, 1e-6, 2, 0, 1, true, false},
        {"gemma2", 4, 256, 256, 8192, 4096, "w-w-", "mmmm", 1e4, 1e-6, 2, 0, 1, true, false},
        {"vaultgemma", 4, 256, 256, 8192, 4096, "w-w-", "mmmm", 1e4, 1e-6, 2, 0, 1, true, false},
        {"gemma3_text", 4, 256, 256, 131072, 4096, "wwww", "llll", 1e6, 1e-6, 2, 0, 1, true, false},
        {"gemma4_text", 4, 256, 512, 131072, 512, "www-", "lllm", 1e6, 1e-6, 2, 0, 1, true, false},
        {"cohere", 32, 32, 32, 8192, 0, "----", "mmmm", 5e5, 1e-5, 5, 0, 0, true, false},
        {"cohere2", 32, 32, 32, 8192, 4096, "www-", "mmmn", 1e4, 1e-5, 5, 0, 0, true, false},
        {"stablelm", 32, 32, 8, 4096, 0, "----", "mmmm", 1e4, 1e-5, 0, -1, 1, false, false},
        {"starcoder2", 2, 32, 32, 4096, 0, "----", "mmmm", 1e4, 1e-5, -1, -1, 0, true, true},
        {"nemotron", 32, 32, 16, 4096, 0, "----", "mmmm", 1e4, 1e-5, 2, -1, 1, false, false},
        {"jais2", 32, 32, 32, 8192, 0, "----", "mmmm", 1e4, 1e-5, 0, -1, 0, false, true},
        {"nanochat", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-6, 0, 1, 1, false, false},
        {"phi", 32, 32, 16, 2048, 0, "----", "mmmm", 1e4, 1e-5, 1, -1, 1, false, true},
        {"falcon", 1, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-5, 11, -1, 1, true, false},
        {"opt", 32, 32, 32, 2048, 0, "----", "nnnn", 1e4, 1e-5, 2, 1, 1, true, true},
        {"gpt2", 32, 32, 32, 1024, 0, "----", "nnnn", 1e4, 1e-5, -1, -1, 0, true, true},
        {"gpt_bigcode", 1, 32, 32, 1024, 0, "----", "nnnn", 1e4, 1e-5, -1, -1, 0, true, true},
        {"gpt_neo", 32, 32, 32, 2048, 256, "-w-w", "nnnn", 1e4, 1e-5, -1, -1, 0, true, false},
        {"gptj", 16, 64, 64, 2048, 0, "----", "mmmm", 1e4, 1e-5, -1, -1, 0, false, false},
        {"gpt_neox", 32, 32, 8, 2048, 0, "----", "mmmm", 1e4, 1e-5, 0, -1, 1, false, true},
        {"mixtral", 8, 32, 32, 131072, 0, "----", "mmmm", 1e6, 1e-5, 1, -1, 1, false, false},
        {"qwen2_moe", 16, 32, 32, 32768, 0, "----", "mmmm", 1e4, 1e-6, -1, -1, 0, false, true},
        {"qwen3_moe", 4, 32, 32, 32768, 0, "----", "mmmm", 1e4, 1e-6, -1, -1, 0, false, false},
        {"mellum", 4, 128, 128, 131072, 1024, "----", "mmmm", 5e5, 1e-6, -1, -1, 0, false, false},
        {"olmoe", 32, 32, 32, 4096, 0, "----", "mmmm", 1e4, 1e-5, -1, 1, 0, false, false},
        {"flex_olmo", 32, 32, 32, 4096, 0, "----", "mmmm", 5e5, 1e-6, -1, -1, 0, false, false},
        {"granitemoe", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-6, 1, -1, 1, false, false},
        {"granitemoeshared", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-6, 1, -1, 1, false, false},
        {"ernie4_5_moe", 4, 32, 32, 131072, 0, "----", "mmmm", 5e5, 1e-5, 1, 0, 1, true, false},
        {"hunyuan_v1_moe", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-5, 1, 0, 1, false, false},
        {"hy_v3", 8, 128, 128, 131072, 0, "----", "mmmm", 11158840, 1e-5, -1, -1, 0, false, false},
        {"glm4_moe", 8, 32, 16, 131072, 0, "----", "mmmm", 1e4, 1e-5, -1, -1, 0, false, false},
        {"dots1", 32, 32, 32, 2048, 0, "----", "mmmm", 1e4, 1e-6, -1, -1, 0, false, false},
        {"exaone_moe", 32, 32, 32, 2048, 4096, "www-", "mmmn", 1e4, 1e-5, 1, 0, 1, false, false},
        {"solar_open", 8, 128, 128, 131072, 0, "----", "mmmm", 1e6, 1e-5, -1, -1, 0, false, false},
        {"minimax_m2", 8, 128, 128, 196608, 0, "----", "mmmm", 5e6, 1e-6, -1, -1, 0, false, false},
        {"afmoe", 32, 128, 128, 16384, 1024, "www-", "mmmn", 1e4, 1e-5, -1, -1, 0, false, false},
        {"gpt_oss", 8, 64, 64, 131072, 128, "w-w-", "mmmm", 15e4, 1e-5, -1, -1, 0, false, true},
        {"deepseek_v2", 1, 576, 64, 2048, 0, "----", "mmmm", 1e4, 1e-6, 1, -1, 1, false, false},
        {"deepseek_v3", 1, 576, 64, 4096, 0, "----", "mmmm", 1e4, 1e-6, 0, -1, 1, false, false},
        {"kimi_k2", 1, 576, 64, 4096, 0, "----", "mmmm", 1e4, 1e-6, 0, -1, 1, false, false},
        {"axk1", 1, 576, 64, 32768, 0, "----", "mmmm", 1e4, 1e-6, -1, -1, 0, false, false},
        {"mistral4", 1, 320, 64, 1048576, 0, "----", "mmmm", 1e4, 1e-6, 1, 11, 1, false, false},
        {"glm4_moe_lite", 1, 576, 64, 202752, 0, "----", "mmmm", 1e4, 1e-5, 0, -1, 1, false, false},
        {"youtu", 1, 576, 64, 131072, 0, "----", "mmmm", 1e4, 1e-6, -1, -1, 0, true, false},
        {"minicpm3", 1, 288, 32, 32768, 0, "----", "mmmm", 1e4, 1e-5, 1, -1, 1, true, false},
        {"qwen3_next", 2, 256, 64, 32768, 0, "----", "mmmm", 1e4, 1e-6, -1, -1, 0, false, false},
        {"qwen3_5_text", 4, 256, 64, 32768, 0, "----", "mmmm", 1e4, 1e-6, -1, -1, 0, false, false},
        {"qwen3_5_moe_text", 2, 256, 64, 32768, 0, "----", "mmmm", 1e4, 1e-6, -1, -1, 0, false, false},
        {"lfm2", 8, 32, 32, 128000, 0, "----", "mmmm", 1e6, 1e-5, 1, 0, 1, true, false},
        {"lfm2_moe", 8, 32, 32, 128000, 0, "----", "mmmm", 1e6, 1e-5, 1, 0, 1, true, false},
        {"granitemoehybrid", 32, 32, 32, 2048, 0, "----", "nnnn", 1e4, 1e-6, 1, -1, 1, false, false},
        {"bamba", 8, 32, 16, 262144, 0, "----", "mmmm", 1e4, 1e-5, 1, 0, 1, false, false},
        {"nemotron_h", 8, 128, 128, 4096, 0, "----", "nnnn", 1e4, 1e-5, 1, 0, 1, false, false},
        {"falcon_h1", 8, 32, 32, 8192, 0, "----", "mmmm", 1e4, 1e-5, 1, 0, 1, false, false},
    };
    /* Types that have other keys, or more. */
    static const struct {
        const char *model_type, *sizes;
    } others[] = {
        {"gpt2", "\"n_embd\": 1024, \"n_layer\": 4, \"n_head\": 32"},
        {"gpt_bigcode", "\"n_embd\": 1024, \"n_layer\": 4, \"n_head\": 32"},
        {"gpt_neo", "\"hidden_size\": 1024, \"num_layers\": 4, \"num_heads\": 32, "
                    "\"attention_types\": [[[\"global\", \"local\"], 2]]"},
        {"granitemoehybrid", USUAL_SIZES ", \"layer_types\": [\"mamba\", \"attention\", \"mamba\", \"mamba\"]"},
        {"bamba", USUAL_SIZES ", \"attn_layer_indices\": [3]"},
        {"nemotron_h", USUAL_SIZES ", \"hybrid_override_pattern\": \"M*-M\""},
        {"dots1", USUAL_SIZES ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2"},
        {"solar_open", USUAL_SIZES ", \"moe_intermediate_size\": 48"},
        {"lfm2_moe", USUAL_SIZES ", \"layer_types\": [\"conv\", \"conv\", \"conv\", \"full_attention\"]"},
        {"gptj", "\"n_embd\": 1024, \"n_layer\": 4, \"n_head\": 16"},
        {"opt", "\"hidden_size\": 1024, \"ffn_dim\": 96, \"num_hidden_layers\": 4, \"num_attention_heads\": 32"},
        {"mistral4", USUAL_SIZES ", \"rope_parameters\": {\"rope_type\": \"default\"}"},
        {"falcon", "\"hidden_size\": 1024, \"num_hidden_layers\": 4, \"num_attention_heads\": 32"},
        {"helium", USUAL_SIZES ", \"num_key_value_heads\": 32"},
        {"deepseek_v2", USUAL_SIZES ", \"num_experts_per_tok\": 6"},
        {"gemma4_text", USUAL_SIZES ", \"hidden_size_per_layer_input\": 0"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const char *sizes = USUAL_SIZES;
        char text[320];
        for (size_t j = 0; j < sizeof others / sizeof *others; j++)
            if (strcmp(expected[i].model_type, others[j].model_type) == 0) sizes = others[j].sizes;
        assert_string_equal(arch_model_type(i), expected[i].model_type); /* each family of the list */
        snprintf(text, sizeof text, "{\"model_type\": \"%s\", \"vocab_size\": 512, %s}", expected[i].model_type, sizes);
        struct status status = {0};
        struct model_config config;
        test_expect_success(test_config_parse(&config, text, &status), &status);
        assert_int_equal(config.kv_heads, expected[i].kv_heads);
        assert_int_equal(config.head_dim, expected[i].head_dim);
        assert_int_equal(config.rope.rotary_dim, expected[i].rotary_dim);
        assert_int_equal(config.max_position, expected[i].max_position);
        for (int layer = 0; layer < 4; layer++) {
            assert_int_equal(config.layer[layer].window, expected[i].windows[layer] == 'w' ? expected[i].window : 0);
            assert_int_equal("mln"[config.layer[layer].rope], expected[i].ropes[layer]);
        }
        assert_int_equal(config.bos_token, expected[i].bos);
        assert_int_equal(config.eos_count, expected[i].eos_count);
        assert_int_equal(config.pad_token, expected[i].pad);
        assert_true(config.rms_norm_eps == expected[i].eps);
        assert_int_equal(config.tie_word_embeddings, expected[i].tied);
        const bool without_gate = /* with biases */
            strcmp(expected[i].model_type, "starcoder2") == 0 || strcmp(expected[i].model_type, "phi") == 0 ||
            strcmp(expected[i].model_type, "jais2") == 0 || strcmp(expected[i].model_type, "opt") == 0 ||
            strncmp(expected[i].model_type, "gpt", 3) == 0;
        assert_int_equal(config.output_bias, without_gate && strcmp(expected[i].model_type, "gptj") != 0);
        assert_int_equal(config.mlp_bias, without_gate);
        assert_int_equal(config.qkv_bias, expected[i].qkv_bias);
        assert_string_equal(config.architecture, "");
        assert_true(config.rope.theta == expected[i].theta);
    }
    assert_string_equal(arch_model_type(sizeof expected / sizeof *expected), "gemma3"); /* the first wrapper */
    struct model_config config = test_config_accepted("llama", "\"eos_token_id\": null, \"bos_token_id\": null");
    assert_int_equal(config.bos_token, -1);
    assert_int_equal(config.eos_count, 0);
}

TEST(test_sizes)
{
    static const char *const required[] = {"hidden_size", "intermediate_size", "num_hidden_layers",
                                           "num_attention_heads", "vocab_size"};
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        static const struct {
            const char *value, *found;
        } values[] = {{"null", "nothing"}, {"0", "0"},           {"-1", "-1"},
                      {"2.5", "2.5"},      {"\"64\"", "\"64\""}, {"9223372036854775807", "9223372036854775807"}};
        for (size_t j = 0; j < sizeof values / sizeof *values; j++) {
            char text[512], words[128];
            int used = snprintf(text, sizeof text, "{\"model_type\": \"llama\"");
            for (size_t k = 0; k < sizeof required / sizeof *required; k++)
                used += snprintf(text + used, sizeof text - (size_t)used, ", \"%s\": %s", required[k],
                                 k == i ? values[j].value : "64");
            snprintf(text + used, sizeof text - (size_t)used, "}");
            snprintf(words, sizeof words, "'%s'|an integer from 1|found %s", required[i], values[j].found);
            struct status status = {0};
            struct model_config config;
            test_expect_failure(test_config_parse(&config, text, &status), &status, STATUS_BAD_INPUT, words);
        }
    }
    test_config_refused("llama", "\"max_position_embeddings\": 0", "'max_position_embeddings'|found 0");
    test_config_refused("llama", "\"rms_norm_eps\": 0", "'rms_norm_eps'|above 0|found 0");
    test_config_refused("llama", "\"rms_norm_eps\": 1", "'rms_norm_eps'|below 1|found 1");
    test_config_refused("llama", "\"rms_norm_eps\": \"1e-6\"", "'rms_norm_eps'|a number");
    test_config_refused("llama", "\"tie_word_embeddings\": 1", "'tie_word_embeddings'|true or false");
}

TEST(test_heads)
{
    assert_int_equal(test_config_accepted("mistral", "\"num_key_value_heads\": null").kv_heads, 8);
    assert_int_equal(test_config_accepted("qwen2", "\"num_key_value_heads\": null").kv_heads, 8);
    assert_int_equal(test_config_accepted("qwen3", "\"num_key_value_heads\": 1, \"head_dim\": 64").head_dim, 64);
    assert_int_equal(test_config_accepted("llama", "\"head_dim\": null").head_dim, 8);
    assert_int_equal(test_config_accepted("qwen2", "\"head_dim\": 32, \"num_key_value_heads\": 8").head_dim, 32);
    test_config_refused("qwen2", "", "'num_key_value_heads'|divisor|8|found 32 (the default)");
    test_config_refused("llama", "\"num_key_value_heads\": 3", "'num_key_value_heads'|divisor|found 3");
    test_config_refused("llama", "\"num_key_value_heads\": 16", "'num_key_value_heads'|found 16");
    assert_int_equal(test_config_accepted("llama", "\"partial_rotary_factor\": 1.0").rope.rotary_dim, 8);
    test_config_refused("llama", "\"partial_rotary_factor\": 0.5",
                        "'partial_rotary_factor'|expected 1 for model_type 'llama'|4 of the 8");
    test_config_refused("llama", "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
                        "'partial_rotary_factor'|4 of the 8");
    test_config_refused("llama", "\"head_dim\": 7", "'head_dim'|even|found 7");
    test_config_refused("llama", "\"head_dim\": 0", "'head_dim'|from 2");
    test_config_refused("llama", "\"head_dim\": 2048", "'head_dim'|to 1024");
    test_config_refused("qwen3", "\"head_dim\": null, \"num_key_value_heads\": 8", "'head_dim'|an integer|found null");
    struct status status = {0};
    struct model_config config;
    static const char odd[] = "{\"model_type\": \"llama\", \"hidden_size\": 65, \"intermediate_size\": 96,"
                              " \"num_hidden_layers\": 1, \"num_attention_heads\": 8, \"vocab_size\": 512}";
    test_expect_failure(test_config_parse(&config, odd, &status), &status, STATUS_BAD_INPUT,
                        "'hidden_size'|multiple|8|found 65");
    static const char wide[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96, \"head_dim\": 1024,"
        " \"num_hidden_layers\": 1, \"num_attention_heads\": 4096, \"vocab_size\": 512}";
    test_expect_failure(test_config_parse(&config, wide, &status), &status, STATUS_BAD_INPUT,
                        "head_dim|at most 262144|found 4194304");
}

TEST(test_biases)
{
    struct model_config config = test_config_accepted("qwen3", "\"attention_bias\": true, \"num_key_value_heads\": 8");
    assert_true(config.qkv_bias && config.output_bias && !config.mlp_bias);
    config = test_config_accepted("qwen2", "\"attention_bias\": true, \"num_key_value_heads\": 8");
    assert_true(config.qkv_bias && !config.output_bias);
    test_config_accepted("mistral", "\"attention_bias\": false, \"mlp_bias\": false");
    test_config_refused("mistral", "\"attention_bias\": true", "'attention_bias'|expected false|found true");
    test_config_refused("qwen2", "\"attention_bias\": false, \"num_key_value_heads\": 8",
                        "'attention_bias'|expected true");
    test_config_refused("qwen3", "\"mlp_bias\": true, \"num_key_value_heads\": 8",
                        "'mlp_bias'|expected false|found true");
}

TEST(test_factors)
{
    struct model_config config = test_config_accepted("llama", "\"head_dim\": 64");
    assert_true(config.embedding_scale == 1 && config.residual_scale == 1 && config.logits_scale == 1);
    assert_true(config.attention_scale == 0.125);
    config = test_config_accepted("granite", "\"head_dim\": 64");
    assert_true(config.embedding_scale == 1 && config.residual_scale == 1 && config.logits_scale == 1);
    assert_true(config.attention_scale == 1);
    config = test_config_accepted("granite", "\"embedding_multiplier\": 12, \"attention_multiplier\": 0.015625,"
                                             " \"residual_multiplier\": 0.22, \"logits_scaling\": 8.0");
    assert_true(config.embedding_scale == 12 && config.attention_scale == 0.015625);
    assert_true(config.residual_scale == 0.22 && config.logits_scale == 0.125);
    test_config_refused("granite", "\"logits_scaling\": 0", "'logits_scaling'|from 1e-6 to 1e6|found 0");
    test_config_refused("granite", "\"residual_multiplier\": -1.5", "'residual_multiplier'|found -1.5");
    test_config_refused("granite", "\"attention_multiplier\": 1e7", "'attention_multiplier'|found 10000000");
    test_config_refused("granite", "\"embedding_multiplier\": \"12\"", "'embedding_multiplier'|a number");
    test_config_refused("llama", "\"embedding_multiplier\": 12", "'embedding_multiplier'|not understood");
}

TEST(test_phi3)
{
    /* As in Phi 3 mini and Phi 4 mini. */
    struct model_config config = test_config_accepted(
        "phi3", "\"auto_map\": {\"AutoConfig\": \"configuration_phi3.Phi3Config\", \"AutoModelForCausalLM\": "
                "\"modeling_phi3.Phi3ForCausalLM\", \"AutoTokenizer\": \"Xenova/gpt-4o\"}, \"mlp_bias\": false,"
                " \"attention_bias\": false, \"full_attn_mod\": 1, \"interpolate_factor\": 1, \"lm_head_bias\": false,"
                " \"partial_rotary_factor\": 0.75, \"original_max_position_embeddings\": 4096,"
                " \"embd_pdrop\": 0.0, \"resid_pdrop\": 0.0, \"rope_scaling\": null, \"sliding_window\": 2047");
    assert_int_equal(config.layer[3].window, 2047);
    assert_int_equal(config.rope.rotary_dim, 6);
    test_config_refused("phi3", "\"auto_map\": {\"AutoModelForCausalLM\": \"modeling_phi3.Other\"}",
                        "'auto_map'|\"modeling_phi3.Other\"|remove the field|'phi3'");
    test_config_refused("phi3", "\"auto_map\": {\"AutoConfig\": \"configuration_phi3.Phi3Config\", \"AutoModel\": 3}",
                        "'auto_map'|(3)");
    test_config_refused("phi3", "\"auto_map\": [1]", "'auto_map'|an array of 1");
    test_config_refused("phi3", "\"full_attn_mod\": 2", "'full_attn_mod'|expected 1");
    test_config_refused("phi3", "\"lm_head_bias\": true", "'lm_head_bias'|expected false");
    test_config_refused("phi3", "\"attention_bias\": true", "'attention_bias'|expected false");
}

static void expect_layers(const char *model_type, const char *fields, uint64_t window, const char *slides)
{
    struct model_config config = test_config_accepted(model_type, fields);
    char found[5] = {0};
    for (int i = 0; i < 4; i++) {
        found[i] = config.layer[i].window ? 's' : '-';
        if (config.layer[i].window) assert_int_equal(config.layer[i].window, window);
    }
    assert_string_equal(found, slides);
}

#define QWEN    "\"num_key_value_heads\": 8, "
#define FULL    "\"full_attention\""
#define SLIDING "\"sliding_attention\""

TEST(test_windows)
{
    expect_layers("llama", "\"sliding_window\": null", 0, "----");
    expect_layers("llama", "\"sliding_window\": 128, \"use_sliding_window\": false", 0, "----");
    expect_layers("llama", "\"layer_types\": [" FULL "," FULL "," FULL "," FULL "]", 0, "----");
    expect_layers("mistral", "", 4096, "ssss");
    expect_layers("mistral", "\"sliding_window\": null", 0, "----");
    expect_layers("mistral", "\"sliding_window\": 16", 16, "ssss");
    expect_layers("mistral", "\"layer_types\": [" SLIDING "," SLIDING "," SLIDING "," SLIDING "]", 4096, "ssss");
    expect_layers("qwen2", QWEN "\"sliding_window\": 16", 0, "----");
    expect_layers("qwen2", QWEN "\"sliding_window\": 16, \"use_sliding_window\": true", 0, "----");
    expect_layers("qwen3", QWEN "\"use_sliding_window\": true, \"max_window_layers\": 0", 4096, "ssss");
    expect_layers("qwen3", QWEN "\"use_sliding_window\": true, \"max_window_layers\": 3, \"sliding_window\": 9", 9,
                  "---s");
    expect_layers("qwen3", QWEN "\"use_sliding_window\": true, \"max_window_layers\": 0, \"sliding_window\": null", 0,
                  "----");
    expect_layers("qwen2",
                  QWEN "\"use_sliding_window\": true, \"sliding_window\": 16, "
                       "\"layer_types\": [" FULL "," SLIDING "," SLIDING "," FULL "]",
                  16, "-ss-");

    expect_layers("qwen2_moe", QWEN "\"sliding_window\": 0", 0, "----");
    expect_layers("qwen2_moe", QWEN "\"use_sliding_window\": true, \"max_window_layers\": 3, \"sliding_window\": 9", 9,
                  "s-s-");
    expect_layers("qwen2_moe",
                  QWEN "\"use_sliding_window\": true, \"layer_types\": [" FULL "," SLIDING "," SLIDING "," FULL "]",
                  4096, "-ss-");
    expect_layers("qwen3_moe", "\"use_sliding_window\": false, \"sliding_window\": 9", 0, "----");
    expect_layers("qwen3_moe", "\"use_sliding_window\": true, \"max_window_layers\": 3, \"sliding_window\": 9", 9,
                  "ssss");
    expect_layers("smollm3", "\"use_sliding_window\": false, \"sliding_window\": 9", 0, "----");
    expect_layers("smollm3", "\"use_sliding_window\": true, \"sliding_window\": 9", 9, "---s");
    expect_layers("smollm3", "\"use_sliding_window\": true, \"sliding_window\": 9, \"no_rope_layers\": [0, 1, 0, 1]", 9,
                  "s-s-");

    test_config_refused("qwen3_moe",
                        "\"use_sliding_window\": true, \"layer_types\": [" FULL "," FULL "," FULL "," FULL "]",
                        "'layer_types'|\"sliding_attention\"|with a sliding window");
    test_config_refused("smollm3", "\"sliding_window\": 9, \"layer_types\": [" FULL "," SLIDING "," FULL "," FULL "]",
                        "'layer_types'|\"full_attention\"|without a sliding window");
    test_config_refused("llama", "\"sliding_window\": 16", "'sliding_window'|null|found 16");
    test_config_refused("llama", "\"use_sliding_window\": true", "'use_sliding_window'|false|found true");
    test_config_refused("llama", "\"layer_types\": [" FULL "," SLIDING "," FULL "," FULL "]",
                        "'layer_types'|full_attention");
    test_config_refused("mistral", "\"sliding_window\": 0", "'sliding_window'|from 1|found 0");
    test_config_refused("mistral", "\"use_sliding_window\": false",
                        "'use_sliding_window'|true, as sliding_window is set");
    test_config_refused("mistral", "\"sliding_window\": null, \"use_sliding_window\": true",
                        "'use_sliding_window'|false");
    test_config_refused("mistral", "\"layer_types\": [" FULL "," SLIDING "," FULL "," FULL "]",
                        "'layer_types'|\"sliding_attention\"|with a sliding window");
    test_config_refused("qwen2", QWEN "\"layer_types\": [" FULL "," SLIDING "," FULL "," FULL "]",
                        "'layer_types'|\"full_attention\"|without a sliding window");
    test_config_refused("qwen2", QWEN "\"layer_types\": [" FULL "]", "'layer_types'|num_hidden_layers (4)|array of 1");
    test_config_refused("qwen2", QWEN "\"layer_types\": " FULL, "'layer_types'|an array");
    test_config_refused("qwen2", QWEN "\"layer_types\": [" FULL "," FULL "," FULL ",\"linear_attention\"]",
                        "'layer_types'|only|linear_attention");
    test_config_refused("qwen2", QWEN "\"layer_types\": [1,2,3,4]", "'layer_types'|only|found 1");
}

static void expect_gpt_oss_rope(const struct rope_config *rope, double factor, double theta, bool truncate)
{
    assert_int_equal(rope->type, ROPE_YARN);
    assert_true(rope->factor == factor && rope->theta == theta && rope->truncate == truncate);
    assert_true(rope->beta_fast == 32 && rope->beta_slow == 1 && rope->attention_factor == 0);
    assert_int_equal(rope->original_max_position, 4096);
    assert_int_equal(rope->rotary_dim, 64);
}

TEST(test_ministral3)
{
    static const char yarn[] =
        "\"type\": \"yarn\", \"rope_type\": \"yarn\", \"rope_theta\": 1000000.0, \"factor\": 16.0,"
        " \"beta_fast\": 32.0, \"beta_slow\": 1.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0,"
        " \"original_max_position_embeddings\": 16384";
    /* With a beta, positions end where the factor on queries begins; without one they are the model's. */
    static const struct {
        const char *beta;
        uint64_t max_position;
    } betas[] = {{", \"llama_4_scaling_beta\": 0.1, \"max_position_embeddings\": 262144", 16384},
                 {", \"llama_4_scaling_beta\": -1", 16384},
                 {", \"llama_4_scaling_beta\": 0.0", 262144},
                 {", \"llama_4_scaling_beta\": null", 262144},
                 {"", 262144}};
    static const char *const objects[] = {"rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < sizeof betas / sizeof *betas; i++) {
        for (size_t object = 0; object < 2; object++) {
            char fields[512];
            snprintf(fields, sizeof fields, "\"%s\": {%s%s}", objects[object], yarn, betas[i].beta);
            struct model_config config = test_config_accepted("ministral3", fields);
            assert_int_equal(config.max_position, betas[i].max_position);
            assert_int_equal(config.position_limit != NULL, config.max_position < 262144);
            assert_int_equal(config.rope.type, ROPE_YARN);
            assert_int_equal(config.rope.original_max_position, 16384);
            assert_true(config.rope.theta == 1e6 && config.rope.mscale == 1 && config.rope.mscale_all_dim == 1);
        }
    }
    /* The object of the class; a model that ends earlier. */
    struct model_config config = test_config_accepted("ministral3", "\"max_position_embeddings\": 100");
    assert_int_equal(config.max_position, 100);
    assert_null(config.position_limit);
    assert_int_equal(config.rope.type, ROPE_YARN);
    assert_true(config.rope.factor == 16 && config.rope.theta == 1e6 && config.rope.truncate);
    config = test_config_accepted("ministral3", "\"rope_parameters\": {\"rope_type\": \"default\"}");
    assert_int_equal(config.rope.type, ROPE_DEFAULT);
    assert_true(config.rope.theta == 1e4);
    expect_layers("ministral3", "\"sliding_window\": 16", 16, "ssss");
    static const struct {
        const char *fields, *words;
    } cases[] = {
        {"\"rope_parameters\": {\"rope_type\": \"default\", \"llama_4_scaling_beta\": 0.1}",
         "rope_parameters|'original_max_position_embeddings'|llama_4_scaling_beta is not 0|nothing"},
        {"\"rope_parameters\": {\"llama_4_scaling_beta\": \"0.1\"}", "'llama_4_scaling_beta'|a number"},
        {"\"rope_parameters\": {\"llama_4_scaling_beta\": 1, \"original_max_position_embeddings\": 0}",
         "'original_max_position_embeddings'|found 0"},
        {"\"rope_parameters\": {\"rope_type\": \"default\", \"llama_4_scaling\": 1}", "'llama_4_scaling'"},
        {"\"llama_4_scaling_beta\": 0.1", "'llama_4_scaling_beta'|not understood"},
        {"\"rope_parameters\": 3", "rope_parameters: expected an object"},
        {"\"attention_bias\": true", "'attention_bias'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_config_refused("ministral3", cases[i].fields, cases[i].words);
    test_config_refused("mistral", "\"rope_parameters\": {\"rope_type\": \"default\", \"llama_4_scaling_beta\": 0.1}",
                        "'llama_4_scaling_beta'");
}

TEST(test_gpt_oss)
{
    struct model_config config = test_config_accepted("gpt_oss", "");
    assert_int_equal(config.experts.count, 128);
    assert_int_equal(config.experts.top_k, 4);
    assert_int_equal(config.experts.intermediate_size, config.intermediate_size);
    assert_int_equal(config.experts.score, ROUTER_SOFTMAX_CHOSEN);
    assert_int_equal(config.activation, ACTIVATION_CLAMPED);
    assert_true(config.swiglu_limit == 7 && config.mlp_bias && config.qkv_bias && config.output_bias);
    /* Without an object the class scales the rotary embedding; an object says all, an empty one nothing. */
    expect_gpt_oss_rope(&config.rope, 32, 150000, false);
    config = test_config_accepted("gpt_oss", "\"rope_theta\": 10000, \"rope_scaling\": null");
    expect_gpt_oss_rope(&config.rope, 32, 10000, false);
    config = test_config_accepted("gpt_oss", "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 8.0,"
                                             " \"original_max_position_embeddings\": 4096}");
    expect_gpt_oss_rope(&config.rope, 8, 150000, true);
    assert_int_equal(test_config_accepted("gpt_oss", "\"rope_parameters\": {\"rope_type\": \"default\"}").rope.type,
                     ROPE_DEFAULT);
    assert_int_equal(test_config_accepted("gpt_oss", "\"rope_scaling\": {}").rope.type, ROPE_DEFAULT);

    config = test_config_accepted("gpt_oss",
                                  "\"num_local_experts\": 32, \"num_experts_per_tok\": 3, \"experts_per_token\": 3,"
                                  " \"initial_context_length\": 4096, \"swiglu_limit\": 2.5, \"hidden_act\": \"silu\","
                                  " \"attention_bias\": false, \"output_router_logits\": false");
    assert_int_equal(config.experts.count, 32);
    assert_true(config.swiglu_limit == 2.5 && config.mlp_bias && !config.qkv_bias && !config.output_bias);
    assert_int_equal(config.activation, ACTIVATION_CLAMPED);
    expect_layers("gpt_oss", "\"sliding_window\": 16, \"layer_types\": [" FULL "," SLIDING "," SLIDING "," FULL "]", 16,
                  "-ss-");
    static const struct {
        const char *fields, *words;
    } cases[] = {
        {"\"experts_per_token\": 8", "'experts_per_token'|num_experts_per_tok (4)|found 8"},
        {"\"experts_per_token\": \"4\"", "'experts_per_token'|an integer"},
        {"\"swiglu_limit\": 0", "'swiglu_limit'|from 1e-6|found 0"},
        {"\"swiglu_limit\": -7.0", "'swiglu_limit'|found -7"},
        {"\"swiglu_alpha\": 2.0", "'swiglu_alpha'|not understood"},
        {"\"hidden_act\": \"gelu\"", "'hidden_act'|\"silu\" for this model_type|found \"gelu\""},
        {"\"mlp_bias\": false", "'mlp_bias'|expected true"},
        {"\"norm_topk_prob\": true", "'norm_topk_prob'|not understood"},
        {"\"sliding_window\": null, \"layer_types\": [" FULL "," SLIDING "," FULL "," FULL "]",
         "'layer_types'|without"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_config_refused("gpt_oss", cases[i].fields, cases[i].words);
}

#define V2 "\"num_experts_per_tok\": 6"

TEST(test_latent_attention)
{
    /* As in DeepSeek-V2-Lite, and in V3. */
    struct model_config config =
        test_config_accepted("deepseek_v2",
                             V2 ", \"q_lora_rank\": null, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128,"
                                " \"aux_loss_alpha\": 0.001, \"seq_aux\": true, \"ep_size\": 1, \"moe_layer_freq\": 1,"
                                " \"scoring_func\": \"softmax\", \"topk_method\": \"greedy\", \"n_group\": 1,"
                                " \"topk_group\": 1, \"norm_topk_prob\": false, \"first_k_dense_replace\": 1,"
                                " \"routed_scaling_factor\": 1.0, \"auto_map\": {\"AutoConfig\":"
                                " \"configuration_deepseek.DeepseekV2Config\"}, \"rope_scaling\": {\"type\": \"yarn\","
                                " \"factor\": 40, \"mscale\": 0.707, \"mscale_all_dim\": 0.707,"
                                " \"original_max_position_embeddings\": 4096, \"beta_fast\": 32, \"beta_slow\": 1}");
    assert_int_equal(config.latent.q_rank, 0);
    assert_int_equal(config.latent.value_dim, 128);
    assert_int_equal(config.experts.score, ROUTER_SOFTMAX);
    assert_int_equal(config.experts.groups, 1);
    assert_int_equal(config.experts.shared_size, 2 * 1407);
    assert_int_equal(config.experts.renormalise, ROUTER_AS_THEY_ARE);
    assert_int_equal(config.ignored_layers, 0);
    assert_true(config.rotary_pairs && !config.layer[0].experts && config.layer[1].experts);
    assert_true(config.attention_scale == 1 / sqrt(192));
    config = test_config_accepted("deepseek_v2",
                                  V2 ", \"topk_method\": \"group_limited_greedy\", \"n_group\": 8, \"topk_group\": 3");
    assert_int_equal(config.experts.groups, 8);
    assert_int_equal(config.experts.top_groups, 3);
    assert_int_equal(config.experts.group_score, ROUTER_GROUP_BEST);
    config =
        test_config_accepted("deepseek_v3", "\"rope_interleave\": false, \"num_key_value_heads\": 8, \"head_dim\": 32,"
                                            " \"qk_rope_head_dim\": 32, \"qk_nope_head_dim\": 16, \"qk_head_dim\": 48,"
                                            " \"kv_lora_rank\": 100, \"v_head_dim\": 24, \"attention_bias\": true");
    assert_true(!config.rotary_pairs && config.qkv_bias && config.output_bias);
    assert_int_equal(config.head_dim, 132);
    assert_int_equal(config.kv_heads, 1);
    assert_int_equal(config.rope.rotary_dim, 32);
    assert_int_equal(config.experts.score, ROUTER_SIGMOID);
    assert_int_equal(config.experts.groups, 8);
    assert_int_equal(config.experts.top_groups, 4);
    assert_int_equal(config.experts.renormalise, ROUTER_SUM_PLUS_EPS);
    assert_int_equal(config.ignored_layers, 1);
    assert_true(config.experts.scale == 2.5);
    assert_int_equal(test_config_accepted("deepseek_v3", "\"kv_lora_rank\": 33").head_dim, 97);
    static const struct {
        const char *model_type, *fields, *words;
    } cases[] = {
        {"deepseek_v2", "", "'num_experts_per_tok'|found nothing"},
        {"deepseek_v2", V2 ", \"norm_topk_prob\": true", "'norm_topk_prob'|false"},
        {"deepseek_v2", V2 ", \"topk_method\": \"noaux_tc\"", "'topk_method'|\"greedy\"|noaux_tc"},
        {"deepseek_v2", V2 ", \"scoring_func\": \"sigmoid\"", "'scoring_func'|\"softmax\"|sigmoid"},
        {"deepseek_v2", V2 ", \"mlp_bias\": true", "'mlp_bias'|false"},
        {"deepseek_v2", V2 ", \"moe_layer_freq\": 2", "'moe_layer_freq'|found 2"},
        {"deepseek_v2", V2 ", \"rope_interleave\": true", "'rope_interleave'|not understood"},
        {"deepseek_v3", "\"scoring_func\": \"softmax\"", "'scoring_func'|\"sigmoid\"|softmax"},
        {"deepseek_v3", "\"topk_method\": \"greedy\"", "'topk_method'|\"noaux_tc\"|greedy"},
        {"deepseek_v3", "\"n_group\": 2", "'n_group'|topk_group (4)|found 2"},
        {"deepseek_v3", "\"kv_lora_rank\": 0", "'kv_lora_rank'|from 1|found 0"},
        {"deepseek_v3", "\"kv_lora_rank\": 600", "kv_lora_rank plus qk_rope_head_dim|at most 640|found 664"},
        {"deepseek_v3", "\"qk_rope_head_dim\": 15", "'qk_rope_head_dim'|even|found 15"},
        {"deepseek_v3", "\"q_lora_rank\": 0", "'q_lora_rank'|from 1"},
        {"deepseek_v3", "\"head_dim\": 128", "'head_dim'|64 (qk_rope_head_dim)|found 128"},
        {"deepseek_v3", "\"qk_head_dim\": 128", "'qk_head_dim'|192|found 128"},
        {"deepseek_v3", "\"num_key_value_heads\": 1", "'num_key_value_heads'|8 (num_attention_heads)|found 1"},
        {"deepseek_v3", "\"partial_rotary_factor\": 0.5", "'partial_rotary_factor'|32 of the 64"},
        {"deepseek_v3", "\"auto_map\": {\"AutoModel\": \"modeling_other.Model\"}", "'auto_map'|modeling_other"},
        {"deepseek_v3", "\"num_nextn_predict_layers\": 100", "'num_nextn_predict_layers'|found 100"},
        {"deepseek_v3", "\"index_topk\": 2048", "'index_topk'|not understood"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_config_refused(cases[i].model_type, cases[i].fields, cases[i].words);
    struct status status = {0};
    /* Wide heads. */
    static const char wide[] = "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 64, \"intermediate_size\": 96,"
                               " \"num_hidden_layers\": 4, \"num_attention_heads\": 512, \"vocab_size\": 512}";
    test_expect_failure(test_config_parse(&config, wide, &status), &status, STATUS_BAD_INPUT,
                        "num_attention_heads times the widest|at most 262144|found 294912");
}

TEST(test_other_keys)
{
    struct model_config config = test_config_accepted("llama", "\"auto_map\": null, \"layer_types\": null");
    assert_int_equal(config.activation, ACTIVATION_SILU);
    config = test_config_accepted("llama", "\"hidden_act\": \"swish\"");
    assert_int_equal(config.activation, ACTIVATION_SILU);
    config = test_config_accepted("llama", "\"hidden_act\": \"gelu_pytorch_tanh\"");
    assert_int_equal(config.activation, ACTIVATION_GELU_TANH);
    static const struct {
        const char *fields, *words;
    } cases[] = {
        {"\"hidden_act\": \"tanh\"", "'hidden_act'|\"silu\"|\"gelu_new\"|\"tanh\""},
        {"\"auto_map\": {\"AutoModelForCausalLM\": \"m.M\"}", "'auto_map'|code of its own|remove"},
        {"\"auto_map\": {\"AutoConfig\": \"configuration_phi3.Phi3Config\"}", "'auto_map'|code of its own"},
        {"\"logit_softcapping\": 30.0", "'logit_softcapping'|not understood|refused|found 30"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_config_refused("llama", cases[i].fields, cases[i].words);
}

/* Configurations of real models, in folders of ENG_SHARED. */
TEST(test_real_configs)
{
    static const struct {
        const char *name, *model_type; /* NULL: must be refused */
    } cases[] = {
        {"configs/Llama-3.1-8B", "llama"},
        {"configs/Llama-3.1-70B", "llama"},
        {"configs/Llama-3.2-1B-Instruct", "llama"},
        {"configs/SmolLM2-135M", "llama"},
        {"configs/TinyLlama-1.1B", "llama"},
        {"configs/Mistral-7B-Instruct-v0.3", "mistral"},
        {"configs/Qwen2.5-7B-Instruct", "qwen2"},
        {"configs/Qwen3-0.6B", "qwen3"},
        {"configs/Qwen3-8B", "qwen3"},
        {"models/stories260K", "llama"},
        {"models/stories260K-bf16", "llama"},
        {"models/hf-tiny/llama3", "llama"},
        {"models/hf-tiny/llama-tied-sharded", "llama"},
        {"models/hf-tiny/mistral-window", "mistral"},
        {"models/hf-tiny/qwen2", "qwen2"},
        {"models/hf-tiny/qwen3", "qwen3"},
        {"models/hf-tiny/granite", "granite"},
        {"models/hf-tiny/olmo2", "olmo2"},
        {"models/hf-tiny/phi3", "phi3"},
        {"models/hf-tiny/phi4-mini", "phi3"},
        {"configs/Phi-3-mini-128k-instruct", "phi3"},
        {"models/hf-tiny/smollm3", "smollm3"},
        {"models/hf-tiny/seed_oss", "seed_oss"},
        {"models/hf-tiny/glm4", "glm4"},
        {"models/hf-tiny/exaone4", "exaone4"},
        {"models/hf-tiny/olmo3", "olmo3"},
        {"models/hf-tiny/gemma", "gemma"},
        {"models/hf-tiny/cohere2", "cohere2"},
        {"models/hf-tiny/stablelm", "stablelm"},
        {"models/hf-tiny/starcoder2", "starcoder2"},
        {"models/hf-tiny/nemotron", "nemotron"},
        {"models/hf-tiny/gpt2", "gpt2"},
        {"models/hf-tiny/gpt_neox", "gpt_neox"},
        {"models/hf-tiny/gemma2", "gemma2"},
        {"models/hf-tiny/gemma3", "gemma3_text"},
        {"models/hf-tiny/phi3-longrope", "phi3"},
        {"configs/DeepSeek-V3", "deepseek_v3"},
        {"models/hf-tiny/deepseek_v2", "deepseek_v2"},
        {"models/hf-tiny/deepseek_v3", "deepseek_v3"},
        {"configs/Mixtral-8x7B-v0.1", "mixtral"},
        {"configs/Qwen3-30B-A3B", "qwen3_moe"},
        {"configs/gpt-oss-20b", "gpt_oss"},
        {"models/hf-tiny/mixtral", "mixtral"},
        {"models/hf-tiny/qwen3_moe", "qwen3_moe"},
        {"models/hf-tiny/gpt_oss", "gpt_oss"},
        {"models/quantised/gpt_oss-mxfp4", "gpt_oss"},
    };
    if (!test_shared()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        struct model_config config;
        struct file_map map;
        char path[512];
        snprintf(path, sizeof path, "%s/%s/config.json", test_shared(), cases[i].name);
        test_expect_success(file_map_open(&map, path, &status), &status);
        bool done = model_config_parse(&config, (const char *)map.data, map.size, path, arch_read_config, &status);
        file_map_close(&map);
        if (cases[i].model_type) {
            test_expect_success(done, &status);
            assert_string_equal(config.model_type, cases[i].model_type);
        } else {
            test_expect_failure(done, &status, STATUS_BAD_INPUT, "model_type '|is not supported");
        }
    }
}

/* LiquidAI's own configuration class, as of LFM2-350M with fewer layers, and transformers'. */
#define LFM2                                                                                                          \
    "\"block_auto_adjust_ff_dim\": true, \"block_dim\": 64, \"block_ff_dim\": 6656, \"block_ffn_dim_multiplier\": "   \
    "1.0,"                                                                                                            \
    " \"block_mlp_init_scale\": 1.0, \"block_multiple_of\": 256, \"block_norm_eps\": 1e-5, \"norm_eps\": 1e-5,"       \
    " \"block_use_swiglu\": true, \"conv_L_cache\": 3, \"conv_bias\": false, \"conv_dim\": 64, \"conv_dim_out\": 64," \
    " \"num_heads\": 8, \"use_pos_enc\": true"

TEST(short_convolutions)
{
    struct model_config config = test_config_accepted("lfm2", LFM2 ", \"full_attn_idxs\": [1]");
    assert_int_equal(config.intermediate_size, 4608); /* 2 / 3 of 6656, rounded up to a multiple of 256 */
    assert_int_equal(config.recurrent.kernel, 3);
    assert_int_equal(config.recurrent.channels, config.hidden_size);
    for (uint64_t i = 0; i < config.layers; i++)
        assert_int_equal(config.layer[i].mixer, i == 1 ? MIXER_ATTENTION : MIXER_SHORT_CONV);
    assert_int_equal(model_attention_layers(&config), 1);
    config = test_config_accepted("lfm2", "\"block_auto_adjust_ff_dim\": false, \"tie_embedding\": false");
    assert_int_equal(config.recurrent.kernel, 0);
    assert_false(config.tie_word_embeddings);
    static const struct {
        const char *fields, *words;
    } cases[] = {
        {"\"full_attn_idxs\": [99]", "'full_attn_idxs'|numbers of layers|99"},
        {"\"full_attn_idxs\": []", "at least one layer of attention"},
        {"\"full_attn_idxs\": 3", "'full_attn_idxs'|an array"},
        {"\"layer_types\": [\"conv\"]", "'layer_types'|num_hidden_layers"},
        {"\"conv_L_cache\": 1", "'conv_L_cache'|found 1"},
        {"\"conv_dim\": 65", "'conv_dim'|hidden_size|65"},
        {"\"num_heads\": 4", "'num_heads'|num_attention_heads"},
        {"\"block_norm_eps\": 0.5", "'block_norm_eps'|norm_eps"},
        {"\"block_use_swiglu\": false", "'block_use_swiglu'|true"},
        {"\"block_ffn_dim_multiplier\": 1e6, \"block_multiple_of\": 1000000", "'block_ffn_dim_multiplier'|factor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_config_refused("lfm2", cases[i].fields, cases[i].words);
}

TEST(norms_of_each_head)
{
    assert_true(
        test_config_accepted("stablelm",
                             "\"num_key_value_heads\": 4, \"qk_layernorm\": true, \"use_parallel_residual\": true")
            .head_norms);
    assert_false(test_config_accepted("stablelm", "\"num_key_value_heads\": 4, \"qk_layernorm\": false").head_norms);
    test_config_refused("llama", "\"qk_layernorm\": true", "'qk_layernorm'|not understood");
}

TEST(gated_delta_rule)
{
    struct model_config config = test_config_accepted("qwen3_next", "\"full_attention_interval\": 2");
    assert_true(config.output_gate && config.ignored_prefix);
    assert_int_equal(config.layer[0].mixer, MIXER_DELTA_RULE);
    assert_int_equal(config.layer[1].mixer, MIXER_ATTENTION);
    assert_int_equal(config.recurrent.channels, 2 * 16 * 128 + 32 * 128);
    assert_int_equal(config.experts.shared_size, 512);
    /* fields of Qwen3.5-27B and 35B-A3B */
    config = test_config_accepted(
        "qwen3_5_text",
        "\"attn_output_gate\": true, \"mamba_ssm_dtype\": \"float32\", \"mtp_num_hidden_layers\": 1,"
        " \"mtp_use_dedicated_embeddings\": false, \"partial_rotary_factor\": 0.25, \"rope_parameters\":"
        " {\"mrope_interleaved\": true, \"mrope_section\": [11, 11, 10], \"rope_type\": \"default\","
        " \"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25}");
    assert_true(config.recurrent.apart && config.output_gate && config.ignored_prefix && config.rope.theta == 1e7);
    assert_int_equal(config.rope.rotary_dim, 64);
    config =
        test_config_accepted("qwen3_5_moe_text", "\"output_router_logits\": false, \"router_aux_loss_coef\": 0.001");
    assert_true(config.layer[0].experts && config.layer[3].experts);
    assert_int_equal(config.experts.count, 256);
    assert_int_equal(config.experts.renormalise, ROUTER_SUM_PLUS_EPS);
    test_config_refused("qwen3_5_text", "\"attn_output_gate\": false", "'attn_output_gate'|true");
    test_config_refused("qwen3_5_moe_text", "\"norm_topk_prob\": false", "'norm_topk_prob'|true");
    test_config_refused("qwen3_5_text", "\"rope_parameters\": {\"mrope_section\": [11, 11]}",
                        "rope_parameters|'mrope_section'");
    test_config_refused("qwen3_next", "\"linear_num_value_heads\": 33", "'linear_num_value_heads'|multiple|33");
    test_config_refused("qwen3_next", "\"linear_key_head_dim\": 513", "'linear_key_head_dim'|513");
    test_config_refused("qwen3_next", "\"linear_num_value_heads\": 4096", "widths of q, k and v of linear attention");
    test_config_refused("qwen3_next", "\"full_attention_interval\": 1000", "at least one layer");
    test_config_refused("qwen3_next", "\"linear_conv_kernel_dim\": 17", "'linear_conv_kernel_dim'|17");
}

int main(void) { return test_run(); }
