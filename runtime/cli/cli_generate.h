/* SPDX-License-Identifier: Apache-2.0 */
/* engrun: opens an engine, reads a prompt and prints the answer as it is generated. */
#ifndef RUNTIME_CLI_CLI_GENERATE_H
#define RUNTIME_CLI_CLI_GENERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
    bool no_history; /* with chat: what is entered is not kept in a file */
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
    bool logprobs;          /* JSON lines with log-probabilities instead of text */
    uint64_t logprob_count; /* of the likeliest tokens in each */
    bool seed_given;        /* else a random one, which is printed */
    uint64_t seed;
    struct cli_devices devices; /* for engines for GPUs */
    struct eng_session_options session;
};

/* Continues a prompt. Returns the exit code; messages are printed. */
int generate(const struct generate_options *options);
/* Runs the engine's self test and prints the result. */
int generate_selftest(const struct generate_options *options);

#endif
