/* SPDX-License-Identifier: Apache-2.0 */
/* Models with recurrent state through the public API: slots that are shortened compute again what their state has lost, slots do not
 * see each other's state, and a slot that is used again begins anew. */
#include "tests/test_forks.h"
#include "formats/base/test_program.h"

#include <math.h>
#include <string.h>

#include "formats/base/test_support.h"
#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { VOCAB = 320, TEXT = 90 };
static const double tolerance = 1e-4;
static const char *const models[] = {"lfm2", "qwen3_next"};
enum { MODELS = sizeof models / sizeof *models };

static void random_text(uint32_t seed, int32_t *tokens, size_t count)
{
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (int32_t)(3 + (state >> 8) % (VOCAB - 3));
    }
}

static struct eng_session *open_session(const char *name, const char *folder, struct eng_engine **engine)
{
    char model[4096], path[512];
    struct status status = {0};
    struct eng_session_options options;
    snprintf(model, sizeof model, "%s/models/hf-tiny/%s", test_shared(), name);
    snprintf(path, sizeof path, "%s/%s.eng", folder, name);
    test_expect_success(fables_build_model(model, path, 1, &status), &status);
    CHECK(eng_open(path, NULL, engine, &error));
    eng_session_options_init(&options);
    options.threads = 2;
    return fables_session(*engine, &options);
}

static void assert_as_a_new_slot(struct eng_session *session, const int32_t *text, size_t count, const float *found)
{
    static float expected[VOCAB];
    uint32_t slot;
    CHECK(eng_slot_acquire(session, &slot, &error));
    CHECK(eng_prefill(session, slot, text, count, NULL, expected, &error));
    CHECK(eng_slot_release(session, slot, &error));
    for (int i = 0; i < VOCAB; i++) assert_true(fabs((double)expected[i] - (double)found[i]) <= tolerance);
}

static void shorten(struct eng_session *session)
{
    static const uint32_t lengths[] = {TEXT, TEXT - 1, 60, 33, 5, 2, 1, 0};
    static float logits[VOCAB];
    int32_t text[TEXT + 4];
    uint32_t slot, position;
    random_text(3, text, TEXT + 4);
    CHECK(eng_slot_acquire(session, &slot, &error));
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        CHECK(eng_slot_position(session, slot, &position, &error));
        if (position < TEXT) CHECK(eng_prefill(session, slot, text + position, TEXT - position, NULL, NULL, &error));
        CHECK(eng_slot_truncate(session, slot, lengths[i], &error));
        CHECK(eng_slot_position(session, slot, &position, &error));
        assert_int_equal(position, lengths[i]);
        CHECK(eng_prefill(session, slot, text + position, 4, NULL, logits, &error));
        assert_as_a_new_slot(session, text, position + 4, logits);
        CHECK(eng_slot_truncate(session, slot, lengths[i], &error));
    }
    CHECK(eng_slot_release(session, slot, &error));
}

/* Slots that began at other times take their tokens in common steps. */
static void interleave(struct eng_session *session)
{
    enum { SLOTS = 4, STEPS = 20 };
    static float logits[SLOTS * VOCAB];
    int32_t texts[SLOTS][TEXT];
    uint32_t slots[SLOTS], done[SLOTS];
    for (uint32_t s = 0; s < SLOTS; s++) {
        random_text(20 + s, texts[s], TEXT);
        CHECK(eng_slot_acquire(session, &slots[s], &error));
        done[s] = 1 + 13 * s;
        CHECK(eng_prefill(session, slots[s], texts[s], done[s], NULL, NULL, &error));
    }
    for (int step = 0; step < STEPS; step++) {
        int32_t tokens[SLOTS], drawn[SLOTS];
        for (uint32_t s = 0; s < SLOTS; s++) tokens[s] = texts[s][done[s]++];
        CHECK(eng_decode(session, slots, tokens, SLOTS, drawn, logits, &error));
        for (uint32_t s = 0; s < SLOTS && step % 7 == 0; s++)
            assert_as_a_new_slot(session, texts[s], done[s], logits + s * VOCAB);
    }
    for (uint32_t s = 0; s < SLOTS; s++) CHECK(eng_slot_release(session, slots[s], &error));
}

TEST(state_is_that_of_a_slots_tokens)
{
    if (!test_shared()) skip();
    char *folder = test_folder();
    for (int m = 0; m < MODELS; m++) {
        struct eng_engine *engine;
        struct eng_selftest_result result;
        struct eng_session *session = open_session(models[m], folder, &engine);
        shorten(session);
        interleave(session);
        eng_selftest_result_init(&result);
        CHECK(eng_selftest(session, &result, &error));
        assert_true(result.plans > 1 && result.tokens > 10);
        eng_session_destroy(&session);
        eng_close(&engine);
    }
    test_folder_remove(folder);
}

/* Two copies of the state for each slot (runtime/backend/test_backend.h). */
static void check_on_device(struct eng_engine *engine)
{
    struct eng_session_options options;
    struct eng_session *session = NULL;
    struct status status = {0};
    eng_session_options_init(&options);
    test_expect_success(session_create(engine, &test_backend, &options, &session, &status), &status);
    forks_check(session, VOCAB);
    eng_session_destroy(&session);
}

TEST(forks_copy_the_state)
{
    if (!test_shared()) skip();
    char *folder = test_folder();
    for (int m = 0; m < MODELS; m++) {
        struct eng_engine *engine;
        struct eng_session *session = open_session(models[m], folder, &engine);
        forks_check(session, VOCAB);
        eng_session_destroy(&session);
        /* The other model has experts, whose bits depend on what else is in a step. */
        if (strcmp(models[m], "lfm2") == 0) check_on_device(engine);
        eng_close(&engine);
    }
    test_folder_remove(folder);
}

int main(void) { return test_run(); }
