/* SPDX-License-Identifier: Apache-2.0 */
/* How long the tokens of answers wait for prompts that arrive.
 *
 *   latency_bench ENGINE [--answers N] [--prompts N] [--tokens N] [--at-once N] [--threads N] [--prompt-step N] [--step-ms N]
 *                 [--processor-time 1] [--steps N] [--schema FILE]
 *
 * N sequences answer all the time (default 4; fewer than the engine has slots). First nothing else runs, for --steps steps (default 64); then prompts arrive (default 8, of
 * 512 tokens each), --at-once of them at a time (default 1), each as soon as another has drawn its first token, which is all that it
 * draws. For both parts: the times between two tokens of an answer, median, 99 of 100 and longest; for prompts also the time from submit
 * to the first token; and tokens a second of prompts and answers together. For the first part also the processor time of a step, this program's
 * part included: of all threads and of this one, the rest being the driver's or those that compute. With --processor-time and one thread, times are processor
 * time, which other programs on the machine change little. With --schema every answer is a document of the JSON Schema in the file; one that ends
 * begins again with a prompt of one token, and how many did in the first part is told: with a large minItems none does.
 * Exit code: 0; 2: usage; 3: the engine cannot be opened or run. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/file.h"
#include "tests/bench/bench_session.h"

enum { MOST_SCHEMA_BYTES = 1 << 20 };

/* Times in milliseconds. */
struct times {
    double *ms;
    size_t count, capacity;
};

struct prompt {
    struct eng_sequence *sequence; /* NULL: none */
    double submitted;
};

struct bench {
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_engine_facts facts;
    uint32_t answers, prompts, tokens, at_once, processor_time, steps;
    struct eng_session_options options;
    struct eng_grammar *grammar;     /* of answers; NULL: none */
    struct eng_sequence **answering; /* [answers] */
    double *last;                    /* [answers]: when it drew its latest token */
    struct prompt *reading;          /* [at_once] */
    int32_t *text;                   /* [tokens] */
    uint32_t submitted, read, ended; /* ended: answers */
    struct times between, first;
};

static double now_ms(const struct bench *bench)
{
    struct timespec now;
    clock_gettime(bench->processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* CLOCK_PROCESS_CPUTIME_ID: of all threads; CLOCK_THREAD_CPUTIME_ID: of this one. */
static double processor_us(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static void note(struct times *times, double ms)
{
    if (times->count == times->capacity) {
        times->capacity = times->capacity ? 2 * times->capacity : 1024;
        times->ms = realloc(times->ms, times->capacity * sizeof *times->ms);
        if (!times->ms) bench_end(BENCH_MACHINE, "out of memory");
    }
    times->ms[times->count++] = ms;
}

static int compare(const void *left, const void *right)
{
    const double *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static void print_times(const char *what, struct times *times)
{
    if (times->count == 0) return;
    qsort(times->ms, times->count, sizeof *times->ms, compare);
    printf("%s: median %.2f ms, 99 of 100 %.2f ms, longest %.2f ms (%zu)\n", what, times->ms[times->count / 2],
           times->ms[times->count * 99 / 100], times->ms[times->count - 1], times->count);
    times->count = 0;
}

static struct eng_sequence *start(struct bench *bench, uint32_t number, uint32_t count, uint32_t most_new,
                                  struct eng_grammar *grammar)
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    eng_sequence_options_init(&options);
    if (!grammar) options.flags = ENG_SEQUENCE_IGNORE_EOS;
    options.grammar = grammar;
    options.max_new_tokens = most_new;
    CHECK(eng_sequence_create(bench->session, &options, &sequence, &error));
    for (uint32_t i = 0; i < count; i++)
        bench->text[i] = (int32_t)((number * UINT64_C(7919) + (i + 1) * UINT64_C(104729)) % bench->facts.vocab_size);
    CHECK(eng_sequence_submit(sequence, bench->text, count, &error));
    return sequence;
}

static struct eng_sequence *start_answer(struct bench *bench, uint32_t number)
{
    return start(bench, number, 1, 0, bench->grammar);
}

/* A step, and what has come of it. An answer that its context or its schema ends begins again. Returns the tokens of answers. */
static uint64_t step(struct bench *bench)
{
    uint32_t unfinished;
    uint64_t drawn = 0;
    int32_t token;
    CHECK(eng_step(bench->session, &unfinished, &error));
    const double now = now_ms(bench);
    for (uint32_t i = 0; i < bench->answers; i++) {
        if (eng_sequence_poll(bench->answering[i], &token, 1) == 1) {
            if (bench->last[i] > 0) note(&bench->between, now - bench->last[i]);
            bench->last[i] = now;
            drawn++;
        }
        if (eng_sequence_state(bench->answering[i]) != ENG_STATE_DONE) continue;
        eng_sequence_destroy(&bench->answering[i]);
        bench->answering[i] = start_answer(bench, i);
        bench->last[i] = 0;
        bench->ended++;
    }
    for (uint32_t i = 0; i < bench->at_once; i++) {
        struct prompt *prompt = &bench->reading[i];
        if (!prompt->sequence || eng_sequence_state(prompt->sequence) != ENG_STATE_DONE) continue;
        note(&bench->first, now - prompt->submitted);
        eng_sequence_destroy(&prompt->sequence);
        bench->read++;
    }
    return drawn;
}

static void run(struct bench *bench)
{
    uint64_t drawn = 0;
    for (uint32_t i = 0; i < bench->answers; i++) bench->answering[i] = start_answer(bench, i);
    for (uint32_t i = 0; i < bench->answers; i++)
        while (bench->last[i] == 0) step(bench);
    bench->between.count = bench->ended = 0;
    const double all = processor_us(CLOCK_PROCESS_CPUTIME_ID), own = processor_us(CLOCK_THREAD_CPUTIME_ID);
    double begun = now_ms(bench);
    for (uint32_t i = 0; i < bench->steps; i++) drawn += step(bench);
    const double alone = now_ms(bench) - begun;
    printf("answers alone: %.1f tokens/s, a step %.3f ms; processor time of a step: %.1f us of all threads, %.1f us of "
           "this one\n",
           (double)drawn / alone * 1e3, alone / bench->steps,
           (processor_us(CLOCK_PROCESS_CPUTIME_ID) - all) / bench->steps,
           (processor_us(CLOCK_THREAD_CPUTIME_ID) - own) / bench->steps);
    print_times("  between tokens", &bench->between);
    if (bench->grammar) printf("  answers that ended and began again: %" PRIu32 "\n", bench->ended);

    drawn = 0;
    begun = now_ms(bench);
    while (bench->read < bench->prompts) {
        for (uint32_t i = 0; i < bench->at_once && bench->submitted < bench->prompts; i++) {
            if (bench->reading[i].sequence) continue;
            bench->reading[i].submitted = now_ms(bench);
            bench->reading[i].sequence = start(bench, bench->answers + bench->submitted++, bench->tokens, 1, NULL);
        }
        drawn += step(bench);
    }
    const double took = now_ms(bench) - begun, prompts = (double)bench->prompts * bench->tokens;
    printf("with prompts: %.1f tokens/s of prompts and %.1f of answers, %.1f together\n", prompts / took * 1e3,
           (double)drawn / took * 1e3, (prompts + (double)drawn) / took * 1e3);
    print_times("  between tokens", &bench->between);
    print_times("  to the first token", &bench->first);
}

static struct eng_grammar *read_schema(const struct eng_engine *engine, const char *path)
{
    struct status status = {0};
    struct eng_grammar *grammar;
    char *text;
    size_t size;
    if (!file_read(path, MOST_SCHEMA_BYTES, &text, &size, &status)) bench_end(BENCH_MACHINE, "%s", status.message);
    CHECK(eng_grammar_create(engine, ENG_GRAMMAR_JSON_SCHEMA, text, size, &grammar, &error));
    free(text);
    return grammar;
}

int main(int argc, char **argv)
{
    const char *schema = NULL;
    struct bench bench = {.answers = 4, .prompts = 8, .tokens = 512, .at_once = 1, .steps = 64};
    eng_session_options_init(&bench.options);
    const struct {
        const char *name;
        uint32_t *value, least;
    } flags[] = {{"--answers", &bench.answers, 1},
                 {"--prompts", &bench.prompts, 1},
                 {"--tokens", &bench.tokens, 1},
                 {"--at-once", &bench.at_once, 1},
                 {"--threads", &bench.options.threads, 0},
                 {"--prompt-step", &bench.options.prompt_step, 0},
                 {"--step-ms", &bench.options.step_ms, 0},
                 {"--processor-time", &bench.processor_time, 0},
                 {"--steps", &bench.steps, 1}};
    if (argc < 2)
        bench_end(BENCH_USAGE,
                  "usage: latency_bench ENGINE [--answers N] [--prompts N] [--tokens N] [--at-once N] [--threads N] "
                  "[--prompt-step N] [--step-ms N] [--processor-time 1] [--steps N] [--schema FILE]");
    for (int i = 2; i < argc; i += 2) {
        size_t f = 0;
        if (!strcmp(argv[i], "--schema")) {
            schema = argv[i + 1];
            if (!schema) bench_end(BENCH_USAGE, "--schema: expected a file, found nothing");
            continue;
        }
        while (f < sizeof flags / sizeof *flags && strcmp(argv[i], flags[f].name)) f++;
        if (f == sizeof flags / sizeof *flags) bench_end(BENCH_USAGE, "%s: unknown option", argv[i]);
        *flags[f].value = (uint32_t)bench_number(argv[i], argv[i + 1], flags[f].least, INT32_MAX);
    }
    eng_engine_facts_init(&bench.facts);
    CHECK(eng_open(argv[1], NULL, &bench.engine, &error));
    CHECK(eng_engine_get_facts(bench.engine, &bench.facts, &error));
    CHECK(eng_session_create(bench.engine, &bench.options, &bench.session, &error));
    if (schema) bench.grammar = read_schema(bench.engine, schema);
    if (bench.answers >= bench.facts.slots)
        bench_end(BENCH_USAGE, "--answers: expected fewer than the engine's %" PRIu32 " slots, as prompts need one",
                  bench.facts.slots);
    bench.answering = calloc(bench.answers, sizeof(struct eng_sequence *));
    bench.last = calloc(bench.answers, sizeof *bench.last);
    bench.reading = calloc(bench.at_once, sizeof *bench.reading);
    bench.text = calloc(bench.tokens, sizeof *bench.text);
    if (!bench.answering || !bench.last || !bench.reading || !bench.text) bench_end(BENCH_MACHINE, "out of memory");
    run(&bench);
    eng_session_destroy(&bench.session);
    eng_grammar_destroy(&bench.grammar);
    eng_close(&bench.engine);
    free(bench.answering);
    free(bench.last);
    free(bench.reading);
    free(bench.text);
    free(bench.between.ms);
    free(bench.first.ms);
    return 0;
}
