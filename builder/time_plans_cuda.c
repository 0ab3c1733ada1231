/* Whole plans on the GPU, as the engine will replay them: what a step really takes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "builder/time_plans_cuda.h"

enum { TIME_CONTEXT = 200, LONGEST_CONTEXT = 32768, LONG_SEQUENCES = 2, WARM_UP = 2, REPETITIONS = 9 };

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool plan_timer_open(struct plan_timer *timer, const struct build *build, const struct kernel_set *kernels,
                     struct status *status)
{
    const struct device *device = &build->cuda.device;
    const struct plan_geometry *geometry = &build->manifest.geometry;
    uint64_t pages = geometry->slots * (TIME_CONTEXT / geometry->page_tokens + 1);
    for (size_t p = 0; p < build->plan_count; p++) {
        uint64_t wanted = build->plans[p].header.rows / geometry->page_tokens + 1;
        if (build->plans[p].header.kind == PLAN_PREFILL && wanted > pages) pages = wanted;
    }
    /* Long sequences share pages beyond these: more than caches hold. */
    uint64_t longest = geometry->max_context < LONGEST_CONTEXT ? geometry->max_context : LONGEST_CONTEXT;
    uint64_t wanted = LONG_SEQUENCES * (longest / geometry->page_tokens + 1);
    if (wanted > pages) pages = wanted;
    memset(timer, 0, sizeof *timer);
    timer->build = build;
    /* Sequences share pages where the memory is small: then the figure flatters, but the build goes on. */
    uint64_t free_bytes = 0, fixed = cuda_memory_arena_bytes(build) + build->manifest.step_bytes;
    if (!device_free_memory(device, &free_bytes, status)) return false;
    uint64_t most = free_bytes > fixed ? (free_bytes - fixed) / 2 / geometry->page_bytes : 0;
    if (pages > most) pages = most > 0 ? most : 1;
    struct engine_kernel *entries = kernel_set_view(kernels);
    if (!entries) return status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
    timer->entered = device_enter(device, status);
    bool ok = timer->entered && cuda_memory_open(&timer->memory, build, pages, status) &&
              cuda_memory_randomise(&timer->memory, build, SPACE_KV, status) &&
              cuda_kernels_load(&timer->kernels, device, entries, kernels->count, status);
    for (int i = 0; i < 2; i++)
        ok = ok && cuda_ok(&device->driver, device->driver.EventCreate(&timer->events[i], CU_EVENT_DEFAULT), status,
                           "an event");
    timer->calls =
        (struct cuda_calls){.entries = kernels->calls, .count = kernels->call_count, .cublaslt = build->cuda.cublaslt};
    timer->kernels.calls = &timer->calls;
    free(entries);
    if (!ok) plan_timer_close(timer);
    return ok;
}

void plan_timer_close(struct plan_timer *timer)
{
    const struct device *device = &timer->build->cuda.device;
    if (!timer->entered) return;
    for (int i = 0; i < 2; i++)
        if (timer->events[i]) device->driver.EventDestroy(timer->events[i]);
    cuda_kernels_free(&timer->kernels, device);
    cuda_memory_close(&timer->memory, timer->build);
    device_leave(device);
    timer->entered = false;
}

/* Decode: every slot at a context of `tokens`. Prefill: one prompt from its first token. The step's feedback moves the positions,
 * so they are written before each replay. */
static bool time_bound(struct plan_timer *timer, const struct cuda_plan *bound, const struct plan *plan,
                       uint64_t tokens, double *us, struct status *status)
{
    const struct build *build = timer->build;
    const struct device *device = &build->cuda.device;
    const struct cuda_driver *driver = &device->driver;
    const struct plan_geometry *geometry = &build->manifest.geometry;
    const struct cuda_memory *memory = &timer->memory;
    cu_event *events = timer->events;
    struct cuda_inputs inputs;
    if (!cuda_inputs_open(&inputs, build, &plan->header, status)) return false;
    bool decode = plan->header.kind == PLAN_DECODE, ok = true;
    uint32_t rows = plan->header.rows;
    if (!decode && rows > geometry->max_context) rows = (uint32_t)geometry->max_context;
    int32_t context = (int32_t)(geometry->max_context > tokens ? tokens : geometry->max_context - 1);
    inputs.counts[0] = (int32_t)rows;
    inputs.counts[1] = (int32_t)plan->header.out_rows;
    for (uint32_t r = 0; r < rows; r++) {
        inputs.tokens[r] = (int32_t)((r * UINT64_C(7919)) % geometry->vocab_size);
        inputs.slots[r] = decode ? (int32_t)r : 0;
        inputs.positions[r] = decode ? context : (int32_t)r;
    }
    for (uint32_t r = 0; r < plan->header.out_rows; r++) inputs.out_rows[r] = (int32_t)(decode ? r : rows - 1);
    double times[REPETITIONS];
    for (int i = -WARM_UP; ok && i < REPETITIONS; i++) {
        float milliseconds = 0;
        ok = cuda_inputs_write(&inputs, memory, build, status) &&
             cuda_ok(driver, driver->EventRecord(events[0], device->stream), status, "timing a plan") &&
             cuda_plan_launch(bound, device, status) &&
             cuda_ok(driver, driver->EventRecord(events[1], device->stream), status, "timing a plan") &&
             cuda_ok(driver, driver->EventSynchronize(events[1]), status, "running a plan") &&
             cuda_ok(driver, driver->EventElapsedTime(&milliseconds, events[0], events[1]), status, "timing a plan");
        if (i >= 0) times[i] = (double)milliseconds * 1e3;
    }
    cuda_inputs_close(&inputs);
    if (!ok) return false;
    qsort(times, REPETITIONS, sizeof *times, compare_double);
    *us = times[REPETITIONS / 2];
    return true;
}

bool plan_timer_run(struct plan_timer *timer, const struct plan *plan, double *us, struct status *status)
{
    struct cuda_plan bound = {0};
    const struct device *device = &timer->build->cuda.device;
    bool ok = cuda_plan_bind(&bound, device, &timer->kernels, plan, &timer->memory, "a plan", status) &&
              time_bound(timer, &bound, plan, TIME_CONTEXT, us, status);
    cuda_plan_free(&bound, device);
    return ok;
}

bool plan_timer_run_contexts(struct plan_timer *timer, const struct plan *plan, double *us, struct status *status)
{
    static const uint64_t contexts[] = {TIME_CONTEXT, 8192, LONGEST_CONTEXT};
    enum { CONTEXTS = sizeof contexts / sizeof *contexts };
    struct cuda_plan bound = {0};
    const struct device *device = &timer->build->cuda.device;
    double product = 1;
    bool ok = cuda_plan_bind(&bound, device, &timer->kernels, plan, &timer->memory, "a plan", status);
    for (int i = 0; ok && i < CONTEXTS; i++) {
        double one = 0;
        ok = time_bound(timer, &bound, plan, contexts[i], &one, status);
        product *= one;
    }
    cuda_plan_free(&bound, device);
    *us = pow(product, 1.0 / CONTEXTS);
    return ok;
}

bool plan_timer_logits(const struct plan_timer *timer, const struct plan *plan, float *logits, struct status *status)
{
    const struct device *device = &timer->build->cuda.device;
    struct plan_field fields[STEP_FIELD_COUNT];
    uint64_t total;
    if (!step_layout(plan->header.rows, plan->header.out_rows, timer->build->manifest.geometry.vocab_size, fields,
                     &total))
        return status_fail(status, STATUS_INTERNAL, "step layout");
    return cuda_ok(&device->driver,
                   device->driver.MemcpyDtoHAsync(logits, timer->memory.base[SPACE_STEP] + fields[STEP_LOGITS].offset,
                                                  fields[STEP_LOGITS].bytes, device->stream),
                   status, "reading logits") &&
           cuda_ok(&device->driver, device->driver.StreamSynchronize(device->stream), status, "reading logits");
}
