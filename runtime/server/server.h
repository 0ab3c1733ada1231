/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server: connections, limits, keys, logs. server_routes.c has what it answers. */
#ifndef RUNTIME_SERVER_SERVER_H
#define RUNTIME_SERVER_SERVER_H

#include "runtime/server/server_options.h"

struct server;

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
