/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL communicator of all ranks of an engine, in one process or in several. */
#ifndef RUNTIME_LOAD_JOIN_CUDA_H
#define RUNTIME_LOAD_JOIN_CUDA_H

#include "runtime/load/load_engine.h"
#include "runtime/load/load_gpu.h"

/* Whether a plan of the engine calls NCCL: the ranks are in different processes, or a plan is faster with it. */
bool join_cuda_wanted(const struct eng_engine *engine);
/* Opens NCCL as engine->cuda[0].nccl and agrees on an id with the other processes. If this process has all ranks,
 * STATUS_MACHINE means that the engine's other plans are used. */
bool join_cuda_open(struct eng_engine *engine, struct nccl_id *id, struct status *status);
/* Joins as rank `rank` of this process, and waits for all others. Requires: each rank of the process has its own
 * thread. */
bool join_cuda_rank(struct eng_engine *engine, uint32_t rank, const struct nccl_id *id, struct status *status);
/* Waits until all processes have loaded. Fails if one of them has failed. */
bool join_cuda_agree(const struct eng_engine *engine, struct status *status);

#endif
