/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of matmul beside what the memory gives in the same run.
 *
 *   matmul_bench [-t THREADS] [-r ROUNDS] [-i ISA] [-d bf16|f16|f32] [-m ROWS] [-s NxK] [-T P,R,D,B,T,N] [-a] [-f FILE]
 *
 * One line per problem: best and median over the rounds, GB/s of weights and GFLOP/s (2 rows N K), and the share of the
 * bandwidth probe: a plain streaming read of as many bytes by the same threads, before each measured round (best by
 * best, and the median of the rounds' shares, which noise that lasts longer than a round does not change).
 * Weights rotate through a buffer larger than the caches; with -f it is a mapping of that file, which is made and
 * removed. -a measures every candidate; -T P,R,... given tunables. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/matmul/matmul.h"

enum { MAX_ROUNDS = 1000, MAX_CANDIDATES = 64 };
#define POOL_BYTES ((size_t)640 << 20) /* far more than the caches */

struct options {
    int threads, rounds;
    enum cpu_isa isa;
    enum dtype dtype;
    int64_t rows, n, k; /* 0: the built-in list */
    bool all_candidates, has_tunables;
    int64_t tunables[MATMUL_TUNABLES];
    const char *file;
};

struct bench {
    struct options options;
    struct team *team;
    unsigned char *pool; /* weights */
    float *x, *out, *workspace;
    int32_t counts[2];
    size_t next_offset; /* into the pool */
};

struct probe {
    const unsigned char *data;
    size_t bytes;
};

struct timing {
    double best_s, median_s;
};

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static struct timing summarize(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof seconds[0], compare_doubles);
    return (struct timing){seconds[0], seconds[count / 2]};
}

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

static const unsigned char *next_weights(struct bench *bench, size_t bytes)
{
    if (bench->next_offset + bytes > POOL_BYTES) bench->next_offset = 0;
    const unsigned char *weights = bench->pool + bench->next_offset;
    bench->next_offset += (bytes + 4095) / 4096 * 4096;
    return weights;
}

struct run {
    op_run *function;
    struct op_call call;
};

static void run_member(void *argument, struct team_member *member)
{
    const struct run *run = argument;
    run->function(&run->call, member);
}

static void measure(struct bench *bench, const int64_t *params)
{
    static double op_s[MAX_ROUNDS], probe_s[MAX_ROUNDS], share[MAX_ROUNDS];
    uint64_t weight_bytes = panel_count((uint64_t)params[MATMUL_N]) *
                            panel_bytes((uint64_t)params[MATMUL_K], (enum dtype)params[MATMUL_DTYPE]);
    op_run *function = NULL;
    for (int isa = (int)bench->options.isa; isa >= 0 && !function; isa--) function = op_matmul.run[isa];
    struct run run = {.function = function, .call = {.params = params}};
    run.call.operands[MATMUL_COUNTS] = bench->counts;
    run.call.operands[MATMUL_X] = bench->x;
    run.call.operands[MATMUL_OUT] = bench->out;
    run.call.operands[MATMUL_WORKSPACE] = bench->workspace;
    bench->counts[0] = (int32_t)params[MATMUL_ROWS];
    for (int round = -1; round < bench->options.rounds; round++) {
        struct probe probe = {next_weights(bench, weight_bytes), weight_bytes};
        double begin = now_s();
        team_run(bench->team, probe_member, &probe);
        double between = now_s();
        run.call.operands[MATMUL_W] = (void *)(uintptr_t)next_weights(bench, weight_bytes);
        double before = now_s();
        team_run(bench->team, run_member, &run);
        double end = now_s();
        if (round < 0) continue; /* warm-up */
        probe_s[round] = between - begin;
        op_s[round] = end - before;
        share[round] = probe_s[round] / op_s[round];
    }
    struct timing op = summarize(op_s, bench->options.rounds), probe = summarize(probe_s, bench->options.rounds);
    double gigabytes = 1e-9 * (double)weight_bytes;
    double gigaflops = 2e-9 * (double)params[MATMUL_ROWS] * (double)params[MATMUL_N] * (double)params[MATMUL_K];
    printf("%4" PRId64 " %6" PRId64 " x %-5" PRId64 " %-4s %" PRId64 ",%" PRId64 ",%-4" PRId64 " %3" PRId64 " %4" PRId64
           " %" PRId64 " | %9.1f %9.1f | %6.1f %6.1f | %6.1f %6.1f | %5.1f %5.1f | %6.1f %6.1f\n",
           params[MATMUL_ROWS], params[MATMUL_N], params[MATMUL_K], dtype_name((enum dtype)params[MATMUL_DTYPE]),
           params[MATMUL_PANELS_PER_TILE], params[MATMUL_ROWS_PER_TILE], params[MATMUL_DEPTH_BLOCK],
           params[MATMUL_ROWS_PER_BLOCK], params[MATMUL_PANELS_PER_TASK], params[MATMUL_THREADS], 1e6 * op.best_s,
           1e6 * op.median_s, gigabytes / op.best_s, gigabytes / op.median_s, gigabytes / probe.best_s,
           gigabytes / probe.median_s, 100 * probe.best_s / op.best_s,
           100 * summarize(share, bench->options.rounds).median_s, gigaflops / op.best_s, gigaflops / op.median_s);
    fflush(stdout);
}

static void measure_problem(struct bench *bench, int64_t rows, int64_t n, int64_t k)
{
    const struct options *options = &bench->options;
    int64_t params[MATMUL_PARAMS] = {
        [MATMUL_ROWS] = rows,
        [MATMUL_N] = n,
        [MATMUL_K] = k,
        [MATMUL_DTYPE] = options->dtype,
        [MATMUL_SCALE_BITS] = OP_FLOAT_ONE_BITS,
    };
    if (options->has_tunables) {
        memcpy(params + MATMUL_FIRST_TUNABLE, options->tunables, sizeof options->tunables);
        const char *illegal = matmul_tunables_illegal(params, options->isa);
        if (illegal)
            printf("%s\n", illegal);
        else
            measure(bench, params);
        return;
    }
    int64_t candidates[MAX_CANDIDATES][MATMUL_TUNABLES];
    int count = matmul_candidates(params, options->isa, team_size(bench->team), candidates,
                                  options->all_candidates ? MAX_CANDIDATES : 1);
    for (int i = 0; i < count; i++) {
        memcpy(params + MATMUL_FIRST_TUNABLE, candidates[i], sizeof candidates[i]);
        measure(bench, params);
    }
}

/* Packing of a matrix of this shape, rows from and to memory, by one thread. */
static void measure_pack(struct bench *bench, int64_t n, int64_t k)
{
    static double seconds[MAX_ROUNDS];
    size_t row_bytes = (size_t)k * dtype_bytes(bench->options.dtype);
    size_t matrix_bytes = (size_t)n * row_bytes, out_bytes = panel_bytes((uint64_t)k, bench->options.dtype);
    unsigned char *out = (unsigned char *)bench->out; /* one panel at a time, as the builder packs */
    int rounds = bench->options.rounds < 9 ? bench->options.rounds : 9;
    for (int round = 0; round < rounds; round++) {
        const unsigned char *from = next_weights(bench, matrix_bytes);
        double begin = now_s();
        for (int64_t panel = 0; panel < n / PANEL_ROWS; panel++) {
            const void *rows[PANEL_ROWS];
            for (int i = 0; i < PANEL_ROWS; i++) rows[i] = from + (size_t)(panel * PANEL_ROWS + i) * row_bytes;
            panel_pack(rows, (uint64_t)k, bench->options.dtype, out + (size_t)(panel % 4) * out_bytes);
        }
        seconds[round] = now_s() - begin;
    }
    struct timing timing = summarize(seconds, rounds);
    printf("pack %" PRId64 " x %" PRId64 " %s: best %.1f, median %.1f GB/s (one thread)\n", n, k,
           dtype_name(bench->options.dtype), 1e-9 * (double)matrix_bytes / timing.best_s,
           1e-9 * (double)matrix_bytes / timing.median_s);
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

static bool parse_options(int argc, char **argv, struct options *options)
{
    *options = (struct options){.rounds = 15, .isa = cpu_isa_best(), .dtype = DTYPE_BF16};
    for (int option; (option = getopt(argc, argv, "t:r:i:d:m:s:T:af:")) != -1;) {
        int64_t *t = options->tunables;
        bool ok = true;
        switch (option) {
        case 't': ok = (options->threads = atoi(optarg)) >= 0; break;
        case 'r': ok = (options->rounds = atoi(optarg)) >= 1 && options->rounds <= MAX_ROUNDS; break;
        case 'i': ok = parse_isa(optarg, &options->isa); break;
        case 'd':
            options->dtype = !strcmp(optarg, "bf16") ? DTYPE_BF16 : !strcmp(optarg, "f16") ? DTYPE_F16 : DTYPE_F32;
            break;
        case 'm': ok = (options->rows = atoi(optarg)) > 0; break;
        case 's': ok = sscanf(optarg, "%" SCNd64 "x%" SCNd64, &options->n, &options->k) == 2; break;
        case 'T':
            options->has_tunables = true;
            ok = sscanf(optarg, "%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64, t, t + 1, t + 2,
                        t + 3, t + 4, t + 5) == MATMUL_TUNABLES;
            break;
        case 'f': options->file = optarg; break;
        case 'a': options->all_candidates = true; break;
        default: ok = false;
        }
        if (!ok) return false;
    }
    return optind == argc;
}

/* Memory for the weights: from the file's mapping if there is one. NULL if there is none. */
static unsigned char *allocate_pool(const char *file)
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

int main(int argc, char **argv)
{
    static const int64_t shapes[][2] = {{16384, 2048}, {3072, 2048}, {2048, 2048}, {2048, 8192}, {128256, 2048}};
    static const int64_t rows[] = {1, 2, 4, 8, 16, 128};
    enum { MAX_ROWS = 512, MAX_WIDTH = 1 << 18, MAX_DEPTH = 1 << 15 };
    struct bench bench = {.next_offset = 0};
    struct status status;
    if (!parse_options(argc, argv, &bench.options) || bench.options.rows > MAX_ROWS || bench.options.n > MAX_WIDTH ||
        bench.options.k > MAX_DEPTH) {
        fprintf(stderr, "usage: matmul_bench [-t THREADS] [-r ROUNDS] [-i ISA] [-d bf16|f16|f32] [-m ROWS] [-s NxK] "
                        "[-T P,R,D,B,T,N] [-a] [-f FILE]\n");
        return 2;
    }
    bench.team = team_create(bench.options.threads, &status);
    bench.pool = allocate_pool(bench.options.file);
    bench.x = aligned_alloc(64, (size_t)MAX_ROWS * MAX_DEPTH * sizeof(float));
    bench.out = aligned_alloc(64, (size_t)MAX_ROWS * MAX_WIDTH * sizeof(float));
    bench.workspace = aligned_alloc(64, matmul_workspace_bytes(MAX_ROWS, MAX_DEPTH));
    if (!bench.team || !bench.pool || !bench.x || !bench.out || !bench.workspace) {
        fprintf(stderr, "%s\n", bench.team ? "no memory, or the file cannot be made" : status.message);
        return 3;
    }
    /* Small numbers of every type, so that no subnormal or NaN slows a round: 0x3cxx is about 0.01 in bf16 and f32 and
     * 1 in f16. */
    for (size_t i = 0; i < POOL_BYTES / 2; i++)
        ((uint16_t *)(void *)bench.pool)[i] = (uint16_t)(0x3c00 + i * 7919 % 256);
    for (size_t i = 0; i < (size_t)MAX_ROWS * MAX_DEPTH; i++) bench.x[i] = (float)(i * 7919 % 1000) * 1e-3f;

    printf("%s, %d threads, %d rounds; each pair is best and median\n", cpu_isa_name(bench.options.isa),
           team_size(bench.team), bench.options.rounds);
    printf(
        "rows      N x K     type P,R,depth block task threads |       microseconds |    weight GB/s |     probe GB/s"
        " |  %% of probe |       GFLOP/s\n");
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        int64_t n = bench.options.n ? bench.options.n : shapes[s][0];
        int64_t k = bench.options.k ? bench.options.k : shapes[s][1];
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            measure_problem(&bench, bench.options.rows ? bench.options.rows : rows[r], n, k);
            if (bench.options.rows) break;
        }
        if (!bench.options.rows && !bench.options.has_tunables) measure_pack(&bench, n < 16384 ? n : 16384, k);
        if (bench.options.n) break;
    }
    team_destroy(bench.team);
    munmap(bench.pool, POOL_BYTES);
    free(bench.x);
    free(bench.out);
    free(bench.workspace);
    return 0;
}
