/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation, mapping and thread start between eng_open and eng_close fails in turn: once, and from there on.
 * Each time the call that needed it ends with ENG_MACHINE and a message, or succeeds with the same results; nothing
 * leaks, and the next run of the same steps works. */
#include "tests/faults/faults.h"
#include "tests/test_fables.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 64, TEXT_BYTES = 1024, NEW_TOKENS = 4, CLEAN_RUN_EVERY = 101 };

/* The sanitized run takes every STRIDE-th failure; a prime, so that it falls on different steps of repeated patterns. */
#if defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 131 };
#else
enum { STRIDE = 1 };
#endif

static const char text[] = "Once upon a time \xff there was a fox";

/* Results of a run, the same in each. */
struct results {
    int32_t prompt[MOST_TOKENS], drawn[NEW_TOKENS];
    size_t prompt_count, drawn_count;
    char decoded[TEXT_BYTES], streamed[TEXT_BYTES];
    uint32_t selftest_tokens;
};

/* Resources of a run. */
struct run {
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_text *stream;
    struct eng_sequence *sequence;
    struct results results;
    const char *stage; /* the call that ran last */
    struct eng_error error;
};

#define STEP(call)                    \
    do {                              \
        run->stage = #call;           \
        if ((call) != ENG_OK) return; \
    } while (0)

static void stream_token(struct run *run, int32_t token)
{
    struct results *results = &run->results;
    const char *piece;
    size_t size;
    STEP(eng_text_push(run->stream, token, &piece, &size, &run->error));
    strncat(results->streamed, piece, sizeof results->streamed - strlen(results->streamed) - 1);
}

static void use_text(struct run *run)
{
    struct results *results = &run->results;
    size_t size;
    STEP(eng_tokenize(run->engine, text, sizeof text - 1, ENG_TEXT_ADD_SPECIAL, results->prompt, MOST_TOKENS,
                      &results->prompt_count, &run->error));
    STEP(eng_detokenize(run->engine, results->prompt, results->prompt_count, 0, results->decoded,
                        sizeof results->decoded, &size, &run->error));
    STEP(eng_text_create(run->engine, 0, &run->stream, &run->error));
}

static void use_session(struct run *run)
{
    struct results *results = &run->results;
    struct eng_session_options session_options;
    struct eng_sequence_options options;
    struct eng_selftest_result selftest;
    uint32_t unfinished = 1;
    eng_session_options_init(&session_options);
    session_options.threads = 4;
    session_options.kv_tokens = 2 * FABLES_CONTEXT;
    STEP(eng_session_create(run->engine, &session_options, &run->session, &run->error));
    eng_sequence_options_init(&options);
    options.max_new_tokens = NEW_TOKENS;
    options.prompt_logprobs = 2;
    STEP(eng_sequence_create(run->session, &options, &run->sequence, &run->error));
    STEP(eng_sequence_submit(run->sequence, results->prompt, results->prompt_count, &run->error));
    while (unfinished) STEP(eng_step(run->session, &unfinished, &run->error));
    results->drawn_count = eng_sequence_poll(run->sequence, results->drawn, NEW_TOKENS);
    for (size_t i = 0; i < results->drawn_count; i++) stream_token(run, results->drawn[i]);
    eng_selftest_result_init(&selftest);
    STEP(eng_selftest(run->session, &selftest, &run->error));
    results->selftest_tokens = selftest.tokens;
}

static void use_engine(struct run *run)
{
    memset(run, 0, sizeof *run);
    STEP(eng_open(fables_path(), NULL, &run->engine, &run->error));
    use_text(run);
    if (run->error.status == ENG_OK) use_session(run);
}

static void close_engine(struct run *run)
{
    eng_close(&run->engine); /* the session and the stream keep it alive */
    eng_text_destroy(&run->stream);
    eng_session_destroy(&run->session);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

struct held {
    long blocks, mappings;
    int descriptors;
};

static struct held held_now(void)
{
    int descriptors = open_descriptors();
    return (
        struct held){.blocks = faults_live_blocks(), .mappings = faults_live_mappings(), .descriptors = descriptors};
}

/* A run without failures. */
static void run_cleanly(struct results *results)
{
    static struct run run;
    use_engine(&run);
    if (run.error.status != ENG_OK) fail_msg("%s: %s", run.stage, run.error.message);
    close_engine(&run);
    *results = run.results;
}

enum { MOST_COMPLAINTS = 20 };

struct sweep {
    struct held before;
    struct results expected;
    unsigned long total, errors, survived, complaints;
};

static void complain(struct sweep *sweep, unsigned long nth, const struct run *run, const char *what)
{
    if (++sweep->complaints <= MOST_COMPLAINTS)
        print_error("call %lu of %lu fails, %s gives %s '%s': %s\n", nth, sweep->total, run->stage,
                    eng_status_name(run->error.status), run->error.message, what);
}

static void judge(struct sweep *sweep, unsigned long nth, const struct run *run)
{
    char text_of_leak[128];
    const struct held *before = &sweep->before, after = held_now();
    if (run->error.status == ENG_OK) {
        sweep->survived++;
        if (memcmp(&run->results, &sweep->expected, sizeof sweep->expected) != 0)
            complain(sweep, nth, run, "results differ");
    } else {
        sweep->errors++;
        if (run->error.status != ENG_MACHINE || !run->error.message[0])
            complain(sweep, nth, run, "expected the machine's status and a message");
    }
    if (after.blocks == before->blocks && after.mappings == before->mappings &&
        after.descriptors == before->descriptors)
        return;
    snprintf(text_of_leak, sizeof text_of_leak, "left: %ld blocks, %ld mappings, %d descriptors",
             after.blocks - before->blocks, after.mappings - before->mappings, after.descriptors - before->descriptors);
    complain(sweep, nth, run, text_of_leak);
    sweep->before = after;
}

static void fail_each(bool from_there_on, const char *name)
{
    static struct sweep sweep;
    static struct results again;
    static struct run run;
    memset(&sweep, 0, sizeof sweep);
    run_cleanly(&again); /* allocations that a library makes once per process are made now */
    sweep.before = held_now();
    faults_arm(0, false);
    run_cleanly(&sweep.expected);
    faults_disarm();
    sweep.total = faults_calls();
    assert_true(sweep.expected.prompt_count > 4);
    assert_int_equal(sweep.expected.drawn_count, NEW_TOKENS);
    assert_true(sweep.expected.selftest_tokens > 0);
    assert_true(sweep.total > 100);
    for (unsigned long nth = 1; nth <= sweep.total; nth += STRIDE) {
        faults_arm(nth, from_there_on);
        use_engine(&run);
        unsigned long failed = faults_disarm();
        close_engine(&run);
        if (failed == 0) complain(&sweep, nth, &run, "the call was not reached");
        judge(&sweep, nth, &run);
        if (nth % CLEAN_RUN_EVERY >= STRIDE) continue;
        run_cleanly(&again);
        assert_memory_equal(&again, &sweep.expected, sizeof again);
    }
    run_cleanly(&again);
    assert_memory_equal(&again, &sweep.expected, sizeof again);
    print_message("%s: %lu calls, every %d. failed: %lu errors, %lu survived\n", name, sweep.total, STRIDE,
                  sweep.errors, sweep.survived);
    assert_int_equal(sweep.complaints, 0);
    assert_true(sweep.errors > sweep.survived);
}

static void test_once(void **state) { fail_each(false, "once"); }

static void test_from_there_on(void **state) { fail_each(true, "from there on"); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_from_there_on),
    };
    int failed = cmocka_run_group_tests_name("one rank", tests, fables_build, fables_remove);
    return failed + cmocka_run_group_tests_name("two ranks", tests, fables_build_ranks, fables_remove);
}
