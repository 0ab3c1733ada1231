/* SPDX-License-Identifier: Apache-2.0 */
/* Setup of tests that write the sample engine to a file, change it and check the reader's message. Define
 * TEST_ENGINE_MAKE (a function of test_engine.h) before including it, once in a test program. */
#ifndef FORMATS_ENGINE_TEST_ENGINE_FRAME_H
#define FORMATS_ENGINE_TEST_ENGINE_FRAME_H

#include <zlib.h>

#include "formats/base/test_support.h"
#include "formats/engine/test_engine.h"

static struct test_engine sample; /* created anew for every test */
static struct status status;
static struct engine engine; /* the open one */
static char folder[] = "/tmp/engine_test.XXXXXX";
static char path[64];

static inline int make_sample(void **state) { return TEST_ENGINE_MAKE(&sample, &status) ? 0 : -1; }

static inline int setup(void **state)
{
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/a.eng", folder);
    return make_sample(state);
}

static inline int remove_file(void **state)
{
    unlink(path);
    return make_sample(state);
}

static inline int remove_folder(void **state) { return rmdir(folder); }

/* The sample as a file, in memory; free() it. The section of its kernels, if it has any, is checked on the way. */
static inline uint8_t *written(bool compress, size_t *size)
{
    if (!test_engine_write(&sample, path, compress, &status)) fail_msg("%s", status.message);
    uint8_t *bytes = test_engine_read(path, size);
    assert_non_null(bytes);
    const struct engine_section_entry *entry = test_engine_entry(bytes, *size, SECTION_KERNELS);
    if (sample.kernel_count) {
        assert_non_null(entry);
        assert_int_equal(entry->flags, SECTION_FLAG_REQUIRED | (compress ? SECTION_FLAG_ZLIB : 0));
    }
    return bytes;
}

static inline void open_sample(bool compress)
{
    if (!test_engine_write(&sample, path, compress, &status)) fail_msg("%s", status.message);
    if (!engine_open(&engine, path, &status)) fail_msg("%s", status.message);
}

/* Everything but the weights is the sample's. */
static inline void expect_content(void)
{
    char *text = NULL;
    size_t size = 0;
    assert_true(manifest_format(&sample.manifest, &text, &size, NULL));
    assert_int_equal(engine.manifest_text_size, size);
    assert_memory_equal(engine.manifest_text, text, size);
    free(text);
    assert_int_equal(engine.tensor_count, TEST_ENGINE_TENSORS);
    for (int i = 0; i < TEST_ENGINE_TENSORS; i++) {
        const struct engine_tensor *found = &engine.tensors[i], *tensor = &sample.tensors[i];
        assert_string_equal(found->name, tensor->name);
        assert_int_equal(found->dtype, tensor->dtype);
        assert_int_equal(found->layout, tensor->layout);
        assert_int_equal(found->rank, tensor->rank);
        assert_memory_equal(found->shape, tensor->shape, sizeof tensor->shape);
        assert_int_equal(found->offset, tensor->offset);
        assert_int_equal(found->bytes, tensor->bytes);
    }
    assert_int_equal(engine.plan_count, TEST_ENGINE_PLANS);
    for (int i = 0; i < TEST_ENGINE_PLANS; i++) assert_true(test_engine_same_plan(&engine.plans[i], &sample.plans[i]));
    assert_memory_equal(engine.manifest.geometry.state, sample.manifest.geometry.state,
                        sizeof sample.manifest.geometry.state);
    assert_int_equal(engine.tactics_size, strlen(sample.tactics));
    assert_memory_equal(engine.tactics, sample.tactics, engine.tactics_size);
    assert_int_equal(engine.tokenizer_size, sizeof sample.tokenizer);
    assert_memory_equal(engine.tokenizer, sample.tokenizer, sizeof sample.tokenizer);
    assert_int_equal(engine.golden.prompt_count, 3);
    assert_int_equal(engine.golden.token_count, 2);
    assert_memory_equal(engine.golden.prompt, sample.prompt, sizeof sample.prompt);
    assert_memory_equal(engine.golden.tokens, sample.tokens, sizeof sample.tokens);
    assert_memory_equal(engine.golden.logits, sample.logits, sizeof sample.logits);
    assert_true(test_engine_same_cases(&engine.golden_plans, &sample.golden_plans));
}

static inline void open_bytes(const uint8_t *bytes, size_t size)
{
    if (!engine_open_memory(&engine, bytes, size, "test", &status)) fail_msg("%s", status.message);
}

/* Opens the engine, verifies its weights and reads everything in it. */
static inline bool accepts(const uint8_t *bytes, size_t size)
{
    status_clear(&status);
    if (!engine_open_memory(&engine, bytes, size, "test", &status)) return false;
    bool done = engine_verify_weights(&engine, 0, engine.weight_chunks, &status);
    test_engine_touch(&engine);
    engine_close(&engine);
    return done;
}

static inline void expect_accepted(const uint8_t *bytes, size_t size)
{
    if (!accepts(bytes, size)) fail_msg("%s", status.message);
}

static inline void expect_refused(const uint8_t *bytes, size_t size, const char *expected)
{
    const bool accepted = accepts(bytes, size);
    const bool newer = strstr(status.message, "needs a newer runtime") || strstr(status.message, "is too new for");
    const bool other = strstr(status.message, "not an engine file") || strstr(status.message, "the file is empty");
    test_expect_failure(accepted, &status,
                        newer   ? STATUS_VERSION
                        : other ? STATUS_BAD_INPUT
                                : STATUS_CORRUPT,
                        expected);
}

/* The same with right checksums. */
static inline void expect_refused_repaired(uint8_t *bytes, size_t size, const char *expected)
{
    engine_fix_checksums(bytes, size);
    expect_refused(bytes, size, expected);
}

/* The sample, with its sections plain and compressed. */
static inline void expect_sample_refused(const char *expected)
{
    for (int compress = 0; compress < 2; compress++) {
        size_t size;
        uint8_t *bytes = written(compress, &size);
        expect_refused(bytes, size, expected);
        free(bytes);
    }
}

/* The same, and then the sample is new. */
static inline void expect_refused_and_renew(const char *expected)
{
    expect_sample_refused(expected);
    assert_int_equal(make_sample(NULL), 0);
}

static inline void expect_sample_accepted(void)
{
    for (int compress = 0; compress < 2; compress++) {
        size_t size;
        uint8_t *bytes = written(compress, &size);
        expect_accepted(bytes, size);
        free(bytes);
    }
}

/* ---- one value changed ------------------------------------------------------------------------------------------- */

/* Where: in the file's header (0), in the data of a section (its type), in a section's entry of the table (IN_ENTRY +
 * type), each with right checksums; or in a part of the sample (IN_SAMPLE + a number of the test). */
enum { IN_FILE_HEADER = 0, IN_ENTRY = 100, IN_SAMPLE = 200 };

struct edit {
    int place;
    size_t offset, bytes;
    uint64_t value;
    const char *expected; /* in the message; NULL: accepted; TOGETHER: the next edit is made as well */
};

static const char TOGETHER[] = "together with the next edit";

#define FIELD(place, base, type, field, value, expected)                                                             \
    {                                                                                                                \
        place, (base) + offsetof(struct type, field), sizeof(((struct type *)0)->field), (uint64_t)(value), expected \
    }

/* Finds a part of the sample. */
typedef void *part_of_sample(int part);

static inline void *place_in_file(uint8_t *bytes, size_t size, int place)
{
    if (place == IN_FILE_HEADER) return bytes;
    struct engine_section_entry *entry = test_engine_entry(bytes, size, (unsigned)place % IN_ENTRY);
    assert_non_null(entry);
    return place >= IN_ENTRY ? (void *)entry : bytes + entry->offset;
}

static inline void make_edit(const struct edit *edit, void *place)
{
    memcpy((char *)place + edit->offset, &edit->value, edit->bytes);
}

/* Makes some edits of one kind together, in the new sample or in its file. */
static inline void expect_edit(const struct edit *edits, size_t count, size_t number, part_of_sample *find)
{
    const bool in_sample = edits->place >= IN_SAMPLE;
    const char *expected = edits[count - 1].expected;
    assert_int_equal(make_sample(NULL), 0);
    for (size_t i = 0; in_sample && i < count; i++) make_edit(&edits[i], find(edits[i].place - IN_SAMPLE));
    for (int compress = 0; compress <= in_sample; compress++) {
        size_t size;
        uint8_t *bytes = written(compress, &size);
        for (size_t i = 0; !in_sample && i < count; i++)
            make_edit(&edits[i], place_in_file(bytes, size, edits[i].place));
        engine_fix_checksums(bytes, size);
        if (expected)
            expect_refused(bytes, size, expected);
        else if (!accepts(bytes, size))
            fail_msg("edit %zu: %s", number, status.message);
        free(bytes);
    }
}

static inline void expect_edits(const struct edit *edits, size_t count, part_of_sample *find)
{
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first + 1; edits[end - 1].expected == TOGETHER; end++) assert_true(end < count);
        expect_edit(edits + first, end - first, first, find);
    }
}

#define EXPECT_EDITS(edits, find) expect_edits(edits, sizeof(edits) / sizeof *(edits), find)

/* A number of a section, at its offset. */
struct number {
    size_t offset, bytes;
    uint64_t value;
};

static inline void expect_numbers(const uint8_t *section, const struct number *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t found = 0;
        memcpy(&found, section + numbers[i].offset, numbers[i].bytes);
        if (found != numbers[i].value)
            fail_msg("at %zu: expected %llu, found %llu", numbers[i].offset, (unsigned long long)numbers[i].value,
                     (unsigned long long)found);
    }
}

#define EXPECT_NUMBERS(section, numbers) expect_numbers(section, numbers, sizeof(numbers) / sizeof(numbers)[0])

/* ---- a section with all checksums right -------------------------------------------------------------------------- */

/* Flips every bit of a section of the sample. `may_be`: whether the section is valid with this byte changed; `about`:
 * what else than the section a message may name. */
static inline void expect_every_bit_counts(unsigned type, bool (*may_be)(const uint8_t *section, size_t position),
                                           const char *about)
{
    size_t size;
    uint8_t *bytes = written(false, &size);
    const struct engine_section_entry *entry = test_engine_entry(bytes, size, type);
    uint8_t *section = bytes + entry->offset;
    const char *name = test_text("section '%s': ", engine_section_name(type));
    for (size_t bit = 0; bit < 8 * entry->stored_bytes; bit++) {
        section[bit / 8] ^= (uint8_t)(1u << bit % 8);
        engine_fix_checksums(bytes, size);
        bool accepted = accepts(bytes, size);
        if (accepted != may_be(section, bit / 8) ||
            (!accepted && !strstr(status.message, name) && !strstr(status.message, about)))
            fail_msg("bit %zu of byte %zu: %s", bit % 8, bit / 8, status.message);
        section[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(bytes);
}

/* The sample, which lacks this section, with `section` of any other length: too short, or too long with zeros. */
static inline void expect_one_length(unsigned type, const void *section, size_t section_bytes, size_t header_bytes)
{
    size_t size;
    uint8_t *without = written(false, &size), *longer = calloc(1, section_bytes + 128);
    assert_non_null(longer);
    memcpy(longer, section, section_bytes);
    for (size_t length = 1; length <= section_bytes + 128; length++) {
        size_t whole = size;
        uint8_t *bytes = test_engine_with_section(without, &whole, type, longer, length);
        const char *name = test_text("section '%s': %s", engine_section_name(type),
                                     length < header_bytes ? "too short for its header" : "");
        if (length == section_bytes)
            expect_accepted(bytes, whole);
        else
            expect_refused(bytes, whole, name);
        free(bytes);
    }
    free(longer);
    free(without);
}

/* The sample, which lacks this section, with another: accepted, or refused with `expected`. */
static inline void expect_section(unsigned type, const void *section, size_t section_bytes, const char *expected)
{
    size_t size;
    uint8_t *without = written(false, &size);
    uint8_t *bytes = test_engine_with_section(without, &size, type, section, section_bytes);
    if (expected)
        expect_refused(bytes, size, expected);
    else
        expect_accepted(bytes, size);
    free(bytes);
    free(without);
}

/* `write` adds a section to a file, once; its bytes before compression are `raw`. */
static inline void expect_compressed_section(unsigned type, unsigned flags, const void *raw, size_t raw_bytes,
                                             bool (*write)(struct engine_writer *))
{
    size_t size;
    struct engine_writer *writer = engine_writer_begin(path, &status);
    assert_true(test_engine_write_sections(&sample, writer, false, ~(1u << SECTION_MANIFEST), &status));
    assert_true(engine_writer_weights_begin(writer, 64, 1, &status));
    assert_true(engine_writer_weights_put(writer, 0, sample.weights, 64, &status));
    assert_true(engine_writer_weights_end(writer, &status));
    if (!write(writer)) fail_msg("%s", status.message);
    assert_false(write(writer));
    assert_int_equal(status.code, STATUS_INTERNAL);
    assert_true(engine_writer_commit(writer, &status));
    uint8_t *bytes = test_engine_read(path, &size), *found = malloc(raw_bytes);
    const struct engine_section_entry *entry = test_engine_entry(bytes, size, type);
    assert_non_null(entry);
    assert_int_equal(entry->flags, flags | SECTION_FLAG_ZLIB);
    assert_int_equal(entry->raw_bytes, raw_bytes);
    uLongf found_bytes = raw_bytes;
    assert_int_equal(uncompress(found, &found_bytes, bytes + entry->offset, (uLong)entry->stored_bytes), Z_OK);
    assert_int_equal(found_bytes, raw_bytes);
    assert_memory_equal(found, raw, raw_bytes);
    free(found);
    free(bytes);
}

#endif
