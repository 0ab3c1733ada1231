/* SPDX-License-Identifier: Apache-2.0 */
/* When a step ends after which another is queued, where steps of one plan follow each other without a gap. A thread that sleeps by the clock
 * until then costs one system call, and waking late costs the GPU nothing while it has the next step. A wait by the driver costs the time
 * of a thread of its own, too. Once in STEP_PACE_NAPS steps the sleep is shorter, and the end is measured; at first after twice as many steps as were
 * measured the last time, since a single step, or a wait that ended late, says little. Where that sleep was too long to see the end, as steps differ
 * from each other, the next ones are shorter. */
#ifndef RUNTIME_BACKEND_STEP_PACE_H
#define RUNTIME_BACKEND_STEP_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { STEP_PACE_NAPS = 31 };

/* All zero: nothing is known. Times in seconds, of one clock. */
struct step_pace {
    uint64_t plan;
    int32_t rows; /* of the step that was measured */
    double end;   /* of the last step whose end was measured, 0: none; if `ended_before`, that step had ended by then */
    bool ended_before;
    double early;   /* how much sooner than expected the sleep for a step that is to be measured ends */
    double seconds; /* of a step, 0: not known: the mean of `measured` steps up to `end` */
    double growth;  /* seconds that each step takes more than the one before, since contexts grow */
    double grew;    /* the same of the last measurement alone */
    bool doubted;   /* the last measurement was much longer than the one before, which still holds */
    uint32_t measured;
    uint32_t naps; /* steps since `end` */
};

/* Whether the next step is likely to be slept through, so that no other wait needs to be prepared. */
bool step_pace_is_known(const struct step_pace *pace);
/* The next step is likely to be so short that a late sleep would take a large part of it: its end is best looked for all the time. */
bool step_pace_is_short(const struct step_pace *pace);
/* Seconds to sleep for the next step. It has then most likely ended, or in a step that is measured is about to. 0: not known. */
double step_pace_sleep(struct step_pace *pace, uint64_t plan, int32_t rows, double now);
/* The step has ended. awaited: it had not when the sleep ended, so that `now` is its end. */
void step_pace_learn(struct step_pace *pace, bool awaited, double now);

#endif
