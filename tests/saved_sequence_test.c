/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence that was saved and restored, in another session, gives the tokens that it gives without; a file that is not whole, not of
 * this engine, or not a saved sequence is refused, and nothing is lost by it. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/base/test_folder.h"
#include "formats/base/test_support.h"

enum { FIRST = 90, SECOND = 20, ANSWER = 40 };

static char *folder;
static char path[300];

static int begin(void **state)
{
    folder = test_folder();
    snprintf(path, sizeof path, "%s/saved.seq", folder);
    return fables_start(state);
}

static int end(void **state)
{
    test_folder_remove(folder);
    return fables_stop(state);
}

static struct eng_sequence_options options_for(const struct eng_sampling *sampling)
{
    struct eng_sequence_options options;
    eng_sequence_options_init(&options);
    options.sampling = sampling;
    options.max_new_tokens = ANSWER;
    options.flags = ENG_SEQUENCE_KEEP | ENG_SEQUENCE_IGNORE_EOS;
    return options;
}

static struct eng_sequence *first_turn(struct eng_session *session, bool sampled, int32_t *answer)
{
    const struct eng_sampling sampling = fables_sampling(sampled, 77);
    const struct eng_sequence_options options = options_for(&sampling);
    struct eng_sequence *sequence = NULL;
    int32_t prompt[FIRST];
    fables_tokens(5, prompt, FIRST);
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, FIRST, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), ANSWER);
    return sequence;
}

static void second_turn(struct eng_session *session, struct eng_sequence *sequence, int32_t *answer)
{
    int32_t prompt[SECOND];
    fables_tokens(6, prompt, SECOND);
    CHECK(eng_sequence_submit(sequence, prompt, SECOND, &error));
    fables_finish(session);
    assert_int_equal(eng_sequence_poll(sequence, answer, ANSWER), ANSWER);
}

static void check_goes_on(struct eng_engine *engine, bool sampled)
{
    int32_t expected[2][ANSWER], found[ANSWER];
    struct eng_session *session = fables_session(engine, NULL);
    struct eng_sequence *sequence = first_turn(session, sampled, expected[0]);
    CHECK(eng_sequence_save(sequence, path, &error));
    second_turn(session, sequence, expected[1]); /* saving changes nothing */
    eng_session_destroy(&session);

    session = fables_session(engine, NULL);
    struct eng_sequence_options options = options_for(NULL);
    struct eng_sequence *restored = NULL;
    CHECK(eng_sequence_restore(session, path, &options, &restored, &error));
    assert_int_equal(eng_sequence_state(restored), ENG_STATE_DONE);
    assert_int_equal(eng_sequence_poll(restored, found, ANSWER), 0);
    second_turn(session, restored, found);
    assert_memory_equal(found, expected[1], sizeof found);
    /* Another one that begins with the same text does not use pages that came from a file. */
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    first_turn(session, sampled, found);
    assert_memory_equal(found, expected[0], sizeof found);
    CHECK(eng_session_get_facts(session, &facts, &error));
    assert_int_equal(facts.cached_tokens, 0);
    eng_session_destroy(&session);
}

TEST(it_goes_on_where_it_was)
{
    for (int sampled = 0; sampled < 2; sampled++) check_goes_on(fables, sampled);
}

TEST(pages_of_all_ranks_are_saved)
{
    char two[300];
    struct eng_engine *engine = NULL;
    struct status status = {0};
    snprintf(two, sizeof two, "%s/two.eng", folder);
    if (!fables_build_model("tests/models/fables", two, 2, &status)) fail_msg("%s", status.message);
    CHECK(eng_open(two, NULL, &engine, &error));
    check_goes_on(engine, true);
    /* The file is of the other engine. */
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sequence *restored = NULL;
    assert_int_equal(eng_sequence_restore(session, path, NULL, &restored, &error), ENG_VERSION);
    assert_non_null(strstr(error.message, "this is engine"));
    eng_session_destroy(&session);
    eng_close(&engine);
}

static char *read_all(size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void write_all(const char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void expect_refused(struct eng_session *session, const struct eng_session_facts *before)
{
    struct eng_sequence *restored = NULL;
    struct eng_session_facts after;
    eng_session_facts_init(&after);
    const enum eng_status status = eng_sequence_restore(session, path, NULL, &restored, &error);
    assert_true(status == ENG_CORRUPT || status == ENG_VERSION || status == ENG_BAD_INPUT);
    assert_null(restored);
    CHECK(eng_session_get_facts(session, &after, &error));
    assert_int_equal(after.free_slots, before->free_slots);
    assert_int_equal(after.free_pages, before->free_pages);
}

TEST(damage_is_found_and_costs_nothing)
{
    int32_t answer[ANSWER];
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sequence *sequence = first_turn(session, false, answer);
    CHECK(eng_sequence_save(sequence, path, &error));
    struct eng_session_facts before;
    eng_session_facts_init(&before);
    CHECK(eng_session_get_facts(session, &before, &error));
    size_t size;
    uint64_t random = 3;
    char *whole = read_all(&size), *bytes = malloc(size);
    for (int i = 0; i < 700; i++) {
        memcpy(bytes, whole, size);
        const size_t at = i < 300 ? (size_t)i : test_random(&random) % size; /* every byte of the header */
        bytes[at] = (char)(bytes[at] ^ 1 << i % 8);
        write_all(bytes, size);
        expect_refused(session, &before);
    }
    for (size_t cut = 0; cut < size; cut += size / 37 + 1) {
        write_all(whole, cut);
        expect_refused(session, &before);
    }
    write_all(whole, size);
    struct eng_sequence *restored = NULL;
    CHECK(eng_sequence_restore(session, path, NULL, &restored, &error));
    free(bytes);
    free(whole);
    eng_session_destroy(&session);
}

TEST(a_pool_too_small_for_its_answer_is_named)
{
    int32_t answer[ANSWER], prompt[SECOND];
    struct eng_session *session = fables_session(fables, NULL);
    CHECK(eng_sequence_save(first_turn(session, false, answer), path, &error));
    eng_session_destroy(&session);
    struct eng_session_options options;
    eng_session_options_init(&options);
    options.kv_tokens = FIRST + ANSWER + SECOND;
    session = fables_session(fables, &options);
    struct eng_sequence *restored = NULL;
    CHECK(eng_sequence_restore(session, path, NULL, &restored, &error));
    fables_tokens(6, prompt, SECOND);
    assert_int_equal(eng_sequence_submit(restored, prompt, SECOND, &error), ENG_TOO_LONG);
    assert_non_null(strstr(error.message, "the whole pool has"));
    eng_session_destroy(&session);
}

TEST(refusals_name_the_reason)
{
    int32_t answer[ANSWER];
    struct eng_session *session = fables_session(fables, NULL);
    struct eng_sequence *sequence = first_turn(session, false, answer), *restored = NULL, *empty = NULL;
    CHECK(eng_sequence_create(session, NULL, &empty, &error));
    assert_int_equal(eng_sequence_save(empty, path, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "no tokens"));
    assert_int_equal(eng_sequence_save(sequence, "/no/such/folder/x.seq", &error), ENG_NOT_FOUND);
    assert_int_equal(eng_sequence_restore(session, "/no/such/file.seq", NULL, &restored, &error), ENG_NOT_FOUND);
    CHECK(eng_sequence_save(sequence, path, &error));
    /* As many as there are slots, then no more. */
    for (int i = 1; i < FABLES_BATCH; i++) CHECK(eng_sequence_restore(session, path, NULL, &restored, &error));
    restored = NULL;
    assert_int_equal(eng_sequence_restore(session, path, NULL, &restored, &error), ENG_FULL);
    assert_non_null(strstr(error.message, "slots"));
    assert_null(restored);
    eng_session_destroy(&session);
}

int main(void) { return test_run_with(begin, NULL, NULL, end); }
