/* SPDX-License-Identifier: Apache-2.0 */
/* Engines for a GPU through the public API, with the fake driver (tests/fake_cuda): the same tokens and logits as on
 * the CPU, errors with a remedy, and no leak for any failing driver call. The program runs itself again with the fake's
 * folder in LD_LIBRARY_PATH. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/test_fake_cuda.h"
#include "runtime/eng_cuda.h"
#include "runtime/session/session.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/test_forks.h"

#include <dlfcn.h>
#include <sys/wait.h>

#include "tests/test_cuda_engine.h"

enum { SEQUENCES = 5, ANSWER = 14, PROMPT = 70, VOCAB = 1536, HIDDEN = 192 };

static const char fake_folder[] = "tests/fake_cuda/whole";
static char path[300];
static struct engine cpu_file;

static struct test_fake_cuda fake;

static int build(void **state)
{
    struct status status;
    fake = test_fake_cuda_find();
    if (fables_build_hidden(state)) return -1;
    snprintf(path, sizeof path, "%s.cuda", fables_path());
    if (!engine_open(&cpu_file, fables_path(), &status)) fail_msg("%s", status.message);
    cuda_engine_write(&cpu_file, path);
    return 0;
}

static int remove_all(void **state)
{
    unlink(path);
    cuda_engine_close();
    engine_close(&cpu_file);
    return fables_remove(state);
}

static int begin(void **state)
{
    test_fake_cuda_begin(&fake);
    return 0;
}

static int64_t lost; /* objects on a device whose context could not be entered to free them */

/* No test may leak resources or misuse the driver. */
static int end(void **state)
{
    assert_int_equal(fake.live(-1), lost);
    assert_int_equal(fake.misuse(), 0);
    return 0;
}

static struct eng_engine *open_engine(void)
{
    struct eng_engine *engine = NULL;
    CHECK(eng_open(path, NULL, &engine, &error));
    return engine;
}

struct answers {
    int32_t tokens[SEQUENCES][ANSWER];
    size_t counts[SEQUENCES];
};

/* Sequences that join one after the other, some ended by a stop token; returns ENG_OK or the first error. */
static enum eng_status generate(struct eng_session *session, const int32_t *stops, struct answers *answers)
{
    struct eng_sequence *sequences[SEQUENCES] = {NULL};
    struct eng_sampling sampling;
    struct eng_sequence_options options;
    int32_t prompt[PROMPT];
    uint32_t unfinished = 1;
    enum eng_status status = ENG_OK;
    memset(answers, 0, sizeof *answers);
    for (int joined = 0; !status && (unfinished || joined < SEQUENCES);) {
        if (joined < SEQUENCES) {
            eng_sampling_init(&sampling);
            eng_sequence_options_init(&options);
            if (joined % 2) {
                sampling.temperature = 0.9f;
                sampling.repetition_penalty = 1.2f;
                sampling.seed = (uint64_t)joined;
            }
            options.sampling = &sampling;
            options.max_new_tokens = ANSWER;
            options.flags = ENG_SEQUENCE_IGNORE_EOS;
            options.stop_tokens = stops ? &stops[joined] : NULL;
            options.stop_count = stops != NULL;
            fables_tokens((uint32_t)joined, prompt, PROMPT);
            status = eng_sequence_create(session, &options, &sequences[joined], &error);
            if (!status)
                status = eng_sequence_submit(sequences[joined], prompt, (size_t)(PROMPT - 15 * joined), &error);
            joined++;
        }
        if (!status) status = eng_step(session, &unfinished, &error);
        for (int i = 0; i < joined; i++)
            answers->counts[i] += eng_sequence_poll(sequences[i], answers->tokens[i] + answers->counts[i], ANSWER);
    }
    for (int i = 0; i < SEQUENCES; i++) eng_sequence_destroy(&sequences[i]);
    return status;
}

TEST(test_same_tokens_as_on_the_cpu)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    options.instruction_set = "portable";
    struct eng_engine *engines[2] = {fables_open(), open_engine()};
    struct eng_session *sessions[2] = {fables_session(engines[0], &options), fables_session(engines[1], NULL)};
    struct eng_session *another = fables_session(engines[1], NULL);
    for (int i = 0; i < 2; i++) eng_close(&engines[i]); /* the sessions keep them */
    struct answers expected, found;
    int32_t stops[SEQUENCES];
    CHECK(generate(sessions[0], NULL, &expected));
    CHECK(generate(sessions[1], NULL, &found));
    assert_memory_equal(&expected, &found, sizeof expected);
    for (int i = 0; i < SEQUENCES; i++) stops[i] = expected.tokens[i][3 + 2 * i];
    CHECK(generate(sessions[0], stops, &expected));
    for (int i = 0; i < 2; i++) {
        CHECK(generate(i ? another : sessions[1], stops, &found));
        assert_memory_equal(&expected, &found, sizeof expected);
    }
    for (int i = 0; i < 2; i++) eng_session_destroy(&sessions[i]);
    eng_session_destroy(&another);
}

/* Hidden states of a slot and of a sequence, copied from the GPU, are those of the CPU. */
TEST(test_hidden_states_of_the_gpu)
{
    struct eng_session_options on_cpu;
    struct eng_sequence_options options;
    float slots[2][HIDDEN], sequences[2][HIDDEN];
    int32_t prompt[PROMPT], drawn;
    eng_session_options_init(&on_cpu);
    on_cpu.threads = 1;
    on_cpu.instruction_set = "portable";
    eng_sequence_options_init(&options);
    options.max_new_tokens = 3;
    options.flags = ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_HIDDEN;
    fables_tokens(4, prompt, PROMPT);
    for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
        struct eng_engine *engine = on_gpu ? open_engine() : fables_open();
        struct eng_session *session = fables_session(engine, on_gpu ? NULL : &on_cpu);
        struct eng_sequence *sequence = NULL;
        uint32_t slot, unfinished = 1;
        CHECK(eng_slot_acquire(session, &slot, &error));
        CHECK(eng_prefill(session, slot, prompt, PROMPT, &drawn, NULL, &error));
        CHECK(eng_slot_hidden(session, slot, slots[on_gpu], &error));
        CHECK(eng_sequence_create(session, &options, &sequence, &error));
        CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
        while (unfinished) CHECK(eng_step(session, &unfinished, &error));
        assert_non_null(eng_sequence_hidden(sequence));
        memcpy(sequences[on_gpu], eng_sequence_hidden(sequence), sizeof sequences[0]);
        eng_session_destroy(&session);
        eng_close(&engine);
    }
    assert_memory_equal(slots[0], slots[1], sizeof slots[0]);
    assert_memory_equal(sequences[0], sequences[1], sizeof sequences[0]);
    assert_memory_not_equal(slots[0], sequences[0], sizeof slots[0]);
}

enum { PHRASE = 4, PATTERN = 44 };
static const int32_t phrase[PHRASE] = {0, 897, 920, 260};

/* A text that the model writes after the phrase. */
static void make_pattern(struct eng_session *session, int32_t pattern[PATTERN])
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    eng_sequence_options_init(&options);
    options.max_new_tokens = PATTERN - PHRASE;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    memcpy(pattern, phrase, sizeof phrase);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, phrase, PHRASE, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, pattern + PHRASE, PATTERN), PATTERN - PHRASE);
    eng_sequence_destroy(&sequence);
}

/* Greedy answers after parts of the text that begin anew; the last sequence is not drafted for, since its logits are fetched. */
static void repeat(struct eng_session *session, const int32_t pattern[PATTERN], struct answers *answers)
{
    struct eng_sequence *sequences[SEQUENCES];
    struct eng_sequence_options options;
    int32_t prompt[PATTERN + PHRASE];
    uint32_t unfinished = 1;
    memset(answers, 0, sizeof *answers);
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    for (int i = 0; i < SEQUENCES; i++) {
        const size_t part = (size_t)(PATTERN - 3 * i);
        options.flags = ENG_SEQUENCE_IGNORE_EOS | (i == SEQUENCES - 1 ? ENG_SEQUENCE_LOGITS : 0);
        memcpy(prompt, pattern, part * sizeof *prompt);
        memcpy(prompt + part, phrase, sizeof phrase);
        CHECK(eng_sequence_create(session, &options, &sequences[i], &error));
        CHECK(eng_sequence_submit(sequences[i], prompt, part + PHRASE, &error));
    }
    while (unfinished) {
        CHECK(eng_step(session, &unfinished, &error));
        for (int i = 0; i < SEQUENCES; i++)
            answers->counts[i] += eng_sequence_poll(sequences[i], answers->tokens[i] + answers->counts[i], ANSWER);
        const size_t count = answers->counts[SEQUENCES - 1];
        const float *logits = eng_sequence_logits(sequences[SEQUENCES - 1]);
        for (int t = 0; logits && count && t < VOCAB; t++)
            assert_true(logits[t] <= logits[answers->tokens[SEQUENCES - 1][count - 1]]);
    }
    for (int i = 0; i < SEQUENCES; i++) eng_sequence_destroy(&sequences[i]);
}

TEST(test_speculation_on_a_gpu)
{
    struct eng_session_options options;
    struct eng_session_facts facts;
    struct answers expected, found;
    int32_t pattern[PATTERN];
    eng_session_options_init(&options);
    eng_session_facts_init(&facts);
    struct eng_engine *engine = open_engine();
    struct eng_session *plain = fables_session(engine, &options);
    options.speculate = 5;
    struct eng_session *session = fables_session(engine, &options);
    eng_close(&engine);
    make_pattern(plain, pattern);
    repeat(plain, pattern, &expected);
    for (int i = 0; i < 2; i++) { /* the device's samplers are as they were */
        repeat(session, pattern, &found);
        assert_memory_equal(&expected, &found, sizeof expected);
    }
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_in_range(facts.accepted_tokens, ANSWER, facts.drafted_tokens);
    eng_session_destroy(&plain);
    eng_session_destroy(&session);
}

TEST(test_a_draft_engine_on_a_gpu)
{
    struct eng_session_options options;
    struct eng_session_facts facts;
    struct answers expected, found;
    int32_t pattern[PATTERN];
    eng_session_options_init(&options);
    eng_session_facts_init(&facts);
    struct eng_engine *engine = open_engine(), *draft = open_engine();
    struct eng_session *plain = fables_session(engine, &options);
    options.speculate = 5;
    options.draft = draft;
    struct eng_session *session = fables_session(engine, &options);
    eng_close(&engine);
    eng_close(&draft);
    make_pattern(plain, pattern);
    memset(pattern, 0, sizeof pattern / 2); /* little of it repeats itself */
    repeat(plain, pattern, &expected);
    for (int i = 0; i < 2; i++) {
        repeat(session, pattern, &found);
        assert_memory_equal(&expected, &found, sizeof expected);
    }
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_in_range(facts.accepted_tokens, ANSWER, facts.drafted_tokens);
    assert_true(session->draft->steps > 10);
    assert_int_equal(facts.device_bytes, session->backend->device_bytes + session->draft->backend->device_bytes);
    eng_session_destroy(&plain);
    eng_session_destroy(&session);
}

static void answer_turn(struct eng_session *session, struct eng_sequence *sequence, uint32_t seed, int32_t *answer)
{
    int32_t prompt[PROMPT];
    fables_tokens(seed, prompt, PROMPT);
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), ANSWER);
}

TEST(test_saved_pages_are_those_of_the_gpu)
{
    struct eng_engine *engine = open_engine();
    struct eng_session *session = fables_session(engine, NULL);
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    int32_t first[ANSWER], expected[ANSWER], found[ANSWER];
    char saved[320];
    snprintf(saved, sizeof saved, "%s.seq", path);
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_IGNORE_EOS | ENG_SEQUENCE_KEEP;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    answer_turn(session, sequence, 1, first);
    CHECK(eng_sequence_save(sequence, saved, &error));
    answer_turn(session, sequence, 2, expected);
    eng_session_destroy(&session);
    session = fables_session(engine, NULL);
    CHECK(eng_sequence_restore(session, saved, &options, &sequence, &error));
    answer_turn(session, sequence, 2, found);
    assert_memory_equal(expected, found, sizeof expected);
    eng_session_destroy(&session);
    eng_close(&engine);
    unlink(saved);
}

TEST(test_forks_copy_pages_of_the_gpu)
{
    struct eng_engine *engine = open_engine();
    struct eng_session *session = fables_session(engine, NULL);
    forks_check(session, VOCAB);
    eng_session_destroy(&session);
    eng_close(&engine);
}

TEST(test_slots_and_logits)
{
    struct eng_session_options options;
    struct eng_engine_facts facts;
    eng_session_options_init(&options);
    eng_engine_facts_init(&facts);
    options.threads = 1;
    options.instruction_set = "portable";
    struct eng_engine *engines[2] = {fables_open(), open_engine()};
    CHECK(eng_engine_get_facts(engines[1], &facts, &error));
    int32_t prompt[PROMPT], next[2][3], steps[2][12];
    fables_tokens(3, prompt, PROMPT);
    float *logits[2];
    for (int i = 0; i < 2; i++) {
        struct eng_session *session = fables_session(engines[i], i ? NULL : &options);
        logits[i] = malloc(3 * facts.vocab_size * sizeof(float));
        uint32_t slots[3];
        for (int k = 0; k < 3; k++) {
            CHECK(eng_slot_acquire(session, &slots[k], &error));
            CHECK(eng_prefill(session, slots[k], prompt, (size_t)(PROMPT - 20 * k), &next[i][k], logits[i], &error));
        }
        CHECK(eng_slot_truncate(session, slots[1], 30, &error));
        CHECK(eng_decode(session, slots, next[i], 3, next[i], logits[i], &error));
        CHECK(eng_decode_steps(session, slots, next[i], 3, 4, steps[i], &error));
        CHECK(eng_selftest(session, NULL, &error));
        eng_session_destroy(&session);
    }
    assert_memory_equal(next[0], next[1], sizeof next[0]);
    assert_memory_equal(steps[0], steps[1], sizeof steps[0]);
    assert_memory_equal(logits[0], logits[1], 3 * facts.vocab_size * sizeof(float));
    for (int i = 0; i < 2; i++) {
        free(logits[i]);
        eng_close(&engines[i]);
    }
}

/* A program that uses the GPU itself: its stream, and results where they are. */
TEST(test_a_program_on_the_same_gpu)
{
    test_fake_cuda_set(&fake, "FAKE_CUDA_DEVICES", 2);
    struct status status = {0};
    struct device own = {0}, other = {0};
    struct eng_engine *engine = open_engine(), *cpu = fables_open();
    struct eng_session *plain = fables_session(engine, NULL), *session = NULL;
    const float *there = NULL;
    void *stream = NULL, *ready = NULL;
    int number = -1;
    test_expect_success(device_open(&own, 0, &status) && device_open(&other, 1, &status), &status);

    assert_int_equal(eng_session_create_on_stream(engine, NULL, other.stream, &session, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "primary context of GPU 0"));
    assert_int_equal(eng_session_create_on_stream(engine, NULL, NULL, &session, &error), ENG_USAGE);
    assert_int_equal(eng_session_create_on_stream(cpu, NULL, own.stream, &session, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "one GPU alone"));
    assert_int_equal(eng_session_create_on_stream(engine, NULL, (void *)(uintptr_t)2, &session, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "found a default stream"));
    CHECK(eng_session_create_on_stream(engine, NULL, own.stream, &session, &error));
    CHECK(eng_session_cuda_stream(session, &stream, &number, &error));
    assert_ptr_equal(stream, own.stream);
    assert_int_equal(number, 0);
    CHECK(eng_session_cuda_stream(plain, &stream, NULL, &error));
    assert_true(stream && stream != own.stream);

    int32_t prompt[PROMPT], next[2][2];
    uint32_t slots[2];
    static float expected[2][VOCAB], found[VOCAB], hidden[2][HIDDEN];
    fables_tokens(3, prompt, PROMPT);
    for (int s = 0; s < 2; s++) { /* the same slots in both sessions */
        uint32_t slot;
        CHECK(eng_slot_acquire(plain, &slot, &error));
        CHECK(eng_slot_acquire(session, &slots[s], &error));
        assert_int_equal(slot, slots[s]);
        assert_int_equal(eng_slot_cuda_logits(session, slot, &there, &ready, &error), ENG_USAGE); /* no step yet */
        CHECK(eng_prefill(plain, slot, prompt, (size_t)(PROMPT - s), &next[0][s], expected[s], &error));
        CHECK(eng_prefill(session, slot, prompt, (size_t)(PROMPT - s), &next[1][s], NULL, &error));
        CHECK(eng_slot_cuda_logits(session, slot, &there, &ready, &error));
        assert_int_equal(own.driver.EventQuery(ready), CU_SUCCESS);
        test_expect_success(device_enter(&own, &status) && device_read(&own, found, (cu_deviceptr)(uintptr_t)there,
                                                                       sizeof found, "logits", &status),
                            &status);
        device_leave(&own);
        assert_memory_equal(found, expected[s], sizeof found);
    }
    assert_int_equal(eng_slot_cuda_logits(session, slots[0], &there, NULL, &error),
                     ENG_USAGE); /* not in the last step */
    assert_int_equal(eng_slot_cuda_logits(session, slots[0], NULL, NULL, &error), ENG_USAGE);
    CHECK(eng_decode(plain, slots, next[0], 2, next[0], *expected, &error));
    CHECK(eng_decode(session, slots, next[1], 2, next[1], NULL, &error));
    assert_memory_equal(next[0], next[1], sizeof next[0]);
    for (int s = 0; s < 2; s++) {
        CHECK(eng_slot_cuda_logits(session, slots[s], &there, &ready, &error));
        test_expect_success(device_enter(&own, &status) && device_read(&own, found, (cu_deviceptr)(uintptr_t)there,
                                                                       sizeof found, "logits", &status),
                            &status);
        assert_memory_equal(found, expected[s], sizeof found);
        CHECK(eng_slot_hidden(plain, slots[s], hidden[0], &error));
        CHECK(eng_slot_cuda_hidden(session, slots[s], &there, NULL, &error));
        test_expect_success(device_read(&own, hidden[1], (cu_deviceptr)(uintptr_t)there, sizeof hidden[1], "hidden",
                                        &status),
                            &status);
        device_leave(&own);
        assert_memory_equal(hidden[0], hidden[1], sizeof hidden[0]);
    }
    eng_session_destroy(&session);
    eng_session_destroy(&plain);
    eng_close(&engine);
    eng_close(&cpu);
    device_close(&own); /* the stream is still the program's */
    device_close(&other);
}

TEST(test_facts)
{
    struct eng_session_facts facts;
    struct eng_session_options options;
    eng_session_facts_init(&facts);
    eng_session_options_init(&options);
    struct eng_engine *engine = open_engine();
    assert_non_null(strstr(eng_info(engine), "\"capability\": 90"));
    options.kv_tokens = FABLES_CONTEXT;
    struct eng_session *session = fables_session(engine, &options);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_non_null(facts.device);
    assert_string_equal(facts.instruction_set, "sm_90a");
    assert_true(facts.device_bytes > facts.kv_bytes && facts.memory_bytes > facts.device_bytes);
    assert_int_equal(facts.pages, facts.free_pages);
    eng_session_destroy(&session);
    options.instruction_set = "avx2";
    assert_int_equal(eng_session_create(engine, &options, &session, &error), ENG_USAGE);
    eng_close(&engine);
}

static void refused(const struct eng_open_options *options, enum eng_status status, const char *const *parts)
{
    struct eng_engine *engine = NULL;
    assert_int_equal(eng_open(path, options, &engine, &error), status);
    assert_null(engine);
    for (; *parts; parts++)
        if (!strstr(error.message, *parts)) fail_msg("expected '%s' in '%s'", *parts, error.message);
}

/* The same GPU with the same number, whether the driver is shown only it or all; the environment is restored. */
TEST(test_the_only_user)
{
    struct eng_open_options options;
    struct answers answers[2];
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    for (uint32_t only = 0; only < 2; only++) {
        struct eng_engine *engine = NULL;
        test_fake_cuda_set(&fake, "FAKE_CUDA_DEVICES", 4);
        eng_open_options_init(&options);
        options.device = 2;
        options.only_cuda_user = only;
        CHECK(eng_open(path, &options, &engine, &error));
        assert_null(getenv("CUDA_VISIBLE_DEVICES"));
        assert_null(getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
        assert_non_null(strstr(eng_info(engine), "\"number\": 2"));
        assert_non_null(strstr(eng_info(engine), "\"GPU-20212223-")); /* as the fake driver names its third */
        struct eng_session *session = fables_session(engine, NULL);
        CHECK(generate(session, NULL, &answers[only]));
        eng_session_destroy(&session);
        /* Another engine uses the GPUs that the driver was shown, with the same numbers, with and without
         * only_cuda_user. */
        struct eng_engine *other = NULL;
        for (options.only_cuda_user = 0; options.only_cuda_user < 2; options.only_cuda_user++) {
            options.device = 2;
            CHECK(eng_open(path, &options, &other, &error));
            assert_non_null(strstr(eng_info(other), "\"GPU-20212223-"));
            eng_close(&other);
            options.device = 3;
            assert_int_equal(eng_open(path, &options, &other, &error), only ? ENG_MACHINE : ENG_OK);
            if (only) assert_non_null(strstr(error.message, "GPU 3: expected one that the driver was shown"));
            eng_close(&other);
        }
        eng_close(&engine);
    }
    assert_memory_equal(&answers[0], &answers[1], sizeof answers[0]);
    test_fake_cuda_set(&fake, "FAKE_CUDA_DEVICES", 4);
    options.device = 9;
    refused(&options, ENG_MACHINE,
            (const char *[]){"GPU 9, if there is one of that number", "nvidia-smi lists a GPU", "CUDA_VISIBLE_DEVICES",
                             NULL});
}

TEST(test_refusals)
{
    test_fake_cuda_set(&fake, "FAKE_CUDA_DEVICES", 0);
    refused(NULL, ENG_MACHINE, (const char *[]){"NVIDIA driver", "nvidia-smi", NULL});
    /* Engines for the CPU accept the option. */
    begin(NULL);
    struct eng_open_options options;
    eng_open_options_init(&options);
    options.device = 3;
    refused(&options, ENG_MACHINE, (const char *[]){"GPU 3", NULL});
    test_fake_cuda_set(&fake, "FAKE_CUDA_CAPABILITY", 80);
    refused(NULL, ENG_MACHINE, (const char *[]){"expected a GPU of compute capability 9.0", "8.0", "engbuild", NULL});
    begin(NULL);
    test_fake_cuda_set(&fake, "FAKE_CUDA_MEMORY", 1 << 20);
    refused(NULL, ENG_MACHINE, (const char *[]){"expected", "bytes free", "weights", "KV pages", "found", NULL});
}

TEST(test_pool_that_does_not_fit)
{
    struct eng_session_options options;
    struct eng_session_facts facts;
    struct eng_session *session;
    eng_session_options_init(&options);
    eng_session_facts_init(&facts);
    test_fake_cuda_set(&fake, "FAKE_CUDA_MEMORY", 48 << 20);
    struct eng_engine *engine = open_engine();
    session = fables_session(engine, NULL); /* what fits */
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_true(facts.kv_bytes < 48 << 20);
    struct eng_session *second;
    options.kv_bytes = 48 << 20;
    eng_session_destroy(&session);
    if (facts.pages < FABLES_BATCH * FABLES_CONTEXT / 16) {
        assert_int_equal(eng_session_create(engine, &options, &second, &error), ENG_MACHINE);
        assert_non_null(strstr(error.message, "kv_tokens"));
    }
    eng_close(&engine);
}

/* Opens the engine with one byte of the file changed. */
static void refused_with_damage(uint64_t at, const char *section)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    int byte = fgetc(file);
    for (int change = 1; change >= 0; change--) {
        assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
        assert_int_equal(fputc(byte ^ change, file), byte ^ change);
        fflush(file);
        if (change) refused(NULL, ENG_CORRUPT, (const char *[]){section, "checksum", NULL});
    }
    fclose(file);
}

TEST(test_damage)
{
    (void)state;
    struct status status;
    struct engine engine;
    assert_true(engine_open(&engine, path, &status));
    const uint64_t weights_end = (uint64_t)(engine.weights - engine.bytes) + engine.manifest.weights_bytes,
                   size = engine.size;
    engine_close(&engine);
    refused_with_damage(weights_end - 100, "section 'weights'");
    refused_with_damage(size - 1, "section 'golden'");
    /* The GPU is opened at the same time: of two failures the file's is reported. */
    test_fake_cuda_set(&fake, "FAKE_CUDA_DEVICES", 0);
    refused_with_damage(size - 1, "section 'golden'");
}

TEST(test_each_call_failing)
{
    struct answers answers;
    struct eng_open_options open_options;
    eng_open_options_init(&open_options);
    open_options.threads = 1;
    const bool is_sanitized = test_sanitized();
    uint64_t failures = 0, step = 1;
    for (uint64_t call = 1;; call += step) {
        struct eng_engine *engine = NULL;
        struct eng_session *session = NULL;
        test_fake_cuda_set(&fake, "FAKE_CUDA_FAIL_CALL", call);
        error.message[0] = '\0';
        enum eng_status status = eng_open(path, &open_options, &engine, &error);
        if (!status) {
            step = is_sanitized ? 9 : 3; /* graphs and steps repeat */
            status = eng_session_create(engine, NULL, &session, &error);
        }
        if (!status) {
            status = generate(session, NULL, &answers);
            if (status) {
                /* The failure is permanent. */
                struct eng_error again;
                assert_int_equal(eng_step(session, NULL, &again), status);
                assert_string_equal(again.message, error.message);
            }
        }
        eng_session_destroy(&session);
        eng_close(&engine);
        /* Resources that cannot be released because the context cannot be entered are released with the context. */
        if (status && fake.live(-1) != lost)
            fail_msg("call %llu failing leaves %lld objects: %s", (unsigned long long)call,
                     (long long)(fake.live(-1) - lost), error.message);
        lost = fake.live(-1);
        if (fake.misuse())
            fail_msg("call %llu failing: %llu calls that are wrong: %s", (unsigned long long)call,
                     (unsigned long long)fake.misuse(), error.message);
        if (!status && call > fake.calls()) break;
        if (!status) continue; /* the failure of this call does no harm */
        assert_int_equal(status, ENG_MACHINE);
        assert_true(error.message[0]);
        failures++;
    }
    const uint64_t least = is_sanitized ? 30 : 100;
    if (failures <= least)
        fail_msg("%llu failures, expected more than %llu", (unsigned long long)failures, (unsigned long long)least);
}

/* A sequence without an end that draws its first token. */
static struct eng_sequence *start_sequence(struct eng_session *session, uint32_t flags)
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t prompt[PROMPT];
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_IGNORE_EOS | flags;
    fables_tokens(3, prompt, PROMPT);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
    while (eng_sequence_state(sequence) != ENG_STATE_DECODE) CHECK(eng_step(session, NULL, &error));
    return sequence;
}

/* A step with another one queued after it is not polled: its tokens are there, or the thread sleeps. The first step with none after it is
 * polled, and no wait spins in the driver. */
TEST(test_waits_that_sleep)
{
    struct eng_engine *engine = open_engine();
    struct eng_session *session = fables_session(engine, NULL);
    struct eng_sequence *sequence = start_sequence(session, 0);
    for (uint64_t step = 0; step < 40; step++) {
        const uint64_t asked = fake.waits(FAKE_CUDA_ASKED);
        CHECK(eng_step(session, NULL, &error));
        assert_int_equal(session->flight_count, 1);
        assert_int_equal(fake.waits(FAKE_CUDA_ASKED), asked);
    }
    assert_int_equal(fake.waits(FAKE_CUDA_SPUN), 0);
    eng_sequence_destroy(&sequence);
    eng_session_destroy(&session);

    /* Logits are fetched after each step, so that none is queued ahead. */
    session = fables_session(engine, NULL);
    sequence = start_sequence(session, ENG_SEQUENCE_LOGITS);
    const uint64_t asked = fake.waits(FAKE_CUDA_ASKED);
    CHECK(eng_step(session, NULL, &error));
    assert_int_equal(session->flight_count, 0);
    assert_true(fake.waits(FAKE_CUDA_ASKED) > asked);
    assert_int_equal(fake.waits(FAKE_CUDA_SPUN), 0);
    eng_sequence_destroy(&sequence);
    eng_session_destroy(&session);
    eng_close(&engine);
}

/* A wait makes two calls, as the fake driver's first answer is that the event has not completed: either may fail, with the same message. */
TEST(test_waits_that_fail)
{
    struct eng_engine *engine = open_engine();
    uint32_t failures = 0;
    bool none_failed = false;
    for (uint64_t call = 1; !none_failed; call++) {
        struct eng_session *session = fables_session(engine, NULL);
        int32_t prompt[PROMPT], next;
        uint32_t slot;
        fables_tokens(3, prompt, PROMPT);
        CHECK(eng_slot_acquire(session, &slot, &error));
        const uint64_t before = fake.calls();
        fake.fail_next(call);
        const enum eng_status status = eng_prefill(session, slot, prompt, PROMPT, &next, NULL, &error);
        none_failed = fake.calls() - before < call;
        assert_true(status == ENG_OK || status == ENG_MACHINE);
        if (status && strstr(error.message, "running a step")) failures++;
        fake.fail_next(UINT64_MAX / 2); /* none */
        eng_session_destroy(&session);
    }
    assert_int_equal(failures, 2);
    eng_close(&engine);
}

/* In a child made by fork no call reaches the driver, which does not know that process; handles are dropped. */
TEST(test_child)
{
    enum { LIMIT_SECONDS = 60 };
    struct answers answers;
    struct eng_engine *engine = open_engine();
    struct eng_session *session = NULL, *second = NULL;
    int result = 0;
    CHECK(eng_session_create(engine, NULL, &session, &error));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(LIMIT_SECONDS);
        uint64_t calls = fake.calls();
        int wrong = 0;
        if (generate(session, NULL, &answers) != ENG_USAGE || !strstr(error.message, "fork")) wrong |= 1;
        if (eng_step(session, NULL, &error) != ENG_USAGE || !strstr(error.message, "fork")) wrong |= 2;
        if (eng_session_create(engine, NULL, &second, &error) != ENG_USAGE || !strstr(error.message, "fork"))
            wrong |= 4;
        eng_session_destroy(&session);
        eng_close(&engine);
        if (session || engine || second) wrong |= 8;
        if (fake.calls() != calls) wrong |= 16;
        _exit(wrong);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
    CHECK(generate(session, NULL, &answers));
    eng_session_destroy(&session);
    eng_close(&engine);
}

int main(int argc, char **argv)
{
    (void)argc;
    int result;
    if (!test_with_libraries(fake_folder, argv, &result)) return result;
    return test_run_with(build, begin, end, remove_all);
}
