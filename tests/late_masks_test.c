/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that are queued up to their sampler, since what they may draw follows from the tokens before: grammars, and masks that callers set
 * after each token. On a test device (runtime/backend/test_backend.h) every sequence gets the same tokens as by itself without lookahead, whatever
 * else is in its steps. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { SCRIPTS = 20, MOST = 40, PROMPT = 24, RAW_TOKENS = 5, GRAMMARS = 8, NO_GRAMMAR = GRAMMARS };

static const struct {
    enum eng_grammar_kind kind;
    const char *text;
} sources[GRAMMARS] = {
    {ENG_GRAMMAR_JSON_SCHEMA,
     "{\"type\": \"array\", \"items\": {\"enum\": [\"red\", \"green\", \"dark blue\"]}, \"maxItems\": 5}"},
    {ENG_GRAMMAR_JSON_SCHEMA,
     "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 9}, \"age\": {\"type\": "
     "\"integer\", "
     "\"minimum\": 0, \"maximum\": 120}}, \"required\": [\"name\", \"age\"], \"additionalProperties\": false}"},
    {ENG_GRAMMAR_JSON_SCHEMA, "{\"anyOf\": [{\"type\": \"boolean\"}, {\"type\": \"null\"}, {\"type\": \"number\"}]}"},
    {ENG_GRAMMAR_JSON_OBJECT, ""},
    {ENG_GRAMMAR_REGEX, "(.|\\n|\\r)*"},
    {ENG_GRAMMAR_REGEX, "[a-f]{3,30}"},
    {ENG_GRAMMAR_REGEX, "the (fox|hen)( and the (fox|hen))*"},
    {ENG_GRAMMAR_CHOICES, "[\"yes\", \"no, never\", \"perhaps\"]"},
};
static struct eng_grammar *grammars[GRAMMARS + 1];

/* A sequence, and its answer by itself without lookahead. */
struct script {
    uint32_t seed, prompt, most, grammar;
    bool sampled, logits, allowed; /* allowed: each token sets those that may follow it */
    int32_t answer[MOST];
    size_t count;
    enum eng_end end;
};

struct random {
    uint32_t state;
};

static uint32_t below(struct random *random, uint32_t limit)
{
    random->state = random->state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(random->state >> 8) * limit >> 24);
}

static int start(void **state)
{
    if (fables_start(state)) return -1;
    for (int i = 0; i < GRAMMARS; i++)
        CHECK(eng_grammar_create(fables, sources[i].kind, sources[i].text, strlen(sources[i].text), &grammars[i],
                                 &error));
    return 0;
}

static int stop(void **state)
{
    for (int i = 0; i < GRAMMARS; i++) eng_grammar_destroy(&grammars[i]);
    return fables_stop(state);
}

static struct eng_session *device_session(struct eng_engine *engine, uint64_t kv_tokens, uint32_t speculate)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    options.kv_tokens = kv_tokens;
    options.speculate = speculate;
    return fables_session_on(&test_backend, engine, &options);
}

static void some_tokens(const struct eng_session *session, uint32_t seed, int32_t *tokens, size_t count)
{
    fables_tokens(seed, tokens, count);
    for (size_t i = 0; i < count; i++) tokens[i] %= (int32_t)session->geometry->vocab_size;
}

/* What may follow `token` (PLAN_NO_TOKEN: the prompt): about half of all tokens; now and then all, so that options of the sampler change,
 * and rarely none. */
static void allow_after(struct eng_sequence *sequence, const struct script *script, int32_t token)
{
    uint32_t allowed[2048 / 32];
    const uint32_t which = script->seed + (uint32_t)(token + 2) * 7919u;
    const size_t words = plan_allowed_words(sequence->session->geometry->vocab_size);
    assert_true(words * sizeof *allowed <= sizeof allowed);
    for (size_t w = 0; w < words; w++) allowed[w] = which % 61 == 1 ? 0 : 0x9249a5b7u * (which + (uint32_t)w + 1);
    const bool all = which % 5 == 0;
    CHECK(eng_sequence_set_allowed(sequence, all ? NULL : allowed, all ? 0 : words, &error));
}

static struct eng_sequence *begin(struct eng_session *session, const struct script *script)
{
    struct eng_sampling sampling;
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    int32_t prompt[PROMPT];
    eng_sampling_init(&sampling);
    sampling.temperature = script->sampled ? 1.3f : 0;
    sampling.repetition_penalty = script->sampled && script->seed % 2 ? 1.1f : 1;
    sampling.seed = script->seed;
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = script->most;
    options.grammar = grammars[script->grammar];
    if (!options.grammar) options.flags = ENG_SEQUENCE_IGNORE_EOS;
    if (script->logits) options.flags |= ENG_SEQUENCE_LOGITS;
    if (script->allowed) options.flags |= ENG_SEQUENCE_ALLOWED;
    some_tokens(session, script->seed, prompt, script->prompt);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    if (script->allowed) allow_after(sequence, script, PLAN_NO_TOKEN);
    CHECK(eng_sequence_submit(sequence, prompt, script->prompt, &error));
    return sequence;
}

/* Takes the tokens that a call has brought, and sets what may follow. Returns how many. */
static size_t take(struct eng_sequence *sequence, const struct script *script, int32_t *tokens, size_t capacity)
{
    const size_t count = eng_sequence_poll(sequence, tokens, capacity);
    if (script->allowed) assert_true(count <= 1);
    if (count && script->allowed && eng_sequence_state(sequence) != ENG_STATE_DONE)
        allow_after(sequence, script, tokens[count - 1]);
    return count;
}

static void run_alone(struct eng_session *session, struct script *script)
{
    struct eng_sequence *sequence = begin(session, script);
    script->count = 0;
    while (eng_sequence_state(sequence) != ENG_STATE_DONE) {
        CHECK(eng_step(session, NULL, &error));
        script->count += take(sequence, script, script->answer + script->count, MOST - script->count);
    }
    script->end = eng_sequence_end(sequence);
    eng_sequence_destroy(&sequence);
}

/* with_grammars: else masks of callers alone. */
static void make_scripts(struct eng_session *plain, struct random *random, bool with_grammars,
                         struct script scripts[SCRIPTS])
{
    for (uint32_t i = 0; i < SCRIPTS; i++) {
        const bool bound = with_grammars && below(random, 3) > 0;
        scripts[i] = (struct script){.seed = below(random, 1 << 20),
                                     .prompt = 1 + below(random, PROMPT),
                                     .most = 1 + below(random, MOST),
                                     .grammar = bound ? below(random, GRAMMARS) : NO_GRAMMAR,
                                     .sampled = below(random, 3) > 0,
                                     .logits = below(random, 12) == 0,
                                     .allowed = !bound && below(random, 3) == 0};
        run_alone(plain, &scripts[i]);
    }
}

/* A slot of a caller's between the steps: a step in flight must be waited for, or forgotten. */
static void use_slot(struct eng_session *session)
{
    int32_t prompt[RAW_TOKENS], token;
    uint32_t slot;
    if (eng_slot_acquire(session, &slot, &error) != ENG_OK) return;
    some_tokens(session, 77, prompt, RAW_TOKENS);
    const enum eng_status status = eng_prefill(session, slot, prompt, RAW_TOKENS, &token, NULL, &error);
    if (status) assert_int_equal(status, ENG_FULL);
    CHECK(eng_slot_release(session, slot, &error));
}

struct actor {
    struct eng_sequence *sequence;
    size_t taken;
    bool cancelled;
};

/* Returns whether the actor is done. */
static bool look(struct actor *actor, const struct script *script)
{
    int32_t token;
    if (!actor->sequence) return true;
    while (take(actor->sequence, script, &token, 1)) {
        assert_true(actor->taken < script->count);
        assert_int_equal(token, script->answer[actor->taken++]);
    }
    if (eng_sequence_state(actor->sequence) != ENG_STATE_DONE) return false;
    if (!actor->cancelled) {
        assert_int_equal(actor->taken, script->count);
        assert_int_equal(eng_sequence_end(actor->sequence), script->end);
    }
    eng_sequence_destroy(&actor->sequence);
    return true;
}

static void run_schedule(struct eng_session *session, const struct script scripts[SCRIPTS], uint32_t seed)
{
    struct random random = {seed};
    struct actor actors[SCRIPTS] = {{0}};
    size_t started = 0, done = 0;
    while (done < SCRIPTS) {
        const uint32_t what = below(&random, 100);
        struct actor *any = started ? &actors[below(&random, (uint32_t)started)] : NULL;
        if (started < SCRIPTS && what < 15) {
            actors[started].sequence = begin(session, &scripts[started]);
            started++;
        } else if (what < 17 && any && any->sequence) {
            eng_sequence_cancel(any->sequence);
            any->cancelled = true;
        } else if (what < 22) {
            use_slot(session);
        } else {
            CHECK(eng_step(session, NULL, &error));
        }
        done = 0;
        for (size_t i = 0; i < started; i++) done += look(&actors[i], &scripts[i]);
    }
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_int_equal(facts.free_pages, facts.pages);
    assert_int_equal(facts.free_slots, facts.slots);
    eng_session_destroy(&session);
    assert_int_equal(test_backend_settings.alive, 0);
}

static void run_schedules(struct eng_engine *engine, bool with_grammars, uint32_t rounds)
{
    struct eng_session *plain = fables_session(engine, NULL);
    struct script scripts[SCRIPTS];
    struct random random = {3};
    test_backend_settings = (struct test_backend_settings){0};
    for (uint32_t round = 0; round < rounds; round++) {
        make_scripts(plain, &random, with_grammars, scripts);
        for (uint32_t i = 0; i < 4; i++) {
            test_backend_settings.pace = (enum test_backend_pace)(i % 3);
            run_schedule(device_session(engine, i % 2 ? FABLES_CONTEXT : FABLES_BATCH * FABLES_CONTEXT, i == 2 ? 5 : 0),
                         scripts, round * 4 + i);
        }
    }
    assert_true(test_backend_settings.submits_up_to_sampler > test_backend_settings.submits / 16);
    assert_true(test_backend_settings.abandoned > 0);
    test_backend_settings.undivided = true;
    test_backend_settings.submits_up_to_sampler = 0;
    run_schedule(device_session(engine, FABLES_CONTEXT, 0), scripts, 1);
    assert_int_equal(test_backend_settings.submits_up_to_sampler, 0);
    test_backend_settings = (struct test_backend_settings){0};
    eng_session_destroy(&plain);
}

TEST(answers_are_those_without_lookahead) { run_schedules(fables, true, test_sanitized() ? 1 : 4); }

/* A step that is forgotten after its layers leaves the state that the same step reads again. */
TEST(answers_of_a_model_with_recurrent_state)
{
    char model[4096], path[512];
    struct status status = {0};
    struct eng_engine *engine;
    if (!test_shared()) skip();
    char *folder = test_folder();
    snprintf(model, sizeof model, "%s/models/hf-tiny/lfm2", test_shared());
    snprintf(path, sizeof path, "%s/lfm2.eng", folder);
    test_expect_success(fables_build_model(model, path, 1, &status), &status);
    CHECK(eng_open(path, NULL, &engine, &error));
    run_schedules(engine, false, 2);
    eng_close(&engine);
    test_folder_remove(folder);
}

/* Steps until `count` tokens have come. */
static void step_to(struct eng_session *session, struct eng_sequence *sequence, const struct script *script,
                    size_t count)
{
    int32_t token;
    for (size_t taken = 0; taken < count;) {
        CHECK(eng_step(session, NULL, &error));
        taken += take(sequence, script, &token, 1);
    }
}

/* Every step but the first is queued ahead, up to its sampler: that of a grammar waits within the call, that of masks which the caller sets
 * until the next call. */
TEST(samplers_wait)
{
    for (int allowed = 0; allowed < 2; allowed++) {
        const struct script script = {.seed = 8,
                                      .prompt = 4,
                                      .grammar = allowed ? NO_GRAMMAR : 4,
                                      .allowed = allowed,
                                      .most = MOST};
        test_backend_settings = (struct test_backend_settings){0};
        struct eng_session *session = device_session(fables, FABLES_CONTEXT, 0);
        struct eng_sequence *sequence = begin(session, &script);
        step_to(session, sequence, &script, 6);
        assert_int_equal(session->flight_count, 1);
        assert_int_equal(session->flights[0].waits, allowed);
        assert_int_equal(test_backend_settings.submits, 7);
        assert_int_equal(test_backend_settings.submits_up_to_sampler, 5);
        /* Without the sequence nothing waits any more; a session ends at any time. */
        if (!allowed) eng_sequence_destroy(&sequence);
        uint32_t unfinished;
        if (!allowed) CHECK(eng_step(session, &unfinished, &error));
        if (!allowed) assert_int_equal(session->flight_count, 0);
        eng_session_destroy(&session);
        assert_int_equal(test_backend_settings.alive, 0);
    }
}

/* A mask that is set after another call has used the device is that of the next token. */
TEST(masks_after_other_calls)
{
    uint32_t allowed[2048 / 32] = {0};
    const struct script script = {.seed = 8, .prompt = 4, .grammar = NO_GRAMMAR, .allowed = true, .most = MOST};
    test_backend_settings = (struct test_backend_settings){0};
    struct eng_session *session = device_session(fables, 2 * FABLES_CONTEXT, 0);
    struct eng_sequence *sequence = begin(session, &script);
    const size_t words = plan_allowed_words(session->geometry->vocab_size);
    int32_t token = 0;
    for (uint32_t expected = 300; expected < 310; expected++) {
        step_to(session, sequence, &script, 1);
        if (expected % 2) use_slot(session);
        assert_int_equal(eng_sequence_poll(sequence, &token, 1), 0);
        memset(allowed, 0, sizeof allowed);
        allowed[expected / 32] = 1u << expected % 32;
        CHECK(eng_sequence_set_allowed(sequence, allowed, words, &error));
        CHECK(eng_step(session, NULL, &error));
        assert_int_equal(eng_sequence_poll(sequence, &token, 1), 1);
        assert_int_equal(token, expected);
        allow_after(sequence, &script, 0);
    }
    assert_int_equal(test_backend_settings.abandoned, 5);
    eng_session_destroy(&session);
}

TEST(a_sampler_that_fails)
{
    for (int call = 1; call < 4; call++) {
        const struct script script = {.seed = 8, .prompt = 4, .grammar = 4, .most = MOST};
        test_backend_settings = (struct test_backend_settings){.fail_sample = call};
        struct eng_session *session = device_session(fables, FABLES_CONTEXT, 0);
        struct eng_sequence *sequence = begin(session, &script);
        enum eng_status status = ENG_OK;
        while (!status) status = eng_step(session, NULL, &error);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(status, ENG_MACHINE);
            assert_non_null(strstr(error.message, "sample: the device is gone"));
            status = eng_step(session, NULL, &error);
        }
        eng_sequence_destroy(&sequence);
        eng_session_destroy(&session);
        assert_int_equal(test_backend_settings.alive, 0);
    }
    test_backend_settings = (struct test_backend_settings){0};
}

int main(void) { return test_run_with(start, NULL, NULL, stop); }
