/* SPDX-License-Identifier: Apache-2.0 */
/* What a request wants its answers to be: response_format of OpenAI's API, and vLLM's guided_json, guided_regex and
 * guided_choice. Each gives the source of a grammar. */
#ifndef RUNTIME_SERVER_SERVER_FORMAT_H
#define RUNTIME_SERVER_SERVER_FORMAT_H

#include <jansson.h>

#include "runtime/server/server_error.h"

struct server_format {
    const char *field; /* of the request, constant; NULL: any text */
    enum eng_grammar_kind kind;
    char *text; /* owned [size], as eng_grammar_create takes it; NULL: the kind needs none */
    size_t size;
};

/* Reads one of the four fields. A request has one format at most: a second one is refused. */
bool server_format_read(const char *field, const json_t *value, struct server_format *format,
                        struct server_error *error);
void server_format_free(struct server_format *format);

#endif
