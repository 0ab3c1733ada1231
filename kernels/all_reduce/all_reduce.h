/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce: out[r, :] = sum over ranks of x[r, :], in rising order of the ranks, so that every rank gets the same
 * bits.
 *
 * Processors: a rank copies x to its buffer, meets the others (rendezvous.h) and reads theirs.
 *
 * GPUs: out[r, :] = residual[r, :] + sum over ranks of x[r, :], and normed[r, :] = out[r, :] /
 * sqrt(mean(out[r, :]^2) + EPS) * weight: the sum that tensor parallelism needs after a matmul, and what follows it.
 *
 * Many rows need not have their residual on every rank: row r of x belongs to rank r % RANKS, and where HAS_RESIDUAL is
 * ALL_REDUCE_OWN_ROWS, a rank reads the residual of its own rows only; where HAS_NORM is, a row's owner forms its norm, for all
 * ranks, and `out` gets the rank's own rows only, the others stay as they were. (Sequence parallelism: Korthikanti et al., 2022,
 * arXiv:2205.05198, section 4.2.2.)
 *
 * The sum is formed in float32 in rising order of the ranks, so that all ranks have the same bits; two_shot rounds it to
 * X_DTYPE unless one of the two is ALL_REDUCE_OWN_ROWS, one_shot does not. The order of the norm's sum depends on WIDTH and
 * the tunables alone. Two ways over the link: one_shot for few rows, two_shot for many; comm.cuh says how ranks exchange. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_H
#define KERNELS_ALL_REDUCE_ALL_REDUCE_H

#include "kernels/op/op.h"

enum all_reduce_operand {
    ALL_REDUCE_COUNTS,
    ALL_REDUCE_X,        /* X_DTYPE[rows, WIDTH]: this rank's part of the sum */
    ALL_REDUCE_HEADER,   /* struct comm_header */
    ALL_REDUCE_BUFFER,   /* all_reduce_buffer_bytes in the COMM space */
    ALL_REDUCE_OUT,      /* f32[rows, WIDTH]; may be X (CPU) or RESIDUAL */
    ALL_REDUCE_RESIDUAL, /* HAS_RESIDUAL: f32[rows, WIDTH] */
    ALL_REDUCE_NORM,     /* HAS_NORM: NORM_DTYPE[WIDTH], a constant */
    ALL_REDUCE_NORMED,   /* HAS_NORM: OUT_DTYPE[rows, WIDTH] */
    ALL_REDUCE_OPERANDS
};
/* OWN_ROWS: a rank has only the rows that it owns. */
enum all_reduce_rows { ALL_REDUCE_NO_ROWS, ALL_REDUCE_EVERY_ROW, ALL_REDUCE_OWN_ROWS };
enum all_reduce_param {
    ALL_REDUCE_ROWS,
    ALL_REDUCE_COUNT_INDEX,
    ALL_REDUCE_WIDTH,
    ALL_REDUCE_RANKS, /* 2 to PLAN_MAX_RANKS: the geometry's */
    ALL_REDUCE_X_DTYPE,
    ALL_REDUCE_HAS_RESIDUAL, /* enum all_reduce_rows; likewise HAS_NORM; CUDA */
    ALL_REDUCE_HAS_NORM,
    ALL_REDUCE_NORM_DTYPE,
    ALL_REDUCE_EPS_BITS, /* bits of a float32 >= 0 */
    ALL_REDUCE_OUT_DTYPE,
    ALL_REDUCE_PARAMS
};

/* GPUs: tunables of the kernels. */
enum all_reduce_device_param {
    ALL_REDUCE_DEVICE_THREADS = ALL_REDUCE_PARAMS, /* of a block, a multiple of 32 up to 1024 */
    /* one_shot: CLUSTER, blocks that share a row, 1, 2, 4 or 8; more than 1 only from compute capability 9.0 on.
     * two_shot: BLOCKS, of each half of the grid; at most as many as are resident at once. */
    ALL_REDUCE_DEVICE_BLOCKS,
    ALL_REDUCE_DEVICE_HALVES, /* two_shot: 1, every block does all in turn; 2, blocks that sum, and the others */
    ALL_REDUCE_DEVICE_PARAMS,
    ALL_REDUCE_ONE_SHOT_PARAMS = ALL_REDUCE_DEVICE_HALVES
};

extern const struct op_descriptor op_all_reduce;
extern const struct device_kernel device_all_reduce_one_shot, device_all_reduce_two_shot;
/* Why the problem is illegal for all kernels of GPUs; NULL: it is legal. Never trusts a parameter. */
const char *all_reduce_device_illegal(const int64_t *params);

/* The operands of a library's call, which forms the sum alone and has no part in the COMM space. */
enum all_reduce_call_operand {
    ALL_REDUCE_CALL_COUNTS, /* not read */
    ALL_REDUCE_CALL_X,      /* X_DTYPE[rows, WIDTH] */
    ALL_REDUCE_CALL_SUM,    /* the same */
    ALL_REDUCE_CALL_OPERANDS
};

/* Bytes of a buffer that serves every way to solve the problem in params on the target; false on overflow. */
bool all_reduce_buffer_bytes(const int64_t *params, enum engine_target target, uint64_t *bytes);

/* GPUs: whether one_shot serves messages of this many bytes of a rank. */
bool all_reduce_device_is_one_shot(uint64_t message, uint64_t ranks);
/* Whether a problem of that size is too large for one_shot. */
bool all_reduce_device_is_large(uint64_t rows, uint64_t width, uint64_t ranks, enum dtype dtype);
/* Bytes of a buffer that serves every tactic of the problem. `dtype`: X_DTYPE; `given`: F32 if only HAS_RESIDUAL is
 * ALL_REDUCE_OWN_ROWS, else the larger of X_DTYPE and OUT_DTYPE. */
bool all_reduce_device_buffer_bytes(uint64_t rows, uint64_t width, uint64_t ranks, enum dtype dtype, enum dtype given,
                                    uint64_t *bytes);

#endif
