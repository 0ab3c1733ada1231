/* SPDX-License-Identifier: Apache-2.0 */
/* engbench --trace: the launches of steps, as a file for chrome://tracing or ui.perfetto.dev. */
#ifndef RUNTIME_CLI_CLI_TRACE_H
#define RUNTIME_CLI_CLI_TRACE_H

#include "runtime/cli/cli_bench.h"
#include "runtime/session/trace.h"

/* A step and the test that it belongs to. */
struct traced {
    struct bench_test test; /* decode: one step of `batch` sequences; prefill: one chunk of `tokens` */
    struct trace trace;
};

/* Writes the steps to `path` (JSON array format), completely or not at all. */
bool trace_write(const struct bench_engine *bench, const struct traced *steps, size_t count, const char *path,
                 struct status *status);
/* Prints one line for each step. */
bool trace_print(const struct traced *steps, size_t count, struct status *status);

#endif
