/* SPDX-License-Identifier: Apache-2.0 */
/* A request and its answer, from the header of the one to the end of the other. Private to server.c and
 * server_routes.c. */
#ifndef RUNTIME_SERVER_SERVER_EXCHANGE_H
#define RUNTIME_SERVER_SERVER_EXCHANGE_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "runtime/server/server_options.h"
#include "runtime/server/server_peers.h"
#include "runtime/server/server_reply.h"
#include "runtime/server/server_stream.h"
#include "runtime/server/server_thread.h"

struct server {
    struct server_options options;
    struct server_thread *threads; /* [options.http_threads] */
    struct server_peers *peers;
    int64_t created; /* seconds since 1970 */
    atomic_bool draining;
    atomic_size_t exchanges;
    atomic_size_t body_bytes; /* of all requests that are being received or answered */
};

struct server_route;

struct server_exchange {
    struct server *server;
    struct server_thread *thread; /* of the connection */
    struct MHD_Connection *connection;
    struct server_peer *peer;
    const struct server_route *route; /* NULL: no such path */
    enum server_shape shape;          /* of the request and its reply */
    const char *method;               /* constant */
    char *path;                       /* owned */
    struct server_buffer body;
    size_t received; /* bytes of the body, kept or not */
    size_t counted;  /* part of server->body_bytes */
    struct server_error error;
    unsigned http;      /* status of the reply; 0: none yet */
    const char *policy; /* Content-Security-Policy of the reply; constant; NULL: none */
    double begin;       /* cli_seconds() */

    /* Only requests that generate use the following. */
    struct server_model *model;
    struct server_job *job;
    struct server_stream stream;
    struct server_buffer events; /* of the stream, not sent yet from `sent` on */
    size_t sent;
    bool is_streaming;
    bool is_suspended;          /* under the lock of the model */
    _Atomic double quiet_since; /* of a stream: cli_seconds() of the last time that it was suspended; 0: not yet */
    atomic_bool ping_is_due;
};

/* How a path is answered. */
struct server_route {
    const char *path; /* one that ends with '/' is the beginning of paths, but for "/" itself */
    const char *method;
    bool is_open; /* needs no key */
    /* Appends the reply and returns its status; 0 after a failure, with exchange->error set; SERVER_LATER if the reply
     * will follow: the function is called again after the exchange was resumed, or the answer is a stream. */
    unsigned (*answer)(struct server_exchange *exchange, struct server_buffer *out);
    const char *content_type; /* of the reply */
};
enum { SERVER_LATER = 1 };

/* NULL: none has the path. */
const struct server_route *server_find_route(const char *path);

enum { SERVER_PATHS_BYTES = 512 };

/* All paths with the method of each, separated by commas. */
void server_list_paths(char text[SERVER_PATHS_BYTES]);

/* By the beginning of a path, also of one that no route has. */
enum server_shape server_shape_of(const char *path);

/* Suspends the exchange unless the job is done. False: it is done. */
bool server_exchange_wait(struct server_exchange *exchange);

/* Both are called by the thread that checks the peers, while the exchange waits for its job. */
void server_exchange_abandon(void *exchange);
/* Resumes a stream of which nothing was sent for a time, so that a proxy does not take it for lost. */
void server_exchange_ping(void *exchange, double now);

#endif
