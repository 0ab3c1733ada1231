/* SPDX-License-Identifier: Apache-2.0 */
/* Files as this project needs them: a read-only mapping, and an output that appears whole or not at all. */
#ifndef FORMATS_BASE_FILE_H
#define FORMATS_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "formats/base/status.h"

/* Looks for a file that may be absent, and opens nothing. *present: it is there, a regular file or a link to one; nothing of
 * that name is no error. Anything else of that name fails and is named: a link to nothing, as an interrupted download leaves
 * it, a folder, a pipe. */
bool file_find(const char *path, bool *present, struct status *status);

/* A whole regular file mapped read-only (MAP_PRIVATE, so its pages stay page cache). */
struct file_map {
    const uint8_t *data; /* NULL when size is 0 */
    uint64_t size;
    int descriptor;           /* for file_map_read; none when size is 0 */
    struct timespec modified; /* when it was opened */
};

bool file_map_open(struct file_map *map, const char *path, struct status *status);
void file_map_close(struct file_map *map);

/* Fails with STATUS_CORRUPT where the file that was opened has another size or modification time than then: somebody wrote
 * into it or cut it. A file that has lost its name, or given it to another one, is unchanged. One system call.
 * Thread-safe. */
bool file_map_unchanged(const struct file_map *map, struct status *status);

/* Copies bytes [offset, offset + bytes) of the file. For what is read once and in large pieces: it takes no page faults, and
 * where the file has become shorter it fails, while the mapping would end the process. Thread-safe. */
bool file_map_read(const struct file_map *map, uint64_t offset, void *to, uint64_t bytes, struct status *status);

/* That these bytes of a mapping are wanted soon: no more than advice. */
void file_map_read_ahead(const void *data, uint64_t bytes);

/* Takes the whole pages inside [data, data + bytes) of a read-only file mapping out of this process: they stay in the
 * page cache and come back when read again. Keeps a program that streams through a large file small. */
void file_map_release(const void *data, uint64_t bytes);

/* Reads a small file whole (at most `limit` bytes) into malloc'd memory with a NUL behind; free() it. */
bool file_read(const char *path, uint64_t limit, char **text, size_t *size, struct status *status);

/* Reads what fits of a file, one of the kernel's say, into `text`, with a NUL behind. Takes no memory. False where there is
 * nothing to be read. */
bool file_read_start(const char *path, char *text, size_t capacity);

/* An output file: written under a temporary name in the target's folder (unlinked by the kernel if the process is
 * killed, where O_TMPFILE is available), then fsync, rename, fsync of the folder. One thread at a time. */
struct file_output {
    int descriptor;    /* -1 when closed */
    uint64_t position; /* bytes written so far */
    char *path;        /* owned: the final name */
    char *temporary;   /* owned: temporary name, NULL with O_TMPFILE */
};

bool file_output_open(struct file_output *output, const char *path, struct status *status);
bool file_output_write(struct file_output *output, const void *data, uint64_t size, struct status *status);
/* Writes zeros up to the next multiple of `alignment` (a power of two). */
bool file_output_pad(struct file_output *output, uint64_t alignment, struct status *status);
/* Leaves room for `bytes` zeros, for file_output_patch to fill. */
bool file_output_reserve(struct file_output *output, uint64_t bytes, struct status *status);
/* Overwrites earlier bytes; does not move the position. Several threads may, while no other function is called. */
bool file_output_patch(struct file_output *output, uint64_t offset, const void *data, uint64_t size,
                       struct status *status);
/* Makes what was written durable, so that little is left for file_output_commit. */
bool file_output_sync(struct file_output *output, struct status *status);
/* Makes the file durable and gives it its final name. After this (success or not) the output is closed. Takes no memory once
 * the file has its name: a failure for want of memory leaves none. */
bool file_output_commit(struct file_output *output, struct status *status);
/* Drops the output without a trace; harmless after commit. */
void file_output_abandon(struct file_output *output);

#endif
