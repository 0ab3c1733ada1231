/* SPDX-License-Identifier: Apache-2.0 */
/* Logits that are not finite, through the public API: the sequence ends, or the slot is named. Its neighbours, and the
 * next owner of its slot and pages, get the same results, bit for bit, as without it. On processors for one rank and
 * several, on a device with lookahead, and with the fake driver. */
#include "tests/test_overflow_model.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/engine/engine_file.h"
#include "formats/base/test_support.h"
#include "kernels/cuda/test_fake_cuda.h"
#include "runtime/session/session.h"
#include "runtime/backend/test_backend.h"
#include "tests/test_cuda_engine.h"
#include "tests/test_fables.h"

enum { SOUND = 3, ANSWER = 12, PROMPT = 70 };

static const char fake_folder[] = "tests/fake_cuda/whole";

/* The backends under test. */
enum runner { RUNNER_CPU, RUNNER_RANKS, RUNNER_AHEAD_EAGER, RUNNER_AHEAD_LAZY, RUNNER_CUDA, RUNNERS };
static const char *const runner_names[RUNNERS] = {"processors", "two ranks", "steps ahead, eager", "steps ahead, lazy",
                                                  "fake GPU"};

static char *folder;
static char paths[3][300]; /* one rank, two ranks, GPU */
static struct engine cpu_file;

static int build(void **state)
{
    struct status status;
    folder = test_folder();
    overflow_model_write(folder);
    for (int i = 0; i < 3; i++) snprintf(paths[i], sizeof paths[i], "%s/%d.eng", folder, i);
    overflow_engine_build(folder, paths[0], 1);
    overflow_engine_build(folder, paths[1], FABLES_RANKS);
    if (!engine_open(&cpu_file, paths[0], &status)) fail_msg("%s", status.message);
    cuda_engine_write(&cpu_file, paths[2]);
    return 0;
}

static int remove_all(void **state)
{
    cuda_engine_close();
    engine_close(&cpu_file);
    test_folder_remove(folder);
    return 0;
}

static struct eng_session *open_session(enum runner runner, uint64_t kv_tokens)
{
    struct eng_engine *engine = NULL;
    struct eng_session *session = NULL;
    struct eng_session_options options;
    struct status status;
    status_clear(&status);
    eng_session_options_init(&options);
    options.threads = runner == RUNNER_RANKS ? 2 : 1;
    options.kv_tokens = kv_tokens;
    /* Kernels of the fake GPU. */
    if (runner == RUNNER_CPU) options.instruction_set = "portable";
    CHECK(eng_open(paths[runner == RUNNER_RANKS ? 1 : runner == RUNNER_CUDA ? 2 : 0], NULL, &engine, &error));
    if (runner == RUNNER_AHEAD_EAGER || runner == RUNNER_AHEAD_LAZY) {
        test_backend_settings.pace = runner == RUNNER_AHEAD_EAGER ? PACE_EAGER : PACE_LAZY;
        if (!session_create(engine, &test_backend, &options, &session, &status)) fail_msg("%s", status.message);
    } else {
        CHECK(eng_session_create(engine, &options, &session, &error));
    }
    eng_close(&engine);
    return session;
}

static struct eng_sequence *create(struct eng_session *session, bool sampled, uint32_t flags)
{
    const struct eng_sampling sampling = fables_sampling(sampled, 77);
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = ANSWER;
    options.flags = flags | ENG_SEQUENCE_IGNORE_EOS;
    if (flags & ENG_SEQUENCE_KEEP) options.context_tokens = PROMPT + 2 * ANSWER;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    return sequence;
}

/* Sequence `index` with finite logits: every other one is sampled. */
static struct eng_sequence *start_sound(struct eng_session *session, int index)
{
    int32_t prompt[PROMPT];
    struct eng_sequence *sequence = create(session, index % 2, 0);
    fables_tokens((uint32_t)index, prompt, PROMPT);
    CHECK(eng_sequence_submit(sequence, prompt, (size_t)(PROMPT - 20 * index), &error));
    return sequence;
}

/* A sequence with a prompt of `count` tokens that ends with `last`. */
static struct eng_sequence *start_overflow(struct eng_session *session, int32_t last, size_t count, bool sampled,
                                           uint32_t flags)
{
    int32_t prompt[PROMPT];
    struct eng_sequence *sequence = create(session, sampled, flags);
    fables_tokens(99, prompt, count);
    prompt[count - 1] = last;
    CHECK(eng_sequence_submit(sequence, prompt, count, &error));
    return sequence;
}

static void expect_sound(struct eng_sequence *sequence, const int32_t *expected, const char *what)
{
    int32_t answer[ANSWER + 1];
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_DONE);
    assert_int_equal(eng_sequence_end(sequence), ENG_END_LENGTH);
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER + 1), ANSWER);
    if (memcmp(answer, expected, ANSWER * sizeof *answer) != 0) fail_msg("%s: a neighbour answers otherwise", what);
    eng_sequence_destroy(&sequence);
}

/* The sequence has ended with only the expected tokens; slot and pages are free. */
static void expect_not_finite(struct eng_sequence *sequence, const int32_t *expected, size_t count, const char *what)
{
    int32_t answer[ANSWER];
    const int32_t token = 300;
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_DONE);
    if (eng_sequence_end(sequence) != ENG_END_NOT_FINITE)
        fail_msg("%s: ended with reason %d", what, (int)eng_sequence_end(sequence));
    assert_null(eng_sequence_logits(sequence));
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), count);
    if (count) assert_memory_equal(answer, expected, count * sizeof *answer);
    assert_int_equal(eng_sequence_submit(sequence, &token, 1, &error), ENG_USAGE);
    eng_sequence_destroy(&sequence);
}

static void expect_all_free(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_int_equal(facts.free_slots, facts.slots);
    assert_int_equal(facts.free_pages, facts.pages);
}

static void sound_alone(enum runner runner, int32_t answers[SOUND][ANSWER])
{
    for (int i = 0; i < SOUND; i++) {
        struct eng_session *session = open_session(runner, FABLES_CONTEXT);
        struct eng_sequence *sequence = start_sound(session, i);
        fables_finish(session);
        assert_int_equal(eng_sequence_poll(sequence, answers[i], ANSWER), ANSWER);
        eng_session_destroy(&session);
    }
}

static const int32_t chain[] = {OVERFLOW_SECOND, OVERFLOW_VALUES};

static void test_sequences(enum runner runner, int32_t expected[SOUND][ANSWER])
{
    const char *name = runner_names[runner];
    /* A pool just large enough for all, so that every page is reused. */
    struct eng_session *session = open_session(runner, 7 * 96);
    for (int round = 0; round < 3; round++) {
        struct eng_sequence *sound[SOUND], *overflow[4];
        const uint32_t keep = round == 1 ? ENG_SEQUENCE_KEEP : 0, logits = round == 2 ? ENG_SEQUENCE_LOGITS : 0;
        sound[0] = start_sound(session, 0);
        overflow[0] = start_overflow(session, OVERFLOW_FIRST, PROMPT, round == 0, keep | logits);
        sound[1] = start_sound(session, 1);
        overflow[1] = start_overflow(session, OVERFLOW_PLUS, 33, round == 1, keep | logits);
        overflow[2] = start_overflow(session, OVERFLOW_MINUS, 1, round == 2, keep | logits);
        overflow[3] = start_overflow(session, OVERFLOW_VALUES, 64, round == 1, keep | logits);
        sound[2] = start_sound(session, 2);
        fables_finish(session);
        expect_not_finite(overflow[0], chain, 2, name);
        for (int i = 1; i < 4; i++) expect_not_finite(overflow[i], NULL, 0, name);
        for (int i = 0; i < SOUND; i++) expect_sound(sound[i], expected[i], name);
        expect_all_free(session);
    }
    eng_session_destroy(&session);
}

/* A prompt with such a token among others, and one that only fits the largest chunk's plan. */
static void test_amid_a_prompt(enum runner runner, int32_t expected[SOUND][ANSWER])
{
    int32_t prompt[PROMPT];
    struct eng_session *session = open_session(runner, 3 * 96);
    for (size_t at = 0; at < PROMPT; at += 34) {
        struct eng_sequence *sequence = create(session, at % 2, 0), *sound = start_sound(session, 0);
        fables_tokens(5, prompt, PROMPT);
        prompt[at] = OVERFLOW_VALUES;
        CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
        fables_finish(session);
        expect_not_finite(sequence, NULL, 0, runner_names[runner]);
        expect_sound(sound, expected[0], runner_names[runner]);
        expect_all_free(session);
    }
    eng_session_destroy(&session);
}

static void expect_message(enum eng_status status, const char *part)
{
    assert_int_equal(error.status, status);
    if (!strstr(error.message, part) || !strstr(error.message, "not finite"))
        fail_msg("expected '%s' in '%s'", part, error.message);
}

static uint32_t position_of(const struct eng_session *session, uint32_t slot)
{
    uint32_t position;
    CHECK(eng_slot_position(session, slot, &position, &error));
    return position;
}

enum { STEPS = 9 };

/* Its tokens depend on its draws and on the tokens that occurred, which discarded steps must not change. */
static void set_sampling(struct eng_session *session, uint32_t slot)
{
    struct eng_sampling sampling;
    eng_sampling_init(&sampling);
    sampling.temperature = 1.5f;
    sampling.repetition_penalty = 1.3f;
    sampling.seed = 5;
    CHECK(eng_slot_set_sampling(session, slot, &sampling, &error));
}

/* Tokens of a single slot: after its prompt, then step by step. */
static void slot_alone(enum runner runner, int32_t tokens[1 + 2 * STEPS], float *logits)
{
    int32_t prompt[PROMPT];
    uint32_t slot;
    struct eng_session *session = open_session(runner, FABLES_CONTEXT);
    fables_tokens(8, prompt, PROMPT);
    CHECK(eng_slot_acquire(session, &slot, &error));
    set_sampling(session, slot);
    CHECK(eng_prefill(session, slot, prompt, PROMPT, &tokens[0], NULL, &error));
    CHECK(eng_decode(session, &slot, &tokens[0], 1, &tokens[1], logits, &error));
    CHECK(eng_decode_steps(session, &slot, &tokens[1], 1, 2 * STEPS - 1, &tokens[2], &error));
    eng_session_destroy(&session);
}

static void test_slots(enum runner runner)
{
    const size_t vocab = cpu_file.manifest.geometry.vocab_size;
    int32_t prompt[PROMPT], alone[1 + 2 * STEPS], next[2], given[2], steps[STEPS][2];
    uint32_t slots[2];
    float *logits = malloc(2 * vocab * sizeof *logits), *logits_alone = malloc(vocab * sizeof *logits);
    slot_alone(runner, alone, logits_alone);
    struct eng_session *session = open_session(runner, 2 * FABLES_CONTEXT);
    for (int i = 0; i < 2; i++) CHECK(eng_slot_acquire(session, &slots[i], &error));
    set_sampling(session, slots[0]);
    fables_tokens(8, prompt, PROMPT);
    CHECK(eng_prefill(session, slots[0], prompt, PROMPT, &next[0], NULL, &error));
    assert_int_equal(next[0], alone[0]);

    /* A prompt: the tokens are appended, and the logits are returned. */
    prompt[PROMPT - 1] = OVERFLOW_VALUES;
    assert_int_equal(eng_prefill(session, slots[1], prompt, PROMPT, NULL, NULL, &error), ENG_OK); /* nothing is drawn */
    assert_int_equal(position_of(session, slots[1]), PROMPT);
    CHECK(eng_slot_truncate(session, slots[1], 0, &error));
    assert_int_equal(eng_prefill(session, slots[1], prompt, PROMPT, &next[1], logits, &error), ENG_NOT_FINITE);
    char named[32];
    snprintf(named, sizeof named, "slot %u", slots[1]);
    expect_message(ENG_NOT_FINITE, named);
    assert_int_equal(next[1], -1);
    assert_true(logits[0] != logits[0]);
    assert_int_equal(position_of(session, slots[1]), PROMPT);

    /* A step with a second slot, whose results are the same as by itself. */
    given[0] = next[0], given[1] = 300;
    assert_int_equal(eng_decode(session, slots, given, 2, next, logits, &error), ENG_NOT_FINITE);
    expect_message(ENG_NOT_FINITE, named);
    assert_int_equal(next[0], alone[1]);
    assert_int_equal(next[1], -1);
    if (runner != RUNNER_CUDA) assert_memory_equal(logits, logits_alone, vocab * sizeof *logits);
    assert_int_equal(position_of(session, slots[0]), PROMPT + 1);
    assert_int_equal(position_of(session, slots[1]), PROMPT + 1);

    /* Truncated, the slot is usable again. Then steps that lead to such logits by themselves. */
    CHECK(eng_slot_truncate(session, slots[1], 3, &error));
    given[0] = next[0], given[1] = OVERFLOW_FIRST;
    assert_int_equal(eng_decode_steps(session, slots, given, 2, STEPS, &steps[0][0], &error), ENG_NOT_FINITE);
    expect_message(ENG_NOT_FINITE, named);
    const int32_t expected[STEPS] = {OVERFLOW_SECOND, OVERFLOW_VALUES, -1, -1, -1, -1, -1, -1, -1};
    for (int s = 0; s < STEPS; s++) {
        assert_int_equal(steps[s][1], expected[s]);
        assert_int_equal(steps[s][0], s < 3 ? alone[2 + s] : -1);
    }
    assert_int_equal(position_of(session, slots[0]), PROMPT + 4);
    assert_int_equal(position_of(session, slots[1]), 6);
    /* The other slot continues. */
    int32_t rest[STEPS];
    CHECK(eng_decode_steps(session, &slots[0], &steps[2][0], 1, STEPS, rest, &error));
    assert_memory_equal(rest, alone + 5, sizeof rest);

    /* The next owner of the pages. */
    CHECK(eng_slot_release(session, slots[1], &error));
    CHECK(eng_slot_acquire(session, &slots[1], &error));
    set_sampling(session, slots[1]);
    fables_tokens(8, prompt, PROMPT);
    CHECK(eng_prefill(session, slots[1], prompt, PROMPT, &next[1], NULL, &error));
    assert_int_equal(next[1], alone[0]);
    CHECK(eng_decode_steps(session, &slots[1], &next[1], 1, STEPS, rest, &error));
    assert_memory_equal(rest, alone + 1, sizeof rest);
    CHECK(eng_selftest(session, NULL, &error));
    eng_session_destroy(&session);
    free(logits);
    free(logits_alone);
}

/* A token of a prompt: the log-probabilities after it are not numbers, and all else is as without. */
static void test_prompt_logprobs(enum runner runner, int32_t expected[SOUND][ANSWER])
{
    enum { PLACE = 30, TOP = 2 };
    int32_t prompt[PROMPT], answers[2][ANSWER];
    struct eng_session *session = open_session(runner, 4 * 96);
    for (int32_t turn = 0; turn < 2; turn++) {
        const struct eng_sampling sampling = fables_sampling(true, 77);
        struct eng_sequence_options options;
        struct eng_sequence *sequence = NULL, *neighbour = start_sound(session, 1);
        fables_tokens(9, prompt, PROMPT);
        prompt[PLACE] = OVERFLOW_PLUS;
        eng_sequence_options_init(&options);
        options.sampling = &sampling;
        options.max_new_tokens = ANSWER;
        options.flags = ENG_SEQUENCE_IGNORE_EOS;
        options.prompt_logprobs = TOP * turn;
        CHECK(eng_sequence_create(session, &options, &sequence, &error));
        CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
        fables_finish(session);
        for (size_t i = 1; turn && i < PROMPT; i++) {
            struct eng_logprob own, top[TOP];
            CHECK(eng_sequence_prompt_logprobs(sequence, i, &own, top, TOP, &error));
            assert_int_equal(own.token, prompt[i]);
            assert_int_equal(own.logprob < 0, i != PLACE + 1);
            assert_int_equal(top[0].logprob <= 0, i != PLACE + 1);
            assert_int_equal(top[1].token >= 0, i != PLACE + 1);
        }
        assert_int_equal(eng_sequence_poll(sequence, answers[turn], ANSWER), ANSWER);
        eng_sequence_destroy(&sequence);
        expect_sound(neighbour, expected[1], runner_names[runner]);
    }
    assert_memory_equal(answers[1], answers[0], sizeof answers[0]);
    expect_all_free(session);
    eng_session_destroy(&session);
}

/* Tokens of the sequence's prompt that the cache had. */
static uint64_t finish_cached(struct eng_session *session)
{
    struct eng_session_facts facts[2];
    for (int i = 0; i < 2; i++) {
        if (i) fables_finish(session);
        eng_session_facts_init(&facts[i]);
        CHECK(eng_session_get_facts(session, &facts[i], &error));
    }
    return facts[1].cached_tokens - facts[0].cached_tokens;
}

/* What led to such logits is computed again by the next sequence with the same tokens; pages from which finite ones came are found. */
static void test_cache(enum runner runner)
{
    enum { PAGE = 16, MOST = FABLES_LARGEST_CHUNK + 2 * PAGE };
    static const struct {
        size_t count, place; /* of the prompt; where it has `token` */
        int32_t token, prompt_logprobs;
        uint32_t answer, found;
    } cases[] = {
        /* The page that the step fills; one of an earlier chunk, which no one had drawn after; a page that a decode step fills. */
        {3 * PAGE, 3 * PAGE - 1, OVERFLOW_VALUES, 0, 0, 0},
        {MOST - 1, 3, OVERFLOW_VALUES, 0, 0, 0},
        {2 * PAGE - 2, 2 * PAGE - 3, OVERFLOW_FIRST, 0, 2, PAGE},
        /* Rows of a prompt after which finite ones came. */
        {2 * PAGE + 3, PAGE + 2, OVERFLOW_PLUS, -1, ANSWER, PAGE},
    };
    assert_int_equal(cpu_file.manifest.geometry.page_tokens, PAGE);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int32_t tokens[MOST + ANSWER];
        struct eng_session *session = open_session(runner, FABLES_CONTEXT);
        struct eng_sequence_options options;
        struct eng_sequence *sequence = NULL;
        const size_t count = cases[c].count;
        fables_tokens(31, tokens, MOST);
        tokens[cases[c].place] = cases[c].token;
        eng_sequence_options_init(&options);
        options.max_new_tokens = ANSWER;
        options.flags = ENG_SEQUENCE_IGNORE_EOS;
        options.prompt_logprobs = cases[c].prompt_logprobs;
        CHECK(eng_sequence_create(session, &options, &sequence, &error));
        CHECK(eng_sequence_submit(sequence, tokens, count, &error));
        assert_int_equal(finish_cached(session), 0);
        assert_int_equal(eng_sequence_poll(sequence, tokens + count, ANSWER), cases[c].answer);
        assert_int_equal(eng_sequence_end(sequence), cases[c].answer == ANSWER ? ENG_END_LENGTH : ENG_END_NOT_FINITE);
        eng_sequence_destroy(&sequence);
        expect_all_free(session);

        options.prompt_logprobs = 0;
        CHECK(eng_sequence_create(session, &options, &sequence, &error));
        tokens[count + cases[c].answer] = 300;
        CHECK(eng_sequence_submit(sequence, tokens, count + cases[c].answer + 1, &error));
        const uint64_t found = finish_cached(session);
        if (found != cases[c].found)
            fail_msg("%s, case %zu: %u tokens from the cache, expected %u", runner_names[runner], c, (unsigned)found,
                     cases[c].found);
        eng_sequence_destroy(&sequence);
        expect_all_free(session);
        eng_session_destroy(&session);
    }
}

/* Computes a prompt of its own, and returns how many tokens of it the cache had. */
static uint64_t run_prompt(struct eng_session *session, const int32_t *tokens, size_t count, enum eng_end end,
                           int32_t *answer)
{
    struct eng_sequence *sequence = create(session, false, 0);
    CHECK(eng_sequence_submit(sequence, tokens, count, &error));
    const uint64_t found = finish_cached(session);
    assert_int_equal(eng_sequence_end(sequence), end);
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), end == ENG_END_LENGTH ? ANSWER : 0);
    eng_sequence_destroy(&sequence);
    expect_all_free(session);
    return found;
}

/* A beginning from which finite logits came stays for all others when a text that goes on from it fails, and so does what came after it. */
static void test_shared_beginning(enum runner runner)
{
    enum { PAGE = 16, COMMON = 2 * PAGE, FIRST = 3 * PAGE + 5, WHOLE = FIRST + ANSWER };
    int32_t first[WHOLE + 1], other[COMMON + PAGE + 4], ignored[ANSWER];
    struct eng_session *session = open_session(runner, 2 * FABLES_CONTEXT);
    fables_tokens(41, first, FIRST);
    assert_int_equal(run_prompt(session, first, FIRST, ENG_END_LENGTH, first + FIRST), 0);
    for (uint32_t round = 0; round < 2; round++) {
        const size_t count = sizeof other / sizeof *other;
        fables_tokens(42 + round, other, count);
        memcpy(other, first, COMMON * sizeof *other);
        other[count - 1] = OVERFLOW_VALUES;
        assert_int_equal(run_prompt(session, other, count, ENG_END_NOT_FINITE, ignored), COMMON);
        other[count - 1] = 300;
        assert_int_equal(run_prompt(session, other, count, ENG_END_LENGTH, ignored), COMMON);
    }
    first[WHOLE] = 300;
    assert_int_equal(run_prompt(session, first, WHOLE + 1, ENG_END_LENGTH, ignored), WHOLE / PAGE * PAGE);
    eng_session_destroy(&session);
}

static void run_all(void **state)
{
    const enum runner runner = *(const enum runner *)*state;
    int32_t expected[SOUND][ANSWER];
    sound_alone(runner, expected);
    test_sequences(runner, expected);
    test_amid_a_prompt(runner, expected);
    test_slots(runner);
    test_prompt_logprobs(runner, expected);
    test_cache(runner);
    test_shared_beginning(runner);
}

int main(int argc, char **argv)
{
    static enum runner runners[RUNNERS] = {RUNNER_CPU, RUNNER_RANKS, RUNNER_AHEAD_EAGER, RUNNER_AHEAD_LAZY,
                                           RUNNER_CUDA};
    struct CMUnitTest tests[RUNNERS];
    (void)argc;
    for (int i = 0; i < RUNNERS; i++)
        tests[i] = (struct CMUnitTest){.name = runner_names[i], .test_func = run_all, .initial_state = &runners[i]};
    int result;
    if (!test_with_libraries(fake_folder, argv, &result)) return result;
    return cmocka_run_group_tests(tests, build, remove_all);
}
