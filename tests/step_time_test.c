/* SPDX-License-Identifier: Apache-2.0 */
/* step_ms on a clock of the test's own: a step takes the time that the test gives to its rows, so that what the scheduler learns and
 * decides is the same on every machine. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/session/session.h"

enum { BUDGET_MS = 40, LEAST_ROWS = 8, LONGEST = 380, MOST_STEPS = 400 };

/* The clock, which replays of backend_cpu move on. */
static struct {
    bool is_used;
    double now_ms, step_ms, row_ms; /* row_ms: of each row after the first one of step_ms */
    struct eng_session *session;
    size_t plan; /* submitted last */
    int32_t rows;
} test_clock;

/* In place of the C library's. */
int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!test_clock.is_used || clock != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, clock, time);
    time->tv_sec = (time_t)(test_clock.now_ms / 1e3);
    time->tv_nsec = (long)((test_clock.now_ms - (double)time->tv_sec * 1e3) * 1e6);
    return 0;
}

static bool submit(struct backend *backend, size_t plan, enum backend_inputs inputs, struct status *status)
{
    test_clock.plan = plan;
    return backend_cpu.submit(backend, plan, inputs, status);
}

static const int32_t *wait_timed(struct backend *backend, struct status *status)
{
    const int32_t *drawn = backend_cpu.wait(backend, status);
    test_clock.rows = test_clock.session->plans[test_clock.plan].counts[0];
    test_clock.now_ms += test_clock.step_ms + test_clock.row_ms * (test_clock.rows - 1);
    return drawn;
}

static struct backend_type timed;

static struct backend *create(struct eng_engine *engine, const struct backend_options *options, struct status *status)
{
    struct backend *backend = backend_cpu.create(engine, options, status);
    if (backend) backend->type = &timed;
    return backend;
}

static struct eng_sequence *start(struct eng_session *session, uint32_t seed, size_t count, uint32_t answer)
{
    static int32_t tokens[LONGEST];
    struct eng_sequence *sequence;
    struct eng_sequence_options options;
    fables_tokens(seed, tokens, count);
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    options.max_new_tokens = answer;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, tokens, count, &error));
    return sequence;
}

static struct eng_session *open_session(struct eng_engine *engine, uint32_t step_ms, uint32_t prompt_step)
{
    struct eng_session_options options;
    timed = backend_cpu;
    timed.create = create;
    timed.submit = submit;
    timed.wait = wait_timed;
    eng_session_options_init(&options);
    options.threads = 1; /* others would wait by the clock */
    options.step_ms = step_ms;
    options.prompt_step = prompt_step;
    options.no_prefix_cache = 1;
    struct eng_session *session = fables_session_on(&timed, engine, &options);
    test_clock.session = session;
    test_clock.now_ms = 1000;
    test_clock.step_ms = 4;
    test_clock.row_ms = 1;
    test_clock.is_used = true;
    return session;
}

static void close_session(struct eng_session **session)
{
    test_clock.is_used = false;
    eng_session_destroy(session);
}

/* Steps of prompts beside a sequence that decodes. */
struct run {
    size_t count;
    double ms[MOST_STEPS];
    int32_t rows[MOST_STEPS];
};

/* Steps until all prompts are computed; row_ms becomes `later` at step `change`. */
static struct run run_prompts(struct eng_session *session, struct eng_sequence *const *readers, size_t count,
                              size_t change, double later)
{
    struct run run = {0};
    for (size_t step = 0;; step++) {
        bool reads = false;
        for (size_t i = 0; i < count; i++)
            reads = reads || eng_sequence_state(readers[i]) == ENG_STATE_WAITING ||
                    eng_sequence_state(readers[i]) == ENG_STATE_PREFILL;
        if (!reads) return run;
        assert_true(step < MOST_STEPS);
        if (step == change) test_clock.row_ms = later;
        const double before = test_clock.now_ms;
        CHECK(eng_step(session, NULL, &error));
        if (test_clock.rows == 1) continue; /* the decode step between two prefill steps */
        run.ms[run.count] = test_clock.now_ms - before;
        run.rows[run.count++] = test_clock.rows;
    }
}

static double longest(const struct run *run, size_t from)
{
    double most = 0;
    for (size_t i = from; i < run->count; i++) most = run->ms[i] > most ? run->ms[i] : most;
    return most;
}

/* A sequence decodes from the first step on. */
static void begin_answer(struct eng_session *session)
{
    struct eng_sequence *talker = start(session, 0, 4, 300);
    CHECK(eng_step(session, NULL, &error));
    assert_int_equal(eng_sequence_state(talker), ENG_STATE_DECODE);
}

/* All steps end in time, and later ones use most of it; without step_ms they take as many rows as the plans have. */
static void check_budget(struct eng_engine *engine, size_t prompts)
{
    struct eng_sequence *readers[2];
    for (uint32_t step_ms = 0; step_ms <= BUDGET_MS; step_ms += BUDGET_MS) {
        struct eng_session *session = open_session(engine, step_ms, 0);
        begin_answer(session);
        for (size_t i = 0; i < prompts; i++) readers[i] = start(session, 1 + (uint32_t)i, LONGEST, 2);
        const struct run run = run_prompts(session, readers, prompts, SIZE_MAX, 0);
        assert_true(run.count > 4);
        if (step_ms) {
            assert_true(longest(&run, 0) <= BUDGET_MS);
            assert_true(longest(&run, run.count / 2) >= BUDGET_MS * 0.8);
        } else {
            assert_true(longest(&run, 0) > BUDGET_MS * 1.5);
        }
        close_session(&session);
    }
}

TEST(test_steps_end_in_time) { check_budget(fables, 1); }
TEST(test_prompts_share_the_time) { check_budget(fables, 2); }

TEST(test_without_mixed_plans)
{
    char path[256];
    struct status status = {0};
    struct eng_open_options options;
    struct eng_engine *engine;
    snprintf(path, sizeof path, "%s.unmixed", fables_path());
    if (!fables_build_without_mixed(path, &status)) fail_msg("%s", status.message);
    eng_open_options_init(&options);
    CHECK(eng_open(path, &options, &engine, &error));
    check_budget(engine, 1);
    eng_close(&engine);
    unlink(path);
}

/* Rows that become slower than all before: a step takes too long, from which the next ones learn. */
TEST(test_slower_rows)
{
    enum { CHANGE = 5, LEARNT = 4 };
    struct eng_session *session = open_session(fables, BUDGET_MS, 0);
    begin_answer(session);
    struct eng_sequence *readers[2];
    for (uint32_t i = 0; i < 2; i++) readers[i] = start(session, 1 + i, LONGEST, 2);
    const struct run run = run_prompts(session, readers, 2, CHANGE, 2.5);
    assert_true(longest(&run, 0) > BUDGET_MS); /* the first slow one */
    assert_true(run.count > CHANGE + LEARNT + 4);
    assert_true(longest(&run, CHANGE + LEARNT) <= BUDGET_MS * 1.01);
    close_session(&session);
}

/* Prompts go on by a few rows a step where no time is left for them; prompt_step is a limit of its own. */
TEST(test_least_and_most_rows)
{
    static const struct {
        uint32_t step_ms, prompt_step;
        int32_t rows;
    } cases[] = {{1, 0, LEAST_ROWS}, {1, 3, 3}, {10000, 20, 20}, {0, 20, 20}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct eng_session *session = open_session(fables, cases[i].step_ms, cases[i].prompt_step);
        begin_answer(session);
        struct eng_sequence *reader = start(session, 1, 200, 2);
        const struct run run = run_prompts(session, &reader, 1, SIZE_MAX, 0);
        int32_t most = 0;
        for (size_t s = 0; s < run.count; s++) most = run.rows[s] > most ? run.rows[s] : most;
        assert_int_equal(most, cases[i].rows + 1); /* and the row that decodes */
        close_session(&session);
    }
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
