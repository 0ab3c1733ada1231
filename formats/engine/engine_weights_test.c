/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an engine's weights as a loader for a device does: copies from the file or from memory. */
#include "formats/engine/test_engine.h"
#include "formats/base/test_folder.h"

static struct status status;

static struct test_engine sample;

/* Writes the sample into a fresh folder; returns its path. */
static const char *write_sample(void)
{
    const char *path = in_folder("a.eng");
    test_expect_success(test_engine_make(&sample, &status), &status);
    test_expect_success(test_engine_write(&sample, path, false, &status), &status);
    return path;
}

static void check_copies(const struct engine *engine)
{
    uint8_t copy[TEST_ENGINE_WEIGHTS];
    memset(copy, 0xa5, sizeof copy);
    assert_true(engine_read_weights(engine, 0, copy, TEST_ENGINE_WEIGHTS, &status));
    assert_memory_equal(copy, sample.weights, TEST_ENGINE_WEIGHTS);
    assert_true(engine_read_weights(engine, 100, copy, 7, &status));
    assert_memory_equal(copy, sample.weights + 100, 7);
    assert_memory_equal(copy + 7, sample.weights + 7, 100);
    assert_true(engine_read_weights(engine, TEST_ENGINE_WEIGHTS, copy, 0, &status));
    test_expect_failure(engine_read_weights(engine, 1, copy, TEST_ENGINE_WEIGHTS, &status), &status, STATUS_USAGE,
                        "weights: bytes 1 +");
    assert_false(engine_read_weights(engine, UINT64_MAX, copy, 2, &status));
    /* Advice only, also for bytes that do not exist. */
    engine_read_ahead(engine, 0, TEST_ENGINE_WEIGHTS);
    engine_read_ahead(engine, 1, UINT64_MAX);
    engine_read_ahead(engine, UINT64_MAX, UINT64_MAX);
}

TEST(copies_are_the_weights)
{
    struct engine engine;
    size_t size = 0;
    const char *path = write_sample();
    uint8_t *bytes = test_engine_read(path, &size);
    assert_true(engine_open(&engine, path, &status));
    check_copies(&engine);
    engine_close(&engine);
    assert_true(engine_open_memory(&engine, bytes, size, "memory", &status));
    check_copies(&engine);
    engine_close(&engine);
    free(bytes);
}

/* A read of the mapping would end the process. */
TEST(a_file_that_became_shorter_is_refused)
{
    struct engine engine;
    uint8_t copy[TEST_ENGINE_WEIGHTS];
    const char *path = write_sample();
    assert_true(engine_open(&engine, path, &status));
    const off_t weights = engine.weights - engine.bytes;
    assert_int_equal(truncate(path, weights + 64), 0);
    assert_true(engine_read_weights(&engine, 0, copy, 64, &status));
    assert_memory_equal(copy, sample.weights, 64);
    test_expect_failure(engine_read_weights(&engine, 0, copy, 65, &status), &status, STATUS_CORRUPT,
                        "section 'weights': the file ends before byte");
    engine_close(&engine);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
