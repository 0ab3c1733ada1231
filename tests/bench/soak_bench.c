/* SPDX-License-Identifier: Apache-2.0 */
/* Many sequences at random through one session, with all slots busy: each must say what it says alone.
 *
 *   soak_bench ENGINE COUNT [--seed N] [--threads N] [--specs N] [--most-drift PERCENT] [--kv-tokens N] [--prompt-step N] [--step-ms N]
 *
 * First some specifications of sequences (default 256) are drawn: prompt, length, greedy or sampled, stop tokens, end tokens
 * heeded or not, one submit or two (KEEP). Half of the prompts begin with one of a few texts. Each is run with a session to itself
 * and without a prefix cache; that is its answer. Then COUNT sequences,
 * each of a random specification, run with as many beside it as there are slots, and others waiting; some are cancelled at a
 * random token. Whenever a tenth of them is done, all are, and slots and pages must be free again.
 *
 * Memory is the resident set of this process when the first tenth is done, and at the end; before the first tenth every page
 * of the session's pool has been used. Exit code: 0; 1: an answer differs, slots or pages are missing, or the resident set has
 * grown by more than PERCENT (default 1; 0: it is printed alone); 2: usage; 3: the engine cannot be opened or run. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/eng.h"

enum {
    MOST_PROMPT = 160,
    MOST_NEW = 64,
    SUBMITS = 2,
    OPENINGS = 8,
    MOST_TOKENS = SUBMITS * MOST_NEW,
    MOST_SPECS = 1 << 16,
    TENTHS = 10,
    WAITING_PER_SLOT = 1, /* besides those that run */
    MOST_REPORTED = 10,
};
enum exit_code { EXIT_DIFFERS = 1, EXIT_USAGE = 2, EXIT_MACHINE = 3 };

/* What a sequence is given, and what it answers alone. */
struct spec {
    uint32_t submits, prompt_counts[SUBMITS], max_new, flags;
    int32_t prompts[SUBMITS][MOST_PROMPT];
    bool is_sampled;
    struct eng_sampling sampling;
    uint32_t stop_count;
    int32_t stop;
    uint32_t answer_counts[SUBMITS]; /* tokens when the first submit is done, and in all */
    enum eng_end ends[SUBMITS];
    int32_t answer[MOST_TOKENS];
};

/* A sequence that runs. */
struct running {
    const struct spec *spec; /* NULL: none */
    struct eng_sequence *sequence;
    uint32_t submitted, count;
    uint32_t cancel_at; /* tokens; above MOST_TOKENS: never */
    int32_t tokens[MOST_TOKENS];
};

struct soak {
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_engine_facts facts;
    struct eng_session_facts idle; /* of the session before its first sequence */
    uint32_t threads;
    uint64_t kv_tokens;            /* of the pool, when all run together, as the next two */
    uint32_t prompt_step, step_ms; /* of the session */
    int32_t openings[OPENINGS][MOST_PROMPT];
    uint64_t random;
    uint32_t spec_count, place_count;
    struct spec *specs;      /* [spec_count] */
    struct running *running; /* [place_count] */
    uint64_t tokens, steps, full_steps, cancelled, differing;
    double most_drift; /* of 1 */
};

__attribute__((format(printf, 2, 3), noreturn)) static void end(enum exit_code code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "soak: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(code);
}

#define CHECK(call)                                                   \
    do {                                                              \
        struct eng_error error;                                       \
        if ((call) != ENG_OK) end(EXIT_MACHINE, "%s", error.message); \
    } while (0)

/* splitmix64 */
static uint64_t draw(struct soak *soak)
{
    uint64_t z = soak->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* From `least` to `most`, both included. */
static uint32_t draw_between(struct soak *soak, uint32_t least, uint32_t most)
{
    return least + (uint32_t)(draw(soak) % (most - least + 1));
}

static bool draw_one_of(struct soak *soak, uint32_t count) { return draw(soak) % count == 0; }

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static uint64_t resident_bytes(void)
{
    unsigned long long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%llu %llu", &all, &resident) != 2) end(EXIT_MACHINE, "/proc/self/statm cannot be read");
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- one sequence ---- */

static void submit(struct running *one)
{
    const struct spec *spec = one->spec;
    CHECK(
        eng_sequence_submit(one->sequence, spec->prompts[one->submitted], spec->prompt_counts[one->submitted], &error));
    one->submitted++;
}

static void start(struct soak *soak, struct running *one, const struct spec *spec)
{
    struct eng_sequence_options options;
    eng_sequence_options_init(&options);
    options.sampling = spec->is_sampled ? &spec->sampling : NULL;
    options.stop_tokens = &spec->stop;
    options.stop_count = spec->stop_count;
    options.max_new_tokens = spec->max_new;
    options.flags = spec->flags;
    *one = (struct running){.spec = spec, .cancel_at = UINT32_MAX};
    CHECK(eng_sequence_create(soak->session, &options, &one->sequence, &error));
    submit(one);
}

/* Takes its new tokens. False: it has more than it may. */
static bool poll(struct running *one)
{
    one->count += (uint32_t)eng_sequence_poll(one->sequence, one->tokens + one->count, MOST_TOKENS - one->count);
    int32_t more;
    return one->count < MOST_TOKENS || eng_sequence_poll(one->sequence, &more, 1) == 0;
}

/* ---- what each says alone ---- */

static void run_alone(struct soak *soak, struct spec *spec)
{
    struct running one;
    uint32_t unfinished;
    start(soak, &one, spec);
    for (uint32_t s = 0; s < spec->submits; s++) {
        if (s > 0) submit(&one);
        do CHECK(eng_step(soak->session, &unfinished, &error));
        while (unfinished);
        if (!poll(&one)) end(EXIT_DIFFERS, "a sequence alone has more than %d tokens", MOST_TOKENS);
        spec->answer_counts[s] = one.count;
        spec->ends[s] = eng_sequence_end(one.sequence);
    }
    memcpy(spec->answer, one.tokens, sizeof spec->answer);
    eng_sequence_destroy(&one.sequence);
}

static void make_spec(struct soak *soak, struct spec *spec)
{
    const uint32_t context = soak->facts.max_context;
    const uint32_t most_prompt = context / 4 < MOST_PROMPT ? context / 4 : MOST_PROMPT;
    const uint32_t most_new = context / 8 < MOST_NEW ? context / 8 : MOST_NEW;
    *spec = (struct spec){.submits = draw_one_of(soak, 4) ? 2 : 1, .max_new = draw_between(soak, 1, most_new)};
    for (uint32_t s = 0; s < spec->submits; s++) {
        /* As often short as long. */
        uint32_t most = draw_one_of(soak, 2) ? most_prompt : most_prompt / 8;
        spec->prompt_counts[s] = draw_between(soak, 1, most ? most : 1);
        uint32_t opened = 0;
        if (s == 0 && draw_one_of(soak, 2)) {
            opened = draw_between(soak, 0, spec->prompt_counts[s]);
            memcpy(spec->prompts[s], soak->openings[draw(soak) % OPENINGS], opened * sizeof *spec->prompts[s]);
        }
        for (uint32_t i = opened; i < spec->prompt_counts[s]; i++)
            spec->prompts[s][i] = (int32_t)draw_between(soak, 0, soak->facts.vocab_size - 1);
    }
    if (spec->submits > 1) spec->flags |= ENG_SEQUENCE_KEEP;
    if (draw_one_of(soak, 2)) spec->flags |= ENG_SEQUENCE_IGNORE_EOS;
    eng_sampling_init(&spec->sampling);
    spec->is_sampled = draw_one_of(soak, 2);
    spec->sampling.temperature = 0.5f + (float)draw_between(soak, 0, 100) * 0.01f;
    spec->sampling.top_p = draw_one_of(soak, 2) ? 0.9f : 0;
    spec->sampling.top_k = draw_one_of(soak, 2) ? 40 : 0;
    spec->sampling.repetition_penalty = draw_one_of(soak, 3) ? 1.2f : 0;
    spec->sampling.seed = draw(soak);
    run_alone(soak, spec);
    if (!draw_one_of(soak, 4) || spec->answer_counts[0] == 0) return;
    /* A token that it draws stops it. */
    spec->stop_count = 1;
    spec->stop = spec->answer[draw_between(soak, 0, spec->answer_counts[0] - 1)];
    run_alone(soak, spec);
}

/* ---- all together ---- */

static void report_difference(struct soak *soak, const struct running *one, const char *what)
{
    if (++soak->differing > MOST_REPORTED) return;
    const struct spec *spec = one->spec;
    uint32_t at = 0;
    while (at < one->count && one->tokens[at] == spec->answer[at]) at++;
    fprintf(stderr,
            "soak: specification %zu: %s: %" PRIu32 " tokens, the first %" PRIu32 " as alone, which has %" PRIu32 "\n",
            (size_t)(spec - soak->specs), what, one->count, at, spec->answer_counts[spec->submits - 1]);
}

/* Whether what it has so far is what it has alone. */
static bool is_prefix(const struct running *one)
{
    return one->count <= one->spec->answer_counts[one->spec->submits - 1] &&
           !memcmp(one->tokens, one->spec->answer, one->count * sizeof *one->tokens);
}

static void finish(struct soak *soak, struct running *one)
{
    soak->tokens += one->count;
    eng_sequence_destroy(&one->sequence);
    one->spec = NULL;
}

/* After a step. Returns whether it is done for good. */
static bool advance(struct soak *soak, struct running *one)
{
    const struct spec *spec = one->spec;
    bool fits = poll(one);
    if (fits && one->count >= one->cancel_at && eng_sequence_state(one->sequence) != ENG_STATE_DONE) {
        eng_sequence_cancel(one->sequence);
        soak->cancelled++;
        fits = poll(one);
        if (!fits || !is_prefix(one)) report_difference(soak, one, "before it was cancelled");
        if (eng_sequence_end(one->sequence) != ENG_END_CANCELLED)
            report_difference(soak, one, "cancelled, but not its end");
        finish(soak, one);
        return true;
    }
    if (fits && eng_sequence_state(one->sequence) != ENG_STATE_DONE) return false;
    const uint32_t s = one->submitted - 1;
    if (!fits || !is_prefix(one) || one->count != spec->answer_counts[s])
        report_difference(soak, one, "other tokens");
    else if (eng_sequence_end(one->sequence) != spec->ends[s])
        report_difference(soak, one, "another end");
    else if (one->submitted < spec->submits) {
        submit(one);
        return false;
    }
    finish(soak, one);
    return true;
}

/* Runs `count` sequences to their end. */
static void run_together(struct soak *soak, uint64_t count)
{
    uint64_t started = 0, done = 0;
    while (done < count) {
        uint32_t unfinished;
        struct eng_session_facts now;
        for (uint32_t i = 0; i < soak->place_count && started < count; i++) {
            if (soak->running[i].spec) continue;
            const struct spec *spec = &soak->specs[draw(soak) % soak->spec_count];
            start(soak, &soak->running[i], spec);
            /* One that is cancelled before its first token may still wait. */
            if (draw_one_of(soak, 8))
                soak->running[i].cancel_at = draw_between(soak, 0, spec->answer_counts[spec->submits - 1]);
            started++;
        }
        CHECK(eng_step(soak->session, &unfinished, &error));
        eng_session_facts_init(&now);
        CHECK(eng_session_get_facts(soak->session, &now, &error));
        soak->steps++;
        soak->full_steps += now.free_slots == 0;
        for (uint32_t i = 0; i < soak->place_count; i++)
            if (soak->running[i].spec) done += advance(soak, &soak->running[i]);
    }
}

/* Every slot and page is free, as before the first sequence. */
static bool has_all_back(const struct soak *soak)
{
    struct eng_session_facts now;
    eng_session_facts_init(&now);
    CHECK(eng_session_get_facts(soak->session, &now, &error));
    if (now.free_slots == soak->idle.free_slots && now.free_pages == soak->idle.free_pages) return true;
    fprintf(stderr,
            "soak: expected %" PRIu32 " free slots and %" PRIu32 " free pages when nothing runs, found %" PRIu32
            " and %" PRIu32 "\n",
            soak->idle.free_slots, soak->idle.free_pages, now.free_slots, now.free_pages);
    return false;
}

/* Every page of the pool holds tokens once, so that later sequences touch no new memory. */
static void use_whole_pool(struct soak *soak)
{
    const uint32_t count = soak->facts.max_context - 1;
    int32_t *prompt = calloc(count, sizeof *prompt);
    struct eng_sequence_options options;
    struct eng_sequence **all = calloc(soak->idle.slots, sizeof(struct eng_sequence *));
    uint32_t unfinished;
    if (!prompt || !all) end(EXIT_MACHINE, "out of memory");
    eng_sequence_options_init(&options);
    options.max_new_tokens = 1;
    for (uint32_t i = 0; i < soak->idle.slots; i++) {
        CHECK(eng_sequence_create(soak->session, &options, &all[i], &error));
        prompt[0] = (int32_t)i; /* no two begin alike */
        CHECK(eng_sequence_submit(all[i], prompt, count, &error));
    }
    do CHECK(eng_step(soak->session, &unfinished, &error));
    while (unfinished);
    for (uint32_t i = 0; i < soak->idle.slots; i++) eng_sequence_destroy(&all[i]);
    free(all);
    free(prompt);
}

static void create_session(struct soak *soak, bool together)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = soak->threads;
    options.no_prefix_cache = !together;
    if (together) {
        options.kv_tokens = soak->kv_tokens;
        options.prompt_step = soak->prompt_step;
        options.step_ms = soak->step_ms;
    }
    CHECK(eng_session_create(soak->engine, &options, &soak->session, &error));
}

static int soak_all(struct soak *soak, uint64_t count)
{
    bool is_whole = true;
    double begun = seconds();
    create_session(soak, false);
    for (int o = 0; o < OPENINGS; o++)
        for (int i = 0; i < MOST_PROMPT; i++)
            soak->openings[o][i] = (int32_t)draw_between(soak, 0, soak->facts.vocab_size - 1);
    for (uint32_t i = 0; i < soak->spec_count; i++) make_spec(soak, &soak->specs[i]);
    eng_session_destroy(&soak->session);
    printf("%" PRIu32 " specifications alone: %.1f s\n", soak->spec_count, seconds() - begun);

    create_session(soak, true);
    eng_session_facts_init(&soak->idle);
    CHECK(eng_session_get_facts(soak->session, &soak->idle, &error));
    soak->place_count = soak->idle.slots * (1 + WAITING_PER_SLOT);
    soak->running = calloc(soak->place_count, sizeof *soak->running);
    if (!soak->running) end(EXIT_MACHINE, "out of memory");
    use_whole_pool(soak);
    uint64_t first = 0, last = 0;
    begun = seconds();
    for (uint64_t tenth = 0; tenth < TENTHS; tenth++) {
        run_together(soak, count * (tenth + 1) / TENTHS - count * tenth / TENTHS);
        is_whole = has_all_back(soak) && is_whole;
        last = resident_bytes();
        if (tenth == 0) first = last;
        printf("%" PRIu64 " sequences: %.1f s, resident %.2f MB\n", count * (tenth + 1) / TENTHS, seconds() - begun,
               (double)last * 1e-6);
        fflush(stdout);
    }
    double drift = (double)last / (double)first - 1;
    printf("%" PRIu64 " sequences, %" PRIu32 " slots, %" PRIu32 " ranks: %" PRIu64
           " tokens in %.1f s, %.1f %% of %" PRIu64 " steps with all slots busy, %" PRIu64 " cancelled, %" PRIu64
           " differ from alone, resident %.2f -> %.2f MB "
           "(%+.2f %%)\n",
           count, soak->idle.slots, soak->facts.ranks, soak->tokens, seconds() - begun,
           100.0 * (double)soak->full_steps / (double)soak->steps, soak->steps, soak->cancelled, soak->differing,
           (double)first * 1e-6, (double)last * 1e-6, 100 * drift);
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(soak->session, &facts, &error));
    printf("%" PRIu64 " tokens of prompts from the cache, %" PRIu64 " times set aside\n", facts.cached_tokens,
           facts.set_aside);
    eng_session_destroy(&soak->session);
    free(soak->running);
    bool has_grown = soak->most_drift > 0 && drift > soak->most_drift;
    if (has_grown)
        fprintf(stderr, "soak: the resident set grew by %.2f %%, expected at most %.2f\n", 100 * drift,
                100 * soak->most_drift);
    return soak->differing || !is_whole || has_grown ? EXIT_DIFFERS : 0;
}

static double read_number(const char *name, const char *text, double least, double most)
{
    char *rest;
    double value = text ? strtod(text, &rest) : 0;
    if (!text || rest == text || *rest || !(value >= least && value <= most))
        end(EXIT_USAGE, "%s: expected a number from %.0f to %.0f, found %s", name, least, most,
            text ? text : "nothing");
    return value;
}

int main(int argc, char **argv)
{
    struct soak soak = {.random = 1, .spec_count = 256, .most_drift = 0.01};
    if (argc < 3)
        end(EXIT_USAGE, "usage: soak_bench ENGINE COUNT [--seed N] [--threads N] [--specs N] [--most-drift PERCENT] "
                        "[--kv-tokens N] [--prompt-step N] [--step-ms N]");
    uint64_t count = (uint64_t)read_number("COUNT", argv[2], TENTHS, 1e12);
    for (int i = 3; i < argc; i += 2) {
        if (!strcmp(argv[i], "--seed"))
            soak.random = (uint64_t)read_number(argv[i], argv[i + 1], 0, 1e15);
        else if (!strcmp(argv[i], "--threads"))
            soak.threads = (uint32_t)read_number(argv[i], argv[i + 1], 0, 1024);
        else if (!strcmp(argv[i], "--specs"))
            soak.spec_count = (uint32_t)read_number(argv[i], argv[i + 1], 1, MOST_SPECS);
        else if (!strcmp(argv[i], "--kv-tokens"))
            soak.kv_tokens = (uint64_t)read_number(argv[i], argv[i + 1], 0, 1e12);
        else if (!strcmp(argv[i], "--prompt-step"))
            soak.prompt_step = (uint32_t)read_number(argv[i], argv[i + 1], 0, INT32_MAX);
        else if (!strcmp(argv[i], "--step-ms"))
            soak.step_ms = (uint32_t)read_number(argv[i], argv[i + 1], 0, INT32_MAX);
        else if (!strcmp(argv[i], "--most-drift"))
            soak.most_drift = read_number(argv[i], argv[i + 1], 0, 1e6) / 100;
        else
            end(EXIT_USAGE, "%s: unknown option", argv[i]);
    }
    soak.specs = calloc(soak.spec_count, sizeof *soak.specs);
    if (!soak.specs) end(EXIT_MACHINE, "out of memory");
    eng_engine_facts_init(&soak.facts);
    CHECK(eng_open(argv[1], NULL, &soak.engine, &error));
    CHECK(eng_engine_get_facts(soak.engine, &soak.facts, &error));
    int code = soak_all(&soak, count);
    eng_close(&soak.engine);
    free(soak.specs);
    return code;
}
