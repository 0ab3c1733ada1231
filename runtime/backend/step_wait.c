/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/backend/step_wait.h"

static const double shortest_sleep = 0.5e-3, longest_sleep = 0.1; /* seconds */
static const double slept_part = 0.7, unknown_part = 0.5;

double step_wait_sleep(const struct step_wait *wait, int32_t rows)
{
    double least = longest_sleep / slept_part;
    for (int i = 0; i < STEP_WAIT_STEPS; i++) {
        /* Fewer rows take less time, but no smaller part of it than of the rows. */
        const double part = rows < wait->rows[i] ? (double)rows / wait->rows[i] : 1;
        if (part * wait->seconds[i] < least) least = part * wait->seconds[i];
    }
    return slept_part * least < shortest_sleep ? 0 : slept_part * least;
}

void step_wait_learn(struct step_wait *wait, int32_t rows, double seconds, bool slept_through)
{
    for (int i = STEP_WAIT_STEPS - 1; i > 0; i--) {
        wait->seconds[i] = wait->seconds[i - 1];
        wait->rows[i] = wait->rows[i - 1];
    }
    wait->seconds[0] = slept_through ? unknown_part * seconds : seconds;
    wait->rows[0] = rows;
}
