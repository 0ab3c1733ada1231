/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled grammars of one engine, found by their source: compiling one takes longer than many answers, and clients
 * send the same few. Any number of threads may use them at the same time. */
#ifndef RUNTIME_SERVER_SERVER_GRAMMARS_H
#define RUNTIME_SERVER_SERVER_GRAMMARS_H

#include "runtime/server/server_format.h"

enum {
    SERVER_MOST_IDLE_GRAMMARS = 32, /* that no request uses; the least recently used one goes first */
    SERVER_MOST_GRAMMARS = 128      /* in all: each takes up to 100 MB or so */
};

struct server_grammars;
struct server_grammar; /* one of them, in use */

struct server_grammars *server_grammars_open(void); /* NULL: out of memory */
/* Releases those in use, too: none may be given back afterwards. */
void server_grammars_close(struct server_grammars **grammars);

/* Gives the grammar of a format, compiled if it is not there. 400 if the engine cannot follow it, 429 if
 * SERVER_MOST_GRAMMARS are in use. Requires: format->field is set, and the engine is always the same. */
bool server_grammars_take(struct server_grammars *grammars, const struct eng_engine *engine,
                          const struct server_format *format, struct server_grammar **grammar,
                          struct server_error *error);
/* Ends the use. NULL: nothing. */
void server_grammars_give_back(struct server_grammar *grammar);

/* Borrowed until it is given back; NULL for NULL. */
struct eng_grammar *server_grammar_compiled(const struct server_grammar *grammar);

#endif
