/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/base/memory_limit.h"
#include "formats/cli/cli_process.h"
#include "kernels/cpu/probe.h"

extern char **environ;

/* Always the same prompt, spread over the vocabulary. */
static int32_t next_token(uint32_t *state, uint32_t vocab_size)
{
    *state = *state * 1664525u + 1013904223u; /* Numerical Recipes, section 7.1 */
    return (int32_t)((uint64_t)*state * vocab_size >> 32);
}

/* Decode steps between two checks for signals. */
enum { DECODE_STEPS = 64 };

struct bench_run {
    struct bench_engine *bench;
    const struct bench_test *test;
    uint32_t *slots; /* [batch] */
    uint32_t acquired;
    int32_t *tokens; /* [max(batch, tokens, context)] */
    int32_t *drawn;  /* [DECODE_STEPS, batch] */
    uint32_t random;
    struct eng_error error;
};

static void fill(struct bench_run *run, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) run->tokens[i] = next_token(&run->random, run->bench->facts.vocab_size);
}

static bool prepare(struct bench_run *run)
{
    const struct bench_test *test = run->test;
    for (uint32_t i = 0; i < test->batch; i++) {
        if (eng_slot_acquire(run->bench->session, &run->slots[i], &run->error)) return false;
        run->acquired++;
        if (!test->context) continue;
        fill(run, test->context);
        if (eng_prefill(run->bench->session, run->slots[i], run->tokens, test->context, NULL, NULL, &run->error))
            return false;
    }
    return true;
}

/* One measurement of `tokens` prompt tokens or decode steps; the slots are unchanged afterwards. */
static bool measure(struct bench_run *run, uint32_t tokens, double *seconds)
{
    const struct bench_test *test = run->test;
    struct eng_session *session = run->bench->session;
    fill(run, test->kind == BENCH_PREFILL ? tokens : test->batch);
    double start = cli_seconds();
    if (test->kind == BENCH_PREFILL) {
        int32_t drawn;
        if (eng_prefill(session, run->slots[0], run->tokens, tokens, &drawn, NULL, &run->error)) return false;
    } else {
        for (uint32_t i = 0; i < tokens && !cli_caught_signal(); i += DECODE_STEPS) {
            uint32_t steps = tokens - i < DECODE_STEPS ? tokens - i : DECODE_STEPS;
            if (eng_decode_steps(session, run->slots, run->tokens, test->batch, steps, run->drawn, &run->error))
                return false;
            memcpy(run->tokens, run->drawn + (steps - 1) * test->batch, test->batch * sizeof *run->tokens);
        }
    }
    *seconds = cli_seconds() - start;
    for (uint32_t i = 0; i < test->batch; i++)
        if (eng_slot_truncate(session, run->slots[i], test->context, &run->error)) return false;
    return true;
}

static void mean_and_spread(const double *values, uint32_t count, double *mean, double *spread)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < count; i++) sum += values[i];
    *mean = sum / count;
    for (uint32_t i = 0; i < count; i++) squares += (values[i] - *mean) * (values[i] - *mean);
    *spread = count > 1 ? sqrt(squares / (count - 1)) : 0;
}

enum { PASSES = 7, MOST_BYTES = 1 << 30, LEAST_BYTES = 64 << 20 };

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Memory read bandwidth of all threads: the limit of a decode step, which reads every weight once. Allocates a buffer far
 * larger than the caches during the call. */
static bool measure_bandwidth(uint32_t threads, struct bandwidth *bandwidth, struct status *status)
{
    struct memory_limit memory;
    memory_limit_available("", &memory);
    uint64_t bytes = memory.bytes / 4 < MOST_BYTES ? memory.bytes / 4 : MOST_BYTES;
    if (bytes < LEAST_BYTES)
        return status_fail(status, STATUS_MACHINE, "read bandwidth: cannot allocate %d bytes; free memory",
                           LEAST_BYTES);
    struct team *team = team_create((int)threads, status);
    if (!team) return false;
    double rates[PASSES];
    bool ok = probe_read(team, cpu_isa_best(), bytes, PASSES, rates, status);
    if (ok) {
        qsort(rates, PASSES, sizeof *rates, compare_doubles);
        *bandwidth = (struct bandwidth){rates[PASSES - 1], rates[PASSES / 2], bytes, PASSES, team_size(team)};
    }
    team_destroy(team);
    return ok;
}

bool bench_bandwidth(struct bench_engine *bench, struct status *status)
{
    if (!bench->session_facts.device)
        return measure_bandwidth((uint32_t)bench->devices->threads, &bench->bandwidth, status);
    json_error_t error;
    json_t *info = json_loads(eng_info(bench->engine), 0, &error);
    json_t *device = json_object_get(json_object_get(info, "load"), "device");
    double rate = bench->facts.ranks * json_number_value(json_object_get(device, "nominal_gb_per_second"));
    bench->bandwidth = (struct bandwidth){.best_gb_per_second = rate, .median_gb_per_second = rate};
    json_decref(info);
    return true;
}

/* Weights that a step of the smallest decode plan for this batch reads. */
static double decode_weight_bytes(const struct bench_engine *bench, uint32_t batch)
{
    json_error_t error;
    json_t *info = json_loads(eng_info(bench->engine), 0, &error), *plan;
    size_t index;
    double bytes = 0, rows = 0;
    json_array_foreach (json_object_get(info, "plans"), index, plan) {
        const char *kind = json_string_value(json_object_get(plan, "kind"));
        if (!kind || strcmp(kind, "decode") != 0 || rows >= batch) continue;
        rows = json_number_value(json_object_get(plan, "rows"));
        bytes = json_number_value(json_object_get(plan, "weight_bytes"));
    }
    json_decref(info);
    return bytes;
}

static void fill_row(const struct bench_run *run, const double *seconds, uint32_t repetitions, struct bench_row *row)
{
    const struct bench_test *test = run->test;
    double rates[repetitions], total = 0;
    for (uint32_t i = 0; i < repetitions; i++) {
        rates[i] = (double)test->tokens * test->batch / seconds[i];
        total += seconds[i];
    }
    *row = (struct bench_row){.test = *test, .repetitions = repetitions};
    mean_and_spread(rates, repetitions, &row->mean, &row->spread);
    double mean_seconds = total / repetitions;
    row->milliseconds = mean_seconds * 1e3;
    if (test->kind == BENCH_PREFILL) return;
    row->milliseconds /= test->tokens;
    row->weight_gb_per_second = decode_weight_bytes(run->bench, test->batch) * test->tokens / mean_seconds * 1e-9;
}

/* Returns an exit code. */
static int open_run(struct bench_run *run, struct bench_engine *bench, const struct bench_test *test)
{
    *run = (struct bench_run){.bench = bench, .test = test, .random = 1};
    uint32_t most = test->tokens > test->context ? test->tokens : test->context;
    run->slots = calloc(test->batch, sizeof *run->slots);
    run->tokens = calloc(most > test->batch ? most : test->batch, sizeof *run->tokens);
    run->drawn = calloc((size_t)test->batch * DECODE_STEPS, sizeof *run->drawn);
    if (run->slots && run->tokens && run->drawn) return CLI_DONE;
    return cli_out_of_memory();
}

static void close_run(struct bench_run *run)
{
    for (uint32_t i = 0; i < run->acquired; i++) eng_slot_release(run->bench->session, run->slots[i], NULL);
    free(run->drawn);
    free(run->tokens);
    free(run->slots);
}

int bench_run(struct bench_engine *bench, const struct bench_test *test, uint32_t repetitions, struct bench_row *row)
{
    struct bench_run run;
    int code = open_run(&run, bench, test);
    double *seconds = calloc(repetitions, sizeof *seconds);
    if (!code && !seconds) code = cli_out_of_memory();
    if (code) goto done;
    /* The first run is not measured: it fills caches, page tables and KV pages. */
    double ignored;
    bool ok =
        prepare(&run) && measure(&run, test->kind == BENCH_DECODE && test->tokens > 8 ? 8 : test->tokens, &ignored);
    for (uint32_t i = 0; ok && i < repetitions && !cli_caught_signal(); i++)
        ok = measure(&run, test->tokens, &seconds[i]);
    if (!ok)
        code = cli_fail_error(&run.error);
    else if (cli_caught_signal())
        code = CLI_SIGNAL + cli_caught_signal();
    else
        fill_row(&run, seconds, repetitions, row);

done:
    close_run(&run);
    free(seconds);
    return code;
}

int bench_trace(struct bench_engine *bench, const struct bench_test *test, struct trace *trace)
{
    struct bench_run run;
    struct status status = {0};
    memset(trace, 0, sizeof *trace);
    int code = open_run(&run, bench, test);
    if (!code && !prepare(&run)) code = cli_fail_error(&run.error);
    if (!code) {
        bool decode = test->kind == BENCH_DECODE;
        fill(&run, decode ? test->batch : test->tokens);
        bool ok = decode ? trace_decode(bench->session, run.slots, run.tokens, test->batch, trace, &status)
                         : trace_prefill(bench->session, run.slots[0], run.tokens, test->tokens, trace, &status);
        if (!ok) code = cli_fail_status(&status);
    }
    if (!code && cli_caught_signal()) code = CLI_SIGNAL + cli_caught_signal();
    close_run(&run);
    return code;
}

/* Wall-clock seconds from before the child is started until its first token is read from the pipe. */
static int time_child(const struct bench_engine *bench, double *seconds)
{
    char threads[16];
    const char *devices = bench->devices->count ? bench->devices->text : "0";
    snprintf(threads, sizeof threads, "%u", (unsigned)bench->devices->threads);
    char *arguments[] = {"engbench",
                         (char *)(uintptr_t)bench->path,
                         "--first-token",
                         "--threads",
                         threads,
                         "--device",
                         (char *)(uintptr_t)devices,
                         NULL, /* room for flags without a value */
                         NULL,
                         NULL,
                         NULL};
    char **next = arguments;
    while (*next) next++;
    if (bench->devices->no_peer_access) *next++ = "--no-peer-access";
    if (bench->devices->private_weights) *next++ = "--private-weights";
    if (bench->devices->no_libraries) *next++ = "--no-libraries";
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) {
        fprintf(stderr, "%s: pipe: %s\n", cli_program(), strerror(errno));
        return CLI_MACHINE;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    pid_t child;
    char line[64];
    double start = cli_seconds();
    int failure = posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failure) {
        close(ends[0]);
        fprintf(stderr, "%s: cannot start another process of this program: %s\n", cli_program(), strerror(failure));
        return CLI_MACHINE;
    }
    ssize_t got = read(ends[0], line, sizeof line);
    *seconds = cli_seconds() - start;
    close(ends[0]);
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (got > 0 && WIFEXITED(status) && WEXITSTATUS(status) == CLI_DONE) return CLI_DONE;
    if (cli_caught_signal()) return CLI_SIGNAL + cli_caught_signal();
    fprintf(stderr, "%s: the process that measures the first token failed\n", cli_program());
    return WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : CLI_INTERNAL;
}

int bench_first_token(const struct bench_engine *bench, uint32_t repetitions, struct bench_row *row)
{
    double *seconds = calloc(repetitions, sizeof *seconds);
    if (!seconds) return cli_out_of_memory();
    int code = CLI_DONE;
    for (uint32_t i = 0; i < repetitions && !code; i++) code = time_child(bench, &seconds[i]);
    if (!code) {
        *row = (struct bench_row){.test = {.kind = BENCH_FIRST_TOKEN, .tokens = 1, .batch = 1},
                                  .repetitions = repetitions};
        mean_and_spread(seconds, repetitions, &row->mean, &row->spread);
        row->milliseconds = row->mean * 1e3;
    }
    free(seconds);
    return code;
}
