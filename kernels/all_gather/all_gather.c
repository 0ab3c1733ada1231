/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_gather/all_gather.h"

#include "formats/base/checked.h"
#include "kernels/cpu/rendezvous.h"
#include "kernels/cpu/share.h"
#include "kernels/op/op_check.h"

bool all_gather_buffer_bytes(uint64_t rows, uint64_t width, uint64_t *bytes)
{
    const uint64_t factors[] = {rows, width, sizeof(float)};
    return checked_product(factors, 3, bytes);
}

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    const struct op_descriptor *op = &op_all_gather;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, ALL_GATHER_WIDTH, 1, OP_MAX_WIDTH, status) ||
        !op_check_range(op, params, ALL_GATHER_RANKS, 2, PLAN_MAX_RANKS, status) ||
        !op_check_equal(op, params, ALL_GATHER_RANKS, plan_ranks(geometry), status) ||
        !op_check_range(op, params, ALL_GATHER_OUT_WIDTH, 1, params[ALL_GATHER_RANKS] * params[ALL_GATHER_WIDTH],
                        status))
        return false;
    uint64_t rows = (uint64_t)params[ALL_GATHER_ROWS], width = (uint64_t)params[ALL_GATHER_WIDTH];
    uint64_t out_width = (uint64_t)params[ALL_GATHER_OUT_WIDTH], buffer_bytes;
    if (!all_gather_buffer_bytes(rows, width, &buffer_bytes))
        return status_fail(status, STATUS_CORRUPT, "%s: the size of its buffer overflows 64 bits", op->name);
    const struct op_operand x = {.name = "x", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand header = {.name = "header",
                                      .space_mask = OP_IN_COMM,
                                      .access = ACCESS_READ_WRITE,
                                      .field = OP_FIELD_COMM_HEADER};
    const struct op_operand buffer = {.name = "buffer", .space_mask = OP_IN_COMM, .access = ACCESS_READ_WRITE};
    const struct op_operand out = {.name = "out", .space_mask = OP_IN_ARENA | OP_IN_STEP, .access = ACCESS_WRITE};
    *operand_count = 0;
    return op_add_counts(op, operands, operand_count, status) &&
           op_add_operand(op, operands, operand_count, x, sizeof(float), rows, width, 1, status) &&
           op_add_operand(op, operands, operand_count, header, sizeof(struct comm_header), 1, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, buffer, 1, buffer_bytes, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, out, sizeof(float), rows, out_width, 1, status);
}

/* Rank 0's: it has the most columns of its own below OUT_WIDTH. */
static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    (void)geometry;
    uint64_t rows = (uint64_t)params[ALL_GATHER_ROWS], width = (uint64_t)params[ALL_GATHER_WIDTH];
    uint64_t out_width = (uint64_t)params[ALL_GATHER_OUT_WIDTH];
    uint64_t others = out_width > width ? out_width - width : 0;
    *bytes = rows * (width + out_width + others) * sizeof(float);
    *flops = 0;
}

/* Elements [first, last) of out: piece by piece, a piece being columns of one row that come from one rank. */
static void gather_range(const struct op_call *call, int64_t first, int64_t last)
{
    const struct comm_header *header = call->operands[ALL_GATHER_HEADER];
    const void *buffer = call->operands[ALL_GATHER_BUFFER];
    float *out = call->operands[ALL_GATHER_OUT];
    int64_t width = call->params[ALL_GATHER_WIDTH], out_width = call->params[ALL_GATHER_OUT_WIDTH];
    for (int64_t i = first; i < last;) {
        int64_t row = i / out_width, column = i % out_width, rank = column / width, own = column % width;
        int64_t count = width - own;
        if (count > out_width - column) count = out_width - column;
        if (count > last - i) count = last - i;
        const float *from = (const float *)comm_peer(header, buffer, (uint32_t)rank) + row * width + own;
        memcpy(out + i, from, (size_t)count * sizeof *out);
        i += count;
    }
}

static void run(const struct op_call *call, struct team_member *member)
{
    int64_t rows = op_valid_rows(call);
    struct share mine = team_share_rows(member, rows * call->params[ALL_GATHER_WIDTH], 1);
    struct share all = team_share_rows(member, rows * call->params[ALL_GATHER_OUT_WIDTH], 1);
    const float *x = call->operands[ALL_GATHER_X];
    float *buffer = call->operands[ALL_GATHER_BUFFER];
    memcpy(buffer + mine.first, x + mine.first, (size_t)(mine.last - mine.first) * sizeof *x);
    if (comm_meet_team(call->operands[ALL_GATHER_HEADER], member)) gather_range(call, all.first, all.last);
}

static void reference(const struct op_call *call)
{
    struct comm_header *header = call->operands[ALL_GATHER_HEADER];
    int64_t rows = op_valid_rows(call);
    int64_t width = call->params[ALL_GATHER_WIDTH], out_width = call->params[ALL_GATHER_OUT_WIDTH];
    const float *x = call->operands[ALL_GATHER_X];
    float *buffer = call->operands[ALL_GATHER_BUFFER], *out = call->operands[ALL_GATHER_OUT];
    for (int64_t i = 0; i < rows * width; i++) buffer[i] = x[i];
    if (!comm_meet(header)) return;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < out_width; c++) {
            const float *theirs = comm_peer(header, buffer, (uint32_t)(c / width));
            out[r * out_width + c] = theirs[r * width + c % width];
        }
    }
}

static const char *const param_names[ALL_GATHER_PARAMS] = {"rows", "count_index", "width", "out_width", "ranks"};

const struct op_descriptor op_all_gather = {
    .id = OP_ALL_GATHER,
    .name = "all_gather",
    .param_count = ALL_GATHER_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
