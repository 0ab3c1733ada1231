/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of an engine come to exchange data through NCCL: one communicator of all, in one process or in several. */
#ifndef RUNTIME_LOAD_JOIN_CUDA_H
#define RUNTIME_LOAD_JOIN_CUDA_H

#include "runtime/load/load_cuda.h"

/* Whether a plan of the engine calls NCCL here: ranks in different processes, or a plan that is faster so. */
bool join_cuda_wanted(const struct eng_engine *engine);
/* Opens NCCL and agrees on an id with the other processes, into *id; engine->cuda[0].nccl is open then. In one process
 * STATUS_MACHINE only says that the engine's other plans must serve. */
bool join_cuda_open(struct eng_engine *engine, struct nccl_id *id, struct status *status);
/* Joins as rank `rank` of this process, waiting for all others: by a thread for each. */
bool join_cuda_rank(struct eng_engine *engine, uint32_t rank, const struct nccl_id *id, struct status *status);
/* Behind the load of this process, whether it succeeded or not: all have, or none. */
bool join_cuda_agree(const struct eng_engine *engine, struct status *status);

#endif
