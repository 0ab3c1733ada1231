/* SPDX-License-Identifier: Apache-2.0 */
/* Reads quantization_config. Sources: transformers 5.17 (utils/quantization_config.py), GPTQModel 7.7, AutoAWQ,
 * compressed-tensors 0.20 (QuantizationArgs, PRESET_SCHEMES), ModelOpt (convert_hf_config.py), AutoRound 0.16. */
#include "formats/checkpoint/quant_config.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "formats/base/field_rules.h"
#include "formats/checkpoint/quant_fields.h"

enum { PATH_BYTES = 240 };

static bool same_scheme(const struct quant_scheme *a, const struct quant_scheme *b)
{
    return a->is_float == b->is_float && a->bits == b->bits && a->group_size == b->group_size &&
           a->symmetric == b->symmetric;
}

static bool add_scheme(struct quant_config *config, const struct quant_scheme *scheme, const char *path,
                       struct status *status)
{
    for (int i = 0; i < config->scheme_count; i++)
        if (same_scheme(&config->schemes[i], scheme)) {
            config->schemes[i].act_order &= scheme->act_order; /* tensors do not show which of the two they are of */
            return true;
        }
    if (config->scheme_count == QUANT_MAX_SCHEMES)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: expected at most %d combinations of type, bits, group size and symmetry, found more",
                           path, QUANT_MAX_SCHEMES);
    config->schemes[config->scheme_count++] = *scheme;
    return true;
}

/* ---- Methods with integer codes and one scheme for most modules: GPTQ, AWQ, auto-round ---- */

static const struct quant_integer_field gptq_bits = {{"bits", "w_bit", "wbits"},
                                                     "2, 3, 4 or 8",
                                                     2,
                                                     8,
                                                     1u << 5 | 1u << 6 | 1u << 7};
static const struct quant_integer_field awq_bits = {{"bits", "w_bit", "wbits"}, "4", 4, 4, 0};
static const struct quant_integer_field packed_bits = {{"bits"}, "an integer from 2 to 8", 2, 8, 0};

/* What AutoGPTQ, GPTQModel and optimum record about calibration and execution; GPTQModel writes AWQ files, too. */
static const char gptq_ignored[] =
    "act_group_aware batch_size block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent dataset "
    "disable_exllama exllama_config foem gptaq hessian max_input_length model_file_base_name model_name_or_path "
    "model_seqlen module_name_preceding_first_block modules_in_block_to_quantize mse offload_to_disk pad_token_id "
    "static_groups tokenizer true_sequential use_cuda_fp16 use_exllama";
static const struct field_rule gptq_rules[] = {{"activation", FIELD_ABSENT},
                                               {"adapter", FIELD_ABSENT},
                                               {"is_marlin_format", FIELD_FALSE},
                                               {"rotation", FIELD_ABSENT}};
static const char awq_ignored[] = "do_fuse fuse_max_seq_len modules_to_fuse";
/* AutoRound also writes files of GPTQ and AWQ, with its own fields beside theirs. */
static const char auto_round_ignored[] =
    "act_bits act_data_type act_dynamic act_group_size act_sym amp autoround_version batch_size "
    "block_name_to_quantize damp_percent dataset enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input "
    "gradient_accumulate_steps in_blocks iters low_gpu_mem_usage lr minmax_lr model_free nsamples provider "
    "quant_block_list "
    "quant_lm_head scale_dtype seqlen static_attention_dtype static_attention_granularity static_kv_dtype "
    "static_kv_granularity supported_types to_quant_block_names true_sequential";
static const struct field_rule auto_round_rules[] = {{"rotation_config", FIELD_EMPTY},
                                                     {"rotation_configs", FIELD_EMPTY},
                                                     {"super_bits", FIELD_ABSENT},
                                                     {"super_group_size", FIELD_ABSENT}};

/* How such a method names its fields. */
struct integer_method {
    const struct quant_integer_field *bits;
    const char *overrides; /* an object: module or pattern -> fields that differ from the default */
    const char *ignored;   /* names separated by spaces */
    const struct field_rule *rules;
    size_t rule_count;
    bool floats; /* codes may be floats */
};
static const struct integer_method gptq_method =
    {&gptq_bits, "dynamic", gptq_ignored, gptq_rules, QUANT_COUNT(gptq_rules), false};
static const struct integer_method awq_method =
    {&awq_bits, "dynamic", gptq_ignored, gptq_rules, QUANT_COUNT(gptq_rules), false};

/* data_type, which says whether codes are floats; those have 4 or 8 bits. Requires: scheme->bits was read. */
static bool read_data_type(struct json_reader *reader, const struct integer_method *method, struct quant_scheme *scheme,
                           struct status *status)
{
    static const char *const types[] = {"int", "mx_fp", "nv_fp"};
    const struct quant_names names = {types, method->floats ? QUANT_COUNT(types) : 1, sizeof *types};
    size_t type = scheme->is_float;
    if (!quant_read_name(reader, "data_type", false, &names, &type, status)) return false;
    scheme->is_float = type > 0;
    return !scheme->is_float || scheme->bits == 4 || scheme->bits == 8 ||
           json_reader_fail(reader, "bits", "4 or 8, as 'data_type' is a float",
                            json_object_get(reader->object, "bits"), status);
}

static bool check_fields(struct json_reader *reader, const struct integer_method *method, struct status *status)
{
    quant_ignore(reader, method->ignored);
    quant_ignore(reader, auto_round_ignored);
    return field_rules_check(reader, method->rules, method->rule_count, status) &&
           field_rules_check(reader, auto_round_rules, QUANT_COUNT(auto_round_rules), status);
}

/* "-:" excludes modules (GPTQModel); AutoRound gives modules that stay floats 16 or 32 bits. */
static bool is_exclusion(const char *pattern, const json_t *fields)
{
    const json_int_t bits = json_integer_value(json_object_get(fields, "bits"));
    return strncmp(pattern, "-:", 2) == 0 || bits == 16 || bits == 32;
}

static bool parse_override(struct quant_config *config, struct json_reader *reader, const struct integer_method *method,
                           const struct quant_scheme *base, bool sym, struct status *status)
{
    struct quant_scheme scheme = *base;
    bool override_sym = sym;
    if (!quant_read_bits(reader, method->bits, false, &scheme.bits, status) ||
        !quant_read_group_size(reader, false, &scheme.group_size, status) ||
        !json_reader_bool(reader, "sym", false, &override_sym, status) ||
        !json_reader_bool(reader, "desc_act", false, &scheme.act_order, status) ||
        !read_data_type(reader, method, &scheme, status))
        return false;
    if (override_sym != sym) {
        scheme.symmetric = override_sym;
        config->zeros_decide = true;
    }
    return check_fields(reader, method, status) && json_reader_all_consumed(reader, status) &&
           add_scheme(config, &scheme, reader->path, status);
}

static bool parse_overrides(struct quant_config *config, struct json_reader *reader,
                            const struct integer_method *method, const struct quant_scheme *base, bool sym,
                            struct status *status)
{
    json_t *overrides = json_reader_get(reader, method->overrides), *fields;
    const char *pattern;
    bool done = !overrides || json_is_object(overrides);
    if (!done) return json_reader_fail(reader, method->overrides, "an object", overrides, status);
    json_object_foreach (overrides, pattern, fields) {
        struct json_reader inner = {0};
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%.80s: %s: %.120s", reader->path, method->overrides, pattern);
        done = json_reader_open(&inner, fields, path, status) &&
               (is_exclusion(pattern, fields) || parse_override(config, &inner, method, base, sym, status));
        json_reader_close(&inner);
        if (!done) break;
    }
    return done;
}

/* meta.quantizer: "gptqmodel:5.0.0", or an array of such texts. Other keys of meta describe the calibration. */
static bool read_quantizer(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    const json_t *meta = json_reader_get(reader, "meta"), *quantizer = json_object_get(meta, "quantizer");
    if (meta && !json_is_object(meta)) return json_reader_fail(reader, "meta", "an object", meta, status);
    if (!quantizer || json_is_null(quantizer)) return true;
    const size_t count = json_is_array(quantizer) ? json_array_size(quantizer) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *name = json_is_array(quantizer) ? json_array_get(quantizer, i) : quantizer;
        if (!json_is_string(name))
            return json_reader_fail(reader, "meta.quantizer", "a string or an array of strings", name, status);
        config->by_gptqmodel |= strncmp(json_string_value(name), "gptqmodel", strlen("gptqmodel")) == 0;
    }
    return true;
}

/* `zero_point`: the opposite of sym, where it is known. */
static bool parse_integers(struct quant_config *config, struct json_reader *reader, const struct integer_method *method,
                           const bool *zero_point, struct status *status)
{
    static const char *const pack_types[] = {"int32"};
    bool sym = true, flag;
    size_t pack_type = 0;
    struct quant_scheme scheme = {0};
    if (!quant_read_bits(reader, method->bits, true, &scheme.bits, status) ||
        !quant_read_group_size(reader, true, &scheme.group_size, status) ||
        !json_reader_bool(reader, "sym", false, &sym, status) ||
        !json_reader_bool(reader, "desc_act", false, &scheme.act_order, status) ||
        !json_reader_bool(reader, "lm_head", false, &flag, status) ||
        !quant_read_name(reader, "pack_dtype", false, QUANT_NAMES(pack_types), &pack_type, status) ||
        !read_data_type(reader, method, &scheme, status) || !read_quantizer(config, reader, status))
        return false;
    scheme.symmetric = zero_point ? !*zero_point : sym;
    /* Groups that were chosen before columns were ordered are as without an order. */
    if (json_is_true(json_object_get(reader->object, "static_groups"))) scheme.act_order = false;
    return add_scheme(config, &scheme, reader->path, status) &&
           parse_overrides(config, reader, method, &scheme, sym, status) && check_fields(reader, method, status);
}

static bool parse_gptq(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const format_keys[] = {"checkpoint_format", "format"};
    static const char *const formats[] = {"gptq", "gptq_v2"};
    const char *backend;
    size_t format = 0;
    if (!quant_read_aliased_name(reader, format_keys, QUANT_COUNT(format_keys), QUANT_NAMES(formats), &format,
                                 status) ||
        !json_reader_string(reader, "backend", false, &backend, status))
        return false;
    config->zeros_less_one = format == 0;
    return parse_integers(config, reader, &gptq_method, NULL, status);
}

static bool parse_awq(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const format_keys[] = {"version", "format", "checkpoint_format"};
    static const struct {
        const char *name;
        enum quant_order order;
    } formats[] = {{"gemm", QUANT_GEMM},
                   {"gemv", QUANT_GEMV},
                   {"gemv_fast", QUANT_GEMV_FAST},
                   {"llm-awq", QUANT_GEMV_FAST}};
    const char *backend = "";
    size_t format = 0;
    bool zero_point = true;
    if (!quant_read_aliased_name(reader, format_keys, QUANT_COUNT(format_keys), QUANT_NAMES(formats), &format,
                                 status) ||
        !json_reader_string(reader, "backend", false, &backend, status) ||
        !quant_read_strings(reader, "modules_to_not_convert", false, status) ||
        !json_reader_bool(reader, "zero_point", false, &zero_point, status))
        return false;
    /* The tools of llm-awq have one layout, whatever version says. */
    config->order = strcasecmp(backend, "llm-awq") == 0 ? QUANT_GEMV_FAST : formats[format].order;
    /* AWQ's default is asymmetric; GPTQModel writes sym beside or instead of zero_point. */
    const bool by_sym = !json_reader_get(reader, "zero_point") && json_reader_get(reader, "sym");
    config->zeros_decide = by_sym;
    quant_ignore(reader, awq_ignored);
    return parse_integers(config, reader, &awq_method, by_sym ? NULL : &zero_point, status);
}

static bool parse_auto_round(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct {
        const char *name;
        enum quant_method method;
        const struct quant_integer_field *bits;
        bool zeros_less_one;
    } packings[] = {
        {"auto_round:auto_gptq", QUANT_GPTQ, &gptq_bits, true},
        {"auto_round:gptq", QUANT_GPTQ, &gptq_bits, true},
        {"auto_round:auto_gptq:exllamav2", QUANT_GPTQ, &gptq_bits, true},
        {"auto_round:gptq:exllamav2", QUANT_GPTQ, &gptq_bits, true},
        {"auto_round", QUANT_GPTQ, &gptq_bits, false},
        {"auto_round:gptqmodel", QUANT_GPTQ, &gptq_bits, false},
        {"auto_round:exllamav2", QUANT_GPTQ, &gptq_bits, false},
        {"auto_round:tritonv2", QUANT_GPTQ, &gptq_bits, false},
        {"auto_round:auto_awq", QUANT_AWQ, &awq_bits, false},
        {"auto_round:awq", QUANT_AWQ, &awq_bits, false},
        {"auto_round:llm_compressor", QUANT_COMPRESSED_TENSORS, &packed_bits, false},
    };
    const char *backend = "";
    size_t packing = 0;
    if (!json_reader_string(reader, "backend", false, &backend, status)) return false;
    /* Old versions of AutoRound name the packing in backend. */
    const bool by_backend = !json_reader_get(reader, "packing_format") && strncasecmp(backend, "auto_round:", 11) == 0;
    if (!quant_read_name(reader, by_backend ? "backend" : "packing_format", false, QUANT_NAMES(packings), &packing,
                         status))
        return false;
    config->method = packings[packing].method;
    config->zeros_less_one = packings[packing].zeros_less_one;
    const struct integer_method auto_round = {packings[packing].bits,
                                              "extra_config",
                                              auto_round_ignored,
                                              auto_round_rules,
                                              QUANT_COUNT(auto_round_rules),
                                              config->method == QUANT_COMPRESSED_TENSORS};
    return parse_integers(config, reader, &auto_round, NULL, status);
}

/* ---- compressed-tensors, whose groups ModelOpt has, too ---- */

/* How the tensors of a group are named; the tensors themselves tell. */
static const char *const group_formats[] = {"pack-quantized",       "int-quantized",
                                            "float-quantized",      "naive-quantized",
                                            "nvfp4-pack-quantized", "mxfp4-pack-quantized",
                                            "mxfp8-quantized",      "dense",
                                            "mixed-precision"};

/* Blocks are a property of the whole configuration. */
static bool set_block(struct quant_config *config, uint64_t rows, uint64_t columns, const char *path,
                      struct status *status)
{
    if (config->block_rows && (config->block_rows != rows || config->block_columns != columns))
        return status_fail(status, STATUS_BAD_INPUT, "%s: expected the same block_structure in all groups", path);
    config->block_rows = rows;
    config->block_columns = columns;
    return true;
}

/* actorder: "weight" and "static" leave columns in groups as they lie; true stands for "group". */
static bool read_act_order(struct json_reader *reader, bool *act_order, struct status *status)
{
    static const struct {
        const char *name;
        bool lists_groups;
    } orders[] = {{"group", true}, {"dynamic", true}, {"weight", false}, {"static", false}};
    const json_t *value = json_reader_get(reader, "actorder");
    size_t order = QUANT_COUNT(orders);
    if (json_is_boolean(value)) {
        *act_order = json_is_true(value);
        return true;
    }
    if (!quant_read_name(reader, "actorder", false, QUANT_NAMES(orders), &order, status)) return false;
    *act_order = order < QUANT_COUNT(orders) && orders[order].lists_groups;
    return true;
}

/* QuantizationArgs of weights. */
static bool parse_weights(struct quant_config *config, struct json_reader *reader, struct quant_scheme *found,
                          struct status *status)
{
    static const struct quant_integer_field integer_bits = {{"num_bits"}, "an integer from 2 to 8", 2, 8, 0};
    static const struct quant_integer_field float_bits = {{"num_bits"},
                                                          "4 or 8, as 'type' is float",
                                                          4,
                                                          8,
                                                          1u << 5 | 1u << 6 | 1u << 7};
    static const char *const types[] = {"int", "float"};
    static const struct {
        const char *name;
        bool grouped, block;
    } strategies[] = {{"tensor", false, false},
                      {"channel", false, false},
                      {"group", true, false},
                      {"tensor_group", true, false},
                      {"block", false, true}};
    /* The tensors have scale_dtype and zp_dtype. */
    static const struct field_rule rules[] = {{"dynamic", FIELD_FALSE}};
    struct quant_scheme scheme = {.bits = 8, .symmetric = true};
    uint64_t rows = 0, columns = 0;
    size_t type = 0, strategy = QUANT_COUNT(strategies);
    if (!quant_read_name(reader, "type", false, QUANT_NAMES(types), &type, status)) return false;
    scheme.is_float = type == 1;
    quant_ignore(reader, "observer observer_kwargs scale_dtype zp_dtype");
    if (!read_act_order(reader, &scheme.act_order, status) ||
        !quant_read_bits(reader, scheme.is_float ? &float_bits : &integer_bits, false, &scheme.bits, status) ||
        !json_reader_bool(reader, "symmetric", false, &scheme.symmetric, status) ||
        !quant_read_name(reader, "strategy", false, QUANT_NAMES(strategies), &strategy, status) ||
        !quant_read_group_size(reader, false, &scheme.group_size, status) ||
        !quant_read_block(reader, "block_structure", true, &rows, &columns, status) ||
        !field_rules_check(reader, rules, QUANT_COUNT(rules), status) || !json_reader_all_consumed(reader, status))
        return false;
    if (strategy < QUANT_COUNT(strategies) && strategies[strategy].grouped != (scheme.group_size > 0))
        return json_reader_fail(reader, "group_size",
                                scheme.group_size ? "null or -1 with this strategy" : "a size with this strategy",
                                json_object_get(reader->object, "group_size"), status);
    if ((strategy < QUANT_COUNT(strategies) && strategies[strategy].block) != (rows > 0))
        return json_reader_fail(reader, "block_structure",
                                rows ? "null, as 'strategy' is not block" : "two integers, as 'strategy' is block",
                                json_object_get(reader->object, "block_structure"), status);
    *found = scheme;
    return (!rows || set_block(config, rows, columns, reader->path, status)) &&
           add_scheme(config, &scheme, reader->path, status);
}

/* Notes what a group's activations were, from their QuantizationArgs, of which nothing else matters. Scales of weights: those of FP8,
 * not of MXFP8, or of int8 for whole rows. */
static void note_inputs(struct quant_config *config, const struct quant_scheme *weights, const json_t *inputs)
{
    const char *type = json_string_value(json_object_get(inputs, "type"));
    const json_t *bits = json_object_get(inputs, "num_bits"), *symmetric = json_object_get(inputs, "symmetric");
    const bool is_float = type && strcasecmp(type, "float") == 0;
    if (!inputs || weights->bits != 8 || weights->group_size || weights->is_float != is_float) return;
    if (bits && json_integer_value(bits) != 8) return;
    if (is_float)
        config->fp8_inputs = true;
    else if (weights->symmetric && (!type || strcasecmp(type, "int") == 0) && (!symmetric || json_is_true(symmetric)))
        config->int8_inputs = true;
}

/* A group: targets and their scheme. */
static bool parse_group(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct field_rule fields[] = {{"output_activations", FIELD_ABSENT}};
    json_t *weights = json_reader_get(reader, "weights");
    const json_t *inputs = json_reader_get(reader, "input_activations");
    size_t format = 0;
    if (inputs && !json_is_object(inputs))
        return json_reader_fail(reader, "input_activations", "an object or null", inputs, status);
    if (!quant_read_strings(reader, "targets", true, status) ||
        !quant_read_name(reader, "format", false, QUANT_NAMES(group_formats), &format, status) ||
        !field_rules_check(reader, fields, QUANT_COUNT(fields), status) || !json_reader_all_consumed(reader, status))
        return false;
    if (!weights) return true; /* a group that quantises only activations */
    struct json_reader inner = {0};
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.200s: weights", reader->path);
    struct quant_scheme scheme = {0};
    const bool done = json_reader_open(&inner, weights, path, status) && parse_weights(config, &inner, &scheme, status);
    if (done) note_inputs(config, &scheme, inputs);
    json_reader_close(&inner);
    return done;
}

/* A group that has the name of a preset and only lists its targets. */
static bool parse_preset(struct quant_config *config, struct json_reader *groups, const char *name,
                         struct status *status)
{
    static const struct {
        const char *name;
        struct quant_scheme scheme;
        uint64_t block;
        enum { OTHER_INPUTS, FP8_INPUTS, INT8_INPUTS } inputs;
    } presets[] = {
        {"W4A16", {false, 4, 128, true, false}, 0, OTHER_INPUTS},
        {"W4A16_ASYM", {false, 4, 128, false, false}, 0, OTHER_INPUTS},
        {"W8A16",
         {false, 8, 0, true, false},
         0,
         OTHER_INPUTS}, /* whole rows in old versions, 128 in new ones: the tensors tell */
        {"W8A8", {false, 8, 0, true, false}, 0, INT8_INPUTS},
        {"INT8", {false, 8, 0, true, false}, 0, INT8_INPUTS},
        {"W4A8", {false, 4, 128, true, false}, 0, OTHER_INPUTS},
        {"W4AFP8", {false, 4, 128, true, false}, 0, OTHER_INPUTS},
        {"FP8", {true, 8, 0, true, false}, 0, FP8_INPUTS},
        {"FP8_DYNAMIC", {true, 8, 0, true, false}, 0, FP8_INPUTS},
        {"FP8_BLOCK", {true, 8, 0, true, false}, 128, FP8_INPUTS},
        {"NVFP4", {true, 4, 16, true, false}, 0, OTHER_INPUTS},
        {"NVFP4A16", {true, 4, 16, true, false}, 0, OTHER_INPUTS},
        {"MXFP4", {true, 4, 32, true, false}, 0, OTHER_INPUTS},
        {"MXFP4A16", {true, 4, 32, true, false}, 0, OTHER_INPUTS},
        {"MXFP8", {true, 8, 32, true, false}, 0, OTHER_INPUTS},
        {"MXFP8A16", {true, 8, 32, true, false}, 0, OTHER_INPUTS},
    };
    const size_t preset = quant_find_name(QUANT_NAMES(presets), name);
    if (preset == QUANT_COUNT(presets)) {
        char expected[QUANT_NAMES_BYTES];
        quant_list_names(QUANT_NAMES(presets), expected);
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field '%.40s': expected an object, or as its name one of the presets %s", groups->path,
                           name, expected);
    }
    const uint64_t block = presets[preset].block;
    config->fp8_inputs |= presets[preset].inputs == FP8_INPUTS;
    config->int8_inputs |= presets[preset].inputs == INT8_INPUTS;
    return quant_read_strings(groups, name, true, status) &&
           (!block || set_block(config, block, block, groups->path, status)) &&
           add_scheme(config, &presets[preset].scheme, groups->path, status);
}

static bool parse_groups(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    struct json_reader groups = {0};
    char path[PATH_BYTES], group_path[PATH_BYTES];
    const char *name;
    json_t *group;
    snprintf(path, sizeof path, "%.80s: config_groups", reader->path);
    bool done = json_reader_open(&groups, json_reader_get(reader, "config_groups"), path, status);
    json_object_foreach (groups.object, name, group) {
        if (!done) break;
        if (json_is_array(group)) {
            done = parse_preset(config, &groups, name, status);
            continue;
        }
        struct json_reader inner = {0};
        snprintf(group_path, sizeof group_path, "%.120s: %.80s", path, name);
        done = json_reader_open(&inner, group, group_path, status) && parse_group(config, &inner, status);
        json_reader_close(&inner);
    }
    json_reader_close(&groups);
    if (!done || config->scheme_count) return done;
    return status_fail(status, STATUS_BAD_INPUT, "%s: expected a group with weights, found none", path);
}

/* Weights that are stored without zeros are refused. */
static bool check_sparsity(struct json_reader *reader, struct status *status)
{
    static const char *const formats[] = {"dense"};
    json_t *sparsity = json_reader_get(reader, "sparsity_config");
    if (!sparsity || (json_is_object(sparsity) && json_object_size(sparsity) == 0)) return true;
    struct json_reader inner = {0};
    char path[PATH_BYTES];
    size_t format;
    snprintf(path, sizeof path, "%.200s: sparsity_config", reader->path);
    bool done = json_reader_open(&inner, sparsity, path, status);
    if (done) quant_ignore(&inner, "global_sparsity ignore registry_requires_subclass sparsity_structure targets");
    done = done && quant_read_name(&inner, "format", true, QUANT_NAMES(formats), &format, status) &&
           json_reader_all_consumed(&inner, status);
    json_reader_close(&inner);
    return done;
}

/* kv_cache_scheme: how a KV cache is to be quantised. Nothing in it changes weights: what it may say beside the type of the
 * codes is passed over. AutoFP8 writes "static", for e4m3, in place of an object. */
static bool read_cache_scheme(struct quant_config *config, struct json_reader *reader, bool may_be_name,
                              struct status *status)
{
    const json_t *scheme = json_reader_get(reader, "kv_cache_scheme");
    if (!scheme || json_is_null(scheme)) return true;
    if (may_be_name && json_is_string(scheme) && strcmp(json_string_value(scheme), "static") == 0) {
        config->cache = QUANT_CACHE_E4M3;
        return true;
    }
    if (!json_is_object(scheme))
        return json_reader_fail(reader, "kv_cache_scheme",
                                may_be_name ? "an object, \"static\" or null" : "an object or null", scheme, status);
    const json_t *type = json_object_get(scheme, "type"), *bits = json_object_get(scheme, "num_bits");
    const bool is_e4m3 = json_is_string(type) && strcmp(json_string_value(type), "float") == 0 &&
                         json_is_integer(bits) && json_integer_value(bits) == 8 &&
                         !json_is_true(json_object_get(scheme, "dynamic"));
    config->cache = is_e4m3 ? QUANT_CACHE_E4M3 : QUANT_CACHE_OTHER;
    return true;
}

static bool parse_compressed_tensors(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct field_rule rules[] = {{"moe_sparsity_config", FIELD_EMPTY}, {"transform_config", FIELD_EMPTY}};
    size_t format = 0;
    quant_ignore(
        reader,
        "dequantize global_compression_ratio quantization_status run_compressed use_optimized_inference version");
    return read_cache_scheme(config, reader, false, status) &&
           quant_read_name(reader, "format", false, QUANT_NAMES(group_formats), &format, status) &&
           quant_read_strings(reader, "ignore", false, status) && check_sparsity(reader, status) &&
           field_rules_check(reader, rules, QUANT_COUNT(rules), status) && parse_groups(config, reader, status);
}

/* ---- Methods with one scheme ---- */

/* Requires: the method has one scheme. */
static void set_scheme(struct quant_config *config, bool is_float, uint32_t bits, uint64_t group_size)
{
    config->schemes[0] = (struct quant_scheme){is_float, bits, group_size, true, false};
    config->scheme_count = 1;
}

static bool read_excluded_modules(struct json_reader *reader, struct status *status)
{
    return quant_read_strings(reader, "modules_to_not_convert", false, status) &&
           quant_read_strings(reader, "ignored_layers", false, status);
}

static bool parse_fp8(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const types[] = {"e4m3", "float8_e4m3fn"}, *const activations[] = {"dynamic", "static"},
                             *const scale_types[] = {"float", "ue8m0"};
    size_t index;
    quant_ignore(reader, "dequantize");
    set_scheme(config, true, 8, 0);
    config->fp8_inputs = true; /* with either activation_scheme */
    return read_cache_scheme(config, reader, true, status) &&
           quant_read_name(reader, "fmt", false, QUANT_NAMES(types), &index, status) &&
           quant_read_name(reader, "activation_scheme", false, QUANT_NAMES(activations), &index, status) &&
           quant_read_name(reader, "scale_fmt", false, QUANT_NAMES(scale_types), &index, status) &&
           quant_read_strings(reader, "modules_to_convert", false, status) && read_excluded_modules(reader, status) &&
           quant_read_block(reader, "weight_block_size", false, &config->block_rows, &config->block_columns, status);
}

static bool parse_mxfp8(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    if (!parse_fp8(config, reader, status)) return false;
    /* The format fixes the block, whatever weight_block_size says. */
    set_scheme(config, true, 8, 32);
    config->fp8_inputs = false; /* they have a scale for each 32 elements */
    config->block_rows = 1;
    config->block_columns = 32;
    return true;
}

static bool parse_fbgemm(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    double activation_limit;
    set_scheme(config, true, 8, 0);
    config->fp8_inputs = true;
    return json_reader_double(reader, "activation_scale_ub", false, &activation_limit, status) &&
           read_excluded_modules(reader, status);
}

static bool parse_mxfp4(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    quant_ignore(reader, "dequantize");
    set_scheme(config, true, 4, 32);
    return read_excluded_modules(reader, status);
}

/* What ModelOpt calls quant_algo. */
static const struct modelopt_algorithm {
    const char *name;
    uint32_t bits;
    uint64_t group_size, block;
    bool fp8_inputs;
} modelopt_algorithms[] = {{"FP8", 8, 0, 0, true},
                           {"FP8_PER_CHANNEL_PER_TOKEN", 8, 0, 0, true},
                           {"NVFP4", 4, 16, 0, false},
                           {"W4A16_NVFP4", 4, 16, 0, false},
                           {"FP8_PB_WO", 8, 0, 128, false},
                           {"MXFP8", 8, 32, 0, false},
                           {"MIXED_PRECISION", 0, 0, 0, false}}; /* those of quantized_layers */

/* Adds the scheme of an algorithm. group_size repeats what it says. */
static bool add_algorithm(struct quant_config *config, struct json_reader *reader,
                          const struct modelopt_algorithm *algorithm, struct status *status)
{
    const struct quant_scheme scheme = {true, algorithm->bits, algorithm->group_size, true, false};
    const uint64_t expected = algorithm->group_size + algorithm->block;
    uint64_t group_size = expected;
    if (!quant_read_group_size(reader, false, &group_size, status)) return false;
    if (group_size != expected)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: fields 'quant_algo' and 'group_size' disagree: %s has groups of %d, found %d",
                           reader->path, algorithm->name, (int)expected, (int)group_size);
    config->fp8_inputs |= algorithm->fp8_inputs;
    return (!algorithm->block || set_block(config, algorithm->block, algorithm->block, reader->path, status)) &&
           add_scheme(config, &scheme, reader->path, status);
}

/* quantized_layers: an object for each module. */
static bool parse_quantised_layers(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    const struct quant_names names = {modelopt_algorithms, QUANT_COUNT(modelopt_algorithms) - 1,
                                      sizeof *modelopt_algorithms};
    json_t *layers = json_reader_get(reader, "quantized_layers"), *fields;
    const char *module;
    bool done = json_is_object(layers) && json_object_size(layers);
    if (!done) return json_reader_fail(reader, "quantized_layers", "an object with modules", layers, status);
    json_object_foreach (layers, module, fields) {
        struct json_reader inner = {0};
        char path[PATH_BYTES];
        size_t index = 0;
        snprintf(path, sizeof path, "%.80s: quantized_layers: %.120s", reader->path, module);
        done = json_reader_open(&inner, fields, path, status) &&
               quant_read_name(&inner, "quant_algo", true, &names, &index, status) &&
               add_algorithm(config, &inner, &modelopt_algorithms[index], status) &&
               json_reader_all_consumed(&inner, status);
        json_reader_close(&inner);
        if (!done) break;
    }
    return done;
}

/* The KV cache: kv_cache_quant_algo, or kv_cache_scheme as an object or, except for FP8, as the same name. */
static bool read_modelopt_cache(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    const json_t *name = json_reader_get(reader, "kv_cache_quant_algo"), *scheme;
    if (name && !json_is_null(name) && !json_is_string(name))
        return json_reader_fail(reader, "kv_cache_quant_algo", "a string or null", name, status);
    scheme = json_reader_get(reader, "kv_cache_scheme");
    if (!json_is_string(scheme) && !read_cache_scheme(config, reader, false, status)) return false;
    if (!json_is_string(name)) name = scheme;
    if (json_is_string(name)) /* FP8 is e4m3 */
        config->cache = strcasecmp(json_string_value(name), "FP8") == 0 ? QUANT_CACHE_E4M3 : QUANT_CACHE_OTHER;
    return true;
}

static bool parse_modelopt(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct field_rule rules[] = {{"has_zero_point", FIELD_FALSE}, {"pre_quant_scale", FIELD_FALSE}};
    struct quant_config groups = {0};
    size_t index = 0;
    quant_ignore(reader, "producer version");
    if (!read_modelopt_cache(config, reader, status) ||
        !quant_read_name(reader, "quant_algo", true, QUANT_NAMES(modelopt_algorithms), &index, status) ||
        !quant_read_strings(reader, "ignore", false, status) ||
        !quant_read_strings(reader, "exclude_modules", false, status) ||
        !field_rules_check(reader, rules, QUANT_COUNT(rules), status))
        return false;
    const struct modelopt_algorithm *algorithm = &modelopt_algorithms[index];
    if (!(algorithm->bits ? add_algorithm(config, reader, algorithm, status)
                          : parse_quantised_layers(config, reader, status)))
        return false;

    /* config_groups repeats it. */
    if (json_reader_get(reader, "config_groups") && !parse_groups(&groups, reader, status)) return false;
    for (int i = 0, j; i < groups.scheme_count; i++) {
        for (j = 0; j < config->scheme_count && !same_scheme(&groups.schemes[i], &config->schemes[j]); j++) {}
        if (j == config->scheme_count)
            return quant_fail_disagreement(reader, algorithm->bits ? "quant_algo" : "quantized_layers", "config_groups",
                                           status);
    }
    return true;
}

static bool parse_bitsandbytes(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const codes[] = {"nf4", "fp4"}, *const storages[] = {"uint8"};
    static const struct field_rule rules[] = {{"llm_int8_has_fp16_weight", FIELD_FALSE}};
    bool in_4bit = false, in_8bit = false, nested;
    size_t index;
    quant_ignore(
        reader,
        "_load_in_4bit _load_in_8bit bnb_4bit_compute_dtype llm_int8_enable_fp32_cpu_offload llm_int8_threshold");
    if (!json_reader_bool(reader, "load_in_4bit", false, &in_4bit, status) ||
        !json_reader_bool(reader, "load_in_8bit", false, &in_8bit, status) ||
        !quant_read_name(reader, "bnb_4bit_quant_type", false, QUANT_NAMES(codes), &index, status) ||
        !quant_read_name(reader, "bnb_4bit_quant_storage", false, QUANT_NAMES(storages), &index, status) ||
        !json_reader_bool(reader, "bnb_4bit_use_double_quant", false, &nested, status) ||
        !quant_read_strings(reader, "llm_int8_skip_modules", false, status) ||
        !field_rules_check(reader, rules, QUANT_COUNT(rules), status))
        return false;
    if (in_4bit == in_8bit)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: expected one of 'load_in_4bit' and 'load_in_8bit' to be true, found %s", reader->path,
                           in_4bit ? "both" : "neither");
    set_scheme(config, in_4bit, in_4bit ? 4 : 8, 0);
    return true;
}

static bool parse_method(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct {
        const char *name;
        enum quant_method method;
        bool (*parse)(struct quant_config *, struct json_reader *, struct status *);
    } methods[] = {
        {"gptq", QUANT_GPTQ, parse_gptq},
        {"awq", QUANT_AWQ, parse_awq},
        {"auto-round", QUANT_NONE, parse_auto_round}, /* sets the method by the packing format */
        {"intel/auto-round", QUANT_NONE, parse_auto_round},
        {"compressed-tensors", QUANT_COMPRESSED_TENSORS, parse_compressed_tensors},
        {"fp8", QUANT_FP8, parse_fp8},
        {"mxfp8", QUANT_FP8, parse_mxfp8},
        {"fbgemm_fp8", QUANT_FP8, parse_fbgemm},
        {"mxfp4", QUANT_MXFP4, parse_mxfp4},
        {"modelopt", QUANT_MODELOPT, parse_modelopt},
        {"modelopt_fp4", QUANT_MODELOPT, parse_modelopt},
        {"modelopt_mixed", QUANT_MODELOPT, parse_modelopt},
        {"bitsandbytes", QUANT_BITSANDBYTES, parse_bitsandbytes},
    };
    size_t index = quant_find_name(QUANT_NAMES(methods), "modelopt");
    const bool required = !json_is_string(json_object_get(reader->object, "quant_algo"));
    size_t repeated;
    if (!quant_read_name(reader, "quant_method", required, QUANT_NAMES(methods), &index, status)) return false;
    repeated = index;
    if (!quant_read_name(reader, "method", false, QUANT_NAMES(methods), &repeated, status)) return false;
    if (repeated != index) return quant_fail_disagreement(reader, "quant_method", "method", status);
    const json_t *name = json_reader_get(reader, "quant_method");
    snprintf(config->name, sizeof config->name, "%s", name ? json_string_value(name) : methods[index].name);
    config->method = methods[index].method;
    return methods[index].parse(config, reader, status);
}

bool quant_config_parse(struct quant_config *config, json_t *quantization, const char *path, struct status *status)
{
    struct json_reader reader = {0};
    *config = (struct quant_config){0};
    if (!quantization || json_is_null(quantization)) return true;
    const bool done = json_reader_open(&reader, quantization, path, status) && parse_method(config, &reader, status) &&
                      json_reader_all_consumed(&reader, status);
    json_reader_close(&reader);
    return done;
}
