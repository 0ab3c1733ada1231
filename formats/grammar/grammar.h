/* SPDX-License-Identifier: Apache-2.0 */
/* Structured output: grammars over bytes from a JSON Schema, a regular expression or a list of choices, a matcher that follows an
 * output byte by byte, and masks of the tokens of a vocabulary that may come next.
 *
 * Whatever a grammar accepts is valid: a document of the schema, a text of the expression, one of the choices, and always UTF-8. It may
 * accept less than the source allows, within the bounds below, and it never leads to a state without a continuation. What a source
 * asks for and this library would not honour is refused by name. Sources are not trusted.
 *
 * Ownership: a function named ..._open returns an object that its ..._close frees; sources, tokens and options are borrowed during
 * the call. Threads: a grammar and a vocabulary are immutable and may be shared. A matcher holds caches that change, without a lock:
 * one thread at a time may use it, with any number of states. A state is a plain value: assignment copies it, and it works with every
 * matcher of its grammar. */
#ifndef FORMATS_GRAMMAR_GRAMMAR_H
#define FORMATS_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

enum {
    GRAMMAR_MOST_SOURCE_BYTES = 1 << 20, /* of a schema's text, and of all choices together */
    GRAMMAR_MOST_REGEX_BYTES = 1 << 16,  /* of a regular expression */
    GRAMMAR_MOST_CHOICES = 1 << 14,      /* choices of a list, and values of an enum */
    GRAMMAR_MOST_RULES = 1 << 12,        /* targets of references, and repeated parts that have a rule of their own */
    GRAMMAR_MOST_STATES = 1 << 20,       /* of the automaton */
    GRAMMAR_MOST_DEPTH = 64,             /* rules within rules: an output that nests deeper is not accepted */
    GRAMMAR_MOST_WORDS = 1000,    /* of alternatives that a state follows at the same time; the others are dropped */
    GRAMMAR_MOST_WHITESPACE = 64, /* grammar_options.most_whitespace */
    GRAMMAR_MOST_TOKEN_BYTES = 1 << 12,  /* of a token */
    GRAMMAR_MOST_TOKENS = 1 << 21,       /* of a vocabulary */
    GRAMMAR_MOST_CACHE_BYTES = 96 << 20, /* of a matcher's caches, which are emptied from time to time */
};

struct grammar; /* immutable: threads may share it */

struct grammar_options {
    size_t size;              /* sizeof(struct grammar_options) */
    uint32_t most_whitespace; /* bytes of white space at each place where JSON allows it; 0: compact */
};
void grammar_options_initialize(struct grammar_options *options);

/* The documents of a JSON Schema (draft 2020-12). Properties come in the order of the schema, and optional ones may be absent. Without
 * "additionalProperties", an object that lists its properties has no others. Escapes and numbers are limited to what every reader
 * takes: no \u0000, integers of 18 digits. A keyword without support is an error that names it and its JSON pointer.
 * `options` NULL: the defaults. */
struct grammar *grammar_schema_open(const char *text, size_t size, const struct grammar_options *options,
                                    struct status *status);

/* Any JSON object. */
struct grammar *grammar_object_open(const struct grammar_options *options, struct status *status);

/* The texts that a regular expression matches from start to end: literals, `.`, classes, \d \w \s \D \W \S, \n \r \t \f \v \0, \xHH,
 * \uHHHH, groups, `|`, `*`, `+`, `?`, {n}, {n,}, {n,m}, each also with `?`. ^ and $ may stand at the ends of an alternative. \d and \w
 * are ASCII, \s is the white space of ECMAScript, `.` excludes line ends. */
struct grammar *grammar_regex_open(const char *text, size_t size, struct status *status);

/* One of the texts, each valid UTF-8. */
struct grammar_text {
    const char *bytes;
    size_t size;
};
struct grammar *grammar_choices_open(const struct grammar_text *choices, size_t count, struct status *status);

void grammar_close(struct grammar *grammar);
uint64_t grammar_bytes(const struct grammar *grammar);

/* The first and the last byte of a special token that a grammar may ask for by name (grammar_composed.h): one whose text begins with that of another
 * does not stand for that and some text. No text has it. */
#define GRAMMAR_SPECIAL_BYTE 0xFF

enum grammar_token_kind {
    GRAMMAR_TOKEN_TEXT,    /* stands for its bytes; without bytes it is never allowed */
    GRAMMAR_TOKEN_SPECIAL, /* never allowed */
    GRAMMAR_TOKEN_END, /* ends the output: allowed where the grammar may end, and as a special token that it asks for by name */
};
struct grammar_token {
    const char *bytes;
    uint32_t size;
    enum grammar_token_kind kind;
};

struct grammar_vocabulary; /* immutable: threads may share it */

/* Sorts the tokens [count] into a prefix tree; ids are their indices. The bytes are not kept. */
struct grammar_vocabulary *grammar_vocabulary_open(const struct grammar_token *tokens, size_t count,
                                                   struct status *status);
void grammar_vocabulary_close(struct grammar_vocabulary *vocabulary);
uint64_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary);

struct grammar_matcher; /* caches of one grammar, and of masks if it has a vocabulary */

/* `vocabulary` NULL: without masks. Grammar and vocabulary are borrowed and outlive the matcher. */
struct grammar_matcher *grammar_matcher_open(const struct grammar *grammar, const struct grammar_vocabulary *vocabulary,
                                             struct status *status);
void grammar_matcher_close(struct grammar_matcher *matcher);

/* Where an output is in its grammar. The members are private. */
struct grammar_state {
    uint32_t top; /* a hint: the set's number in the matcher that made the state */
    uint16_t depth, count;
    uint32_t frames[GRAMMAR_MOST_DEPTH]; /* [depth] */
    uint32_t words[GRAMMAR_MOST_WORDS];  /* [count] */
};

/* The state before the first byte. Fails with STATUS_MACHINE without memory, and with STATUS_FULL if the grammar begins with too many
 * alternatives. */
bool grammar_begin(struct grammar_matcher *matcher, struct grammar_state *state, struct status *status);

/* Follows the bytes. STATUS_BAD_INPUT: the grammar does not allow them; the message names the first that it refuses. STATUS_MACHINE:
 * no memory. STATUS_FULL: the caches' bound. The state is unchanged after a failure. */
bool grammar_accept_bytes(struct grammar_matcher *matcher, struct grammar_state *state, const void *bytes, size_t size,
                          struct status *status);

bool grammar_may_end(const struct grammar_matcher *matcher, const struct grammar_state *state);
/* Whether the output may end and no byte may follow. */
bool grammar_must_end(const struct grammar_matcher *matcher, const struct grammar_state *state);

/* Sets bit id % 32 of mask[id / 32] for each allowed token, and clears the others. `mask` has (tokens + 31) / 32 words. Requires: the
 * matcher has a vocabulary. Fails with STATUS_MACHINE or STATUS_FULL as above, and with STATUS_BAD_INPUT if the vocabulary has no
 * token for any continuation. */
bool grammar_fill_mask(struct grammar_matcher *matcher, const struct grammar_state *state, uint32_t *mask,
                       struct status *status);

#endif
