/* SPDX-License-Identifier: Apache-2.0 */
/* engbench's measurements and tables. */
#ifndef RUNTIME_CLI_CLI_BENCH_H
#define RUNTIME_CLI_CLI_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/cli/cli_args.h"
#include "runtime/eng.h"
#include "runtime/session/trace.h"

enum bench_kind { BENCH_PREFILL, BENCH_DECODE, BENCH_FIRST_TOKEN };
enum bench_format { BENCH_MD, BENCH_CSV, BENCH_JSON };

struct bench_test {
    enum bench_kind kind;
    uint32_t tokens; /* prompt length or decode steps */
    uint32_t batch;
    uint32_t context; /* tokens in each sequence before the measurement */
};

struct bench_row {
    struct bench_test test;
    uint32_t repetitions;
    double mean, spread;         /* tokens/s and the standard deviation; first token: seconds */
    double milliseconds;         /* of one step (decode) or of the whole prompt */
    double weight_gb_per_second; /* decode only, else 0 */
};

/* of memory */
struct bandwidth {
    double best_gb_per_second, median_gb_per_second;
    uint64_t bytes; /* read in one pass */
    int passes;
    int threads;
};

struct bench_engine {
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_engine_facts facts;
    struct eng_session_facts session_facts;
    const char *path;
    const struct cli_devices *devices;
    struct bandwidth bandwidth; /* for a GPU: nominal, passes 0 */
};

/* Measures memory read bandwidth; for a GPU, looks up its nominal bandwidth. */
bool bench_bandwidth(struct bench_engine *bench, struct status *status);

/* Each returns an exit code and prints its own messages. */
int bench_run(struct bench_engine *bench, const struct bench_test *test, uint32_t repetitions, struct bench_row *row);
/* Traces one step of the test. trace_free must be called in any case. */
int bench_trace(struct bench_engine *bench, const struct bench_test *test, struct trace *trace);
/* Runs this program with --first-token and waits for the line that it prints. */
int bench_first_token(const struct bench_engine *bench, uint32_t repetitions, struct bench_row *row);

bool bench_print(const struct bench_engine *bench, const struct bench_row *rows, size_t count, enum bench_format format,
                 struct status *status);

#endif
