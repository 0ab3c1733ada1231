/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/op/op_check.h"

#include <inttypes.h>

#include "formats/base/checked.h"

bool op_check_range(const struct op_descriptor *op, const int64_t *params, int index, int64_t low, int64_t high,
                    struct status *status)
{
    if (params[index] >= low && params[index] <= high) return true;
    return status_fail(status, STATUS_CORRUPT, "%s: parameter %s is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                       op->name, op->param_names[index], params[index], low, high);
}

bool op_check_equal(const struct op_descriptor *op, const int64_t *params, int index, uint64_t expected,
                    struct status *status)
{
    if (params[index] >= 0 && (uint64_t)params[index] == expected) return true;
    return status_fail(status, STATUS_CORRUPT,
                       "%s: parameter %s is %" PRId64 ", but the engine's geometry says %" PRIu64, op->name,
                       op->param_names[index], params[index], expected);
}

bool op_check_pages(const struct op_descriptor *op, const int64_t *params, int first,
                    const struct plan_geometry *geometry, struct status *status)
{
    if (!op_check_equal(op, params, first, geometry->page_tokens, status) ||
        !op_check_equal(op, params, first + 1, geometry->pages_per_slot, status) ||
        !op_check_equal(op, params, first + 2, geometry->page_bytes, status) ||
        !op_check_equal(op, params, first + 3, geometry->slots, status) ||
        !op_check_range(op, params, first, 1, OP_MAX_WIDTH, status) ||
        !op_check_range(op, params, first + 1, 1, OP_MAX_WIDTH, status) ||
        !op_check_range(op, params, first + 3, 1, OP_MAX_ROWS, status))
        return false;
    if (geometry->page_bytes % PLAN_ALIGNMENT)
        return status_fail(status, STATUS_CORRUPT, "%s: pages of %" PRIu64 " bytes are no multiple of %d", op->name,
                           geometry->page_bytes, (int)PLAN_ALIGNMENT);
    uint64_t tokens;
    if (geometry->max_context > INT32_MAX || !checked_mul(geometry->page_tokens, geometry->pages_per_slot, &tokens) ||
        tokens < geometry->max_context)
        return status_fail(status, STATUS_CORRUPT,
                           "%s: the pages of a slot hold fewer tokens than its context of %" PRIu64, op->name,
                           geometry->max_context);
    return true;
}

bool op_check_rows(const struct op_descriptor *op, const int64_t *params, struct status *status)
{
    return op_check_range(op, params, OP_PARAM_ROWS, 1, OP_MAX_ROWS, status) &&
           op_check_range(op, params, OP_PARAM_COUNT_INDEX, 0, 1, status);
}

bool op_check_float_dtype(const struct op_descriptor *op, const int64_t *params, int index, struct status *status)
{
    int64_t dtype = params[index];
    if (dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16) return true;
    const char *name = dtype >= 0 && dtype < DTYPE_COUNT ? dtype_name((enum dtype)dtype) : "unknown";
    return status_fail(status, STATUS_CORRUPT, "%s: parameter %s is %" PRId64 " (%s), expected F32, F16 or BF16",
                       op->name, op->param_names[index], dtype, name);
}

bool op_check_float_bits(const struct op_descriptor *op, const int64_t *params, int index, struct status *status)
{
    if (!op_check_range(op, params, index, 0, UINT32_MAX, status)) return false;
    float value = op_float_param(params, index);
    if (value >= 0 && value <= 0x1p64f) return true;
    return status_fail(status, STATUS_CORRUPT, "%s: parameter %s holds the float %g, expected 0 to 2^64", op->name,
                       op->param_names[index], (double)value);
}

bool op_add_operand(const struct op_descriptor *op, struct op_operand *operands, int *operand_count,
                    struct op_operand operand, size_t element_bytes, uint64_t a, uint64_t b, uint64_t c,
                    struct status *status)
{
    uint64_t factors[4] = {element_bytes, a, b, c};
    if (!checked_product(factors, 4, &operand.bytes))
        return status_fail(status, STATUS_CORRUPT, "%s: the size of operand %s overflows 64 bits", op->name,
                           operand.name);
    operands[(*operand_count)++] = operand;
    return true;
}

bool op_add_counts(const struct op_descriptor *op, struct op_operand *operands, int *operand_count,
                   struct status *status)
{
    return op_add_operand(op, operands, operand_count,
                          (struct op_operand){.name = "counts",
                                              .space_mask = OP_IN_STEP,
                                              .access = ACCESS_READ,
                                              .field = OP_FIELD(STEP_COUNTS)},
                          sizeof(int32_t), 2, 1, 1, status);
}
