/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather by NCCL: the contract of all_gather.h in two launches, without the COMM space. The library call
 * concatenates the ranks' data, all ROWS rows; then the kernel all_gather_place puts rows side by side. */
#ifndef KERNELS_ALL_GATHER_ALL_GATHER_NCCL_H
#define KERNELS_ALL_GATHER_ALL_GATHER_NCCL_H

#include "formats/engine/engine_file.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_gather_place/all_gather_place.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/vendor/nccl.h"

/* The library call: params[0..ALL_GATHER_DEVICE_THREADS) of the contract, operands of enum all_gather_call_operand. */
/* Not in the registry, nor is all_gather_place: their operands differ from the problem's. */
extern const struct device_kernel device_all_gather_nccl;

/* Bytes of an operand other than the counts; 0: params are not a legal problem. Never trusts a parameter. */
uint64_t all_gather_nccl_bytes(const int64_t *params, enum all_gather_call_operand operand);
/* Queues the call on the stream, which may be capturing. */
bool all_gather_nccl_run(const struct nccl_rank *rank, const int64_t *params, const cu_deviceptr *operands,
                         cu_stream stream, struct status *status);

/* The kernel after it; ROWS at most 65535. */
extern const struct device_kernel device_all_gather_place;

#endif
