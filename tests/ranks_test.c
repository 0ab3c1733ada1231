/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on processors that share the shipped model, through the public API: concurrent sequences give the same answers
 * as single ones, also with lookahead; a rank that fails or does not answer in time makes the session fail soon, and is
 * named. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <time.h>

#include "kernels/cpu/rendezvous.h"
#include "runtime/backend/backend_ranks.h"
#include "runtime/session/session.h"
#include "runtime/backend/test_backend.h"

enum { SEQUENCES = 8, ANSWER = 16, LONGEST_PROMPT = 150 };

/* Lengths below, at and above the prefill chunks of 8 and 64. */
static const size_t prompt_lengths[SEQUENCES] = {1, 7, 8, 9, 64, 65, 130, LONGEST_PROMPT};

static struct eng_sequence *start(struct eng_session *session, size_t index)
{
    const struct eng_sampling sampling = fables_sampling(index % 2, 1000 + index);
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t prompt[LONGEST_PROMPT];
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_IGNORE_EOS | (index == 3 || index == 6 ? ENG_SEQUENCE_ALLOWED : 0u);
    fables_tokens((uint32_t)index, prompt, prompt_lengths[index]);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    if (options.flags & ENG_SEQUENCE_ALLOWED) {
        uint32_t allowed[64];
        memset(allowed, 0x4d + (int)index, sizeof allowed);
        const size_t words = (session->geometry->vocab_size + 31) / 32;
        assert_true(words <= sizeof allowed / sizeof *allowed);
        CHECK(eng_sequence_set_allowed(sequence, allowed, words, &error));
    }
    CHECK(eng_sequence_submit(sequence, prompt, prompt_lengths[index], &error));
    return sequence;
}

static void collect(struct eng_sequence *sequence, int32_t *answer)
{
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), ANSWER);
    assert_int_equal(eng_sequence_state(sequence), ENG_STATE_DONE);
    eng_sequence_destroy(&sequence);
}

static void run_alone(struct eng_session *session, int32_t answers[SEQUENCES][ANSWER])
{
    for (size_t i = 0; i < SEQUENCES; i++) {
        struct eng_sequence *sequence = start(session, i);
        fables_finish(session);
        collect(sequence, answers[i]);
    }
}

/* Begins with some and adds the others between steps. */
static void run_together(struct eng_session *session, int32_t answers[SEQUENCES][ANSWER], size_t at_once)
{
    struct eng_sequence *sequences[SEQUENCES];
    uint32_t unfinished;
    for (size_t i = 0; i < SEQUENCES; i++) {
        sequences[i] = start(session, i);
        if (i >= at_once) CHECK(eng_step(session, &unfinished, &error));
    }
    fables_finish(session);
    for (size_t i = 0; i < SEQUENCES; i++) collect(sequences[i], answers[i]);
}

static struct eng_session *session_on(struct eng_engine *engine, const struct backend_type *type, uint32_t threads)
{
    struct eng_session_options options;
    struct eng_session *session = NULL;
    struct status status = {0};
    eng_session_options_init(&options);
    options.threads = threads;
    options.kv_tokens = SEQUENCES * FABLES_CONTEXT;
    if (!session_create(engine, type, &options, &session, &status)) fail_msg("%s", status.message);
    return session;
}

TEST(batches_answer_what_sequences_answer_alone)
{
    int32_t alone[SEQUENCES][ANSWER], together[SEQUENCES][ANSWER];
    assert_ptr_equal(backend_for(fables), &backend_cpu_ranks);
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        struct eng_session *session = session_on(fables, &backend_cpu_ranks, threads);
        run_alone(session, alone);
        for (size_t at_once = 1; at_once <= SEQUENCES; at_once += 3) {
            memset(together, 0xff, sizeof together);
            run_together(session, together, at_once);
            assert_memory_equal(together, alone, sizeof alone);
        }
        eng_session_destroy(&session);
    }
}

TEST(two_sessions_do_not_disturb_each_other)
{
    struct eng_session *sessions[2] = {session_on(fables, &backend_cpu_ranks, 2),
                                       session_on(fables, &backend_cpu_ranks, 1)};
    int32_t expected[ANSWER], found[ANSWER];
    struct eng_sequence *sequence = start(sessions[0], 5);
    fables_finish(sessions[0]);
    collect(sequence, expected);
    struct eng_sequence *both[2] = {start(sessions[0], 5), start(sessions[1], 5)};
    uint32_t unfinished[2] = {1, 1};
    while (unfinished[0] || unfinished[1])
        for (int i = 0; i < 2; i++) CHECK(eng_step(sessions[i], &unfinished[i], &error));
    for (int i = 0; i < 2; i++) {
        collect(both[i], found);
        assert_memory_equal(found, expected, sizeof expected);
        eng_session_destroy(&sessions[i]);
    }
}

TEST(golden_outputs_are_repeated)
{
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct eng_session *session = session_on(fables, &backend_cpu_ranks, threads);
        CHECK(eng_selftest(session, NULL, &error));
        eng_session_destroy(&session);
    }
}

/* ---- steps queued ahead ------------------------------------------------------------------------------------------ */

static bool connect_devices(struct backend *backend, const uint64_t *comm, struct status *status)
{
    (void)status;
    struct comm_header *header = (struct comm_header *)(uintptr_t)backend->comm;
    memcpy(header->peers, comm, header->ranks * sizeof *comm);
    return true;
}

static void stop_devices(struct backend *backend) { comm_stop((struct comm_header *)(uintptr_t)backend->comm); }

static struct backend_type device_rank;

static struct backend *create_devices(struct eng_engine *engine, const struct backend_options *options,
                                      struct status *status);

static const struct backend_type devices = {.lookahead = true, .create = create_devices, BACKEND_RANKS_FUNCTIONS};

static struct backend *create_devices(struct eng_engine *engine, const struct backend_options *options,
                                      struct status *status)
{
    return backend_ranks_create(&devices, &device_rank, engine, options, status);
}

/* Each rank is a test device with separate host and device spaces. */
TEST(steps_are_queued_ahead)
{
    int32_t alone[SEQUENCES][ANSWER], found[SEQUENCES][ANSWER];
    struct eng_session *plain = session_on(fables, &backend_cpu_ranks, 2);
    run_alone(plain, alone);
    eng_session_destroy(&plain);
    device_rank = test_backend;
    device_rank.connect = connect_devices;
    device_rank.stop = stop_devices;
    test_backend_settings =
        (struct test_backend_settings){.pace = PACE_EAGER}; /* the submit waits for the other ranks */
    struct eng_session *session = session_on(fables, &devices, 2);
    run_alone(session, found);
    assert_memory_equal(found, alone, sizeof alone);
    assert_true(test_backend_settings.submits_ahead > 0);
    for (size_t at_once = 1; at_once <= SEQUENCES; at_once += 3) {
        run_together(session, found, at_once);
        assert_memory_equal(found, alone, sizeof alone);
    }
    eng_session_destroy(&session);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Ranks on processors, one of which fails or is late in its n-th submit. */
static struct {
    struct backend *ranks[FABLES_RANKS];
    int rank, countdown;
    bool is_late; /* sleeps until another rank has given it up; else it fails */
    uint64_t timeout_ns;
} trouble;

static struct backend_type troubled_rank;

static struct backend *create_troubled_rank(struct eng_engine *engine, const struct backend_options *options,
                                            struct status *status)
{
    struct backend *backend = backend_cpu.create(engine, options, status);
    if (backend && trouble.timeout_ns)
        ((struct comm_header *)(uintptr_t)backend->comm)->timeout_ns = trouble.timeout_ns;
    trouble.ranks[options->rank] = backend;
    return backend;
}

static bool is_given_up(void)
{
    const struct comm_header *other = (const struct comm_header *)(uintptr_t)trouble.ranks[!trouble.rank]->comm;
    return __atomic_load_n(&other->timed_out, __ATOMIC_SEQ_CST) != 0;
}

static bool submit_in_trouble(struct backend *backend, size_t plan, enum backend_inputs inputs, struct status *status)
{
    if (backend == trouble.ranks[trouble.rank] && --trouble.countdown == 0) {
        if (!trouble.is_late) return status_fail(status, STATUS_MACHINE, "its device is gone");
        const double end = load_seconds() + 60;
        while (!is_given_up() && load_seconds() < end) usleep(1000);
    }
    return backend_cpu.submit(backend, plan, inputs, status);
}

static struct backend *create_troubled(struct eng_engine *engine, const struct backend_options *options,
                                       struct status *status);

static const struct backend_type troubled = {.host_logits = true, .create = create_troubled, BACKEND_RANKS_FUNCTIONS};

static struct backend *create_troubled(struct eng_engine *engine, const struct backend_options *options,
                                       struct status *status)
{
    return backend_ranks_create(&troubled, &troubled_rank, engine, options, status);
}

/* Runs until the failure; the session then remains failed. */
static void expect_trouble(struct eng_engine *engine, const char *expected)
{
    uint32_t unfinished = 1;
    troubled_rank = backend_cpu;
    troubled_rank.create = create_troubled_rank;
    troubled_rank.submit = submit_in_trouble;
    struct eng_session *session = session_on(engine, &troubled, 2);
    struct eng_sequence *sequence = start(session, 6);
    double begin = load_seconds();
    enum eng_status status = ENG_OK;
    while (unfinished && status == ENG_OK) status = eng_step(session, &unfinished, &error);
    assert_int_equal(status, ENG_MACHINE);
    if (!strstr(error.message, expected)) fail_msg("expected '%s', found '%s'", expected, error.message);
    /* Long before a rank's own time limit. */
    if (!trouble.is_late) assert_true(load_seconds() - begin < COMM_TIMEOUT_NS * 1e-9 / 2);
    assert_int_equal(eng_step(session, NULL, &error), ENG_MACHINE);
    assert_non_null(strstr(error.message, expected));
    eng_sequence_destroy(&sequence);
    eng_session_destroy(&session);
}

TEST(a_failed_rank_ends_the_session)
{
    for (int rank = 0; rank < FABLES_RANKS; rank++)
        for (int call = 1; call <= 6; call++) {
            memset(&trouble, 0, sizeof trouble);
            trouble.rank = rank;
            trouble.countdown = call;
            expect_trouble(fables, rank ? "rank 1: its device is gone" : "rank 0: its device is gone");
        }
}

TEST(a_late_rank_ends_the_session)
{
    for (int rank = 0; rank < FABLES_RANKS; rank++) {
        memset(&trouble, 0, sizeof trouble);
        trouble.rank = rank;
        trouble.countdown = 3;
        trouble.timeout_ns = UINT64_C(3000000000); /* on a busy machine an earlier step takes less */
        trouble.is_late = true;
        expect_trouble(fables, rank ? "rank 0: rank 1 did not answer within 3.0 s"
                                    : "rank 1: rank 0 did not answer within 3.0 s");
    }
}

/* Another session of the same engine still works. */
TEST(the_engine_outlives_a_failed_session)
{
    struct eng_session *other = session_on(fables, &backend_cpu_ranks, 2);
    memset(&trouble, 0, sizeof trouble);
    trouble.countdown = 2;
    expect_trouble(fables, "rank 0: its device is gone");
    CHECK(eng_selftest(other, NULL, &error));
    eng_session_destroy(&other);
}

static char heard[ENG_MESSAGE_BYTES];

static void hear(void *context, int32_t level, const char *message)
{
    assert_null(context);
    assert_int_equal(level, ENG_LOG_WARNING);
    snprintf(heard, sizeof heard, "%s", message);
}

/* What would make the steps of several processes differ. */
TEST(options_of_one_process_are_refused_with_several)
{
    static char others; /* that there are any is all that counts */
    struct eng_session_options options;
    struct eng_session *session = session_on(fables, &backend_cpu_ranks, 2), *refused = NULL;
    struct eng_sequence *sequence = start(session, 1);
    int32_t answer[ANSWER];
    eng_session_options_init(&options);
    options.step_ms = 20;
    fables->process_group = (struct process_group *)(void *)&others;
    assert_int_equal(eng_session_create(fables, &options, &refused, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "step_ms is 20, expected 0: several processes share the engine"));
    assert_null(refused);
    fables->log = (struct load_log){.callback = hear};
    assert_int_equal(eng_sequence_cancel_async(sequence), ENG_USAGE);
    fables->log = (struct load_log){0};
    assert_non_null(strstr(heard, "eng_sequence_cancel_async: refused: several processes share the engine"));
    fables->process_group = NULL;
    fables_finish(session);
    assert_int_equal(eng_sequence_end(sequence), ENG_END_LENGTH);
    collect(sequence, answer);
    CHECK(eng_session_create(fables, &options, &refused, &error));
    eng_session_destroy(&refused);
    eng_session_destroy(&session);
}

int main(void) { return test_run_with(fables_start_ranks, NULL, NULL, fables_stop); }
