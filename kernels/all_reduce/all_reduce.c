/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_reduce/all_reduce.h"

#include "formats/base/checked.h"
#include "kernels/cpu/rendezvous.h"
#include "kernels/cpu/share.h"
#include "kernels/op/op_check.h"

bool all_reduce_buffer_bytes(uint64_t rows, uint64_t width, uint64_t *bytes)
{
    const uint64_t factors[] = {rows, width, sizeof(float)};
    return checked_product(factors, 3, bytes);
}

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    const struct op_descriptor *op = &op_all_reduce;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, ALL_REDUCE_WIDTH, 1, OP_MAX_WIDTH, status) ||
        !op_check_range(op, params, ALL_REDUCE_RANKS, 2, PLAN_MAX_RANKS, status) ||
        !op_check_equal(op, params, ALL_REDUCE_RANKS, plan_ranks(geometry), status))
        return false;
    uint64_t rows = (uint64_t)params[ALL_REDUCE_ROWS], width = (uint64_t)params[ALL_REDUCE_WIDTH], buffer_bytes;
    if (!all_reduce_buffer_bytes(rows, width, &buffer_bytes))
        return status_fail(status, STATUS_CORRUPT, "%s: the size of its buffer overflows 64 bits", op->name);
    const struct op_operand x = {.name = "x", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand header = {.name = "header",
                                      .space_mask = OP_IN_COMM,
                                      .access = ACCESS_READ_WRITE,
                                      .field = OP_FIELD_COMM_HEADER};
    const struct op_operand buffer = {.name = "buffer", .space_mask = OP_IN_COMM, .access = ACCESS_READ_WRITE};
    const struct op_operand out = {.name = "out", .space_mask = OP_IN_ARENA, .access = ACCESS_WRITE};
    *operand_count = 0;
    return op_add_counts(op, operands, operand_count, status) &&
           op_add_operand(op, operands, operand_count, x, sizeof(float), rows, width, 1, status) &&
           op_add_operand(op, operands, operand_count, header, sizeof(struct comm_header), 1, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, buffer, 1, buffer_bytes, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, out, sizeof(float), rows, width, 1, status);
}

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    (void)geometry;
    uint64_t elements = (uint64_t)params[ALL_REDUCE_ROWS] * (uint64_t)params[ALL_REDUCE_WIDTH];
    uint64_t others = (uint64_t)params[ALL_REDUCE_RANKS] - 1;
    *bytes = (2 + others) * elements * sizeof(float);
    *flops = others * elements;
}

/* Elements [first, last) of the sum, in blocks that stay in the nearest cache. */
static void sum_range(const struct op_call *call, int64_t first, int64_t last)
{
    enum { BLOCK_FLOATS = 2048 };
    const struct comm_header *header = call->operands[ALL_REDUCE_HEADER];
    const void *buffer = call->operands[ALL_REDUCE_BUFFER];
    uint32_t ranks = (uint32_t)call->params[ALL_REDUCE_RANKS];
    for (int64_t begin = first; begin < last; begin += BLOCK_FLOATS) {
        int64_t count = last - begin < BLOCK_FLOATS ? last - begin : BLOCK_FLOATS;
        float *restrict out = (float *)call->operands[ALL_REDUCE_OUT] + begin;
        memcpy(out, (const float *)comm_peer(header, buffer, 0) + begin, (size_t)count * sizeof *out);
        for (uint32_t rank = 1; rank < ranks; rank++) {
            const float *restrict part = (const float *)comm_peer(header, buffer, rank) + begin;
            for (int64_t i = 0; i < count; i++) out[i] += part[i];
        }
    }
}

static void run(const struct op_call *call, struct team_member *member)
{
    struct share share = team_share_rows(member, op_valid_rows(call) * call->params[ALL_REDUCE_WIDTH], 1);
    const float *x = call->operands[ALL_REDUCE_X];
    float *buffer = call->operands[ALL_REDUCE_BUFFER];
    memcpy(buffer + share.first, x + share.first, (size_t)(share.last - share.first) * sizeof *x);
    if (comm_meet_team(call->operands[ALL_REDUCE_HEADER], member)) sum_range(call, share.first, share.last);
}

static void reference(const struct op_call *call)
{
    struct comm_header *header = call->operands[ALL_REDUCE_HEADER];
    int64_t count = op_valid_rows(call) * call->params[ALL_REDUCE_WIDTH], ranks = call->params[ALL_REDUCE_RANKS];
    const float *x = call->operands[ALL_REDUCE_X];
    float *buffer = call->operands[ALL_REDUCE_BUFFER], *out = call->operands[ALL_REDUCE_OUT];
    for (int64_t i = 0; i < count; i++) buffer[i] = x[i];
    if (!comm_meet(header)) return;
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (uint32_t rank = 0; rank < ranks; rank++) sum += ((const float *)comm_peer(header, buffer, rank))[i];
        out[i] = (float)sum;
    }
}

static const char *const param_names[ALL_REDUCE_PARAMS] = {"rows", "count_index", "width", "ranks"};

const struct op_descriptor op_all_reduce = {
    .id = OP_ALL_REDUCE,
    .name = "all_reduce",
    .param_count = ALL_REDUCE_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
