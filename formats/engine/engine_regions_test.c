/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of several ranks: regions of any multiple of a page, each hashed in chunks of its own. */
#include "formats/base/checked.h"
#include "formats/base/hash.h"

#define TEST_ENGINE_MAKE test_engine_make_ranks
#include "formats/engine/test_engine_frame.h"

enum { CHUNK = ENGINE_WEIGHT_CHUNK_BYTES, RANKS = TEST_ENGINE_RANKS };

TEST(small_regions_make_a_small_file)
{
    size_t size;
    uint8_t *bytes = written(false, &size);
    expect_accepted(bytes, size);
    if (size > 64 << 10) fail_msg("%zu bytes", size);
    free(bytes);
}

TEST(chunks_follow_the_regions)
{
    static const struct {
        uint64_t region, regions, chunks;
    } cases[] = {{4096, 1, 1},           {4096, 2, 2},       {CHUNK, 2, 2},
                 {CHUNK + 4096, 2, 4},   {3 * CHUNK, 4, 12}, {2 * CHUNK - 4096, 3, 6},
                 {CHUNK - 4096, 16, 16}, {1, 1, 1},          {CHUNK + 1, 1, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t region = cases[i].region, all = region * cases[i].regions;
        uint64_t end = 0, offset, bytes;
        assert_int_equal(weight_chunk_count(all, cases[i].regions), cases[i].chunks);
        for (uint64_t chunk = 0; chunk < cases[i].chunks; chunk++) {
            weight_chunk_range(all, cases[i].regions, chunk, &offset, &bytes);
            assert_int_equal(offset, end); /* no gap, no overlap */
            assert_true(bytes >= 1 && bytes <= CHUNK);
            assert_int_equal(offset / region, (offset + bytes - 1) / region); /* in one region */
            assert_true(bytes == CHUNK || (offset + bytes) % region == 0);
            end = offset + bytes;
        }
        assert_int_equal(end, all);
    }
}

/* The writer's parts: chunks or runs of them. */
static void write_regions(uint64_t region, const uint8_t *weights, bool at_once)
{
    const uint64_t all = RANKS * region, chunks = weight_chunk_count(all, RANKS);
    sample.manifest.weights_bytes = all;
    struct engine_writer *writer = engine_writer_begin(path, &status);
    bool ok = writer && engine_writer_weights_begin(writer, all, RANKS, &status);
    if (at_once) ok = ok && engine_writer_weights_put(writer, 0, weights, all, &status);
    for (uint64_t chunk = chunks; !at_once && chunk-- > 0;) {
        uint64_t offset, bytes;
        weight_chunk_range(all, RANKS, chunk, &offset, &bytes);
        assert_false(engine_writer_weights_put(writer, offset, weights + offset, bytes - 1, &status));
        if (offset + bytes < all)
            assert_false(engine_writer_weights_put(writer, offset, weights + offset, bytes + 1, &status));
        test_expect_failure(engine_writer_weights_put(writer, offset + 1, weights + offset + 1, bytes - 1, &status),
                            &status, STATUS_INTERNAL, "");
        ok = ok && engine_writer_weights_put(writer, offset, weights + offset, bytes, &status);
    }
    ok = ok && engine_writer_weights_end(writer, &status) &&
         test_engine_write_sections(&sample, writer, false, 0, &status);
    if (!ok || !engine_writer_commit(writer, &status)) fail_msg("%s", status.message);
}

static uint8_t *make_weights(uint64_t region)
{
    uint8_t *weights = malloc(RANKS * region);
    uint64_t random = 1;
    assert_non_null(weights);
    for (uint64_t i = 0; i < RANKS * region; i++) {
        test_random(&random);
        weights[i] = (uint8_t)(random >> 56);
    }
    return weights;
}

/* Every chunk is checked; a wrong byte is reported for its chunk, with its place. */
TEST(regions_of_several_chunks)
{
    enum { REGION = CHUNK + 12288, CHUNKS = 4 };
    uint8_t *weights = make_weights(REGION);
    for (int at_once = 0; at_once < 2; at_once++) {
        write_regions(REGION, weights, at_once);
        if (!engine_open(&engine, path, &status)) fail_msg("%s", status.message);
        assert_int_equal(engine.weight_chunks, CHUNKS);
        if (!engine_verify_weights(&engine, 0, CHUNKS, &status)) fail_msg("%s", status.message);
        assert_memory_equal(engine.weights, weights, RANKS * REGION);
        uint8_t *copy = calloc(1, RANKS * REGION);
        assert_true(engine_copy_weights(&engine, 0, CHUNKS, copy, &status));
        assert_memory_equal(copy, weights, RANKS * REGION);
        free(copy);
        engine_close(&engine);
    }
    size_t size;
    uint8_t *bytes = test_engine_read(path, &size);
    const struct engine_section_entry *section = test_engine_entry(bytes, size, SECTION_WEIGHTS);
    for (uint64_t wrong = 0; wrong < CHUNKS; wrong++) {
        uint64_t offset, length;
        weight_chunk_range(RANKS * REGION, RANKS, wrong, &offset, &length);
        bytes[section->offset + offset + length - 1] ^= 1;
        assert_true(engine_open_memory(&engine, bytes, size, "test", &status));
        for (uint64_t chunk = 0; chunk < CHUNKS; chunk++)
            assert_int_equal(engine_verify_weights(&engine, chunk, 1, &status), chunk != wrong);
        const char *words = test_text("chunk %d of 4 (%d bytes at %d)", (int)wrong, (int)length, (int)offset);
        if (!strstr(status.message, words)) fail_msg("expected '%s', found '%s'", words, status.message);
        engine_close(&engine);
        bytes[section->offset + offset + length - 1] ^= 1;
    }
    free(bytes);
    free(weights);
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
