/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/vendor/library_plans_cuda.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "builder/choose_plans_cuda.h"
#include "builder/vendor/library_worth.h"
#include "builder/vendor/nccl_launches_cuda.h"
#include "builder/time_plans_cuda.h"
#include "builder/tune_cuda.h"
#include "kernels/attention/attention_cudnn_build.h"
#include "kernels/matmul/matmul_cublaslt.h"
#include "kernels/swiglu/swiglu_device.h"

enum { SPACE_ALIGNMENT = 256 };
/* A smaller share of a plan's time is noise. library_worth decides whether all gains together are worth the library. */
static const double least_gain = 0.01;
/* Of the largest logit: sums in another order, rounded to 16 bits between launches. NCCL's plans may round the sum of all
 * ranks, twice a layer, where ours do not, or the reverse: of 32 layers behind a random KV cache that showed as more than 3e-2.
 * A term too many or too few would show as a logit's own size. */
static const double logit_tolerance = 3e-2, nccl_logit_tolerance = 8e-2;

/* ---- launches ---- */

/* Cannot overflow: an arena fits memory. */
static uint64_t align(uint64_t bytes) { return (bytes + SPACE_ALIGNMENT - 1) / SPACE_ALIGNMENT * SPACE_ALIGNMENT; }

struct library_space library_space_begin(uint64_t arena_bytes, uint64_t projection_bytes)
{
    uint64_t projection = align(arena_bytes);
    return (struct library_space){.projection = projection,
                                  .workspace = projection + align(projection_bytes),
                                  .end = arena_bytes};
}

static bool is_swiglu(const int64_t *params) { return params[MATMUL_DEVICE_EPILOGUE] == MATMUL_EPILOGUE_SWIGLU; }

/* cuBLASLt takes all but norms; behind it a launch of ours applies SwiGLU. */
static bool is_for_cublaslt(const struct device_launch *site, int64_t params[PLAN_MAX_PARAMS])
{
    struct device_geometry geometry;
    if (site->op != OP_MATMUL) return false;
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    memcpy(params, site->tactic.params, MATMUL_DEVICE_FIRST_TUNABLE * sizeof *params);
    if (is_swiglu(params) && params[MATMUL_DEVICE_OUT_DTYPE] == DTYPE_F32) return false; /* not what swiglu takes */
    params[MATMUL_DEVICE_EPILOGUE] = MATMUL_EPILOGUE_NONE;
    return device_matmul_cublaslt.launch(params, NULL, &geometry) == NULL;
}

/* cuDNN takes attention that stands alone, which only prompts have. */
static bool is_for_cudnn(const struct device_launch *site, int64_t params[PLAN_MAX_PARAMS])
{
    struct device_geometry geometry;
    if (site->op != OP_ATTENTION) return false;
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    memcpy(params, site->tactic.params, ATTENTION_DEVICE_FIRST_TUNABLE * sizeof *params);
    return device_attention_cudnn.launch(params, NULL, &geometry) == NULL;
}

uint32_t library_version(const struct build *build, enum plan_library library)
{
    const struct cuda_build *cuda = &build->cuda;
    if (library == LIBRARY_CUBLASLT && cuda->cublaslt.library) return cuda->cublaslt.version;
    if (library == LIBRARY_CUDNN && cuda->cudnn.library) return (uint32_t)cuda->cudnn.version;
    if (library == LIBRARY_NCCL && cuda->nccl.library) return cuda->nccl.version;
    return 0;
}

enum plan_library library_problem(const struct build *build, const struct device_launch *site,
                                  int64_t params[PLAN_MAX_PARAMS])
{
    if (library_version(build, LIBRARY_CUBLASLT) && is_for_cublaslt(site, params)) return LIBRARY_CUBLASLT;
    if (library_version(build, LIBRARY_CUDNN) && is_for_cudnn(site, params)) return LIBRARY_CUDNN;
    return 0;
}

static void grow(struct library_space *space, uint64_t end)
{
    if (end > space->end) space->end = end;
}

/* An operand has at least a byte. */
static struct plan_operand workspace_operand(struct library_space *space, int64_t bytes, enum plan_access access)
{
    const struct plan_operand operand = {.space = SPACE_ARENA,
                                         .access = (uint8_t)access,
                                         .offset = space->workspace,
                                         .bytes = bytes < PLAN_ALIGNMENT ? PLAN_ALIGNMENT : (uint64_t)bytes};
    grow(space, operand.offset + operand.bytes);
    return operand;
}

uint64_t library_projection_bytes(const struct device_launch *site)
{
    const int64_t *params = site->tactic.params;
    if (site->op != OP_MATMUL || !is_swiglu(params)) return 0;
    return (uint64_t)params[MATMUL_DEVICE_ROWS] * (uint64_t)params[MATMUL_DEVICE_N] *
           dtype_bytes((enum dtype)params[MATMUL_DEVICE_OUT_DTYPE]);
}

static void make_swiglu(const struct device_launch *site, const struct plan_operand *projection,
                        struct device_launch *swiglu)
{
    *swiglu = *site;
    swiglu->op = OP_SWIGLU;
    swiglu->record = swiglu->problem = PLAN_NO_TACTIC;
    swiglu->tactic = (struct device_tactic){.kernel = &device_swiglu};
    swiglu->tactic.params[SWIGLU_DEVICE_ROWS] = site->tactic.params[MATMUL_DEVICE_ROWS];
    swiglu->tactic.params[SWIGLU_DEVICE_COUNT_INDEX] = site->tactic.params[MATMUL_DEVICE_COUNT_INDEX];
    swiglu->tactic.params[SWIGLU_DEVICE_WIDTH] = site->tactic.params[MATMUL_DEVICE_N] / 2;
    swiglu->tactic.params[SWIGLU_DEVICE_X_DTYPE] = site->tactic.params[MATMUL_DEVICE_OUT_DTYPE];
    swiglu->operand_count = SWIGLU_DEVICE_OPERANDS;
    swiglu->operands[SWIGLU_DEVICE_GATE_UP] = *projection;
    swiglu->operands[SWIGLU_DEVICE_GATE_UP].access = ACCESS_READ;
    swiglu->operands[SWIGLU_DEVICE_OUT] = site->operands[MATMUL_DEVICE_OUT];
}

static uint32_t matmul_launches(const struct device_launch *site, const struct device_tactic *tactic,
                                struct library_space *space, struct device_launch *launches)
{
    struct device_launch *call = &launches[0];
    *call = *site;
    call->tactic = *tactic;
    call->operands[call->operand_count++] =
        workspace_operand(space, tactic->params[MATMUL_CUBLASLT_WORKSPACE], ACCESS_READ_WRITE);
    if (!is_swiglu(site->tactic.params)) return 1;
    const struct plan_operand projection = {.space = SPACE_ARENA,
                                            .access = ACCESS_WRITE,
                                            .offset = space->projection,
                                            .bytes = library_projection_bytes(site)};
    grow(space, projection.offset + projection.bytes);
    make_swiglu(site, &projection, &launches[1]);
    call->operands[MATMUL_DEVICE_OUT] = projection;
    return 2;
}

static uint32_t attention_launches(const struct device_launch *site, const struct device_tactic *tactic,
                                   struct library_space *space, struct device_launch *launches)
{
    static const int from[ATTENTION_CUDNN_INPUTS_WORKSPACE] = {
        [ATTENTION_CUDNN_INPUTS_COUNTS] = ATTENTION_DEVICE_COUNTS,
        [ATTENTION_CUDNN_INPUTS_SLOTS] = ATTENTION_DEVICE_SLOTS,
        [ATTENTION_CUDNN_INPUTS_POSITIONS] = ATTENTION_DEVICE_POSITIONS,
        [ATTENTION_CUDNN_INPUTS_PAGE_TABLE] = ATTENTION_DEVICE_PAGE_TABLE,
        [ATTENTION_CUDNN_INPUTS_KV] = ATTENTION_DEVICE_KV,
    };
    struct device_launch *inputs = &launches[0], *call = &launches[1];
    const int64_t workspace = tactic->params[ATTENTION_CUDNN_TACTIC_WORKSPACE];
    *inputs = *call = *site;
    inputs->record = inputs->problem = PLAN_NO_TACTIC;
    inputs->tactic = (struct device_tactic){.kernel = &device_attention_cudnn_inputs};
    attention_cudnn_inputs_params(site->tactic.params, inputs->tactic.params);
    inputs->operand_count = ATTENTION_CUDNN_INPUTS_OPERANDS;
    for (int i = 0; i < ATTENTION_CUDNN_INPUTS_WORKSPACE; i++) inputs->operands[i] = site->operands[from[i]];
    inputs->operands[ATTENTION_CUDNN_INPUTS_KV].access = ACCESS_READ_WRITE;
    inputs->operands[ATTENTION_CUDNN_INPUTS_WORKSPACE] = workspace_operand(space, workspace, ACCESS_WRITE);
    call->tactic = *tactic;
    call->operands[call->operand_count++] = workspace_operand(space, workspace, ACCESS_READ_WRITE);
    return 2;
}

uint32_t library_launches(const struct device_launch *site, const struct device_tactic *tactic,
                          struct library_space *space, struct device_launch launches[LIBRARY_MOST_LAUNCHES])
{
    return tactic->kernel->library == LIBRARY_CUDNN ? attention_launches(site, tactic, space, launches)
                                                    : matmul_launches(site, tactic, space, launches);
}

static uint64_t largest_projection(const struct build *build, const struct device_plan *plan)
{
    uint64_t largest = 0;
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct device_launch *launch = &plan->launches[n];
        uint64_t bytes = nccl_is_open(build) ? nccl_result_bytes(launch) : library_projection_bytes(launch);
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

static uint64_t plan_arena_bytes(const struct build *build, const struct device_plan *plan)
{
    struct library_space space = library_space_begin(plan->header.arena_bytes, largest_projection(build, plan));
    if (nccl_is_open(build)) grow(&space, space.workspace);
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct device_launch *launch = &plan->launches[n];
        int64_t params[PLAN_MAX_PARAMS];
        uint64_t workspace;
        switch (library_problem(build, launch, params)) {
        case LIBRARY_CUBLASLT: grow(&space, space.workspace + MATMUL_CUBLASLT_MOST_WORKSPACE); break;
        case LIBRARY_CUDNN:
            if (attention_cudnn_workspace(params, ATTENTION_CUDNN_MOST_OWN, &workspace))
                grow(&space, space.workspace + workspace);
            break;
        default: break;
        }
    }
    return space.end;
}

uint64_t library_arena_bytes(const struct build *build)
{
    uint64_t most = 0;
    for (size_t p = 0; p < build->plan_count; p++) {
        const uint64_t bytes[2] = {plan_arena_bytes(build, &build->cuda.plans[p]),
                                   plan_arena_bytes(build, &build->cuda.alternatives[p])};
        for (int i = 0; i < 2; i++)
            if (bytes[i] > most) most = bytes[i];
    }
    return most;
}

/* ---- plans ---- */

static const struct tuned_problem *problem_of(const struct build *build, const struct device_launch *launch)
{
    return launch->problem == PLAN_NO_TACTIC ? NULL : &build->cuda.problems[launch->problem];
}

/* The launches in the place of `site`; 0: it stays. */
static uint32_t replace(const struct build *build, const struct device_launch *site, struct library_space *space,
                        struct device_launch launches[LIBRARY_MOST_LAUNCHES])
{
    const struct tuned_problem *problem = problem_of(build, site);
    if (nccl_is_open(build)) return plan_op_is_collective(site->op) ? nccl_launches(site, space, launches) : 0;
    if (!problem || !problem->library.kernel) return 0;
    uint32_t count = library_launches(site, &problem->library, space, launches);
    for (uint32_t i = 0; i < count; i++)
        if (launches[i].tactic.kernel->library) launches[i].record = problem->library_record;
    return count;
}

/* The plan with the library's tactics, of several ranks with NCCL's collectives; count 0 where none won. The caller frees
 * it. */
static bool make_plan(const struct build *build, size_t p, struct device_plan *made, struct status *status)
{
    const struct device_plan *plan = &build->cuda.plans[p];
    uint64_t projection = nccl_is_open(build) ? largest_projection(build, plan) : 0;
    for (uint32_t n = 0; n < plan->count; n++) {
        const struct tuned_problem *problem = problem_of(build, &plan->launches[n]);
        uint64_t bytes = problem && problem->library.kernel ? library_projection_bytes(&plan->launches[n]) : 0;
        if (bytes > projection) projection = bytes;
    }
    struct library_space space = library_space_begin(plan->header.arena_bytes, projection);
    bool any = false;
    *made = (struct device_plan){.header = plan->header};
    made->launches = calloc(LIBRARY_MOST_LAUNCHES * (size_t)plan->count + 1, sizeof *made->launches);
    if (!made->launches) return status_fail(status, STATUS_MACHINE, "out of memory while choosing plans");
    for (uint32_t n = 0; n < plan->count; n++) {
        uint32_t count = replace(build, &plan->launches[n], &space, made->launches + made->count);
        any = any || count > 0;
        if (count == 0) made->launches[made->count++] = plan->launches[n];
        made->count += count;
    }
    made->header.arena_bytes = space.end;
    if (!any) device_plan_free(made);
    return true;
}

/* ---- timing ---- */

/* False: the two compute something different. */
static bool agree(const float *ours, const float *theirs, size_t count, double tolerance)
{
    double largest = 0, difference = 0;
    for (size_t i = 0; i < count; i++) {
        double a = (double)ours[i], b = (double)theirs[i];
        if (!isfinite(a) || !isfinite(b)) return false;
        largest = fmax(largest, fabs(a));
        difference = fmax(difference, fabs(a - b));
    }
    return difference <= tolerance * largest;
}

/* What both were seen to do. */
struct comparison {
    struct plan_time times[2]; /* our own, with libraries; of the latter INFINITY: it could not be bound */
    bool right;                /* they compute the same */
};

static bool compare_logits(struct plan_timer *timer, const struct plan *plans, const struct plan_time *times,
                           void *context, struct status *status)
{
    bool *right = context;
    size_t count = (size_t)plans[0].header.out_rows * timer->build->manifest.geometry.vocab_size;
    if (!isfinite(times[1].us)) return true;
    float *logits[2] = {calloc(count, sizeof(float)), calloc(count, sizeof(float))};
    bool ok = logits[0] && logits[1];
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
    for (int i = 0; ok && i < 2; i++) {
        double us;
        ok = plan_timer_run(timer, &plans[i], &us, status) && plan_timer_logits(timer, &plans[i], logits[i], status);
    }
    if (ok)
        *right =
            agree(logits[0], logits[1], count, nccl_is_open(timer->build) ? nccl_logit_tolerance : logit_tolerance);
    free(logits[0]);
    free(logits[1]);
    return ok;
}

static bool compare(struct build *build, size_t p, const struct device_plan *made, struct comparison *comparison,
                    struct status *status)
{
    const struct device_plan both[2] = {build->cuda.plans[p], *made}; /* borrow their launches */
    *comparison = (struct comparison){.right = false};
    return time_device_plans(build, both, 2, false, comparison->times, compare_logits, &comparison->right, status);
}

/* ---- all of it ---- */

static bool make_key(const struct build *build, size_t p, const struct device_plan *made, char key[TUNING_KEY_BYTES],
                     struct status *status)
{
    char code[TUNE_CUDA_CODE_BYTES], gpus[TUNE_CUDA_GPUS_BYTES];
    tune_cuda_code(code);
    tune_cuda_gpus(build, gpus);
    int length = snprintf(key, TUNING_KEY_BYTES, "%s; %s of %" PRIu32 " rows with libraries; plans %016" PRIx64 "; %s",
                          gpus, made->header.kind == PLAN_DECODE ? "decode" : "prefill", made->header.rows,
                          hash_device_plan(made, hash_device_plan(&build->cuda.plans[p], 0)), code);
    return length < TUNING_KEY_BYTES || status_fail(status, STATUS_INTERNAL, "a tuning key is too long");
}

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

/* Those that the plan calls: "cuBLASLt 130100 and cuDNN 91900". */
static void name_libraries(const struct build *build, const struct device_plan *plan, char *text, size_t bytes)
{
    const unsigned libraries = libraries_of(plan);
    size_t used = 0;
    for (unsigned library = 1; library < LIBRARY_COUNT; library++) {
        if (!(libraries & 1u << library) || used >= bytes) continue;
        int length = snprintf(text + used, bytes - used, "%s%s %" PRIu32, used ? " and " : "",
                              plan_library_name(library), library_version(build, (enum plan_library)library));
        if (length > 0) used += (size_t)length;
    }
}

static void warn_of(struct build *build, const struct device_plan *made, bool bound)
{
    char libraries[96] = "libraries";
    name_libraries(build, made, libraries, sizeof libraries);
    build_warn(build, "%s of %" PRIu32 " rows: %s %s; our own kernels alone are used",
               made->header.kind == PLAN_DECODE ? "decode" : "prefill", made->header.rows,
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

/* A record of this file: whether libraries are used. */
static bool is_answer(const struct tuning_record *record)
{
    return record->value_count == 1 && strcmp(record->values[0].name, "libraries") == 0 &&
           (record->values[0].value == 0 || record->values[0].value == 1);
}

/* One GPU: drops the plans whose libraries save less than opening them at every start takes. */
static void weigh_starts(struct build *build, const double *gains_us)
{
    struct library_gain gains[2 * BUILD_MAX_PLANS];
    struct device_plan *plans = build->cuda.library_plans;
    for (size_t p = 0; p < build->plan_count; p++)
        gains[p] = (struct library_gain){libraries_of(&plans[p]), gains_us[p]};
    const unsigned worth = library_worth(gains, build->plan_count);
    for (size_t p = 0; p < build->plan_count; p++)
        if (gains[p].libraries & ~worth) device_plan_free(&plans[p]);
}

/* However fast it once was: a plan that calls a library must be seen to compute what our own does. */
static bool choose(struct build *build, size_t p, struct device_plan *made, enum tune_level level, double *gain_us,
                   struct status *status)
{
    struct tuning_record record = {.candidates = 2};
    struct comparison comparison;
    if (!make_key(build, p, made, record.key, status)) return false;
    const struct tuning_record *known = build->cache_open ? tuning_cache_find(&build->cache, record.key) : NULL;
    if (known && !(is_answer(known) && tune_cuda_good_enough(known, level))) known = NULL;
    if (known) record = *known;
    if (!known || record.values[0].value || build->options->gpus > 1) {
        if (!compare(build, p, made, &comparison, status)) return false;
        if (!comparison.right) {
            warn_of(build, made, isfinite(comparison.times[1].us));
            return true;
        }
    }
    if (!known && level != TUNE_OFF) {
        const struct plan_time *times = comparison.times;
        describe(&record, times, times[1].us <= (1 - least_gain) * times[0].us, level);
        tune_cuda_save(build, &record);
        build->tactics.measured++;
    }
    if (known || level != TUNE_OFF) build->tactics.records[build->tactics.count++] = record;
    if (!record.values[0].value) {
        if (build->options->gpus == 1) return true;
        made->header.use = PLAN_USE_APART;
    }
    *gain_us = record.runner_up_us - record.median_us;
    build->cuda.library_plans[p] = *made;
    *made = (struct device_plan){.count = 0};
    return true;
}

bool library_plans_cuda(struct build *build, enum tune_level level, struct status *status)
{
    /* What ranks in different processes need does not depend on what is fastest. */
    if (!build->cuda.weights || (level == TUNE_OFF && !nccl_is_open(build))) return true;
    double gains_us[2 * BUILD_MAX_PLANS] = {0};
    bool ok = true, any = false;
    for (size_t p = 0; ok && p < build->plan_count; p++) {
        struct device_plan made;
        ok = make_plan(build, p, &made, status);
        if (ok && made.count > 0 && !any) progress_stage(&build->progress, "compare");
        any = any || made.count > 0;
        ok = ok && (made.count == 0 || choose(build, p, &made, level, &gains_us[p], status));
        device_plan_free(&made);
        if (ok && any) progress_update(&build->progress, p + 1, build->plan_count, NULL);
    }
    if (ok && build->options->gpus == 1) weigh_starts(build, gains_us);
    return ok;
}
