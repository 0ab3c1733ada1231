/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities of prompts and means of their hidden states: the numbers of a slot that is given the same tokens one by one, whatever
 * plans compute them and whatever else happens; and answers are those of sequences without. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { MOST = 200, ANSWER = 36, VERIFY_ROWS = 8, CASES = 6, PAGE = 16 };
/* Plans of several rows may split each float32 activation into two of bf16 (AVX-512 BF16): 2^-17 of logits up to 20, in each layer. */
static const float tolerance = 5e-4f;

/* With sanitizers, which make it slow, fewer cases. */
#if defined(__SANITIZE_ADDRESS__)
enum { FEW = 1, ROUNDS = 1 };
#else
enum { FEW = 0, ROUNDS = 2 };
#endif

/* ---- the reference ---- */

/* The rows of tokens that a slot is given one by one. */
struct truth {
    int32_t tokens[MOST];
    size_t count, vocab, hidden_size;
    float *logprobs;            /* owned [count, vocab]: after each token */
    double *hidden;             /* owned [count, hidden_size]; NULL: the engine gives none */
    int32_t answers[2][ANSWER]; /* greedy and sampled, without options */
};

static void make_truth(struct eng_session *session, struct truth *truth)
{
    struct eng_engine_facts facts;
    uint32_t slot;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(session->engine, &facts, &error));
    truth->vocab = facts.vocab_size;
    truth->hidden_size = facts.hidden_size;
    truth->logprobs = calloc(truth->count * truth->vocab, sizeof(float));
    truth->hidden = facts.hidden_size ? calloc(truth->count * truth->hidden_size, sizeof(double)) : NULL;
    float *hidden = calloc(facts.hidden_size + 1, sizeof *hidden);
    assert_true(truth->logprobs && hidden);
    CHECK(eng_slot_acquire(session, &slot, &error));
    for (size_t i = 0; i < truth->count; i++) {
        float *row = truth->logprobs + i * truth->vocab;
        double sum = 0;
        int32_t next;
        CHECK(eng_decode(session, &slot, &truth->tokens[i], 1, &next, row, &error));
        for (size_t t = 0; t < truth->vocab; t++) sum += exp((double)row[t]);
        for (size_t t = 0; t < truth->vocab; t++) row[t] = (float)((double)row[t] - log(sum));
        if (truth->hidden) CHECK(eng_slot_hidden(session, slot, hidden, &error));
        for (size_t k = 0; k < truth->hidden_size; k++) truth->hidden[i * truth->hidden_size + k] = (double)hidden[k];
    }
    CHECK(eng_slot_release(session, slot, &error));
    free(hidden);
}

static void free_truth(struct truth *truth)
{
    free(truth->logprobs);
    free(truth->hidden);
}

static void check_position(const struct eng_sequence *sequence, const struct truth *truth, size_t position, int top)
{
    const float *row = truth->logprobs + (position - 1) * truth->vocab;
    const size_t count = top > 0 ? (size_t)top : 0;
    struct eng_logprob own, likeliest[ENG_MAX_LOGPROBS];
    CHECK(eng_sequence_prompt_logprobs(sequence, position, &own, likeliest, count, &error));
    assert_int_equal(own.token, truth->tokens[position]);
    if (!(fabsf(own.logprob - row[own.token]) <= tolerance))
        fail_msg("position %zu: expected %g, found %g", position, (double)row[own.token], (double)own.logprob);
    for (size_t i = 0; i < count; i++) {
        size_t above = 0;
        assert_in_range(likeliest[i].token, 0, truth->vocab - 1);
        if (!(fabsf(likeliest[i].logprob - row[likeliest[i].token]) <= tolerance))
            fail_msg("position %zu, number %zu: expected %g, found %g", position, i, (double)row[likeliest[i].token],
                     (double)likeliest[i].logprob);
        for (size_t t = 0; t < truth->vocab; t++) above += row[t] > likeliest[i].logprob + 2 * tolerance;
        if (above > i) fail_msg("position %zu: %zu tokens are likelier than number %zu", position, above, i);
        if (i) assert_true(likeliest[i].logprob <= likeliest[i - 1].logprob);
        for (size_t k = 0; k < i; k++) assert_int_not_equal(likeliest[k].token, likeliest[i].token);
    }
}

static void check_positions(const struct eng_sequence *sequence, const struct truth *truth, size_t first, size_t end,
                            int top)
{
    struct eng_logprob own;
    for (size_t i = first ? first : 1; i < end; i++) check_position(sequence, truth, i, top);
    assert_int_equal(eng_sequence_prompt_logprobs(sequence, end, &own, NULL, 0, &error), ENG_USAGE);
    if (first) assert_int_equal(eng_sequence_prompt_logprobs(sequence, first - 1, &own, NULL, 0, &error), ENG_USAGE);
    assert_int_equal(eng_sequence_prompt_logprobs(sequence, 0, &own, NULL, 0, &error), ENG_USAGE);
}

static void check_mean(const float *found, const struct truth *truth, size_t first, size_t end)
{
    assert_non_null(found);
    for (size_t k = 0; k < truth->hidden_size; k++) {
        double sum = 0;
        for (size_t i = first; i < end; i++) sum += truth->hidden[i * truth->hidden_size + k];
        const double mean = sum / (double)(end - first);
        if (!(fabs(mean - (double)found[k]) <= (double)tolerance))
            fail_msg("%zu: expected %g, found %g", k, mean, (double)found[k]);
    }
}

/* ---- sequences ---- */

/* With the other one there are biases, too, of tokens that only the shipped model has. */
enum { SEED_WITH_BIASES = 78, SEED_WITHOUT = 77 };
static uint64_t seed = SEED_WITH_BIASES;

static struct eng_sequence *create(struct eng_session *session, int top, uint32_t flags, bool sampled)
{
    const struct eng_sampling sampling = fables_sampling(sampled, seed);
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_IGNORE_EOS | flags;
    options.prompt_logprobs = top;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    return sequence;
}

static struct eng_sequence *submit(struct eng_session *session, const struct truth *truth, int top, uint32_t flags,
                                   bool sampled)
{
    struct eng_sequence *sequence = create(session, top, flags, sampled);
    CHECK(eng_sequence_submit(sequence, truth->tokens, truth->count, &error));
    return sequence;
}

static void check_answer(struct eng_sequence *sequence, const int32_t *expected)
{
    int32_t answer[ANSWER];
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), ANSWER);
    assert_memory_equal(answer, expected, sizeof answer);
}

/* With longrope a long prompt has other rotary frequencies than its beginning alone: its last token is checked. */
static bool is_switched(const struct eng_session *session, const struct truth *truth)
{
    return session->geometry->rope_original && truth->count > session->geometry->rope_original;
}

static void end(struct eng_sequence **sequence, const struct truth *truth, int top, bool sampled)
{
    if (is_switched((*sequence)->session, truth))
        check_position(*sequence, truth, truth->count - 1, top);
    else
        check_positions(*sequence, truth, 0, truth->count, top);
    check_answer(*sequence, truth->answers[sampled]);
    eng_sequence_destroy(sequence);
}

static struct eng_session *open_session(struct eng_engine *engine, uint32_t speculate, bool caches)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 2;
    options.speculate = speculate;
    options.no_prefix_cache = !caches;
    return fables_session(engine, &options);
}

static struct eng_session *device_session(enum test_backend_pace pace)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    test_backend_settings = (struct test_backend_settings){.pace = pace};
    return fables_session_on(&test_backend, fables, &options);
}

static struct eng_session_facts facts_of(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts;
}

static const size_t lengths[CASES] = {126, 1, 2, 9, 62, 37};
static struct truth truths[CASES];

/* `truths` of an engine. Two of the prompts begin alike. */
static void make_truths(struct eng_engine *engine)
{
    struct eng_session *session = open_session(engine, 0, false);
    for (uint32_t i = 0; i < CASES; i++) {
        struct truth *truth = &truths[i];
        truth->count = lengths[i];
        fables_tokens(i == 4 ? 90 : 90 + i, truth->tokens, truth->count);
        for (size_t t = 0; t < truth->count; t++) truth->tokens[t] %= (int32_t)session->geometry->vocab_size;
        make_truth(session, truth);
        for (int sampled = 0; sampled < 2; sampled++) {
            struct eng_sequence *sequence = submit(session, truth, 0, 0, sampled);
            fables_finish(session);
            assert_int_equal(eng_sequence_poll(sequence, truth->answers[sampled], ANSWER), ANSWER);
            eng_sequence_destroy(&sequence);
        }
    }
    eng_session_destroy(&session);
}

static void free_truths(void)
{
    for (int i = 0; i < CASES; i++) free_truth(&truths[i]);
}

static int top_of(uint32_t number)
{
    static const int tops[] = {-1, 1, 5, ENG_MAX_LOGPROBS};
    return tops[number % 4];
}

/* Each prompt alone, in so many steps. rows: of the largest verification plan, or 1. */
static void check_alone(struct eng_session *session, uint32_t rows)
{
    for (uint32_t i = 0; i < 2 * CASES; i += 1 + 2 * FEW) {
        const struct truth *truth = &truths[i / 2];
        uint32_t steps = 0, unfinished = 1;
        struct eng_sequence *sequence = submit(session, truth, top_of(i / 2), 0, i % 2);
        for (; unfinished; steps++) CHECK(eng_step(session, &unfinished, &error));
        assert_int_equal(steps, (truth->count - 1 + rows - 1) / rows + ANSWER);
        end(&sequence, truth, top_of(i / 2), i % 2);
    }
}

/* All together, those without the option as well; each from another step on. */
static void check_together(struct eng_session *session)
{
    enum { SEQUENCES = 2 * ROUNDS * CASES };
    struct eng_sequence *sequences[SEQUENCES];
    uint32_t unfinished = 1;
    for (uint32_t joined = 0; unfinished || joined < SEQUENCES;) {
        if (joined < SEQUENCES) {
            const bool sampled = joined / 2 % 2;
            sequences[joined] = submit(session, &truths[(joined / 4 + joined) % CASES],
                                       joined % 2 ? top_of(joined / 2) : 0, 0, sampled);
            joined++;
        }
        CHECK(eng_step(session, &unfinished, &error));
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        const struct truth *truth = &truths[(i / 4 + i) % CASES];
        if (i % 2) {
            end(&sequences[i], truth, top_of(i / 2), i / 2 % 2);
            continue;
        }
        check_answer(sequences[i], truth->answers[i / 2 % 2]);
        assert_int_equal(eng_sequence_prompt_logprobs(sequences[i], 1, NULL, NULL, 0, &error), ENG_USAGE);
        eng_sequence_destroy(&sequences[i]);
    }
    const struct eng_session_facts facts = facts_of(session);
    assert_int_equal(facts.free_pages, facts.pages);
    assert_int_equal(facts.free_slots, facts.slots);
}

TEST(numbers_are_those_of_single_tokens)
{
    struct eng_session *session = open_session(fables, 0, false);
    check_alone(session, VERIFY_ROWS);
    check_together(session);
    eng_session_destroy(&session);
    session = open_session(fables, 0, true);
    check_together(session);
    check_together(session);
    eng_session_destroy(&session);
}

TEST(on_a_device)
{
    for (int pace = FEW ? PACE_RANDOM : PACE_EAGER; pace <= PACE_RANDOM; pace++) {
        struct eng_session *session = device_session(pace);
        if (pace == PACE_RANDOM) check_alone(session, VERIFY_ROWS);
        check_together(session);
        assert_true(test_backend_settings.submits_ahead > 0);
        eng_session_destroy(&session);
    }
}

/* A prompt is no draft; its answer may have some. */
TEST(with_speculation)
{
    struct eng_session *session = open_session(fables, 6, true);
    struct truth truth = {.count = 120};
    for (size_t i = 0; i < truth.count; i++) truth.tokens[i] = 300 + (int32_t)(i % 12);
    make_truth(session, &truth);
    struct eng_sequence *plain = submit(session, &truth, 0, 0, false);
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(plain, truth.answers[0], ANSWER), ANSWER);
    eng_sequence_destroy(&plain);
    const struct eng_session_facts before = facts_of(session);
    struct eng_sequence *sequence = submit(session, &truth, 3, 0, false);
    while (eng_sequence_state(sequence) != ENG_STATE_DECODE) {
        CHECK(eng_step(session, NULL, &error));
        assert_int_equal(facts_of(session).drafted_tokens, before.drafted_tokens);
    }
    fables_finish(session);
    end(&sequence, &truth, 3, false);
    check_together(session);
    eng_session_destroy(&session);
    free_truth(&truth);
}

/* Its pages are for others, and theirs are not for it. */
TEST(the_prefix_cache_skips_nothing)
{
    struct eng_session *session = open_session(fables, 0, true);
    struct eng_sequence *sequence;
    for (int round = 0; round < 2; round++) {
        sequence = submit(session, &truths[0], 2, 0, round);
        fables_finish(session);
        end(&sequence, &truths[0], 2, round);
        assert_int_equal(facts_of(session).cached_tokens, 0);
    }
    sequence = submit(session, &truths[0], 0, 0, false);
    fables_finish(session);
    check_answer(sequence, truths[0].answers[0]);
    eng_sequence_destroy(&sequence);
    assert_int_equal(facts_of(session).cached_tokens, truths[0].count / PAGE * PAGE);
    eng_session_destroy(&session);
}

/* ---- conversations, forks, files ---- */

/* A second prompt of a sequence that is done: `first` tokens and their answer come before it. */
static void check_second(struct eng_session *session, struct eng_sequence *sequence, size_t first, uint32_t flags)
{
    struct truth whole = {.count = first + ANSWER + 30};
    int32_t answer[ANSWER];
    memcpy(whole.tokens, truths[0].tokens, first * sizeof *whole.tokens);
    CHECK(eng_sequence_submit(sequence, truths[4].tokens, 30, &error));
    while (eng_sequence_state(sequence) != ENG_STATE_DECODE) CHECK(eng_step(session, NULL, &error));
    memcpy(whole.tokens + first, sequence->tokens + first, (ANSWER + 30) * sizeof *whole.tokens);
    struct eng_session *other = open_session(session->engine, 0, false);
    make_truth(other, &whole);
    eng_session_destroy(&other);
    if (flags & ENG_SEQUENCE_HIDDEN_MEAN)
        check_mean(eng_sequence_hidden(sequence), &whole, first + ANSWER, whole.count);
    fables_finish(session);
    check_positions(sequence, &whole, first + ANSWER, whole.count, 4);
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), ANSWER);
    free_truth(&whole);
}

static void check_conversations(struct eng_engine *engine, const char *path)
{
    enum { FIRST = 70 };
    const uint32_t flags = ENG_SEQUENCE_KEEP | ENG_SEQUENCE_HIDDEN_MEAN;
    struct eng_session *session = open_session(engine, 0, true);
    struct eng_sequence *sequence = create(session, 4, flags, false), *forks[2] = {NULL};
    struct eng_sequence_options options;
    struct eng_logprob own;
    int32_t answer[ANSWER];
    CHECK(eng_sequence_submit(sequence, truths[0].tokens, FIRST, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), ANSWER);
    CHECK(eng_sequence_save(sequence, path, &error));
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    options.prompt_logprobs = 4;
    options.flags = flags | ENG_SEQUENCE_IGNORE_EOS;
    CHECK(eng_sequence_fork(sequence, NULL, &forks[0], &error));
    CHECK(eng_sequence_fork(sequence, &options, &forks[1], &error));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(eng_sequence_prompt_logprobs(forks[i], FIRST - 1, &own, NULL, 0, &error), ENG_USAGE);
        check_second(session, forks[i], FIRST, flags);
    }
    check_position(sequence, &truths[0], FIRST - 1, 4); /* still those of its own prompt */
    check_second(session, sequence, FIRST, flags);
    assert_int_equal(eng_sequence_prompt_logprobs(sequence, FIRST - 1, &own, NULL, 0, &error), ENG_USAGE);
    eng_sequence_destroy(&sequence);
    CHECK(eng_sequence_restore(session, path, &options, &sequence, &error));
    assert_int_equal(eng_sequence_prompt_logprobs(sequence, FIRST - 1, &own, NULL, 0, &error), ENG_USAGE);
    check_second(session, sequence, FIRST, flags);
    eng_session_destroy(&session);
    unlink(path);
}

TEST(later_prompts_have_their_own)
{
    char path[320];
    snprintf(path, sizeof path, "%s.saved", fables_path());
    check_conversations(fables, path);
}

/* An answer that ended without a token has computed the row before the next prompt. */
TEST(after_an_answer_without_tokens)
{
    struct eng_session *session = open_session(fables, 0, true);
    struct eng_sequence *sequence = create(session, 4, ENG_SEQUENCE_KEEP | ENG_SEQUENCE_ALLOWED, false);
    uint32_t none[1536 / 32] = {0};
    CHECK(eng_sequence_set_allowed(sequence, none, sizeof none / sizeof *none, &error));
    CHECK(eng_sequence_submit(sequence, truths[0].tokens, 50, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_end(sequence), ENG_END_NONE_ALLOWED);
    check_positions(sequence, &truths[0], 0, 50, 4);
    CHECK(eng_sequence_set_allowed(sequence, NULL, 0, &error));
    CHECK(eng_sequence_submit(sequence, truths[0].tokens + 50, truths[0].count - 50, &error));
    fables_finish(session);
    check_positions(sequence, &truths[0], 50, truths[0].count, 4);
    check_answer(sequence, truths[0].answers[0]);
    eng_session_destroy(&session);
}

/* The fork of a prompt that is computed has the same answer, and no log-probabilities. */
TEST(forks_of_prompts_go_on_without)
{
    for (uint32_t steps = 1; steps < 16; steps += 7)
        for (int sampled = 0; sampled < 2; sampled++) {
            struct eng_session *session = open_session(fables, 0, false);
            struct eng_sequence *sequence = submit(session, &truths[0], 2, 0, sampled), *fork = NULL;
            for (uint32_t i = 0; i < steps; i++) CHECK(eng_step(session, NULL, &error));
            assert_int_equal(eng_sequence_state(sequence), ENG_STATE_PREFILL);
            CHECK(eng_sequence_fork(sequence, NULL, &fork, &error));
            fables_finish(session);
            assert_int_equal(eng_sequence_prompt_logprobs(fork, 1, NULL, NULL, 0, &error), ENG_USAGE);
            check_answer(fork, truths[0].answers[sampled]);
            end(&sequence, &truths[0], 2, sampled);
            eng_session_destroy(&session);
        }
}

/* ---- sequences that are set aside and cancelled ---- */

/* Returns how often it was a sequence of which some rows were read. */
static uint64_t check_small_pool(struct eng_engine *engine, bool caches)
{
    static const uint32_t prompts[] = {1, 2, 0, 4, 0, 4};
    enum { SEQUENCES = 6, SHORT = 2 };
    struct eng_session_options options;
    struct eng_sequence *sequences[SEQUENCES];
    eng_session_options_init(&options);
    options.kv_tokens = 12 * PAGE; /* for the longest prompt and two answers of a page each */
    options.no_prefix_cache = !caches;
    options.prompt_step = 2; /* others grow while a prompt is computed */
    struct eng_session *session = fables_session(engine, &options);
    uint64_t while_reading = 0;
    uint32_t unfinished = 1;
    for (int i = 0; i < SEQUENCES; i++)
        sequences[i] = submit(session, &truths[prompts[i]], i < SHORT ? -1 : 3, 0, i / 2 % 2);
    while (unfinished) {
        const uint64_t before = facts_of(session).set_aside;
        CHECK(eng_step(session, &unfinished, &error));
        if (facts_of(session).set_aside == before) continue;
        for (int i = 0; i < SEQUENCES; i++)
            while_reading += eng_sequence_state(sequences[i]) == ENG_STATE_WAITING && sequences[i]->rows.next &&
                             sequences[i]->rows.next < sequences[i]->rows.end;
    }
    for (int i = 0; i < SEQUENCES; i++) end(&sequences[i], &truths[prompts[i]], i < SHORT ? -1 : 3, i / 2 % 2);
    eng_session_destroy(&session);
    return while_reading;
}

TEST(sequences_are_set_aside)
{
    assert_in_range(check_small_pool(fables, false), 1, 100);
    assert_in_range(check_small_pool(fables, true), 1, 100);
}

TEST(what_was_computed_before_a_cancel_stays)
{
    struct eng_session *session = open_session(fables, 0, false);
    struct eng_logprob own;
    struct eng_sequence *sequence = submit(session, &truths[0], 3, 0, false);
    for (int i = 0; i < 3; i++) CHECK(eng_step(session, NULL, &error));
    eng_sequence_cancel(sequence);
    for (size_t i = 1; i <= 3 * VERIFY_ROWS; i++) check_position(sequence, &truths[0], i, 3);
    assert_int_equal(eng_sequence_prompt_logprobs(sequence, 3 * VERIFY_ROWS + 1, &own, NULL, 0, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "not computed yet"));
    const struct eng_session_facts facts = facts_of(session);
    assert_int_equal(facts.free_pages, facts.pages);
    eng_sequence_destroy(&sequence);
    sequence = submit(session, &truths[0], 3, 0, false);
    CHECK(eng_step(session, NULL, &error));
    eng_session_destroy(&session); /* with what it has */
}

/* ---- means of hidden states ---- */

static void check_means(struct eng_session *session)
{
    for (uint32_t i = 0; i < 2 * CASES; i++) {
        const struct truth *truth = &truths[i / 2];
        const int top = i % 2 ? 2 : 0;
        struct eng_sequence *sequence = submit(session, truth, top, ENG_SEQUENCE_HIDDEN_MEAN, false);
        while (eng_sequence_state(sequence) != ENG_STATE_DECODE) {
            assert_null(eng_sequence_hidden(sequence));
            CHECK(eng_step(session, NULL, &error));
        }
        check_mean(eng_sequence_hidden(sequence), truth, 0, truth->count);
        CHECK(eng_step(session, NULL, &error));
        assert_null(eng_sequence_hidden(sequence)); /* of the answer */
        fables_finish(session);
        if (top) check_positions(sequence, truth, 0, truth->count, top);
        check_answer(sequence, truth->answers[0]);
        eng_sequence_destroy(&sequence);
    }
}

TEST(means_of_hidden_states)
{
    struct eng_session *session = open_session(fables, 0, true);
    check_means(session);
    eng_session_destroy(&session);
    session = device_session(PACE_RANDOM);
    check_means(session);
    eng_session_destroy(&session);
}

/* ---- other engines ---- */

static char other_path[340];

static struct eng_engine *open_other(void)
{
    struct eng_engine *engine = NULL;
    CHECK(eng_open(other_path, NULL, &engine, &error));
    return engine;
}

/* Decode plans draw, which changes the state of samplers on processors. */
TEST(without_verification_plans)
{
    struct status status = {0};
    if (!fables_build_hidden_without_verify(other_path, &status)) fail_msg("%s", status.message);
    struct eng_engine *engine = open_other();
    struct eng_session *session = open_session(engine, 0, true);
    check_alone(session, 1);
    check_together(session);
    check_means(session);
    eng_session_destroy(&session);
    assert_in_range(check_small_pool(engine, true), 1, 100);
    eng_close(&engine);
    unlink(other_path);
}

TEST(on_two_ranks)
{
    struct status status = {0};
    if (!fables_build_ranks_with_hidden(other_path, &status)) fail_msg("%s", status.message);
    struct eng_engine *engine = open_other();
    struct eng_session *session = open_session(engine, 0, true);
    check_together(session);
    check_means(session);
    eng_session_destroy(&session);
    eng_close(&engine);
    unlink(other_path);
}

/* Sliding windows, latent attention, experts, longrope; and recurrent state, which has no verification plans. */
TEST(on_other_architectures)
{
    static const char *const models[] = {"gemma3", "qwen3_next", "gpt_oss", "deepseek_v2", "phi3-longrope", "lfm2"};
    const char *shared = test_shared();
    for (size_t m = 0; shared && m < (FEW ? 2 : sizeof models / sizeof *models); m++) {
        char model[512];
        struct status status = {0};
        snprintf(model, sizeof model, "%s/models/hf-tiny/%s", shared, models[m]);
        if (!fables_build_model(model, other_path, 1, &status)) fail_msg("%s: %s", models[m], status.message);
        struct eng_engine *engine = open_other();
        free_truths();
        seed = SEED_WITHOUT;
        make_truths(engine);
        struct eng_session *session = open_session(engine, 0, true);
        for (int round = 0; round < ROUNDS; round++) check_together(session);
        eng_session_destroy(&session);
        eng_close(&engine);
        unlink(other_path);
    }
    if (!shared) return;
    free_truths();
    seed = SEED_WITH_BIASES;
    make_truths(fables);
}

/* ---- refusals ---- */

TEST(wrong_options_and_places_are_refused)
{
    struct eng_session *session = open_session(fables, 0, false);
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    struct eng_logprob own, top[ENG_MAX_LOGPROBS + 1];
    static const int32_t wrong[] = {-2, INT32_MIN, ENG_MAX_LOGPROBS + 1, INT32_MAX};
    eng_sequence_options_init(&options);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        options.prompt_logprobs = wrong[i];
        assert_int_equal(eng_sequence_create(session, &options, &sequence, &error), ENG_USAGE);
        assert_non_null(strstr(error.message, "prompt_logprobs"));
    }
    assert_int_equal(eng_sequence_prompt_logprobs(NULL, 1, &own, NULL, 0, &error), ENG_USAGE);
    sequence = create(session, 2, 0, false);
    assert_int_equal(eng_sequence_prompt_logprobs(sequence, 1, &own, NULL, 0, &error), ENG_USAGE);
    CHECK(eng_sequence_submit(sequence, truths[0].tokens, 20, &error));
    assert_int_equal(eng_sequence_prompt_logprobs(sequence, 1, &own, NULL, 0, &error), ENG_USAGE);
    fables_finish(session);
    check_positions(sequence, &truths[0], 0, 20, 2);
    CHECK(eng_sequence_prompt_logprobs(sequence, 1, NULL, top, 1, &error));
    assert_int_equal(eng_sequence_prompt_logprobs(sequence, 1, &own, top, 3, &error), ENG_USAGE);
    assert_int_equal(eng_sequence_prompt_logprobs(sequence, 1, &own, NULL, 1, &error), ENG_USAGE);
    assert_int_equal(eng_sequence_prompt_logprobs(sequence, SIZE_MAX, &own, NULL, 0, &error), ENG_USAGE);
    eng_session_destroy(&session);
}

TEST(engines_without_hidden_states_have_no_means)
{
    struct status status = {0};
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    if (!fables_build_model("tests/models/fables", other_path, 1, &status)) fail_msg("%s", status.message);
    struct eng_engine *engine = open_other();
    struct eng_session *session = open_session(engine, 0, false);
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_HIDDEN_MEAN;
    assert_int_equal(eng_sequence_create(session, &options, &sequence, &error), ENG_VERSION);
    eng_session_destroy(&session);
    eng_close(&engine);
    unlink(other_path);
}

static int start(void **state)
{
    if (fables_build_hidden(state)) return -1;
    fables = fables_open();
    snprintf(other_path, sizeof other_path, "%s.other", fables_path());
    make_truths(fables);
    return 0;
}

static int stop(void **state)
{
    free_truths();
    return fables_stop(state);
}

int main(void) { return test_run_with(start, NULL, NULL, stop); }
