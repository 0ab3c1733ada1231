/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files: any bytes are either refused with a message, or give a configuration, tensors inside the file whose every
 * element can be read, and a tokenizer.json that its reader takes or refuses. */
#include "formats/checkpoint/gguf_model.h"

#include <stdlib.h>
#include <string.h>

#include "builder/arch/arch.h"
#include "formats/checkpoint/gguf_tokenizer.h"
#include "formats/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

/* An entry for each key and tensor; nodes of a JSON tree for what becomes config.json. */
const struct fuzz_cost fuzz_cost = {.base_ms = 200, .us_per_byte = 20, .base_bytes = 512 << 10, .bytes_per_byte = 512};

static void require_refusal(const struct status *status)
{
    require(status->code == STATUS_BAD_INPUT && status->message[0] && strlen(status->message) < sizeof status->message);
}

static void check_tensor(const struct gguf_tensor *tensor, const uint8_t *data, size_t size)
{
    uint64_t elements = 1;
    require(tensor->rank >= 1 && tensor->rank <= GGUF_MAX_RANK);
    require(tensor->data >= data && tensor->data <= data + size &&
            tensor->bytes <= (uint64_t)(data + size - tensor->data));
    for (int i = 0; i < tensor->rank; i++) elements *= tensor->shape[i];
    require(elements / gguf_block_columns(tensor->type) * gguf_block_bytes(tensor->type) == tensor->bytes);
}

/* The corners, and elements in between. */
static void read_matrix(const struct quantised *matrix)
{
    enum { MOST_ROWS = 64, MOST_COLUMNS = 512 };
    const uint64_t rows = matrix->rows, columns = matrix->columns;
    const uint64_t count = columns < MOST_COLUMNS ? columns : MOST_COLUMNS;
    float values[MOST_COLUMNS];
    for (uint64_t i = 0; i < MOST_ROWS && i < rows; i++) {
        quantised_read(matrix, rows - 1 - i * (rows / MOST_ROWS), columns - count, count, values);
        quantised_read(matrix, i, 0, count, values);
    }
    quantised_group_at(matrix, rows - 1, columns - 1);
}

static void try_tokenizer(struct gguf *file)
{
    struct status status = {0};
    char *text, *missing;
    uint8_t *image = NULL;
    size_t image_bytes = 0;
    if (!gguf_read_tokenizer(file, &text, &missing, &status))
        require_refusal(&status);
    else
        require(!text != !missing);
    status_clear(&status);
    if (text && !tokenizer_import(text, strlen(text), "tokenizer", &image, &image_bytes, &status))
        require_refusal(&status);
    free(image);
    free(text);
    free(missing);
}

static void try_model(struct gguf *file)
{
    static struct model_config config; /* large */
    struct status status = {0};
    struct quantised_tensors tensors;
    if (!gguf_read_config(file, &config, arch_read_config, &status)) require_refusal(&status);
    status_clear(&status);
    if (!gguf_read_tensors(file, "mixtral", &tensors, &status)) require_refusal(&status);
    for (size_t i = 0; i < tensors.count; i++)
        if (tensors.tensors[i].quantised) read_matrix(tensors.tensors[i].quantised);
    quantised_close(&tensors);
}

int fuzz_try(const uint8_t *data, size_t size)
{
    struct status status = {0};
    struct gguf file;
    if (!gguf_parse(&file, data, size, "input", &status)) {
        require_refusal(&status);
        return 0;
    }
    for (size_t i = 0; i < file.tensor_count; i++) {
        check_tensor(&file.tensors[i], data, size);
        require(i == 0 || strcmp(file.tensors[i - 1].name, file.tensors[i].name) < 0);
        require(gguf_find_tensor(&file, file.tensors[i].name) == &file.tensors[i]);
    }
    for (size_t i = 1; i < file.key_count; i++) require(strcmp(file.keys[i - 1].name, file.keys[i].name) < 0);
    try_model(&file);
    try_tokenizer(&file);
    gguf_free(&file);
    return 0;
}
