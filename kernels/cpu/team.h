/* SPDX-License-Identifier: Apache-2.0 */
/* A team of threads that run one function (single program, multiple data), with a barrier that is cheap enough for use
 * between two launches of a decode step. No allocation after team_create. */
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
    void *scratch; /* [TEAM_SCRATCH_BYTES] of this member, aligned to 64 bytes, for data too large for a stack */
};

enum { TEAM_MAX_THREADS = 256, TEAM_SCRATCH_BYTES = 192 << 10 };

/* threads 0: one per processor that this process may use (sched_getaffinity and the cgroup's CPU quota). */
struct team *team_create(int threads, struct status *status);
int team_size_of(int threads); /* size of the team that team_create makes, also for 0 */
/* Does nothing on NULL. In a child made by fork, which does not have the threads, it only releases memory. */
void team_destroy(struct team *team);
int team_size(const struct team *team);

/* Runs function(argument, member) on all members, one of which is the caller, and returns when all have returned. Not
 * reentrant. Requires: one caller at a time. */
void team_run(struct team *team, void (*function)(void *argument, struct team_member *member), void *argument);

/* team_create, team_run, team_destroy. False: there is no team, nothing has run. */
bool team_run_once(int threads, void (*function)(void *argument, struct team_member *member), void *argument,
                   struct status *status);

/* Waits for all members: spins for a short time, then sleeps. Stores before it are visible to all after it. */
void team_barrier(struct team_member *member);

/* Returns the next of a shared sequence of tickets 0, 1, 2, ..., which every barrier (and team_run) restarts. For
 * dividing tasks: `while ((task = team_ticket(member)) < tasks)`. */
uint32_t team_ticket(struct team_member *member);

#endif
