/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_partial.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/test_support.h"

TEST(test_objects)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", "{}"},
        {"[1", "{}"},
        {"tru", "{}"},
        {"{", "{}"},
        {"{'a", "{}"},
        {"{'a'", "{}"},
        {"{'a':", "{}"},
        {"{'a':'x", "{}"},
        {"{'a':'x'", "{'a':'x'}"},
        {"{'a':'x','b", "{'a':'x'}"},
        {"{'a':'x','b'", "{'a':'x'}"},
        {"{'a':12", "{}"}, /* it may become 123 */
        {"{'a':12,", "{'a':12}"},
        {"{'a':tru", "{}"},
        {"{'a':null , 'b':{'c':[1, 2", "{'a':null,'b':{'c':[1]}}"},
        {"{'a':['x','y", "{'a':['x']}"},
        {"{'a':['x','y'", "{'a':['x','y']}"},
        {"{'a':[{'b':1},{'c'", "{'a':[{'b':1},{}]}"},
        {"{'a':[{'b':1}],'c':{}", "{'a':[{'b':1}],'c':{}}"},
        {"{'a':'}]\\\\','b':'\\", "{'a':'}]\\\\'}"},
        {"{'a':1} ", "{'a':1}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = strdup(test_json(cases[i].text));
        json_t *object = server_partial_object(text, strlen(text));
        char *found = json_dumps(object, JSON_COMPACT);
        assert_string_equal(found, test_json(cases[i].expected));
        json_decref(object);
        free(found);
        free(text);
    }
}

/* The first byte after which the text is whole, in any pieces. */
TEST(test_whole)
{
    static const char text[] = "{\"a\":[\"}\\\"]\",{}]}";
    struct server_partial partial = {0};
    for (size_t i = 0; i < sizeof text - 1; i++) {
        assert_false(partial.is_whole);
        server_partial_push(&partial, text + i, 1);
    }
    assert_true(partial.is_whole);
    partial = (struct server_partial){0};
    server_partial_push(&partial, text, sizeof text - 2);
    assert_false(partial.is_whole);
    server_partial_push(&partial, text + sizeof text - 2, 1);
    assert_true(partial.is_whole);
}

int main(void) { return test_run(); }
