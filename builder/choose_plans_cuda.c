#include "builder/choose_plans_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "builder/time_plans_cuda.h"
#include "formats/hash.h"

static const char plan_name[] = "plan", alternative_name[] = "alternative";

/* Everything that the times of both depend on: their kernels with all parameters, in order. */
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
    snprintf(key, TUNING_KEY_BYTES, "%s; %s of %" PRIu32 " rows; plans %016" PRIx64, build->cuda.device.facts.name,
             plan->header.kind == PLAN_DECODE ? "decode" : "prefill", plan->header.rows, hash);
}

static bool time_both(struct build *build, size_t p, double us[2], struct status *status)
{
    struct cuda_build *cuda = &build->cuda;
    struct device_plan *sources[2] = {&cuda->plans[p], &cuda->alternatives[p]};
    struct plan finished[2] = {{{0}, NULL, NULL, NULL, NULL}, {{0}, NULL, NULL, NULL, NULL}};
    struct kernel_set kernels = {0};
    struct plan_timer timer;
    bool ok = true;
    for (int i = 0; ok && i < 2; i++)
        ok = finish_device_plan(sources[i], &cuda->device.facts, &kernels, &finished[i], status);
    ok = ok && kernel_set_compile(&kernels, cuda->nvrtc, cuda->device.facts.capability, team_size(build->team), NULL,
                                  NULL, status);
    if (ok && (ok = plan_timer_open(&timer, build, &kernels, status))) {
        for (int i = 0; ok && i < 2; i++) ok = plan_timer_run(&timer, &finished[i], &us[i], status);
        plan_timer_close(&timer);
    }
    for (int i = 0; i < 2; i++) lowered_plan_free(&finished[i]);
    kernel_set_free(&kernels);
    return ok;
}

static void keep(struct build *build, const struct tuning_record *record)
{
    struct tactics *tactics = &build->tactics;
    if (build->cache_open && (tactics->unsaved || !tuning_cache_add(&build->cache, record, &tactics->cache_status)))
        tactics->unsaved++;
}

bool choose_plans_cuda(struct build *build, enum tune_level level, struct status *status)
{
    for (size_t p = 0; p < build->plan_count; p++) {
        struct device_plan *plan = &build->cuda.plans[p], *alternative = &build->cuda.alternatives[p];
        if (alternative->count == 0) continue;
        struct tuning_record record = {.value_count = 1, .candidates = 2};
        make_key(build, p, record.key);
        const struct tuning_record *known = build->cache_open ? tuning_cache_find(&build->cache, record.key) : NULL;
        bool measure = !known && level != TUNE_OFF && build->cuda.weights;
        double us[2] = {0, 0};
        if (measure && !time_both(build, p, us, status)) return false;
        bool other = known ? strcmp(known->values[0].name, alternative_name) == 0 : us[1] < us[0];
        if (known) {
            record = *known;
        } else {
            snprintf(record.values[0].name, TUNING_NAME_BYTES, "%s", other ? alternative_name : plan_name);
            record.median_us = us[other];
            snprintf(record.level, sizeof record.level, "%s", tune_level_name(measure ? level : TUNE_OFF));
        }
        if (measure) keep(build, &record);
        build->tactics.records[build->tactics.count++] = record;
        if (other) {
            struct device_plan swap = *plan;
            *plan = *alternative;
            *alternative = swap;
        }
        device_plan_free(alternative);
    }
    return true;
}
