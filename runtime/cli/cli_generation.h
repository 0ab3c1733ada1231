/* SPDX-License-Identifier: Apache-2.0 */
/* What generating text and conversations share: an open engine, one sequence on it, and the output of its tokens. */
#ifndef RUNTIME_CLI_CLI_GENERATION_H
#define RUNTIME_CLI_CLI_GENERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/npy.h"
#include "runtime/cli/cli_args.h"
#include "runtime/cli/cli_sampling.h"
#include "runtime/eng.h"

struct generate_options {
    const char *path;
    const char *prompt;     /* NULL: from tokens or stdin */
    const uint64_t *tokens; /* [token_count] used exactly as given; NULL: none */
    size_t token_count;
    const char *system;      /* with chat: the system message, NULL: none */
    const char *logits_path; /* NULL: logits are not written */
    bool chat;
    bool no_history; /* with chat: messages are not kept in a file */
    bool plain;      /* special tokens in prompts and messages are text */
    bool ignore_eos;
    bool print_tokens;                             /* ids instead of text */
    bool keep_special;                             /* special tokens appear in the text */
    bool timing;                                   /* a summary on stderr at the end */
    bool quiet;                                    /* no notes on stderr */
    bool recommended;                              /* sampling as in the checkpoint's generation_config, unless given */
    uint32_t max_new_tokens;                       /* 0: until an end token or the end of the context */
    double temperature, top_p, repetition_penalty; /* < 0: not given */
    int64_t top_k;                                 /* < 0: not given */
    double min_p, presence_penalty, frequency_penalty;
    const struct cli_logit_biases *biases;
    const char *json_schema, *regex; /* a file, an expression; NULL: not given; at most one of these and json_object */
    bool json_object;
    bool score;             /* log-probabilities of the prompt instead of an answer */
    bool logprobs;          /* JSON lines with log-probabilities instead of text */
    uint64_t logprob_count; /* of the likeliest tokens in each */
    bool seed_given;        /* else a random one, which is printed */
    uint64_t seed;
    struct cli_devices devices; /* for engines for GPUs */
    struct eng_session_options session;
    const char *draft_path; /* of a draft engine; NULL: none */
};

struct generation {
    const struct generate_options *options;
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_sequence *sequence;
    struct eng_grammar *grammar;
    struct eng_text *text;
    struct eng_sampling sampling;
    int32_t *answer; /* chat: ids of the last answer [answer_count], owned, room for a whole context; else NULL */
    size_t answer_count;
    bool is_too_long; /* the last prompt exceeds the context */
    struct eng_engine_facts facts;
    struct npy_writer logits;
    bool logits_open;
    bool on_terminal;
    bool at_line_start; /* nothing printed since the last newline */
    uint64_t prompt_tokens, answer_tokens;
    double prompt_seconds, answer_seconds; /* steps up to an answer's first token, and after it */
    double first_token_age;                /* seconds since the process started; < 0: none yet */
    uint32_t process;                      /* number among several processes; only the first prints */
    struct eng_error error;
    struct status status; /* of failures outside the library */
};

/* Functions that return an int return an exit code, after a message if it is not CLI_DONE. */

/* Prints the message of `error`, of `status`, or that memory is lacking. */
int generation_fail_error(const struct generation *run);
int generation_fail_status(const struct generation *run);
int generation_fail_memory(struct generation *run);

/* Opens the engine. */
int generation_open(struct generation *run, const struct generate_options *options);
/* Tells the user if ids are printed for want of a tokenizer. */
void generation_note_ids(const struct generation *run);
/* One sequence needs KV pages for so many tokens, not a pool for all slots. */
int generation_open_session(struct generation *run, uint64_t tokens);
/* Outputs of the tokens, and the first sequence. */
int generation_open_outputs(struct generation *run);
/* Replaces the current sequence; most tokens of each answer, 0: no limit. */
int generation_create_sequence(struct generation *run, uint32_t max_new_tokens);

int generation_check_prompt(struct generation *run, size_t count);
int generation_print(struct generation *run, const char *text, size_t size);
/* Submits tokens and runs steps until the sequence is done or a signal arrives; prints tokens as they are drawn. */
int generation_steps(struct generation *run, const int32_t *tokens, size_t count);
/* Ends the printed text. Fails if the sequence ended since no token could be drawn; the output so far remains. */
int generation_finish(struct generation *run);

/* Releases everything. */
void generation_close(struct generation *run);
/* Completes the file of logits, prints the timing, and closes. `code` is that of the work before; returns it, or that of
 * a caught signal. */
int generation_end(struct generation *run, int code);

#endif
