/* SPDX-License-Identifier: Apache-2.0 */
/* Golden outputs of every plan: contexts, expected logits of some of their tokens, and for each plan the rows that it must
 * reproduce. The builder compares before it writes an engine, eng_selftest where it runs: both walk the same cases. */
#ifndef FORMATS_ENGINE_GOLDEN_H
#define FORMATS_ENGINE_GOLDEN_H

#include "formats/engine/plan.h"

/* What engines that draft give with each token: the drafted one, and the tokens whose logits are so close to its own that rounding may make
 * them the largest. An engine has no logits of drafts to compare. tokens NULL: none. */
struct golden_drafts {
    const int32_t *tokens; /* [rows] */
    const uint32_t
        *near; /* [rows, plan_allowed_words(vocab_size)]: bit t % 32 of word t / 32, also of the drafted one */
};

/* A prompt, its greedy continuation, and the logits of each of those tokens. */
struct engine_golden {
    uint32_t prompt_count, token_count, vocab_size;
    float tolerance;             /* absolute difference of logits */
    const int32_t *prompt;       /* [prompt_count]; in an open engine `tokens` follow in memory */
    const int32_t *tokens;       /* [token_count] */
    const float *logits;         /* [token_count, vocab_size] */
    struct golden_drafts drafts; /* [token_count] */
};

/* The structs below are also the encoding in the file: little endian, no padding. */
struct golden_sequence {
    uint32_t first_token; /* index into the tokens: where the previous sequence ends */
    uint32_t token_count; /* from 1 */
};
_Static_assert(sizeof(struct golden_sequence) == 8, "encoding");

/* An expected result, which depends only on the sequence's tokens at positions [0, position]. */
struct golden_row {
    uint32_t sequence, position; /* strictly rising */
    int32_t token;               /* drawn greedily */
    uint32_t reserved;
};
_Static_assert(sizeof(struct golden_row) == 16, "encoding");

/* One replay of the plan with this kind and rows. Decode: `count` batch rows, each an item. Prefill: one item, whose row is the
 * last one of a chunk of `count` tokens. Mixed, verify: `count` items, whose rows are the last ones of chunks of golden_chunk tokens, one after
 * the other. */
struct golden_case {
    uint32_t kind, rows; /* of the plan */
    uint32_t count;      /* from 1, at most `rows` */
    uint32_t first_item; /* index into the items: where the previous case ends */
};
_Static_assert(sizeof(struct golden_case) == 16, "encoding");

struct golden_cases {
    uint32_t vocab_size;
    float tolerance; /* absolute, on logits */
    uint32_t token_count, sequence_count, row_count, case_count, item_count;
    const struct golden_sequence *sequences;
    const struct golden_row *rows;
    const struct golden_case *cases;
    const uint32_t *items; /* rows, by index */
    const int32_t *tokens;
    const float *logits;         /* [row_count, vocab_size] */
    struct golden_drafts drafts; /* [row_count] */
};
enum { GOLDEN_MOST_SEQUENCES = 64, GOLDEN_MOST_ROWS = 4096, GOLDEN_MOST_CASES = 4096, GOLDEN_MOST_ITEMS = 65536 };

/* The same form for a prompt and its continuation: every decode plan repeats the drawn tokens, every prefill plan ends the prompt, a mixed plan
 * does both, and a verification plan ends with a drawn token.
 * The arrays are allocated (golden_cases_free), but tokens, logits and drafts borrowed from `golden`, whose prompt and tokens must follow
 * each other in memory. */
bool golden_cases_of_prompt(const struct engine_golden *golden, const struct plan *plans, size_t plan_count,
                            struct golden_cases *cases, struct status *status);
void golden_cases_free(struct golden_cases *cases); /* of golden_cases_of_prompt */

uint32_t golden_case_items(const struct golden_case *golden_case);
/* Items of a case of the plan at most. */
uint32_t golden_most_items(const struct plan_header *header);
/* Tokens that end with the row of item number `item` of a case, in one replay. In a mixed or a verification plan items 0 and 1 have up to a half and a
 * quarter of its rows, the others one. */
enum { GOLDEN_MIXED_CHUNKS = 2 };
uint32_t golden_chunk(const struct golden_cases *cases, const struct golden_case *golden_case, uint32_t item);

/* The tokens of a sequence from position 0 on. */
const int32_t *golden_tokens(const struct golden_cases *cases, uint32_t sequence);

uint32_t golden_longest(const struct golden_cases *cases); /* tokens of the longest sequence; 0 without cases */

/* What routers choose the experts of a token at this position by in golden replays (STEP_ROUTE_SEEDS): experts that do not depend on
 * scores, so that rounding cannot change them. Where two experts have nearly the same score, rounding decides between them, and
 * results differ more than any tolerance allows. */
static inline int32_t golden_route_seed(int32_t position) { return position + 1; }

/* One replay. Rows are in the order of the plan's; those of a slot follow each other. Out rows: decode: all; else the last row of each
 * slot. */
struct golden_step {
    uint32_t count, out_rows;
    const int32_t *tokens, *slots, *positions; /* [count] */
    int32_t after;     /* without out rows: the token after the last row's, which is of one slot */
    bool fixes_routes; /* by golden_route_seed */
};

/* The out rows of a step: `out_rows` of the rows that are the last ones of their slots. */
void golden_out_rows(const struct golden_step *step, int32_t *out_rows);
/* STEP_FOLLOWING of a step, [count]. */
void golden_following(const struct golden_step *step, int32_t *following);

/* What a step has computed, [out_rows]; borrowed until the next call. */
struct golden_found {
    const float *logits; /* [out_rows, vocab_size] */
    const int32_t *drawn;
    const int32_t *drafted; /* NULL: the engine does not draft */
};

/* What runs plans. Its slots are numbered from 0 and begin empty. */
struct golden_machine {
    void *context;
    uint32_t slots;
    /* Forgets the slot's tokens from `position` on. Returns how many it still has: `position`, or 0 if pages of tokens that the
     * next one needs have been used again, or recurrent state has gone on. */
    uint32_t (*rewind)(void *context, uint32_t slot, uint32_t position);
    /* Makes room for so many tokens in all. False: there is none now, and the slot is as before. */
    bool (*reserve)(void *context, uint32_t slot, uint32_t tokens);
    /* Appends tokens by any plans at `position`, where the slot ends. The token after them follows in memory. Requires: there is room. */
    bool (*append)(void *context, uint32_t slot, const int32_t *tokens, uint32_t position, uint32_t count,
                   struct status *status);
    /* Replays plans[plan], which appends the step's tokens. */
    bool (*run)(void *context, size_t plan, const struct golden_step *step, struct golden_found *found,
                struct status *status);
};

/* What was found of one plan. */
struct golden_result {
    uint32_t rows;       /* compared */
    uint32_t left_out;   /* rows for which there was no room */
    uint32_t ties;       /* part of `rows`: another token was drawn or drafted, whose logit is within the tolerance */
    uint32_t longest;    /* tokens of the longest context */
    float largest_error; /* of a logit, absolute */
};

/* Runs and compares all cases of the plans. results: [plan_count], added to. False with a message: a plan differs (*differs), or
 * could not run. STATUS_FULL: no row of a plan has room. left_out: [plan_count], plans whose cases are passed over; NULL: none. */
bool golden_walk(const struct golden_cases *cases, const struct plan *plans, size_t plan_count, const bool *left_out,
                 const struct golden_machine *machine, struct golden_result *results, bool *differs,
                 struct status *status);

/* Index of the plan of this kind and rows; plan_count: there is none. */
size_t golden_find_plan(const struct plan *plans, size_t plan_count, uint32_t kind, uint32_t rows);

/* "decode plan of 4 rows" */
enum { GOLDEN_NAME_BYTES = 64 };
const char *golden_plan_name(const struct plan_header *header, char name[GOLDEN_NAME_BYTES]);

#endif
