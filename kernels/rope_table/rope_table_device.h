/* SPDX-License-Identifier: Apache-2.0 */
/* rope_table on the GPU: the rows' cosines and sines, computed once for all layers.
 *
 *   angle[r, i] = float32(position[r]) * inv_freq[s, i]          rounded to float32; s as in rope_table.h
 *   out[r, i]                = cos(angle[r, i]) * SCALING        i in [0, HEAD_DIM / 2)
 *   out[r, HEAD_DIM / 2 + i] = sin(angle[r, i]) * SCALING
 *
 * Cosines and sines are within 1e-6 (measured: 1.2e-7) for positions and angles up to 2^20. */
#ifndef KERNELS_ROPE_TABLE_ROPE_TABLE_DEVICE_H
#define KERNELS_ROPE_TABLE_ROPE_TABLE_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/rope_table/rope_table.h"

enum rope_table_device_operand {
    ROPE_TABLE_DEVICE_COUNTS,
    ROPE_TABLE_DEVICE_POSITIONS,                          /* i32[ROWS] */
    ROPE_TABLE_DEVICE_INV_FREQ,                           /* f32[1 + SWITCHES, HEAD_DIM / 2], a constant */
    ROPE_TABLE_DEVICE_OUT,                                /* f32[ROWS, HEAD_DIM] */
    ROPE_TABLE_DEVICE_OPERANDS,                           /* with SWITCHES two more: */
    ROPE_TABLE_DEVICE_SLOTS = ROPE_TABLE_DEVICE_OPERANDS, /* i32[ROWS] */
    ROPE_TABLE_DEVICE_ROPE_SET,                           /* i32[slots] */
    ROPE_TABLE_DEVICE_OPERANDS_SWITCHES
};
enum rope_table_device_param {
    ROPE_TABLE_DEVICE_ROWS = ROPE_TABLE_ROWS,
    ROPE_TABLE_DEVICE_COUNT_INDEX = ROPE_TABLE_COUNT_INDEX,
    ROPE_TABLE_DEVICE_HEAD_DIM = ROPE_TABLE_HEAD_DIM,
    ROPE_TABLE_DEVICE_SCALING_BITS = ROPE_TABLE_SCALING_BITS,
    ROPE_TABLE_DEVICE_SWITCHES = ROPE_TABLE_SWITCHES,
    ROPE_TABLE_DEVICE_PARAMS = ROPE_TABLE_PARAMS
};
extern const struct device_kernel device_rope_table;

#endif
