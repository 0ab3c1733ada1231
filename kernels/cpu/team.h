/* SPDX-License-Identifier: Apache-2.0 */
/* A team of threads that run one function together (single program, multiple data), with a barrier that is cheap
 * enough to stand between two launches of a decode step. No allocation after team_create. */
#ifndef KERNELS_CPU_TEAM_H
#define KERNELS_CPU_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/status.h"

struct team;

struct team_member {
    struct team *team;
    int index;     /* 0 = the thread that called team_run */
    int count;     /* members of the team */
    void *scratch; /* [TEAM_SCRATCH_BYTES], this member's own, aligned to 64 bytes; for what is too large for a stack */
};

enum { TEAM_MAX_THREADS = 256, TEAM_SCRATCH_BYTES = 192 << 10 };

/* threads 0: one per processor this process may run on (sched_getaffinity and the cgroup's CPU quota). */
struct team *team_create(int threads, struct status *status);
int team_size_of(int threads); /* that team_create gives, for 0, too */
/* NULL is fine. In a child made by fork, which does not have the team's threads, only releases memory. */
void team_destroy(struct team *team);
int team_size(const struct team *team);

/* Runs function(argument, member) on all members, the caller being one, and returns when all have returned.
 * Not reentrant; one caller at a time. */
void team_run(struct team *team, void (*function)(void *argument, struct team_member *member), void *argument);

/* Waits for all members: spins for a short while, then sleeps. Stores before it are visible to all after it. */
void team_barrier(struct team_member *member);

/* Takes the next of a shared sequence of tickets 0, 1, 2, ...; every barrier (and team_run) starts the sequence anew.
 * For sharing out tasks: `while ((task = team_ticket(member)) < tasks)`. */
uint32_t team_ticket(struct team_member *member);

#endif
