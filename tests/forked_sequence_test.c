/* SPDX-License-Identifier: Apache-2.0 */
/* Forks: whatever two sequences share, each gets the tokens that it gets by itself. */
#include "tests/test_forks.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { VOCAB = 1536, PAGE = 16, LONGEST = 256 };

static struct eng_session *device_session(void)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    return fables_session_on(&test_backend, fables, &options);
}

static struct eng_session_facts facts_of(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts;
}

TEST(a_fork_goes_on_as_its_sequence)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    for (uint32_t caches = 0; caches < 2; caches++) {
        options.no_prefix_cache = !caches;
        struct eng_session *session = fables_session(fables, &options);
        forks_check(session, VOCAB);
        eng_session_destroy(&session);
    }
}

TEST(steps_that_are_queued_ahead_are_waited_for)
{
    for (int pace = 0; pace < 3; pace++) {
        test_backend_settings = (struct test_backend_settings){.pace = pace};
        struct eng_session *session = device_session();
        forks_check(session, VOCAB);
        assert_true(test_backend_settings.submits_ahead > 100);
        eng_session_destroy(&session);
        assert_int_equal(test_backend_settings.alive, 0);
    }
}

TEST(all_ranks_copy)
{
    char *folder = test_folder(), path[300];
    struct eng_engine *engine = NULL;
    struct status status = {0};
    snprintf(path, sizeof path, "%s/two.eng", folder);
    if (!fables_build_model("tests/models/fables", path, 2, &status)) fail_msg("%s", status.message);
    CHECK(eng_open(path, NULL, &engine, &error));
    struct eng_session *session = fables_session(engine, NULL);
    forks_check(session, VOCAB);
    eng_session_destroy(&session);
    eng_close(&engine);
    test_folder_remove(folder);
}

/* Options without penalties of the answer, which would count the tokens before the fork. */
static struct eng_sampling plain_sampling(uint64_t seed)
{
    struct eng_sampling sampling;
    eng_sampling_init(&sampling);
    sampling.temperature = 0.9f;
    sampling.repetition_penalty = 1.2f;
    sampling.seed = seed;
    return sampling;
}

static struct eng_sequence *begin(struct eng_session *session, const struct eng_sampling *sampling,
                                  const int32_t *tokens, uint32_t count, uint32_t wanted)
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    eng_sequence_options_init(&options);
    options.sampling = sampling;
    options.max_new_tokens = wanted;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, tokens, count, &error));
    return sequence;
}

/* A text with forks at random, in a pool that holds a part of them: the tokens of a branch are those of a sequence with the branch's
 * tokens as its prompt. */
struct branch {
    struct eng_sequence *sequence;
    int32_t tokens[LONGEST]; /* prompt and answer */
    uint32_t given, count;   /* tokens that it began with, and all */
    uint64_t seed;           /* 0: greedy */
};

static void run_alone(struct eng_session *plain, const struct branch *branch)
{
    int32_t answer[LONGEST];
    const struct eng_sampling sampling = plain_sampling(branch->seed);
    const uint32_t wanted = branch->count - branch->given;
    if (!wanted) return;
    struct eng_sequence *alone = begin(plain, branch->seed ? &sampling : NULL, branch->tokens, branch->given, wanted);
    fables_finish(plain);
    assert_int_equal(eng_sequence_poll(alone, answer, LONGEST), wanted);
    assert_memory_equal(answer, branch->tokens + branch->given, wanted * sizeof *answer);
    eng_sequence_destroy(&alone);
}

static void fork_branch(const struct branch *from, struct branch *to, uint64_t seed, uint32_t wanted)
{
    struct eng_sampling sampling = plain_sampling(seed);
    struct eng_sequence_options options;
    if (!seed) eng_sampling_init(&sampling);
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = wanted;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    *to = *from;
    to->seed = seed;
    to->sequence = NULL;
    CHECK(eng_sequence_fork(from->sequence, &options, &to->sequence, &error));
    to->given = to->count;
}

static void poll_branch(struct branch *branch)
{
    branch->count +=
        (uint32_t)eng_sequence_poll(branch->sequence, branch->tokens + branch->count, LONGEST - branch->count);
}

TEST(branches_get_what_they_get_alone)
{
    enum { ROUNDS = 6, BRANCHES = 14, WANTED = 60 };
    const int rounds = test_sanitized() ? 2 : ROUNDS;
    static struct branch branches[BRANCHES];
    struct eng_session_options options;
    uint64_t random = 21;
    uint64_t set_aside = 0;
    eng_session_options_init(&options);
    struct eng_session *plain = fables_session(fables, NULL);
    for (int round = 0; round < rounds; round++) {
        options.kv_tokens = round % 2 ? FABLES_CONTEXT : 0;
        options.no_prefix_cache = round % 3 == 0;
        struct eng_session *session = fables_session(fables, &options);
        uint32_t count = 1, unfinished = 1;
        branches[0] = (struct branch){.given = 20 + (uint32_t)round * 7, .seed = 900};
        fables_tokens((uint32_t)round, branches[0].tokens, branches[0].given);
        branches[0].count = branches[0].given;
        const struct eng_sampling sampling = plain_sampling(900);
        branches[0].sequence = begin(session, &sampling, branches[0].tokens, branches[0].given, WANTED);
        while (unfinished) {
            CHECK(eng_step(session, &unfinished, &error));
            for (uint32_t i = 0; i < count; i++) poll_branch(&branches[i]);
            const struct branch *from = &branches[test_random(&random) % count];
            if (count == BRANCHES || test_random(&random) % 3 || eng_sequence_state(from->sequence) == ENG_STATE_DONE)
                continue;
            fork_branch(from, &branches[count], test_random(&random) % 4 ? 901 + count : 0, WANTED);
            count++;
        }
        assert_in_range(count, 5, BRANCHES);
        for (uint32_t i = 0; i < count; i++) {
            poll_branch(&branches[i]);
            assert_int_equal(eng_sequence_end(branches[i].sequence), ENG_END_LENGTH);
            eng_sequence_destroy(&branches[i].sequence);
            run_alone(plain, &branches[i]);
        }
        assert_int_equal(facts_of(session).free_pages, facts_of(session).pages);
        set_aside += facts_of(session).set_aside;
        eng_session_destroy(&session);
    }
    assert_in_range(set_aside, 1, 1000);
    eng_session_destroy(&plain);
}

TEST(full_pages_are_shared)
{
    int32_t prompt[200];
    struct eng_session_options options;
    struct eng_sequence *fork = NULL;
    eng_session_options_init(&options);
    options.no_prefix_cache = 1;
    struct eng_session *session = fables_session(fables, &options);
    fables_tokens(3, prompt, 200);
    struct eng_sequence *sequence = begin(session, NULL, prompt, 200, 20);
    while (eng_sequence_state(sequence) != ENG_STATE_DECODE) CHECK(eng_step(session, NULL, &error));
    const uint32_t before = facts_of(session).free_pages;
    CHECK(eng_sequence_fork(sequence, NULL, &fork, &error));
    assert_int_equal(before - facts_of(session).free_pages, 1); /* the last one */
    eng_sequence_destroy(&sequence);
    assert_in_range(facts_of(session).free_pages - before, 0, 3); /* what it alone had */
    fables_finish(session);
    eng_sequence_destroy(&fork);
    assert_int_equal(facts_of(session).free_pages, facts_of(session).pages);
    eng_session_destroy(&session);
}

TEST(a_fork_has_its_place_in_the_grammar)
{
    static const char choices[] = "[\"abcdefghij\", \"abcdexyz\"]", other[] = "[\"zzz\"]";
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_grammar *grammar = NULL, *wrong = NULL;
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL, *fork = NULL;
    int32_t prompt[5], answers[2][32];
    CHECK(eng_grammar_create(fables, ENG_GRAMMAR_CHOICES, choices, strlen(choices), &grammar, &error));
    CHECK(eng_grammar_create(fables, ENG_GRAMMAR_CHOICES, other, strlen(other), &wrong, &error));
    fables_tokens(4, prompt, 5);
    eng_sequence_options_init(&options);
    options.grammar = grammar;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, 5, &error));
    for (int i = 0; i < 2; i++) CHECK(eng_step(session, NULL, &error));
    const size_t polled = eng_sequence_poll(sequence, answers[0], 32);
    assert_in_range(polled, 1, 8);
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_DECODE);
    options.grammar = wrong;
    assert_int_equal(eng_sequence_fork(sequence, &options, &fork, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "does not allow token"));
    CHECK(eng_sequence_fork(sequence, NULL, &fork, &error));
    fables_finish(session);
    const size_t rest = eng_sequence_poll(sequence, answers[0], 32);
    assert_int_equal(eng_sequence_poll(fork, answers[1], 32), rest);
    assert_memory_equal(answers[0], answers[1], rest * sizeof **answers);
    assert_int_equal(eng_sequence_end(fork), ENG_END_EOS);
    eng_grammar_destroy(&grammar);
    eng_grammar_destroy(&wrong);
    eng_session_destroy(&session);
}

TEST(allowed_tokens_are_those_of_the_sequence)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL, *forks[2] = {NULL};
    uint32_t allowed[VOCAB / 32] = {[20] = 1u << 5};
    int32_t prompt[5], token;
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_ALLOWED | ENG_SEQUENCE_IGNORE_EOS;
    options.max_new_tokens = 6;
    fables_tokens(4, prompt, 5);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, 5, &error));
    CHECK(eng_step(session, NULL, &error));
    CHECK(eng_sequence_set_allowed(sequence, allowed, VOCAB / 32, &error));
    CHECK(eng_sequence_fork(sequence, NULL, &forks[0], &error));
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    CHECK(eng_sequence_fork(sequence, &options, &forks[1], &error));
    CHECK(eng_step(session, NULL, &error));
    assert_int_equal(eng_sequence_poll(forks[0], &token, 1), 1);
    assert_int_equal(token, 20 * 32 + 5);
    assert_int_equal(eng_sequence_poll(forks[1], &token, 1), 1);
    assert_int_not_equal(token, 20 * 32 + 5);
    eng_session_destroy(&session);
}

static void expect(enum eng_status found, enum eng_status expected, const char *text)
{
    assert_int_equal(found, expected);
    if (!strstr(error.message, text)) fail_msg("%s", error.message);
}

TEST(refusals_name_the_reason)
{
    struct eng_session_options session_options;
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL, *kept = NULL, *fork = NULL;
    int32_t prompt[40], answer[32];
    fables_tokens(4, prompt, 40);
    eng_session_options_init(&session_options);
    session_options.max_sequences = FABLES_BATCH + 1;
    session_options.kv_tokens = 256;
    struct eng_session *session = fables_session(fables, &session_options);
    expect(eng_sequence_fork(NULL, NULL, &fork, &error), ENG_USAGE, "'sequence' is NULL");
    eng_sequence_options_init(&options);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    expect(eng_sequence_fork(sequence, NULL, NULL, &error), ENG_USAGE, "'fork' is NULL");
    expect(eng_sequence_fork(sequence, NULL, &fork, &error), ENG_USAGE, "no tokens");
    eng_sequence_destroy(&sequence);
    sequence = begin(session, NULL, prompt, 40, 8);
    for (int i = 0; i < 4; i++) CHECK(eng_step(session, NULL, &error));
    options.max_new_tokens = 1;
    expect(eng_sequence_fork(sequence, &options, &fork, &error), ENG_USAGE, "max_new_tokens is 1");
    options.max_new_tokens = 0;
    options.context_tokens = 30;
    expect(eng_sequence_fork(sequence, &options, &fork, &error), ENG_TOO_LONG, "its context is 30");
    options.context_tokens = FABLES_CONTEXT;
    expect(eng_sequence_fork(sequence, &options, &fork, &error), ENG_TOO_LONG, "the whole pool has");
    options.struct_size = 3;
    expect(eng_sequence_fork(sequence, &options, &fork, &error), ENG_USAGE, "struct_size is 3");
    fables_finish(session);
    expect(eng_sequence_fork(sequence, NULL, &fork, &error), ENG_USAGE, "has ended");
    eng_sequence_destroy(&sequence);
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_KEEP | ENG_SEQUENCE_IGNORE_EOS;
    options.max_new_tokens = 8;
    options.context_tokens = 64;
    CHECK(eng_sequence_create(session, &options, &kept, &error));
    CHECK(eng_sequence_submit(kept, prompt, 40, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(kept, answer, 32), 8);
    for (int i = 1; i < FABLES_BATCH; i++) CHECK(eng_sequence_fork(kept, NULL, &fork, &error));
    fork = NULL;
    expect(eng_sequence_fork(kept, NULL, &fork, &error), ENG_FULL, "all slots are in use");
    CHECK(eng_sequence_create(session, NULL, &sequence, &error));
    expect(eng_sequence_fork(kept, NULL, &fork, &error), ENG_FULL, "max_sequences");
    assert_null(fork);
    const uint32_t free_pages = facts_of(session).free_pages;
    eng_session_destroy(&session);
    /* 47 tokens are in pages: two shared ones, a copy for each, and a page that the sequence took ahead. */
    assert_in_range(free_pages, 256 / PAGE - 3 - FABLES_BATCH, 256 / PAGE - 2 - FABLES_BATCH);
    /* No page is left for the copy. */
    session_options.kv_tokens = 48;
    session = fables_session(fables, &session_options);
    options.context_tokens = 48;
    kept = NULL;
    CHECK(eng_sequence_create(session, &options, &kept, &error));
    CHECK(eng_sequence_submit(kept, prompt, 40, &error));
    fables_finish(session);
    expect(eng_sequence_fork(kept, NULL, &fork, &error), ENG_FULL, "too few KV pages are free: 0");
    assert_int_equal(facts_of(session).free_slots, FABLES_BATCH - 1);
    eng_sequence_destroy(&kept);
    assert_int_equal(facts_of(session).free_pages, facts_of(session).pages);
    eng_session_destroy(&session);
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
