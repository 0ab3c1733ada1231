/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce by NCCL: the contract of all_reduce.h in two launches, without the COMM space, for ranks that cannot
 * reach each other's memory or are in different processes.
 *
 * For few rows the library call gathers the data of all ranks (all_gather_nccl.h, X as 32-bit words), and the kernel
 * all_reduce_finish forms the sum: the bits of one_shot. For many the call forms the sum, rounded to X_DTYPE as two_shot
 * does, in an order of NCCL's own that is the same on all ranks. In both cases for all ROWS rows; the kernel then adds the
 * residual and forms the norm, of the valid ones. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_NCCL_H
#define KERNELS_ALL_REDUCE_ALL_REDUCE_NCCL_H

#include "formats/engine/engine_file.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/all_reduce_finish/all_reduce_finish.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vendor/nccl.h"

/* The library call: params[0..ALL_REDUCE_DEVICE_THREADS) of the contract, operands of enum all_reduce_call_operand. */
/* Not in the registry, nor is all_reduce_finish: their operands differ from the problem's, so they are no tactics of
 * it. */
extern const struct device_kernel device_all_reduce_nccl;

/* Bytes of X and of the sum; 0: params are not a legal problem. Never trusts a parameter. */
uint64_t all_reduce_nccl_bytes(const int64_t *params);
/* Queues the call on the stream, which may be capturing. */
bool all_reduce_nccl_run(const struct nccl_rank *rank, const int64_t *params, const cu_deviceptr *operands,
                         cu_stream stream, struct status *status);

/* The kernel after it. */
extern const struct device_kernel device_all_reduce_finish;
/* Sets THREADS to suit the rows, and PARTS, for the problem in `params`. Here every rank has every row of the residual
 * and finishes every row, which includes what the problem requires. Either all sums of a plan are formed in this way,
 * or none. */
void all_reduce_finish_params(int64_t *params, int64_t parts);
/* For few rows: the params of the gathering call for the problem, [ALL_GATHER_DEVICE_PARAMS]. */
void all_reduce_gather_params(const int64_t *params, int64_t *gather);

#endif
