/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of an engine on its GPU: weights and kernels, shared by all sessions. */
#ifndef RUNTIME_LOAD_LOAD_GPU_H
#define RUNTIME_LOAD_LOAD_GPU_H

#include "kernels/cuda/comm.h"
#include "kernels/cuda/executor.h"

struct load_cuda {
    struct device device;
    cu_deviceptr weights;
    struct cuda_kernels kernels;
    struct cuda_calls calls;
    bool uses_libraries;        /* plans that call libraries replace their counterparts */
    char *fallback;             /* why not, if the engine has such plans; owned */
    bool is_apart;              /* the ranks are in different processes */
    struct nccl nccl;           /* rank 0 of the process: open if nccl_rank has joined */
    struct nccl_rank nccl_rank; /* used if a plan calls NCCL */
    enum cuda_link link;        /* the same for all ranks of this process */
    char *detour;               /* rank 0: why ranks exchange data through host memory; NULL: they do not; owned */
    uint64_t free_bytes, contract_bytes; /* free before loading; predicted for weights and kernels */
    double nominal_gb_per_second;        /* of the device's memory; 0: unknown */
};

#endif
