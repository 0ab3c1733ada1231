/* SPDX-License-Identifier: Apache-2.0 */
/* An engine on GPUs: weights and kernels, shared by all sessions. engine->cuda has one element for each rank. */
#ifndef RUNTIME_LOAD_LOAD_CUDA_H
#define RUNTIME_LOAD_LOAD_CUDA_H

#include "runtime/load/load_engine.h"
#include "runtime/load/load_gpu.h"

/* Opens GPU ordinals[r], which the driver counts as indices[r], as engine->cuda[r] for each rank r. Checks that it has
 * the compute capability of the engine's code, and that all are of one model. no_peer_access: ranks exchange data
 * through host memory, as if they had no access to each other's memory. */
bool load_cuda_open(struct eng_engine *engine, const int *ordinals, const int *indices, bool no_peer_access,
                    struct status *status);
/* Checks the memory contract, then loads kernels and weights on all GPUs at the same time and verifies every weight
 * chunk. Opens the libraries that the engine calls. If one is missing, has another version or refuses a recorded call,
 * the engine's own kernels are used, and `fallback` says why. Requires: the engine's plans have been checked. */
bool load_cuda_fill(struct eng_engine *engine, uint32_t threads, struct status *status);
/* The plan that runs as engine plan `index`: one that calls libraries if they are available. cuda NULL: the engine's
 * own. */
const struct plan *load_cuda_plan(const struct engine *file, const struct load_cuda *cuda, size_t index);
/* For several processes, while a step runs: false once one of them or NCCL has failed. */
bool load_cuda_is_well(struct eng_engine *engine, const struct load_cuda *cuda, struct status *status);
void load_cuda_close(struct eng_engine *engine); /* does nothing if nothing is open */

#endif
