/* SPDX-License-Identifier: Apache-2.0 */
/* A group of processes, started by mpirun, torchrun or the like, that share the ranks of one engine. They connect over
 * TCP, gather small blocks of data, and detect that one of them fails, ends, hangs or computes something else.
 *
 * The connections form a star: process 0 listens, the others connect to it, and it forwards. All input is checked as
 * hostile. With a token, both ends of a connection prove that they have it when the connection is made; later data is
 * neither encrypted nor authenticated. */
#ifndef RUNTIME_DISTRIBUTED_PROCESS_GROUP_H
#define RUNTIME_DISTRIBUTED_PROCESS_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"
#include "runtime/distributed/process_group_limits.h"

struct process_group;

struct process_group_options {
    uint32_t process, processes; /* this one's number, and how many there are: 2 to PROCESS_GROUP_MOST_PROCESSES */
    const char *address;         /* "host:port" or "[v6]:port" where process 0 listens; borrowed for the call */
    double longest_seconds;      /* limit of joining */
    double gather_seconds;       /* limit of one gather, while all processes respond */
    uint64_t fingerprint;        /* of the engine file; the same in all processes */
    /* Secret of the job, at most 255 bytes; NULL or "": none. It is never sent. If it is set, only processes that have
     * it can join. */
    const char *token;
    bool has_several_machines; /* process 0 refuses to listen on a loopback address */
};

/* Waits until all processes have joined; they may start in any order. The caller owns the result and ends it with
 * process_group_leave. It runs one thread, which blocks all signals. NULL on failure, which is sent to all that have
 * joined. A connection from outside the job is refused and is no failure. A process that has proved to have the token
 * but differs in file, count or number makes the group fail. */
struct process_group *process_group_join(const struct process_group_options *options, struct status *status);

/* Collective: every process passes `bytes` bytes of its own and receives those of all: all[processes][bytes]. `mine`
 * may lie in `all`. Requires: the same `bytes` in all processes, at most PROCESS_GROUP_GATHER_BYTES (0 only waits for
 * all); one thread at a time. Fails, and from then on always, if a process has failed, ended, left or stopped
 * responding; names it and why. */
bool process_group_gather(struct process_group *group, const void *mine, size_t bytes, void *all,
                          struct status *status);

/* Reports a failure of this process to all others. The group keeps its first failure. Any thread. */
void process_group_fail(struct process_group *group, const char *message);

/* False once a process has failed, ended without process_group_leave or stopped responding; *status (may be NULL) names
 * it: "process 1 (host, pid 123): CAUSE". Any thread; costs one atomic load while the group is well. */
bool process_group_ok(struct process_group *group, struct status *status);

/* Notes the digest of all inputs of this process up to `step`. Process 0 compares the digests of equal steps as they
 * arrive, twice a second; a difference makes the group fail. Requires: `step` only grows. Any thread. */
void process_group_note(struct process_group *group, uint64_t step, uint64_t digest);

/* Announces that this process leaves, frees the group and sets *group to NULL; does nothing if *group is NULL. Takes at
 * most one second. After process 0 has left, the others receive nothing from each other. Requires: no other thread uses
 * the group. */
void process_group_leave(struct process_group **group);

#endif
