/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/library_plans.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tuner/cuda/library_worth.h"
#include "tuner/cuda/logit_agreement.h"
#include "tuner/cuda/memory.h"
#include "tuner/cuda/nccl_launches.h"
#include "tuner/cuda/plan_timer.h"

/* A gain below this share of a plan's time is noise. library_worth decides whether all gains together justify the
 * library. */
static const double least_gain = 0.01;
/* Tolerance relative to the largest logit. Sums are in another order and rounded to 16 bits between launches. NCCL's
 * plans may round the sum of all ranks, twice a layer, where ours do not, or the reverse: over 32 layers with a random
 * KV cache the difference exceeded 3e-2. A missing or extra term would differ by the size of a logit. */
static const double logit_tolerance = 3e-2, nccl_logit_tolerance = 8e-2;

/* ---- arenas ---- */

static uint64_t largest_projection(const struct gpus *gpus, const struct device_plan *plan)
{
    uint64_t largest = 0;
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct device_launch *launch = &plan->launches[n];
        uint64_t bytes = gpus_have_nccl(gpus) ? nccl_result_bytes(launch) : library_projection_bytes(launch);
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

static uint64_t plan_arena_bytes(const struct gpus *gpus, const struct device_plan *plan)
{
    struct library_space space = library_space_begin(plan->header.arena_bytes, largest_projection(gpus, plan));
    if (gpus_have_nccl(gpus)) library_space_grow(&space, space.workspace);
    for (uint32_t n = 0; n < plan->count; n++) {
        int64_t params[PLAN_MAX_PARAMS];
        const enum plan_library library = library_problem(gpus, &plan->launches[n], params);
        if (library) library_space_grow(&space, space.workspace + library_workspace_bytes(library, params));
    }
    return space.end;
}

uint64_t library_arena_bytes(const struct gpus *gpus, const struct plan_variants *variants)
{
    uint64_t most = 0;
    for (uint32_t v = 0; v < variants->count; v++) {
        uint64_t bytes = plan_arena_bytes(gpus, &variants->plans[v]);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* ---- plans ---- */

static const struct tuned_problem *problem_of(const struct tune_context *context, const struct device_launch *launch)
{
    return launch->problem == PLAN_NO_TACTIC ? NULL : &context->problems[launch->problem];
}

/* Number of launches that replace `site`; 0: it stays. */
static uint32_t replace(const struct tune_context *context, const struct device_launch *site,
                        struct library_space *space, struct device_launch launches[LIBRARY_MOST_LAUNCHES])
{
    const struct tuned_problem *problem = problem_of(context, site);
    if (gpus_have_nccl(context->rig.gpus))
        return plan_op_is_collective(site->op) ? nccl_launches(site, space, launches) : 0;
    if (!problem || !problem->library.kernel) return 0;
    uint32_t count = library_launches(site, &problem->library, space, launches);
    for (uint32_t i = 0; i < count; i++)
        if (launches[i].tactic.kernel->library) launches[i].record = problem->library_record;
    return count;
}

/* The plan with the library's tactics, for several ranks with NCCL's collectives; count 0 if no library tactic won. The
 * caller frees it. */
static bool make_plan(const struct tune_context *context, const struct device_plan *plan, struct device_plan *made,
                      struct status *status)
{
    uint64_t projection = gpus_have_nccl(context->rig.gpus) ? largest_projection(context->rig.gpus, plan) : 0;
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct tuned_problem *problem = problem_of(context, &plan->launches[n]);
        uint64_t bytes = problem && problem->library.kernel ? library_projection_bytes(&plan->launches[n]) : 0;
        if (bytes > projection) projection = bytes;
    }
    struct library_space space = library_space_begin(plan->header.arena_bytes, projection);
    bool any = false;
    *made = (struct device_plan){.header = plan->header,
                                 .vocab_size = plan->vocab_size,
                                 .hidden_size = plan->hidden_size,
                                 .drafts = plan->drafts};
    made->launches = calloc(LIBRARY_MOST_LAUNCHES * (size_t)plan->count + 1, sizeof *made->launches);
    if (!made->launches) return status_fail(status, STATUS_MACHINE, "out of memory while tuning whole plans");
    for (uint32_t n = 0; n < plan->count; n++) {
        uint32_t count = replace(context, &plan->launches[n], &space, made->launches + made->count);
        any = any || count > 0;
        if (count == 0) made->launches[made->count++] = plan->launches[n];
        made->count += count;
    }
    made->header.arena_bytes = space.end;
    if (!any) device_plan_free(made);
    return true;
}

/* ---- timing ---- */

/* Measurements of both variants. */
struct comparison {
    struct plan_time times[2]; /* own kernels, with libraries; the latter INFINITY: it could not be bound */
    bool right;                /* the results agree */
};

static bool compare_logits(struct plan_timer *timer, const struct plan *plans, const struct plan_time *times,
                           void *context, struct status *status)
{
    bool *right = context;
    const uint32_t rows = cuda_inputs_out_rows(&plans[0].header);
    const size_t vocab = timer->rig->manifest->geometry.vocab_size, count = rows * vocab;
    if (!isfinite(times[1].us)) return true;
    float *logits[2] = {calloc(count, sizeof(float)), calloc(count, sizeof(float))};
    bool ok = logits[0] && logits[1];
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
    for (int i = 0; ok && i < 2; i++) {
        double us;
        ok = plan_timer_run(timer, &plans[i], &us, status) &&
             plan_timer_outputs(timer, &plans[i], rows, logits[i], NULL, status);
    }
    if (ok)
        *right = logits_agree(logits[0], logits[1], rows, vocab,
                              gpus_have_nccl(timer->rig->gpus) ? nccl_logit_tolerance : logit_tolerance);
    free(logits[0]);
    free(logits[1]);
    return ok;
}

static bool compare(const struct tune_context *context, const struct device_plan *ours, const struct device_plan *made,
                    struct comparison *comparison, struct status *status)
{
    const struct device_plan both[2] = {*ours, *made}; /* borrow their launches */
    *comparison = (struct comparison){.right = false};
    return plan_timer_race(&context->rig, context->compiler, both, 2, false, comparison->times, compare_logits,
                           &comparison->right, status);
}

/* ---- all plans ---- */

/* Bit 1 << enum plan_library for each that the plan calls. */
static unsigned libraries_of(const struct device_plan *plan)
{
    unsigned libraries = 0;
    for (uint32_t n = 0; n < plan->count; n++) {
        unsigned library = plan->launches[n].tactic.kernel->library;
        if (library) libraries |= 1u << library;
    }
    return libraries;
}

/* Names of the libraries that the plan calls: "cuBLASLt 130100 and cuDNN 91900". */
static void name_libraries(const struct gpus *gpus, const struct device_plan *plan, char *text, size_t bytes)
{
    const unsigned libraries = libraries_of(plan);
    size_t used = 0;
    for (unsigned library = 1; library < LIBRARY_COUNT; library++) {
        if (!(libraries & 1u << library) || used >= bytes) continue;
        int length = snprintf(text + used, bytes - used, "%s%s %" PRIu32, used ? " and " : "",
                              plan_library_name(library), gpus_library_version(gpus, (enum plan_library)library));
        if (length > 0) used += (size_t)length;
    }
}

static void warn_of(const struct tune_context *context, const struct device_plan *made, bool bound)
{
    char libraries[96] = "libraries";
    name_libraries(context->rig.gpus, made, libraries, sizeof libraries);
    progress_warn(context->progress, "%s of %" PRIu32 " rows: %s %s; our own kernels alone are used",
                  plan_kind_name(made->header.kind), made->header.rows,
                  bound ? "other logits than those of our own kernels with" : "a plan cannot be made with", libraries);
}

static void describe(struct tuning_record *record, const struct plan_time times[2], bool library, enum tune_level level)
{
    record->value_count = record->runner_up_count = 1;
    snprintf(record->values[0].name, sizeof record->values[0].name, "libraries");
    snprintf(record->runner_up[0].name, sizeof record->runner_up[0].name, "libraries");
    record->values[0].value = library;
    record->runner_up[0].value = !library;
    record->median_us = times[library].us;
    record->spread_us = times[library].spread_us;
    record->runner_up_us = times[!library].us;
    snprintf(record->level, sizeof record->level, "%s", tune_level_name(level));
}

/* Record of the decision whether libraries are used. */
static bool is_answer(const struct tuning_record *record)
{
    return record->value_count == 1 && strcmp(record->values[0].name, "libraries") == 0 &&
           (record->values[0].value == 0 || record->values[0].value == 1);
}

/* One GPU: drops the plans whose libraries save less time than opening them at every start costs. */
static bool weigh_starts(struct tune_context *context, const double *gains_us, struct status *status)
{
    struct library_gain *gains = calloc(context->plan_count + 1, sizeof *gains);
    if (!gains) return status_fail(status, STATUS_MACHINE, "out of memory while tuning whole plans");
    for (size_t p = 0; p < context->plan_count; p++)
        if (context->plans[p].count > 1)
            gains[p] = (struct library_gain){libraries_of(&context->plans[p].plans[1]), gains_us[p]};
    const unsigned worth = library_worth(gains, context->plan_count);
    for (size_t p = 0; p < context->plan_count; p++)
        if (gains[p].libraries & ~worth) device_plan_free(&context->plans[p].plans[--context->plans[p].count]);
    free(gains);
    return true;
}

/* Adds *made as the plan's second variant, or drops it. A plan that calls a library must be verified to compute the
 * same as our own, even if an earlier build found it faster. */
static bool choose(struct tune_context *context, struct plan_variants *variants, struct device_plan *made,
                   double *gain_us, struct status *status)
{
    const struct device_plan *ours = &variants->plans[0];
    struct tuning_record record = {.candidates = 2};
    struct comparison comparison;
    const bool is_alone = context->rig.gpus->ranks == 1;
    if (!key_of_plan(&context->keys, &made->header, " with libraries",
                     device_plan_hash(made, device_plan_hash(ours, 0)), record.key, status))
        return false;
    const struct tuning_record *known = tactics_answer(context->tactics, record.key, context->level);
    if (known && !is_answer(known)) known = NULL;
    if (known) record = *known;
    if (!known || record.values[0].value || !is_alone) {
        if (!compare(context, ours, made, &comparison, status)) return false;
        if (!comparison.right) {
            warn_of(context, made, isfinite(comparison.times[1].us));
            return true;
        }
    }
    if (!known && context->measures) {
        const struct plan_time *times = comparison.times;
        describe(&record, times, times[1].us <= (1 - least_gain) * times[0].us, context->level);
        tactics_save(context->tactics, &record);
        context->tactics->measured++;
    }
    if ((known || context->measures) && !tactics_add(context->tactics, &record, status)) return false;
    if (!record.values[0].value) {
        if (is_alone) return true;
        made->header.use = PLAN_USE_APART;
    }
    *gain_us = record.runner_up_us - record.median_us;
    variants->plans[variants->count++] = *made;
    *made = (struct device_plan){.count = 0};
    return true;
}

bool tune_library_plans(struct tune_context *context, struct status *status)
{
    /* Ranks in different processes need the NCCL variant whether or not it is faster. */
    if (!context->rig.gpus->weights[0] || (!context->measures && !gpus_have_nccl(context->rig.gpus))) return true;
    double *gains_us = calloc(context->plan_count + 1, sizeof *gains_us);
    bool ok = gains_us || status_fail(status, STATUS_MACHINE, "out of memory while tuning whole plans"), any = false;
    for (size_t p = 0; ok && p < context->plan_count; p++) {
        struct device_plan made;
        ok = make_plan(context, &context->plans[p].plans[0], &made, status);
        if (ok && made.count > 0 && !any) progress_stage(context->progress, "compare");
        any = any || made.count > 0;
        ok = ok && (made.count == 0 || choose(context, &context->plans[p], &made, &gains_us[p], status));
        device_plan_free(&made);
        if (ok && any) progress_update(context->progress, p + 1, context->plan_count, NULL);
    }
    if (ok && context->rig.gpus->ranks == 1) ok = weigh_starts(context, gains_us, status);
    free(gains_us);
    return ok;
}
