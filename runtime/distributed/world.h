/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that share the ranks of one engine, started by a launcher (mpirun, torchrun): they find each other over TCP,
 * exchange what each has to tell, and notice when one of them fails, ends, hangs or computes something else.
 *
 * A star: process 0 listens, the others connect to it and hear of each other through it. The network is that of one
 * cluster: what arrives is checked as hostile. With a token, both ends of a connection prove that they have it when it is
 * made; what is sent afterwards is neither encrypted nor authenticated. */
#ifndef RUNTIME_DISTRIBUTED_WORLD_H
#define RUNTIME_DISTRIBUTED_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

enum {
    WORLD_MOST_PROCESSES = 16,
    WORLD_GATHER_BYTES = 64 << 10, /* at most, of each process */
    WORLD_NOTE_STEPS = 64,         /* only notes of multiples of it are compared */
};

struct world;

struct world_options {
    uint32_t process, processes; /* this one's number, and how many there are: 2 to WORLD_MOST_PROCESSES */
    const char *address;         /* "host:port" where process 0 listens, "[v6]:port" too; not kept */
    double longest_seconds;      /* how long to wait for the others to come */
    double gather_seconds;       /* and then in a gather, while all are there: as long as the slowest may take to it */
    uint64_t fingerprint;        /* of the engine file: must be the same for all */
    /* A secret that all processes of the job have, at most 255 bytes, or NULL or "": none. It is not sent; with it only
     * processes that have it join. */
    const char *token;
    bool has_several_machines; /* process 0 must not listen where only its own machine reaches it */
};

/* Waits for all processes; they may start in any order. NULL on failure, which all that have come are told. A connection
 * that is not one of the job's is refused and no failure; a process that has proved to have the token, and is wrong otherwise
 * (another file, count or number), is one. The world is the caller's, to be given to world_leave; it has one thread of its own, which takes no signals. */
struct world *world_join(const struct world_options *options, struct status *status);

/* Collective: every process calls it with the same `bytes` (at most WORLD_GATHER_BYTES; 0 only waits for all) and gets
 * what each gave: all[processes][bytes]. `mine` may lie in `all`. Fails, naming the process and its cause, when one has
 * failed, ended, left or does not answer, and then ever after. One thread at a time. */
bool world_gather(struct world *world, const void *mine, size_t bytes, void *all, struct status *status);

/* Tells all processes that this one has failed and why; the first failure of the world counts. Any thread. */
void world_fail(struct world *world, const char *message);

/* False once a process has failed, ended without world_leave or not answered for too long:
 * "process 1 (host, pid 123): CAUSE". Any thread; an atomic load while all is well. */
bool world_ok(struct world *world, struct status *status);

/* What this process computes: `digest` of all its inputs up to `step`, which only grows. Process 0 compares the digests of
 * equal steps as they arrive, twice a second; a difference fails all. Any thread. */
void world_note(struct world *world, uint64_t step, uint64_t digest);

/* Says goodbye, so that nobody takes the end for a failure, frees the world and sets *world to NULL; harmless on NULL.
 * Waits for a second at most, for those that do not take the goodbye. No other thread may use the world any more. When
 * process 0 has left, the others hear no more of each other. */
void world_leave(struct world **world);

#endif
