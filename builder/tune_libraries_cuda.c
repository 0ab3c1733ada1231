/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/tune_libraries_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "builder/vendor/library_plans_cuda.h"
#include "kernels/attention/attention_cudnn_build.h"
#include "kernels/matmul/matmul_cublaslt.h"

/* How many tactics race, the library's favourites first. Each of cuDNN's takes about a second to make. */
enum { FULL_CUBLASLT_TACTICS = 128, QUICK_CUBLASLT_TACTICS = 8, FULL_CUDNN_TACTICS = 8, QUICK_CUDNN_TACTICS = 2 };
_Static_assert((int)FULL_CUBLASLT_TACTICS < (int)BENCH_MAX_TACTICS, "with our best");

static const struct device_kernel *library_kernel(enum plan_library library)
{
    return library == LIBRARY_CUDNN ? &device_attention_cudnn : &device_matmul_cublaslt;
}

/* ---- records ---- */

static bool make_key(const struct tuning *tuning, const struct tune_problem *problem, enum plan_library library,
                     char key[TUNING_KEY_BYTES])
{
    return snprintf(key, TUNING_KEY_BYTES, "%s; %s %" PRIu32, problem->key, plan_library_name(library),
                    library_version(tuning->build, library)) < TUNING_KEY_BYTES;
}

/* cuDNN's plan is not in the record: true if it is in the store, and the one that the record means. */
static bool find_blob(struct build *build, struct device_tactic *tactic)
{
    const int64_t *params = tactic->params;
    struct library_blob blob;
    int64_t expected[PLAN_MAX_PARAMS];
    if (!library_blobs_find(&build->cuda.blobs, attention_cudnn_tactic_hash(params), &blob)) return false;
    const struct attention_cudnn_blob plan = {.data = blob.data, .bytes = blob.bytes};
    if (!attention_cudnn_tactic(params, &plan, (int)params[ATTENTION_CUDNN_TACTIC_PLAN], expected) ||
        memcmp(params, expected, sizeof expected) != 0)
        return false;
    tactic->blob = blob.data;
    tactic->blob_bytes = blob.bytes;
    return true;
}

/* Whether cuBLASLt, in the version at hand, still takes what it once gave. */
static bool is_taken(const struct build *build, const struct device_tactic *tactic)
{
    struct device_geometry geometry;
    struct engine_call call = {.library = LIBRARY_CUBLASLT};
    struct status refused;
    status_clear(&refused);
    if (tactic->params[MATMUL_CUBLASLT_VERSION] != (int64_t)build->cuda.cublaslt.version ||
        tactic->kernel->launch(tactic->params, NULL, &geometry))
        return false;
    if (!tactic->kernel->call(tactic->params, NULL, 0, &call)) return false;
    bool entered = device_enter(&build->cuda.device, &refused);
    bool taken = entered && matmul_cublaslt_check(&build->cuda.cublaslt, tactic->params, &call, &refused);
    if (entered) device_leave(&build->cuda.device);
    free((void *)call.data);
    return taken;
}

enum answer { NO_ANSWER, OURS_WON, LIBRARY_WON };

/* What a record says; *tactic is set where the library won. */
static enum answer read_record(struct build *build, const struct tuning_record *record, enum plan_library library,
                               const int64_t *params, struct device_tactic *tactic)
{
    const struct device_kernel *kernel = library_kernel(library);
    const int first = kernel->first_tunable, tunables = kernel->param_count - first;
    if (record->value_count < 1 || strcmp(record->values[0].name, kernel->name) != 0) return OURS_WON;
    if (record->value_count != tunables + 1) return NO_ANSWER;
    *tactic = (struct device_tactic){.kernel = kernel};
    memcpy(tactic->params, params, (size_t)first * sizeof *params);
    for (int i = 0; i < tunables; i++) {
        if (strcmp(record->values[i + 1].name, kernel->param_names[first + i]) != 0) return NO_ANSWER;
        tactic->params[first + i] = record->values[i + 1].value;
    }
    bool known = library == LIBRARY_CUDNN ? find_blob(build, tactic) : is_taken(build, tactic);
    return known ? LIBRARY_WON : NO_ANSWER;
}

static const struct tuning_record *find_answer(struct build *build, const char *key, enum plan_library library,
                                               const int64_t *params, enum tune_level level)
{
    struct device_tactic tactic;
    const struct tuning_record *known = build->cache_open ? tuning_cache_find(&build->cache, key) : NULL;
    return known && tune_cuda_good_enough(known, level) &&
                   read_record(build, known, library, params, &tactic) != NO_ANSWER
               ? known
               : NULL;
}

bool tune_libraries_answered(const struct tuning *tuning, const struct tune_problem *problem, enum tune_level level)
{
    char key[TUNING_KEY_BYTES];
    int64_t params[PLAN_MAX_PARAMS];
    enum plan_library library = library_problem(tuning->build, problem->bench.sites[0], params);
    return !library || !make_key(tuning, problem, library, key) ||
           find_answer(tuning->build, key, library, params, level);
}

/* ---- races ---- */

bool tune_libraries_prepare(struct tuning *tuning, const struct tune_problem *problem,
                            const struct device_tactic *known)
{
    const struct device_launch *site = problem->bench.sites[0];
    struct kernel_set *kernels = &tuning->build->cuda.kernels;
    struct library_space space = library_space_begin(0, library_projection_bytes(site));
    struct device_launch launches[LIBRARY_MOST_LAUNCHES];
    struct device_tactic call = {.kernel = NULL};
    enum plan_library library = library_problem(tuning->build, site, call.params);
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
static int cublaslt_tactics(struct build *build, const int64_t *params, struct device_tactic *tactics, int most)
{
    int64_t(*found)[PLAN_MAX_PARAMS] = calloc((size_t)most, sizeof *found);
    if (!found) return -1;
    int count = matmul_cublaslt_tactics(&build->cuda.cublaslt, params, found, most);
    for (int t = 0; t < count; t++) {
        tactics[t] = (struct device_tactic){.kernel = &device_matmul_cublaslt};
        memcpy(tactics[t].params, found[t], sizeof found[t]);
    }
    free(found);
    return count;
}

/* A cuDNN that does not know such attention takes no part in it. The blobs become the store's. */
static int cudnn_tactics(struct build *build, const int64_t *params, struct device_tactic *tactics, int most)
{
    struct attention_cudnn_blob plans[FULL_CUDNN_TACTICS];
    struct status status;
    int made = 0, count = 0;
    bool ok = true;
    status_clear(&status);
    if (!attention_cudnn_enumerate(&build->cuda.cudnn, params, plans, most, &made, &status))
        build_warn(build, "only our own kernels take part in attention of %" PRId64 " rows: %s",
                   params[ATTENTION_DEVICE_ROWS], status.message);
    for (int p = 0; p < made; p++) {
        struct device_tactic *tactic = &tactics[count];
        *tactic = (struct device_tactic){.kernel = &device_attention_cudnn};
        if (!ok || !attention_cudnn_tactic(params, &plans[p], p, tactic->params)) {
            attention_cudnn_blob_free(&plans[p]);
            continue;
        }
        tactic->blob = plans[p].data;
        tactic->blob_bytes = plans[p].bytes;
        ok = library_blobs_add(&build->cuda.blobs, plans[p].data, plans[p].bytes);
        count++;
    }
    return ok ? count : -1;
}

static int most_tactics(enum plan_library library, enum tune_level level)
{
    if (library == LIBRARY_CUDNN) return level == TUNE_FULL ? FULL_CUDNN_TACTICS : QUICK_CUDNN_TACTICS;
    return level == TUNE_FULL ? FULL_CUBLASLT_TACTICS : QUICK_CUBLASLT_TACTICS;
}

uint64_t tune_libraries_expected_us(const struct tuning *tuning, const struct tune_problem *problem,
                                    enum tune_level level)
{
    /* Each tactic has to be found or made, and takes part in the race; figures of an H200. */
    const uint64_t cublaslt_us = 10000, cudnn_us = 500000;
    int64_t params[PLAN_MAX_PARAMS];
    if (!tuning->measuring || tune_libraries_answered(tuning, problem, level)) return 0;
    enum plan_library library = library_problem(tuning->build, problem->bench.sites[0], params);
    return (uint64_t)most_tactics(library, level) * (library == LIBRARY_CUDNN ? cudnn_us : cublaslt_us);
}

/* Our best, which is tactic 0, against the library's. */
static bool race_library(struct tuning *tuning, const struct tune_problem *problem, const struct device_tactic *own,
                         enum plan_library library, const int64_t *params, const char *key, enum tune_level level,
                         struct tuning_record *record, struct status *status)
{
    struct build *build = tuning->build;
    int most = most_tactics(library, level), count = -1;
    struct race_result *result = malloc(sizeof *result);
    struct device_tactic *tactics = calloc((size_t)most + 1, sizeof *tactics);
    if (result && tactics)
        count = library == LIBRARY_CUDNN ? cudnn_tactics(build, params, tactics + 1, most)
                                         : cublaslt_tactics(build, params, tactics + 1, most);
    bool ok = count >= 0 || status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    if (ok && count > 0) {
        tactics[0] = *own;
        struct bench_problem bench = problem->bench;
        bench.tactics = tactics;
        bench.tactic_count = count + 1;
        ok = bench_cuda_race(&tuning->benches[0], &bench, level, result, status);
        /* Beside a library's victory stands our own best. */
        bool lost = ok && result->winner > 0 && result->entries[0].samples > 0;
        if (ok)
            tune_cuda_describe_race(record, key, tactics, count + 1, result, lost ? 0 : result->runner_up, level,
                                    tuning);
        if (ok && library == LIBRARY_CUDNN && result->winner > 0)
            library_blobs_keep(&build->cuda.blobs, attention_cudnn_tactic_hash(tactics[result->winner].params));
    } else if (ok) {
        tune_cuda_describe_alone(record, key, own, tuning);
        snprintf(record->level, sizeof record->level, "%s", tune_level_name(level));
    }
    free(result);
    free(tactics);
    return ok || status_prefix(status, "tuning '%s'", key);
}

bool tune_libraries_solve(struct tuning *tuning, size_t i, enum tune_level level, struct status *status)
{
    struct build *build = tuning->build;
    struct tuned_problem *tuned = &build->cuda.problems[i];
    const struct tune_problem *problem = tuning->problems[i];
    struct device_tactic tactic;
    struct tuning_record record;
    char key[TUNING_KEY_BYTES];
    int64_t params[PLAN_MAX_PARAMS];
    enum plan_library library = library_problem(build, problem->bench.sites[0], params);
    if (!library) return true;
    if (!make_key(tuning, problem, library, key))
        return status_fail(status, STATUS_INTERNAL, "a tuning key is too long");
    const struct tuning_record *known = find_answer(build, key, library, params, level);
    if (known) {
        record = *known;
        build->tactics.cached++;
    } else {
        /* Without a measurement nothing speaks for a library. */
        if (!tuning->measuring) return true;
        if (!race_library(tuning, problem, &tuned->shortlist[0].tactic, library, params, key, level, &record, status))
            return false;
        tune_cuda_save(build, &record);
        build->tactics.measured++;
    }
    if (read_record(build, &record, library, params, &tactic) == LIBRARY_WON) {
        tuned->library = tactic;
        tuned->library_record = (uint32_t)build->tactics.count;
    }
    build->tactics.records[build->tactics.count++] = record;
    return true;
}
