/* SPDX-License-Identifier: Apache-2.0 */
/* Continuous batching through the public API: a sequence gets the same tokens with any others as by itself. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <pthread.h>

enum { SEQUENCES = 8, ANSWER = 20, LONGEST_PROMPT = 200 };

/* Lengths below, at and above the prefill chunks of 8 and 64. */
static const size_t prompt_lengths[SEQUENCES] = {1, 7, 8, 9, 64, 65, 130, LONGEST_PROMPT};

static void make_options(size_t index, struct eng_sampling *sampling, struct eng_sequence_options *options)
{
    *sampling = fables_sampling(index % 2, 1000 + index);
    eng_sequence_options_init(options);
    options->sampling = sampling;
    options->max_new_tokens = ANSWER;
    options->flags = ENG_SEQUENCE_IGNORE_EOS;
}

static struct eng_sequence *start(struct eng_session *session, size_t index)
{
    struct eng_sampling sampling;
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t prompt[LONGEST_PROMPT];
    make_options(index, &sampling, &options);
    fables_tokens((uint32_t)index, prompt, prompt_lengths[index]);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, prompt_lengths[index], &error));
    return sequence;
}

/* The answer of each sequence that has the session to itself. */
static void run_alone(struct eng_engine *engine, const struct eng_session_options *options,
                      int32_t answers[SEQUENCES][ANSWER])
{
    struct eng_session *session = fables_session(engine, options);
    for (size_t i = 0; i < SEQUENCES; i++) {
        struct eng_sequence *sequence = start(session, i);
        fables_finish(session);
        assert_int_equal(eng_sequence_poll(sequence, answers[i], ANSWER), ANSWER);
        assert_int_equal(eng_sequence_state(sequence), ENG_STATE_DONE);
        assert_int_equal(eng_sequence_end(sequence), ENG_END_LENGTH);
        eng_sequence_destroy(&sequence);
    }
    eng_session_destroy(&session);
}

/* Sequence i joins at step 3 * i; tokens are polled as they arrive. */
static void run_together(struct eng_engine *engine, const struct eng_session_options *options,
                         int32_t answers[SEQUENCES][ANSWER])
{
    enum { STEPS_BETWEEN = 3 };
    struct eng_session *session = fables_session(engine, options);
    struct eng_sequence *sequences[SEQUENCES] = {NULL};
    size_t counts[SEQUENCES] = {0}, joined = 0;
    uint32_t unfinished = 1;
    for (size_t step = 0; unfinished || joined < SEQUENCES; step++) {
        if (joined < SEQUENCES && step == joined * STEPS_BETWEEN) {
            sequences[joined] = start(session, joined);
            joined++;
        }
        CHECK(eng_step(session, &unfinished, &error));
        for (size_t i = 0; i < joined; i++)
            counts[i] += eng_sequence_poll(sequences[i], answers[i] + counts[i], ANSWER - counts[i]);
    }
    for (size_t i = 0; i < SEQUENCES; i++) {
        assert_int_equal(counts[i], ANSWER);
        eng_sequence_destroy(&sequences[i]);
    }
    eng_session_destroy(&session);
}

static void assert_same(int32_t a[SEQUENCES][ANSWER], int32_t b[SEQUENCES][ANSWER])
{
    for (size_t i = 0; i < SEQUENCES; i++) assert_memory_equal(a[i], b[i], sizeof a[i]);
}

TEST(test_together_as_alone)
{
    int32_t alone[SEQUENCES][ANSWER], together[SEQUENCES][ANSWER];
    run_alone(fables, NULL, alone);
    run_together(fables, NULL, together);
    assert_same(alone, together);
}

TEST(test_any_number_of_threads)
{
    static const uint32_t threads[] = {1, 2, 5};
    int32_t answers[3][SEQUENCES][ANSWER];
    for (size_t i = 0; i < 3; i++) {
        struct eng_session_options options;
        eng_session_options_init(&options);
        options.threads = threads[i];
        run_together(fables, &options, answers[i]);
    }
    assert_same(answers[0], answers[1]);
    assert_same(answers[0], answers[2]);
}

TEST(test_every_instruction_set)
{
    static const char *const names[] = {"portable", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct eng_session_options options;
        struct eng_session *session;
        eng_session_options_init(&options);
        options.instruction_set = names[i];
        enum eng_status status = eng_session_create(fables, &options, &session, NULL);
        if (status == ENG_MACHINE) continue; /* this processor does not have it */
        assert_int_equal(status, ENG_OK);
        eng_session_destroy(&session);
        int32_t alone[SEQUENCES][ANSWER], together[SEQUENCES][ANSWER];
        run_alone(fables, &options, alone);
        run_together(fables, &options, together);
        assert_same(alone, together);
    }
}

TEST(test_small_pool_makes_sequences_wait)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.kv_tokens = LONGEST_PROMPT + ANSWER;
    int32_t alone[SEQUENCES][ANSWER], together[SEQUENCES][ANSWER];
    run_alone(fables, NULL, alone);
    run_together(fables, &options, together);
    assert_same(alone, together);
}

TEST(test_waits_in_order_then_runs)
{
    struct eng_session_options options;
    struct eng_session_facts facts;
    eng_session_options_init(&options);
    eng_session_facts_init(&facts);
    options.kv_tokens = LONGEST_PROMPT + ANSWER;
    struct eng_session *session = fables_session(fables, &options);
    struct eng_sequence *longest = start(session, 7), *small = start(session, 6);
    uint32_t unfinished;
    do CHECK(eng_step(session, &unfinished, &error));
    while (eng_sequence_state(longest) != ENG_STATE_DECODE);
    assert_int_equal(unfinished, 2);
    assert_int_equal(eng_sequence_state(small), ENG_STATE_WAITING);
    /* A raw slot finds too few pages as well; the call fails without effect. */
    uint32_t slot;
    int32_t prompt[LONGEST_PROMPT], next;
    fables_tokens(1, prompt, LONGEST_PROMPT);
    CHECK(eng_slot_acquire(session, &slot, &error));
    assert_int_equal(eng_prefill(session, slot, prompt, LONGEST_PROMPT, &next, NULL, &error), ENG_FULL);
    assert_non_null(strstr(error.message, "pages"));
    CHECK(eng_slot_release(session, slot, &error));
    eng_sequence_cancel(longest);
    assert_int_equal(eng_sequence_end(longest), ENG_END_CANCELLED);
    CHECK(eng_step(session, &unfinished, &error));
    assert_int_equal(eng_sequence_state(small), ENG_STATE_PREFILL);
    fables_finish(session);
    eng_sequence_destroy(&longest);
    eng_sequence_destroy(&small);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_int_equal(facts.free_pages, facts.pages);
    assert_int_equal(facts.free_slots, facts.slots);
    eng_session_destroy(&session);
}

TEST(test_leaving_changes_nothing_for_others)
{
    int32_t alone[SEQUENCES][ANSWER], answer[ANSWER];
    run_alone(fables, NULL, alone);
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sequence *sequences[SEQUENCES];
    for (size_t i = 0; i < SEQUENCES; i++) sequences[i] = start(session, i);
    /* Odd ones are cancelled: one while it waits, one in the middle of its prompt, others while they decode. */
    uint32_t unfinished;
    eng_sequence_destroy(&sequences[1]);
    for (int i = 0; i < 15; i++) CHECK(eng_step(session, &unfinished, &error));
    eng_sequence_cancel(sequences[3]);
    eng_sequence_destroy(&sequences[7]);
    for (int i = 0; i < 5; i++) CHECK(eng_step(session, &unfinished, &error));
    eng_sequence_cancel(sequences[5]);
    sequences[1] = start(session, 1); /* and one joins again */
    fables_finish(session);
    for (size_t i = 0; i < SEQUENCES; i++) {
        if (!sequences[i] || i == 3 || i == 5) continue;
        assert_int_equal(eng_sequence_poll(sequences[i], answer, ANSWER), ANSWER);
        assert_memory_equal(answer, alone[i], sizeof answer);
    }
    /* The tokens of a cancelled sequence are correct, too. */
    size_t count = eng_sequence_poll(sequences[3], answer, ANSWER);
    assert_memory_equal(answer, alone[3], count * sizeof *answer);
    eng_session_destroy(&session);
}

/* An engine without mixed plans: NULL ends it. */
static struct eng_engine *open_without_mixed(char path[300])
{
    struct status status = {0};
    struct eng_engine *engine = NULL;
    snprintf(path, 300, "%s.unmixed", fables_path());
    if (!fables_build_without_mixed(path, &status)) fail_msg("%s", status.message);
    CHECK(eng_open(path, NULL, &engine, &error));
    return engine;
}

TEST(test_long_prompt_does_not_starve)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sequence *talker = start(session, 0);
    uint32_t unfinished;
    CHECK(eng_step(session, &unfinished, &error));
    int32_t tokens[ANSWER];
    assert_int_equal(eng_sequence_poll(talker, tokens, ANSWER), 1);
    struct eng_sequence *reader = start(session, 7);
    /* Steps of 64 rows, of which the decoding sequence has one: 200 tokens are 63 + 63 + 63 + 11. */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(eng_sequence_state(reader), i ? ENG_STATE_PREFILL : ENG_STATE_WAITING);
        CHECK(eng_step(session, &unfinished, &error));
        assert_int_equal(eng_sequence_poll(talker, tokens, ANSWER), 1);
    }
    assert_int_equal(eng_sequence_poll(reader, tokens, ANSWER), 1);
    fables_finish(session);
    eng_session_destroy(&session);
}

TEST(test_engines_without_mixed_plans)
{
    char path[300];
    struct eng_engine *engine = open_without_mixed(path);
    struct eng_session *session = fables_session(engine, NULL);
    struct eng_sequence *talker = start(session, 0);
    uint32_t unfinished;
    CHECK(eng_step(session, &unfinished, &error));
    int32_t alone[SEQUENCES][ANSWER], together[SEQUENCES][ANSWER], tokens[ANSWER];
    assert_int_equal(eng_sequence_poll(talker, tokens, ANSWER), 1);
    struct eng_sequence *reader = start(session, 7);
    /* 200 tokens are 64 + 64 + 64 + 8: at every second step the decoding sequence gets a token. */
    for (int i = 0; i < 3; i++) {
        CHECK(eng_step(session, &unfinished, &error));
        CHECK(eng_step(session, &unfinished, &error));
        assert_int_equal(eng_sequence_state(reader), ENG_STATE_PREFILL);
        assert_int_equal(eng_sequence_poll(talker, tokens, ANSWER), 1);
    }
    fables_finish(session);
    eng_session_destroy(&session);
    run_alone(fables, NULL, alone);
    run_together(engine, NULL, together);
    assert_same(alone, together);
    eng_close(&engine);
    unlink(path);
}

/* prompt_step bounds the prompts of a step together, and the oldest has half of it, so that a short one need not wait for it. */
TEST(test_prompts_share_a_step)
{
    enum { STEP = 16 };
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.prompt_step = STEP;
    struct eng_session *session = fables_session(fables, &options);
    struct eng_sequence *talker = start(session, 0), *longest, *other, *shortest;
    int32_t tokens[ANSWER];
    uint32_t unfinished;
    CHECK(eng_step(session, &unfinished, &error));
    longest = start(session, 7);  /* 200 tokens, 8 of them in a step while others read, too, then 16 */
    other = start(session, 6);    /* 130 */
    shortest = start(session, 3); /* 9: 4 of them in a step */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(eng_sequence_poll(shortest, tokens, ANSWER), 0);
        CHECK(eng_step(session, &unfinished, &error));
    }
    assert_int_equal(eng_sequence_poll(shortest, tokens, ANSWER), 1);
    /* 330 tokens of both are computed at 16 a step; the short one took 9 of those. */
    int steps = 3;
    while (eng_sequence_state(longest) == ENG_STATE_PREFILL || eng_sequence_state(other) == ENG_STATE_PREFILL) {
        CHECK(eng_step(session, &unfinished, &error));
        assert_int_equal(eng_sequence_poll(talker, tokens, ANSWER) > 0, steps + 1 < ANSWER);
        steps++;
    }
    assert_int_equal(steps, (200 + 130 + 9 + STEP - 1) / STEP);
    fables_finish(session);
    eng_session_destroy(&session);
}

/* However the time of steps divides prompts, tokens are the same. */
TEST(test_time_of_a_step)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    int32_t alone[SEQUENCES][ANSWER], together[SEQUENCES][ANSWER];
    run_alone(fables, NULL, alone);
    for (options.step_ms = 1; options.step_ms < 10000; options.step_ms *= 100) {
        run_together(fables, &options, together);
        assert_same(alone, together);
    }
}

TEST(test_context_end)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t prompt[FABLES_CONTEXT + 1], answer[FABLES_CONTEXT];
    fables_tokens(5, prompt, FABLES_CONTEXT + 1);
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    static const size_t lengths[] = {FABLES_CONTEXT - 10, FABLES_CONTEXT - 1, FABLES_CONTEXT};
    for (size_t i = 0; i < 3; i++) {
        CHECK(eng_sequence_create(session, &options, &sequence, &error));
        CHECK(eng_sequence_submit(sequence, prompt, lengths[i], &error));
        fables_finish(session);
        /* Every position of the context is used, and one more token is drawn from the last. */
        assert_int_equal(eng_sequence_poll(sequence, answer, FABLES_CONTEXT), FABLES_CONTEXT - lengths[i] + 1);
        assert_int_equal(eng_sequence_end(sequence), ENG_END_CONTEXT);
        eng_sequence_destroy(&sequence);
    }
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    assert_int_equal(eng_sequence_submit(sequence, prompt, FABLES_CONTEXT + 1, &error), ENG_TOO_LONG);
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_IDLE);
    CHECK(eng_sequence_submit(sequence, prompt, 1, &error)); /* the refusal changed nothing */
    eng_session_destroy(&session);
}

TEST(test_kept_sequence_goes_on)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sequence_options options;
    struct eng_sequence *kept, *whole;
    int32_t prompt[30], more[12], all[64], first[5], second[5], expected[5];
    fables_tokens(8, prompt, 30);
    fables_tokens(9, more, 12);
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_KEEP;
    options.max_new_tokens = 5;
    options.context_tokens = 64;
    CHECK(eng_sequence_create(session, &options, &kept, &error));
    CHECK(eng_sequence_submit(kept, prompt, 30, &error));
    assert_int_equal(eng_sequence_submit(kept, more, 12, &error), ENG_USAGE); /* not done */
    fables_finish(session);
    assert_int_equal(eng_sequence_submit(kept, more, 12, &error), ENG_USAGE); /* not polled */
    assert_int_equal(eng_sequence_poll(kept, first, 2), 2);
    assert_int_equal(eng_sequence_poll(kept, first + 2, 5), 3);
    CHECK(eng_sequence_submit(kept, more, 12, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(kept, second, 5), 5);
    /* 30 + 5 + 12 + 5 = 52 tokens: 13 more exceed context_tokens. */
    assert_int_equal(eng_sequence_submit(kept, prompt, 13, &error), ENG_TOO_LONG);

    memcpy(all, prompt, sizeof prompt);
    memcpy(all + 30, first, sizeof first);
    memcpy(all + 35, more, sizeof more);
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    CHECK(eng_sequence_create(session, &options, &whole, &error));
    CHECK(eng_sequence_submit(whole, all, 47, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(whole, expected, 5), 5);
    assert_memory_equal(second, expected, sizeof second);
    assert_int_equal(eng_sequence_submit(whole, more, 1, &error), ENG_USAGE); /* not kept */
    eng_session_destroy(&session);
}

TEST(test_kept_sequences_can_block)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sequence_options options;
    struct eng_sequence *kept[FABLES_BATCH], *late;
    int32_t prompt[4], token;
    uint32_t unfinished;
    fables_tokens(1, prompt, 4);
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_KEEP;
    options.max_new_tokens = 1;
    for (size_t i = 0; i < FABLES_BATCH; i++) {
        CHECK(eng_sequence_create(session, &options, &kept[i], &error));
        CHECK(eng_sequence_submit(kept[i], prompt, 4, &error));
    }
    fables_finish(session);
    CHECK(eng_sequence_create(session, &options, &late, &error));
    CHECK(eng_sequence_submit(late, prompt, 4, &error));
    assert_int_equal(eng_step(session, &unfinished, &error), ENG_FULL);
    assert_int_equal(unfinished, 1);
    eng_sequence_destroy(&kept[3]);
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(late, &token, 1), 1);
    eng_session_destroy(&session);
}

TEST(test_stop_tokens_and_logits)
{
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_engine_facts facts;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(fables, &facts, &error));
    int32_t alone[SEQUENCES][ANSWER], answer[ANSWER];
    run_alone(fables, NULL, alone);
    size_t stop_at = 5;
    for (size_t i = 0; i < stop_at; i++) /* the first occurrence ends it */
        if (alone[4][i] == alone[4][stop_at]) stop_at = i;
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t prompt[LONGEST_PROMPT];
    fables_tokens(4, prompt, prompt_lengths[4]);
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    options.stop_tokens = &alone[4][stop_at];
    options.stop_count = 1;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, prompt_lengths[4], &error));
    size_t count = 0;
    while (eng_sequence_state(sequence) != ENG_STATE_DONE) {
        CHECK(eng_step(session, NULL, &error));
        const float *logits = eng_sequence_logits(sequence);
        size_t polled = eng_sequence_poll(sequence, answer + count, ANSWER - count);
        assert_true(polled == 0 || logits);
        for (uint32_t i = 0; polled && i < facts.vocab_size; i++)
            assert_true(logits[i] <= logits[answer[count]]); /* greedy: the largest */
        count += polled;
    }
    assert_int_equal(count, stop_at + 1);
    assert_int_equal(eng_sequence_end(sequence), ENG_END_EOS);
    eng_session_destroy(&session);
}

struct parallel {
    struct eng_engine *engine;
    int32_t answers[SEQUENCES][ANSWER];
};

static void *run_session(void *argument)
{
    struct parallel *parallel = argument;
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    run_together(parallel->engine, &options, parallel->answers);
    return NULL;
}

TEST(test_two_sessions_at_once)
{
    struct parallel parallel[2] = {{.engine = fables}, {.engine = fables}};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_session, &parallel[1]), 0);
    run_session(&parallel[0]);
    pthread_join(thread, NULL);
    assert_same(parallel[0].answers, parallel[1].answers);
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
