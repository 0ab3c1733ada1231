/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_names.h"

#include "formats/base/test_support.h"

TEST(test_names)
{
    static const struct {
        const char *argument, *name, *path;
    } cases[] = {{"model.eng", "model", "model.eng"}, {"/a/b.c/model.eng", "model", "/a/b.c/model.eng"},
                 {"model", "model", "model"},         {"org/name:1=/x y/z.eng", "org/name:1", "/x y/z.eng"},
                 {"a=b=c.eng", "a", "b=c.eng"},       {".eng", ".eng", ".eng"},
                 {"a.eng.eng", "a.eng", "a.eng.eng"}};
    struct server_name name;
    struct status status = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_expect_success(server_name_read(cases[i].argument, &name, &status), &status);
        assert_string_equal(name.name, cases[i].name);
        assert_string_equal(name.path, cases[i].path);
    }
}

TEST(test_refused)
{
    char longest[SERVER_NAME_BYTES + 1];
    struct server_name name;
    struct status status;
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    const char *const cases[] = {"", "=x", "a=", "a b.eng", "dir/", "\xc3\xa9.eng", "a\nb=c", longest};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_expect_failure(server_name_read(cases[i], &name, &status), &status, STATUS_USAGE, "expected");
    longest[SERVER_NAME_BYTES - 1] = '\0';
    test_expect_success(server_name_read(longest, &name, &status), &status);
}

int main(void) { return test_run(); }
