/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences at random, for soak_bench: what each is given, what it answers alone, and whether it answers the same now. */
#ifndef TESTS_BENCH_SOAK_CASE_H
#define TESTS_BENCH_SOAK_CASE_H

#include <stdbool.h>

#include "runtime/eng.h"

enum {
    SOAK_MOST_NEW = 64,
    SOAK_MOST_PROMPT = 160 + SOAK_MOST_NEW, /* of which the last may be drawn ones */
    SOAK_SUBMITS = 2,
    SOAK_MOST_TOKENS = SOAK_SUBMITS * SOAK_MOST_NEW,
    SOAK_OPENINGS = 8,
    SOAK_GRAMMARS = 3,
    SOAK_STOP_BYTES = 8,
    SOAK_TEXT_BYTES = 2048,
};

/* splitmix64 */
uint64_t soak_draw(uint64_t *random);
/* From `least` to `most`, both included. */
uint32_t soak_draw_between(uint64_t *random, uint32_t least, uint32_t most);
bool soak_draw_one_of(uint64_t *random, uint32_t count);

/* What all specifications are made from. */
struct soak_source {
    struct eng_engine *engine;
    struct eng_session *session; /* that runs one alone */
    struct eng_engine_facts facts;
    int32_t openings[SOAK_OPENINGS][SOAK_MOST_PROMPT];
    struct eng_grammar *grammars[SOAK_GRAMMARS];
    uint32_t grammar_count; /* 0: the engine has no tokenizer */
};

/* The text of an answer up to its stop string, or the first SOAK_TEXT_BYTES of it. */
struct soak_text {
    size_t size;
    char bytes[SOAK_TEXT_BYTES];
};

struct soak_spec {
    uint32_t submits, prompt_counts[SOAK_SUBMITS], max_new, flags;
    int32_t prompt_logprobs;
    int32_t prompts[SOAK_SUBMITS][SOAK_MOST_PROMPT];
    bool is_sampled;
    struct eng_sampling sampling;
    struct eng_logit_bias bias;
    uint32_t stop_count;
    int32_t stop;
    char stop_string[SOAK_STOP_BYTES + 1]; /* "": none */
    struct eng_grammar *grammar;           /* borrowed; NULL: none */
    /* Begins as another one and the first `fork_at` tokens of its answer: that one's fork with these options says the same. 0: no
     * specification begins as this one. */
    const struct soak_spec *fork;
    uint32_t fork_at;

    uint32_t answer_counts[SOAK_SUBMITS]; /* tokens when the first submit is done, and in all */
    enum eng_end ends[SOAK_SUBMITS];      /* ENG_END_CANCELLED: by its stop string */
    int32_t answer[SOAK_MOST_TOKENS];
    struct soak_text text;
};

/* Draws the source's texts and compiles its grammars. */
void soak_prepare(struct soak_source *source, uint64_t *random);
void soak_release(struct soak_source *source);
/* Draws specs[count] and finds out what each answers alone. */
void soak_make_specs(const struct soak_source *source, uint64_t *random, struct soak_spec *specs, uint32_t count);

/* A sequence that runs. */
struct soak_sequence {
    const struct soak_spec *spec;  /* NULL: none */
    struct eng_sequence *sequence; /* NULL: it is in a file */
    struct eng_text *stream;       /* NULL: the engine has no tokenizer */
    uint32_t submitted, count;
    bool is_stopped; /* by its stop string */
    bool has_more;   /* tokens than any may have */
    int32_t tokens[SOAK_MOST_TOKENS];
    struct soak_text text;
};

void soak_start(const struct soak_source *source, struct eng_session *session, const struct soak_spec *spec,
                struct soak_sequence *one);
void soak_submit(struct soak_sequence *one);
/* Takes its new tokens. A stop string cancels the sequence. */
void soak_poll(struct soak_sequence *one);
bool soak_is_done(const struct soak_sequence *one);
/* What differs from what the sequence alone had by then; NULL: nothing. is_done: of all submits so far. */
const char *soak_difference(const struct soak_sequence *one, bool is_done);
/* Forks the sequence, with the options of spec->fork or its own. False: there was no room, or it has ended. Requires: its tokens were
 * polled. */
bool soak_fork(const struct soak_source *source, struct soak_sequence *one, bool has_own_options,
               struct soak_sequence *fork);
/* Saves the sequence, which has answered a submit, and destroys it. */
void soak_save(struct soak_sequence *one, const char *path);
/* False: there is no room yet. */
bool soak_restore(struct eng_session *session, struct soak_sequence *one, const char *path);
void soak_destroy(struct soak_sequence *one);

#endif
