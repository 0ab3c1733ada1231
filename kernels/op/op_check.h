/* SPDX-License-Identifier: Apache-2.0 */
/* What the descriptors of the ops share: hostile parameters compared with their limits in one wording, operand sizes
 * by arithmetic that cannot overflow unnoticed, and the reading of parameters and elements. */
#ifndef KERNELS_OP_OP_CHECK_H
#define KERNELS_OP_OP_CHECK_H

#include "kernels/op/op.h"

/* Limits that keep every index of every op inside int64_t with room to spare. */
enum { OP_MAX_ROWS = 1 << 20, OP_MAX_WIDTH = INT32_MAX, OP_MAX_HEADS = 1 << 16, OP_MAX_HEAD_DIM = 256 };

/* params[index] in [low, high]; the message names op, parameter, value and limits. */
bool op_check_range(const struct op_descriptor *op, const int64_t *params, int index, int64_t low, int64_t high,
                    struct status *status);

/* params[index] equals a value of the engine's geometry. */
bool op_check_equal(const struct op_descriptor *op, const int64_t *params, int index, uint64_t expected,
                    struct status *status);

/* Parameters [first, first + 4) equal page_tokens, pages_per_slot, page_bytes and slots of the geometry, and the pages
 * of a slot hold its context. */
bool op_check_pages(const struct op_descriptor *op, const int64_t *params, int first,
                    const struct plan_geometry *geometry, struct status *status);

/* Rows and count index, parameters 0 and 1 of every op. */
bool op_check_rows(const struct op_descriptor *op, const int64_t *params, struct status *status);

/* params[index] is F32, F16 or BF16. */
bool op_check_float_dtype(const struct op_descriptor *op, const int64_t *params, int index, struct status *status);

/* params[index] holds the bits of a finite float in [0, 2^64]. */
bool op_check_float_bits(const struct op_descriptor *op, const int64_t *params, int index, struct status *status);

static inline float op_float_param(const int64_t *params, int index)
{
    return float_from_bits((uint32_t)params[index]);
}

/* Element of an array of F32, F16 or BF16. */
static inline float op_element(const void *array, int64_t index, enum dtype dtype)
{
    if (dtype == DTYPE_F32) return ((const float *)array)[index];
    uint16_t bits = ((const uint16_t *)array)[index];
    return dtype == DTYPE_F16 ? f16_to_float(bits) : bf16_to_float(bits);
}

/* Appends an operand of element_bytes * a * b * c bytes; false with a message when that overflows. */
bool op_add_operand(const struct op_descriptor *op, struct op_operand *operands, int *operand_count,
                    struct op_operand operand, size_t element_bytes, uint64_t a, uint64_t b, uint64_t c,
                    struct status *status);

/* Appends operand 0 of every op. */
bool op_add_counts(const struct op_descriptor *op, struct op_operand *operands, int *operand_count,
                   struct status *status);

#endif
