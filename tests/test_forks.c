/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test_forks.h"

#include <stdlib.h>

#include "formats/base/test_support.h"

enum { ANSWER = 40, SECOND = 21, LONGEST = 90, PROMPT = 89, MOMENTS = 5 };

static void some_tokens(int32_t vocab_size, uint32_t seed, int32_t *tokens, size_t count)
{
    fables_tokens(seed, tokens, count);
    for (size_t i = 0; i < count; i++) tokens[i] %= vocab_size;
}

static struct eng_sequence *begin(struct eng_session *session, int32_t vocab_size, bool sampled, size_t count)
{
    /* Biases are of tokens that a small vocabulary does not have. */
    const struct eng_sampling sampling = fables_sampling(sampled, vocab_size < 1000 ? 77 : 78);
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    int32_t prompt[LONGEST];
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_KEEP | ENG_SEQUENCE_IGNORE_EOS;
    some_tokens(vocab_size, 5 + (uint32_t)count, prompt, count);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, count, &error));
    return sequence;
}

static void second_turn(struct eng_session *session, int32_t vocab_size, struct eng_sequence *sequence, int32_t *answer)
{
    int32_t prompt[SECOND];
    some_tokens(vocab_size, 6, prompt, SECOND);
    CHECK(eng_sequence_submit(sequence, prompt, SECOND, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), ANSWER);
}

/* A fork of a sequence that is done goes on in another conversation, and each keeps its own. */
static void check_second_turn(struct eng_session *session, int32_t vocab_size, struct eng_sequence *sequence)
{
    int32_t own[ANSWER], forked[ANSWER], late[ANSWER];
    struct eng_sequence *fork = NULL, *later = NULL;
    CHECK(eng_sequence_fork(sequence, NULL, &fork, &error));
    assert_int_equal(eng_sequence_state(fork), ENG_STATE_DONE);
    assert_int_equal(eng_sequence_end(fork), ENG_END_LENGTH);
    CHECK(eng_sequence_fork(fork, NULL, &later, &error));
    second_turn(session, vocab_size, sequence, own);
    second_turn(session, vocab_size, fork, forked);
    assert_memory_equal(own, forked, sizeof own);
    eng_sequence_destroy(&sequence);
    eng_sequence_destroy(&fork);
    second_turn(session, vocab_size, later, late);
    assert_memory_equal(own, late, sizeof own);
    eng_sequence_destroy(&later);
}

static void check_moments(struct eng_session *session, int32_t vocab_size, bool sampled, size_t count)
{
    static const uint32_t moments[MOMENTS] = {0, 1, 7, 8,
                                              30}; /* tokens of the answer; MOMENTS - 1 at most run beside it */
    struct eng_sequence *sequence = begin(session, vocab_size, sampled, count), *forks[MOMENTS] = {NULL};
    int32_t answer[ANSWER], found[ANSWER];
    uint32_t polled = 0, unfinished, begins[MOMENTS];
    for (int i = 0; i < MOMENTS; i++) {
        while (polled < moments[i]) {
            CHECK(eng_step(session, &unfinished, &error));
            polled += (uint32_t)eng_sequence_poll(sequence, answer + polled, ANSWER - polled);
        }
        CHECK(eng_sequence_fork(sequence, NULL, &forks[i], &error));
        assert_int_equal(eng_sequence_state(forks[i]), eng_sequence_state(sequence));
        assert_int_equal(eng_sequence_poll(forks[i], found, ANSWER), 0);
        /* The fork waits for a step that is queued; its token is the sequence's. */
        polled += (uint32_t)eng_sequence_poll(sequence, answer + polled, ANSWER - polled);
        begins[i] = polled;
    }
    fables_finish(session);
    polled += (uint32_t)eng_sequence_poll(sequence, answer + polled, ANSWER - polled);
    assert_int_equal(polled, ANSWER);
    for (int i = 0; i < MOMENTS; i++) {
        assert_int_equal(eng_sequence_poll(forks[i], found, ANSWER), ANSWER - begins[i]);
        assert_memory_equal(found, answer + begins[i], (ANSWER - begins[i]) * sizeof *found);
        eng_sequence_destroy(&forks[i]);
    }
    check_second_turn(session, vocab_size, sequence);
}

/* In the middle of a prompt of several chunks, and before one that waits for a slot; the sequence is destroyed then. */
static void check_prompts(struct eng_session *session, int32_t vocab_size)
{
    struct eng_sequence *sequence, *fork = NULL, *waiting[FABLES_BATCH];
    int32_t expected[ANSWER], found[ANSWER];
    sequence = begin(session, vocab_size, true, PROMPT);
    CHECK(eng_step(session, NULL, &error));
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_PREFILL);
    CHECK(eng_sequence_fork(sequence, NULL, &fork, &error));
    eng_sequence_destroy(&sequence);
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(fork, found, ANSWER), ANSWER);
    eng_sequence_destroy(&fork);
    sequence = begin(session, vocab_size, true, PROMPT);
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, expected, ANSWER), ANSWER);
    eng_sequence_destroy(&sequence);
    assert_memory_equal(found, expected, sizeof found);

    for (int i = 0; i < FABLES_BATCH; i++) waiting[i] = begin(session, vocab_size, false, 9);
    sequence = begin(session, vocab_size, true, PROMPT);
    CHECK(eng_step(session, NULL, &error));
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_WAITING);
    CHECK(eng_sequence_fork(sequence, NULL, &fork, &error));
    eng_sequence_destroy(&sequence);
    /* No slot is free, and another one waits. */
    CHECK(eng_sequence_fork(waiting[0], NULL, &sequence, &error));
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_WAITING);
    eng_sequence_destroy(&waiting[1]);
    eng_sequence_destroy(&waiting[2]);
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(fork, found, ANSWER), ANSWER);
    assert_memory_equal(found, expected, sizeof found);
    const size_t rest = eng_sequence_poll(sequence, found, ANSWER);
    assert_in_range(rest, ANSWER - 2, ANSWER);
    assert_int_equal(eng_sequence_poll(waiting[0], expected, ANSWER), ANSWER);
    assert_memory_equal(found, expected + ANSWER - rest, rest * sizeof *found);
    eng_sequence_destroy(&fork);
    eng_sequence_destroy(&sequence);
    for (int i = 0; i < FABLES_BATCH; i++) eng_sequence_destroy(&waiting[i]);
}

void forks_check(struct eng_session *session, int32_t vocab_size)
{
    static const size_t counts[] = {5, 16, 33, LONGEST};
    struct eng_session_facts facts;
    const size_t step = test_sanitized() ? 2 : 1;
    for (int sampled = 0; sampled < 2; sampled++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i += step)
            check_moments(session, vocab_size, sampled, counts[i]);
    check_prompts(session, vocab_size);
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_int_equal(facts.free_pages, facts.pages);
    assert_int_equal(facts.free_slots, facts.slots);
}
