/* SPDX-License-Identifier: Apache-2.0 */
/* Masks that follow from a step's tokens, with the fake driver (tests/fake_cuda): they reach the GPU while the layers of the next step run, and
 * its sampler waits for them. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/cuda/test_fake_cuda.h"
#include "runtime/session/session.h"
#include "tests/test_cuda_engine.h"
#include "tests/test_fables.h"

#include <pthread.h>
#include <unistd.h>

enum { SEQUENCES = 5, ANSWER = 14, PROMPT = 70, VOCAB = 1536, WORDS = (VOCAB + 31) / 32 };

static const char fake_folder[] = "tests/fake_cuda/whole";
static char paths[2][300]; /* of the engines for the GPU */
static struct engine cpu_file;
static struct test_fake_cuda fake;
/* For the processor, for the GPU, and with layers whose thread blocks wait for each other. */
enum { ENGINES = 3, GPU = 1, CORESIDENT };
static struct eng_engine *engines[ENGINES];

static int build(void **state)
{
    struct status status;
    fake = test_fake_cuda_find();
    if (fables_build(state)) return -1;
    for (int i = 0; i < 2; i++) snprintf(paths[i], sizeof paths[i], "%s.cuda%d", fables_path(), i);
    if (!engine_open(&cpu_file, fables_path(), &status)) fail_msg("%s", status.message);
    cuda_engine_write(&cpu_file, paths[0]);
    cuda_engine_write_coresident(paths[1]);
    engines[0] = fables_open();
    for (int i = 0; i < 2; i++) CHECK(eng_open(paths[i], NULL, &engines[GPU + i], &error));
    return 0;
}

static int clean_up(void **state)
{
    for (int i = 0; i < ENGINES; i++) eng_close(&engines[i]);
    for (int i = 0; i < 2; i++) unlink(paths[i]);
    cuda_engine_close();
    engine_close(&cpu_file);
    const int result = fables_remove(state);
    return fake.live(-1) || fake.misuse() ? -1 : result;
}

struct answers {
    int32_t tokens[SEQUENCES][ANSWER];
    size_t counts[SEQUENCES];
};

static struct eng_grammar *make_grammar(struct eng_engine *engine, const char *expression)
{
    struct eng_grammar *grammar = NULL;
    CHECK(eng_grammar_create(engine, ENG_GRAMMAR_REGEX, expression, strlen(expression), &grammar, &error));
    return grammar;
}

/* Answers of some sequences with a grammar, some with masks that follow from the token before, and some without either, each with its
 * number as seed. *ahead: steps after which another one was in flight. */
static void constrain(struct eng_session *session, struct eng_grammar *grammar, struct answers *answers,
                      uint32_t *ahead)
{
    enum { PLAIN = 2, CALLERS = 4 };
    struct eng_sequence *sequences[SEQUENCES];
    struct eng_sampling sampling;
    struct eng_sequence_options options;
    int32_t prompt[PROMPT];
    uint32_t unfinished = 1, allowed[WORDS];
    memset(answers, 0, sizeof *answers);
    for (int i = 0; i < SEQUENCES; i++) {
        eng_sampling_init(&sampling);
        eng_sequence_options_init(&options);
        sampling.temperature = i ? 1.2f : 0;
        sampling.seed = (uint64_t)i;
        options.sampling = &sampling;
        options.max_new_tokens = (uint32_t)(ANSWER - i % 2);
        options.grammar = i == PLAIN || i == CALLERS ? NULL : grammar;
        if (!options.grammar) options.flags = ENG_SEQUENCE_IGNORE_EOS;
        if (i == CALLERS) options.flags |= ENG_SEQUENCE_ALLOWED;
        fables_tokens((uint32_t)i, prompt, PROMPT);
        CHECK(eng_sequence_create(session, &options, &sequences[i], &error));
        CHECK(eng_sequence_submit(sequences[i], prompt, (size_t)(PROMPT - 9 * i), &error));
    }
    for (*ahead = 0; unfinished; *ahead += session->flight_count) {
        CHECK(eng_step(session, &unfinished, &error));
        for (int i = 0; i < SEQUENCES; i++) {
            int32_t *tokens = answers->tokens[i] + answers->counts[i];
            const size_t count = eng_sequence_poll(sequences[i], tokens, ANSWER - answers->counts[i]);
            answers->counts[i] += count;
            for (uint32_t w = 0; w < WORDS; w++) allowed[w] = count ? 0x9249a5b7u * ((uint32_t)tokens[0] + w + 1) : 0;
            if (count && i == CALLERS) CHECK(eng_sequence_set_allowed(sequences[i], allowed, WORDS, &error));
        }
    }
    for (int i = 0; i < SEQUENCES; i++) eng_sequence_destroy(&sequences[i]);
}

TEST(answers_are_those_of_the_cpu)
{
    static const char *const expressions[] = {"[a-f]{3,30}", "(the|a) (fox|hen)( and (the|a) (fox|hen))*",
                                              "(.|\\n|\\r)*"};
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    options.instruction_set = "portable";
    struct eng_session *sessions[2] = {fables_session(engines[0], &options), fables_session(engines[1], NULL)};
    for (size_t e = 0; e < sizeof expressions / sizeof *expressions; e++) {
        struct answers answers[2];
        uint32_t ahead[2];
        for (int i = 0; i < 2; i++) {
            struct eng_grammar *grammar = make_grammar(engines[i], expressions[e]);
            constrain(sessions[i], grammar, &answers[i], &ahead[i]);
            eng_grammar_destroy(&grammar);
        }
        assert_memory_equal(&answers[0], &answers[1], sizeof answers[0]);
        assert_int_equal(ahead[0], 0);
        assert_in_range(ahead[1], 2, ANSWER);
    }
    for (int i = 0; i < 2; i++) eng_session_destroy(&sessions[i]);
}

/* Sessions of two threads, whose steps are queued as it happens. */
struct thread {
    pthread_t thread;
    struct eng_session *session;
    struct eng_grammar *grammar;
    struct answers answers;
    uint32_t ahead;
};

static void *run_thread(void *context)
{
    struct thread *own = context;
    for (int i = 0; i < 3; i++) constrain(own->session, own->grammar, &own->answers, &own->ahead);
    return NULL;
}

TEST(steps_of_two_threads_take_turns)
{
    static const char expression[] = "(the|a) (fox|hen)( and (the|a) (fox|hen))*";
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    options.instruction_set = "portable";
    struct eng_session *session = fables_session(engines[0], &options);
    struct eng_grammar *grammar = make_grammar(engines[0], expression);
    struct answers expected;
    uint32_t ahead;
    constrain(session, grammar, &expected, &ahead);
    eng_grammar_destroy(&grammar);
    eng_session_destroy(&session);
    for (int e = GPU; e < ENGINES; e++) {
        struct thread threads[2] = {{0}};
        grammar = make_grammar(engines[e], expression);
        for (int i = 0; i < 2; i++) threads[i].session = fables_session(engines[e], NULL), threads[i].grammar = grammar;
        run_thread(&threads[0]); /* whose turn the others wait for */
        const uint64_t overlaps = fake.overlaps();
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i].thread, NULL, run_thread, &threads[i]), 0);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pthread_join(threads[i].thread, NULL), 0);
            assert_memory_equal(&threads[i].answers, &expected, sizeof expected);
            assert_in_range(threads[i].ahead, 2, ANSWER);
        }
        if (e == CORESIDENT) assert_int_equal(fake.overlaps(), overlaps);
        for (int i = 0; i < 2; i++) eng_session_destroy(&threads[i].session);
        eng_grammar_destroy(&grammar);
    }
}

static void allow_only(struct eng_sequence *sequence, int32_t token)
{
    uint32_t allowed[WORDS] = {0};
    allowed[token / 32] = 1u << token % 32;
    CHECK(eng_sequence_set_allowed(sequence, allowed, WORDS, &error));
}

static struct eng_sequence *start(struct eng_session *session, uint32_t flags, struct eng_grammar *grammar)
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t prompt[PROMPT];
    eng_sequence_options_init(&options);
    options.flags = flags;
    options.grammar = grammar;
    fables_tokens(3, prompt, PROMPT);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
    while (eng_sequence_state(sequence) != ENG_STATE_DECODE) CHECK(eng_step(session, NULL, &error));
    return sequence;
}

/* Two sessions compute with the same plan by turns, each with a sampler that waits for the caller. One of them is also used for a slot, and
 * both end while a sampler waits. Returns how many graphs might have run at once. */
static uint64_t run_two_sessions(struct eng_engine *engine)
{
    struct eng_session *sessions[2];
    struct eng_sequence *sequences[2];
    int32_t token, prompt[PROMPT];
    uint32_t slot;
    fables_tokens(9, prompt, PROMPT);
    for (int i = 0; i < 2; i++) {
        sessions[i] = fables_session(engine, NULL);
        sequences[i] = start(sessions[i], ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_ALLOWED, NULL);
        assert_int_equal(eng_sequence_poll(sequences[i], &token, 1), 1);
    }
    uint64_t overlaps = fake.overlaps();
    for (int32_t step = 0; step < 8; step++)
        for (int i = 0; i < 2; i++) {
            const int32_t expected = 400 + 64 * i + 5 * step;
            if (step) assert_true(sessions[i]->flight_count == 1 && sessions[i]->flights[0].waits);
            if (i && step == 4) {
                CHECK(eng_slot_acquire(sessions[i], &slot, &error));
                CHECK(eng_prefill(sessions[i], slot, prompt, PROMPT, &token, NULL, &error));
                assert_int_equal(sessions[i]->flight_count, 0);
                assert_int_equal(eng_sequence_poll(sequences[i], &token, 1), 0);
            }
            allow_only(sequences[i], expected);
            CHECK(eng_step(sessions[i], NULL, &error));
            assert_int_equal(eng_sequence_poll(sequences[i], &token, 1), 1);
            assert_int_equal(token, expected);
        }
    overlaps = fake.overlaps() - overlaps;
    for (int i = 0; i < 2; i++) eng_session_destroy(&sessions[i]);
    return overlaps;
}

/* Layers that wait for each other come after those of the other session, whose sampler may be queued later. */
TEST(samplers_of_two_sessions_wait)
{
    assert_true(run_two_sessions(engines[GPU]) > 8);
    assert_int_equal(run_two_sessions(engines[CORESIDENT]), 0);
}

/* Any call of a step may fail, that which queues the sampler, too: the failure is permanent, and the session can be destroyed. */
static void fail_each_call(struct eng_engine *engine)
{
    struct eng_grammar *grammar = make_grammar(engine, "(.|\\n|\\r)*");
    uint64_t failures = 0;
    bool none_failed = false;
    for (uint64_t call = 1; !none_failed; call++) {
        struct eng_session *session = fables_session(engine, NULL);
        struct eng_sequence *sequence = start(session, 0, grammar);
        enum eng_status status = ENG_OK;
        const uint64_t before = fake.calls();
        fake.fail_next(call);
        for (int step = 0; step < 3 && !status; step++) status = eng_step(session, NULL, &error);
        none_failed = fake.calls() - before < call;
        if (status) {
            assert_int_equal(status, ENG_MACHINE);
            assert_int_equal(eng_step(session, NULL, &error), ENG_MACHINE);
            failures++;
        }
        fake.fail_next(UINT64_MAX / 2); /* none */
        eng_sequence_destroy(&sequence);
        eng_session_destroy(&session);
        assert_int_equal(fake.misuse(), 0);
    }
    assert_true(failures > 12);
    eng_grammar_destroy(&grammar);
}

TEST(each_call_of_a_step_failing)
{
    for (int e = GPU; e < ENGINES; e++) fail_each_call(engines[e]);
}

int main(int argc, char **argv)
{
    (void)argc;
    int result;
    if (!test_with_libraries(fake_folder, argv, &result)) return result;
    return test_run_with(build, NULL, NULL, clean_up);
}
