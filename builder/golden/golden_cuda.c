/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/golden_cuda.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "builder/golden/golden.h"

/* Logits of 16-bit arithmetic differ between plans, whose sums run in different orders, by a few units of 2^-8. */
#define GOLDEN_TOLERANCE_CUDA 3e-2f

struct rank_run {
    struct cuda_kernels kernels;
    struct cuda_memory memory;
    struct cuda_plan prefill, decode;
};

struct cuda_run {
    const struct cuda_rig *rig;
    const struct kernel_set *kernels;
    const struct plan *prefill_plan, *decode_plan;
    uint32_t count;
    struct rank_run ranks[PLAN_MAX_RANKS];
};

static bool open_rank(struct cuda_run *run, uint32_t r, uint64_t pages, const struct engine_kernel *entries,
                      struct status *status)
{
    const struct device *device = &run->rig->gpus->devices[r];
    struct rank_run *rank = &run->ranks[r];
    if (!device_enter(device, status)) return false;
    bool ok =
        cuda_memory_open(&rank->memory, run->rig, r, pages, status) &&
        cuda_kernels_load(&rank->kernels, device, entries, run->kernels->count, status) &&
        cuda_plan_bind(&rank->prefill, device, &rank->kernels, run->prefill_plan, &rank->memory, "prefill plan",
                       status) &&
        cuda_plan_bind(&rank->decode, device, &rank->kernels, run->decode_plan, &rank->memory, "decode plan", status);
    device_leave(device);
    return ok;
}

static bool run_open(struct cuda_run *run, uint64_t pages, const struct engine_kernel *entries, struct status *status)
{
    struct cuda_memory *memories[PLAN_MAX_RANKS];
    for (uint32_t r = 0; r < run->count; r++) {
        memories[r] = &run->ranks[r].memory;
        if (!open_rank(run, r, pages, entries, status)) return false;
    }
    return run->count == 1 || cuda_memory_connect(memories, run->rig, status);
}

static void run_close(struct cuda_run *run)
{
    /* None's memory goes while another may still store into it. */
    for (uint32_t r = 0; run->count > 1 && r < run->count; r++)
        run->rig->gpus->devices[0].driver.StreamSynchronize(run->rig->gpus->devices[r].stream);
    for (uint32_t r = 0; r < run->count; r++) {
        const struct device *device = &run->rig->gpus->devices[r];
        struct rank_run *rank = &run->ranks[r];
        cuda_plan_free(&rank->prefill, device);
        cuda_plan_free(&rank->decode, device);
        cuda_kernels_free(&rank->kernels, device);
        cuda_memory_close(&rank->memory, run->rig, device);
    }
}

/* Queues the step on one GPU, and the copy of what it gives. */
static bool queue_step(struct cuda_run *run, uint32_t r, bool decode, const struct cuda_inputs *inputs, float *logits,
                       int32_t *next, struct status *status)
{
    const struct device *device = &run->rig->gpus->devices[r];
    const struct cuda_driver *driver = &device->driver;
    struct rank_run *rank = &run->ranks[r];
    cu_deviceptr step = rank->memory.base[SPACE_STEP];
    size_t logits_bytes = run->rig->manifest->geometry.vocab_size * sizeof *logits;
    if (!device_enter(device, status)) return false;
    bool ok = cuda_inputs_write(inputs, &rank->memory, device, status) &&
              cuda_plan_launch(decode ? &rank->decode : &rank->prefill, device, status);
    if (ok && logits)
        ok = cuda_ok(driver,
                     driver->MemcpyDtoHAsync(logits, step + inputs->fields[STEP_LOGITS].offset, logits_bytes,
                                             device->stream),
                     status, "reading logits") &&
             cuda_ok(driver,
                     driver->MemcpyDtoHAsync(next, step + inputs->fields[STEP_NEXT_TOKENS].offset, sizeof *next,
                                             device->stream),
                     status, "reading a token");
    device_leave(device);
    return ok;
}

static bool wait_for(const struct cuda_run *run, uint32_t r, struct status *status)
{
    const struct device *device = &run->rig->gpus->devices[r];
    if (!device_enter(device, status)) return false;
    bool ok = cuda_ok(&device->driver, device->driver.StreamSynchronize(device->stream), status, "running the plan");
    device_leave(device);
    return ok;
}

/* Feeds `count` tokens at `position`; with `logits`, returns the next token and its logits. */
static bool run_step(struct cuda_run *run, bool decode, const int32_t *tokens, uint32_t count, uint64_t position,
                     float *logits, int32_t *next, struct status *status)
{
    const struct plan *plan = decode ? run->decode_plan : run->prefill_plan;
    struct cuda_inputs inputs;
    if (!cuda_inputs_open(&inputs, run->rig, &plan->header, status)) return false;
    inputs.counts[0] = (int32_t)count;
    inputs.counts[1] = logits != NULL;
    inputs.out_rows[0] = (int32_t)count - 1;
    for (uint32_t r = 0; r < count; r++) {
        inputs.tokens[r] = tokens[r];
        inputs.positions[r] = (int32_t)(position + r);
    }
    /* A rank that copied to pageable memory before all are launched would wait for the others. */
    bool ok = true;
    for (uint32_t r = run->count; ok && r-- > 0;)
        ok = queue_step(run, r, decode, &inputs, r == 0 ? logits : NULL, next, status) ||
             status_prefix(status, "rank %" PRIu32, r);
    for (uint32_t r = 0; r < run->count; r++) {
        struct status failed;
        status_clear(&failed);
        if (wait_for(run, r, &failed) || !ok) continue;
        *status = failed;
        ok = status_prefix(status, "rank %" PRIu32, r);
    }
    struct cuda_memory *memories[PLAN_MAX_RANKS];
    for (uint32_t r = 0; r < run->count; r++) memories[r] = &run->ranks[r].memory;
    ok = ok && (run->count == 1 || cuda_memory_check(memories, run->rig, status));
    cuda_inputs_close(&inputs);
    return ok || status_prefix(status, "golden outputs");
}

/* The two ways through the engine use different kernels for almost everything; where they disagree, one is wrong. */
static bool compare(const struct engine_golden *golden, const float *other, struct status *status)
{
    double worst = 0;
    for (uint32_t i = 0; i < golden->vocab_size; i++) {
        double difference = fabs((double)golden->logits[i] - (double)other[i]);
        if (isnan(difference)) worst = INFINITY;
        if (difference > worst) worst = difference;
    }
    if (worst <= (double)golden->tolerance) return true;
    return status_fail(status, STATUS_INTERNAL,
                       "prefill and decode plans disagree: expected logits within %g, found a difference of %g; the "
                       "engine would be wrong, nothing was written",
                       (double)golden->tolerance, worst);
}

static bool compute(struct cuda_run *run, struct engine_golden *golden, float *other, struct status *status)
{
    uint32_t prompt_count = golden->prompt_count, chunk = run->prefill_plan->header.rows;
    int32_t *tokens = (int32_t *)golden->tokens, ignored = 0;
    float *logits = (float *)golden->logits;
    for (uint32_t t = 0; t < prompt_count; t++) {
        bool last = t + 1 == prompt_count;
        if (!run_step(run, true, golden->prompt + t, 1, t, last ? other : NULL, &ignored, status)) return false;
    }
    for (uint32_t first = 0; first < prompt_count; first += chunk) {
        uint32_t count = prompt_count - first < chunk ? prompt_count - first : chunk;
        bool last = first + count == prompt_count;
        if (!run_step(run, false, golden->prompt + first, count, first, last ? logits : NULL, tokens, status))
            return false;
    }
    for (uint32_t t = 1; t < golden->token_count; t++)
        if (!run_step(run, true, &tokens[t - 1], 1, prompt_count + t - 1, logits + (uint64_t)t * golden->vocab_size,
                      &tokens[t], status))
            return false;
    return golden_end(golden, GOLDEN_TOLERANCE_CUDA, status) && compare(golden, other, status);
}

bool compute_golden_cuda(const struct cuda_rig *rig, const struct plan *plans, size_t plan_count,
                         const struct kernel_set *kernels, struct engine_golden *golden, struct status *status)
{
    bool ok = false;
    const struct plan_geometry *geometry = &rig->manifest->geometry;
    struct cuda_run run = {.rig = rig, .kernels = kernels, .count = rig->gpus->ranks};
    if (!golden_begin(rig->manifest, golden, status)) return false;
    if (golden->token_count == 0) return true;
    for (size_t p = 0; p < plan_count; p++) {
        const struct plan *plan = &plans[p];
        const struct plan **kept = plan->header.kind == PLAN_DECODE ? &run.decode_plan : &run.prefill_plan;
        if (!*kept || plan->header.rows < (*kept)->header.rows) *kept = plan;
    }
    struct engine_kernel *entries = kernel_set_view(kernels);
    float *other = calloc(golden->vocab_size, sizeof *other);
    uint64_t tokens = (uint64_t)golden->prompt_count + golden->token_count;
    uint64_t pages = (tokens + geometry->page_tokens - 1) / geometry->page_tokens;
    if (!entries || !other) {
        status_fail(status, STATUS_MACHINE, "out of memory while computing golden outputs");
        goto done;
    }
    ok = run_open(&run, pages, entries, status) && compute(&run, golden, other, status);
done:
    run_close(&run);
    free(entries);
    free(other);
    if (!ok) golden_free(golden);
    return ok;
}
