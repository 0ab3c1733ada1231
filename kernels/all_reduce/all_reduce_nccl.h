/* all_reduce by NCCL: the contract of all_reduce_device.h in two launches, without the COMM space, for ranks that cannot
 * reach each other's memory or are in different processes. The library call forms the sum alone, of all ROWS rows, rounded
 * to X_DTYPE, in an order of NCCL's own that is the same on all ranks; behind it the kernel all_reduce_finish adds the
 * residual and forms the norm. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_NCCL_H
#define KERNELS_ALL_REDUCE_ALL_REDUCE_NCCL_H

#include "formats/engine_file.h"
#include "kernels/all_reduce/all_reduce_device.h"
#include "kernels/cuda/nccl.h"

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

/* The kernel behind it: params[0..ALL_REDUCE_DEVICE_BLOCKS), THREADS being tunable: a multiple of 32 up to 1024 that holds
 * a row in registers. */
enum all_reduce_finish_operand {
    ALL_REDUCE_FINISH_COUNTS,
    ALL_REDUCE_FINISH_SUM, /* X_DTYPE[ROWS, WIDTH] */
    ALL_REDUCE_FINISH_OUT, /* f32[ROWS, WIDTH]; may be the residual */
    /* behind it as behind ALL_REDUCE_DEVICE_OUT */
    ALL_REDUCE_FINISH_OPERANDS = 6
};
extern const struct device_kernel device_all_reduce_finish;
/* Sets THREADS for the problem in `params`, as well as rows allow. */
void all_reduce_finish_threads(int64_t *params);

#endif
