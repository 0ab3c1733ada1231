/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/backend/step_pace.h"

/* Seconds. Threads wake 50 to 100 us later than they ask for. `early` covers that, so that the end can be seen; `margin` what the estimate is
 * wrong by. */
static const double shortest_sleep = 0.5e-3, longest_sleep = 0.1, early = 200e-6, margin = 50e-6;

bool step_pace_is_known(const struct step_pace *pace)
{
    return pace->seconds >= shortest_sleep && pace->seconds + margin <= longest_sleep;
}

double step_pace_sleep(struct step_pace *pace, uint64_t plan, int32_t rows, double now)
{
    /* A few rows more or less change a step's time by less than one of STEP_PACE_NAPS parts: the estimate stays within a step. */
    const int32_t few = pace->rows / 32;
    if (pace->plan != plan || rows > pace->rows + few || rows < pace->rows - few)
        *pace = (struct step_pace){.plan = plan, .rows = rows};
    if (!step_pace_is_known(pace)) return 0;
    const double end = pace->end + (pace->naps + 1) * pace->seconds;
    const double sleep = end + (pace->naps == STEP_PACE_NAPS ? -early : margin) - now;
    if (sleep > pace->seconds + margin) return 0; /* `end` is of steps long ago */
    return sleep < shortest_sleep ? 0 : sleep;
}

void step_pace_learn(struct step_pace *pace, bool awaited, double now)
{
    pace->naps++;
    if (awaited) {
        pace->seconds = pace->end > 0 ? (now - pace->end) / pace->naps : 0;
        pace->end = now;
        pace->naps = 0;
    } else if (pace->naps > STEP_PACE_NAPS) { /* it was to be seen ending, and had ended: the estimate is late */
        *pace = (struct step_pace){.plan = pace->plan, .rows = pace->rows};
    }
}
