/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/library_races.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/attention_cudnn_build.h"
#include "kernels/matmul/matmul_cublaslt.h"
#include "tuner/cuda/library_launches.h"

/* Most tactics that race, the library's own ranking first. Building one of cuDNN's takes about a second. */
enum { FULL_CUBLASLT_TACTICS = 128, QUICK_CUBLASLT_TACTICS = 8, FULL_CUDNN_TACTICS = 8, QUICK_CUDNN_TACTICS = 2 };
_Static_assert((int)FULL_CUBLASLT_TACTICS < (int)BENCH_MAX_TACTICS, "with our best");

static const struct device_kernel *library_kernel(enum plan_library library)
{
    return library == LIBRARY_CUDNN ? &device_attention_cudnn : &device_matmul_cublaslt;
}

/* ---- records ---- */

/* A problem in a library's terms. */
struct library_problem {
    enum plan_library library; /* 0: no library computes it */
    int64_t params[PLAN_MAX_PARAMS];
};

static struct library_problem problem_of(const struct tune_context *context, const struct tune_problem *problem)
{
    struct library_problem found;
    found.library = library_problem(context->rig.gpus, problem->bench.sites[0], found.params);
    return found;
}

static bool make_key(const struct tune_context *context, const struct tune_problem *problem, enum plan_library library,
                     char key[TUNING_KEY_BYTES], struct status *status)
{
    return key_of_library(problem->key, library, gpus_library_version(context->rig.gpus, library), key, status);
}

/* A record does not contain cuDNN's plan. True if the vendor cache has it and it is the one that the record names. */
static bool find_blob(struct vendor_cache *cache, struct device_tactic *tactic)
{
    const int64_t *params = tactic->params;
    struct vendor_blob blob;
    int64_t expected[PLAN_MAX_PARAMS];
    if (!vendor_cache_find(cache, attention_cudnn_tactic_hash(params), &blob)) return false;
    const struct attention_cudnn_blob plan = {.data = blob.data, .bytes = blob.bytes};
    if (!attention_cudnn_tactic(params, &plan, (int)params[ATTENTION_CUDNN_TACTIC_PLAN], expected) ||
        memcmp(params, expected, sizeof expected) != 0)
        return false;
    tactic->blob = blob.data;
    tactic->blob_bytes = blob.bytes;
    return true;
}

/* Whether the installed cuBLASLt still accepts an algorithm that it returned earlier. */
static bool is_taken(const struct gpus *gpus, const struct device_tactic *tactic)
{
    struct device_geometry geometry;
    struct engine_call call = {.library = LIBRARY_CUBLASLT};
    if (tactic->params[MATMUL_CUBLASLT_VERSION] != (int64_t)gpus->cublaslt.version ||
        tactic->kernel->launch(tactic->params, NULL, &geometry))
        return false;
    if (!tactic->kernel->call(tactic->params, NULL, 0, &call)) return false;
    bool entered = device_enter(&gpus->devices[0], NULL);
    bool taken = entered && matmul_cublaslt_check(&gpus->cublaslt, tactic->params, &call, NULL);
    if (entered) device_leave(&gpus->devices[0]);
    free((void *)call.data);
    return taken;
}

enum answer { NO_ANSWER, OURS_WON, LIBRARY_WON };

/* The outcome in a record; *tactic is set if the library won. */
static enum answer read_record(const struct tune_context *context, const struct tuning_record *record,
                               const struct library_problem *problem, struct device_tactic *tactic)
{
    const struct device_kernel *kernel = library_kernel(problem->library);
    const int first = device_problem_count(kernel), tunables = kernel->own_count;
    if (record->value_count < 1 || strcmp(record->values[0].name, kernel->name) != 0) return OURS_WON;
    if (record->value_count != tunables + 1) return NO_ANSWER;
    *tactic = (struct device_tactic){.kernel = kernel};
    memcpy(tactic->params, problem->params, (size_t)first * sizeof *tactic->params);
    for (int i = 0; i < tunables; i++) {
        if (strcmp(record->values[i + 1].name, kernel->own_names[i]) != 0) return NO_ANSWER;
        tactic->params[first + i] = record->values[i + 1].value;
    }
    bool known = problem->library == LIBRARY_CUDNN ? find_blob(context->vendor_cache, tactic)
                                                   : is_taken(context->rig.gpus, tactic);
    return known ? LIBRARY_WON : NO_ANSWER;
}

static const struct tuning_record *find_answer(const struct tune_context *context, const char *key,
                                               const struct library_problem *problem)
{
    struct device_tactic tactic;
    const struct tuning_record *known = tactics_answer(context->tactics, key, context->level);
    return known && read_record(context, known, problem, &tactic) != NO_ANSWER ? known : NULL;
}

bool library_race_answered(const struct tune_context *context, const struct tune_problem *problem)
{
    char key[TUNING_KEY_BYTES];
    const struct library_problem taken = problem_of(context, problem);
    return !taken.library || !make_key(context, problem, taken.library, key, NULL) || find_answer(context, key, &taken);
}

/* ---- races ---- */

bool library_race_prepare(struct races *races, const struct tune_problem *problem, const struct device_tactic *known)
{
    const struct device_launch *site = problem->bench.sites[0];
    struct kernel_set *kernels = &races->kernels;
    struct library_space space = library_space_begin(0, library_projection_bytes(site));
    struct device_launch launches[LIBRARY_MOST_LAUNCHES];
    struct device_tactic call = {.kernel = NULL};
    enum plan_library library = library_problem(races->context->rig.gpus, site, call.params);
    if (!library) return true;
    call.kernel = library_kernel(library);
    if (known && kernel_set_add(kernels, known, site->operand_count) == UINT32_MAX) return false;
    uint32_t count = library_launches(site, &call, &space, launches);
    for (uint32_t i = 0; i < count; i++)
        if (!launches[i].tactic.kernel->library &&
            kernel_set_add(kernels, &launches[i].tactic, launches[i].operand_count) == UINT32_MAX)
            return false;
    return true;
}

/* -1: out of memory; likewise below. */
static int cublaslt_tactics(const struct tune_context *context, const int64_t *params, struct device_tactic *tactics,
                            int most)
{
    int64_t(*found)[PLAN_MAX_PARAMS] = calloc((size_t)most, sizeof *found);
    if (!found) return -1;
    int count = matmul_cublaslt_tactics(&context->rig.gpus->cublaslt, params, found, most);
    for (int t = 0; t < count; t++) {
        tactics[t] = (struct device_tactic){.kernel = &device_matmul_cublaslt};
        memcpy(tactics[t].params, found[t], sizeof found[t]);
    }
    free(found);
    return count;
}

/* A cuDNN without support for this attention takes no part. The vendor cache takes ownership of the library plans. */
static int cudnn_tactics(const struct tune_context *context, const int64_t *params, struct device_tactic *tactics,
                         int most)
{
    struct attention_cudnn_blob plans[FULL_CUDNN_TACTICS];
    struct status status;
    int made = 0, count = 0;
    bool ok = true;
    status_clear(&status);
    if (!attention_cudnn_enumerate(&context->rig.gpus->cudnn, params, plans, most, &made, &status))
        progress_warn(context->progress, "only our own kernels take part in attention of %" PRId64 " rows: %s",
                      params[ATTENTION_ROWS], status.message);
    for (int p = 0; p < made; p++) {
        struct device_tactic *tactic = &tactics[count];
        *tactic = (struct device_tactic){.kernel = &device_attention_cudnn};
        if (!ok || !attention_cudnn_tactic(params, &plans[p], p, tactic->params)) {
            attention_cudnn_blob_free(&plans[p]);
            continue;
        }
        tactic->blob = plans[p].data;
        tactic->blob_bytes = plans[p].bytes;
        ok = vendor_cache_add(context->vendor_cache, plans[p].data, plans[p].bytes);
        count++;
    }
    return ok ? count : -1;
}

static int most_tactics(enum plan_library library, enum tune_level level)
{
    if (library == LIBRARY_CUDNN) return level == TUNE_FULL ? FULL_CUDNN_TACTICS : QUICK_CUDNN_TACTICS;
    return level == TUNE_FULL ? FULL_CUBLASLT_TACTICS : QUICK_CUBLASLT_TACTICS;
}

uint64_t library_race_expected_us(const struct races *races, const struct tune_problem *problem)
{
    /* Each tactic must be found or built, then takes part in the race; figures measured on an H200. */
    const uint64_t cublaslt_us = 10000, cudnn_us = 500000;
    if (!races->are_open || library_race_answered(races->context, problem)) return 0;
    enum plan_library library = problem_of(races->context, problem).library;
    return (uint64_t)most_tactics(library, races->context->level) * (library == LIBRARY_CUDNN ? cudnn_us : cublaslt_us);
}

/* Our best tactic, number 0, against the library's. */
static bool race_library(struct races *races, const struct tune_problem *problem, const struct device_tactic *own,
                         const struct library_problem *taken, const char *key, struct tuning_record *record,
                         struct status *status)
{
    const struct tune_context *context = races->context;
    const bool is_cudnn = taken->library == LIBRARY_CUDNN;
    int most = most_tactics(taken->library, context->level), count = -1;
    struct race_result *result = malloc(sizeof *result);
    struct device_tactic *tactics = calloc((size_t)most + 1, sizeof *tactics);
    if (result && tactics)
        count = is_cudnn ? cudnn_tactics(context, taken->params, tactics + 1, most)
                         : cublaslt_tactics(context, taken->params, tactics + 1, most);
    bool ok = count >= 0 || status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    if (ok && count > 0) {
        tactics[0] = *own;
        struct bench_problem bench = problem->bench;
        bench.tactics = tactics;
        bench.tactic_count = count + 1;
        ok = cuda_bench_race(&races->benches[0], &bench, context->level, result, status);
        /* If the library won, the runner-up of the record is our own best. */
        bool lost = ok && result->winner > 0 && result->entries[0].samples > 0;
        if (ok)
            describe_race(record, key, tactics, count + 1, result, lost ? 0 : result->runner_up, context->level,
                          races_bench(races));
        if (ok && is_cudnn && result->winner > 0)
            vendor_cache_keep(context->vendor_cache, attention_cudnn_tactic_hash(tactics[result->winner].params));
    } else if (ok) {
        describe_alone(record, key, own, races_bench(races));
        snprintf(record->level, sizeof record->level, "%s", tune_level_name(context->level));
    }
    free(result);
    free(tactics);
    return ok || status_prefix(status, "tuning '%s'", key);
}

bool library_race_run(struct races *races, size_t i, struct status *status)
{
    struct tune_context *context = races->context;
    struct tuned_problem *tuned = &context->problems[i];
    const struct tune_problem *problem = races->problems->items[i];
    const struct library_problem taken = problem_of(context, problem);
    struct device_tactic tactic;
    struct tuning_record record;
    char key[TUNING_KEY_BYTES];
    if (!taken.library) return true;
    if (!make_key(context, problem, taken.library, key, status)) return false;
    const struct tuning_record *known = find_answer(context, key, &taken);
    if (known) {
        record = *known;
        context->tactics->cached++;
    } else {
        /* Without a measurement the library is not used. */
        if (!races->are_open) return true;
        if (!race_library(races, problem, &tuned->shortlist[0].tactic, &taken, key, &record, status)) return false;
        tactics_save(context->tactics, &record);
        context->tactics->measured++;
    }
    if (read_record(context, &record, &taken, &tactic) == LIBRARY_WON) {
        tuned->library = tactic;
        tuned->library_record = (uint32_t)context->tactics->count;
    }
    return tactics_add(context->tactics, &record, status);
}
