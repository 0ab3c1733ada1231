/* SPDX-License-Identifier: Apache-2.0 */
/* mean_squares: a rank's part of the mean squares of q and of k over all heads of all ranks, for norms over the width where ranks share
 * the heads. all_reduce adds the parts; rope_append takes the sums.
 *
 *   out[r, 0] = sum of the squares of q in qkv[r] / (RANKS * HEADS * HEAD_DIM), out[r, 1] likewise of k; the other columns are 0
 *
 * KV_HEADS 0: of a row without k and v, whose out[r, 1] is 0, too (group_norm).
 * HEADS and KV_HEADS are those of a rank. Where several ranks have the same KV head, as many have every other one, so that the mean
 * over the ranks' heads is the mean over the model's. Float32, relative error 1e-5. GPUs: X_DTYPE of 16 bits; the order of a sum depends
 * on the parameters alone, and `qkv` begins at a multiple of 16 bytes. */
#ifndef KERNELS_MEAN_SQUARES_MEAN_SQUARES_H
#define KERNELS_MEAN_SQUARES_MEAN_SQUARES_H

#include "kernels/mean_squares/mean_squares_layout.cuh"
#include "kernels/op/op.h"

enum mean_squares_operand {
    MEAN_SQUARES_COUNTS,
    MEAN_SQUARES_QKV, /* X_DTYPE[rows, (HEADS + 2 KV_HEADS) * HEAD_DIM] */
    MEAN_SQUARES_OUT, /* f32[rows, MEAN_SQUARES_WIDTH] */
    MEAN_SQUARES_OPERANDS
};
enum mean_squares_param {
    MEAN_SQUARES_ROWS,
    MEAN_SQUARES_COUNT_INDEX,
    MEAN_SQUARES_HEADS,
    MEAN_SQUARES_KV_HEADS, /* 0: there are none */
    MEAN_SQUARES_HEAD_DIM, /* even */
    MEAN_SQUARES_RANKS,    /* 2 to PLAN_MAX_RANKS: the geometry's */
    MEAN_SQUARES_X_DTYPE,  /* CPU: F32 */
    MEAN_SQUARES_PARAMS
};

extern const struct op_descriptor op_mean_squares;
extern const struct device_kernel device_mean_squares;
op_cost mean_squares_cost;
/* MEAN_SQUARES_WIDTH, for schemas of ops that make or take rows of mean squares. */
uint64_t mean_squares_width(const int64_t *params);

#endif
