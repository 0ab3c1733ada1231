/* SPDX-License-Identifier: Apache-2.0 */
/* Options of sampling through the public API, on processors and on a test device that looks ahead (runtime/backend/test_backend.h):
 * penalties, logit biases and allowed tokens against their definitions on the logits that a sequence returns; log-probabilities;
 * engines that were built before there were options. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <math.h>

#include "runtime/session/session.h"
#include "runtime/backend/test_backend.h"

enum { VOCAB = 2048, WORDS = VOCAB / 32, PROMPT = 12, ANSWER = 40 };
enum { PROCESSORS, DEVICE, BACKENDS };

static uint32_t vocab_size(void)
{
    struct eng_engine_facts facts;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(fables, &facts, &error));
    assert_true(facts.vocab_size <= VOCAB);
    return facts.vocab_size;
}

static size_t mask_words(void) { return (vocab_size() + 31) / 32; }

static struct eng_session *open_session(int backend)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 1;
    test_backend_settings = (struct test_backend_settings){.pace = PACE_RANDOM};
    if (backend == PROCESSORS) return fables_session(fables, &options);
    return fables_session_on(&test_backend, fables, &options);
}

static struct eng_sequence *create(struct eng_session *session, const struct eng_sampling *sampling, uint32_t flags,
                                   uint32_t max_new_tokens)
{
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    eng_sequence_options_init(&options);
    options.sampling = sampling;
    options.max_new_tokens = max_new_tokens;
    options.flags = ENG_SEQUENCE_IGNORE_EOS | flags;
    if (flags & ENG_SEQUENCE_KEEP) options.context_tokens = 200;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    return sequence;
}

static void submit(struct eng_sequence *sequence, uint32_t seed)
{
    int32_t prompt[PROMPT];
    fables_tokens(seed, prompt, PROMPT);
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
}

/* Steps until the sequence has another token. */
static int32_t next_token(struct eng_session *session, struct eng_sequence *sequence)
{
    int32_t token = -1;
    while (!eng_sequence_poll(sequence, &token, 1)) {
        assert_int_not_equal(eng_sequence_state(sequence), ENG_STATE_DONE);
        CHECK(eng_step(session, NULL, &error));
    }
    return token;
}

static void allow(uint32_t *mask, int32_t token) { mask[token / 32] |= 1u << token % 32; }

static bool is_allowed(const uint32_t *mask, uint32_t token) { return mask[token / 32] >> token % 32 & 1; }

/* The largest logit after biases and penalties, in double; fails where another is as large but for rounding. */
static int32_t best_token(const float *logits, const struct eng_sampling *sampling, const int *counts,
                          const uint32_t *mask)
{
    double best = -INFINITY, second = -INFINITY;
    int32_t token = -1;
    for (uint32_t t = 0; t < vocab_size(); t++) {
        if (mask && !is_allowed(mask, t)) continue;
        double value = (double)logits[t];
        for (uint32_t b = sampling->logit_bias_count; b-- > 0;)
            if (sampling->logit_bias[b].token == (int32_t)t) {
                value += (double)sampling->logit_bias[b].bias;
                break; /* the last one applies */
            }
        if (counts[t]) value -= (double)sampling->presence_penalty + counts[t] * (double)sampling->frequency_penalty;
        if (value > best)
            second = best, best = value, token = (int32_t)t;
        else
            second = fmax(second, value);
    }
    assert_true(best - second > 1e-5);
    return token;
}

TEST(test_penalties_and_biases_follow_the_definition)
{
    static const struct eng_logit_bias biases[] = {{301, 4}, {5, -100}, {700, 9}, {700, 2}, {1, 3.25f}};
    static const struct {
        float presence, frequency;
        bool biased;
    } cases[] = {{1.5f, 0, false}, {0, 0.75f, false}, {0.5f, 0.25f, true}, {-1, -0.5f, false}, {0, 0, true}};
    for (int backend = 0; backend < BACKENDS; backend++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            struct eng_session *session = open_session(backend);
            struct eng_sampling sampling;
            eng_sampling_init(&sampling);
            sampling.presence_penalty = cases[c].presence;
            sampling.frequency_penalty = cases[c].frequency;
            sampling.logit_bias = biases;
            sampling.logit_bias_count = cases[c].biased ? 5 : 0;
            struct eng_sequence *sequence = create(session, &sampling, ENG_SEQUENCE_KEEP | ENG_SEQUENCE_LOGITS, ANSWER);
            for (int turn = 0; turn < 2; turn++) {
                int counts[VOCAB] = {0}; /* of this turn's answer alone */
                submit(sequence, 40 + (uint32_t)turn);
                for (int i = 0; i < ANSWER; i++) {
                    const int32_t token = next_token(session, sequence);
                    const float *logits = eng_sequence_logits(sequence);
                    assert_non_null(logits);
                    assert_int_equal(token, best_token(logits, &sampling, counts, NULL));
                    counts[token]++;
                }
                assert_int_equal(eng_sequence_end(sequence), ENG_END_LENGTH);
            }
            eng_session_destroy(&session);
        }
}

/* A sequence whose allowed tokens change at every step, beside one that has no options. */
TEST(test_only_allowed_tokens_are_drawn)
{
    int32_t expected[ANSWER];
    struct eng_session *session = open_session(PROCESSORS);
    struct eng_sequence *other = create(session, NULL, 0, ANSWER);
    submit(other, 8);
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(other, expected, ANSWER), ANSWER);
    eng_session_destroy(&session);
    for (int backend = 0; backend < BACKENDS; backend++)
        for (int sampled = 0; sampled < 2; sampled++) {
            struct eng_sampling sampling;
            uint32_t mask[WORDS] = {0};
            size_t polled = 0;
            const int counts[VOCAB] = {0};
            eng_sampling_init(&sampling);
            sampling.temperature = sampled ? 2.0f : 0;
            session = open_session(backend);
            other = create(session, NULL, 0, ANSWER);
            struct eng_sequence *sequence =
                create(session, &sampling, ENG_SEQUENCE_ALLOWED | ENG_SEQUENCE_LOGITS, ANSWER);
            allow(mask, 300);
            CHECK(eng_sequence_set_allowed(sequence, mask, mask_words(), &error)); /* before it has a slot */
            submit(other, 8);
            submit(sequence, 9);
            for (int i = 0; i < ANSWER; i++) {
                const int32_t token = next_token(session, sequence);
                assert_true(is_allowed(mask, (uint32_t)token));
                if (!sampled && i % 5 != 4)
                    assert_int_equal(token, best_token(eng_sequence_logits(sequence), &sampling, counts, mask));
                memset(mask, 0, sizeof mask);
                for (int32_t t = i; t < (int32_t)vocab_size(); t += 1 + i) allow(mask, t);
                if (i % 5 == 3) memset(mask, 0xff, sizeof mask);
                CHECK(i % 5 == 3 ? eng_sequence_set_allowed(sequence, NULL, 0, &error)
                                 : eng_sequence_set_allowed(sequence, mask, mask_words(), &error));
            }
            fables_finish(session);
            int32_t found[ANSWER];
            while (polled < ANSWER) polled += eng_sequence_poll(other, found + polled, ANSWER - polled);
            assert_memory_equal(found, expected, sizeof found);
            eng_session_destroy(&session);
        }
}

TEST(test_no_allowed_token_ends_a_sequence)
{
    for (int backend = 0; backend < BACKENDS; backend++)
        for (int drawn = 0; drawn < 3; drawn++) {
            uint32_t mask[WORDS] = {0}, unfinished = 1;
            int32_t answer[ANSWER];
            struct eng_session *session = open_session(backend);
            struct eng_sequence *sequence = create(session, NULL, ENG_SEQUENCE_ALLOWED | ENG_SEQUENCE_KEEP, 5);
            submit(sequence, 11);
            for (int i = 0; i < drawn; i++) next_token(session, sequence);
            mask[mask_words() - 1] = vocab_size() % 32 ? ~0u << vocab_size() % 32 : 0; /* beyond the vocabulary */
            CHECK(eng_sequence_set_allowed(sequence, mask, mask_words(), &error));
            while (unfinished) CHECK(eng_step(session, &unfinished, &error));
            assert_int_equal(eng_sequence_state(sequence), ENG_STATE_DONE);
            assert_int_equal(eng_sequence_end(sequence), ENG_END_NONE_ALLOWED);
            assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), 0);
            assert_null(eng_sequence_logits(sequence));
            /* It is kept, and continues. */
            CHECK(eng_sequence_set_allowed(sequence, NULL, 0, &error));
            submit(sequence, 12);
            fables_finish(session);
            assert_int_equal(eng_sequence_end(sequence), ENG_END_LENGTH);
            assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), 5);
            eng_session_destroy(&session);
        }
}

TEST(test_logprobs_are_those_of_the_logits)
{
    for (int backend = 0; backend < BACKENDS; backend++) {
        struct eng_session *session = open_session(backend);
        struct eng_sampling sampling = fables_sampling(true, 3); /* penalties, biases and temperature do not matter */
        struct eng_sequence *sequence = create(session, &sampling, ENG_SEQUENCE_LOGITS, ANSWER);
        struct eng_logprob drawn, top[ENG_MAX_LOGPROBS + 1];
        assert_int_equal(eng_sequence_logprobs(sequence, &drawn, NULL, 0, &error), ENG_USAGE); /* nothing was drawn */
        submit(sequence, 21);
        for (int i = 0; i < ANSWER; i++) {
            const int32_t token = next_token(session, sequence);
            const float *logits = eng_sequence_logits(sequence);
            double sum = 0;
            for (uint32_t t = 0; t < vocab_size(); t++) sum += exp((double)logits[t]);
            CHECK(eng_sequence_logprobs(sequence, &drawn, top, ENG_MAX_LOGPROBS, &error));
            assert_int_equal(drawn.token, token);
            assert_true(fabs((double)drawn.logprob - ((double)logits[token] - log(sum))) < 1e-4);
            for (int n = 0; n < ENG_MAX_LOGPROBS; n++) {
                int above = 0;
                const float value = logits[top[n].token];
                for (uint32_t t = 0; t < vocab_size(); t++)
                    above += logits[t] > value || (logits[t] == value && (int32_t)t < top[n].token);
                assert_int_equal(above, n);
                assert_true(fabs((double)top[n].logprob - ((double)value - log(sum))) < 1e-4);
            }
            CHECK(eng_sequence_logprobs(sequence, NULL, top, 1, &error));
            assert_int_equal(eng_sequence_logprobs(sequence, NULL, top, ENG_MAX_LOGPROBS + 1, &error), ENG_USAGE);
            assert_int_equal(eng_sequence_logprobs(sequence, NULL, NULL, 1, &error), ENG_USAGE);
        }
        eng_session_destroy(&session);
    }
}

TEST(test_min_p_of_1_is_greedy)
{
    int32_t answers[2][ANSWER];
    struct eng_session *session = open_session(DEVICE);
    for (int i = 0; i < 2; i++) {
        struct eng_sampling sampling;
        eng_sampling_init(&sampling);
        if (i) sampling.temperature = 5, sampling.min_p = 1, sampling.seed = 4;
        struct eng_sequence *sequence = create(session, &sampling, 0, ANSWER);
        submit(sequence, 31);
        fables_finish(session);
        assert_int_equal(eng_sequence_poll(sequence, answers[i], ANSWER), ANSWER);
    }
    assert_memory_equal(answers[0], answers[1], sizeof answers[0]);
    assert_true(test_backend_settings.submits_ahead >
                ANSWER); /* an option of the state alone: steps are queued ahead */
    eng_session_destroy(&session);
}

/* Slots draw what a sequence draws, also after they were truncated. */
TEST(test_slots_have_the_same_options)
{
    int32_t expected[ANSWER], prompt[PROMPT], token, drawn[ANSWER];
    struct eng_session *session = open_session(PROCESSORS);
    struct eng_sampling sampling = fables_sampling(true, 9);
    struct eng_sequence *sequence = create(session, &sampling, 0, ANSWER);
    submit(sequence, 51);
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, expected, ANSWER), ANSWER);
    eng_session_destroy(&session);
    fables_tokens(51, prompt, PROMPT);
    for (int backend = 0; backend < BACKENDS; backend++) {
        uint32_t slot, mask[WORDS] = {0};
        session = open_session(backend);
        CHECK(eng_slot_acquire(session, &slot, &error));
        CHECK(eng_slot_set_sampling(session, slot, &sampling, &error));
        CHECK(eng_prefill(session, slot, prompt, PROMPT, &token, NULL, &error));
        assert_int_equal(token, expected[0]);
        CHECK(eng_decode_steps(session, &slot, &token, 1, ANSWER - 1, drawn, &error));
        assert_memory_equal(drawn, expected + 1, (ANSWER - 1) * sizeof *drawn);
        /* Greedy, with a penalty that forbids every token of the answer: those that remain. */
        eng_sampling_init(&sampling);
        sampling.frequency_penalty = 2;
        CHECK(eng_slot_truncate(session, slot, 0, &error));
        CHECK(eng_slot_set_sampling(session, slot, &sampling, &error));
        int32_t first[9], again[4];
        CHECK(eng_prefill(session, slot, prompt, PROMPT, &first[0], NULL, &error));
        CHECK(eng_decode_steps(session, &slot, first, 1, 8, first + 1, &error));
        CHECK(eng_slot_truncate(session, slot, PROMPT + 4, &error));
        /* The token at the position was drawn, but is no longer counted until it is drawn again. */
        CHECK(eng_decode_steps(session, &slot, &first[4], 1, 4, again, &error));
        if (first[5] != first[4]) assert_int_equal(again[0], first[5]);
        /* Allowed tokens. */
        assert_int_equal(eng_slot_set_allowed(session, slot, mask, mask_words(), &error), ENG_USAGE);
        assert_non_null(strstr(error.message, "no token is allowed"));
        allow(mask, 400);
        CHECK(eng_slot_set_allowed(session, slot, mask, mask_words(), &error));
        CHECK(eng_decode_steps(session, &slot, &again[3], 1, 3, drawn, &error));
        for (int i = 0; i < 3; i++) assert_int_equal(drawn[i], 400);
        CHECK(eng_slot_set_sampling(session, slot, NULL, &error)); /* allowed tokens stay */
        CHECK(eng_decode(session, &slot, drawn, 1, &token, NULL, &error));
        assert_int_equal(token, 400);
        CHECK(eng_slot_set_allowed(session, slot, NULL, 0, &error));
        CHECK(eng_slot_release(session, slot, &error));
        eng_session_destroy(&session);
        sampling = fables_sampling(true, 9);
    }
}

TEST(test_wrong_options_are_refused)
{
    static struct eng_logit_bias biases[ENG_MAX_LOGIT_BIASES + 1];
    struct eng_session *session = open_session(PROCESSORS);
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL, *plain = create(session, NULL, 0, 1);
    uint32_t mask[WORDS + 1];
    memset(mask, 0xff, sizeof mask);
    static const char *const words[] = {"min_p",
                                        "min_p",
                                        "min_p",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "frequency_penalty",
                                        "logit_bias_count",
                                        "logit_bias is NULL",
                                        "token of logit_bias",
                                        "token of logit_bias",
                                        "bias of logit_bias",
                                        "bias of logit_bias"};
    for (int i = 0; i < 12; i++) {
        struct eng_sampling sampling;
        eng_sampling_init(&sampling);
        if (i == 0) sampling.min_p = -0.1f;
        if (i == 1) sampling.min_p = 1.1f;
        if (i == 2) sampling.min_p = NAN;
        if (i == 3) sampling.presence_penalty = 2.1f;
        if (i == 4) sampling.frequency_penalty = -INFINITY;
        if (i == 5) sampling.frequency_penalty = NAN;
        if (i >= 6) sampling.logit_bias = biases, sampling.logit_bias_count = 1;
        if (i == 6) sampling.logit_bias_count = ENG_MAX_LOGIT_BIASES + 1;
        if (i == 7) sampling.logit_bias = NULL;
        biases[0] = (struct eng_logit_bias){i == 8   ? -1
                                            : i == 9 ? (int32_t)vocab_size()
                                                     : 3,
                                            i == 10   ? NAN
                                            : i == 11 ? 101
                                                      : 1};
        eng_sequence_options_init(&options);
        options.sampling = &sampling;
        assert_int_equal(eng_sequence_create(session, &options, &sequence, &error), ENG_USAGE);
        assert_non_null(strstr(error.message, words[i]));
        assert_null(sequence);
    }
    struct eng_sampling most;
    eng_sampling_init(&most);
    for (int i = 0; i < ENG_MAX_LOGIT_BIASES; i++) biases[i] = (struct eng_logit_bias){i % 7, (float)(i % 7 == 3)};
    most.logit_bias = biases, most.logit_bias_count = ENG_MAX_LOGIT_BIASES;
    sequence = create(session, &most, ENG_SEQUENCE_ALLOWED, 1);
    assert_int_equal(eng_sequence_set_allowed(plain, mask, mask_words(), &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "ENG_SEQUENCE_ALLOWED"));
    assert_int_equal(eng_sequence_set_allowed(sequence, mask, mask_words() + 1, &error), ENG_USAGE);
    assert_int_equal(eng_sequence_set_allowed(sequence, NULL, mask_words(), &error), ENG_USAGE);
    assert_int_equal(eng_sequence_set_allowed(NULL, mask, mask_words(), &error), ENG_USAGE);
    CHECK(eng_sequence_set_allowed(sequence, mask, mask_words(), &error));
    eng_session_destroy(&session);
}

/* They refuse each option by its name, and do everything else as before (tests/release_engines_test.c). */
TEST(test_older_engines_refuse_options)
{
    static const char *const names[] = {"min_p", "presence_penalty", "frequency_penalty", "logit_bias"};
    static const struct eng_logit_bias bias = {3, 1};
    struct eng_engine *engine = NULL;
    struct eng_session *session = NULL;
    struct eng_sequence *sequence = NULL;
    struct eng_sequence_options options;
    const uint32_t mask[1] = {1};
    uint32_t slot;
    CHECK(eng_open("formats/testdata/engine_2_0_cpu", NULL, &engine, &error));
    CHECK(eng_session_create(engine, NULL, &session, &error));
    CHECK(eng_slot_acquire(session, &slot, &error));
    for (int i = 0; i < 4; i++) {
        struct eng_sampling sampling;
        eng_sampling_init(&sampling);
        if (i == 0) sampling.min_p = 0.5f;
        if (i == 1) sampling.presence_penalty = 0.5f;
        if (i == 2) sampling.frequency_penalty = 0.5f;
        if (i == 3) sampling.logit_bias = &bias, sampling.logit_bias_count = 1;
        eng_sequence_options_init(&options);
        options.sampling = &sampling;
        assert_int_equal(eng_sequence_create(session, &options, &sequence, &error), ENG_VERSION);
        assert_non_null(strstr(error.message, names[i]));
        assert_non_null(strstr(error.message, "build the engine again"));
        assert_int_equal(eng_slot_set_sampling(session, slot, &sampling, &error), ENG_VERSION);
    }
    options.sampling = NULL;
    options.flags = ENG_SEQUENCE_ALLOWED;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    assert_int_equal(eng_sequence_set_allowed(sequence, mask, 1, &error), ENG_VERSION);
    assert_int_equal(eng_sequence_set_allowed(sequence, NULL, 0, &error), ENG_VERSION);
    eng_session_destroy(&session);
    eng_close(&engine);
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
