/* SPDX-License-Identifier: Apache-2.0 */
/* A child made by fork has a copy of the session's memory and none of its threads. Functions that would run the session
 * in the child are refused; destroying it there releases memory without waiting; a session made by the child works. */
#include "tests/test_fables.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER = 6, PROMPT = 9, LIMIT_SECONDS = 60 };

struct parent {
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_sequence *sequence; /* submitted, not done */
    uint32_t slot;                 /* holds the prompt */
    struct eng_session_options options;
    int32_t prompt[PROMPT], expected[ANSWER];
};

static bool generate(struct eng_session *session, const int32_t *prompt, int32_t *tokens)
{
    struct eng_sequence *sequence;
    struct eng_sequence_options options;
    uint32_t unfinished = 1;
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    if (eng_sequence_create(session, &options, &sequence, &error) ||
        eng_sequence_submit(sequence, prompt, PROMPT, &error))
        return false;
    while (unfinished)
        if (eng_step(session, &unfinished, &error)) return false;
    bool all = eng_sequence_poll(sequence, tokens, ANSWER) == ANSWER;
    eng_sequence_destroy(&sequence);
    return all;
}

/* Runs check(parent) in a child. In it cmocka's assertions would return to the parent's test. */
static void in_child(struct parent *parent, const char *(*check)(struct parent *parent), const char *name)
{
    int result = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(LIMIT_SECONDS); /* a call that waits for a thread of the parent would never return */
        const char *wrong = check(parent);
        if (wrong) fprintf(stderr, "%s: %s\n", name, wrong);
        _exit(wrong ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    if (WIFSIGNALED(result)) fail_msg("%s: signal %d", name, WTERMSIG(result));
    if (WEXITSTATUS(result)) fail_msg("%s: failed", name);
}
#define IN_CHILD(parent, check) in_child((parent), (check), #check)

static bool refused(enum eng_status status)
{
    return status == ENG_USAGE && error.status == ENG_USAGE && strstr(error.message, "fork") != NULL;
}

static const char *child_runs(struct parent *parent)
{
    static float logits[2048];
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    struct eng_session *session = parent->session;
    uint32_t unfinished, slot;
    int32_t next = 0, several[4];
    eng_sequence_options_init(&options);
    if (!refused(eng_step(session, &unfinished, &error))) return "eng_step";
    if (!refused(eng_sequence_create(session, &options, &sequence, &error))) return "eng_sequence_create";
    if (!refused(eng_slot_acquire(session, &slot, &error))) return "eng_slot_acquire";
    if (!refused(eng_prefill(session, parent->slot, parent->prompt, 2, &next, logits, &error))) return "eng_prefill";
    if (!refused(eng_decode(session, &parent->slot, parent->prompt, 1, &next, NULL, &error))) return "eng_decode";
    if (!refused(eng_decode_steps(session, &parent->slot, parent->prompt, 1, 4, several, &error)))
        return "eng_decode_steps";
    if (!refused(eng_selftest(session, NULL, &error))) return "eng_selftest";
    return NULL;
}

static const char *child_destroys(struct parent *parent)
{
    eng_sequence_destroy(&parent->sequence);
    eng_session_destroy(&parent->session);
    eng_close(&parent->engine);
    return parent->session || parent->engine ? "a handle was left" : NULL;
}

static const char *child_has_its_own(struct parent *parent)
{
    struct eng_session *session;
    int32_t tokens[ANSWER];
    eng_session_destroy(&parent->session);
    if (eng_session_create(parent->engine, &parent->options, &session, &error)) return "eng_session_create";
    if (!generate(session, parent->prompt, tokens)) return "the session does not run";
    if (memcmp(tokens, parent->expected, sizeof tokens) != 0) return "other tokens";
    if (eng_selftest(session, NULL, &error)) return "eng_selftest";
    eng_session_destroy(&session);
    eng_close(&parent->engine);
    return NULL;
}

static const char *child_opens(struct parent *parent)
{
    eng_session_destroy(&parent->session);
    eng_close(&parent->engine);
    if (eng_open(fables_path(), NULL, &parent->engine, &error)) return "eng_open";
    return child_has_its_own(parent);
}

static void fork_children(uint32_t threads)
{
    struct parent parent = {0};
    struct eng_sequence_options options;
    int32_t tokens[ANSWER], next;
    eng_session_options_init(&parent.options);
    parent.options.threads = threads;
    parent.options.kv_tokens = 3 * FABLES_CONTEXT;
    fables_tokens(7, parent.prompt, PROMPT);
    parent.engine = fables_open();
    parent.session = fables_session(parent.engine, &parent.options);
    assert_true(generate(parent.session, parent.prompt, parent.expected));
    CHECK(eng_slot_acquire(parent.session, &parent.slot, &error));
    CHECK(eng_prefill(parent.session, parent.slot, parent.prompt, PROMPT, &next, NULL, &error));
    eng_sequence_options_init(&options);
    CHECK(eng_sequence_create(parent.session, &options, &parent.sequence, &error));
    CHECK(eng_sequence_submit(parent.sequence, parent.prompt, PROMPT, &error));

    IN_CHILD(&parent, child_runs);
    IN_CHILD(&parent, child_destroys);
    IN_CHILD(&parent, child_has_its_own);
    IN_CHILD(&parent, child_opens);

    eng_sequence_destroy(&parent.sequence);
    assert_true(generate(parent.session, parent.prompt, tokens));
    assert_memory_equal(tokens, parent.expected, sizeof tokens);
    eng_session_destroy(&parent.session);
    eng_close(&parent.engine);
}

static void test_fork(void **state)
{
    fork_children(2);
    fork_children(1);
    fork_children(4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork),
    };
    int failed = cmocka_run_group_tests_name("one rank", tests, fables_build, fables_remove);
    return failed + cmocka_run_group_tests_name("two ranks", tests, fables_build_ranks, fables_remove);
}
