/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader: any bytes are either refused with a message or give tensors that lie inside the file. */
#include "formats/checkpoint/safetensors.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

static void check_tensor(const struct tensor_view *tensor, const uint8_t *data, size_t size)
{
    const uint8_t *begin = tensor->data;
    uint64_t elements = 1;
    require(tensor->rank >= 0 && tensor->rank <= TENSOR_MAX_RANK);
    require(begin >= data + 8 && begin <= data + size && tensor->bytes <= (uint64_t)(data + size - begin));
    for (int i = 0; i < tensor->rank; i++) elements *= tensor->shape[i];
    require(elements * dtype_bytes(tensor->dtype) == tensor->bytes);
}

/* Nodes of a JSON tree, and an entry for each tensor. */
const struct fuzz_cost fuzz_cost = {.base_ms = 100, .us_per_byte = 20, .base_bytes = 256 << 10, .bytes_per_byte = 256};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct status status = {0};
    struct safetensors file;
    if (!safetensors_parse(&file, data, size, "input", &status)) {
        require(status.code == STATUS_BAD_INPUT && status.message[0] && strlen(status.message) < sizeof status.message);
        return 0;
    }
    for (size_t i = 0; i < file.tensor_count; i++) {
        check_tensor(&file.tensors[i], data, size);
        require(i == 0 || strcmp(file.tensors[i - 1].name, file.tensors[i].name) < 0);
        require(safetensors_find(&file, file.tensors[i].name) == &file.tensors[i]);
    }
    safetensors_free(&file);
    return 0;
}
