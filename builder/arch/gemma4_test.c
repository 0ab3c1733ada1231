/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of Gemma 4. */
#include "builder/arch/test_config.h"
#include "formats/base/test_program.h"

#include "formats/base/test_support.h"

/* Heads of two sizes, keys that are values, layers that read those of others. */
TEST(gemma4)
{
#define G4 "\"num_key_value_heads\": 4, \"vocab_size_per_layer_input\": 512, \"head_dim\": 16, "
    struct model_config config = test_config_accepted(
        "gemma4_text", G4 "\"global_head_dim\": 32, \"hidden_size_per_layer_input\": 8, \"use_double_wide_mlp\": true,"
                          "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\","
                          " \"sliding_attention\"], \"num_kv_shared_layers\": 2, \"num_global_key_value_heads\": 2,"
                          "\"use_bidirectional_attention\": \"vision\", \"audio_config\": null");
    static const uint64_t head_dims[] = {16, 32, 16, 32}, sources[] = {0, 1, 0, 1}, inner[] = {0, 0, 192, 192};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(model_head_dim(&config, i), head_dims[i]);
        assert_int_equal(model_kv_heads(&config, i), 4); /* without attention_k_eq_v */
        assert_int_equal(model_kv_layer(&config, i), sources[i]);
        assert_int_equal(config.layer[i].inner, inner[i]);
        assert_int_equal(config.layer[i].rope, i % 2 ? LAYER_ROPE_MAIN : LAYER_ROPE_LOCAL);
    }
    assert_int_equal(model_attention_layers(&config), 2);
    assert_int_equal(config.rope.type, ROPE_PROPORTIONAL);
    assert_int_equal(config.rope.rotary_dim, 32);
    assert_int_equal(config.rope.turning_pairs, 4);
    assert_int_equal(config.local_rope.rotary_dim, 16);
    assert_true(config.local_rope.theta == 1e4 && config.rope.theta == 1e6 && config.attention_scale == 1);
    assert_true(config.per_layer_size == 8 && config.value_norms && config.layer_scalars);
    config = test_config_accepted("gemma4_text",
                                  G4 "\"attention_k_eq_v\": true, \"num_global_key_value_heads\": 2,"
                                     "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\","
                                     "\"partial_rotary_factor\": 0.5, \"rope_theta\": 5000, \"factor\": 2},"
                                     "\"sliding_attention\": {\"rope_theta\": 300}}");
    assert_true(config.layer[3].keys_are_values && !config.layer[0].keys_are_values);
    assert_int_equal(model_kv_heads(&config, 3), 2);
    assert_int_equal(config.rope.turning_pairs, 128);
    assert_true(config.rope.factor == 2 && config.local_rope.theta == 300);
    config = test_config_accepted("gemma4_text",
                                  G4 "\"per_layer_config\": {\"3\": {\"head_dim\": 64, \"num_key_value_heads\": 1}}");
    assert_true(model_head_dim(&config, 3) == 64 && model_kv_heads(&config, 3) == 1 &&
                model_head_dim(&config, 2) == 16);
    config = test_config_accepted("gemma4_text",
                                  G4 "\"enable_moe_block\": true, \"moe_intermediate_size\": 32, \"num_experts\": 8,"
                                     "\"top_k_experts\": 3");
    assert_true(config.experts_beside && config.layer[0].experts && config.layer[3].experts);
    assert_true(config.experts.count == 8 && config.experts.top_k == 3 && config.experts.intermediate_size == 32);
    config = test_config_accepted("gemma4_text", G4 "\"enable_moe_block\": false, \"num_experts\": 8");
    assert_true(!config.experts_beside && config.experts.count == 0);
    static const char *const refused[][2] = {
        {"\"enable_moe_block\": true", "'moe_intermediate_size'|enable_moe_block"},
        {"\"enable_moe_block\": true, \"moe_intermediate_size\": 8, \"num_experts\": 4", "'top_k_experts'"},
        {"\"use_bidirectional_attention\": \"all\"", "'use_bidirectional_attention'|vision"},
        {"\"vocab_size_per_layer_input\": 511", "'vocab_size_per_layer_input'|512|511"},
        {"\"num_kv_shared_layers\": 4", "'num_kv_shared_layers'"},
        {"\"num_kv_shared_layers\": 1", "'num_kv_shared_layers'|layer 3"}, /* the only one without a window */
        {"\"num_key_value_heads\": 4, \"global_head_dim\": 33", "'global_head_dim'|even"},
        {"\"num_key_value_heads\": 4, \"per_layer_config\": {\"4\": {}}", "per_layer_config: 4|below 4"},
        {"\"num_key_value_heads\": 4, \"per_layer_config\": {\"x\": {}}", "per_layer_config: x"},
        {"\"num_key_value_heads\": 4, \"per_layer_config\": {\"1\": {\"head_dim\": 8}}", "same heads|layers 0 and 1"},
        {"\"num_key_value_heads\": 4, \"per_layer_config\": {\"1\": {\"sinks\": 8}}", "per_layer_config: 1|'sinks'"},
        {"\"num_key_value_heads\": 4, \"per_layer_config\": 3", "'per_layer_config'|an object"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char fields[256];
        const bool has_vocab = strstr(refused[i][0], "vocab_size_per") != NULL;
        const bool has_heads = strstr(refused[i][0], "num_key_value_heads") != NULL;
        snprintf(fields, sizeof fields, "%s%s%s", has_heads ? "" : "\"num_key_value_heads\": 4, ",
                 has_vocab ? "" : "\"vocab_size_per_layer_input\": 512, ", refused[i][0]);
        test_config_refused("gemma4_text", fields, refused[i][1]);
    }
}

int main(void) { return test_run(); }
