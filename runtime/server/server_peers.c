/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_peers.h"

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "formats/cli/cli_process.h"

struct server_peer {
    struct server_peer *next, *previous;
    int descriptor;
    bool is_answered; /* its request has arrived */
    bool is_closed;   /* for sending and receiving, by this file */
    double since;     /* cli_seconds() of the last change of is_answered */
    double left;      /* when it was first seen that a request cannot become complete; 0: not */
    void *context;    /* NULL: no answer is waited for */
};

struct server_peers {
    pthread_mutex_t lock;
    struct server_peer *first;
    double receive_seconds, answer_seconds;
    void (*left)(void *context);
    void (*waits)(void *context, double now);
};

struct server_peers *server_peers_create(double receive_seconds, double answer_seconds, void (*left)(void *context),
                                         void (*waits)(void *context, double now))
{
    struct server_peers *peers = calloc(1, sizeof *peers);
    if (!peers) return NULL;
    pthread_mutex_init(&peers->lock, NULL);
    peers->receive_seconds = receive_seconds;
    peers->answer_seconds = answer_seconds;
    peers->left = left;
    peers->waits = waits;
    return peers;
}

void server_peers_destroy(struct server_peers *peers)
{
    if (!peers) return;
    for (struct server_peer *peer = peers->first, *next; peer; peer = next) {
        next = peer->next;
        free(peer);
    }
    pthread_mutex_destroy(&peers->lock);
    free(peers);
}

struct server_peer *server_peer_add(struct server_peers *peers, int descriptor)
{
    struct server_peer *peer = calloc(1, sizeof *peer);
    if (!peer) return NULL;
    peer->descriptor = descriptor;
    peer->since = cli_seconds();
    pthread_mutex_lock(&peers->lock);
    peer->next = peers->first;
    if (peer->next) peer->next->previous = peer;
    peers->first = peer;
    pthread_mutex_unlock(&peers->lock);
    return peer;
}

void server_peer_remove(struct server_peers *peers, struct server_peer *peer)
{
    if (!peer) return;
    pthread_mutex_lock(&peers->lock);
    if (peer->next) peer->next->previous = peer->previous;
    if (peer->previous)
        peer->previous->next = peer->next;
    else
        peers->first = peer->next;
    pthread_mutex_unlock(&peers->lock);
    free(peer);
}

static void change(struct server_peers *peers, struct server_peer *peer, bool is_answered)
{
    if (!peer) return;
    pthread_mutex_lock(&peers->lock);
    peer->is_answered = is_answered;
    peer->since = cli_seconds();
    peer->left = 0;
    peer->context = NULL;
    pthread_mutex_unlock(&peers->lock);
}

void server_peer_begin(struct server_peers *peers, struct server_peer *peer) { change(peers, peer, true); }
void server_peer_end(struct server_peers *peers, struct server_peer *peer) { change(peers, peer, false); }

void server_peer_wait(struct server_peers *peers, struct server_peer *peer, void *context)
{
    if (!peer) return;
    pthread_mutex_lock(&peers->lock);
    peer->context = context;
    pthread_mutex_unlock(&peers->lock);
}

/* A client that has closed only its own direction counts, too: it cannot be told from one that has left. */
static bool has_left(const struct server_peer *peer)
{
    struct pollfd entry = {.fd = peer->descriptor, .events = POLLRDHUP};
    return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

/* The HTTP library waits for the rest of a body even if the client has closed its direction. What has arrived may still
 * be complete and only wait for a thread, so that a moment passes first. */
static bool is_cut_off(struct server_peer *peer, double now)
{
    const double moment = 1;
    if (peer->is_answered || !has_left(peer)) return false;
    if (peer->left == 0) peer->left = now;
    return now - peer->left > moment;
}

static void check_peer(const struct server_peers *peers, struct server_peer *peer, double now)
{
    const double most = peer->is_answered ? peers->answer_seconds : peers->receive_seconds;
    if (peer->context && has_left(peer)) {
        peers->left(peer->context);
        peer->context = NULL;
    }
    if (peer->context) peers->waits(peer->context, now);
    if (peer->is_closed || (now - peer->since <= most && !is_cut_off(peer, now))) return;
    /* The HTTP library closes the descriptor when it notices. */
    peer->is_closed = true;
    shutdown(peer->descriptor, SHUT_RDWR);
}

void server_peers_check(struct server_peers *peers)
{
    const double now = cli_seconds();
    pthread_mutex_lock(&peers->lock);
    for (struct server_peer *peer = peers->first; peer; peer = peer->next) check_peer(peers, peer, now);
    pthread_mutex_unlock(&peers->lock);
}
