/* SPDX-License-Identifier: Apache-2.0 */
/* How the model of an engine writes its answers: the dialect of its chat template, and the special tokens of that dialect's markers,
 * which must stay in an answer's text until it is divided. */
#ifndef RUNTIME_SERVER_SERVER_VOICE_H
#define RUNTIME_SERVER_SERVER_VOICE_H

#include <stddef.h>

#include "runtime/eng.h"
#include "runtime/server/server_dialects.h"

enum { SERVER_MOST_MARKERS = 64 };

struct server_voice {
    struct server_dialect dialect;
    int32_t markers[SERVER_MOST_MARKERS]; /* [marker_count] special tokens */
    size_t marker_count;
};

bool server_voice_open(const struct eng_engine *engine, struct server_voice *voice, struct eng_error *error);

/* Whether a token is special and no marker, so that an answer has no text of it. */
bool server_voice_drops(const struct server_voice *voice, const struct eng_engine *engine, int32_t token);

/* Whether a prompt ends with the beginning of reasoning. False also if that cannot be told. */
bool server_voice_is_in_thought(const struct server_voice *voice, const struct eng_engine *engine,
                                const int32_t *prompt, size_t count);

#endif
