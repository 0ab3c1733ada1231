/* SPDX-License-Identifier: Apache-2.0 */
/* What speculation costs and saves.
 *
 *   speculation_bench ENGINE [--draft FILE] [--drafted N] [--answer N] [--sequences N] [--rounds N] [--threads N]
 *
 * With FILE that engine drafts, too, in the sessions that speculate.
 *
 * Answers of N tokens (default 192), N sequences at once (default 1), with at most N drafted tokens a step (default 7), to two kinds of
 * prompts: one that has the same 24 tokens four times and is continued greedily, and one of tokens at random that is continued with
 * temperature 1. Each round (default 3) runs each kind without speculation, then with it, and compares the tokens.
 *
 * Engines for processors: times are processor time of the process after the first token, which other programs on the machine change little,
 * and the first answer that differs ends the program. Engines for GPUs: times are wall time, as the GPU computes. Steps of other numbers of
 * rows round differently there, so a token may differ where two are nearly equally likely, and all tokens after it do: each pair of answers
 * is compared up to there, and "first difference at token N of M" is printed, tokens counted from 1.
 *
 * Exit code: 0; 1: tokens differ, engines for processors alone; 2: usage; 3: the engine cannot be opened or run. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/eng.h"

enum exit_code { EXIT_DIFFERS = 1, EXIT_USAGE = 2, EXIT_MACHINE = 3 };
enum { PHRASE = 24, PROMPT = 4 * PHRASE, MOST_SEQUENCES = 64, MOST_ANSWER = 4096 };

struct bench {
    struct eng_engine *engine, *draft;
    struct eng_session *sessions[2]; /* without and with speculation */
    struct eng_engine_facts facts;
    bool is_gpu;
    uint32_t drafted, answer, sequences, rounds, threads;
};

__attribute__((format(printf, 2, 3), noreturn)) static void end(enum exit_code code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "speculation: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(code);
}

static struct eng_error error;
#define CHECK(call) \
    if (call) end(EXIT_MACHINE, "%s: %s", #call, error.message)

static double now_ms(const struct bench *bench)
{
    struct timespec now;
    clock_gettime(bench->is_gpu ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static struct eng_session_facts facts_of(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts;
}

static void make_prompt(const struct bench *bench, uint32_t seed, bool repeats, int32_t *prompt)
{
    uint64_t state = seed;
    for (int i = 0; i < PROMPT; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        prompt[i] = (int32_t)((state >> 33) % bench->facts.vocab_size);
        if (repeats && i >= PHRASE) prompt[i] = prompt[i - PHRASE];
    }
}

/* Runs one kind once. tokens: [sequences, answer] */
static void run(struct bench *bench, bool speculates, bool repeats, uint32_t round, int32_t *tokens)
{
    struct eng_session *session = bench->sessions[speculates];
    struct eng_sequence *sequences[MOST_SEQUENCES];
    const struct eng_session_facts before = facts_of(session);
    uint32_t unfinished = 1, steps = 0;
    for (uint32_t i = 0; i < bench->sequences; i++) {
        struct eng_sequence_options options;
        struct eng_sampling sampling;
        int32_t prompt[PROMPT];
        eng_sampling_init(&sampling);
        eng_sequence_options_init(&options);
        sampling.temperature = repeats ? 0 : 1;
        sampling.seed = round * bench->sequences + i;
        options.sampling = &sampling;
        options.max_new_tokens = bench->answer;
        options.flags = ENG_SEQUENCE_IGNORE_EOS;
        make_prompt(bench, round * bench->sequences + i + 1, repeats, prompt);
        CHECK(eng_sequence_create(session, &options, &sequences[i], &error));
        CHECK(eng_sequence_submit(sequences[i], prompt, PROMPT, &error));
    }
    while (eng_sequence_state(sequences[bench->sequences - 1]) != ENG_STATE_DECODE)
        CHECK(eng_step(session, &unfinished, &error));
    /* The first of several sequences have drawn some tokens by now. */
    size_t polled[MOST_SEQUENCES], drawn_before = 0;
    for (uint32_t i = 0; i < bench->sequences; i++) {
        polled[i] = eng_sequence_poll(sequences[i], tokens + (size_t)i * bench->answer, bench->answer);
        drawn_before += polled[i];
    }
    const double begun = now_ms(bench);
    for (; unfinished; steps++) CHECK(eng_step(session, &unfinished, &error));
    const double took = now_ms(bench) - begun,
                 drawn = (double)(bench->sequences * (size_t)bench->answer - drawn_before);
    const struct eng_session_facts facts = facts_of(session);
    for (uint32_t i = 0; i < bench->sequences; i++) {
        int32_t *rest = tokens + (size_t)i * bench->answer + polled[i];
        polled[i] += eng_sequence_poll(sequences[i], rest, bench->answer - polled[i]);
        if (polled[i] != bench->answer) end(EXIT_MACHINE, "an answer is short");
        eng_sequence_destroy(&sequences[i]);
    }
    printf("%s, %-10s %8.1f tokens/s  %5" PRIu32 " steps  %5" PRIu64 " drafted  %5" PRIu64 " accepted\n",
           repeats ? "repeats" : "other  ", speculates ? "speculated" : "plain", drawn / took * 1e3, steps,
           facts.drafted_tokens - before.drafted_tokens, facts.accepted_tokens - before.accepted_tokens);
}

/* Compares the answers of a kind without and with speculation: tokens[2], each [sequences, answer]. */
static void compare(const struct bench *bench, int32_t *const *tokens)
{
    for (uint32_t i = 0; i < bench->sequences; i++) {
        const int32_t *plain = tokens[0] + (size_t)i * bench->answer,
                      *speculated = tokens[1] + (size_t)i * bench->answer;
        uint32_t same = 0;
        while (same < bench->answer && plain[same] == speculated[same]) same++;
        if (same == bench->answer) {
            printf("  sequence %" PRIu32 ": the same %" PRIu32 " tokens\n", i, same);
            continue;
        }
        printf("  sequence %" PRIu32 ": first difference at token %" PRIu32 " of %" PRIu32 "\n", i, same + 1,
               bench->answer);
        if (!bench->is_gpu) end(EXIT_DIFFERS, "speculation changed tokens");
    }
}

static uint32_t read_number(const char *name, const char *text, uint32_t least, uint32_t most)
{
    char *rest;
    const double value = text ? strtod(text, &rest) : 0;
    if (!text || rest == text || *rest || !(value >= least && value <= most))
        end(EXIT_USAGE, "%s: expected a number from %" PRIu32 " to %" PRIu32 ", found %s", name, least, most,
            text ? text : "nothing");
    return (uint32_t)value;
}

int main(int argc, char **argv)
{
    struct bench bench = {.drafted = 7, .answer = 192, .sequences = 1, .rounds = 3};
    const struct {
        const char *name;
        uint32_t *value, least, most;
    } flags[] = {{"--drafted", &bench.drafted, 1, 1024},
                 {"--answer", &bench.answer, 2, MOST_ANSWER},
                 {"--sequences", &bench.sequences, 1, MOST_SEQUENCES},
                 {"--rounds", &bench.rounds, 1, 1000},
                 {"--threads", &bench.threads, 0, 1024}};
    if (argc < 2)
        end(EXIT_USAGE, "usage: speculation_bench ENGINE [--draft FILE] [--drafted N] [--answer N] [--sequences N] "
                        "[--rounds N] [--threads N]");
    const char *draft = NULL;
    for (int i = 2; i < argc; i += 2) {
        size_t f = 0;
        if (strcmp(argv[i], "--draft") == 0 && argv[i + 1]) {
            draft = argv[i + 1];
            continue;
        }
        while (f < sizeof flags / sizeof *flags && strcmp(argv[i], flags[f].name)) f++;
        if (f == sizeof flags / sizeof *flags) end(EXIT_USAGE, "%s: unknown option", argv[i]);
        *flags[f].value = read_number(argv[i], argv[i + 1], flags[f].least, flags[f].most);
    }
    eng_engine_facts_init(&bench.facts);
    CHECK(eng_open(argv[1], NULL, &bench.engine, &error));
    if (draft) CHECK(eng_open(draft, NULL, &bench.draft, &error));
    CHECK(eng_engine_get_facts(bench.engine, &bench.facts, &error));
    const size_t bytes = (size_t)bench.sequences * bench.answer * sizeof(int32_t);
    int32_t *tokens[2] = {malloc(bytes), malloc(bytes)};
    if (!tokens[0] || !tokens[1]) end(EXIT_MACHINE, "out of memory");
    for (uint32_t s = 0; s < 2; s++) {
        struct eng_session_options options;
        eng_session_options_init(&options);
        options.threads = bench.threads;
        options.speculate = s * bench.drafted;
        if (s) options.draft = bench.draft;
        options.no_prefix_cache = 1;
        CHECK(eng_session_create(bench.engine, &options, &bench.sessions[s], &error));
    }
    bench.is_gpu = facts_of(bench.sessions[0]).device != NULL;
    if (!facts_of(bench.sessions[1]).speculate) end(EXIT_MACHINE, "the engine has no verification plans");
    for (uint32_t round = 0; round < bench.rounds; round++)
        for (int kind = 0; kind < 2; kind++) {
            for (int s = 0; s < 2; s++) run(&bench, s, !kind, round, tokens[s]);
            compare(&bench, tokens);
        }
    for (int s = 0; s < 2; s++) {
        eng_session_destroy(&bench.sessions[s]);
        free(tokens[s]);
    }
    eng_close(&bench.draft);
    eng_close(&bench.engine);
    return 0;
}
