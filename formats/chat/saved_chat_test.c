/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/chat/saved_chat.h"

#include <sys/stat.h>

#include "formats/base/file.h"
#include "formats/base/test_folder.h"

static struct status status;

static const struct saved_message messages[] = {
    {"system", "Be brief."},
    {"user", "Gr\xc3\xbc\xc3\x9f dich\n\t\"quoted\" \\ \x01"},
    {"assistant", ""},
    {"user", "One more"},
    {"assistant", "\xe6\x97\xa5\xe6\x9c\xac"},
};
enum { MESSAGES = sizeof messages / sizeof *messages };

static void expect_messages(const struct saved_chat *chat, const struct saved_message *expected, size_t count)
{
    assert_int_equal(chat->count, count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(chat->messages[i].role, expected[i].role);
        assert_string_equal(chat->messages[i].content, expected[i].content);
    }
}

TEST(test_round_trip)
{
    struct saved_chat chat;
    bool replaced = true;
    struct stat facts;
    /* A whole chat, one without a system message, and one with nothing else. */
    static const struct {
        size_t first, count;
    } parts[] = {{0, MESSAGES}, {1, 2}, {0, 1}, {0, 0}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        test_expect_success(saved_chat_write(in_folder("a.json"), messages + parts[i].first, parts[i].count, &replaced,
                                             &status),
                            &status);
        assert_int_equal(replaced, i > 0);
        test_expect_success(saved_chat_read(&chat, in_folder("a.json"), &status), &status);
        expect_messages(&chat, messages + parts[i].first, parts[i].count);
        saved_chat_close(&chat);
    }
    assert_int_equal(test_count_entries(folder), 1);
    assert_int_equal(stat(in_folder("a.json"), &facts), 0);
    assert_int_equal(facts.st_mode & 07777, 0600);
}

TEST(test_text_of_the_file)
{
    struct saved_chat chat;
    char text[] = "{'format': 'eng chat', 'version': 1, 'messages': [{'role': 'user', 'content': 'a'},"
                  " {'content': 'b', 'role': 'assistant'}]}";
    test_expect_success(saved_chat_parse(&chat, test_quote(text), strlen(text), "x", &status), &status);
    expect_messages(&chat, (const struct saved_message[]){{"user", "a"}, {"assistant", "b"}}, 2);
    saved_chat_close(&chat);
}

#define CHAT(messages) "{'format': 'eng chat', 'version': 1, 'messages': [" messages "]}"
#define SYSTEM         "{'role': 'system', 'content': 's'}"
#define USER           "{'role': 'user', 'content': 'q'}"
#define ASSISTANT      "{'role': 'assistant', 'content': 'a'}"

TEST(test_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "JSON"},
        {"[]", "expected an object|array"},
        {"{}", "'format'|nothing"},
        {"{'format': 'x', 'version': 1, 'messages': []}", "'format'|eng chat|\"x\""},
        {"{'format': 'eng chat', 'messages': []}", "'version'|nothing"},
        {"{'format': 'eng chat', 'version': 0, 'messages': []}", "'version'|0"},
        {"{'format': 'eng chat', 'version': '1', 'messages': []}", "'version'|\"1\""},
        {"{'format': 'eng chat', 'version': 1}", "'messages'|missing"},
        {"{'format': 'eng chat', 'version': 1, 'messages': {}}", "'messages'|object"},
        {"{'format': 'eng chat', 'version': 1, 'messages': [], 'x': 1}", "'x'"},
        {"{'format': 'eng chat', 'version': 1, 'version': 1, 'messages': []}", "duplicate"},
        {CHAT("1"), "message 1|integer"},
        {CHAT("{'role': 'user'}"), "message 1|'content'"},
        {CHAT("{'role': 3, 'content': ''}"), "message 1|'role'|3"},
        {CHAT(USER "," ASSISTANT ", {'role': 'user', 'content': null}"), "message 3|'content'"},
        {CHAT("{'role': 'user', 'content': 'a\\u0000b'}"), "JSON"},
        {CHAT("{'role': 'user', 'content': '\xff'}"), "JSON"},
        {CHAT("{'role': 'user', 'content': 'a', 'name': 'n'}"), "message 1|'name'"},
        {CHAT("{'role': 'tool', 'content': 'a'}"), "message 1|system|user|tool"},
        {CHAT(ASSISTANT), "message 1|assistant"},
        {CHAT(SYSTEM "," SYSTEM), "message 2|\"user\"|\"system\""},
        {CHAT(SYSTEM "," ASSISTANT), "message 2|\"user\"|\"assistant\""},
        {CHAT(USER "," USER), "message 2|\"assistant\"|\"user\""},
        {CHAT(USER "," ASSISTANT "," SYSTEM), "message 3|\"user\"|\"system\""},
        {CHAT(USER), "message 1|answer"},
    };
    struct saved_chat chat;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = test_json(cases[i].text);
        const bool read = saved_chat_parse(&chat, text, strlen(text), "chat.json", &status);
        test_expect_failure(read, &status, STATUS_BAD_INPUT, cases[i].words);
        test_expect_message(&status, "chat.json");
        assert_null(chat.messages);
        assert_null(chat.json);
    }
    const char *later = test_json("{'format': 'eng chat', 'version': 2, 'messages': []}");
    test_expect_failure(saved_chat_parse(&chat, later, strlen(later), "x", &status), &status, STATUS_VERSION,
                        "version 1|found 2");
}

TEST(test_too_many_messages)
{
    struct saved_chat chat;
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    assert_non_null(memory);
    fputs("{'format': 'eng chat', 'version': 1, 'messages': [1", memory);
    for (int i = 0; i < SAVED_CHAT_MOST_MESSAGES; i++) fputs(",1", memory);
    fputs("]}", memory);
    assert_int_equal(fclose(memory), 0);
    test_expect_failure(saved_chat_parse(&chat, test_quote(text), size, "x", &status), &status, STATUS_BAD_INPUT,
                        "65536|more");
    free(text);
}

/* Files that are not there, too large, or special. */
TEST(test_files)
{
    struct saved_chat chat;
    test_expect_failure(saved_chat_read(&chat, in_folder("none"), &status), &status, STATUS_NOT_FOUND, "none");
    test_expect_failure(saved_chat_read(&chat, folder, &status), &status, STATUS_BAD_INPUT, "directory");
    test_write_text(in_folder("large"), "{}");
    assert_int_equal(truncate(in_folder("large"), SAVED_CHAT_MOST_BYTES + 1), 0);
    test_expect_failure(saved_chat_read(&chat, in_folder("large"), &status), &status, STATUS_BAD_INPUT, "too large");
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    test_expect_failure(saved_chat_read(&chat, in_folder("pipe"), &status), &status, STATUS_BAD_INPUT, "pipe");
}

/* What a user has named by mistake stays as it is, and nothing else appears. */
TEST(test_other_files_are_not_replaced)
{
    static const char *const texts[] = {"my notes", "{}",
                                        "{\"format\": \"eng chat\", \"version\": 2, \"messages\": []}"};
    bool replaced = false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *text;
        size_t size;
        test_write_text(in_folder("notes"), texts[i]);
        const bool written = saved_chat_write(in_folder("notes"), messages, MESSAGES, &replaced, &status);
        test_expect_failure(written, &status, i < 2 ? STATUS_BAD_INPUT : STATUS_VERSION, "notes");
        test_expect_success(file_read(in_folder("notes"), 100, &text, &size, &status), &status);
        assert_string_equal(text, texts[i]);
        free(text);
    }
    test_expect_failure(saved_chat_write(in_folder("none/a"), messages, MESSAGES, NULL, &status), &status,
                        STATUS_NOT_FOUND, "none");
    test_expect_failure(saved_chat_write(folder, messages, MESSAGES, NULL, &status), &status, STATUS_BAD_INPUT,
                        "directory");
    assert_int_equal(test_count_entries(folder), 1);
    assert_false(replaced);
}

TEST(test_not_utf8)
{
    const struct saved_message bad[] = {{"user", "\xff"}, {"assistant", "a"}};
    test_expect_failure(saved_chat_write(in_folder("a"), bad, 2, NULL, &status), &status, STATUS_BAD_INPUT, "UTF-8");
    assert_int_equal(test_count_entries(folder), 0);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
