/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/end_to_end.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/matmul/matmul_device.h"
#include "tuner/cuda/bench.h"
#include "tuner/cuda/pairs.h"
#include "tuner/cuda/plan_timer.h"
#include "tuner/cuda/starts.h"

enum {
    MAX_FORMS = 24,
    UNIFORM_FORMS = 3, /* of each fusion */
    QUICK_ROUNDS = 2,  /* passes over the problems of a decode plan */
    FULL_ROUNDS = 3,
    CHUNK_ROUNDS = 1, /* passes for a prefill plan: its launches are long and influence each other little */
};
static const char *const fusion_names[PLAN_VARIANTS] = {"plan", "alternative"}; /* in records */
static const double least_gain = 0.002;                                         /* less is noise */
/* Smallest share of the time of all launches, by the race results. A problem with a smaller share, made a quarter
 * faster, gains less than least_gain; an example is the single row of the last layer in a chunk of many. */
static const double least_share = 4 * 0.002;
static const double hopeless = 1.25;      /* a tactic slower than this multiple of the race winner's time is not tried
                                           * in a plan */
static const double least_coverage = 0.7; /* share of the bytes of all matmuls that one choice of tunables must serve */

/* A form of a plan: its fusion, and optionally one choice of tunables for all matmuls. */
struct form {
    int fusion;   /* index into fusion_names */
    bool uniform; /* all matmuls for which they are legal get the tunables of `tactic` */
    struct device_tactic tactic;
    double coverage;
};

/* ---- tunables for all ---- */

/* The record with the problem's number describes the race winner only; any other tactic gets none here. */
static void put_tactic(const struct tune_context *context, struct device_launch *launch,
                       const struct device_tactic *tactic)
{
    bool won = launch->problem != PLAN_NO_TACTIC &&
               device_tactic_same_tunables(&context->problems[launch->problem].best, tactic);
    launch->record = won ? launch->problem : PLAN_NO_TACTIC;
    launch->tactic = *tactic;
}

static int launch_tactics(const struct tune_context *context, const struct device_launch *launch,
                          struct device_tactic *tactics)
{
    return device_tactics(launch->op, launch->tactic.params, &context->rig.gpus->devices[0].facts, tactics,
                          DEVICE_MOST_TACTICS);
}

static double matmul_bytes(const struct device_launch *launch)
{
    uint64_t bytes, flops;
    matmul_device_cost(launch->tactic.params, 0, &bytes, &flops);
    return (double)bytes;
}

/* Adds forms with the tunables that serve the most bytes of the plan's matmuls, in the order of the candidates. */
static bool add_uniform_forms(const struct tune_context *context, const struct plan_variants *variants, int fusion,
                              struct form *forms, int *count, struct status *status)
{
    enum { MAX_CHOICES = 256 };
    const struct device_plan *plan = &variants->plans[fusion];
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
        int tactic_count = launch_tactics(context, launch, tactics);
        for (int t = 0; t < tactic_count; t++) {
            int c = 0;
            while (c < found && !device_tactic_same_tunables(&choices[c].tactic, &tactics[t])) c++;
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
    return ok || status_fail(status, STATUS_MACHINE, "out of memory while tuning whole plans");
}

/* The plan in this form; the caller frees it. */
static bool make_form(const struct tune_context *context, const struct plan_variants *variants, const struct form *form,
                      struct device_plan *made, struct status *status)
{
    struct device_tactic *tactics = calloc(DEVICE_MOST_TACTICS, sizeof *tactics);
    *made = (struct device_plan){.count = 0};
    if (!tactics) return status_fail(status, STATUS_MACHINE, "out of memory while tuning whole plans");
    bool ok = device_plan_copy(&variants->plans[form->fusion], made, status);
    for (uint32_t n = 0; ok && form->uniform && n < made->count; n++) {
        struct device_launch *launch = &made->launches[n];
        if (launch->op != OP_MATMUL) continue;
        int tactic_count = launch_tactics(context, launch, tactics);
        for (int t = 0; t < tactic_count; t++)
            if (device_tactic_same_tunables(&form->tactic, &tactics[t])) {
                put_tactic(context, launch, &tactics[t]);
                break;
            }
    }
    free(tactics);
    return ok;
}

/* ---- the tactics of a plan ---- */

/* Whether launch n is the first of a problem whose tactic is chosen by the time of the whole plan. Excludes the
 * attention of a chunk: it is long and influences its neighbours little. */
static bool begins_problem(const struct device_plan *plan, uint32_t n)
{
    const struct device_launch *launches = plan->launches;
    uint32_t first = 0;
    if (launches[n].problem == PLAN_NO_TACTIC || launches[n].op == OP_ATTENTION) return false;
    while (launches[first].problem != launches[n].problem) first++;
    return first == n;
}

static int count_problems(const struct device_plan *plan)
{
    int count = 0;
    for (uint32_t n = 0; n < plan->count; n++) count += begins_problem(plan, n);
    return count;
}

static const struct device_launch *first_launch(const struct device_plan *plan, uint32_t problem)
{
    uint32_t n = 0;
    while (plan->launches[n].problem != problem) n++;
    return &plan->launches[n];
}

static void set_tactic(const struct tune_context *context, struct device_plan *plan, uint32_t problem,
                       const struct device_tactic *tactic)
{
    for (uint32_t n = 0; n < plan->count; n++)
        if (plan->launches[n].problem == problem) put_tactic(context, &plan->launches[n], tactic);
}

/* ---- records ---- */

/* Text with everything that the times depend on: the kernels of both fusions with all parameters, in order. */
static bool make_key(const struct tune_context *context, const struct plan_variants *variants,
                     char key[TUNING_KEY_BYTES], struct status *status)
{
    uint64_t hash = 0;
    for (uint32_t v = 0; v < PLAN_VARIANTS; v++)
        if (v < variants->count) hash = device_plan_hash(&variants->plans[v], hash);
    return key_of_plan(&context->keys, &variants->plans[0].header, "", hash, key, status);
}

/* Values of a record: the fusion, then for each problem of the plan the kernel and the name of its tunables; 1 +
 * count_problems values. The caller frees them. */
static struct tuning_value *describe(int fusion, const struct device_plan *plan)
{
    struct tuning_value *values = calloc(1 + (size_t)count_problems(plan), sizeof *values), *value = values;
    if (!values) return NULL;
    snprintf(value++->name, TUNING_NAME_BYTES, "%s", fusion_names[fusion]);
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct device_tactic *tactic = &plan->launches[n].tactic;
        if (!begins_problem(plan, n)) continue;
        snprintf(value->name, TUNING_NAME_BYTES, "%s", tactic->kernel->name);
        value++->value = tunables_name(tactic);
    }
    return values;
}

static const struct device_tactic *find_named(const struct device_tactic *tactics, int count,
                                              const struct tuning_value *value)
{
    for (int t = 0; t < count; t++)
        if (strcmp(tactics[t].kernel->name, value->name) == 0 && tunables_name(&tactics[t]) == value->value)
            return &tactics[t];
    return NULL;
}

/* Builds the plan that a record describes, and sets *fusion; count 0 if the record describes none. */
static bool make_recorded(const struct tune_context *context, const struct plan_variants *variants,
                          const struct tuning_record *record, struct device_plan *made, int *fusion,
                          struct status *status)
{
    *fusion = record->value_count > 0 && strcmp(record->values[0].name, fusion_names[1]) == 0;
    *made = (struct device_plan){.count = 0};
    if (record->value_count < 1 || (uint32_t)*fusion >= variants->count ||
        strcmp(record->values[0].name, fusion_names[*fusion]) != 0)
        return true;
    const struct device_plan *plan = &variants->plans[*fusion];
    struct tuning_value *values = tactics_long_values(context->tactics, record, 1 + count_problems(plan)),
                        *value = values;
    if (!values) return true;
    struct device_tactic *tactics = calloc(DEVICE_MOST_TACTICS, sizeof *tactics);
    bool ok = tactics ? device_plan_copy(plan, made, status)
                      : status_fail(status, STATUS_MACHINE, "out of memory while tuning whole plans");
    bool named = ok;
    for (uint32_t n = 0; named && n < plan->count; n++) {
        if (!begins_problem(plan, n)) continue;
        int count = launch_tactics(context, &plan->launches[n], tactics);
        const struct device_tactic *tactic = find_named(tactics, count, ++value);
        named = tactic != NULL;
        if (named) set_tactic(context, made, plan->launches[n].problem, tactic);
    }
    free(tactics);
    free(values);
    if (!named) device_plan_free(made);
    return ok;
}

/* A tactic that won no race but makes the plan faster gets a record of its own, which the launches name. */
static bool record_tactic(struct tune_context *context, struct device_plan *plan, uint32_t problem,
                          struct status *status)
{
    const struct tuned_problem *tuned = &context->problems[problem];
    const struct device_tactic *tactic = &first_launch(plan, problem)->tactic;
    int l = 0;
    while (l < tuned->shortlist_count && !device_tactic_same_tunables(&tuned->shortlist[l].tactic, tactic)) l++;
    if (device_tactic_same_tunables(&tuned->best, tactic) || l == tuned->shortlist_count) return true;
    for (uint32_t n = 0; n < plan->count; n++)
        if (plan->launches[n].problem == problem) plan->launches[n].record = (uint32_t)context->tactics->count;
    return tactics_add(context->tactics, &tuned->shortlist[l].record, status);
}

/* ---- timing ---- */

enum { MOST_TRIED = 1 + SHORTLIST }; /* plans that are timed together */

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

static bool race_plans(struct tune_context *context, const struct device_plan *plans, int count, bool long_contexts,
                       struct plan_time *times, struct status *status)
{
    return plan_timer_race(&context->rig, context->compiler, plans, count, long_contexts, times, NULL, NULL, status);
}

/* Start plans of the search, fastest first. */
struct search {
    struct device_plan plans[MOST_STARTS]; /* owned */
    int fusions[MOST_STARTS];
    int count;
};

static bool time_forms(struct tune_context *context, const struct device_plan *plans, const struct form *forms,
                       int count, struct form_time *known, struct status *status)
{
    struct plan_time times[MAX_FORMS];
    if (!race_plans(context, plans, count, false, times, status)) return false;
    for (int f = 0; f < count; f++) known[f] = (struct form_time){forms[f].fusion, forms[f].uniform, times[f].us};
    return true;
}

/* All forms of a plan, made; *count of both. The caller frees the plans. */
static bool make_forms(const struct tune_context *context, const struct plan_variants *variants, struct form *forms,
                       struct device_plan *plans, int *count, struct status *status)
{
    const int fusions = (int)variants->count;
    int listed = 0;
    bool ok = true;
    *count = 0;
    for (int f = 0; f < fusions; f++) forms[listed++] = (struct form){.fusion = f};
    for (int f = 0; ok && fusions > 1 && f < fusions; f++)
        ok = add_uniform_forms(context, variants, f, forms, &listed, status);
    for (; ok && *count < listed; *count += ok)
        ok = make_form(context, variants, &forms[*count], &plans[*count], status);
    return ok;
}

/* A plan with a single form is not timed. The search for a chunk starts at its fastest form only: its launches
 * influence each other little. */
static bool begin_search(struct tune_context *context, const struct plan_variants *variants, struct search *search,
                         struct status *status)
{
    struct form forms[MAX_FORMS];
    struct form_time known[MAX_FORMS] = {{0}};
    struct device_plan plans[MAX_FORMS];
    size_t starts[MOST_STARTS], most = variants->plans[0].header.kind == PLAN_DECODE ? MOST_STARTS : 1;
    int count;
    bool ok = make_forms(context, variants, forms, plans, &count, status);
    if (ok && count > 1) ok = time_forms(context, plans, forms, count, known, status);
    search->count = ok ? (int)choose_starts(known, (size_t)count, most, starts) : 0;
    for (int s = 0; s < search->count; s++) {
        search->fusions[s] = forms[starts[s]].fusion;
        search->plans[s] = plans[starts[s]];
        plans[starts[s]] = (struct device_plan){.count = 0};
    }
    free_plans(plans, count);
    return ok;
}

/* Times all plans, of which the first is `plan`, which becomes the fastest. */
static bool take_fastest(struct tune_context *context, struct device_plan *plan, struct device_plan *plans, int count,
                         bool long_contexts, bool *moved, uint32_t *tried, struct status *status)
{
    struct plan_time times[MOST_TRIED];
    if (!race_plans(context, plans, count, long_contexts, times, status)) return false;
    const int best = fastest(times, count);
    if (best > 0 && is_faster(&times[best], &times[0])) {
        struct device_plan better = plans[best];
        plans[best] = *plan;
        *plan = better;
        *moved = true;
    }
    *tried += (uint32_t)count - 1;
    return true;
}

/* Gives the problem the tactic of its shortlist with which the whole plan is fastest. */
static bool try_shortlist(struct tune_context *context, struct device_plan *plan, uint32_t problem, bool *moved,
                          uint32_t *tried, struct status *status)
{
    const struct tuned_problem *tuned = &context->problems[problem];
    const struct device_launch *launch = first_launch(plan, problem);
    struct device_plan plans[MOST_TRIED];
    int made = 0;
    bool ok = device_plan_copy(plan, &plans[made++], status); /* timed again together with the others */
    for (int t = 0; ok && t < tuned->shortlist_count; t++) {
        const struct shortlisted *listed = &tuned->shortlist[t];
        bool slow = !bench_says_little(launch->op) &&
                    listed->record.median_us > hopeless * tuned->shortlist[0].record.median_us;
        if (slow || device_tactic_same_tunables(&launch->tactic, &listed->tactic)) continue;
        ok = device_plan_copy(plan, &plans[made], status);
        if (ok) set_tactic(context, &plans[made++], problem, &listed->tactic);
    }
    if (ok && made > 1)
        ok = take_fastest(context, plan, plans, made, bench_reads_context(launch->op), moved, tried, status);
    free_plans(plans, made);
    return ok;
}

/* The problem of the launch that follows one of `problem` and pairs with it (pairs.h); PLAN_NO_TACTIC: there is none. */
static uint32_t find_partner(const struct device_plan *plan, uint32_t problem)
{
    for (uint32_t n = 0; n + 1 < plan->count; n++) {
        const struct device_launch *launch = &plan->launches[n], *next = launch + 1;
        if (launch->problem == problem && begins_pair(launch->op, launch->tactic.params) &&
            ends_pair(next->op, next->tactic.params))
            return next->problem;
    }
    return PLAN_NO_TACTIC;
}

/* Gives a problem and its partner the pair of tactics with which the whole plan is fastest. */
static bool try_pairs(struct tune_context *context, struct device_plan *plan, uint32_t problem, uint32_t partner,
                      bool *moved, uint32_t *tried, struct status *status)
{
    const struct tuned_problem *tuned = &context->problems[problem], *other = &context->problems[partner];
    struct device_plan plans[MOST_TRIED];
    struct tactic_pair pairs[MOST_PAIRS];
    const int count = choose_pairs(tuned, other, &context->rig.gpus->devices[0].facts, pairs);
    int made = 0;
    bool ok = device_plan_copy(plan, &plans[made++], status);
    for (int i = 0; ok && i < count; i++) {
        ok = device_plan_copy(plan, &plans[made], status);
        if (!ok) break;
        set_tactic(context, &plans[made], problem, &tuned->shortlist[pairs[i].first].tactic);
        set_tactic(context, &plans[made++], partner, &other->shortlist[pairs[i].second].tactic);
    }
    if (ok && made > 1) ok = take_fastest(context, plan, plans, made, false, moved, tried, status);
    free_plans(plans, made);
    return ok;
}

/* The first launch of each problem, and the problems to try: in the first round all, later those next to a problem
 * whose tactic has changed. */
struct descent {
    int count;
    struct {
        uint32_t number;
        bool due;
    } * problems; /* owned */
};

static bool begin_descent(struct descent *descent, const struct device_plan *plan, struct status *status)
{
    descent->count = 0;
    descent->problems = calloc((size_t)plan->count + 1, sizeof *descent->problems);
    if (!descent->problems) return status_fail(status, STATUS_MACHINE, "out of memory while tuning whole plans");
    for (uint32_t n = 0; n < plan->count; n++) {
        if (!begins_problem(plan, n)) continue;
        descent->problems[descent->count].due = true;
        descent->problems[descent->count++].number = plan->launches[n].problem;
    }
    return true;
}

static int find_number(const struct descent *descent, uint32_t problem)
{
    int i = 0;
    while (i < descent->count && descent->problems[i].number != problem) i++;
    return i;
}

/* Race time of the winner of the launch's problem; 0: unknown. */
static double raced_us(const struct tune_context *context, const struct device_launch *launch)
{
    if (launch->problem == PLAN_NO_TACTIC) return 0;
    const struct tuned_problem *tuned = &context->problems[launch->problem];
    return tuned->shortlist_count > 0 ? tuned->shortlist[0].record.median_us : 0;
}

/* Whether another tactic of the problem could change the plan's time measurably. */
static bool can_matter(const struct tune_context *context, const struct device_plan *plan, uint32_t problem)
{
    double own = 0, all = 0;
    for (uint32_t n = 0; n < plan->count; n++) {
        double us = raced_us(context, &plan->launches[n]);
        all += us;
        if (plan->launches[n].problem == problem) own += us;
    }
    return own >= least_share * all;
}

/* Launches without a choice do not separate their neighbours. */
static void mark_neighbours(struct descent *descent, const struct device_plan *plan, int changed)
{
    int previous = descent->count;
    for (uint32_t n = 0; n < plan->count; n++) {
        int i = find_number(descent, plan->launches[n].problem);
        if (i == descent->count) continue;
        if (i == changed && previous < descent->count && previous != i) descent->problems[previous].due = true;
        if (previous == changed && previous != i) descent->problems[i].due = true;
        previous = i;
    }
}

static bool try_all_due(struct tune_context *context, struct device_plan *plan, struct descent *descent, bool *moved,
                        uint32_t *tried, struct status *status)
{
    bool ok = true;
    for (int i = 0; ok && i < descent->count; i++) {
        bool changed = false;
        if (!descent->problems[i].due) continue;
        descent->problems[i].due = false;
        if (!can_matter(context, plan, descent->problems[i].number)) continue;
        const uint32_t number = descent->problems[i].number, partner = find_partner(plan, number);
        ok = try_shortlist(context, plan, number, &changed, tried, status);
        if (ok && partner != PLAN_NO_TACTIC) ok = try_pairs(context, plan, number, partner, &changed, tried, status);
        if (changed) mark_neighbours(descent, plan, i);
        if (changed && partner != PLAN_NO_TACTIC) mark_neighbours(descent, plan, find_number(descent, partner));
        *moved |= changed;
    }
    return ok;
}

/* Coordinate descent: one problem at a time, in several rounds. A race measures copies of one kernel in sequence; its
 * effect on other kernels shows in the plan only. The result must beat the start plan once more, timed together. */
static bool descend(struct tune_context *context, struct device_plan *plan, int rounds, uint32_t *tried,
                    struct status *status)
{
    struct descent descent = {.count = 0};
    struct device_plan ends[2] = {{.count = 0}, {.count = 0}}; /* before, after */
    struct plan_time times[2];
    bool moved = false, ok = begin_descent(&descent, plan, status) && device_plan_copy(plan, &ends[0], status);
    for (int round = 0; ok && round < rounds; round++) ok = try_all_due(context, plan, &descent, &moved, tried, status);
    if (ok && moved) {
        ok = device_plan_copy(plan, &ends[1], status) &&
             race_plans(context, ends, 2, plan->header.kind == PLAN_DECODE, times, status);
        if (ok && times[0].us < times[1].us) {
            struct device_plan before = ends[0];
            ends[0] = *plan;
            *plan = before;
        }
    }
    free_plans(ends, 2);
    free(descent.problems);
    return ok;
}

static int count_rounds(const struct device_plan *plan, enum tune_level level)
{
    if (plan->header.kind != PLAN_DECODE) return CHUNK_ROUNDS;
    return level == TUNE_FULL ? FULL_ROUNDS : QUICK_ROUNDS;
}

/* Fastest plan over all starts, its replay time, and the variant from which it was made. */
static bool search_plan(struct tune_context *context, const struct plan_variants *variants, struct device_plan *made,
                        int *fusion, struct tuning_record *record, struct status *status)
{
    struct search search = {.count = 0};
    struct plan_time times[MOST_STARTS], final = {0};
    bool ok = begin_search(context, variants, &search, status);
    const int rounds = count_rounds(&variants->plans[0], context->level);
    for (int s = 0; ok && s < search.count; s++)
        ok = descend(context, &search.plans[s], rounds, &record->candidates, status);
    if (ok && search.count > 1) ok = race_plans(context, search.plans, search.count, true, times, status);
    if (ok) {
        int best = search.count > 1 ? fastest(times, search.count) : 0;
        *fusion = search.fusions[best];
        *made = search.plans[best];
        search.plans[best] = (struct device_plan){.count = 0};
        ok = race_plans(context, made, 1, false, &final, status);
        record->median_us = final.us;
    }
    free_plans(search.plans, search.count);
    return ok;
}

/* ---- one plan ---- */

/* The chosen plan with its records. *is_new: it was measured now. count 0: the cache has no record and the plan is not
 * `worth` measuring. */
static bool choose(struct tune_context *context, const struct plan_variants *variants, bool worth,
                   struct device_plan *made, struct tuning_record *record, int *fusion, bool *is_new,
                   struct status *status)
{
    if (!make_key(context, variants, record->key, status)) return false;
    const struct tuning_record *known = tactics_answer(context->tactics, record->key, context->level);
    if (known && !make_recorded(context, variants, known, made, fusion, status)) return false;
    if (made->count > 0) *record = *known;
    if (made->count > 0 || !worth) return true;
    *is_new = context->measures;
    *fusion = 0;
    snprintf(record->level, sizeof record->level, "%s", tune_level_name(*is_new ? context->level : TUNE_OFF));
    if (!*is_new) return device_plan_copy(&variants->plans[0], made, status);
    return search_plan(context, variants, made, fusion, record, status);
}

static bool tune_plan(struct tune_context *context, struct plan_variants *variants, bool worth, struct status *status)
{
    struct device_plan made = {.count = 0};
    struct tuning_record record = {.candidates = 1};
    struct tuning_value *values = NULL;
    int fusion = 0;
    bool is_new = false, ok = choose(context, variants, worth, &made, &record, &fusion, &is_new, status);
    if (!ok || made.count == 0) goto done;
    for (uint32_t n = 0; ok && n < made.count; n++)
        if (begins_problem(&made, n)) ok = record_tactic(context, &made, made.launches[n].problem, status);
    values = describe(fusion, &made);
    if (!values) ok = status_fail(status, STATUS_MACHINE, "out of memory while tuning whole plans");
    ok = ok && tactics_add_long(context->tactics, &record, values, 1 + count_problems(&made), is_new, status);
    context->tactics->measured += is_new;
    plan_variants_free(variants);
    variants->plans[variants->count++] = made;
    made.count = 0, made.launches = NULL;
done:
    free(values);
    device_plan_free(&made);
    return ok;
}

/* Launches of a chunk are long, influence each other little, and take long to measure. */
static bool is_worth_choosing(const struct tune_context *context, const struct plan_variants *variants)
{
    return variants->plans[0].header.kind == PLAN_DECODE || context->level == TUNE_FULL || variants->count > 1;
}

/* Estimated microseconds of the choice if the cache has no record, for the estimate of the time left: replays of the
 * plan in every form and with most of the shortlists, some of them at long contexts. */
static uint64_t expected_us(const struct tune_context *context, const struct plan_variants *variants)
{
    const double compile_us = 1e6, replays_each = 8, tried_each = SHORTLIST, long_replays = 250;
    const struct device_plan *plan = &variants->plans[0];
    int count = count_problems(plan);
    double us = 0;
    if (!is_worth_choosing(context, variants) || !context->measures) return 1;
    for (uint32_t n = 0; n < plan->count; n++) us += raced_us(context, &plan->launches[n]);
    double replays = replays_each * tried_each * (count > 0 ? count : 1);
    if (plan->header.kind == PLAN_DECODE) replays += long_replays;
    return (uint64_t)(compile_us + replays * us);
}

/* Adds the kernels of all forms of a plan that is about to be searched. */
static bool add_kernels(const struct tune_context *context, const struct plan_variants *variants,
                        struct kernel_set *kernels, struct status *status)
{
    struct form forms[MAX_FORMS];
    struct device_plan plans[MAX_FORMS];
    char key[TUNING_KEY_BYTES];
    int count;
    if (!make_key(context, variants, key, status)) return false;
    if (tactics_answer(context->tactics, key, context->level) || !is_worth_choosing(context, variants)) return true;
    bool ok = make_forms(context, variants, forms, plans, &count, status);
    for (int f = 0; ok && f < count; f++) {
        struct plan finished = {0};
        ok = device_plan_finish(&plans[f], &context->rig.gpus->devices[0].facts, kernels, &finished, status);
        plan_free(&finished);
    }
    free_plans(plans, count);
    return ok;
}

/* Those of all plans together: each alone has too few kernels for all threads. */
static bool compile_forms(struct tune_context *context, struct status *status)
{
    struct kernel_set kernels = {0};
    bool ok = true;
    for (size_t p = 0; ok && p < context->plan_count; p++)
        ok = add_kernels(context, &context->plans[p], &kernels, status);
    ok = ok && kernel_set_compile(&kernels, context->compiler, NULL, NULL, status);
    kernel_set_free(&kernels);
    return ok;
}

bool tune_end_to_end(struct tune_context *context, struct status *status)
{
    uint64_t total_us = 0, done_us = 0;
    for (size_t p = 0; p < context->plan_count; p++) total_us += expected_us(context, &context->plans[p]);
    if (context->measures) progress_stage(context->progress, "plans");
    if (context->measures && !compile_forms(context, status)) return false;
    for (size_t p = 0; p < context->plan_count; p++) {
        struct plan_variants *variants = &context->plans[p];
        done_us += expected_us(context, variants); /* time of the original plan */
        if (!tune_plan(context, variants, is_worth_choosing(context, variants), status)) return false;
        progress_update(context->progress, done_us, total_us, NULL);
    }
    return true;
}
