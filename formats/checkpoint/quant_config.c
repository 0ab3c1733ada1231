/* SPDX-License-Identifier: Apache-2.0 */
/* Reads quantization_config. Sources: transformers 5.17 (utils/quantization_config.py), GPTQModel 7.7, AutoAWQ 0.2,
 * compressed-tensors 0.20 (QuantizationArgs, PRESET_SCHEMES), ModelOpt (convert_hf_config.py), AutoRound 0.16. */
#include "formats/checkpoint/quant_config.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "formats/base/field_rules.h"
#include "formats/base/json.h"

enum { PATH_BYTES = 240, NAMES_BYTES = 320, MAX_GROUP = 65536, MAX_ALIASES = 3 };

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* A table whose elements begin with a name. Names are compared without regard to case, as the libraries do. */
struct names {
    const void *first;
    size_t count, stride;
};
#define NAMES(table) (&(const struct names){table, COUNT(table), sizeof *(table)})

static const char *name_at(const struct names *names, size_t index)
{
    return *(const char *const *)((const char *)names->first + index * names->stride);
}

static size_t find_name(const struct names *names, const char *name)
{
    size_t i = 0;
    while (i < names->count && strcasecmp(name_at(names, i), name) != 0) i++;
    return i;
}

/* "a, b or c" */
static void list_names(const struct names *names, char *text)
{
    size_t used = 0;
    for (size_t i = 0; i < names->count && used < NAMES_BYTES; i++) {
        const char *joint = i == 0 ? "" : i + 1 == names->count ? " or " : ", ";
        used += (size_t)snprintf(text + used, NAMES_BYTES - used, "%s%s", joint, name_at(names, i));
    }
}

/* A string that is one of the names; *index is unchanged if the field is absent. */
static bool read_name(struct json_reader *reader, const char *key, bool required, const struct names *names,
                      size_t *index, struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    if (!value && !required) return true;
    const size_t found = json_is_string(value) ? find_name(names, json_string_value(value)) : names->count;
    if (found < names->count) {
        *index = found;
        return true;
    }
    char expected[NAMES_BYTES];
    list_names(names, expected);
    return json_reader_fail(reader, key, expected, value, status);
}

static bool fail_disagreement(const struct json_reader *reader, const char *one, const char *other,
                              struct status *status)
{
    return status_fail(status, STATUS_BAD_INPUT, "%s: fields '%s' and '%s' disagree", reader->path, one, other);
}

/* The same for a field with several names. */
static bool read_aliased_name(struct json_reader *reader, const char *const *keys, size_t count,
                              const struct names *names, size_t *index, struct status *status)
{
    const char *given = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t found = names->count;
        if (!read_name(reader, keys[i], false, names, &found, status)) return false;
        if (found == names->count) continue;
        if (given && found != *index) return fail_disagreement(reader, given, keys[i], status);
        given = keys[i];
        *index = found;
    }
    return true;
}

/* A field with an integer value, under any of its names. */
struct integer_field {
    const char *keys[MAX_ALIASES];
    const char *expected;
    json_int_t least, most;
    uint32_t except; /* bit n: the value n is refused */
};

static bool read_integer(struct json_reader *reader, const struct integer_field *field, bool required, json_int_t *out,
                         struct status *status)
{
    const json_t *value = NULL;
    const char *key = field->keys[0];
    for (size_t i = 0; i < MAX_ALIASES && field->keys[i]; i++) {
        const json_t *given = json_reader_get(reader, field->keys[i]);
        if (!given) continue;
        if (value && !json_equal(value, given)) return fail_disagreement(reader, key, field->keys[i], status);
        value = given;
        key = field->keys[i];
    }
    if (!value && !required) return true;
    const json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < field->least || number > field->most ||
        (number >= 0 && number < 32 && field->except >> number & 1))
        return json_reader_fail(reader, key, field->expected, value, status);
    *out = number;
    return true;
}

static bool read_bits(struct json_reader *reader, const struct integer_field *field, bool required, uint32_t *bits,
                      struct status *status)
{
    json_int_t number = *bits;
    if (!read_integer(reader, field, required, &number, status)) return false;
    *bits = (uint32_t)number;
    return true;
}

/* -1, which stands for one group, becomes 0. */
static bool read_group_size(struct json_reader *reader, bool required, uint64_t *group_size, struct status *status)
{
    static const struct integer_field field = {{"group_size", "q_group_size"},
                                               "-1 or an integer from 1 to 65536",
                                               -1,
                                               MAX_GROUP,
                                               1u << 0};
    json_int_t number = (json_int_t)*group_size;
    if (!read_integer(reader, &field, required, &number, status)) return false;
    *group_size = number < 0 ? 0 : (uint64_t)number;
    return true;
}

/* Rows and columns that share a scale, as [rows, columns] or "ROWSxCOLUMNS". *rows and *columns are unchanged if the field is
 * absent. */
static bool read_block(struct json_reader *reader, const char *key, uint64_t *rows, uint64_t *columns,
                       struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    json_int_t sizes[2] = {0};
    if (!value) return true;
    if (json_is_array(value) && json_array_size(value) == 2) {
        for (size_t i = 0; i < 2; i++) sizes[i] = json_integer_value(json_array_get(value, i));
    } else if (json_is_string(value)) {
        int read = 0;
        unsigned texts[2];
        if (sscanf(json_string_value(value), "%5ux%5u%n", &texts[0], &texts[1], &read) == 2 &&
            (size_t)read == json_string_length(value))
            for (size_t i = 0; i < 2; i++) sizes[i] = texts[i];
    }
    for (size_t i = 0; i < 2; i++)
        if (sizes[i] < 1 || sizes[i] > MAX_GROUP)
            return json_reader_fail(reader, key, "two integers from 1 to 65536", value, status);
    *rows = (uint64_t)sizes[0];
    *columns = (uint64_t)sizes[1];
    return true;
}

/* Names of modules or patterns of them. The tensors decide which modules are quantised, so the names are not kept. */
static bool read_strings(struct json_reader *reader, const char *key, bool required, struct status *status)
{
    const json_t *list = json_reader_get(reader, key);
    if (!list && !required) return true;
    bool fits = json_is_array(list);
    for (size_t i = 0; fits && i < json_array_size(list); i++) fits = json_is_string(json_array_get(list, i));
    return fits || json_reader_fail(reader, key, "an array of strings", list, status);
}

static bool same_scheme(const struct quant_scheme *a, const struct quant_scheme *b)
{
    return a->is_float == b->is_float && a->bits == b->bits && a->group_size == b->group_size &&
           a->symmetric == b->symmetric;
}

static bool add_scheme(struct quant_config *config, const struct quant_scheme *scheme, const char *path,
                       struct status *status)
{
    for (int i = 0; i < config->scheme_count; i++)
        if (same_scheme(&config->schemes[i], scheme)) return true;
    if (config->scheme_count == QUANT_MAX_SCHEMES)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: expected at most %d combinations of type, bits, group size and symmetry, found more",
                           path, QUANT_MAX_SCHEMES);
    config->schemes[config->scheme_count++] = *scheme;
    return true;
}

/* ---- Methods with integer codes and one scheme for most modules: GPTQ, AWQ, auto-round ---- */

static const struct integer_field gptq_bits = {{"bits", "w_bit", "wbits"},
                                               "2, 3, 4 or 8",
                                               2,
                                               8,
                                               1u << 5 | 1u << 6 | 1u << 7};
static const struct integer_field awq_bits = {{"bits", "w_bit", "wbits"}, "4", 4, 4, 0};
static const struct integer_field packed_bits = {{"bits"}, "an integer from 2 to 8", 2, 8, 0};

/* What AutoGPTQ, GPTQModel and optimum record about calibration and execution; GPTQModel writes AWQ files, too. */
static const struct field_rule gptq_fields[] = {
    {"act_group_aware", FIELD_NO_EFFECT},
    {"activation", FIELD_ABSENT},
    {"adapter", FIELD_ABSENT},
    {"batch_size", FIELD_NO_EFFECT},
    {"block_name_to_quantize", FIELD_NO_EFFECT},
    {"cache_block_outputs", FIELD_NO_EFFECT},
    {"damp_auto_increment", FIELD_NO_EFFECT},
    {"damp_percent", FIELD_NO_EFFECT},
    {"dataset", FIELD_NO_EFFECT},
    {"disable_exllama", FIELD_NO_EFFECT},
    {"exllama_config", FIELD_NO_EFFECT},
    {"foem", FIELD_NO_EFFECT},
    {"gptaq", FIELD_NO_EFFECT},
    {"hessian", FIELD_NO_EFFECT},
    {"is_marlin_format", FIELD_FALSE},
    {"max_input_length", FIELD_NO_EFFECT},
    {"model_file_base_name", FIELD_NO_EFFECT},
    {"model_name_or_path", FIELD_NO_EFFECT},
    {"model_seqlen", FIELD_NO_EFFECT},
    {"module_name_preceding_first_block", FIELD_NO_EFFECT},
    {"modules_in_block_to_quantize", FIELD_NO_EFFECT},
    {"mse", FIELD_NO_EFFECT},
    {"offload_to_disk", FIELD_NO_EFFECT},
    {"pad_token_id", FIELD_NO_EFFECT},
    {"rotation", FIELD_ABSENT},
    {"static_groups", FIELD_NO_EFFECT},
    {"tokenizer", FIELD_NO_EFFECT},
    {"true_sequential", FIELD_NO_EFFECT},
    {"use_cuda_fp16", FIELD_NO_EFFECT},
    {"use_exllama", FIELD_NO_EFFECT},
};
static const struct field_rule awq_fields[] = {
    {"do_fuse", FIELD_NO_EFFECT},
    {"fuse_max_seq_len", FIELD_NO_EFFECT},
    {"modules_to_fuse", FIELD_NO_EFFECT},
};
static const struct field_rule auto_round_fields[] = {
    {"act_bits", FIELD_NO_EFFECT},
    {"act_data_type", FIELD_NO_EFFECT},
    {"act_dynamic", FIELD_NO_EFFECT},
    {"act_group_size", FIELD_NO_EFFECT},
    {"act_sym", FIELD_NO_EFFECT},
    {"amp", FIELD_NO_EFFECT},
    {"autoround_version", FIELD_NO_EFFECT},
    {"batch_size", FIELD_NO_EFFECT},
    {"block_name_to_quantize", FIELD_NO_EFFECT},
    {"damp_percent", FIELD_NO_EFFECT},
    {"dataset", FIELD_NO_EFFECT},
    {"enable_minmax_tuning", FIELD_NO_EFFECT},
    {"enable_norm_bias_tuning", FIELD_NO_EFFECT},
    {"enable_quanted_input", FIELD_NO_EFFECT},
    {"gradient_accumulate_steps", FIELD_NO_EFFECT},
    {"in_blocks", FIELD_NO_EFFECT},
    {"iters", FIELD_NO_EFFECT},
    {"low_gpu_mem_usage", FIELD_NO_EFFECT},
    {"lr", FIELD_NO_EFFECT},
    {"minmax_lr", FIELD_NO_EFFECT},
    {"model_free", FIELD_NO_EFFECT},
    {"nsamples", FIELD_NO_EFFECT},
    {"quant_block_list", FIELD_NO_EFFECT},
    {"quant_lm_head", FIELD_NO_EFFECT},
    {"rotation_config", FIELD_EMPTY},
    {"rotation_configs", FIELD_EMPTY},
    {"scale_dtype", FIELD_NO_EFFECT},
    {"seqlen", FIELD_NO_EFFECT},
    {"static_attention_dtype", FIELD_NO_EFFECT},
    {"static_attention_granularity", FIELD_NO_EFFECT},
    {"static_kv_dtype", FIELD_NO_EFFECT},
    {"static_kv_granularity", FIELD_NO_EFFECT},
    {"super_bits", FIELD_ABSENT},
    {"super_group_size", FIELD_ABSENT},
    {"supported_types", FIELD_NO_EFFECT},
    {"to_quant_block_names", FIELD_NO_EFFECT},
    {"true_sequential", FIELD_NO_EFFECT},
};

/* How such a method names its fields. */
struct integer_method {
    const struct integer_field *bits;
    const char *overrides; /* an object: module or pattern -> fields that differ from the default */
    const struct field_rule *fields;
    size_t field_count;
};

/* "-:" excludes modules (GPTQModel); AutoRound gives modules that stay floats 16 or 32 bits. */
static bool is_exclusion(const char *pattern, const json_t *fields)
{
    return strncmp(pattern, "-:", 2) == 0 || json_integer_value(json_object_get(fields, "bits")) >= 16;
}

static bool parse_override(struct quant_config *config, struct json_reader *reader, const struct integer_method *method,
                           const struct quant_scheme *base, bool sym, struct status *status)
{
    static const char *const data_types[] = {"int"};
    struct quant_scheme scheme = *base;
    bool override_sym = sym, desc_act;
    size_t type = 0;
    if (!read_bits(reader, method->bits, false, &scheme.bits, status) ||
        !read_group_size(reader, false, &scheme.group_size, status) ||
        !json_reader_bool(reader, "sym", false, &override_sym, status) ||
        !json_reader_bool(reader, "desc_act", false, &desc_act, status) ||
        !read_name(reader, "data_type", false, NAMES(data_types), &type, status))
        return false;
    /* The tensors of a module do not show which one it is. */
    if (override_sym != sym)
        return status_fail(status, STATUS_BAD_INPUT, "%s: field 'sym': expected %s as in the default, found %s",
                           reader->path, sym ? "true" : "false", override_sym ? "true" : "false");
    return field_rules_check(reader, method->fields, method->field_count, status) &&
           json_reader_all_consumed(reader, status) && add_scheme(config, &scheme, reader->path, status);
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
    if (!read_bits(reader, method->bits, true, &scheme.bits, status) ||
        !read_group_size(reader, true, &scheme.group_size, status) ||
        !json_reader_bool(reader, "sym", false, &sym, status) ||
        !json_reader_bool(reader, "desc_act", false, &flag, status) ||
        !json_reader_bool(reader, "lm_head", false, &flag, status) ||
        !read_name(reader, "pack_dtype", false, NAMES(pack_types), &pack_type, status) ||
        !read_quantizer(config, reader, status))
        return false;
    scheme.symmetric = zero_point ? !*zero_point : sym;
    return add_scheme(config, &scheme, reader->path, status) &&
           parse_overrides(config, reader, method, &scheme, sym, status) &&
           field_rules_check(reader, method->fields, method->field_count, status);
}

static bool parse_gptq(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct integer_method gptq = {&gptq_bits, "dynamic", gptq_fields, COUNT(gptq_fields)};
    static const char *const format_keys[] = {"checkpoint_format", "format"};
    static const char *const formats[] = {"gptq", "gptq_v2"};
    const char *backend;
    size_t format = 0;
    if (!read_aliased_name(reader, format_keys, COUNT(format_keys), NAMES(formats), &format, status) ||
        !json_reader_string(reader, "backend", false, &backend, status))
        return false;
    config->zeros_less_one = format == 0;
    return parse_integers(config, reader, &gptq, NULL, status);
}

static bool parse_awq(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct integer_method awq = {&awq_bits, "dynamic", gptq_fields, COUNT(gptq_fields)};
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
    if (!read_aliased_name(reader, format_keys, COUNT(format_keys), NAMES(formats), &format, status) ||
        !json_reader_string(reader, "backend", false, &backend, status) ||
        !read_strings(reader, "modules_to_not_convert", false, status) ||
        !json_reader_bool(reader, "zero_point", false, &zero_point, status))
        return false;
    /* The tools of llm-awq have one layout, whatever version says. */
    config->order = strcasecmp(backend, "llm-awq") == 0 ? QUANT_GEMV_FAST : formats[format].order;
    /* AWQ's default is asymmetric; GPTQModel writes sym beside or instead of zero_point. */
    const bool by_sym = !json_reader_get(reader, "zero_point") && json_reader_get(reader, "sym");
    return field_rules_check(reader, awq_fields, COUNT(awq_fields), status) &&
           parse_integers(config, reader, &awq, by_sym ? NULL : &zero_point, status);
}

static bool parse_auto_round(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct {
        const char *name;
        enum quant_method method;
        const struct integer_field *bits;
    } packings[] = {
        {"auto_round:auto_gptq", QUANT_GPTQ, &gptq_bits},
        {"auto_round:gptq", QUANT_GPTQ, &gptq_bits},
        {"auto_round:auto_awq", QUANT_AWQ, &awq_bits},
        {"auto_round:awq", QUANT_AWQ, &awq_bits},
        {"auto_round:llm_compressor", QUANT_COMPRESSED_TENSORS, &packed_bits},
    };
    static const char *const data_types[] = {"int"};
    const char *backend = "";
    size_t packing = 0, type = 0;
    if (!json_reader_string(reader, "backend", false, &backend, status)) return false;
    /* Before version 0.4 of AutoRound, backend said how codes are packed. */
    const bool by_backend = !json_reader_get(reader, "packing_format") && strncasecmp(backend, "auto_round:", 11) == 0;
    if (!read_name(reader, by_backend ? "backend" : "packing_format", false, NAMES(packings), &packing, status) ||
        !read_name(reader, "data_type", false, NAMES(data_types), &type, status))
        return false;
    config->method = packings[packing].method;
    config->zeros_less_one = config->method == QUANT_GPTQ;
    const struct integer_method auto_round = {packings[packing].bits, "extra_config", auto_round_fields,
                                              COUNT(auto_round_fields)};
    return parse_integers(config, reader, &auto_round, NULL, status);
}

/* ---- compressed-tensors, whose groups ModelOpt has, too ---- */

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

/* QuantizationArgs of weights. */
static bool parse_weights(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct integer_field integer_bits = {{"num_bits"}, "an integer from 2 to 8", 2, 8, 0};
    static const struct integer_field float_bits = {{"num_bits"},
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
    static const struct field_rule fields[] = {
        {"actorder", FIELD_NO_EFFECT}, /* the tensor weight_g_idx has it */
        {"dynamic", FIELD_FALSE},         {"observer", FIELD_NO_EFFECT}, {"observer_kwargs", FIELD_NO_EFFECT},
        {"scale_dtype", FIELD_NO_EFFECT}, /* the tensor has it */
        {"zp_dtype", FIELD_NO_EFFECT},
    };
    struct quant_scheme scheme = {.bits = 8, .symmetric = true};
    uint64_t rows = 0, columns = 0;
    size_t type = 0, strategy = COUNT(strategies);
    if (!read_name(reader, "type", false, NAMES(types), &type, status)) return false;
    scheme.is_float = type == 1;
    if (!read_bits(reader, scheme.is_float ? &float_bits : &integer_bits, false, &scheme.bits, status) ||
        !json_reader_bool(reader, "symmetric", false, &scheme.symmetric, status) ||
        !read_name(reader, "strategy", false, NAMES(strategies), &strategy, status) ||
        !read_group_size(reader, false, &scheme.group_size, status) ||
        !read_block(reader, "block_structure", &rows, &columns, status) ||
        !field_rules_check(reader, fields, COUNT(fields), status) || !json_reader_all_consumed(reader, status))
        return false;
    if (strategy < COUNT(strategies) && strategies[strategy].grouped != (scheme.group_size > 0))
        return json_reader_fail(reader, "group_size",
                                scheme.group_size ? "null or -1 with this strategy" : "a size with this strategy",
                                json_object_get(reader->object, "group_size"), status);
    if ((strategy < COUNT(strategies) && strategies[strategy].block) != (rows > 0))
        return json_reader_fail(reader, "block_structure",
                                rows ? "null, as 'strategy' is not block" : "two integers, as 'strategy' is block",
                                json_object_get(reader->object, "block_structure"), status);
    return (!rows || set_block(config, rows, columns, reader->path, status)) &&
           add_scheme(config, &scheme, reader->path, status);
}

/* A group: targets and their scheme. */
static bool parse_group(struct quant_config *config, struct json_reader *reader, const struct names *formats,
                        struct status *status)
{
    static const struct field_rule fields[] = {{"output_activations", FIELD_ABSENT}};
    json_t *weights = json_reader_get(reader, "weights");
    const json_t *inputs = json_reader_get(reader, "input_activations");
    size_t format = 0;
    if (inputs && !json_is_object(inputs))
        return json_reader_fail(reader, "input_activations", "an object or null", inputs, status);
    if (!read_strings(reader, "targets", true, status) ||
        !read_name(reader, "format", false, formats, &format, status) ||
        !field_rules_check(reader, fields, COUNT(fields), status) || !json_reader_all_consumed(reader, status))
        return false;
    if (!weights) return true; /* a group that quantises only activations */
    struct json_reader inner = {0};
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.200s: weights", reader->path);
    const bool done = json_reader_open(&inner, weights, path, status) && parse_weights(config, &inner, status);
    json_reader_close(&inner);
    return done;
}

/* A group that has the name of a preset and only lists its targets. */
static bool parse_preset(struct quant_config *config, const struct json_reader *reader, const char *name,
                         struct status *status)
{
    static const struct {
        const char *name;
        struct quant_scheme scheme;
    } presets[] = {
        {"W4A16", {false, 4, 128, true}},  {"W4A16_ASYM", {false, 4, 128, false}},
        {"W8A16", {false, 8, 0, true}}, /* rows in old versions, groups of 128 in new ones: the tensors tell */
        {"W8A8", {false, 8, 0, true}},     {"INT8", {false, 8, 0, true}},
        {"W4A8", {false, 4, 128, true}},   {"W4AFP8", {false, 4, 128, true}},
        {"FP8", {true, 8, 0, true}},       {"FP8_DYNAMIC", {true, 8, 0, true}},
        {"FP8_BLOCK", {true, 8, 0, true}}, {"NVFP4", {true, 4, 16, true}},
        {"NVFP4A16", {true, 4, 16, true}}, {"MXFP4", {true, 4, 32, true}},
        {"MXFP4A16", {true, 4, 32, true}}, {"MXFP8", {true, 8, 32, true}},
        {"MXFP8A16", {true, 8, 32, true}},
    };
    const size_t preset = find_name(NAMES(presets), name);
    if (preset == COUNT(presets)) {
        char expected[NAMES_BYTES];
        list_names(NAMES(presets), expected);
        return status_fail(status, STATUS_BAD_INPUT,
                           "%.80s: config_groups: expected an object or a preset (%s), found '%.40s'", reader->path,
                           expected, name);
    }
    return (strcasecmp(name, "FP8_BLOCK") != 0 || set_block(config, 128, 128, reader->path, status)) &&
           add_scheme(config, &presets[preset].scheme, reader->path, status);
}

static bool parse_groups(struct quant_config *config, struct json_reader *reader, bool required,
                         const struct names *formats, struct status *status)
{
    json_t *groups = json_reader_get(reader, "config_groups"), *group;
    const char *name;
    if (!groups && !required) return true;
    bool done = json_is_object(groups);
    if (!done) return json_reader_fail(reader, "config_groups", "an object", groups, status);
    json_object_foreach (groups, name, group) {
        struct json_reader inner = {0};
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%.80s: config_groups: %.80s", reader->path, name);
        if (json_is_array(group)) {
            inner = (struct json_reader){.object = groups, .path = path};
            done = parse_preset(config, reader, name, status);
            for (size_t i = 0; done && i < json_array_size(group); i++)
                done = json_is_string(json_array_get(group, i)) ||
                       json_reader_fail(&inner, name, "an array of strings", group, status);
        } else {
            done = json_reader_open(&inner, group, path, status) && parse_group(config, &inner, formats, status);
        }
        json_reader_close(&inner);
        if (!done) return false;
    }
    if (config->scheme_count) return true;
    return json_reader_fail(reader, "config_groups", "a group with weights", groups, status);
}

/* Scales of an fp8 or int8 KV cache, which this engine does not take over. */
static bool parse_kv_scheme(struct json_reader *reader, struct status *status)
{
    const json_t *scheme = json_reader_get(reader, "kv_cache_scheme");
    return !scheme || json_is_object(scheme) ||
           json_reader_fail(reader, "kv_cache_scheme", "an object or null", scheme, status);
}

static bool parse_compressed_tensors(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const formats[] = {"pack-quantized",  "int-quantized",        "float-quantized",
                                          "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
                                          "mxfp8-quantized", "mixed-precision",      "dense"};
    static const char *const sparse_formats[] = {"dense"};
    static const struct field_rule fields[] = {
        {"global_compression_ratio", FIELD_NO_EFFECT},
        {"quantization_status", FIELD_NO_EFFECT},
        {"transform_config", FIELD_EMPTY},
        {"version", FIELD_NO_EFFECT},
    };
    json_t *sparsity = json_reader_get(reader, "sparsity_config");
    size_t format = 0;
    if (sparsity && (!json_is_object(sparsity) || json_object_size(sparsity))) {
        const json_t *kind = json_object_get(sparsity, "format");
        if (!json_is_string(kind) || find_name(NAMES(sparse_formats), json_string_value(kind)) > 0)
            return json_reader_fail(reader, "sparsity_config", "no sparsity (format dense)", kind ? kind : sparsity,
                                    status);
    }
    return read_name(reader, "format", false, NAMES(formats), &format, status) &&
           read_strings(reader, "ignore", false, status) && parse_kv_scheme(reader, status) &&
           parse_groups(config, reader, true, NAMES(formats), status) &&
           field_rules_check(reader, fields, COUNT(fields), status);
}

/* ---- floats of 8 and 4 bits ---- */

static bool parse_fp8(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct quant_scheme scheme = {.is_float = true, .bits = 8, .symmetric = true};
    static const char *const schemes[] = {"dynamic", "static"}, *const codes[] = {"e4m3", "float8_e4m3fn"};
    static const char *const scale_formats[] = {"float", "ue8m0"};
    static const struct field_rule fields[] = {
        {"activation_scale_ub", FIELD_NO_EFFECT},
        {"dequantize", FIELD_NO_EFFECT},
        {"expert_dtype", FIELD_ABSENT},
    };
    size_t index = 0;
    return read_name(reader, "activation_scheme", false, NAMES(schemes), &index, status) &&
           read_name(reader, "fmt", false, NAMES(codes), &index, status) &&
           read_name(reader, "scale_fmt", false, NAMES(scale_formats), &index, status) &&
           read_block(reader, "weight_block_size", &config->block_rows, &config->block_columns, status) &&
           read_strings(reader, "modules_to_not_convert", false, status) &&
           read_strings(reader, "ignored_layers", false, status) && parse_kv_scheme(reader, status) &&
           field_rules_check(reader, fields, COUNT(fields), status) &&
           add_scheme(config, &scheme, reader->path, status);
}

static bool parse_mxfp4(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct quant_scheme scheme = {.is_float = true, .bits = 4, .group_size = 32, .symmetric = true};
    static const struct field_rule fields[] = {{"dequantize", FIELD_NO_EFFECT}};
    return read_strings(reader, "modules_to_not_convert", false, status) &&
           field_rules_check(reader, fields, COUNT(fields), status) &&
           add_scheme(config, &scheme, reader->path, status);
}

static bool parse_modelopt(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const struct {
        const char *name;
        struct quant_scheme scheme;
        uint64_t block;
    } algorithms[] = {
        {"FP8", {true, 8, 0, true}, 0},          {"NVFP4", {true, 4, 16, true}, 0},
        {"W4A16_NVFP4", {true, 4, 16, true}, 0}, {"FP8_PB_WO", {true, 8, 0, true}, 128},
        {"MXFP8", {true, 8, 32, true}, 0},
    };
    static const char *const no_formats[] = {"float"};
    static const struct field_rule fields[] = {
        {"kv_cache_quant_algo", FIELD_NO_EFFECT},
        {"producer", FIELD_NO_EFFECT},
        {"quantized_layers", FIELD_EMPTY},
        {"version", FIELD_NO_EFFECT},
    };
    size_t algorithm = 0;
    uint64_t group_size = 0;
    if (!read_name(reader, "quant_algo", true, NAMES(algorithms), &algorithm, status)) return false;
    const struct quant_scheme *scheme = &algorithms[algorithm].scheme;
    if (!read_group_size(reader, false, &group_size, status)) return false;
    if (group_size && scheme->group_size && group_size != scheme->group_size)
        return json_reader_fail(reader, "group_size", "that of quant_algo",
                                json_object_get(reader->object, "group_size"), status);
    if (algorithms[algorithm].block) config->block_rows = config->block_columns = algorithms[algorithm].block;
    return add_scheme(config, scheme, reader->path, status) && read_strings(reader, "ignore", false, status) &&
           read_strings(reader, "exclude_modules", false, status) && parse_kv_scheme(reader, status) &&
           parse_groups(config, reader, false, NAMES(no_formats), status) &&
           field_rules_check(reader, fields, COUNT(fields), status);
}

static bool parse_bitsandbytes(struct quant_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const types[] = {"nf4", "fp4"}, *const storages[] = {"uint8"};
    static const struct field_rule fields[] = {
        {"_load_in_4bit", FIELD_NO_EFFECT},
        {"_load_in_8bit", FIELD_NO_EFFECT},
        {"bnb_4bit_compute_dtype", FIELD_NO_EFFECT},
        {"bnb_4bit_use_double_quant", FIELD_NO_EFFECT},
        {"llm_int8_enable_fp32_cpu_offload", FIELD_NO_EFFECT},
        {"llm_int8_has_fp16_weight", FIELD_FALSE},
        {"llm_int8_skip_modules", FIELD_NO_EFFECT},
        {"llm_int8_threshold", FIELD_NO_EFFECT},
    };
    bool four = false, eight = false;
    size_t index = 0;
    if (!json_reader_bool(reader, "load_in_4bit", false, &four, status) ||
        !json_reader_bool(reader, "load_in_8bit", false, &eight, status) ||
        !read_name(reader, "bnb_4bit_quant_type", false, NAMES(types), &index, status) ||
        !read_name(reader, "bnb_4bit_quant_storage", false, NAMES(storages), &index, status))
        return false;
    if (four == eight)
        return json_reader_fail(reader, "load_in_4bit", "one of load_in_4bit and load_in_8bit",
                                json_object_get(reader->object, "load_in_4bit"), status);
    const struct quant_scheme scheme = {.is_float = four, .bits = four ? 4 : 8, .symmetric = true};
    return field_rules_check(reader, fields, COUNT(fields), status) &&
           add_scheme(config, &scheme, reader->path, status);
}

/* ---- all methods ---- */

static const struct {
    const char *name;
    enum quant_method method; /* auto-round: set by its parser */
    bool (*parse)(struct quant_config *config, struct json_reader *reader, struct status *status);
} methods[] = {
    {"gptq", QUANT_GPTQ, parse_gptq},
    {"awq", QUANT_AWQ, parse_awq},
    {"auto-round", QUANT_GPTQ, parse_auto_round},
    {"compressed-tensors", QUANT_COMPRESSED_TENSORS, parse_compressed_tensors},
    {"fp8", QUANT_FP8, parse_fp8},
    {"mxfp8", QUANT_FP8, parse_fp8},
    {"fbgemm_fp8", QUANT_FP8, parse_fp8},
    {"mxfp4", QUANT_MXFP4, parse_mxfp4},
    {"modelopt", QUANT_MODELOPT, parse_modelopt},
    {"bitsandbytes", QUANT_BITSANDBYTES, parse_bitsandbytes},
    {"intel/auto-round", QUANT_GPTQ, parse_auto_round}, /* older names */
    {"modelopt_fp4", QUANT_MODELOPT, parse_modelopt},
};

/* quant_method; GPTQModel also writes `method`, and ModelOpt may name only its algorithm. */
static bool read_method(struct json_reader *reader, size_t *method, struct status *status)
{
    static const char *const keys[] = {"quant_method", "method"};
    *method = COUNT(methods);
    if (!read_aliased_name(reader, keys, COUNT(keys), NAMES(methods), method, status)) return false;
    if (*method == COUNT(methods) && json_reader_is_unread(reader, "quant_algo"))
        *method = find_name(NAMES(methods), "modelopt");
    return *method < COUNT(methods) ||
           json_reader_fail(reader, "quant_method", "the name of a quantisation method", NULL, status);
}

bool quant_config_parse(struct quant_config *config, json_t *quantization, const char *path, struct status *status)
{
    struct json_reader reader = {0};
    size_t method;
    *config = (struct quant_config){0};
    if (!quantization || json_is_null(quantization)) return true;
    if (!json_is_object(quantization))
        return status_fail(status, STATUS_BAD_INPUT, "%s: expected an object, found %s", path,
                           json_type_name(quantization));
    bool ok = json_reader_open(&reader, quantization, path, status) && read_method(&reader, &method, status);
    if (ok) {
        config->method = methods[method].method;
        snprintf(config->name, sizeof config->name, "%s", methods[method].name);
        ok = methods[method].parse(config, &reader, status) && json_reader_all_consumed(&reader, status);
    }
    json_reader_close(&reader);
    return ok;
}
