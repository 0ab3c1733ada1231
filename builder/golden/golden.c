/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/executor.h"
#include "kernels/cpu/rendezvous.h"

enum { GOLDEN_PROMPT = 5, GOLDEN_TOKENS = 3 };

/* What each rank has: spaces of its own, a plan bound to them, threads. */
struct golden_rank {
    struct cpu_memory memory;
    struct cpu_plan bound;
    struct team *team;
};

/* One sequence in slot 0, its pages 0, 1, 2, ... */
struct golden_run {
    const struct manifest *manifest;
    const struct plan *prefill, *decode;
    struct plan_space_sizes sizes;
    uint64_t kv_bytes;
    uint32_t ranks;
    struct golden_rank rank[PLAN_MAX_RANKS];
    struct team *launcher; /* several ranks: a member for each */
};

static void *map_memory(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool open_rank(struct golden_run *run, uint32_t rank, uint64_t pages, const uint8_t *weights,
                      struct status *status)
{
    const struct plan_field *state = run->manifest->geometry.state;
    struct cpu_memory *memory = &run->rank[rank].memory;
    memory->base[SPACE_WEIGHTS] = (void *)(uintptr_t)(weights + rank * run->sizes.bytes[SPACE_WEIGHTS]);
    for (int s = SPACE_ARENA; s < SPACE_COUNT; s++) {
        memory->base[s] = map_memory(s == SPACE_KV ? run->kv_bytes : run->sizes.bytes[s]);
        if (!memory->base[s])
            return status_fail(status, STATUS_MACHINE, "out of memory while computing golden outputs (%s)",
                               plan_space_name((unsigned)s));
    }
    uint8_t *base = memory->base[SPACE_STATE];
    int32_t *page_table = (int32_t *)(void *)(base + state[STATE_PAGE_TABLE].offset);
    for (uint64_t p = 0; p < pages; p++) page_table[p] = (int32_t)p;
    struct sampler_state *sampler = (struct sampler_state *)(void *)(base + state[STATE_SAMPLERS].offset);
    *sampler = (struct sampler_state){.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    return true;
}

/* Every rank sees every other's COMM space, and has its part of the threads. */
static bool connect_ranks(struct golden_run *run, struct team *team, struct status *status)
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

static bool run_open(struct golden_run *run, uint64_t tokens, const uint8_t *weights, struct team *team,
                     struct status *status)
{
    const struct manifest *manifest = run->manifest;
    const struct plan_geometry *geometry = &manifest->geometry;
    uint64_t pages = (tokens + geometry->page_tokens - 1) / geometry->page_tokens;
    run->kv_bytes = pages * geometry->page_bytes;
    run->ranks = (uint32_t)plan_ranks(geometry);
    run->sizes.bytes[SPACE_WEIGHTS] = manifest_rank_weights(manifest);
    run->sizes.bytes[SPACE_ARENA] = manifest->arena_bytes;
    run->sizes.bytes[SPACE_KV] = geometry->page_bytes;
    run->sizes.bytes[SPACE_STEP] = manifest->step_bytes;
    run->sizes.bytes[SPACE_STATE] = manifest->state_bytes;
    run->sizes.bytes[SPACE_COMM] = manifest->comm_bytes;
    for (uint32_t r = 0; r < run->ranks; r++)
        if (!open_rank(run, r, pages, weights, status)) return false;
    return connect_ranks(run, team, status);
}

static void run_close(struct golden_run *run)
{
    for (uint32_t r = 0; r < run->ranks; r++) {
        struct golden_rank *rank = &run->rank[r];
        for (int s = SPACE_ARENA; s < SPACE_COUNT; s++) {
            uint64_t bytes = s == SPACE_KV ? run->kv_bytes : run->sizes.bytes[s];
            if (rank->memory.base[s]) munmap(rank->memory.base[s], bytes ? bytes : 1);
        }
        if (run->ranks > 1) team_destroy(rank->team);
    }
    team_destroy(run->launcher);
}

static void fill_step(uint8_t *base, const struct plan_field *fields, const int32_t *tokens, uint32_t count,
                      uint64_t position, bool wants_logits)
{
    int32_t *counts = (int32_t *)(void *)(base + fields[STEP_COUNTS].offset);
    int32_t *step_tokens = (int32_t *)(void *)(base + fields[STEP_TOKENS].offset);
    int32_t *slots = (int32_t *)(void *)(base + fields[STEP_SLOTS].offset);
    int32_t *positions = (int32_t *)(void *)(base + fields[STEP_POSITIONS].offset);
    int32_t *out_rows = (int32_t *)(void *)(base + fields[STEP_OUT_ROWS].offset);
    counts[0] = (int32_t)count;
    counts[1] = wants_logits ? 1 : 0;
    out_rows[0] = (int32_t)count - 1;
    for (uint32_t r = 0; r < count; r++) {
        step_tokens[r] = tokens[r];
        slots[r] = 0;
        positions[r] = (int32_t)(position + r);
    }
}

static void run_rank(void *argument, struct team_member *member)
{
    struct golden_run *run = argument;
    cpu_plan_run_reference(&run->rank[member->index].bound, run->rank[member->index].team);
}

/* Feeds `count` tokens at `position`; with `logits`, returns the next token and copies its logits. */
static bool run_step(struct golden_run *run, const struct plan *plan, const int32_t *tokens, uint32_t count,
                     uint64_t position, float *logits, int32_t *next, struct status *status)
{
    const struct plan_field *fields = plan->step;
    const uint64_t vocab = run->manifest->geometry.vocab_size;
    bool ok = true;
    for (uint32_t r = 0; ok && r < run->ranks; r++) {
        fill_step(run->rank[r].memory.base[SPACE_STEP], fields, tokens, count, position, logits != NULL);
        ok = cpu_plan_bind(&run->rank[r].bound, plan, &run->manifest->geometry, &run->sizes, &run->rank[r].memory,
                           CPU_PORTABLE, "golden outputs", status);
    }
    if (ok && run->launcher)
        team_run(run->launcher, run_rank, run);
    else if (ok)
        cpu_plan_run_reference(&run->rank[0].bound, run->rank[0].team);
    const struct comm_header *comm = run->rank[0].memory.base[SPACE_COMM];
    if (ok && run->launcher && comm->stop)
        ok = status_fail(status, STATUS_MACHINE,
                         "golden outputs: the ranks did not meet in time; is the machine overloaded?");
    const uint8_t *base = run->rank[0].memory.base[SPACE_STEP];
    if (ok && logits) {
        memcpy(logits, base + fields[STEP_LOGITS].offset, vocab * sizeof *logits);
        *next = ((const int32_t *)(const void *)(base + fields[STEP_NEXT_TOKENS].offset))[0];
    }
    for (uint32_t r = 0; r < run->ranks; r++) cpu_plan_free(&run->rank[r].bound);
    return ok;
}

/* Tokens spread over the vocabulary, the same for every build of a model. */
static void choose_prompt(const struct manifest *manifest, int32_t *prompt, uint32_t count)
{
    uint64_t state = 1;
    for (uint32_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* Knuth, MMIX */
        prompt[i] = (int32_t)((state >> 33) % manifest->geometry.vocab_size);
    }
    if (manifest->bos_token >= 0) prompt[0] = (int32_t)manifest->bos_token;
}

/* A loader refuses golden logits that are not finite, and a model that gives them has nothing to say. */
static bool check_finite(const struct engine_golden *golden, struct status *status)
{
    for (uint64_t i = 0; i < (uint64_t)golden->token_count * golden->vocab_size; i++)
        if (!isfinite(golden->logits[i]))
            return status_fail(status, STATUS_BAD_INPUT,
                               "the model's logits are not finite (NaN or infinity): are the checkpoint's tensors "
                               "damaged, or does it need another --dtype or --kv-dtype?");
    return true;
}

/* The fast kernels round differently from the references: float32 sums in another order, activations as two bf16. A
 * KV cache in 16 bits turns a difference in the last bit into one of 2^-9 (bf16) or 2^-11 (fp16). */
static float tolerance_for(enum dtype kv_dtype)
{
    return kv_dtype == DTYPE_F32 ? 1e-3f : kv_dtype == DTYPE_F16 ? 5e-3f : 2e-2f;
}

bool golden_begin(const struct manifest *manifest, struct engine_golden *golden, struct status *status)
{
    memset(golden, 0, sizeof *golden);
    uint64_t vocab = manifest->geometry.vocab_size, context = manifest->geometry.max_context;
    if (context < 2) return true; /* the format wants room for prompt and tokens together */
    uint32_t prompt_count = context > GOLDEN_PROMPT ? GOLDEN_PROMPT : (uint32_t)context - 1;
    uint64_t room = context - prompt_count;
    uint32_t token_count = room > GOLDEN_TOKENS ? GOLDEN_TOKENS : (uint32_t)room;
    int32_t *prompt = calloc(prompt_count, sizeof *prompt), *tokens = calloc(token_count, sizeof *tokens);
    float *logits = calloc(token_count * vocab, sizeof *logits);
    golden->prompt = prompt;
    golden->tokens = tokens;
    golden->logits = logits;
    golden->prompt_count = prompt_count;
    golden->token_count = token_count;
    golden->vocab_size = (uint32_t)vocab;
    if (!prompt || !tokens || !logits) {
        golden_free(golden);
        return status_fail(status, STATUS_MACHINE, "out of memory while computing golden outputs");
    }
    choose_prompt(manifest, prompt, prompt_count);
    return true;
}

bool golden_end(struct engine_golden *golden, float relative, struct status *status)
{
    float largest = 1.0f;
    if (!check_finite(golden, status)) return false;
    for (uint64_t i = 0; i < (uint64_t)golden->token_count * golden->vocab_size; i++)
        largest = fmaxf(largest, fabsf(golden->logits[i]));
    golden->tolerance = largest * relative;
    return true;
}

bool compute_golden(const struct manifest *manifest, const struct plan *plans, size_t plan_count,
                    const uint8_t *weights, struct team *team, struct progress *progress, struct engine_golden *golden,
                    struct status *status)
{
    bool ok = false;
    struct golden_run run = {.manifest = manifest};
    for (size_t p = 0; p < plan_count; p++) {
        const struct plan *plan = &plans[p];
        const struct plan **kept = plan->header.kind == PLAN_DECODE ? &run.decode : &run.prefill;
        if (!*kept || plan->header.rows < (*kept)->header.rows) *kept = plan;
    }
    if (!golden_begin(manifest, golden, status)) return false;
    if (golden->token_count == 0) return true;
    uint32_t prompt_count = golden->prompt_count;
    int32_t *tokens = (int32_t *)golden->tokens;
    float *logits = (float *)golden->logits;
    const uint32_t all_tokens = prompt_count + golden->token_count - 1; /* the last one drawn is not computed */
    if (!run_open(&run, prompt_count + golden->token_count, weights, team, status)) goto done;
    uint32_t chunk = run.prefill->header.rows;
    for (uint32_t first = 0; first < prompt_count; first += chunk) {
        uint32_t count = prompt_count - first < chunk ? prompt_count - first : chunk;
        bool last = first + count == prompt_count;
        if (!run_step(&run, run.prefill, golden->prompt + first, count, first, last ? logits : NULL, tokens, status))
            goto done;
        progress_update(progress, first + count, all_tokens, NULL);
    }
    for (uint32_t t = 1; t < golden->token_count; t++) {
        if (!run_step(&run, run.decode, &tokens[t - 1], 1, prompt_count + t - 1,
                      logits + (uint64_t)t * golden->vocab_size, &tokens[t], status))
            goto done;
        progress_update(progress, prompt_count + t, all_tokens, NULL);
    }
    ok = golden_end(golden, tolerance_for(manifest->kv_dtype), status);
done:
    run_close(&run);
    if (!ok) golden_free(golden);
    return ok;
}

void golden_free(struct engine_golden *golden)
{
    free((void *)golden->prompt);
    free((void *)golden->tokens);
    free((void *)golden->logits);
    memset(golden, 0, sizeof *golden);
}
