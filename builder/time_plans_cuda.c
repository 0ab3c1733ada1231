/* Whole plans on the GPU, as the engine will replay them: what a step really takes. */
#include <stdlib.h>
#include <string.h>

#include "builder/build_cuda.h"
#include "builder/cuda_memory.h"

enum { TIME_CONTEXT = 200, WARM_UP = 3, REPETITIONS = 15 };

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Decode: every slot at TIME_CONTEXT. Prefill: one prompt from its first token. The step's feedback moves the positions,
 * so they are written before each replay. */
static bool time_plan(const struct build *build, const struct cuda_plan *bound, const struct plan *plan,
                      const struct cuda_memory *memory, cu_event events[2], double *us, struct status *status)
{
    const struct device *device = &build->cuda.device;
    const struct cuda_driver *driver = &device->driver;
    const struct plan_geometry *geometry = &build->manifest.geometry;
    struct cuda_inputs inputs;
    if (!cuda_inputs_open(&inputs, build, &plan->header, status)) return false;
    bool decode = plan->header.kind == PLAN_DECODE, ok = true;
    uint32_t rows = plan->header.rows;
    if (!decode && rows > geometry->max_context) rows = (uint32_t)geometry->max_context;
    int32_t context = (int32_t)(geometry->max_context > TIME_CONTEXT ? TIME_CONTEXT : geometry->max_context - 1);
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
    qsort(times, REPETITIONS, sizeof *times, compare_double);
    *us = times[REPETITIONS / 2];
    return ok;
}

bool build_cuda_time_plans(struct build *build, struct status *status)
{
    const struct device *device = &build->cuda.device;
    const struct plan_geometry *geometry = &build->manifest.geometry;
    struct cuda_memory memory = {0};
    struct cuda_kernels kernels = {0};
    cu_event events[2] = {NULL, NULL};
    uint64_t pages = geometry->slots * (TIME_CONTEXT / geometry->page_tokens + 1);
    for (size_t p = 0; p < build->plan_count; p++) {
        uint64_t wanted = build->plans[p].header.rows / geometry->page_tokens + 1;
        if (build->plans[p].header.kind == PLAN_PREFILL && wanted > pages) pages = wanted;
    }
    struct engine_kernel *entries = kernel_set_view(&build->cuda.kernels);
    if (!entries) return status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
    if (!device_enter(device, status)) {
        free(entries);
        return false;
    }
    bool ok = cuda_memory_open(&memory, build, pages, status) &&
              cuda_memory_randomise(&memory, build, SPACE_KV, status) &&
              cuda_kernels_load(&kernels, device, entries, build->cuda.kernels.count, status);
    for (int i = 0; i < 2; i++)
        ok = ok &&
             cuda_ok(&device->driver, device->driver.EventCreate(&events[i], CU_EVENT_DEFAULT), status, "an event");
    for (size_t p = 0; ok && p < build->plan_count; p++) {
        struct cuda_plan bound = {0};
        ok = cuda_plan_bind(&bound, device, &kernels, &build->plans[p], &memory, "a plan", status) &&
             time_plan(build, &bound, &build->plans[p], &memory, events, &build->plan_us[p], status);
        cuda_plan_free(&bound, device);
    }
    for (int i = 0; i < 2; i++)
        if (events[i]) device->driver.EventDestroy(events[i]);
    cuda_kernels_free(&kernels, device);
    cuda_memory_close(&memory, build);
    device_leave(device);
    free(entries);
    return ok;
}
