/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the bodies of requests. Every field is used or refused by its name: server_request.c has two tables, one of the
 * fields that are read and one of those that may only have the value that changes nothing. A new option is a row there. */
#ifndef RUNTIME_SERVER_SERVER_REQUEST_H
#define RUNTIME_SERVER_SERVER_REQUEST_H

#include <jansson.h>
#include <stdint.h>

#include "runtime/server/server_format.h"
#include "runtime/server/server_tools.h"

enum server_endpoint {
    SERVER_CHAT = 1,       /* POST /v1/chat/completions */
    SERVER_COMPLETION = 2, /* POST /v1/completions */
    SERVER_TOKENIZE = 4,   /* POST /tokenize */
    SERVER_DETOKENIZE = 8, /* POST /detokenize */
    SERVER_EMBEDDING = 16  /* POST /v1/embeddings */
};

/* The API through which a chat came: replies have its shape. */
enum server_shape { SERVER_OPENAI, SERVER_MESSAGES, SERVER_RESPONSES };

/* Whether the model shall reason, as "thinking" of Anthropic's API says. FREE: as it likes. */
enum server_thinking { SERVER_THINKING_FREE, SERVER_THINKING_ON, SERVER_THINKING_OFF };

/* Choices of one request: prompts times n; embeddings: inputs, as many as OpenAI's API takes. */
enum { SERVER_MOST_CHOICES = 128, SERVER_MOST_INPUTS = 2048 };

/* Stop strings of one request, none empty. */
enum { SERVER_MOST_STOPS = ENG_MAX_STOP_STRINGS, SERVER_MOST_STOP_BYTES = ENG_MAX_STOP_BYTES };

struct server_prompt {
    const char *text; /* borrowed from the body; NULL: given as tokens, or a chat */
    size_t size;
    int32_t *tokens; /* owned [count]; NULL: not converted yet */
    size_t count;
};

struct server_request {
    enum server_endpoint endpoint;
    enum server_shape shape;
    json_t *echo_body; /* owned: the fields of a response that repeat the request; NULL: none */
    json_t *body;      /* owned: strings below are borrowed from it; NULL after server_request_shrink */
    const char *model; /* NULL: not given */
    bool stream, include_usage, echo, ignore_eos;
    bool no_answer;                                    /* echo alone: max_tokens is 0 */
    bool add_special;                                  /* tokens around a text */
    bool special_given;                                /* add_special_tokens was in the body */
    bool skip_special;                                 /* special tokens do not appear in answers */
    bool add_generation;                               /* the prompt of a chat ends with the beginning of an answer */
    uint64_t n, max_tokens, max_completion_tokens;     /* 0: not given */
    double temperature, top_p, repetition_penalty;     /* < 0: not given */
    double min_p, presence_penalty, frequency_penalty; /* 0: none */
    struct eng_logit_bias *biases;                     /* owned [bias_count] */
    uint32_t bias_count;
    bool wants_logprobs;
    uint64_t top_logprobs;       /* likeliest tokens that each token's log-probability comes with */
    struct server_format format; /* owned; its text is gone after server_request_shrink */
    int64_t top_k;               /* < 0: not given; 0: all */
    uint64_t seed;
    bool seed_given;
    const char *stops[SERVER_MOST_STOPS];
    size_t stop_count;
    char *own_texts; /* owned: the memory of `stops`, and of texts that are echoed, after server_request_shrink */
    int32_t stop_tokens[ENG_MAX_STOP_TOKENS];
    uint32_t stop_token_count;
    struct server_prompt *prompts; /* owned [prompt_count]; of a chat: one without text */
    size_t prompt_count;
    bool is_chat;              /* messages were given */
    char *variables;           /* owned: JSON for the chat template; NULL: no chat, or converted already */
    struct server_tools tools; /* owned */
    bool parallel_calls;
    const char *effort; /* of reasoning; NULL: not given, or converted already */
    enum server_thinking thinking;
    bool is_base64;      /* embeddings, as the next two */
    bool is_mean;        /* of all tokens of an input; else of its last one */
    uint64_t dimensions; /* 0: all */
};

/* Parses body[size], whose number of values is bounded. *value: owned by the caller. */
bool server_request_parse(const char *body, size_t size, json_t **value, struct server_error *error);
/* Reads a body; takes its reference. The caller releases *request with server_request_free, also after a failure. */
bool server_request_read_value(enum server_endpoint endpoint, json_t *body, struct server_request *request,
                               struct server_error *error);
/* Both of them. */
bool server_request_read(enum server_endpoint endpoint, const char *body, size_t size, struct server_request *request,
                         struct server_error *error);
void server_request_free(struct server_request *request);

/* Releases the body, which may be many times as large as the parts that a waiting request needs: afterwards model,
 * variables and the texts of prompts are NULL. Requires: the prompts are tokens. False: out of memory. */
bool server_request_shrink(struct server_request *request);

/* Limit of new tokens that the request names; 0: none. */
uint64_t server_request_max_tokens(const struct server_request *request);

#endif
