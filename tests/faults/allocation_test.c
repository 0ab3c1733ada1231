/* SPDX-License-Identifier: Apache-2.0 */
/* After eng_session_create, functions marked [no allocation] in eng.h do not allocate: calls of the allocator, mmap and
 * pthread_create are counted while sequences and slots are created, run, polled, truncated and destroyed. */
#include "tests/faults/faults.h"
#include "formats/base/test_program.h"
#include "tests/test_fables.h"

enum { SEQUENCES = 6, PROMPT = 70, ALLOWED_WORDS = 64 };

static void run_sequences(struct eng_session *session, struct eng_text *stream, size_t vocab_size)
{
    struct eng_sequence *sequences[SEQUENCES];
    struct eng_sequence_options options;
    struct eng_sampling sampling;
    int32_t prompt[PROMPT], token;
    struct eng_logprob drawn, top[ENG_MAX_LOGPROBS];
    uint32_t allowed[ALLOWED_WORDS];
    const size_t words = (vocab_size + 31) / 32;
    assert_true(words <= ALLOWED_WORDS);
    memset(allowed, 0x77, sizeof allowed);
    fables_tokens(1, prompt, PROMPT);
    eng_sampling_init(&sampling);
    eng_sequence_options_init(&options);
    sampling.temperature = 1;
    sampling.top_p = 0.9f;
    sampling.top_k = 40;
    sampling.repetition_penalty = 1.2f;
    static const struct eng_logit_bias biases[] = {{400, 1}, {500, -1}};
    sampling.min_p = 0.01f;
    sampling.presence_penalty = sampling.frequency_penalty = 0.1f;
    sampling.logit_bias = biases;
    sampling.logit_bias_count = 2;
    options.sampling = &sampling;
    options.flags = ENG_SEQUENCE_ALLOWED | ENG_SEQUENCE_LOGITS;
    options.max_new_tokens = 10;
    for (size_t i = 0; i < SEQUENCES; i++) {
        CHECK(eng_sequence_create(session, &options, &sequences[i], &error));
        CHECK(eng_sequence_submit(sequences[i], prompt, PROMPT - 10 * i, &error));
        CHECK(eng_sequence_set_allowed(sequences[i], allowed, words, &error));
    }
    uint32_t unfinished = 1;
    const char *text;
    size_t size;
    while (unfinished) {
        CHECK(eng_step(session, &unfinished, &error));
        for (size_t i = 0; i < SEQUENCES; i++)
            while (eng_sequence_poll(sequences[i], &token, 1)) {
                CHECK(eng_sequence_logprobs(sequences[i], &drawn, top, ENG_MAX_LOGPROBS, &error));
                CHECK(eng_sequence_set_allowed(sequences[i], allowed, words, &error));
                CHECK(eng_text_push(stream, token, &text, &size, &error));
            }
        eng_sequence_cancel(sequences[3]);
    }
    CHECK(eng_text_finish(stream, &text, &size, &error));
    for (size_t i = 0; i < SEQUENCES; i++) eng_sequence_destroy(&sequences[i]);
}

static void run_slots(struct eng_session *session, float *logits)
{
    uint32_t slots[2], position;
    int32_t prompt[PROMPT], next[2];
    fables_tokens(2, prompt, PROMPT);
    for (int i = 0; i < 2; i++) {
        CHECK(eng_slot_acquire(session, &slots[i], &error));
        CHECK(eng_slot_set_sampling(session, slots[i], NULL, &error));
        CHECK(eng_prefill(session, slots[i], prompt, PROMPT, &next[i], logits, &error));
    }
    for (int i = 0; i < 20; i++) CHECK(eng_decode(session, slots, next, 2, next, logits, &error));
    CHECK(eng_slot_truncate(session, slots[0], 10, &error));
    CHECK(eng_slot_position(session, slots[0], &position, &error));
    assert_int_not_equal(eng_prefill(session, slots[0], prompt, 0, next, logits, &error), ENG_OK); /* errors, too */
    for (int i = 0; i < 2; i++) CHECK(eng_slot_release(session, slots[i], &error));
}

TEST(test_no_allocation)
{
    struct eng_engine *engine = fables_open();
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 2;
    struct eng_session *session = fables_session(engine, &options);
    struct eng_text *stream;
    CHECK(eng_text_create(engine, 0, &stream, &error));
    struct eng_engine_facts facts;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(engine, &facts, &error));
    float *logits = malloc(2 * facts.vocab_size * sizeof *logits);

    /* A thread that starts late allocates thread-local variables: let all of them have run. */
    run_slots(session, logits);

    faults_arm(0, false);
    run_sequences(session, stream, facts.vocab_size);
    run_slots(session, logits);
    faults_disarm();
    assert_int_equal(faults_calls(), 0);

    /* The counter works. */
    faults_arm(0, false);
    free(logits);
    logits = malloc(facts.vocab_size);
    assert_non_null(logits);
    faults_disarm();
    assert_int_equal(faults_calls(), 1);
    free(logits);
    eng_text_destroy(&stream);
    eng_session_destroy(&session);
    eng_close(&engine);
}

int main(void) { return test_run_with(fables_build, NULL, NULL, fables_remove); }
