/* Reading an engine's weights as a loader for a device does: copies, out of the file or of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "formats/test_engine.h"

static char folder[] = "/tmp/engine_weights_test.XXXXXX";
static char path[64];
static struct test_engine sample;

static int setup(void **state)
{
    (void)state;
    struct status status = {0};
    if (!mkdtemp(folder) || !test_engine_make(&sample, &status)) return -1;
    snprintf(path, sizeof path, "%s/a.eng", folder);
    return test_engine_write(&sample, path, false, &status) ? 0 : -1;
}

static int remove_all(void **state)
{
    (void)state;
    return unlink(path) || rmdir(folder);
}

static void check_copies(const struct engine *engine)
{
    struct status status = {0};
    uint8_t copy[TEST_ENGINE_WEIGHTS];
    memset(copy, 0xa5, sizeof copy);
    assert_true(engine_read_weights(engine, 0, copy, TEST_ENGINE_WEIGHTS, &status));
    assert_memory_equal(copy, sample.weights, TEST_ENGINE_WEIGHTS);
    assert_true(engine_read_weights(engine, 100, copy, 7, &status));
    assert_memory_equal(copy, sample.weights + 100, 7);
    assert_memory_equal(copy + 7, sample.weights + 7, 100);
    assert_true(engine_read_weights(engine, TEST_ENGINE_WEIGHTS, copy, 0, &status));
    assert_false(engine_read_weights(engine, 1, copy, TEST_ENGINE_WEIGHTS, &status));
    assert_int_equal(status.code, STATUS_USAGE);
    assert_false(engine_read_weights(engine, UINT64_MAX, copy, 2, &status));
    /* Only advice, also about what is not there. */
    engine_read_ahead(engine, 0, TEST_ENGINE_WEIGHTS);
    engine_read_ahead(engine, 1, UINT64_MAX);
    engine_read_ahead(engine, UINT64_MAX, UINT64_MAX);
}

static void copies_are_the_weights(void **state)
{
    (void)state;
    struct status status = {0};
    struct engine engine;
    size_t size = 0;
    uint8_t *bytes = test_engine_read(path, &size);
    assert_true(engine_open(&engine, path, &status));
    check_copies(&engine);
    engine_close(&engine);
    assert_true(engine_open_memory(&engine, bytes, size, "memory", &status));
    check_copies(&engine);
    engine_close(&engine);
    free(bytes);
}

/* The mapping would end the process. */
static void a_file_that_became_shorter_is_refused(void **state)
{
    (void)state;
    struct status status = {0};
    struct engine engine;
    uint8_t copy[TEST_ENGINE_WEIGHTS];
    assert_true(engine_open(&engine, path, &status));
    const off_t weights = engine.weights - engine.bytes;
    assert_int_equal(truncate(path, weights + 64), 0);
    assert_true(engine_read_weights(&engine, 0, copy, 64, &status));
    assert_memory_equal(copy, sample.weights, 64);
    assert_false(engine_read_weights(&engine, 0, copy, 65, &status));
    assert_int_equal(status.code, STATUS_CORRUPT);
    assert_non_null(strstr(status.message, "section 'weights': the file ends at"));
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(copies_are_the_weights),
                                       cmocka_unit_test(a_file_that_became_shorter_is_refused)};
    return cmocka_run_group_tests(tests, setup, remove_all);
}
