#include "builder/choose_plans_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "builder/time_plans_cuda.h"
#include "builder/tune_cuda.h"
#include "formats/hash.h"
#include "kernels/matmul/matmul_device.h"

enum {
    MAX_TACTICS = 64,
    MAX_FORMS = 24,
    UNIFORM_FORMS = 8, /* of each fusion */
};
static const char *const fusion_names[2] = {"plan", "alternative"};
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

static int launch_tactics(const struct build *build, const struct device_launch *launch, struct device_tactic *tactics)
{
    return device_tactics(launch->op, launch->tactic.params, &build->cuda.device.facts, tactics, MAX_TACTICS);
}

static double matmul_bytes(const struct device_launch *launch)
{
    uint64_t bytes, flops;
    matmul_device_cost(launch->tactic.params, 0, &bytes, &flops);
    return (double)bytes;
}

/* Adds the tunables of the matmuls of a plan that serve most of its bytes, in the order of the candidates. */
static int add_uniform_forms(const struct build *build, size_t p, int fusion, struct form *forms, int count)
{
    enum { MAX_CHOICES = 256 };
    const struct device_plan *plan = plan_of(build, p, fusion);
    struct form *choices = calloc(MAX_CHOICES, sizeof *choices);
    struct device_tactic *tactics = calloc(MAX_TACTICS, sizeof *tactics);
    int found = 0;
    double total = 0;
    for (uint32_t n = 0; choices && tactics && n < plan->count; n++) {
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
    for (int c = 0; c < found && added < UNIFORM_FORMS && count < MAX_FORMS; c++)
        if (choices[c].coverage >= least_coverage * total) {
            forms[count++] = choices[c];
            added++;
        }
    free(choices);
    free(tactics);
    return count;
}

/* The plan in this form; the caller frees it. */
static bool make_form(const struct build *build, size_t p, const struct form *form, struct device_plan *made,
                      struct status *status)
{
    const struct device_plan *plan = plan_of(build, p, form->fusion);
    struct device_tactic *tactics = calloc(MAX_TACTICS, sizeof *tactics);
    *made = *plan;
    made->launches = calloc((size_t)plan->count + 1, sizeof *made->launches);
    if (!made->launches || !tactics) {
        free(tactics);
        device_plan_free(made);
        return status_fail(status, STATUS_MACHINE, "out of memory while choosing plans");
    }
    memcpy(made->launches, plan->launches, plan->count * sizeof *made->launches);
    for (uint32_t n = 0; form->uniform && n < made->count; n++) {
        struct device_launch *launch = &made->launches[n];
        if (launch->op != OP_MATMUL) continue;
        int tactic_count = launch_tactics(build, launch, tactics);
        for (int t = 0; t < tactic_count; t++)
            if (same_tunables(&form->tactic, &tactics[t])) {
                /* The record of the race's winner says nothing of another tactic. */
                if (!same_tunables(&launch->tactic, &tactics[t])) launch->record = PLAN_NO_TACTIC;
                launch->tactic = tactics[t];
                break;
            }
    }
    free(tactics);
    return true;
}

/* ---- records ---- */

/* Everything that the times depend on: the kernels of both fusions with all parameters, in order. */
static uint64_t hash_plan(const struct device_plan *plan, uint64_t hash)
{
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct device_tactic *tactic = &plan->launches[n].tactic;
        const uint64_t parts[3] = {hash, hash64(tactic->params, sizeof tactic->params),
                                   hash64(tactic->kernel->name, strlen(tactic->kernel->name))};
        hash = hash64(parts, sizeof parts);
    }
    return hash;
}

static void make_key(const struct build *build, size_t p, char key[TUNING_KEY_BYTES])
{
    const struct device_plan *plan = &build->cuda.plans[p];
    uint64_t hash = hash_plan(&build->cuda.alternatives[p], hash_plan(plan, 0));
    char code[TUNE_CUDA_CODE_BYTES];
    tune_cuda_code(code);
    snprintf(key, TUNING_KEY_BYTES, "%s; %s of %" PRIu32 " rows; plans %016" PRIx64 "; %s",
             build->cuda.device.facts.name, plan->header.kind == PLAN_DECODE ? "decode" : "prefill", plan->header.rows,
             hash, code);
}

/* The fusion, then, if the form is uniform, the kernel and its tunables. */
static void describe(struct tuning_record *record, const struct form *form)
{
    const struct device_kernel *kernel = form->tactic.kernel;
    snprintf(record->values[record->value_count++].name, TUNING_NAME_BYTES, "%s", fusion_names[form->fusion]);
    if (!form->uniform) return;
    snprintf(record->values[record->value_count++].name, TUNING_NAME_BYTES, "%s", kernel->name);
    for (int i = kernel->first_tunable; i < kernel->param_count && record->value_count < TUNING_MAX_VALUES; i++) {
        struct tuning_value *value = &record->values[record->value_count++];
        snprintf(value->name, sizeof value->name, "%s", kernel->param_names[i]);
        value->value = form->tactic.params[i];
    }
}

/* The index of the form that a record names, -1 if it is none of these. */
static int recorded(const struct form *forms, int count, const struct tuning_record *record)
{
    for (int f = 0; f < count; f++) {
        struct tuning_record expected = {.value_count = 0};
        describe(&expected, &forms[f]);
        bool same = expected.value_count == record->value_count;
        for (int v = 0; same && v < expected.value_count; v++)
            same = expected.values[v].value == record->values[v].value &&
                   strcmp(expected.values[v].name, record->values[v].name) == 0;
        if (same) return f;
    }
    return -1;
}

/* ---- timing ---- */

static bool time_forms(struct build *build, size_t p, const struct form *forms, int count, double *us,
                       struct status *status)
{
    struct cuda_build *cuda = &build->cuda;
    struct plan finished[MAX_FORMS];
    struct kernel_set kernels = {0};
    struct plan_timer timer;
    bool ok = true;
    memset(finished, 0, sizeof finished);
    for (int f = 0; ok && f < count; f++) {
        struct device_plan made;
        ok = make_form(build, p, &forms[f], &made, status);
        if (!ok) break;
        ok = finish_device_plan(&made, &cuda->device.facts, &kernels, &finished[f], status);
        device_plan_free(&made);
    }
    ok = ok && kernel_set_compile(&kernels, cuda->nvrtc, cuda->device.facts.capability, team_size(build->team), NULL,
                                  NULL, status);
    if (ok && (ok = plan_timer_open(&timer, build, &kernels, status))) {
        for (int f = 0; ok && f < count; f++) ok = plan_timer_run(&timer, &finished[f], &us[f], status);
        plan_timer_close(&timer);
    }
    for (int f = 0; f < count; f++) lowered_plan_free(&finished[f]);
    kernel_set_free(&kernels);
    return ok;
}

/* ---- all of it ---- */

static bool choose(struct build *build, size_t p, enum tune_level level, struct status *status)
{
    struct form forms[MAX_FORMS];
    double us[MAX_FORMS] = {0};
    int count = 0, best = 0;
    for (int fusion = 0; fusion < 2; fusion++) forms[count++] = (struct form){.fusion = fusion};
    for (int fusion = 0; fusion < 2; fusion++) count = add_uniform_forms(build, p, fusion, forms, count);

    struct tuning_record record = {.candidates = (uint32_t)count};
    make_key(build, p, record.key);
    const struct tuning_record *known = build->cache_open ? tuning_cache_find(&build->cache, record.key) : NULL;
    int known_form = known && tune_cuda_good_enough(known, level) ? recorded(forms, count, known) : -1;
    bool measure = known_form < 0 && level != TUNE_OFF && build->cuda.weights;
    if (known_form >= 0) {
        record = *known;
        best = known_form;
    } else {
        if (measure && !time_forms(build, p, forms, count, us, status)) return false;
        for (int f = 1; f < count; f++)
            if (us[f] < us[best]) best = f;
        describe(&record, &forms[best]);
        record.median_us = us[best];
        snprintf(record.level, sizeof record.level, "%s", tune_level_name(measure ? level : TUNE_OFF));
    }
    struct tactics *tactics = &build->tactics;
    if (measure && build->cache_open &&
        (tactics->unsaved || !tuning_cache_add(&build->cache, &record, &tactics->cache_status)))
        tactics->unsaved++;
    tactics->records[tactics->count++] = record;

    struct device_plan made;
    if (!make_form(build, p, &forms[best], &made, status)) return false;
    device_plan_free(&build->cuda.plans[p]);
    device_plan_free(&build->cuda.alternatives[p]);
    build->cuda.plans[p] = made;
    return true;
}

bool choose_plans_cuda(struct build *build, enum tune_level level, struct status *status)
{
    for (size_t p = 0; p < build->plan_count; p++)
        if (build->cuda.alternatives[p].count > 0 && !choose(build, p, level, status)) return false;
    return true;
}
