/* SPDX-License-Identifier: Apache-2.0 */
/* engbench: speed of prefill and decode of an engine on this machine, in the form of llama-bench. */
#include <stdio.h>
#include <stdlib.h>

#include "runtime/cli/cli_args.h"
#include "runtime/cli/cli_bench.h"
#include "runtime/cli/cli_trace.h"

enum { DEFAULT_PROMPT = 512, DEFAULT_DECODE = 128, DEFAULT_REPETITIONS = 5, MOST_REPETITIONS = 1000 };

static const char usage[] =
    "usage: engbench FILE [-p LIST] [-n LIST] [-b LIST] [-c CONTEXT] [-r REPS] [--json | --csv | --md]\n"
    "       engbench FILE --trace TRACE [-p LENGTH] [-b LIST] [-c CONTEXT]\n"
    "\n"
    "Measures an engine: mean and standard deviation over repetitions, after one run that is not measured.\n"
    "\n";

static const char notes[] =
    "\n"
    "The table:\n"
    "  ppN          prompt of N tokens\n"
    "  tgN          N decode steps; tokens/s counts all sequences of the batch\n"
    "  weights GB/s weights that a step reads, over its time\n"
    "  % of read    of the memory read bandwidth of all threads, measured in the same run; for a GPU, of its\n"
    "               nominal memory bandwidth\n"
    "  first token  from the start of a new process to its first token, with the file in the page cache\n"
    "\n" CLI_EXIT_CODES ", 130 interrupted\n";

struct arguments {
    const char *path, *trace;
    struct cli_list prompts, decodes, batches;
    uint64_t context, repetitions;
    struct cli_devices devices;
    int format; /* enum bench_format */
    bool first_token, finished;
};

static int read_arguments(int argc, char **argv, struct arguments *arguments)
{
    struct cli_flag device_flags[CLI_DEVICE_FLAGS];
    const struct cli_flag flags[] = {
        {"prompt", 'p', "LIST", .list = &arguments->prompts, .most = INT32_MAX,
         .help = "prompt lengths to read in one sequence (512); 0: none"},
        {"decode", 'n', "LIST", .list = &arguments->decodes, .most = INT32_MAX, .help = "decode steps (128); 0: none"},
        {"batch", 'b', "LIST", .list = &arguments->batches, .least = 1, .most = INT32_MAX,
         .help = "sequences that decode at the same time (1)"},
        {"context", 'c', "CONTEXT", .number = &arguments->context, .most = INT32_MAX,
         .help = "tokens that each sequence holds before the measurement (0)"},
        {"repetitions", 'r', "REPS", .number = &arguments->repetitions, .least = 1, .most = MOST_REPETITIONS,
         .help = "measurements of each kind (5)"},
        {"md", .choice = &arguments->format, .most = BENCH_MD, .help = "a table for people (default)"},
        {"csv", .choice = &arguments->format, .most = BENCH_CSV},
        {"json", .choice = &arguments->format, .most = BENCH_JSON, .help = "for programs"},
        {"trace", 0, "TRACE", .text = &arguments->trace,
         .help = "instead: one decode step of each batch size and one chunk of the longest prompt, launch by launch, "
                 "into a file for chrome://tracing or ui.perfetto.dev (-p 0, -n 0: without one)"},
        {"first-token", .set = &arguments->first_token,
         .help = "instead: open the engine, read one token, draw one, and print the seconds since the process started"},
        {.help = "machine:"},
        {.name = NULL},
    };
    const struct cli_command command = {usage, {flags, device_flags}, notes, eng_version()};
    cli_device_flags(&arguments->devices, device_flags);
    arguments->repetitions = DEFAULT_REPETITIONS;
    int code = cli_read_flags(&command, argc, argv, &arguments->finished);
    if (code || arguments->finished) return code;
    code = cli_read_engine_path(argc, argv, &arguments->path);
    if (!code && arguments->devices.launched && arguments->trace) return cli_usage("--trace: not with --launched");
    return code ? code : cli_check_devices(&arguments->devices);
}

/* Defaults are limited to the engine's context; values that were given are not. */
static bool default_list(struct cli_list *list, uint64_t value, uint64_t most)
{
    if (list->values) return true;
    list->values = malloc(sizeof *list->values);
    if (!list->values) return false;
    list->values[0] = value < most ? value : most;
    list->count = 1;
    return true;
}

static int check_lengths(const struct bench_engine *bench, const struct arguments *arguments,
                         const struct cli_list *list, const char *flag)
{
    for (size_t i = 0; i < list->count; i++) {
        if (arguments->context + list->values[i] <= bench->facts.max_context) continue;
        fprintf(stderr, "%s: %s %llu after -c %llu: expected at most %u tokens in all, the engine's context\n",
                cli_program(), flag, (unsigned long long)list->values[i], (unsigned long long)arguments->context,
                bench->facts.max_context);
        return CLI_BAD_INPUT;
    }
    return CLI_DONE;
}

static int check_batches(const struct bench_engine *bench, const struct cli_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->values[i] <= bench->facts.slots) continue;
        fprintf(stderr,
                "%s: -b %llu: expected at most %u sequences, the engine's largest batch (engbuild --max-batch)\n",
                cli_program(), (unsigned long long)list->values[i], bench->facts.slots);
        return CLI_BAD_INPUT;
    }
    return CLI_DONE;
}

static uint64_t largest(const struct cli_list *list)
{
    uint64_t value = 0;
    for (size_t i = 0; i < list->count; i++)
        if (list->values[i] > value) value = list->values[i];
    return value;
}

static int open_engine(struct bench_engine *bench, struct arguments *arguments)
{
    struct eng_error error;
    struct eng_open_options open_options;
    eng_open_options_init(&open_options);
    eng_engine_facts_init(&bench->facts);
    if (cli_use_devices(bench->devices, &open_options, &error) ||
        eng_open(bench->path, &open_options, &bench->engine, &error) ||
        eng_engine_get_facts(bench->engine, &bench->facts, &error))
        return cli_fail_error(&error);
    uint64_t rest = arguments->context < bench->facts.max_context ? bench->facts.max_context - arguments->context : 0;
    if (!default_list(&arguments->prompts, DEFAULT_PROMPT, rest) ||
        !default_list(&arguments->decodes, DEFAULT_DECODE, rest) || !default_list(&arguments->batches, 1, 1))
        return cli_out_of_memory();
    int code = check_lengths(bench, arguments, &arguments->prompts, "-p");
    if (!code) code = check_lengths(bench, arguments, &arguments->decodes, "-n");
    if (!code) code = check_batches(bench, &arguments->batches);
    return code;
}

/* The KV pool has the pages that the measurements need; of layers with a window, those that any division of the tokens needs. */
static int open_session(struct bench_engine *bench, const struct arguments *arguments)
{
    struct eng_error error;
    struct eng_session_options options;
    eng_session_options_init(&options);
    uint64_t prompt = arguments->context + largest(&arguments->prompts);
    uint64_t decode = arguments->context + largest(&arguments->decodes);
    uint64_t page = bench->facts.page_tokens;
    uint64_t per_batch = (decode + page - 1) / page * page * largest(&arguments->batches);
    uint64_t single = (prompt + page - 1) / page * page;
    options.kv_tokens = per_batch > single ? per_batch : single;
    if (!options.kv_tokens) options.kv_tokens = 1;
    options.threads = (uint32_t)arguments->devices.threads;
    options.instruction_set = arguments->devices.instruction_set;
    options.max_sequences = 1;
    eng_session_facts_init(&bench->session_facts);
    if (eng_session_create(bench->engine, &options, &bench->session, &error) ||
        eng_session_get_facts(bench->session, &bench->session_facts, &error))
        return cli_fail_error(&error);
    cli_note_fallback(bench->session);
    return CLI_DONE;
}

/* The child of --first-token: everything up to one drawn token, as fast as possible. */
static int print_first_token(const struct arguments *arguments)
{
    struct bench_engine bench = {.path = arguments->path};
    struct eng_error error;
    struct eng_open_options open_options;
    struct eng_session_options options;
    eng_open_options_init(&open_options);
    eng_session_options_init(&options);
    if (cli_use_devices(&arguments->devices, &open_options, &error)) return cli_fail_error(&error);
    options.threads = (uint32_t)arguments->devices.threads;
    options.instruction_set = arguments->devices.instruction_set;
    options.kv_tokens = options.max_sequences = 1;
    eng_engine_facts_init(&bench.facts);
    uint32_t slot;
    int32_t token = 0;
    int code = CLI_DONE;
    if (eng_open(bench.path, &open_options, &bench.engine, &error) ||
        eng_engine_get_facts(bench.engine, &bench.facts, &error) ||
        eng_session_create(bench.engine, &options, &bench.session, &error) ||
        eng_slot_acquire(bench.session, &slot, &error)) {
        code = cli_fail_error(&error);
    } else {
        if (bench.facts.bos_token >= 0) token = bench.facts.bos_token;
        if (eng_prefill(bench.session, slot, &token, 1, &token, NULL, &error)) code = cli_fail_error(&error);
    }
    if (!code) {
        struct status status = {0};
        printf("%.3f\n", cli_process_age());
        if (!cli_flush(&status)) code = cli_fail_status(&status);
    }
    eng_session_destroy(&bench.session);
    eng_close(&bench.engine);
    return code;
}

static int run_tests(struct bench_engine *bench, const struct arguments *arguments, struct bench_row *rows,
                     size_t *count)
{
    uint32_t repetitions = (uint32_t)arguments->repetitions;
    for (size_t i = 0; i < arguments->prompts.count; i++) {
        struct bench_test test = {BENCH_PREFILL, (uint32_t)arguments->prompts.values[i], 1,
                                  (uint32_t)arguments->context};
        int code = test.tokens ? bench_run(bench, &test, repetitions, &rows[*count]) : CLI_DONE;
        if (code) return code;
        *count += test.tokens > 0;
    }
    for (size_t i = 0; i < arguments->decodes.count; i++)
        for (size_t k = 0; k < arguments->batches.count; k++) {
            struct bench_test test = {BENCH_DECODE, (uint32_t)arguments->decodes.values[i],
                                      (uint32_t)arguments->batches.values[k], (uint32_t)arguments->context};
            int code = test.tokens ? bench_run(bench, &test, repetitions, &rows[*count]) : CLI_DONE;
            if (code) return code;
            *count += test.tokens > 0;
        }
    if (bench->devices->launched) return CLI_DONE; /* one process cannot restart all */
    int code = bench_first_token(bench, repetitions, &rows[*count]);
    *count += code == CLI_DONE;
    return code;
}

/* A decode step of each batch size, then the first chunk of the longest prompt. */
static int trace_steps(struct bench_engine *bench, const struct arguments *arguments, struct traced *steps,
                       size_t *count)
{
    uint32_t context = (uint32_t)arguments->context, prompt = (uint32_t)largest(&arguments->prompts);
    size_t decodes = largest(&arguments->decodes) ? arguments->batches.count : 0;
    int code = CLI_DONE;
    for (size_t i = 0; !code && i < decodes; i++) {
        struct traced *step = &steps[(*count)++];
        step->test = (struct bench_test){BENCH_DECODE, 1, (uint32_t)arguments->batches.values[i], context};
        code = bench_trace(bench, &step->test, &step->trace);
    }
    if (code || !prompt) return code;
    struct traced *step = &steps[(*count)++];
    step->test = (struct bench_test){BENCH_PREFILL, prompt, 1, context};
    return bench_trace(bench, &step->test, &step->trace);
}

static int trace_engine(struct bench_engine *bench, const struct arguments *arguments)
{
    struct status status = {0};
    size_t count = 0;
    struct traced *steps = calloc(arguments->batches.count + 1, sizeof *steps);
    if (!steps) return cli_out_of_memory();
    int code = trace_steps(bench, arguments, steps, &count);
    if (!code && (!trace_write(bench, steps, count, arguments->trace, &status) || !trace_print(steps, count, &status)))
        code = cli_fail_status(&status);
    for (size_t i = 0; i < count; i++) trace_free(&steps[i].trace);
    free(steps);
    return code;
}

static int bench_engine(struct arguments *arguments)
{
    struct bench_engine bench = {.path = arguments->path, .devices = &arguments->devices};
    struct bench_row *rows = NULL;
    struct status status = {0};
    size_t count = 0;
    int code = open_engine(&bench, arguments);
    if (!code) code = open_session(&bench, arguments);
    if (code) goto done;
    if (arguments->trace) {
        code = trace_engine(&bench, arguments);
        goto done;
    }
    rows = calloc(arguments->prompts.count + arguments->decodes.count * arguments->batches.count + 1, sizeof *rows);
    if (!rows || !bench_bandwidth(&bench, &status)) {
        if (!rows) status_fail(&status, STATUS_MACHINE, "out of memory");
        code = cli_fail_status(&status);
        goto done;
    }
    code = run_tests(&bench, arguments, rows, &count);
    if (!code && !bench_print(&bench, rows, count, (enum bench_format)arguments->format, &status))
        code = cli_fail_status(&status);

done:
    free(rows);
    eng_session_destroy(&bench.session);
    eng_close(&bench.engine);
    return code;
}

int main(int argc, char **argv)
{
    cli_begin("engbench");
    cli_catch_signals();
    struct arguments arguments = {0};
    struct status status = {0};
    int code = read_arguments(argc, argv, &arguments);
    if (!code && arguments.finished) {
        if (!cli_flush(&status)) code = cli_fail_status(&status);
    } else if (!code) {
        code = arguments.first_token ? print_first_token(&arguments) : bench_engine(&arguments);
    }
    free(arguments.prompts.values);
    free(arguments.decodes.values);
    free(arguments.batches.values);
    return cli_end(code);
}
