/* SPDX-License-Identifier: Apache-2.0 */
/* Hidden states: a row's logits are its products with the rows of the embedding, to which the model's LM head is tied. Rows of slots and
 * sequences are checked, in plans of all kinds, on a device that looks ahead, on two ranks; and calls that must fail. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "builder/arch/arch.h"
#include "formats/checkpoint/checkpoint.h"
#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { HIDDEN = 192, VOCAB = 1536, PROMPT = 70, SLOTS = 3, STEPS = 3 };
static const float tolerance = 1e-3f; /* of a logit: products of the CPU's kernels are in another order */

static float embedding[VOCAB][HIDDEN];

static void read_embedding(void)
{
    struct checkpoint checkpoint;
    struct status status = {0};
    test_expect_success(checkpoint_open(&checkpoint, "tests/models/fables", false, arch_read_config, &status), &status);
    const struct tensor_view *tensor = checkpoint_find(&checkpoint, "model.embed_tokens.weight");
    assert_non_null(tensor);
    assert_int_equal(tensor->bytes, VOCAB * HIDDEN * sizeof(uint16_t));
    const uint8_t *bytes = tensor->data;
    for (size_t i = 0; i < (size_t)VOCAB * HIDDEN; i++) {
        const uint32_t bits = (uint32_t)bytes[2 * i] << 16 | (uint32_t)bytes[2 * i + 1] << 24;
        memcpy(&embedding[0][0] + i, &bits, sizeof bits);
    }
    checkpoint_close(&checkpoint);
}

static int start(void **state)
{
    if (fables_build_hidden(state)) return -1;
    fables = fables_open();
    read_embedding();
    return 0;
}

static void check_row(const float *hidden, const float *logits)
{
    assert_non_null(hidden);
    assert_non_null(logits);
    for (int t = 0; t < VOCAB; t++) {
        double product = 0;
        for (int k = 0; k < HIDDEN; k++) product += (double)hidden[k] * (double)embedding[t][k];
        if (fabs(product - (double)logits[t]) > (double)tolerance)
            fail_msg("token %d: expected %g, found %g", t, product, (double)logits[t]);
    }
}

static struct eng_session *open_session(struct eng_engine *engine, bool on_device)
{
    struct eng_session_options options;
    struct eng_session *session = NULL;
    struct status status = {0};
    eng_session_options_init(&options);
    options.threads = 2;
    test_backend_settings = (struct test_backend_settings){.pace = PACE_RANDOM};
    test_expect_success(session_create(engine, on_device ? &test_backend : backend_for(engine), &options, &session,
                                       &status),
                        &status);
    return session;
}

static void check_slots(struct eng_session *session)
{
    static float logits[SLOTS][VOCAB];
    float hidden[HIDDEN], last[HIDDEN];
    int32_t prompt[PROMPT], tokens[SLOTS], next[STEPS][SLOTS];
    uint32_t slots[SLOTS];
    for (uint32_t i = 0; i < SLOTS; i++) {
        fables_tokens(i, prompt, PROMPT);
        CHECK(eng_slot_acquire(session, &slots[i], &error));
        CHECK(eng_prefill(session, slots[i], prompt, PROMPT - 13 * i, &tokens[i], logits[0], &error));
        CHECK(eng_slot_hidden(session, slots[i], hidden, &error));
        check_row(hidden, logits[0]);
    }
    CHECK(eng_decode(session, slots, tokens, SLOTS, next[0], logits[0], &error));
    for (uint32_t i = 0; i < SLOTS; i++) {
        CHECK(eng_slot_hidden(session, slots[i], hidden, &error));
        check_row(hidden, logits[i]);
    }
    /* Those of the last of several steps: as of single ones. */
    CHECK(eng_decode_steps(session, slots, next[0], SLOTS, STEPS, next[0], &error));
    CHECK(eng_slot_hidden(session, slots[1], last, &error));
    uint32_t position;
    CHECK(eng_slot_position(session, slots[1], &position, &error));
    CHECK(eng_slot_truncate(session, slots[1], position - 1, &error));
    assert_int_equal(eng_slot_hidden(session, slots[1], hidden, &error), ENG_USAGE); /* its last token is gone */
    CHECK(eng_decode(session, &slots[1], &next[STEPS - 2][1], 1, &tokens[1], logits[1], &error));
    CHECK(eng_slot_hidden(session, slots[1], hidden, &error));
    check_row(hidden, logits[1]);
    for (int k = 0; k < HIDDEN; k++) assert_true(fabsf(hidden[k] - last[k]) < tolerance);
    assert_int_equal(eng_slot_hidden(session, slots[0], hidden, &error), ENG_USAGE); /* the step had no row of it */
    for (uint32_t i = 0; i < SLOTS; i++) CHECK(eng_slot_release(session, slots[i], &error));
}

/* Prompts of several chunks, which join while others decode: rows of prefill, decode and mixed plans. */
static void check_sequences(struct eng_session *session, uint32_t flags)
{
    enum { SEQUENCES = 5, ANSWER = 6 };
    struct eng_sequence *sequences[SEQUENCES] = {NULL};
    struct eng_sequence_options options;
    int32_t prompt[2 * PROMPT];
    uint32_t unfinished = 1, checked = 0;
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_IGNORE_EOS | flags;
    for (int joined = 0; unfinished || joined < SEQUENCES;) {
        if (joined < SEQUENCES) {
            fables_tokens(40 + (uint32_t)joined, prompt, 2 * PROMPT);
            CHECK(eng_sequence_create(session, &options, &sequences[joined], &error));
            CHECK(eng_sequence_submit(sequences[joined], prompt, (size_t)(2 * PROMPT - 25 * joined), &error));
            joined++;
        }
        CHECK(eng_step(session, &unfinished, &error));
        for (int i = 0; i < joined; i++) {
            int32_t drawn;
            if (!eng_sequence_poll(sequences[i], &drawn, 1)) {
                assert_null(eng_sequence_hidden(sequences[i]));
            } else if (flags & ENG_SEQUENCE_HIDDEN) {
                const float *logits = eng_sequence_logits(sequences[i]);
                assert_non_null(eng_sequence_hidden(sequences[i]));
                if (logits || flags & ENG_SEQUENCE_LOGITS) check_row(eng_sequence_hidden(sequences[i]), logits);
                checked++;
            } else {
                assert_null(eng_sequence_hidden(sequences[i]));
            }
        }
    }
    assert_int_equal(checked, flags & ENG_SEQUENCE_HIDDEN ? SEQUENCES * ANSWER : 0);
    for (int i = 0; i < SEQUENCES; i++) eng_sequence_destroy(&sequences[i]);
}

static void check_session(struct eng_engine *engine, bool on_device)
{
    struct eng_engine_facts facts;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(engine, &facts, &error));
    assert_int_equal(facts.hidden_size, HIDDEN);
    struct eng_session *session = open_session(engine, on_device);
    check_slots(session);
    check_sequences(session, ENG_SEQUENCE_HIDDEN | ENG_SEQUENCE_LOGITS);
    check_sequences(session, ENG_SEQUENCE_HIDDEN);
    if (on_device) assert_int_equal(test_backend_settings.submits_ahead, STEPS - 1); /* of eng_decode_steps alone */
    check_sequences(session, 0);
    eng_session_destroy(&session);
}

TEST(rows_of_the_cpu) { check_session(fables, false); }
TEST(rows_of_a_device) { check_session(fables, true); }

TEST(rows_of_two_ranks)
{
    char path[320];
    struct status status = {0};
    struct eng_engine *engine = NULL;
    snprintf(path, sizeof path, "%s.ranks", fables_path());
    test_expect_success(fables_build_ranks_with_hidden(path, &status), &status);
    CHECK(eng_open(path, NULL, &engine, &error));
    check_session(engine, false);
    eng_close(&engine);
    unlink(path);
}

TEST(engines_without_hidden_states_are_refused)
{
    char path[320];
    struct status status = {0};
    struct eng_engine *engine = NULL;
    struct eng_sequence *sequence = NULL;
    struct eng_sequence_options options;
    struct eng_engine_facts facts;
    float hidden[HIDDEN];
    uint32_t slot;
    const int32_t tokens[] = {300, 301};
    snprintf(path, sizeof path, "%s.without", fables_path());
    test_expect_success(fables_build_model("tests/models/fables", path, 1, &status), &status);
    CHECK(eng_open(path, NULL, &engine, &error));
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(engine, &facts, &error));
    assert_int_equal(facts.hidden_size, 0);
    struct eng_session *session = fables_session(engine, NULL);
    eng_sequence_options_init(&options);
    options.flags = ENG_SEQUENCE_HIDDEN;
    assert_int_equal(eng_sequence_create(session, &options, &sequence, &error), ENG_VERSION);
    assert_non_null(strstr(error.message, "engbuild --hidden"));
    assert_null(sequence);
    int32_t drawn;
    CHECK(eng_slot_acquire(session, &slot, &error));
    CHECK(eng_prefill(session, slot, tokens, 2, &drawn, NULL, &error));
    assert_int_equal(eng_slot_hidden(session, slot, hidden, &error), ENG_VERSION);
    eng_session_destroy(&session);
    eng_close(&engine);
    unlink(path);
}

TEST(wrong_slots_are_refused)
{
    float hidden[HIDDEN];
    uint32_t slot, other;
    const int32_t tokens[] = {300, 301};
    struct eng_session *session = fables_session(fables, NULL);
    assert_int_equal(eng_slot_hidden(session, 0, hidden, &error), ENG_USAGE); /* not acquired */
    CHECK(eng_slot_acquire(session, &slot, &error));
    assert_int_equal(eng_slot_hidden(session, slot, hidden, &error), ENG_USAGE); /* without a token */
    CHECK(eng_prefill(session, slot, tokens, 2, NULL, NULL, &error));
    assert_int_equal(eng_slot_hidden(session, slot, hidden, &error), ENG_USAGE); /* nothing was drawn */
    int32_t drawn;
    CHECK(eng_prefill(session, slot, tokens, 2, &drawn, NULL, &error));
    CHECK(eng_slot_hidden(session, slot, hidden, &error));
    assert_int_equal(eng_slot_hidden(session, FABLES_BATCH, hidden, &error), ENG_USAGE);
    assert_int_equal(eng_slot_hidden(session, slot, NULL, &error), ENG_USAGE);
    assert_int_equal(eng_slot_hidden(NULL, slot, hidden, &error), ENG_USAGE);
    CHECK(eng_slot_release(session, slot, &error));
    CHECK(eng_slot_acquire(session, &other, &error));
    assert_int_equal(other, slot);
    assert_int_equal(eng_slot_hidden(session, other, hidden, &error), ENG_USAGE); /* of what had the slot before */
    assert_null(eng_sequence_hidden(NULL));
    eng_session_destroy(&session);
}

int main(void) { return test_run_with(start, NULL, NULL, fables_stop); }
