/* SPDX-License-Identifier: Apache-2.0 */
/* How a program learns of tokens without asking each sequence: a file descriptor and a function; and sequences that other threads cancel
 * while a step runs. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { PROMPT = 20, ANSWER = 30, MOST = 64 };

static struct eng_sequence *begin(struct eng_session *session, uint32_t seed, uint32_t wanted, uint32_t flags)
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    int32_t prompt[PROMPT];
    eng_sequence_options_init(&options);
    options.max_new_tokens = wanted;
    options.flags = ENG_SEQUENCE_IGNORE_EOS | flags;
    fables_tokens(seed, prompt, PROMPT);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
    return sequence;
}

static struct eng_session *device_session(enum test_backend_pace pace)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    test_backend_settings = (struct test_backend_settings){.pace = pace};
    return fables_session_on(&test_backend, fables, &options);
}

static void assert_all_is_free(struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_int_equal(facts.free_pages, facts.pages);
    assert_int_equal(facts.free_slots, facts.slots);
}

static bool is_readable(int descriptor)
{
    struct pollfd asked = {.fd = descriptor, .events = POLLIN};
    const int count = poll(&asked, 1, 0);
    assert_in_range(count, 0, 1);
    return count == 1;
}

static void reset(int descriptor)
{
    uint64_t events;
    assert_int_equal(read(descriptor, &events, sizeof events), sizeof events);
    assert_true(events > 0);
}

TEST(the_descriptor_is_readable_when_there_are_tokens)
{
    int descriptor = -1, again = -1;
    int32_t answer[MOST];
    struct eng_session *session = fables_session(fables, NULL);
    CHECK(eng_session_wake_fd(session, &descriptor, &error));
    CHECK(eng_session_wake_fd(session, &again, &error));
    assert_int_equal(descriptor, again);
    assert_false(is_readable(descriptor));
    CHECK(eng_step(session, NULL, &error));
    assert_false(is_readable(descriptor)); /* a step of nothing */
    struct eng_sequence *sequence = begin(session, 1, ANSWER, 0);
    assert_false(is_readable(descriptor));
    size_t count = 0;
    for (uint32_t unfinished = 1; unfinished;) {
        CHECK(eng_step(session, &unfinished, &error));
        const size_t more = eng_sequence_poll(sequence, answer, MOST);
        assert_int_equal(is_readable(descriptor), more > 0);
        if (more) reset(descriptor);
        assert_false(is_readable(descriptor));
        count += more;
    }
    assert_int_equal(count, ANSWER);
    sequence = begin(session, 2, ANSWER, 0);
    eng_sequence_cancel(sequence);
    CHECK(eng_step(session, NULL, &error));
    assert_false(is_readable(descriptor));
    eng_sequence_cancel_async(begin(session, 3, ANSWER, 0));
    CHECK(eng_step(session, NULL, &error));
    assert_true(is_readable(descriptor));
    eng_session_destroy(&session);
    assert_int_equal(fcntl(descriptor, F_GETFD), -1);
}

TEST(a_step_that_another_function_waits_for_wakes_too)
{
    int descriptor = -1;
    struct eng_sequence *fork = NULL;
    struct eng_session *session = device_session(PACE_EAGER);
    struct eng_sequence *sequence = begin(session, 1, ANSWER, 0);
    CHECK(eng_session_wake_fd(session, &descriptor, &error));
    for (int i = 0; i < 4; i++) CHECK(eng_step(session, NULL, &error));
    reset(descriptor);
    CHECK(eng_sequence_fork(sequence, NULL, &fork, &error));
    assert_true(is_readable(descriptor));
    eng_session_destroy(&session);
}

TEST(no_descriptor_is_left)
{
    struct rlimit before, none;
    int descriptor = -1;
    struct eng_session *session = fables_session(fables, NULL);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const enum eng_status status = eng_session_wake_fd(session, &descriptor, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, ENG_MACHINE);
    assert_non_null(strstr(error.message, "file descriptor"));
    assert_int_equal(descriptor, -1);
    CHECK(eng_session_wake_fd(session, &descriptor, &error));
    eng_session_destroy(&session);
}

/* ---- the function ---- */

enum { CONVERSATIONS = 3, TURNS = 3 };

struct conversation {
    struct eng_sequence *sequence;
    int32_t tokens[MOST * TURNS];
    size_t count;
    int turns; /* that are over */
};

struct loop {
    struct eng_session *session;
    struct conversation *conversations; /* [CONVERSATIONS] */
    uint32_t calls;
    enum eng_status step; /* of an eng_step in the function */
};

static void submit_turn(struct conversation *conversation, uint32_t seed)
{
    int32_t prompt[PROMPT];
    fables_tokens(seed, prompt, PROMPT);
    CHECK(eng_sequence_submit(conversation->sequence, prompt, PROMPT, &error));
}

/* Takes the tokens, begins the next turn, and ends the conversation after the last one. */
static void hear(void *context, struct eng_sequence *sequence)
{
    struct loop *loop = context;
    struct conversation *own = loop->conversations;
    loop->calls++;
    loop->step = eng_step(loop->session, NULL, &error);
    for (int i = 0; i + 1 < CONVERSATIONS && own->sequence != sequence; i++) own++;
    assert_ptr_equal(own->sequence, sequence);
    const size_t more = eng_sequence_poll(sequence, own->tokens + own->count, MOST);
    assert_true(more > 0);
    own->count += more;
    if (eng_sequence_state(sequence) != ENG_STATE_DONE) return;
    if (++own->turns == TURNS)
        eng_sequence_destroy(&own->sequence);
    else
        submit_turn(own, (uint32_t)own->turns);
}

static void converse(struct eng_session *session, struct loop *loop, struct conversation *conversations)
{
    uint32_t unfinished = 1;
    memset(conversations, 0, CONVERSATIONS * sizeof *conversations);
    *loop = (struct loop){.session = session, .conversations = conversations};
    CHECK(eng_session_set_callback(session, hear, loop, &error));
    for (uint32_t i = 0; i < CONVERSATIONS; i++)
        conversations[i].sequence = begin(session, 10 + i, 5 + 4 * i, ENG_SEQUENCE_KEEP);
    while (unfinished) CHECK(eng_step(session, &unfinished, &error));
    CHECK(eng_session_set_callback(session, NULL, NULL, &error));
}

TEST(the_function_hears_of_every_token)
{
    static struct conversation found[CONVERSATIONS], alone[CONVERSATIONS];
    struct loop loop, alone_loop;
    for (int pace = 0; pace < 3; pace++) {
        struct eng_session *sessions[2] = {fables_session(fables, NULL), device_session(pace)};
        converse(sessions[0], &alone_loop, alone);
        converse(sessions[1], &loop, found);
        for (uint32_t i = 0; i < CONVERSATIONS; i++) {
            assert_int_equal(found[i].turns, TURNS);
            assert_int_equal(found[i].count, TURNS * (5 + 4 * i));
            assert_int_equal(alone[i].count, found[i].count);
            assert_memory_equal(alone[i].tokens, found[i].tokens, found[i].count * sizeof *found[i].tokens);
        }
        assert_int_equal(loop.calls, TURNS * (5 + 9 + 13));
        assert_int_equal(loop.step, ENG_USAGE);
        for (int i = 0; i < 2; i++) {
            assert_all_is_free(sessions[i]);
            eng_session_destroy(&sessions[i]);
        }
    }
}

static void count_call(void *context, struct eng_sequence *sequence) { ++*(int *)context; }

/* What was destroyed before it was told is not told, nor is the sequence that has its place. */
TEST(nothing_is_heard_of_the_destroyed)
{
    int calls = 0;
    struct eng_sequence *fork = NULL;
    struct eng_session *session = device_session(PACE_EAGER);
    CHECK(eng_session_set_callback(session, count_call, &calls, &error));
    struct eng_sequence *sequence = begin(session, 1, ANSWER, 0);
    for (int i = 0; i < 4; i++) CHECK(eng_step(session, NULL, &error));
    const int before = calls;
    CHECK(eng_sequence_fork(sequence, NULL, &fork, &error)); /* a step is over, of which eng_step has not told */
    eng_sequence_destroy(&fork);
    eng_sequence_destroy(&sequence);
    CHECK(eng_sequence_create(session, NULL, &sequence, &error));
    CHECK(eng_step(session, NULL, &error));
    assert_int_equal(calls, before);
    eng_session_destroy(&session);
}

/* ---- cancelled by another thread ---- */

struct canceller {
    pthread_t thread;
    struct eng_sequence *sequences[FABLES_BATCH];
    atomic_bool begin;
};

static void *cancel_all(void *argument)
{
    struct canceller *canceller = argument;
    while (!atomic_load(&canceller->begin)) sched_yield();
    for (int i = 0; i < FABLES_BATCH; i++) {
        eng_sequence_cancel_async(canceller->sequences[i]);
        eng_sequence_cancel_async(canceller->sequences[i]);
    }
    return NULL;
}

static void cancel_in_steps(struct eng_session *session, int steps)
{
    struct canceller canceller = {.begin = false};
    int32_t tokens[MOST];
    uint32_t unfinished = 1;
    for (uint32_t i = 0; i < FABLES_BATCH; i++) canceller.sequences[i] = begin(session, i, 200, ENG_SEQUENCE_KEEP);
    assert_int_equal(pthread_create(&canceller.thread, NULL, cancel_all, &canceller), 0);
    for (int i = 0; i < steps; i++) CHECK(eng_step(session, NULL, &error));
    atomic_store(&canceller.begin, true);
    while (unfinished) CHECK(eng_step(session, &unfinished, &error));
    pthread_join(canceller.thread, NULL);
    for (int i = 0; i < FABLES_BATCH; i++) {
        assert_int_equal(eng_sequence_state(canceller.sequences[i]), ENG_STATE_DONE);
        if (eng_sequence_end(canceller.sequences[i]) != ENG_END_CANCELLED)
            assert_int_equal(eng_sequence_end(canceller.sequences[i]), ENG_END_LENGTH);
        eng_sequence_poll(canceller.sequences[i], tokens, MOST);
        eng_sequence_destroy(&canceller.sequences[i]);
    }
    assert_all_is_free(session);
}

TEST(other_threads_cancel_while_steps_run)
{
    struct eng_session *sessions[2] = {fables_session(fables, NULL), device_session(PACE_RANDOM)};
    for (int round = 0; round < 12; round++) cancel_in_steps(sessions[round % 2], round);
    for (int i = 0; i < 2; i++) eng_session_destroy(&sessions[i]);
}

TEST(a_cancelled_sequence_gets_no_more_tokens)
{
    int32_t tokens[MOST];
    struct eng_session *session = device_session(PACE_LAZY);
    struct eng_sequence *sequence = begin(session, 1, ANSWER, 0), *other = begin(session, 2, ANSWER, 0);
    struct eng_sequence *late = NULL;
    for (int i = 0; i < 5; i++) CHECK(eng_step(session, NULL, &error));
    eng_sequence_poll(sequence, tokens, MOST);
    eng_sequence_cancel_async(sequence);
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_DECODE);
    CHECK(eng_step(session, NULL, &error));
    assert_int_equal(eng_sequence_poll(sequence, tokens, MOST), 0);
    assert_int_equal(eng_sequence_end(sequence), ENG_END_CANCELLED);
    /* The sequence that gets the place of one that was to be cancelled goes on. */
    late = begin(session, 3, ANSWER, 0);
    eng_sequence_cancel_async(late);
    eng_sequence_cancel_async(NULL);
    eng_sequence_destroy(&late);
    late = begin(session, 3, ANSWER, 0);
    fables_finish(session);
    assert_int_equal(eng_sequence_end(late), ENG_END_LENGTH);
    assert_int_equal(eng_sequence_end(other), ENG_END_LENGTH);
    /* One that has ended and is kept gives its pages back. */
    struct eng_sequence *kept = begin(session, 4, ANSWER, ENG_SEQUENCE_KEEP);
    fables_finish(session);
    eng_sequence_cancel_async(kept);
    CHECK(eng_step(session, NULL, &error));
    assert_int_equal(eng_sequence_end(kept), ENG_END_LENGTH);
    assert_all_is_free(session);
    eng_session_destroy(&session);
}

TEST(null_is_refused)
{
    int descriptor;
    struct eng_session *session = fables_session(fables, NULL);
    assert_int_equal(eng_session_wake_fd(NULL, &descriptor, &error), ENG_USAGE);
    assert_int_equal(eng_session_wake_fd(session, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_session_set_callback(NULL, NULL, NULL, &error), ENG_USAGE);
    eng_session_destroy(&session);
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
