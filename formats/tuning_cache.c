/* SPDX-License-Identifier: Apache-2.0 */
/* The cache file: records appended line by line, read whole. A line that is damaged, torn by a kill or of another
 * version costs that line only. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "formats/file.h"
#include "formats/tuning_record.h"

#define TUNING_CACHE_MAX_BYTES (UINT64_C(256) << 20)

/* Index of the first record whose key is not before `key`. */
static size_t lower_bound(const struct tuning_cache *cache, const char *key)
{
    size_t low = 0, high = cache->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(cache->records[middle].key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool reserve_one(struct tuning_cache *cache, struct status *status)
{
    if (cache->count < cache->capacity) return true;
    size_t capacity = cache->capacity ? 2 * cache->capacity : 64;
    struct tuning_record *records = realloc(cache->records, capacity * sizeof *records);
    if (!records) return status_fail(status, STATUS_MACHINE, "out of memory");
    cache->records = records;
    cache->capacity = capacity;
    return true;
}

/* Adds or replaces; records stay sorted. */
static bool put_record(struct tuning_cache *cache, const struct tuning_record *record, struct status *status)
{
    size_t at = lower_bound(cache, record->key);
    if (at == cache->count || strcmp(cache->records[at].key, record->key) != 0) {
        if (!reserve_one(cache, status)) return false;
        memmove(&cache->records[at + 1], &cache->records[at], (cache->count - at) * sizeof *record);
        cache->count++;
    }
    cache->records[at] = *record;
    return true;
}

bool tuning_cache_parse(struct tuning_cache *cache, const char *text, size_t size, struct status *status)
{
    const char *end = text + size;
    for (const char *line = text; line < end;) {
        const char *line_end = memchr(line, '\n', (size_t)(end - line));
        if (!line_end) line_end = end; /* a record is whole or fails its checksum, newline or not */
        struct tuning_record record;
        if (line_end == line) {
            /* An empty line ends a torn one (append_line), or begins a file: no damage. */
        } else if (!tuning_record_parse(&record, line, (size_t)(line_end - line), NULL)) {
            cache->damaged++;
        } else if (!put_record(cache, &record, status)) {
            return false;
        }
        line = line_end + (line_end < end);
    }
    return true;
}

bool tuning_cache_open(struct tuning_cache *cache, const char *path, struct status *status)
{
    *cache = (struct tuning_cache){0};
    if (!path) return true;
    char *text = NULL;
    size_t size = 0;
    struct status read_status = {0};
    bool done = false;
    cache->path = strdup(path);
    if (!cache->path) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        goto cleanup;
    }
    if (file_read(path, TUNING_CACHE_MAX_BYTES, &text, &size, &read_status)) {
        done = tuning_cache_parse(cache, text, size, status);
    } else if (read_status.code == STATUS_NOT_FOUND) {
        done = true;
    } else {
        status_fail(status, read_status.code, "tuning cache: %s", read_status.message);
    }
cleanup:
    free(text);
    if (!done) tuning_cache_close(cache);
    return done;
}

const struct tuning_record *tuning_cache_find(const struct tuning_cache *cache, const char *key)
{
    size_t at = lower_bound(cache, key);
    return at < cache->count && strcmp(cache->records[at].key, key) == 0 ? &cache->records[at] : NULL;
}

/* Makes the folder that holds `path`, and the one above it if need be: ~/.cache/engbuild on a fresh machine. Deeper
 * chains are more likely a mistyped path. */
static void make_parents(const char *path)
{
    char *parent = strdup(path), *slash = parent ? strrchr(parent, '/') : NULL;
    if (slash && slash != parent) {
        *slash = '\0';
        char *grandparent_end = strrchr(parent, '/');
        if (mkdir(parent, 0777) != 0 && errno == ENOENT && grandparent_end && grandparent_end != parent) {
            *grandparent_end = '\0';
            mkdir(parent, 0777);
            *grandparent_end = '/';
            mkdir(parent, 0777);
        }
    }
    free(parent); /* whether it worked, the next open tells */
}

/* True if the file ends in the middle of a line: a writer was killed, or the disk was full. */
static bool ends_torn(int descriptor)
{
    struct stat information;
    char last = '\n';
    if (fstat(descriptor, &information) != 0 || information.st_size == 0) return false;
    return pread(descriptor, &last, 1, information.st_size - 1) == 1 && last != '\n';
}

static bool append_line(const char *path, const char *line, size_t size, struct status *status)
{
    const int flags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC;
    int descriptor = open(path, flags, 0666);
    if (descriptor < 0 && errno == ENOENT) {
        make_parents(path);
        descriptor = open(path, flags, 0666);
    }
    if (descriptor < 0)
        return status_fail_errno(status, STATUS_BAD_INPUT, errno, "tuning cache: cannot open '%s'", path);
    /* One write, which O_APPEND keeps apart from those of other processes. Two of them may both see a torn end: the
     * empty line that this makes is read over. */
    bool torn = ends_torn(descriptor);
    char line_end[] = {'\n'};
    struct iovec pieces[] = {
        {.iov_base = line_end, .iov_len = torn},
        {.iov_base = (void *)(uintptr_t)line, .iov_len = size},
    };
    ssize_t written;
    do written = writev(descriptor, pieces, 2);
    while (written < 0 && errno == EINTR);
    int error = written < 0 ? errno : ENOSPC; /* a short write to a file means that the disk is full */
    bool done = written == (ssize_t)(size + torn);
    if (!done) status_fail_errno(status, STATUS_MACHINE, error, "tuning cache: cannot append to '%s'", path);
    close(descriptor);
    return done;
}

bool tuning_cache_add(struct tuning_cache *cache, const struct tuning_record *record, struct status *status)
{
    char *line = NULL;
    size_t size = 0;
    if (!tuning_record_format(record, &line, &size, status)) return false;
    bool done = put_record(cache, record, status) && (!cache->path || append_line(cache->path, line, size, status));
    free(line);
    return done;
}

void tuning_cache_close(struct tuning_cache *cache)
{
    free(cache->records);
    free(cache->path);
    *cache = (struct tuning_cache){0};
}
