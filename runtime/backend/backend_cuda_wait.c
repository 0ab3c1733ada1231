/* SPDX-License-Identifier: Apache-2.0 */
/* How the host waits for a step of a GPU: it polls, sleeps by the clock, or sleeps in the driver. */
#include "runtime/backend/backend_cuda.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

bool cuda_check_fault(struct cuda_backend *cuda, struct status *status)
{
    if (!cuda->common.comm || *cuda->fault == 0) return true;
    cuda->common.failure = BACKEND_NO_ANSWER;
    return status_fail(status, STATUS_MACHINE, "GPU %d: rank %" PRIu32 " did not answer within %.1f s",
                       cuda->device.ordinal, *cuda->fault - 1, (double)CUDA_COMM_TIMEOUT_NS * 1e-9);
}

cu_result cuda_poll_event(const struct cuda_backend *cuda, cu_event event, double longest, struct status *lost)
{
    const struct timespec pause = {.tv_nsec = 20000};
    double start = load_seconds();
    cu_result result;
    while ((result = cuda->device.driver.EventQuery(event)) == CU_ERROR_NOT_READY) {
        double seconds = load_seconds() - start;
        if (seconds > longest) break;
        if (seconds < 0.1) continue;
        nanosleep(&pause, NULL);
        if (lost && !load_cuda_is_well(cuda->owner, cuda->engine, lost)) break;
    }
    return result;
}

static bool wait_with_others(struct cuda_backend *cuda, cu_event event, struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    const double longest = CUDA_LONGEST_STEP, stopped = 0.5; /* the sum is below 10 s */
    bool told = atomic_load(&cuda->stopping);
    struct status lost = {0};
    cu_result result = cuda_poll_event(cuda, event, told ? stopped : longest, &lost);
    cuda->common.failure = told && result == CU_ERROR_NOT_READY ? BACKEND_STOPPED : BACKEND_FAILED;
    if (lost.code != STATUS_OK) {
        cuda->common.failure = told ? BACKEND_STOPPED : BACKEND_NO_ANSWER;
        *status = lost;
        return false;
    }
    if (result == CU_ERROR_NOT_READY)
        return status_fail(status, STATUS_MACHINE, "GPU %d: its step did not end within %.1f s", cuda->device.ordinal,
                           told ? stopped : longest);
    if (!cuda_ok(driver, result, status, "GPU %d: running a step", cuda->device.ordinal)) return false;
    return cuda_check_fault(cuda, status);
}

static void sleep_for(double seconds)
{
    if (seconds > 0) nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

/* Whether all tokens of a replay lie in the host's memory, where they come in any order. The driver is not asked: where its code is in no
 * cache, that takes 9 us. */
static bool has_arrived(const struct cuda_backend *cuda, uint64_t turn)
{
    for (int32_t i = 0; i < cuda->awaited_count[turn]; i++)
        if (__atomic_load_n(&cuda->awaited[turn][i], __ATOMIC_ACQUIRE) == NOT_ARRIVED) return false;
    return cuda->awaited_count[turn] > 0;
}

/* Looks for the end of a replay that has not ended, up to `longest` seconds. */
static cu_result look_for(const struct cuda_backend *cuda, uint64_t turn, double longest)
{
    const cu_event event = done_event(cuda, turn);
    if (!cuda->awaited_count[turn]) return cuda_poll_event(cuda, event, longest, NULL);
    const double start = load_seconds();
    do
        if (has_arrived(cuda, turn)) return CU_SUCCESS;
    while (load_seconds() - start < longest);
    return cuda->device.driver.EventQuery(event);
}

/* Until an event that has not completed does. */
static cu_result sleep_until(const struct cuda_backend *cuda, uint64_t turn)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    const double pause = 50e-6;
    const cu_event event = done_event(cuda, turn);
    if (cuda->sleeps[turn]) return driver->EventSynchronize(event);
    cu_result result;
    do sleep_for(pause);
    while ((result = driver->EventQuery(event)) == CU_ERROR_NOT_READY);
    return result;
}

/* One rank, a step after which another is queued, all but its sampler perhaps. */
static cu_result wait_queued(struct cuda_backend *cuda, int32_t rows, uint64_t turn)
{
    /* The end of a step that takes milliseconds need not be known better than a short sleep shows it. */
    const double most_polled = step_pace_is_short(&cuda->pace) ? 0.6e-3 : 0.15e-3;
    sleep_for(step_pace_sleep(&cuda->pace, cuda->done_plan, rows, load_seconds()));
    cu_result result = CU_SUCCESS;
    if (!has_arrived(cuda, turn)) result = cuda->device.driver.EventQuery(done_event(cuda, turn));
    const bool awaited = result == CU_ERROR_NOT_READY;
    if (awaited && !cuda->sleeps[turn]) result = look_for(cuda, turn, most_polled);
    if (result == CU_ERROR_NOT_READY) result = sleep_until(cuda, turn);
    step_pace_learn(&cuda->pace, awaited, load_seconds());
    return result;
}

/* One rank. A wait that polls keeps a processor busy for the whole step; one that sleeps ends somewhat after it. That costs the GPU nothing
 * if another step is queued, which it computes meanwhile. If none is, the GPU idles until the thread wakes: the thread sleeps by the
 * clock, wakes before the end and polls, up to `most_polled`. */
static cu_result wait_alone(struct cuda_backend *cuda, struct cuda_step *step, uint64_t turn)
{
    const cu_event event = done_event(cuda, turn);
    const double most_polled = 10e-3, start = load_seconds();
    int32_t rows;
    memcpy(&rows, cuda->common.step + step->counts_offset, sizeof rows);
    const bool is_late = cuda->sampled_late[turn]; /* little is left of the step: its sampler, perhaps some layers */
    if (cuda->submitted - cuda->waited > 1 && !is_late) return wait_queued(cuda, rows, turn);
    cuda->pace = (struct step_pace){0}; /* the next steps do not follow at once */
    if (is_late) {
        const cu_result ended = look_for(cuda, turn, most_polled);
        return ended == CU_ERROR_NOT_READY ? sleep_until(cuda, turn) : ended;
    }
    const double sleep = step_wait_sleep(&step->wait, rows);
    sleep_for(sleep);
    const bool slept_through = sleep > 0 && cuda->device.driver.EventQuery(event) == CU_SUCCESS;
    cu_result result = slept_through ? CU_SUCCESS : cuda_poll_event(cuda, event, most_polled, NULL);
    if (result == CU_ERROR_NOT_READY) result = sleep_until(cuda, turn);
    step_wait_learn(&step->wait, rows, load_seconds() - start, slept_through);
    return result;
}

bool cuda_wait(struct cuda_backend *cuda, struct status *status)
{
    const uint64_t turn = cuda->waited % BACKEND_MOST_IN_FLIGHT;
    if (cuda->common.comm) return wait_with_others(cuda, done_event(cuda, turn), status);
    return cuda_ok(&cuda->device.driver, wait_alone(cuda, &cuda->plans[cuda->done_plan], turn), status,
                   "running a step");
}
