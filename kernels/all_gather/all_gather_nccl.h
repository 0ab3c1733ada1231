/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather by NCCL: the contract of all_gather_device.h in two launches, without the COMM space. The library call puts what
 * the ranks have one behind the other, all ROWS rows; behind it the kernel all_gather_place puts rows side by side. */
#ifndef KERNELS_ALL_GATHER_ALL_GATHER_NCCL_H
#define KERNELS_ALL_GATHER_ALL_GATHER_NCCL_H

#include "formats/engine/engine_file.h"
#include "kernels/all_gather/all_gather_device.h"
#include "kernels/cuda/vendor/nccl.h"

/* The library call: params[0..ALL_GATHER_DEVICE_THREADS) of the contract. */
enum all_gather_nccl_operand {
    ALL_GATHER_NCCL_COUNTS,   /* not read */
    ALL_GATHER_NCCL_X,        /* f32[ROWS, WIDTH] */
    ALL_GATHER_NCCL_GATHERED, /* f32[RANKS, ROWS, WIDTH] */
    ALL_GATHER_NCCL_OPERANDS
};
/* Not in the registry, as all_gather_place: they have other operands than the problem. */
extern const struct device_kernel device_all_gather_nccl;

/* Bytes of an operand but the counts; 0: params that are no problem of it. Never trusts a parameter. */
uint64_t all_gather_nccl_bytes(const int64_t *params, enum all_gather_nccl_operand operand);
/* Queues the call on the stream, which may be capturing. */
bool all_gather_nccl_run(const struct nccl_rank *rank, const int64_t *params, const cu_deviceptr *operands,
                         cu_stream stream, struct status *status);

/* The kernel behind it: params[0..ALL_GATHER_DEVICE_PARAMS), ROWS at most 65535. */
enum all_gather_place_operand {
    ALL_GATHER_PLACE_COUNTS,
    ALL_GATHER_PLACE_GATHERED, /* f32[RANKS, ROWS, WIDTH] */
    ALL_GATHER_PLACE_OUT,      /* f32[ROWS, OUT_WIDTH] */
    ALL_GATHER_PLACE_OPERANDS
};
extern const struct device_kernel device_all_gather_place;

#endif
