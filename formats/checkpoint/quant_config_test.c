/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/quant_config.h"
#include "formats/base/json.h"
#include "formats/base/test_support.h"

static struct status status;
static struct quant_config config;

static bool parse(const char *fields)
{
    char text[6000];
    const int length = snprintf(text, sizeof text, "{%s}", fields);
    assert_in_range(length, 2, sizeof text - 1);
    status_clear(&status);
    json_t *json = json_parse(test_quote(text), (size_t)length, "config.json", &status);
    assert_non_null(json);
    const bool done = quant_config_parse(&config, json, "config.json: quantization_config", &status);
    json_decref(json);
    return done;
}

/* The text with `inserted` in place of its "%s" */
static const char *with_inserted(const char *text, const char *inserted)
{
    static char buffer[4096];
    const char *at = strstr(text, "%s");
    assert_non_null(at);
    const int length = snprintf(buffer, sizeof buffer, "%.*s%s%s", (int)(at - text), text, inserted, at + 2);
    assert_in_range(length, 1, sizeof buffer - 1);
    return buffer;
}

#define INT(bits, group)                \
    {                                   \
        false, bits, group, true, false \
    }
#define ASYM(bits, group)                \
    {                                    \
        false, bits, group, false, false \
    }
#define ORDERED(bits, group)            \
    {                                   \
        false, bits, group, false, true \
    }
#define FLOAT(bits, group)             \
    {                                  \
        true, bits, group, true, false \
    }

#define GPTQ(fields)     "'quant_method': 'gptq', 'bits': 4, 'group_size': 128" fields
#define AWQ(fields)      "'quant_method': 'awq', 'bits': 4, 'group_size': 128" fields
#define ROUND(fields)    "'quant_method': 'auto-round', 'bits': 4, 'group_size': 128" fields
#define GROUPS(fields)   "'quant_method': 'compressed-tensors', 'config_groups': {" fields "}"
#define GROUP(fields)    GROUPS("'group_0': {'targets': ['Linear'], " fields "}")
#define WEIGHTS(fields)  GROUP("'weights': {" fields "}")
#define FP8(fields)      "'quant_method': 'fp8'" fields
#define MODELOPT(fields) "'quant_method': 'modelopt', 'quant_algo': 'NVFP4'" fields
#define BNB(fields)      "'quant_method': 'bitsandbytes'" fields

/* What GPTQModel, llm-compressor and others write. */
#define GPTQ_FILE(bits, group, desc_act, sym, format)                                                          \
    "'quant_method': 'gptq', 'bits': " bits ", 'group_size': " group ", 'desc_act': " desc_act ", 'sym': " sym \
    ", 'lm_head': false, 'checkpoint_format': '" format "', 'true_sequential': true, 'static_groups': false, " \
    "'damp_percent': 0.01, 'pack_dtype': 'int32', 'meta': {'quantizer': ['gptqmodel:5.0.0']}"
#define CT_ARGUMENTS(bits, type, symmetric, strategy, group, dynamic)                               \
    "{'num_bits': " bits ", 'type': '" type "', 'symmetric': " symmetric ", 'strategy': '" strategy \
    "', 'group_size': " group ", 'block_structure': null, 'dynamic': " dynamic                      \
    ", 'actorder': null, 'observer': 'minmax', 'observer_kwargs': {}, 'scale_dtype': null, 'zp_dtype': null}"
#define CT_FILE(format, weights, inputs)                                                                  \
    "'quant_method': 'compressed-tensors', 'format': '" format "', 'quantization_status': 'compressed', " \
    "'version': '0.12.2', 'config_groups': {'group_0': {'targets': ['Linear'], 'format': '" format        \
    "', 'weights': " weights ", 'input_activations': " inputs ", 'output_activations': null}}, "          \
    "'ignore': ['lm_head', 're:.*mlp.gate$'], 'kv_cache_scheme': null, 'sparsity_config': {}, "           \
    "'transform_config': {}, 'global_compression_ratio': null"
#define CT_WEIGHTS(format, ...) CT_FILE(format, CT_ARGUMENTS(__VA_ARGS__, "false"), "null")

/* `expected`: every field but name. */
static const struct accepted {
    const char *fields;
    struct quant_config expected;
} accepted[] = {
    {GPTQ_FILE("4", "32", "false", "true", "gptq"),
     {QUANT_GPTQ, "gptq", {INT(4, 32)}, .scheme_count = 1, .zeros_less_one = true, .by_gptqmodel = true}},
    {GPTQ_FILE("4", "64", "true", "false", "gptq"),
     {QUANT_GPTQ, "gptq", {ORDERED(4, 64)}, .scheme_count = 1, .zeros_less_one = true, .by_gptqmodel = true}},
    {GPTQ(", 'sym': false, 'desc_act': true, 'static_groups': true"),
     {QUANT_GPTQ, "gptq", {ASYM(4, 128)}, .scheme_count = 1, .zeros_less_one = true}},
    {GPTQ(", 'sym': false, 'desc_act': true, 'dynamic': {'a': {'desc_act': false}}"),
     {QUANT_GPTQ, "gptq", {ASYM(4, 128)}, .scheme_count = 1, .zeros_less_one = true}},
    {GPTQ_FILE("8", "-1", "false", "true", "gptq_v2"),
     {QUANT_GPTQ, "gptq", {INT(8, 0)}, .scheme_count = 1, .by_gptqmodel = true}},
    {"'quant_method':'gptq','bits':4,'group_size':128,'desc_act':false,'sym':true,'lm_head':false,"
     "'checkpoint_format':'gptq','true_sequential':true,'static_groups':false,'damp_percent':0.01,'pack_dtype':'"
     "int32',"
     "'dynamic':{'-:.*mlp\\\\.gate$':{},'+:.*down_proj':{'bits':8,'group_size':-1,'damp_percent':0.1},"
     "'.*o_proj':{'desc_act':true,'sym':true},'.*up_proj':{'bits':8,'q_group_size':-1}},"
     "'meta':{'quantizer':'optimum:1.2'},'rotation':null,'adapter':null,'activation':null",
     {QUANT_GPTQ, "gptq", {INT(4, 128), INT(8, 0)}, .scheme_count = 2, .zeros_less_one = true}},
    {"'quant_method': 'GPTQ', 'method': 'gptq', 'w_bit': 3, 'wbits': 3, 'q_group_size': 16, 'format': 'GPTQ', "
     "'checkpoint_format': 'gptq', 'dynamic': null, 'lm_head': true, 'is_marlin_format': false, 'backend': 'auto', "
     "'dataset': ['c4'], 'tokenizer': null, 'use_exllama': true, 'meta': {'mse': 0, 'quantizer': null}",
     {QUANT_GPTQ, "GPTQ", {INT(3, 16)}, .scheme_count = 1, .zeros_less_one = true}},
    {"'quant_method': 'awq', 'bits': 4, 'group_size': 32, 'zero_point': true, 'version': 'gemm', "
     "'modules_to_not_convert': null",
     {QUANT_AWQ, "awq", {ASYM(4, 32)}, .scheme_count = 1}},
    {"'quant_method': 'awq', 'bits': 4, 'group_size': 32, 'zero_point': true, 'version': 'gemm', "
     "'modules_to_not_convert': ['gate']",
     {QUANT_AWQ, "awq", {ASYM(4, 32)}, .scheme_count = 1}},
    {AWQ(", 'zero_point': true, 'version': 'GEMM', 'modules_to_not_convert': null, 'backend': 'autoawq'"),
     {QUANT_AWQ, "awq", {ASYM(4, 128)}, .scheme_count = 1}},
    {AWQ(", 'version': 'gemv', 'format': 'gemv', 'do_fuse': true, 'fuse_max_seq_len': 512, 'modules_to_fuse': {}, "
         "'exllama_config': {'version': 2}, 'desc_act': false, 'sym': true, 'zero_point': false"),
     {QUANT_AWQ, "awq", {INT(4, 128)}, .scheme_count = 1, .order = QUANT_GEMV}},
    {AWQ(", 'format': 'gemv_fast', 'sym': true"),
     {QUANT_AWQ, "awq", {INT(4, 128)}, .scheme_count = 1, .order = QUANT_GEMV_FAST, .zeros_decide = true}},
    {AWQ(", 'sym': true, 'zero_point': true"), {QUANT_AWQ, "awq", {ASYM(4, 128)}, .scheme_count = 1}},
    {"'quant_method': 'awq', 'w_bit': 4, 'q_group_size': 128, 'version': 'gemm', 'backend': 'llm-awq'",
     {QUANT_AWQ, "awq", {ASYM(4, 128)}, .scheme_count = 1, .order = QUANT_GEMV_FAST}},
    {ROUND(", 'sym': true, 'data_type': 'int', 'packing_format': 'auto_round:auto_gptq', 'autoround_version': "
           "'0.16', "
           "'block_name_to_quantize': 'model.layers', 'iters': 200, 'rotation_configs': [], 'extra_config': "
           "{'lm_head': {'bits': 8, 'group_size': 32, 'sym': true, 'data_type': 'int', 'act_bits': 16}, "
           "'model.layers.0.mlp.gate': {'bits': 16, 'data_type': 'float'}}"),
     {QUANT_GPTQ, "auto-round", {INT(4, 128), INT(8, 32)}, .scheme_count = 2, .zeros_less_one = true}},
    {ROUND(""), {QUANT_GPTQ, "auto-round", {INT(4, 128)}, .scheme_count = 1, .zeros_less_one = true}},
    {ROUND(", 'backend': 'auto_round:gptq'"),
     {QUANT_GPTQ, "auto-round", {INT(4, 128)}, .scheme_count = 1, .zeros_less_one = true}},
    {ROUND(", 'sym': false, 'packing_format': 'auto_round'"),
     {QUANT_GPTQ, "auto-round", {ASYM(4, 128)}, .scheme_count = 1}},
    {ROUND(", 'packing_format': 'auto_round:gptqmodel', 'extra_config': {'lm_head': {'sym': false}}"),
     {QUANT_GPTQ, "auto-round", {INT(4, 128), ASYM(4, 128)}, .scheme_count = 2, .zeros_decide = true}},
    {ROUND(", 'backend': 'auto_round:exllamav2'"), {QUANT_GPTQ, "auto-round", {INT(4, 128)}, .scheme_count = 1}},
    {ROUND(", 'backend': 'auto_round:gptq:exllamav2'"),
     {QUANT_GPTQ, "auto-round", {INT(4, 128)}, .scheme_count = 1, .zeros_less_one = true}},
    {GPTQ(", 'sym': false, 'dynamic': {'a': {'sym': true, 'bits': 8}}"),
     {QUANT_GPTQ,
      "gptq",
      {ASYM(4, 128), INT(8, 128)},
      .scheme_count = 2,
      .zeros_less_one = true,
      .zeros_decide = true}},
    {GPTQ(", 'data_type': 'int', 'autoround_version': '0.5.1', 'iters': 200, 'nsamples': 128, 'seqlen': 2048, "
          "'provider': 'auto-round', 'enable_quanted_input': true"),
     {QUANT_GPTQ, "gptq", {INT(4, 128)}, .scheme_count = 1, .zeros_less_one = true}},
    {ROUND(", 'backend': 'auto', 'packing_format': 'auto_round:auto_awq', 'sym': false"),
     {QUANT_AWQ, "auto-round", {ASYM(4, 128)}, .scheme_count = 1}},
    {"'quant_method': 'intel/auto-round', 'bits': 5, 'group_size': 64, 'packing_format': "
     "'auto_round:llm_compressor'",
     {QUANT_COMPRESSED_TENSORS, "intel/auto-round", {INT(5, 64)}, .scheme_count = 1}},
    {"'quant_method': 'auto-round', 'bits': 4, 'group_size': 32, 'data_type': 'mx_fp', 'packing_format': "
     "'auto_round:llm_compressor', 'extra_config': {'a': {'bits': 8}, 'b': {'data_type': 'int'}}",
     {QUANT_COMPRESSED_TENSORS, "auto-round", {FLOAT(4, 32), FLOAT(8, 32), INT(4, 32)}, .scheme_count = 3}},
    {CT_WEIGHTS("pack-quantized", "4", "int", "true", "group", "32"),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {INT(4, 32)}, .scheme_count = 1}},
    {CT_WEIGHTS("pack-quantized", "4", "int", "false", "group", "64"),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {ASYM(4, 64)}, .scheme_count = 1}},
    {WEIGHTS("'num_bits': 4, 'symmetric': false, 'group_size': 32, 'actorder': 'group'"),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {ORDERED(4, 32)}, .scheme_count = 1}},
    {WEIGHTS("'num_bits': 4, 'symmetric': false, 'group_size': 32, 'actorder': true"),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {ORDERED(4, 32)}, .scheme_count = 1}},
    {WEIGHTS("'num_bits': 4, 'symmetric': false, 'group_size': 32, 'actorder': 'static'"),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {ASYM(4, 32)}, .scheme_count = 1}},
    {CT_WEIGHTS("nvfp4-pack-quantized", "4", "float", "true", "tensor_group", "16"),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {FLOAT(4, 16)}, .scheme_count = 1}},
    {CT_WEIGHTS("mxfp4-pack-quantized", "4", "float", "true", "group", "32"),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {FLOAT(4, 32)}, .scheme_count = 1}},
    {CT_FILE("float-quantized", CT_ARGUMENTS("8", "float", "true", "channel", "null", "false"),
             CT_ARGUMENTS("8", "float", "true", "token", "null", "true")),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {FLOAT(8, 0)}, .scheme_count = 1, .fp8_inputs = true}},
    {CT_FILE("float-quantized", CT_ARGUMENTS("8", "float", "true", "channel", "null", "false"),
             CT_ARGUMENTS("8", "int", "true", "token", "null", "true")),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {FLOAT(8, 0)}, .scheme_count = 1}},
    {CT_FILE("int-quantized", CT_ARGUMENTS("8", "int", "true", "tensor", "null", "false"), "{'dynamic': false}"),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {INT(8, 0)}, .scheme_count = 1, .int8_inputs = true}},
    {CT_FILE("int-quantized", CT_ARGUMENTS("8", "int", "true", "channel", "null", "false"),
             CT_ARGUMENTS("8", "int", "false", "token", "null", "true")),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {INT(8, 0)}, .scheme_count = 1}},
    {CT_FILE("int-quantized", CT_ARGUMENTS("8", "int", "true", "channel", "null", "false"),
             CT_ARGUMENTS("4", "int", "true", "token", "null", "true")),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {INT(8, 0)}, .scheme_count = 1}},
    {CT_FILE("int-quantized", CT_ARGUMENTS("8", "int", "true", "channel", "null", "false"),
             CT_ARGUMENTS("8", "float", "true", "token", "null", "true")),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {INT(8, 0)}, .scheme_count = 1}},
    {CT_FILE("pack-quantized", CT_ARGUMENTS("8", "int", "true", "group", "128", "false"),
             CT_ARGUMENTS("8", "int", "true", "token", "null", "true")),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {INT(8, 128)}, .scheme_count = 1}},
    {CT_FILE("int-quantized", CT_ARGUMENTS("8", "int", "false", "channel", "null", "false"),
             CT_ARGUMENTS("8", "int", "true", "token", "null", "true")),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {ASYM(8, 0)}, .scheme_count = 1}},
    {CT_FILE("pack-quantized", CT_ARGUMENTS("4", "int", "true", "group", "128", "false"),
             CT_ARGUMENTS("8", "int", "true", "token", "null", "true")),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {INT(4, 128)}, .scheme_count = 1}},
    {CT_FILE("mxfp8-quantized", CT_ARGUMENTS("8", "float", "true", "group", "32", "false"),
             CT_ARGUMENTS("8", "float", "true", "group", "32", "true")),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {FLOAT(8, 32)}, .scheme_count = 1}},
    {CT_WEIGHTS("float-quantized", "8", "float", "true", "tensor", "null"),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {FLOAT(8, 0)}, .scheme_count = 1}},
    {CT_FILE("int-quantized", CT_ARGUMENTS("8", "int", "true", "channel", "-1", "false"),
             CT_ARGUMENTS("8", "int", "true", "token", "null", "true")),
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {INT(8, 0)}, .scheme_count = 1, .int8_inputs = true}},
    {WEIGHTS("'num_bits': 8, 'type': 'float', 'strategy': 'block', 'block_structure': [128, 64], 'actorder': "
             "'weight'") ", 'format': 'naive-quantized', 'kv_cache_scheme': {'num_bits': 8, 'type': 'float'}, "
                         "'sparsity_config': "
                         "{'format': 'dense', 'ignore': [], 'targets': [], 'sparsity_structure': 'unstructured', "
                         "'global_sparsity': 0.1}",
     {QUANT_COMPRESSED_TENSORS,
      "compressed-tensors",
      {FLOAT(8, 0)},
      .scheme_count = 1,
      .block_rows = 128,
      .block_columns = 64,
      .cache = QUANT_CACHE_E4M3}},
    {WEIGHTS("'type': 'float', 'strategy': 'block', 'block_structure': '128x128'"),
     {QUANT_COMPRESSED_TENSORS,
      "compressed-tensors",
      {FLOAT(8, 0)},
      .scheme_count = 1,
      .block_rows = 128,
      .block_columns = 128}},
    {GROUPS("'a': {'targets': [], 'weights': {'num_bits': 4, 'group_size': 128}}, 'b': {'targets': ['re:.*down'], "
            "'weights': {'num_bits': 8}, 'format': 'int-quantized'}, 'c': {'targets': ['Attention'], 'weights': null, "
            "'input_activations': {'num_bits': 8}}, 'd': {'targets': [], 'weights': {'num_bits': 4, 'group_size': "
            "128, 'symmetric': true}}") ", 'format': 'mixed-precision', 'ignore': null",
     {QUANT_COMPRESSED_TENSORS, "compressed-tensors", {INT(4, 128), INT(8, 0)}, .scheme_count = 2}},
    {GROUPS("'W4A16': ['Linear'], 'W4A16_ASYM': [], 'W8A16': [], 'W8A8': [], 'INT8': [], 'W4A8': []"),
     {QUANT_COMPRESSED_TENSORS,
      "compressed-tensors",
      {INT(4, 128), ASYM(4, 128), INT(8, 0)},
      .scheme_count = 3,
      .int8_inputs = true}},
    {GROUPS("'FP8': [], 'FP8_DYNAMIC': ['Linear'], 'NVFP4': [], 'NVFP4A16': [], 'mxfp4': [], 'MXFP4A16': []"),
     {QUANT_COMPRESSED_TENSORS,
      "compressed-tensors",
      {FLOAT(8, 0), FLOAT(4, 16), FLOAT(4, 32)},
      .scheme_count = 3,
      .fp8_inputs = true}},
    {GROUPS("'FP8_BLOCK': ['Linear']"),
     {QUANT_COMPRESSED_TENSORS,
      "compressed-tensors",
      {FLOAT(8, 0)},
      .scheme_count = 1,
      .block_rows = 128,
      .block_columns = 128,
      .fp8_inputs = true}},
    {"'quant_method': 'fp8', 'fmt': 'e4m3', 'activation_scheme': 'dynamic', 'weight_block_size': [128, 128]",
     {QUANT_FP8, "fp8", {FLOAT(8, 0)}, .scheme_count = 1, .block_rows = 128, .block_columns = 128, .fp8_inputs = true}},
    {"'quant_method': 'fp8', 'fmt': 'e4m3', 'activation_scheme': 'dynamic', 'weight_block_size': [128, 128], "
     "'modules_to_not_convert': ['lm_head', 'model.layers.0.mlp.gate', 'model.layers.1.mlp.gate'], "
     "'scale_fmt': 'ue8m0'",
     {QUANT_FP8, "fp8", {FLOAT(8, 0)}, .scheme_count = 1, .block_rows = 128, .block_columns = 128, .fp8_inputs = true}},
    {"'quant_method': 'fp8', 'fmt': 'float8_e4m3fn', 'activation_scheme': 'dynamic', 'weight_block_size': [128, 128]",
     {QUANT_FP8, "fp8", {FLOAT(8, 0)}, .scheme_count = 1, .block_rows = 128, .block_columns = 128, .fp8_inputs = true}},
    {"'quant_method': 'fp8', 'activation_scheme': 'static', 'ignored_layers': ['lm_head']",
     {QUANT_FP8, "fp8", {FLOAT(8, 0)}, .scheme_count = 1, .fp8_inputs = true}},
    {FP8(", 'weight_block_size': null, 'scale_fmt': 'float', 'dequantize': false"),
     {QUANT_FP8, "fp8", {FLOAT(8, 0)}, .scheme_count = 1, .fp8_inputs = true}},
    {"'quant_method': 'mxfp8', 'weight_block_size': [1, 32]",
     {QUANT_FP8, "mxfp8", {FLOAT(8, 32)}, .scheme_count = 1, .block_rows = 1, .block_columns = 32}},
    {"'quant_method': 'fbgemm_fp8', 'activation_scale_ub': 1200.0, 'modules_to_not_convert': ['lm_head']",
     {QUANT_FP8, "fbgemm_fp8", {FLOAT(8, 0)}, .scheme_count = 1, .fp8_inputs = true}},
    {"'quant_method': 'mxfp4', 'modules_to_not_convert': ['model.layers.*.self_attn', 'model.layers.*.mlp.router', "
     "'model.embed_tokens', 'lm_head']",
     {QUANT_MXFP4, "mxfp4", {FLOAT(4, 32)}, .scheme_count = 1}},
    {"'quant_method': 'modelopt', 'quant_algo': 'NVFP4', 'ignore': ['lm_head'], 'kv_cache_scheme': null, "
     "'producer': {'name': 'modelopt', 'version': '0.33.0'}",
     {QUANT_MODELOPT, "modelopt", {FLOAT(4, 16)}, .scheme_count = 1}},
    {MODELOPT(", 'config_groups': {'group_0': {'targets': ['Linear'], 'input_activations': {'dynamic': false, "
              "'num_bits': 4, 'type': 'float', 'group_size': 16}, 'weights': {'dynamic': false, 'num_bits': 4, "
              "'type': 'float', 'group_size': 16}}}, 'kv_cache_scheme': {'num_bits': 8}"),
     {QUANT_MODELOPT, "modelopt", {FLOAT(4, 16)}, .scheme_count = 1, .cache = QUANT_CACHE_OTHER}},
    {"'quant_algo': 'NVFP4', 'kv_cache_quant_algo': 'FP8', 'group_size': 16, 'exclude_modules': ['lm_head', "
     "'*.gate']",
     {QUANT_MODELOPT, "modelopt", {FLOAT(4, 16)}, .scheme_count = 1, .cache = QUANT_CACHE_E4M3}},
    {MODELOPT(", 'kv_cache_quant_algo': 'NVFP4', 'kv_cache_scheme': {'num_bits': 8, 'type': 'float'}"),
     {QUANT_MODELOPT, "modelopt", {FLOAT(4, 16)}, .scheme_count = 1, .cache = QUANT_CACHE_OTHER}},
    {FP8(", 'kv_cache_scheme': 'static'"),
     {QUANT_FP8, "fp8", {FLOAT(8, 0)}, .scheme_count = 1, .fp8_inputs = true, .cache = QUANT_CACHE_E4M3}},
    {FP8(", 'kv_cache_scheme': {'num_bits': 8, 'type': 'float', 'dynamic': true}"),
     {QUANT_FP8, "fp8", {FLOAT(8, 0)}, .scheme_count = 1, .fp8_inputs = true, .cache = QUANT_CACHE_OTHER}},
    {FP8(", 'kv_cache_scheme': {'num_bits': 8, 'type': 'int'}"),
     {QUANT_FP8, "fp8", {FLOAT(8, 0)}, .scheme_count = 1, .fp8_inputs = true, .cache = QUANT_CACHE_OTHER}},
    {FP8(", 'kv_cache_scheme': null"), {QUANT_FP8, "fp8", {FLOAT(8, 0)}, .scheme_count = 1, .fp8_inputs = true}},
    {"'quant_method': 'modelopt_fp4', 'quant_algo': 'W4A16_NVFP4'",
     {QUANT_MODELOPT, "modelopt_fp4", {FLOAT(4, 16)}, .scheme_count = 1}},
    {"'quant_algo': 'FP8', 'group_size': null, 'has_zero_point': false, 'config_groups': {'group_0': {'targets': "
     "[], "
     "'weights': {'dynamic': false, 'num_bits': 8, 'type': 'float'}}}",
     {QUANT_MODELOPT, "modelopt", {FLOAT(8, 0)}, .scheme_count = 1, .fp8_inputs = true}},
    {"'quant_algo': 'fp8_pb_wo', 'group_size': 128",
     {QUANT_MODELOPT, "modelopt", {FLOAT(8, 0)}, .scheme_count = 1, .block_rows = 128, .block_columns = 128}},
    {"'quant_algo': 'FP8_PER_CHANNEL_PER_TOKEN', 'kv_cache_scheme': 'NVFP4'",
     {QUANT_MODELOPT, "modelopt", {FLOAT(8, 0)}, .scheme_count = 1, .fp8_inputs = true, .cache = QUANT_CACHE_OTHER}},
    {"'quant_method': 'modelopt_mixed', 'quant_algo': 'MIXED_PRECISION', 'quantized_layers': {'a': {'quant_algo': "
     "'FP8'}, 'b': {'quant_algo': 'NVFP4', 'group_size': 16}, 'c': {'quant_algo': 'FP8'}, 'd': {'quant_algo': "
     "'FP8_PB_WO'}}, 'config_groups': {'group_0': {'targets': ['b'], 'weights': {'num_bits': 4, 'type': 'float', "
     "'group_size': 16}}}",
     {QUANT_MODELOPT,
      "modelopt_mixed",
      {FLOAT(8, 0), FLOAT(4, 16)},
      .scheme_count = 2,
      .block_rows = 128,
      .block_columns = 128,
      .fp8_inputs = true}},
    {"'quant_algo': 'MXFP8'", {QUANT_MODELOPT, "modelopt", {FLOAT(8, 32)}, .scheme_count = 1}},
    {BNB(", '_load_in_4bit': true, '_load_in_8bit': false, 'load_in_4bit': true, 'load_in_8bit': false, "
         "'bnb_4bit_quant_type': 'nf4', 'bnb_4bit_use_double_quant': true, 'bnb_4bit_compute_dtype': 'bfloat16', "
         "'bnb_4bit_quant_storage': 'uint8', 'llm_int8_enable_fp32_cpu_offload': false, 'llm_int8_threshold': 6.0, "
         "'llm_int8_has_fp16_weight': false, 'llm_int8_skip_modules': ['lm_head']"),
     {QUANT_BITSANDBYTES, "bitsandbytes", {FLOAT(4, 0)}, .scheme_count = 1}},
    {BNB(", 'load_in_4bit': true, 'bnb_4bit_quant_type': 'fp4'"),
     {QUANT_BITSANDBYTES, "bitsandbytes", {FLOAT(4, 0)}, .scheme_count = 1}},
    {BNB(", 'load_in_8bit': true, 'llm_int8_skip_modules': null"),
     {QUANT_BITSANDBYTES, "bitsandbytes", {INT(8, 0)}, .scheme_count = 1}},
};

static void expect_scheme(const struct quant_scheme *found, const struct quant_scheme *expected)
{
    assert_int_equal(found->is_float, expected->is_float);
    assert_int_equal(found->bits, expected->bits);
    assert_int_equal(found->group_size, expected->group_size);
    assert_int_equal(found->symmetric, expected->symmetric);
    assert_int_equal(found->act_order, expected->act_order);
}

TEST(test_accepted)
{
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        const struct quant_config *expected = &accepted[i].expected;
        if (!parse(accepted[i].fields)) fail_msg("refused: %s: %s", accepted[i].fields, status.message);
        assert_int_equal(config.method, expected->method);
        assert_string_equal(config.name, expected->name);
        assert_int_equal(config.scheme_count, expected->scheme_count);
        for (int s = 0; s < expected->scheme_count; s++) expect_scheme(&config.schemes[s], &expected->schemes[s]);
        assert_int_equal(config.zeros_less_one, expected->zeros_less_one);
        assert_int_equal(config.by_gptqmodel, expected->by_gptqmodel);
        assert_int_equal(config.zeros_decide, expected->zeros_decide);
        assert_int_equal(config.order, expected->order);
        assert_int_equal(config.cache, expected->cache);
        assert_int_equal(config.block_rows, expected->block_rows);
        assert_int_equal(config.block_columns, expected->block_columns);
        if (config.fp8_inputs != expected->fp8_inputs) fail_msg("fp8_inputs: %s", accepted[i].fields);
        if (config.int8_inputs != expected->int8_inputs) fail_msg("int8_inputs: %s", accepted[i].fields);
    }
}

TEST(test_unquantised)
{
    config.method = QUANT_GPTQ;
    test_expect_success(quant_config_parse(&config, NULL, "config.json", &status), &status);
    assert_int_equal(config.method, QUANT_NONE);
    config.method = QUANT_GPTQ;
    test_expect_success(quant_config_parse(&config, json_null(), "config.json", &status), &status);
    assert_int_equal(config.method, QUANT_NONE);
}

TEST(test_methods_that_are_not_read)
{
    static const char *const methods[] = {"torchao",
                                          "hqq",
                                          "aqlm",
                                          "vptq",
                                          "quanto",
                                          "exl3",
                                          "paroquant",
                                          "quark",
                                          "qqq",
                                          "higgs",
                                          "bitnet",
                                          "spqr",
                                          "eetq",
                                          "sinq",
                                          "fouroversix",
                                          "gemma",
                                          "metal",
                                          "marlin",
                                          "humming",
                                          "fp_quant",
                                          "gguf",
                                          "",
                                          "gptq ",
                                          "GPTQ_marlin",
                                          "a name that is longer than any that the program keeps in a struct"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        test_expect_failure(
            parse(test_text("'quant_method': '%s', 'bits': 4", methods[i])), &status, STATUS_BAD_INPUT,
            test_text("config.json: quantization_config: field 'quant_method': expected|found \"%s\"|gptq, awq, "
                      "auto-round,|compressed-tensors, fp8, mxfp8, fbgemm_fp8, mxfp4, modelopt,|or bitsandbytes",
                      methods[i]));
}

TEST(test_refused)
{
    static const struct {
        const char *fields, *words;
    } cases[] = {
        {"", "'quant_method'|expected gptq|found nothing"},
        {"'quant_method': null", "'quant_method'|found nothing"},
        {"'quant_method': 3", "'quant_method'|expected gptq|found 3"},
        {"'bits': 4", "'quant_method'|found nothing"},
        {"'quant_algo': 4", "'quant_method'|found nothing"},
        {GPTQ(", 'method': 'awq'"), "'quant_method' and 'method' disagree"},
        {GPTQ(", 'method': 'new'"), "'method'|found \"new\""},
        {GPTQ(", 'surprise': 1"), "quantization_config: field 'surprise'|not understood|found 1"},
        {GPTQ(", 'checkpoint_format': 'marlin'"), "'checkpoint_format'|expected gptq or gptq_v2|\"marlin\""},
        {GPTQ(", 'checkpoint_format': 'gptq_p'"), "'checkpoint_format'|\"gptq_p\""},
        {GPTQ(", 'format': 'bitblas'"), "'format'|\"bitblas\""},
        {GPTQ(", 'format': 'gptq', 'checkpoint_format': 'gptq_v2'"), "'checkpoint_format' and 'format' disagree"},
        {GPTQ(", 'is_marlin_format': true"), "'is_marlin_format'|expected false|found true"},
        {GPTQ(", 'pack_dtype': 'int64'"), "'pack_dtype'|expected int32|\"int64\""},
        {GPTQ(", 'rotation': 'hadamard'"), "'rotation'|expected null|\"hadamard\""},
        {GPTQ(", 'adapter': {'rank': 4}"), "'adapter'|expected null|an object"},
        {GPTQ(", 'activation': {}"), "'activation'|expected null"},
        {GPTQ(", 'w_bit': 8"), "'bits' and 'w_bit' disagree"},
        {GPTQ(", 'q_group_size': 64"), "'group_size' and 'q_group_size' disagree"},
        {GPTQ(", 'meta': {'quantizer': 3}"), "'meta.quantizer'|a string or an array|found 3"},
        {GPTQ(", 'meta': {'quantizer': ['a', null]}"), "'meta.quantizer'|null"},
        {"'quant_method': 'gptq', 'group_size': 128", "'bits'|expected 2, 3, 4 or 8|found nothing"},
        {"'quant_method': 'gptq', 'bits': 4", "'group_size'|expected -1 or an integer from 1 to 65536|found nothing"},
        {"'quant_method': 'gptq', 'bits': 5, 'group_size': 32", "'bits'|2, 3, 4 or 8|found 5"},
        {"'quant_method': 'gptq', 'bits': 1, 'group_size': 32", "'bits'|found 1"},
        {"'quant_method': 'gptq', 'bits': -4, 'group_size': 32", "'bits'|found -4"},
        {"'quant_method': 'gptq', 'bits': 4294967300, 'group_size': 32", "'bits'|found 4294967300"},
        {"'quant_method': 'gptq', 'bits': 4.0, 'group_size': 32", "'bits'|found 4"},
        {"'quant_method': 'gptq', 'bits': 4, 'group_size': 0", "'group_size'|found 0"},
        {"'quant_method': 'gptq', 'bits': 4, 'group_size': -2", "'group_size'|found -2"},
        {"'quant_method': 'gptq', 'bits': 4, 'group_size': 65537", "'group_size'|found 65537"},
        {GPTQ(", 'dynamic': {'a': {'bits': 6}}"), "dynamic: a: field 'bits'|found 6"},
        {GPTQ(", 'dynamic': {'a': {'group_size': 'x'}}"), "dynamic: a: field 'group_size'|\"x\""},
        {GPTQ(", 'dynamic': {'a': {'rotation': 'x'}}"), "dynamic: a: field 'rotation'"},
        {GPTQ(", 'dynamic': {'a': {'surprise': 'x'}}"), "dynamic: a: field 'surprise'|not understood"},
        {GPTQ(", 'dynamic': {'a': 4}"), "dynamic: a: expected an object|integer"},
        {GPTQ(", 'dynamic': {'-:a': false}"), "dynamic: -:a: expected an object|boolean"},
        {AWQ(", 'version': 'marlin'"), "'version'|expected gemm, gemv, gemv_fast or llm-awq|\"marlin\""},
        {AWQ(", 'format': 'exllama'"), "'format'|\"exllama\""},
        {AWQ(", 'version': 'gemm', 'format': 'gemv'"), "'version' and 'format' disagree"},
        {AWQ(", 'surprise': {}"), "'surprise'|not understood"},
        {"'quant_method': 'awq', 'bits': 8, 'group_size': 32", "'bits'|expected 4|found 8"},
        {"'quant_method': 'awq', 'bits': 4", "'group_size'|found nothing"},
        {ROUND(", 'packing_format': 'auto_round:mlx'"), "'packing_format'|auto_round:gptq|auto_round:mlx"},
        {ROUND(", 'backend': 'auto_round:mlx'"), "'backend'|auto_round:gptq|auto_round:mlx"},
        {ROUND(", 'data_type': 'mx_fp'"), "'data_type'|expected int|\"mx_fp\""},
        {"'quant_method': 'auto-round', 'bits': 6, 'group_size': 32, 'data_type': 'mx_fp', 'packing_format': "
         "'auto_round:llm_compressor'",
         "'bits'|4 or 8|found 6"},
        {ROUND(", 'rotation_configs': [{}]"), "'rotation_configs'|an empty value|an array of 1"},
        {ROUND(", 'super_bits': 6"), "'super_bits'|null"},
        {GPTQ(", 'data_type': 'mx_fp'"), "'data_type'|expected int|\"mx_fp\""},
        {AWQ(", 'rotation_config': {'a': 1}"), "'rotation_config'|an empty value"},
        {ROUND(", 'extra_config': {'lm_head': {'bits': 9}}"), "extra_config: lm_head: field 'bits'|found 9"},
        {ROUND(", 'extra_config': {'lm_head': {'bits': 8}}, 'packing_format': 'auto_round:awq'"), "'bits'|expected 4"},
        {ROUND(", 'extra_config': {'a': {'data_type': 'fp'}}"), "extra_config: a: field 'data_type'"},
        {ROUND(", 'dynamic': {}"), "'dynamic'|not understood"},
        {"'quant_method': 'compressed-tensors'", "config_groups: expected an object, found missing"},
        {GROUPS(""), "config_groups: expected a group with weights, found none"},
        {GROUP("'weights': null"), "config_groups: expected a group with weights, found none"},
        {GROUP("'weights': {}") ", 'format': 'marlin-24'", "field 'format'|pack-quantized|\"marlin-24\""},
        {GROUP("'weights': {}") ", 'format': 'sparse-24-bitmask'", "field 'format'|\"sparse-24-bitmask\""},
        {GROUP("'weights': {}") ", 'format': 'mxfp6-pack-quantized'", "field 'format'|\"mxfp6-pack-quantized\""},
        {GROUP("'weights': {}") ", 'transform_config': {'config_groups': {}}", "'transform_config'|an empty value"},
        {GROUP("'weights': {}") ", 'moe_sparsity_config': {'a': 1}", "'moe_sparsity_config'"},
        {GROUP("'weights': {}") ", 'sparsity_config': {'format': 'sparse-24-bitmask'}",
         "sparsity_config: field 'format'|expected dense|\"sparse-24-bitmask\""},
        {GROUP("'weights': {}") ", 'sparsity_config': {'targets': []}",
         "sparsity_config: field 'format'|found nothing"},
        {GROUP("'weights': {}") ", 'sparsity_config': {'format': 'dense', 'new': 1}", "sparsity_config: field 'new'"},
        {GROUP("'weights': {}") ", 'surprise': 1", "quantization_config: field 'surprise'|not understood"},
        {GROUP("'weights': {}, 'surprise': 1"), "config_groups: group_0: field 'surprise'|not understood"},
        {GROUP("'weights': {}, 'format': 'marlin-24'"), "config_groups: group_0: field 'format'|\"marlin-24\""},
        {GROUP("'weights': {}, 'output_activations': {}"), "group_0: field 'output_activations'|expected null"},
        {GROUPS("'a': {'weights': {}}"), "config_groups: a: field 'targets'|an array of strings|found nothing"},
        {GROUPS("'a': 3"), "config_groups: a: expected an object|integer"},
        {GROUPS("'W4A4': ['Linear']"), "config_groups: field 'W4A4'|W4A16, W4A16_ASYM|FP8_BLOCK"},
        {GROUPS("'W4A16': [3]"), "config_groups: field 'W4A16'|an array of strings"},
        {GROUPS("'FP8_BLOCK': [], 'b': {'targets': [], 'weights': {'type': 'float', 'strategy': 'block', "
                "'block_structure': [1, 128]}}"),
         "config_groups: b: weights|same block_structure"},
        {WEIGHTS("'surprise': 1"), "config_groups: group_0: weights: field 'surprise'|not understood"},
        {WEIGHTS("'num_bits': 9"), "weights: field 'num_bits'|from 2 to 8|found 9"},
        {WEIGHTS("'num_bits': 1"), "weights: field 'num_bits'|found 1"},
        {WEIGHTS("'num_bits': 6, 'type': 'float'"), "weights: field 'num_bits'|4 or 8|found 6"},
        {WEIGHTS("'type': 'bool'"), "weights: field 'type'|int or float|\"bool\""},
        {WEIGHTS("'strategy': 'token'"), "weights: field 'strategy'|tensor, channel|\"token\""},
        {WEIGHTS("'strategy': 'group'"), "weights: field 'group_size'|a size|found nothing"},
        {WEIGHTS("'strategy': 'group', 'group_size': -1"), "weights: field 'group_size'|a size|found -1"},
        {WEIGHTS("'strategy': 'channel', 'group_size': 32"), "weights: field 'group_size'|null or -1|found 32"},
        {WEIGHTS("'strategy': 'block'"), "weights: field 'block_structure'|two integers|found nothing"},
        {WEIGHTS("'strategy': 'channel', 'block_structure': [128, 128]"), "'block_structure'|null|array of 2"},
        {WEIGHTS("'block_structure': [128, 128]"), "'block_structure'|null|array of 2"},
        {WEIGHTS("'strategy': 'block', 'block_structure': '128x'"), "'block_structure'|two integers|\"128x\""},
        {WEIGHTS("'strategy': 'block', 'block_structure': '128x128x128'"), "'block_structure'|two integers"},
        {WEIGHTS("'strategy': 'block', 'block_structure': '-1x128'"), "'block_structure'|two integers"},
        {WEIGHTS("'strategy': 'block', 'block_structure': [128, 0]"), "'block_structure'|two integers"},
        {WEIGHTS("'actorder': 'column'"), "weights: field 'actorder'|group, dynamic, weight or static|\"column\""},
        {WEIGHTS("'dynamic': true"), "weights: field 'dynamic'|expected false|found true"},
        {FP8(", 'fmt': 'e5m2'"), "'fmt'|expected e4m3|\"e5m2\""},
        {FP8(", 'activation_scheme': 'none'"), "'activation_scheme'|dynamic or static|\"none\""},
        {FP8(", 'scale_fmt': 'int'"), "'scale_fmt'|float or ue8m0|\"int\""},
        {FP8(", 'weight_block_size': [128]"), "'weight_block_size'|two integers|an array of 1"},
        {FP8(", 'weight_block_size': [128, -1]"), "'weight_block_size'|two integers"},
        {FP8(", 'weight_block_size': [128, 128.5]"), "'weight_block_size'|two integers"},
        {FP8(", 'weight_block_size': [1, 65537]"), "'weight_block_size'|to 65536"},
        {FP8(", 'weight_block_size': '128x128'"), "'weight_block_size'|two integers|\"128x128\""},
        {FP8(", 'modules_to_not_convert': ['a', 1]"), "'modules_to_not_convert'|an array of strings"},
        {FP8(", 'bits': 8"), "'bits'|not understood"},
        {"'quant_method': 'mxfp8', 'fmt': 'e5m2'", "'fmt'|expected e4m3"},
        {"'quant_method': 'mxfp4', 'bits': 4", "'bits'|not understood"},
        {"'quant_method': 'fbgemm_fp8', 'fmt': 'e4m3'", "'fmt'|not understood"},
        {"'quant_method': 'modelopt'",
         "'quant_algo'|FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4|MXFP8 or MIXED_PRECISION|found nothing"},
        {"'quant_algo': 'NVFP4_AWQ'", "'quant_algo'|\"NVFP4_AWQ\""},
        {"'quant_algo': 'W4A16_AWQ'", "'quant_algo'|\"W4A16_AWQ\""},
        {"'quant_algo': 'MIXED_PRECISION', 'quantized_layers': {}", "'quantized_layers'|an object with modules"},
        {"'quant_algo': 'MIXED_PRECISION'", "'quantized_layers'|an object with modules|found nothing"},
        {"'quant_algo': 'MIXED_PRECISION', 'quantized_layers': {'a': {'quant_algo': 'W4A16_AWQ'}}",
         "quantized_layers: a: field 'quant_algo'|NVFP4|or MXFP8|\"W4A16_AWQ\""},
        {"'quant_algo': 'MIXED_PRECISION', 'quantized_layers': {'a': {'quant_algo': 'MIXED_PRECISION'}}",
         "quantized_layers: a: field 'quant_algo'"},
        {"'quant_algo': 'MIXED_PRECISION', 'quantized_layers': {'a': {'quant_algo': 'NVFP4', 'group_size': 32}}",
         "quantized_layers: a: fields 'quant_algo' and 'group_size' disagree|16|found 32"},
        {"'quant_algo': 'MIXED_PRECISION', 'quantized_layers': {'a': {'quant_algo': 'FP8', 'new': 1}}",
         "quantized_layers: a: field 'new'|not understood"},
        {"'quant_algo': 'MIXED_PRECISION', 'quantized_layers': {'a': {'quant_algo': 'FP8'}}, 'config_groups': "
         "{'NVFP4': []}",
         "'quantized_layers' and 'config_groups' disagree"},
        {MODELOPT(", 'pre_quant_scale': true"), "'pre_quant_scale'|expected false"},
        {MODELOPT(", 'group_size': 32"), "'quant_algo' and 'group_size' disagree|16|found 32"},
        {MODELOPT(", 'config_groups': {'W4A16': []}"), "'quant_algo' and 'config_groups' disagree"},
        {MODELOPT(", 'config_groups': {'a': {'targets': [], 'format': 'x', 'weights': {}}}"), "a: field 'format'"},
        {MODELOPT(", 'quantized_layers': {}"), "'quantized_layers'|not understood"},
        {BNB(""), "'load_in_4bit'|'load_in_8bit'|found neither"},
        {BNB(", 'load_in_4bit': true, 'load_in_8bit': true"), "'load_in_4bit'|found both"},
        {BNB(", 'load_in_4bit': true, 'bnb_4bit_quant_type': 'int4'"), "'bnb_4bit_quant_type'|nf4 or fp4|\"int4\""},
        {BNB(", 'load_in_4bit': true, 'bnb_4bit_quant_storage': 'bfloat16'"), "'bnb_4bit_quant_storage'|uint8"},
        {BNB(", 'load_in_8bit': true, 'llm_int8_has_fp16_weight': true"), "'llm_int8_has_fp16_weight'|false"},
        {BNB(", 'load_in_4bit': true, 'surprise': 1"), "'surprise'|not understood"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_expect_failure(parse(cases[i].fields), &status, STATUS_BAD_INPUT, cases[i].words);
}

/* Overrides that are equal count once. */
TEST(test_number_of_schemes)
{
    for (int count = 1; count <= 20; count++) {
        char equal[2000] = "", different[2000] = "";
        for (int i = 0; i < count; i++) {
            const char *comma = i ? ", " : "";
            strcat(equal, test_text("%s'm%d': {'group_size': %d}", comma, i, i % 2 ? 64 : 32));
            strcat(different, test_text("%s'm%d': {'group_size': %d}", comma, i, i + 1));
        }
        test_expect_success(parse(with_inserted(GPTQ(", 'dynamic': {%s}"), equal)), &status);
        assert_int_equal(config.scheme_count, count == 1 ? 2 : 3);
        assert_int_equal(config.schemes[0].group_size, 128);
        const bool done = parse(with_inserted(GPTQ(", 'dynamic': {%s}"), different));
        assert_int_equal(done, count < QUANT_MAX_SCHEMES);
        if (done) assert_int_equal(config.scheme_count, count + 1);
        if (!done) test_expect_message(&status, "dynamic: m15: expected at most 16|found more");
    }
}

/* Every field that is read refuses every type of value but its own; the message names it. */
TEST(test_wrong_types)
{
    static const struct {
        char letter;
        const char *value;
    } values[] = {{'i', "1048576"}, {'r', "0.5"}, {'s', "'x'"}, {'b', "true"}, {'a', "[[]]"}, {'o', "{'x': 3}"}};
    static const struct {
        const char *fields, *keys;
        const char *own; /* letters of types that are not refused */
    } cases[] = {
        {"%s", "quant_method", ""},
        {"'quant_method': 'gptq', 'group_size': 128, %s", "bits w_bit wbits", ""},
        {"'quant_method': 'gptq', 'bits': 4, %s", "group_size q_group_size", ""},
        {GPTQ(", %s"), "method w_bit wbits q_group_size checkpoint_format format pack_dtype", ""},
        {GPTQ(", %s"), "is_marlin_format dynamic rotation adapter activation", ""},
        {GPTQ(", %s"), "sym desc_act lm_head", "b"},
        {GPTQ(", %s"), "backend", "s"},
        {GPTQ(", %s"), "meta", "o"},
        {GPTQ(", 'meta': {%s}"), "quantizer", "s"},
        {GPTQ(", 'dynamic': {%s}"), "module", "o"},
        {GPTQ(", 'dynamic': {'m': {%s}}"), "bits w_bit wbits group_size q_group_size rotation data_type", ""},
        {GPTQ(", 'dynamic': {'m': {%s}}"), "sym desc_act", "b"},
        {AWQ(", %s"), "method w_bit wbits q_group_size version format checkpoint_format pack_dtype", ""},
        {AWQ(", %s"), "modules_to_not_convert is_marlin_format dynamic rotation adapter activation", ""},
        {AWQ(", %s"), "zero_point sym desc_act lm_head", "b"},
        {AWQ(", %s"), "backend", "s"},
        {AWQ(", %s"), "meta", "o"},
        {ROUND(", %s"), "method packing_format data_type extra_config pack_dtype", ""},
        {ROUND(", %s"), "rotation_config rotation_configs super_bits super_group_size", ""},
        {ROUND(", %s"), "sym desc_act lm_head", "b"},
        {ROUND(", %s"), "backend", "s"},
        {ROUND(", 'extra_config': {%s}"), "module", "o"},
        {ROUND(", 'extra_config': {'m': {%s}}"), "bits group_size data_type", ""},
        {ROUND(", 'extra_config': {'m': {%s}}"), "sym", "b"},
        {"'quant_method': 'compressed-tensors', %s", "config_groups", ""},
        {GROUP("'weights': {}") ", %s", "method format ignore sparsity_config transform_config", ""},
        {GROUP("'weights': {}") ", %s", "moe_sparsity_config", ""},
        {GROUP("'weights': {}") ", %s", "kv_cache_scheme", "o"},
        {GROUP("'weights': {}") ", 'sparsity_config': {%s}", "format", ""},
        {GROUPS("%s"), "W4A16 group_0", ""},
        {GROUPS("'g': {'weights': {}, %s}"), "targets", ""},
        {GROUP("%s"), "weights", ""},
        {GROUP("'weights': {}, %s"), "format output_activations", ""},
        {GROUP("'weights': {}, %s"), "input_activations", "o"},
        {WEIGHTS("%s"), "num_bits type strategy group_size block_structure", ""},
        {WEIGHTS("%s"), "dynamic", ""},
        {WEIGHTS("%s"), "actorder", "b"},
        {WEIGHTS("%s"), "symmetric", "b"},
        {FP8(", %s"), "method fmt activation_scheme scale_fmt weight_block_size", ""},
        {FP8(", %s"), "kv_cache_scheme", "o"},
        {FP8(", %s"), "modules_to_not_convert ignored_layers modules_to_convert", ""},
        {"'quant_method': 'mxfp8', %s", "fmt activation_scheme scale_fmt weight_block_size ignored_layers", ""},
        {"'quant_method': 'mxfp4', %s", "modules_to_not_convert ignored_layers", ""},
        {"'quant_method': 'fbgemm_fp8', %s", "modules_to_not_convert ignored_layers", ""},
        {"'quant_method': 'fbgemm_fp8', %s", "activation_scale_ub", "ir"},
        {"'quant_method': 'modelopt', %s", "quant_algo", ""},
        {MODELOPT(", %s"), "method ignore exclude_modules group_size config_groups", ""},
        {MODELOPT(", %s"), "kv_cache_scheme", "os"},
        {MODELOPT(", %s"), "kv_cache_quant_algo", "s"},
        {MODELOPT(", %s"), "has_zero_point pre_quant_scale", ""},
        {BNB(", %s"), "load_in_4bit load_in_8bit", "b"},
        {BNB(", 'load_in_4bit': true, %s"), "bnb_4bit_quant_type bnb_4bit_quant_storage llm_int8_skip_modules", ""},
        {BNB(", 'load_in_4bit': true, %s"), "llm_int8_has_fp16_weight", ""},
        {BNB(", 'load_in_4bit': true, %s"), "bnb_4bit_use_double_quant", "b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char keys[200];
        assert_true(strlen(cases[i].keys) < sizeof keys);
        strcpy(keys, cases[i].keys);
        for (char *rest = keys, *key; (key = strsep(&rest, " "));)
            for (size_t v = 0; v < sizeof values / sizeof *values; v++)
                if (!strchr(cases[i].own, values[v].letter))
                    test_expect_failure(parse(with_inserted(cases[i].fields,
                                                            test_text("'%s': %s", key, values[v].value))),
                                        &status, STATUS_BAD_INPUT,
                                        test_text("config.json: quantization_config|%s", key));
    }
    static const char *const others[] = {"[]", "[{'quant_method': 'gptq'}]"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const char *text = test_json(others[i]);
        json_t *json = json_parse(text, strlen(text), "config.json", &status);
        test_expect_failure(quant_config_parse(&config, json, "config.json: quantization_config", &status), &status,
                            STATUS_BAD_INPUT, "config.json: quantization_config: expected an object, found array");
        json_decref(json);
    }
}

int main(void) { return test_run(); }
