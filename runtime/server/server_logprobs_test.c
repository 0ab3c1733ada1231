/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_logprobs.h"

#include "formats/base/test_support.h"

static struct server_logprobs list;

static void add(int32_t token, uint64_t begin)
{
    const struct eng_logprob drawn = {token, -1.0f}, top[2] = {{token + 100, -0.5f}, {token, -1.0f}};
    assert_true(server_logprobs_add(&list, &drawn, top, begin));
}

/* A stop string may begin with the text that is held back. */
TEST(test_text_that_is_held_back)
{
    list = (struct server_logprobs){.top_count = 2};
    add(1, 0);
    server_logprobs_text(&list, 3, 3);
    assert_int_equal(list.ready, 1);
    add(2, 3);
    server_logprobs_text(&list, 6, 4);
    assert_int_equal(list.ready, 1);
    /* a token without text */
    add(3, 6);
    server_logprobs_text(&list, 6, 4);
    assert_int_equal(list.ready, 1);
    add(4, 6);
    server_logprobs_text(&list, 8, 8);
    assert_int_equal(list.ready, 4);
    server_logprobs_free(&list);
}

TEST(test_end_by_stop_string)
{
    for (uint64_t released = 3; released < 6; released++) {
        list = (struct server_logprobs){.top_count = 2};
        add(1, 0);
        server_logprobs_text(&list, 3, 3);
        add(2, 3);
        server_logprobs_text(&list, 5, 3);
        add(3, 5);
        server_logprobs_text(&list, 7, released);
        server_logprobs_finish(&list, released);
        /* A token counts if any of its text is part of the answer. */
        assert_int_equal(list.ready, released > 3 ? 2 : 1);
        assert_int_equal(list.count, list.ready);
        server_logprobs_free(&list);
    }
}

TEST(test_parts_of_a_stream)
{
    struct server_logprobs part = {0};
    enum { COUNT = 100 };
    int32_t next = 0;
    list = (struct server_logprobs){.top_count = 2};
    for (int32_t i = 0; i < COUNT; i++) {
        add(i, (uint64_t)i);
        server_logprobs_text(&list, (uint64_t)i + 1, (uint64_t)i - (uint64_t)(i % 7) + 1);
        if (i % 3) continue;
        assert_true(server_logprobs_take(&list, &part));
        assert_int_equal(list.ready, 0);
        for (size_t p = 0; p < part.count; p++, next++) {
            assert_int_equal(part.tokens[p].drawn.token, next);
            assert_int_equal(part.tokens[p].begin, next);
            assert_int_equal(part.top[2 * p].token, next + 100);
            assert_int_equal(part.top[2 * p + 1].token, next);
        }
        server_logprobs_free(&part);
        part = (struct server_logprobs){0};
    }
    assert_in_range(next, COUNT - 10, COUNT);
    assert_int_equal(list.count, COUNT - next);
    server_logprobs_free(&list);
    assert_true(server_logprobs_take(&list, &part));
    assert_int_equal(part.count, 0);
}

TEST(test_strings)
{
    struct server_buffer out = {0};
    assert_true(server_buffer_string(&out, "a\"\\\n\0\xc3\xa9\xff\xe2\x82", 10));
    assert_true(server_buffer_add(&out, "", 1));
    assert_string_equal(out.data, "\"a\\\"\\\\\\u000a\\u0000\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    server_buffer_free(&out);
    assert_true(server_buffer_string(&out, NULL, 0));
    assert_memory_equal(out.data, "\"\"", 2);
    server_buffer_free(&out);
}

int main(void) { return test_run(); }
