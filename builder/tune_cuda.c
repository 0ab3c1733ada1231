#include "builder/tune_cuda.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "builder/cuda_memory.h"
#include "formats/hash.h"
#include "tuner/race.h"

enum {
    MAX_SITES = 64,     /* launches that a measurement walks through */
    MAX_TACTICS = 64,   /* of one problem */
    FULL_TACTICS = 40,  /* raced at level full */
    QUICK_TACTICS = 15, /* raced at level quick */
    CONTEXTS = 3,
    TUNE_CONTEXT = 4096,  /* at which the bytes and operations of decode attention are counted */
    TUNE_KV_PAGES = 4096, /* at most; the pages of several sequences may be the same */
};
/* Tokens that decode attention sees. One plan serves every context, so a tactic is held to the geometric mean of its times
 * at these. */
static const uint64_t contexts[CONTEXTS] = {256, 8192, 32768};
/* Raised whenever what is measured, or how, changes: older records are then measured anew. */
enum { TUNER_REVISION = 2 };
static const double pass_us = 400; /* least time of one measurement, so that events are exact enough */
static const double quick_budget_us = 0.4e6, full_budget_us = 2e6;

/* Launches that compute the same thing on different weights. */
struct problem {
    enum plan_op op;
    char key[TUNING_KEY_BYTES];
    const struct device_plan *plan; /* the first that has it: its sites are measured */
    const struct device_launch *sites[MAX_SITES];
    int site_count;
    struct device_tactic tactics[MAX_TACTICS];
    int tactic_count, raced; /* the first `raced` are measured */
};

struct tuning {
    struct build *build;
    struct problem *problems; /* owned */
    size_t count, capacity;
    char code[TUNE_CUDA_CODE_BYTES];
    struct cuda_memory memory;
    struct cuda_kernels kernels;
    bool measuring;
    bool ceiling_is_sure;     /* measured over memory that no cache holds */
    double read_bytes_per_us; /* of device memory, measured by a copy */
    double flops_per_us;
};

/* ---- problems ---- */

static bool is_tuned(enum plan_op op)
{
    return op == OP_MATMUL || op == OP_ATTENTION || op == OP_ROPE_ATTENTION || op == OP_RMS_NORM;
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

static struct problem *find_problem(struct tuning *tuning, const char *key)
{
    for (size_t i = 0; i < tuning->count; i++)
        if (strcmp(tuning->problems[i].key, key) == 0) return &tuning->problems[i];
    return NULL;
}

/* One tactic of each kernel in turn, so that a race of few knows them all. */
static void interleave(struct problem *problem)
{
    struct device_tactic sorted[MAX_TACTICS];
    bool taken[MAX_TACTICS] = {false};
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

static struct problem *add_problem(struct tuning *tuning, const struct device_plan *plan,
                                   const struct device_launch *launch, const char *key, int most)
{
    if (tuning->count == tuning->capacity) {
        size_t capacity = tuning->capacity ? 2 * tuning->capacity : 32;
        struct problem *larger = realloc(tuning->problems, capacity * sizeof *larger);
        if (!larger) return NULL;
        tuning->problems = larger;
        tuning->capacity = capacity;
    }
    struct problem *problem = &tuning->problems[tuning->count++];
    memset(problem, 0, sizeof *problem);
    problem->op = launch->op;
    problem->plan = plan;
    memcpy(problem->key, key, TUNING_KEY_BYTES);
    problem->tactic_count = device_tactics(launch->op, launch->tactic.params, &tuning->build->cuda.device.facts,
                                           problem->tactics, MAX_TACTICS);
    problem->raced = problem->tactic_count < most ? problem->tactic_count : most;
    interleave(problem);
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
            struct problem *problem = find_problem(tuning, key);
            if (!problem) problem = add_problem(tuning, plan, launch, key, most);
            if (!problem) return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
            launch->record = (uint32_t)(problem - tuning->problems);
            if (problem->plan == plan && problem->site_count < MAX_SITES)
                problem->sites[problem->site_count++] = launch;
        }
    }
    return true;
}

/* ---- records ---- */

/* The name of the first value is the kernel, the others are its tunables. Returns how many. */
static int describe_tactic(const struct device_tactic *tactic, struct tuning_value values[TUNING_MAX_VALUES])
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

static void describe(struct tuning_record *record, const struct problem *problem, const struct device_tactic *tactic,
                     const struct tuning *tuning)
{
    memset(record, 0, sizeof *record);
    memcpy(record->key, problem->key, sizeof record->key);
    record->value_count = describe_tactic(tactic, record->values);
    tactic->kernel->cost(tactic->params, TUNE_CONTEXT, &record->bytes, &record->flops);
    if (tuning->measuring) {
        double bytes_us = (double)record->bytes / tuning->read_bytes_per_us;
        double flops_us = (double)record->flops / tuning->flops_per_us;
        record->roofline_us = bytes_us > flops_us ? bytes_us : flops_us;
    }
    snprintf(record->level, sizeof record->level, "%s", tune_level_name(TUNE_OFF));
    record->candidates = 1;
}

/* The tactic that a record names, if it is still one of the problem's. */
static const struct device_tactic *recorded(const struct problem *problem, const struct tuning_record *record)
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

/* ---- measuring ---- */

struct bench {
    struct tuning *tuning;
    const struct problem *problem;
    struct cuda_plan plans[MAX_TACTICS];
    struct plan sources[MAX_TACTICS];
    uint32_t launches; /* of each plan */
    cu_event start, end;
    struct status status; /* of the first failure */
};

/* Enough launches that the caches hold nothing of what comes next and that the clock is exact. */
static uint32_t bench_launches(const struct tuning *tuning, const struct problem *problem)
{
    enum { LEAST = 2, MOST = 256 };
    uint64_t bytes, flops;
    problem->tactics[0].kernel->cost(problem->tactics[0].params, TUNE_CONTEXT, &bytes, &flops);
    double us = 2 + (double)bytes / tuning->read_bytes_per_us + (double)flops / tuning->flops_per_us;
    double wanted = pass_us / us;
    uint32_t launches = wanted > MOST ? MOST : wanted < LEAST ? LEAST : (uint32_t)wanted;
    return launches > (uint32_t)problem->site_count
               ? launches / (uint32_t)problem->site_count * (uint32_t)problem->site_count
               : launches;
}

static bool bench_bind(struct bench *bench, int candidate)
{
    struct tuning *tuning = bench->tuning;
    struct build *build = tuning->build;
    struct device_plan chain = {.header = bench->problem->plan->header};
    chain.count = bench->launches;
    chain.launches = calloc(chain.count, sizeof *chain.launches);
    if (!chain.launches) return status_fail(&bench->status, STATUS_MACHINE, "out of memory while tuning");
    for (uint32_t n = 0; n < chain.count; n++) {
        chain.launches[n] = *bench->problem->sites[n % (uint32_t)bench->problem->site_count];
        chain.launches[n].tactic = bench->problem->tactics[candidate];
    }
    bool ok = finish_device_plan(&chain, &build->cuda.device.facts, &build->cuda.kernels, &bench->sources[candidate],
                                 &bench->status) &&
              cuda_plan_bind(&bench->plans[candidate], &build->cuda.device, &tuning->kernels,
                             &bench->sources[candidate], &tuning->memory, "tuning", &bench->status);
    device_plan_free(&chain);
    return ok;
}

/* Every row is a sequence of its own with `context` tokens (decode), or the next token of one prompt. */
static bool write_inputs(const struct tuning *tuning, const struct plan_header *header, uint64_t context,
                         struct status *status)
{
    const struct plan_geometry *geometry = &tuning->build->manifest.geometry;
    struct cuda_inputs inputs;
    if (!cuda_inputs_open(&inputs, tuning->build, header, status)) return false;
    int32_t last = (int32_t)(geometry->max_context > context ? context : geometry->max_context) - 1;
    bool decode = header->kind == PLAN_DECODE;
    uint32_t rows = decode || header->rows <= geometry->max_context ? header->rows : (uint32_t)geometry->max_context;
    inputs.counts[0] = (int32_t)rows;
    inputs.counts[1] = (int32_t)header->out_rows;
    for (uint32_t r = 0; r < rows; r++) {
        inputs.tokens[r] = (int32_t)(r % geometry->vocab_size);
        inputs.slots[r] = decode ? (int32_t)r : 0;
        inputs.positions[r] = decode ? last : (int32_t)r;
    }
    for (uint32_t r = 0; r < header->out_rows; r++) inputs.out_rows[r] = (int32_t)r;
    const struct device *device = &tuning->build->cuda.device;
    bool ok =
        cuda_inputs_write(&inputs, &tuning->memory, tuning->build, status) &&
        cuda_ok(&device->driver, device->driver.StreamSynchronize(device->stream), status, "writing the step's inputs");
    cuda_inputs_close(&inputs);
    return ok;
}

/* One pass through the chain; microseconds per launch. */
static double bench_pass(struct bench *bench, int candidate)
{
    const struct device *device = &bench->tuning->build->cuda.device;
    const struct cuda_driver *driver = &device->driver;
    float milliseconds = 0;
    if (!bench->plans[candidate].exec) return -1;
    bool ok =
        cuda_ok(driver, driver->EventRecord(bench->start, device->stream), &bench->status, "timing") &&
        cuda_plan_launch(&bench->plans[candidate], device, &bench->status) &&
        cuda_ok(driver, driver->EventRecord(bench->end, device->stream), &bench->status, "timing") &&
        cuda_ok(driver, driver->EventSynchronize(bench->end), &bench->status, "running a candidate") &&
        cuda_ok(driver, driver->EventElapsedTime(&milliseconds, bench->start, bench->end), &bench->status, "timing");
    return ok ? (double)milliseconds * 1e3 / bench->launches : -1;
}

static double bench_run(void *context, int candidate)
{
    struct bench *bench = context;
    if (bench->problem->op != OP_ROPE_ATTENTION) return bench_pass(bench, candidate);
    double product = 1;
    for (int i = 0; i < CONTEXTS; i++) {
        if (!write_inputs(bench->tuning, &bench->problem->plan->header, contexts[i], &bench->status)) return -1;
        double us = bench_pass(bench, candidate);
        if (us < 0) return -1;
        product *= us;
    }
    return pow(product, 1.0 / CONTEXTS);
}

static void bench_close(struct bench *bench)
{
    const struct device *device = &bench->tuning->build->cuda.device;
    for (int c = 0; c < bench->problem->raced; c++) {
        cuda_plan_free(&bench->plans[c], device);
        lowered_plan_free(&bench->sources[c]);
    }
    if (bench->start) device->driver.EventDestroy(bench->start);
    if (bench->end) device->driver.EventDestroy(bench->end);
}

static bool measure(struct tuning *tuning, const struct problem *problem, enum tune_level level,
                    struct tuning_record *record, struct status *status)
{
    const struct device *device = &tuning->build->cuda.device;
    bool ok = false;
    struct bench *bench = calloc(1, sizeof *bench);
    struct race_result *result = malloc(sizeof *result);
    if (!bench || !result) {
        free(bench);
        free(result);
        return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    }
    bench->tuning = tuning;
    bench->problem = problem;
    bench->launches = bench_launches(tuning, problem);
    if (!write_inputs(tuning, &problem->plan->header, TUNE_CONTEXT, status) ||
        !cuda_ok(&device->driver, device->driver.EventCreate(&bench->start, CU_EVENT_DEFAULT), status, "an event") ||
        !cuda_ok(&device->driver, device->driver.EventCreate(&bench->end, CU_EVENT_DEFAULT), status, "an event"))
        goto done;
    /* A tactic that this GPU cannot take is out of the race; if all are, the last one's reason is told. */
    for (int c = 0; c < problem->raced; c++) bench_bind(bench, c);
    describe(record, problem, &problem->tactics[0], tuning);
    struct race_options options = {
        .budget_us = level == TUNE_FULL ? full_budget_us : quick_budget_us,
        .floor_us = record->roofline_us,
        .good_enough = level == TUNE_FULL || !tuning->ceiling_is_sure ? 0 : 1.02,
        .first_repetitions = 3,
    };
    race(bench_run, bench, problem->raced, &options, result);
    if (result->winner < 0) {
        *status = bench->status;
        status_prefix(status, "tuning '%s'", problem->key);
        goto done;
    }
    describe(record, problem, &problem->tactics[result->winner], tuning);
    record->median_us = result->entries[result->winner].median_us;
    record->spread_us = result->entries[result->winner].spread_us;
    if (result->runner_up >= 0) {
        record->runner_up_count = describe_tactic(&problem->tactics[result->runner_up], record->runner_up);
        record->runner_up_us = result->entries[result->runner_up].median_us;
    }
    record->candidates = (uint32_t)problem->raced;
    snprintf(record->level, sizeof record->level, "%s", tune_level_name(level));
    ok = true;
done:
    bench_close(bench);
    free(bench);
    free(result);
    return ok;
}

/* ---- the machine ---- */

/* A copy inside device memory reads and writes: the ceiling that kernels are held against. */
static bool measure_bandwidth(struct tuning *tuning, struct status *status)
{
    enum { REPETITIONS = 5 };
    const struct build *build = tuning->build;
    const struct device *device = &build->cuda.device;
    const struct cuda_driver *driver = &device->driver;
    uint64_t bytes = tuning->memory.bytes[SPACE_KV] / 2;
    tuning->ceiling_is_sure = bytes >= 4 * (uint64_t)device->facts.l2_bytes;
    cu_event events[2] = {NULL, NULL};
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok = ok && cuda_ok(driver, driver->EventCreate(&events[i], CU_EVENT_DEFAULT), status, "an event");
    for (int r = 0; ok && r < REPETITIONS; r++) {
        float milliseconds = 0;
        cu_deviceptr base = tuning->memory.base[SPACE_KV];
        ok = cuda_ok(driver, driver->EventRecord(events[0], device->stream), status, "timing") &&
             cuda_ok(driver, driver->MemcpyDtoDAsync(base, base + bytes, bytes, device->stream), status, "copying") &&
             cuda_ok(driver, driver->EventRecord(events[1], device->stream), status, "timing") &&
             cuda_ok(driver, driver->EventSynchronize(events[1]), status, "copying") &&
             cuda_ok(driver, driver->EventElapsedTime(&milliseconds, events[0], events[1]), status, "timing");
        double rate = milliseconds > 0 ? 2 * (double)bytes / ((double)milliseconds * 1e3) : 0;
        if (rate > tuning->read_bytes_per_us) tuning->read_bytes_per_us = rate;
    }
    for (int i = 0; i < 2; i++)
        if (events[i]) driver->EventDestroy(events[i]);
    if (ok && tuning->read_bytes_per_us <= 0) tuning->read_bytes_per_us = 1e6;
    /* What tensor cores can do at most: 4096 operations a clock and SM from Hopper on, 2048 before. */
    int clock_khz = 0;
    const struct device_facts *facts = &device->facts;
    driver->DeviceGetAttribute(&clock_khz, CU_ATTRIBUTE_CLOCK_RATE, device->handle);
    if (clock_khz <= 0) clock_khz = 1500000;
    tuning->flops_per_us = (facts->capability >= 90 ? 4096.0 : 2048.0) * facts->multiprocessors * clock_khz * 1e-3;
    return ok;
}

static bool open_memory(struct tuning *tuning, struct status *status)
{
    struct build *build = tuning->build;
    const struct plan_geometry *geometry = &build->manifest.geometry;
    uint64_t free_bytes = 0, fixed = build->manifest.arena_bytes + build->manifest.step_bytes;
    if (!device_free_memory(&build->cuda.device, &free_bytes, status)) return false;
    uint64_t pages = free_bytes > fixed ? (free_bytes - fixed) / 2 / geometry->page_bytes : 0;
    if (pages > TUNE_KV_PAGES) pages = TUNE_KV_PAGES;
    if (pages < 1) pages = 1;
    if (!cuda_memory_open(&tuning->memory, build, pages, status) ||
        !cuda_memory_randomise(&tuning->memory, build, SPACE_KV, status) || !measure_bandwidth(tuning, status))
        return false;
    /* Not the scratch at its beginning, where kernels expect zeros. */
    struct cuda_memory values = tuning->memory;
    values.base[SPACE_ARENA] += build->lowering.scratch_bytes;
    values.bytes[SPACE_ARENA] -= build->lowering.scratch_bytes;
    return cuda_memory_randomise(&values, build, SPACE_ARENA, status);
}

/* ---- all of it ---- */

static void compile_progressed(void *context, uint64_t done, uint64_t total)
{
    progress_update(context, done, total, NULL);
}

/* Compiles every candidate of the problems that the cache does not answer, and loads them. */
static bool prepare(struct tuning *tuning, const bool *answered, struct status *status)
{
    struct build *build = tuning->build;
    struct cuda_build *cuda = &build->cuda;
    for (size_t i = 0; i < tuning->count; i++) {
        struct problem *problem = &tuning->problems[i];
        for (int t = 0; !answered[i] && t < problem->raced; t++)
            if (kernel_set_add(&cuda->kernels, &problem->tactics[t], problem->sites[0]->operand_count) == UINT32_MAX)
                return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    }
    if (cuda->kernels.count == 0) return true;
    progress_stage(&build->progress, "compile");
    if (!kernel_set_compile(&cuda->kernels, cuda->nvrtc, cuda->device.facts.capability, team_size(build->team),
                            compile_progressed, &build->progress, status))
        return false;
    struct engine_kernel *entries = kernel_set_view(&cuda->kernels);
    if (!entries) return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    bool ok = cuda_kernels_load(&tuning->kernels, &cuda->device, entries, cuda->kernels.count, status);
    free(entries);
    progress_stage(&build->progress, "tune");
    return ok;
}

static bool solve(struct tuning *tuning, size_t i, enum tune_level level, bool answered, struct status *status)
{
    struct build *build = tuning->build;
    struct tactics *tactics = &build->tactics;
    struct tuning_record *record = &tactics->records[i];
    const struct problem *problem = &tuning->problems[i];
    if (answered) {
        *record = *tuning_cache_find(&build->cache, problem->key);
        tactics->cached++;
        return true;
    }
    if (!tuning->measuring) {
        describe(record, problem, &problem->tactics[0], tuning);
        return true;
    }
    if (!measure(tuning, problem, level, record, status)) return false;
    tactics->measured++;
    if (build->cache_open && (tactics->unsaved || !tuning_cache_add(&build->cache, record, &tactics->cache_status)))
        tactics->unsaved++;
    char best[160];
    snprintf(best, sizeof best, "%zu/%zu %s %.2f us, %.0f %% of the roofline", i + 1, tuning->count,
             record->values[0].name, record->median_us,
             record->median_us > 0 ? 100 * record->roofline_us / record->median_us : 0);
    progress_update(&build->progress, i + 1, tuning->count, best);
    return true;
}

static bool apply(struct tuning *tuning, struct status *status)
{
    struct build *build = tuning->build;
    for (size_t p = 0; p < 2 * build->plan_count; p++) {
        struct device_plan *plan = plan_or_alternative(build, p);
        for (uint32_t n = 0; n < plan->count; n++) {
            struct device_launch *launch = &plan->launches[n];
            if (launch->record == PLAN_NO_TACTIC) continue;
            const struct device_tactic *tactic =
                recorded(&tuning->problems[launch->record], &build->tactics.records[launch->record]);
            if (!tactic)
                return status_fail(status, STATUS_INTERNAL, "tuning record '%s' names no tactic",
                                   tuning->problems[launch->record].key);
            launch->tactic = *tactic;
        }
    }
    return true;
}

bool tune_cuda(struct build *build, enum tune_level level, struct status *status)
{
    bool ok = false, *answered = NULL, entered = false;
    struct tuning tuning = {.build = build};
    tuning.measuring = level != TUNE_OFF && build->cuda.weights;
    tune_cuda_code(tuning.code);
    memset(&build->tactics, 0, sizeof build->tactics);
    if (!collect(&tuning, level == TUNE_FULL ? FULL_TACTICS : QUICK_TACTICS, status)) goto done;
    build->tactics.records = calloc(tuning.count + build->plan_count + 1, sizeof *build->tactics.records);
    answered = calloc(tuning.count + 1, sizeof *answered);
    if (!build->tactics.records || !answered) {
        status_fail(status, STATUS_MACHINE, "out of memory while tuning");
        goto done;
    }
    bool any = false;
    for (size_t i = 0; i < tuning.count; i++) {
        const struct tuning_record *known =
            build->cache_open ? tuning_cache_find(&build->cache, tuning.problems[i].key) : NULL;
        answered[i] = known && tune_cuda_good_enough(known, level) && recorded(&tuning.problems[i], known);
        any |= !answered[i];
    }
    if (tuning.measuring && any) {
        entered = device_enter(&build->cuda.device, status);
        if (!entered || !open_memory(&tuning, status) || !prepare(&tuning, answered, status)) goto done;
    }
    tuning.measuring = tuning.measuring && any;
    build->machine.read_gb_s = tuning.read_bytes_per_us * 1e-3;
    build->machine.peak_gflops = tuning.flops_per_us * 1e-3;
    for (size_t i = 0; i < tuning.count; i++, build->tactics.count++)
        if (!solve(&tuning, i, level, answered[i], status)) goto done;
    ok = apply(&tuning, status);
done:
    cuda_kernels_free(&tuning.kernels, &build->cuda.device);
    if (entered) {
        cuda_memory_close(&tuning.memory, build);
        device_leave(&build->cuda.device);
    }
    /* What was only raced stays out of the engine. */
    kernel_set_free(&build->cuda.kernels);
    free(answered);
    free(tuning.problems);
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
    bool ok = collect(&tuning, MAX_TACTICS, status);
    for (size_t i = 0; ok && i < tuning.count; i++) {
        const struct problem *problem = &tuning.problems[i];
        fprintf(out, "# %s\n", problem->key);
        for (int t = 0; t < problem->tactic_count; t++) print_tactic(&problem->tactics[t], gpu, out);
        const struct device_kernel *const *kernels = device_kernels(problem->op);
        for (int k = 0; kernels[k]; k++) {
            bool raced = false;
            for (int t = 0; t < problem->tactic_count; t++) raced |= problem->tactics[t].kernel == kernels[k];
            if (raced) continue;
            struct device_geometry geometry;
            const char *reason = device_kernel_runs_on(kernels[k], gpu)
                                     ? kernels[k]->launch(problem->sites[0]->tactic.params, gpu, &geometry)
                                     : "not for this GPU";
            fprintf(out, "  %s: not raced: %s\n", kernels[k]->name, reason ? reason : "enough others");
        }
    }
    free(tuning.problems);
    return ok;
}
