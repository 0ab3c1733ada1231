/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/race.h"

#include <stdlib.h>
#include <string.h>

#include "tuner/clock.h"

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Linear interpolation between the two nearest ranks. */
static double quantile(const double *sorted, int count, double q)
{
    double at = q * (count - 1);
    int below = (int)at;
    int above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

static void summarise(struct race_entry *entry)
{
    double sorted[RACE_MAX_SAMPLES];
    memcpy(sorted, entry->us, (size_t)entry->samples * sizeof *sorted);
    qsort(sorted, (size_t)entry->samples, sizeof *sorted, compare_double);
    entry->median_us = quantile(sorted, entry->samples, 0.5);
    entry->spread_us = (quantile(sorted, entry->samples, 0.75) - quantile(sorted, entry->samples, 0.25)) / 2;
}

static void sample(race_run *run, void *context, int candidate, struct race_entry *entry)
{
    if (entry->out || entry->samples == RACE_MAX_SAMPLES) return;
    double us = run(context, candidate);
    if (us < 0)
        entry->out = true;
    else
        entry->us[entry->samples++] = us;
}

/* Survivors by rising median; equal medians keep the order of the list. Returns their number. */
static int rank(const struct race_result *result, int candidates, int order[])
{
    int count = 0;
    for (int c = 0; c < candidates; c++) {
        if (result->entries[c].out || result->entries[c].samples == 0) continue;
        int at = count++;
        while (at > 0 && result->entries[order[at - 1]].median_us > result->entries[c].median_us) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = c;
    }
    return count;
}

static bool indistinguishable(const struct race_entry *best, const struct race_entry *other)
{
    double noise = best->spread_us + other->spread_us;
    double least = 0.01 * best->median_us; /* about the error of timers and alignment */
    return other->median_us - best->median_us <= (noise > least ? noise : least);
}

void race(race_run *run, void *context, int candidates, const struct race_options *options, struct race_result *result)
{
    int order[RACE_MAX_CANDIDATES] = {0};
    double start = clock_us();
    memset(result, 0, sizeof *result);
    result->winner = result->runner_up = -1;
    if (candidates > RACE_MAX_CANDIDATES) candidates = RACE_MAX_CANDIDATES;

    /* One uncounted run each: caches, page faults, first use of wide registers. */
    for (int c = 0; c < candidates; c++)
        if (run(context, c) < 0) result->entries[c].out = true;

    int survivors = candidates, repetitions = options->first_repetitions;
    while (survivors > 0) {
        result->rounds++;
        for (int r = 0; r < repetitions; r++)
            for (int c = 0; c < candidates; c++) sample(run, context, c, &result->entries[c]);
        for (int c = 0; c < candidates; c++)
            if (!result->entries[c].out && result->entries[c].samples) summarise(&result->entries[c]);
        survivors = rank(result, candidates, order);
        if (survivors == 0) return;
        bool good = options->good_enough > 0 && options->floor_us > 0 &&
                    result->entries[order[0]].median_us <= options->floor_us * options->good_enough;
        if (survivors <= 2 || good || clock_us() - start > options->budget_us) break;
        for (int i = (survivors + 1) / 2; i < survivors; i++) result->entries[order[i]].out = true;
        repetitions *= 2;
    }

    if (survivors == 0) return;
    int winner = order[0];
    for (int i = 1; i < survivors; i++)
        if (order[i] < winner && indistinguishable(&result->entries[order[0]], &result->entries[order[i]]))
            winner = order[i];
    result->winner = winner;
    for (int i = 0; i < survivors && result->runner_up < 0; i++)
        if (order[i] != winner) result->runner_up = order[i];
}

double race_expected_us(int candidates, double call_us, const struct race_options *options)
{
    double us = candidates * call_us, racing_us = 0; /* one run each that does not count */
    for (int survivors = candidates, repetitions = options->first_repetitions;; repetitions *= 2) {
        racing_us += (double)repetitions * survivors * call_us;
        if (survivors <= 2 || us + racing_us > options->budget_us) return us + racing_us;
        survivors = (survivors + 1) / 2;
    }
}
