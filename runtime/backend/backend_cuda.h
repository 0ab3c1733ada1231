/* SPDX-License-Identifier: Apache-2.0 */
/* A session's part of a GPU, for backend_cuda.c, and how the host waits for it (backend_cuda_wait.c). */
#ifndef RUNTIME_BACKEND_BACKEND_CUDA_H
#define RUNTIME_BACKEND_BACKEND_CUDA_H

#include <stdatomic.h>

#include "runtime/backend/state_shadow.h"
#include "runtime/backend/step_pace.h"
#include "runtime/backend/step_wait.h"
#include "runtime/load/host_memory.h"
#include "runtime/load/load_cuda.h"
#include "runtime/load/memory_contract.h"

/* A bound plan and the offsets in its step block that the host accesses. Unless copies_tokens, its kernels write the tokens into
 * the host's memory: bound[i] into next_tokens[i]. Plans that are never queued after another have bound[0] alone. */
struct cuda_step {
    struct cuda_plan bound[MEMORY_CONTRACT_MOST_GRAPHS];
    int bound_count;
    /* The same in two graphs, before the sampler and from it on; launch_count 0: the plan is not divided. */
    struct cuda_plan layers, rest[MEMORY_CONTRACT_MOST_GRAPHS];
    const struct plan *source; /* the plan that is bound */
    uint64_t input_bytes;      /* from the block's beginning to the end of the last input field */
    uint64_t counts_offset, next_tokens_offset, drafted_offset, logits_offset, hidden_offset;
    bool takes_turns; /* launches whose blocks wait for each other, on one rank */
    struct step_wait wait;
};

enum { NOT_ARRIVED = INT32_MIN }; /* no token */
_Static_assert((int)MEMORY_CONTRACT_MOST_GRAPHS == (int)BACKEND_MOST_IN_FLIGHT, "a graph for each replay in flight");

struct cuda_backend {
    struct backend common;
    uint32_t rank; /* among the engine's ranks */
    struct eng_engine *owner;
    const struct load_cuda *engine;
    const struct manifest *manifest;
    struct device device; /* the engine's device, with a stream of this session */
    char architecture[16];
    struct cuda_memory memory; /* owned, except the weights */
    struct cuda_step *plans;   /* [plan_count] as in the file, bound to the plans of load_cuda_plan or the file's own */
    char *fallback;            /* owns common.fallback if it is the session's own */
    size_t plan_count;

    uint8_t *pinned;          /* holds common.step, next_tokens, common.state; several ranks: *fault */
    volatile uint32_t *fault; /* 0, or 1 + the rank that did not answer a kernel */
    cu_stream stop_stream;    /* several ranks */
    atomic_bool stopping;     /* kernels were told to stop: they end at once or never */
    int32_t *next_tokens[BACKEND_MOST_IN_FLIGHT], *drafted[BACKEND_MOST_IN_FLIGHT]; /* drafted NULL: none */
    bool copies_tokens; /* from the step block: several ranks, or launches of the plans read them */
    /* Recorded when the tokens are in next_tokens: one that the driver can sleep for if `sleeps`, which costs a thread of the
     * driver's at each step, whether a thread waits or not; else the other one. */
    cu_event done[BACKEND_MOST_IN_FLIGHT][2];
    bool sleeps[BACKEND_MOST_IN_FLIGHT];
    bool sampled_late[BACKEND_MOST_IN_FLIGHT]; /* as backend_type.sample was told */
    /* The tokens of a replay, one of next_tokens, NOT_ARRIVED until they are there; count 0: only the event tells. */
    int32_t *awaited[BACKEND_MOST_IN_FLIGHT], awaited_count[BACKEND_MOST_IN_FLIGHT];
    uint64_t out_rows; /* of a step at most */
    struct host_memory
        results; /* logits [out_rows, vocab_size], hidden states [out_rows, hidden_size]; touched when fetched */
    struct state_shadow shadow;
    uint32_t checkpoints; /* blocks of recurrent state besides those of the slots */

    uint64_t submitted, waited; /* counts; replay n uses `done` and `awaited` at n % BACKEND_MOST_IN_FLIGHT */
    size_t last_plan;           /* submitted */
    int32_t last_out_rows;      /* valid out rows of it */
    size_t done_plan;           /* waited for */
    struct step_pace pace;      /* of steps with another one queued after them */
};

/* Event after the tokens of replay number `replay`. */
static inline cu_event done_event(const struct cuda_backend *cuda, uint64_t replay)
{
    const uint64_t turn = replay % BACKEND_MOST_IN_FLIGHT;
    return cuda->done[turn][cuda->sleeps[turn]];
}

/* Several ranks: longer than the time limit of kernels, so that the kernel reports first. Seconds. */
#define CUDA_LONGEST_STEP (2.0 * (double)CUDA_COMM_TIMEOUT_NS * 1e-9 - 1.0)

/* Several ranks: fails if another rank did not answer a kernel. */
bool cuda_check_fault(struct cuda_backend *cuda, struct status *status);
/* Polls until the event has completed or `longest` seconds have passed. Does not sleep in the first 0.1 s, since steps
 * take milliseconds. *lost (may be NULL) is set if another process or NCCL has failed. */
cu_result cuda_poll_event(const struct cuda_backend *cuda, cu_event event, double longest, struct status *lost);
/* Waits for the oldest replay in flight, whose plan is cuda->done_plan. Requires: the device's context is current. */
bool cuda_wait(struct cuda_backend *cuda, struct status *status);

#endif
