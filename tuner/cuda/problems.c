/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/problems.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- collecting ---- */

static uint32_t find_problem(const struct tune_problems *problems, const char *key)
{
    uint32_t i = 0;
    while (i < problems->count && strcmp(problems->items[i]->key, key) != 0) i++;
    return i;
}

/* Takes one tactic of each kernel in turn, so that a short race includes every kernel. */
static void interleave(struct tune_problem *problem)
{
    struct device_tactic sorted[DEVICE_MOST_TACTICS];
    bool taken[DEVICE_MOST_TACTICS] = {false};
    int count = 0;
    while (count < problem->tactic_count) {
        const struct device_kernel *last = NULL;
        for (int t = 0; t < problem->tactic_count; t++) {
            /* Tactics of a kernel are adjacent in the list: takes the first remaining one of each kernel. */
            if (taken[t] || problem->tactics[t].kernel == last) continue;
            last = problem->tactics[t].kernel;
            taken[t] = true;
            sorted[count++] = problem->tactics[t];
        }
    }
    memcpy(problem->tactics, sorted, (size_t)count * sizeof *sorted);
}

static bool add_problem(struct tune_problems *problems, const struct device_plan *plan,
                        const struct device_launch *launch, const char *key, const struct device_facts *gpu, int most)
{
    if (problems->count == problems->capacity) {
        size_t capacity = problems->capacity ? 2 * problems->capacity : 32;
        struct tune_problem **larger = realloc(problems->items, capacity * sizeof(struct tune_problem *));
        if (!larger) return false;
        problems->items = larger;
        problems->capacity = capacity;
    }
    struct tune_problem *problem = calloc(1, sizeof *problem);
    if (!problem) return false;
    problems->items[problems->count++] = problem;
    memcpy(problem->key, key, TUNING_KEY_BYTES);
    problem->tactic_count =
        device_tactics(launch->op, launch->tactic.params, gpu, problem->tactics, DEVICE_MOST_TACTICS);
    interleave(problem);
    problem->bench.op = launch->op;
    problem->bench.plan = plan;
    problem->bench.tactics = problem->tactics;
    problem->bench.tactic_count = problem->tactic_count < most ? problem->tactic_count : most;
    return true;
}

static bool collect_plan(struct tune_problems *problems, const struct tune_context *context, struct device_plan *plan,
                         int most, struct status *status)
{
    for (uint32_t n = 0; n < plan->count; n++) {
        struct device_launch *launch = &plan->launches[n];
        char key[TUNING_KEY_BYTES];
        if (!device_op_is_tuned(launch->op)) continue;
        if (!key_of_problem(&context->keys, launch, key, status)) return false;
        launch->problem = launch->record = find_problem(problems, key);
        if (launch->problem == problems->count &&
            !add_problem(problems, plan, launch, key, &context->rig.gpus->devices[0].facts, most))
            return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
        struct bench_problem *bench = &problems->items[launch->problem]->bench;
        if (bench->plan == plan && bench->site_count < BENCH_MAX_SITES) bench->sites[bench->site_count++] = launch;
    }
    return true;
}

bool tune_problems_collect(struct tune_problems *problems, const struct tune_context *context, int most,
                           struct status *status)
{
    /* The first fusion of every plan, then the others. */
    for (uint32_t v = 0; v < PLAN_VARIANTS; v++)
        for (size_t p = 0; p < context->plan_count; p++)
            if (v < context->plans[p].count &&
                !collect_plan(problems, context, &context->plans[p].plans[v], most, status))
                return false;
    return true;
}

void tune_problems_free(struct tune_problems *problems)
{
    for (size_t i = 0; i < problems->count; i++) free(problems->items[i]);
    free(problems->items);
}

/* ---- records ---- */

const struct device_tactic *tune_problem_recorded(const struct tune_problem *problem,
                                                  const struct tuning_record *record)
{
    for (int t = 0; t < problem->tactic_count; t++)
        if (record_names_tactic(record, &problem->tactics[t])) return &problem->tactics[t];
    return NULL;
}

void describe_alone(struct tuning_record *record, const char *key, const struct device_tactic *tactic,
                    const struct cuda_bench *bench)
{
    memset(record, 0, sizeof *record);
    memcpy(record->key, key, sizeof record->key);
    record->value_count = describe_tactic(tactic, record->values);
    tactic->kernel->cost(tactic->params, BENCH_CONTEXT, &record->bytes, &record->flops);
    if (bench) record->roofline_us = cuda_bench_roofline(bench, tactic);
    snprintf(record->level, sizeof record->level, "%s", tune_level_name(TUNE_OFF));
    record->candidates = 1;
}

void describe_race(struct tuning_record *record, const char *key, const struct device_tactic *tactics, int count,
                   const struct race_result *result, int runner_up, enum tune_level level,
                   const struct cuda_bench *bench)
{
    describe_alone(record, key, &tactics[result->winner], bench);
    record->median_us = result->entries[result->winner].median_us;
    record->spread_us = result->entries[result->winner].spread_us;
    if (runner_up >= 0) {
        record->runner_up_count = describe_tactic(&tactics[runner_up], record->runner_up);
        record->runner_up_us = result->entries[runner_up].median_us;
    }
    record->candidates = (uint32_t)count;
    snprintf(record->level, sizeof record->level, "%s", tune_level_name(level));
}
