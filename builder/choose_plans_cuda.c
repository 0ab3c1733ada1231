/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/choose_plans_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "builder/time_plans_cuda.h"
#include "builder/tune_cuda.h"
#include "formats/base/hash.h"
#include "kernels/matmul/matmul_device.h"

enum {
    MAX_FORMS = 24,
    UNIFORM_FORMS = 3, /* of each fusion */
    MAX_PROBLEMS = TUNING_MAX_VALUES - 1,
    QUICK_ROUNDS = 2, /* through the problems of a decode plan */
    FULL_ROUNDS = 3,
    CHUNK_ROUNDS = 1, /* of a prefill plan: its launches are long, what they do to each other is little */
};
static const char *const fusion_names[2] = {"plan", "alternative"};
static const double least_gain = 0.002; /* less is noise */
/* Of the time of all launches, as the races measured them. A problem with less, made a quarter faster, gains no more
 * than least_gain: a single row of the last layer in a chunk of many. */
static const double least_share = 4 * 0.002;
static const double hopeless = 1.25;      /* times what the race's winner took: not tried in a plan */
static const double least_coverage = 0.7; /* of the bytes of all matmuls that one choice of tunables must serve */

/* One way to run a step. */
struct form {
    int fusion;   /* index into fusion_names */
    bool uniform; /* all matmuls that can have the tunables of `tactic` */
    struct device_tactic tactic;
    double coverage;
};

static const struct device_plan *plan_of(const struct build *build, size_t p, int fusion)
{
    return fusion == 0 ? &build->cuda.plans[p] : &build->cuda.alternatives[p];
}

/* ---- tunables for all ---- */

static bool same_tunables(const struct device_tactic *a, const struct device_tactic *b)
{
    const struct device_kernel *kernel = a->kernel;
    int first = kernel->first_tunable;
    return kernel == b->kernel &&
           memcmp(a->params + first, b->params + first, (size_t)(kernel->param_count - first) * sizeof *a->params) == 0;
}

/* The record of the race's winner, which has the problem's number, says nothing of another tactic. */
static void put_tactic(const struct build *build, struct device_launch *launch, const struct device_tactic *tactic)
{
    bool won = launch->problem != PLAN_NO_TACTIC && same_tunables(&build->cuda.problems[launch->problem].best, tactic);
    launch->record = won ? launch->problem : PLAN_NO_TACTIC;
    launch->tactic = *tactic;
}

static int launch_tactics(const struct build *build, const struct device_launch *launch, struct device_tactic *tactics)
{
    return device_tactics(launch->op, launch->tactic.params, &build->cuda.device.facts, tactics, DEVICE_MOST_TACTICS);
}

static double matmul_bytes(const struct device_launch *launch)
{
    uint64_t bytes, flops;
    matmul_device_cost(launch->tactic.params, 0, &bytes, &flops);
    return (double)bytes;
}

/* Adds the tunables of the matmuls of a plan that serve most of its bytes, in the order of the candidates. */
static bool add_uniform_forms(const struct build *build, size_t p, int fusion, struct form *forms, int *count,
                              struct status *status)
{
    enum { MAX_CHOICES = 256 };
    const struct device_plan *plan = plan_of(build, p, fusion);
    struct form *choices = calloc(MAX_CHOICES, sizeof *choices);
    struct device_tactic *tactics = calloc(DEVICE_MOST_TACTICS, sizeof *tactics);
    int found = 0;
    double total = 0;
    bool ok = choices && tactics;
    for (uint32_t n = 0; ok && n < plan->count; n++) {
        const struct device_launch *launch = &plan->launches[n];
        if (launch->op != OP_MATMUL) continue;
        double bytes = matmul_bytes(launch);
        total += bytes;
        int tactic_count = launch_tactics(build, launch, tactics);
        for (int t = 0; t < tactic_count; t++) {
            int c = 0;
            while (c < found && !same_tunables(&choices[c].tactic, &tactics[t])) c++;
            if (c == MAX_CHOICES) continue;
            if (c == found) choices[found++] = (struct form){fusion, true, tactics[t], 0};
            choices[c].coverage += bytes;
        }
    }
    int added = 0;
    for (int c = 0; c < found && added < UNIFORM_FORMS && *count < MAX_FORMS; c++)
        if (choices[c].coverage >= least_coverage * total) {
            forms[(*count)++] = choices[c];
            added++;
        }
    free(choices);
    free(tactics);
    return ok || status_fail(status, STATUS_MACHINE, "out of memory while choosing plans");
}

static bool copy_plan(const struct device_plan *plan, struct device_plan *copy, struct status *status)
{
    *copy = (struct device_plan){.header = plan->header};
    copy->launches = calloc((size_t)plan->count + 1, sizeof *copy->launches);
    if (!copy->launches) return status_fail(status, STATUS_MACHINE, "out of memory while choosing plans");
    copy->count = plan->count;
    memcpy(copy->launches, plan->launches, plan->count * sizeof *copy->launches);
    return true;
}

/* The plan in this form; the caller frees it. */
static bool make_form(const struct build *build, size_t p, const struct form *form, struct device_plan *made,
                      struct status *status)
{
    struct device_tactic *tactics = calloc(DEVICE_MOST_TACTICS, sizeof *tactics);
    *made = (struct device_plan){.count = 0};
    if (!tactics) return status_fail(status, STATUS_MACHINE, "out of memory while choosing plans");
    bool ok = copy_plan(plan_of(build, p, form->fusion), made, status);
    for (uint32_t n = 0; ok && form->uniform && n < made->count; n++) {
        struct device_launch *launch = &made->launches[n];
        if (launch->op != OP_MATMUL) continue;
        int tactic_count = launch_tactics(build, launch, tactics);
        for (int t = 0; t < tactic_count; t++)
            if (same_tunables(&form->tactic, &tactics[t])) {
                put_tactic(build, launch, &tactics[t]);
                break;
            }
    }
    free(tactics);
    return ok;
}

/* ---- the tactics of a plan ---- */

/* Problems whose tactic is chosen by the time of the whole plan. A chunk's attention is not among them: it is long, and what
 * it does to others little. -1: more than a record can name. */
static int find_problems(const struct device_plan *plan, uint32_t problems[MAX_PROBLEMS])
{
    int count = 0;
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct device_launch *launch = &plan->launches[n];
        bool known = launch->problem == PLAN_NO_TACTIC || launch->op == OP_ATTENTION;
        for (int i = 0; !known && i < count; i++) known = problems[i] == launch->problem;
        if (known) continue;
        if (count == MAX_PROBLEMS) return -1;
        problems[count++] = launch->problem;
    }
    return count;
}

static const struct device_launch *first_launch(const struct device_plan *plan, uint32_t problem)
{
    uint32_t n = 0;
    while (plan->launches[n].problem != problem) n++;
    return &plan->launches[n];
}

static void set_tactic(const struct build *build, struct device_plan *plan, uint32_t problem,
                       const struct device_tactic *tactic)
{
    for (uint32_t n = 0; n < plan->count; n++)
        if (plan->launches[n].problem == problem) put_tactic(build, &plan->launches[n], tactic);
}

/* ---- records ---- */

uint64_t hash_device_plan(const struct device_plan *plan, uint64_t hash)
{
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct device_tactic *tactic = &plan->launches[n].tactic;
        const uint64_t parts[3] = {hash, hash64(tactic->params, sizeof tactic->params),
                                   hash64(tactic->kernel->name, strlen(tactic->kernel->name))};
        hash = hash64(parts, sizeof parts);
    }
    return hash;
}

/* Everything that the times depend on: the kernels of both fusions with all parameters, in order. */
static bool make_key(const struct build *build, size_t p, char key[TUNING_KEY_BYTES], struct status *status)
{
    const struct device_plan *plan = &build->cuda.plans[p];
    uint64_t hash = hash_device_plan(&build->cuda.alternatives[p], hash_device_plan(plan, 0));
    char code[TUNE_CUDA_CODE_BYTES], gpus[TUNE_CUDA_GPUS_BYTES];
    tune_cuda_code(code);
    tune_cuda_gpus(build, gpus);
    int length = snprintf(key, TUNING_KEY_BYTES, "%s; %s of %" PRIu32 " rows; plans %016" PRIx64 "; %s", gpus,
                          plan->header.kind == PLAN_DECODE ? "decode" : "prefill", plan->header.rows, hash, code);
    return length < TUNING_KEY_BYTES || status_fail(status, STATUS_INTERNAL, "a tuning key is too long");
}

/* The fusion, then for each problem of the plan the kernel and the name of its tunables. */
static void describe(int fusion, const struct device_plan *plan, struct tuning_record *record)
{
    uint32_t problems[MAX_PROBLEMS];
    int count = find_problems(plan, problems);
    snprintf(record->values[0].name, TUNING_NAME_BYTES, "%s", fusion_names[fusion]);
    record->values[0].value = 0;
    record->value_count = 1 + count;
    for (int i = 0; i < count; i++) {
        const struct device_tactic *tactic = &first_launch(plan, problems[i])->tactic;
        snprintf(record->values[i + 1].name, TUNING_NAME_BYTES, "%s", tactic->kernel->name);
        record->values[i + 1].value = tune_cuda_tunables_name(tactic);
    }
}

static const struct device_tactic *find_named(const struct device_tactic *tactics, int count,
                                              const struct tuning_value *value)
{
    for (int t = 0; t < count; t++)
        if (strcmp(tactics[t].kernel->name, value->name) == 0 && tune_cuda_tunables_name(&tactics[t]) == value->value)
            return &tactics[t];
    return NULL;
}

/* Makes the plan that a record names; count 0 if it names none. */
static bool make_recorded(const struct build *build, size_t p, const struct tuning_record *record,
                          struct device_plan *made, struct status *status)
{
    uint32_t problems[MAX_PROBLEMS];
    int fusion = record->value_count > 0 && strcmp(record->values[0].name, fusion_names[1]) == 0;
    const struct device_plan *plan = plan_of(build, p, fusion);
    *made = (struct device_plan){.count = 0};
    if (record->value_count < 1 || plan->count == 0 || strcmp(record->values[0].name, fusion_names[fusion]) != 0 ||
        record->value_count != 1 + find_problems(plan, problems))
        return true;
    struct device_tactic *tactics = calloc(DEVICE_MOST_TACTICS, sizeof *tactics);
    if (!tactics) return status_fail(status, STATUS_MACHINE, "out of memory while choosing plans");
    bool ok = copy_plan(plan, made, status), named = ok;
    for (int i = 0; named && i < record->value_count - 1; i++) {
        int count = launch_tactics(build, first_launch(plan, problems[i]), tactics);
        const struct device_tactic *tactic = find_named(tactics, count, &record->values[i + 1]);
        named = tactic != NULL;
        if (named) set_tactic(build, made, problems[i], tactic);
    }
    free(tactics);
    if (!named) device_plan_free(made);
    return ok;
}

/* A tactic that won no race, but serves the plan better, has a record of its own, which the launches name. */
static void record_tactic(struct build *build, struct device_plan *plan, uint32_t problem)
{
    const struct tuned_problem *tuned = &build->cuda.problems[problem];
    const struct device_tactic *tactic = &first_launch(plan, problem)->tactic;
    int l = 0;
    while (l < tuned->shortlist_count && !same_tunables(&tuned->shortlist[l].tactic, tactic)) l++;
    if (same_tunables(&tuned->best, tactic) || l == tuned->shortlist_count) return;
    for (uint32_t n = 0; n < plan->count; n++)
        if (plan->launches[n].problem == problem) plan->launches[n].record = (uint32_t)build->tactics.count;
    build->tactics.records[build->tactics.count++] = tuned->shortlist[l].record;
}

/* ---- timing ---- */

static void free_plans(struct device_plan *plans, int count)
{
    for (int f = 0; f < count; f++) device_plan_free(&plans[f]);
}

static int fastest(const struct plan_time *times, int count)
{
    int best = 0;
    for (int f = 1; f < count; f++)
        if (times[f].us < times[best].us) best = f;
    return best;
}

/* More than noise. */
static bool is_faster(const struct plan_time *time, const struct plan_time *than)
{
    double noise = (time->spread_us + than->spread_us) / 2, least = least_gain * than->us;
    return time->us < than->us - (noise > least ? noise : least);
}

/* The best form of the plan: *made, *fusion. One alone is not timed. */
static bool choose_form(struct build *build, size_t p, struct device_plan *made, int *fusion, struct status *status)
{
    struct form forms[MAX_FORMS];
    struct device_plan plans[MAX_FORMS];
    struct plan_time times[MAX_FORMS];
    int count = 0, fusions = build->cuda.alternatives[p].count > 0 ? 2 : 1, ready = 0;
    for (int f = 0; f < fusions; f++) forms[count++] = (struct form){.fusion = f};
    bool ok = true;
    for (int f = 0; ok && fusions > 1 && f < fusions; f++) ok = add_uniform_forms(build, p, f, forms, &count, status);
    for (; ok && ready < count; ready += ok) ok = make_form(build, p, &forms[ready], &plans[ready], status);
    if (ok && count > 1) ok = time_device_plans(build, plans, count, false, times, NULL, NULL, status);
    if (ok) {
        int best = count > 1 ? fastest(times, count) : 0;
        *fusion = forms[best].fusion;
        *made = plans[best];
        plans[best] = (struct device_plan){.count = 0};
    }
    free_plans(plans, ready);
    return ok;
}

/* Puts the tactic of the problem's shortlist into the plan with which the whole plan is fastest. */
static bool try_shortlist(struct build *build, struct device_plan *plan, uint32_t problem, bool *moved, uint32_t *tried,
                          struct status *status)
{
    const struct tuned_problem *tuned = &build->cuda.problems[problem];
    const struct device_launch *launch = first_launch(plan, problem);
    struct device_plan plans[SHORTLIST + 1];
    struct plan_time times[SHORTLIST + 1];
    int made = 0;
    bool ok = copy_plan(plan, &plans[made++], status); /* timed again beside the others */
    for (int t = 0; ok && t < tuned->shortlist_count; t++) {
        const struct shortlisted *listed = &tuned->shortlist[t];
        /* Attention's race weighs long contexts otherwise than a plan does; a collective's knows no link. */
        bool slow = launch->op != OP_ROPE_ATTENTION && !plan_op_is_collective(launch->op) &&
                    listed->record.median_us > hopeless * tuned->shortlist[0].record.median_us;
        if (slow || same_tunables(&launch->tactic, &listed->tactic)) continue;
        ok = copy_plan(plan, &plans[made], status);
        if (ok) set_tactic(build, &plans[made++], problem, &listed->tactic);
    }
    if (ok && made > 1) {
        ok = time_device_plans(build, plans, made, launch->op == OP_ROPE_ATTENTION, times, NULL, NULL, status);
        int best = ok ? fastest(times, made) : 0;
        if (best > 0 && is_faster(&times[best], &times[0])) {
            struct device_plan better = plans[best];
            plans[best] = *plan;
            *plan = better;
            *moved = true;
        }
        *tried += (uint32_t)made - 1;
    }
    free_plans(plans, made);
    return ok;
}

/* The problems of a plan and which of them are to be tried: all once, then those beside one whose tactic has changed. */
struct descent {
    uint32_t problems[MAX_PROBLEMS];
    int count;
    bool due[MAX_PROBLEMS];
};

static int find_number(const struct descent *descent, uint32_t problem)
{
    int i = 0;
    while (i < descent->count && descent->problems[i] != problem) i++;
    return i;
}

/* Whether another tactic of it could show in the time of the whole plan. */
static bool can_matter(const struct build *build, const struct device_plan *plan, uint32_t problem)
{
    double own = 0, all = 0;
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct device_launch *launch = &plan->launches[n];
        if (launch->problem == PLAN_NO_TACTIC) continue;
        const struct tuned_problem *tuned = &build->cuda.problems[launch->problem];
        double us = tuned->shortlist_count > 0 ? tuned->shortlist[0].record.median_us : 0;
        all += us;
        if (launch->problem == problem) own += us;
    }
    return own >= least_share * all;
}

/* Launches without a choice between the two do not part them. */
static void mark_neighbours(struct descent *descent, const struct device_plan *plan, int changed)
{
    int previous = descent->count;
    for (uint32_t n = 0; n < plan->count; n++) {
        int i = find_number(descent, plan->launches[n].problem);
        if (i == descent->count) continue;
        if (i == changed && previous < descent->count && previous != i) descent->due[previous] = true;
        if (previous == changed && previous != i) descent->due[i] = true;
        previous = i;
    }
}

static bool try_all_due(struct build *build, struct device_plan *plan, struct descent *descent, bool *moved,
                        uint32_t *tried, struct status *status)
{
    bool ok = true;
    for (int i = 0; ok && i < descent->count; i++) {
        bool changed = false;
        if (!descent->due[i]) continue;
        descent->due[i] = false;
        if (!can_matter(build, plan, descent->problems[i])) continue;
        ok = try_shortlist(build, plan, descent->problems[i], &changed, tried, status);
        if (changed) mark_neighbours(descent, plan, i);
        *moved |= changed;
    }
    return ok;
}

/* One problem after the other, some rounds of it. A race measures a kernel behind itself; what it does to its neighbours,
 * only the plan shows. What comes out must beat what went in once more, side by side. */
static bool descend(struct build *build, struct device_plan *plan, double *us, int rounds, uint32_t *tried,
                    struct status *status)
{
    struct descent descent;
    struct device_plan ends[2] = {{.count = 0}, {.count = 0}}; /* before, after */
    struct plan_time times[2];
    bool moved = false, ok = copy_plan(plan, &ends[0], status);
    descent.count = find_problems(plan, descent.problems);
    for (int i = 0; i < descent.count; i++) descent.due[i] = true;
    for (int round = 0; ok && round < rounds; round++) ok = try_all_due(build, plan, &descent, &moved, tried, status);
    if (ok && moved) {
        ok = copy_plan(plan, &ends[1], status) &&
             time_device_plans(build, ends, 2, plan->header.kind == PLAN_DECODE, times, NULL, NULL, status);
        if (ok && times[0].us < times[1].us) {
            struct device_plan before = ends[0];
            ends[0] = *plan;
            *plan = before;
        }
    }
    free_plans(ends, 2);
    struct plan_time final = {0};
    ok = ok && time_device_plans(build, plan, 1, false, &final, NULL, NULL, status);
    *us = final.us;
    return ok;
}

static int count_rounds(const struct device_plan *plan, enum tune_level level)
{
    if (plan->header.kind != PLAN_DECODE) return CHUNK_ROUNDS;
    return level == TUNE_FULL ? FULL_ROUNDS : QUICK_ROUNDS;
}

/* ---- all of it ---- */

/* Not `worth`: a record is heeded, but nothing is measured. */
static bool choose(struct build *build, size_t p, enum tune_level level, bool worth, struct status *status)
{
    struct device_plan made = {.count = 0};
    struct tuning_record record = {.candidates = 1};
    uint32_t problems[MAX_PROBLEMS];
    bool is_new = false;
    for (int fusion = 0; fusion < 2; fusion++)
        if (find_problems(plan_of(build, p, fusion), problems) < 0)
            return status_fail(status, STATUS_INTERNAL, "plan %zu: more than %d problems", p, MAX_PROBLEMS);
    if (!make_key(build, p, record.key, status)) return false;
    const struct tuning_record *known = build->cache_open ? tuning_cache_find(&build->cache, record.key) : NULL;
    if (known && !tune_cuda_good_enough(known, level)) known = NULL;
    if (known && !make_recorded(build, p, known, &made, status)) return false;
    if (made.count == 0 && !worth) return true;
    if (made.count > 0) {
        record = *known;
    } else {
        double us = 0;
        int fusion = 0;
        bool measure = level != TUNE_OFF && build->cuda.weights;
        if (!measure && !copy_plan(&build->cuda.plans[p], &made, status)) return false;
        if (measure && (!choose_form(build, p, &made, &fusion, status) ||
                        !descend(build, &made, &us, count_rounds(&made, level), &record.candidates, status))) {
            device_plan_free(&made);
            return false;
        }
        describe(fusion, &made, &record);
        record.median_us = us;
        snprintf(record.level, sizeof record.level, "%s", tune_level_name(measure ? level : TUNE_OFF));
        is_new = measure;
    }
    int count = find_problems(&made, problems);
    for (int i = 0; i < count; i++) record_tactic(build, &made, problems[i]);
    build->tactics.records[build->tactics.count++] = record;
    if (is_new) tune_cuda_save(build, &record);
    build->tactics.measured += is_new;
    device_plan_free(&build->cuda.plans[p]);
    device_plan_free(&build->cuda.alternatives[p]);
    build->cuda.plans[p] = made;
    return true;
}

/* A chunk's launches are long: what they do to each other is little, and takes long to measure. */
static bool is_worth_choosing(const struct build *build, size_t p, enum tune_level level)
{
    return build->plans[p].header.kind == PLAN_DECODE || level == TUNE_FULL || build->cuda.alternatives[p].count > 0;
}

/* Microseconds that the choice takes where the cache does not know it, for estimates of the time left: replays of the plan in
 * every form and with most of the shortlists, some of them at long contexts. */
static uint64_t expected_us(const struct build *build, size_t p, enum tune_level level)
{
    const double compile_us = 1e6, replays_each = 8, tried_each = SHORTLIST, long_replays = 250;
    const struct device_plan *plan = &build->cuda.plans[p];
    uint32_t problems[MAX_PROBLEMS];
    int count = find_problems(plan, problems);
    double us = 0;
    if (!is_worth_choosing(build, p, level) || level == TUNE_OFF || !build->cuda.weights) return 1;
    for (uint32_t n = 0; n < plan->count; n++)
        if (plan->launches[n].problem != PLAN_NO_TACTIC) {
            const struct tuned_problem *tuned = &build->cuda.problems[plan->launches[n].problem];
            us += tuned->shortlist_count > 0 ? tuned->shortlist[0].record.median_us : 0;
        }
    double replays = replays_each * tried_each * (count > 0 ? count : 1);
    if (plan->header.kind == PLAN_DECODE) replays += long_replays;
    return (uint64_t)(compile_us + replays * us);
}

bool choose_plans_cuda(struct build *build, enum tune_level level, struct status *status)
{
    uint64_t total_us = 0, done_us = 0;
    for (size_t p = 0; p < build->plan_count; p++) total_us += expected_us(build, p, level);
    if (level != TUNE_OFF && build->cuda.weights) progress_stage(&build->progress, "plans");
    for (size_t p = 0; p < build->plan_count; p++) {
        done_us += expected_us(build, p, level); /* of the plan as it was */
        if (!choose(build, p, level, is_worth_choosing(build, p, level), status)) return false;
        progress_update(&build->progress, done_us, total_us, NULL);
    }
    return true;
}
