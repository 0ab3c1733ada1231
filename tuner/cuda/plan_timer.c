/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/plan_timer.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/team.h"
#include "tuner/clock.h"

enum {
    TIME_CONTEXT = 200,
    LONGEST_CONTEXT = 32768,
    LONG_SEQUENCES = 2,
    WARM_UP = 1,
    FIRST_REPETITIONS = 3, /* of every plan */
    REPETITIONS = 7,       /* of those that may be the fastest */
};
/* A plan whose median is above the best by more than this part and both spreads is not the fastest. */
static const double least_loss = 0.005;

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool open_rank(struct plan_timer *timer, uint32_t r, const struct kernel_set *set,
                      const struct engine_kernel *entries, uint64_t pages, struct status *status)
{
    const struct gpus *gpus = timer->rig->gpus;
    const struct device *device = &gpus->devices[r];
    struct timer_rank *rank = &timer->ranks[r];
    timer->count = r + 1;
    if (!device_enter(device, status)) return false;
    bool ok = cuda_memory_open(&rank->memory, timer->rig, r, pages, status) &&
              cuda_memory_randomise(&rank->memory, device, SPACE_KV, status) &&
              cuda_kernels_load(&rank->kernels, device, entries, set->count, status) &&
              gpus_borrow_calls(gpus, r, true, &rank->calls, status);
    device_leave(device);
    rank->calls.entries = set->calls;
    rank->calls.count = set->call_count;
    rank->kernels.calls = &rank->calls;
    return ok;
}

/* The memories of all ranks. */
struct memories {
    struct cuda_memory *of[PLAN_MAX_RANKS];
};

static struct memories memories_of(struct plan_timer *timer)
{
    struct memories memories;
    for (uint32_t r = 0; r < timer->count; r++) memories.of[r] = &timer->ranks[r].memory;
    return memories;
}

static bool connect_ranks(struct plan_timer *timer, struct status *status)
{
    timer->team = team_create((int)timer->count, status);
    return timer->team && cuda_memory_connect(memories_of(timer).of, timer->rig, status);
}

static bool check_ranks(struct plan_timer *timer, struct status *status)
{
    return timer->count == 1 || cuda_memory_check(memories_of(timer).of, timer->rig, status);
}

bool plan_timer_open(struct plan_timer *timer, const struct cuda_rig *rig, const struct kernel_set *kernels,
                     struct status *status)
{
    const struct plan_geometry *geometry = &rig->manifest->geometry;
    uint64_t pages = geometry->slots * (TIME_CONTEXT / geometry->page_tokens + 1);
    if (rig->longest_chunk / geometry->page_tokens + 1 > pages) pages = rig->longest_chunk / geometry->page_tokens + 1;
    /* Long sequences share pages beyond this number of tokens, which exceeds what caches hold. */
    uint64_t longest = geometry->max_context < LONGEST_CONTEXT ? geometry->max_context : LONGEST_CONTEXT;
    uint64_t wanted = LONG_SEQUENCES * (longest / geometry->page_tokens + 1);
    if (wanted > pages) pages = wanted;
    pages *= plan_page_groups(geometry);
    return plan_timer_open_pages(timer, rig, kernels, &pages, status);
}

bool plan_timer_open_pages(struct plan_timer *timer, const struct cuda_rig *rig, const struct kernel_set *kernels,
                           uint64_t *wanted_pages, struct status *status)
{
    const struct device *device = &rig->gpus->devices[0];
    const struct plan_geometry *geometry = &rig->manifest->geometry;
    uint64_t pages = *wanted_pages;
    memset(timer, 0, sizeof *timer);
    timer->rig = rig;
    /* With little memory sequences share pages: the figure is then too good, but the build goes on. */
    uint64_t free_bytes = 0, fixed = rig->arena_bytes + rig->manifest->step_bytes;
    if (!device_free_memory(device, &free_bytes, status)) return false;
    uint64_t most = free_bytes > fixed ? (free_bytes - fixed) / 2 / geometry->page_bytes : 0;
    if (pages > most) pages = most > 0 ? most : 1;
    *wanted_pages = pages;
    struct engine_kernel *entries = kernel_set_view(kernels);
    if (!entries) return status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
    timer->entered = device_enter(device, status);
    bool ok = timer->entered && open_rank(timer, 0, kernels, entries, pages, status);
    for (int i = 0; i < 2; i++)
        ok = ok && cuda_ok(&device->driver, device->driver.EventCreate(&timer->events[i], CU_EVENT_DEFAULT), status,
                           "an event");
    for (uint32_t r = 1; ok && r < rig->gpus->ranks; r++) ok = open_rank(timer, r, kernels, entries, pages, status);
    if (ok && timer->count > 1) ok = connect_ranks(timer, status);
    free(entries);
    if (!ok) plan_timer_close(timer);
    return ok;
}

void plan_timer_close(struct plan_timer *timer)
{
    const struct device *device = &timer->rig->gpus->devices[0];
    if (!timer->entered) return;
    /* No memory is freed while another rank may still store into it. */
    for (uint32_t r = 0; timer->count > 1 && r < timer->count; r++)
        device->driver.StreamSynchronize(timer->rig->gpus->devices[r].stream);
    for (uint32_t r = timer->count; r-- > 0;) {
        struct timer_rank *rank = &timer->ranks[r];
        cuda_kernels_free(&rank->kernels, &timer->rig->gpus->devices[r]);
        cuda_calls_close(&rank->calls, &timer->rig->gpus->devices[r]);
        cuda_memory_close(&rank->memory, timer->rig, &timer->rig->gpus->devices[r]);
    }
    team_destroy(timer->team);
    for (int i = 0; i < 2; i++)
        if (timer->events[i]) device->driver.EventDestroy(timer->events[i]);
    device_leave(device);
    timer->entered = false;
}

/* A step of all ranks; a thread per rank queues it. */
struct replaying {
    struct plan_timer *timer;
    const struct cuda_plan *bound; /* one for each rank */
    const struct cuda_inputs *inputs;
    double us;
    atomic_uint begun; /* ranks other than the first that are about to launch, or have failed to */
};

static bool replay_other(struct replaying *replaying, uint32_t r, struct status *status)
{
    struct plan_timer *timer = replaying->timer;
    const struct device *device = &timer->rig->gpus->devices[r];
    bool entered = device_enter(device, status);
    bool ok = entered && cuda_inputs_write(replaying->inputs, &timer->ranks[r].memory, device, status);
    atomic_fetch_add(&replaying->begun, 1);
    ok = ok && cuda_plan_launch(&replaying->bound[r], device, status);
    if (entered) device_leave(device);
    return ok;
}

static void abort_all(const struct plan_timer *timer)
{
    for (uint32_t r = 0; r < timer->count; r++) nccl_abort(&timer->rig->gpus->nccl_ranks[r]);
}

/* NCCL's kernels wait without limit for a rank that failed to launch. */
static bool wait_for_step(const struct plan_timer *timer, cu_event event, struct status *status)
{
    const double longest_us = 30e6;
    const struct gpus *gpus = timer->rig->gpus;
    const struct cuda_driver *driver = &gpus->devices[0].driver;
    if (!gpus->nccl_ranks[0].nccl) return cuda_ok(driver, driver->EventSynchronize(event), status, "running a plan");
    double start = clock_us();
    cu_result result;
    while ((result = driver->EventQuery(event)) == CU_ERROR_NOT_READY && clock_us() - start < longest_us) continue;
    if (result != CU_ERROR_NOT_READY) return cuda_ok(driver, result, status, "running a plan");
    abort_all(timer);
    return status_fail(status, STATUS_MACHINE, "running a plan: it has not ended in %.0f s", longest_us * 1e-6);
}

/* The step's feedback moves the positions, so they are written before each replay. */
static bool replay_first(struct replaying *replaying, struct status *status)
{
    const double others_us = 20; /* to launch */
    struct plan_timer *timer = replaying->timer;
    const struct device *device = &timer->rig->gpus->devices[0];
    const struct cuda_driver *driver = &device->driver;
    const cu_event *events = timer->events;
    float milliseconds = 0;
    bool ok = cuda_inputs_write(replaying->inputs, &timer->ranks[0].memory, device, status);
    /* The timed rank 0 launches last, so that its time does not include the launches of the others. */
    while (atomic_load(&replaying->begun) + 1 < timer->count) continue;
    for (double start = clock_us(); timer->count > 1 && clock_us() - start < others_us;) continue;
    ok = ok && cuda_ok(driver, driver->EventRecord(events[0], device->stream), status, "timing a plan") &&
         cuda_plan_launch(replaying->bound, device, status) &&
         cuda_ok(driver, driver->EventRecord(events[1], device->stream), status, "timing a plan") &&
         wait_for_step(timer, events[1], status) &&
         cuda_ok(driver, driver->EventElapsedTime(&milliseconds, events[0], events[1]), status, "timing a plan");
    replaying->us = (double)milliseconds * 1e3;
    return ok;
}

static bool replay_rank(void *context, uint32_t r, struct status *status)
{
    return r > 0 ? replay_other(context, r, status) : replay_first(context, status);
}

static bool replay(struct plan_timer *timer, const struct cuda_plan *bound, const struct cuda_inputs *inputs,
                   double *us, struct status *status)
{
    struct replaying replaying = {.timer = timer, .bound = bound, .inputs = inputs};
    struct rank_outcome outcomes[PLAN_MAX_RANKS];
    atomic_init(&replaying.begun, 0);
    gpus_work(timer->team, replay_rank, &replaying, outcomes);
    *us = replaying.us;
    for (uint32_t r = timer->count; r-- > 0;) {
        if (outcomes[r].ok) continue;
        abort_all(timer); /* the others may wait for it in NCCL's kernels, which would never end */
        *status = outcomes[r].status;
        return false;
    }
    return true;
}

/* Replays of one plan. */
struct samples {
    double us[REPETITIONS];
    int count; /* 0: the plan could not be bound */
};

static struct plan_time summarise(const struct samples *samples)
{
    const int count = samples->count;
    double us[REPETITIONS];
    if (!count) return (struct plan_time){.us = INFINITY};
    memcpy(us, samples->us, sizeof us);
    qsort(us, (size_t)count, sizeof *us, compare_double);
    return (struct plan_time){us[count / 2], (us[count - 1 - count / 4] - us[count / 4]) / 2};
}

/* Whether the plan may still be the fastest. The first one is what the others are compared with. */
static bool is_hopeful(const struct samples *samples, int count, int p)
{
    const struct plan_time own = summarise(&samples[p]);
    for (int other = 0; p > 0 && other < count; other++) {
        const struct plan_time time = summarise(&samples[other]);
        if (own.us - own.spread_us > time.us * (1 + least_loss) + time.spread_us) return false;
    }
    return samples[p].count > 0;
}

/* Times the plans in turn, so that drift of the machine affects all alike. Plans of one kind and size have the same
 * inputs. bound: [count][PLAN_MAX_RANKS]. */
static bool replay_all(struct plan_timer *timer, const struct cuda_plan *bound, const struct plan *plans, int count,
                       uint64_t tokens, struct plan_time *times, struct status *status)
{
    struct cuda_inputs inputs;
    struct samples *samples = calloc((size_t)count, sizeof *samples);
    bool *timed = calloc((size_t)count, sizeof *timed);
    bool ok = samples && timed;
    if (!ok) {
        status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
        goto done;
    }
    ok = cuda_inputs_open(&inputs, timer->rig, &plans[0].header, status);
    if (ok) cuda_inputs_fill(&inputs, timer->rig, &plans[0].header, tokens);
    for (int p = 0; p < count; p++) timed[p] = bound[p * PLAN_MAX_RANKS].exec;
    for (int i = -WARM_UP; ok && i < REPETITIONS; i++) {
        for (int p = 0; i == FIRST_REPETITIONS && p < count; p++) timed[p] = timed[p] && is_hopeful(samples, count, p);
        for (int p = 0; ok && p < count; p++) {
            double us;
            if (!timed[p]) continue;
            ok = replay(timer, &bound[p * PLAN_MAX_RANKS], &inputs, &us, status);
            if (i >= 0) samples[p].us[samples[p].count++] = us;
        }
    }
    for (int p = 0; ok && p < count; p++) times[p] = summarise(&samples[p]);
    ok = ok && check_ranks(timer, status);
    cuda_inputs_close(&inputs);
done:
    free(samples);
    free(timed);
    return ok;
}

/* Binds a plan on all ranks at once: NCCL calls wait for each other during capture. */
struct binding {
    struct plan_timer *timer;
    const struct plan *plan;
    struct cuda_plan *bound;
};

static bool bind_rank(void *context, uint32_t r, struct status *status)
{
    const struct binding *binding = context;
    struct plan_timer *timer = binding->timer;
    struct timer_rank *rank = &timer->ranks[r];
    return cuda_plan_bind(&binding->bound[r], &timer->rig->gpus->devices[r], &rank->kernels, binding->plan,
                          &rank->memory, "a plan", status);
}

/* A plan that cannot be bound on rank 0 is dropped; one that then fails on another rank is an error. */
static bool bind_ranks(struct plan_timer *timer, const struct plan *plan, struct cuda_plan *bound, bool *refused,
                       struct status *status)
{
    struct binding binding = {.timer = timer, .plan = plan, .bound = bound};
    struct rank_outcome outcomes[PLAN_MAX_RANKS];
    gpus_work(timer->team, bind_rank, &binding, outcomes);
    *refused = !outcomes[0].ok;
    *status = outcomes[0].status;
    for (uint32_t r = 1; r < timer->count; r++) {
        if (outcomes[r].ok == !*refused) continue;
        if (!outcomes[r].ok) *status = outcomes[r].status;
        return false;
    }
    return true;
}

bool plan_timer_compare(struct plan_timer *timer, const struct plan *plans, int count, bool long_contexts,
                        struct plan_time *times, struct status *status)
{
    static const uint64_t contexts[] = {TIME_CONTEXT, 8192, LONGEST_CONTEXT};
    const int context_count = long_contexts ? (int)(sizeof contexts / sizeof *contexts) : 1;
    struct cuda_plan *bound = calloc((size_t)count * PLAN_MAX_RANKS, sizeof *bound);
    struct plan_time *one = calloc((size_t)count, sizeof *one);
    bool ok = bound && one;
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
    for (int p = 0; p < count; p++) times[p] = (struct plan_time){1, 0};
    for (int p = 0; ok && p < count; p++) {
        struct status refusal;
        bool refused;
        status_clear(&refusal);
        ok = bind_ranks(timer, &plans[p], &bound[p * PLAN_MAX_RANKS], &refused, &refusal) && (!refused || p > 0);
        if (!ok) *status = refusal;
    }
    for (int c = 0; ok && c < context_count; c++) {
        ok = replay_all(timer, bound, plans, count, contexts[c], one, status);
        for (int p = 0; ok && p < count; p++) { /* geometric mean of the times and mean of the relative spreads */
            times[p].us *= pow(one[p].us, 1.0 / context_count);
            times[p].spread_us += one[p].spread_us / one[p].us / context_count;
        }
    }
    for (int p = 0; p < count; p++) {
        times[p].spread_us *= times[p].us;
        for (uint32_t r = 0; bound && r < timer->count; r++)
            cuda_plan_free(&bound[(uint32_t)p * PLAN_MAX_RANKS + r], &timer->rig->gpus->devices[r]);
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

/* ---- single replays, whose outputs count ---- */

bool plan_timer_bind(struct plan_timer *timer, const struct plan *plan, struct cuda_plan bound[PLAN_MAX_RANKS],
                     struct status *status)
{
    bool refused;
    return bind_ranks(timer, plan, bound, &refused, status) && !refused;
}

void plan_timer_unbind(const struct plan_timer *timer, struct cuda_plan bound[PLAN_MAX_RANKS])
{
    for (uint32_t r = 0; r < timer->count; r++) cuda_plan_free(&bound[r], &timer->rig->gpus->devices[r]);
}

/* Calls `act` for the memory of every rank, in its context. */
static bool for_ranks(struct plan_timer *timer, const void *argument,
                      bool (*act)(const struct cuda_memory *memory, const struct cuda_rig *rig,
                                  const struct device *device, const void *argument, struct status *status),
                      struct status *status)
{
    for (uint32_t r = 0; r < timer->count; r++) {
        const struct device *device = &timer->rig->gpus->devices[r];
        if (!device_enter(device, status)) return false;
        bool ok = act(&timer->ranks[r].memory, timer->rig, device, argument, status);
        device_leave(device);
        if (!ok) return false;
    }
    return true;
}

static bool write_page_table(const struct cuda_memory *memory, const struct cuda_rig *rig, const struct device *device,
                             const void *table, struct status *status)
{
    const struct plan_geometry *geometry = &rig->manifest->geometry;
    const struct plan_field *field = &geometry->state[STATE_PAGE_TABLE];
    return device_write(device, memory->base[SPACE_STATE] + field->offset, table, field->bytes,
                        "writing the page table", status);
}

bool plan_timer_write_pages(struct plan_timer *timer, const int32_t *table, struct status *status)
{
    return for_ranks(timer, table, write_page_table, status);
}

static bool randomise_kv(const struct cuda_memory *memory, const struct cuda_rig *rig, const struct device *device,
                         const void *unused, struct status *status)
{
    (void)rig;
    (void)unused;
    return cuda_memory_randomise(memory, device, SPACE_KV, status);
}

bool plan_timer_randomise_kv(struct plan_timer *timer, struct status *status)
{
    return for_ranks(timer, NULL, randomise_kv, status);
}

bool plan_timer_replay(struct plan_timer *timer, const struct cuda_plan bound[PLAN_MAX_RANKS],
                       const struct cuda_inputs *inputs, struct status *status)
{
    double ignored_us;
    return replay(timer, bound, inputs, &ignored_us, status) && check_ranks(timer, status);
}

bool plan_timer_read(const struct plan_timer *timer, enum plan_space space, uint64_t offset, void *to, uint64_t bytes,
                     const char *what, struct status *status)
{
    return device_read(&timer->rig->gpus->devices[0], to, timer->ranks[0].memory.base[space] + offset, bytes, what,
                       status);
}

bool plan_timer_outputs(const struct plan_timer *timer, const struct plan *plan, uint32_t out_rows, float *logits,
                        int32_t *drawn, struct status *status)
{
    const uint64_t vocab = timer->rig->manifest->geometry.vocab_size;
    return plan_timer_read(timer, SPACE_STEP, plan->step[STEP_LOGITS].offset, logits, out_rows * vocab * sizeof *logits,
                           "reading logits", status) &&
           (!drawn || plan_timer_read(timer, SPACE_STEP, plan->step[STEP_NEXT_TOKENS].offset, drawn,
                                      out_rows * sizeof *drawn, "reading tokens", status));
}

bool plan_timer_race(const struct cuda_rig *rig, struct kernel_compiler *compiler, const struct device_plan *plans,
                     int count, bool long_contexts, struct plan_time *times, plan_timer_look *look, void *context,
                     struct status *status)
{
    struct kernel_set kernels = {0};
    struct plan_timer timer;
    struct plan *finished = calloc((size_t)count, sizeof *finished);
    bool ok = finished || status_fail(status, STATUS_MACHINE, "out of memory while timing plans");
    for (int p = 0; ok && p < count; p++)
        ok = device_plan_finish(&plans[p], &rig->gpus->devices[0].facts, &kernels, &finished[p], status);
    ok = ok && kernel_set_compile(&kernels, compiler, NULL, NULL, status);
    if (ok && (ok = plan_timer_open(&timer, rig, &kernels, status))) {
        ok = plan_timer_compare(&timer, finished, count, long_contexts, times, status) &&
             (!look || look(&timer, finished, times, context, status));
        plan_timer_close(&timer);
    }
    for (int p = 0; finished && p < count; p++) plan_free(&finished[p]);
    kernel_set_free(&kernels);
    free(finished);
    return ok;
}
