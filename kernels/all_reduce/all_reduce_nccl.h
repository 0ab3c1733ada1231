/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce by NCCL: the contract of all_reduce_device.h in two launches, without the COMM space, for ranks that cannot
 * reach each other's memory or are in different processes.
 *
 * Of few rows the library call gathers what all ranks have (all_gather_nccl.h, X as 32-bit words), and the kernel
 * all_reduce_finish forms the sum: the bits of one_shot. Of many the call forms the sum, rounded to X_DTYPE as two_shot
 * does, in an order of NCCL's own that is the same on all ranks. In both cases of all ROWS rows; the kernel then adds the
 * residual and forms the norm, of the valid ones. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_NCCL_H
#define KERNELS_ALL_REDUCE_ALL_REDUCE_NCCL_H

#include "formats/engine/engine_file.h"
#include "kernels/all_reduce/all_reduce_device.h"
#include "kernels/cuda/vendor/nccl.h"

/* The library call: params[0..ALL_REDUCE_DEVICE_THREADS) of the contract. */
enum all_reduce_nccl_operand {
    ALL_REDUCE_NCCL_COUNTS, /* not read */
    ALL_REDUCE_NCCL_X,      /* X_DTYPE[ROWS, WIDTH] */
    ALL_REDUCE_NCCL_SUM,    /* the same */
    ALL_REDUCE_NCCL_OPERANDS
};
/* Not in the registry, as all_reduce_finish: they are no tactics of the problem, since they have other operands. */
extern const struct device_kernel device_all_reduce_nccl;

/* Bytes of X and of the sum; 0: params that are no problem of it. Never trusts a parameter. */
uint64_t all_reduce_nccl_bytes(const int64_t *params);
/* Queues the call on the stream, which may be capturing. */
bool all_reduce_nccl_run(const struct nccl_rank *rank, const int64_t *params, const cu_deviceptr *operands,
                         cu_stream stream, struct status *status);

/* The kernel behind it: the contract's params up to THREADS, then PARTS. THREADS: a multiple of 32 up to 1024 that holds a row in
 * registers. */
enum {
    ALL_REDUCE_FINISH_PARTS = ALL_REDUCE_DEVICE_THREADS + 1, /* 1: the sum; RANKS: its terms */
    ALL_REDUCE_FINISH_PARAMS
};
enum all_reduce_finish_operand {
    ALL_REDUCE_FINISH_COUNTS,
    ALL_REDUCE_FINISH_SUM, /* X_DTYPE[PARTS, ROWS, WIDTH] */
    ALL_REDUCE_FINISH_OUT, /* f32[ROWS, WIDTH]; may be the residual */
    /* behind it as behind ALL_REDUCE_DEVICE_OUT */
    ALL_REDUCE_FINISH_OPERANDS = 6
};
extern const struct device_kernel device_all_reduce_finish;
/* Sets THREADS, as well as rows allow, and PARTS for the problem in `params`. Every rank has every row of the residual here,
 * and finishes every row: what the problem asks for, and more. All sums of a plan are formed so, or none. */
void all_reduce_finish_params(int64_t *params, int64_t parts);
/* Of few rows: the params of the gathering call for the problem, [ALL_GATHER_DEVICE_PARAMS]. */
void all_reduce_gather_params(const int64_t *params, int64_t *gather);

#endif
