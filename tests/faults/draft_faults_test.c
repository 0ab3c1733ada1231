/* SPDX-License-Identifier: Apache-2.0 */
/* A session with a draft engine: every allocation, mapping and thread start that it needs fails in turn, and nothing is left of it; once it
 * exists, steps with drafts do not allocate. */
#include "tests/faults/faults.h"
#include "formats/base/test_program.h"
#include "tests/test_fables.h"

enum { PROMPT = 70, ANSWER = 30, SEQUENCES = 3 };

static struct eng_session_options options_for(struct eng_engine *engine)
{
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.threads = 2;
    options.speculate = 4;
    options.draft = engine;
    return options;
}

TEST(every_allocation_of_the_session_fails)
{
    struct eng_engine *engine = fables_open();
    const struct eng_session_options options = options_for(engine);
    struct eng_session *session = fables_session(engine, &options); /* allocates memory once per process */
    eng_session_destroy(&session);
    const long blocks = faults_live_blocks(), mappings = faults_live_mappings();
    faults_arm(0, false);
    session = fables_session(engine, &options);
    faults_disarm();
    const unsigned long total = faults_calls();
    eng_session_destroy(&session);
    assert_in_range(total, 20, 10000);
    for (unsigned long nth = 1; nth <= total; nth++) {
        faults_arm(nth, false);
        const enum eng_status status = eng_session_create(engine, &options, &session, &error);
        assert_int_equal(faults_disarm(), 1);
        if (status != ENG_OK) {
            assert_int_equal(status, ENG_MACHINE);
            assert_null(session);
            assert_true(error.message[0] != '\0');
        }
        eng_session_destroy(&session);
        assert_int_equal(faults_live_blocks(), blocks);
        assert_int_equal(faults_live_mappings(), mappings);
    }
    eng_close(&engine);
}

static void run(struct eng_session *session)
{
    struct eng_sequence *sequences[SEQUENCES];
    struct eng_sequence_options options;
    int32_t prompt[PROMPT], answer[ANSWER];
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        fables_tokens(i, prompt, PROMPT);
        CHECK(eng_sequence_create(session, &options, &sequences[i], &error));
        CHECK(eng_sequence_submit(sequences[i], prompt, PROMPT, &error));
    }
    fables_finish(session);
    for (int i = 0; i < SEQUENCES; i++) {
        assert_int_equal(eng_sequence_poll(sequences[i], answer, ANSWER), ANSWER);
        eng_sequence_destroy(&sequences[i]);
    }
}

TEST(steps_do_not_allocate)
{
    struct eng_engine *engine = fables_open();
    const struct eng_session_options options = options_for(engine);
    struct eng_session *session = fables_session(engine, &options);
    struct eng_session_facts facts;
    run(session); /* threads that start late allocate variables of their own */
    faults_arm(0, false);
    run(session);
    faults_disarm();
    assert_int_equal(faults_calls(), 0);
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_in_range(facts.accepted_tokens, SEQUENCES * ANSWER, facts.drafted_tokens);
    eng_session_destroy(&session);
    eng_close(&engine);
}

int main(void) { return test_run_with(fables_build, NULL, NULL, fables_remove); }
