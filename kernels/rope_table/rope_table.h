/* SPDX-License-Identifier: Apache-2.0 */
/* rope_table: cosines and sines of the rotary embedding for the rows of this step, computed once for all layers.
 *
 *   angle[r, i] = float(position[r]) * inv_freq[s, i]         (float32 product, as transformers computes it)
 *   out[r, i]                = cos(angle[r, i]) * SCALING      i in [0, HEAD_DIM / 2)
 *   out[r, HEAD_DIM / 2 + i] = sin(angle[r, i]) * SCALING
 *
 * HEAD_DIM is that of the rotated part of a head. s is 0, or with SWITCHES (longrope) 1 where the slot of the row has a
 * rope_set other than 0.
 *
 * GPUs: cosines and sines are within 1e-6 (measured: 1.2e-7) for positions and angles up to 2^20. */
#ifndef KERNELS_ROPE_TABLE_ROPE_TABLE_H
#define KERNELS_ROPE_TABLE_ROPE_TABLE_H

#include "kernels/op/op.h"

enum rope_table_operand {
    ROPE_TABLE_COUNTS,
    ROPE_TABLE_POSITIONS, /* i32[rows] */
    ROPE_TABLE_INV_FREQ,  /* f32[1 + SWITCHES, HEAD_DIM / 2] */
    ROPE_TABLE_OUT,       /* f32[rows, HEAD_DIM] */
    ROPE_TABLE_SLOTS,     /* SWITCHES: i32[rows] */
    ROPE_TABLE_ROPE_SET,  /* SWITCHES: i32[slots] */
    ROPE_TABLE_OPERANDS
};
enum rope_table_param {
    ROPE_TABLE_ROWS,
    ROPE_TABLE_COUNT_INDEX,
    ROPE_TABLE_HEAD_DIM,     /* even */
    ROPE_TABLE_SCALING_BITS, /* float bits: attention scaling of yarn and longrope, else 1 */
    ROPE_TABLE_SWITCHES,     /* 1: two sets of frequencies; 0: one */
    ROPE_TABLE_PARAMS
};

extern const struct op_descriptor op_rope_table;
extern const struct device_kernel device_rope_table;
op_cost rope_table_cost;

#endif
