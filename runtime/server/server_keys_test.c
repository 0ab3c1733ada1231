/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_keys.h"

#include "formats/base/test_support.h"

static struct status status;

TEST(test_allow)
{
    static const char text[] = "# a comment\n\nfirst-key-1\r\nsecond-key-2\n#third-key-3\nlast-key-4";
    char *folder = test_folder();
    struct server_keys *keys = NULL;
    test_write(test_path(folder, "keys"), text, sizeof text - 1);
    test_expect_success(server_keys_read(test_path(folder, "keys"), &keys, &status), &status);
    assert_int_equal(server_keys_count(keys), 3);
    static const struct {
        const char *header;
        bool allowed;
    } cases[] = {{"Bearer first-key-1", true},
                 {"bearer second-key-2", true},
                 {"Bearer   last-key-4", true},
                 {"Bearer first-key-1 ", false},
                 {"Bearer first-key-", false},
                 {"Bearer first-key-11", false},
                 {"Bearer third-key-3", false},
                 {"Bearer #third-key-3", false},
                 {"Bearer # a comment", false},
                 {"Bearer ", false},
                 {"Bearer", false},
                 {"", false},
                 {"first-key-1", false},
                 {"Basic first-key-1", false},
                 {NULL, false},
                 {"Bearer first-key-1\r", false},
                 {"Bearer FIRST-KEY-1", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(server_keys_allow(keys, cases[i].header, NULL), cases[i].allowed);
    assert_true(server_keys_allow(keys, NULL, "first-key-1"));
    assert_false(server_keys_allow(keys, NULL, "first-key-2"));
    assert_false(server_keys_allow(keys, "Basic first-key-1", "first-key-1"));
    server_keys_free(keys);
    test_folder_remove(folder);
}

TEST(test_refused_files)
{
    char *folder = test_folder(), longest[600];
    struct server_keys *keys = NULL;
    memset(longest, 'k', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    const struct {
        const char *text, *words;
    } cases[] = {{"", "found none"},
                 {"# only a comment\n\n", "found none"},
                 {"good-key-1\nshort\n", "line 2|8 to 512|found 5"},
                 {"good-key-1\n\ntwo words\n", "line 3|0x20"},
                 {"good-key-1\nk\xc3\xa9y-of-length\n", "line 2|0xc3"},
                 {longest, "line 1|found 599"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = test_path(folder, "keys");
        test_write_text(path, cases[i].text);
        test_expect_failure(server_keys_read(path, &keys, &status), &status, STATUS_BAD_INPUT, cases[i].words);
        if (strstr(status.message, "good-key")) fail_msg("the message has a key: %s", status.message);
        assert_null(keys);
    }
    test_expect_failure(server_keys_read(test_path(folder, "none"), &keys, &status), &status, STATUS_NOT_FOUND, "none");
    test_folder_remove(folder);
}

int main(void) { return test_run(); }
