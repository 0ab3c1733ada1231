/* A session: all memory and threads for replaying an engine's plans, KV pages, slots and sequences. This header is
 * private to the runtime; functions are listed by the file that defines them. */
#ifndef RUNTIME_SESSION_H
#define RUNTIME_SESSION_H

#include "kernels/cpu/executor.h"
#include "runtime/load.h"

enum { SESSION_NO_SLOT = -1 };

/* A bound plan and where it reads and writes its step. */
struct session_plan {
    struct cpu_plan bound;
    uint32_t rows, out_rows;
    int32_t *counts;            /* [2] */
    int32_t *tokens;            /* [rows] */
    int32_t *slots;             /* [rows] */
    int32_t *positions;         /* [rows] */
    int32_t *out_row;           /* [out_rows] */
    const int32_t *next_tokens; /* [out_rows] */
    const float *logits;        /* [out_rows, vocab_size] */
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

struct session_memory {
    void *base; /* NULL: none */
    uint64_t bytes;
};

struct eng_session {
    struct eng_engine *engine;
    struct team *team;
    enum cpu_isa isa;
    const struct plan_geometry *geometry;

    struct session_memory scratch; /* arena, step, state */
    struct session_memory kv;
    struct session_memory tokens;   /* histories of slots and sequences; touched as they grow */
    int32_t *page_table;            /* [slots, pages_per_slot] */
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
    uint64_t steps;      /* replays so far; logits of earlier ones are gone */
};

/* slots.c: pages, slots and replay, with arguments that are known to be right. */
int32_t slots_take(struct eng_session *session, enum slot_use use); /* SESSION_NO_SLOT when none is free */
void slots_give_back(struct eng_session *session, int32_t slot);
uint32_t slots_pages_for(const struct eng_session *session, uint64_t tokens);
/* Gives the slot pages for `tokens` tokens in all; false, and nothing changed, when too few are free. */
bool slots_reserve(struct eng_session *session, int32_t slot, uint64_t tokens);
void slots_mark_seen(struct eng_session *session, int32_t slot, const int32_t *tokens, size_t count);
void slots_truncate(struct eng_session *session, int32_t slot, uint32_t position); /* a raw slot */
void slots_clear_seen(struct eng_session *session, int32_t slot);

/* How many of `rest` prompt tokens the next prefill step takes: a function of `rest` alone, so that a prompt is cut the
 * same way whatever else runs. */
uint32_t replay_chunk(const struct eng_session *session, uint64_t rest, size_t *plan_index);
/* Appends `count` tokens (one chunk) to a slot; draws a token behind the last one if next_token is not NULL. */
bool replay_prefill(struct eng_session *session, int32_t slot, const int32_t *tokens, uint32_t count, size_t plan_index,
                    int32_t *next_token, const float **logits, struct status *status);
/* The smallest decode plan for `count` rows; the caller fills rows [0, count) of its step, then replays. */
struct session_plan *replay_decode_plan(const struct eng_session *session, uint32_t count);
bool replay_decode(struct eng_session *session, struct session_plan *plan, uint32_t count, struct status *status);

/* sampling.c */
bool sampling_read(const struct eng_sampling *sampling, struct sampler_state *state, struct status *status);

/* sequence.c: a token was drawn for the sequence; ends it if it is the last one. */
void sequence_append(struct eng_sequence *sequence, int32_t token, const float *logits);
/* Admits waiting sequences in order, as far as slots and pages go. */
void sequence_admit(struct eng_session *session);

#endif
