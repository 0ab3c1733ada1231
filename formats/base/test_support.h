/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers shared by the unit tests: temporary folders, small files, and checks of a failure's code and message. */
#ifndef FORMATS_BASE_TEST_SUPPORT_H
#define FORMATS_BASE_TEST_SUPPORT_H

#include <dirent.h>
#include <ftw.h>

#include "formats/base/status.h"
#include "formats/base/test_program.h"

/* For main() of a test that needs its own version of a library: runs the program again with `folder` first in
 * LD_LIBRARY_PATH. True in that second run; false: return *result. If the folder does not exist the test cannot run,
 * which is a failure under Bazel, where it is built. */
static inline bool test_with_libraries(const char *folder, char **argv, int *result)
{
    const char *folders = getenv("LD_LIBRARY_PATH");
    *result = getenv("TEST_SRCDIR") ? 1 : 0;
    if (access(folder, R_OK) != 0) {
        fprintf(stderr, "%s: expected libraries in %s, which Bazel builds\n", *result ? "failed" : "skipped", folder);
        return false;
    }
    if (folders && strncmp(folders, folder, strlen(folder)) == 0) return true;
    char *longer = NULL;
    *result = 1;
    if (asprintf(&longer, "%s%s%s", folder, folders && *folders ? ":" : "", folders ? folders : "") < 0) return false;
    setenv("LD_LIBRARY_PATH", longer, 1);
    free(longer);
    execv("/proc/self/exe", argv);
    perror("/proc/self/exe");
    return false;
}

/* Creates a folder; test_folder_remove() deletes it with its contents. */
static inline char *test_folder(void)
{
    const char *base = getenv("TEST_TMPDIR");
    char *path = NULL;
    assert_true(asprintf(&path, "%s/formats-XXXXXX", base ? base : "/tmp") > 0);
    assert_non_null(mkdtemp(path));
    return path;
}

static inline int test_remove_entry(const char *path, const struct stat *information, int type, struct FTW *position)
{
    (void)information, (void)type, (void)position;
    return remove(path);
}

static inline void test_folder_remove(char *path)
{
    nftw(path, test_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(path);
}

/* A formatted text in a buffer that is reused after three more calls. */
__attribute__((format(printf, 1, 2))) static inline const char *test_text(const char *format, ...)
{
    static char buffers[4][512];
    static int next;
    char *buffer = buffers[next++ % 4];
    va_list arguments;
    va_start(arguments, format);
    assert_in_range(vsnprintf(buffer, sizeof buffers[0], format, arguments), 0, sizeof buffers[0] - 1);
    va_end(arguments);
    return buffer;
}

/* folder/name, likewise */
static inline const char *test_path(const char *folder, const char *name) { return test_text("%s/%s", folder, name); }

static inline void test_write(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline void test_write_text(const char *path, const char *text) { test_write(path, text, strlen(text)); }

/* JSON in tests has ' for ", which needs no backslash: makes it JSON, in place. */
static inline char *test_quote(char *text)
{
    for (char *at = text; (at = strchr(at, '\''));) *at = '"';
    return text;
}

/* The same in a buffer that is reused after one more call */
static inline const char *test_json(const char *text)
{
    static char buffers[2][4096];
    static int next;
    char *buffer = buffers[next++ % 2];
    assert_true(strlen(text) < sizeof buffers[0]);
    return test_quote(strcpy(buffer, text));
}

static inline int test_count_entries(const char *folder)
{
    int count = 0;
    DIR *stream = opendir(folder);
    if (!stream) return -1;
    for (const struct dirent *entry; (entry = readdir(stream));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(stream);
    return count;
}

/* The next of a sequence of random numbers below 2^31 (Knuth, MMIX). */
static inline uint64_t test_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* The message must hold every word; words are separated by '|'. */
static inline void test_expect_message(const struct status *status, const char *words)
{
    char copy[1024];
    assert_true(strlen(words) < sizeof copy);
    strcpy(copy, words);
    for (char *rest = copy, *word; (word = strsep(&rest, "|"));)
        if (!strstr(status->message, word)) fail_msg("'%s' is not in: %s", word, status->message);
    assert_null(strchr(status->message, '\n'));
}

static inline void test_expect_failure(bool result, const struct status *status, enum status_code code,
                                       const char *words)
{
    if (result) fail_msg("accepted, but expected a failure with: %s", words);
    if (status->code != code) fail_msg("expected code %d, found %d: %s", (int)code, (int)status->code, status->message);
    test_expect_message(status, words);
}

static inline void test_expect_success(bool result, const struct status *status)
{
    if (!result) fail_msg("refused: %s", status->message);
}

/* Whether the test runs under sanitizers, where it takes several times as long: loops of random cases are shorter there. */
static inline bool test_sanitized(void) { return getenv("ENG_SANITIZED") != NULL; }

/* The folder of shared models; NULL if the environment names none, and the test should skip(). */
static inline const char *test_shared(void)
{
    const char *shared = getenv("ENG_SHARED");
    return shared && *shared ? shared : NULL;
}

#endif
