/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of opening an engine file: the manifest is read first, and a limit bounds all memory of opening. */
#include <sys/resource.h>
#include <sys/wait.h>

#define TEST_ENGINE_MAKE test_engine_make
#include "formats/engine/test_engine_frame.h"

enum { BOMB_BYTES = 40 << 20, MEGABYTE = 1 << 20 };

/* The sample with these sections inflating to 40 MiB of zeros; stored at `path`. */
static void write_bombs(const enum engine_section *bombs, size_t count)
{
    unsigned skip = 1u << SECTION_GOLDEN | 1u << SECTION_GOLDEN_PLANS;
    uint8_t *zeros = calloc(1, BOMB_BYTES);
    struct engine_writer *writer = engine_writer_begin(path, &status);
    bool ok = zeros && writer && engine_writer_weights_begin(writer, TEST_ENGINE_WEIGHTS, 1, &status) &&
              engine_writer_weights_put(writer, 0, sample.weights, TEST_ENGINE_WEIGHTS, &status) &&
              engine_writer_weights_end(writer, &status);
    for (size_t i = 0; i < count; i++) {
        skip |= 1u << bombs[i];
        ok = ok && engine_writer_section(writer, bombs[i], zeros, BOMB_BYTES, true, &status);
    }
    ok = ok && test_engine_write_sections(&sample, writer, false, skip, &status);
    free(zeros);
    if (!ok || !engine_writer_commit(writer, &status)) fail_msg("%s", status.message);
}

static long peak_kilobytes(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

/* Largest memory that opening the file adds to a new process, and how the process ends. */
static long cost_of_opening(void)
{
    struct {
        long kilobytes;
        struct status status;
    } result = {0};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const long before = peak_kilobytes();
        if (engine_open(&engine, path, &result.status)) _exit(1);
        result.kilobytes = peak_kilobytes() - before;
        _exit(write(ends[1], &result, sizeof result) != sizeof result);
    }
    int outcome;
    close(ends[1]);
    assert_int_equal(read(ends[0], &result, sizeof result), sizeof result);
    close(ends[0]);
    assert_int_equal(waitpid(child, &outcome, 0), child);
    assert_int_equal(outcome, 0);
    status = result.status;
    return result.kilobytes;
}

/* `words` as test_expect_message has them. */
static void expect_cheap_refusal(enum status_code code, const char *words)
{
    const long kilobytes = cost_of_opening();
    test_expect_failure(false, &status, code, words);
    if (kilobytes > 4096) fail_msg("opening took %ld kB: %s", kilobytes, status.message);
}

TEST(a_bad_manifest_is_seen_first)
{
    static const enum engine_section bombs[] = {SECTION_KERNELS, SECTION_LIBRARY_CALLS, SECTION_LIBRARY_PLANS};
    size_t size;
    write_bombs(bombs, 3);
    expect_cheap_refusal(STATUS_CORRUPT, "section 'manifest': target 'cpu': section 'kernels' is present");
    uint8_t *bytes = test_engine_read(path, &size);
    assert_non_null(bytes);
    assert_true(size < MEGABYTE);
    bytes[test_engine_entry(bytes, size, SECTION_MANIFEST)->offset] = '[';
    engine_fix_checksums(bytes, size);
    test_write(path, bytes, size);
    expect_cheap_refusal(STATUS_CORRUPT, "section 'manifest': manifest: not valid JSON");
    free(bytes);
}

TEST(the_manifest_bounds_the_others)
{
    static const struct {
        enum engine_section bomb;
        const char *words;
    } cases[] = {
        {SECTION_TENSORS, "section 'tensors': raw size: expected at most|found 41943040"},
        {SECTION_TOKENIZER, "section 'tokenizer': raw size: expected at most|found 41943040"},
        {SECTION_GOLDEN, "section 'golden': raw size: expected at most 4776 in an engine with this|found 41943040"},
        {SECTION_GOLDEN_PLANS,
         "section 'golden plans': raw size: expected at most 662528 in an engine with|found 41943040"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_bombs(&cases[i].bomb, 1);
        expect_cheap_refusal(STATUS_CORRUPT, cases[i].words);
    }
}

static bool open_within(uint64_t limit)
{
    if (!engine_open_begin(&engine, path, ENGINE_BY_PATH, limit, &status)) return false;
    bool ok = engine_open_finish(&engine, &status);
    if (!ok) engine_close(&engine);
    return ok;
}

TEST(what_deflate_cannot_do_is_refused)
{
    size_t size;
    uint8_t *bytes = written(true, &size);
    test_engine_entry(bytes, size, SECTION_TACTICS)->raw_bytes = 1 << 20; /* below the limit, but more than so few bytes
                                                                           * can expand to */
    expect_refused_repaired(bytes, size,
                            "section 'tactics': raw size: 1048576 bytes are more than can be compressed into");
    free(bytes);
}

TEST(a_limit_holds_for_all_together)
{
    write_bombs((const enum engine_section[]){SECTION_TACTICS}, 1);
    expect_cheap_refusal(STATUS_MACHINE, "section 'tactics': needs 41943040 bytes of memory|may take 3|has taken|"
                                         "raise the limit (max_host_bytes)");
    /* With a higher limit the file is read and its error reported. */
    test_expect_failure(open_within(2 * (uint64_t)BOMB_BYTES), &status, STATUS_CORRUPT,
                        "section 'tactics': line 0 is not a tuning record");
}

/* Below some limit no open succeeds, from it on all do. */
TEST(the_caller_sets_the_limit)
{
    for (int compress = 0; compress < 2; compress++) {
        uint64_t refused = 0, opened = 0, kept = 0;
        if (!test_engine_write(&sample, path, compress, &status)) fail_msg("%s", status.message);
        for (uint64_t limit = 1; limit < 96 << 10; limit += 251) {
            if (open_within(limit)) {
                assert_true(engine.host_bytes <= limit);
                kept = engine.host_bytes;
                opened++;
                engine_close(&engine);
                continue;
            }
            assert_int_equal(opened, 0);
            refused++;
            assert_int_equal(status.code, STATUS_MACHINE);
            const char *limit_text = test_text("may take %llu in all", (unsigned long long)limit);
            assert_non_null(strstr(status.message, "section '"));
            assert_non_null(strstr(status.message, limit_text));
        }
        assert_true(refused > 10 && opened > 10 && kept > 4000);
    }
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
