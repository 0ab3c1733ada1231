/* SPDX-License-Identifier: Apache-2.0 */
/* The library calls of an engine on the device: opens the libraries that they need, checks every call against the
 * library at hand, and queues them. Any thread may check and run. */
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
    struct attention_cudnn_calls *attention; /* owned; there if cudnn is */
    const struct nccl_rank *nccl;            /* borrowed; NULL: no communicator */
    bool borrows;                            /* the libraries are somebody else's */
};

/* Opens what the calls need, each library in the version that they were recorded with; NCCL's are those of a communicator
 * that this rank has joined, in any version that will do. STATUS_MACHINE, with what is to be done, where one is missing or
 * another. No calls: opens nothing. */
bool cuda_calls_open(struct cuda_calls *calls, const struct device *device, const struct engine_call *entries,
                     size_t count, const struct nccl_rank *nccl, struct status *status);
/* Calls of libraries that the caller has open, or not (all zero), until the calls are closed. It may set the entries
 * anew whenever there are more. */
bool cuda_calls_borrow(struct cuda_calls *calls, const struct cublaslt *cublaslt, const struct cudnn *cudnn,
                       const struct nccl_rank *nccl, struct status *status);
/* Not while a graph of such a call is to run. Harmless on one that is all zero. */
void cuda_calls_close(struct cuda_calls *calls, const struct device *device);

/* Checks that the library takes the launch's call for its parameters. In the device's context; likewise below. */
bool cuda_call_check(const struct cuda_calls *calls, const struct plan *plan, const struct plan_launch *launch,
                     struct status *status);
/* Queues the launch on the stream, which may be capturing. operands: device addresses; pool_bytes: of all KV pages. */
bool cuda_call_run(const struct cuda_calls *calls, const struct plan *plan, const struct plan_launch *launch,
                   const cu_deviceptr *operands, uint64_t pool_bytes, cu_stream stream, struct status *status);

#endif
