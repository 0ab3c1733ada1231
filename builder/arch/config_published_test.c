/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that published configurations have and that change nothing. */
#include "builder/arch/test_config.h"
#include "formats/base/test_program.h"

TEST(test_keys_without_effect)
{
    test_config_accepted("cohere2", "\"use_parallel_embedding\": true");
    test_config_accepted("starcoder2", "\"activation_function\": \"gelu\", \"attention_softmax_in_fp32\": true, "
                                       "\"layer_norm_epsilon\": 1e-05, \"scale_attention_softmax_in_fp32\": true, "
                                       "\"scale_attn_weights\": true");
    test_config_refused("starcoder2", "\"scale_attn_weights\": false", "'scale_attn_weights'|expected true");
    test_config_accepted("ernie4_5_moe",
                         "\"auto_map\": {\"AutoConfig\": \"configuration_ernie4_5_moe.Ernie4_5_MoeConfig\", "
                         "\"AutoModel\": \"modeling_ernie4_5_moe.Ernie4_5_Model\", \"AutoModelForCausalLM\": "
                         "\"modeling_ernie4_5_moe.Ernie4_5_MoeForCausalLM\"}, \"moe_capacity\": [64, 64, 64], "
                         "\"moe_gate\": \"topk\", \"moe_use_aux_free\": true, \"num_nextn_predict_layers\": 1");
    test_config_refused("ernie4_5_moe", "\"auto_map\": {\"AutoModel\": \"modeling_other.Model\"}",
                        "'auto_map'|remove the field");
}

int main(void) { return test_run(); }
