/* SPDX-License-Identifier: Apache-2.0 */
/* An engine on a GPU, or on several: weights and kernels, there once for all sessions. engine->cuda is an array with an
 * element for each rank. */
#ifndef RUNTIME_LOAD_LOAD_CUDA_H
#define RUNTIME_LOAD_LOAD_CUDA_H

#include "kernels/cuda/comm.h"
#include "kernels/cuda/executor.h"
#include "runtime/load/load.h"

struct load_cuda {
    struct device device;
    cu_deviceptr weights;
    struct cuda_kernels kernels;
    struct cuda_calls calls;
    bool uses_libraries;        /* plans that call libraries take the place of their counterparts */
    char *fallback;             /* why they do not, though the engine has some; owned */
    bool is_apart;              /* the ranks are in different processes */
    struct nccl nccl;           /* rank 0 of the process: open where nccl_rank has joined */
    struct nccl_rank nccl_rank; /* where a plan calls NCCL */
    enum cuda_link link;        /* several ranks of this process: the same for all */
    char *detour;               /* rank 0: why they exchange through the host's memory; NULL: they do not; owned */
    uint64_t free_bytes, contract_bytes; /* before anything was taken; what weights and kernels were to take of it */
    double nominal_gb_per_second;        /* of the device's memory; 0: unknown */
};

/* Opens GPU ordinals[r], which the driver counts as indices[r], for rank r as engine->cuda[r] and checks that it is of the
 * kind the engine's code is for; several must be of one model. no_peer_access: they exchange through the host's memory, as
 * where they have no access to each other's. */
bool load_cuda_open(struct eng_engine *engine, const int *ordinals, const int *indices, bool no_peer_access,
                    struct status *status);
/* Checks the memory contract, then brings kernels and weights to the GPUs, to all at once; every weight chunk is verified.
 * Opens the libraries that the engine calls; where one is missing, another version, or refuses a recorded call, the engine's own
 * kernels serve instead, and `fallback` says why. The engine's plans have been checked. */
bool load_cuda_fill(struct eng_engine *engine, uint32_t threads, struct status *status);
/* The plan that computes engine plan `index` here: the one that calls libraries where these are there. cuda NULL: the
 * engine's own. */
const struct plan *load_cuda_plan(const struct engine *file, const struct load_cuda *cuda, size_t index);
/* While a step runs in several processes: false once one of them has failed, or what carries their data has. */
bool load_cuda_is_well(struct eng_engine *engine, const struct load_cuda *cuda, struct status *status);
void load_cuda_close(struct eng_engine *engine); /* harmless when nothing is open */

#endif
