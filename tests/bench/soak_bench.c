/* SPDX-License-Identifier: Apache-2.0 */
/* Many sequences at random through one session, with all slots busy: each must say what it says alone.
 *
 *   soak_bench ENGINE COUNT [--seed N] [--threads N] [--specs N] [--most-drift PERCENT] [--kv-tokens N] [--kept-bytes N]
 *              [--prompt-step N] [--step-ms N] [--speculate N] [--draft ENGINE]
 *
 * First some specifications of sequences (default 256) are drawn: prompt, length, greedy or sampled, biases and penalties, stop tokens, a
 * stop string, a grammar, end tokens heeded or not, one submit or two (KEEP). Half of the prompts begin with one of a few texts, and some
 * with another specification and a part of its answer. Each is run with a session to itself and without a prefix cache; that is its
 * answer. Then COUNT sequences, each of a random specification, run with as many beside it as there are slots, and others waiting. Some
 * are cancelled at a random token, some at a random time by another thread. Some are forked, with the same options or those of a
 * specification that begins as they do, and some that go on later are saved to a file and restored from it. Whenever a tenth of them is
 * done, all are, and slots and pages must be free again. With --speculate they are drafted for, alone they are not; what other sequences
 * run beside them must not matter either.
 *
 * Memory is the resident set of this process when the first tenth is done, and at the end; before the first tenth every page
 * of the session's pool has been used. Exit code: 0; 1: an answer differs, slots or pages are missing, or the resident set has
 * grown by more than PERCENT (default 1; 0: it is printed alone); 2: usage; 3: the engine cannot be opened or run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/bench_session.h"
#include "tests/bench/soak_cancel.h"
#include "tests/bench/soak_case.h"

enum {
    MOST_SPECS = 1 << 16,
    TENTHS = 10,
    PER_SLOT = 2,       /* sequences at a time: one of them waits */
    FORKS_PER_SLOT = 1, /* besides those */
    MOST_REPORTED = 10,
};

/* Where one sequence is, after the other. */
struct place {
    struct soak_sequence one;
    uint32_t cancel_at, fork_at; /* tokens; NEVER */
    bool forks_alike;            /* with its own options */
    bool is_unwanted;            /* the other thread cancels it */
    char path[64];               /* of the file that has it; "": none */
};
static const uint32_t NEVER = UINT32_MAX;

struct counts {
    uint64_t tokens, steps, full_steps, cancelled, cancelled_in_time, forks, other_forks, saved, stopped, differing;
};

struct soak {
    struct soak_source source;
    struct eng_engine *draft; /* NULL: none */
    struct eng_session *session;
    struct eng_session_facts idle; /* of the session before its first sequence */
    struct eng_session_options options;
    struct soak_canceller *canceller;
    char folder[32]; /* of saved sequences */
    uint64_t random, saves;
    uint32_t spec_count, place_count;
    struct soak_spec *specs; /* [spec_count] */
    struct place *places;    /* [place_count] */
    uint64_t started, live;  /* sequences of this tenth, and those that are not done */
    double begun;            /* when the first one started */
    struct counts counts;
    double most_drift; /* of 1 */
};

static uint64_t resident_bytes(void)
{
    unsigned long long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%llu %llu", &all, &resident) != 2)
        bench_end(BENCH_MACHINE, "/proc/self/statm cannot be read");
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- one sequence ---- */

static void report_difference(struct soak *soak, const struct soak_sequence *one, const char *what)
{
    if (++soak->counts.differing > MOST_REPORTED) return;
    const struct soak_spec *spec = one->spec;
    uint32_t at = 0;
    while (at < one->count && one->tokens[at] == spec->answer[at]) at++;
    fprintf(stderr,
            "soak: specification %zu: %s: %" PRIu32 " tokens, the first %" PRIu32 " as alone, which has %" PRIu32 "\n",
            (size_t)(spec - soak->specs), what, one->count, at, spec->answer_counts[spec->submits - 1]);
}

/* Whether it is as alone so far. */
static bool check(struct soak *soak, const struct soak_sequence *one, bool is_done)
{
    const char *difference = soak_difference(one, is_done);
    if (difference) report_difference(soak, one, difference);
    return !difference;
}

static void finish(struct soak *soak, struct place *place)
{
    soak->counts.tokens += place->one.count;
    soak->counts.stopped += place->one.is_stopped;
    soak->live--;
    if (place->is_unwanted) soak_cancel_withdraw(soak->canceller, place->one.sequence);
    soak_destroy(&place->one);
}

static struct place *free_place(struct soak *soak)
{
    for (uint32_t i = 0; i < soak->place_count; i++)
        if (!soak->places[i].one.spec) return &soak->places[i];
    return NULL;
}

/* Sequences of other lengths than the mean take other times; what counts is that some are cancelled early and some late. */
static double random_delay(struct soak *soak, const struct soak_spec *spec)
{
    const double step = soak->counts.steps ? (bench_seconds() - soak->begun) / (double)soak->counts.steps : 0;
    return step * soak_draw_between(&soak->random, 0, 100) * 0.02 * (spec->answer_counts[spec->submits - 1] + 4);
}

static void start(struct soak *soak, struct place *place)
{
    const struct soak_spec *spec = &soak->specs[soak_draw(&soak->random) % soak->spec_count];
    const uint32_t tokens = spec->answer_counts[spec->submits - 1];
    *place = (struct place){.cancel_at = NEVER, .fork_at = NEVER};
    soak_start(&soak->source, soak->session, spec, &place->one);
    /* One that is cancelled before its first token may still wait. */
    if (soak_draw_one_of(&soak->random, 8)) place->cancel_at = soak_draw_between(&soak->random, 0, tokens);
    if (soak_draw_one_of(&soak->random, 4) && tokens) {
        place->forks_alike = !spec->fork || soak_draw_one_of(&soak->random, 4);
        place->fork_at = place->forks_alike ? soak_draw_between(&soak->random, 1, tokens) : spec->fork_at;
    }
    if (place->cancel_at == NEVER && soak_draw_one_of(&soak->random, 8)) {
        place->is_unwanted = true;
        soak_cancel_later(soak->canceller, place->one.sequence, random_delay(soak, spec));
    }
    soak->started++;
    soak->live++;
}

static void fork_if_due(struct soak *soak, struct place *place)
{
    struct soak_sequence *one = &place->one;
    const bool is_done = soak_is_done(one);
    if (one->count < place->fork_at || (is_done && (place->is_unwanted || one->submitted == one->spec->submits)))
        return;
    const bool is_there = one->count == place->fork_at || place->forks_alike;
    place->fork_at = NEVER;
    struct place *fork = free_place(soak);
    if (!is_there || !fork) return;
    *fork = (struct place){.cancel_at = NEVER, .fork_at = NEVER};
    if (!soak_fork(&soak->source, one, !place->forks_alike, &fork->one)) return;
    soak->counts.forks++;
    soak->counts.other_forks += !place->forks_alike;
    soak->started++;
    soak->live++;
}

static void save(struct soak *soak, struct place *place)
{
    snprintf(place->path, sizeof place->path, "%s/%" PRIu64, soak->folder, soak->saves++);
    soak_save(&place->one, place->path);
}

/* Brings a saved sequence back and submits more. */
static void restore(struct soak *soak, struct place *place)
{
    if (!soak_restore(soak->session, &place->one, place->path)) return;
    unlink(place->path);
    *place->path = 0;
    soak->counts.saved++;
    soak_submit(&place->one);
}

static void cancel(struct soak *soak, struct place *place)
{
    struct soak_sequence *one = &place->one;
    eng_sequence_cancel(one->sequence);
    soak->counts.cancelled++;
    soak_poll(one);
    if (check(soak, one, false) && eng_sequence_end(one->sequence) != ENG_END_CANCELLED)
        report_difference(soak, one, "cancelled, but not its end");
    finish(soak, place);
}

/* A submit is done. */
static void go_on(struct soak *soak, struct place *place)
{
    struct soak_sequence *one = &place->one;
    if (place->is_unwanted) {
        place->is_unwanted = false;
        if (soak_cancel_withdraw(soak->canceller, one->sequence)) {
            const bool in_time = !one->is_stopped && eng_sequence_end(one->sequence) == ENG_END_CANCELLED;
            soak->counts.cancelled_in_time += in_time;
            check(soak, one, !in_time);
            finish(soak, place); /* a kept one may have lost its pages */
            return;
        }
    }
    if (!check(soak, one, true) || one->submitted == one->spec->submits)
        finish(soak, place);
    else if (soak_draw_one_of(&soak->random, 2))
        save(soak, place);
    else
        soak_submit(one);
}

/* After a step. */
static void advance(struct soak *soak, struct place *place)
{
    struct soak_sequence *one = &place->one;
    if (*place->path) {
        restore(soak, place);
        return;
    }
    soak_poll(one);
    if (!check(soak, one, false)) {
        finish(soak, place);
        return;
    }
    fork_if_due(soak, place);
    if (soak_is_done(one))
        go_on(soak, place);
    else if (one->count >= place->cancel_at)
        cancel(soak, place);
}

/* ---- all together ---- */

/* Runs `count` sequences to their end. */
static void run_together(struct soak *soak, uint64_t count)
{
    soak->started = 0;
    while (soak->started < count || soak->live) {
        struct eng_session_facts now;
        while (soak->started < count && soak->live < (uint64_t)soak->idle.slots * PER_SLOT)
            start(soak, free_place(soak));
        CHECK(eng_step(soak->session, NULL, &error));
        eng_session_facts_init(&now);
        CHECK(eng_session_get_facts(soak->session, &now, &error));
        soak->counts.steps++;
        soak->counts.full_steps += now.free_slots == 0;
        for (uint32_t i = 0; i < soak->place_count; i++)
            if (soak->places[i].one.spec) advance(soak, &soak->places[i]);
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
    const uint32_t count = soak->source.facts.max_context - 1;
    int32_t *prompt = calloc(count, sizeof *prompt);
    struct eng_sequence_options options;
    struct eng_sequence **all = calloc(soak->idle.slots, sizeof(struct eng_sequence *));
    uint32_t unfinished;
    if (!prompt || !all) bench_end(BENCH_MACHINE, "out of memory");
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

static void make_specs(struct soak *soak)
{
    struct eng_session_options alone;
    const double begun = bench_seconds();
    eng_session_options_init(&alone);
    alone.threads = soak->options.threads;
    alone.no_prefix_cache = 1;
    CHECK(eng_session_create(soak->source.engine, &alone, &soak->source.session, &error));
    soak_prepare(&soak->source, &soak->random);
    soak_make_specs(&soak->source, &soak->random, soak->specs, soak->spec_count);
    eng_session_destroy(&soak->source.session);
    printf("%" PRIu32 " specifications alone: %.1f s\n", soak->spec_count, bench_seconds() - begun);
}

static void open_session(struct soak *soak)
{
    CHECK(eng_session_create(soak->source.engine, &soak->options, &soak->session, &error));
    eng_session_facts_init(&soak->idle);
    CHECK(eng_session_get_facts(soak->session, &soak->idle, &error));
    soak->place_count = soak->idle.slots * (PER_SLOT + FORKS_PER_SLOT);
    soak->places = calloc(soak->place_count, sizeof *soak->places);
    if (!soak->places) bench_end(BENCH_MACHINE, "out of memory");
    soak->canceller = soak_canceller_create(soak->place_count);
    strcpy(soak->folder, "/tmp/soak.XXXXXX");
    if (!mkdtemp(soak->folder)) bench_end(BENCH_MACHINE, "/tmp: cannot make a folder");
    use_whole_pool(soak);
}

static void close_session(struct soak *soak)
{
    soak_canceller_destroy(&soak->canceller);
    eng_session_destroy(&soak->session);
    rmdir(soak->folder);
    free(soak->places);
}

static void print_counts(const struct soak *soak, uint64_t count, uint64_t first, uint64_t last)
{
    const struct counts *counts = &soak->counts;
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(soak->session, &facts, &error));
    printf("%" PRIu64 " sequences, %" PRIu32 " slots, %" PRIu32 " ranks: %" PRIu64
           " tokens in %.1f s, %.1f %% of %" PRIu64 " steps with all slots busy, %" PRIu64 " cancelled, %" PRIu64
           " differ from alone, resident %.2f -> %.2f MB (%+.2f %%)\n",
           count, soak->idle.slots, soak->source.facts.ranks, counts->tokens, bench_seconds() - soak->begun,
           100.0 * (double)counts->full_steps / (double)counts->steps, counts->steps, counts->cancelled,
           counts->differing, (double)first * 1e-6, (double)last * 1e-6, 100 * ((double)last / (double)first - 1));
    printf("%" PRIu64 " tokens of prompts from the cache, %" PRIu64 " times set aside\n", facts.cached_tokens,
           facts.set_aside);
    if (facts.speculate)
        printf("%" PRIu64 " tokens drafted, %" PRIu64 " of them accepted\n", facts.drafted_tokens,
               facts.accepted_tokens);
    printf("%" PRIu64 " cancelled by another thread, %" PRIu64 " forks, %" PRIu64
           " of them with other options, %" PRIu64 " saved and restored, %" PRIu64 " ended by a stop string\n",
           counts->cancelled_in_time, counts->forks, counts->other_forks, counts->saved, counts->stopped);
}

static enum bench_exit soak_all(struct soak *soak, uint64_t count)
{
    bool is_whole = true;
    uint64_t first = 0, last = 0;
    make_specs(soak);
    open_session(soak);
    soak->begun = bench_seconds();
    for (uint64_t tenth = 0; tenth < TENTHS; tenth++) {
        run_together(soak, count * (tenth + 1) / TENTHS - count * tenth / TENTHS);
        is_whole = has_all_back(soak) && is_whole;
        last = resident_bytes();
        if (tenth == 0) first = last;
        printf("%" PRIu64 " sequences: %.1f s, resident %.2f MB\n", count * (tenth + 1) / TENTHS,
               bench_seconds() - soak->begun, (double)last * 1e-6);
        fflush(stdout);
    }
    print_counts(soak, count, first, last);
    close_session(soak);
    const double drift = (double)last / (double)first - 1;
    const bool has_grown = soak->most_drift > 0 && drift > soak->most_drift;
    if (has_grown)
        fprintf(stderr, "soak: the resident set grew by %.2f %%, expected at most %.2f\n", 100 * drift,
                100 * soak->most_drift);
    return soak->counts.differing || !is_whole || has_grown ? BENCH_DIFFERS : 0;
}

int main(int argc, char **argv)
{
    struct soak soak = {.random = 1, .spec_count = 256, .most_drift = 0.01};
    if (argc < 3)
        bench_end(BENCH_USAGE,
                  "usage: soak_bench ENGINE COUNT [--seed N] [--threads N] [--specs N] [--most-drift PERCENT] "
                  "[--kv-tokens N] [--kept-bytes N] [--prompt-step N] [--step-ms N] [--speculate N] "
                  "[--draft ENGINE]");
    eng_session_options_init(&soak.options);
    const char *draft = NULL;
    const uint64_t count = (uint64_t)bench_number("COUNT", argv[2], TENTHS, 1e12);
    for (int i = 3; i < argc; i += 2) {
        const char *flag = argv[i], *value = argv[i + 1];
        if (!strcmp(flag, "--seed"))
            soak.random = (uint64_t)bench_number(flag, value, 0, 1e15);
        else if (!strcmp(flag, "--threads"))
            soak.options.threads = (uint32_t)bench_number(flag, value, 0, 1024);
        else if (!strcmp(flag, "--specs"))
            soak.spec_count = (uint32_t)bench_number(flag, value, 1, MOST_SPECS);
        else if (!strcmp(flag, "--kv-tokens"))
            soak.options.kv_tokens = (uint64_t)bench_number(flag, value, 0, 1e12);
        else if (!strcmp(flag, "--kept-bytes"))
            soak.options.kept_bytes = (uint64_t)bench_number(flag, value, 0, 1e12);
        else if (!strcmp(flag, "--prompt-step"))
            soak.options.prompt_step = (uint32_t)bench_number(flag, value, 0, INT32_MAX);
        else if (!strcmp(flag, "--step-ms"))
            soak.options.step_ms = (uint32_t)bench_number(flag, value, 0, INT32_MAX);
        else if (!strcmp(flag, "--speculate"))
            soak.options.speculate = (uint32_t)bench_number(flag, value, 0, 1024);
        else if (!strcmp(flag, "--draft") && value)
            draft = value;
        else if (!strcmp(flag, "--most-drift"))
            soak.most_drift = bench_number(flag, value, 0, 1e6) / 100;
        else
            bench_end(BENCH_USAGE, "%s: unknown option", flag);
    }
    soak.specs = calloc(soak.spec_count, sizeof *soak.specs);
    if (!soak.specs) bench_end(BENCH_MACHINE, "out of memory");
    eng_engine_facts_init(&soak.source.facts);
    CHECK(eng_open(argv[1], NULL, &soak.source.engine, &error));
    CHECK(eng_engine_get_facts(soak.source.engine, &soak.source.facts, &error));
    if (draft) CHECK(eng_open(draft, NULL, &soak.draft, &error));
    soak.options.draft = soak.draft;
    const int code = (int)soak_all(&soak, count);
    soak_release(&soak.source);
    eng_close(&soak.draft);
    eng_close(&soak.source.engine);
    free(soak.specs);
    return code;
}
