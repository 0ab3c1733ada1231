/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised checkpoints: a line of JSON, the quantization_config, then a safetensors file. Any bytes are either refused with a
 * message or give matrices whose every element can be read. */
#include "formats/checkpoint/quantised.h"

#include <string.h>

#include "formats/base/json.h"
#include "tests/fuzz/fuzz.h"

/* As the safetensors reader; a module also reads every scale and group. */
const struct fuzz_cost fuzz_cost = {.base_ms = 200, .us_per_byte = 20, .base_bytes = 512 << 10, .bytes_per_byte = 512};

static void require_refusal(const struct status *status)
{
    require(status->code == STATUS_BAD_INPUT && status->message[0] && strlen(status->message) < sizeof status->message);
}

/* The corners, and elements in between. */
static void read_matrix(const struct tensor_view *tensor)
{
    enum { MOST_ROWS = 64, MOST_COLUMNS = 512 };
    const struct quantised *matrix = tensor->quantised;
    const uint64_t rows = matrix->rows, columns = matrix->columns;
    const uint64_t count = columns < MOST_COLUMNS ? columns : MOST_COLUMNS;
    float values[MOST_COLUMNS];
    require(rows > 0 && columns > 0 && tensor->dtype == DTYPE_F32 && !tensor->data);
    for (uint64_t i = 0; i < MOST_ROWS && i < rows; i++) {
        quantised_read(matrix, rows - 1 - i * (rows / MOST_ROWS), columns - count, count, values);
        quantised_read(matrix, i, 0, count, values);
    }
    quantised_group_at(matrix, rows - 1, columns - 1);
}

/* As a model of two layers with four KV heads reads them. */
static void read_cache_scales(const struct quantised_tensors *tensors)
{
    enum { LAYERS = 2, KV_HEADS = 4 };
    struct status status = {0};
    struct quantised_cache_scales scales[LAYERS];
    float numbers[2 * KV_HEADS];
    if (!quantised_find_cache_scales(tensors, LAYERS, NULL, NULL, scales, &status)) {
        require_refusal(&status);
        return;
    }
    for (int i = 0; i < 2 * LAYERS; i++) {
        const struct tensor_view *tensor = i % 2 ? scales[i / 2].v : scales[i / 2].k;
        if (!tensor) continue;
        status_clear(&status);
        if (!quantised_read_cache_scales(tensor, KV_HEADS, 2, 1e-9f, 1e9f, numbers, &status)) require_refusal(&status);
    }
}

static void try_tensors(const struct quant_config *config, const struct safetensors *file)
{
    struct status status = {0};
    struct quantised_tensors result;
    if (!quantised_open(&result, config, file->tensors, file->tensor_count, &status)) {
        require_refusal(&status);
        return;
    }
    for (size_t i = 0; i < result.count; i++) {
        require(i == 0 || strcmp(result.tensors[i - 1].name, result.tensors[i].name) < 0);
        if (result.tensors[i].quantised) read_matrix(&result.tensors[i]);
    }
    read_cache_scales(&result);
    quantised_close(&result);
}

int fuzz_try(const uint8_t *data, size_t size)
{
    struct status status = {0};
    struct quant_config config;
    struct safetensors file;
    const uint8_t *end = size ? memchr(data, '\n', size) : NULL;
    const size_t line = end ? (size_t)(end - data) : size;
    json_t *document = json_parse((const char *)data, line, "config.json", &status);
    if (!document) {
        require_refusal(&status);
        return 0;
    }
    bool good = quant_config_parse(&config, document, "config.json: quantization_config", &status);
    json_decref(document);
    if (!good) {
        require_refusal(&status);
        return 0;
    }
    require(config.scheme_count >= 0 && config.scheme_count <= QUANT_MAX_SCHEMES);
    require(config.method == QUANT_NONE || config.scheme_count > 0);
    if (!end) return 0;
    if (!safetensors_parse(&file, end + 1, size - line - 1, "input", &status)) return 0;
    try_tensors(&config, &file);
    safetensors_free(&file);
    return 0;
}
