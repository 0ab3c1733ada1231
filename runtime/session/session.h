/* SPDX-License-Identifier: Apache-2.0 */
/* A session: all memory and threads for replaying an engine's plans, KV pages, slots and sequences. This header is
 * private to the runtime; functions are listed by the file that defines them. */
#ifndef RUNTIME_SESSION_SESSION_H
#define RUNTIME_SESSION_SESSION_H

#include "runtime/backend/backend.h"
#include "runtime/load/host_memory.h"

enum { SESSION_NO_SLOT = -1 };

/* A plan and where the host writes the inputs of its next replay. */
struct session_plan {
    uint32_t rows, out_rows;
    int32_t *counts;    /* [2] */
    int32_t *tokens;    /* [rows] */
    int32_t *slots;     /* [rows] */
    int32_t *positions; /* [rows] */
    int32_t *out_row;   /* [out_rows] */
};

enum slot_use { SLOT_FREE, SLOT_RAW, SLOT_SEQUENCE };

struct session_slot {
    enum slot_use use;
    uint32_t position; /* tokens in the KV pages */
    uint32_t pages;    /* pages it holds: the first entries of its row of the page table */
    int32_t *history;  /* raw slots: the tokens at positions [0, position), for eng_slot_truncate; [max_context] */
};

struct eng_sequence {
    struct eng_session *session;
    bool exists;
    enum eng_state state;
    enum eng_end end;
    int32_t slot; /* SESSION_NO_SLOT unless admitted */
    uint32_t flags;
    uint32_t max_new_tokens; /* 0: until the context is full */
    uint32_t context_tokens; /* as in the options */
    struct sampler_state sampler;
    int32_t stop_tokens[ENG_MAX_STOP_TOKENS];
    uint32_t stop_count;
    int32_t *tokens;     /* [max_context + 1]: prompts and answers in order */
    uint32_t count;      /* tokens so far */
    uint32_t computed;   /* of them in the KV pages */
    uint32_t prompt_end; /* end of the latest prompt; what lies behind was drawn */
    uint32_t polled;     /* tokens [polled, count) are still to be polled */
    uint64_t drawn_step; /* the step that drew its last token, and the logits of that draw */
    const float *logits;
    struct eng_sequence *next; /* in the list of waiting or of free sequences */
};

/* A decode step that was submitted and not waited for. */
struct session_flight {
    const struct session_plan *plan;
    uint32_t rows;
    int32_t *slots;                  /* [slots] of the rows */
    struct eng_sequence **sequences; /* [slots] of the rows; NULL: it left since, and its token is not accepted */
};

struct eng_session {
    pid_t process; /* that has its threads */
    struct eng_engine *engine;
    struct backend *backend;
    struct status failure; /* of the backend: every later call gives it again */
    const struct plan_geometry *geometry;

    struct host_memory tokens;      /* histories of slots and sequences; touched as they grow */
    int32_t *page_table;            /* [slots, pages_per_slot]: this and the next two are backend->state */
    struct sampler_state *samplers; /* [slots] */
    uint8_t *seen;                  /* [slots, seen_bytes] */
    uint64_t seen_bytes;

    struct session_plan *plans; /* decode plans by rising rows, then prefill plans by rising rows */
    size_t plan_count, decode_plans;

    int32_t *free_pages; /* a stack */
    uint32_t page_count, free_page_count;
    struct session_slot *slots;
    uint32_t free_slot_count;

    struct eng_sequence *sequences; /* [max_sequences] */
    uint32_t max_sequences;
    struct eng_sequence *free_sequences;
    struct eng_sequence *first_waiting, *last_waiting;
    struct eng_sequence **active; /* [slots] admitted and not done, in order of admission */
    uint32_t active_count;
    uint32_t waiting_count;
    bool prefilled_last; /* the last step read a prompt: decoding sequences are next */
    uint64_t steps;      /* replays waited for so far; logits of earlier ones are gone */
    uint64_t checked_ns; /* when the engine's file was last found unchanged */

    struct session_flight flights[BACKEND_MOST_IN_FLIGHT]; /* oldest first; between two calls at most one */
    uint32_t flight_count;
};

/* session.c */
/* eng_session_create on a backend of the caller's choice, for tests. */
bool session_create(struct eng_engine *engine, const struct backend_type *type,
                    const struct eng_session_options *options, struct eng_session **session, struct status *status);
/* False, with the failure once more, when the backend has failed; false in a child made by fork. */
bool session_usable(const struct eng_session *session, struct status *status);

/* Before a replay: load_weights_unchanged, now and then. */
bool session_weights_unchanged(struct eng_session *session, struct status *status);

/* slots.c: pages, slots and replay, with arguments that are known to be right. */
int32_t slots_take(struct eng_session *session, enum slot_use use); /* SESSION_NO_SLOT when none is free */
void slots_give_back(struct eng_session *session, int32_t slot);
uint32_t slots_pages_for(const struct eng_session *session, uint64_t tokens);
/* Gives the slot pages for `tokens` tokens in all; false, and nothing changed, when too few are free. */
bool slots_reserve(struct eng_session *session, int32_t slot, uint64_t tokens);
void slots_set_sampler(struct eng_session *session, int32_t slot, const struct sampler_state *sampler);
void slots_mark_seen(struct eng_session *session, int32_t slot, const int32_t *tokens, size_t count);
void slots_truncate(struct eng_session *session, int32_t slot, uint32_t position); /* a raw slot */
void slots_clear_seen(struct eng_session *session, int32_t slot);

/* How many of `rest` prompt tokens the next prefill step takes: a function of `rest` alone, so that a prompt is cut the
 * same way whatever else runs. */
uint32_t replay_chunk(const struct eng_session *session, uint64_t rest, size_t *plan_index);
/* Inputs of a replay that appends `count` tokens (one chunk) to a slot. */
struct session_plan *replay_fill_prefill(struct eng_session *session, int32_t slot, const int32_t *tokens,
                                         uint32_t count, size_t plan_index, uint32_t out_rows);
/* Appends `count` tokens (one chunk) to a slot; draws a token, or PLAN_NO_TOKEN, behind the last one if next_token is not
 * NULL. */
bool replay_prefill(struct eng_session *session, int32_t slot, const int32_t *tokens, uint32_t count, size_t plan_index,
                    int32_t *next_token, struct status *status);
/* The smallest decode plan for `count` rows; the caller fills slots and tokens of rows [0, count), then submits. */
struct session_plan *replay_decode_plan(const struct eng_session *session, uint32_t count);
bool replay_submit_decode(struct eng_session *session, struct session_plan *plan, uint32_t count,
                          struct status *status);
/* The inputs that replay_submit_decode adds. */
void replay_fill_decode(struct eng_session *session, struct session_plan *plan, uint32_t count);
/* One more step of the rows of the last one, each with the token that it drew. */
bool replay_submit_again(struct eng_session *session, const struct session_plan *plan, struct status *status);
/* The tokens that the oldest replay in flight drew, PLAN_NO_TOKEN among them, `count` of them checked; NULL on failure. */
const int32_t *replay_wait(struct eng_session *session, uint32_t count, struct status *status);
/* The slot's sequence has one token more in its pages and this one, or PLAN_NO_TOKEN, drawn. */
void replay_accept(struct eng_session *session, int32_t slot, int32_t drawn);
/* The slot's row was computed for nothing: what it did to sampler and SEEN is taken back. */
void replay_reject(struct eng_session *session, int32_t slot);
/* Logits of the replay waited for last; NULL on failure. */
const float *replay_logits(struct eng_session *session, uint32_t row, uint32_t count, struct status *status);

/* scheduler.c: waits for decode steps that eng_step queued ahead; their tokens are appended. */
bool scheduler_drain(struct eng_session *session, struct status *status);

/* sampling.c */
bool sampling_read(const struct eng_sampling *sampling, struct sampler_state *state, struct status *status);

/* sequence.c: a token was drawn for the sequence; ends it if it is the last one. PLAN_NO_TOKEN ends it, too. */
void sequence_append(struct eng_sequence *sequence, int32_t token, const float *logits);
/* Admits waiting sequences in order, as far as slots and pages go. */
bool sequence_can_admit(const struct eng_session *session);
void sequence_admit(struct eng_session *session);
/* The next token drawn ends it, whatever token it is. */
bool sequence_ends_next(const struct eng_sequence *sequence);

#endif
