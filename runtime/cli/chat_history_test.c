/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_history.h"

#include <sys/stat.h>

#include "formats/base/file.h"
#include "formats/base/test_folder.h"

static struct status status;

static char *history_path(void) { return strdup(in_folder("state/eng/chat_history")); }

static void open_history(struct chat_history *history)
{
    test_expect_success(chat_history_open(history, history_path(), &status), &status);
}

static void write_history(const char *text, size_t size)
{
    mkdir(in_folder("state"), 0700);
    mkdir(in_folder("state/eng"), 0700);
    test_write(in_folder("state/eng/chat_history"), text, size);
}

static off_t history_size(mode_t *mode)
{
    struct stat facts;
    assert_int_equal(stat(in_folder("state/eng/chat_history"), &facts), 0);
    if (mode) *mode = facts.st_mode & 07777;
    return facts.st_size;
}

static void expect_entries(const char *const *expected, size_t count)
{
    struct chat_history history;
    open_history(&history);
    assert_int_equal(history.count, count);
    for (size_t i = 0; i < count; i++) assert_string_equal(history.entries[i], expected[i]);
    chat_history_close(&history);
}

TEST(test_entries_return)
{
    static const char *const texts[] = {"one", "two\nlines \"\\", "\xc3\xa4\xf0\x9f\x98\x80"};
    struct chat_history history, other;
    struct stat facts;
    mode_t mode;
    open_history(&history);
    assert_int_equal(history.count, 0);
    open_history(&other);
    test_expect_success(chat_history_add(&history, texts[0], &status), &status);
    test_expect_success(chat_history_add(&other, texts[1], &status), &status);
    test_expect_success(chat_history_add(&history, texts[2], &status), &status);
    chat_history_close(&history);
    chat_history_close(&other);
    expect_entries(texts, 3);
    history_size(&mode);
    assert_int_equal(mode, 0600);
    assert_int_equal(stat(in_folder("state"), &facts), 0);
    assert_int_equal(facts.st_mode & 07777, 0700);
}

TEST(test_where_it_lies)
{
    static const struct {
        const char *state, *home, *path;
    } cases[] = {
        {"/s", "/h", "/s/eng/chat_history"},
        {NULL, "/h", "/h/.local/state/eng/chat_history"},
        {"", "/h", "/h/.local/state/eng/chat_history"},
        {"relative", "/h", "/h/.local/state/eng/chat_history"},
        {NULL, "h", NULL},
        {NULL, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsetenv("XDG_STATE_HOME");
        unsetenv("HOME");
        if (cases[i].state) setenv("XDG_STATE_HOME", cases[i].state, 1);
        if (cases[i].home) setenv("HOME", cases[i].home, 1);
        char *path = chat_history_path();
        if (cases[i].path)
            assert_string_equal(path, cases[i].path);
        else
            assert_null(path);
        free(path);
    }
}

/* Lines that are no entries cost nothing but themselves, and are gone afterwards. */
TEST(test_damage)
{
    static const char text[] = "\"a\"\nnot JSON\n{}\n\"\"\n\n\"\xff\"\n\"nul\\u0000\"\n\"b\"\n\"torn";
    static const char *const expected[] = {"a", "b", "c"};
    struct chat_history history;
    write_history(text, sizeof text - 1);
    chmod(in_folder("state/eng/chat_history"), 0644);
    expect_entries(expected, 2);
    open_history(&history);
    test_expect_success(chat_history_add(&history, "c", &status), &status);
    chat_history_close(&history);
    mode_t mode;
    assert_int_equal(history_size(&mode), strlen("\"a\"\n\"b\"\n\"c\"\n"));
    assert_int_equal(mode, 0600);
    expect_entries(expected, 3);
}

/* The number of entries, the size of each and the size of the file have bounds. */
TEST(test_bounds)
{
    enum { ENTRY = 10000, MANY = 300 };
    struct chat_history history;
    char *text = malloc(CHAT_HISTORY_ENTRY_BYTES + 1);
    assert_non_null(text);
    memset(text, 'x', CHAT_HISTORY_ENTRY_BYTES);
    text[CHAT_HISTORY_ENTRY_BYTES] = '\0';
    open_history(&history);
    test_expect_success(chat_history_add(&history, text, &status), &status);
    assert_int_equal(history_size(NULL), 0);
    text[ENTRY] = '\0';
    for (int i = 0; i < MANY; i++) {
        snprintf(text, 8, "%05d", i);
        text[5] = 'x';
        test_expect_success(chat_history_add(&history, text, &status), &status);
        assert_in_range(history_size(NULL), 1, CHAT_HISTORY_MOST_BYTES);
    }
    chat_history_close(&history);
    free(text);
    open_history(&history);
    assert_in_range(history.count, 8, MANY - 1);
    assert_memory_equal(history.entries[history.count - 1], "00299x", 6);
    chat_history_close(&history);
    assert_int_equal(test_count_entries(in_folder("state/eng")), 1);
}

TEST(test_many_short_entries)
{
    enum { LINES = 3 * CHAT_HISTORY_MOST_ENTRIES };
    struct chat_history history;
    char text[LINES * 8 + 1];
    for (int i = 0; i < LINES; i++) snprintf(text + 8 * i, 9, "\"%05d\"\n", i);
    write_history(text, LINES * 8);
    open_history(&history);
    assert_int_equal(history.count, CHAT_HISTORY_MOST_ENTRIES);
    assert_string_equal(history.entries[0], "02000");
    assert_string_equal(history.entries[CHAT_HISTORY_MOST_ENTRIES - 1], "02999");
    chat_history_close(&history);
    assert_int_equal(history_size(NULL), 8 * CHAT_HISTORY_MOST_ENTRIES);
}

TEST(test_failures)
{
    struct chat_history history;
    test_write_text(in_folder("file"), "");
    test_expect_failure(chat_history_open(&history, strdup(in_folder("file/chat_history")), &status), &status,
                        STATUS_MACHINE, "chat_history");
    chat_history_close(&history);
    test_expect_failure(chat_history_open(&history, strdup(folder), &status), &status, STATUS_MACHINE, folder);
    chat_history_close(&history);
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    test_expect_failure(chat_history_open(&history, strdup(in_folder("pipe")), &status), &status, STATUS_MACHINE,
                        "pipe");
    chat_history_close(&history);
    write_history("", 0);
    assert_int_equal(truncate(in_folder("state/eng/chat_history"), 64 << 20), 0);
    test_expect_failure(chat_history_open(&history, history_path(), &status), &status, STATUS_BAD_INPUT, "too large");
    chat_history_close(&history);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
