/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/tune_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "builder/build_cuda.h"
#include "builder/tune_libraries_cuda.h"
#include "formats/base/hash.h"

enum {
    FULL_TACTICS = 40,  /* raced at level full */
    QUICK_TACTICS = 15, /* raced at level quick */
};
/* Raised whenever what is measured, or how, changes: older records are then measured anew. */
enum { TUNER_REVISION = 5 };

/* ---- problems ---- */

static bool is_tuned(enum plan_op op)
{
    return op == OP_MATMUL || op == OP_ATTENTION || op == OP_ROPE_ATTENTION || op == OP_RMS_NORM ||
           op == OP_ALL_REDUCE || op == OP_ALL_GATHER;
}

void tune_cuda_code(char text[TUNE_CUDA_CODE_BYTES])
{
    uint64_t hash = 0;
    for (size_t i = 0; i < device_source_count; i++) {
        const uint64_t parts[2] = {hash, hash64(device_sources[i].text, strlen(device_sources[i].text))};
        hash = hash64(parts, sizeof parts);
    }
    snprintf(text, TUNE_CUDA_CODE_BYTES, "code %08" PRIx32 ", tuner %d", (uint32_t)(hash >> 32), TUNER_REVISION);
}

void tune_cuda_gpus(const struct build *build, char text[TUNE_CUDA_GPUS_BYTES])
{
    const char *name = build->cuda.device.facts.name;
    if (build->options->gpus > 1)
        snprintf(text, TUNE_CUDA_GPUS_BYTES, "%" PRIu32 " x %s, %s", build->options->gpus, name,
                 cuda_link_name(build->cuda.link));
    else
        snprintf(text, TUNE_CUDA_GPUS_BYTES, "%s", name);
}

/* GPU, op, the problem's parameters in the order of its contract, code. */
static bool make_key(const struct tuning *tuning, const struct device_launch *launch, char key[TUNING_KEY_BYTES])
{
    int used =
        snprintf(key, TUNING_KEY_BYTES, "%s; %s;", tuning->build->cuda.device.facts.name, plan_op_name(launch->op));
    for (int i = 0; i < launch->tactic.kernel->first_tunable && used < TUNING_KEY_BYTES; i++)
        used += snprintf(key + used, TUNING_KEY_BYTES - (size_t)used, " %" PRId64, launch->tactic.params[i]);
    if (used < TUNING_KEY_BYTES) used += snprintf(key + used, TUNING_KEY_BYTES - (size_t)used, "; %s", tuning->code);
    return used < TUNING_KEY_BYTES;
}

/* All plans, then all alternatives, of which many have no launches. */
static struct device_plan *plan_or_alternative(struct build *build, size_t index)
{
    size_t count = build->plan_count;
    return index < count ? &build->cuda.plans[index] : &build->cuda.alternatives[index - count];
}

static struct tune_problem *find_problem(struct tuning *tuning, const char *key)
{
    for (size_t i = 0; i < tuning->count; i++)
        if (strcmp(tuning->problems[i]->key, key) == 0) return tuning->problems[i];
    return NULL;
}

static uint32_t number_of(const struct tuning *tuning, const struct tune_problem *problem)
{
    uint32_t i = 0;
    while (tuning->problems[i] != problem) i++;
    return i;
}

/* One tactic of each kernel in turn, so that a race of few knows them all. */
static void interleave(struct tune_problem *problem)
{
    struct device_tactic sorted[DEVICE_MOST_TACTICS];
    bool taken[DEVICE_MOST_TACTICS] = {false};
    int count = 0;
    while (count < problem->tactic_count) {
        const struct device_kernel *last = NULL;
        for (int t = 0; t < problem->tactic_count; t++) {
            /* Tactics of a kernel stand together: the first that is left of each. */
            if (taken[t] || problem->tactics[t].kernel == last) continue;
            last = problem->tactics[t].kernel;
            taken[t] = true;
            sorted[count++] = problem->tactics[t];
        }
    }
    memcpy(problem->tactics, sorted, (size_t)count * sizeof *sorted);
}

static struct tune_problem *add_problem(struct tuning *tuning, const struct device_plan *plan,
                                        const struct device_launch *launch, const char *key, int most)
{
    if (tuning->count == tuning->capacity) {
        size_t capacity = tuning->capacity ? 2 * tuning->capacity : 32;
        struct tune_problem **larger = realloc(tuning->problems, capacity * sizeof(struct tune_problem *));
        if (!larger) return NULL;
        tuning->problems = larger;
        tuning->capacity = capacity;
    }
    struct tune_problem *problem = calloc(1, sizeof *problem);
    if (!problem) return NULL;
    tuning->problems[tuning->count++] = problem;
    memcpy(problem->key, key, TUNING_KEY_BYTES);
    problem->tactic_count = device_tactics(launch->op, launch->tactic.params, &tuning->build->cuda.device.facts,
                                           problem->tactics, DEVICE_MOST_TACTICS);
    interleave(problem);
    problem->bench.op = launch->op;
    problem->bench.plan = plan;
    problem->bench.tactics = problem->tactics;
    problem->bench.tactic_count = problem->tactic_count < most ? problem->tactic_count : most;
    return problem;
}

static bool collect(struct tuning *tuning, int most, struct status *status)
{
    struct build *build = tuning->build;
    for (size_t p = 0; p < 2 * build->plan_count; p++) {
        struct device_plan *plan = plan_or_alternative(build, p);
        for (uint32_t n = 0; n < plan->count; n++) {
            struct device_launch *launch = &plan->launches[n];
            char key[TUNING_KEY_BYTES];
            if (!is_tuned(launch->op)) continue;
            if (!make_key(tuning, launch, key)) return status_fail(status, STATUS_INTERNAL, "a tuning key is too long");
            struct tune_problem *problem = find_problem(tuning, key);
            if (!problem) problem = add_problem(tuning, plan, launch, key, most);
            if (!problem) return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
            launch->problem = launch->record = number_of(tuning, problem);
            struct bench_problem *bench = &problem->bench;
            if (bench->plan == plan && bench->site_count < BENCH_MAX_SITES) bench->sites[bench->site_count++] = launch;
        }
    }
    return true;
}

static void tuning_free(struct tuning *tuning)
{
    for (size_t i = 0; i < tuning->count; i++) free(tuning->problems[i]);
    free(tuning->problems);
}

/* ---- records ---- */

int tune_cuda_describe(const struct device_tactic *tactic, struct tuning_value values[TUNING_MAX_VALUES])
{
    const struct device_kernel *kernel = tactic->kernel;
    int count = 1;
    snprintf(values[0].name, sizeof values[0].name, "%s", kernel->name);
    values[0].value = 0;
    for (int i = kernel->first_tunable; i < kernel->param_count && count < TUNING_MAX_VALUES; i++) {
        struct tuning_value *value = &values[count++];
        snprintf(value->name, sizeof value->name, "%s", kernel->param_names[i]);
        value->value = tactic->params[i];
    }
    return count;
}

void tune_cuda_describe_alone(struct tuning_record *record, const char *key, const struct device_tactic *tactic,
                              const struct tuning *tuning)
{
    memset(record, 0, sizeof *record);
    memcpy(record->key, key, sizeof record->key);
    record->value_count = tune_cuda_describe(tactic, record->values);
    tactic->kernel->cost(tactic->params, BENCH_CONTEXT, &record->bytes, &record->flops);
    if (tuning->measuring) record->roofline_us = bench_cuda_roofline(&tuning->benches[0], record->bytes, record->flops);
    snprintf(record->level, sizeof record->level, "%s", tune_level_name(TUNE_OFF));
    record->candidates = 1;
}

void tune_cuda_describe_race(struct tuning_record *record, const char *key, const struct device_tactic *tactics,
                             int count, const struct race_result *result, int runner_up, enum tune_level level,
                             const struct tuning *tuning)
{
    tune_cuda_describe_alone(record, key, &tactics[result->winner], tuning);
    record->median_us = result->entries[result->winner].median_us;
    record->spread_us = result->entries[result->winner].spread_us;
    if (runner_up >= 0) {
        record->runner_up_count = tune_cuda_describe(&tactics[runner_up], record->runner_up);
        record->runner_up_us = result->entries[runner_up].median_us;
    }
    record->candidates = (uint32_t)count;
    snprintf(record->level, sizeof record->level, "%s", tune_level_name(level));
}

/* The tactic that a record names, if it is still one of the problem's. */
static const struct device_tactic *recorded(const struct tune_problem *problem, const struct tuning_record *record)
{
    for (int t = 0; t < problem->tactic_count; t++) {
        const struct device_tactic *tactic = &problem->tactics[t];
        const struct device_kernel *kernel = tactic->kernel;
        int tunables = kernel->param_count - kernel->first_tunable;
        bool same = record->value_count == tunables + 1 && strcmp(record->values[0].name, kernel->name) == 0;
        for (int i = 0; same && i < tunables; i++)
            same = record->values[i + 1].value == tactic->params[kernel->first_tunable + i] &&
                   strcmp(record->values[i + 1].name, kernel->param_names[kernel->first_tunable + i]) == 0;
        if (same) return tactic;
    }
    return NULL;
}

bool tune_cuda_good_enough(const struct tuning_record *record, enum tune_level level)
{
    if (strcmp(record->level, tune_level_name(TUNE_FULL)) == 0) return true;
    return level != TUNE_FULL && strcmp(record->level, tune_level_name(TUNE_QUICK)) == 0;
}

/* ---- our own ---- */

void tune_cuda_save(struct build *build, const struct tuning_record *record)
{
    struct tactics *tactics = &build->tactics;
    if (build->cache_open && (tactics->unsaved || !tuning_cache_add(&build->cache, record, &tactics->cache_status)))
        tactics->unsaved++;
}

int64_t tune_cuda_tunables_name(const struct device_tactic *tactic)
{
    const struct device_kernel *kernel = tactic->kernel;
    size_t count = (size_t)(kernel->param_count - kernel->first_tunable);
    return (int64_t)(hash64(tactic->params + kernel->first_tunable, count * sizeof *tactic->params) >> 1);
}

bool tune_cuda_entry_key(const struct tune_problem *problem, const struct device_tactic *tactic,
                         char key[TUNING_KEY_BYTES])
{
    return snprintf(key, TUNING_KEY_BYTES, "%s; %s %016" PRIx64, problem->key, tactic->kernel->name,
                    (uint64_t)tune_cuda_tunables_name(tactic)) < TUNING_KEY_BYTES;
}

/* As the cache has it: the winner, then whatever else was once on the list. */
static void restore_shortlist(const struct tuning *tuning, const struct tune_problem *problem,
                              const struct tuning_record *record, enum tune_level level, struct tuned_problem *tuned)
{
    const struct device_tactic *winner = recorded(problem, record);
    tuned->shortlist[0].tactic = *winner;
    tuned->shortlist[0].record = *record;
    tuned->shortlist_count = 1;
    for (int t = 0; t < problem->tactic_count && tuned->shortlist_count < SHORTLIST; t++) {
        char key[TUNING_KEY_BYTES];
        if (&problem->tactics[t] == winner || !tune_cuda_entry_key(problem, &problem->tactics[t], key)) continue;
        const struct tuning_record *known = tuning_cache_find(&tuning->build->cache, key);
        if (!known || !tune_cuda_good_enough(known, level) || recorded(problem, known) != &problem->tactics[t])
            continue;
        struct shortlisted *listed = &tuned->shortlist[tuned->shortlist_count++];
        listed->tactic = problem->tactics[t];
        listed->record = *known;
    }
}

/* What needs no measuring. */
static void solve(struct tuning *tuning, size_t i, enum tune_level level, bool answered)
{
    struct build *build = tuning->build;
    struct tuning_record *record = &build->tactics.records[i];
    const struct tune_problem *problem = tuning->problems[i];
    if (!answered) {
        tune_cuda_describe_alone(record, problem->key, &problem->tactics[0], tuning);
        return;
    }
    *record = *tuning_cache_find(&build->cache, problem->key);
    restore_shortlist(tuning, problem, record, level, &build->cuda.problems[i]);
    build->tactics.cached++;
}

/* ---- all of it ---- */

/* Compiles every candidate of the problems that the cache does not answer, and of each the best that it does answer
 * where a library may challenge it; loads them. */
static bool prepare(struct tuning *tuning, const bool *answered, struct status *status)
{
    struct build *build = tuning->build;
    struct cuda_build *cuda = &build->cuda;
    for (size_t i = 0; i < tuning->count; i++) {
        struct tune_problem *problem = tuning->problems[i];
        const struct device_tactic *known =
            answered[i] ? recorded(problem, tuning_cache_find(&build->cache, problem->key)) : NULL;
        for (int t = 0; t < problem->bench.tactic_count; t++)
            if (!answered[i] && kernel_set_add(&cuda->kernels, &problem->tactics[t],
                                               problem->bench.sites[0]->operand_count) == UINT32_MAX)
                return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
        if (!tune_libraries_prepare(tuning, problem, known))
            return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    }
    if (cuda->kernels.count == 0) return true;
    progress_stage(&build->progress, "compile");
    if (!build_cuda_compile(build, &cuda->kernels, true, status)) return false;
    progress_stage(&build->progress, "tune");
    return tune_races_load(tuning, status);
}

static bool apply(struct tuning *tuning, struct status *status)
{
    struct build *build = tuning->build;
    for (size_t p = 0; p < 2 * build->plan_count; p++) {
        struct device_plan *plan = plan_or_alternative(build, p);
        for (uint32_t n = 0; n < plan->count; n++) {
            struct device_launch *launch = &plan->launches[n];
            if (launch->problem == PLAN_NO_TACTIC) continue;
            const struct tune_problem *problem = tuning->problems[launch->problem];
            const struct device_tactic *tactic = recorded(problem, &build->tactics.records[launch->record]);
            if (!tactic)
                return status_fail(status, STATUS_INTERNAL, "tuning record '%s' names no tactic", problem->key);
            launch->tactic = build->cuda.problems[launch->problem].best = *tactic;
        }
    }
    return true;
}

/* Which problems the cache answers, those of a library among them. */
static bool find_answers(const struct tuning *tuning, enum tune_level level, bool *answered)
{
    const struct build *build = tuning->build;
    bool all = true;
    for (size_t i = 0; i < tuning->count; i++) {
        const struct tune_problem *problem = tuning->problems[i];
        const struct tuning_record *known = build->cache_open ? tuning_cache_find(&build->cache, problem->key) : NULL;
        answered[i] = known && tune_cuda_good_enough(known, level) && recorded(problem, known);
        all = all && answered[i] && tune_libraries_answered(tuning, problem, level);
    }
    return all;
}

static bool solve_all(struct tuning *tuning, const bool *answered, enum tune_level level, struct status *status)
{
    struct build *build = tuning->build;
    build->machine.read_gb_s = tuning->benches[0].read_bytes_per_us * 1e-3;
    build->machine.peak_gflops = tuning->benches[0].flops_per_us * 1e-3;
    for (size_t i = 0; i < tuning->count; i++)
        if (answered[i] || !tuning->measuring) solve(tuning, i, level, answered[i]);
    if (tuning->measuring && !tune_races_run(tuning, answered, level, status)) return false;
    build->tactics.count = tuning->count;
    uint64_t total_us = 0, done_us = 0;
    for (size_t i = 0; i < tuning->count; i++)
        total_us += tune_libraries_expected_us(tuning, tuning->problems[i], level);
    if (total_us) progress_stage(&build->progress, "libraries");
    for (size_t i = 0; i < tuning->count; i++) {
        done_us += tune_libraries_expected_us(tuning, tuning->problems[i], level);
        if (!tune_libraries_solve(tuning, i, level, status)) return false;
        progress_update(&build->progress, done_us, total_us, NULL);
    }
    return apply(tuning, status);
}

bool tune_cuda(struct build *build, enum tune_level level, struct status *status)
{
    /* Of a problem: our own and a library's; of a plan: its form, whether it calls libraries, and the tactics that serve it
     * better than the winners. */
    enum { RECORDS_PER_PROBLEM = 2, RECORDS_PER_PLAN = 2 + TUNING_MAX_VALUES };
    bool ok = false, *answered = NULL;
    struct tuning tuning = {.build = build, .lock = PTHREAD_MUTEX_INITIALIZER};
    tuning.measuring = level != TUNE_OFF && build->cuda.weights;
    tune_cuda_code(tuning.code);
    memset(&build->tactics, 0, sizeof build->tactics);
    if (!collect(&tuning, level == TUNE_FULL ? FULL_TACTICS : QUICK_TACTICS, status)) goto done;
    size_t records = RECORDS_PER_PROBLEM * tuning.count + RECORDS_PER_PLAN * build->plan_count;
    build->tactics.records = calloc(records + 1, sizeof *build->tactics.records);
    build->cuda.problems = calloc(tuning.count + 1, sizeof *build->cuda.problems);
    build->cuda.problem_count = tuning.count;
    answered = calloc(tuning.count + 1, sizeof *answered);
    if (!build->tactics.records || !build->cuda.problems || !answered) {
        status_fail(status, STATUS_MACHINE, "out of memory while tuning");
        goto done;
    }
    tuning.measuring = !find_answers(&tuning, level, answered) && tuning.measuring;
    if (tuning.measuring && (!tune_races_open(&tuning, status) || !prepare(&tuning, answered, status))) goto done;
    ok = solve_all(&tuning, answered, level, status);
done:
    tune_races_close(&tuning);
    /* What was only raced stays out of the engine. */
    kernel_set_free(&build->cuda.kernels);
    free(answered);
    tuning_free(&tuning);
    if (!ok) tactics_free(&build->tactics);
    return ok;
}

/* ---- printing the space ---- */

static void print_tactic(const struct device_tactic *tactic, const struct device_facts *gpu, FILE *out)
{
    const struct device_kernel *kernel = tactic->kernel;
    struct device_geometry geometry;
    const char *illegal = kernel->launch(tactic->params, gpu, &geometry);
    fprintf(out, "  %s", kernel->name);
    for (int i = kernel->first_tunable; i < kernel->param_count; i++)
        fprintf(out, " %s=%" PRId64, kernel->param_names[i], tactic->params[i]);
    if (illegal)
        fprintf(out, " illegal: %s\n", illegal);
    else
        fprintf(out, " grid %ux%ux%u block %u cluster %u shared %u\n", geometry.grid[0], geometry.grid[1],
                geometry.grid[2], geometry.block[0] * geometry.block[1] * geometry.block[2],
                geometry.cluster[0] * geometry.cluster[1] * geometry.cluster[2], geometry.shared_bytes);
}

bool print_cuda_candidates(struct build *build, FILE *out, struct status *status)
{
    struct tuning tuning = {.build = build};
    const struct device_facts *gpu = &build->cuda.device.facts;
    tune_cuda_code(tuning.code);
    bool ok = collect(&tuning, DEVICE_MOST_TACTICS, status);
    for (size_t i = 0; ok && i < tuning.count; i++) {
        const struct tune_problem *problem = tuning.problems[i];
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
    tuning_free(&tuning);
    return ok;
}
