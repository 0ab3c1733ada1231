/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/matmul/matmul.h"
#include "tuner/cuda/bench_choices.h"
#include "tuner/cuda/library_launches.h"

enum {
    CONTEXTS = 3,
    TUNE_KV_PAGES = 4096, /* at most, of each page group; several sequences may share pages */
};
/* Tokens that decode attention sees. One plan serves every context, so a tactic is judged by the geometric mean of its
 * times at these contexts. */
static const uint64_t contexts[CONTEXTS] = {256, 8192, 32768};
static const double pass_us = 400; /* shortest measurement, so that event times are exact enough */
static const double quick_budget_us = 0.4e6, full_budget_us = 1e6;

static const struct device *device_of(const struct cuda_bench *bench)
{
    return &bench->rig->gpus->devices[bench->rank];
}

/* ---- chains ---- */

struct bench_run {
    struct cuda_bench *bench;
    const struct bench_problem *problem;
    struct cuda_plan plans[BENCH_MAX_TACTICS];
    struct plan sources[BENCH_MAX_TACTICS];
    uint32_t launches; /* most sites in a plan */
    cu_event start, end;
    struct status status; /* reason of the latest failure */
};

/* So many launches that no cache keeps data until its next use, and that the event times are exact. */
static uint32_t count_launches(const struct cuda_bench *bench, const struct bench_problem *problem)
{
    enum { LEAST = 2, MOST = 256 };
    uint64_t bytes, flops;
    problem->tactics[0].kernel->cost(problem->tactics[0].params, BENCH_CONTEXT, &bytes, &flops);
    double us = 2 + (double)bytes / bench->read_bytes_per_us + (double)flops / bench->flops_per_us;
    double wanted = pass_us / us;
    uint32_t launches = wanted > MOST ? MOST : wanted < LEAST ? LEAST : (uint32_t)wanted;
    return launches > (uint32_t)problem->site_count
               ? launches / (uint32_t)problem->site_count * (uint32_t)problem->site_count
               : launches;
}

static bool bind(struct bench_run *run, int candidate)
{
    struct cuda_bench *bench = run->bench;
    const struct device_tactic *tactic = &run->problem->tactics[candidate];
    struct device_plan chain = {.header = run->problem->plan->header,
                                .vocab_size = run->problem->plan->vocab_size,
                                .hidden_size = run->problem->plan->hidden_size,
                                .drafts = run->problem->plan->drafts};
    struct library_space space =
        library_space_begin(chain.header.arena_bytes, library_projection_bytes(run->problem->sites[0]));
    chain.launches = calloc(LIBRARY_MOST_LAUNCHES * run->launches, sizeof *chain.launches);
    if (!chain.launches) return status_fail(&run->status, STATUS_MACHINE, "out of memory while tuning");
    for (uint32_t n = 0; n < run->launches; n++) {
        const struct device_launch *site = run->problem->sites[n % (uint32_t)run->problem->site_count];
        if (tactic->kernel->library) {
            chain.count += library_launches(site, tactic, &space, chain.launches + chain.count);
        } else {
            chain.launches[chain.count] = *site;
            chain.launches[chain.count++].tactic = *tactic;
        }
    }
    if (space.end > chain.header.arena_bytes) chain.header.arena_bytes = space.end;
    pthread_mutex_lock(bench->lock);
    bool ok =
        device_plan_finish(&chain, &device_of(bench)->facts, bench->shared, &run->sources[candidate], &run->status);
    bench->calls.entries = bench->shared->calls;
    bench->calls.count = bench->shared->call_count;
    pthread_mutex_unlock(bench->lock);
    ok = ok && cuda_plan_bind(&run->plans[candidate], device_of(bench), &bench->kernels, &run->sources[candidate],
                              &bench->memory, "tuning", &run->status);
    device_plan_free(&chain);
    return ok;
}

/* Decode: `context` tokens, including the new one. Prefill: as cuda_inputs_fill has it. */
static bool write_inputs(const struct cuda_bench *bench, const struct plan_header *header, uint64_t context,
                         struct status *status)
{
    const struct device *device = device_of(bench);
    struct cuda_inputs inputs;
    if (!cuda_inputs_open(&inputs, bench->rig, header, status)) return false;
    cuda_inputs_fill(&inputs, bench->rig, header, context - 1);
    /* Experts by position: routed_mlp changes the x by which its next launch would choose. */
    for (uint32_t r = 0; r < header->rows; r++) inputs.seeds[r] = (int32_t)r + 1;
    bool ok =
        cuda_inputs_write(&inputs, &bench->memory, device, status) &&
        cuda_ok(&device->driver, device->driver.StreamSynchronize(device->stream), status, "writing the step's inputs");
    cuda_inputs_close(&inputs);
    return ok;
}

/* One pass through the chain; microseconds per site. */
static double run_pass(struct bench_run *run, int candidate)
{
    const struct device *device = device_of(run->bench);
    const struct cuda_driver *driver = &device->driver;
    float milliseconds = 0;
    if (!run->plans[candidate].exec) return -1;
    bool ok = cuda_ok(driver, driver->EventRecord(run->start, device->stream), &run->status, "timing") &&
              cuda_plan_launch(&run->plans[candidate], device, &run->status) &&
              cuda_ok(driver, driver->EventRecord(run->end, device->stream), &run->status, "timing") &&
              cuda_ok(driver, driver->EventSynchronize(run->end), &run->status, "running a candidate") &&
              cuda_ok(driver, driver->EventElapsedTime(&milliseconds, run->start, run->end), &run->status, "timing");
    return ok ? (double)milliseconds * 1e3 / run->launches : -1;
}

static double run_candidate(void *context, int candidate)
{
    struct bench_run *run = context;
    if (!bench_reads_context(run->problem->op)) return run_pass(run, candidate);
    double product = 1;
    for (int i = 0; i < CONTEXTS; i++) {
        if (!write_inputs(run->bench, &run->problem->plan->header, contexts[i], &run->status)) return -1;
        double us = run_pass(run, candidate);
        if (us < 0) return -1;
        product *= us;
    }
    return pow(product, 1.0 / CONTEXTS);
}

static void run_close(struct bench_run *run)
{
    const struct device *device = device_of(run->bench);
    for (int c = 0; c < run->problem->tactic_count; c++) {
        cuda_plan_free(&run->plans[c], device);
        plan_free(&run->sources[c]);
    }
    if (run->start) device->driver.EventDestroy(run->start);
    if (run->end) device->driver.EventDestroy(run->end);
    free(run);
}

double cuda_bench_roofline(const struct cuda_bench *bench, const struct device_tactic *tactic)
{
    uint64_t bytes, flops;
    tactic->kernel->cost(tactic->params, BENCH_CONTEXT, &bytes, &flops);
    const bool multiplies_codes = tactic->kernel->op == OP_MATMUL && tactic->params[MATMUL_HAS_X_SCALES];
    const double bytes_us = (double)bytes / bench->read_bytes_per_us;
    const double flops_us = (double)flops / bench->flops_per_us / (multiplies_codes ? 2 : 1);
    return bytes_us > flops_us ? bytes_us : flops_us;
}

static struct race_options race_options_for(enum tune_level level)
{
    return (struct race_options){.budget_us = level == TUNE_FULL ? full_budget_us : quick_budget_us,
                                 .first_repetitions = 3};
}

double cuda_bench_expected_us(const struct cuda_bench *bench, const struct bench_problem *problem,
                              enum tune_level level)
{
    /* Estimate: each launch costs one graph node, and takes longer than the roofline. */
    const double bind_us = 10, overhead_us = 3, slowness = 1.5;
    const struct race_options options = race_options_for(level);
    const double launches = count_launches(bench, problem);
    double call_us = launches * (overhead_us + slowness * cuda_bench_roofline(bench, &problem->tactics[0]));
    if (bench_reads_context(problem->op)) call_us *= CONTEXTS;
    return problem->tactic_count * launches * bind_us + race_expected_us(problem->tactic_count, call_us, &options);
}

bool cuda_bench_race(struct cuda_bench *bench, const struct bench_problem *problem, enum tune_level level,
                     struct race_result *result, struct status *status)
{
    const struct device *device = device_of(bench);
    struct bench_run *run = calloc(1, sizeof *run);
    if (!run) return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    run->bench = bench;
    run->problem = problem;
    run->launches = count_launches(bench, problem);
    bool ok = write_inputs(bench, &problem->plan->header, BENCH_CONTEXT, status) &&
              bench_write_choices(&bench->memory, device, problem->sites, problem->site_count, status) &&
              cuda_ok(&device->driver, device->driver.EventCreate(&run->start, CU_EVENT_DEFAULT), status, "an event") &&
              cuda_ok(&device->driver, device->driver.EventCreate(&run->end, CU_EVENT_DEFAULT), status, "an event");
    for (int c = 0; ok && c < problem->tactic_count; c++) bind(run, c);
    struct race_options options = race_options_for(level);
    options.floor_us = cuda_bench_roofline(bench, &problem->tactics[0]);
    options.good_enough = level == TUNE_FULL || !bench->ceiling_is_sure ? 0 : 1.02;
    if (ok) race(run_candidate, run, problem->tactic_count, &options, result);
    if (ok && result->winner < 0) {
        *status = run->status;
        ok = false;
    }
    run_close(run);
    return ok;
}

/* ---- the machine ---- */

/* Measures the bandwidth ceiling by a copy inside device memory, which reads and writes. */
static bool measure_bandwidth(struct cuda_bench *bench, struct status *status)
{
    enum { REPETITIONS = 5 };
    const struct device *device = device_of(bench);
    const struct cuda_driver *driver = &device->driver;
    uint64_t bytes = bench->memory.bytes[SPACE_KV] / 2;
    bench->ceiling_is_sure = bytes >= 4 * (uint64_t)device->facts.l2_bytes;
    cu_event events[2] = {NULL, NULL};
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok = ok && cuda_ok(driver, driver->EventCreate(&events[i], CU_EVENT_DEFAULT), status, "an event");
    for (int r = 0; ok && r < REPETITIONS; r++) {
        float milliseconds = 0;
        cu_deviceptr base = bench->memory.base[SPACE_KV];
        ok = cuda_ok(driver, driver->EventRecord(events[0], device->stream), status, "timing") &&
             cuda_ok(driver, driver->MemcpyDtoDAsync(base, base + bytes, bytes, device->stream), status, "copying") &&
             cuda_ok(driver, driver->EventRecord(events[1], device->stream), status, "timing") &&
             cuda_ok(driver, driver->EventSynchronize(events[1]), status, "copying") &&
             cuda_ok(driver, driver->EventElapsedTime(&milliseconds, events[0], events[1]), status, "timing");
        double rate = milliseconds > 0 ? 2 * (double)bytes / ((double)milliseconds * 1e3) : 0;
        if (rate > bench->read_bytes_per_us) bench->read_bytes_per_us = rate;
    }
    for (int i = 0; i < 2; i++)
        if (events[i]) driver->EventDestroy(events[i]);
    if (ok && bench->read_bytes_per_us <= 0) bench->read_bytes_per_us = 1e6;
    /* Peak rate of the tensor cores: 4096 operations per clock and SM from Hopper on, 2048 before. */
    int clock_khz = 0;
    const struct device_facts *facts = &device->facts;
    driver->DeviceGetAttribute(&clock_khz, CU_ATTRIBUTE_CLOCK_RATE, device->handle);
    if (clock_khz <= 0) clock_khz = 1500000;
    bench->flops_per_us = (facts->capability >= 90 ? 4096.0 : 2048.0) * facts->multiprocessors * clock_khz * 1e-3;
    return ok;
}

bool cuda_bench_open(struct cuda_bench *bench, const struct cuda_rig *rig, uint32_t rank, uint64_t scratch_bytes,
                     struct kernel_set *shared, pthread_mutex_t *lock, struct status *status)
{
    const struct device *device = &rig->gpus->devices[rank];
    const struct plan_geometry *geometry = &rig->manifest->geometry;
    uint64_t free_bytes = 0, fixed = rig->arena_bytes + rig->manifest->step_bytes;
    memset(bench, 0, sizeof *bench);
    bench->rig = rig;
    bench->shared = shared;
    bench->rank = rank;
    bench->lock = lock;
    if (!gpus_borrow_calls(rig->gpus, rank, false, &bench->calls, status) ||
        !device_free_memory(device, &free_bytes, status))
        return false;
    uint64_t pages = free_bytes > fixed ? (free_bytes - fixed) / 2 / geometry->page_bytes : 0;
    const uint64_t most = TUNE_KV_PAGES * (uint64_t)plan_page_groups(geometry);
    if (pages > most) pages = most;
    if (pages < 1) pages = 1;
    if (!cuda_memory_open(&bench->memory, rig, rank, pages, status) ||
        !cuda_memory_randomise(&bench->memory, device, SPACE_KV, status) || !measure_bandwidth(bench, status))
        return false;
    /* Skips the scratch area at the start of the arena: kernels expect zeros there. */
    struct cuda_memory values = bench->memory;
    values.base[SPACE_ARENA] += scratch_bytes;
    values.bytes[SPACE_ARENA] -= scratch_bytes;
    return cuda_memory_randomise(&values, device, SPACE_ARENA, status);
}

void cuda_bench_close(struct cuda_bench *bench)
{
    if (!bench->rig) return;
    cuda_kernels_free(&bench->kernels, device_of(bench));
    cuda_calls_close(&bench->calls, device_of(bench));
    cuda_memory_close(&bench->memory, bench->rig, device_of(bench));
    memset(bench, 0, sizeof *bench);
}

bool cuda_bench_load(struct cuda_bench *bench, struct status *status)
{
    struct engine_kernel *entries = kernel_set_view(bench->shared);
    if (!entries) return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
    cuda_kernels_free(&bench->kernels, device_of(bench));
    bool ok = cuda_kernels_load(&bench->kernels, device_of(bench), entries, bench->shared->count, status);
    bench->kernels.calls = &bench->calls;
    free(entries);
    return ok;
}
