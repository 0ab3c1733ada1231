/* SPDX-License-Identifier: Apache-2.0 */
/* How families of models write calls of functions and reasoning. The text of an engine's chat template tells the family. */
#ifndef RUNTIME_SERVER_SERVER_DIALECTS_H
#define RUNTIME_SERVER_SERVER_DIALECTS_H

#include <stdbool.h>

enum { SERVER_MOST_PATTERNS = 8 };

struct server_dialect {
    const char *name; /* for messages and tests; NULL: no calls */
    /* As server_pattern.h describes, each beginning with a literal, or with '^' if it matches only the beginning of an
     * answer. What a pattern without "$!" matches is no part of the answer. NULL: there are no more. */
    const char *const *patterns;
    const char *thought, *thought_end; /* around reasoning; NULL: none */
    bool has_switch;                   /* a variable of the template says whether the model reasons */
    bool has_effort;                   /* the template has the variable reasoning_effort */
    const char *no_effort;             /* its value for no reasoning; NULL: none is known */
};

/* template_text: as eng_chat_template gives it; NULL: none. */
void server_dialect_find(const char *template_text, struct server_dialect *dialect);

#endif
