/* SPDX-License-Identifier: Apache-2.0 */
/* state_space: a selective state space whose state forgets at a rate of each token. Dao and Gu 2024, "Transformers are SSMs" (Mamba-2),
 * arXiv:2405.21060. For each head h, with its group h / (HEADS / GROUPS) of B and C, and S the head's state:
 *
 *   t = max(DT_MIN, min(DT_MAX, softplus(dt[r, h] + dt_bias[h]))),  softplus(x) = ln(1 + exp(x))
 *   S = exp(-exp(a_log[h]) * t) * S + outer(B, t * x)
 *   out[r, h, :] = (transpose(S) C + d[h] * x) * silu(z[r, h, :])
 *
 * The state (kernels/op/recurrent.h) is f32[HEADS, STATE_DIM, HEAD_DIM]. float32; the order of sums depends on the instruction set
 * alone. GPUs: all but the operands of X_DTYPE is float32, three bfloat16 in products of chunks, and the order of sums depends on the
 * tunables. */
#ifndef KERNELS_STATE_SPACE_STATE_SPACE_H
#define KERNELS_STATE_SPACE_STATE_SPACE_H

#include "kernels/op/op.h"

enum { STATE_SPACE_MAX_DIM = 512 };

enum state_space_operand {
    STATE_SPACE_COUNTS,
    STATE_SPACE_XBC, /* X_DTYPE[rows, HEADS * HEAD_DIM + 2 * GROUPS * STATE_DIM]: x of all heads, B of all groups, C */
    STATE_SPACE_Z,   /* X_DTYPE[rows, HEADS * HEAD_DIM] */
    STATE_SPACE_DT,  /* f32[rows, HEADS] */
    STATE_SPACE_A_LOG,     /* A_DTYPE[HEADS] */
    STATE_SPACE_DT_BIAS,   /* DT_DTYPE[HEADS] */
    STATE_SPACE_D,         /* D_DTYPE[HEADS] */
    STATE_SPACE_OUT,       /* X_DTYPE[rows, HEADS * HEAD_DIM] */
    STATE_SPACE_SLOTS,     /* i32[rows] */
    STATE_SPACE_POSITIONS, /* i32[rows] */
    STATE_SPACE_STATE,
    STATE_SPACE_OPERANDS
};
enum state_space_param {
    STATE_SPACE_ROWS,
    STATE_SPACE_COUNT_INDEX,
    STATE_SPACE_GROUPS,
    STATE_SPACE_HEADS, /* a multiple of GROUPS */
    STATE_SPACE_STATE_DIM,
    STATE_SPACE_HEAD_DIM,
    STATE_SPACE_DT_MIN_BITS,
    STATE_SPACE_DT_MAX_BITS, /* at least DT_MIN; the largest float32: no limit */
    STATE_SPACE_A_DTYPE,
    STATE_SPACE_DT_DTYPE,
    STATE_SPACE_D_DTYPE,
    STATE_SPACE_RECURRENT_BYTES,
    STATE_SPACE_SLOT_COUNT,
    STATE_SPACE_X_DTYPE,   /* CPU: F32 */
    STATE_SPACE_SCATTERED, /* GPUs: the rows of a step are of different slots; the result does not depend on it */
    STATE_SPACE_PARAMS
};

/* Tunables of the kernel for GPUs. */
enum state_space_device_param {
    STATE_SPACE_DEVICE_LANES = STATE_SPACE_PARAMS, /* 4, 8, 16 or 32 that share a column of the state */
    STATE_SPACE_DEVICE_WARPS,                      /* of a block, each with other columns; at most 16 */
    STATE_SPACE_DEVICE_PARAMS
};

/* Those of the kernel that takes CHUNK rows of a slot at a time: state_space_chunk. */
enum state_space_chunk_param {
    STATE_SPACE_CHUNK_ROWS = STATE_SPACE_PARAMS, /* 32 or 64 */
    STATE_SPACE_CHUNK_COLUMN_WARPS,              /* of a block, each with 16 columns of the state: 1 or 2 */
    STATE_SPACE_CHUNK_PARAMS
};

/* Bytes of a layer's part of a slot's state. */
static inline uint64_t state_space_state_bytes(uint64_t heads, uint64_t state_dim, uint64_t head_dim)
{
    return heads * state_dim * head_dim * sizeof(float);
}

/* t of the contract, from softplus. NaN stays. */
static inline double state_space_clamp(const int64_t *params, double softplus)
{
    const double least = (double)op_float_param(params, STATE_SPACE_DT_MIN_BITS);
    const double most = (double)op_float_param(params, STATE_SPACE_DT_MAX_BITS);
    return softplus < least ? least : softplus > most ? most : softplus;
}

/* What a row's head reads and writes. */
struct state_space_head {
    const float *x, *b, *c, *z; /* [HEAD_DIM], [STATE_DIM], [STATE_DIM], [HEAD_DIM] */
    float *state, *out;         /* [STATE_DIM, HEAD_DIM], [HEAD_DIM] */
    float dt, a_log, d;         /* dt with its bias */
    bool begins;                /* a sequence */
};
static inline struct state_space_head state_space_head_of(const struct op_call *call, int64_t row, int64_t head)
{
    const int64_t *params = call->params;
    const int64_t heads = params[STATE_SPACE_HEADS], groups = params[STATE_SPACE_GROUPS];
    const int64_t state_dim = params[STATE_SPACE_STATE_DIM], head_dim = params[STATE_SPACE_HEAD_DIM];
    const int64_t width = heads * head_dim, group = head / (heads / groups), at = row * width + head * head_dim;
    const float *xbc = (const float *)call->operands[STATE_SPACE_XBC] + row * (width + 2 * groups * state_dim);
    const int32_t *slots = call->operands[STATE_SPACE_SLOTS], *positions = call->operands[STATE_SPACE_POSITIONS];
    uint8_t *block = (uint8_t *)call->operands[STATE_SPACE_STATE] + slots[row] * params[STATE_SPACE_RECURRENT_BYTES];
    return (struct state_space_head){
        .x = xbc + head * head_dim,
        .b = xbc + width + group * state_dim,
        .c = xbc + width + (groups + group) * state_dim,
        .z = (const float *)call->operands[STATE_SPACE_Z] + at,
        .state = (float *)(void *)block + head * state_dim * head_dim,
        .out = (float *)call->operands[STATE_SPACE_OUT] + at,
        .dt = ((const float *)call->operands[STATE_SPACE_DT])[row * heads + head] +
              op_element(call->operands[STATE_SPACE_DT_BIAS], head, (enum dtype)params[STATE_SPACE_DT_DTYPE]),
        .a_log = op_element(call->operands[STATE_SPACE_A_LOG], head, (enum dtype)params[STATE_SPACE_A_DTYPE]),
        .d = op_element(call->operands[STATE_SPACE_D], head, (enum dtype)params[STATE_SPACE_D_DTYPE]),
        .begins = positions[row] == 0,
    };
}

extern const struct op_descriptor op_state_space;
extern const struct device_kernel device_state_space, device_state_space_chunk;
op_cost state_space_cost;
/* Why neither kernel for GPUs takes these parameters, NULL if one may; what both read, write and compute. */
const char *state_space_device_illegal(const int64_t *params);
op_cost state_space_device_cost;
void state_space_reference(const struct op_call *call);

#endif
