/* SPDX-License-Identifier: Apache-2.0 */
/* Text from files reaches a terminal through enginfo and messages: for all names, it contains no byte that controls a
 * terminal and no character that changes the direction of text. */
#define TEST_ENGINE_MAKE test_engine_make
#include "formats/engine/test_engine_frame.h"
#include "formats/base/test_program.h"

#include <sys/wait.h>

#include "formats/engine/engine_file.h"
#include "formats/tuning/tuning_record.h"

enum { MOST_OUTPUT = 1 << 16 };

/* ESC and 0x9b begin commands; DEL, a character that reverses the direction, a line end, and a mark with both
 * effects. */
#define HOSTILE      \
    "a\033[31mb\x7f" \
    "c\xc2\x9b"      \
    "d\xe2\x80\xae"  \
    "e\xe2\x80\xa8"  \
    "f\xd8\x9cg"

/* Checks independent of the tested code: one expression for each range of the standard's tables. */
static void expect_harmless(const char *text, const char *what)
{
    const unsigned char *c = (const unsigned char *)text;
    for (size_t i = 0; c[i]; i++) {
        bool control = (c[i] < 0x20 && c[i] != '\n') || c[i] == 0x7f;
        bool c1 = c[i] == 0xc2 && c[i + 1] >= 0x80 && c[i + 1] < 0xa0;
        bool order = (c[i] == 0xe2 && c[i + 1] == 0x80 && (c[i + 2] == 0x8e || c[i + 2] == 0x8f)) ||
                     (c[i] == 0xe2 && c[i + 1] == 0x80 && c[i + 2] >= 0xa8 && c[i + 2] <= 0xae) ||
                     (c[i] == 0xe2 && c[i + 1] == 0x81 && c[i + 2] >= 0xa6 && c[i + 2] <= 0xa9) ||
                     (c[i] == 0xd8 && c[i + 1] == 0x9c);
        if (control || c1 || order) fail_msg("%s: byte %zu is %#x in '%s'", what, i, c[i], text);
    }
}

/* Output and messages of enginfo, which must exit with this code. */
static void run_enginfo(const char *flags, int code, char *output)
{
    char command[256];
    snprintf(command, sizeof command, "runtime/enginfo %s %s 2>&1", path, flags);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t size = fread(output, 1, MOST_OUTPUT - 1, pipe);
    output[size] = '\0';
    int end = pclose(pipe);
    if (!WIFEXITED(end) || WEXITSTATUS(end) != code)
        fail_msg("%s: expected exit code %d, found status %#x: %s", command, code, end, output);
    expect_harmless(output, command);
}

static void write_file(const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* Writes the sample with every occurrence of `from` replaced by `to`, of the same length, and all checksums correct. */
static void write_changed(const char *from, const char *to)
{
    size_t size, length = strlen(from), changes = 0;
    assert_int_equal(strlen(to), length);
    uint8_t *bytes = written(false, &size);
    for (size_t i = 0; i + length <= size; i++)
        if (memcmp(bytes + i, from, length) == 0) {
            memcpy(bytes + i, to, length);
            changes++;
        }
    assert_true(changes > 0);
    engine_fix_checksums(bytes, size);
    write_file(bytes, size);
    free(bytes);
}

static char output[MOST_OUTPUT];

TEST(test_records)
{
    snprintf(sample.tactics, sizeof sample.tactics,
             "0123456789abcdef {\"key\":\"%s\"}\n0123456789abcdef {\"key\":\"%s\"}\n", HOSTILE, HOSTILE + 6);
    size_t size;
    free(written(false, &size));
    run_enginfo("--records", 0, output);
    assert_non_null(strstr(output, "a\\u001b[31mb\\u007fc\\u009bd\\u202ee\\u2028f\\u061cg\"}\n"));
    run_enginfo("--records --json", 0, output);
    run_enginfo("--tactics", 1, output);
    run_enginfo("", 0, output);
}

/* Writer and reader apply the same rules to a record. */
TEST(test_record_keys)
{
    static const char *const hostile[] = {"e\033", "e\xe2\x80\xae", "e\xe2\x80\xa8", "e\xc2\x9b", "e\xd8\x9c", "e\xff"};
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        struct tuning_record record = {.level = "quick"};
        char *line;
        size_t size;
        snprintf(record.key, sizeof record.key, "%s", hostile[i]);
        assert_false(tuning_record_format(&record, &line, &size, &status));
        assert_non_null(strstr(status.message, "key"));
    }
}

TEST(test_names_in_the_manifest)
{
    static const char *const hostile[] = {"tin\xc2\x9b", "ti\xe2\x80\xae", "ti\xe2\x80\xa8", "ti\xe2\x81\xa6",
                                          "tin\xd8\x9c"};
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        snprintf(sample.manifest.model_name, sizeof sample.manifest.model_name, "tiny!");
        write_changed("tiny!", hostile[i]);
        for (int json = 0; json < 2; json++) {
            run_enginfo(json ? "--json" : "", 1, output);
            assert_non_null(strstr(output, "control character"));
        }
    }
}

/* Fields that a later version may add are ignored, and printed as JSON. */
TEST(test_information_for_later_versions)
{
    char from[128], to[128];
    snprintf(sample.manifest.target_name, sizeof sample.manifest.target_name, "%040d", 0);
    snprintf(from, sizeof from, "\"name\":\"%040d\"}", 0);
    snprintf(to, sizeof to, "\"name\":\"x\"},\"extra\":{\"a\":\"\xe2\x80\xae\x7f\"}");
    memset(to + strlen(to), ' ', strlen(from) - strlen(to));
    to[strlen(from)] = '\0';
    write_changed(from, to);
    run_enginfo("--json", 0, output);
    assert_non_null(strstr(output, "\\u202e\\u007f"));
}

TEST(test_names_of_tensors)
{
    assert_true(test_engine_write(&sample, path, false, &status));
    char hostile[64];
    const char *name = sample.tensors[0].name;
    snprintf(hostile, sizeof hostile, "%s", name);
    memcpy(hostile, "\xe2\x80\xae", 3);
    write_changed(name, hostile);
    run_enginfo("", 1, output);
    assert_non_null(strstr(output, "name"));
}

TEST(test_names_of_kernels)
{
    assert_true(test_engine_make_device(&sample, &status));
    const char *name = sample.kernels[0].entry;
    char hostile[128];
    snprintf(hostile, sizeof hostile, "%s", name);
    hostile[0] = '\033';
    write_changed(name, hostile);
    run_enginfo("--tactics", 1, output);
    assert_non_null(strstr(output, "name"));
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
