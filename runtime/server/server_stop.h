/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings: an answer ends before the first of them, and no byte of one is sent, also where tokens divide it. */
#ifndef RUNTIME_SERVER_SERVER_STOP_H
#define RUNTIME_SERVER_SERVER_STOP_H

#include "runtime/server/server_buffer.h"

enum { SERVER_MOST_STOPS = 4, SERVER_MOST_STOP_BYTES = 1024 };

struct server_stop {
    const char *const *strings; /* [count], borrowed, none empty, at most SERVER_MOST_STOP_BYTES each */
    size_t count;
    struct server_buffer held; /* the end of the text so far, with which a stop string may begin */
    bool found;                /* the text has ended */
    const char *matched;       /* the stop string before which it has; borrowed likewise, NULL: none */
};

/* Adds a piece of the answer, and appends to `out` what can be sent. The stop string that ends first counts, and of those
 * that end together the longest, so that the result does not depend on how the text is divided. False: out of memory. */
bool server_stop_push(struct server_stop *stop, const char *text, size_t size, struct server_buffer *out);
/* The answer has ended by itself: appends to `out` what was held. */
bool server_stop_finish(struct server_stop *stop, struct server_buffer *out);
void server_stop_free(struct server_stop *stop);

#endif
