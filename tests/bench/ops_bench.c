/* SPDX-License-Identifier: Apache-2.0 */
/* Times every op but matmul at the sizes of Llama-3.2-1B on this machine's threads: microseconds per launch with its
 * barrier, as a replay pays for it, and the bandwidth or arithmetic rate that is. Figures are the best and the median of
 * many batches, as other programs may be running. Usage: ops_bench [threads [instruction set]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "formats/engine/engine_file.h"
#include "kernels/attention/attention.h"
#include "kernels/embed/embed.h"
#include "kernels/add/add.h"
#include "kernels/matmul/panel.h"
#include "kernels/op/op.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_table/rope_table.h"
#include "kernels/sample/sample.h"
#include "kernels/select_rows/select_rows.h"

enum {
    HIDDEN = 2048,
    HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 64,
    INTERMEDIATE = 8192,
    VOCAB = 128256,
    PAGE_TOKENS = 16,
    CONTEXT = 4096 + 256,
    LAYERS = 8, /* KV of so many layers takes turns, so that no cache holds it */
    PREFILL = 128,
    BATCHES = 40,
};

struct bench {
    struct team *team;
    enum cpu_isa isa;
    struct plan_geometry geometry;
};

/* One launch, in `variants` that take turns. */
struct timed {
    op_run *run;
    struct op_call *calls;
    int variants, launches;
    double elapsed_us;
};

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static void run_batch(void *argument, struct team_member *member)
{
    struct timed *timed = argument;
    team_barrier(member);
    double begin_us = now_us();
    for (int i = 0; i < timed->launches; i++) {
        timed->run(&timed->calls[i % timed->variants], member);
        team_barrier(member);
    }
    if (member->index == 0) timed->elapsed_us = now_us() - begin_us;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const struct bench *bench, const struct op_descriptor *op, const char *what, struct op_call *calls,
                   int variants, double bytes, double flops)
{
    struct timed timed = {.run = op_runner(op, bench->isa), .calls = calls, .variants = variants, .launches = variants};
    team_run(bench->team, run_batch, &timed);
    /* Batches of a millisecond or more, shorter for ops that are slow themselves. */
    while (timed.launches < 1000 && timed.elapsed_us < 1000) {
        timed.launches *= 2;
        team_run(bench->team, run_batch, &timed);
    }
    double times_us[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        team_run(bench->team, run_batch, &timed);
        times_us[i] = timed.elapsed_us / timed.launches;
    }
    qsort(times_us, BATCHES, sizeof times_us[0], compare_doubles);
    double best_us = times_us[0];
    printf("%-12s %-34s %10.2f %10.2f %8.1f %9.1f\n", op->name, what, best_us, times_us[BATCHES / 2],
           bytes / best_us * 1e-3, flops / best_us * 1e-3);
}

static void *allocate(uint64_t bytes)
{
    void *memory =
        aligned_alloc(PLAN_ALIGNMENT, (size_t)((bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT));
    if (!memory) {
        fprintf(stderr, "ops_bench: out of memory\n");
        exit(3);
    }
    memset(memory, 0, (size_t)bytes);
    return memory;
}

static void fill(void *array, size_t count, float scale)
{
    uint32_t state = 12345;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        ((float *)array)[i] = ((float)(state >> 8) * 0x1p-24f - 0.5f) * scale;
    }
}

/* A call with operands of its own; KV stays NULL. */
static struct op_call call_of(const struct bench *bench, const struct op_descriptor *op, const int64_t *params,
                              int valid)
{
    struct op_demand operands[PLAN_MAX_OPERANDS] = {{0}};
    int operand_count = 0;
    struct status status = {0};
    if (!op_demands(op, TARGET_CPU, params, &bench->geometry, operands, &operand_count, &status)) {
        fprintf(stderr, "ops_bench: %s\n", status.message);
        exit(4);
    }
    struct op_call call = {.params = params};
    for (int i = 0; i < operand_count; i++)
        if (!(operands[i].space_mask & 1u << SPACE_KV))
            call.operands[operands[i].operand] = allocate(operands[i].bytes);
    int32_t *counts = call.operands[OP_OPERAND_COUNTS];
    counts[0] = counts[1] = valid;
    return call;
}

static void free_call(struct op_call *call)
{
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) free(call->operands[i]);
}

static void bench_embed(const struct bench *bench, int rows, int64_t layout)
{
    const int64_t params[EMBED_PARAMS] = {rows,       0, HIDDEN,    HIDDEN, VOCAB,
                                          DTYPE_BF16, 0, DTYPE_F32, layout, OP_FLOAT_ONE_BITS};
    enum { VARIANTS = 64 };
    struct op_call call = call_of(bench, &op_embed, params, rows), calls[VARIANTS];
    int32_t *tokens = malloc(sizeof(int32_t) * (size_t)(VARIANTS * rows));
    if (!tokens) exit(3);
    for (int i = 0; i < VARIANTS * rows; i++) tokens[i] = (int32_t)((uint32_t)i * 2654435761u % VOCAB);
    for (int i = 0; i < VARIANTS; i++) {
        calls[i] = call;
        calls[i].operands[EMBED_TOKENS] = tokens + i * rows;
    }
    char what[64];
    snprintf(what, sizeof what, "%d rows, BF16 %s", rows, layout == LAYOUT_PANEL16 ? "panels" : "row-major");
    uint64_t bytes, flops;
    op_embed.cost(params, 0, &bytes, &flops);
    report(bench, &op_embed, what, calls, VARIANTS, (double)bytes, 0);
    free(tokens);
    free_call(&call);
}

/* Ops whose operands need no care but their size. */
static void bench_plain(const struct bench *bench, const struct op_descriptor *op, const int64_t *params, int rows,
                        const char *name)
{
    struct op_call call = call_of(bench, op, params, rows);
    char what[64];
    snprintf(what, sizeof what, "%d rows%s", rows, name);
    uint64_t bytes, flops;
    op->cost(params, bench->geometry.max_context / 2, &bytes, &flops);
    report(bench, op, what, &call, 1, (double)bytes, (double)flops);
    free_call(&call);
}

/* Large pages where the system grants them: an address translation costs as much as the 4 KiB it leads to. */
static void *allocate_pool(uint64_t bytes)
{
    enum { LARGE_PAGE = 2 << 20 };
    size_t whole = (size_t)((bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    void *memory = aligned_alloc(LARGE_PAGE, whole);
    if (!memory) {
        fprintf(stderr, "ops_bench: out of memory\n");
        exit(3);
    }
    (void)madvise(memory, whole, MADV_HUGEPAGE); /* advice: without it the figures are lower */
    return memory;
}

struct kv_pool {
    uint8_t *pages;
    uint64_t layer_bytes;
};

static void set_rows(const struct bench *bench, struct op_call *call, int slots, int positions, int page_table,
                     int rows, int first_position, bool one_slot)
{
    for (int r = 0; r < rows; r++) {
        ((int32_t *)call->operands[slots])[r] = one_slot ? 0 : r;
        ((int32_t *)call->operands[positions])[r] = one_slot ? first_position + r : first_position;
    }
    int32_t *table = call->operands[page_table];
    for (uint64_t i = 0; i < bench->geometry.slots * bench->geometry.pages_per_slot; i++)
        table[i] =
            (int32_t)(i % bench->geometry.pages_per_slot * bench->geometry.slots + i / bench->geometry.pages_per_slot);
}

static void bench_rope_append(const struct bench *bench, const struct kv_pool *pool, int rows, bool one_slot)
{
    const struct plan_geometry *geometry = &bench->geometry;
    const int64_t params[ROPE_APPEND_PARAMS] = {rows,
                                                0,
                                                HEADS,
                                                KV_HEADS,
                                                HEAD_DIM,
                                                PAGE_TOKENS,
                                                (int64_t)geometry->pages_per_slot,
                                                (int64_t)geometry->page_bytes,
                                                (int64_t)geometry->slots,
                                                DTYPE_F32,
                                                DTYPE_F32,
                                                0,
                                                DTYPE_F32,
                                                0};
    struct op_call call = call_of(bench, &op_rope_append, params, rows);
    set_rows(bench, &call, ROPE_APPEND_SLOTS, ROPE_APPEND_POSITIONS, ROPE_APPEND_PAGE_TABLE, rows, 200, one_slot);
    call.operands[ROPE_APPEND_KV] = pool->pages;
    uint64_t bytes, flops;
    op_rope_append.cost(params, 0, &bytes, &flops);
    char what[64];
    snprintf(what, sizeof what, "%d rows", rows);
    report(bench, &op_rope_append, what, &call, 1, (double)bytes, (double)flops);
    call.operands[ROPE_APPEND_KV] = NULL;
    free_call(&call);
}

static void bench_attention(const struct bench *bench, const struct kv_pool *pool, int rows, int context, bool one_slot)
{
    const struct plan_geometry *geometry = &bench->geometry;
    const int64_t params[ATTENTION_PARAMS] = {rows,
                                              0,
                                              HEADS,
                                              KV_HEADS,
                                              HEAD_DIM,
                                              PAGE_TOKENS,
                                              (int64_t)geometry->pages_per_slot,
                                              (int64_t)geometry->page_bytes,
                                              (int64_t)geometry->slots,
                                              DTYPE_F32,
                                              DTYPE_F32,
                                              0,
                                              (int64_t)float_to_bits(0.125f)};
    struct op_call call = call_of(bench, &op_attention, params, rows), calls[LAYERS];
    int first = one_slot ? context - rows : context - 1;
    set_rows(bench, &call, ATTENTION_SLOTS, ATTENTION_POSITIONS, ATTENTION_PAGE_TABLE, rows, first, one_slot);
    fill(call.operands[ATTENTION_Q], (size_t)rows * HEADS * HEAD_DIM, 2.0f);
    for (int layer = 0; layer < LAYERS; layer++) {
        calls[layer] = call;
        calls[layer].operands[ATTENTION_KV] = pool->pages + (uint64_t)layer * pool->layer_bytes;
    }
    double tokens = 0; /* pairs of row and token */
    for (int r = 0; r < rows; r++) tokens += one_slot ? first + r + 1 : context;
    double kv = (one_slot ? context : tokens) * KV_HEADS * HEAD_DIM * 2 * sizeof(float);
    char what[64];
    snprintf(what, sizeof what, "%s %d rows, context %d", one_slot ? "prefill" : "decode", rows, context);
    report(bench, &op_attention, what, calls, LAYERS, kv, 4.0 * tokens * HEADS * HEAD_DIM);
    call.operands[ATTENTION_KV] = NULL;
    free_call(&call);
}

static void bench_sample(const struct bench *bench, int rows, const char *name, struct sampler_state sampler)
{
    const int64_t params[SAMPLE_PARAMS] = {rows, 1, VOCAB, (int64_t)bench->geometry.slots, rows};
    struct op_call call = call_of(bench, &op_sample, params, rows);
    float *logits = call.operands[SAMPLE_LOGITS];
    /* Like a language model's: most tokens near a normal distribution (deviation 2.5, as a sum of uniform numbers), a few
     * dozen that stand out. */
    uint64_t state = 1;
    for (size_t i = 0; i < (size_t)rows * VOCAB; i++) {
        logits[i] = 0;
        for (int j = 0; j < 8; j++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            logits[i] += ((float)(state >> 40) * 0x1p-24f - 0.5f) * 3.06f;
        }
        if (i % 2500 == 17) logits[i] += 15.0f;
    }
    for (int r = 0; r < rows; r++) {
        ((int32_t *)call.operands[SAMPLE_OUT_ROWS])[r] = r;
        ((int32_t *)call.operands[SAMPLE_SLOTS])[r] = r;
        ((struct sampler_state *)call.operands[SAMPLE_SAMPLERS])[r] = sampler;
    }
    char what[64];
    snprintf(what, sizeof what, "%d rows, %s", rows, name);
    report(bench, &op_sample, what, &call, 1, (double)rows * VOCAB * sizeof(float), 0);
    free_call(&call);
}

static void bench_all(const struct bench *bench)
{
    static const int row_counts[] = {1, 8, PREFILL};
    const int64_t eps = (int64_t)float_to_bits(1e-5f);
    struct kv_pool pool = {.layer_bytes = 2ull * KV_HEADS * PAGE_TOKENS * HEAD_DIM * sizeof(float)};
    uint64_t pool_bytes = bench->geometry.page_bytes * bench->geometry.pages_per_slot * bench->geometry.slots;
    pool.pages = allocate_pool(pool_bytes);
    fill(pool.pages, (size_t)(pool_bytes / sizeof(float)), 2.0f);

    printf("%-12s %-34s %10s %10s %8s %9s\n", "op", "case", "best us", "median us", "GB/s", "GFLOP/s");
    for (int i = 0; i < 3; i++) {
        int rows = row_counts[i];
        bench_embed(bench, rows, LAYOUT_ROW_MAJOR);
        bench_embed(bench, rows, LAYOUT_PANEL16);
        bench_plain(bench, &op_rope_table, (int64_t[PLAN_MAX_PARAMS]){rows, 0, HEAD_DIM, (int64_t)float_to_bits(1)},
                    rows, "");
        bench_plain(bench, &op_rms_norm, (int64_t[PLAN_MAX_PARAMS]){rows, 0, HIDDEN, DTYPE_BF16, eps, 0}, rows, "");
        bench_plain(bench, &op_rms_norm, (int64_t[PLAN_MAX_PARAMS]){rows, 0, HIDDEN, DTYPE_BF16, eps, 1}, rows,
                    ", residual");
        bench_rope_append(bench, &pool, rows, rows == PREFILL);
        bench_plain(bench, &op_add, (int64_t[PLAN_MAX_PARAMS]){rows, 0, HIDDEN}, rows, "");
        bench_plain(bench, &op_select_rows, (int64_t[PLAN_MAX_PARAMS]){rows, 1, HIDDEN, rows}, rows, "");
    }
    bench_attention(bench, &pool, 1, 10, false);
    bench_attention(bench, &pool, 1, 200, false);
    bench_attention(bench, &pool, 1, 4096, false);
    bench_attention(bench, &pool, 8, 200, false);
    bench_attention(bench, &pool, 8, 4096, false);
    bench_attention(bench, &pool, PREFILL, PREFILL, true);
    bench_attention(bench, &pool, PREFILL, 4096, true);
    free(pool.pages);

    const struct sampler_state plain = {.temperature = 0.8f, .top_p = 1, .repetition_penalty = 1};
    struct sampler_state greedy = plain, top_p = plain, top_k = plain, all = plain;
    greedy.temperature = 0;
    top_p.top_p = 0.9f;
    top_k.top_k = 50;
    all.top_k = 50;
    all.top_p = 0.9f;
    all.repetition_penalty = 1.1f;
    bench_sample(bench, 1, "greedy", greedy);
    bench_sample(bench, 8, "greedy", greedy);
    bench_sample(bench, 1, "temperature", plain);
    bench_sample(bench, 1, "top-p 0.9", top_p);
    bench_sample(bench, 1, "top-k 50", top_k);
    bench_sample(bench, 1, "top-k, top-p, penalty", all);
}

int main(int argc, char **argv)
{
    struct bench bench = {.isa = cpu_isa_best()};
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    if (argc > 2) {
        int isa = CPU_PORTABLE;
        while (isa < CPU_ISA_COUNT && strcmp(argv[2], cpu_isa_name((enum cpu_isa)isa)) != 0) isa++;
        if (isa == CPU_ISA_COUNT || !cpu_isa_supported((enum cpu_isa)isa)) {
            fprintf(stderr, "ops_bench: '%s' is no instruction set of this processor\n", argv[2]);
            return 2;
        }
        bench.isa = (enum cpu_isa)isa;
    }
    struct status status = {0};
    bench.team = team_create(threads, &status);
    if (!bench.team) {
        fprintf(stderr, "ops_bench: %s\n", status.message);
        return status_exit_code(&status);
    }
    uint64_t page_bytes = 2ull * KV_HEADS * PAGE_TOKENS * HEAD_DIM * sizeof(float) * LAYERS;
    bench.geometry = (struct plan_geometry){.slots = 8,
                                            .max_context = CONTEXT,
                                            .page_tokens = PAGE_TOKENS,
                                            .pages_per_slot = CONTEXT / PAGE_TOKENS,
                                            .page_bytes = page_bytes,
                                            .vocab_size = VOCAB};
    printf("%d threads, %s\n", team_size(bench.team), cpu_isa_name(bench.isa));
    bench_all(&bench);
    team_destroy(bench.team);
    return 0;
}
