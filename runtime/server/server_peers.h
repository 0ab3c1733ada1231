/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of the server. Finds clients that have left while they wait for an answer, which the HTTP library does not
 * watch for, and closes connections whose request does not arrive in time, however slowly its bytes arrive. */
#ifndef RUNTIME_SERVER_SERVER_PEERS_H
#define RUNTIME_SERVER_SERVER_PEERS_H

struct server_peers;
struct server_peer;

/* Both functions are called with the context of server_peer_wait: `left` once, if the client has closed the connection, `waits` at each
 * check before that. They call none of this file. Returns NULL if memory is lacking. */
struct server_peers *server_peers_create(double receive_seconds, double answer_seconds, void (*left)(void *context),
                                         void (*waits)(void *context, double now));
void server_peers_destroy(struct server_peers *peers);

/* All functions may be called by any thread. NULL: out of memory. */
struct server_peer *server_peer_add(struct server_peers *peers, int descriptor);
/* Call it before the descriptor is closed. */
void server_peer_remove(struct server_peers *peers, struct server_peer *peer);

/* A request has arrived. */
void server_peer_begin(struct server_peers *peers, struct server_peer *peer);
/* The context is used until server_peer_end. */
void server_peer_wait(struct server_peers *peers, struct server_peer *peer, void *context);
/* The answer was sent: the next request may arrive. */
void server_peer_end(struct server_peers *peers, struct server_peer *peer);

/* Call it several times a second. */
void server_peers_check(struct server_peers *peers);

#endif
