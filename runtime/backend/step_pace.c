/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/backend/step_pace.h"

/* Seconds. Threads wake up to 50 us later than they ask for, by Linux' own default; `margin` covers what the estimate is wrong by. */
static const double shortest_sleep = 0.5e-3, longest_sleep = 0.1, margin = 50e-6;

double step_pace_sleep(struct step_pace *pace, uint64_t plan, int32_t rows, double now)
{
    /* A few rows more or less change a step's time by less than one of STEP_PACE_NAPS parts: the estimate stays within a step. */
    const bool alike = pace->plan == plan && rows <= pace->rows + pace->rows / 8 && rows >= pace->rows - pace->rows / 8;
    if (!alike) *pace = (struct step_pace){.plan = plan, .rows = rows};
    if (pace->seconds <= 0 || pace->naps == STEP_PACE_NAPS) return 0;
    const double sleep = pace->end + (pace->naps + 1) * pace->seconds + margin - now;
    /* Longer than a step: `end` is of steps long ago. */
    if (sleep > longest_sleep || sleep > pace->seconds + margin) return 0;
    return sleep < shortest_sleep ? 0 : sleep;
}

void step_pace_learn(struct step_pace *pace, bool awaited, double now)
{
    pace->naps++;
    if (awaited) {
        pace->seconds = pace->end > 0 ? (now - pace->end) / pace->naps : 0;
        pace->end = now;
        pace->naps = 0;
    } else if (pace->naps > STEP_PACE_NAPS) { /* it had ended before it was awaited: the estimate is late */
        *pace = (struct step_pace){.plan = pace->plan, .rows = pace->rows};
    }
}
