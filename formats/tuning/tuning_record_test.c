/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/stat.h>
#include <sys/wait.h>

#include "formats/base/file.h"
#include "formats/base/hash.h"
#include "formats/tuning/tuning_record.h"
#include "formats/base/test_support.h"

static char folder[] = "/tmp/tuning_record_test.XXXXXX";
static char path[64];
static struct status status;
static struct tuning_cache cache;

static int make_folder(void **state)
{
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/cache", folder);
    return 0;
}

static int remove_file(void **state)
{
    unlink(path);
    return 0;
}

static int remove_folder(void **state) { return rmdir(folder); }

static struct tuning_record example(const char *key, double median_us)
{
    struct tuning_record record = {
        .values = {{"tile", 4}, {"block", -2}, {"a", INT64_MIN}},
        .value_count = 3,
        .median_us = median_us,
        .spread_us = 0.1 + 0.2,
        .bytes = INT64_MAX,
        .flops = 7,
        .roofline_us = 1e-300,
        .level = "quick",
        .candidates = UINT32_MAX,
    };
    snprintf(record.key, sizeof record.key, "%s", key);
    return record;
}

/* With a race's other results. */
static struct tuning_record example_of_race(const char *key, double median_us)
{
    struct tuning_record record = example(key, median_us);
    record.runner_up_count = 2;
    record.runner_up[0] = (struct tuning_value){"second", 0};
    record.runner_up[1] = (struct tuning_value){"tile", 8};
    record.runner_up_us = median_us * 1.1;
    return record;
}

static char *format(const struct tuning_record *record, size_t *size)
{
    char *line = NULL;
    if (!tuning_record_format(record, &line, size, &status)) fail_msg("%s", status.message);
    return line;
}

/* `text` with `to` for the first `from`, after its checksum; free() it. */
static char *edited_line(const char *text, const char *from, const char *to, size_t *size)
{
    const char *at = strstr(text, from);
    char *body = NULL, *line = NULL;
    if (!at) fail_msg("no '%s'", from);
    int body_size = asprintf(&body, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    *size = (size_t)asprintf(&line, "%016llx %s", (unsigned long long)hash64(body, (size_t)body_size), body);
    free(body);
    return line;
}

TEST(line_has_the_documented_form)
{
    struct tuning_record record = example("cpu matmul 1x2x3", 2.5);
    record.spread_us = 0.25;
    size_t size = 0;
    char *line = format(&record, &size), *again = format(&record, &size);
    assert_string_equal(line, again);
    assert_int_equal(strlen(line), size);
    assert_string_equal(line + 16, " {\"bytes\":9223372036854775807,\"candidates\":4294967295,\"flops\":7,"
                                   "\"key\":\"cpu matmul 1x2x3\",\"level\":\"quick\",\"median_us\":2.5,"
                                   "\"roofline_us\":1e-300,\"spread_us\":0.25,"
                                   "\"values\":[[\"tile\",4],[\"block\",-2],[\"a\",-9223372036854775808]]}\n");
    assert_int_equal(strtoull(line, NULL, 16), hash64(line + 17, size - 18));
    free(line);
    free(again);
    record = example_of_race("key", 2.5);
    record.runner_up_us = 2.75;
    line = format(&record, &size);
    assert_non_null(strstr(line, ",\"roofline_us\":1e-300,\"runner_up\":[[\"second\",0],[\"tile\",8]],"
                                 "\"runner_up_us\":2.75,\"spread_us\":"));
    free(line);
}

/* Records of older builders, and of races with one candidate, do not have it. */
TEST(runner_up_may_be_missing)
{
    struct tuning_record record = example("key", 3), back = example_of_race("other", 1);
    size_t size = 0;
    char *line = format(&record, &size);
    assert_null(strstr(line, "runner_up"));
    if (!tuning_record_parse(&back, line, size - 1, &status)) fail_msg("%s", status.message);
    assert_int_equal(back.runner_up_count, 0);
    assert_true(back.runner_up_us == 0);
    free(line);
}

TEST(round_trip_keeps_every_field)
{
    struct tuning_record record = example_of_race("k\xc3\xa9y \"quoted\"", 1.0 / 3), back;
    size_t size = 0;
    char *line = format(&record, &size);
    assert_true(tuning_record_parse(&back, line, size - 1, &status));
    size_t again_size = 0;
    char *again = format(&back, &again_size);
    assert_string_equal(line, again);
    assert_memory_equal(&back.spread_us, &record.spread_us, sizeof(double));
    assert_int_equal(back.values[2].value, INT64_MIN);
    assert_int_equal(back.value_count, 3);
    assert_int_equal(back.runner_up_count, 2);
    assert_string_equal(back.runner_up[1].name, "tile");
    assert_int_equal(back.runner_up[1].value, 8);
    assert_memory_equal(&back.runner_up_us, &record.runner_up_us, sizeof(double));
    free(line);
    free(again);
}

TEST(every_flip_and_truncation_is_refused)
{
    struct tuning_record record = example("key", 3), back;
    size_t size = 0;
    char *line = format(&record, &size);
    for (size_t i = 0; i < size - 1; i++)
        for (int bit = 0; bit < 8; bit++) {
            line[i] = (char)(line[i] ^ (1 << bit));
            assert_false(tuning_record_parse(&back, line, size - 1, NULL));
            line[i] = (char)(line[i] ^ (1 << bit));
        }
    for (size_t length = 0; length < size - 1; length++) assert_false(tuning_record_parse(&back, line, length, NULL));
    assert_true(tuning_record_parse(&back, line, size - 1, NULL));
    free(line);
}

/* The maximum number of values; on a device the first one is the kernel's name with 0. */
TEST(sixteen_values_are_the_most)
{
    struct tuning_record record = example("key", 3), back;
    char *line = NULL;
    size_t size = 0;
    assert_int_equal(TUNING_MAX_VALUES, 16);
    record.value_count = TUNING_MAX_VALUES;
    memset(record.values[0].name, 'm', TUNING_NAME_BYTES - 1); /* the longest name */
    record.values[0].value = 0;
    for (int i = 1; i < record.value_count; i++) {
        snprintf(record.values[i].name, sizeof record.values[i].name, "value_%d", i);
        record.values[i].value = i * i - 50;
    }
    line = format(&record, &size);
    assert_non_null(strstr(line, "[\"value_14\",146],[\"value_15\",175]]}\n"));
    if (!tuning_record_parse(&back, line, size - 1, &status)) fail_msg("%s", status.message);
    assert_int_equal(back.value_count, TUNING_MAX_VALUES);
    for (int i = 0; i < TUNING_MAX_VALUES; i++) {
        assert_string_equal(back.values[i].name, record.values[i].name);
        assert_int_equal(back.values[i].value, record.values[i].value);
    }

    /* One more value: neither written nor read, and a cache skips the line. */
    size_t edited_size;
    line[size - 1] = '\0';
    char *edited = edited_line(line + 17, "[\"value_15\",175]", "[\"more\",1],[\"value_15\",175]", &edited_size);
    test_expect_failure(tuning_record_parse(&back, edited, edited_size, &status), &status, STATUS_BAD_INPUT,
                        "values: expected an array of few");
    assert_true(tuning_cache_open(&cache, NULL, &status));
    assert_true(tuning_cache_parse(&cache, line, size - 1, &status));
    assert_true(tuning_cache_parse(&cache, edited, edited_size, &status));
    assert_int_equal(cache.count, 1);
    assert_int_equal(cache.damaged, 1);
    assert_int_equal(tuning_cache_find(&cache, "key")->value_count, TUNING_MAX_VALUES);
    tuning_cache_close(&cache);
    free(edited);
    free(line);
}

/* Lines with a correct checksum over wrong content. */
TEST(wrong_content_is_refused)
{
    static const struct {
        const char *from, *to;
    } edits[] = {
        {"\"flops\":7", "\"flops\":-7"},
        {"\"flops\":7", "\"flops\":7.5"},
        {"\"flops\":7,", ""},
        {"\"flops\":7", "\"flops\":7,\"more\":1"},
        {"\"key\":\"key\"", "\"key\":\"\""},
        {"\"key\":\"key\"", "\"key\":\"a\\nb\""},
        {"\"key\":\"key\"", "\"key\":null"},
        {"\"median_us\":3.0", "\"median_us\":-3.0"},
        {"\"level\":\"quick\"", "\"level\":\"quickest\""},
        {"4294967295", "4294967296"},
        {"[\"tile\",4]", "[\"tile\",4,5]"},
        {"[\"tile\",4]", "[\"tile\"]"},
        {"[\"tile\",4]", "\"tile\""},
        {"[\"tile\",4]", "[\"tile\",4.0]"},
        {"[\"tile\",4]", "[\"\",4]"},
        {"[\"tile\",4]", "[\"a name of more than thirty-two bytes\",4]"},
        {"[\"tile\",4]", "[1,4]"},
        {"[[\"second\",0],[\"tile\",8]]", "[]"},
        {"[[\"second\",0],[\"tile\",8]]", "null"},
        {"[[\"second\",0],[\"tile\",8]]", "{}"},
        {"[\"second\",0]", "[\"second\"]"},
        {"[\"second\",0]", "[\"\",0]"},
        {"\"runner_up\":", "\"runner_up_2\":"},
        {",\"runner_up_us\":3.5", ""},
        {",\"runner_up_us\":3.5", ",\"runner_up_us\":-3.5"},
        {",\"runner_up_us\":3.5", ",\"runner_up_us\":\"3.5\""},
    };
    struct tuning_record record = example_of_race("key", 3), back;
    record.runner_up_us = 3.5;
    size_t size = 0;
    char *line = format(&record, &size);
    line[size - 1] = '\0';
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        size_t edited_size;
        char *edited = edited_line(line + 17, edits[i].from, edits[i].to, &edited_size);
        if (tuning_record_parse(&back, edited, edited_size, &status)) fail_msg("edit %zu passed", i);
        assert_int_equal(status.code, STATUS_BAD_INPUT);
        free(edited);
    }
    free(line);
}

TEST(bad_records_are_not_written)
{
    char *line = NULL;
    size_t size = 0;
    struct tuning_record bad[] = {
        example("", 1),    example("key", 0.0 / 0.0), example("line\nbreak", 1), example("key", 1),
        example("key", 1), example_of_race("key", 1), example_of_race("key", 1), example_of_race("key", 1),
    };
    bad[3].value_count = TUNING_MAX_VALUES + 1;
    memset(bad[4].key, 'k', sizeof bad[4].key);
    bad[4].value_count = 0;
    bad[5].runner_up_us = -1;
    bad[6].runner_up_count = 0; /* although there is a time */
    bad[7].runner_up_count = TUNING_MAX_VALUES + 1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (tuning_record_format(&bad[i], &line, &size, NULL)) fail_msg("record %zu is written", i);
    assert_null(line);
}

static void add(const char *key, double median_us)
{
    struct tuning_record record = example(key, median_us);
    if (!tuning_cache_add(&cache, &record, &status)) fail_msg("%s", status.message);
}

static void open_cache(size_t count, size_t damaged)
{
    if (!tuning_cache_open(&cache, path, &status)) fail_msg("%s", status.message);
    assert_int_equal(cache.count, count);
    assert_int_equal(cache.damaged, damaged);
    for (size_t i = 0; i < cache.count; i++)
        assert_ptr_equal(tuning_cache_find(&cache, cache.records[i].key), &cache.records[i]);
}

static void expect(const char *key, double median_us)
{
    const struct tuning_record *record = tuning_cache_find(&cache, key);
    if (!record) fail_msg("no record '%s'", key);
    assert_true(record->median_us == median_us);
}

TEST(the_last_record_of_a_key_wins)
{
    open_cache(0, 0);
    for (int i = 0; i < 200; i++) {
        const char *key = test_text("key %d", i * 37 % 200);
        add(key, i);
    }
    add("key 7", 1000);
    expect("key 7", 1000);
    assert_null(tuning_cache_find(&cache, "key 200"));
    tuning_cache_close(&cache);
    open_cache(200, 0);
    expect("key 7", 1000);
    expect("key 0", 0);
    tuning_cache_close(&cache);
}

TEST(memory_only_writes_nothing)
{
    assert_true(tuning_cache_open(&cache, NULL, &status));
    add("key", 1);
    expect("key", 1);
    tuning_cache_close(&cache);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* Wherever the last line was cut, the next record begins a new line, and only the cut one is lost. */
TEST(a_torn_last_line_costs_one_record)
{
    open_cache(0, 0);
    add("one", 1);
    struct stat information;
    assert_int_equal(stat(path, &information), 0);
    off_t whole = information.st_size;
    add("two", 2);
    tuning_cache_close(&cache);
    assert_int_equal(stat(path, &information), 0);
    char *text = NULL;
    size_t size = 0;
    assert_true(file_read(path, 1 << 20, &text, &size, NULL));
    for (off_t cut = whole; cut < information.st_size; cut += 13) {
        struct file_output output;
        assert_true(file_output_open(&output, path, NULL));
        assert_true(file_output_write(&output, text, (uint64_t)cut, NULL));
        assert_true(file_output_commit(&output, NULL));
        size_t damaged = cut > whole;
        open_cache(1, damaged);
        add("three", 3);
        tuning_cache_close(&cache);
        open_cache(2, damaged);
        expect("one", 1);
        expect("three", 3);
        tuning_cache_close(&cache);
    }
    free(text);
}

TEST(files_merge_by_concatenation)
{
    cache = (struct tuning_cache){0};
    struct tuning_record first = example("a", 1), second = example("a", 2), third = example("b", 3);
    size_t size = 0;
    char *lines[] = {format(&first, &size), format(&second, &size), format(&third, &size)}, *text = NULL;
    int text_size = asprintf(&text, "%s\ngarbage\n%s%s\n\n", lines[0], lines[2], lines[1]);
    assert_true(tuning_cache_parse(&cache, text, (size_t)text_size, NULL));
    assert_int_equal(cache.count, 2);
    assert_int_equal(cache.damaged, 1);
    expect("a", 2);
    /* A last line without newline is complete if its checksum is correct. */
    assert_true(tuning_cache_parse(&cache, lines[0], strlen(lines[0]) - 1, NULL));
    expect("a", 1);
    tuning_cache_close(&cache);
    for (int i = 0; i < 3; i++) free(lines[i]);
    free(text);
}

TEST(processes_may_append_to_one_file)
{
    enum { PROCESSES = 4, RECORDS = 50 };
    pid_t children[PROCESSES];
    for (int process = 0; process < PROCESSES; process++) {
        children[process] = fork();
        assert_true(children[process] >= 0);
        if (children[process] > 0) continue;
        bool good = tuning_cache_open(&cache, path, NULL);
        for (int i = 0; good && i < RECORDS; i++) {
            const char *key = test_text("process %d record %d", process, i);
            struct tuning_record record = example(key, i);
            good = tuning_cache_add(&cache, &record, NULL);
        }
        _exit(good ? 0 : 1);
    }
    for (int process = 0; process < PROCESSES; process++) {
        int result = -1;
        assert_int_equal(waitpid(children[process], &result, 0), children[process]);
        assert_int_equal(result, 0);
    }
    open_cache(PROCESSES * RECORDS, 0);
    tuning_cache_close(&cache);
}

TEST(missing_folders_are_made)
{
    char deep[96], middle[96];
    snprintf(deep, sizeof deep, "%s/one/two/cache", folder);
    assert_true(tuning_cache_open(&cache, deep, NULL));
    add("key", 1);
    tuning_cache_close(&cache);
    assert_int_equal(unlink(deep), 0);
    snprintf(middle, sizeof middle, "%s/one/two", folder);
    assert_int_equal(rmdir(middle), 0);
    snprintf(middle, sizeof middle, "%s/one", folder);
    assert_int_equal(rmdir(middle), 0);
    /* Three missing levels are a mistyped path. */
    snprintf(deep, sizeof deep, "%s/one/two/three/cache", folder);
    assert_true(tuning_cache_open(&cache, deep, NULL));
    struct tuning_record record = example("key", 1);
    test_expect_failure(tuning_cache_add(&cache, &record, &status), &status, STATUS_NOT_FOUND, "one/two/three/cache");
    tuning_cache_close(&cache);
    assert_int_not_equal(access(middle, F_OK), 0);
}

TEST(a_folder_is_no_cache)
{
    assert_false(tuning_cache_open(&cache, folder, &status));
    assert_non_null(strstr(status.message, "tuning cache: "));
}

int main(void) { return test_run_with(make_folder, NULL, remove_file, remove_folder); }
