/* SPDX-License-Identifier: Apache-2.0 */
/* A session: memory and threads for replaying an engine's plans, KV pages, slots and sequences. Private to the runtime.
 * Functions are listed by the file that defines them. */
#ifndef RUNTIME_SESSION_SESSION_H
#define RUNTIME_SESSION_SESSION_H

#include <stdatomic.h>

#include "runtime/backend/backend.h"
#include "runtime/load/host_memory.h"
#include "runtime/session/checkpoints.h"
#include "runtime/text/grammar.h"

enum { SESSION_NO_SLOT = -1 };

/* A plan, and the fields that the host fills before a replay. */
struct session_plan {
    uint32_t rows, out_rows;
    int32_t *counts;    /* [2] */
    int32_t *tokens;    /* [rows] */
    int32_t *slots;     /* [rows] */
    int32_t *positions; /* [rows] */
    int32_t *out_row;   /* [out_rows] */
    int32_t *seeds;     /* [rows]: of routers; NULL: an engine before 2.3 */
    int32_t *following; /* [rows]: STEP_FOLLOWING; NULL: the engine does not draft */
};

enum slot_use { SLOT_FREE, SLOT_RAW, SLOT_SEQUENCE };

struct session_slot {
    enum slot_use use;
    uint32_t position; /* tokens in the KV pages */
    uint32_t written;  /* end of the tokens written since position was last 0: at least position */
    /* Pages it holds in each page group: the first entries of its row of the group's table. A group with a window that holds
     * plan_ring_pages uses them in turn, and its further entries repeat them. */
    uint32_t pages[PLAN_MAX_PAGE_GROUPS];
    uint32_t answer_start; /* raw slots: position of the first token that penalties of the answer count */
    int32_t *history;      /* raw slots: the tokens at positions [0, position), for eng_slot_truncate; [max_context] */
    /* drafts.c: [draft_places], by a hash of a run of tokens the index of the token after its latest occurrence, or 0. NULL: the session
     * does not speculate. */
    int32_t *places;
    uint32_t placed;     /* tokens of the sequence that `places` knows */
    uint64_t drawn_step; /* raw slots: the step that drew for it last, and its out row there; 0: none */
    uint32_t drawn_row;
};

/* Settings of a sampler as sampling_read checked them. */
struct session_sampling {
    struct sampler_state state;
    const struct eng_logit_bias *biases; /* [bias_count], borrowed */
    uint32_t bias_count;
};

/* Results of the rows of a sequence's latest prompt, each of which computes a token (prompt_rows.c). */
struct prompt_rows {
    uint32_t start;               /* the prompt's first token */
    uint32_t next, end;           /* tokens [next, end) have rows that are still to be read; next == end: none */
    uint32_t top;                 /* likeliest tokens of each place */
    struct eng_logprob *logprobs; /* owned [prompt tokens, 1 + top], from token `start` on; NULL: none */
    double *sums;                 /* owned [hidden_size], of the prompt's hidden states so far; NULL: none */
    float *mean;                  /* owned [hidden_size]; NULL like sums */
};

/* The pages and the recurrent state of a sequence that is set aside, copied to the host's memory. */
struct session_kept {
    uint8_t *bytes; /* owned [size]; NULL: none */
    uint64_t size;
    uint32_t computed; /* tokens in the pages */
    int32_t rope_set;
};

enum session_mask { MASK_ALL, MASK_SOME, MASK_NONE }; /* tokens that eng_sequence_set_allowed allows */

struct eng_sequence {
    struct eng_session *session;
    bool exists;
    enum eng_state state;
    enum eng_end end;
    int32_t slot; /* SESSION_NO_SLOT until admitted */
    uint32_t flags;
    uint32_t max_new_tokens; /* 0: until the context is full */
    uint32_t context_tokens; /* as in the options, as the next */
    int32_t prompt_logprobs;
    struct prompt_rows rows;
    struct session_sampling sampling; /* biases: the next array */
    struct eng_logit_bias *biases; /* [PLAN_MAX_LOGIT_BIASES]; NULL: the engine has no sampling options, as the next */
    uint32_t *allowed;             /* [plan_allowed_words]: the caller's, for a slot to come */
    enum session_mask mask;
    struct eng_grammar *grammar; /* NULL: none, as the next */
    struct grammar_state *place; /* of the answer in its grammar; owned */
    int32_t stop_tokens[ENG_MAX_STOP_TOKENS];
    uint32_t stop_count;
    int32_t *tokens;   /* [max_context + 1]: prompts and answers in order, then a draft */
    uint32_t count;    /* tokens so far */
    uint32_t computed; /* tokens that are in the KV pages */
    uint32_t sound;    /* part of those: the first ones, from which finite logits came */
    uint32_t reached;  /* largest value of `computed` so far, and at least the tokens before the latest prompt */
    uint32_t cached;   /* tokens of the latest prompt that came from the cache */
    bool is_private;   /* others do not use its pages: they came from a file, or its logits were not finite */
    struct session_kept kept;
    uint32_t blocks;       /* whole pages of them that the cache knows */
    uint64_t block;        /* number of the last of those, or of the empty text */
    uint32_t checkpoint;   /* tokens before its latest checkpoint, made or used; 0: none */
    uint32_t branch;       /* 0, or where other texts branch off: it makes a checkpoint there */
    uint32_t prompt_end;   /* end of the latest prompt; later tokens were drawn */
    float hits;            /* share of its drafts whose first token was drawn, the later ones counting more */
    float engine_hits;     /* the same of drafts of the draft engine */
    uint32_t engine_from;  /* the draft engine drafts when the sequence has so many tokens */
    uint32_t engine_pause; /* tokens until it is tried again after its next failure */
    float predicted_hits;  /* the same share of what the engine predicted after the tokens that it drew */
    int32_t predicted;     /* its prediction of the token at index predicted_at; that is 0: there is none */
    uint32_t predicted_at;
    uint32_t polled;     /* tokens [polled, count) have not been polled */
    uint64_t drawn_step; /* the step that drew its last token, and logits and hidden state of that draw */
    const float *logits, *hidden;
    struct eng_sequence *next; /* in the list of waiting or of free sequences */
    bool has_news, is_in_news; /* is_in_news: it is in the list of struct session_news */
    struct eng_sequence *next_news;
    atomic_bool is_unwanted; /* eng_sequence_cancel_async: it is in the list of session->unwanted */
    struct eng_sequence *next_unwanted;
};

/* Sequences that got tokens or ended since the caller was told, in that order. */
struct session_news {
    struct eng_sequence *first, *last;
    eng_sequence_callback *callback; /* NULL: none */
    void *context;
    int descriptor; /* if has_descriptor */
    bool has_descriptor;
    bool is_telling; /* the callback runs */
};

/* A decode step in flight: submitted and not yet waited for. */
struct session_flight {
    const struct session_plan *plan;
    uint32_t rows;
    bool waits;                      /* its sampler is not queued yet: the tokens that it may draw are not known */
    int32_t *slots;                  /* [slots] of the rows */
    struct eng_sequence **sequences; /* [slots] of the rows; NULL: it has ended since, and its token is discarded */
};

/* Rows of one slot in a mixed or a verification step: the tokens that follow those that it has. */
struct replay_part {
    int32_t slot;
    const int32_t *tokens; /* [count] */
    uint32_t count;
    bool draws; /* mixed: a token after the last one; verification: the tokens that follow are those drawn after them */
    int32_t following; /* the token after the last one, if none is drawn there; PLAN_NO_TOKEN: not known */
    bool of_engine;    /* verification: the draft engine drafts the tokens after the first */
};

struct eng_session {
    pid_t process; /* process that created it and has its threads */
    struct eng_engine *engine;
    struct backend *backend;
    struct status failure; /* of the backend; every later call fails with it */
    const struct plan_geometry *geometry;
    uint64_t chunk;       /* most tokens that a step appends to a sequence */
    uint32_t prompt_step; /* as in struct eng_session_options, as the next */
    uint32_t step_ms;
    uint32_t speculate;        /* most tokens of a draft; 0: also where the engine cannot verify any */
    uint32_t draft_places;     /* of a slot's table of drafts, a power of two */
    struct eng_session *draft; /* of the draft engine: slot i drafts for the sequence in slot i; NULL: there is none */
    float draft_cost;          /* time in which it drafts a token, as a share of a decode step's */
    double prompt_rows;        /* step_ms: rows of prompts that a step has time for, as far as earlier ones tell */
    bool caches;               /* pages of sequences are used again */
    bool checkpointing;        /* with checkpoints: a page group has a window, or there is recurrent state */
    /* States of slots before a verification step: how many there is room for, and the first one's block of recurrent state. */
    uint32_t saved_states;
    int32_t first_saved;

    struct host_memory tokens;      /* histories of slots and sequences; touched as they grow */
    int32_t *page_table;            /* STATE_PAGE_TABLE: this, the next two and rope_set are backend->state */
    struct sampler_state *samplers; /* [slots] */
    uint8_t *seen;                  /* [slots, seen_bytes] */
    uint64_t seen_bytes;
    uint32_t
        *adjustments;  /* [slots, plan_adjustment_words]: STATE_ADJUSTMENTS; NULL: no sampling options, as the next */
    uint32_t *allowed; /* [slots, plan_allowed_words]: STATE_ALLOWED */
    int32_t *rope_set; /* [slots]; NULL: the engine has one set of rotary frequencies */
    bool fixes_routes; /* routers choose by position: replays compare equal on every machine (golden_route_seed) */

    struct session_plan *plans; /* decode, prefill, mixed, verification plans, each by increasing rows */
    size_t plan_count, decode_plans, prefill_end, mixed_end;

    struct page_pool pool;
    struct checkpoints checkpoints;
    struct session_slot *slots;
    uint32_t free_slot_count;

    struct eng_sequence *sequences; /* [max_sequences] */
    uint32_t max_sequences;
    struct eng_sequence *free_sequences;
    struct eng_sequence *first_waiting, *last_waiting;
    struct eng_sequence **active; /* [slots]: admitted and not done, in order of admission */
    uint32_t active_count;
    uint32_t waiting_count;
    uint64_t set_aside; /* times that a sequence was */
    uint64_t kept_most, kept_bytes,
        kept_count;                      /* limit and memory of sequences' kept pages, and times that pages were kept */
    double prompt_seconds, copy_seconds; /* least so far, of a token of a prompt and of a byte of pages; 0: none */
    uint64_t cached_tokens;              /* tokens of prompts that were found in the cache */
    uint64_t drafted_tokens, accepted_tokens;
    struct session_news news;
    _Atomic(struct eng_sequence *) unwanted; /* to be cancelled by the session's thread; any thread adds */
    bool prefilled_last;                     /* the last step was a prefill; decoding sequences are next */
    bool read_last;                          /* the last step read rows of prompts; other sequences are next */
    uint64_t steps;                          /* replays waited for; logits of earlier ones are invalid */
    uint64_t checked_ns;                     /* when the engine's file was last found unchanged */

    struct replay_part *parts;                             /* [slots]: of a mixed or a verification step, as the next */
    struct eng_sequence **part_sequence;                   /* [slots] */
    struct session_flight flights[BACKEND_MOST_IN_FLIGHT]; /* oldest first; between two calls at most one */
    uint32_t flight_count;

    struct golden_result *selftest; /* [plan_count]: of the latest eng_selftest */
};

/* session.c */
/* eng_session_create with a backend of the caller's choice, for tests. */
bool session_create(struct eng_engine *engine, const struct backend_type *type,
                    const struct eng_session_options *options, struct eng_session **session, struct status *status);
/* eng_session_create_on_stream. Requires: the backend has a view. */
bool session_create_on(struct eng_engine *engine, const struct eng_session_options *options, void *stream,
                       struct eng_session **session, struct status *status);
/* False if the backend has failed, with that failure, and in a child made by fork. */
bool session_usable(const struct eng_session *session, struct status *status);

/* Calls load_weights_unchanged before a replay, at intervals. */
bool session_weights_unchanged(struct eng_session *session, struct status *status);

/* kept.c */
/* A step has computed so many tokens of a prompt in so many seconds. */
void kept_note_prompt(struct eng_session *session, uint32_t tokens, double seconds);
/* Copies the pages of a sequence that is about to lose its slot to the host's memory, if that is cheaper than to compute them again. */
void kept_put(struct eng_sequence *sequence);
/* The sequence, which has a slot again and what the cache had for it, gets the pages that were kept, if they are more. */
void kept_take(struct eng_sequence *sequence);
void kept_free(struct eng_sequence *sequence);

/* slots.c: pages, slots and replays. Requires: arguments were checked. */
int32_t slots_take(struct eng_session *session, enum slot_use use); /* SESSION_NO_SLOT: none is free */
void slots_give_back(struct eng_session *session, int32_t slot);
uint32_t slots_pages_for(const struct eng_session *session, uint64_t tokens); /* of all groups */
uint32_t slots_pages_held(const struct eng_session *session, int32_t slot);
/* Takes pages so that the slot has room for `tokens` tokens in all. False, with nothing changed, if too few are
 * free. */
bool slots_reserve(struct eng_session *session, int32_t slot, uint64_t tokens);
/* Tokens that the slot's pages have room for. */
uint64_t slots_room(const struct eng_session *session, int32_t slot);
/* Gives the slot a block of the cache as block `index` of its tokens, the last ones that it has from now on. Requires: it has those
 * before it. */
void slots_hold_block(struct eng_session *session, int32_t slot, uint32_t index, int32_t block);
/* Gives the slot, which is empty, the tokens of slot `from` and pages for `room` tokens in all. It shares the pages that no step writes
 * to any more, and has copies of the others and of the recurrent state. False, with STATUS_FULL: too few pages are free; the slot has
 * some of them then. Requires: nothing is in flight. */
bool slots_copy_pages(struct eng_session *session, int32_t from, int32_t to, uint64_t room, struct status *status);
/* Puts the slot's pages at `index` into the cache: page_pool_keep. */
uint64_t slots_keep_block(struct eng_session *session, int32_t slot, uint32_t index, uint64_t before,
                          const int32_t *tokens);
/* The slot's pages at `index` are a proven block: page_pool_prove. Leave the cache, if they are not: page_pool_forget. */
void slots_prove_block(struct eng_session *session, int32_t slot, uint32_t index);
void slots_forget_block(struct eng_session *session, int32_t slot, uint32_t index);
/* Makes a checkpoint of the slot's first `count` tokens, which are whole blocks and one at least, as checkpoints_add. False: the slot's
 * pages or state have lost what it needs, or no room is left. Requires: `count` is beyond a checkpoint that the slot used, and nothing
 * is in flight but one decode step. */
bool slots_make_checkpoint(struct eng_session *session, int32_t slot, uint64_t root, const int32_t *tokens,
                           uint32_t count, uint64_t block);
/* The slot has the tokens of a checkpoint from now on; what it had is lost. False: it could not be copied, and the slot must be emptied.
 * Requires: the checkpoint is held, the slot holds the blocks of its tokens, pages for the rest are available, and nothing is in
 * flight. */
bool slots_use_checkpoint(struct eng_session *session, int32_t slot, const struct session_checkpoint *checkpoint);
/* The slot's pages have so many tokens, with these rotary frequencies. */
void slots_place(struct eng_session *session, int32_t slot, uint32_t position, int32_t rope_set);
void slots_empty(struct eng_session *session, int32_t slot); /* without tokens and pages */
void slots_set_sampler(struct eng_session *session, int32_t slot, const struct sampler_state *sampler);
void slots_mark_seen(struct eng_session *session, int32_t slot, const int32_t *tokens, size_t count);
/* Shortens a raw slot. Returns the tokens that its pages still have: `position`, or 0 if pages of tokens in the window before it
 * have been used again. Then all tokens must be computed again from the history. */
uint32_t slots_truncate(struct eng_session *session, int32_t slot, uint32_t position);
/* The same for pages and position alone: the tokens remain marked as seen. */
uint32_t slots_shorten(struct eng_session *session, int32_t slot, uint32_t position);
/* Copies the slot's recurrent state to place `saved`, below session->saved_states, or from there. Requires: nothing is in flight. */
bool slots_save_state(struct eng_session *session, int32_t slot, uint32_t saved, struct status *status);
bool slots_restore_state(struct eng_session *session, int32_t slot, uint32_t saved, struct status *status);
void slots_clear_seen(struct eng_session *session, int32_t slot);
/* After a failure the state of the backend's spaces is unknown: all later calls fail. Returns false. */
bool slots_fail(struct eng_session *session, const struct status *status);
/* Announces changed parts of the slot's state, bits of enum backend_state. */
void slots_changed(struct eng_session *session, int32_t slot, unsigned what);

/* Whether the tokens of the slot have other rotary frequencies than a sequence of `total` tokens needs (longrope). */
bool slots_rope_differs(const struct eng_session *session, int32_t slot, uint64_t total);
/* If so, selects those of `total` tokens and empties the slot, without its pages: all of its tokens must be computed
 * again. Returns whether it did. Requires: no step of the slot is in flight, or its result is discarded. */
bool slots_switch_rope(struct eng_session *session, int32_t slot, uint64_t total);

/* Returns how many of `rest` prompt tokens the next prefill step takes. It depends only on `rest`, so that a prompt is
 * always divided in the same way. */
uint32_t replay_chunk(const struct eng_session *session, uint64_t rest, size_t *plan_index);
/* Fills the inputs of a replay that appends the tokens of a part (one chunk) to a slot. */
struct session_plan *replay_fill_prefill(struct eng_session *session, const struct replay_part *part,
                                         size_t plan_index);
/* Appends the tokens of a part (one chunk) to a slot. If it draws, sets *next_token to the next token or PLAN_NO_TOKEN. */
bool replay_prefill(struct eng_session *session, const struct replay_part *part, size_t plan_index, int32_t *next_token,
                    struct status *status);
/* Returns the smallest mixed plan for so many rows and out rows, else the largest; NULL: the engine has none. */
struct session_plan *replay_mixed_plan(const struct eng_session *session, uint32_t rows, uint32_t out_rows);
/* Appends the tokens of all parts to their slots in one step. Returns the tokens that were drawn, in the order of the parts, each
 * checked (PLAN_NO_TOKEN is valid); NULL on failure. Requires: the plan has room; it may be a verification plan, too. */
const int32_t *replay_mixed(struct eng_session *session, struct session_plan *plan, const struct replay_part *parts,
                            uint32_t count, struct status *status);
/* Returns the smallest verification plan for so many rows, else the largest; NULL: the engine has none. */
struct session_plan *replay_verify_plan(const struct eng_session *session, uint32_t rows);
/* Computes the tokens of all parts in one step, and draws a token after each. Returns them in the order of the rows, checked as above;
 * NULL on failure. What the slots keep of it is told with replay_keep. Requires: the plan has room. */
const int32_t *replay_verify(struct eng_session *session, struct session_plan *plan, const struct replay_part *parts,
                             uint32_t count, struct status *status);
/* The slot has `rows` more tokens of the verification step in its pages, and `drawn` (or PLAN_NO_TOKEN) was drawn after the last of
 * them. */
void replay_keep(struct eng_session *session, int32_t slot, uint32_t rows, int32_t drawn);
/* Returns the smallest decode plan for `count` rows. The caller fills slots and tokens of rows [0, count), then submits
 * it. */
struct session_plan *replay_decode_plan(const struct eng_session *session, uint32_t count);
bool replay_submit_decode(struct eng_session *session, struct session_plan *plan, uint32_t count,
                          struct status *status);
/* Fills the inputs that replay_submit_decode adds. */
void replay_fill_decode(struct eng_session *session, struct session_plan *plan, uint32_t count);
/* Whether replays of the plan may stop before their sampler. */
bool replay_splits(const struct eng_session *session, const struct session_plan *plan);
/* Submits one more step of the same rows, each with the token that it drew last; `waits`: up to its sampler. */
bool replay_submit_again(struct eng_session *session, const struct session_plan *plan, bool waits,
                         struct status *status);
/* Queues the sampler of the replay submitted last, which waits, with what its slots[count] may draw now. Requires: all earlier replays were
 * accepted or rejected. */
bool replay_sample(struct eng_session *session, const int32_t *slots, uint32_t count, bool late, struct status *status);
/* Or forgets it: the same step can be submitted again. */
void replay_abandon(struct eng_session *session);
/* Returns the tokens of the oldest replay in flight, the first `count` of them checked (PLAN_NO_TOKEN is valid); NULL
 * on failure. */
const int32_t *replay_wait(struct eng_session *session, uint32_t count, struct status *status);
/* The slot has one more token in its pages, and `drawn` (or PLAN_NO_TOKEN) was drawn. */
void replay_accept(struct eng_session *session, int32_t slot, int32_t drawn);
/* The slot's row was discarded: undoes its effect on sampler and SEEN. */
void replay_reject(struct eng_session *session, int32_t slot);
/* Returns the logits of the replay waited for last; NULL on failure. */
const float *replay_logits(struct eng_session *session, uint32_t row, uint32_t count, struct status *status);
/* The same for its hidden states. Requires: the engine gives them. */
const float *replay_hidden(struct eng_session *session, uint32_t row, uint32_t count, struct status *status);

/* drafts.c: places of a slot's table. */
uint32_t drafts_places(uint64_t max_context);
void drafts_begin(struct eng_sequence *sequence);
void drafts_clear(struct eng_session *session, int32_t slot); /* another sequence begins */
/* Puts a draft of at most `most` tokens after the sequence's tokens. Returns how many. */
uint32_t drafts_propose(struct eng_sequence *sequence, uint32_t most);
/* Compares the token, which was drawn and is not yet appended, with the drafts for it. */
void drafts_learn(struct eng_sequence *sequence, int32_t token);
/* The engine predicts this token after the sequence's last one, which was just drawn. */
void drafts_predicted(struct eng_sequence *sequence, int32_t token);
/* The share `hits` after one more comparison. */
float drafts_weigh(float hits, bool is_hit);
/* How many tokens, at most `most`, are worth drafting where this share was right. cost: of a drafted token besides its row, as a share of
 * a decode step's. */
uint32_t drafts_count(float hits, float cost, uint32_t most);

/* draft_check.c: whether `draft` can draft for `engine`. */
bool draft_check(const struct eng_engine *engine, const struct eng_engine *draft, uint32_t speculate,
                 struct status *status);
/* Sets session->draft_cost. False: memory is lacking. */
bool draft_find_cost(const struct eng_engine *engine, const struct eng_engine *draft, float *cost,
                     struct status *status);

/* draft_engine.c */
void draft_engine_begin(struct eng_sequence *sequence);
/* How many tokens, at most `most`, the draft engine shall draft for a sequence with a slot. */
uint32_t draft_engine_wanted(const struct eng_sequence *sequence, uint32_t most);
/* Drafts for those of session->parts [count] that have of_engine: 1 + wanted tokens each. Puts drafts after the tokens of their sequences, and sets
 * counts to 1 + drafted tokens. Requires: nothing is in flight. */
bool draft_engine_draw(struct eng_session *session, uint32_t count, struct status *status);
/* The first token of the sequence's draft was the right one, or not. */
void draft_engine_learn(struct eng_sequence *sequence, bool is_hit);

/* scheduler.c: waits for the decode steps that eng_step queued ahead and appends their tokens. One whose tokens callers may still set is
 * forgotten. */
bool scheduler_drain(struct eng_session *session, struct status *status);

/* news.c: the sequence got a token or ended. */
void news_note(struct eng_sequence *sequence);
/* Makes the descriptor readable if there are news. */
void news_signal(struct eng_session *session);
/* The same, and calls the caller's function for each sequence with news. */
void news_tell(struct eng_session *session);

/* sampling.c: checks the caller's settings. Fails for options that the engine's kernels do not know. */
bool sampling_read(const struct eng_session *session, const struct eng_sampling *given,
                   struct session_sampling *sampling, struct status *status);

/* row_logprobs.c: of a token in a row of logits, and of the likeliest ones, top[count]. */
void logprobs_of_row(const float *logits, uint64_t vocab_size, int32_t token, struct eng_logprob *own,
                     struct eng_logprob *top, size_t count);

/* prompt_rows.c: `count` tokens more become the sequence's prompt. Fails, with nothing changed, if there is no memory for results of its
 * rows. */
bool prompt_rows_begin(struct eng_sequence *sequence, uint32_t count, struct status *status);
void prompt_rows_free(struct eng_sequence *sequence);
/* Whether the next token that the sequence computes has a row that is to be read. */
bool prompt_rows_due(const struct eng_sequence *sequence);
/* Tokens that may be computed, or come from the cache, before the next row that is to be read; of all if there is none. */
uint32_t prompt_rows_before(const struct eng_sequence *sequence);
/* Reads the next row. logits NULL: they are not finite. hidden: as the next function tells. */
void prompt_rows_read(struct eng_sequence *sequence, const float *logits, const float *hidden);
bool prompt_rows_has_hidden(const struct eng_sequence *sequence);
/* The mean of the prompt's hidden states, of which `last` is the last; NULL: they were not read. Valid until the next prompt. */
const float *prompt_rows_mean(struct eng_sequence *sequence, const float *last);

/* slots.c: a raw slot for which the last step drew a token; NULL: it did not, *status says so. */
const struct session_slot *slots_find_drawn(const struct eng_session *session, uint32_t slot, const char *function,
                                            struct status *status);

/* hidden.c: fails for engines without hidden states. */
bool hidden_exist(const struct eng_session *session, const char *function, struct status *status);

/* slot_options.c: the slot's sampler with its options. An answer without tokens begins. */
void slot_options_set(struct eng_session *session, int32_t slot, const struct session_sampling *sampling);
/* Begins the slot's answer, which has `count` tokens already. */
void slot_options_begin_answer(struct eng_session *session, int32_t slot, const int32_t *tokens, size_t count);
/* Raw slots: the answer has the tokens from answer_start to the slot's position. */
void slot_options_recount(struct eng_session *session, int32_t slot);
/* Tokens that may be drawn: [plan_allowed_words]; NULL: all. */
void slot_options_set_allowed(struct eng_session *session, int32_t slot, const uint32_t *allowed);
/* Checks a caller's mask, and sets *mask to what it allows. */
bool slot_options_check_allowed(const struct eng_session *session, const uint32_t *allowed, size_t words,
                                const char *function, enum session_mask *mask, struct status *status);

/* prefix_cache.c: the cache knows nothing of the sequence's tokens yet. Requires: it has a slot. */
void sequence_begin_blocks(struct eng_sequence *sequence);
/* Takes blocks of the cache for the tokens that it would compute next, and a checkpoint where the session has them. Requires: nothing
 * is in flight. */
void sequence_use_cache(struct eng_sequence *sequence);
/* It needs `pages` pages to begin: returns how many of them it takes from the available ones if it uses the cache. */
uint64_t sequence_uncached_pages(const struct eng_sequence *sequence, uint64_t pages);
/* So many more of its tokens are in the KV pages: those of whole pages enter the cache. */
void sequence_computed(struct eng_sequence *sequence, uint32_t count);
/* Its logits after so many tokens are finite: what it has computed of those, or found in the cache, is proven. Requires: it has a slot; so
 * for the next. */
void sequence_prove(struct eng_sequence *sequence, uint32_t tokens);
/* Its logits are not finite: what led there and is not proven is not found any more, and nothing of it is from now on. */
void sequence_leave_cache(struct eng_sequence *sequence);
/* Makes a last checkpoint, if that is of use. Called before its slot is given back. */
void sequence_leave_checkpoint(struct eng_sequence *sequence);
/* Uncomputed tokens up to the place where its next step must end: of its tokens or, with recurrent state, of a checkpoint. */
uint32_t sequence_rest(const struct eng_sequence *sequence);
/* Whether another prompt, which is computed, makes a checkpoint that the sequence can use. */
bool sequence_awaits(const struct eng_sequence *sequence, struct eng_sequence *other);

/* sequence.c: appends a drawn token and ends the sequence if it is the last one. PLAN_NO_TOKEN ends it, too. */
void sequence_append(struct eng_sequence *sequence, int32_t token, const float *logits);
/* Cancels the sequences of eng_sequence_cancel_async. */
void sequence_cancel_unwanted(struct eng_session *session);
/* eng_sequence_create without checks of pointers. */
bool sequence_make(struct eng_session *session, const struct eng_sequence_options *options,
                   struct eng_sequence **sequence, struct status *status);
/* Its slot gets the sampler with its options, and what they count of its tokens. */
void sequence_fill_slot(struct eng_sequence *sequence);
/* Whether context and pool have room for its tokens, and its answer for one more. */
bool sequence_check_room(const struct eng_sequence *sequence, const char *function, struct status *status);
/* Begins in this state: WAITING as the last, or with a slot among those that run, or done and kept. */
void sequence_join(struct eng_sequence *sequence, enum eng_state state);
/* Tokens, sampler and pages of its slot are those of a sequence that is done and kept. */
void sequence_restored(struct eng_sequence *sequence, uint32_t computed);
/* Takes pages for `tokens` tokens in all. If too few are available, the sequences that were admitted last are set aside until there
 * are enough. False: it was set aside itself. Requires: nothing is in flight. */
bool sequence_reserve(struct eng_sequence *sequence, uint64_t tokens);
/* Takes pages for later tokens as well, if there are plenty: steps that change page tables are not queued ahead. */
void sequence_reserve_ahead(struct eng_sequence *sequence);
/* Admits waiting sequences in order, as far as slots and pages are free. */
bool sequence_can_admit(const struct eng_session *session);
void sequence_admit(struct eng_session *session);
/* Most tokens of a draft that may follow the sequence's tokens: with them and one more drawn token it is not longer than it may become.
 * 0 where a draw depends on the tokens drawn before it by more than the model, or where the logits of each token are wanted. */
uint32_t sequence_most_drafted(const struct eng_sequence *sequence);
/* Whether the token is one that ends the sequence. */
bool sequence_is_ended_by(const struct eng_sequence *sequence, int32_t token);
/* Whether the next token ends the sequence, whatever it is. */
bool sequence_ends_next(const struct eng_sequence *sequence);
/* Whether the token that the step in flight draws, once appended, makes the sequence so long that all of its tokens are
 * computed again. */
bool sequence_switches_next(const struct eng_sequence *sequence);

#endif
