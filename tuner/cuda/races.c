/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/races.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tuner/cuda/pairs.h"

/* ---- shortlists ---- */

enum { MOST_WITH_ROOM = 3 }; /* tactics that leave room, beside those that are listed for another reason */

/* The fastest tactic not yet taken and, if `other`, of a kernel not yet on the list; -1: there is none. */
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
    const struct races *races;
    const struct tune_problem *problem;
    const struct race_result *result;
    struct tuned_problem *tuned;
    bool taken[DEVICE_MOST_TACTICS];
};

static void shortlist(struct listing *listing, int t)
{
    struct tuned_problem *tuned = listing->tuned;
    const struct race_entry *entry = t < 0 ? NULL : &listing->result->entries[t];
    char key[TUNING_KEY_BYTES];
    if (!entry || listing->taken[t] || tuned->shortlist_count == SHORTLIST || entry->samples == 0 ||
        !key_of_tactic(listing->problem->key, &listing->problem->tactics[t], key))
        return;
    struct shortlisted *listed = &tuned->shortlist[tuned->shortlist_count++];
    listing->taken[t] = true;
    listed->tactic = listing->problem->tactics[t];
    describe_alone(&listed->record, key, &listed->tactic, races_bench(listing->races));
    listed->record.median_us = entry->median_us;
    listed->record.spread_us = entry->spread_us;
    snprintf(listed->record.level, sizeof listed->record.level, "%s", tune_level_name(listing->races->context->level));
}

/* The fastest tactic not yet taken that leaves room for a launch beside it; -1: there is none. */
static int next_with_room(const struct listing *listing)
{
    const struct tune_problem *problem = listing->problem;
    const struct race_result *result = listing->result;
    const struct device_facts *gpu = &listing->races->context->rig.gpus->devices[0].facts;
    int best = -1;
    for (int t = 0; t < problem->bench.tactic_count; t++) {
        if (listing->taken[t] || result->entries[t].samples == 0 || !leaves_room(&problem->tactics[t], gpu)) continue;
        if (best < 0 || result->entries[t].median_us < result->entries[best].median_us) best = t;
    }
    return best;
}

/* Shortlist: the winner; the best of every other kernel; the first choices of every kernel, which account for effects
 * that a race of one kernel in sequence does not show; for pairs.h some that leave room; then the fastest of the rest. */
static void fill_shortlist(struct listing *listing)
{
    const struct tune_problem *problem = listing->problem;
    const struct race_result *result = listing->result;
    struct tuned_problem *tuned = listing->tuned;
    shortlist(listing, result->winner);
    for (int next;
         tuned->shortlist_count < SHORTLIST && (next = next_best(tuned, problem, result, listing->taken, true)) >= 0;)
        shortlist(listing, next);
    int firsts = bench_says_little(problem->bench.op) ? SHORTLIST / 2 : 1;
    for (int t = 0; t < problem->bench.tactic_count; t++) {
        int earlier = 0;
        for (int before = 0; before < t; before++)
            earlier += problem->tactics[before].kernel == problem->tactics[t].kernel;
        if (earlier < firsts) shortlist(listing, t);
    }
    const enum plan_op op = problem->bench.op;
    const int64_t *params = problem->tactics[0].params;
    const int with_room = begins_pair(op, params) || ends_pair(op, params) ? MOST_WITH_ROOM : 0;
    for (int i = 0; i < with_room; i++) shortlist(listing, next_with_room(listing));
    for (int next;
         tuned->shortlist_count < SHORTLIST && (next = next_best(tuned, problem, result, listing->taken, false)) >= 0;)
        shortlist(listing, next);
}

/* ---- races ---- */

static bool measure(struct races *races, uint32_t rank, size_t i, struct status *status)
{
    struct tune_context *context = races->context;
    const struct tune_problem *problem = races->problems->items[i];
    struct tuned_problem *tuned = &context->problems[i];
    struct tuning_record *record = &context->tactics->records[i];
    struct race_result *result = malloc(sizeof *result);
    if (!result) return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    bool ok = cuda_bench_race(&races->benches[rank], &problem->bench, context->level, result, status);
    if (ok) {
        describe_race(record, problem->key, problem->tactics, problem->bench.tactic_count, result, result->runner_up,
                      context->level, races_bench(races));
        struct listing listing = {.races = races, .problem = problem, .result = result, .tuned = tuned};
        fill_shortlist(&listing);
        pthread_mutex_lock(&races->lock);
        for (int l = 0; l < tuned->shortlist_count; l++)
            tactics_save(context->tactics, l == 0 ? record : &tuned->shortlist[l].record);
        pthread_mutex_unlock(&races->lock);
    }
    free(result);
    return ok || status_prefix(status, "tuning '%s'", problem->key);
}

/* Races all problems; each GPU takes the next unsolved problem. */
struct racing {
    struct races *races;
    const bool *answered;
    size_t next, done; /* guarded by races->lock, as are the fields below */
    uint64_t done_us, expected_us;
    bool failed;
};

/* At least 1. */
static uint64_t expected_us(const struct races *races, size_t i)
{
    return 1 + (uint64_t)cuda_bench_expected_us(races_bench(races), &races->problems->items[i]->bench,
                                                races->context->level);
}

static void show_progress(struct racing *racing, size_t i)
{
    const struct tune_context *context = racing->races->context;
    const struct tuning_record *record = &context->tactics->records[i];
    char best[160];
    racing->done++;
    racing->done_us += expected_us(racing->races, i);
    snprintf(best, sizeof best, "%zu/%zu %s %.2f us, %.0f %% of the roofline", racing->done,
             racing->races->problems->count, record->values[0].name, record->median_us,
             record->median_us > 0 ? 100 * record->roofline_us / record->median_us : 0);
    progress_update(context->progress, racing->done_us, racing->expected_us, best);
}

static bool next_race(struct racing *racing, size_t *i)
{
    struct races *races = racing->races;
    pthread_mutex_lock(&races->lock);
    while (racing->next < races->problems->count && racing->answered[racing->next]) racing->next++, racing->done++;
    *i = racing->next++;
    bool found = !racing->failed && *i < races->problems->count;
    pthread_mutex_unlock(&races->lock);
    return found;
}

static bool race_on(void *context, uint32_t rank, struct status *status)
{
    struct racing *racing = context;
    struct races *races = racing->races;
    const struct device *device = &races->context->rig.gpus->devices[rank];
    bool ok = device_enter(device, status), entered = ok;
    for (size_t i; ok && next_race(racing, &i);) {
        ok = measure(races, rank, i, status);
        pthread_mutex_lock(&races->lock);
        races->context->tactics->measured += ok;
        if (ok) show_progress(racing, i);
        pthread_mutex_unlock(&races->lock);
    }
    if (entered) device_leave(device);
    pthread_mutex_lock(&races->lock);
    racing->failed = racing->failed || !ok;
    pthread_mutex_unlock(&races->lock);
    return ok;
}

/* False with the status of the first rank that failed. */
static bool all_well(const struct races *races, const struct rank_outcome *outcomes, uint32_t *failed,
                     struct status *status)
{
    for (*failed = 0; *failed < (races->team ? races->context->rig.gpus->ranks : 1); ++*failed) {
        if (outcomes[*failed].ok) continue;
        *status = outcomes[*failed].status;
        return false;
    }
    return true;
}

bool races_run(struct races *races, const bool *answered, struct status *status)
{
    struct racing racing = {.races = races, .answered = answered};
    struct rank_outcome outcomes[PLAN_MAX_RANKS];
    uint32_t failed;
    for (size_t i = 0; i < races->problems->count; i++)
        if (!answered[i]) racing.expected_us += expected_us(races, i);
    gpus_work(races->team, race_on, &racing, outcomes);
    return all_well(races, outcomes, &failed, status);
}

/* ---- GPUs ---- */

/* Work of one GPU, in its context. */
typedef bool gpu_function(struct races *races, uint32_t rank, struct status *status);
struct gpu_work {
    struct races *races;
    gpu_function *function;
};

static bool do_gpu_work(void *context, uint32_t rank, struct status *status)
{
    const struct gpu_work *work = context;
    const struct device *device = &work->races->context->rig.gpus->devices[rank];
    if (!device_enter(device, status)) return false;
    bool ok = work->function(work->races, rank, status);
    device_leave(device);
    return ok;
}

static bool on_all_gpus(struct races *races, gpu_function *function, struct status *status)
{
    struct gpu_work work = {.races = races, .function = function};
    struct rank_outcome outcomes[PLAN_MAX_RANKS];
    uint32_t failed;
    gpus_work(races->team, do_gpu_work, &work, outcomes);
    if (all_well(races, outcomes, &failed, status)) return true;
    return races->team ? status_prefix(status, "rank %" PRIu32, failed) : false;
}

static bool open_bench(struct races *races, uint32_t rank, struct status *status)
{
    return cuda_bench_open(&races->benches[rank], &races->context->rig, rank, races->context->scratch_bytes,
                           &races->kernels, &races->lock, status);
}

static bool load_bench(struct races *races, uint32_t rank, struct status *status)
{
    return cuda_bench_load(&races->benches[rank], status);
}

static bool close_bench(struct races *races, uint32_t rank, struct status *status)
{
    (void)status;
    cuda_bench_close(&races->benches[rank]);
    return true;
}

bool races_open(struct races *races, struct status *status)
{
    const uint32_t ranks = races->context->rig.gpus->ranks;
    if (ranks > 1 && !(races->team = team_create((int)ranks, status))) return false;
    races->are_open = true;
    return on_all_gpus(races, open_bench, status);
}

bool races_load(struct races *races, struct status *status) { return on_all_gpus(races, load_bench, status); }

const struct cuda_bench *races_bench(const struct races *races) { return races->are_open ? &races->benches[0] : NULL; }

void races_close(struct races *races)
{
    struct status ignored;
    status_clear(&ignored);
    if (races->are_open) on_all_gpus(races, close_bench, &ignored);
    team_destroy(races->team);
    kernel_set_free(&races->kernels);
}
