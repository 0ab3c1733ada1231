/* SPDX-License-Identifier: Apache-2.0 */
/* File access: read-only mappings, and output files that appear completely or not at all. */
#ifndef FORMATS_BASE_FILE_H
#define FORMATS_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "formats/base/status.h"

/* Checks whether a file exists, without opening it. *present: a regular file, or a link to one. An unused name is no
 * failure. Anything else with that name fails: a folder, a pipe, a dangling link such as an interrupted download
 * leaves. */
bool file_find(const char *path, bool *present, struct status *status);

/* A regular file, mapped read-only as a whole (MAP_PRIVATE, so that its pages remain page cache). */
struct file_map {
    const uint8_t *data; /* NULL when size is 0 */
    uint64_t size;
    int descriptor;           /* for file_map_read; none when size is 0 */
    struct timespec modified; /* modification time when it was opened */
};

bool file_map_open(struct file_map *map, const char *path, struct status *status);
/* The same for a file that is open for reading; the map has a descriptor of its own. `name` is for messages. */
bool file_map_open_descriptor(struct file_map *map, int descriptor, const char *name, struct status *status);
void file_map_close(struct file_map *map);

/* Fails with STATUS_CORRUPT if size or modification time of the opened file have changed. Renaming or unlinking it is
 * no change. One system call. Thread-safe. */
bool file_map_unchanged(const struct file_map *map, struct status *status);

/* Copies bytes [offset, offset + bytes) of the file. For data that is read once in large pieces: no page faults, and if
 * the file became shorter it fails, where access to the mapping would end the process. Thread-safe. */
bool file_map_read(const struct file_map *map, uint64_t offset, void *to, uint64_t bytes, struct status *status);

/* Advises the system that these bytes of a mapping are needed soon. */
void file_map_read_ahead(const void *data, uint64_t bytes);

/* Removes the whole pages inside [data, data + bytes) of a read-only file mapping from this process. They remain in the
 * page cache and are mapped again on access. Keeps the memory of a program that reads a large file once small. */
void file_map_release(const void *data, uint64_t bytes);

/* Reads a small file (at most `limit` bytes) into memory that the caller frees, followed by a NUL. */
bool file_read(const char *path, uint64_t limit, char **text, size_t *size, struct status *status);

/* Reads as much of a file as fits into `text`, followed by a NUL, for files of the kernel. Allocates nothing. False if
 * nothing can be read. */
bool file_read_start(const char *path, char *text, size_t capacity);

/* An output file. It is written under a temporary name in the target's folder (or without a name where O_TMPFILE is
 * available, so that nothing remains if the process is killed); commit does fsync, rename, and fsync of the folder.
 * Requires: one thread at a time. */
struct file_output {
    int descriptor;    /* -1 when closed */
    uint64_t position; /* bytes written so far */
    char *path;        /* owned: the final name */
    char *temporary;   /* owned: temporary name, NULL with O_TMPFILE */
};

bool file_output_open(struct file_output *output, const char *path, struct status *status);
bool file_output_write(struct file_output *output, const void *data, uint64_t size, struct status *status);
/* Only the owner may read or write the file. Call it before the first write. */
bool file_output_restrict(struct file_output *output, struct status *status);
/* Writes zeros up to the next multiple of `alignment` (a power of two). */
bool file_output_pad(struct file_output *output, uint64_t alignment, struct status *status);
/* Reserves `bytes` zeros, which file_output_patch fills later. */
bool file_output_reserve(struct file_output *output, uint64_t bytes, struct status *status);
/* Overwrites earlier bytes; the position does not change. Several threads may call it while no other function is
 * called. */
bool file_output_patch(struct file_output *output, uint64_t offset, const void *data, uint64_t size,
                       struct status *status);
/* Makes the data written so far durable, so that file_output_commit takes less time. */
bool file_output_sync(struct file_output *output, struct status *status);
/* Makes the file durable and gives it its final name. The output is closed afterwards, on failure too. Allocates
 * nothing after the file is named, so that a failed allocation leaves no file. */
bool file_output_commit(struct file_output *output, struct status *status);
/* Discards the output; does nothing after commit. */
void file_output_abandon(struct file_output *output);

/* Whether a name ends with the suffix. */
bool file_has_suffix(const char *name, const char *suffix);

#endif
