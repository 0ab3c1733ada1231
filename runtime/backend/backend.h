/* SPDX-License-Identifier: Apache-2.0 */
/* Replays an engine's plans for one session, on processors (backend_cpu.c) or a GPU (backend_cuda.c).
 *
 * The session fills the input fields of a step and the rows of the STATE space on the host, announces the rows that it
 * changed, submits a plan and waits for the tokens that it drew. On processors these arrays are the spaces themselves.
 * A device has its own spaces: the next submit copies inputs and changed rows there, and changes that its replays make
 * to the state are repeated on the host's copy (backend_type.drew).
 *
 * A submitted replay may run at any time until it has been waited for. After a failed call only destroy is allowed.
 * Requires: one thread at a time. */
#ifndef RUNTIME_BACKEND_BACKEND_H
#define RUNTIME_BACKEND_BACKEND_H

#include "runtime/load/load.h"

/* Options of a backend. */
struct backend_options {
    uint32_t threads;            /* as in struct eng_session_options, as the next two */
    const char *instruction_set; /* or NULL */
    uint64_t kv_tokens, kv_bytes;
    uint64_t host_bytes;  /* of the session itself: part of the memory contract */
    uint32_t rank;        /* rank of this backend among the engine's ranks: selects its share of the weights */
    uint64_t chunk;       /* most tokens that a step appends to a sequence; 0 counts as 1 */
    uint64_t pages;       /* 0, or the pages of the KV pool, memory for which has been checked */
    uint32_t checkpoints; /* blocks of recurrent state besides those of the slots */
    uint32_t sequences;   /* 0, or a pool beside a larger one: for so many sequences at once */
    void *stream;         /* a GPU: of the caller; NULL: one of its own */
};

/* Changed parts of a slot's state, as bits. */
enum backend_state {
    BACKEND_PAGES = 1,
    BACKEND_SAMPLER = 2,
    BACKEND_SEEN = 4,
    BACKEND_ROPE_SET = 8,
    BACKEND_RECURRENT = 16, /* never: plans alone write it */
    BACKEND_ADJUSTMENTS = 32,
    BACKEND_ALLOWED = 64,
    BACKEND_STATE_ALL = 127
};

/* Source of a replay's inputs: the host's fields, or the step block as the last replay of the same decode plan left it:
 * the same rows, each with the token that it drew, one position later. The last is the same for a replay that stops before its sampler, which
 * backend_type.sample queues when it is known which tokens may be drawn. */
enum backend_inputs { INPUTS_FROM_HOST, INPUTS_OF_LAST_REPLAY, INPUTS_UP_TO_SAMPLER };

/* A GPU: where the results of the replay waited for last are, for programs that use the GPU, too. */
struct backend_view {
    void *stream;            /* of all replays */
    int device;              /* the driver's number */
    void *ready;             /* event after that replay */
    uint64_t logits, hidden; /* addresses of out row 0: [out_rows, vocab_size], [out_rows, hidden_size] */
};

/* Limit of replays that are submitted and not yet waited for. */
enum { BACKEND_MOST_IN_FLIGHT = 2 };

/* Cause of a rank's failure, from its own to those of others. */
enum backend_failure {
    BACKEND_FAILED,    /* the rank itself */
    BACKEND_NO_ANSWER, /* another rank or process did not answer or has failed */
    BACKEND_STOPPED,   /* told to stop */
};

/* The common part of every backend; filled by create, constant afterwards. */
struct backend {
    const struct backend_type *type;
    uint8_t *step;                     /* on the host: the input fields of the current plan */
    uint8_t *state;                    /* on the host: plan_geometry.state */
    uint32_t pages;                    /* of the KV pool */
    uint32_t threads;                  /* threads that compute */
    const char *instruction_set;       /* constant text */
    const char *device_name;           /* NULL: processors */
    uint64_t host_bytes, device_bytes; /* private memory, including the KV pool */
    uint64_t kv_bytes;
    uint64_t device_contract_bytes, device_taken_bytes; /* as in struct eng_session_facts; 0 for processors */
    double graph_seconds;
    const int32_t
        *drafted;  /* by the replay waited for last, [out_rows], as its next tokens; NULL: the engine does not draft */
    uint64_t comm; /* several ranks: address of the COMM space, for connect() */
    enum backend_failure failure; /* of the last failed call */
    const char *fallback;         /* why the engine's own plans replace some that call libraries; NULL: they do not */
    const char *detour;           /* why ranks exchange data through host memory; NULL: they do not */
};

struct backend_type {
    bool lookahead;   /* supports INPUTS_OF_LAST_REPLAY with BACKEND_MOST_IN_FLIGHT replays */
    bool host_logits; /* logits() copies nothing */

    /* Checks the memory contract before it takes memory. `engine` is borrowed. NULL on failure. */
    struct backend *(*create)(struct eng_engine *engine, const struct backend_options *options, struct status *status);
    void (*destroy)(struct backend *backend); /* waits for replays in flight */

    /* Announces rows of the slot's state, bits of enum backend_state, that were changed on the host. The next submit
     * with inputs from the host copies them, `sample` samplers and allowed tokens. NULL: replays use the host's state itself. */
    void (*state_changed)(struct backend *backend, int32_t slot, unsigned what);
    /* Several processes: adds further data that must be the same in all of them; it is compared with the next inputs
     * from the host. NULL: one process. */
    void (*agree)(struct backend *backend, const void *bytes, size_t count);
    /* Queues one replay of engine plan `plan`. Requires for INPUTS_FROM_HOST: nothing is in flight. */
    bool (*submit)(struct backend *backend, size_t plan, enum backend_inputs inputs, struct status *status);
    /* Whether replays of engine plan `plan` may stop before their sampler. NULL: none may. */
    bool (*splits)(const struct backend *backend, size_t plan);
    /* Queues the rest of the replay that was submitted last, with INPUTS_UP_TO_SAMPLER: sends the samplers and the allowed tokens of
     * slots[count], its rows, as far as their change was announced, then draws. Requires: all earlier replays have been waited for and their
     * draws accepted or undone. late: the caller has been away since they were waited for, so that how long it was says nothing about
     * the next replay. */
    bool (*sample)(struct backend *backend, const int32_t *slots, uint32_t count, bool late, struct status *status);
    /* Or forgets that replay: nothing but keys, values and recurrent state at its positions is changed, which a later replay writes again. */
    void (*abandon)(struct backend *backend);
    /* Waits for the oldest replay in flight, whose sampler is queued. Returns its next tokens [out_rows], borrowed until the next submit; NULL
     * on failure. */
    const int32_t *(*wait)(struct backend *backend, struct status *status);
    /* Accepts the token that the replay waited for last drew for the slot. A draw that is not accepted must be undone
     * with state_changed(SAMPLER | SEEN), and ADJUSTMENTS if the sampler has SAMPLER_ADJUSTS. NULL as state_changed. */
    void (*drew)(struct backend *backend, int32_t slot, int32_t token);
    /* Returns the logits [count, vocab_size] of out rows [row, row + count) of the replay waited for last, borrowed
     * until the next submit; NULL on failure. Requires: nothing is in flight. */
    const float *(*logits)(struct backend *backend, uint32_t row, uint32_t count, struct status *status);
    /* The same for hidden states [count, hidden_size]. Requires: the engine gives them. */
    const float *(*hidden)(struct backend *backend, uint32_t row, uint32_t count, struct status *status);
    /* NULL: no GPU, or several. */
    void (*view)(const struct backend *backend, struct backend_view *view);
    /* The plan that is replayed as engine plan `plan`. NULL: always the plan itself. */
    const struct plan *(*source)(const struct backend *backend, size_t plan);
    /* Traces: runs engine plan `plan` twice with the host's inputs and state, as a replay and one launch after the
     * other, and sets launch_us[i]. Draws are lost; the caller restores the slots' state, as after drew. Requires:
     * nothing is in flight. */
    bool (*trace)(struct backend *backend, size_t plan, double *replay_us, double *launch_us, struct status *status);

    /* Copies a page of the KV pool, or a block of recurrent state, of all ranks one after the other, to `bytes` or from there. NULL: not
     * possible. Requires: nothing is in flight. */
    bool (*copy_page)(struct backend *backend, int32_t page, uint8_t *bytes, bool to_pool, struct status *status);
    bool (*copy_recurrent)(struct backend *backend, int32_t block, uint8_t *bytes, bool to_block,
                           struct status *status);

    /* In all ranks, copies a page of the KV pool to another one, and a block of recurrent state to another one: those of the slots come
     * first, then backend_options.checkpoints more. Happens after steps in flight, and before those that are submitted later. */
    bool (*repeat_page)(struct backend *backend, int32_t from, int32_t to, struct status *status);
    bool (*repeat_recurrent)(struct backend *backend, int32_t from, int32_t to, struct status *status);

    /* Several ranks: sets the COMM spaces of all ranks, comm[ranks]. Called once, before the first submit. */
    bool (*connect)(struct backend *backend, const uint64_t *comm, struct status *status);
    /* Makes this rank stop waiting for others, now and later. Any thread. */
    void (*stop)(struct backend *backend);
    /* Waits a limited time until nothing of this rank runs. False: something never ends, and all memory that it may
     * access must remain. NULL: nothing runs between calls. */
    bool (*settle)(struct backend *backend);
    bool shares_memory; /* the memory of all ranks is one whole: rank 0 is created first and checks for all */
};

extern const struct backend_type backend_cpu, backend_cuda;
extern const struct backend_type backend_cpu_ranks, backend_cuda_ranks; /* backend_ranks.h */

/* The backend for the engine's target. */
const struct backend_type *backend_for(const struct eng_engine *engine);

/* Determines the pages of a KV pool: those that the options request, else as many as `room` bytes hold, but at least
 * one full context; never more than all slots can use. */
bool backend_kv_pages(const struct plan_geometry *geometry, const struct backend_options *options, uint64_t room,
                      uint64_t *pages, struct status *status);

#endif
