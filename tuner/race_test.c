/* SPDX-License-Identifier: Apache-2.0 */

#include "tuner/race.h"
#include "formats/base/test_program.h"

/* Scripted times: base[c] plus noise from a fixed generator. */
struct script {
    const double *base;
    double noise;
    uint64_t state;
    int runs[RACE_MAX_CANDIDATES];
};

static double scripted(void *context, int candidate)
{
    struct script *script = context;
    script->runs[candidate]++;
    script->state = script->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    double unit = (double)(script->state >> 40) / (double)(1 << 24);
    double base = script->base[candidate];
    return base < 0 ? base : base * (1.0 + script->noise * unit);
}

static struct race_result *run_race(struct script *script, int count, const struct race_options *options)
{
    struct race_result *result = malloc(sizeof *result);
    assert_non_null(result);
    race(scripted, script, count, options, result);
    return result;
}

TEST(finds_the_fastest_and_halves)
{
    double base[40];
    for (int i = 0; i < 40; i++) base[i] = 100 + (i * 7) % 40 * 10;
    base[23] = 50;
    struct script script = {.base = base, .noise = 0.05, .state = 3};
    struct race_options options = {.budget_us = 1e9, .first_repetitions = 3};
    struct race_result *result = run_race(&script, 40, &options);
    assert_int_equal(result->winner, 23);
    assert_true(result->runner_up >= 0 && result->runner_up != 23);
    assert_true(result->rounds >= 4);
    /* The winner was measured far more often than the candidates that were dropped at once. */
    int least = script.runs[23];
    for (int i = 0; i < 40; i++) least = script.runs[i] < least ? script.runs[i] : least;
    assert_true(script.runs[23] >= 4 * least);
    assert_true(result->entries[23].median_us >= 50 && result->entries[23].median_us <= 52.5);
    assert_true(result->entries[23].spread_us <= 2.5);
    free(result);
}

TEST(ties_go_to_the_first)
{
    const double base[] = {200, 100.4, 100, 100.2, 300};
    for (uint64_t seed = 1; seed < 30; seed++) {
        struct script script = {.base = base, .noise = 0.06, .state = seed};
        struct race_options options = {.budget_us = 0, .first_repetitions = RACE_MAX_SAMPLES};
        struct race_result *result = run_race(&script, 5, &options);
        assert_int_equal(result->winner, 1);
        free(result);
    }
}

TEST(failures_are_out)
{
    const double base[] = {-1, 80, -1, 70};
    struct script script = {.base = base, .state = 1};
    struct race_options options = {.budget_us = 1e9, .first_repetitions = 2};
    struct race_result *result = run_race(&script, 4, &options);
    assert_int_equal(result->winner, 3);
    assert_int_equal(result->runner_up, 1);
    assert_int_equal(script.runs[0], 1); /* tried once, never again */
    free(result);
    const double none[] = {-1, -1};
    script.base = none;
    result = run_race(&script, 2, &options);
    assert_int_equal(result->winner, -1);
    assert_int_equal(result->runner_up, -1);
    free(result);
    result = run_race(&script, 0, &options);
    assert_int_equal(result->winner, -1);
    free(result);
}

TEST(stops_at_the_floor)
{
    const double base[] = {100, 200, 300, 400, 500, 600, 700, 800};
    struct script script = {.base = base, .state = 1};
    struct race_options options = {.budget_us = 1e9, .floor_us = 99, .good_enough = 1.05, .first_repetitions = 3};
    struct race_result *result = run_race(&script, 8, &options);
    assert_int_equal(result->winner, 0);
    assert_int_equal(result->rounds, 1);
    free(result);
    options.floor_us = 50; /* far from the floor: the race continues */
    result = run_race(&script, 8, &options);
    assert_int_equal(result->winner, 0);
    assert_true(result->rounds > 1);
    free(result);
}

TEST(budget_ends_the_rounds)
{
    double base[64];
    for (int i = 0; i < 64; i++) base[i] = 1000 - i;
    struct script script = {.base = base, .state = 1};
    struct race_options options = {.budget_us = 0, .first_repetitions = 1};
    struct race_result *result = run_race(&script, 64, &options);
    assert_int_equal(result->rounds, 1);
    assert_true(result->winner >= 0);
    free(result);
}

TEST(expected_time_is_that_of_the_calls)
{
    const double base[] = {100, 200, 300, 400, 500, 600, 700, 800};
    struct script script = {.base = base, .state = 1};
    struct race_options options = {.budget_us = 1e9, .first_repetitions = 3};
    struct race_result *result = run_race(&script, 8, &options);
    int samples = 8; /* one uncounted run each */
    for (int c = 0; c < 8; c++) samples += result->entries[c].samples;
    assert_true(race_expected_us(8, 10, &options) == 10 * samples);
    free(result);
    options.budget_us = 0; /* one round */
    assert_true(race_expected_us(8, 10, &options) == 10 * (8 + 3 * 8));
    assert_true(race_expected_us(1, 10, &options) == 10 * (1 + 3));
}

int main(void) { return test_run(); }
