/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/quantised.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"
#include "formats/checkpoint/quantised_module.h"

struct container {
    const char *suffix; /* of the tensor that has the codes */
    unsigned dtypes;    /* bits 1 << enum dtype; a tensor of another type is plain */
    unsigned methods;   /* bits 1 << enum quant_method that have such modules */
    bool is_codes;      /* so that it is an error if a tensor of that name is of another type */
    const char *weight; /* replaces the suffix */
    quantised_read_module *read;
};
#define METHOD(name) (1u << QUANT_##name)
static const struct container containers[] = {
    {".qweight", ~0u, METHOD(GPTQ), true, ".weight", quantised_read_gptq},
    {".qweight", ~0u, METHOD(AWQ), true, ".weight", quantised_read_awq},
    {".weight_packed", 1u << DTYPE_I32, METHOD(COMPRESSED_TENSORS), true, ".weight", quantised_read_packed},
    {".weight_packed", 1u << DTYPE_U8, METHOD(COMPRESSED_TENSORS), true, ".weight", quantised_read_e2m1},
    {".weight", 1u << DTYPE_U8, METHOD(MODELOPT), false, ".weight", quantised_read_e2m1},
    {".weight", 1u << DTYPE_U8, METHOD(BITSANDBYTES), false, ".weight", quantised_read_bitsandbytes},
    {".weight", 1u << DTYPE_I8, METHOD(COMPRESSED_TENSORS) | METHOD(BITSANDBYTES), false, ".weight",
     quantised_read_bytes},
    {".weight", 1u << DTYPE_F8_E4M3, METHOD(COMPRESSED_TENSORS) | METHOD(FP8) | METHOD(MODELOPT), false, ".weight",
     quantised_read_bytes},
    {"_blocks", 1u << DTYPE_U8, METHOD(MXFP4), false, "", quantised_read_experts},
};
enum { CONTAINERS = sizeof containers / sizeof *containers };

/* The container whose codes the tensor has. Fails if its name or type is that of codes, but of no container of quant_method. */
static bool find_container(const struct quantised_reading *reading, const struct tensor_view *tensor,
                           const struct container **found)
{
    bool looks = false;
    *found = NULL;
    for (int i = 0; i < CONTAINERS; i++) {
        const struct container *container = &containers[i];
        const bool has_type = container->dtypes >> tensor->dtype & 1;
        if (!file_has_suffix(tensor->name, container->suffix) || !(has_type || container->is_codes)) continue;
        looks = true;
        if (has_type && container->methods >> reading->config->method & 1) *found = container;
    }
    if (*found || !looks) return true;
    char what[96];
    snprintf(what, sizeof what, "codes (%s)", dtype_name(tensor->dtype));
    return quantised_fail(reading, tensor,
                          reading->config->method == QUANT_NONE ? "floats, since config.json has no quantization_config"
                                                                : "what quantization_config describes",
                          what);
}

/* What describes activations or a KV cache: an engine that computes with floats needs none of it. */
static bool is_of_activations(const char *name)
{
    static const char *const suffixes[] = {".input_scale",      ".activation_scale", ".input_global_scale",
                                           ".input_zero_point", ".output_scale",     ".k_scale",
                                           ".v_scale",          ".kv_scale"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (file_has_suffix(name, suffixes[i])) return true;
    return false;
}

static bool add_module(struct quantised_reading *reading, const struct tensor_view *tensor,
                       const struct container *container)
{
    struct quantised_tensors *result = reading->result;
    const size_t length = strlen(tensor->name) - strlen(container->suffix);
    if (length >= QUANTISED_MAX_NAME) return quantised_fail(reading, tensor, "a name of fewer bytes", "a longer one");
    memcpy(reading->module, tensor->name, length);
    reading->module[length] = '\0';
    reading->main = tensor;
    reading->used[tensor - reading->tensors] = true;
    struct quantised *matrix = &result->matrices[result->matrix_count++];
    if (!container->read(reading, matrix)) return false;
    matrix->code_bytes = tensor->bytes;
    char *name = result->names + reading->name_bytes;
    memcpy(name, reading->module, length);
    strcpy(name + length, container->weight);
    reading->name_bytes += length + strlen(container->weight) + 1;
    struct tensor_view *view = &result->tensors[result->count++];
    *view = (struct tensor_view){.name = name,
                                 .dtype = DTYPE_F32,
                                 .rank = 2,
                                 .shape = {matrix->rows, matrix->columns},
                                 .quantised = matrix};
    if (tensor->rank == 4) { /* experts */
        view->rank = 3;
        view->shape[0] = tensor->shape[0], view->shape[1] = tensor->shape[1], view->shape[2] = matrix->columns;
    }
    return true;
}

static bool add_plain(struct quantised_reading *reading)
{
    struct quantised_tensors *result = reading->result;
    for (size_t i = 0; i < reading->count; i++) {
        const struct tensor_view *tensor = &reading->tensors[i];
        if (reading->used[i]) continue;
        if (reading->config->method != QUANT_NONE && is_of_activations(tensor->name)) {
            if (quantised_is_cache_scale(tensor->name)) result->cache_scales[result->cache_scale_count++] = *tensor;
            continue;
        }
        result->tensors[result->count++] = *tensor;
    }
    qsort(result->tensors, result->count, sizeof *result->tensors, quantised_compare_names);
    for (size_t i = 1; i < result->count; i++)
        if (quantised_compare_names(&result->tensors[i - 1], &result->tensors[i]) == 0)
            return quantised_fail(reading, &result->tensors[i], "one weight of this name",
                                  "a plain and a quantised one");
    return true;
}

bool quantised_open(struct quantised_tensors *result, const struct quant_config *config,
                    const struct tensor_view *tensors, size_t count, struct status *status)
{
    struct quantised_reading reading = {.config = config,
                                        .tensors = tensors,
                                        .count = count,
                                        .result = result,
                                        .status = status};
    size_t names = 1;
    bool ok = false;
    for (size_t i = 0; i < count; i++) names += strlen(tensors[i].name) + sizeof ".weight";
    *result = (struct quantised_tensors){.tensors = calloc(count + 1, sizeof *tensors),
                                         .matrices = calloc(count + 1, sizeof *result->matrices),
                                         .names = malloc(names),
                                         .cache_scales = calloc(count + 1, sizeof *tensors)};
    reading.used = calloc(count + 1, sizeof *reading.used);
    if (!result->tensors || !result->matrices || !result->names || !result->cache_scales || !reading.used) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        const struct container *container;
        if (!find_container(&reading, &tensors[i], &container) ||
            (container && !add_module(&reading, &tensors[i], container)))
            goto done;
    }
    if (config->method != QUANT_NONE && !result->matrix_count)
        status_fail(status, STATUS_BAD_INPUT,
                    "checkpoint: the quantization_config names quant_method '%s', but no tensor is quantised; remove "
                    "it if these are plain weights",
                    config->name);
    else
        ok = add_plain(&reading);
done:
    free(reading.used);
    if (!ok) quantised_close(result);
    return ok;
}

void quantised_close(struct quantised_tensors *tensors)
{
    free(tensors->tensors);
    free(tensors->matrices);
    free(tensors->names);
    free(tensors->cache_scales);
    *tensors = (struct quantised_tensors){0};
}
