/* SPDX-License-Identifier: Apache-2.0 */
/* The cache file: records are appended line by line and read as a whole. A line that is damaged, torn by a kill or of
 * another version costs only that line. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "formats/base/file.h"
#include "formats/base/hash.h"
#include "formats/tuning/tuning_record.h"

#define TUNING_CACHE_MAX_BYTES (UINT64_C(256) << 20)

/* The slot of the key, or a free slot for it. Requires: there are free slots. */
static uint32_t *find_slot(const struct tuning_cache *cache, const char *key)
{
    size_t at = (size_t)hash64(key, strlen(key)) & (cache->slot_count - 1);
    while (cache->slots[at] && strcmp(cache->records[cache->slots[at] - 1].key, key) != 0)
        at = (at + 1) & (cache->slot_count - 1);
    return &cache->slots[at];
}

/* Doubles the room for records, with twice as many slots. */
static bool grow(struct tuning_cache *cache, struct status *status)
{
    size_t capacity = cache->capacity ? 2 * cache->capacity : 64;
    struct tuning_record *records = realloc(cache->records, capacity * sizeof *records);
    if (records) cache->records = records;
    uint32_t *slots = calloc(2 * capacity, sizeof *slots);
    if (!records || !slots || capacity > UINT32_MAX / 2) {
        free(slots);
        return status_fail(status, STATUS_MACHINE, "out of memory");
    }
    free(cache->slots);
    cache->slots = slots;
    cache->slot_count = 2 * capacity;
    cache->capacity = capacity;
    for (size_t i = 0; i < cache->count; i++) *find_slot(cache, records[i].key) = (uint32_t)i + 1;
    return true;
}

/* Adds or replaces a record. */
static bool put_record(struct tuning_cache *cache, const struct tuning_record *record, struct status *status)
{
    if (cache->count == cache->capacity && !grow(cache, status)) return false;
    uint32_t *slot = find_slot(cache, record->key);
    if (!*slot) *slot = (uint32_t)++cache->count;
    cache->records[*slot - 1] = *record;
    return true;
}

bool tuning_cache_parse(struct tuning_cache *cache, const char *text, size_t size, struct status *status)
{
    const char *end = text + size;
    for (const char *line = text; line < end;) {
        const char *line_end = memchr(line, '\n', (size_t)(end - line));
        if (!line_end) line_end = end; /* a record is complete, or its checksum fails, with or without newline */
        struct tuning_record record;
        if (line_end == line) {
            /* An empty line ends a torn one (append_line) or begins a file: no damage. */
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
    if (!cache->count) return NULL;
    const uint32_t slot = *find_slot(cache, key);
    return slot ? &cache->records[slot - 1] : NULL;
}

/* Creates the folder of `path` and, if necessary, its parent: ~/.cache/engbuild on a new machine. Longer missing chains
 * are more likely a mistyped path. */
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
    free(parent); /* the next open reports a failure */
}

/* True if the file ends within a line: a writer was killed, or the disk was full. */
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
    /* One write, which O_APPEND separates from those of other processes. Two of them may both find a torn end; the
     * resulting empty line is skipped by readers. */
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
    free(cache->slots);
    free(cache->records);
    free(cache->path);
    *cache = (struct tuning_cache){0};
}
