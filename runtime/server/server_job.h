/* SPDX-License-Identifier: Apache-2.0 */
/* A request that generates: its prompts as tokens, its choices and their texts. One thread prepares it, the thread of the
 * model computes it, and a thread of the HTTP server reads its texts meanwhile. */
#ifndef RUNTIME_SERVER_SERVER_JOB_H
#define RUNTIME_SERVER_SERVER_JOB_H

#include <stdatomic.h>

#include "runtime/server/server_answer.h"
#include "runtime/server/server_grammars.h"
#include "runtime/server/server_logprobs.h"
#include "runtime/server/server_metrics.h"
#include "runtime/server/server_request.h"
#include "runtime/server/server_voice.h"
#include "runtime/text/stop_strings.h"

enum { SERVER_ID_BYTES = 40 };

struct server_choice {
    /* Used by the thread that prepares the job, then by that of the model. */
    struct eng_text *text;
    struct stop_strings stop;
    struct server_answer reader;   /* of the tokens so far, where some may be of reasoning; else PLAIN */
    double last_token;             /* time; 0: none */
    uint64_t characters, released; /* of the text so far, and of the part of it that has come to `out` */
    /* Under the lock of the model from submission on. */
    struct server_buffer out; /* text of the answer; a stream drops what it has sent */
    struct server_logprobs logprobs;
    uint64_t tokens, reasoning_tokens; /* reasoning: with its markers */
    uint64_t cached_tokens; /* of its prompt, from the prefix cache; does not change any more when there are tokens */
    enum server_finish finish;
    bool at_own_token; /* one of the request's own stop_token_ids has ended it, which may be anywhere */
};

struct server_job {
    struct server_request request; /* shrunk */
    char id[SERVER_ID_BYTES];
    int64_t created; /* seconds since 1970 */
    struct eng_sampling sampling;
    struct server_grammar *grammar; /* of the model's; NULL: any text */
    /* The model's, for an answer that is divided into reasoning, content and calls; NULL: all is content. */
    const struct server_voice *voice;
    bool in_thought;               /* the prompt ends with the beginning of reasoning */
    bool is_bound;                 /* a grammar makes the answer calls or content */
    bool is_json;                  /* is_bound: the content is JSON */
    uint32_t max_new_tokens;       /* 0: until the context is full */
    struct server_choice *choices; /* owned [choice_count]; n for each prompt, in order */
    size_t choice_count;
    uint64_t prompt_tokens; /* of all prompts */

    /* Under the lock of the model from submission on. */
    unsigned references;
    size_t started, finished; /* choices */
    bool done;                /* all choices are finished, or the job has failed */
    bool cancelled;           /* `failure` says why; the model's thread ends the job */
    atomic_bool abandoned;    /* the client has left: as cancelled, without the lock */
    struct server_error failure;
    double arrival, first_token, end, deadline; /* cli_seconds(); 0: not yet */
    struct server_job *next;                    /* in the queue */
    /* Called with the lock held after every change of the above; NULL: nothing waits. */
    void (*wake)(void *context);
    void *context;
};

/* What a model has for jobs; all is borrowed. */
struct server_target {
    const struct eng_engine *engine;
    const struct eng_engine_facts *facts;
    const struct server_voice *voice;
    struct server_grammars *grammars;
    uint64_t max_prompt; /* tokens of each prompt; 0: no limit but the context */
};

/* Checks the request against the engine, compiles its grammar and converts its prompts. On success *job owns the contents of *request,
 * which is emptied. The target outlives the job. */
bool server_job_create(const struct server_target *target, struct server_request *request, struct server_job **job,
                       struct server_error *error);
void server_job_free(struct server_job *job);

/* The reader of a choice's text. */
void server_job_begin_answer(const struct server_job *job, struct server_answer *answer);
/* Divides the whole text of a choice. *calls: those that can be made. Requires: the job is done. False: out of memory. */
bool server_job_divide(const struct server_job *job, size_t choice, struct server_parts *parts, size_t *calls);

/* Whether an answer may have ended within a call: the limit of tokens has ended it, a stop string or a stop token. */
bool server_job_is_cut(const struct server_choice *choice);

/* Index of the prompt of a choice. */
size_t server_job_prompt_of(const struct server_job *job, size_t choice);

/* Tokens of all of its answers so far, and those of their reasoning. */
uint64_t server_job_tokens(const struct server_job *job, uint64_t *reasoning);
/* Tokens of its prompts that came from the prefix cache, also where another prompt of the job computed them. Requires: each prompt is computed,
 * or the job has failed. */
uint64_t server_job_cached_tokens(const struct server_job *job);

/* Converts the prompts of a request that are not tokens yet. Called once. */
bool server_job_tokenize(const struct server_target *target, struct server_request *request,
                         struct server_error *error);
/* Text of tokens, owned by the caller. */
bool server_job_detokenize(const struct eng_engine *engine, const int32_t *tokens, size_t count, uint32_t flags,
                           char **text, size_t *size, struct server_error *error);
/* Whether the vocabulary has all tokens. */
bool server_job_check_tokens(const struct eng_engine_facts *facts, const struct server_prompt *prompt,
                             const char *param, struct server_error *error);

#endif
