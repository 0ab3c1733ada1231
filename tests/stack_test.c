/* SPDX-License-Identifier: Apache-2.0 */
/* The stack limits of eng.h: callers need little, and the stacks of the session's threads do not depend on the
 * process's limits. Steps of all kinds, with the longest prompt of the engine, run on a small stack, whose use is
 * measured. */
#include "tests/test_fables.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
enum { SCALE = 8 }; /* every variable has red zones */
#else
enum { SCALE = 1 };
#endif

enum { FRESH = 0xa5, PROMPT = FABLES_CONTEXT - 40 };

struct job {
    enum eng_status (*run)(struct job *job);
    struct eng_session *session;
    int32_t prompt[PROMPT];
    struct eng_error error;
    enum eng_status status;
};

static enum eng_status run_session(struct job *job)
{
    static float logits[FABLES_BATCH * 2048];
    struct eng_sequence_options options;
    struct eng_sampling sampling;
    struct eng_sequence *sequence;
    uint32_t unfinished = 1, slot;
    int32_t next, drawn[3];
    enum eng_status status;
    eng_sampling_init(&sampling);
    eng_sequence_options_init(&options);
    sampling.temperature = 1;
    sampling.top_p = 0.9f;
    sampling.repetition_penalty = 1.1f;
    options.sampling = &sampling;
    options.max_new_tokens = 20;
    status = eng_sequence_create(job->session, &options, &sequence, &job->error);
    if (!status) status = eng_sequence_submit(sequence, job->prompt, PROMPT, &job->error);
    while (!status && unfinished) status = eng_step(job->session, &unfinished, &job->error);
    if (!status) eng_sequence_destroy(&sequence);
    if (!status) status = eng_slot_acquire(job->session, &slot, &job->error);
    if (!status) status = eng_prefill(job->session, slot, job->prompt, PROMPT, &next, logits, &job->error);
    if (!status) status = eng_decode(job->session, &slot, &next, 1, &next, logits, &job->error);
    if (!status) status = eng_decode_steps(job->session, &slot, &next, 1, 3, drawn, &job->error);
    if (!status) status = eng_slot_release(job->session, slot, &job->error);
    return status;
}

/* Calls with the larger limit: an engine's whole life. */
static enum eng_status run_engine(struct job *job)
{
    static const char text[] = "Once upon a time there was a fox";
    struct eng_engine *engine = NULL;
    struct eng_text *stream = NULL;
    int32_t tokens[64];
    char decoded[512];
    size_t count, size;
    enum eng_status status = eng_open(fables_path(), NULL, &engine, &job->error);
    if (!status) status = eng_tokenize(engine, text, strlen(text), 0, tokens, 64, &count, &job->error);
    if (!status) status = eng_detokenize(engine, tokens, count, 0, decoded, sizeof decoded, &size, &job->error);
    if (!status) status = eng_text_create(engine, 0, &stream, &job->error);
    if (!status) status = eng_session_create(engine, NULL, &job->session, &job->error);
    if (!status) status = eng_selftest(job->session, NULL, &job->error);
    eng_session_destroy(&job->session);
    eng_text_destroy(&stream);
    eng_close(&engine);
    return status;
}

static void *run_job(void *argument)
{
    struct job *job = argument;
    job->status = job->run(job);
    return NULL;
}

/* Runs the job on a thread with `bytes` of stack below a guard page; returns how much of it was used. */
static size_t run_on_stack(struct job *job, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), used = bytes;
    pthread_attr_t attributes;
    pthread_t thread;
    uint8_t *base = mmap(NULL, page + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    assert_int_equal(mprotect(base, page, PROT_NONE), 0);
    memset(base + page, FRESH, bytes);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstack(&attributes, base + page, bytes), 0);
    assert_int_equal(pthread_create(&thread, &attributes, run_job, job), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
    for (const uint8_t *at = base + page; used > 0 && *at == FRESH; at++) used--;
    munmap(base, page + bytes);
    return used;
}

static void run_sessions(uint32_t threads)
{
    static struct job job;
    struct eng_engine *engine = fables_open();
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = threads;
    job = (struct job){.run = run_session, .session = fables_session(engine, &options)};
    fables_tokens(3, job.prompt, PROMPT);
    size_t used = run_on_stack(&job, (size_t)SCALE * ENG_STACK_BYTES);
    expect_ok(job.status, &job.error, "the session on a small stack");
    print_message("%u threads: %zu bytes of stack used, the thread's own among them\n", threads, used);
    eng_session_destroy(&job.session);
    eng_close(&engine);
}

static void test_caller(void **state)
{
    run_sessions(1);
    run_sessions(3);
}

static void test_setup(void **state)
{
    static struct job job = {.run = run_engine};
    size_t used = run_on_stack(&job, (size_t)SCALE * ENG_SETUP_STACK_BYTES);
    expect_ok(job.status, &job.error, "an engine on a small stack");
    print_message("%zu bytes of stack used\n", used);
}

/* As under `ulimit -s 32`, or in a program that asks for small stacks by default. */
static void test_workers(void **state)
{
    pthread_attr_t attributes, small;
    assert_int_equal(pthread_getattr_default_np(&attributes), 0);
    assert_int_equal(pthread_getattr_default_np(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, (size_t)SCALE * 32768), 0);
    assert_int_equal(pthread_setattr_default_np(&small), 0);
    run_sessions(4);
    assert_int_equal(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
    pthread_attr_destroy(&small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_caller),
        cmocka_unit_test(test_setup),
        cmocka_unit_test(test_workers),
    };
    int failed = cmocka_run_group_tests_name("one rank", tests, fables_build, fables_remove);
    return failed + cmocka_run_group_tests_name("two ranks", tests, fables_build_ranks, fables_remove);
}
