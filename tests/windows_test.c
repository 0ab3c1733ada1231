/* SPDX-License-Identifier: Apache-2.0 */
/* A model whose layers all slide, through the public API: slots and sequences that have passed their window many times hold the pages
 * of the window alone and give what a new slot gives, also after they were shortened, and with steps that are queued ahead. */
#include "tests/test_forks.h"
#include "formats/base/test_program.h"

#include <math.h>
#include <sys/stat.h>

#include "formats/base/test_support.h"
#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { WINDOW = 24, VOCAB = 1536, PAGE = 16, TEXT = 360 };
/* Window and largest chunk: WINDOW + FABLES_LARGEST_CHUNK - 1 tokens in a row touch so many pages. */
enum { RING = (WINDOW + FABLES_LARGEST_CHUNK - 2 + PAGE - 1) / PAGE + 1, ALL = FABLES_CONTEXT / PAGE };
static const double tolerance = 1e-4;
static char *folder;
static char path[300];

static void write_config(const char *to)
{
    FILE *out = fopen(to, "w");
    assert_non_null(out);
    fprintf(out,
            "{\"model_type\": \"mistral\", \"head_dim\": 32, \"hidden_size\": 192, \"intermediate_size\": 320, "
            "\"max_position_embeddings\": 1024, \"num_attention_heads\": 6, \"num_hidden_layers\": 5, "
            "\"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": true, "
            "\"sliding_window\": %d, \"vocab_size\": 1536, \"bos_token_id\": 0, \"eos_token_id\": 1, "
            "\"dtype\": \"bfloat16\"}\n",
            WINDOW);
    assert_int_equal(fclose(out), 0);
}

static int build(void **state)
{
    char target[4096], model[256], file[300];
    struct status status = {0};
    folder = test_folder();
    snprintf(model, sizeof model, "%s/model", folder);
    snprintf(file, sizeof file, "%s/model.safetensors", model);
    if (!realpath("tests/models/fables/model.safetensors", target) || mkdir(model, 0700) || symlink(target, file))
        return -1;
    snprintf(file, sizeof file, "%s/config.json", model);
    write_config(file);
    snprintf(path, sizeof path, "%s/windowed.eng", folder);
    if (fables_build_model(model, path, 1, &status)) return 0;
    fprintf(stderr, "build: %s\n", status.message);
    return -1;
}

static int clean_up(void **state)
{
    test_folder_remove(folder);
    return 0;
}

static struct eng_session *open_session(struct eng_engine **engine, uint64_t pages, bool ahead)
{
    struct eng_session_options options;
    struct eng_session *session = NULL;
    struct status status = {0};
    struct eng_engine_facts facts;
    CHECK(eng_open(path, NULL, engine, &error));
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(*engine, &facts, &error));
    eng_session_options_init(&options);
    options.threads = 1;
    options.kv_bytes = pages * facts.page_bytes;
    if (!ahead) return fables_session(*engine, &options);
    if (!session_create(*engine, &test_backend, &options, &session, &status)) fail_msg("%s", status.message);
    return session;
}

static void close_session(struct eng_session *session, struct eng_engine *engine)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_int_equal(facts.free_pages, facts.pages);
    eng_session_destroy(&session);
    eng_close(&engine);
}

static uint32_t used_pages(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    return facts.pages - facts.free_pages;
}

static void assert_at_once(struct eng_session *session, const int32_t *text, size_t count, const float *found)
{
    static float expected[VOCAB];
    uint32_t slot;
    CHECK(eng_slot_acquire(session, &slot, &error));
    CHECK(eng_prefill(session, slot, text, count, NULL, expected, &error));
    CHECK(eng_slot_release(session, slot, &error));
    for (int i = 0; i < VOCAB; i++) assert_true(fabs((double)expected[i] - (double)found[i]) <= tolerance);
}

TEST(a_slot_holds_the_pages_of_its_window)
{
    static float logits[VOCAB];
    struct eng_engine *engine;
    struct eng_session *session = open_session(&engine, 0, false);
    struct eng_session_facts facts;
    int32_t text[TEXT], drawn;
    uint32_t slot;
    eng_session_facts_init(&facts);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_int_equal(facts.pages, FABLES_BATCH * RING); /* more could never be used */
    fables_tokens(7, text, TEXT);
    CHECK(eng_slot_acquire(session, &slot, &error));
    for (uint32_t done = 0, count; done < TEXT; done += count) {
        count = done % 3 == 0 ? 65 : done % 3 == 1 ? 1 : 40;
        if (count > TEXT - done) count = TEXT - done;
        if (count > 1)
            CHECK(eng_prefill(session, slot, text + done, count, NULL, logits, &error));
        else
            CHECK(eng_decode(session, &slot, text + done, 1, &drawn, logits, &error));
        const uint32_t pages = (done + count + PAGE - 1) / PAGE;
        assert_int_equal(used_pages(session), pages < RING ? pages : RING);
        assert_at_once(session, text, done + count, logits);
    }
    CHECK(eng_slot_release(session, slot, &error));
    close_session(session, engine);
}

/* Lengths to which a slot of TEXT tokens is cut: within the tokens that its pages still have, and before them. */
TEST(a_slot_that_is_cut_computes_what_its_pages_have_lost)
{
    static const uint32_t lengths[] = {TEXT, TEXT - 1, TEXT - 40, TEXT - 80, TEXT - 88, TEXT - 100, 200,
                                       113,  112,      60,        25,        1,         0};
    static float logits[VOCAB];
    struct eng_engine *engine;
    struct eng_session *session = open_session(&engine, 0, false);
    int32_t text[TEXT + 8];
    uint32_t slot, position;
    fables_tokens(8, text, TEXT + 8);
    CHECK(eng_slot_acquire(session, &slot, &error));
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        CHECK(eng_slot_position(session, slot, &position, &error));
        if (position < TEXT) CHECK(eng_prefill(session, slot, text + position, TEXT - position, NULL, NULL, &error));
        CHECK(eng_slot_truncate(session, slot, lengths[i], &error));
        CHECK(eng_slot_position(session, slot, &position, &error));
        assert_int_equal(position, lengths[i]);
        CHECK(eng_prefill(session, slot, text + position, 8, NULL, logits, &error));
        assert_at_once(session, text, position + 8, logits);
        CHECK(eng_slot_truncate(session, slot, lengths[i], &error));
    }
    CHECK(eng_slot_release(session, slot, &error));
    close_session(session, engine);
}

/* Several turns of kept sequences, which stop where a step that was queued ahead is discarded. */
static void converse(struct eng_session *session, int32_t answers[3][TEXT])
{
    enum { TURNS = 5, PROMPT = 30, ANSWER = 35 };
    struct eng_sequence *sequences[3];
    for (uint32_t s = 0; s < 3; s++) {
        struct eng_sampling sampling = fables_sampling(s > 0, 50 + s);
        struct eng_sequence_options options;
        int32_t stop = 300 + (int32_t)s;
        eng_sequence_options_init(&options);
        options.sampling = &sampling;
        options.max_new_tokens = ANSWER;
        options.flags = ENG_SEQUENCE_KEEP;
        options.stop_tokens = &stop;
        options.stop_count = 1;
        CHECK(eng_sequence_create(session, &options, &sequences[s], &error));
    }
    size_t counts[3] = {0};
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        for (uint32_t s = 0; s < 3; s++) {
            int32_t prompt[PROMPT];
            fables_tokens(10 * turn + s, prompt, PROMPT);
            CHECK(eng_sequence_submit(sequences[s], prompt, PROMPT - s, &error));
        }
        fables_finish(session);
        for (uint32_t s = 0; s < 3; s++)
            counts[s] += eng_sequence_poll(sequences[s], answers[s] + counts[s], TEXT - counts[s]);
    }
    for (uint32_t s = 0; s < 3; s++) {
        assert_true(counts[s] > TURNS);
        eng_sequence_destroy(&sequences[s]);
    }
}

TEST(sequences_in_a_pool_of_their_windows)
{
    static int32_t expected[3][TEXT], found[3][TEXT];
    struct eng_engine *engine;
    struct eng_session *session = open_session(&engine, 0, false);
    converse(session, expected);
    close_session(session, engine);
    /* With all pages of their contexts they would need 3 * ALL, so that one would wait for ever. */
    for (int ahead = 0; ahead < 2; ahead++) {
        session = open_session(&engine, 3 * RING, ahead);
        memset(found, 0, sizeof found);
        converse(session, found);
        assert_memory_equal(found, expected, sizeof expected);
        close_session(session, engine);
    }
    assert_true(RING < ALL);
}

/* The file has the pages of the window alone. */
TEST(a_saved_sequence_goes_on_past_its_window)
{
    enum { TURNS = 3, PROMPT = 60, ANSWER = 30 };
    struct eng_engine *engine;
    struct eng_session *session = open_session(&engine, 0, false);
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t prompt[PROMPT], answers[2][ANSWER];
    char saved[320];
    struct stat file;
    snprintf(saved, sizeof saved, "%s/saved.seq", folder);
    eng_sequence_options_init(&options);
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_KEEP | ENG_SEQUENCE_IGNORE_EOS;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    for (uint32_t turn = 0; turn <= TURNS; turn++) {
        if (turn == TURNS) CHECK(eng_sequence_save(sequence, saved, &error));
        fables_tokens(30 + turn, prompt, PROMPT);
        CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
        fables_finish(session);
        assert_int_equal(eng_sequence_poll(sequence, answers[0], ANSWER), ANSWER);
    }
    eng_sequence_destroy(&sequence);
    CHECK(eng_sequence_restore(session, saved, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, PROMPT, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, answers[1], ANSWER), ANSWER);
    assert_memory_equal(answers[0], answers[1], sizeof answers[0]);
    eng_sequence_destroy(&sequence);
    struct eng_engine_facts facts;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(engine, &facts, &error));
    assert_int_equal(stat(saved, &file), 0);
    assert_in_range((uint64_t)file.st_size, RING * facts.page_bytes, RING * facts.page_bytes + 4096);
    close_session(session, engine);
}

TEST(a_pool_smaller_than_a_window_is_refused_by_numbers)
{
    struct eng_engine *engine;
    struct eng_session *session = open_session(&engine, RING - 1, false);
    struct eng_sequence_options options;
    struct eng_sequence *sequence;
    int32_t text[TEXT];
    uint32_t slot;
    char words[100];
    fables_tokens(9, text, TEXT);
    eng_sequence_options_init(&options);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    assert_int_equal(eng_sequence_submit(sequence, text, 10, &error), ENG_TOO_LONG);
    snprintf(words, sizeof words, "need %d KV pages, the whole pool has %d", RING, RING - 1);
    assert_non_null(strstr(error.message, words));
    eng_sequence_destroy(&sequence);
    CHECK(eng_slot_acquire(session, &slot, &error));
    assert_int_equal(eng_prefill(session, slot, text, TEXT, NULL, NULL, &error), ENG_FULL);
    snprintf(words, sizeof words, "needs %d KV pages in all, has 0, and %d are free", RING, RING - 1);
    assert_non_null(strstr(error.message, words));
    CHECK(eng_slot_release(session, slot, &error));
    close_session(session, engine);
}

/* Pages of a window are written again and again: a fork has its own. */
TEST(forks_have_a_window_of_their_own)
{
    for (int ahead = 0; ahead < 2; ahead++) {
        struct eng_engine *engine;
        test_backend_settings = (struct test_backend_settings){.pace = PACE_RANDOM};
        struct eng_session *session = open_session(&engine, 0, ahead);
        forks_check(session, VOCAB);
        close_session(session, engine);
    }
}

int main(void) { return test_run_with(build, NULL, NULL, clean_up); }
