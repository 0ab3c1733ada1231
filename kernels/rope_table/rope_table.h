/* SPDX-License-Identifier: Apache-2.0 */
/* rope_table: cosines and sines of the rotary embedding for the rows of this step, computed once for all layers.
 *
 *   angle[r, i] = float(position[r]) * inv_freq[i]            (float32 product, as transformers computes it)
 *   out[r, i]                = cos(angle[r, i]) * SCALING      i in [0, HEAD_DIM / 2)
 *   out[r, HEAD_DIM / 2 + i] = sin(angle[r, i]) * SCALING */
#ifndef KERNELS_ROPE_TABLE_ROPE_TABLE_H
#define KERNELS_ROPE_TABLE_ROPE_TABLE_H

#include "kernels/op/op.h"

enum rope_table_operand {
    ROPE_TABLE_COUNTS,
    ROPE_TABLE_POSITIONS, /* i32[rows] */
    ROPE_TABLE_INV_FREQ,  /* f32[HEAD_DIM / 2] */
    ROPE_TABLE_OUT,       /* f32[rows, HEAD_DIM] */
    ROPE_TABLE_OPERANDS
};
enum rope_table_param {
    ROPE_TABLE_ROWS,
    ROPE_TABLE_COUNT_INDEX,
    ROPE_TABLE_HEAD_DIM,     /* even */
    ROPE_TABLE_SCALING_BITS, /* float bits: attention scaling of yarn, else 1 */
    ROPE_TABLE_PARAMS
};

extern const struct op_descriptor op_rope_table;

#endif
