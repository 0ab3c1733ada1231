/* SPDX-License-Identifier: Apache-2.0 */
/* Processors: plans run in place when they are submitted, on weights in the mapping or in private memory. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats/base/checked.h"
#include "kernels/cpu/executor.h"
#include "kernels/cpu/processors.h"
#include "kernels/cpu/rendezvous.h"
#include "runtime/backend/backend.h"
#include "runtime/load/host_memory.h"
#include "formats/base/memory_limit.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* A bound plan and the addresses of its results. */
struct cpu_step {
    struct cpu_plan bound;
    const int32_t *next_tokens, *drafted; /* drafted NULL: none */
    const float *logits, *hidden;
};

struct cpu_backend {
    struct backend common;
    const struct engine *file;
    struct team *team;
    enum cpu_isa isa;
    uint32_t rank, ranks;
    struct host_memory scratch; /* arena, step, state, comm */
    struct comm_header *comm;   /* several ranks */
    struct host_memory kv;
    struct host_memory checkpoints; /* blocks of recurrent state after those of the slots */
    struct cpu_step *plans;         /* [plan_count] as in the file */
    size_t plan_count;
    const struct cpu_step *last; /* submitted */
};

/* Memory of a session, computed before any is taken. */
struct cpu_sizes {
    uint64_t step_offset, state_offset, comm_offset, scratch_bytes;
    uint64_t team_bytes; /* scratch of one rank's threads */
    uint64_t pages, kv_bytes, checkpoint_bytes;
    uint64_t total;        /* with the session's own memory, for all ranks */
    uint64_t cached_bytes; /* weights in the page cache: it counts as available memory, but they must stay there */
};

static struct cpu_backend *cpu_of(struct backend *backend) { return (struct cpu_backend *)(void *)backend; }

static bool fixed_sizes(const struct manifest *manifest, uint64_t host_bytes, struct cpu_sizes *sizes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return checked_align(manifest->arena_bytes, page, &sizes->step_offset) &&
           checked_add(sizes->step_offset, manifest->step_bytes, &sizes->state_offset) &&
           checked_align(sizes->state_offset, page, &sizes->state_offset) &&
           checked_add(sizes->state_offset, manifest->state_bytes, &sizes->comm_offset) &&
           checked_align(sizes->comm_offset, page, &sizes->comm_offset) &&
           checked_add(sizes->comm_offset, manifest->comm_bytes, &sizes->scratch_bytes) &&
           checked_align(sizes->scratch_bytes, page, &sizes->scratch_bytes) &&
           checked_add(sizes->scratch_bytes, sizes->team_bytes, &sizes->total) &&
           checked_add(sizes->total, sizes->checkpoint_bytes, &sizes->total) &&
           checked_mul(sizes->total, plan_ranks(&manifest->geometry), &sizes->total) &&
           checked_add(sizes->total, host_bytes, &sizes->total);
}

/* Half of the available memory, divided among the ranks; the other half is for other programs. */
static uint64_t kv_room(const struct manifest *manifest, const struct cpu_sizes *sizes)
{
    struct memory_limit memory, space;
    memory_limit_available("", &memory);
    memory_limit_address_space(&space);
    uint64_t taken = sizes->total + sizes->cached_bytes;
    uint64_t left = memory.bytes > taken ? memory.bytes - taken : 0;
    uint64_t space_left = space.bytes > sizes->total ? space.bytes - sizes->total : 0;
    return (left < space_left ? left : space_left) / 2 / plan_ranks(&manifest->geometry);
}

static bool plan_sizes(const struct manifest *manifest, const struct backend_options *options, struct cpu_sizes *sizes,
                       struct status *status)
{
    uint64_t with_weights, pools;
    if (!checked_mul(manifest->geometry.recurrent_bytes, options->checkpoints, &sizes->checkpoint_bytes) ||
        !fixed_sizes(manifest, options->host_bytes, sizes))
        return status_fail(status, STATUS_MACHINE, "session: its memory size exceeds 64 bits");
    sizes->pages = options->pages;
    if (!sizes->pages &&
        !backend_kv_pages(&manifest->geometry, options, kv_room(manifest, sizes), &sizes->pages, status))
        return false;
    if (!checked_mul(sizes->pages, manifest->geometry.page_bytes, &sizes->kv_bytes) ||
        !checked_mul(sizes->kv_bytes, plan_ranks(&manifest->geometry), &pools) ||
        !checked_add(sizes->total, pools, &sizes->total) ||
        !checked_add(sizes->total, sizes->cached_bytes, &with_weights))
        return status_fail(status, STATUS_MACHINE, "session: its memory size exceeds 64 bits");
    if (options->pages) return true; /* rank 0 has checked for all */
    /* The address space of the weights is taken already. */
    return memory_limit_check("session (weights, scratch and KV pages)", with_weights, sizes->total,
                              "free memory, or ask for a smaller KV pool (kv_tokens, kv_bytes) or fewer sequences",
                              status);
}

static bool allocate(struct cpu_backend *cpu, const struct cpu_sizes *sizes, const struct host_memory_hooks *hooks,
                     struct status *status)
{
    if (!host_memory_map(&cpu->scratch, sizes->scratch_bytes, "scratch memory", hooks, status) ||
        !host_memory_map(&cpu->kv, sizes->kv_bytes, "KV pages", hooks, status) ||
        (sizes->checkpoint_bytes &&
         !host_memory_map(&cpu->checkpoints, sizes->checkpoint_bytes, "states of checkpoints", hooks, status)))
        return false;
    /* Advice: fewer page faults and TLB misses. Scratch memory is populated now, so that no step waits for it. */
    madvise(cpu->scratch.base, cpu->scratch.bytes, MADV_HUGEPAGE);
    madvise(cpu->kv.base, cpu->kv.bytes, MADV_HUGEPAGE);
    madvise(cpu->scratch.base, cpu->scratch.bytes, MADV_POPULATE_WRITE);
    cpu->common.step = (uint8_t *)cpu->scratch.base + sizes->step_offset;
    cpu->common.state = (uint8_t *)cpu->scratch.base + sizes->state_offset;
    if (cpu->ranks == 1) return true;
    cpu->comm = (struct comm_header *)(void *)((uint8_t *)cpu->scratch.base + sizes->comm_offset);
    cpu->common.comm = (uintptr_t)cpu->comm;
    comm_header_init(cpu->comm, cpu->rank, cpu->ranks, 0);
    return true;
}

static bool bind_plans(struct cpu_backend *cpu, const struct plan_space_sizes *space_sizes, struct status *status)
{
    const struct engine *file = cpu->file;
    const struct plan_geometry *geometry = &file->manifest.geometry;
    struct cpu_memory memory = {{0}};
    memory.base[SPACE_WEIGHTS] =
        (void *)(uintptr_t)(file->weights + cpu->rank * manifest_rank_weights(&file->manifest));
    memory.base[SPACE_COMM] = cpu->comm;
    memory.base[SPACE_ARENA] = cpu->scratch.base;
    memory.base[SPACE_KV] = cpu->kv.base;
    memory.base[SPACE_STEP] = cpu->common.step;
    memory.base[SPACE_STATE] = cpu->common.state;
    cpu->plans = calloc(file->plan_count, sizeof *cpu->plans);
    if (!cpu->plans) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (size_t i = 0; i < file->plan_count; i++) {
        const struct plan *plan = &file->plans[i];
        if (!cpu_plan_bind(&cpu->plans[i].bound, plan, geometry, space_sizes, &memory, cpu->isa, "plan", status))
            return status_prefix(status, "plan %zu", i);
        cpu->plan_count++;
        cpu->plans[i].next_tokens = (const int32_t *)(void *)(cpu->common.step + plan->step[STEP_NEXT_TOKENS].offset);
        if (plan->step[STEP_DRAFTED].bytes)
            cpu->plans[i].drafted = (const int32_t *)(void *)(cpu->common.step + plan->step[STEP_DRAFTED].offset);
        cpu->plans[i].logits = (const float *)(void *)(cpu->common.step + plan->step[STEP_LOGITS].offset);
        cpu->plans[i].hidden = (const float *)(void *)(cpu->common.step + plan->step[STEP_HIDDEN].offset);
    }
    return true;
}

static bool choose_isa(enum cpu_isa *chosen, const char *name, struct status *status)
{
    *chosen = cpu_isa_best();
    if (!name) return true;
    for (int isa = CPU_PORTABLE; isa < CPU_ISA_COUNT; isa++) {
        if (strcmp(name, cpu_isa_name((enum cpu_isa)isa)) != 0) continue;
        *chosen = (enum cpu_isa)isa;
        if (cpu_isa_supported(*chosen)) return true;
        return status_fail(
            status, STATUS_MACHINE,
            "instruction set: expected one that this processor supports, found '%s'; the best that it supports is '%s'",
            name, cpu_isa_name(cpu_isa_best()));
    }
    return status_fail(status, STATUS_USAGE,
                       "instruction set: expected portable, avx2, avx512, avx512vnni, avx512bf16 or amx, found '%s'",
                       name);
}

/* Ranks share the processors. */
static int threads_for(const struct cpu_backend *cpu, uint32_t asked)
{
    if (cpu->ranks == 1) return team_size_of((int)asked);
    int each = (asked ? (int)asked : processors_available()) / (int)cpu->ranks;
    return each > TEAM_MAX_THREADS ? TEAM_MAX_THREADS : each > 0 ? each : 1;
}

static void destroy(struct backend *backend)
{
    struct cpu_backend *cpu = cpu_of(backend);
    team_destroy(cpu->team);
    for (size_t i = 0; i < cpu->plan_count; i++) cpu_plan_free(&cpu->plans[i].bound);
    free(cpu->plans);
    host_memory_unmap(&cpu->checkpoints);
    host_memory_unmap(&cpu->kv);
    host_memory_unmap(&cpu->scratch);
    free(cpu);
}

static struct backend *create(struct eng_engine *engine, const struct backend_options *options, struct status *status)
{
    struct cpu_sizes sizes = {0};
    struct cpu_backend *cpu = calloc(1, sizeof *cpu);
    if (!cpu) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        return NULL;
    }
    cpu->common.type = &backend_cpu;
    cpu->file = &engine->file;
    cpu->rank = options->rank;
    cpu->ranks = (uint32_t)plan_ranks(&engine->file.manifest.geometry);
    const int threads = threads_for(cpu, options->threads);
    sizes.team_bytes = (uint64_t)threads * TEAM_SCRATCH_BYTES;
    sizes.cached_bytes = engine->weights.base ? 0 : engine->file.manifest.weights_bytes;
    if (!choose_isa(&cpu->isa, options->instruction_set, status) ||
        !plan_sizes(&engine->file.manifest, options, &sizes, status) ||
        !allocate(cpu, &sizes, &engine->memory_hooks, status) || !bind_plans(cpu, &engine->space_sizes, status))
        goto fail;
    cpu->team = team_create(threads, status);
    if (!cpu->team) goto fail;
    cpu->common.pages = (uint32_t)sizes.pages;
    cpu->common.threads = (uint32_t)team_size(cpu->team);
    cpu->common.instruction_set = cpu_isa_name(cpu->isa);
    cpu->common.kv_bytes = cpu->kv.bytes;
    cpu->common.host_bytes = cpu->scratch.bytes + sizes.team_bytes + cpu->kv.bytes + cpu->checkpoints.bytes;
    return &cpu->common;

fail:
    destroy(&cpu->common);
    return NULL;
}

/* Whether all ranks arrived at every collective. */
static bool check_met(struct cpu_backend *cpu, struct status *status)
{
    if (!cpu->comm || !cpu->comm->stop) return true;
    cpu->common.failure = cpu->comm->timed_out ? BACKEND_NO_ANSWER : BACKEND_STOPPED;
    if (!cpu->comm->timed_out) return status_fail(status, STATUS_MACHINE, "another rank has failed");
    return status_fail(status, STATUS_MACHINE, "rank %" PRIu32 " did not answer within %.1f s",
                       cpu->comm->timed_out - 1, (double)cpu->comm->timeout_ns * 1e-9);
}

static bool submit(struct backend *backend, size_t plan, enum backend_inputs inputs, struct status *status)
{
    struct cpu_backend *cpu = cpu_of(backend);
    if (inputs != INPUTS_FROM_HOST) return status_fail(status, STATUS_INTERNAL, "this backend does not look ahead");
    cpu->last = &cpu->plans[plan];
    cpu_plan_run(&cpu->last->bound, cpu->team);
    return check_met(cpu, status);
}

static const int32_t *wait_for(struct backend *backend, struct status *status)
{
    (void)status;
    backend->drafted = cpu_of(backend)->last->drafted;
    return cpu_of(backend)->last->next_tokens;
}

static const float *logits(struct backend *backend, uint32_t row, uint32_t count, struct status *status)
{
    (void)count;
    (void)status;
    const struct cpu_backend *cpu = cpu_of(backend);
    return cpu->last->logits + row * cpu->file->manifest.geometry.vocab_size;
}

static const float *hidden(struct backend *backend, uint32_t row, uint32_t count, struct status *status)
{
    (void)count;
    (void)status;
    const struct cpu_backend *cpu = cpu_of(backend);
    return cpu->last->hidden + row * cpu->file->manifest.geometry.hidden_size;
}

static bool trace(struct backend *backend, size_t plan, double *replay_us, double *launch_us, struct status *status)
{
    struct cpu_backend *cpu = cpu_of(backend);
    const struct cpu_plan *bound = &cpu->plans[plan].bound;
    double start = load_seconds();
    cpu_plan_run(bound, cpu->team);
    *replay_us = (load_seconds() - start) * 1e6;
    memset(launch_us, 0, bound->launch_count * sizeof *launch_us);
    cpu_plan_run_timed(bound, cpu->team, launch_us);
    return check_met(cpu, status);
}

static bool connect_ranks(struct backend *backend, const uint64_t *comm, struct status *status)
{
    struct cpu_backend *cpu = cpu_of(backend);
    (void)status;
    memcpy(cpu->comm->peers, comm, cpu->ranks * sizeof *comm);
    return true;
}

static bool copy_page(struct backend *backend, int32_t page, uint8_t *bytes, bool to_pool, struct status *status)
{
    const struct cpu_backend *cpu = cpu_of(backend);
    const uint64_t size = cpu->file->manifest.geometry.page_bytes;
    uint8_t *own = (uint8_t *)cpu->kv.base + (uint64_t)page * size;
    (void)status;
    memcpy(to_pool ? own : bytes, to_pool ? bytes : own, size);
    return true;
}

static bool repeat_page(struct backend *backend, int32_t from, int32_t to, struct status *status)
{
    const struct cpu_backend *cpu = cpu_of(backend);
    const uint64_t size = cpu->file->manifest.geometry.page_bytes;
    uint8_t *pool = cpu->kv.base;
    (void)status;
    memcpy(pool + (uint64_t)to * size, pool + (uint64_t)from * size, size);
    return true;
}

static uint8_t *recurrent_block(const struct cpu_backend *cpu, int32_t block)
{
    const struct plan_geometry *geometry = &cpu->file->manifest.geometry;
    const uint64_t index = (uint64_t)block, size = geometry->recurrent_bytes;
    if (index >= geometry->slots) return (uint8_t *)cpu->checkpoints.base + (index - geometry->slots) * size;
    return cpu->common.state + geometry->state[STATE_RECURRENT].offset + index * size;
}

static bool copy_recurrent(struct backend *backend, int32_t block, uint8_t *bytes, bool to_block, struct status *status)
{
    const struct cpu_backend *cpu = cpu_of(backend);
    uint8_t *own = recurrent_block(cpu, block);
    (void)status;
    memcpy(to_block ? own : bytes, to_block ? bytes : own, cpu->file->manifest.geometry.recurrent_bytes);
    return true;
}

static bool repeat_recurrent(struct backend *backend, int32_t from, int32_t to, struct status *status)
{
    const struct cpu_backend *cpu = cpu_of(backend);
    return copy_recurrent(backend, to, recurrent_block(cpu, from), true, status);
}

static void stop(struct backend *backend) { comm_stop(cpu_of(backend)->comm); }

const struct backend_type backend_cpu = {
    .host_logits = true,
    .create = create,
    .destroy = destroy,
    .submit = submit,
    .wait = wait_for,
    .logits = logits,
    .hidden = hidden,
    .trace = trace,
    .copy_page = copy_page,
    .copy_recurrent = copy_recurrent,
    .repeat_page = repeat_page,
    .repeat_recurrent = repeat_recurrent,
    .connect = connect_ranks,
    .stop = stop,
    .shares_memory = true,
};
