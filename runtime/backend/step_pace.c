/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/backend/step_pace.h"

/* Seconds. Threads wake 50 to 100 us later than they ask for. `least_early` covers that, so that the end can be seen; `margin` what the
 * estimate is wrong by. */
static const double shortest_sleep = 0.5e-3, longest_sleep = 0.1, least_early = 200e-6, margin = 50e-6;
/* A part of a step's time: its end may come by so much sooner than expected. */
static const double most_early = 0.5;
/* A part of a step's time: more is no growth of contexts. */
static const double most_growth = 1e-3;
/* By which a step's time may rise between two measurements until a second one confirms it. */
static const double most_rise = 1.25;

bool step_pace_is_known(const struct step_pace *pace)
{
    return pace->seconds >= shortest_sleep && pace->seconds + margin <= longest_sleep;
}

bool step_pace_is_short(const struct step_pace *pace) { return pace->seconds > 0 && pace->seconds < shortest_sleep; }

static uint32_t most_naps(const struct step_pace *pace)
{
    if (pace->ended_before) return 0;
    return 2 * pace->measured < STEP_PACE_NAPS ? 2 * pace->measured : STEP_PACE_NAPS;
}

double step_pace_sleep(struct step_pace *pace, uint64_t plan, int32_t rows, double now)
{
    /* A few rows more or less change a step's time by less than one of STEP_PACE_NAPS parts: the estimate stays within a step. */
    const int32_t few = pace->rows / 32;
    if (pace->plan != plan || rows > pace->rows + few || rows < pace->rows - few)
        *pace = (struct step_pace){.plan = plan, .rows = rows, .early = least_early};
    if (!step_pace_is_known(pace)) return 0;
    /* The middle of these steps is (measured + steps) / 2 steps after the middle of the measured ones. */
    const double steps = pace->naps + 1;
    const double end = pace->end + steps * (pace->seconds + pace->growth * (pace->measured + steps) / 2);
    const double sleep = end + (pace->naps == most_naps(pace) ? -pace->early : margin) - now;
    if (sleep > pace->seconds * 1.1 + margin) return 0; /* `end` is of steps long ago */
    return sleep < shortest_sleep ? 0 : sleep;
}

/* 0 where too few steps were measured: a wait that ends late by 50 us would count as growth. */
static double growth_of(const struct step_pace *pace, double seconds)
{
    if (pace->measured < STEP_PACE_NAPS / 4 || pace->naps < STEP_PACE_NAPS / 4) return 0;
    const double growth = (seconds - pace->seconds) * 2 / (pace->measured + pace->naps);
    return growth > 0 && growth < most_growth * seconds ? growth : 0;
}

/* The step that was to be seen ending had ended: by a little, or the estimate is wrong. */
static void come_sooner(struct step_pace *pace, double now)
{
    const double most = most_early * pace->seconds;
    if (pace->early == most) {
        *pace = (struct step_pace){.plan = pace->plan, .rows = pace->rows, .early = least_early};
        return;
    }
    pace->early = 2 * pace->early < most ? 2 * pace->early : most;
    pace->end = now;
    pace->ended_before = true;
    pace->growth = pace->grew = 0;
    pace->naps = 0;
}

void step_pace_learn(struct step_pace *pace, bool awaited, double now)
{
    pace->naps++;
    if (!awaited) {
        if (pace->naps > most_naps(pace) && pace->seconds > 0) come_sooner(pace, now);
        return;
    }
    const bool measured = pace->end > 0 && !pace->ended_before;
    const double seconds = measured ? (now - pace->end) / pace->naps : pace->seconds;
    pace->end = now;
    pace->ended_before = false;
    pace->early = 0.75 * pace->early > least_early ? 0.75 * pace->early : least_early;
    pace->doubted = !pace->doubted && pace->seconds > 0 && seconds > most_rise * pace->seconds;
    if (pace->doubted) pace->measured = 0; /* perhaps a single step, or this wait: the next one tells */
    if (measured && !pace->doubted) {
        const double grew = growth_of(pace, seconds);
        pace->growth = grew < pace->grew ? grew : pace->grew; /* both times: once, a wait may have ended late */
        pace->grew = grew;
        pace->seconds = seconds;
        pace->measured = pace->naps;
    }
    pace->naps = 0;
}
