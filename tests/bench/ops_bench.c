/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of the CPU code of every op beside what the memory gives in the same run, at the sizes of Llama-3.2-1B.
 *
 *   ops_bench [-t THREADS] [-i ISA] [-r ROUNDS] [-f FILE] [-k TYPE] [OP...]
 *   ops_bench ... [-k TYPE] [-c CONTEXT] attention
 *   ops_bench ... [-d ENCODING] [-C COMPUTE] [-m ROWS] [-s NxK] [-T P,R,D,B,T,N] [-a] matmul
 *
 * One line per case: best and median over the rounds of the microseconds of a launch with its barrier, as a replay pays
 * for it; GB/s and GFLOP/s by the op's own cost; and the share of the bandwidth probe: a plain streaming read of as many
 * bytes by the same threads, before each measured round (best by best, and the median of the rounds' shares, which noise
 * that lasts longer than a round does not change). Parameters and operands follow from the op's schema: weights rotate
 * through a buffer larger than the caches, with -f a mapping of that file, which is made and removed; KV blocks of several
 * layers take turns; -k is their type (F32, F16, BF16, int8_channel, e4m3_channel). attention: -c measures one row at that
 * context alone. matmul: -d is the encoding of its weights (BF16, F16, F32, int4_g32 and so on), -C to what activations are
 * rounded (F32, BF16, int8_g32); -a measures every candidate; -T P,R,... given tunables; its weights are also packed, if they have
 * no codes. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "formats/engine/engine_file.h"
#include "kernels/matmul/matmul.h"
#include "kernels/op/paged.h"
#include "tests/bench/op_case.h"

enum {
    HIDDEN = 2048,
    HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 64,
    VOCAB = 128256,
    PAGE_TOKENS = 16,
    CONTEXT = 4096 + 256,
    LAYERS = 8, /* KV of so many layers takes turns, so that no cache holds it */
    SLOTS = 8,
    PREFILL = 128,
    VARIANTS = 64, /* calls that take turns */
    MAX_ROUNDS = 1000,
    MAX_CANDIDATES = 64,
};
#define POOL_BYTES ((size_t)640 << 20) /* far more than the caches */

static const struct op_setting model[] = {
    {"hidden", HIDDEN},
    {"pitch", HIDDEN},
    {"width", HIDDEN},
    {"vocab", VOCAB},
    {"heads", HEADS},
    {"kv_heads", KV_HEADS},
    {"head_dim", HEAD_DIM},
    {"table_dtype", DTYPE_BF16},
    {"weight_dtype", DTYPE_BF16},
    {"layout", LAYOUT_ROW_MAJOR},
    {"eps_bits", 0x3727c5ac},
    {"scaling_bits", OP_FLOAT_ONE_BITS},
    {.name = NULL},
};

static const struct op_descriptor *op_of(const struct op_case *c) { return op_find(c->op); }

struct options {
    int threads, rounds;
    enum cpu_isa isa;
    enum encoding_id dtype, compute; /* of matmul */
    int rows;
    int64_t n, k; /* 0: the built-in list */
    bool all_candidates, has_tunables;
    int64_t tunables[MATMUL_TUNABLES];
    const char *file;
    enum encoding_id kv_dtype;
    int context; /* 0: the built-in list */
};

struct bench {
    struct options options;
    struct team *team;
    struct plan_geometry geometry;
    uint64_t kv_layer_bytes;
    unsigned char *weights, *pages; /* pages: of KV; NULL until an op reads them */
    size_t next_offset;             /* into the weights */
};

/* ---- time ---- */

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

struct timing {
    double best, median;
};

static struct timing summarize(double *values, int count)
{
    qsort(values, (size_t)count, sizeof values[0], compare_doubles);
    return (struct timing){values[0], values[count / 2]};
}

/* ---- the bandwidth probe ---- */

/* Independent sums, so that nothing but the loads costs time. */
#define READ_PIECE                                                      \
    typedef uint64_t lanes __attribute__((vector_size(64), may_alias)); \
    lanes a = {0}, b = a, c = a, d = a;                                 \
    const lanes *from = (const lanes *)(const void *)data;              \
    for (size_t i = 0; i + 4 <= bytes / 64; i += 4) {                   \
        a |= from[i];                                                   \
        b |= from[i + 1];                                               \
        c |= from[i + 2];                                               \
        d |= from[i + 3];                                               \
    }                                                                   \
    a |= b | c | d;                                                     \
    return a[0] | a[1] | a[2] | a[3] | a[4] | a[5] | a[6] | a[7];

#if defined(__x86_64__)
__attribute__((noinline, target("avx512f"))) static uint64_t read_piece_avx512(const unsigned char *data, size_t bytes)
{
    READ_PIECE
}
#endif

__attribute__((noinline)) static uint64_t read_piece(const unsigned char *data, size_t bytes)
{
#if defined(__x86_64__)
    if (cpu_isa_supported(CPU_AVX512)) return read_piece_avx512(data, bytes);
#endif
    READ_PIECE
}

struct probe {
    const unsigned char *data;
    size_t bytes;
};

/* Pieces by ticket, as the op takes its tasks. */
static void probe_member(void *argument, struct team_member *member)
{
    enum { PIECE_BYTES = 1 << 19 };
    const struct probe *probe = argument;
    uint64_t sum = 0;
    for (size_t offset; (offset = (size_t)team_ticket(member) * PIECE_BYTES) < probe->bytes;)
        sum |=
            read_piece(probe->data + offset, probe->bytes - offset < PIECE_BYTES ? probe->bytes - offset : PIECE_BYTES);
    volatile uint64_t sink = sum;
    (void)sink;
}

/* ---- memory ---- */

static void fail(int code, const char *what)
{
    fprintf(stderr, "ops_bench: %s\n", what);
    exit(code);
}

static void *allocate(uint64_t bytes)
{
    void *memory =
        aligned_alloc(PLAN_ALIGNMENT, (size_t)((bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT));
    if (!memory) fail(3, "out of memory");
    memset(memory, 0, (size_t)bytes);
    return memory;
}

/* Memory for the weights: from the file's mapping if there is one. NULL if there is none. */
static unsigned char *map_weights(const char *file)
{
    int descriptor = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (file) {
        flags = MAP_SHARED;
        descriptor = open(file, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (descriptor < 0) return NULL;
        unlink(file);
        if (ftruncate(descriptor, (off_t)POOL_BYTES) != 0) {
            close(descriptor);
            return NULL;
        }
    }
    void *pool = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (descriptor >= 0) close(descriptor);
    return pool == MAP_FAILED ? NULL : pool;
}

static unsigned char *next_weights(struct bench *bench, uint64_t bytes)
{
    if (bytes > POOL_BYTES) fail(2, "the weight is larger than the buffer of weights");
    if (bench->next_offset + bytes > POOL_BYTES) bench->next_offset = 0;
    unsigned char *weights = bench->weights + bench->next_offset;
    bench->next_offset += (bytes + 4095) / 4096 * 4096;
    return weights;
}

/* Large pages where the system grants them: an address translation costs as much as the 4 KiB it leads to. */
static unsigned char *kv_pages(struct bench *bench)
{
    enum { LARGE_PAGE = 2 << 20 };
    const struct plan_geometry *geometry = &bench->geometry;
    if (bench->pages) return bench->pages;
    uint64_t bytes = geometry->page_bytes * geometry->pages_per_slot * geometry->slots;
    size_t whole = (size_t)((bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    bench->pages = aligned_alloc(LARGE_PAGE, whole);
    if (!bench->pages) fail(3, "out of memory");
    (void)madvise(bench->pages, whole, MADV_HUGEPAGE); /* advice: without it the figures are lower */
    for (size_t i = 0; i < whole / sizeof(float); i++)
        ((float *)(void *)bench->pages)[i] = (float)(i * 7919 % 1000) * 2e-3f - 1;
    return bench->pages;
}

/* ---- operands, as the schema says ---- */

/* Calls that take turns: with weights and blocks of KV of their own, and different tokens. */
static void make_calls(struct bench *bench, const struct op_case *c, const int64_t *params,
                       struct op_call calls[VARIANTS])
{
    struct op_demand demands[PLAN_MAX_OPERANDS] = {{0}};
    int count = 0;
    struct status status = {0};
    if (!op_demands(op_of(c), TARGET_CPU, params, &bench->geometry, demands, &count, &status)) fail(4, status.message);
    for (int v = 0; v < VARIANTS; v++) calls[v] = (struct op_call){.params = params};
    for (int i = 0; i < count; i++) {
        const int at = demands[i].operand;
        const struct op_operand *operand = &op_of(c)->operands[at];
        const uint64_t bytes = demands[i].bytes;
        const bool tokens = operand->role == ROLE_STEP && operand->field == STEP_TOKENS;
        unsigned char *memory = NULL;
        if (operand->role != ROLE_WEIGHT && operand->role != ROLE_KV)
            memory = allocate(tokens ? VARIANTS * bytes : bytes);
        if (operand->role == ROLE_INPUT) op_case_logits((float *)(void *)memory, bytes / sizeof(float));
        if (operand->role == ROLE_STEP)
            op_case_step(c, &bench->geometry, (enum step_field)operand->field, (int32_t *)(void *)memory,
                         bytes / sizeof(int32_t) * (tokens ? VARIANTS : 1));
        if (operand->role == ROLE_STATE) op_case_state(c, &bench->geometry, (enum state_field)operand->field, memory);
        for (int v = 0; v < VARIANTS; v++)
            calls[v].operands[at] = operand->role == ROLE_WEIGHT ? next_weights(bench, bytes)
                                    : operand->role == ROLE_KV
                                        ? kv_pages(bench) + (uint64_t)(v % LAYERS) * bench->kv_layer_bytes
                                    : tokens ? memory + (uint64_t)v * bytes
                                             : memory;
    }
}

static void free_calls(const struct op_descriptor *op, const struct op_call *call)
{
    for (int i = 0; i < op->operand_count; i++)
        if (op->operands[i].role != ROLE_WEIGHT && op->operands[i].role != ROLE_KV) free(call->operands[i]);
}

static void make_params(const struct bench *bench, const struct op_case *c, int64_t *params)
{
    op_case_params(c, model, &bench->geometry, params);
    for (int i = 0; i < op_of(c)->param_count; i++)
        if (op_of(c)->params[i].source == PARAM_OF_KV) params[i] = bench->options.kv_dtype;
    if (op_of(c)->default_tunables)
        op_of(c)->default_tunables(params, bench->options.isa, team_size(bench->team), params + op_of(c)->param_count);
}

/* ---- a case ---- */

struct timed {
    op_run *run;
    const struct op_call *calls;
    int launches, next; /* next: the variant */
    double elapsed_us;
};

static void run_batch(void *argument, struct team_member *member)
{
    struct timed *timed = argument;
    team_barrier(member);
    double begin_us = now_us();
    for (int i = 0; i < timed->launches; i++) {
        timed->run(&timed->calls[(timed->next + i) % VARIANTS], member);
        team_barrier(member);
    }
    if (member->index == 0) timed->elapsed_us = now_us() - begin_us;
}

static void next_batch(struct bench *bench, struct timed *timed)
{
    team_run(bench->team, run_batch, timed);
    timed->next = (timed->next + timed->launches) % VARIANTS;
}

/* Attention: at the rows' contexts; the KV of one sequence is read once for all of its rows. */
static void costs(const struct op_case *c, const int64_t *params, double *bytes, double *flops)
{
    uint64_t whole_bytes, whole_flops;
    op_of(c)->cost(params, (uint64_t)c->context, &whole_bytes, &whole_flops);
    *bytes = (double)whole_bytes, *flops = (double)whole_flops;
    if (c->op != OP_ATTENTION) return;
    double tokens = 0; /* pairs of row and token */
    for (int r = 0; r < c->rows; r++) tokens += c->one_slot ? c->context - c->rows + r + 1 : c->context;
    *bytes = (c->one_slot ? c->context : tokens) * KV_HEADS * 2 * (double)op_kv_row_bytes(params);
    *flops = 4.0 * tokens * HEADS * HEAD_DIM;
}

static void measure(struct bench *bench, const struct op_case *c, const int64_t *params)
{
    static double op_us[MAX_ROUNDS], probe_us[MAX_ROUNDS], share[MAX_ROUNDS];
    const int rounds = bench->options.rounds;
    struct op_call calls[VARIANTS];
    double bytes, flops;
    make_calls(bench, c, params, calls);
    costs(c, params, &bytes, &flops);
    struct timed timed = {.run = op_runner(op_of(c), bench->options.isa), .calls = calls, .launches = 1};
    next_batch(bench, &timed);
    /* Batches of a millisecond or more. */
    while (timed.launches < 1000 && timed.elapsed_us < 1000) {
        timed.launches *= 2;
        next_batch(bench, &timed);
    }
    for (int round = 0; round < rounds; round++) {
        const size_t probed = bytes * timed.launches < POOL_BYTES ? (size_t)bytes * (size_t)timed.launches : POOL_BYTES;
        struct probe probe = {next_weights(bench, probed), probed};
        const double begin_us = now_us();
        team_run(bench->team, probe_member, &probe);
        probe_us[round] = (now_us() - begin_us) / (double)probed * bytes; /* of a launch's bytes */
        next_batch(bench, &timed);
        op_us[round] = timed.elapsed_us / timed.launches;
        share[round] = probe_us[round] / op_us[round];
    }
    const struct timing op = summarize(op_us, rounds), probe = summarize(probe_us, rounds);
    printf("%-12s %4d %-32s", op_of(c)->name, c->rows, c->what);
    for (int i = 0; i < op_of(c)->tunable_count; i++)
        printf("%s%" PRId64, i ? "," : " ", params[op_of(c)->param_count + i]);
    printf(" | %9.2f %9.2f | %6.1f %6.1f | %6.1f %6.1f | %5.1f %5.1f | %7.1f %7.1f\n", op.best, op.median,
           bytes / op.best * 1e-3, bytes / op.median * 1e-3, bytes / probe.best * 1e-3, bytes / probe.median * 1e-3,
           100 * probe.best / op.best, 100 * summarize(share, rounds).median, flops / op.best * 1e-3,
           flops / op.median * 1e-3);
    fflush(stdout);
    free_calls(op_of(c), &calls[0]);
}

static void run_case(struct bench *bench, const struct op_case *c)
{
    int64_t params[PLAN_MAX_PARAMS] = {0};
    make_params(bench, c, params);
    measure(bench, c, params);
}

/* ---- matmul: shapes, tunables and packing ---- */

static void run_matmul(struct bench *bench, int rows, int64_t n, int64_t k)
{
    const struct options *options = &bench->options;
    char what[64];
    snprintf(what, sizeof what, "%" PRId64 " x %" PRId64 " %s, %s", n, k, encoding_label(options->dtype),
             encoding_label(options->compute));
    const struct op_case c =
        {.op = OP_MATMUL,
         .what = what,
         .rows = rows,
         .settings = {{"n", n}, {"k", k}, {"dtype", options->dtype}, {"compute_dtype", options->compute}}};
    int64_t params[PLAN_MAX_PARAMS] = {0}, candidates[MAX_CANDIDATES][MATMUL_TUNABLES];
    int count = 1;
    make_params(bench, &c, params);
    if (options->has_tunables) {
        memcpy(candidates[0], options->tunables, sizeof candidates[0]);
    } else {
        count = matmul_candidates(params, options->isa, team_size(bench->team), candidates,
                                  options->all_candidates ? MAX_CANDIDATES : 1);
    }
    for (int i = 0; i < count; i++) {
        memcpy(params + MATMUL_FIRST_TUNABLE, candidates[i], sizeof candidates[i]);
        const char *illegal = matmul_tunables_illegal(params, options->isa);
        if (illegal)
            printf("%s\n", illegal);
        else
            measure(bench, &c, params);
    }
}

/* Packing of a matrix of this shape, rows from and to memory, by one thread. */
static void run_pack(struct bench *bench, int64_t n, int64_t k)
{
    static double us[MAX_ROUNDS];
    const enum dtype dtype = (enum dtype)bench->options.dtype;
    const size_t row_bytes = (size_t)k * dtype_bytes(dtype), matrix_bytes = (size_t)n * row_bytes;
    const size_t out_bytes = panel_bytes((uint64_t)k, dtype);
    const int rounds = bench->options.rounds < 9 ? bench->options.rounds : 9;
    unsigned char *out = allocate(4 * out_bytes); /* one panel at a time, as the builder packs */
    for (int round = 0; round < rounds; round++) {
        const unsigned char *from = next_weights(bench, matrix_bytes);
        const double begin_us = now_us();
        for (int64_t panel = 0; panel < n / PANEL_ROWS; panel++) {
            const void *rows[PANEL_ROWS];
            for (int i = 0; i < PANEL_ROWS; i++) rows[i] = from + (size_t)(panel * PANEL_ROWS + i) * row_bytes;
            panel_pack(rows, (uint64_t)k, dtype, out + (size_t)(panel % 4) * out_bytes);
        }
        us[round] = now_us() - begin_us;
    }
    const struct timing timing = summarize(us, rounds);
    printf("pack %" PRId64 " x %" PRId64 " %s: best %.1f, median %.1f GB/s (one thread)\n", n, k, dtype_name(dtype),
           1e-3 * (double)matrix_bytes / timing.best, 1e-3 * (double)matrix_bytes / timing.median);
    free(out);
}

static void run_matmuls(struct bench *bench)
{
    static const int64_t shapes[][2] = {{16384, 2048}, {3072, 2048}, {2048, 2048}, {2048, 8192}, {128256, 2048}};
    static const int rows[] = {1, 2, 4, 8, 16, 128};
    const struct options *options = &bench->options;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int64_t n = options->n ? options->n : shapes[s][0], k = options->k ? options->k : shapes[s][1];
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            run_matmul(bench, options->rows ? options->rows : rows[r], n, k);
            if (options->rows) break;
        }
        if (!options->rows && !options->has_tunables && encoding_is_plain(options->dtype))
            run_pack(bench, n < 16384 ? n : 16384, k);
        if (options->n) break;
    }
}

/* ---- all ops ---- */

static bool wanted(char **names, const char *op)
{
    bool any = false;
    for (char **name = names; *name; name++) any |= strcmp(*name, op) == 0;
    return any || !*names;
}

static void run_all(struct bench *bench, char **names)
{
    static const int row_counts[] = {1, 8, PREFILL};
    static const struct op_case by_rows[] = {
        {.op = OP_EMBED, .what = "BF16 row-major", .settings = {{"layout", LAYOUT_ROW_MAJOR}}},
        {.op = OP_EMBED, .what = "BF16 panels", .settings = {{"layout", LAYOUT_PANEL16}}},
        {.op = OP_ROPE_TABLE, .what = ""},
        {.op = OP_RMS_NORM, .what = ""},
        {.op = OP_RMS_NORM, .what = "residual", .settings = {{"has_residual", 1}}},
        {.op = OP_ROPE_APPEND, .what = "", .context = 201},
        {.op = OP_ADD, .what = ""},
        {.op = OP_SELECT_ROWS, .what = ""},
    };
    static const struct {
        int rows, context;
    } attentions[] = {{1, 10}, {1, 200}, {1, 4096}, {8, 200}, {8, 4096}, {PREFILL, PREFILL}, {PREFILL, 4096}};
    static const struct {
        const char *what;
        int rows;
        float temperature, top_p;
        int32_t top_k;
        float penalty;
    } samples[] = {
        {"greedy", 1, 0, 1, 0, 1},         {"greedy", 8, 0, 1, 0, 1},
        {"temperature", 1, 0.8f, 1, 0, 1}, {"top-p 0.9", 1, 0.8f, 0.9f, 0, 1},
        {"top-k 50", 1, 0.8f, 1, 50, 1},   {"top-k, top-p, penalty", 1, 0.8f, 0.9f, 50, 1.1f},
    };
    for (int i = 0; i < 3; i++)
        for (size_t b = 0; b < sizeof by_rows / sizeof *by_rows; b++) {
            struct op_case c = by_rows[b];
            c.rows = row_counts[i];
            c.one_slot = c.rows == PREFILL;
            if (c.one_slot && c.context) c.context += c.rows - 1; /* the first row at the same position */
            if (wanted(names, plan_op_name(c.op))) run_case(bench, &c);
        }
    const int only = bench->options.context;
    for (size_t a = 0; wanted(names, "attention") && a < (only ? 1 : sizeof attentions / sizeof *attentions); a++) {
        char what[48];
        snprintf(what, sizeof what, "context %d, KV %s", only ? only : attentions[a].context,
                 encoding_label(bench->options.kv_dtype));
        run_case(bench, &(struct op_case){.op = OP_ATTENTION,
                                          .what = what,
                                          .rows = attentions[a].rows,
                                          .context = only ? only : attentions[a].context,
                                          .one_slot = attentions[a].rows == PREFILL,
                                          .settings = {{"scale_bits", (int64_t)float_to_bits(0.125f)}}});
    }
    for (size_t s = 0; wanted(names, "sample") && s < sizeof samples / sizeof *samples; s++)
        run_case(bench, &(struct op_case){.op = OP_SAMPLE,
                                          .what = samples[s].what,
                                          .rows = samples[s].rows,
                                          .sampler = {.temperature = samples[s].temperature,
                                                      .top_p = samples[s].top_p,
                                                      .top_k = samples[s].top_k,
                                                      .repetition_penalty = samples[s].penalty}});
    if (wanted(names, "matmul")) run_matmuls(bench);
}

static bool parse_isa(const char *name, enum cpu_isa *isa)
{
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        if (strcmp(name, cpu_isa_name((enum cpu_isa)i)) != 0) continue;
        *isa = (enum cpu_isa)i;
        return cpu_isa_supported(*isa);
    }
    return false;
}

static bool is_matmul_encoding(enum encoding_id encoding)
{
    struct panel_form form;
    return panel_form(encoding, &form);
}

static bool is_matmul_compute(enum encoding_id encoding)
{
    return encoding == ENCODING_F32 || encoding == ENCODING_BF16 || encoding == ENCODING_INT8_G32;
}

static bool parse_options(int argc, char **argv, struct options *options)
{
    *options = (struct options){.rounds = 15,
                                .isa = cpu_isa_best(),
                                .dtype = ENCODING_BF16,
                                .compute = ENCODING_F32,
                                .kv_dtype = ENCODING_F32};
    for (int option; (option = getopt(argc, argv, "t:r:i:d:C:m:s:T:af:k:c:")) != -1;) {
        int64_t *t = options->tunables;
        bool ok = true;
        switch (option) {
        case 't': ok = (options->threads = atoi(optarg)) >= 0; break;
        case 'r': ok = (options->rounds = atoi(optarg)) >= 1 && options->rounds <= MAX_ROUNDS; break;
        case 'i': ok = parse_isa(optarg, &options->isa); break;
        case 'd': ok = is_matmul_encoding(options->dtype = encoding_from_label(optarg)); break;
        case 'C': ok = is_matmul_compute(options->compute = encoding_from_label(optarg)); break;
        case 'm': ok = (options->rows = atoi(optarg)) > 0; break;
        case 's': ok = sscanf(optarg, "%" SCNd64 "x%" SCNd64, &options->n, &options->k) == 2; break;
        case 'T':
            options->has_tunables = true;
            ok = sscanf(optarg, "%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64, t, t + 1, t + 2,
                        t + 3, t + 4, t + 5) == MATMUL_TUNABLES;
            break;
        case 'f': options->file = optarg; break;
        case 'k': ok = (options->kv_dtype = encoding_from_label(optarg)) != ENCODING_NONE; break;
        case 'c': ok = (options->context = atoi(optarg)) >= 1; break;
        case 'a': options->all_candidates = true; break;
        default: ok = false;
        }
        if (!ok) return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct bench bench = {.geometry = {.slots = SLOTS,
                                       .max_context = CONTEXT,
                                       .page_tokens = PAGE_TOKENS,
                                       .vocab_size = VOCAB,
                                       .ranks = 1}};
    struct plan_geometry *geometry = &bench.geometry;
    struct status status = {0};
    if (!parse_options(argc, argv, &bench.options)) {
        fprintf(stderr, "usage: ops_bench [-t THREADS] [-i ISA] [-r ROUNDS] [-f FILE] [-k TYPE] [-c CONTEXT] "
                        "[-d ENCODING] [-C COMPUTE] [-m ROWS] [-s NxK] [-T P,R,D,B,T,N] [-a] [OP...]\n");
        return 2;
    }
    if (bench.options.context) geometry->slots = 1, geometry->max_context = (uint64_t)bench.options.context;
    geometry->pages_per_slot = (geometry->max_context + PAGE_TOKENS - 1) / PAGE_TOKENS;
    if (!kv_block_bytes(bench.options.kv_dtype, KV_HEADS, PAGE_TOKENS, HEAD_DIM, 0, &bench.kv_layer_bytes))
        fail(2, "no such KV cache");
    geometry->page_bytes = bench.kv_layer_bytes * LAYERS;
    bench.team = team_create(bench.options.threads, &status);
    if (!bench.team) fail(status_exit_code(&status), status.message);
    bench.weights = map_weights(bench.options.file);
    if (!bench.weights) fail(3, "no memory, or the file cannot be made");
    /* Small numbers of every type, so that no subnormal or NaN slows a round: 0x3cxx is about 0.01 in bf16 and f32 and
     * 1 in f16. */
    for (size_t i = 0; i < POOL_BYTES / 2; i++)
        ((uint16_t *)(void *)bench.weights)[i] = (uint16_t)(0x3c00 + i * 7919 % 256);
    printf("%s, %d threads, %d rounds; each pair is best and median\n", cpu_isa_name(bench.options.isa),
           team_size(bench.team), bench.options.rounds);
    printf("%-12s %4s %-32s | %19s | %13s | %13s | %11s | %15s\n", "op", "rows", "case, tunables", "microseconds",
           "GB/s", "probe GB/s", "% of probe", "GFLOP/s");
    run_all(&bench, argv + optind);
    team_destroy(bench.team);
    munmap(bench.weights, POOL_BYTES);
    free(bench.pages);
    return 0;
}
