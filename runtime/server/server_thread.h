/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that receives requests and sends answers: it runs a daemon of the HTTP library, which has no thread itself.
 * In a thread of its own, the library (0.9.75 to 1.0.1 at least) asks for up to 128 events at a time, and asks once more
 * if it gets as many. That call waits: where 128 connections became ready at the same time, or a multiple, none is read
 * until another event comes or the first of them has timed out. */
#ifndef RUNTIME_SERVER_SERVER_THREAD_H
#define RUNTIME_SERVER_SERVER_THREAD_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "formats/base/status.h"

/* The daemon's three, its listening socket among them, and `wakes`. */
enum { SERVER_THREAD_DESCRIPTORS = 4 };

struct server_thread {
    struct server *server;
    struct MHD_Daemon *daemon;
    pthread_t thread;
    int wakes; /* descriptor of an event */
    bool has_thread, has_wakes, is_listening;
    bool has_room; /* a connection was closed: the daemon has to run once more to listen again */
    atomic_bool released, draining, stopping;
};

/* The thread accepts no connection before server_thread_release. Requires: a thread of zeros but for `server`; a daemon with MHD_USE_EPOLL,
 * without a thread and with a listening socket of its own. Takes the daemon. Call server_thread_stop after a failure, too. */
bool server_thread_start(struct server_thread *thread, struct MHD_Daemon *daemon, struct status *status);
void server_thread_release(struct server_thread *thread);

/* From any thread, after MHD_resume_connection. */
void server_thread_wake(struct server_thread *thread);
/* No connection is accepted from now on. */
void server_thread_drain(struct server_thread *thread);
/* Ends the daemon, too. Requires: no connection is suspended. */
void server_thread_stop(struct server_thread *thread);

#endif
