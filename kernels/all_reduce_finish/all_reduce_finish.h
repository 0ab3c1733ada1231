/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce_finish: what follows a library's all_reduce (device targets; all_reduce_nccl.h):
 *   out[r, :] = residual[r, :] + sum over p of sum[p, r, :],
 *   normed[r, :] = out[r, :] / sqrt(mean(out[r, :]^2) + EPS) * norm. */
#ifndef KERNELS_ALL_REDUCE_FINISH_ALL_REDUCE_FINISH_H
#define KERNELS_ALL_REDUCE_FINISH_ALL_REDUCE_FINISH_H

#include "kernels/all_reduce/all_reduce.h"

enum all_reduce_finish_operand {
    ALL_REDUCE_FINISH_COUNTS,
    ALL_REDUCE_FINISH_SUM,      /* X_DTYPE[PARTS, rows, WIDTH] */
    ALL_REDUCE_FINISH_OUT,      /* f32[rows, WIDTH]; may be RESIDUAL */
    ALL_REDUCE_FINISH_RESIDUAL, /* HAS_RESIDUAL: f32[rows, WIDTH] */
    ALL_REDUCE_FINISH_NORM,     /* HAS_NORM: NORM_DTYPE[WIDTH], a constant */
    ALL_REDUCE_FINISH_NORMED,   /* HAS_NORM: OUT_DTYPE[rows, WIDTH] */
    ALL_REDUCE_FINISH_OPERANDS
};
/* Those of all_reduce (HAS_RESIDUAL and HAS_NORM: never ALL_REDUCE_OWN_ROWS), then: */
enum all_reduce_finish_param {
    ALL_REDUCE_FINISH_THREADS = ALL_REDUCE_PARAMS, /* of a block: a multiple of 32 up to 1024 */
    ALL_REDUCE_FINISH_PARTS,                       /* 1: the library formed the sum; RANKS: it gathered the terms */
    ALL_REDUCE_FINISH_PARAMS
};

extern const struct op_descriptor op_all_reduce_finish;

#endif
