/* SPDX-License-Identifier: Apache-2.0 */
/* Steps queued ahead of the tokens of the previous ones: on a test device (runtime/backend/test_backend.h) every
 * sequence and slot gets the same tokens as by itself without lookahead, under random schedules; and failures of the
 * device. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include "runtime/session/session.h"
#include "runtime/backend/test_backend.h"

enum {
    SCRIPTS = 24,
    TURNS = 3,
    LONGEST_PROMPT = 80,
    LONGEST_ANSWER = 24,
    RAW_SCRIPTS = 4,
    RAW_PROMPT = 20,
    RAW_STEPS = 9
};

/* Inputs of one sequence, and its answer by itself without lookahead. */
struct script {
    uint32_t seed;
    int turns;
    size_t prompt[TURNS];
    uint32_t max_new_tokens;
    bool sampled, logits, allowed; /* allowed: some tokens only */
    int32_t stop_token;            /* -1: none */
    int32_t answers[TURNS][LONGEST_ANSWER];
    size_t counts[TURNS];
    enum eng_end ends[TURNS];
};

struct raw_script {
    int32_t tokens[RAW_STEPS]; /* drawn: by the prefill, then by each decode step */
};

static int32_t vocabulary = INT32_MAX;

/* As fables_tokens, in the vocabulary of the model. */
static void some_tokens(uint32_t seed, int32_t *tokens, size_t count)
{
    fables_tokens(seed, tokens, count);
    for (size_t i = 0; i < count; i++) tokens[i] %= vocabulary;
}

struct random {
    uint32_t state;
};

static uint32_t below(struct random *random, uint32_t limit)
{
    random->state = random->state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(random->state >> 8) * limit >> 24);
}

static struct eng_session *device_session(struct eng_engine *engine, uint64_t kv_tokens)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    options.kv_tokens = kv_tokens;
    return fables_session_on(&test_backend, engine, &options);
}

static struct eng_session *plain_session(struct eng_engine *engine)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    return fables_session(engine, &options);
}

static struct eng_sequence *create(struct eng_session *session, const struct script *script)
{
    struct eng_sampling sampling = fables_sampling(script->sampled, script->seed);
    if (session->geometry->vocab_size < 1000)
        sampling.logit_bias_count = 0; /* they are for tokens of a larger vocabulary */
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = script->max_new_tokens;
    options.stop_tokens = &script->stop_token;
    options.stop_count = script->stop_token >= 0;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    if (script->turns > 1) {
        options.flags |= ENG_SEQUENCE_KEEP;
        options.context_tokens = 200;
    }
    if (script->logits) options.flags |= ENG_SEQUENCE_LOGITS;
    if (script->allowed) options.flags |= ENG_SEQUENCE_ALLOWED;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    if (script->allowed) {
        uint32_t allowed[2048 / 32];
        const size_t words = (session->geometry->vocab_size + 31) / 32;
        assert_true(words * sizeof *allowed <= sizeof allowed);
        for (size_t w = 0; w < words; w++) allowed[w] = 0x9249a5b7u * (script->seed + (uint32_t)w + 1) | 1;
        CHECK(eng_sequence_set_allowed(sequence, allowed, words, &error));
    }
    return sequence;
}

static void submit(struct eng_sequence *sequence, const struct script *script, int turn)
{
    int32_t prompt[LONGEST_PROMPT];
    some_tokens(script->seed * TURNS + (uint32_t)turn, prompt, script->prompt[turn]);
    CHECK(eng_sequence_submit(sequence, prompt, script->prompt[turn], &error));
}

static void run_alone(struct eng_session *session, struct script *script)
{
    struct eng_sequence *sequence = create(session, script);
    for (int turn = 0; turn < script->turns; turn++) {
        submit(sequence, script, turn);
        fables_finish(session);
        script->counts[turn] = eng_sequence_poll(sequence, script->answers[turn], LONGEST_ANSWER);
        script->ends[turn] = eng_sequence_end(sequence);
    }
    eng_sequence_destroy(&sequence);
}

static void make_script(struct eng_session *plain, struct random *random, struct script *script)
{
    *script = (struct script){.seed = below(random, 1 << 20), .stop_token = -1};
    script->turns = below(random, 2) ? 1 : 1 + (int)below(random, TURNS);
    script->sampled = below(random, 3) > 0;
    script->logits = below(random, 8) == 0;
    script->allowed = below(random, 8) == 0;
    script->max_new_tokens = 1 + below(random, LONGEST_ANSWER);
    for (int turn = 0; turn < script->turns; turn++)
        script->prompt[turn] = 1 + below(random, script->turns > 1 ? 30 : LONGEST_PROMPT);
    run_alone(plain, script);
    if (below(random, 3) == 0) return;
    /* The end usually cannot be foreseen. */
    script->stop_token = script->answers[0][below(random, (uint32_t)script->counts[0])];
    run_alone(plain, script);
}

static void raw_prompt(size_t index, int32_t prompt[RAW_PROMPT])
{
    some_tokens(900 + (uint32_t)index, prompt, RAW_PROMPT);
}

/* All steps at once. */
static void run_raw_steps(struct eng_session *session, size_t index, const struct raw_script *script)
{
    int32_t prompt[RAW_PROMPT], token, drawn[RAW_STEPS];
    uint32_t slot, position;
    raw_prompt(index, prompt);
    CHECK(eng_slot_acquire(session, &slot, &error));
    CHECK(eng_prefill(session, slot, prompt, RAW_PROMPT, &token, NULL, &error));
    assert_int_equal(token, script->tokens[0]);
    CHECK(eng_decode_steps(session, &slot, &token, 1, RAW_STEPS - 1, drawn, &error));
    assert_memory_equal(drawn, script->tokens + 1, (RAW_STEPS - 1) * sizeof *drawn);
    /* It can be truncated and continues in the same way. */
    CHECK(eng_slot_truncate(session, slot, RAW_PROMPT + 2, &error));
    CHECK(eng_decode_steps(session, &slot, &drawn[1], 1, 3, drawn, &error));
    assert_memory_equal(drawn, script->tokens + 3, 3 * sizeof *drawn);
    CHECK(eng_slot_position(session, slot, &position, &error));
    assert_int_equal(position, RAW_PROMPT + 5);
    CHECK(eng_decode_steps(session, &slot, &drawn[2], 1, 0, drawn, &error));
    CHECK(eng_slot_release(session, slot, &error));
}

static void run_raw_alone(struct eng_session *session, size_t index, struct raw_script *script)
{
    int32_t prompt[RAW_PROMPT];
    uint32_t slot;
    raw_prompt(index, prompt);
    CHECK(eng_slot_acquire(session, &slot, &error));
    CHECK(eng_prefill(session, slot, prompt, RAW_PROMPT, &script->tokens[0], NULL, &error));
    for (int i = 1; i < RAW_STEPS; i++)
        CHECK(eng_decode(session, &slot, &script->tokens[i - 1], 1, &script->tokens[i], NULL, &error));
    CHECK(eng_slot_release(session, slot, &error));
}

/* One sequence of a schedule. */
struct actor {
    const struct script *script;
    struct eng_sequence *sequence;
    int turn;
    size_t polled;
    bool submitted, cancelled, finished;
};

static void poll_actor(struct actor *actor)
{
    const struct script *script = actor->script;
    int32_t token;
    while (actor->sequence && eng_sequence_poll(actor->sequence, &token, 1)) {
        assert_true(actor->polled < script->counts[actor->turn]);
        assert_int_equal(token, script->answers[actor->turn][actor->polled]);
        actor->polled++;
    }
}

/* Continues a sequence that is done: the next turn, or the end. */
static void advance(struct actor *actor, struct random *random)
{
    const struct script *script = actor->script;
    if (!actor->submitted || eng_sequence_state(actor->sequence) != ENG_STATE_DONE || below(random, 3) == 0) return;
    poll_actor(actor);
    if (!actor->cancelled) {
        assert_int_equal(actor->polled, script->counts[actor->turn]);
        assert_int_equal(eng_sequence_end(actor->sequence), script->ends[actor->turn]);
    }
    actor->polled = 0;
    if (actor->cancelled || ++actor->turn == script->turns) {
        actor->finished = true;
        eng_sequence_destroy(&actor->sequence);
    } else {
        submit(actor->sequence, script, actor->turn);
    }
}

/* A raw slot that is acquired and released between steps. */
struct raw_actor {
    const struct raw_script *scripts;
    size_t index;
    bool held;
    uint32_t slot;
    int done;
};

static void act_raw(struct eng_session *session, struct raw_actor *raw)
{
    int32_t prompt[RAW_PROMPT], token;
    const struct raw_script *script = &raw->scripts[raw->index % RAW_SCRIPTS];
    if (!raw->held) {
        if (eng_slot_acquire(session, &raw->slot, &error) != ENG_OK) return;
        raw->held = true;
        raw->done = 0;
    } else if (raw->done == 0) {
        raw_prompt(raw->index % RAW_SCRIPTS, prompt);
        enum eng_status status = eng_prefill(session, raw->slot, prompt, RAW_PROMPT, &token, NULL, &error);
        if (status == ENG_FULL) return;
        assert_int_equal(status, ENG_OK);
        assert_int_equal(token, script->tokens[raw->done++]);
    } else if (raw->done < RAW_STEPS) {
        enum eng_status status =
            eng_decode(session, &raw->slot, &script->tokens[raw->done - 1], 1, &token, NULL, &error);
        if (status == ENG_FULL) return;
        assert_int_equal(status, ENG_OK);
        assert_int_equal(token, script->tokens[raw->done++]);
    } else {
        CHECK(eng_slot_release(session, raw->slot, &error));
        raw->held = false;
        raw->index++;
    }
}

static void run_schedule(struct eng_engine *engine, const struct script scripts[SCRIPTS],
                         const struct raw_script raws[RAW_SCRIPTS], uint64_t kv_tokens, bool with_raw, uint32_t seed)
{
    struct random random = {seed};
    struct eng_session *session = device_session(engine, kv_tokens);
    struct actor actors[SCRIPTS] = {{0}};
    struct raw_actor raw = {.scripts = raws};
    size_t started = 0, finished = 0;
    while (finished < SCRIPTS) {
        uint32_t what = below(&random, 100);
        if (started < SCRIPTS && what < 12) {
            struct actor *actor = &actors[started];
            actor->script = &scripts[started++];
            actor->sequence = create(session, actor->script);
            submit(actor->sequence, actor->script, 0);
            actor->submitted = true;
        } else if (what < 14 && started) {
            struct actor *actor = &actors[below(&random, (uint32_t)started)];
            if (actor->sequence && eng_sequence_state(actor->sequence) != ENG_STATE_DONE) {
                eng_sequence_cancel(actor->sequence);
                actor->cancelled = true;
            }
        } else if (with_raw && what < 24) {
            act_raw(session, &raw);
        } else {
            enum eng_status status = eng_step(session, NULL, &error);
            if (status != ENG_OK) assert_int_equal(status, ENG_FULL); /* kept ones must continue */
        }
        finished = 0;
        for (size_t i = 0; i < started; i++) {
            if (actors[i].sequence && below(&random, 2)) poll_actor(&actors[i]);
            if (actors[i].sequence) advance(&actors[i], &random);
            finished += actors[i].finished;
        }
    }
    while (raw.held) {
        if (raw.done == 0) raw.done = RAW_STEPS;
        act_raw(session, &raw);
    }
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_int_equal(facts.free_pages, facts.pages);
    assert_int_equal(facts.free_slots, facts.slots);
    eng_session_destroy(&session);
    assert_int_equal(test_backend_settings.alive, 0);
}

static void run_schedules(struct eng_engine *engine, uint32_t rounds)
{
    enum { SCHEDULES = 6 };
    struct eng_session *plain = plain_session(engine);
    struct script scripts[SCRIPTS];
    struct raw_script raws[RAW_SCRIPTS];
    struct random random = {7};
    for (size_t i = 0; i < RAW_SCRIPTS; i++) run_raw_alone(plain, i, &raws[i]);
    test_backend_settings = (struct test_backend_settings){0};
    for (uint32_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < SCRIPTS; i++) make_script(plain, &random, &scripts[i]);
        for (uint32_t i = 0; i < SCHEDULES; i++) {
            test_backend_settings.pace = i % 3;
            run_schedule(engine, scripts, raws, i % 2 ? 2 * FABLES_CONTEXT : FABLES_BATCH * FABLES_CONTEXT, i >= 3,
                         round * SCHEDULES + i);
        }
    }
    assert_true(test_backend_settings.submits_ahead > test_backend_settings.submits / 8);
    eng_session_destroy(&plain);
}

TEST(test_random_schedules) { run_schedules(fables, test_sanitized() ? 1 : 10); }

/* A step that was queued ahead and is discarded leaves the state that the slot's next step reads. A model without experts, whose bits
 * depend on what else is in a step. */
TEST(test_random_schedules_with_recurrent_state)
{
    enum { VOCABULARY = 320 };
    char model[4096], path[512];
    struct status status = {0};
    struct eng_engine *engine;
    if (!test_shared()) skip();
    char *folder = test_folder();
    snprintf(model, sizeof model, "%s/models/hf-tiny/lfm2", test_shared());
    snprintf(path, sizeof path, "%s/lfm2.eng", folder);
    test_expect_success(fables_build_model(model, path, 1, &status), &status);
    CHECK(eng_open(path, NULL, &engine, &error));
    vocabulary = VOCABULARY;
    run_schedules(engine, test_sanitized() ? 1 : 4);
    vocabulary = INT32_MAX;
    eng_close(&engine);
    test_folder_remove(folder);
}

TEST(test_steps_are_queued_ahead)
{
    struct eng_session *plain = plain_session(fables);
    struct script script = {.seed = 5, .turns = 1, .prompt = {8}, .max_new_tokens = 20, .stop_token = -1};
    run_alone(plain, &script);
    assert_int_equal(script.counts[0], 20);
    for (int pace = PACE_EAGER; pace <= PACE_LAZY; pace++) {
        test_backend_settings = (struct test_backend_settings){.pace = (enum test_backend_pace)pace};
        struct eng_session *session = device_session(fables, FABLES_CONTEXT);
        struct actor actor = {.script = &script, .sequence = create(session, &script)};
        submit(actor.sequence, &script, 0);
        /* The prompt draws the first token; the first of 19 steps has its inputs from the host. One token per step. */
        for (size_t steps = 1; steps <= 20; steps++) {
            CHECK(eng_step(session, NULL, &error));
            assert_null(eng_sequence_logits(actor.sequence));
            poll_actor(&actor);
            assert_int_equal(actor.polled, steps);
        }
        assert_int_equal(eng_sequence_end(actor.sequence), ENG_END_LENGTH);
        assert_int_equal(test_backend_settings.submits, 20);
        assert_int_equal(test_backend_settings.submits_ahead, 18);
        assert_int_equal(test_backend_settings.waits, 20); /* an end that is foreseen needs no extra step */
        eng_session_destroy(&session);
    }
    eng_session_destroy(&plain);
}

TEST(test_logits_are_those_of_the_plain_path)
{
    struct eng_engine_facts facts;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(fables, &facts, &error));
    struct script scripts[2] = {
        {.seed = 6, .turns = 1, .prompt = {8}, .max_new_tokens = 12, .stop_token = -1, .logits = true},
        {.seed = 7, .turns = 1, .prompt = {8}, .max_new_tokens = 12, .stop_token = -1},
    };
    struct eng_session *sessions[2] = {plain_session(fables), device_session(fables, FABLES_CONTEXT)};
    struct eng_sequence *sequences[2][2];
    test_backend_settings = (struct test_backend_settings){0};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            sequences[i][k] = create(sessions[i], &scripts[k]);
            submit(sequences[i][k], &scripts[k], 0);
        }
    for (int step = 0; step < 13; step++) {
        for (int i = 0; i < 2; i++) CHECK(eng_step(sessions[i], NULL, &error));
        const float *expected = eng_sequence_logits(sequences[0][0]), *found = eng_sequence_logits(sequences[1][0]);
        assert_int_equal(expected != NULL, found != NULL);
        if (expected) assert_memory_equal(expected, found, facts.vocab_size * sizeof *expected);
        assert_null(eng_sequence_logits(sequences[1][1]));
    }
    assert_int_equal(test_backend_settings.submits_ahead, 0);
    for (int i = 0; i < 2; i++) eng_session_destroy(&sessions[i]);
}

TEST(test_many_steps_in_one_call)
{
    struct eng_session *sessions[2] = {plain_session(fables), device_session(fables, 2 * FABLES_CONTEXT)};
    struct raw_script script;
    for (size_t i = 0; i < RAW_SCRIPTS; i++) {
        run_raw_alone(sessions[0], i, &script);
        test_backend_settings.pace = i % 3;
        for (int k = 0; k < 2; k++) run_raw_steps(sessions[k], i, &script);
    }
    for (int i = 0; i < 2; i++) eng_session_destroy(&sessions[i]);
}

TEST(test_waiting_sequences_are_admitted_at_once)
{
    struct script script = {.seed = 5, .turns = 1, .prompt = {8}, .max_new_tokens = LONGEST_ANSWER, .stop_token = -1};
    struct eng_session *session = device_session(fables, 2 * FABLES_CONTEXT);
    struct eng_sequence *talker = create(session, &script);
    submit(talker, &script, 0);
    for (int i = 0; i < 4; i++) CHECK(eng_step(session, NULL, &error));
    struct eng_sequence *reader = create(session, &script);
    submit(reader, &script, 0);
    CHECK(eng_step(session, NULL, &error)); /* was queued already */
    CHECK(eng_step(session, NULL, &error));
    assert_int_equal(eng_sequence_state(reader), ENG_STATE_DECODE);
    eng_session_destroy(&session);
}

static void expect_dead(struct eng_session *session, struct eng_sequence *sequence, uint32_t slot)
{
    struct eng_sequence *another;
    int32_t token = 300, next;
    uint32_t number;
#define EXPECT_FAILURE(call)                                          \
    do {                                                              \
        error.message[0] = '\0';                                      \
        assert_int_equal((call), ENG_MACHINE);                        \
        assert_non_null(strstr(error.message, "the device is gone")); \
    } while (0)
    EXPECT_FAILURE(eng_step(session, NULL, &error));
    EXPECT_FAILURE(eng_sequence_create(session, NULL, &another, &error));
    EXPECT_FAILURE(eng_sequence_submit(sequence, &token, 1, &error));
    EXPECT_FAILURE(eng_slot_acquire(session, &number, &error));
    EXPECT_FAILURE(eng_slot_set_sampling(session, slot, NULL, &error));
    EXPECT_FAILURE(eng_slot_position(session, slot, &number, &error));
    EXPECT_FAILURE(eng_slot_truncate(session, slot, 0, &error));
    EXPECT_FAILURE(eng_prefill(session, slot, &token, 1, &next, NULL, &error));
    EXPECT_FAILURE(eng_decode(session, &slot, &token, 1, &next, NULL, &error));
    EXPECT_FAILURE(eng_decode_steps(session, &slot, &token, 1, 1, &next, &error));
    EXPECT_FAILURE(eng_selftest(session, NULL, &error));
    EXPECT_FAILURE(eng_slot_release(session, slot, &error));
#undef EXPECT_FAILURE
}

TEST(test_a_failed_device_stays_failed)
{
    struct script script = {.seed = 9, .turns = 1, .prompt = {30}, .max_new_tokens = 12, .stop_token = -1};
    for (int call = 1; call <= 12; call++)
        for (int kind = 0; kind < 3; kind++) {
            test_backend_settings = (struct test_backend_settings){.pace = PACE_RANDOM};
            struct eng_session *session = device_session(fables, 2 * FABLES_CONTEXT);
            script.logits = kind == 2;
            struct eng_sequence *sequence = create(session, &script);
            uint32_t slot, unfinished = 1;
            CHECK(eng_slot_acquire(session, &slot, &error));
            submit(sequence, &script, 0);
            test_backend_settings.fail_submit = kind == 0 ? call : 0;
            test_backend_settings.fail_wait = kind == 1 ? call : 0;
            test_backend_settings.fail_logits = kind == 2 ? call : 0;
            enum eng_status status = ENG_OK;
            while (unfinished && status == ENG_OK) status = eng_step(session, &unfinished, &error);
            assert_int_equal(status, ENG_MACHINE);
            assert_string_equal(error.message + strlen(error.message) - strlen("the device is gone"),
                                "the device is gone");
            expect_dead(session, sequence, slot);
            eng_sequence_cancel(sequence);
            eng_sequence_destroy(&sequence);
            eng_session_destroy(&session);
            assert_int_equal(test_backend_settings.alive, 0);
        }
    test_backend_settings = (struct test_backend_settings){0};
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
