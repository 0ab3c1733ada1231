/* SPDX-License-Identifier: Apache-2.0 */
/* What replays an engine's plans for one session: the host's cores (backend_cpu.c) or a GPU (backend_cuda.c).
 *
 * The session fills the input fields of a step and the rows of the STATE space on the host, announces the rows that it
 * changed, submits a plan and waits for the tokens that it drew. On the CPU these arrays are the spaces themselves. A
 * device has spaces of its own: inputs and changed rows go there with the next submit, and what its replays do to the
 * state is repeated on the host's copy (backend_type.drew).
 *
 * A replay that was submitted may run at any time until it has been waited for. A failed call leaves the backend good
 * for nothing but destroy. One thread at a time. */
#ifndef RUNTIME_BACKEND_BACKEND_H
#define RUNTIME_BACKEND_BACKEND_H

#include "runtime/load/load.h"

/* What a session asks for. */
struct backend_options {
    uint32_t threads;            /* as in struct eng_session_options; likewise below */
    const char *instruction_set; /* or NULL */
    uint64_t kv_tokens, kv_bytes;
    uint64_t host_bytes; /* of the session itself: part of the memory contract */
    uint32_t rank;       /* of this backend, among the engine's ranks: whose share of the weights it works with */
    uint64_t pages;      /* 0, or of the KV pool, memory for which has been checked */
};

/* What changed of a slot's state, as bits. */
enum backend_state { BACKEND_PAGES = 1, BACKEND_SAMPLER = 2, BACKEND_SEEN = 4, BACKEND_STATE_ALL = 7 };

/* Where the inputs of a replay come from: the host's fields, or what the last replay, of the same decode plan, left in
 * the step block: the same rows, each with the token that it drew, one position on. */
enum backend_inputs { INPUTS_FROM_HOST, INPUTS_OF_LAST_REPLAY };

/* Most replays that may be submitted and not waited for. */
enum { BACKEND_MOST_IN_FLIGHT = 2 };

/* Whose fault it is that a rank failed, from its own to the others'. */
enum backend_failure {
    BACKEND_FAILED,  /* its own */
    BACKEND_WAITED,  /* it has waited for another rank in vain */
    BACKEND_STOPPED, /* it was told to stop */
};

/* The common part of every backend; filled by create, constant afterwards. */
struct backend {
    const struct backend_type *type;
    uint8_t *step;                     /* on the host, as step_layout of the plan at hand: fields up to STEP_OUT_ROWS */
    uint8_t *state;                    /* on the host, as state_layout */
    uint32_t pages;                    /* of the KV pool */
    uint32_t threads;                  /* that compute */
    const char *instruction_set;       /* constant text */
    const char *device_name;           /* NULL: the host */
    uint64_t host_bytes, device_bytes; /* private memory, the KV pool among it */
    uint64_t kv_bytes;
    uint64_t device_contract_bytes, device_taken_bytes; /* as in struct eng_session_facts; 0 on the host */
    double graph_seconds;
    uint64_t comm;                /* several ranks: address of the COMM space, as connect() wants it */
    enum backend_failure failure; /* of the last call that failed */
    const char *fallback; /* why the engine's own plans stand in for some that call libraries; NULL: they do not */
    const char *detour;   /* why ranks exchange through the host's memory; NULL: they do not */
};

struct backend_type {
    bool lookahead;   /* INPUTS_OF_LAST_REPLAY works, with BACKEND_MOST_IN_FLIGHT replays */
    bool host_logits; /* logits() costs nothing */

    /* Checks the memory contract before it takes memory. `engine` is borrowed. NULL on failure. */
    struct backend *(*create)(struct eng_engine *engine, const struct backend_options *options, struct status *status);
    void (*destroy)(struct backend *backend); /* waits for what is in flight */

    /* Rows of the slot's state, bits of enum backend_state, were changed on the host: the next submit with inputs from
     * the host takes them along. */
    void (*state_changed)(struct backend *backend, int32_t slot, unsigned what);
    /* Several processes: what else the host goes by, and must be the same in all of them; compared with the next inputs
     * from the host. NULL: there is nobody to compare with. */
    void (*agree)(struct backend *backend, const void *bytes, size_t count);
    /* Queues one replay of engine plan `plan`. From the host: nothing may be in flight. */
    bool (*submit)(struct backend *backend, size_t plan, enum backend_inputs inputs, struct status *status);
    /* Waits for the oldest replay in flight. Returns its next tokens [out_rows], borrowed until the next submit, or
     * NULL. */
    const int32_t *(*wait)(struct backend *backend, struct status *status);
    /* The replay waited for last drew this token for the slot, and the session accepts it. A draw that is not accepted
     * must not count: state_changed(SAMPLER | SEEN) takes it back. */
    void (*drew)(struct backend *backend, int32_t slot, int32_t token);
    /* Logits of out rows [row, row + count) of the replay waited for last; nothing may be in flight. [count, vocab_size],
     * borrowed until the next submit, or NULL. */
    const float *(*logits)(struct backend *backend, uint32_t row, uint32_t count, struct status *status);
    /* What is replayed as engine plan `plan`; NULL: the plan itself, always. */
    const struct plan *(*source)(const struct backend *backend, size_t plan);
    /* Runs engine plan `plan` twice with the inputs and the state of the host, as submit would: as a replay, and one
     * launch after the other; launch_us[i] is set. Nothing may be in flight. For traces: what was drawn is lost, and what
     * became of the slots' state is for the caller to undo, as after drew. */
    bool (*trace)(struct backend *backend, size_t plan, double *replay_us, double *launch_us, struct status *status);

    /* Engines of several ranks. Once, before the first submit: the COMM spaces of all ranks, [ranks]. */
    bool (*connect)(struct backend *backend, const uint64_t *comm, struct status *status);
    /* Makes this rank give up, if it waits for another or ever will. From any thread. */
    void (*stop)(struct backend *backend);
    /* Waits, not for long, until nothing of this rank runs any more. False: it never will, and what it may still read or
     * write must stay where it is. NULL: nothing runs between calls. */
    bool (*settle)(struct backend *backend);
    bool shares_memory; /* ranks take their memory from one whole: rank 0 is made first, and checks for all */
};

extern const struct backend_type backend_cpu, backend_cuda;
extern const struct backend_type backend_cpu_ranks, backend_cuda_ranks; /* backend_ranks.h */

/* The one for the engine's target. */
const struct backend_type *backend_for(const struct eng_engine *engine);

/* Pages of a KV pool: what the options ask for, else as many as `room` bytes hold but at least one full context; never
 * more than all slots together can use. */
bool backend_kv_pages(const struct plan_geometry *geometry, const struct backend_options *options, uint64_t room,
                      uint64_t *pages, struct status *status);

#endif
