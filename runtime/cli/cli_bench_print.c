/* SPDX-License-Identifier: Apache-2.0 */
/* engbench's tables: Markdown for people, CSV and JSON for programs. */
#include <stdlib.h>
#include <string.h>

#include "formats/cli/cli_process.h"
#include "formats/base/json.h"
#include "runtime/cli/cli_bench.h"

static void test_name(const struct bench_test *test, char *name, size_t size)
{
    switch (test->kind) {
    case BENCH_PREFILL: snprintf(name, size, "pp%u", test->tokens); break;
    case BENCH_DECODE: snprintf(name, size, "tg%u", test->tokens); break;
    case BENCH_FIRST_TOKEN: snprintf(name, size, "first token"); break;
    }
}

static double read_share(const struct bench_engine *bench, const struct bench_row *row)
{
    double best = bench->bandwidth.best_gb_per_second;
    return best > 0 ? 100 * row->weight_gb_per_second / best : 0;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* GB/s at which the weights were read and verified; 0: unknown. */
static double load_rate(const struct bench_engine *bench)
{
    double seconds = bench->facts.verify_seconds;
    return seconds > 0 ? (double)bench->facts.weights_bytes / seconds * 1e-9 : 0;
}

static void print_md(const struct bench_engine *bench, const struct bench_row *rows, size_t count)
{
    const char *file = file_name(bench->path);
    cli_print_text(stdout, file, strlen(file));
    printf(": %.1f MB of weights, ", (double)bench->facts.weights_bytes * 1e-6);
    if (bench->session_facts.device && bench->facts.ranks > 1) printf("%u x ", bench->facts.ranks);
    if (bench->session_facts.device)
        printf(
            "%s (%s), nominally %.1f GB/s; %.1f MB of its memory taken, %.1f computed; weights brought there at %.1f "
            "GB/s, graphs made in %.3f s\n\n",
            bench->session_facts.device, bench->session_facts.instruction_set, bench->bandwidth.best_gb_per_second,
            (double)bench->session_facts.device_taken_bytes * 1e-6,
            (double)bench->session_facts.device_contract_bytes * 1e-6, load_rate(bench),
            bench->session_facts.graph_seconds);
    else
        printf("%u threads, %s; this machine reads %.1f GB/s (best of %d passes over %.0f MB, median %.1f)\n\n",
               bench->session_facts.threads, bench->session_facts.instruction_set, bench->bandwidth.best_gb_per_second,
               bench->bandwidth.passes, (double)bench->bandwidth.bytes * 1e-6, bench->bandwidth.median_gb_per_second);
    printf("| test        | batch | context |            tokens/s |  ms/step | weights GB/s | %% of read |\n");
    printf("|-------------|------:|--------:|--------------------:|---------:|-------------:|----------:|\n");
    for (size_t i = 0; i < count; i++) {
        const struct bench_row *row = &rows[i];
        char name[32], rate[48], weights[32] = "", share[32] = "";
        test_name(&row->test, name, sizeof name);
        if (row->test.kind == BENCH_FIRST_TOKEN)
            snprintf(rate, sizeof rate, "%.3f ± %.3f s", row->mean, row->spread);
        else
            snprintf(rate, sizeof rate, "%.2f ± %.2f", row->mean, row->spread);
        if (row->weight_gb_per_second > 0) {
            snprintf(weights, sizeof weights, "%.2f", row->weight_gb_per_second);
            snprintf(share, sizeof share, "%.1f", read_share(bench, row));
        }
        /* "±" takes two bytes and one column. */
        printf("| %-11s | %5u | %7u | %20s | %8.3f | %12s | %9s |\n", name, row->test.batch, row->test.context, rate,
               row->milliseconds, weights, share);
    }
}

static void print_csv(const struct bench_engine *bench, const struct bench_row *rows, size_t count)
{
    printf("test,batch,context,repetitions,mean,spread,unit,ms_per_step,weight_gb_per_second,read_percent,"
           "read_gb_per_second,threads,instruction_set,device\n");
    for (size_t i = 0; i < count; i++) {
        const struct bench_row *row = &rows[i];
        char name[32];
        test_name(&row->test, name, sizeof name);
        printf("%s,%u,%u,%u,%.6g,%.6g,%s,%.6g,%.6g,%.6g,%.6g,%u,%s,%s\n", name, row->test.batch, row->test.context,
               row->repetitions, row->mean, row->spread, row->test.kind == BENCH_FIRST_TOKEN ? "seconds" : "tokens/s",
               row->milliseconds, row->weight_gb_per_second, read_share(bench, row),
               bench->bandwidth.best_gb_per_second, bench->session_facts.threads, bench->session_facts.instruction_set,
               bench->session_facts.device ? bench->session_facts.device : "");
    }
}

static json_t *row_json(const struct bench_engine *bench, const struct bench_row *row)
{
    char name[32];
    test_name(&row->test, name, sizeof name);
    return json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:s, s:f, s:f, s:f}", "test", name, "batch", (int)row->test.batch,
                     "context", (int)row->test.context, "repetitions", (int)row->repetitions, "mean", row->mean,
                     "spread", row->spread, "unit", row->test.kind == BENCH_FIRST_TOKEN ? "seconds" : "tokens/s",
                     "ms_per_step", row->milliseconds, "weight_gb_per_second", row->weight_gb_per_second,
                     "read_percent", read_share(bench, row));
}

static bool print_json(const struct bench_engine *bench, const struct bench_row *rows, size_t count)
{
    json_t *results = json_array();
    bool ok = results != NULL;
    for (size_t i = 0; ok && i < count; i++) ok = json_add(results, row_json(bench, &rows[i]));
    json_t *report =
        json_pack("{s:o, s:s?, s:I, s:i, s:s, s:f, s:f, s:I, s:I, s:{s:f, s:f, s:I, s:i}, s:o}", "file",
                  json_string_or_null(bench->path), "device", bench->session_facts.device, "weights_bytes",
                  (json_int_t)bench->facts.weights_bytes, "threads", (int)bench->session_facts.threads,
                  "instruction_set", bench->session_facts.instruction_set, "load_gb_per_second", load_rate(bench),
                  "graph_seconds", bench->session_facts.graph_seconds, "device_taken_bytes",
                  (json_int_t)bench->session_facts.device_taken_bytes, "device_contract_bytes",
                  (json_int_t)bench->session_facts.device_contract_bytes, "read_bandwidth", "best_gb_per_second",
                  bench->bandwidth.best_gb_per_second, "median_gb_per_second", bench->bandwidth.median_gb_per_second,
                  "bytes", (json_int_t)bench->bandwidth.bytes, "passes", bench->bandwidth.passes, "results", results);
    char *text = ok && report ? json_format(report, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    if (text) {
        cli_print_text(stdout, text, strlen(text));
        putchar('\n');
    }
    free(text);
    json_decref(report);
    return text != NULL;
}

bool bench_print(const struct bench_engine *bench, const struct bench_row *rows, size_t count, enum bench_format format,
                 struct status *status)
{
    if (format == BENCH_MD) print_md(bench, rows, count);
    if (format == BENCH_CSV) print_csv(bench, rows, count);
    if (format == BENCH_JSON && !print_json(bench, rows, count))
        return status_fail(status, STATUS_MACHINE, "out of memory");
    return cli_flush(status);
}
