/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/executor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/matmul/matmul.h"

static bool resolve_launch(const struct plan *plan, uint32_t index, const struct cpu_memory *memory,
                           struct op_call *call, const char *name, struct status *status)
{
    const struct plan_launch *launch = &plan->launches[index];
    const struct op_descriptor *op = op_find(launch->op);
    const struct plan_operand *operand = &plan->operands[launch->first_operand];
    for (int i = 0; i < op->operand_count; i++) {
        if (!op_has_operand(op, TARGET_CPU, call->params, i)) continue;
        uint8_t *base = memory->base[operand->space];
        if (!base || (uintptr_t)base % PLAN_ALIGNMENT)
            return status_fail(status, STATUS_INTERNAL, "%s: the %s space has no memory aligned to %d bytes", name,
                               plan_space_name(operand->space), (int)PLAN_ALIGNMENT);
        call->operands[i] = base + operand->offset;
        operand++;
    }
    return true;
}

bool cpu_plan_bind(struct cpu_plan *bound, const struct plan *plan, const struct plan_geometry *geometry,
                   const struct plan_space_sizes *sizes, const struct cpu_memory *memory, enum cpu_isa isa,
                   const char *name, struct status *status)
{
    *bound = (struct cpu_plan){0};
    if (!cpu_isa_supported(isa))
        return status_fail(status, STATUS_MACHINE, "%s: this processor does not have the instruction set %s", name,
                           cpu_isa_name(isa));
    if (!plan_verify(plan, sizes, name, status)) return false;
    if (sizes->bytes[SPACE_KV] > geometry->page_bytes)
        return status_fail(status, STATUS_CORRUPT,
                           "%s: verified against pages of %" PRIu64 " bytes, but a page has %" PRIu64, name,
                           sizes->bytes[SPACE_KV], geometry->page_bytes);
    uint32_t count = plan->header.launch_count;
    for (uint32_t i = 0; i < count; i++)
        if (!op_verify(plan, i, TARGET_CPU, geometry, name, status)) return false;

    bool done = false;
    size_t param_count = 0;
    for (uint32_t i = 0; i < count; i++) param_count += (size_t)op_cpu_param_count(op_find(plan->launches[i].op));
    bound->launch_count = count;
    bound->calls = calloc(count ? count : 1, sizeof *bound->calls);
    bound->runners = calloc(count ? count : 1, sizeof *bound->runners);
    bound->ops = calloc(count ? count : 1, sizeof *bound->ops);
    bound->params = calloc(param_count ? param_count : 1, sizeof *bound->params);
    if (!bound->params || !bound->calls || !bound->runners || !bound->ops) {
        status_fail(status, STATUS_MACHINE, "%s: out of memory for %" PRIu32 " launches", name, count);
        goto done;
    }
    int64_t *params = bound->params;
    for (uint32_t i = 0; i < count; i++) {
        bound->ops[i] = op_find(plan->launches[i].op);
        bound->runners[i] = op_runner(bound->ops[i], isa);
        bound->calls[i].params = params;
        if (!op_params(plan, &plan->launches[i], bound->ops[i]->tunable_count, params, status)) goto done;
        params += op_cpu_param_count(bound->ops[i]);
        if (!resolve_launch(plan, i, memory, &bound->calls[i], name, status)) goto done;
    }
    done = true;
done:
    if (!done) cpu_plan_free(bound);
    return done;
}

void cpu_plan_free(struct cpu_plan *bound)
{
    free(bound->params);
    free(bound->calls);
    free(bound->runners);
    free(bound->ops);
    *bound = (struct cpu_plan){0};
}

/* State of one replay, shared by the team's members. */
struct replay {
    const struct cpu_plan *bound;
    double *launch_us; /* NULL: not timed */
    cpu_plan_observer *observe;
    void *context; /* of the observer */
};

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static void replay(void *argument, struct team_member *member)
{
    const struct replay *job = argument;
    const struct cpu_plan *bound = job->bound;
    for (uint32_t i = 0; i < bound->launch_count; i++) {
        bound->runners[i](&bound->calls[i], member);
        team_barrier(member);
    }
}

static void replay_observed(void *argument, struct team_member *member)
{
    const struct replay *job = argument;
    const struct cpu_plan *bound = job->bound;
    for (uint32_t i = 0; i < bound->launch_count; i++) {
        job->observe(job->context, bound->ops[i], &bound->calls[i], member);
        bound->runners[i](&bound->calls[i], member);
        team_barrier(member);
    }
}

static void replay_timed(void *argument, struct team_member *member)
{
    const struct replay *job = argument;
    const struct cpu_plan *bound = job->bound;
    double before_us = member->index == 0 ? now_us() : 0;
    for (uint32_t i = 0; i < bound->launch_count; i++) {
        bound->runners[i](&bound->calls[i], member);
        team_barrier(member);
        if (member->index != 0) continue;
        double after_us = now_us();
        job->launch_us[i] += after_us - before_us;
        before_us = after_us;
    }
}

/* Rows of W in units of two panels, so that a pair of gate and up panels is never divided. */
static void matmul_reference_share(const struct op_call *call, const struct team_member *member)
{
    const int64_t unit = 2 * PANEL_ROWS, rows = call->params[MATMUL_N];
    int64_t units = rows / unit + (rows % unit != 0);
    int64_t first = units * member->index / member->count * unit;
    int64_t last = units * (member->index + 1) / member->count * unit;
    if (last > rows) last = rows;
    if (first < last) matmul_reference_range(call, first, last);
}

static void replay_reference(void *argument, struct team_member *member)
{
    const struct replay *job = argument;
    const struct cpu_plan *bound = job->bound;
    for (uint32_t i = 0; i < bound->launch_count; i++) {
        const struct op_descriptor *op = bound->ops[i];
        if (op->id == OP_MATMUL)
            matmul_reference_share(&bound->calls[i], member);
        else if (member->index == 0)
            op->reference(&bound->calls[i]);
        team_barrier(member);
    }
}

void cpu_plan_run(const struct cpu_plan *bound, struct team *team)
{
    struct replay job = {.bound = bound};
    team_run(team, replay, &job);
}

void cpu_plan_run_reference(const struct cpu_plan *bound, struct team *team)
{
    struct replay job = {.bound = bound};
    team_run(team, replay_reference, &job);
}

void cpu_plan_run_observed(const struct cpu_plan *bound, struct team *team, cpu_plan_observer *observe, void *context)
{
    struct replay job = {.bound = bound, .observe = observe, .context = context};
    team_run(team, replay_observed, &job);
}

void cpu_plan_run_timed(const struct cpu_plan *bound, struct team *team, double *launch_us)
{
    struct replay job = {.bound = bound, .launch_us = launch_us};
    team_run(team, replay_timed, &job);
}
