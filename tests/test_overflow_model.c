/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/arch/arch.h"
#include "tests/test_overflow_model.h"

#include <stdio.h>
#include <stdlib.h>

#include "formats/checkpoint/checkpoint.h"
#include "formats/base/test_support.h"
#include "tests/test_fables.h"

static const char source[] = "tests/models/fables";

/* Columns of the residual stream that no layer writes: all but the last are zero except in their token's row. */
enum column { COLUMN_PLUS, COLUMN_MINUS, COLUMN_VALUES, COLUMN_FIRST, COLUMN_SECOND, COLUMN_ALWAYS, COLUMNS };
_Static_assert(OVERFLOW_TOKENS_END - OVERFLOW_PLUS == COLUMN_ALWAYS, "a column for each token, in order");

static const float huge = 3e38f;

struct matrix {
    uint16_t *values; /* bf16 */
    uint64_t rows, columns;
};

static void set(const struct matrix *matrix, uint64_t row, uint64_t column, float value)
{
    assert_true(row < matrix->rows && column < matrix->columns);
    matrix->values[row * matrix->columns + column] = bf16_from_float(value);
}

static void set_column(const struct matrix *matrix, uint64_t column, float value)
{
    for (uint64_t row = 0; row < matrix->rows; row++) set(matrix, row, column, value);
}

static bool ends_with(const char *name, const char *end)
{
    const size_t size = strlen(name), end_size = strlen(end);
    return size >= end_size && strcmp(name + size - end_size, end) == 0;
}

static void change(const char *name, const struct matrix *matrix)
{
    if (ends_with(name, "embed_tokens.weight")) {
        for (uint64_t c = 0; c < COLUMN_ALWAYS; c++) set_column(matrix, c, 0);
        for (uint64_t t = OVERFLOW_PLUS; t < OVERFLOW_TOKENS_END; t++) {
            for (uint64_t c = 0; c < matrix->columns; c++) set(matrix, t, c, 0);
            set(matrix, t, t - OVERFLOW_PLUS, 1000);
        }
        set_column(matrix, COLUMN_ALWAYS, 1);
    } else if (ends_with(name, "o_proj.weight") || ends_with(name, "down_proj.weight")) {
        for (uint64_t r = 0; r < COLUMNS; r++)
            for (uint64_t c = 0; c < matrix->columns; c++) set(matrix, r, c, 0);
    } else if (strcmp(name, "model.norm.weight") == 0 || strcmp(name, "model.layers.0.input_layernorm.weight") == 0) {
        for (uint64_t c = 0; c < COLUMNS; c++) set(matrix, c, 0, 1);
    } else if (strcmp(name, "model.layers.0.self_attn.v_proj.weight") == 0) {
        set_column(matrix, COLUMN_VALUES, huge);
    } else if (strcmp(name, "lm_head.weight") == 0) {
        for (uint64_t c = 0; c < COLUMNS; c++) set_column(matrix, c, 0);
        set_column(matrix, COLUMN_PLUS, huge);
        set_column(matrix, COLUMN_MINUS, -huge);
        /* Drawn in the expected places, and nowhere else. */
        for (uint64_t t = OVERFLOW_PLUS; t < OVERFLOW_TOKENS_END; t++) set(matrix, t, COLUMN_ALWAYS, -1000);
        set(matrix, OVERFLOW_SECOND, COLUMN_FIRST, 16);
        set(matrix, OVERFLOW_VALUES, COLUMN_SECOND, 16);
    }
}

static void copy_text(const char *folder, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", source, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const size_t size = (size_t)ftell(file);
    rewind(file);
    char *data = calloc(1, size + 1);
    assert_int_equal(fread(data, 1, size, file), size);
    fclose(file);
    char *tied = strstr(data, "\"tie_word_embeddings\": true");
    if (tied) memcpy(tied, "\"tie_word_embeddings\":false", strlen("\"tie_word_embeddings\":false"));
    test_write(test_path(folder, name), data, size);
    free(data);
}

void overflow_model_write(const char *folder)
{
    static const char *const texts[] = {"config.json", "generation_config.json", "tokenizer.json"};
    struct status status = {0};
    struct checkpoint checkpoint;
    struct file_output output;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) copy_text(folder, texts[i]);
    test_expect_success(checkpoint_open(&checkpoint, source, false, arch_read_config, &status), &status);
    struct tensor_view *views = calloc(checkpoint.tensor_count + 1, sizeof *views);
    memcpy(views, checkpoint.tensors, checkpoint.tensor_count * sizeof *views);
    struct tensor_view *head = &views[checkpoint.tensor_count];
    *head = *checkpoint_find(&checkpoint, "model.embed_tokens.weight");
    head->name = "lm_head.weight";
    test_expect_success(file_output_open(&output, test_path(folder, "model.safetensors"), &status), &status);
    test_expect_success(safetensors_write_header(&output, views, checkpoint.tensor_count + 1, &status), &status);
    for (size_t t = 0; t < checkpoint.tensor_count + 1; t++) {
        const struct matrix matrix = {malloc(views[t].bytes), views[t].shape[0],
                                      views[t].rank == 2 ? views[t].shape[1] : 1};
        assert_int_equal(views[t].dtype, DTYPE_BF16);
        memcpy(matrix.values, views[t].data, views[t].bytes);
        change(views[t].name, &matrix);
        test_expect_success(file_output_write(&output, matrix.values, views[t].bytes, &status), &status);
        free(matrix.values);
    }
    test_expect_success(file_output_commit(&output, &status), &status);
    free(views);
    checkpoint_close(&checkpoint);
}

void overflow_engine_build(const char *folder, const char *path, uint32_t ranks)
{
    struct status status = {0};
    test_expect_success(fables_build_model(folder, path, ranks, &status), &status);
}
