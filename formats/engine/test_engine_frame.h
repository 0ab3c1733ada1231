/* SPDX-License-Identifier: Apache-2.0 */
/* Setup of tests that write the sample engine to a file, change it and check the reader's message. Define
 * TEST_ENGINE_MAKE (a function of test_engine.h) before including it, once in a test program. */
#ifndef FORMATS_ENGINE_TEST_ENGINE_FRAME_H
#define FORMATS_ENGINE_TEST_ENGINE_FRAME_H

#include "formats/base/test_program.h"
#include "formats/engine/test_engine.h"

static struct test_engine sample; /* created anew for every test */
static char folder[] = "/tmp/engine_test.XXXXXX";
static char path[64];

static inline int make_sample(void **state)
{
    (void)state;
    struct status status = {0};
    return TEST_ENGINE_MAKE(&sample, &status) ? 0 : -1;
}

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

static inline int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

/* The sample as a file, in memory; free() it. The section of its kernels, if it has any, is checked on the way. */
static inline uint8_t *written(bool compress, size_t *size)
{
    struct status status = {0};
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

static inline void open_sample(struct engine *engine, bool compress)
{
    struct status status = {0};
    if (!test_engine_write(&sample, path, compress, &status)) fail_msg("%s", status.message);
    if (!engine_open(engine, path, &status)) fail_msg("%s", status.message);
}

/* Opens the engine and reads everything in it. */
static inline bool accepts(const uint8_t *bytes, size_t size, struct status *status)
{
    struct engine engine;
    status_clear(status);
    if (!engine_open_memory(&engine, bytes, size, "test", status)) return false;
    test_engine_touch(&engine);
    engine_close(&engine);
    return true;
}

static inline void expect_accepted(const uint8_t *bytes, size_t size)
{
    struct status status;
    if (!accepts(bytes, size, &status)) fail_msg("%s", status.message);
}

static inline void expect_refused(const uint8_t *bytes, size_t size, const char *expected)
{
    struct status status;
    if (accepts(bytes, size, &status)) fail_msg("accepted: %s", expected);
    if (!strstr(status.message, expected)) fail_msg("expected '%s', found '%s'", expected, status.message);
    assert_int_equal(status.code, STATUS_CORRUPT);
}

/* The unchanged sample, with its sections plain and compressed. */
static inline void expect_sample_refused(const char *expected)
{
    for (int compress = 0; compress < 2; compress++) {
        size_t size;
        uint8_t *bytes = written(compress, &size);
        expect_refused(bytes, size, expected);
        free(bytes);
    }
}

#endif
