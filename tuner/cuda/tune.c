/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/tune.h"

#include <inttypes.h>
#include <stdlib.h>

#include "tuner/cuda/end_to_end.h"
#include "tuner/cuda/library_plans.h"
#include "tuner/cuda/library_races.h"

enum {
    FULL_TACTICS = 40,  /* tactics raced at level full */
    QUICK_TACTICS = 15, /* tactics raced at level quick */
};

/* ---- problems ---- */

/* Fills a tuned problem from the cache: the winner, then the cached rest of its shortlist. */
static void restore_shortlist(const struct tune_context *context, const struct tune_problem *problem,
                              const struct tuning_record *record, struct tuned_problem *tuned)
{
    const struct device_tactic *winner = tune_problem_recorded(problem, record);
    tuned->shortlist[0].tactic = *winner;
    tuned->shortlist[0].record = *record;
    tuned->shortlist_count = 1;
    for (int t = 0; t < problem->tactic_count && tuned->shortlist_count < SHORTLIST; t++) {
        char key[TUNING_KEY_BYTES];
        if (&problem->tactics[t] == winner || !key_of_tactic(problem->key, &problem->tactics[t], key)) continue;
        const struct tuning_record *known = tactics_answer(context->tactics, key, context->level);
        if (!known || tune_problem_recorded(problem, known) != &problem->tactics[t]) continue;
        struct shortlisted *listed = &tuned->shortlist[tuned->shortlist_count++];
        listed->tactic = problem->tactics[t];
        listed->record = *known;
    }
}

/* Tactics of problems that need no measurement. */
static void solve(struct races *races, size_t i, bool answered)
{
    struct tactics *tactics = races->context->tactics;
    const struct tune_problem *problem = races->problems->items[i];
    if (!answered) {
        describe_alone(&tactics->records[i], problem->key, &problem->tactics[0], races_bench(races));
        return;
    }
    tactics->records[i] = *tactics_cached(tactics, problem->key);
    restore_shortlist(races->context, problem, &tactics->records[i], &races->context->problems[i]);
    tactics->cached++;
}

/* Compiles and loads every candidate of the problems without a cached answer, and the cached best of each problem for
 * which a library may compete. */
static bool prepare(struct races *races, const bool *answered, struct status *status)
{
    struct tune_context *context = races->context;
    for (size_t i = 0; i < races->problems->count; i++) {
        struct tune_problem *problem = races->problems->items[i];
        const struct device_tactic *known =
            answered[i] ? tune_problem_recorded(problem, tactics_cached(context->tactics, problem->key)) : NULL;
        for (int t = 0; t < problem->bench.tactic_count; t++)
            if (!answered[i] && kernel_set_add(&races->kernels, &problem->tactics[t],
                                               problem->bench.sites[0]->operand_count) == UINT32_MAX)
                return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
        if (!library_race_prepare(races, problem, known))
            return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    }
    if (races->kernels.count == 0) return true;
    progress_stage(context->progress, "compile");
    if (!kernel_set_compile(&races->kernels, context->compiler, tune_show_compiling, context->progress, status))
        return false;
    progress_stage(context->progress, "tune");
    return races_load(races, status);
}

static bool apply(struct tune_context *context, const struct tune_problems *problems, struct status *status)
{
    for (size_t i = 0; i < problems->count; i++) {
        const struct device_tactic *tactic = tune_problem_recorded(problems->items[i], &context->tactics->records[i]);
        if (!tactic)
            return status_fail(status, STATUS_INTERNAL, "tuning record '%s' names no tactic", problems->items[i]->key);
        context->problems[i].best = *tactic;
    }
    for (size_t p = 0; p < context->plan_count; p++)
        for (uint32_t v = 0; v < context->plans[p].count; v++) {
            struct device_plan *plan = &context->plans[p].plans[v];
            for (uint32_t n = 0; n < plan->count; n++)
                if (plan->launches[n].problem != PLAN_NO_TACTIC)
                    plan->launches[n].tactic = context->problems[plan->launches[n].problem].best;
        }
    return true;
}

/* Marks the problems that the cache answers, including the races of libraries. */
static bool find_answers(const struct tune_context *context, const struct tune_problems *problems, bool *answered)
{
    bool all = true;
    for (size_t i = 0; i < problems->count; i++) {
        const struct tune_problem *problem = problems->items[i];
        const struct tuning_record *known = tactics_answer(context->tactics, problem->key, context->level);
        answered[i] = known && tune_problem_recorded(problem, known);
        all = all && answered[i] && library_race_answered(context, problem);
    }
    return all;
}

static bool solve_all(struct races *races, const bool *answered, struct status *status)
{
    struct tune_context *context = races->context;
    const size_t count = races->problems->count;
    context->machine->read_gb_s = races->benches[0].read_bytes_per_us * 1e-3;
    context->machine->peak_gflops = races->benches[0].flops_per_us * 1e-3;
    for (size_t i = 0; i < count; i++)
        if (answered[i] || !races->are_open) solve(races, i, answered[i]);
    if (races->are_open && !races_run(races, answered, status)) return false;
    context->tactics->count = count;
    uint64_t total_us = 0, done_us = 0;
    for (size_t i = 0; i < count; i++) total_us += library_race_expected_us(races, races->problems->items[i]);
    if (total_us) progress_stage(context->progress, "libraries");
    for (size_t i = 0; i < count; i++) {
        done_us += library_race_expected_us(races, races->problems->items[i]);
        if (!library_race_run(races, i, status)) return false;
        progress_update(context->progress, done_us, total_us, NULL);
    }
    return true;
}

/* Puts the best tactic of every problem into all its launches. */
static bool tune_problems(struct tune_context *context, struct status *status)
{
    bool ok = false, *answered = NULL;
    struct tune_problems problems = {.count = 0};
    struct races races = {.context = context, .problems = &problems, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!tune_problems_collect(&problems, context, context->level == TUNE_FULL ? FULL_TACTICS : QUICK_TACTICS,
                               status) ||
        !tactics_reserve(context->tactics, problems.count, status))
        goto done;
    context->problems = calloc(problems.count + 1, sizeof *context->problems);
    answered = calloc(problems.count + 1, sizeof *answered);
    if (!context->problems || !answered) {
        status_fail(status, STATUS_MACHINE, "out of memory while tuning");
        goto done;
    }
    if (!find_answers(context, &problems, answered) && context->measures &&
        (!races_open(&races, status) || !prepare(&races, answered, status)))
        goto done;
    ok = solve_all(&races, answered, status) && apply(context, &problems, status);
done:
    races_close(&races);
    free(answered);
    tune_problems_free(&problems);
    return ok;
}

/* ---- all stages ---- */

void tune_show_compiling(void *progress, uint64_t done, uint64_t total)
{
    progress_update(progress, done, total, NULL);
}

static void begin(struct tune_context *context)
{
    key_parts_describe(&context->keys, context->rig.gpus);
    for (size_t p = 0; p < context->plan_count; p++) {
        const struct plan_header *header = &context->plans[p].plans[0].header;
        if (header->kind == PLAN_PREFILL && header->rows > context->rig.longest_chunk)
            context->rig.longest_chunk = header->rows;
        uint64_t bytes = library_arena_bytes(context->rig.gpus, &context->plans[p]);
        if (bytes > context->rig.arena_bytes) context->rig.arena_bytes = bytes;
    }
}

bool tune_cuda(struct tune_context *context, struct status *status)
{
    begin(context);
    bool ok = tune_problems(context, status) && tune_end_to_end(context, status) && tune_library_plans(context, status);
    free(context->problems);
    context->problems = NULL;
    return ok;
}

/* ---- printing the space ---- */

static void print_tactic(const struct device_tactic *tactic, const struct device_facts *gpu, FILE *out)
{
    const struct device_kernel *kernel = tactic->kernel;
    struct device_geometry geometry;
    const char *illegal = kernel->launch(tactic->params, gpu, &geometry);
    fprintf(out, "  %s", kernel->name);
    for (int i = 0; i < kernel->own_count; i++)
        fprintf(out, " %s=%" PRId64, kernel->own_names[i], tactic->params[device_problem_count(kernel) + i]);
    if (illegal)
        fprintf(out, " illegal: %s\n", illegal);
    else
        fprintf(out, " grid %ux%ux%u block %u cluster %u shared %u\n", geometry.grid[0], geometry.grid[1],
                geometry.grid[2], geometry.block[0] * geometry.block[1] * geometry.block[2],
                geometry.cluster[0] * geometry.cluster[1] * geometry.cluster[2], geometry.shared_bytes);
}

bool tune_print_candidates(struct tune_context *context, FILE *out, struct status *status)
{
    struct tune_problems problems = {.count = 0};
    const struct device_facts *gpu = &context->rig.gpus->devices[0].facts;
    key_parts_describe(&context->keys, context->rig.gpus);
    bool ok = tune_problems_collect(&problems, context, DEVICE_MOST_TACTICS, status);
    for (size_t i = 0; ok && i < problems.count; i++) {
        const struct tune_problem *problem = problems.items[i];
        fprintf(out, "# %s\n", problem->key);
        for (int t = 0; t < problem->tactic_count; t++) print_tactic(&problem->tactics[t], gpu, out);
        const struct device_kernel *const *kernels = device_kernels(problem->bench.op);
        for (int k = 0; kernels[k]; k++) {
            bool raced = false;
            for (int t = 0; t < problem->tactic_count; t++) raced |= problem->tactics[t].kernel == kernels[k];
            if (raced) continue;
            struct device_geometry geometry;
            const char *reason = device_kernel_runs_on(kernels[k], gpu)
                                     ? kernels[k]->launch(problem->bench.sites[0]->tactic.params, gpu, &geometry)
                                     : "not for this GPU";
            fprintf(out, "  %s: not raced: %s\n", kernels[k]->name, reason ? reason : "enough others");
        }
    }
    tune_problems_free(&problems);
    return ok;
}
