/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/cpu_replay.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/rendezvous.h"

enum { PATTERN = 0x3c }; /* as F32, F16 and BF16 a small finite number */

static void *map_memory(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool open_rank(struct cpu_replay *run, uint32_t rank, const uint8_t *weights, struct status *status)
{
    const struct plan_geometry *geometry = &run->manifest->geometry;
    struct cpu_memory *memory = &run->rank[rank].memory;
    memory->base[SPACE_WEIGHTS] = (void *)(uintptr_t)(weights + rank * run->sizes.bytes[SPACE_WEIGHTS]);
    for (int s = SPACE_ARENA; s < SPACE_COUNT; s++) {
        memory->base[s] = map_memory(s == SPACE_KV ? run->kv_bytes : run->sizes.bytes[s]);
        if (!memory->base[s])
            return status_fail(status, STATUS_MACHINE, "out of memory while computing golden outputs (%s)",
                               plan_space_name((unsigned)s));
    }
    uint8_t *base = memory->base[SPACE_STATE];
    struct sampler_state *samplers = (void *)(base + geometry->state[STATE_SAMPLERS].offset);
    for (uint64_t s = 0; s < geometry->slots; s++)
        samplers[s] = (struct sampler_state){.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    run->rank[rank].bound = calloc(run->plan_count, sizeof *run->rank[rank].bound);
    if (!run->rank[rank].bound) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (size_t p = 0; p < run->plan_count; p++)
        if (!cpu_plan_bind(&run->rank[rank].bound[p], &run->plans[p], geometry, &run->sizes, memory, run->isa,
                           "golden outputs", status))
            return false;
    return true;
}

/* Every rank sees every other's COMM space, and has its part of the threads. */
static bool connect_ranks(struct cpu_replay *run, struct team *team, struct status *status)
{
    run->rank[0].team = team;
    if (run->ranks == 1) return true;
    int threads = team_size(team) / (int)run->ranks;
    for (uint32_t r = 0; r < run->ranks; r++) {
        struct comm_header *header = run->rank[r].memory.base[SPACE_COMM];
        comm_header_init(header, r, run->ranks, 0);
        for (uint32_t peer = 0; peer < run->ranks; peer++)
            header->peers[peer] = (uintptr_t)run->rank[peer].memory.base[SPACE_COMM];
        run->rank[r].team = team_create(threads > 0 ? threads : 1, status);
        if (!run->rank[r].team) return false;
    }
    run->launcher = team_create((int)run->ranks, status);
    return run->launcher != NULL;
}

bool cpu_replay_open(struct cpu_replay *run, const uint8_t *weights, struct team *team, struct status *status)
{
    const struct manifest *manifest = run->manifest;
    run->ranks = (uint32_t)plan_ranks(&manifest->geometry);
    run->kv_bytes = run->pages->count * manifest->geometry.page_bytes;
    run->sizes = manifest_space_sizes(manifest);
    for (uint32_t r = 0; r < run->ranks; r++)
        if (!open_rank(run, r, weights, status)) return false;
    return connect_ranks(run, team, status);
}

void cpu_replay_close(struct cpu_replay *run)
{
    for (uint32_t r = 0; r < run->ranks; r++) {
        struct cpu_rank *rank = &run->rank[r];
        for (size_t p = 0; rank->bound && p < run->plan_count; p++) cpu_plan_free(&rank->bound[p]);
        free(rank->bound);
        for (int s = SPACE_ARENA; s < SPACE_COUNT; s++) {
            uint64_t bytes = s == SPACE_KV ? run->kv_bytes : run->sizes.bytes[s];
            if (rank->memory.base[s]) munmap(rank->memory.base[s], bytes ? bytes : 1);
        }
        if (run->ranks > 1) team_destroy(rank->team);
    }
    team_destroy(run->launcher);
}

static void fill_step(uint8_t *base, const struct plan_field *fields, const struct golden_step *step)
{
    int32_t *counts = (int32_t *)(void *)(base + fields[STEP_COUNTS].offset);
    int32_t *out_rows = (int32_t *)(void *)(base + fields[STEP_OUT_ROWS].offset);
    const size_t bytes = step->count * sizeof(int32_t);
    counts[0] = (int32_t)step->count;
    counts[1] = (int32_t)step->out_rows;
    memcpy(base + fields[STEP_TOKENS].offset, step->tokens, bytes);
    memcpy(base + fields[STEP_SLOTS].offset, step->slots, bytes);
    memcpy(base + fields[STEP_POSITIONS].offset, step->positions, bytes);
    int32_t *seeds = (int32_t *)(void *)(base + fields[STEP_ROUTE_SEEDS].offset);
    for (uint32_t i = 0; i < step->count; i++)
        seeds[i] = step->fixes_routes ? golden_route_seed(step->positions[i]) : 0;
    if (fields[STEP_FOLLOWING].bytes) golden_following(step, (int32_t *)(void *)(base + fields[STEP_FOLLOWING].offset));
    golden_out_rows(step, out_rows);
}

static void run_rank(struct cpu_replay *run, uint32_t r)
{
    const struct cpu_plan *bound = &run->rank[r].bound[run->plan];
    struct cpu_observed_rank rank = {run, r};
    if (run->observe)
        cpu_plan_run_observed(bound, run->rank[r].team, run->observe, &rank);
    else
        (run->by_reference ? cpu_plan_run_reference : cpu_plan_run)(bound, run->rank[r].team);
}

static void run_member(void *argument, struct team_member *member) { run_rank(argument, (uint32_t)member->index); }

bool cpu_replay_run(struct cpu_replay *run, size_t plan, bool by_reference, const struct golden_step *step,
                    struct golden_found *found, struct status *status)
{
    struct golden_pages *pages = run->pages;
    const struct plan_field *fields = run->plans[plan].step, *state = run->manifest->geometry.state;
    run->plan = plan;
    run->by_reference = by_reference;
    for (uint32_t r = 0; r < run->ranks; r++) {
        const struct cpu_memory *memory = &run->rank[r].memory;
        fill_step(memory->base[SPACE_STEP], fields, step);
        if (pages->is_new)
            memcpy((uint8_t *)memory->base[SPACE_STATE] + state[STATE_PAGE_TABLE].offset, pages->table,
                   state[STATE_PAGE_TABLE].bytes);
    }
    pages->is_new = false;
    if (run->launcher)
        team_run(run->launcher, run_member, run);
    else
        run_rank(run, 0);
    const struct comm_header *comm = run->rank[0].memory.base[SPACE_COMM];
    if (run->launcher && comm->stop)
        return status_fail(status, STATUS_MACHINE, "the ranks did not meet in time; is the machine overloaded?");
    const uint8_t *base = run->rank[0].memory.base[SPACE_STEP];
    found->logits = (const float *)(const void *)(base + fields[STEP_LOGITS].offset);
    found->drawn = (const int32_t *)(const void *)(base + fields[STEP_NEXT_TOKENS].offset);
    if (fields[STEP_DRAFTED].bytes)
        found->drafted = (const int32_t *)(const void *)(base + fields[STEP_DRAFTED].offset);
    return true;
}

const float *cpu_replay_draft_logits(const struct cpu_replay *run)
{
    const uint8_t *arena = run->rank[0].memory.base[SPACE_ARENA];
    return (const float *)(const void *)(arena + golden_draft_logits(&run->plans[run->plan]));
}

void cpu_replay_scramble(struct cpu_replay *run)
{
    for (uint32_t r = 0; r < run->ranks; r++) memset(run->rank[r].memory.base[SPACE_KV], PATTERN, run->kv_bytes);
}

uint32_t cpu_replay_affordable(const struct plan_geometry *geometry, double flops, double bytes,
                               const struct team *team)
{
    enum { MOST_TOKENS = 256 };
    const double flops_of_thread = 1e12, most_bytes = 4e12;
    const double most_flops = flops_of_thread * team_size(team), all_flops = flops * (double)plan_ranks(geometry);
    uint64_t tokens = MOST_TOKENS;
    if (tokens > geometry->max_context) tokens = geometry->max_context;
    if (all_flops * (double)tokens > most_flops) tokens = (uint64_t)(most_flops / all_flops) + 1;
    if (bytes * (double)tokens > most_bytes) tokens = (uint64_t)(most_bytes / bytes) + 1;
    return (uint32_t)tokens;
}
