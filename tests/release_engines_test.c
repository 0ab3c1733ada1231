/* SPDX-License-Identifier: Apache-2.0 */
/* Small engines of every release since format 2.0 (formats/testdata): they must load and give their tokens in every later
 * release. One runs on the processor, one on the fake driver (tests/fake_cuda) with a kernel for each plan that replays the
 * processor's plan. Before a release, its own are written by
 *
 *     bazel run //tests:release_engines_test -- --write $PWD/formats/testdata
 *
 * which prints the tokens for the table below. Engines of an earlier release are never written again. */
#include "builder/test_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "builder/build.h"
#include "kernels/cuda/test_fake_cuda.h"
#include "tests/test_cuda_engine.h"
#include "tests/test_fables.h"

enum { PROMPT = 11, ANSWER = 12, CONTEXT = 40 };

static const char fake_folder[] = "tests/fake_cuda/whole", data_folder[] = "formats/testdata";

/* The greedy continuation of make_prompt, which passes from one KV page to the next. */
static const struct release {
    const char *format;
    int32_t tokens[ANSWER];
} releases[] = {
    {"2_0", {19, 24, 19, 19, 24, 34, 34, 34, 34, 30, 19, 36}},
};

static void make_prompt(int32_t prompt[PROMPT])
{
    for (int i = 0; i < PROMPT; i++) prompt[i] = (i * 7 + 3) % TEST_VOCAB;
}

static void generate(const char *path, const char *instruction_set, int32_t tokens[ANSWER])
{
    struct eng_engine *engine = NULL;
    struct eng_session *session = NULL;
    struct eng_sequence *sequence = NULL;
    struct eng_session_options session_options;
    struct eng_sequence_options options;
    int32_t prompt[PROMPT];
    uint32_t unfinished = 1;
    size_t count = 0;
    make_prompt(prompt);
    eng_session_options_init(&session_options);
    session_options.threads = 1;
    session_options.instruction_set = instruction_set;
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    CHECK(eng_open(path, NULL, &engine, &error));
    CHECK(eng_session_create(engine, &session_options, &session, &error));
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
    while (unfinished) {
        CHECK(eng_step(session, &unfinished, &error));
        count += eng_sequence_poll(sequence, tokens + count, ANSWER - count);
    }
    assert_int_equal(count, ANSWER);
    CHECK(eng_selftest(session, NULL, &error)); /* the golden tokens and logits of the file */
    eng_sequence_destroy(&sequence);
    eng_session_destroy(&session);
    eng_close(&engine);
}

/* ---- checks ---- */

static void expect_tokens(const char *path, const char *instruction_set, const int32_t expected[ANSWER])
{
    int32_t tokens[ANSWER];
    generate(path, instruction_set, tokens);
    for (int i = 0; i < ANSWER; i++)
        if (tokens[i] != expected[i]) fail_msg("%s: token %d: expected %d, found %d", path, i, expected[i], tokens[i]);
}

static void engines_of_every_release_give_their_tokens(void **state)
{
    for (size_t i = 0; i < sizeof releases / sizeof *releases; i++) {
        char cpu_path[128], cuda_path[128];
        struct engine cpu;
        struct status status = {0};
        snprintf(cpu_path, sizeof cpu_path, "%s/engine_%s_cpu", data_folder, releases[i].format);
        snprintf(cuda_path, sizeof cuda_path, "%s/engine_%s_cuda", data_folder, releases[i].format);
        expect_tokens(cpu_path, NULL, releases[i].tokens);
        expect_tokens(cpu_path, "portable", releases[i].tokens);
        if (!engine_open(&cpu, cpu_path, &status)) fail_msg("%s", status.message);
        cuda_engine_learn(&cpu);
        expect_tokens(cuda_path, NULL, releases[i].tokens);
        cuda_engine_close();
        engine_close(&cpu);
    }
}

/* ---- written before a release ---- */

static void build_engine_of(const char *model, const char *output)
{
    struct build_options options;
    struct status status = {0};
    build_options_init(&options);
    options.model = model;
    options.output = output;
    options.target = TARGET_CPU;
    options.max_context = CONTEXT;
    options.max_batch = 2;
    options.prefill_chunks[0] = 8;
    options.prefill_chunk_count = 1;
    options.tune = TUNE_OFF;
    options.tuning_cache = NULL;
    options.progress = NULL;
    options.out = fopen("/dev/null", "w");
    assert_non_null(options.out);
    if (!build_engine(&options, &status)) fail_msg("%s", status.message);
    fclose(options.out);
}

static const char *folder_to_write;

static void engines_are_written(void **state)
{
    char cpu_path[4096], cuda_path[4096], *model = test_folder();
    struct test_model checkpoint;
    struct engine cpu;
    struct status status = {0};
    int32_t tokens[ANSWER];
    snprintf(cpu_path, sizeof cpu_path, "%s/engine_%d_%d_cpu", folder_to_write, ENGINE_MAJOR, ENGINE_MINOR);
    snprintf(cuda_path, sizeof cuda_path, "%s/engine_%d_%d_cuda", folder_to_write, ENGINE_MAJOR, ENGINE_MINOR);
    test_model_init(&checkpoint, TEST_QWEN3, DTYPE_F32);
    test_model_write(&checkpoint, model);
    build_engine_of(model, cpu_path);
    if (!engine_open(&cpu, cpu_path, &status)) fail_msg("%s", status.message);
    cuda_engine_write(&cpu, cuda_path);
    cuda_engine_close();
    engine_close(&cpu);
    generate(cpu_path, "portable", tokens);
    for (int i = 0; i < ANSWER; i++) printf("%s%d", i ? ", " : "tokens: {", tokens[i]);
    printf("}\n");
    test_folder_remove(model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest check[] = {cmocka_unit_test(engines_of_every_release_give_their_tokens)};
    const struct CMUnitTest write[] = {cmocka_unit_test(engines_are_written)};
    int result;
    if (argc == 3 && strcmp(argv[1], "--write") == 0) folder_to_write = argv[2];
    if (!test_with_libraries(fake_folder, argv, &result)) return result;
    return folder_to_write ? cmocka_run_group_tests(write, NULL, NULL) : cmocka_run_group_tests(check, NULL, NULL);
}
