/* SPDX-License-Identifier: Apache-2.0 */
/* The library calls of an engine on a device: opens the required libraries, checks every call against the open library,
 * and queues them. Any thread may check and run calls. */
#ifndef KERNELS_CUDA_CALLS_H
#define KERNELS_CUDA_CALLS_H

#include "formats/engine/engine_file.h"
#include "kernels/cuda/vendor/cublaslt.h"
#include "kernels/cuda/vendor/cudnn.h"
#include "kernels/cuda/vendor/nccl.h"

struct attention_cudnn_calls;
struct cuda_calls {
    const struct engine_call *entries; /* borrowed */
    size_t count;
    struct cublaslt cublaslt; /* all zero: no call needs it; likewise cudnn */
    struct cudnn cudnn;
    struct attention_cudnn_calls *attention; /* owned; present if cudnn is */
    const struct nccl_rank *nccl;            /* borrowed; NULL: no communicator */
    bool borrows;                            /* the libraries are owned by the caller */
};

/* Opens the libraries that the calls need, each in the version with which they were recorded; NCCL calls use the given
 * communicator, in any suitable version. STATUS_MACHINE, with the remedy, if a library is missing or has another
 * version. Without calls nothing is opened. */
bool cuda_calls_open(struct cuda_calls *calls, const struct device *device, const struct engine_call *entries,
                     size_t count, const struct nccl_rank *nccl, struct status *status);
/* For libraries that the caller has open (or all zero), until the calls are closed. The caller may replace the entries
 * when there are more. */
bool cuda_calls_borrow(struct cuda_calls *calls, const struct cublaslt *cublaslt, const struct cudnn *cudnn,
                       const struct nccl_rank *nccl, struct status *status);
/* Does nothing if all zero. Requires: no graph with such a call will run. */
void cuda_calls_close(struct cuda_calls *calls, const struct device *device);

/* Checks that the library accepts the launch's call with its parameters. Requires, here and below: the device's context
 * is current. */
bool cuda_call_check(const struct cuda_calls *calls, const struct plan *plan, const struct plan_launch *launch,
                     struct status *status);
/* Queues the launch on the stream, which may be capturing. operands: device addresses; pool_bytes: of all KV pages. */
bool cuda_call_run(const struct cuda_calls *calls, const struct plan *plan, const struct plan_launch *launch,
                   const cu_deviceptr *operands, uint64_t pool_bytes, cu_stream stream, struct status *status);

#endif
