/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/text/stop_strings.h"

#include "formats/base/test_support.h"

enum { MOST_STOPS = 4, MOST_TEXT = 64 };

struct text {
    char data[MOST_TEXT];
    size_t size;
};

static void take(struct stop_strings *stop, size_t released, struct text *out)
{
    assert_true(out->size + released < sizeof out->data);
    if (released) memcpy(out->data + out->size, stop->held, released);
    out->size += released;
    stop_strings_drop(stop, released);
}

static void push(struct stop_strings *stop, const char *text, size_t size, struct text *out)
{
    size_t released;
    assert_true(stop_strings_push(stop, text, size, &released));
    take(stop, released, out);
}

static void finish(struct stop_strings *stop, struct text *out)
{
    size_t released = 0;
    stop_strings_finish(stop, &released);
    take(stop, released, out);
}

/* Pushes the text in pieces of these lengths, again and again from the first one, and returns which stop string ended it, -1: none. */
static int push_all(const char *const *stops, size_t count, const char *text, const size_t *lengths,
                    size_t length_count, struct text *out)
{
    struct stop_strings stop = {.strings = stops, .count = count};
    const size_t size = strlen(text);
    *out = (struct text){.size = 0};
    for (size_t at = 0, i = 0; at < size; i++) {
        size_t length = lengths[i % length_count];
        if (length > size - at) length = size - at;
        push(&stop, text + at, length, out);
        at += length;
        /* What was released is never taken back. */
        assert_true(out->size <= at);
        assert_memory_equal(out->data, text, out->size);
    }
    finish(&stop, out);
    out->data[out->size] = '\0';
    const int which = stop.found ? (int)stop.which : -1;
    stop_strings_free(&stop);
    return which;
}

TEST(test_pieces)
{
    static const struct {
        const char *stops[MOST_STOPS];
        size_t count;
        const char *text, *expected;
        int which;
    } cases[] = {
        {{NULL}, 0, "abc", "abc", -1},
        {{"x"}, 1, "abc", "abc", -1},
        {{"b"}, 1, "abc", "a", 0},
        {{"abc"}, 1, "abc", "", 0},
        {{"abcd"}, 1, "xabc", "xabc", -1},
        {{"aab"}, 1, "aaaab", "aa", 0},
        {{"abab", "abac"}, 2, "xababac", "x", 0},
        {{"abcd", "bc"}, 2, "xabcd", "xa", 1}, /* "bc" ends first */
        {{"c", "abc"}, 2, "xabcd", "x", 1},    /* both end together: the longest */
        {{"abc", "c"}, 2, "xabcd", "x", 0},
        {{"\n\n"}, 1, "a\nb\n\nc", "a\nb", 0},
        {{"\xc3\xa9"}, 1, "caf\xc3\xa9 au", "caf", 0},
        {{"aaaa", "aaab", "ab", "b"}, 4, "caaac", "caaac", -1},
    };
    static const size_t lengths[][3] = {{1, 1, 1}, {2, 2, 2}, {3, 1, 2}, {100, 100, 100}, {1, 3, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            struct text out;
            assert_int_equal(push_all(cases[i].stops, cases[i].count, cases[i].text, lengths[l], 3, &out),
                             cases[i].which);
            assert_string_equal(out.data, cases[i].expected);
        }
}

/* Against a search of the whole text. */
TEST(test_random_pieces)
{
    uint64_t seed = 5;
    size_t with_stop = 0;
    for (int round = 0; round < 5000; round++) {
        char text[32] = "", stops[3][8] = {""};
        const char *list[3] = {stops[0], stops[1], stops[2]};
        const size_t count = 1 + test_random(&seed) % 3, size = test_random(&seed) % (sizeof text - 1);
        for (size_t i = 0; i < size; i++) text[i] = "abc"[test_random(&seed) % 3];
        size_t first_end = SIZE_MAX, begin = size;
        for (size_t s = 0; s < count; s++) {
            const size_t length = 1 + test_random(&seed) % 5;
            for (size_t i = 0; i < length; i++) stops[s][i] = "abc"[test_random(&seed) % 3];
            const char *at = strstr(text, stops[s]);
            const size_t end = at ? (size_t)(at - text) + length : SIZE_MAX;
            if (!at || end > first_end || (end == first_end && (size_t)(at - text) > begin)) continue;
            first_end = end;
            begin = (size_t)(at - text);
        }
        const size_t lengths[3] = {1 + test_random(&seed) % 4, 1 + test_random(&seed) % 4, 1 + test_random(&seed) % 9};
        struct text out;
        const bool found = push_all(list, count, text, lengths, 3, &out) >= 0;
        assert_int_equal(out.size, begin);
        assert_int_equal(found, first_end != SIZE_MAX);
        with_stop += found;
    }
    assert_in_range(with_stop, 1000, 4900);
}

/* Text that cannot begin a stop string is not held. */
TEST(test_holds_no_more_than_needed)
{
    const char *stops[] = {"stop"};
    struct stop_strings stop = {.strings = stops, .count = 1};
    struct text out = {.size = 0};
    push(&stop, "a st", 4, &out);
    assert_int_equal(out.size, 2);
    push(&stop, "x", 1, &out);
    assert_int_equal(out.size, 5);
    push(&stop, "stop it", 7, &out);
    assert_true(stop.found);
    assert_int_equal(out.size, 5);
    push(&stop, "more", 4, &out);
    finish(&stop, &out);
    assert_int_equal(out.size, 5);
    stop_strings_begin(&stop);
    push(&stop, "again", 5, &out);
    assert_int_equal(out.size, 10);
    stop_strings_free(&stop);
}

/* With room for the longest piece no push takes memory. */
TEST(test_reserve)
{
    const char *stops[] = {"aaaaaaab"};
    struct stop_strings stop = {.strings = stops, .count = 1};
    struct text out = {.size = 0};
    assert_true(stop_strings_reserve(&stop, 5));
    const char *const held = stop.held;
    for (int i = 0; i < 9; i++) push(&stop, "aaaaa", 5, &out);
    assert_ptr_equal(stop.held, held);
    assert_int_equal(out.size, 45 - 7);
    stop_strings_free(&stop);
}

int main(void) { return test_run(); }
