/* SPDX-License-Identifier: Apache-2.0 */
/* Small checkpoints for the tests of the builder, from lists of tensor names that are defined here and not taken from
 * the import files, with odd sizes (K odd, rows of q, k and v that end inside a panel). */
#ifndef BUILDER_TEST_MODEL_H
#define BUILDER_TEST_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "builder/weights/weights.h"
#include "formats/encoding/dtype.h"
#include "formats/base/test_support.h"

enum {
    TEST_HIDDEN = 23,
    TEST_INNER = 21,
    TEST_HEADS = 3,
    TEST_KV_HEADS = 1,
    TEST_HEAD_DIM = 8,
    TEST_VOCAB = 37,
    TEST_LAYERS = 2,
    TEST_WINDOW = 4,
    TEST_MAX_TENSORS = 64,
    TEST_MAX_PIECES = 3 * TEST_MAX_TENSORS,
    TEST_RANKS = 3, /* that can share such a model: its KV head is on all, its vocabulary unevenly */
};

enum test_family {
    TEST_LLAMA,
    TEST_LLAMA_BIASED_TIED,
    TEST_MISTRAL,
    TEST_QWEN2,
    TEST_QWEN3,
    TEST_GRANITE,
    TEST_PHI3,
    TEST_RANK_FAMILIES, /* those above can be shared by ranks */
    TEST_OLMO2 = TEST_RANK_FAMILIES,
    TEST_FAMILIES
};

struct test_tensor {
    char name[80];
    enum dtype dtype;
    uint64_t rows, columns; /* columns 0: a vector */
    float scale;            /* of its values */
    const char *twin;       /* has the values of the tensor of this name; NULL: its own */
    bool has_odd_value;     /* element odd_index is odd_value */
    uint64_t odd_index;
    float odd_value;
};

/* Rows of a tensor that hold one projection, by the name that a tensor of it alone would have: all rows of most tensors;
 * one of q, k and v, or of gate and up, where the checkpoint has them in one tensor. */
struct test_piece {
    char name[80];
    const struct test_tensor *tensor;
    uint64_t first_row, rows, columns; /* columns 0: a vector */
};

/* Differences between models that are shared by ranks. */
struct test_sizes {
    uint64_t inner, heads, kv_heads, vocab;
};
extern const struct test_sizes test_sizes; /* those above */

struct test_model {
    enum test_family family;
    struct test_sizes sizes;
    struct test_tensor tensors[TEST_MAX_TENSORS];
    size_t count;
};

/* All tensors of a checkpoint of the family in this dtype. */
void test_model_init(struct test_model *model, enum test_family family, enum dtype dtype);
void test_model_init_sizes(struct test_model *model, enum test_family family, enum dtype dtype,
                           const struct test_sizes *sizes);
void test_model_add(struct test_model *model, const char *name, enum dtype dtype, uint64_t rows, uint64_t columns);
void test_model_remove(struct test_model *model, const char *name);
/* NULL if there is none. */
struct test_tensor *test_model_find(struct test_model *model, const char *name);
/* The pieces of all tensors; returns their number. */
size_t test_model_pieces(const struct test_model *model, struct test_piece *pieces);
float test_piece_value(const struct test_piece *piece, uint64_t row, uint64_t column);
const char *test_family_config(enum test_family family); /* with the sizes above */

/* Element `index` as it stands in the checkpoint. */
float test_tensor_value(const struct test_tensor *tensor, uint64_t index);

/* Writes config.json and model.safetensors. */
void test_model_write(const struct test_model *model, const char *folder);

/* Packs the weights by several threads; *weights: all of them, mapped, as long as the writer lives. */
bool test_model_pack(const struct graph *graph, const struct checkpoint *checkpoint, struct engine_writer *writer,
                     uint64_t total_bytes, pack_progress *progress, void *context, const uint8_t **weights,
                     struct status *status);

#endif
