/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce on GPUs: out[r, :] = residual[r, :] + sum over ranks of x[r, :], and normed[r, :] = out[r, :] /
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
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_DEVICE_H
#define KERNELS_ALL_REDUCE_ALL_REDUCE_DEVICE_H

#include "kernels/all_reduce/all_reduce.h"
#include "kernels/cuda/kernel.h"

enum all_reduce_device_operand {
    ALL_REDUCE_DEVICE_COUNTS,
    ALL_REDUCE_DEVICE_X,      /* X_DTYPE[ROWS, WIDTH] */
    ALL_REDUCE_DEVICE_HEADER, /* struct comm_header */
    ALL_REDUCE_DEVICE_BUFFER, /* all_reduce_device_buffer_bytes in the COMM space, empty (comm.cuh) */
    ALL_REDUCE_DEVICE_OUT,    /* f32[ROWS, WIDTH]; may be the residual */
    /* after it, in this order: with HAS_RESIDUAL f32[ROWS, WIDTH]; with HAS_NORM NORM_DTYPE[WIDTH], a constant, and
     * OUT_DTYPE[ROWS, WIDTH], the normed rows */
    ALL_REDUCE_DEVICE_OPERANDS = 8
};
enum all_reduce_device_param {
    ALL_REDUCE_DEVICE_ROWS = ALL_REDUCE_ROWS,
    ALL_REDUCE_DEVICE_COUNT_INDEX = ALL_REDUCE_COUNT_INDEX,
    ALL_REDUCE_DEVICE_WIDTH = ALL_REDUCE_WIDTH,
    ALL_REDUCE_DEVICE_RANKS = ALL_REDUCE_RANKS,
    ALL_REDUCE_DEVICE_X_DTYPE = ALL_REDUCE_X_DTYPE,
    ALL_REDUCE_DEVICE_HAS_RESIDUAL = ALL_REDUCE_HAS_RESIDUAL,
    ALL_REDUCE_DEVICE_HAS_NORM = ALL_REDUCE_HAS_NORM,
    ALL_REDUCE_DEVICE_NORM_DTYPE = ALL_REDUCE_NORM_DTYPE,
    ALL_REDUCE_DEVICE_EPS_BITS = ALL_REDUCE_EPS_BITS,
    ALL_REDUCE_DEVICE_OUT_DTYPE = ALL_REDUCE_OUT_DTYPE,
    ALL_REDUCE_DEVICE_THREADS = ALL_REDUCE_PARAMS, /* tunable: of a block, a multiple of 32 up to 1024 */
    /* tunable. one_shot: CLUSTER, blocks that share a row, 1, 2, 4 or 8; more than 1 only from compute capability 9.0
     * on. two_shot: BLOCKS, of each half of the grid; at most as many as are resident at once. */
    ALL_REDUCE_DEVICE_BLOCKS,
    ALL_REDUCE_DEVICE_HALVES, /* tunable of two_shot: 1, every block does all in turn; 2, blocks that sum, and the others */
    ALL_REDUCE_DEVICE_PARAMS,
    ALL_REDUCE_ONE_SHOT_PARAMS = ALL_REDUCE_DEVICE_HALVES
};
extern const struct device_kernel device_all_reduce_one_shot, device_all_reduce_two_shot;

/* Why params[0..ALL_REDUCE_DEVICE_BLOCKS) are illegal for all its kernels; NULL: they are legal. Never trusts a
 * parameter. */
const char *all_reduce_device_illegal(const int64_t *params);
#endif
