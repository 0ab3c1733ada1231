/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the readers of quantised modules, one file a container: the module at hand, and checks of its tensors. Every check
 * that returns false has filled reading->status with a message that names the tensor. */
#ifndef FORMATS_CHECKPOINT_QUANTISED_MODULE_H
#define FORMATS_CHECKPOINT_QUANTISED_MODULE_H

#include <string.h>

#include "formats/checkpoint/quantised.h"

enum {
    QUANTISED_MAX_SIDE = INT32_MAX, /* rows or columns */
    QUANTISED_MAX_NAME = 512,       /* bytes of a module's name */
    QUANTISED_FP8_BLOCK = 128,      /* rows and columns, unless config.json gives others */
};

/* The module at hand, and the state of all. */
struct quantised_reading {
    const struct quant_config *config;
    const struct tensor_view *tensors; /* [count] */
    size_t count;
    bool *used; /* [count]: belongs to a module, or is left out */
    struct quantised_tensors *result;
    size_t name_bytes;              /* used of result->names */
    const struct tensor_view *main; /* the tensor by whose name the module was found */
    char module[QUANTISED_MAX_NAME];
    struct status *status;
};

/* Sets of dtypes: bits 1 << enum dtype. */
#define QUANTISED_ANY_FLOAT (1u << DTYPE_F32 | 1u << DTYPE_F16 | 1u << DTYPE_BF16)
#define QUANTISED_ANY_E8M0  (1u << DTYPE_U8 | 1u << DTYPE_F8_E8M0)

static inline uint64_t quantised_divide_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

/* Words of 32 bits that hold so many codes. */
static inline uint64_t quantised_words(uint64_t count, uint32_t bits) { return quantised_divide_up(count * bits, 32); }

/* Element of an I32 tensor. */
static inline uint32_t quantised_word(const struct tensor_view *tensor, uint64_t index)
{
    uint32_t value;
    memcpy(&value, (const uint8_t *)tensor->data + 4 * index, sizeof value);
    return value;
}

static inline uint64_t quantised_elements(const struct tensor_view *tensor)
{
    uint64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i]; /* checked when the header was read */
    return count;
}

static inline bool quantised_has_shape(const struct tensor_view *tensor, uint64_t rows, uint64_t columns)
{
    return tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == columns;
}

int quantised_compare_names(const void *left, const void *right); /* of two tensors, for qsort */

/* "tensor 'name': expected ..., found ..."; false. */
bool quantised_fail(const struct quantised_reading *reading, const struct tensor_view *tensor, const char *expected,
                    const char *found);

/* The module's tensor with this suffix, which then belongs to it; NULL: there is none. quantised_need fails without
 * one. */
const struct tensor_view *quantised_find(struct quantised_reading *reading, const char *suffix);
const struct tensor_view *quantised_need(struct quantised_reading *reading, const char *suffix);

/* "F32 [2, 3]" */
void quantised_shape_text(const struct tensor_view *tensor, char *text, size_t size);

bool quantised_check_dtype(const struct quantised_reading *reading, const struct tensor_view *tensor, unsigned dtypes);

bool quantised_check_shape(const struct quantised_reading *reading, const struct tensor_view *tensor, unsigned dtypes,
                           uint64_t rows, uint64_t columns);

/* A matrix whose sides are no larger than any model's, so that no product below overflows. */
bool quantised_check_matrix(const struct quantised_reading *reading, const struct tensor_view *tensor, unsigned dtypes);

/* All `count` scales are finite. Requires: matrix->scale says where they are. */
bool quantised_check_scales(const struct quantised_reading *reading, const struct quantised *matrix,
                            const struct tensor_view *tensor, uint64_t count);

/* Sets type and data of matrix->scale. */
bool quantised_set_scale_type(const struct quantised_reading *reading, struct quantised *matrix,
                              const struct tensor_view *tensor, unsigned dtypes);

/* One scale, one for every row, or one for every group of columns or block, as the shape says. group: columns of a group; 0:
 * there are none. */
bool quantised_set_scales(const struct quantised_reading *reading, struct quantised *matrix,
                          const struct tensor_view *tensor, unsigned dtypes, uint64_t group);

/* Whether matrix->zeros, [rows, groups], are all in the middle of the codes, or all one less. */
bool quantised_has_middle_zeros(const struct quantised *matrix, uint64_t groups);
/* Whether scales are of the scheme's groups, if it has some. */
bool quantised_has_group(const struct quantised *matrix, const struct quant_scheme *scheme);
bool quantised_check_group(const struct quantised_reading *reading, const struct quantised *matrix,
                           const struct tensor_view *scales, const struct quant_scheme *scheme);
/* For a symmetric scheme whose file has zero points nevertheless: checks that matrix->zeros, [rows, groups], are all in the middle of the
 * codes, or all one less where `or_less`, and sets matrix->zero instead of them. */
bool quantised_drop_zeros(const struct quantised_reading *reading, struct quantised *matrix,
                          const struct tensor_view *tensor, uint64_t groups, bool or_less);

/* g_idx: the group of each column. Trivial where column / size is its group; otherwise each group has `size` columns, and the
 * last may have fewer. */
bool quantised_set_groups(const struct quantised_reading *reading, struct quantised *matrix,
                          const struct tensor_view *tensor, uint64_t size);

/* Fills *matrix for the module of reading->main, or fails and names a tensor. */
typedef bool quantised_read_module(struct quantised_reading *reading, struct quantised *matrix);
quantised_read_module quantised_read_gptq, quantised_read_awq, quantised_read_packed, quantised_read_bytes,
    quantised_read_e2m1, quantised_read_experts, quantised_read_bitsandbytes;

#endif
