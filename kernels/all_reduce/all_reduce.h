/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce: out[r, :] = sum over ranks of x[r, :], in rising order of the ranks, so that every rank gets the same
 * bits.
 *
 * Processors: a rank copies x to its buffer, meets the others (rendezvous.h) and reads theirs. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_H
#define KERNELS_ALL_REDUCE_ALL_REDUCE_H

#include "kernels/op/op.h"

enum all_reduce_operand {
    ALL_REDUCE_COUNTS,
    ALL_REDUCE_X,      /* f32[rows, WIDTH]: this rank's part of the sum */
    ALL_REDUCE_HEADER, /* struct comm_header */
    ALL_REDUCE_BUFFER, /* f32[rows, WIDTH] in the COMM space */
    ALL_REDUCE_OUT,    /* f32[rows, WIDTH]; may be X */
    ALL_REDUCE_OPERANDS
};
enum all_reduce_param {
    ALL_REDUCE_ROWS,
    ALL_REDUCE_COUNT_INDEX,
    ALL_REDUCE_WIDTH,
    ALL_REDUCE_RANKS, /* 2 to PLAN_MAX_RANKS: the geometry's */
    ALL_REDUCE_PARAMS
};

extern const struct op_descriptor op_all_reduce;

/* Bytes of the buffer; false when they overflow. */
bool all_reduce_buffer_bytes(uint64_t rows, uint64_t width, uint64_t *bytes);

#endif
