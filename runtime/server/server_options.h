/* SPDX-License-Identifier: Apache-2.0 */
/* What the HTTP server is given. */
#ifndef RUNTIME_SERVER_SERVER_OPTIONS_H
#define RUNTIME_SERVER_SERVER_OPTIONS_H

#include "runtime/server/server_keys.h"
#include "runtime/server/server_model.h"

struct server_options {
    struct server_model *const *models; /* [model_count], borrowed; names differ */
    size_t model_count;
    const struct server_keys *keys; /* borrowed; NULL: no key is needed */
    int listener;                   /* a listening socket, which the server closes */
    uint64_t max_connections, max_body, http_threads;
    double timeout; /* seconds in which a request must be answered */
    double ping;    /* seconds without an event, after which a stream has something that clients skip */
    bool quiet;     /* no line on stderr for each request */
};

#endif
