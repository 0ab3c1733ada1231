/* SPDX-License-Identifier: Apache-2.0 */
/* An engine of several ranks as one backend, over ranks of the test: what reaches all of them, what must agree, and
 * which failure is reported. */
#include <stdatomic.h>

#include "runtime/backend/backend_ranks.h"
#include "formats/base/test_program.h"

enum { SLOTS = 3, PAGES_PER_SLOT = 5, VOCAB = 37, DECODE_ROWS = 3, PREFILL_ROWS = 7, STEP_BYTES = 4096, POISON = 0x5a };
enum { DECODE, PREFILL, PLANS };
enum call { CALL_CREATE, CALL_CONNECT, CALL_SUBMIT, CALL_WAIT, CALL_TRACE, CALLS };
static const char *const call_names[CALLS] = {"create", "connect", "submit", "wait", "trace"};

/* A rank with its own spaces and a record of its calls. Calls come from threads of the backend, in which cmocka cannot
 * assert; defects are noted in `fault`. */
struct fake {
    struct backend common;
    bool alive;
    uint32_t rank;
    struct backend_options options;
    uint64_t comm[PLAN_MAX_RANKS];
    int connects, submits, ahead, waits, traces, destroys, stops_at_destroy, settled_at_destroy;
    size_t last_plan;
    int32_t tokens[2][DECODE_ROWS]; /* of the replays in flight, alternating */
    unsigned changed[SLOTS];        /* bits announced so far */
    int32_t drew[SLOTS];
};

/* For all ranks; reset by begin(). */
static struct {
    struct fake *ranks[PLAN_MAX_RANKS];          /* remain after destroy */
    unsigned fails[CALLS];                       /* bit of each rank whose call fails by itself */
    unsigned blocks[CALLS];                      /* bit of each rank whose call waits until it is told to stop */
    int32_t tokens[PLAN_MAX_RANKS][DECODE_ROWS]; /* drawn by the next submit */
    atomic_int stops[PLAN_MAX_RANKS], created, destroyed, settled;
    unsigned hangs; /* bit of each rank that never settles */
    _Atomic(const char *) fault;
} fakes;

static struct fake *fake_of(struct backend *backend) { return (struct fake *)(void *)backend; }

static void note_fault(const char *what) { atomic_store(&fakes.fault, what); }

static bool any_stop(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++)
        if (atomic_load(&fakes.stops[r])) return true;
    return false;
}

/* Result of a call of this rank; a blocked call gives up after some seconds, which is a defect. */
static bool goes_well(struct fake *fake, enum call call, struct status *status)
{
    uint32_t rank = fake->rank;
    if (fakes.blocks[call] >> rank & 1) {
        for (int i = 0; !any_stop(PLAN_MAX_RANKS); i++) {
            if (i > 60000) {
                note_fault("a rank that waits for another was not told to stop");
                break;
            }
            usleep(1000);
        }
        fake->common.failure = BACKEND_STOPPED;
        return status_fail(status, STATUS_MACHINE, "another rank has failed");
    }
    if (!(fakes.fails[call] >> rank & 1)) return true;
    /* The others are in their own calls by now. */
    if (call == CALL_SUBMIT || call == CALL_TRACE) usleep(20000);
    return status_fail(status, STATUS_NOT_FOUND, "%s: device %u is gone", call_names[call], rank);
}

static struct backend *create(struct eng_engine *engine, const struct backend_options *options, struct status *status)
{
    struct fake *fake = calloc(1, sizeof *fake);
    if (!fake || options->rank >= PLAN_MAX_RANKS || fakes.ranks[options->rank]) {
        note_fault("create");
        abort();
    }
    (void)engine;
    fakes.ranks[options->rank] = fake;
    fake->rank = options->rank;
    fake->options = *options;
    if (!goes_well(fake, CALL_CREATE, status)) return NULL;
    fake->alive = true;
    uint32_t rank = fake->rank;
    fake->common = (struct backend){
        .step = malloc(STEP_BYTES),
        .state = malloc(STEP_BYTES),
        .pages = 100 - (rank == 1 ? 7 : rank),
        .threads = rank + 1,
        .instruction_set = "fake",
        .host_bytes = 1000 + rank,
        .device_bytes = 2000 + rank,
        .kv_bytes = 3000 + rank,
        .device_contract_bytes = 4000 + rank,
        .device_taken_bytes = 5000 + rank,
        .graph_seconds = rank == 1 ? 2.5 : 0.5,
        .comm = 0x1000 * (1 + rank),
        .fallback = rank == 1 ? "rank 1 has no library" : NULL,
    };
    memset(fake->common.step, POISON, STEP_BYTES);
    memset(fake->common.state, POISON, STEP_BYTES);
    atomic_fetch_add(&fakes.created, 1);
    return &fake->common;
}

static void destroy(struct backend *backend)
{
    struct fake *fake = fake_of(backend);
    if (!fake->alive) note_fault("destroyed twice");
    fake->alive = false;
    fake->destroys++;
    for (int r = 0; r < PLAN_MAX_RANKS; r++) fake->stops_at_destroy += atomic_load(&fakes.stops[r]) > 0;
    fake->settled_at_destroy = atomic_load(&fakes.settled);
    atomic_fetch_add(&fakes.destroyed, 1);
    free(fake->common.step);
    free(fake->common.state);
    fake->common.step = fake->common.state = NULL;
}

static bool connect_ranks(struct backend *backend, const uint64_t *comm, struct status *status)
{
    struct fake *fake = fake_of(backend);
    if (fake->submits) note_fault("connect after a submit");
    fake->connects++;
    for (int r = 0; r < atomic_load(&fakes.created); r++) fake->comm[r] = comm[r];
    return goes_well(fake, CALL_CONNECT, status);
}

static void stop(struct backend *backend) { atomic_fetch_add(&fakes.stops[fake_of(backend)->rank], 1); }

static bool settle(struct backend *backend)
{
    atomic_fetch_add(&fakes.settled, 1);
    return !(fakes.hangs >> fake_of(backend)->rank & 1);
}

static bool submit(struct backend *backend, size_t plan, enum backend_inputs inputs, struct status *status)
{
    struct fake *fake = fake_of(backend);
    if (fake->connects != 1) note_fault("submit before connect");
    fake->last_plan = plan;
    fake->ahead += inputs == INPUTS_OF_LAST_REPLAY;
    memcpy(fake->tokens[fake->submits++ % 2], fakes.tokens[fake->rank], sizeof fake->tokens[0]);
    return goes_well(fake, CALL_SUBMIT, status);
}

static const int32_t *wait_for(struct backend *backend, struct status *status)
{
    struct fake *fake = fake_of(backend);
    const int32_t *tokens = fake->tokens[fake->waits++ % 2];
    return goes_well(fake, CALL_WAIT, status) ? tokens : NULL;
}

static void state_changed(struct backend *backend, int32_t slot, unsigned what)
{
    fake_of(backend)->changed[slot] |= what;
}

static void drew(struct backend *backend, int32_t slot, int32_t token) { fake_of(backend)->drew[slot] = token; }

static const float *logits(struct backend *backend, uint32_t row, uint32_t count, struct status *status)
{
    static float values[PLAN_MAX_RANKS];
    (void)status;
    uint32_t rank = fake_of(backend)->rank;
    values[rank] = (float)(1000 * rank + 10 * row + count);
    return &values[rank];
}

static bool trace(struct backend *backend, size_t plan, double *replay_us, double *launch_us, struct status *status)
{
    struct fake *fake = fake_of(backend);
    fake->traces++;
    fake->last_plan = plan;
    if (!goes_well(fake, CALL_TRACE, status)) return false;
    *replay_us = 100.0 + fake->rank;
    for (int i = 0; i < (plan == PREFILL ? 4 : 2); i++) launch_us[i] = 10.0 * fake->rank + i;
    return true;
}

static const struct plan other_source = {.header = {.launch_count = 4}};

static const struct plan *source(const struct backend *backend, size_t plan)
{
    (void)backend;
    return plan == PREFILL ? &other_source : NULL;
}

static const struct backend_type rank_type = {
    .create = create,
    .destroy = destroy,
    .state_changed = state_changed,
    .submit = submit,
    .wait = wait_for,
    .drew = drew,
    .logits = logits,
    .trace = trace,
    .connect = connect_ranks,
    .stop = stop,
};
/* Ranks that run asynchronously, as GPUs do; ranks that share memory, as on processors. */
static struct backend_type settling_type, sharing_type;
static const struct backend_type several = {.lookahead = true, BACKEND_RANKS_FUNCTIONS};

/* ---- the frame of a test ----------------------------------------------------------------------------------------- */

static struct plan plans[PLANS] = {
    [DECODE] = {.header = {.kind = PLAN_DECODE, .rows = DECODE_ROWS, .out_rows = DECODE_ROWS, .launch_count = 2}},
    [PREFILL] = {.header = {.kind = PLAN_PREFILL, .rows = PREFILL_ROWS, .out_rows = 1, .launch_count = 3}},
};
static struct eng_engine engine;
static struct status reported; /* by the calls of the case */
static const struct backend_options options = {.threads = 6, .kv_tokens = 99, .host_bytes = 12345};

static int begin(void **state)
{
    settling_type = sharing_type = rank_type;
    settling_type.settle = settle;
    sharing_type.shares_memory = true;
    memset(&fakes, 0, sizeof fakes);
    status_clear(&reported);
    for (int r = 0; r < PLAN_MAX_RANKS; r++)
        for (int i = 0; i < DECODE_ROWS; i++) fakes.tokens[r][i] = 5 + i;
    engine = (struct eng_engine){
        .file = {.manifest = {.geometry = {.slots = SLOTS,
                                           .max_context = 64,
                                           .page_tokens = 16,
                                           .pages_per_slot = PAGES_PER_SLOT,
                                           .page_bytes = 64,
                                           .vocab_size = VOCAB,
                                           .ranks = 3}},
                 .plans = plans,
                 .plan_count = PLANS},
        .rank_count = 3,
    };
    uint64_t state_bytes;
    assert_true(geometry_place_state(&engine.file.manifest.geometry, &state_bytes));
    for (int p = 0; p < PLANS; p++) assert_true(plan_place_step(&plans[p], VOCAB, 0, 0));
    return 0;
}

static int end(void **state)
{
    int left = 0;
    for (int r = 0; r < PLAN_MAX_RANKS; r++) {
        left += fakes.ranks[r] && fakes.ranks[r]->alive;
        free(fakes.ranks[r]);
    }
    if (left) print_error("%d ranks were not destroyed\n", left);
    if (fakes.fault) print_error("%s\n", fakes.fault);
    return left || fakes.fault ? -1 : 0;
}

/* Ends a case and begins another in the same test. */
static void next_case(void)
{
    assert_int_equal(end(NULL), 0);
    begin(NULL);
}

static struct backend *make_of(const struct backend_type *type, uint64_t ranks)
{
    struct status status = {0};
    engine.file.manifest.geometry.ranks = ranks;
    engine.rank_count = (uint32_t)ranks;
    struct backend *backend = backend_ranks_create(&several, type, &engine, &options, &status);
    if (!backend) fail_msg("%s", status.message);
    assert_ptr_equal(backend->type, &several);
    return backend;
}

static struct backend *make(uint64_t ranks) { return make_of(&rank_type, ranks); }

/* Random inputs of a plan; `valid` out rows. */
static void fill_step(struct backend *backend, size_t plan, int32_t valid)
{
    const struct plan_field *fields = plans[plan].step;
    assert_true(plans[plan].header.step_bytes <= STEP_BYTES);
    for (uint64_t i = 0; i < fields[STEP_NEXT_TOKENS].offset; i++) backend->step[i] = (uint8_t)rand();
    const int32_t counts[2] = {(int32_t)plans[plan].header.rows, valid};
    memcpy(backend->step + fields[STEP_COUNTS].offset, counts, sizeof counts);
}

static void check_submit(struct backend *backend, size_t plan, enum backend_inputs inputs)
{
    struct status status = {0};
    if (!backend_ranks_submit(backend, plan, inputs, &status)) fail_msg("%s", status.message);
}

/* Bytes of each rank's state that are still poison. */
static void state_bytes(struct plan_field fields[STATE_FIELD_COUNT], uint64_t *total)
{
    assert_true(state_layout(&engine.file.manifest.geometry, fields, total));
    assert_true(*total <= STEP_BYTES);
}

static void submit_filled(struct backend *backend, size_t plan, int32_t valid)
{
    fill_step(backend, plan, valid);
    check_submit(backend, plan, INPUTS_FROM_HOST);
}

static struct backend *make_and_submit(void)
{
    struct backend *backend = make(3);
    submit_filled(backend, DECODE, 3);
    return backend;
}

/* The call failed because it failed on this rank. */
static void expect_gone(int call, int rank)
{
    char expected[80];
    snprintf(expected, sizeof expected, "rank %d: %s: device %d is gone", rank, call_names[call], rank);
    assert_string_equal(reported.message, expected);
    assert_int_equal(reported.code, STATUS_NOT_FOUND);
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

TEST(every_rank_is_made_and_connected)
{
    static const uint64_t counts[] = {2, 3, 8, PLAN_MAX_RANKS};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        uint64_t count = counts[c];
        struct backend *backend = make(count);
        assert_int_equal(atomic_load(&fakes.created), count);
        uint64_t threads = 0;
        for (uint32_t r = 0; r < count; r++) {
            struct fake *fake = fakes.ranks[r];
            assert_non_null(fake);
            assert_int_equal(fake->connects, 1);
            for (uint32_t peer = 0; peer < count; peer++) assert_int_equal(fake->comm[peer], 0x1000 * (1 + peer));
            struct backend_options expected = options;
            expected.rank = r;
            assert_int_equal(fake->options.rank, r);
            assert_int_equal(fake->options.threads, expected.threads);
            assert_int_equal(fake->options.kv_tokens, expected.kv_tokens);
            assert_int_equal(fake->options.host_bytes, expected.host_bytes);
            threads += r + 1;
        }
        /* The session fills rank 0's spaces; it may use as many pages as the rank with the fewest has. */
        uint64_t sum = count * (count - 1) / 2;
        assert_ptr_equal(backend->step, fakes.ranks[0]->common.step);
        assert_ptr_equal(backend->state, fakes.ranks[0]->common.state);
        assert_int_equal(backend->pages, count > 8 ? 100 - (count - 1) : 93);
        assert_int_equal(backend->threads, threads);
        assert_int_equal(backend->host_bytes, 1000 * count + sum);
        assert_int_equal(backend->device_bytes, 2000 * count + sum);
        assert_int_equal(backend->kv_bytes, backend->pages * engine.file.manifest.geometry.page_bytes * count);
        assert_int_equal(backend->device_contract_bytes, 4000 * count + sum);
        assert_int_equal(backend->device_taken_bytes, 5000 * count + sum);
        assert_true(backend->graph_seconds == 2.5);
        assert_string_equal(backend->fallback, "rank 1 has no library");
        backend_ranks_destroy(backend);
        assert_int_equal(atomic_load(&fakes.destroyed), count);
        assert_false(any_stop(PLAN_MAX_RANKS)); /* no rank waits */
        next_case();
    }
}

TEST(a_rank_that_cannot_be_made_is_named)
{
    for (unsigned failing = 1; failing < 1u << 3; failing++) {
        fakes.fails[CALL_CREATE] = failing;
        assert_null(backend_ranks_create(&several, &rank_type, &engine, &options, &reported));
        int first = __builtin_ctz(failing);
        expect_gone(CALL_CREATE, first);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(fakes.ranks[r]->destroys, !(failing >> r & 1));
            assert_int_equal(fakes.ranks[r]->connects, 0);
        }
        next_case();
    }
}

TEST(a_rank_that_cannot_be_connected_is_named)
{
    fakes.fails[CALL_CONNECT] = 1u << 2;
    assert_null(backend_ranks_create(&several, &rank_type, &engine, &options, &reported));
    expect_gone(CALL_CONNECT, 2);
    assert_int_equal(atomic_load(&fakes.destroyed), 3);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

TEST(inputs_reach_all_ranks)
{
    struct backend *backend = make(3);
    for (int round = 0; round < 20; round++) {
        size_t plan = round % 2 ? PREFILL : DECODE;
        const struct plan_field *fields = plans[plan].step;
        for (int r = 0; r < 3; r++) memset(fakes.ranks[r]->common.step, POISON + r, STEP_BYTES);
        submit_filled(backend, plan, 1);
        uint64_t inputs = fields[STEP_OUT_ROWS].offset + fields[STEP_OUT_ROWS].bytes;
        for (int r = 0; r < 3; r++) {
            assert_int_equal(fakes.ranks[r]->last_plan, plan);
            assert_int_equal(fakes.ranks[r]->submits, round + 1);
            assert_memory_equal(fakes.ranks[r]->common.step, fakes.ranks[0]->common.step, inputs);
            /* Outputs are the rank's own. */
            for (uint64_t i = fields[STEP_NEXT_TOKENS].offset; i < STEP_BYTES; i++)
                assert_int_equal(fakes.ranks[r]->common.step[i], POISON + r);
        }
        const int32_t *drawn = backend_ranks_wait(backend, &reported);
        assert_non_null(drawn);
        assert_int_equal(drawn[0], 5);
    }
    backend_ranks_destroy(backend);
    assert_false(any_stop(3));
}

/* Exactly the announced rows of the state are copied: others may hold results of the rank's replays. */
TEST(changed_rows_reach_all_ranks)
{
    struct plan_field fields[STATE_FIELD_COUNT];
    const uint64_t row_bytes[STATE_FIELD_COUNT] = {PAGES_PER_SLOT * sizeof(int32_t), sizeof(struct sampler_state),
                                                   (VOCAB + 7) / 8};
    uint64_t total;
    state_bytes(fields, &total);
    struct backend *backend = make(3);
    for (int round = 0; round < 60; round++) {
        unsigned announced[SLOTS] = {0};
        bool all = round == 0; /* before the first step, nothing needs to be announced */
        for (int r = 0; r < 3; r++) {
            memset(fakes.ranks[r]->common.state, r == 0 ? 0 : POISON + r, STEP_BYTES);
            memset(fakes.ranks[r]->changed, 0, sizeof fakes.ranks[r]->changed);
        }
        for (uint64_t i = 0; i < total; i++) backend->state[i] = (uint8_t)rand();
        for (int i = rand() % 3; !all && i > 0; i--) {
            int32_t slot = rand() % SLOTS;
            unsigned what = 1 + (unsigned)rand() % BACKEND_STATE_ALL;
            announced[slot] |= what;
            backend_ranks_state_changed(backend, slot, what);
        }
        for (int r = 0; r < 3; r++) assert_memory_equal(fakes.ranks[r]->changed, announced, sizeof announced);
        submit_filled(backend, DECODE, 0);
        for (int r = 1; r < 3; r++) {
            const uint8_t *theirs = fakes.ranks[r]->common.state;
            uint8_t expected[STEP_BYTES];
            memset(expected, POISON + r, sizeof expected);
            for (uint64_t slot = 0; slot < SLOTS; slot++)
                for (int f = 0; f < STATE_FIELD_COUNT; f++) {
                    uint64_t at = fields[f].offset + slot * row_bytes[f];
                    if (all || announced[slot] >> f & 1) memcpy(expected + at, backend->state + at, row_bytes[f]);
                }
            assert_memory_equal(theirs, expected, sizeof expected);
        }
        assert_non_null(backend_ranks_wait(backend, &reported));
    }
    backend_ranks_destroy(backend);
}

/* Queued ahead: every rank continues from its own last replay, and nothing is copied. */
TEST(replays_are_queued_ahead)
{
    struct backend *backend = make_and_submit();
    for (int round = 0; round < 9; round++) {
        for (int r = 1; r < 3; r++) {
            memset(fakes.ranks[r]->common.step, POISON + r, STEP_BYTES);
            memset(fakes.ranks[r]->common.state, POISON + r, STEP_BYTES);
        }
        backend_ranks_state_changed(backend, 1, BACKEND_SAMPLER); /* copied with the next inputs from the host */
        for (int r = 0; r < 3; r++)
            for (int i = 0; i < DECODE_ROWS; i++) fakes.tokens[r][i] = 10 * (round + 1) + i;
        check_submit(backend, DECODE, INPUTS_OF_LAST_REPLAY);
        for (int r = 1; r < 3; r++) {
            assert_int_equal(fakes.ranks[r]->ahead, round + 1);
            for (int i = 0; i < STEP_BYTES; i++) {
                assert_int_equal(fakes.ranks[r]->common.step[i], POISON + r);
                assert_int_equal(fakes.ranks[r]->common.state[i], POISON + r);
            }
        }
        const int32_t *drawn = backend_ranks_wait(backend, &reported); /* of the replay before */
        assert_non_null(drawn);
        for (int i = 0; i < 3; i++) assert_int_equal(drawn[i], round == 0 ? 5 + i : 10 * round + i);
    }
    const int32_t *drawn = backend_ranks_wait(backend, &reported);
    assert_non_null(drawn);
    assert_int_equal(drawn[0], 90);
    submit_filled(backend, DECODE, 3);
    struct plan_field fields[STATE_FIELD_COUNT];
    uint64_t total;
    state_bytes(fields, &total);
    for (int r = 1; r < 3; r++)
        assert_memory_equal(fakes.ranks[r]->common.state + fields[STATE_SAMPLERS].offset + sizeof(struct sampler_state),
                            backend->state + fields[STATE_SAMPLERS].offset + sizeof(struct sampler_state),
                            sizeof(struct sampler_state));
    assert_non_null(backend_ranks_wait(backend, &reported));
    backend_ranks_destroy(backend);
    assert_false(any_stop(3));
}

TEST(ranks_that_part_are_an_error)
{
    for (int rank = 1; rank < 3; rank++)
        for (int valid = 0; valid <= DECODE_ROWS; valid++)
            for (int row = 0; row < DECODE_ROWS; row++) {
                struct backend *backend = make(3);
                fakes.tokens[rank][row] = 20 + row;
                submit_filled(backend, DECODE, valid);
                const int32_t *drawn = backend_ranks_wait(backend, &reported);
                if (row < valid) {
                    char expected[120];
                    snprintf(expected, sizeof expected,
                             "rank %d: row %d: expected token %d as on rank 0, found %d: the ranks compute different "
                             "results",
                             rank, row, 5 + row, 20 + row);
                    assert_null(drawn);
                    assert_string_equal(reported.message, expected);
                    assert_int_equal(reported.code, STATUS_INTERNAL);
                } else {
                    assert_non_null(drawn); /* the row is not valid */
                }
                backend_ranks_destroy(backend);
                next_case();
            }
}

/* Each of two replays in flight has its own number of rows. */
TEST(rows_belong_to_their_replay)
{
    struct backend *backend = make(2);
    for (int round = 0; round < 4; round++) {
        int32_t valid = 1 + round % 3;
        fakes.tokens[1][2] = valid == 3 ? fakes.tokens[0][2] : 36; /* differs in a row that is not valid */
        submit_filled(backend, DECODE, valid);
        check_submit(backend, DECODE, INPUTS_OF_LAST_REPLAY);
        assert_non_null(backend_ranks_wait(backend, &reported));
        assert_non_null(backend_ranks_wait(backend, &reported));
    }
    backend_ranks_destroy(backend);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Any rank fails by itself while any others wait for it: the failed rank is named, the others are stopped. */
TEST(a_failed_call_is_named_and_stops_the_others)
{
    for (int failing = 0; failing < 3; failing++)
        for (unsigned blocked = 0; blocked < 1u << 3; blocked++)
            for (int call = CALL_SUBMIT; call <= CALL_WAIT; call++) {
                /* Ranks are waited for in order: a rank before the failed one would report its own time-out. */
                if (blocked & (call == CALL_WAIT ? (2u << failing) - 1 : 1u << failing)) continue;
                struct backend *backend = make(3);
                fill_step(backend, DECODE, 3);
                if (call == CALL_WAIT) check_submit(backend, DECODE, INPUTS_FROM_HOST);
                fakes.fails[call] = 1u << failing;
                fakes.blocks[call] = blocked;
                if (call == CALL_WAIT)
                    assert_null(backend_ranks_wait(backend, &reported));
                else
                    assert_false(backend_ranks_submit(backend, DECODE, INPUTS_FROM_HOST, &reported));
                expect_gone(call, failing);
                assert_true(atomic_load(&fakes.stops[failing]) > 0);
                backend_ranks_destroy(backend);
                assert_int_equal(atomic_load(&fakes.destroyed), 3);
                next_case();
            }
}

/* Rank 0 stopped because of another rank: its message is not reported. */
TEST(who_only_stopped_is_not_blamed)
{
    struct backend *backend = make_and_submit();
    atomic_store(&fakes.stops[2], 1); /* set by the rank itself, on its device */
    fakes.blocks[CALL_WAIT] = 3;
    fakes.fails[CALL_WAIT] = 4;
    assert_null(backend_ranks_wait(backend, &reported));
    expect_gone(CALL_WAIT, 2);
    for (int r = 0; r < 3; r++) assert_int_equal(fakes.ranks[r]->waits, 1);
    backend_ranks_destroy(backend);
}

/* After the failure of a rank, tokens of another differ; the failure is reported, not the difference. */
TEST(a_failure_comes_before_tokens_that_differ)
{
    for (int failing = 0; failing < 3; failing++) {
        struct backend *backend = make(3);
        for (int i = 0; i < DECODE_ROWS; i++) fakes.tokens[failing == 2 ? 1 : 2][i] = 30;
        submit_filled(backend, DECODE, 3);
        fakes.fails[CALL_WAIT] = 1u << failing;
        assert_null(backend_ranks_wait(backend, &reported));
        expect_gone(CALL_WAIT, failing);
        backend_ranks_destroy(backend);
        next_case();
    }
}

/* Replays in flight end by themselves before the first rank is destroyed: stopping them would damage the COMM
 * spaces. */
TEST(replays_in_flight_end_before_the_first_is_destroyed)
{
    for (int in_flight = 1; in_flight <= BACKEND_MOST_IN_FLIGHT; in_flight++) {
        struct backend *backend = make_of(&settling_type, 3);
        submit_filled(backend, DECODE, 3);
        assert_non_null(backend_ranks_wait(backend, &reported));
        for (int i = 0; i < in_flight; i++) check_submit(backend, DECODE, i ? INPUTS_OF_LAST_REPLAY : INPUTS_FROM_HOST);
        backend_ranks_destroy(backend);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(fakes.ranks[r]->destroys, 1);
            assert_int_equal(fakes.ranks[r]->stops_at_destroy, 0);
            assert_int_equal(fakes.ranks[r]->settled_at_destroy, 3);
        }
        next_case();
    }
}

/* No rank is destroyed while another still runs. If one does not end, all are stopped; if one never ends, all
 * remain. */
TEST(all_settle_before_the_first_is_destroyed)
{
    for (unsigned hangs = 0; hangs < 8; hangs++) {
        fakes.hangs = hangs;
        backend_ranks_destroy(make_of(&settling_type, 3));
        assert_int_equal(atomic_load(&fakes.settled), hangs ? 6 : 3);
        assert_true(any_stop(3) == (hangs != 0));
        assert_int_equal(atomic_load(&fakes.destroyed), hangs ? 0 : 3);
        assert_true(atomic_load(&engine.is_lost) == (hangs != 0));
        for (int r = 0; r < 3; r++) {
            assert_int_equal(fakes.ranks[r]->settled_at_destroy, hangs ? 0 : 3);
            if (hangs) destroy(&fakes.ranks[r]->common); /* releases memory of the test */
        }
        next_case();
    }
}

/* The other ranks use what rank 0 has checked for all. */
TEST(ranks_in_one_memory_follow_the_first)
{
    struct backend *backend = make_of(&sharing_type, 3);
    assert_int_equal(fakes.ranks[0]->options.pages, 0);
    for (int r = 1; r < 3; r++) assert_int_equal(fakes.ranks[r]->options.pages, 100);
    backend_ranks_destroy(backend);
    assert_int_equal(atomic_load(&fakes.destroyed), 3);
    next_case();
    fakes.fails[CALL_CREATE] = 1;
    assert_null(backend_ranks_create(&several, &sharing_type, &engine, &options, &reported));
    expect_gone(CALL_CREATE, 0);
    assert_null(fakes.ranks[1]);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

TEST(draws_reach_all_and_logits_come_from_the_first)
{
    struct backend *backend = make(3);
    submit_filled(backend, DECODE, 2);
    assert_non_null(backend_ranks_wait(backend, &reported));
    backend_ranks_drew(backend, 2, 31);
    for (int r = 0; r < 3; r++) assert_int_equal(fakes.ranks[r]->drew[2], 31);
    const float *found = backend_ranks_logits(backend, 1, 2, &reported);
    assert_non_null(found);
    assert_true(*found == 12);
    backend_ranks_destroy(backend);
}

TEST(all_ranks_run_a_trace_and_the_first_tells)
{
    struct backend_type with_source = rank_type;
    with_source.source = source;
    const struct {
        const struct backend_type *type;
        size_t plan;
        int launches;
    } cases[] = {{&rank_type, DECODE, 2}, {&with_source, PREFILL, 4}};
    for (size_t i = 0; i < 2; i++) {
        struct backend *backend = make_of(cases[i].type, 3);
        const struct plan *replayed = backend_ranks_source(backend, cases[i].plan);
        assert_ptr_equal(replayed, i ? &other_source : &plans[DECODE]);
        double replay_us = 0, launch_us[5];
        for (int round = 1; round <= 3; round++) {
            for (int l = 0; l < 5; l++) launch_us[l] = -1;
            fill_step(backend, cases[i].plan, 1);
            assert_true(backend_ranks_trace(backend, cases[i].plan, &replay_us, launch_us, &reported));
            assert_true(replay_us == 100);
            for (int l = 0; l < 5; l++) assert_true(launch_us[l] == (l < cases[i].launches ? l : -1));
            for (int r = 0; r < 3; r++) {
                assert_int_equal(fakes.ranks[r]->traces, round);
                assert_memory_equal(fakes.ranks[r]->common.step, backend->step, 64);
            }
        }
        fakes.fails[CALL_TRACE] = 2;
        fakes.blocks[CALL_TRACE] = 5;
        assert_false(backend_ranks_trace(backend, cases[i].plan, &replay_us, launch_us, &reported));
        expect_gone(CALL_TRACE, 1);
        assert_true(atomic_load(&fakes.stops[1]) > 0);
        backend_ranks_destroy(backend);
        next_case();
    }
}

int main(void) { return test_run_with(NULL, begin, end, NULL); }
