/* SPDX-License-Identifier: Apache-2.0 */
/* Races of candidates: successive halving over noisy timings of any kind.
 *
 * Every round measures the survivors in turn (so that drift of the machine affects all alike) and keeps the better half
 * by median; the repetitions double from round to round. The race stops early when the best is within a few per cent of
 * the floor. Among candidates whose medians differ by no more than the sum of their spreads, the first in the list
 * wins, so that noise does not change choices from run to run (Jamieson and Talwalkar 2016; tie-break ours). */
#ifndef TUNER_RACE_H
#define TUNER_RACE_H

#include <stdbool.h>

enum { RACE_MAX_CANDIDATES = 256, RACE_MAX_SAMPLES = 64 };

/* Runs candidate `candidate` once and returns its microseconds; negative: it failed and is dropped. */
typedef double race_run(void *context, int candidate);

struct race_options {
    double budget_us;      /* no new round begins after this time */
    double floor_us;       /* roofline; 0: unknown */
    double good_enough;    /* stop when best <= floor * good_enough; 0: never */
    int first_repetitions; /* samples per candidate in the first round */
};

struct race_entry {
    int samples;
    double us[RACE_MAX_SAMPLES];
    double median_us, spread_us; /* spread: half the distance between the quartiles */
    bool out;                    /* dropped in a round, or failed */
};

struct race_result {
    int winner;    /* -1: every candidate failed */
    int runner_up; /* -1: none */
    int rounds;
    struct race_entry entries[RACE_MAX_CANDIDATES];
};

void race(race_run *run, void *context, int candidates, const struct race_options *options, struct race_result *result);

/* Estimated microseconds of a race whose runs take `call_us` each, unless a good enough candidate ends it early. */
double race_expected_us(int candidates, double call_us, const struct race_options *options);

#endif
