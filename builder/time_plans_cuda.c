/* Whole plans on the GPU, as the engine will replay them: what a step really takes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "builder/build_cuda.h"
#include "builder/time_plans_cuda.h"

enum { TIME_CONTEXT = 200, LONGEST_CONTEXT = 32768, LONG_SEQUENCES = 2, WARM_UP = 1, REPETITIONS = 7 };

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
    ok = ok && cuda_calls_borrow(&timer->calls, &build->cuda.cublaslt, &build->cuda.cudnn, status);
    timer->calls.entries = kernels->calls;
    timer->calls.count = kernels->call_count;
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
    cuda_calls_close(&timer->calls, device);
    cuda_memory_close(&timer->memory, timer->build);
    device_leave(device);
    timer->entered = false;
}

/* The step's feedback moves the positions, so they are written before each replay. */
static bool replay(struct plan_timer *timer, const struct cuda_plan *bound, const struct cuda_inputs *inputs,
                   double *us, struct status *status)
{
    const struct device *device = &timer->build->cuda.device;
    const struct cuda_driver *driver = &device->driver;
    const cu_event *events = timer->events;
    float milliseconds = 0;
    bool ok = cuda_inputs_write(inputs, &timer->memory, timer->build, status) &&
              cuda_ok(driver, driver->EventRecord(events[0], device->stream), status, "timing a plan") &&
              cuda_plan_launch(bound, device, status) &&
              cuda_ok(driver, driver->EventRecord(events[1], device->stream), status, "timing a plan") &&
              cuda_ok(driver, driver->EventSynchronize(events[1]), status, "running a plan") &&
              cuda_ok(driver, driver->EventElapsedTime(&milliseconds, events[0], events[1]), status, "timing a plan");
    *us = (double)milliseconds * 1e3;
    return ok;
}

/* The plans in turn, so that drift of the machine hits all alike. Plans of one kind and size have the same inputs. */
static bool replay_all(struct plan_timer *timer, const struct cuda_plan *bound, const struct plan *plans, int count,
                       uint64_t tokens, struct plan_time *times, struct status *status)
{
    struct cuda_inputs inputs;
    double(*us)[REPETITIONS] = calloc((size_t)count, sizeof *us), ignored;
    if (!us) return status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
    bool ok = cuda_inputs_open(&inputs, timer->build, &plans[0].header, status);
    if (ok) cuda_inputs_fill(&inputs, timer->build, &plans[0].header, tokens);
    for (int i = -WARM_UP; ok && i < REPETITIONS; i++)
        for (int p = 0; ok && p < count; p++)
            if (bound[p].exec) ok = replay(timer, &bound[p], &inputs, i < 0 ? &ignored : &us[p][i], status);
    for (int p = 0; ok && p < count; p++) {
        qsort(us[p], REPETITIONS, sizeof us[p][0], compare_double);
        times[p].us = bound[p].exec ? us[p][REPETITIONS / 2] : INFINITY;
        times[p].spread_us = (us[p][REPETITIONS - 1 - REPETITIONS / 4] - us[p][REPETITIONS / 4]) / 2;
    }
    cuda_inputs_close(&inputs);
    free(us);
    return ok;
}

bool plan_timer_compare(struct plan_timer *timer, const struct plan *plans, int count, bool long_contexts,
                        struct plan_time *times, struct status *status)
{
    static const uint64_t contexts[] = {TIME_CONTEXT, 8192, LONGEST_CONTEXT};
    const int context_count = long_contexts ? (int)(sizeof contexts / sizeof *contexts) : 1;
    const struct device *device = &timer->build->cuda.device;
    struct cuda_plan *bound = calloc((size_t)count, sizeof *bound);
    struct plan_time *one = calloc((size_t)count, sizeof *one);
    bool ok = bound && one;
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
    for (int p = 0; p < count; p++) times[p] = (struct plan_time){1, 0};
    for (int p = 0; ok && p < count; p++) {
        struct status refused;
        status_clear(&refused);
        if (cuda_plan_bind(&bound[p], device, &timer->kernels, &plans[p], &timer->memory, "a plan", &refused)) continue;
        ok = p > 0;
        if (!ok) *status = refused;
    }
    for (int c = 0; ok && c < context_count; c++) {
        ok = replay_all(timer, bound, plans, count, contexts[c], one, status);
        for (int p = 0; ok && p < count; p++) { /* the geometric mean, and the mean of the relative spreads */
            times[p].us *= pow(one[p].us, 1.0 / context_count);
            times[p].spread_us += one[p].spread_us / one[p].us / context_count;
        }
    }
    for (int p = 0; p < count; p++) {
        times[p].spread_us *= times[p].us;
        if (bound) cuda_plan_free(&bound[p], device);
    }
    free(bound);
    free(one);
    return ok;
}

bool plan_timer_run(struct plan_timer *timer, const struct plan *plan, double *us, struct status *status)
{
    struct plan_time time;
    if (!plan_timer_compare(timer, plan, 1, false, &time, status)) return false;
    *us = time.us;
    return true;
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

bool time_device_plans(struct build *build, const struct device_plan *plans, int count, bool long_contexts,
                       struct plan_time *times, plan_timer_look *look, void *context, struct status *status)
{
    struct kernel_set kernels = {0};
    struct plan_timer timer;
    struct plan *finished = calloc((size_t)count, sizeof *finished);
    bool ok = finished || status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
    for (int p = 0; ok && p < count; p++)
        ok = finish_device_plan(&plans[p], &build->cuda.device.facts, &kernels, &finished[p], status);
    ok = ok && build_cuda_compile(build, &kernels, false, status);
    if (ok && (ok = plan_timer_open(&timer, build, &kernels, status))) {
        ok = plan_timer_compare(&timer, finished, count, long_contexts, times, status) &&
             (!look || look(&timer, finished, times, context, status));
        plan_timer_close(&timer);
    }
    for (int p = 0; finished && p < count; p++) lowered_plan_free(&finished[p]);
    kernel_set_free(&kernels);
    free(finished);
    return ok;
}
