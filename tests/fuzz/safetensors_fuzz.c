/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader: any bytes are either refused with a message or give tensors that lie inside the file. So do those of a
 * text part, whose names may be any, too. */
#include "formats/checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "formats/checkpoint/wrapper.h"
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

static void check_refusal(const struct status *status)
{
    require(status->code == STATUS_BAD_INPUT && status->message[0] && strlen(status->message) < sizeof status->message);
}

/* Takes the towers out, and layers that text passes over; every byte is in one of the two. */
static void check_text_part(struct safetensors *file, const uint8_t *data, size_t size)
{
    static const struct model_wrapper wrapper = {"mllama",
                                                 "MllamaForConditionalGeneration",
                                                 "language_model",
                                                 {"vision_model", "cross_attention_layers"}};
    static struct model_config config; /* large */
    struct model_tower towers[WRAPPER_MAX_TOWERS] = {0};
    struct status status = {0};
    uint64_t before = 0, after = 0;
    size_t count = file->tensor_count;
    char *names = NULL;
    config.wrapper = &wrapper;
    config.vocab_size = 2;
    config.unused.layers = 12;
    config.unused.layer[1] = config.unused.layer[10] = true;
    config.unused.embedding_rows = 2;
    for (size_t i = 0; i < count; i++) before += file->tensors[i].bytes;
    if (wrapper_unwrap(&config, file->tensors, &count, towers, &names, &status)) {
        for (size_t i = 0; i < count; i++) {
            check_tensor(&file->tensors[i], data, size);
            require(i == 0 || strcmp(file->tensors[i - 1].name, file->tensors[i].name) < 0);
            after += file->tensors[i].bytes;
        }
        for (size_t i = 0; i < WRAPPER_MAX_TOWERS && towers[i].name; i++) after += towers[i].bytes;
        require(before == after);
    } else {
        check_refusal(&status);
    }
    free(names);
}

/* Nodes of a JSON tree, and an entry for each tensor. */
const struct fuzz_cost fuzz_cost = {.base_ms = 100, .us_per_byte = 20, .base_bytes = 256 << 10, .bytes_per_byte = 256};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct status status = {0};
    struct safetensors file;
    if (!safetensors_parse(&file, data, size, "input", &status)) {
        check_refusal(&status);
        return 0;
    }
    for (size_t i = 0; i < file.tensor_count; i++) {
        check_tensor(&file.tensors[i], data, size);
        require(i == 0 || strcmp(file.tensors[i - 1].name, file.tensors[i].name) < 0);
        require(safetensors_find(&file, file.tensors[i].name) == &file.tensors[i]);
    }
    check_text_part(&file, data, size);
    safetensors_free(&file);
    return 0;
}
