/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_stop.h"

#include "formats/base/test_support.h"

/* Pushes the text in pieces of these lengths, again and again from the first one. */
static char *push_all(const char *const *stops, size_t count, const char *text, const size_t *lengths,
                      size_t length_count, bool *found)
{
    struct server_stop stop = {.strings = stops, .count = count};
    struct server_buffer out = {0};
    const size_t size = strlen(text);
    for (size_t at = 0, i = 0; at < size; i++) {
        size_t length = lengths[i % length_count];
        if (length > size - at) length = size - at;
        assert_true(server_stop_push(&stop, text + at, length, &out));
        at += length;
        /* What was sent is never taken back. */
        assert_true(out.size <= at);
        assert_memory_equal(out.data ? out.data : "", text, out.size);
    }
    assert_true(server_stop_finish(&stop, &out));
    *found = stop.found;
    assert_true(server_buffer_add(&out, "", 1));
    server_stop_free(&stop);
    return out.data;
}

TEST(test_pieces)
{
    static const struct {
        const char *stops[SERVER_MOST_STOPS];
        size_t count;
        const char *text, *expected;
        bool found;
    } cases[] = {
        {{NULL}, 0, "abc", "abc", false},
        {{"x"}, 1, "abc", "abc", false},
        {{"b"}, 1, "abc", "a", true},
        {{"abc"}, 1, "abc", "", true},
        {{"abcd"}, 1, "xabc", "xabc", false},
        {{"aab"}, 1, "aaaab", "aa", true},
        {{"abab", "abac"}, 2, "xababac", "x", true},
        {{"abcd", "bc"}, 2, "xabcd", "xa", true}, /* "bc" ends first */
        {{"c", "abc"}, 2, "xabcd", "x", true},    /* both end together: the longest */
        {{"abc", "c"}, 2, "xabcd", "x", true},
        {{"\n\n"}, 1, "a\nb\n\nc", "a\nb", true},
        {{"\xc3\xa9"}, 1, "caf\xc3\xa9 au", "caf", true},
        {{"aaaa", "aaab", "ab", "b"}, 4, "caaac", "caaac", false},
    };
    static const size_t lengths[][3] = {{1, 1, 1}, {2, 2, 2}, {3, 1, 2}, {100, 100, 100}, {1, 3, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            bool found;
            char *out = push_all(cases[i].stops, cases[i].count, cases[i].text, lengths[l], 3, &found);
            assert_string_equal(out, cases[i].expected);
            assert_int_equal(found, cases[i].found);
            free(out);
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
        bool found;
        char *out = push_all(list, count, text, lengths, 3, &found);
        assert_int_equal(strlen(out), begin);
        assert_int_equal(found, first_end != SIZE_MAX);
        with_stop += found;
        free(out);
    }
    assert_in_range(with_stop, 1000, 4900);
}

/* Text that cannot begin a stop string is not held. */
TEST(test_holds_no_more_than_needed)
{
    const char *stops[] = {"stop"};
    struct server_stop stop = {.strings = stops, .count = 1};
    struct server_buffer out = {0};
    assert_true(server_stop_push(&stop, "a st", 4, &out));
    assert_int_equal(out.size, 2);
    assert_true(server_stop_push(&stop, "x", 1, &out));
    assert_int_equal(out.size, 5);
    assert_true(server_stop_push(&stop, "stop it", 7, &out));
    assert_true(stop.found);
    assert_int_equal(out.size, 5);
    assert_true(server_stop_push(&stop, "more", 4, &out) && server_stop_finish(&stop, &out));
    assert_int_equal(out.size, 5);
    server_stop_free(&stop);
    server_buffer_free(&out);
}

int main(void) { return test_run(); }
