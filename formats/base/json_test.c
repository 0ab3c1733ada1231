/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/json.h"

#include "formats/base/test_support.h"

static struct status status;

TEST(test_parse_refuses)
{
    static const struct {
        const char *text;
        size_t size;
        const char *words;
    } cases[] = {
        {"", 0, "f.json|not valid JSON|line"},
        {"{\"a\": 1,}", 9, "not valid JSON|line 1"},
        {"{\"a\": 1} x", 10, "not valid JSON|end of file"},
        {"{\"a\": 1, \"a\": 2}", 16, "duplicate"},
        {"{\"a\": {\"b\": 1, \"b\": 2}}", 23, "duplicate"},
        {"{\"a\": \"x\\u0000y\"}", 17, "\\u0000"},
        {"{\"a\": \"\xff\"}", 10, "not valid JSON|0xff"},
        {"{\"a\": NaN}", 10, "not valid JSON"},
        {"{\"a\": 1e999}", 12, "not valid JSON|overflow"},
        {"{\"a\": 99999999999999999999}", 27, "not valid JSON|too big"},
        {"\xef\xbb\xbf{}", 5, "not valid JSON"},
        {"3", 1, "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *value = json_parse(cases[i].text, cases[i].size, "f.json", &status);
        test_expect_failure(value != NULL, &status, STATUS_BAD_INPUT, cases[i].words);
    }
}

TEST(test_deep_nesting)
{
    enum { DEPTH = 1000000 };
    char *text = malloc(DEPTH);
    assert_non_null(text);
    memset(text, '[', DEPTH);
    test_expect_failure(json_parse(text, DEPTH, "deep", &status) != NULL, &status, STATUS_BAD_INPUT, "deep|depth");
    free(text);
}

TEST(test_reader)
{
    static const char text[] = "{\"n\": 5, \"big\": 9223372036854775807, \"neg\": -1, \"real\": 1.5, \"yes\": true,"
                               " \"text\": \"abc\", \"list\": [1, 2], \"none\": null, \"extra\": {}}";
    struct json_reader reader;
    uint64_t number = 77;
    double real = 7.5;
    bool flag = false;
    const char *string = NULL;
    json_t *object = json_parse(text, sizeof text - 1, "f.json", &status);
    test_expect_success(object && json_reader_open(&reader, object, "f.json: part", &status), &status);

    assert_true(json_reader_u64(&reader, "n", true, 5, 5, &number, &status));
    assert_true(number == 5);
    assert_true(json_reader_u64(&reader, "big", true, 0, UINT64_MAX, &number, &status));
    assert_true(number == INT64_MAX);
    assert_true(json_reader_u64(&reader, "absent", false, 0, 9, &number, &status));
    assert_true(json_reader_u64(&reader, "none", false, 0, 9, &number, &status));
    assert_true(number == INT64_MAX);
    test_expect_failure(json_reader_u64(&reader, "n", true, 6, 9, &number, &status), &status, STATUS_BAD_INPUT,
                        "f.json: part|'n'|an integer from 6 to 9|found 5");
    test_expect_failure(json_reader_u64(&reader, "neg", false, 0, 9, &number, &status), &status, STATUS_BAD_INPUT,
                        "'neg'|from 0 to 9|found -1");
    test_expect_failure(json_reader_u64(&reader, "real", false, 0, 9, &number, &status), &status, STATUS_BAD_INPUT,
                        "'real'|found 1.5");
    test_expect_failure(json_reader_u64(&reader, "absent", true, 0, 9, &number, &status), &status, STATUS_BAD_INPUT,
                        "'absent'|found nothing");
    assert_true(number == INT64_MAX);

    assert_true(json_reader_double(&reader, "real", true, &real, &status));
    assert_true(real == 1.5);
    assert_true(json_reader_double(&reader, "n", true, &real, &status));
    assert_true(real == 5.0);
    test_expect_failure(json_reader_double(&reader, "text", false, &real, &status), &status, STATUS_BAD_INPUT,
                        "'text'|a number|found \"abc\"");
    assert_true(json_reader_bool(&reader, "yes", true, &flag, &status));
    assert_true(flag);
    test_expect_failure(json_reader_bool(&reader, "n", false, &flag, &status), &status, STATUS_BAD_INPUT,
                        "'n'|true or false|found 5");
    assert_true(json_reader_string(&reader, "text", true, &string, &status));
    assert_string_equal(string, "abc");
    test_expect_failure(json_reader_string(&reader, "list", false, &string, &status), &status, STATUS_BAD_INPUT,
                        "'list'|a string|found an array of 2");
    test_expect_failure(json_reader_all_consumed(&reader, &status), &status, STATUS_BAD_INPUT,
                        "f.json: part|'extra'|not understood|an object with 0 keys");
    assert_non_null(json_reader_get(&reader, "extra"));
    test_expect_success(json_reader_all_consumed(&reader, &status), &status);
    json_reader_close(&reader);
    json_decref(object);
}

TEST(test_open_needs_object)
{
    struct json_reader reader;
    json_t *array = json_array();
    test_expect_failure(json_reader_open(&reader, array, "x", &status), &status, STATUS_BAD_INPUT,
                        "x|expected an object|found array");
    json_reader_close(&reader);
    test_expect_failure(json_reader_open(&reader, NULL, "x", &status), &status, STATUS_BAD_INPUT, "found missing");
    json_reader_close(&reader);
    json_decref(array);
}

int main(void) { return test_run(); }
