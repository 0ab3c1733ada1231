/* SPDX-License-Identifier: Apache-2.0 */
/* The races of a build's problems: what was measured, what of it may serve a whole plan, and all GPUs at once. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "builder/build_cuda.h"
#include "builder/tune_cuda_internal.h"
#include "kernels/cpu/team.h"

/* ---- what is kept of a race ---- */

/* The fastest that is not taken and, if `other`, of a kernel that is not on the list; -1: none is left. */
static int next_best(const struct tuned_problem *tuned, const struct tune_problem *problem,
                     const struct race_result *result, const bool *taken, bool other)
{
    int best = -1;
    for (int t = 0; t < problem->bench.tactic_count; t++) {
        const struct race_entry *entry = &result->entries[t];
        bool listed = false;
        for (int i = 0; other && i < tuned->shortlist_count; i++)
            listed |= tuned->shortlist[i].tactic.kernel == problem->tactics[t].kernel;
        if (taken[t] || listed || entry->samples == 0) continue;
        if (best < 0 || entry->median_us < result->entries[best].median_us) best = t;
    }
    return best;
}

struct listing {
    const struct tuning *tuning;
    const struct tune_problem *problem;
    const struct race_result *result;
    enum tune_level level;
    struct tuned_problem *tuned;
    bool taken[DEVICE_MOST_TACTICS];
};

static void shortlist(struct listing *listing, int t)
{
    struct tuned_problem *tuned = listing->tuned;
    const struct race_entry *entry = t < 0 ? NULL : &listing->result->entries[t];
    char key[TUNING_KEY_BYTES];
    if (!entry || listing->taken[t] || tuned->shortlist_count == SHORTLIST || entry->samples == 0 ||
        !tune_cuda_entry_key(listing->problem, &listing->problem->tactics[t], key))
        return;
    struct shortlisted *listed = &tuned->shortlist[tuned->shortlist_count++];
    listing->taken[t] = true;
    listed->tactic = listing->problem->tactics[t];
    tune_cuda_describe_alone(&listed->record, key, &listed->tactic, listing->tuning);
    listed->record.median_us = entry->median_us;
    listed->record.spread_us = entry->spread_us;
    snprintf(listed->record.level, sizeof listed->record.level, "%s", tune_level_name(listing->level));
}

/* The winner, the best of every other kernel, what every kernel itself would choose, which knows more than a race of
 * launches behind themselves shows, then whatever is fastest. */
static void fill_shortlist(struct listing *listing)
{
    const struct tune_problem *problem = listing->problem;
    const struct race_result *result = listing->result;
    struct tuned_problem *tuned = listing->tuned;
    shortlist(listing, result->winner);
    for (int next;
         tuned->shortlist_count < SHORTLIST && (next = next_best(tuned, problem, result, listing->taken, true)) >= 0;)
        shortlist(listing, next);
    /* A race of attention says little: what it leaves to the launches around it decides. So does one of a collective, in
     * which the rank stands alone: there is no link. */
    bool says_little = problem->bench.op == OP_ROPE_ATTENTION || plan_op_is_collective(problem->bench.op);
    int firsts = says_little ? SHORTLIST / 2 : 1;
    for (int t = 0; t < problem->bench.tactic_count; t++) {
        int earlier = 0;
        for (int before = 0; before < t; before++)
            earlier += problem->tactics[before].kernel == problem->tactics[t].kernel;
        if (earlier < firsts) shortlist(listing, t);
    }
    for (int next;
         tuned->shortlist_count < SHORTLIST && (next = next_best(tuned, problem, result, listing->taken, false)) >= 0;)
        shortlist(listing, next);
}

/* ---- races ---- */

static bool measure(struct tuning *tuning, struct bench_cuda *bench, const struct tune_problem *problem,
                    enum tune_level level, struct tuned_problem *tuned, struct tuning_record *record,
                    struct status *status)
{
    struct race_result *result = malloc(sizeof *result);
    if (!result) return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    bool ok = bench_cuda_race(bench, &problem->bench, level, result, status);
    if (ok) {
        tune_cuda_describe_race(record, problem->key, problem->tactics, problem->bench.tactic_count, result,
                                result->runner_up, level, tuning);
        struct listing listing = {.tuning = tuning,
                                  .problem = problem,
                                  .result = result,
                                  .level = level,
                                  .tuned = tuned};
        fill_shortlist(&listing);
        pthread_mutex_lock(&tuning->lock);
        for (int l = 0; l < tuned->shortlist_count; l++)
            tune_cuda_save(tuning->build, l == 0 ? record : &tuned->shortlist[l].record);
        pthread_mutex_unlock(&tuning->lock);
    }
    free(result);
    return ok || status_prefix(status, "tuning '%s'", problem->key);
}

/* Races, each GPU taking the next problem that is left. */
struct races {
    struct tuning *tuning;
    const bool *answered;
    enum tune_level level;
    size_t next, done; /* under tuning->lock; likewise below */
    uint64_t done_us, expected_us;
    bool failed;
    struct status *status; /* of the first failure */
};

/* At least 1. */
static uint64_t expected_us(const struct races *races, size_t i)
{
    const struct tuning *tuning = races->tuning;
    return 1 + (uint64_t)bench_cuda_expected_us(&tuning->benches[0], &tuning->problems[i]->bench, races->level);
}

static void show_progress(struct races *races, size_t i, const struct tuning_record *record)
{
    const struct tuning *tuning = races->tuning;
    char best[160];
    races->done++;
    races->done_us += expected_us(races, i);
    snprintf(best, sizeof best, "%zu/%zu %s %.2f us, %.0f %% of the roofline", races->done, tuning->count,
             record->values[0].name, record->median_us,
             record->median_us > 0 ? 100 * record->roofline_us / record->median_us : 0);
    progress_update(&tuning->build->progress, races->done_us, races->expected_us, best);
}

static bool next_race(struct races *races, size_t *i)
{
    struct tuning *tuning = races->tuning;
    pthread_mutex_lock(&tuning->lock);
    while (races->next < tuning->count && races->answered[races->next]) races->next++, races->done++;
    *i = races->next++;
    bool found = !races->failed && *i < tuning->count;
    pthread_mutex_unlock(&tuning->lock);
    return found;
}

static void race_on(struct races *races, uint32_t rank)
{
    struct tuning *tuning = races->tuning;
    struct build *build = tuning->build;
    struct status status;
    status_clear(&status);
    bool ok = device_enter(build_cuda_device(build, rank), &status), entered = ok;
    for (size_t i; ok && next_race(races, &i);) {
        struct tuning_record *record = &build->tactics.records[i];
        ok = measure(tuning, &tuning->benches[rank], tuning->problems[i], races->level, &build->cuda.problems[i],
                     record, &status);
        pthread_mutex_lock(&tuning->lock);
        build->tactics.measured += ok;
        if (ok) show_progress(races, i, record);
        pthread_mutex_unlock(&tuning->lock);
    }
    if (entered) device_leave(build_cuda_device(build, rank));
    pthread_mutex_lock(&tuning->lock);
    if (!ok && !races->failed) *races->status = status;
    races->failed = races->failed || !ok;
    pthread_mutex_unlock(&tuning->lock);
}

static void race_member(void *argument, struct team_member *member) { race_on(argument, (uint32_t)member->index); }

bool tune_races_run(struct tuning *tuning, const bool *answered, enum tune_level level, struct status *status)
{
    struct races races = {.tuning = tuning, .answered = answered, .level = level, .status = status};
    for (size_t i = 0; i < tuning->count; i++)
        if (!answered[i]) races.expected_us += expected_us(&races, i);
    if (tuning->team)
        team_run(tuning->team, race_member, &races);
    else
        race_on(&races, 0);
    return !races.failed;
}

/* ---- GPUs ---- */

/* What each GPU does by itself, in its context. */
struct gpu_work {
    struct tuning *tuning;
    bool (*function)(struct tuning *tuning, uint32_t rank, struct status *status);
    struct {
        bool ok;
        struct status status;
    } ranks[PLAN_MAX_RANKS];
};

static void do_gpu_work(struct gpu_work *work, uint32_t rank)
{
    const struct device *device = build_cuda_device(work->tuning->build, rank);
    struct status *status = &work->ranks[rank].status;
    status_clear(status);
    work->ranks[rank].ok = false;
    if (!device_enter(device, status)) return;
    work->ranks[rank].ok = work->function(work->tuning, rank, status);
    device_leave(device);
}

static void do_member_work(void *argument, struct team_member *member)
{
    do_gpu_work(argument, (uint32_t)member->index);
}

static bool on_all_gpus(struct tuning *tuning,
                        bool (*function)(struct tuning *tuning, uint32_t rank, struct status *status),
                        struct status *status)
{
    struct gpu_work work = {.tuning = tuning, .function = function};
    if (tuning->team)
        team_run(tuning->team, do_member_work, &work);
    else
        do_gpu_work(&work, 0);
    for (uint32_t r = 0; r < tuning->build->options->gpus; r++) {
        if (work.ranks[r].ok) continue;
        *status = work.ranks[r].status;
        return tuning->team ? status_prefix(status, "rank %" PRIu32, r) : false;
    }
    return true;
}

static bool open_bench(struct tuning *tuning, uint32_t rank, struct status *status)
{
    return bench_cuda_open(&tuning->benches[rank], tuning->build, rank, &tuning->lock, status);
}

static bool load_bench(struct tuning *tuning, uint32_t rank, struct status *status)
{
    return bench_cuda_load(&tuning->benches[rank], status);
}

static bool close_bench(struct tuning *tuning, uint32_t rank, struct status *status)
{
    (void)status;
    bench_cuda_close(&tuning->benches[rank]);
    return true;
}

bool tune_races_open(struct tuning *tuning, struct status *status)
{
    if (tuning->build->options->gpus > 1) {
        tuning->team = team_create((int)tuning->build->options->gpus, status);
        if (!tuning->team) return false;
    }
    return on_all_gpus(tuning, open_bench, status);
}

bool tune_races_load(struct tuning *tuning, struct status *status) { return on_all_gpus(tuning, load_bench, status); }

void tune_races_close(struct tuning *tuning)
{
    struct status ignored;
    status_clear(&ignored);
    if (tuning->measuring) on_all_gpus(tuning, close_bench, &ignored);
    team_destroy(tuning->team);
    tuning->team = NULL;
}
