/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a GGUF file as those of a Hugging Face checkpoint. Sources: names as in gguf-py/gguf/tensor_mapping.py, layouts of
 * blocks as in ggml-common.h and ggml-quants.c. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/checkpoint/gguf_model.h"
#include "formats/checkpoint/quantised_module.h"

/* ---- names ---- */

enum { NAME_BYTES = 96 }; /* of the longest name below, with a layer's number */

static const struct module {
    const char *name, *module;
} globals[] =
    {
        {"token_embd", "model.embed_tokens"},
        {"output_norm", "model.norm"},
        {"output", "lm_head"},
},
  layers[] = {
      {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"},
};

/* Modules of layers with experts. */
static const struct expert_modules {
    const char *model_type, *router, *experts;
    struct module parts[3];
} of_experts[] = {
    {"mixtral",
     "block_sparse_moe.gate",
     "block_sparse_moe.experts",
     {{"ffn_gate_exps", "w1"}, {"ffn_up_exps", "w3"}, {"ffn_down_exps", "w2"}}},
    {"qwen3_moe",
     "mlp.gate",
     "mlp.experts",
     {{"ffn_gate_exps", "gate_proj"}, {"ffn_up_exps", "up_proj"}, {"ffn_down_exps", "down_proj"}}},
};
enum { MOST_EXPERTS = 4096 };

static const struct expert_modules *find_experts(const char *model_type)
{
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++)
        if (strcmp(of_experts[i].model_type, model_type) == 0) return &of_experts[i];
    return NULL;
}

/* The module of `name`, which ends at `end`; NULL: unknown. */
static const char *find_module(const struct module *list, size_t count, const char *name, const char *end)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(list[i].name) == (size_t)(end - name) && memcmp(list[i].name, name, (size_t)(end - name)) == 0)
            return list[i].module;
    return NULL;
}

/* "blk.7.attn_q.weight" -> "model.layers.7.self_attn.q_proj.weight"; false: unknown. A name of all experts becomes that of one, and *has_experts true. */
static bool translate_name(const char *name, const struct expert_modules *experts, uint64_t expert, char *translated,
                           bool *has_experts)
{
    const char *end = strrchr(name, '.'), *module;
    *has_experts = false;
    if (!end || (strcmp(end, ".weight") != 0 && strcmp(end, ".bias") != 0)) return false;
    if (strncmp(name, "blk.", 4) != 0) {
        module = find_module(globals, sizeof globals / sizeof *globals, name, end);
        return module && snprintf(translated, NAME_BYTES, "%s%s", module, end) < NAME_BYTES;
    }
    uint32_t layer = 0;
    int digits = 0; /* written in one way alone: no zeros in front */
    name += 4;
    while (digits < 5 && name[digits] >= '0' && name[digits] <= '9')
        layer = layer * 10 + (uint32_t)(name[digits++] - '0');
    if (!digits || name[digits] != '.' || (name[0] == '0' && digits > 1) || name + digits >= end) return false;
    name += digits + 1;
    if (experts && strncmp(name, "ffn_gate_inp.weight", strlen("ffn_gate_inp.weight") + 1) == 0)
        return snprintf(translated, NAME_BYTES, "model.layers.%u.%s.weight", layer, experts->router) < NAME_BYTES;
    if (experts && (module = find_module(experts->parts, 3, name, end))) {
        *has_experts = true;
        return snprintf(translated, NAME_BYTES, "model.layers.%u.%s.%u.%s%s", layer, experts->experts, (unsigned)expert,
                        module, end) < NAME_BYTES;
    }
    module = find_module(layers, sizeof layers / sizeof *layers, name, end);
    return module && snprintf(translated, NAME_BYTES, "model.layers.%u.%s%s", layer, module, end) < NAME_BYTES;
}

/* ---- elements ---- */

static enum dtype plain_dtype(enum gguf_tensor_type type)
{
    switch (type) {
    case GGUF_TENSOR_F32: return DTYPE_F32;
    case GGUF_TENSOR_F16: return DTYPE_F16;
    case GGUF_TENSOR_BF16: return DTYPE_BF16;
    default: return DTYPE_NONE;
    }
}

/* The numbers of codes of IQ4_NL and IQ4_XS. */
static const float non_linear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* Where the parts of a block are. Those of 32 columns have one scale, at the beginning; the others several, by `scale`. */
static const struct block_layout {
    enum gguf_tensor_type type;
    enum quantised_code code;
    uint32_t bits, low, zero, codes, half, high;
    bool high_stream;
    enum quantised_scale scale;
    uint32_t scale_columns, factors, scales;
    uint32_t added; /* offset of a number that is added; 0: there is none */
} layouts[] = {
    {GGUF_TENSOR_Q4_0, QUANTISED_UNSIGNED, 4, 4, 8, .codes = 2, .half = 16, .scale = QUANTISED_F16,
     .scale_columns = 32},
    {GGUF_TENSOR_Q4_1, QUANTISED_UNSIGNED, 4, 4, 0, .codes = 4, .half = 16, .scale = QUANTISED_F16, .scale_columns = 32,
     .added = 2},
    {GGUF_TENSOR_Q5_0, QUANTISED_UNSIGNED, 5, 4, 16, .codes = 6, .half = 16, .high = 2, .high_stream = true,
     .scale = QUANTISED_F16, .scale_columns = 32},
    {GGUF_TENSOR_Q5_1, QUANTISED_UNSIGNED, 5, 4, 0, .codes = 8, .half = 16, .high = 4, .high_stream = true,
     .scale = QUANTISED_F16, .scale_columns = 32, .added = 2},
    {GGUF_TENSOR_Q8_0, QUANTISED_INT8, 8, 8, 0, .codes = 2, .scale = QUANTISED_F16, .scale_columns = 32},
    {GGUF_TENSOR_MXFP4, QUANTISED_E2M1, 4, 4, 0, .codes = 1, .half = 16, .scale = QUANTISED_E8M0, .scale_columns = 32},
    {GGUF_TENSOR_IQ4_NL, QUANTISED_TABLE, 4, 4, 0, .codes = 2, .half = 16, .scale = QUANTISED_F16, .scale_columns = 32},
    {GGUF_TENSOR_Q2_K, QUANTISED_UNSIGNED, 2, 2, 0, .codes = 16, .half = 32, .scale = QUANTISED_FOUR_BITS,
     .scale_columns = 16, .factors = 80, .scales = 0},
    {GGUF_TENSOR_Q3_K, QUANTISED_UNSIGNED, 3, 2, 4, .codes = 32, .half = 32, .high = 0,
     .scale = QUANTISED_SIGNED_SIX_BITS, .scale_columns = 16, .factors = 108, .scales = 96},
    {GGUF_TENSOR_Q4_K, QUANTISED_UNSIGNED, 4, 4, 0, .codes = 16, .half = 32, .scale = QUANTISED_SIX_BITS,
     .scale_columns = 32, .scales = 4},
    {GGUF_TENSOR_Q5_K, QUANTISED_UNSIGNED, 5, 4, 0, .codes = 48, .half = 32, .high = 16, .scale = QUANTISED_SIX_BITS,
     .scale_columns = 32, .scales = 4},
    {GGUF_TENSOR_Q6_K, QUANTISED_UNSIGNED, 6, 4, 32, .codes = 0, .half = 64, .high = 128, .scale = QUANTISED_INT8_SCALE,
     .scale_columns = 16, .factors = 208, .scales = 192},
    {GGUF_TENSOR_IQ4_XS, QUANTISED_TABLE, 4, 4, 0, .codes = 8, .half = 16, .scale = QUANTISED_DIVIDED_SIX_BITS,
     .scale_columns = 32, .scales = 2},
};

static bool set_blocks(const struct gguf *file, const struct gguf_tensor *tensor, struct quantised *matrix,
                       struct status *status)
{
    const struct block_layout *layout = layouts;
    while (layout->type != tensor->type) layout++; /* gguf_parse refuses other types */
    if (tensor->rank != 2 || tensor->shape[0] > QUANTISED_MAX_SIDE || tensor->shape[1] > QUANTISED_MAX_SIDE)
        return status_fail(
            status, STATUS_BAD_INPUT,
            "%s: tensor '%.160s': expected a matrix of up to 2^31 - 1 rows and columns, as it has blocks "
            "(%s), found another shape",
            file->path, tensor->name, gguf_tensor_type_name(tensor->type));
    const uint64_t block_bytes = gguf_block_bytes(tensor->type), block_columns = gguf_block_columns(tensor->type);
    const bool one_scale = layout->scale_columns == block_columns;
    *matrix = (struct quantised){
        .container = "GGUF",
        .rows = tensor->shape[0],
        .columns = tensor->shape[1],
        .code = layout->code,
        .codes = {tensor->data, ORDER_BLOCKS, false, layout->bits, tensor->shape[1] / block_columns * block_bytes, 0},
        .block = {.columns = (uint32_t)block_columns,
                  .bytes = (uint32_t)block_bytes,
                  .codes = layout->codes,
                  .low = layout->low,
                  .half = layout->half,
                  .high = layout->high,
                  .high_stream = layout->high_stream,
                  .factors = layout->factors,
                  .scales = layout->scales},
        .code_bytes = tensor->bytes,
        .zero = layout->zero,
        .table = (const uint8_t *)non_linear,
        .added = layout->added ? tensor->data + layout->added : NULL,
        .scale = {.type = layout->scale,
                  .data = tensor->data,
                  .pitch = tensor->shape[1] / layout->scale_columns,
                  .step = one_scale ? block_bytes : 0,
                  .block_rows = 1,
                  .block_columns = layout->scale_columns},
        .global = 1,
    };
    return true;
}

/* Room for `count` tensors more. */
static bool reserve(struct quantised_tensors *result, size_t count, struct status *status)
{
    result->tensors = calloc(count + 1, sizeof *result->tensors);
    result->matrices = calloc(count + 1, sizeof *result->matrices);
    result->names = malloc((count + 1) * NAME_BYTES);
    return (result->tensors && result->matrices && result->names) ||
           status_fail(status, STATUS_MACHINE, "out of memory");
}

/* The tensor of one expert of `count`: the file has [experts, rows, columns]. */
static bool expert_of(const struct gguf *file, const struct gguf_tensor *all, uint64_t expert, uint64_t count,
                      struct gguf_tensor *one, struct status *status)
{
    if (all->rank != 3 || all->shape[0] != count)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: tensor '%.160s': expected [experts, rows, columns] of up to %d experts, found another "
                           "shape",
                           file->path, all->name, MOST_EXPERTS);
    *one = *all;
    one->rank = 2;
    one->shape[0] = all->shape[1], one->shape[1] = all->shape[2];
    one->bytes = all->bytes / count;
    one->data = all->data + expert * one->bytes;
    return true;
}

static bool add_tensor(const struct gguf *file, const struct gguf_tensor *tensor, const char *name,
                       struct quantised_tensors *result, struct status *status)
{
    struct tensor_view *view = &result->tensors[result->count++];
    const enum dtype dtype = plain_dtype(tensor->type);
    *view = (struct tensor_view){.name = name, .dtype = DTYPE_F32, .rank = tensor->rank};
    memcpy(view->shape, tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape);
    if (dtype != DTYPE_NONE) {
        view->dtype = dtype;
        view->data = tensor->data;
        view->bytes = tensor->bytes;
        return true;
    }
    struct quantised *matrix = &result->matrices[result->matrix_count++];
    view->quantised = matrix;
    return set_blocks(file, tensor, matrix, status);
}

/* How many tensors one of the file becomes. */
static uint64_t parts_of(const struct gguf_tensor *tensor, const struct expert_modules *experts)
{
    return experts && tensor->rank == 3 && tensor->shape[0] <= MOST_EXPERTS ? tensor->shape[0] : 1;
}

bool gguf_read_tensors(const struct gguf *file, const char *model_type, struct quantised_tensors *result,
                       struct status *status)
{
    const struct expert_modules *experts = find_experts(model_type);
    size_t count = 0;
    for (size_t i = 0; i < file->tensor_count; i++) count += parts_of(&file->tensors[i], experts);
    *result = (struct quantised_tensors){0};
    if (!reserve(result, count, status)) return false;
    for (size_t i = 0; i < file->tensor_count; i++) {
        const struct gguf_tensor *tensor = &file->tensors[i];
        if (strcmp(tensor->name, "rope_freqs.weight") == 0) continue;
        const uint64_t parts = parts_of(tensor, experts);
        for (uint64_t e = 0; e < parts; e++) {
            char *name = result->names + result->count * NAME_BYTES;
            struct gguf_tensor part = *tensor;
            bool has_experts;
            if (!translate_name(tensor->name, experts, e, name, &has_experts))
                return status_fail(
                    status, STATUS_BAD_INPUT,
                    "%s: tensor '%.160s' is not known; an engine without it would compute something else", file->path,
                    tensor->name);
            if (has_experts && !expert_of(file, tensor, e, parts, &part, status)) return false;
            if (!add_tensor(file, &part, name, result, status)) return false;
            if (!has_experts) break;
        }
    }
    if (result->count) qsort(result->tensors, result->count, sizeof *result->tensors, quantised_compare_names);
    return true;
}
