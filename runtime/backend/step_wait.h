/* SPDX-License-Identifier: Apache-2.0 */
/* How long a thread may sleep while a GPU computes a step, after which it polls: sleeping is free and ends late, polling keeps a processor
 * busy. The times of a plan's last steps tell; they also depend on contexts and other programs, which are not known here, so that
 * an estimate must cost little where it is wrong. */
#ifndef RUNTIME_BACKEND_STEP_WAIT_H
#define RUNTIME_BACKEND_STEP_WAIT_H

#include <stdbool.h>
#include <stdint.h>

enum { STEP_WAIT_STEPS = 2 };

/* The last steps of a plan whose end was waited for with no other step queued after them. Zero: none. */
struct step_wait {
    double seconds[STEP_WAIT_STEPS];
    int32_t rows[STEP_WAIT_STEPS];
};

/* Seconds to sleep for a step of so many rows: less than the shortest of the last steps took, which a single long one does not change. 0: poll
 * at once. */
double step_wait_sleep(const struct step_wait *wait, int32_t rows);
/* A step of so many rows has ended. slept_through: before the sleep did, so that `seconds` is more than it took. */
void step_wait_learn(struct step_wait *wait, int32_t rows, double seconds, bool slept_through);

#endif
