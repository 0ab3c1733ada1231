/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that single families without experts have, and published config.json of these families. */
#include "builder/arch/test_config.h"
#include "formats/base/test_program.h"

#include <math.h>

#include "formats/base/test_support.h"
#include "kernels/op/activation.h"

/* The layers that slide: "s--s". */
static void expect_layers(const char *model_type, const char *fields, const char *slides)
{
    const struct model_config config = test_config_accepted(model_type, fields);
    char found[5] = "";
    for (int i = 0; i < 4; i++) found[i] = config.layer[i].window ? 's' : '-';
    assert_string_equal(found, slides);
}

#define FULL    "\"full_attention\""
#define SLIDING "\"sliding_attention\""

TEST(windows_of_some_layers)
{
    expect_layers("ministral", "", "ssss");
    expect_layers("ministral", "\"sliding_window\": null", "----");
    expect_layers("ministral", "\"layer_types\": [" FULL "," SLIDING "," SLIDING "," FULL "]", "-ss-");
    expect_layers("cwm", "", "-sss");
    expect_layers("cwm", "\"sliding_window\": null", "----");
    expect_layers("cwm", "\"layer_types\": [" SLIDING "," FULL "," SLIDING "," FULL "]", "s-s-");
    expect_layers("vaultgemma", "", "s-s-");
    test_config_refused("ministral", "\"layer_types\": [" FULL "]", "'layer_types'|num_hidden_layers (4)");
    test_config_refused("cwm", "\"attention_bias\": true", "'attention_bias'|expected false");
}

/* The class has a scaling where config.json has no object. */
TEST(cwm_rotation)
{
    struct model_config config = test_config_accepted("cwm", "");
    assert_int_equal(config.rope.type, ROPE_LLAMA3);
    assert_true(config.rope.factor == 16 && config.rope.theta == 1e6);
    assert_int_equal(config.rope.original_max_position, 8192);
    config = test_config_accepted("cwm", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 50000}");
    assert_int_equal(config.rope.type, ROPE_DEFAULT);
    assert_true(config.rope.theta == 50000);
}

TEST(biases)
{
    struct model_config config = test_config_accepted("ernie4_5", "\"use_bias\": true");
    assert_true(config.qkv_bias && config.output_bias && config.mlp_bias && config.rotary_pairs && !config.head_bias);
    config = test_config_accepted("helium", "\"num_key_value_heads\": 8, \"attention_bias\": true, \"mlp_bias\": true");
    assert_true(config.qkv_bias && !config.output_bias && config.mlp_bias && config.rotary_pairs);
    config = test_config_accepted("glm", "\"attention_bias\": false");
    assert_true(!config.qkv_bias && config.rotary_pairs);
    config = test_config_accepted("arcee", "\"attention_bias\": true, \"mlp_bias\": true");
    assert_true(config.qkv_bias && config.output_bias && config.mlp_bias);
    assert_int_equal(config.activation, ACTIVATION_RELU2);
    config = test_config_accepted("jais2", "\"attention_bias\": false");
    assert_true(!config.qkv_bias && !config.output_bias && config.mlp_bias);
    config = test_config_accepted("phi", "");
    assert_true(config.head_bias && config.parallel_residual);
    test_config_refused("phi", "\"tie_word_embeddings\": true", "'tie_word_embeddings'|expected false");
    test_config_refused("phi", "\"qk_layernorm\": true", "'qk_layernorm'|expected false");
}

TEST(norms)
{
    struct model_config config = test_config_accepted("cohere", "\"use_qk_norm\": true, \"logit_scale\": 0.25");
    assert_true(config.head_norms && config.parallel_residual && config.logits_scale == 0.25);
    assert_false(test_config_accepted("cohere", "").head_norms);
    test_config_refused("cohere", "\"sliding_window\": 16", "'sliding_window'|null");
    test_config_accepted("olmo", "\"clip_qkv\": null");
    test_config_refused("olmo", "\"clip_qkv\": 8.0", "'clip_qkv'|expected null|found 8");
    test_config_refused("olmo", "\"rms_norm_eps\": 1e-6", "'rms_norm_eps'|expected 1e-5");
    assert_true(test_config_accepted("nanochat", "").logits_cap == 15);
    assert_true(test_config_accepted("nanochat", "\"final_logit_softcapping\": null").logits_cap == 0);
}

#define GPTJ "{\"model_type\": \"gptj\", \"n_embd\": 64, \"n_layer\": 4, \"n_head\": 4, \"vocab_size\": 512, "

TEST(gptj_rotation)
{
    struct status status = {0};
    struct model_config config;
    test_expect_success(test_config_parse(&config, GPTJ "\"rotary_dim\": 8}", &status), &status);
    assert_int_equal(config.rope.rotary_dim, 8);
    assert_true(config.head_bias && config.rotary_pairs && !config.qkv_bias);
    static const char *const values[] = {"7", "18", "64", "null"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char text[256];
        snprintf(text, sizeof text, GPTJ "\"rotary_dim\": %s}", values[i]);
        test_expect_failure(test_config_parse(&config, text, &status), &status, STATUS_BAD_INPUT,
                            "'rotary_dim'|even number up to n_embd / n_head (16)|found");
        status_clear(&status);
    }
    test_expect_failure(test_config_parse(&config, GPTJ "\"rotary_dim\": 8, \"rotary\": false}", &status), &status,
                        STATUS_BAD_INPUT, "'rotary'|expected true");
}

TEST(gpt_bigcode_heads)
{
    static const char text[] = "{\"model_type\": \"gpt_bigcode\", \"n_embd\": 64, \"n_layer\": 4, \"n_head\": 4, "
                               "\"vocab_size\": 512, \"multi_query\": false, \"attention_softmax_in_fp32\": true}";
    struct status status = {0};
    struct model_config config;
    test_expect_success(test_config_parse(&config, text, &status), &status);
    assert_int_equal(config.kv_heads, 4);
}

#define GPT_NEO \
    "{\"model_type\": \"gpt_neo\", \"hidden_size\": 64, \"num_layers\": 4, \"num_heads\": 4, \"vocab_size\": 512"

TEST(gpt_neo_windows)
{
    static const struct {
        const char *types, *windows; /* NULL: refused */
    } cases[] = {
        {"[[[\"global\", \"local\"], 2]]", "-s-s"},
        {"[[[\"global\"], 1], [[\"local\"], 3]]", "-sss"},
        {"[[[\"global\"], 3]]", NULL},
        {"[[[\"global\"], 5]]", NULL},
        {"[[[\"global\", \"local\"], 9223372036854775807]]", NULL},
        {"[[[\"global\"], 0], [[\"local\"], 4]]", NULL},
        {"[[[], 4]]", NULL},
        {"[[[\"linear\"], 4]]", NULL},
        {"[[[3], 4]]", NULL},
        {"[[\"global\", 4]]", NULL},
        {"\"global\"", NULL},
        {"null", NULL}, /* of 24 layers */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        struct model_config config;
        char text[256], found[5] = "";
        snprintf(text, sizeof text, GPT_NEO ", \"window_size\": 16, \"attention_types\": %s}", cases[i].types);
        const bool read = test_config_parse(&config, text, &status);
        if (!cases[i].windows) {
            test_expect_failure(read, &status, STATUS_BAD_INPUT, "'attention_types'|num_layers (4)|found");
            continue;
        }
        test_expect_success(read, &status);
        for (int layer = 0; layer < 4; layer++) found[layer] = config.layer[layer].window == 16 ? 's' : '-';
        assert_string_equal(found, cases[i].windows);
        assert_true(config.attention_scale == 1 && config.output_bias && !config.qkv_bias);
    }
}

#define ATTENTION \
    "\"num_local_experts\": 0, \"layer_types\": [\"attention\", \"attention\", \"attention\", \"attention\"]"

TEST(granitemoehybrid_without_mamba)
{
    struct model_config config =
        test_config_accepted("granitemoehybrid", ATTENTION ", \"shared_intermediate_size\": 48, "
                                                           "\"position_embedding_type\": \"rope\"");
    assert_int_equal(config.intermediate_size, 48);
    assert_int_equal(config.layer[0].rope, LAYER_ROPE_MAIN);
    config = test_config_accepted("granitemoehybrid", ATTENTION ", \"position_embedding_type\": \"nope\"");
    assert_int_equal(config.intermediate_size, 1024);
    assert_int_equal(config.layer[3].rope, LAYER_ROPE_NONE);
    static const struct {
        const char *fields, *words;
    } refused[] = {
        {"\"num_local_experts\": 0, \"layer_types\": [\"attention\"]", "'layer_types'|an array of 1"},
        {ATTENTION ", \"normalization_function\": \"layernorm\"", "'normalization_function'|rmsnorm"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        test_config_refused("granitemoehybrid", refused[i].fields, refused[i].words);
}

TEST(hunyuan_rotation)
{
    struct model_config config =
        test_config_accepted("hunyuan_v1_dense",
                             "\"head_dim\": 16, \"attention_head_dim\": 16, \"use_qk_norm\": true, \"use_cla\": false, "
                             "\"eod_token_id\": 3, \"rope_theta\": 10000.0, \"rope_scaling\": {\"alpha\": 1000.0, "
                             "\"beta_fast\": 32, \"beta_slow\": 1, \"factor\": 1.0, \"mscale\": 1.0, "
                             "\"mscale_all_dim\": 1.0, \"type\": \"dynamic\"}");
    assert_true(fabs(config.rope.theta / (1e4 * pow(1000, 16.0 / 14)) - 1) < 1e-12);
    assert_int_equal(config.rope.type, ROPE_DEFAULT);
    config = test_config_accepted("hunyuan_v1_dense", "\"rope_parameters\": {\"rope_type\": \"dynamic\", \"alpha\": 2, "
                                                      "\"rope_theta\": 500}");
    assert_true(fabs(config.rope.theta / (500 * pow(2, 8.0 / 6)) - 1) < 1e-12);
    config = test_config_accepted("hunyuan_v1_dense", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}");
    assert_int_equal(config.rope.type, ROPE_LINEAR);
    static const struct {
        const char *fields, *words;
    } refused[] = {
        {"\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}", "rope_scaling|'alpha'|above 0"},
        {"\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": -1}", "'alpha'|found -1"},
        {"\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": \"9\"}", "'alpha'|a number"},
        {"\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 9, \"beta\": 1}", "'beta'|not understood"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}", "default, linear or llama3|found yarn"},
        {"\"attention_head_dim\": 16", "'attention_head_dim'|elements of a head (8)|found 16"},
        {"\"use_cla\": true", "'use_cla'|expected false"},
        {"\"use_qk_norm\": false", "'use_qk_norm'|expected true"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        test_config_refused("hunyuan_v1_dense", refused[i].fields, refused[i].words);
}

TEST(hyperclovax_multipliers)
{
    struct model_config config = test_config_accepted(
        "hyperclovax", "\"logits_scaling\": 0.125, \"attention_multiplier\": null, \"embedding_multiplier\": 10.0");
    assert_true(config.logits_scale == 0.125 && config.embedding_scale == 10 && !config.other_norms);
    assert_true(fabs(config.attention_scale * sqrt(8) - 1) < 1e-12);
    config = test_config_accepted("hyperclovax", "\"attention_multiplier\": 0.25, \"use_post_norm\": false, "
                                                 "\"residual_multiplier\": 0.5");
    assert_true(config.attention_scale == 0.25 && config.residual_scale == 0.5 && config.other_norms);
    test_config_refused("hyperclovax", "\"residual_multiplier\": 0.5",
                        "'residual_multiplier'|expected 1, as use_post_norm is true|found 0.5");
}

TEST(apertus_keys)
{
    struct model_config config = test_config_accepted("apertus", "\"qk_norm\": true, \"post_norm\": false");
    assert_int_equal(config.rope.type, ROPE_LLAMA3);
    assert_true(config.rope.factor == 8 && config.rope.theta == 12e6 && !config.mlp_bias);
    config = test_config_accepted("apertus", "\"rope_theta\": 12e6, \"rope_scaling\": null, \"attention_bias\": true");
    assert_true(config.rope.theta == 12e6 && config.qkv_bias && config.output_bias);
    /* The class reads a theta beside no object into nothing. */
    test_config_refused("apertus", "\"rope_theta\": 5e5, \"rope_scaling\": null",
                        "'rope_theta'|expected 12000000, or one in");
    test_config_refused("apertus", "\"hidden_act\": \"silu\"", "'hidden_act'|\"xielu\"|silu");
    test_config_refused("apertus", "\"post_norm\": true", "'post_norm'|expected false");
    test_config_refused("apertus", "\"mlp_bias\": true", "'mlp_bias'|expected false");
}

TEST(minicpm3_factors)
{
    struct model_config config =
        test_config_accepted("minicpm3", "\"scale_emb\": 3, \"scale_depth\": 1.0, \"dim_model_base\": 16");
    assert_true(config.embedding_scale == 3 && config.residual_scale == 0.5 && config.logits_scale == 0.25);
    assert_int_equal(config.latent.value_dim, 8);
    config = test_config_accepted("minicpm3", "\"scale_depth\": null, \"dim_model_base\": null, \"v_head_dim\": 16");
    assert_true(config.embedding_scale == 12 && config.residual_scale == 1 && config.logits_scale == 1);
    assert_int_equal(config.latent.value_dim, 16);
    test_config_refused("minicpm3", "\"scale_depth\": -1", "'scale_depth'|found -1");
    test_config_refused("minicpm3", "\"num_experts\": 4", "'num_experts'|not understood");
}

TEST(opt_keys)
{
    static const char sizes[] =
        "{\"model_type\": \"opt\", \"hidden_size\": 64, \"ffn_dim\": 96, \"num_attention_heads\": 4, "
        "\"vocab_size\": 512, ";
    static const struct {
        const char *fields, *words;
    } refused[] = {
        {"\"word_embed_proj_dim\": 32}", "'word_embed_proj_dim'|hidden_size (64)|found 32"},
        {"\"do_layer_norm_before\": false}", "'do_layer_norm_before'|expected true"},
        {"\"_remove_final_layer_norm\": true}", "'_remove_final_layer_norm'|expected false"},
        {"\"enable_bias\": false}", "'enable_bias'|expected true"},
        {"\"rms_norm_eps\": 1e-6}", "'rms_norm_eps'|1e-5"},
        {"\"activation_function\": \"mish\"}", "'activation_function'|\"relu\"|mish"},
    };
    struct model_config config;
    struct status status = {0};
    char text[400];
    snprintf(text, sizeof text,
             "%s\"word_embed_proj_dim\": 64, \"activation_function\": \"relu\", \"prefix\": \"</s>\"}", sizes);
    test_expect_success(test_config_parse(&config, text, &status), &status);
    assert_int_equal(config.activation, ACTIVATION_RELU);
    assert_int_equal(config.layers, 12);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(text, sizeof text, "%s%s", sizes, refused[i].fields);
        test_expect_failure(test_config_parse(&config, text, &status), &status, STATUS_BAD_INPUT, refused[i].words);
        status_clear(&status);
    }
}

#define FALCON                                                                                              \
    "{\"model_type\": \"falcon\", \"hidden_size\": 64, \"num_hidden_layers\": 4, \"num_attention_heads\": " \
    "8, \"vocab_size\": 512"

TEST(falcon_variants)
{
    static const struct {
        const char *fields;
        uint64_t kv_heads;
        bool parallel, two_norms;
    } accepted[] = {
        {"", 1, true, false},
        {", \"num_kv_heads\": 8", 1, true, false},
        {", \"multi_query\": false", 8, true, false},
        {", \"multi_query\": false, \"parallel_attn\": false", 8, false, false},
        {", \"new_decoder_architecture\": true, \"num_kv_heads\": 2", 2, true, true},
        {", \"new_decoder_architecture\": true, \"num_kv_heads\": 2, \"num_ln_in_parallel_attn\": 1", 2, true, false},
    };
    static const struct {
        const char *fields, *words;
    } refused[] = {
        {", \"alibi\": true", "'alibi'|expected false"},
        {", \"new_decoder_architecture\": true, \"num_kv_heads\": 3", "'num_kv_heads'|divisor|found 3"},
        {", \"multi_query\": false, \"num_kv_heads\": 2", "'num_kv_heads'|num_attention_heads|found 2"},
        {", \"new_decoder_architecture\": true, \"parallel_attn\": false", "'parallel_attn'|expected true"},
        {", \"num_ln_in_parallel_attn\": 2", "'num_ln_in_parallel_attn'|without new_decoder_architecture|found 2"},
        {", \"apply_residual_connection_post_layernorm\": true", "'apply_residual_connection_post_layernorm'"},
        {", \"intermediate_size\": 96", "'intermediate_size'|not understood"},
    };
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        struct status status = {0};
        struct model_config config;
        char text[512];
        snprintf(text, sizeof text, FALCON "%s}", accepted[i].fields);
        test_expect_success(test_config_parse(&config, text, &status), &status);
        assert_int_equal(config.kv_heads, accepted[i].kv_heads);
        assert_int_equal(config.parallel_residual, accepted[i].parallel);
        assert_int_equal(config.other_norms, accepted[i].two_norms);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct status status = {0};
        struct model_config config;
        char text[512];
        snprintf(text, sizeof text, FALCON "%s}", refused[i].fields);
        test_expect_failure(test_config_parse(&config, text, &status), &status, STATUS_BAD_INPUT, refused[i].words);
    }
}

/* Checkpoints with code of their own name its class. */
TEST(own_class)
{
    test_config_accepted("ernie4_5", "\"architectures\": [\"Ernie4_5_ForCausalLM\"]");
    test_config_accepted("ernie4_5", "\"architectures\": [\"Ernie4_5ForCausalLM\"]");
    test_config_refused("ernie4_5", "\"architectures\": [\"Ernie4_5_MoeForCausalLM\"]",
                        "'architectures'|Ernie4_5ForCausalLM|Ernie4_5_MoeForCausalLM");
    test_config_refused("llama", "\"architectures\": [\"Ernie4_5_ForCausalLM\"]", "'architectures'|LlamaForCausalLM");
}

TEST(published)
{
    static const struct test_published models[] = {
        {"facebook/opt-125m",
         "{'_name_or_path': 'facebook/opt-125m', 'activation_dropout': 0.0, 'activation_function': "
         "'relu', 'architectures': ['OPTForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 2, "
         "'do_layer_norm_before': true, 'dropout': 0.1, 'eos_token_id': 2, 'ffn_dim': 3072, "
         "'hidden_size': 768, 'init_std': 0.02, 'layerdrop': 0.0, 'max_position_embeddings': 2048, "
         "'model_type': 'opt', 'num_attention_heads': 12, 'num_hidden_layers': 12, 'pad_token_id': 1, "
         "'prefix': '</s>', 'torch_dtype': 'float16', 'transformers_version': '4.21.0.dev0', "
         "'use_cache': true, 'vocab_size': 50272, 'word_embed_proj_dim': 768}",
         "12 layers of 768, heads 12/12 x 64, mlp 3072, vocabulary 50272, context 2048, rope 64 at 10000, 12 without "
         "rotation; tied qkv bias output bias"},
        {"swiss-ai/Apertus-8B-2509",
         "{'architectures': ['ApertusForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0,"
         " 'bos_token_id': 1, 'eos_token_id': 2, 'hidden_act': 'xielu', 'hidden_dropout': 0.0, "
         "'hidden_size': 4096, 'initializer_range': 0.02, 'intermediate_size': 21504, "
         "'max_position_embeddings': 65536, 'mlp_bias': false, 'model_type': 'apertus', "
         "'num_attention_heads': 32, 'num_hidden_layers': 32, 'num_key_value_heads': 8, "
         "'pad_token_id': 3, 'post_norm': false, 'qk_norm': true, 'rms_norm_eps': 1e-05, "
         "'rope_scaling': {'factor': 8.0, 'high_freq_factor': 4.0, 'low_freq_factor': 1.0, "
         "'original_max_position_embeddings': 8192, 'rope_type': 'llama3', 'type': 'llama3'}, "
         "'rope_theta': 12000000, 'tie_word_embeddings': false, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.56.0.dev0', 'use_cache': true, 'vocab_size': 131072}",
         "32 layers of 4096, heads 32/8 x 128, mlp 21504, vocabulary 131072, context 65536, rope 128 at 12000000 "
         "llama3 x8;"},
        {"baidu/ERNIE-4.5-0.3B-PT",
         "{'architectures': ['Ernie4_5_ForCausalLM'], 'auto_map': {'AutoConfig': "
         "'configuration_ernie4_5.Ernie4_5_Config', 'AutoModel': 'modeling_ernie4_5.Ernie4_5_Model', "
         "'AutoModelForCausalLM': 'modeling_ernie4_5.Ernie4_5_ForCausalLM'}, 'bos_token_id': 1, 'eos_token_id': 2, "
         "'hidden_act': 'silu', 'hidden_size': 1024, 'intermediate_size': 3072, 'max_position_embeddings': 131072, "
         "'model_type': 'ernie4_5', 'num_attention_heads': 16, 'num_key_value_heads': 2, 'head_dim': 128, "
         "'num_hidden_layers': 18, 'pad_token_id': 0, 'rms_norm_eps': 1e-05, 'use_cache': false, 'vocab_size': 103424, "
         "'rope_theta': 500000, 'use_bias': false, 'tie_word_embeddings': true, 'torch_dtype': 'bfloat16'}",
         "18 layers of 1024, heads 16/2 x 128, mlp 3072, vocabulary 103424, context 131072, rope 128 at 500000; tied"},
        {"kyutai/helium-1-preview-2b",
         "{'architectures': ['HeliumForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, 'bos_token_id': "
         "1, 'eos_token_id': 2, 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 2560, 'initializer_range': 0.02, "
         "'intermediate_size': 7040, 'max_position_embeddings': 4096, 'mlp_bias': false, 'model_type': 'helium', "
         "'num_attention_heads': 20, 'num_hidden_layers': 24, 'num_key_value_heads': 20, 'pretraining_tp': 1, "
         "'rms_norm_eps': 1e-08, 'rope_theta': 100000.0, 'tie_word_embeddings': false, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.45.0.dev0', 'use_cache': true, 'vocab_size': 48000}",
         "24 layers of 2560, heads 20/20 x 128, mlp 7040, vocabulary 48000, context 4096, rope 128 at 100000;"},
        {"EleutherAI/gpt-j-6b",
         "{'activation_function': 'gelu_new', 'architectures': ['GPTJForCausalLM'], 'attn_pdrop': 0.0, 'bos_token_id': "
         "50256, 'embd_pdrop': 0.0, 'eos_token_id': 50256, 'gradient_checkpointing': false, 'initializer_range': 0.02, "
         "'layer_norm_epsilon': 1e-05, 'model_type': 'gptj', 'n_embd': 4096, 'n_head': 16, 'n_inner': null, 'n_layer': "
         "28, 'n_positions': 2048, 'resid_pdrop': 0.0, 'rotary': true, 'rotary_dim': 64, 'scale_attn_weights': true, "
         "'summary_activation': null, 'summary_first_dropout': 0.1, 'summary_proj_to_labels': true, 'summary_type': "
         "'cls_index', 'summary_use_proj': true, 'task_specific_params': {'text-generation': {'do_sample': true, "
         "'max_length': 50, 'temperature': 1.0}}, 'tie_word_embeddings': false, 'tokenizer_class': 'GPT2Tokenizer', "
         "'transformers_version': '4.18.0.dev0', 'use_cache': true, 'vocab_size': 50400}",
         "28 layers of 4096, heads 16/16 x 256, mlp 16384, vocabulary 50400, context 2048, rope 64 at 10000; parallel"},
        {"microsoft/phi-2",
         "{'_name_or_path': 'microsoft/phi-2', 'architectures': ['PhiForCausalLM'], 'attention_dropout': 0.0, "
         "'bos_token_id': 50256, 'embd_pdrop': 0.0, 'eos_token_id': 50256, 'hidden_act': 'gelu_new', 'hidden_size': "
         "2560, 'initializer_range': 0.02, 'intermediate_size': 10240, 'layer_norm_eps': 1e-05, "
         "'max_position_embeddings': 2048, 'model_type': 'phi', 'num_attention_heads': 32, 'num_hidden_layers': 32, "
         "'num_key_value_heads': 32, 'partial_rotary_factor': 0.4, 'qk_layernorm': false, 'resid_pdrop': 0.1, "
         "'rope_scaling': null, 'rope_theta': 10000.0, 'tie_word_embeddings': false, 'torch_dtype': 'float16', "
         "'transformers_version': '4.37.0', 'use_cache': true, 'vocab_size': 51200}",
         "32 layers of 2560, heads 32/32 x 80, mlp 10240, vocabulary 51200, context 2048, rope 32 at 10000; qkv bias "
         "output bias parallel"},
        {"allenai/OLMo-1B-hf",
         "{'architectures': ['OlmoForCausalLM'], 'attention_bias': false, 'clip_qkv': null, 'hidden_act': 'silu', "
         "'hidden_size': 2048, 'intermediate_size': 8192, 'max_position_embeddings': 2048, 'model_type': 'olmo', "
         "'num_attention_heads': 16, 'num_hidden_layers': 16, 'num_key_value_heads': 16, 'rope_theta': 10000.0, "
         "'tie_word_embeddings': true, 'vocab_size': 50304}",
         "16 layers of 2048, heads 16/16 x 128, mlp 8192, vocabulary 50304, context 2048, rope 128 at 10000; tied"},
        {"bigcode/gpt_bigcode-santacoder",
         "{'activation_function': 'gelu_pytorch_tanh', 'architectures': ['GPTBigCodeForCausalLM'], "
         "'attention_softmax_in_fp32': true, 'multi_query': true, 'attn_pdrop': 0.1, 'bos_token_id': 49152, "
         "'embd_pdrop': 0.1, 'eos_token_id': 49152, 'initializer_range': 0.02, 'layer_norm_epsilon': 1e-05, "
         "'model_type': 'gpt_bigcode', 'n_embd': 2048, 'n_head': 16, 'n_inner': 8192, 'n_layer': 24, 'n_positions': "
         "2048, 'resid_pdrop': 0.1, 'runner_max_sequence_length': null, 'scale_attention_softmax_in_fp32': true, "
         "'scale_attn_weights': true, 'summary_activation': null, 'summary_first_dropout': 0.1, "
         "'summary_proj_to_labels': true, 'summary_type': 'cls_index', 'summary_use_proj': true, "
         "'transformers_version': '4.28.0.dev0', 'use_cache': true, 'vocab_size': 49280}",
         "24 layers of 2048, heads 16/1 x 128, mlp 8192, vocabulary 49280, context 2048, rope 128 at 10000, 24 without "
         "rotation; tied qkv bias output bias"},
        {"roneneldan/TinyStories-1M",
         "{'architectures': ['GPTNeoForCausalLM'], 'activation_function': 'gelu_new', 'attention_dropout': 0, "
         "'attention_layers': ['global', 'local', 'global', 'local', 'global', 'local', 'global', 'local'], "
         "'attention_types': [[['global', 'local'], 4]], 'bos_token_id': 50256, 'embed_dropout': 0, 'eos_token_id': "
         "50256, 'intermediate_size': null, 'layer_norm_epsilon': 1e-5, 'max_position_embeddings': 2048, 'model_type': "
         "'gpt_neo', 'hidden_size': 64, 'num_layers': 8, 'num_heads': 16, 'resid_dropout': 0, 'torch_dtype': "
         "'float32', "
         "'use_cache': true, 'vocab_size': 50257, 'window_size': 256}",
         "8 layers of 64, heads 16/16 x 4, mlp 256, vocabulary 50257, context 2048, rope 4 at 10000, window 256 in 4, "
         "8 "
         "without rotation; tied output bias scores x2"},
        {"CohereForAI/aya-23-8B",
         "{'architectures': ['CohereForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 5, 'eos_token_id': "
         "255001, "
         "'hidden_act': 'silu', 'hidden_size': 4096, 'initializer_range': 0.02, 'intermediate_size': 14336, "
         "'layer_norm_eps': 1e-05, 'logit_scale': 0.0625, 'max_position_embeddings': 8192, 'model_type': 'cohere', "
         "'num_attention_heads': 32, 'num_hidden_layers': 32, 'num_key_value_heads': 8, 'pad_token_id': 0, "
         "'rope_theta': "
         "10000, 'vocab_size': 256000}",
         "32 layers of 4096, heads 32/8 x 128, mlp 14336, vocabulary 256000, context 8192, rope 128 at 10000; tied "
         "parallel logits x0.0625"},
        {"tiiuae/falcon-7b",
         "{'alibi': false, 'apply_residual_connection_post_layernorm': false, 'architectures': ['FalconForCausalLM'], "
         "'attention_dropout': 0.0, 'auto_map': {'AutoConfig': 'configuration_falcon.FalconConfig', 'AutoModel': "
         "'modeling_falcon.FalconModel', 'AutoModelForCausalLM': 'modeling_falcon.FalconForCausalLM', "
         "'AutoModelForQuestionAnswering': 'modeling_falcon.FalconForQuestionAnswering', "
         "'AutoModelForSequenceClassification': 'modeling_falcon.FalconForSequenceClassification', "
         "'AutoModelForTokenClassification': 'modeling_falcon.FalconForTokenClassification'}, 'bias': false, "
         "'bos_token_id': 11, 'eos_token_id': 11, 'hidden_dropout': 0.0, 'hidden_size': 4544, 'initializer_range': "
         "0.02, 'layer_norm_epsilon': 1e-05, 'model_type': 'falcon', 'multi_query': true, 'new_decoder_architecture': "
         "false, 'num_attention_heads': 71, 'num_hidden_layers': 32, 'num_kv_heads': 71, 'parallel_attn': true, "
         "'torch_dtype': 'bfloat16', 'transformers_version': '4.28.1', 'use_cache': true, 'vocab_size': 65024}",
         "32 layers of 4544, heads 71/1 x 64, mlp 18176, vocabulary 65024, context 2048, rope 64 at 10000; tied "
         "parallel"},
    };
    test_config_published(models, sizeof models / sizeof *models);
}

#define USUAL_SIZES                                                                \
    "\"hidden_size\": 1024, \"intermediate_size\": 96, \"num_hidden_layers\": 4, " \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 2"

TEST(end_tokens)
{
    static const struct {
        const char *model_type, *field;
        size_t count;
        int32_t last;
    } cases[] = {
        {"glm", "\"eos_token_id\": null", 3, 151338}, {"glm4", "\"bos_token_id\": 3", 3, 151338},
        {"glm4", "\"eos_token_id\": 5", 1, 5},        {"cwm", "\"bos_token_id\": 3", 3, 128009},
        {"olmo", "\"eos_token_id\": null", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        struct model_config config;
        char text[400];
        snprintf(text, sizeof text, "{\"model_type\": \"%s\", \"vocab_size\": 160000, %s, %s}", cases[i].model_type,
                 USUAL_SIZES, cases[i].field);
        test_expect_success(test_config_parse(&config, text, &status), &status);
        assert_int_equal(config.eos_count, cases[i].count);
        if (cases[i].count) assert_int_equal(config.eos_tokens[cases[i].count - 1], cases[i].last);
    }
}

TEST(scaling_of_cwm)
{
    static const char *const none[] = {"\"rope_scaling\": null", "\"rope_scaling\": {}", "\"rope_theta\": 1e6"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        const struct model_config config = test_config_accepted("cwm", none[i]);
        assert_int_equal(config.rope.type, ROPE_LLAMA3);
        assert_true(config.rope.factor == 16 && config.rope.theta == 1e6);
    }
}

/* A GPT-2 need not divide its scores by the root of a head's size, and may divide them by the layer's number. */
TEST(scales_of_gpt2)
{
    static const char text[] =
        "{\"model_type\": \"gpt2\", \"vocab_size\": 512, \"n_embd\": 64, \"n_layer\": 2, \"n_head\": 4, %s}";
    static const struct {
        const char *fields;
        double scale;
        bool by_layer;
    } cases[] = {
        {"\"scale_attn_weights\": true", 0.25, false},
        {"\"scale_attn_weights\": false", 1, false},
        {"\"scale_attn_by_inverse_layer_idx\": true", 0.25, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config_text[300];
        struct model_config config;
        struct status status = {0};
        snprintf(config_text, sizeof config_text, text, cases[i].fields);
        test_expect_success(test_config_parse(&config, config_text, &status), &status);
        assert_true(config.attention_scale == cases[i].scale && config.scores_by_layer == cases[i].by_layer);
    }
}

/* Keys that change nothing in the class would change something here. */
TEST(keys_that_the_class_does_not_read)
{
    static const char yarn[] = "{\"rope_type\": \"yarn\", \"factor\": 4, \"rope_theta\": 10000}";
    static const struct {
        const char *model_type, *fields, *words;
    } refused[] = {
        {"cwm", "\"rope_theta\": 5e5", "'rope_theta'|1e6"},
        {"cwm", "\"sliding_window_pattern\": 1", "'sliding_window_pattern'"},
        {"ministral", "\"sliding_window_pattern\": 4", "'sliding_window_pattern'"},
        {"vaultgemma", "\"sliding_window_pattern\": 4", "'sliding_window_pattern'"},
        {"falcon", "\"activation\": \"gelu\", \"hidden_act\": \"silu\"", "'hidden_act'|silu"},
        {"lfm2", "\"hidden_act\": \"gelu\"", "'hidden_act'|silu|gelu"},
        {"hunyuan_v1_dense", "\"rope_parameters\": {}, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}",
         "after their rotation, found yarn"},
        {"hunyuan_v1_dense", "\"rope_theta\": 1e308, \"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 1e9}",
         "rope_theta|finite"},
    };
    static const struct {
        const char *model_type, *sizes, *fields, *words;
    } others[] = {
        {"gpt_neo", "\"hidden_size\": 64, \"num_layers\": 2, \"num_heads\": 4",
         "\"attention_types\": [[[\"global\", \"local\"], 1]], \"attention_layers\": [\"global\", \"global\"]",
         "'attention_layers'|attention_types"},
        {"gpt_bigcode", "\"n_embd\": 64, \"n_layer\": 2, \"n_head\": 2", "\"scale_attn_by_inverse_layer_idx\": true",
         "'scale_attn_by_inverse_layer_idx'|false"},
        {"gptj", "\"n_embd\": 64, \"n_layer\": 2, \"n_head\": 2", "\"rotary_dim\": 16, \"rope_theta\": 1e6",
         "'rope_theta'"},
        {"gptj", "\"n_embd\": 64, \"n_layer\": 2, \"n_head\": 2", "\"rotary_dim\": 16, \"hidden_act\": \"silu\"",
         "'hidden_act'"},
    };
    char text[400];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        test_config_refused(refused[i].model_type, refused[i].fields, refused[i].words);
    snprintf(text, sizeof text, "\"rope_parameters\": %s", yarn);
    test_config_refused("nanochat", text, "after their rotation, found yarn");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct status status = {0};
        struct model_config config;
        snprintf(text, sizeof text, "{\"model_type\": \"%s\", \"vocab_size\": 512, %s, %s}", others[i].model_type,
                 others[i].sizes, others[i].fields);
        test_expect_failure(test_config_parse(&config, text, &status), &status, STATUS_BAD_INPUT, others[i].words);
    }
}

int main(void) { return test_run(); }
