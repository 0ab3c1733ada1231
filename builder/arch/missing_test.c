/* SPDX-License-Identifier: Apache-2.0 */
/* Models that no family is for: what they need, and which family is nearest. */
#include "builder/arch/test_config.h"
#include "formats/base/test_program.h"

#include "formats/base/test_support.h"

TEST(test_model_types)
{
    static const char *const unsupported[] = {"bert", "deepseek", "Llama", ""};
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        char words[128];
        snprintf(words, sizeof words, "model_type '%s' is not supported (engbuild --list-models |", unsupported[i]);
        test_config_refused(unsupported[i], "\"anything\": {\"else\": 1}", words);
    }
    static const struct {
        const char *model_type, *fields, *words;
    } nearest[] = {
        {"qwen3_omni", "\"num_key_value_heads\": 8, \"vision_config\": {}",
         "nearest supported one is 'qwen3'|differs|'vision_config'|not understood"},
        {"qwen3_omni_moe", "\"num_key_value_heads\": 8, \"num_experts\": 8, \"vision_config\": {}",
         "'qwen3_moe'|'vision_config'"},
        {"aria",
         "\"text_config\": {\"model_type\": \"gemma2\", " TEST_SIZES ", \"prefix_attention\": 1, \"tokens\": 2}",
         "nearest supported one to its text part is 'gemma2'|fields 'prefix_attention', 'tokens' are not understood"},
        {"paligemma", "\"text_config\": {\"model_type\": \"gemma2\", " TEST_SIZES "}",
         "'paligemma' is not supported|attends to all others of the prompt|one to its text part is 'gemma2'"},
        {"gemma3n", "\"text_config\": {\"model_type\": \"gemma3n_text\", " TEST_SIZES "}",
         "'gemma3n' is not supported|AltUp|LAuReL|activation_sparsity_pattern|to its text part is 'gemma4_text'"},
        {"gemma3n_text", "\"altup_num_inputs\": 4", "'gemma3n_text' is not supported|AltUp|'gemma4_text'"},
        {"gemma5n", "\"altup_num_inputs\": 4", "'gemma5n' is not supported|AltUp|'gemma4_text'"},
        {"deepseek_vl_v2", "\"language_config\": {\"model_type\": \"deepseek_v2\", " TEST_SIZES "}",
         "nearest supported one to its text part is 'deepseek_v2'"},
        {"bert", "\"type_vocab_size\": 2", "no supported one is like it"},
        {"vit", "\"image_size\": 224", "no supported one is like it"},
        {"llama4_text", "\"attention_chunk_size\": 8192", "'llama'|'attention_chunk_size'|not understood"},
        {"deepseek_v32", "\"index_topk\": 2048", "an indexer chooses|'deepseek_v3'|'index_topk'"},
        {"deepseek_v4", "\"hc_mult\": 4", "hyper-connections|'deepseek_v3'"},
        {"kimi_linear", "\"linear_attn_config\": {\"num_heads\": 4}", "Kimi delta attention|'deepseek_v3'"},
        {"nemotron-nas", "\"block_configs\": [{}]", "sizes of their own|'nemotron'"},
        {"minimax", "\"num_local_experts\": 4, \"num_experts_per_tok\": 2", "lightning attention|'mixtral'"},
        {"phimoe", "\"num_local_experts\": 4, \"num_experts_per_tok\": 2", "'mixtral'|may compute something else"},
        {"refact", "\"alibi\": true", "ALiBi|'llama'"},
        {"refact", "\"alibi\": false", "'llama'|'alibi'|not understood"},
        {"falcon3", "\"alibi\": true", "ALiBi|'falcon'"},
        {"bloom", "", "ALiBi|'gpt_neox'"},
        {"mamba2", "", "layers of state spaces|'qwen3_next'"},
        {"nemotron_g", "\"ssm_state_size\": 128, \"num_key_value_heads\": 4", "layers of state spaces|'nemotron_h'"},
        {"nemotron5", "\"a\": 1, \"b\": 1, \"c\": 1, \"d\": 1, \"e\": 1, \"f\": 1, \"g\": 1",
         "fields 'a', 'b', 'c', 'd', 'e' and 2 more are not understood"},
    };
    for (size_t i = 0; i < sizeof nearest / sizeof *nearest; i++)
        test_config_refused(nearest[i].model_type, nearest[i].fields, nearest[i].words);
    struct status status = {0};
    struct model_config config;
    test_expect_failure(test_config_parse(&config, "{\"model_type\": \"mamba2\", \"state_size\": 128}", &status),
                        &status, STATUS_BAD_INPUT, "'mamba2' is not supported|layers of state spaces|'qwen3_next'");
    test_expect_failure(test_config_parse(&config, "{" TEST_SIZES "}", &status), &status, STATUS_BAD_INPUT,
                        "'model_type'|nothing");
    test_expect_failure(test_config_parse(&config, "{\"model_type\": 3}", &status), &status, STATUS_BAD_INPUT,
                        "'model_type'|found 3");
    test_config_refused("llama", "\"architectures\": [\"LlamaForSequenceClassification\"]",
                        "'architectures'|LlamaForCausalLM|LlamaForSequenceClassification");
    test_config_refused("qwen2", "\"architectures\": []", "'architectures'|Qwen2ForCausalLM|array");
    test_config_refused("qwen3", "\"architectures\": \"Qwen3ForCausalLM\"", "'architectures'|string");
}

int main(void) { return test_run(); }
