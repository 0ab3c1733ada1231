/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/test_support.h"

#include <errno.h>

TEST(test_fail_and_clear)
{
    struct status status = {0};
    assert_int_equal(status_exit_code(&status), 0);
    test_expect_failure(status_fail(&status, STATUS_BAD_INPUT, "field '%s': expected %d, found %d", "x", 1, 2), &status,
                        STATUS_BAD_INPUT, "");
    assert_string_equal(status.message, "field 'x': expected 1, found 2");
    assert_false(status_prefix(&status, "file %s", "a.json"));
    assert_string_equal(status.message, "file a.json: field 'x': expected 1, found 2");
    assert_int_equal(status.code, STATUS_BAD_INPUT);
    status_clear(&status);
    assert_int_equal(status.code, STATUS_OK);
    assert_string_equal(status.message, "");
    assert_false(status_fail(NULL, STATUS_INTERNAL, "no status"));
    assert_false(status_prefix(NULL, "no status"));
    assert_false(status_fail_errno(NULL, STATUS_INTERNAL, EIO, "no status"));
}

TEST(test_errno)
{
    static const struct {
        int error;
        enum status_code expected;
    } cases[] = {{ENOENT, STATUS_NOT_FOUND}, {ENOSPC, STATUS_MACHINE},   {ENOMEM, STATUS_MACHINE},
                 {EIO, STATUS_MACHINE},      {EROFS, STATUS_MACHINE},    {EDQUOT, STATUS_MACHINE},
                 {EMFILE, STATUS_MACHINE},   {EACCES, STATUS_BAD_INPUT}, {EISDIR, STATUS_BAD_INPUT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        assert_false(status_fail_errno(&status, STATUS_BAD_INPUT, cases[i].error, "open '%s'", "f"));
        assert_int_equal(status.code, cases[i].expected);
        test_expect_message(&status, "open 'f': ");
        test_expect_message(&status, strerror(cases[i].error));
    }
}

TEST(test_exit_codes)
{
    static const int expected[] = {0, 1, 2, 3, 4, 1, 1, 1, 3, 1, 1, 3};
    for (int code = STATUS_OK; code <= STATUS_CANCELLED; code++) {
        struct status status = {.code = (enum status_code)code};
        assert_int_equal(status_exit_code(&status), expected[code]);
        assert_string_not_equal(status_code_name(status.code), "unknown");
    }
}

/* For any hostile name, a message is one line of valid UTF-8 without control characters. */
TEST(test_hostile_text)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"a\nb\tc\x1b[31m\x7f", "a b c [31m "},
        {"gr\xc3\xbc\xc3\x9f\x65 \xe2\x82\xac \xf0\x9f\x98\x80",
         "gr\xc3\xbc\xc3\x9f\x65 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xc2\x9b[31m", "  [31m"}, /* C1 control */
        {"a\xe2\x80\xae"
         "b\xe2\x80\xa8",
         "a   b   "},                 /* changes the direction; ends a line */
        {"\xff\xfe", "??"},           /* never valid */
        {"\xc0\xaf", "??"},           /* overlong */
        {"\xe0\x80\xaf", "???"},      /* overlong */
        {"\xed\xa0\x80", "???"},      /* surrogate */
        {"\xf4\x90\x80\x80", "????"}, /* above U+10FFFF */
        {"x\xe2\x82", "x??"},         /* truncated */
        {"\xc3(", "?("},              /* lead without continuation */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        status_fail(&status, STATUS_BAD_INPUT, "%s", cases[i].text);
        assert_string_equal(status.message, cases[i].expected);
    }
}

TEST(test_truncation)
{
    char text[2 * STATUS_MESSAGE_BYTES];
    for (size_t shift = 0; shift < 3; shift++) {
        struct status status = {0};
        memset(text, 'x', shift);
        for (size_t i = shift; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xe2\x82\xac", 4);
        status_fail(&status, STATUS_BAD_INPUT, "%s", text);
        assert_int_equal(strlen(status.message), STATUS_MESSAGE_BYTES - 1);
        for (const char *c = status.message + shift; *c;) {
            if (*c == '?') {
                c++;
                continue;
            }
            assert_memory_equal(c, "\xe2\x82\xac", 3);
            c += 3;
        }
        status_prefix(&status, "%s", "front");
        assert_int_equal(strlen(status.message), STATUS_MESSAGE_BYTES - 1);
        test_expect_message(&status, "front: ");
    }
}

int main(void) { return test_run(); }
