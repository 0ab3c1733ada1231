/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/golden_cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/executor.h"
#include "kernels/cpu/rendezvous.h"
#include "kernels/matmul/matmul.h"

/* Work that takes at most seconds: plain references do about 1e9 a second and thread, plans some 1e10. */
static const double reference_flops = 2e8, plan_flops = 5e11;
enum { LEAST_TOKENS = 32, PATTERN = 0x3c }; /* as F32, F16 and BF16 a small finite number */

/* What each rank has: spaces of its own, the plans bound to them, threads. */
struct cpu_rank {
    struct cpu_memory memory;
    struct cpu_plan *bound; /* [plan_count] */
    struct team *team;
};

struct cpu_run {
    struct golden_task task;
    struct plan_space_sizes sizes;
    uint64_t kv_bytes;
    uint32_t ranks;
    struct cpu_rank rank[PLAN_MAX_RANKS];
    struct team *launcher; /* several ranks: a member for each */
    enum cpu_isa isa;
    size_t plan; /* being replayed */
    enum golden_way way;
};

static void *map_memory(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool open_rank(struct cpu_run *run, uint32_t rank, const uint8_t *weights, struct status *status)
{
    const struct golden_task *task = &run->task;
    const struct plan_geometry *geometry = &task->manifest->geometry;
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
    run->rank[rank].bound = calloc(task->plan_count, sizeof *run->rank[rank].bound);
    if (!run->rank[rank].bound) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (size_t p = 0; p < task->plan_count; p++)
        if (!cpu_plan_bind(&run->rank[rank].bound[p], &task->plans[p], geometry, &run->sizes, memory, run->isa,
                           "golden outputs", status))
            return false;
    return true;
}

/* Every rank sees every other's COMM space, and has its part of the threads. */
static bool connect_ranks(struct cpu_run *run, struct team *team, struct status *status)
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

static bool run_open(struct cpu_run *run, const uint8_t *weights, struct team *team, struct status *status)
{
    const struct manifest *manifest = run->task.manifest;
    run->kv_bytes = run->task.pages.count * manifest->geometry.page_bytes;
    run->sizes = manifest_space_sizes(manifest);
    for (uint32_t r = 0; r < run->ranks; r++)
        if (!open_rank(run, r, weights, status)) return false;
    return connect_ranks(run, team, status);
}

static void run_close(struct cpu_run *run)
{
    for (uint32_t r = 0; r < run->ranks; r++) {
        struct cpu_rank *rank = &run->rank[r];
        for (size_t p = 0; rank->bound && p < run->task.plan_count; p++) cpu_plan_free(&rank->bound[p]);
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
    for (uint32_t i = 0; i < step->out_rows; i++) out_rows[i] = (int32_t)(step->count - step->out_rows + i);
}

static void run_rank(struct cpu_run *run, uint32_t r)
{
    const struct cpu_plan *bound = &run->rank[r].bound[run->plan];
    (run->way == GOLDEN_BY_REFERENCE ? cpu_plan_run_reference : cpu_plan_run)(bound, run->rank[r].team);
}

static void run_member(void *argument, struct team_member *member) { run_rank(argument, (uint32_t)member->index); }

static bool run_plan(void *context, size_t plan, enum golden_way way, const struct golden_step *step,
                     const float **logits, const int32_t **drawn, struct status *status)
{
    struct cpu_run *run = context;
    struct golden_pages *pages = &run->task.pages;
    const struct plan_field *fields = run->task.plans[plan].step, *state = run->task.manifest->geometry.state;
    run->plan = plan;
    run->way = way;
    for (uint32_t r = 0; r < run->ranks; r++) {
        const struct cpu_memory *memory = &run->rank[r].memory;
        fill_step(memory->base[SPACE_STEP], fields, step);
        if (pages->is_new)
            memcpy((uint8_t *)memory->base[SPACE_STATE] + state[STATE_PAGE_TABLE].offset, pages->table,
                   pages->slots * pages->pages_per_slot * sizeof *pages->table);
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
    if (step->out_rows == 0) return true;
    *logits = (const float *)(const void *)(base + fields[STEP_LOGITS].offset);
    *drawn = (const int32_t *)(const void *)(base + fields[STEP_NEXT_TOKENS].offset);
    return true;
}

static bool scramble(void *context, struct status *status)
{
    struct cpu_run *run = context;
    (void)status;
    for (uint32_t r = 0; r < run->ranks; r++) memset(run->rank[r].memory.base[SPACE_KV], PATTERN, run->kv_bytes);
    return true;
}

static bool rounds_activations(const struct plan *plan, const struct plan_launch *launch)
{
    int64_t params[PLAN_MAX_PARAMS];
    struct status ignored = {0};
    return launch->op == OP_MATMUL && op_params(plan, launch, op_matmul.tunable_count, params, &ignored) &&
           params[MATMUL_COMPUTE_DTYPE] == DTYPE_BF16;
}

/* The fast kernels round differently from the references: float32 sums in another order, activations as two bf16. A
 * KV cache in 16 bits turns a difference in the last bit into one of 2^-9 (bf16) or 2^-11 (fp16), and so do activations that
 * are rounded to bf16, in every product. */
static float tolerance_for(enum dtype kv_dtype, const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->header.launch_count; i++)
        if (rounds_activations(plan, &plan->launches[i])) return 3e-2f;
    return kv_dtype == DTYPE_F32 ? 1e-3f : kv_dtype == DTYPE_F16 ? 5e-3f : 2e-2f;
}

bool compute_golden(const struct manifest *manifest, const struct plan *plans, size_t plan_count,
                    const uint8_t *weights, struct team *team, enum cpu_isa isa, struct progress *progress,
                    struct golden_outputs *outputs, struct status *status)
{
    const double flops = golden_flops(&plans[0]) * (double)plan_ranks(&manifest->geometry);
    struct cpu_run run = {
        .task = {.manifest = manifest,
                 .plans = plans,
                 .plan_count = plan_count,
                 .progress = progress,
                 .most_tokens = flops * LEAST_TOKENS > plan_flops ? LEAST_TOKENS : plan_flops / (flops + 1),
                 .relative_tolerance = tolerance_for(manifest->kv_dtype, plans),
                 .prompt_way = GOLDEN_BY_REFERENCE,
                 .run = run_plan,
                 .scramble = scramble},
        .ranks = (uint32_t)plan_ranks(&manifest->geometry),
        .isa = isa,
    };
    run.task.context = &run;
    bool ok = golden_choose(&run.task, outputs, status);
    if (ok)
        run.task.expected_way =
            flops * outputs->plans.token_count <= reference_flops ? GOLDEN_BY_REFERENCE : GOLDEN_BY_PLAN;
    ok = ok && run_open(&run, weights, team, status) && golden_compute(&run.task, outputs, status);
    run_close(&run);
    golden_close(&run.task);
    if (!ok) golden_outputs_free(outputs);
    return ok;
}
