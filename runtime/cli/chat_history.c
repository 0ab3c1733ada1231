/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/file.h"
#include "formats/base/json.h"

enum { OWNER_FOLDER = 0700, OWNER_FILE = 0600 };

/* The file may be longer than its bound: another program may add an entry at the same time. */
enum { MOST_BYTES_READ = 2 * CHAT_HISTORY_MOST_BYTES };

char *chat_history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int length = -1;
    if (state && state[0] == '/')
        length = asprintf(&path, "%s/eng/chat_history", state);
    else if (home && home[0] == '/')
        length = asprintf(&path, "%s/.local/state/eng/chat_history", home);
    return length < 0 ? NULL : path;
}

/* Creates the folders of a path that are missing. */
static bool make_folders(char *path, struct status *status)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        const int failure = mkdir(path, OWNER_FOLDER) == 0 || errno == EEXIST ? 0 : errno;
        if (failure) status_fail_errno(status, STATUS_MACHINE, failure, "cannot create the folder '%s'", path);
        *slash = '/';
        if (failure) return false;
    }
    return true;
}

static void forget_entries(struct chat_history *history)
{
    for (size_t i = 0; i < history->count; i++) free(history->entries[i]);
    free(history->entries);
    history->entries = NULL;
    history->count = 0;
}

static bool keep(struct chat_history *history, const char *text, struct status *status)
{
    if (history->count == CHAT_HISTORY_MOST_ENTRIES) {
        free(history->entries[0]);
        memmove(history->entries, history->entries + 1, --history->count * sizeof *history->entries);
    }
    history->entries[history->count] = strdup(text);
    return history->entries[history->count++] || status_fail(status, STATUS_MACHINE, "out of memory");
}

/* A line of the file, without its newline. *is_entry: whether it is one. */
static bool read_line(struct chat_history *history, const char *line, size_t size, bool *is_entry,
                      struct status *status)
{
    json_t *value = json_loadb(line, size, JSON_DECODE_ANY, NULL);
    const char *text = json_string_value(value);
    *is_entry = text && *text && size <= CHAT_HISTORY_ENTRY_BYTES;
    const bool ok = !*is_entry || keep(history, text, status);
    json_decref(value);
    return ok;
}

/* *is_clean: every line is an entry, and there are not too many. */
static bool read_entries(struct chat_history *history, bool *is_clean, struct status *status)
{
    char *text;
    size_t size, lines = 0;
    history->entries = malloc((CHAT_HISTORY_MOST_ENTRIES + 1) * sizeof *history->entries);
    if (!history->entries) return status_fail(status, STATUS_MACHINE, "out of memory");
    if (!file_read(history->path, MOST_BYTES_READ, &text, &size, status)) return false;
    bool ok = true;
    *is_clean = size <= CHAT_HISTORY_MOST_BYTES;
    for (const char *at = text, *end; ok && at < text + size; at = end + 1, lines++) {
        bool is_entry;
        end = memchr(at, '\n', (size_t)(text + size - at));
        if (!end) {
            *is_clean = false; /* the program that wrote it was ended */
            break;
        }
        ok = read_line(history, at, (size_t)(end - at), &is_entry, status);
        *is_clean = *is_clean && is_entry;
    }
    *is_clean = *is_clean && lines <= 2 * CHAT_HISTORY_MOST_ENTRIES;
    free(text);
    return ok;
}

/* The entry as a line with its newline, owned; NULL: out of memory, or the text is not UTF-8. */
static char *format_line(const char *text)
{
    json_t *value = json_string(text);
    char *line = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL, *larger = NULL;
    json_decref(value);
    if (line) larger = realloc(line, strlen(line) + sizeof "\n");
    if (larger) return strcat(larger, "\n");
    free(line);
    return NULL;
}

/* Writes the file anew, with the latest entries, in at most half of its bound. */
static bool rewrite(const struct chat_history *history, struct status *status)
{
    struct file_output output;
    size_t first = history->count, size = 0;
    while (first > 0) {
        /* JSON writes a byte in at most six. */
        size += 6 * strlen(history->entries[first - 1]) + sizeof "\"\"\n";
        if (size > CHAT_HISTORY_MOST_BYTES / 2) break;
        first--;
    }
    if (!file_output_open(&output, history->path, status)) return false;
    bool ok = file_output_restrict(&output, status);
    for (size_t i = first; ok && i < history->count; i++) {
        char *line = format_line(history->entries[i]);
        ok = line ? file_output_write(&output, line, strlen(line), status)
                  : status_fail(status, STATUS_MACHINE, "out of memory");
        free(line);
    }
    ok = ok && file_output_commit(&output, status);
    file_output_abandon(&output);
    return ok;
}

/* The file, for writing at its end; -1 on failure. */
static int open_end(const struct chat_history *history, struct stat *facts, struct status *status)
{
    const int file = open(history->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, OWNER_FILE);
    if (file < 0 || fstat(file, facts) != 0) {
        status_fail_errno(status, STATUS_MACHINE, errno, "cannot write '%s'", history->path);
    } else if (!S_ISREG(facts->st_mode)) {
        status_fail(status, STATUS_BAD_INPUT, "'%s': expected a regular file, found a special one", history->path);
    } else if ((facts->st_mode & 077) && fchmod(file, OWNER_FILE) != 0) {
        status_fail_errno(status, STATUS_MACHINE, errno, "cannot restrict '%s' to its owner", history->path);
    } else {
        return file;
    }
    if (file >= 0) close(file);
    return -1;
}

static bool shorten(struct chat_history *history, struct status *status)
{
    struct chat_history now = {.path = history->path};
    bool is_clean;
    const bool ok = read_entries(&now, &is_clean, status) && rewrite(&now, status);
    forget_entries(&now);
    return ok;
}

bool chat_history_open(struct chat_history *history, char *path, struct status *status)
{
    struct stat facts;
    bool is_clean;
    *history = (struct chat_history){.path = path};
    if (!make_folders(path, status)) return false;
    const int file = open_end(history, &facts, status);
    if (file < 0) return false;
    close(file);
    if (!read_entries(history, &is_clean, status)) return false;
    return is_clean || rewrite(history, status);
}

bool chat_history_add(struct chat_history *history, const char *text, struct status *status)
{
    struct stat facts;
    char *line = format_line(text);
    const size_t size = line ? strlen(line) : 0;
    bool ok = true;
    if (size > 0 && size <= CHAT_HISTORY_ENTRY_BYTES) {
        const int file = open_end(history, &facts, status);
        ok = file >= 0;
        if (ok && write(file, line, size) != (ssize_t)size)
            ok = status_fail_errno(status, STATUS_MACHINE, errno, "cannot write '%s'", history->path);
        if (file >= 0) close(file);
        if (ok && facts.st_size + (off_t)size > CHAT_HISTORY_MOST_BYTES) ok = shorten(history, status);
    }
    free(line);
    return ok;
}

void chat_history_close(struct chat_history *history)
{
    forget_entries(history);
    free(history->path);
    *history = (struct chat_history){0};
}
