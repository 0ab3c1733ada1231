/* SPDX-License-Identifier: Apache-2.0 */
/* JSON of log-probabilities: names of tokens that are no text, numbers that JSON lacks, tokens that the vocabulary lacks. */
#include "runtime/server/server_logprobs.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "tests/test_fables.h"

enum { TOP = 3 };

/* The first token of one byte that is not a character by itself; -1: the vocabulary has none. */
static int32_t find_byte_token(unsigned char *byte)
{
    struct eng_engine_facts facts;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(fables, &facts, &error));
    for (int32_t token = 0; token < (int32_t)facts.vocab_size; token++) {
        size_t size = 0;
        if (eng_token_bytes(fables, token, (char *)byte, 1, &size, NULL, NULL) == ENG_OK && size == 1 && *byte >= 0x80)
            return token;
    }
    return -1;
}

static json_t *print(const struct server_logprobs *list, bool is_chat)
{
    struct server_buffer out = {0};
    assert_true(server_logprobs_print(list, fables, is_chat, &out));
    json_error_t where;
    json_t *value = json_loadb(out.data, out.size, JSON_REJECT_DUPLICATES, &where);
    if (!value) fail_msg("%s: %.*s", where.text, (int)out.size, out.data);
    server_buffer_free(&out);
    return value;
}

static json_t *at(const json_t *value, const char *key, size_t index)
{
    return json_array_get(json_object_get(value, key), index);
}

TEST(test_both_shapes)
{
    char name[16];
    unsigned char byte = 0;
    const int32_t part = find_byte_token(&byte);
    if (part < 0) fail_msg("the vocabulary has no token of one byte that is part of a character");
    struct server_logprobs list = {.top_count = TOP};
    const struct eng_logprob top[TOP] = {{part, -0.25f}, {part, -0.5f}, {-1, -INFINITY}},
                             drawn[] = {{part, -0.25f}, {70, -INFINITY}, {1 << 30, -2}};
    for (int i = 0; i < 3; i++) assert_true(server_logprobs_add(&list, &drawn[i], top, (uint64_t)i));
    server_logprobs_finish(&list, 9);
    snprintf(name, sizeof name, "bytes:\\x%02x", byte);

    json_t *whole = print(&list, false);
    assert_string_equal(json_string_value(at(whole, "tokens", 0)), name);
    assert_string_equal(json_string_value(at(whole, "tokens", 2)), "");
    assert_true(json_number_value(at(whole, "token_logprobs", 0)) == -0.25);
    assert_true(json_number_value(at(whole, "token_logprobs", 1)) == -9999);
    /* The likelier one of two tokens with one text; the drawn one besides. */
    assert_int_equal(json_object_size(at(whole, "top_logprobs", 0)), 1);
    assert_int_equal(json_object_size(at(whole, "top_logprobs", 1)), 2);
    assert_true(json_number_value(json_object_get(at(whole, "top_logprobs", 1), name)) == -0.25);
    assert_int_equal(json_integer_value(at(whole, "text_offset", 2)), 2);
    json_decref(whole);

    whole = print(&list, true);
    const json_t *first = at(whole, "content", 0);
    assert_string_equal(json_string_value(json_object_get(first, "token")), "\xef\xbf\xbd");
    assert_int_equal(json_integer_value(at(first, "bytes", 0)), byte);
    assert_int_equal(json_array_size(json_object_get(first, "bytes")), 1);
    assert_int_equal(json_array_size(json_object_get(first, "top_logprobs")), 2);
    assert_int_equal(json_array_size(json_object_get(whole, "content")), 3);
    json_decref(whole);
    server_logprobs_free(&list);
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
