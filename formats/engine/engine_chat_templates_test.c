/* SPDX-License-Identifier: Apache-2.0 */
/* Section *chat templates* in an engine file: its version, its contents after a round trip, token ids beyond the vocabulary, and damage. */
#define TEST_ENGINE_MAKE test_engine_make
#include "formats/engine/test_engine_frame.h"

#include "formats/base/json.h"

#define DOCUMENT(more)                                                             \
    "{\"templates\":[{\"name\":\"default\",\"text\":\"{{ bos_token }}{{ messages " \
    "}}\"}],\"variables\":{\"bos_token\":\"<s>\"}" more "}"

/* The sample with this section, or without one. */
static void write_engine(const char *document, bool compress)
{
    struct engine_writer *writer = engine_writer_begin(path, &status);
    test_expect_success(writer != NULL, &status);
    test_expect_success(test_engine_write_sections(&sample, writer, compress, 0, &status), &status);
    if (document)
        test_expect_success(engine_writer_section(writer, SECTION_CHAT_TEMPLATES, document, strlen(document), compress,
                                                  &status),
                            &status);
    test_expect_success(engine_writer_weights_begin(writer, TEST_ENGINE_WEIGHTS, 1, &status), &status);
    test_expect_success(engine_writer_weights_put(writer, 0, sample.weights, TEST_ENGINE_WEIGHTS, &status), &status);
    test_expect_success(engine_writer_weights_end(writer, &status), &status);
    test_expect_success(engine_writer_commit(writer, &status), &status);
}

TEST(round_trip)
{
    for (int compress = 0; compress < 2; compress++) {
        struct template_result result;
        json_t *variables = json_pack("{s:s}", "messages", "m");
        write_engine(DOCUMENT(",\"answer_end\":15,\"turn_tokens\":[0,15],\"later\":null"), compress);
        test_expect_success(engine_open(&engine, path, &status), &status);
        test_expect_success(chat_templates_render(engine.chat_templates, variables, NULL, &result, &status), &status);
        assert_string_equal(result.text, "<s>m");
        assert_int_equal(chat_templates_answer_end(engine.chat_templates), 15);
        template_result_free(&result);
        json_decref(variables);
        engine_close(&engine);
    }
}

TEST(without_the_section)
{
    write_engine(NULL, true);
    test_expect_success(engine_open(&engine, path, &status), &status);
    assert_null(engine.chat_templates);
    engine_close(&engine);
}

TEST(refusals)
{
    static const char *const cases[][2] = {
        {"{}", "section 'chat templates': templates|"},
        {"{", "section 'chat templates'|"},
        {DOCUMENT(",\"answer_end\":16"), "section 'chat templates': expected token ids below 16|"},
        {DOCUMENT(",\"turn_tokens\":[1,16]"), "section 'chat templates': expected token ids below 16|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_engine(cases[i][0], true);
        test_expect_failure(engine_open(&engine, path, &status), &status, STATUS_CORRUPT, cases[i][1]);
    }
}

TEST(damage)
{
    size_t size;
    write_engine(DOCUMENT(""), false);
    uint8_t *bytes = test_engine_read(path, &size);
    assert_non_null(bytes);
    const struct engine_section_entry *entry = test_engine_entry(bytes, size, SECTION_CHAT_TEMPLATES);
    for (uint64_t i = 0; i < entry->stored_bytes; i++) {
        uint8_t *changed = test_engine_copy(bytes, size);
        changed[entry->offset + i] ^= 1;
        test_expect_failure(engine_open_memory(&engine, changed, size, "m", &status), &status, STATUS_CORRUPT,
                            "section 'chat templates'|checksum");
        free(changed);
    }
    free(bytes);
}

/* With right checksums, a changed bit is refused or leaves a document. */
TEST(every_bit)
{
    size_t size;
    write_engine(DOCUMENT(",\"answer_end\":15"), false);
    uint8_t *bytes = test_engine_read(path, &size);
    assert_non_null(bytes);
    const struct engine_section_entry *entry = test_engine_entry(bytes, size, SECTION_CHAT_TEMPLATES);
    uint8_t *section = bytes + entry->offset;
    size_t accepted = 0;
    for (size_t bit = 0; bit < 8 * entry->stored_bytes; bit++) {
        section[bit / 8] ^= (uint8_t)(1u << bit % 8);
        engine_fix_checksums(bytes, size);
        if (accepts(bytes, size))
            accepted++;
        else if (!strstr(status.message, "section 'chat templates': "))
            fail_msg("bit %zu: %s", bit, status.message);
        section[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_in_range(accepted, 1, 8 * entry->stored_bytes - 1);
    free(bytes);
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
