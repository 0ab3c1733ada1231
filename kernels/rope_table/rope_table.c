/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_table/rope_table.h"

#include <math.h>

#include "kernels/cpu/share.h"
#include "kernels/op/op_check.h"

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    (void)geometry;
    const struct op_descriptor *op = &op_rope_table;
    if (!op_check_rows(op, params, status) ||
        !op_check_range(op, params, ROPE_TABLE_HEAD_DIM, 2, OP_MAX_HEAD_DIM, status) ||
        !op_check_float_bits(op, params, ROPE_TABLE_SCALING_BITS, status))
        return false;
    if (params[ROPE_TABLE_HEAD_DIM] % 2)
        return status_fail(status, STATUS_CORRUPT, "rope_table: parameter head_dim is %d, expected an even number",
                           (int)params[ROPE_TABLE_HEAD_DIM]);
    uint64_t rows = (uint64_t)params[ROPE_TABLE_ROWS], head_dim = (uint64_t)params[ROPE_TABLE_HEAD_DIM];
    const struct op_operand positions = {.name = "positions",
                                         .space_mask = OP_IN_STEP,
                                         .access = ACCESS_READ,
                                         .field = OP_FIELD(STEP_POSITIONS)};
    const struct op_operand inv_freq = {.name = "inv_freq", .space_mask = OP_IN_WEIGHTS, .access = ACCESS_READ};
    const struct op_operand out = {.name = "out", .space_mask = OP_IN_ARENA, .access = ACCESS_WRITE};
    *operand_count = 0;
    return op_add_counts(op, operands, operand_count, status) &&
           op_add_operand(op, operands, operand_count, positions, sizeof(int32_t), rows, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, inv_freq, sizeof(float), head_dim / 2, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, out, sizeof(float), rows, head_dim, 1, status);
}

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS_PER_ELEMENT = 20 /* a polynomial with its range reduction */ };
    (void)geometry;
    uint64_t rows = (uint64_t)params[ROPE_TABLE_ROWS], head_dim = (uint64_t)params[ROPE_TABLE_HEAD_DIM];
    *bytes = rows * (head_dim * sizeof(float) + sizeof(int32_t)) + head_dim / 2 * sizeof(float);
    *flops = FLOPS_PER_ELEMENT * rows * head_dim;
}

/* Sine and cosine in double, rounded once to float: the same bits with every instruction set and, but for one case in
 * some 10^8, with every C library. */
static void fill_rows(const struct op_call *call, int64_t first, int64_t last)
{
    const int32_t *positions = call->operands[ROPE_TABLE_POSITIONS];
    const float *inv_freq = call->operands[ROPE_TABLE_INV_FREQ];
    int64_t head_dim = call->params[ROPE_TABLE_HEAD_DIM], half = head_dim / 2;
    float scaling = op_float_param(call->params, ROPE_TABLE_SCALING_BITS);
    for (int64_t r = first; r < last; r++) {
        float *out = (float *)call->operands[ROPE_TABLE_OUT] + r * head_dim;
        float position = (float)positions[r];
        for (int64_t i = 0; i < half; i++) {
            float angle = position * inv_freq[i];
            out[i] = (float)cos((double)angle) * scaling;
            out[half + i] = (float)sin((double)angle) * scaling;
        }
    }
}

static void run(const struct op_call *call, struct team_member *member)
{
    enum { ROWS_PER_MEMBER = 2 };
    struct share share = team_share(member, op_valid_rows(call), ROWS_PER_MEMBER);
    fill_rows(call, share.first, share.last);
}

static void reference(const struct op_call *call) { fill_rows(call, 0, op_valid_rows(call)); }

static const char *const param_names[ROPE_TABLE_PARAMS] = {"rows", "count_index", "head_dim", "scaling_bits"};

const struct op_descriptor op_rope_table = {
    .id = OP_ROPE_TABLE,
    .name = "rope_table",
    .param_count = ROPE_TABLE_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
