/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_message.h"

#include "formats/base/test_support.h"

static struct status status;

/* The message that these lines make, which end with NULL; only the last one completes it. */
static void expect(const char *const *lines, const char *text, bool is_block)
{
    struct chat_message message = {0};
    for (size_t i = 0; lines[i]; i++) {
        test_expect_success(chat_message_add(&message, lines[i], &status), &status);
        assert_int_equal(message.is_complete, lines[i + 1] == NULL);
        assert_int_equal(message.is_begun, lines[i + 1] != NULL);
    }
    assert_string_equal(message.text, text);
    assert_int_equal(message.size, strlen(text));
    assert_int_equal(message.is_block, is_block);
    chat_message_reset(&message);
}

#define LINES(...) ((const char *const[]){__VA_ARGS__, NULL})

TEST(test_lines)
{
    expect(LINES("a b"), "a b", false);
    expect(LINES(""), "", false);
    expect(LINES("a\\", "b\\", ""), "a\nb\n", false);
    expect(LINES("\\", "b"), "\nb", false);
    expect(LINES("a\\\\", "b"), "a\\\nb", false);
    expect(LINES("a\\ "), "a\\ ", false);
    /* Quotes mean something only at the beginning of a message. */
    expect(LINES("a\\", "\"\"\"b"), "a\n\"\"\"b", false);
    expect(LINES("a \"\"\""), "a \"\"\"", false);
    expect(LINES("\"\"a"), "\"\"a", false);
}

TEST(test_blocks)
{
    expect(LINES("\"\"\"", "a", " b\\", "", "\"\"\""), "a\n b\\\n", true);
    expect(LINES("\"\"\"a", "b\"\"\""), "a\nb", true);
    expect(LINES("\"\"\" a", "b \"\"\" "), " a\nb ", true);
    expect(LINES("\"\"\"a\"\"\""), "a", true);
    expect(LINES("\"\"\"\"\"\""), "", true);
    expect(LINES("\"\"\"", "\"\"\""), "", true);
    expect(LINES("\"\"\"  ", "/help", "\"\"\""), "/help", true);
    expect(LINES("\"\"\"", "a \"\"\" b", "c\"\"\"\"\""), "a \"\"\" b\nc\"\"", true);
    expect(LINES("\"\"\"", "a\nb", "c\nd\"\"\""), "a\nb\nc\nd", true);
}

TEST(test_pasted)
{
    expect(LINES("a\nb\\"), "a\nb\\", false);
    expect(LINES("\"\"\"a\nb"), "\"\"\"a\nb", false);
    expect(LINES("a\\", "b\nc\\"), "a\nb\nc\\", false);
}

/* A complete message is not the beginning of the next one. */
TEST(test_several)
{
    struct chat_message message = {0};
    assert_true(chat_message_add(&message, "\"\"\"a\"\"\"", &status));
    assert_true(chat_message_add(&message, "b", &status));
    assert_string_equal(message.text, "b");
    assert_false(message.is_block);
    chat_message_reset(&message);
}

TEST(test_too_long)
{
    struct chat_message message = {0};
    char *half = malloc(CHAT_MESSAGE_MOST_BYTES / 2 + 2);
    assert_non_null(half);
    memset(half, 'x', CHAT_MESSAGE_MOST_BYTES / 2 + 1);
    half[CHAT_MESSAGE_MOST_BYTES / 2 + 1] = '\0';
    half[CHAT_MESSAGE_MOST_BYTES / 2] = '\\';
    test_expect_success(chat_message_add(&message, half, &status), &status);
    test_expect_failure(chat_message_add(&message, half, &status), &status, STATUS_BAD_INPUT, "too long|1048576");
    assert_null(message.text);
    assert_false(message.is_begun);
    /* As long as it may be. */
    half[CHAT_MESSAGE_MOST_BYTES / 2 - 1] = '\\';
    half[CHAT_MESSAGE_MOST_BYTES / 2] = '\0';
    test_expect_success(chat_message_add(&message, half, &status), &status);
    half[CHAT_MESSAGE_MOST_BYTES / 2 - 1] = 'x';
    test_expect_success(chat_message_add(&message, half, &status), &status);
    assert_int_equal(message.size, CHAT_MESSAGE_MOST_BYTES);
    chat_message_reset(&message);
    free(half);
}

int main(void) { return test_run(); }
