/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_gather/all_gather.h"

#include "formats/base/checked.h"
#include "kernels/cpu/rendezvous.h"
#include "kernels/cpu/share.h"
#include "kernels/op/op.h"

bool all_gather_buffer_bytes(uint64_t rows, uint64_t width, uint64_t ranks, uint64_t *bytes)
{
    const uint64_t factors[] = {rows, width, ranks, sizeof(float)};
    return checked_product(factors, 4, bytes);
}

/* Cost on rank 0, which has the most columns below OUT_WIDTH. */
static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    uint64_t rows = (uint64_t)params[ALL_GATHER_ROWS], width = (uint64_t)params[ALL_GATHER_WIDTH];
    uint64_t out_width = (uint64_t)params[ALL_GATHER_OUT_WIDTH];
    uint64_t others = out_width > width ? out_width - width : 0;
    *bytes = rows * (width + out_width + others) * sizeof(float);
    *flops = 0;
}

/* Elements [first, last) of out, piece by piece; a piece is the columns of one row that come from one rank. */
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

static const char *illegal(const int64_t *params)
{
    /* RANKS <= 16 and WIDTH < 2^31. */
    return params[ALL_GATHER_OUT_WIDTH] > params[ALL_GATHER_RANKS] * params[ALL_GATHER_WIDTH]
               ? "parameter out_width is above ranks times width"
               : NULL;
}

/* A GPU's buffer has a place for the columns of each rank, a CPU's for its own. */
static bool buffer_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                         uint64_t *bytes)
{
    (void)geometry;
    return all_gather_buffer_bytes((uint64_t)params[ALL_GATHER_ROWS], (uint64_t)params[ALL_GATHER_WIDTH],
                                   target == TARGET_CPU ? 1 : (uint64_t)params[ALL_GATHER_RANKS], bytes);
}

static const struct op_param param_schema[ALL_GATHER_PARAMS] = {
    OP_ROWS_PARAMS,
    [ALL_GATHER_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, ALL_GATHER_X, .least = 1, .most = OP_MAX_WIDTH},
    [ALL_GATHER_OUT_WIDTH] = {"out_width", 4, PARAM_INTEGER, PARAM_OF_WIDTH, ALL_GATHER_OUT, .least = 1,
                              .most = OP_MAX_WIDTH},
    [ALL_GATHER_RANKS] = {"ranks", 5, PARAM_INTEGER, PARAM_OF_ENGINE, .field = offsetof(struct plan_geometry, ranks),
                          .least = 2, .most = PLAN_MAX_RANKS},
};
static const struct op_operand operand_schema[ALL_GATHER_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ALL_GATHER_X] = {"x", ROLE_INPUT, .fixed = DTYPE_F32, .rows = ALL_GATHER_ROWS, .columns = ALL_GATHER_WIDTH},
    [ALL_GATHER_HEADER] = OP_HEADER_OPERAND,
    [ALL_GATHER_BUFFER] = {"buffer", ROLE_EXCHANGE, .bytes = buffer_bytes},
    [ALL_GATHER_OUT] = {"out", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = ALL_GATHER_ROWS,
                        .columns = ALL_GATHER_OUT_WIDTH},
};

static const struct op_operand call_operands[ALL_GATHER_CALL_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ALL_GATHER_CALL_X] = {"x", ROLE_INPUT, .fixed = DTYPE_F32, .rows = ALL_GATHER_ROWS, .columns = ALL_GATHER_WIDTH},
    [ALL_GATHER_CALL_GATHERED] = {"gathered", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = ALL_GATHER_ROWS,
                                  .columns = ALL_GATHER_WIDTH, .times = ALL_GATHER_RANKS},
};

static const struct op_descriptor call_schema = {
    .id = OP_ALL_GATHER,
    .name = "all_gather",
    OP_SCHEMA(param_schema, call_operands),
    .illegal = illegal,
};

const struct op_descriptor op_all_gather = {
    .id = OP_ALL_GATHER,
    .name = "all_gather",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .call = &call_schema,
    .cost = cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
