/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that drafts by its own layer, on the fake driver (tests/fake_cuda): the host has a step's drafts when it has waited for the step,
 * however it waited. The program runs itself again with the fake's folder in LD_LIBRARY_PATH. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "tests/test_mtp_model.h"

#include <string.h>

#include "formats/base/test_folder.h"
#include "kernels/cuda/test_fake_cuda.h"
#include "runtime/backend/backend_cuda.h"
#include "runtime/session/session.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/test_cuda_engine.h"

enum { PROMPT = 20, ANSWER = 60, SEQUENCES = 3 };

static const char fake_folder[] = "tests/fake_cuda/whole";
static struct test_fake_cuda fake;
static struct engine cpu_file;
static char cpu_path[300], cuda_path[300];

static int build(void **state)
{
    struct build_options options;
    struct status status = {0};
    if (make_folder(state)) return -1;
    fake = test_fake_cuda_find();
    mtp_model_write(&(struct mtp_settings){.cycles = true, .layers = 1}, folder);
    snprintf(cpu_path, sizeof cpu_path, "%s", in_folder("cpu.eng"));
    snprintf(cuda_path, sizeof cuda_path, "%s", in_folder("cuda.eng"));
    mtp_options(&options, folder, cpu_path);
    options.out = fopen("/dev/null", "w");
    assert_non_null(options.out);
    test_expect_success(build_engine(&options, &status), &status);
    fclose(options.out);
    test_expect_success(engine_open(&cpu_file, cpu_path, &status), &status);
    cuda_engine_write(&cpu_file, cuda_path);
    return 0;
}

static int remove_all(void **state)
{
    cuda_engine_close();
    engine_close(&cpu_file);
    return remove_folder(state);
}

static int begin(void **state)
{
    (void)state;
    fake.reset();
    return 0;
}

static int end(void **state)
{
    (void)state;
    assert_int_equal(fake.live(-1), 0);
    assert_int_equal(fake.misuse(), 0);
    return 0;
}

static struct eng_session *open_session(const char *path, uint32_t speculate)
{
    struct eng_engine *engine = NULL;
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    options.instruction_set = path == cpu_path ? "portable" : NULL;
    options.speculate = speculate;
    CHECK(eng_open(path, NULL, &engine, &error));
    struct eng_session *session = fables_session(engine, &options);
    eng_close(&engine);
    return session;
}

static struct eng_sequence *start(struct eng_session *session, int32_t first, uint32_t flags)
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = (first + i) % MTP_VOCAB;
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_IGNORE_EOS | flags;
    options.max_new_tokens = ANSWER;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
    return sequence;
}

struct answers {
    int32_t tokens[SEQUENCES][ANSWER];
    int32_t predicted[SEQUENCES][PROMPT + ANSWER + 1]; /* by the number of tokens before it; -1: not seen */
};

/* Sequences that begin one after the other; returns the steps after which another one was in flight. */
static int answer(struct eng_session *session, uint32_t flags, struct answers *answers)
{
    struct eng_sequence *sequences[SEQUENCES];
    uint32_t unfinished = 1;
    int ahead = 0;
    memset(answers->predicted, -1, sizeof answers->predicted);
    for (int i = 0; i < SEQUENCES; i++) sequences[i] = start(session, 17 * i, flags);
    while (unfinished) {
        CHECK(eng_step(session, &unfinished, &error));
        ahead += session->flight_count > 0;
        for (int i = 0; i < SEQUENCES; i++)
            if (sequences[i]->count > PROMPT && sequences[i]->predicted_at == sequences[i]->count)
                answers->predicted[i][sequences[i]->count] = sequences[i]->predicted;
    }
    for (int i = 0; i < SEQUENCES; i++) {
        assert_int_equal(eng_sequence_poll(sequences[i], answers->tokens[i], ANSWER), ANSWER);
        eng_sequence_destroy(&sequences[i]);
    }
    return ahead;
}

/* Steps of both need not have the same tokens: predictions that both have seen. */
static void compare_predictions(const struct answers *expected, const struct answers *found)
{
    int compared = 0;
    for (int i = 0; i < SEQUENCES; i++)
        for (int t = 0; t <= PROMPT + ANSWER; t++) {
            if (expected->predicted[i][t] < 0 || found->predicted[i][t] < 0) continue;
            assert_int_equal(found->predicted[i][t], expected->predicted[i][t]);
            compared++;
        }
    assert_true(compared > ANSWER);
}

/* Steps with another one queued after them, steps alone, and steps that verify. */
TEST(drafts_are_those_of_the_cpu)
{
    static struct answers expected, found;
    for (uint32_t speculate = 0; speculate <= 3; speculate += 3)
        for (uint32_t flags = 0; flags <= ENG_SEQUENCE_HIDDEN; flags += ENG_SEQUENCE_HIDDEN) {
            struct eng_session *cpu = open_session(cpu_path, speculate), *cuda = open_session(cuda_path, speculate);
            answer(cpu, flags, &expected);
            for (int round = 0; round < 2; round++) {
                const int ahead = answer(cuda, flags, &found);
                assert_memory_equal(expected.tokens, found.tokens, sizeof expected.tokens);
                compare_predictions(&expected, &found);
                if (flags) assert_int_equal(ahead, 0);
                if (!speculate && !flags) assert_true(ahead > ANSWER / 2);
            }
            eng_session_destroy(&cpu);
            eng_session_destroy(&cuda);
        }
}

/* Tokens may be in the host's memory before the drafts, which are copied after them: only the driver knows when a step has ended. It is asked
 * once for each, or it wakes the thread. */
TEST(each_wait_asks_the_driver)
{
    struct eng_session *session = open_session(cuda_path, 0);
    const struct cuda_backend *cuda = (const struct cuda_backend *)session->backend;
    struct eng_sequence *sequence = start(session, 5, 0);
    assert_true(cuda->copies_tokens);
    while (eng_sequence_state(sequence) != ENG_STATE_DECODE) CHECK(eng_step(session, NULL, &error));
    for (int step = 0; step < ANSWER / 2; step++) {
        const uint64_t before = fake.waits(FAKE_CUDA_ASKED) + fake.waits(FAKE_CUDA_SLEPT);
        CHECK(eng_step(session, NULL, &error));
        assert_int_equal(session->flight_count, 1);
        assert_true(fake.waits(FAKE_CUDA_ASKED) + fake.waits(FAKE_CUDA_SLEPT) > before);
    }
    assert_int_equal(fake.waits(FAKE_CUDA_SPUN), 0);
    eng_sequence_destroy(&sequence);
    eng_session_destroy(&session);
}

int main(int argc, char **argv)
{
    (void)argc;
    int result;
    if (!test_with_libraries(fake_folder, argv, &result)) return result;
    return test_run_with(build, begin, end, remove_all);
}
