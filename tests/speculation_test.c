/* SPDX-License-Identifier: Apache-2.0 */
/* Speculation through the public API: whatever is drafted, sequences have the tokens that they have without it. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <math.h>

#include "formats/base/test_support.h"
#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { PHRASE = 4, PATTERN = 74, PATTERNS = 3, PROMPT = PATTERN + PHRASE, ANSWER = 60 };
enum { MOST = FABLES_CONTEXT, SEQUENCES = 6, DRAFTED = 7 };

/* A sequence, and what it gives. */
struct script {
    uint32_t seed;
    bool repeats, sampled; /* repeats: the prompt is a pattern that begins anew */
    uint32_t max_new_tokens;
    int32_t stop_token; /* -1: none */
    size_t prompt;
    uint32_t flags;
    struct eng_sequence *sequence;
    int32_t answer[MOST];
    size_t count;
    enum eng_end end;
};

static struct eng_sampling sampling_of(const struct script *script)
{
    struct eng_sampling sampling;
    eng_sampling_init(&sampling);
    if (!script->sampled) return sampling;
    sampling.temperature = 0.4f;
    sampling.top_k = 30;
    sampling.top_p = 0.95f;
    sampling.min_p = 0.02f;
    sampling.seed = script->seed;
    return sampling;
}

/* Texts that the model of the test would write, each after its first tokens. */
static int32_t patterns[PATTERNS][PATTERN];

static void make_prompt(const struct script *script, int32_t *tokens, uint32_t vocab)
{
    fables_tokens(script->seed, tokens, script->prompt);
    for (size_t i = 0; i < script->prompt; i++)
        tokens[i] = script->repeats ? patterns[script->seed % PATTERNS][i % PATTERN] : tokens[i] % (int32_t)vocab;
}

static void begin(struct eng_session *session, struct script *script)
{
    struct eng_sequence_options options;
    struct eng_sampling sampling = sampling_of(script);
    int32_t prompt[MOST];
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = script->max_new_tokens;
    options.flags = script->flags;
    options.stop_tokens = &script->stop_token;
    options.stop_count = script->stop_token >= 0;
    make_prompt(script, prompt, (uint32_t)session->geometry->vocab_size);
    script->count = 0;
    CHECK(eng_sequence_create(session, &options, &script->sequence, &error));
    CHECK(eng_sequence_submit(script->sequence, prompt, script->prompt, &error));
}

static void take(struct script *script)
{
    script->count += eng_sequence_poll(script->sequence, script->answer + script->count, MOST - script->count);
    script->end = eng_sequence_end(script->sequence);
}

static void end(struct script *script)
{
    take(script);
    assert_int_equal(eng_sequence_state(script->sequence), ENG_STATE_DONE);
    eng_sequence_destroy(&script->sequence);
}

static struct eng_session *open_session(struct eng_engine *engine, uint32_t speculate)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.speculate = speculate;
    options.no_prefix_cache = 1;
    return fables_session(engine, &options);
}

static struct eng_session_facts facts_of(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts;
}

static void assert_same(const struct script *found, const struct script *expected)
{
    assert_int_equal(found->count, expected->count);
    assert_int_equal(found->end, expected->end);
    assert_memory_equal(found->answer, expected->answer, expected->count * sizeof *expected->answer);
}

static struct script script_of(uint32_t index)
{
    return (struct script){.seed = 99 + index,
                           .repeats = index % 3 != 2,
                           .sampled = index % 2,
                           .max_new_tokens = ANSWER,
                           .stop_token = -1,
                           .prompt = PROMPT,
                           .flags = ENG_SEQUENCE_IGNORE_EOS};
}

static void make_patterns(struct eng_engine *engine)
{
    static const int32_t phrases[PATTERNS][PHRASE] = {{0, 897, 920, 260}, {0, 388, 1310, 276}, {0, 34, 841, 498}};
    struct eng_session *session = open_session(engine, 0);
    for (uint32_t p = 0; p < PATTERNS; p++) {
        struct eng_sequence_options options;
        struct eng_sequence *sequence;
        eng_sequence_options_init(&options);
        options.max_new_tokens = PATTERN - PHRASE;
        options.flags = ENG_SEQUENCE_IGNORE_EOS;
        for (int i = 0; i < PHRASE; i++) patterns[p][i] = phrases[p][i] % (int32_t)session->geometry->vocab_size;
        CHECK(eng_sequence_create(session, &options, &sequence, &error));
        CHECK(eng_sequence_submit(sequence, patterns[p], PHRASE, &error));
        fables_finish(session);
        assert_int_equal(eng_sequence_poll(sequence, patterns[p] + PHRASE, PATTERN), PATTERN - PHRASE);
        eng_sequence_destroy(&sequence);
    }
    eng_session_destroy(&session);
}

/* The answers of the scripts, each alone and without speculation. */
static void run_plain(struct eng_engine *engine, struct script *scripts, int count)
{
    struct eng_session *session = open_session(engine, 0);
    for (int i = 0; i < count; i++) {
        begin(session, &scripts[i]);
        fables_finish(session);
        end(&scripts[i]);
    }
    assert_int_equal(facts_of(session).drafted_tokens, 0);
    eng_session_destroy(&session);
}

/* Runs the scripts together, each from another step on, and compares. */
static void run_together(struct eng_session *session, const struct script *expected, int count)
{
    enum { STEPS_BETWEEN = 5 };
    struct script scripts[SEQUENCES];
    uint32_t unfinished = 1;
    assert_in_range(count, 1, SEQUENCES);
    memcpy(scripts, expected, (size_t)count * sizeof *scripts);
    for (int joined = 0, step = 0; joined < count || unfinished; step++) {
        if (joined < count && step == joined * STEPS_BETWEEN) begin(session, &scripts[joined++]);
        CHECK(eng_step(session, &unfinished, &error));
        for (int i = 0; i < joined; i++) take(&scripts[i]);
    }
    for (int i = 0; i < count; i++) {
        end(&scripts[i]);
        assert_same(&scripts[i], &expected[i]);
    }
}

TEST(tokens_are_the_same_in_fewer_steps)
{
    struct script plain[SEQUENCES];
    uint64_t drafted = 0, accepted = 0;
    for (uint32_t i = 0; i < SEQUENCES; i++) plain[i] = script_of(i);
    run_plain(fables, plain, SEQUENCES);
    for (uint32_t speculate = 1; speculate <= DRAFTED; speculate += 3) {
        struct eng_session *session = open_session(fables, speculate);
        uint32_t steps = 0, unfinished = 1;
        for (int i = 0; i < SEQUENCES; i++) {
            struct script script = plain[i];
            const struct eng_session_facts before = facts_of(session);
            begin(session, &script);
            for (steps = 0, unfinished = 1; unfinished; steps++) CHECK(eng_step(session, &unfinished, &error));
            end(&script);
            assert_same(&script, &plain[i]);
            const struct eng_session_facts facts = facts_of(session);
            /* The prompt has two chunks. Then a token a step, but for those that were accepted. */
            assert_int_equal(steps, 1 + ANSWER - (facts.accepted_tokens - before.accepted_tokens));
            assert_int_equal(facts.speculate, speculate);
            assert_int_equal(facts.free_pages, facts.pages);
        }
        run_together(session, plain, SEQUENCES);
        drafted += facts_of(session).drafted_tokens;
        accepted += facts_of(session).accepted_tokens;
        eng_session_destroy(&session);
    }
    assert_in_range(accepted, ANSWER, drafted);
}

/* Answers end at the same token wherever it lies in a draft. */
TEST(answers_end_where_they_would)
{
    struct script whole = script_of(0);
    uint64_t accepted = 0;
    run_plain(fables, &whole, 1);
    struct eng_session *session = open_session(fables, DRAFTED);
    for (uint32_t length = 1; length <= ANSWER; length += test_sanitized() ? 7 : 1) {
        struct script plain = whole, script;
        plain.max_new_tokens = length;
        plain.count = length;
        script = plain;
        begin(session, &script);
        fables_finish(session);
        end(&script);
        assert_same(&script, &plain);
        plain = whole;
        plain.stop_token = whole.answer[length - 1];
        plain.end = ENG_END_EOS;
        plain.count = 0;
        while (whole.answer[plain.count++] != plain.stop_token) {}
        script = plain;
        begin(session, &script);
        fables_finish(session);
        end(&script);
        assert_same(&script, &plain);
        accepted = facts_of(session).accepted_tokens;
    }
    assert_in_range(accepted, ANSWER, UINT32_MAX);
    assert_int_equal(facts_of(session).free_pages, facts_of(session).pages);
    eng_session_destroy(&session);
}

TEST(the_context_ends_where_it_would)
{
    struct script plain[3];
    for (uint32_t i = 0; i < 3; i++) {
        plain[i] = script_of(0);
        plain[i].max_new_tokens = 0;
        plain[i].prompt = 4 * PATTERN + PHRASE + 17 * i;
    }
    run_plain(fables, plain, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(plain[i].end, ENG_END_CONTEXT);
    struct eng_session *session = open_session(fables, DRAFTED);
    run_together(session, plain, 3);
    assert_in_range(facts_of(session).accepted_tokens, 10, 200);
    eng_session_destroy(&session);
}

/* With these, a token depends on those drawn before by more than the model, or the logits of each are wanted. */
TEST(some_sequences_are_not_drafted_for)
{
    static const struct eng_logit_bias bias = {300, 1};
    struct eng_session *plain = open_session(fables, 0), *session = open_session(fables, DRAFTED);
    for (int kind = 0; kind < 6; kind++) {
        int32_t prompt[PROMPT], answers[2][ANSWER];
        struct script script = script_of(0);
        make_prompt(&script, prompt, UINT32_MAX / 2);
        for (int turn = 0; turn < 2; turn++) {
            struct eng_sequence_options options;
            struct eng_sampling sampling;
            struct eng_sequence *sequence;
            eng_sampling_init(&sampling);
            eng_sequence_options_init(&options);
            options.sampling = &sampling;
            options.max_new_tokens = ANSWER;
            options.flags = ENG_SEQUENCE_IGNORE_EOS;
            if (kind == 0) sampling.repetition_penalty = 1.2f;
            if (kind == 1) sampling.presence_penalty = 0.5f;
            if (kind == 2) sampling.frequency_penalty = 0.5f;
            if (kind == 3) options.flags |= ENG_SEQUENCE_LOGITS;
            if (kind == 4) options.flags |= ENG_SEQUENCE_ALLOWED;
            if (kind == 5) sampling.logit_bias = &bias, sampling.logit_bias_count = 1; /* it is drafted for */
            CHECK(eng_sequence_create(turn ? session : plain, &options, &sequence, &error));
            CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
            fables_finish(turn ? session : plain);
            assert_int_equal(eng_sequence_poll(sequence, answers[turn], ANSWER), ANSWER);
            eng_sequence_destroy(&sequence);
        }
        assert_memory_equal(answers[1], answers[0], sizeof answers[0]);
        assert_int_equal(facts_of(session).drafted_tokens > 0, kind == 5);
    }
    eng_session_destroy(&plain);
    eng_session_destroy(&session);
}

/* A kept sequence goes on, and a fork of one, with the sampler as it would be. */
TEST(conversations_go_on)
{
    int32_t answers[2][3 * ANSWER];
    struct eng_session_facts facts = {0};
    for (uint32_t turn = 0; turn < 2; turn++) {
        struct eng_session *session = open_session(fables, turn * DRAFTED);
        struct script script = script_of(1);
        struct eng_sequence *fork = NULL;
        int32_t prompt[PROMPT];
        script.flags |= ENG_SEQUENCE_KEEP;
        begin(session, &script);
        fables_finish(session);
        take(&script);
        assert_int_equal(script.count, ANSWER);
        CHECK(eng_sequence_fork(script.sequence, NULL, &fork, &error));
        make_prompt(&script, prompt, UINT32_MAX / 2);
        CHECK(eng_sequence_submit(script.sequence, prompt, PROMPT, &error));
        CHECK(eng_sequence_submit(fork, prompt + 3, PROMPT - 3, &error));
        fables_finish(session);
        take(&script);
        memcpy(answers[turn], script.answer, 2 * ANSWER * sizeof(int32_t));
        assert_int_equal(eng_sequence_poll(fork, answers[turn] + 2 * ANSWER, ANSWER), ANSWER);
        facts = facts_of(session);
        eng_sequence_destroy(&fork);
        eng_sequence_destroy(&script.sequence);
        eng_session_destroy(&session);
    }
    assert_in_range(facts.accepted_tokens, 1, facts.drafted_tokens);
    assert_memory_equal(answers[1], answers[0], sizeof answers[0]);
}

/* In a pool for little more than two of them, where sequences are set aside and drafts find no pages. */
TEST(in_a_small_pool)
{
    struct script plain[SEQUENCES];
    struct eng_session_options options;
    for (uint32_t i = 0; i < SEQUENCES; i++) plain[i] = script_of(i);
    run_plain(fables, plain, SEQUENCES);
    eng_session_options_init(&options);
    options.speculate = DRAFTED;
    options.kv_tokens = 24 * 16; /* the pages of two sequences and a half */
    options.no_prefix_cache = 1;
    struct eng_session *session = fables_session(fables, &options);
    run_together(session, plain, SEQUENCES);
    const struct eng_session_facts facts = facts_of(session);
    assert_in_range(facts.set_aside, 1, 1000);
    assert_in_range(facts.accepted_tokens, 1, facts.drafted_tokens);
    assert_int_equal(facts.free_pages, facts.pages);
    eng_session_destroy(&session);
}

/* On a device, whose own state and steps queued ahead must agree with what was accepted. */
TEST(on_a_device)
{
    static const enum test_backend_pace paces[] = {PACE_EAGER, PACE_LAZY, PACE_RANDOM};
    struct script plain[SEQUENCES];
    for (uint32_t i = 0; i < SEQUENCES; i++) plain[i] = script_of(i);
    run_plain(fables, plain, SEQUENCES);
    for (size_t p = 0; p < sizeof paces / sizeof *paces; p++) {
        struct eng_session_options options;
        eng_session_options_init(&options);
        options.threads = 1;
        options.speculate = DRAFTED;
        test_backend_settings = (struct test_backend_settings){.pace = paces[p]};
        struct eng_session *session = fables_session_on(&test_backend, fables, &options);
        for (int i = 0; i < SEQUENCES; i++) run_together(session, &plain[i], 1);
        run_together(session, plain, SEQUENCES);
        assert_in_range(facts_of(session).accepted_tokens, ANSWER, UINT32_MAX);
        assert_true(test_backend_settings.submits_ahead > 0);
        eng_session_destroy(&session);
    }
}

/* The k-th tokens of answers that were drawn with other seeds have the same distribution. */
TEST(distributions_are_the_same)
{
    enum { TOKENS = 12, KINDS = 8 };
    const uint32_t draws = test_sanitized() ? 24 : 400;
    static uint32_t counts[2][TOKENS][4096];
    struct eng_session *sessions[2] = {open_session(fables, 0), open_session(fables, DRAFTED)};
    for (int s = 0; s < 2; s++)
        for (uint32_t d = 0; d < draws; d++) {
            struct script script = script_of(1);
            struct eng_sequence_options options;
            struct eng_sampling sampling = sampling_of(&script);
            int32_t prompt[PROMPT], answer[TOKENS];
            struct eng_sequence *sequence;
            sampling.seed = 1000000 * (uint64_t)s + d;
            sampling.top_k = 4;
            eng_sequence_options_init(&options);
            options.sampling = &sampling;
            options.max_new_tokens = TOKENS;
            options.flags = ENG_SEQUENCE_IGNORE_EOS;
            make_prompt(&script, prompt, UINT32_MAX / 2);
            CHECK(eng_sequence_create(sessions[s], &options, &sequence, &error));
            CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
            fables_finish(sessions[s]);
            assert_int_equal(eng_sequence_poll(sequence, answer, TOKENS), TOKENS);
            for (int k = 0; k < TOKENS; k++) counts[s][k][answer[k]]++;
            eng_sequence_destroy(&sequence);
        }
    assert_in_range(facts_of(sessions[1]).accepted_tokens, draws / 4, UINT32_MAX);
    for (int k = 1; k < TOKENS; k++) {
        double chi_square = 0, freedom = -1;
        for (int t = 0; t < 4096; t++) {
            const double a = counts[0][k][t], b = counts[1][k][t];
            if (a + b < KINDS) continue; /* too rare to say anything */
            chi_square += (a - b) * (a - b) / (a + b);
            freedom++;
        }
        if (freedom < 1) continue;
        /* About four standard deviations. */
        if (chi_square > freedom + 4 * sqrt(2 * freedom) + 4)
            fail_msg("token %d: chi-square %.1f of %.0f degrees of freedom", k, chi_square, freedom);
    }
    eng_session_destroy(&sessions[0]);
    eng_session_destroy(&sessions[1]);
}

/* ---- other engines ---- */

static char other_path[340];

static void check_engine(const char *what, bool speculates)
{
    struct script plain[SEQUENCES];
    struct eng_engine *engine = NULL;
    CHECK(eng_open(other_path, NULL, &engine, &error));
    make_patterns(engine);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        plain[i] = script_of(i);
        plain[i].prompt = PROMPT + 11 * i;
    }
    run_plain(engine, plain, SEQUENCES);
    struct eng_session *session = open_session(engine, DRAFTED);
    assert_int_equal(facts_of(session).speculate, speculates ? DRAFTED : 0);
    run_together(session, plain, SEQUENCES);
    const struct eng_session_facts facts = facts_of(session);
    if (speculates != (facts.drafted_tokens > 0))
        fail_msg("%s: %u tokens drafted", what, (unsigned)facts.drafted_tokens);
    struct eng_selftest_result result;
    eng_selftest_result_init(&result);
    CHECK(eng_selftest(session, &result, &error));
    assert_int_equal(result.left_out, 0);
    eng_session_destroy(&session);
    eng_close(&engine);
    unlink(other_path);
}

TEST(on_several_ranks)
{
    struct status status = {0};
    if (!fables_build_model("tests/models/fables", other_path, FABLES_RANKS, &status)) fail_msg("%s", status.message);
    check_engine("two ranks", true);
}

/* Sliding windows, latent attention, experts, longrope; and models whose state has no way back. */
TEST(on_other_architectures)
{
    static const struct {
        const char *name;
        bool speculates;
    } models[] = {{"gemma3", true},
                  {"gpt_oss", true},
                  {"deepseek_v2", true},
                  {"phi3-longrope", true},
                  {"qwen3_next", false}};
    const char *shared = test_shared();
    for (size_t m = 0; shared && m < sizeof models / sizeof *models; m++) {
        char model[512];
        struct status status = {0};
        snprintf(model, sizeof model, "%s/models/hf-tiny/%s", shared, models[m].name);
        if (!fables_build_model(model, other_path, 1, &status)) fail_msg("%s: %s", models[m].name, status.message);
        check_engine(models[m].name, models[m].speculates);
    }
}

static int start(void **state)
{
    if (fables_start(state)) return -1;
    snprintf(other_path, sizeof other_path, "%s.other", fables_path());
    make_patterns(fables);
    return 0;
}

int main(void) { return test_run_with(start, NULL, NULL, fables_stop); }
