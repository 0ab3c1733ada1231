/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing JSON while memory runs out: jansson by itself then loses characters and keys, and reads past a
 * buffer. Tokens of every length, so that each end coincides once with a buffer's end. */
#include "formats/base/json.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "tests/faults/faults.h"

enum { LONGEST = 140, TEXT_BYTES = 1024 };

static const size_t flags = JSON_COMPACT | JSON_SORT_KEYS;

/* {"kkkk":"vvvv","n":123,"t":"\\"}, with `length` of k and v. */
static size_t document(int length, char *text)
{
    char token[LONGEST + 1];
    memset(token, 'k', (size_t)length);
    token[length] = '\0';
    int size = snprintf(text, TEXT_BYTES, "{\"%s\":\"%s\",\"n\":123,\"t\":\"\\\\\"}", token, token);
    assert_in_range(size, 1, TEXT_BYTES - 1);
    return (size_t)size;
}

static bool read_and_write(const char *text, size_t size, struct status *status)
{
    json_t *value = json_parse(text, size, "f.json", status);
    if (!value) return false;
    char *written = json_format(value, flags);
    json_decref(value);
    bool good = written != NULL;
    if (good && strcmp(written, text) != 0) fail_msg("expected %s, found %s", text, written);
    free(written);
    return good || status_fail(status, STATUS_MACHINE, "out of memory");
}

static void sweep(bool from_there_on)
{
    char text[TEXT_BYTES];
    unsigned long failures = 0;
    for (int length = 1; length <= LONGEST; length++) {
        size_t size = document(length, text);
        struct status status = {0};
        test_expect_success(read_and_write(text, size, &status), &status);
        long blocks = faults_live_blocks();
        for (unsigned long nth = 1;; nth++) {
            status_clear(&status);
            faults_arm(nth, from_there_on);
            bool good = read_and_write(text, size, &status);
            unsigned long failed = faults_disarm();
            assert_int_equal(faults_live_blocks(), blocks);
            if (failed == 0) break;
            failures++;
            if (!good && status.code != STATUS_MACHINE)
                fail_msg("tokens of %d, call %lu: %s", length, nth, status.message);
        }
    }
    print_message("%lu failures\n", failures);
    assert_true(failures > 1000);
}

TEST(test_once) { sweep(false); }

TEST(test_from_there_on) { sweep(true); }

/* The texts that a reader refuses are refused as before. */
TEST(test_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"{},{}", "line 1, column 3|end of file"},
        {"{}],[{}", "line 1, column 3|end of file"},
        {"", "line 1, column 0"},
        {"{\"a\":1,\n\"b\"}", "line 2, column 4"},
        {"[1, 2", "line 1, column 5|end of file"},
        {"\"text\"", "expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        json_t *value = json_parse(cases[i].text, strlen(cases[i].text), "f.json", &status);
        test_expect_failure(value != NULL, &status, STATUS_BAD_INPUT, cases[i].words);
    }
}

int main(void) { return test_run(); }
