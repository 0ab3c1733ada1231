/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather: the columns of all ranks side by side, out[r, k * WIDTH + c] = x of rank k [r, c], for the columns below
 * OUT_WIDTH: the last ranks' columns beyond it are padding. Every rank gets all of out.
 *
 * Processors: a rank copies x to its buffer, meets the others (rendezvous.h) and reads theirs.
 * GPUs: bit for bit but for one NaN (comm.cuh, which says how ranks exchange, too). */
#ifndef KERNELS_ALL_GATHER_ALL_GATHER_H
#define KERNELS_ALL_GATHER_ALL_GATHER_H

#include "kernels/op/op.h"

enum all_gather_operand {
    ALL_GATHER_COUNTS,
    ALL_GATHER_X,      /* f32[rows, WIDTH]: this rank's columns */
    ALL_GATHER_HEADER, /* struct comm_header */
    ALL_GATHER_BUFFER, /* CPU: f32[rows, WIDTH], CUDA: f32[RANKS, rows, WIDTH] in the COMM space */
    ALL_GATHER_OUT,    /* f32[rows, OUT_WIDTH] */
    ALL_GATHER_OPERANDS
};
enum all_gather_param {
    ALL_GATHER_ROWS,
    ALL_GATHER_COUNT_INDEX,
    ALL_GATHER_WIDTH,
    ALL_GATHER_OUT_WIDTH, /* at most RANKS * WIDTH */
    ALL_GATHER_RANKS,     /* 2 to PLAN_MAX_RANKS: the geometry's */
    ALL_GATHER_PARAMS
};

/* GPUs: tunables of the kernel. */
enum all_gather_device_param {
    ALL_GATHER_DEVICE_THREADS = ALL_GATHER_PARAMS, /* of a block, a multiple of 32 up to 1024 */
    ALL_GATHER_DEVICE_PARAMS
};

extern const struct op_descriptor op_all_gather;
extern const struct device_kernel device_all_gather;

/* The operands of a library's call, which has no part in the COMM space. */
enum all_gather_call_operand {
    ALL_GATHER_CALL_COUNTS,   /* not read */
    ALL_GATHER_CALL_X,        /* f32[rows, WIDTH] */
    ALL_GATHER_CALL_GATHERED, /* f32[RANKS, rows, WIDTH] */
    ALL_GATHER_CALL_OPERANDS
};

/* Bytes of a buffer with places for the columns of `ranks` ranks; false when they overflow. */
bool all_gather_buffer_bytes(uint64_t rows, uint64_t width, uint64_t ranks, uint64_t *bytes);

#endif
