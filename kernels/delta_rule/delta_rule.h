/* SPDX-License-Identifier: Apache-2.0 */
/* delta_rule: linear attention whose state forgets and corrects itself. Yang, Kautz, Hatamizadeh 2024, "Gated delta networks",
 * arXiv:2412.06464. For each value head h, with its key head h / (VALUE_HEADS / KEY_HEADS) and S the head's state:
 *
 *   q, k  = the key head's q and k, each divided by sqrt(sum of its squares + 1e-6); q also by sqrt(KEY_DIM)
 *   S     = exp(-exp(a_log[h]) * softplus(a[r, h] + dt_bias[h])) * S,  softplus(x) = ln(1 + exp(x))
 *   S     = S + outer(k, sigmoid(b[r, h]) * (v - transpose(S) k))
 *   o     = transpose(S) q
 *   out[r, h, :] = o / sqrt(mean of o^2 + EPS) * norm * silu(z[r, h, :])
 *
 * The state (kernels/op/recurrent.h) is f32[VALUE_HEADS, KEY_DIM, VALUE_DIM]. float32; the order of sums depends on the
 * instruction set alone. GPUs: all but the operands of X_DTYPE is float32, but for factors of products with 16 significant bits where
 * rows go in chunks, and the order of sums depends on the tunables and, there, on how a prompt is divided. */
#ifndef KERNELS_DELTA_RULE_DELTA_RULE_H
#define KERNELS_DELTA_RULE_DELTA_RULE_H

#include "kernels/op/op.h"

enum { DELTA_RULE_MAX_DIM = 512 };

enum delta_rule_operand {
    DELTA_RULE_COUNTS,
    DELTA_RULE_QKV,       /* X_DTYPE[rows, 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM]: q of all heads, k, v */
    DELTA_RULE_Z,         /* X_DTYPE[rows, VALUE_HEADS * VALUE_DIM] */
    DELTA_RULE_BA,        /* f32[rows, 2 * VALUE_HEADS]: b of all heads, then a */
    DELTA_RULE_A_LOG,     /* A_DTYPE[VALUE_HEADS] */
    DELTA_RULE_DT_BIAS,   /* DT_DTYPE[VALUE_HEADS] */
    DELTA_RULE_NORM,      /* NORM_DTYPE[VALUE_DIM] */
    DELTA_RULE_OUT,       /* X_DTYPE[rows, VALUE_HEADS * VALUE_DIM] */
    DELTA_RULE_SLOTS,     /* i32[rows] */
    DELTA_RULE_POSITIONS, /* i32[rows] */
    DELTA_RULE_STATE,
    DELTA_RULE_OPERANDS
};
enum delta_rule_param {
    DELTA_RULE_ROWS,
    DELTA_RULE_COUNT_INDEX,
    DELTA_RULE_KEY_HEADS,
    DELTA_RULE_VALUE_HEADS, /* a multiple of KEY_HEADS */
    DELTA_RULE_KEY_DIM,
    DELTA_RULE_VALUE_DIM,
    DELTA_RULE_EPS_BITS,
    DELTA_RULE_A_DTYPE,
    DELTA_RULE_DT_DTYPE,
    DELTA_RULE_NORM_DTYPE,
    DELTA_RULE_RECURRENT_BYTES,
    DELTA_RULE_SLOT_COUNT,
    DELTA_RULE_X_DTYPE,   /* CPU: F32 */
    DELTA_RULE_SCATTERED, /* GPUs: the rows of a step are of different slots; the result does not depend on it */
    DELTA_RULE_PARAMS
};

/* Tunables of the kernel for GPUs. */
enum delta_rule_device_param {
    DELTA_RULE_DEVICE_LANES = DELTA_RULE_PARAMS, /* 4, 8, 16 or 32 that share a column of the state */
    DELTA_RULE_DEVICE_WARPS,                     /* of a block, each with other columns; at most 16 */
    DELTA_RULE_DEVICE_PARAMS
};

/* Those of the kernel that takes CHUNK rows of a slot at a time: delta_rule_chunk. */
enum delta_rule_chunk_param {
    DELTA_RULE_CHUNK_ROWS = DELTA_RULE_PARAMS, /* 16 or 32 */
    DELTA_RULE_CHUNK_COLUMN_WARPS,             /* of a block, each with 16 columns of the state: 1 or 2 */
    DELTA_RULE_CHUNK_PARAMS
};

/* Bytes of a layer's part of a slot's state. */
static inline uint64_t delta_rule_state_bytes(uint64_t value_heads, uint64_t key_dim, uint64_t value_dim)
{
    return value_heads * key_dim * value_dim * sizeof(float);
}

static inline float *delta_rule_state(const struct op_call *call, int64_t row, int64_t head)
{
    const int64_t *params = call->params;
    const int32_t *slots = call->operands[DELTA_RULE_SLOTS];
    uint8_t *block = (uint8_t *)call->operands[DELTA_RULE_STATE] + slots[row] * params[DELTA_RULE_RECURRENT_BYTES];
    return (float *)(void *)block + head * params[DELTA_RULE_KEY_DIM] * params[DELTA_RULE_VALUE_DIM];
}

extern const struct op_descriptor op_delta_rule;
extern const struct device_kernel device_delta_rule, device_delta_rule_chunk;
op_cost delta_rule_cost;
/* Why neither kernel for GPUs takes these parameters, NULL if one may; what both read, write and compute. */
const char *delta_rule_device_illegal(const int64_t *params);
op_cost delta_rule_device_cost;
void delta_rule_reference(const struct op_call *call);

#endif
