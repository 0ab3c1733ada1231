/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server: connections, limits, keys, logs. server_routes.c has what it answers. */
#ifndef RUNTIME_SERVER_SERVER_H
#define RUNTIME_SERVER_SERVER_H

#include "runtime/server/server_keys.h"
#include "runtime/server/server_model.h"

struct server;

struct server_options {
    struct server_model *const *models; /* [model_count], borrowed; names differ */
    size_t model_count;
    const struct server_keys *keys; /* borrowed; NULL: no key is needed */
    int listener;                   /* a listening socket, which the server closes */
    uint64_t max_connections, max_body, http_threads;
    double timeout; /* seconds in which a request must be answered */
    bool quiet;     /* no line on stderr for each request */
};

bool server_start(const struct server_options *options, struct server **server, struct status *status);
/* Call it several times a second. */
void server_check(struct server *server);
/* No connections and no requests that generate are accepted from now on. */
void server_drain(struct server *server);
/* Whether requests are being received or answered. */
bool server_is_busy(struct server *server);
/* Requires: no job of a model is running. */
void server_stop(struct server **server);

#endif
