#include "builder/golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/executor.h"

enum { GOLDEN_PROMPT = 5, GOLDEN_TOKENS = 3 };

/* One sequence in slot 0, its pages 0, 1, 2, ... */
struct golden_run {
    const struct manifest *manifest;
    const struct plan *prefill, *decode;
    struct plan_space_sizes sizes;
    struct cpu_memory memory;
    uint64_t kv_bytes;
    struct team *team;
};

static void *map_memory(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool run_open(struct golden_run *run, uint64_t tokens, const uint8_t *weights, struct status *status)
{
    const struct manifest *manifest = run->manifest;
    const struct plan_geometry *geometry = &manifest->geometry;
    struct plan_field state[STATE_FIELD_COUNT];
    uint64_t state_bytes, pages = (tokens + geometry->page_tokens - 1) / geometry->page_tokens;
    if (!state_layout(geometry, state, &state_bytes))
        return status_fail(status, STATUS_INTERNAL, "golden outputs: state layout");
    run->kv_bytes = pages * geometry->page_bytes;
    run->sizes.bytes[SPACE_WEIGHTS] = manifest->weights_bytes;
    run->sizes.bytes[SPACE_ARENA] = manifest->arena_bytes;
    run->sizes.bytes[SPACE_KV] = geometry->page_bytes;
    run->sizes.bytes[SPACE_STEP] = manifest->step_bytes;
    run->sizes.bytes[SPACE_STATE] = state_bytes;
    run->memory.base[SPACE_WEIGHTS] = (void *)weights;
    run->memory.base[SPACE_ARENA] = map_memory(manifest->arena_bytes);
    run->memory.base[SPACE_KV] = map_memory(run->kv_bytes);
    run->memory.base[SPACE_STEP] = map_memory(manifest->step_bytes);
    run->memory.base[SPACE_STATE] = map_memory(state_bytes);
    for (int s = SPACE_ARENA; s < SPACE_COUNT; s++)
        if (!run->memory.base[s])
            return status_fail(status, STATUS_MACHINE, "out of memory while computing golden outputs (%s)",
                               plan_space_name((unsigned)s));
    uint8_t *base = run->memory.base[SPACE_STATE];
    int32_t *page_table = (int32_t *)(void *)(base + state[STATE_PAGE_TABLE].offset);
    for (uint64_t p = 0; p < pages; p++) page_table[p] = (int32_t)p;
    struct sampler_state *sampler = (struct sampler_state *)(void *)(base + state[STATE_SAMPLERS].offset);
    *sampler = (struct sampler_state){.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    return true;
}

static void run_close(struct golden_run *run)
{
    uint64_t bytes[SPACE_COUNT] = {
        [SPACE_ARENA] = run->sizes.bytes[SPACE_ARENA],
        [SPACE_KV] = run->kv_bytes,
        [SPACE_STEP] = run->sizes.bytes[SPACE_STEP],
        [SPACE_STATE] = run->sizes.bytes[SPACE_STATE],
    };
    for (int s = SPACE_ARENA; s < SPACE_COUNT; s++)
        if (run->memory.base[s]) munmap(run->memory.base[s], bytes[s] ? bytes[s] : 1);
}

/* Feeds `count` tokens at `position`; with `logits`, returns the next token and copies its logits. */
static bool run_step(struct golden_run *run, const struct plan *plan, const int32_t *tokens, uint32_t count,
                     uint64_t position, float *logits, int32_t *next, struct status *status)
{
    struct plan_field fields[STEP_FIELD_COUNT];
    struct cpu_plan bound = {0};
    uint64_t total, vocab = run->manifest->geometry.vocab_size;
    if (!step_layout(plan->header.rows, plan->header.out_rows, vocab, fields, &total))
        return status_fail(status, STATUS_INTERNAL, "golden outputs: step layout");
    if (!cpu_plan_bind(&bound, plan, &run->manifest->geometry, &run->sizes, &run->memory, CPU_PORTABLE,
                       "golden outputs", status))
        return false;
    uint8_t *base = run->memory.base[SPACE_STEP];
    int32_t *counts = (int32_t *)(void *)(base + fields[STEP_COUNTS].offset);
    int32_t *step_tokens = (int32_t *)(void *)(base + fields[STEP_TOKENS].offset);
    int32_t *slots = (int32_t *)(void *)(base + fields[STEP_SLOTS].offset);
    int32_t *positions = (int32_t *)(void *)(base + fields[STEP_POSITIONS].offset);
    int32_t *out_rows = (int32_t *)(void *)(base + fields[STEP_OUT_ROWS].offset);
    counts[0] = (int32_t)count;
    counts[1] = logits ? 1 : 0;
    out_rows[0] = (int32_t)count - 1;
    for (uint32_t r = 0; r < count; r++) {
        step_tokens[r] = tokens[r];
        slots[r] = 0;
        positions[r] = (int32_t)(position + r);
    }
    cpu_plan_run_reference(&bound, run->team);
    if (logits) {
        memcpy(logits, base + fields[STEP_LOGITS].offset, vocab * sizeof *logits);
        *next = ((int32_t *)(void *)(base + fields[STEP_NEXT_TOKENS].offset))[0];
    }
    cpu_plan_free(&bound);
    return true;
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
                    const uint8_t *weights, struct team *team, struct engine_golden *golden, struct status *status)
{
    bool ok = false;
    struct golden_run run = {.manifest = manifest, .team = team};
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
    if (!run_open(&run, prompt_count + golden->token_count, weights, status)) goto done;
    uint32_t chunk = run.prefill->header.rows;
    for (uint32_t first = 0; first < prompt_count; first += chunk) {
        uint32_t count = prompt_count - first < chunk ? prompt_count - first : chunk;
        bool last = first + count == prompt_count;
        if (!run_step(&run, run.prefill, golden->prompt + first, count, first, last ? logits : NULL, tokens, status))
            goto done;
    }
    for (uint32_t t = 1; t < golden->token_count; t++)
        if (!run_step(&run, run.decode, &tokens[t - 1], 1, prompt_count + t - 1,
                      logits + (uint64_t)t * golden->vocab_size, &tokens[t], status))
            goto done;
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
