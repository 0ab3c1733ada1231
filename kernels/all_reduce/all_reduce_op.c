/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_reduce/all_reduce.h"

#include "formats/base/checked.h"
#include "kernels/cpu/rendezvous.h"
#include "kernels/cpu/share.h"
#include "kernels/op/op.h"

/* Most bytes that a rank sends with one_shot: beyond, two trips are faster and buffers smaller. */
enum { ONE_SHOT_BYTES = 1 << 20 };

bool all_reduce_device_is_one_shot(uint64_t message, uint64_t ranks) { return message <= ONE_SHOT_BYTES / (ranks - 1); }

bool all_reduce_device_is_large(uint64_t rows, uint64_t width, uint64_t ranks, enum dtype dtype)
{
    const uint64_t factors[] = {rows, width, dtype_bytes(dtype)};
    uint64_t message;
    return !checked_product(factors, 3, &message) || !all_reduce_device_is_one_shot(message, ranks);
}

bool all_reduce_device_buffer_bytes(uint64_t rows, uint64_t width, uint64_t ranks, enum dtype dtype, enum dtype given,
                                    uint64_t *bytes)
{
    if (ranks < 2) return false;
    const uint64_t row_factors[] = {width, dtype_bytes(dtype)}, given_factors[] = {rows, width, dtype_bytes(given)};
    uint64_t row, message, owned = rows / ranks + (rows % ranks != 0), sent, second;
    if (!checked_product(row_factors, 2, &row) || !checked_mul(rows, row, &message) ||
        !checked_mul(owned, ranks, &sent) || !checked_mul(sent, row, &sent) ||
        !checked_product(given_factors, 3, &second) || !checked_add(sent, second, bytes))
        return false;
    const uint64_t one_shot = all_reduce_device_is_one_shot(message, ranks) ? message * ranks : 0;
    if (one_shot > *bytes) *bytes = one_shot;
    return true;
}

bool all_reduce_buffer_bytes(const int64_t *params, enum engine_target target, uint64_t *bytes)
{
    const uint64_t factors[] = {(uint64_t)params[ALL_REDUCE_ROWS], (uint64_t)params[ALL_REDUCE_WIDTH], sizeof(float)};
    if (target == TARGET_CPU) return checked_product(factors, 3, bytes);
    const enum dtype x = (enum dtype)params[ALL_REDUCE_X_DTYPE], out = (enum dtype)params[ALL_REDUCE_OUT_DTYPE];
    const bool own_norm = params[ALL_REDUCE_HAS_NORM] == ALL_REDUCE_OWN_ROWS;
    enum dtype given = params[ALL_REDUCE_HAS_NORM] && dtype_bytes(out) > dtype_bytes(x) ? out : x;
    if (params[ALL_REDUCE_HAS_RESIDUAL] == ALL_REDUCE_OWN_ROWS && !own_norm) given = DTYPE_F32;
    return all_reduce_device_buffer_bytes(factors[0], factors[1], (uint64_t)params[ALL_REDUCE_RANKS], x, given, bytes);
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
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

static const char *cpu_illegal(const int64_t *params)
{
    return params[ALL_REDUCE_HAS_RESIDUAL] || params[ALL_REDUCE_HAS_NORM] ? "CPU code has no residual and no norm"
                                                                          : NULL;
}

static bool buffer_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                         uint64_t *bytes)
{
    (void)geometry;
    return all_reduce_buffer_bytes(params, target, bytes);
}

static const struct op_param param_schema[ALL_REDUCE_PARAMS] = {
    OP_ROWS_PARAMS,
    [ALL_REDUCE_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, ALL_REDUCE_X, .least = 1, .most = OP_MAX_WIDTH},
    [ALL_REDUCE_RANKS] = {"ranks", 4, PARAM_INTEGER, PARAM_OF_ENGINE, .field = offsetof(struct plan_geometry, ranks),
                          .least = 2, .most = PLAN_MAX_RANKS},
    [ALL_REDUCE_X_DTYPE] = {"x_dtype", 5, PARAM_DTYPE, PARAM_OF_DTYPE, ALL_REDUCE_X, .fallback = DTYPE_F32},
    [ALL_REDUCE_HAS_RESIDUAL] = {"has_residual", 6, PARAM_INTEGER, PARAM_OF_PRESENT, ALL_REDUCE_RESIDUAL,
                                 .most = ALL_REDUCE_OWN_ROWS},
    [ALL_REDUCE_HAS_NORM] = {"has_norm", 7, PARAM_INTEGER, PARAM_OF_PRESENT, ALL_REDUCE_NORM,
                             .most = ALL_REDUCE_OWN_ROWS},
    [ALL_REDUCE_NORM_DTYPE] = {"norm_dtype", 8, PARAM_DTYPE, PARAM_OF_DTYPE, ALL_REDUCE_NORM, .fallback = DTYPE_BF16},
    [ALL_REDUCE_EPS_BITS] = {"eps_bits", 9, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [ALL_REDUCE_OUT_DTYPE] = {"out_dtype", 10, PARAM_DTYPE, PARAM_OF_DTYPE, ALL_REDUCE_NORMED, .fallback = DTYPE_BF16},
};
static const struct op_operand operand_schema[ALL_REDUCE_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ALL_REDUCE_X] = {"x", ROLE_INPUT, .dtype = ALL_REDUCE_X_DTYPE, .rows = ALL_REDUCE_ROWS,
                      .columns = ALL_REDUCE_WIDTH},
    [ALL_REDUCE_HEADER] = OP_HEADER_OPERAND,
    [ALL_REDUCE_BUFFER] = {"buffer", ROLE_EXCHANGE, .bytes = buffer_bytes},
    [ALL_REDUCE_OUT] = {"out", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = ALL_REDUCE_ROWS, .columns = ALL_REDUCE_WIDTH,
                        .replaces = 1u << ALL_REDUCE_RESIDUAL, .replaces_cpu = 1u << ALL_REDUCE_X},
    [ALL_REDUCE_RESIDUAL] = {"residual", ROLE_INPUT, .present = ALL_REDUCE_HAS_RESIDUAL, .fixed = DTYPE_F32,
                             .rows = ALL_REDUCE_ROWS, .columns = ALL_REDUCE_WIDTH},
    [ALL_REDUCE_NORM] = {"norm", ROLE_WEIGHT, .present = ALL_REDUCE_HAS_NORM, .dtype = ALL_REDUCE_NORM_DTYPE,
                         .rows = OP_NONE, .columns = ALL_REDUCE_WIDTH},
    [ALL_REDUCE_NORMED] = {"normed", ROLE_OUTPUT, .present = ALL_REDUCE_HAS_NORM, .dtype = ALL_REDUCE_OUT_DTYPE,
                           .rows = ALL_REDUCE_ROWS, .columns = ALL_REDUCE_WIDTH},
};

static const struct op_operand call_operands[ALL_REDUCE_CALL_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ALL_REDUCE_CALL_X] = {"x", ROLE_INPUT, .dtype = ALL_REDUCE_X_DTYPE, .rows = ALL_REDUCE_ROWS,
                           .columns = ALL_REDUCE_WIDTH},
    [ALL_REDUCE_CALL_SUM] = {"sum", ROLE_OUTPUT, .dtype = ALL_REDUCE_X_DTYPE, .rows = ALL_REDUCE_ROWS,
                             .columns = ALL_REDUCE_WIDTH},
};

static const char *call_illegal(const int64_t *params)
{
    return params[ALL_REDUCE_HAS_RESIDUAL] || params[ALL_REDUCE_HAS_NORM]
               ? "a library's call has no residual and no norm"
               : NULL;
}

static const struct op_descriptor call_schema = {
    .id = OP_ALL_REDUCE,
    .name = "all_reduce",
    OP_SCHEMA(param_schema, call_operands),
    .illegal = call_illegal,
};

const struct op_descriptor op_all_reduce = {
    .id = OP_ALL_REDUCE,
    .name = "all_reduce",
    OP_SCHEMA(param_schema, operand_schema),
    .call = &call_schema,
    .cpu_illegal = cpu_illegal,
    .cost = cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
