/* SPDX-License-Identifier: Apache-2.0 */
/* When a step ends that another is queued behind, where steps of one plan follow each other without a gap. A thread that sleeps by the clock
 * until then costs one system call, and waking late costs the GPU nothing while it has the next step; the driver's own wait also costs the
 * time of a thread of its own. The end is measured by the driver's wait once in STEP_PACE_NAPS steps, in between it is computed. */
#ifndef RUNTIME_BACKEND_STEP_PACE_H
#define RUNTIME_BACKEND_STEP_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { STEP_PACE_NAPS = 15 };

/* All zero: nothing is known. Times in seconds, of one clock. */
struct step_pace {
    uint64_t plan;
    int32_t rows;   /* of the step that was measured */
    double end;     /* of the last step whose end was measured, 0: none */
    double seconds; /* of a step, 0: not known */
    uint32_t naps;  /* steps since `end` */
};

/* Seconds to sleep for the next step, after which it is likely to have ended. 0: wait for it by the driver. */
double step_pace_sleep(struct step_pace *pace, uint64_t plan, int32_t rows, double now);
/* The step has ended. awaited: it had not when the driver's wait for it began, so that `now` is its end. */
void step_pace_learn(struct step_pace *pace, bool awaited, double now);

#endif
