/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/checked.h"

#define ADVICE_RENAME "replace a file by rename, never by writing into it"

enum { TEMPORARY_NAME_ATTEMPTS = 100, OUTPUT_MODE = 0644, OWNER_MODE = 0600 };

static bool not_regular(const char *path, mode_t mode, struct status *status)
{
    return status_fail(status, STATUS_BAD_INPUT, "'%s': expected a regular file, found %s", path,
                       S_ISDIR(mode)    ? "a directory"
                       : S_ISFIFO(mode) ? "a special file (a named pipe)"
                                        : "a special file");
}

/* True, with *status filled, if the path that was not found is a dangling link. */
static bool is_dangling(const char *path, struct status *status)
{
    char target[128];
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) return false; /* not a link */
    target[length] = '\0';
    status_fail(
        status, STATUS_BAD_INPUT,
        "'%s' is a symbolic link to '%s', which leads to no file (an interrupted download?): download it again, or "
        "remove the link",
        path, target);
    return true;
}

bool file_find(const char *path, bool *present, struct status *status)
{
    struct stat information;
    *present = stat(path, &information) == 0;
    if (*present) return S_ISREG(information.st_mode) || not_regular(path, information.st_mode, status);
    int reason = errno;
    if (reason == ENOENT) return !is_dangling(path, status);
    return status_fail_errno(status, STATUS_BAD_INPUT, reason, "cannot inspect '%s'", path);
}

/* Whether an open file is a regular one; if not it is closed. */
static bool check_regular(int descriptor, const char *path, struct stat *information, struct status *status)
{
    if (fstat(descriptor, information) != 0)
        status_fail_errno(status, STATUS_BAD_INPUT, errno, "cannot inspect '%s'", path);
    else if (!S_ISREG(information->st_mode))
        not_regular(path, information->st_mode, status);
    else
        return true;
    close(descriptor);
    return false;
}

/* Takes the descriptor. */
static bool map_descriptor(struct file_map *map, int descriptor, const char *path, struct status *status)
{
    *map = (struct file_map){0};
    struct stat information;
    if (!check_regular(descriptor, path, &information, status)) return false;
    const uint64_t size = (uint64_t)information.st_size;
    bool done = true;
    if (size > SIZE_MAX) {
        done = status_fail(status, STATUS_MACHINE, "'%s' does not fit the address space", path);
    } else if (size) {
        void *data = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (data == MAP_FAILED) /* EACCES: the descriptor is not open for reading */
            done = status_fail_errno(status, errno == EACCES ? STATUS_BAD_INPUT : STATUS_MACHINE, errno,
                                     "cannot map '%s'", path);
        else
            *map = (struct file_map){.data = data,
                                     .size = size,
                                     .descriptor = descriptor,
                                     .modified = information.st_mtim};
    }
    if (!map->data) close(descriptor);
    return done;
}

/* O_NONBLOCK prevents open from blocking on a FIFO. */
static int open_for_reading(const char *path, struct status *status)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor >= 0) return descriptor;
    int reason = errno;
    if (reason != ENOENT || !is_dangling(path, status))
        status_fail_errno(status, STATUS_BAD_INPUT, reason, "cannot open '%s'", path);
    return -1;
}

bool file_map_open(struct file_map *map, const char *path, struct status *status)
{
    *map = (struct file_map){0};
    int descriptor = open_for_reading(path, status);
    return descriptor >= 0 && map_descriptor(map, descriptor, path, status);
}

bool file_map_open_descriptor(struct file_map *map, int descriptor, const char *name, struct status *status)
{
    *map = (struct file_map){0};
    int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return status_fail_errno(status, STATUS_BAD_INPUT, errno, "cannot use '%s'", name);
    return map_descriptor(map, own, name, status);
}

void file_map_close(struct file_map *map)
{
    if (map->data) {
        munmap((void *)(uintptr_t)map->data, (size_t)map->size);
        close(map->descriptor);
    }
    *map = (struct file_map){0};
}

bool file_map_read(const struct file_map *map, uint64_t offset, void *to, uint64_t bytes, struct status *status)
{
    uint8_t *at = to;
    if (!checked_range(offset, bytes, map->size))
        return status_fail(status, STATUS_USAGE, "bytes %llu + %llu of a file of %llu", (unsigned long long)offset,
                           (unsigned long long)bytes, (unsigned long long)map->size);
    while (bytes) {
        ssize_t count = pread(map->descriptor, at, bytes > SSIZE_MAX ? SSIZE_MAX : (size_t)bytes, (off_t)offset);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0)
            return status_fail_errno(status, STATUS_MACHINE, errno, "cannot read %llu bytes at offset %llu",
                                     (unsigned long long)bytes, (unsigned long long)offset);
        if (count == 0)
            return status_fail(status, STATUS_CORRUPT,
                               "the file ends before byte %llu, and had %llu bytes when it was opened; " ADVICE_RENAME,
                               (unsigned long long)offset, (unsigned long long)map->size);
        at += count;
        offset += (uint64_t)count;
        bytes -= (uint64_t)count;
    }
    return true;
}

bool file_map_unchanged(const struct file_map *map, struct status *status)
{
    struct stat now;
    if (!map->data) return true;
    if (fstat(map->descriptor, &now) != 0)
        return status_fail_errno(status, STATUS_MACHINE, errno, "cannot inspect the open file");
    if ((uint64_t)now.st_size == map->size && now.st_mtim.tv_sec == map->modified.tv_sec &&
        now.st_mtim.tv_nsec == map->modified.tv_nsec)
        return true;
    char how[80] = "its modification time is another";
    if ((uint64_t)now.st_size != map->size)
        snprintf(how, sizeof how, "it had %llu bytes, and has %llu", (unsigned long long)map->size,
                 (unsigned long long)now.st_size);
    return status_fail(status, STATUS_CORRUPT, "the file was changed in place while it was open (%s); " ADVICE_RENAME,
                       how);
}

void file_map_read_ahead(const void *data, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data / page * page;
    madvise((void *)begin, (uintptr_t)data + (uintptr_t)bytes - begin, MADV_WILLNEED);
}

void file_map_release(const void *data, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data, end = begin + (uintptr_t)bytes;
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

bool file_read(const char *path, uint64_t limit, char **text, size_t *size, struct status *status)
{
    bool done = false;
    char *buffer = NULL;
    uint64_t used = 0;
    struct stat information;
    *text = NULL;
    *size = 0;
    int descriptor = open_for_reading(path, status);
    if (descriptor < 0 || !check_regular(descriptor, path, &information, status)) return false;
    const uint64_t length = (uint64_t)information.st_size;
    if (length > limit || length >= SIZE_MAX) {
        status_fail(status, STATUS_BAD_INPUT, "'%s' is too large: expected at most %llu bytes, found %llu", path,
                    (unsigned long long)limit, (unsigned long long)length);
        goto done;
    }
    buffer = malloc((size_t)length + 1);
    if (!buffer) {
        status_fail(status, STATUS_MACHINE, "out of memory reading '%s'", path);
        goto done;
    }
    while (used < length) {
        ssize_t count = read(descriptor, buffer + used, (size_t)(length - used));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            status_fail_errno(status, STATUS_BAD_INPUT, errno, "cannot read '%s'", path);
            goto done;
        }
        if (count == 0) break; /* the file became shorter meanwhile: check the rest */
        used += (uint64_t)count;
    }
    buffer[used] = '\0';
    *text = buffer;
    *size = (size_t)used;
    buffer = NULL;
    done = true;
done:
    free(buffer);
    close(descriptor);
    return done;
}

bool file_read_start(const char *path, char *text, size_t capacity)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return false;
    size_t used = 0;
    while (used + 1 < capacity) {
        ssize_t got = read(descriptor, text + used, capacity - 1 - used);
        if (got <= 0) break;
        used += (size_t)got;
    }
    close(descriptor);
    text[used] = '\0';
    return used > 0;
}

/* Folder part of a path: "." for a plain name. Owned by the caller; NULL if out of memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    if (slash == path) return strdup("/");
    return strndup(path, (size_t)(slash - path));
}

/* A fresh hidden name in the folder of `path`, different for each `attempt`. Owned by the caller; NULL if out of
 * memory. */
static char *temporary_name(const char *path, int attempt)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    char *name = NULL;
    /* 200 bytes of the base name leave room for the rest within NAME_MAX (255) */
    if (asprintf(&name, "%.*s.%.200s.%ld-%lx-%d.tmp", (int)(base - path), path, base, (long)getpid(),
                 (unsigned long)now.tv_nsec, attempt) < 0)
        return NULL;
    return name;
}

/* Resolves the name that will be replaced: symbolic links are followed, so that a link remains and its target is
 * replaced. Refuses names that must not be replaced. */
static char *resolve_target(const char *path, struct status *status)
{
    struct stat information;
    size_t length = strlen(path);
    if (!length || path[length - 1] == '/') {
        status_fail(status, STATUS_BAD_INPUT, "cannot write '%s': expected a file name, found a folder name", path);
        return NULL;
    }
    char *target = NULL;
    if (lstat(path, &information) == 0 && S_ISLNK(information.st_mode)) {
        target = realpath(path, NULL);
        if (!target) {
            status_fail_errno(status, STATUS_BAD_INPUT, errno, "cannot write through the symbolic link '%s'", path);
            return NULL;
        }
    } else {
        target = strdup(path);
    }
    if (!target) {
        status_fail(status, STATUS_MACHINE, "out of memory");
    } else if (stat(target, &information) == 0 && !S_ISREG(information.st_mode)) {
        status_fail(status, STATUS_BAD_INPUT, "cannot write '%s': expected a new or regular file, found %s", path,
                    S_ISDIR(information.st_mode) ? "a directory" : "a special file");
        free(target);
        target = NULL;
    }
    return target;
}

static bool open_named_temporary(struct file_output *output, struct status *status)
{
    for (int attempt = 0; attempt < TEMPORARY_NAME_ATTEMPTS; attempt++) {
        char *name = temporary_name(output->path, attempt);
        if (!name) return status_fail(status, STATUS_MACHINE, "out of memory");
        output->descriptor = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, OUTPUT_MODE);
        if (output->descriptor >= 0) {
            output->temporary = name;
            return true;
        }
        free(name);
        if (errno != EEXIST) break;
    }
    return status_fail_errno(status, STATUS_MACHINE, errno, "cannot create '%s'", output->path);
}

/* Path of an open descriptor, by which linkat() can name an unnamed file without privileges. */
static void descriptor_path(int descriptor, char text[32]) { snprintf(text, 32, "/proc/self/fd/%d", descriptor); }

bool file_output_open(struct file_output *output, const char *path, struct status *status)
{
    bool done = false;
    char *folder = NULL;
    *output = (struct file_output){.descriptor = -1};
    output->path = resolve_target(path, status);
    if (!output->path) return false;
    folder = folder_of(output->path);
    if (!folder) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        goto done;
    }
    output->descriptor = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, OUTPUT_MODE);
    if (output->descriptor >= 0) {
        /* Without /proc the file could not be named: fail now instead of after the build. */
        char link_path[32];
        descriptor_path(output->descriptor, link_path);
        if (access(link_path, F_OK) == 0) {
            done = true;
            goto done;
        }
        close(output->descriptor);
        output->descriptor = -1;
    } else if (errno == ENOENT || errno == ENOTDIR) {
        status_fail_errno(status, STATUS_BAD_INPUT, errno, "cannot create '%s': folder '%s'", path, folder);
        goto done;
    }
    /* Other failures may only mean that the file system has no O_TMPFILE (EOPNOTSUPP, EISDIR, EINVAL). If they mean
     * more (EACCES, EROFS, ENOSPC), the attempt with a name fails with the same reason. */
    done = open_named_temporary(output, status);
done:
    free(folder);
    if (!done) file_output_abandon(output);
    return done;
}

/* Writes all of `data` at `offset`. */
static bool write_at(struct file_output *output, uint64_t offset, const void *data, uint64_t size,
                     struct status *status)
{
    const uint8_t *bytes = data;
    uint64_t end;
    if (output->descriptor < 0)
        return status_fail(status, STATUS_INTERNAL, "write to the closed output '%s'",
                           output->path ? output->path : "");
    if (!checked_add(offset, size, &end) || end > INT64_MAX)
        return status_fail(status, STATUS_MACHINE, "cannot write '%s': beyond the largest file offset", output->path);
    while (size) {
        ssize_t count = pwrite(output->descriptor, bytes, size > SSIZE_MAX ? SSIZE_MAX : (size_t)size, (off_t)offset);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0)
            return status_fail_errno(status, STATUS_MACHINE, count < 0 ? errno : EIO,
                                     "cannot write %llu bytes at offset %llu of '%s'", (unsigned long long)size,
                                     (unsigned long long)offset, output->path);
        bytes += count;
        offset += (uint64_t)count;
        size -= (uint64_t)count;
    }
    return true;
}

bool file_output_write(struct file_output *output, const void *data, uint64_t size, struct status *status)
{
    if (!write_at(output, output->position, data, size, status)) return false;
    output->position += size;
    return true;
}

bool file_output_restrict(struct file_output *output, struct status *status)
{
    return fchmod(output->descriptor, OWNER_MODE) == 0 ||
           status_fail_errno(status, STATUS_MACHINE, errno, "cannot restrict '%s' to its owner", output->path);
}

bool file_output_pad(struct file_output *output, uint64_t alignment, struct status *status)
{
    static const uint8_t zeros[4096];
    uint64_t end;
    if (!checked_align(output->position, alignment, &end))
        return status_fail(status, STATUS_MACHINE, "cannot pad '%s': beyond the largest file offset", output->path);
    while (output->position < end) {
        uint64_t rest = end - output->position;
        if (!file_output_write(output, zeros, rest < sizeof zeros ? rest : sizeof zeros, status)) return false;
    }
    return true;
}

bool file_output_reserve(struct file_output *output, uint64_t bytes, struct status *status)
{
    uint64_t end;
    if (!checked_add(output->position, bytes, &end) || end > INT64_MAX)
        return status_fail(status, STATUS_MACHINE, "cannot write '%s': beyond the largest file offset", output->path);
    if (ftruncate(output->descriptor, (off_t)end) != 0)
        return status_fail_errno(status, STATUS_MACHINE, errno, "cannot write '%s': no room for %llu bytes",
                                 output->path, (unsigned long long)end);
    output->position = end;
    return true;
}

bool file_output_patch(struct file_output *output, uint64_t offset, const void *data, uint64_t size,
                       struct status *status)
{
    if (!checked_range(offset, size, output->position))
        return status_fail(status, STATUS_INTERNAL, "patch of %llu bytes at %llu leaves '%s', which has %llu",
                           (unsigned long long)size, (unsigned long long)offset, output->path,
                           (unsigned long long)output->position);
    return write_at(output, offset, data, size, status);
}

/* Names the unnamed file. A free name is linked directly, so that a temporary name never exists. linkat() cannot
 * replace, so an existing target needs a temporary name and a rename. */
static bool link_unnamed(struct file_output *output, bool *linked_to_target, struct status *status)
{
    char link_path[32];
    descriptor_path(output->descriptor, link_path);
    *linked_to_target = linkat(AT_FDCWD, link_path, AT_FDCWD, output->path, AT_SYMLINK_FOLLOW) == 0;
    for (int attempt = 0; !*linked_to_target && attempt < TEMPORARY_NAME_ATTEMPTS; attempt++) {
        if (errno != EEXIST) break;
        char *name = temporary_name(output->path, attempt);
        if (!name) return status_fail(status, STATUS_MACHINE, "out of memory");
        if (linkat(AT_FDCWD, link_path, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0) {
            output->temporary = name;
            return true;
        }
        int error = errno;
        free(name);
        errno = error;
    }
    if (*linked_to_target) return true;
    return status_fail_errno(status, STATUS_MACHINE, errno, "cannot name the finished '%s'", output->path);
}

/* Opens the folder for sync_folder. A folder may be writable but not readable: *descriptor is then -1. */
static bool open_folder(const char *path, int *descriptor, struct status *status)
{
    *descriptor = -1;
    char *folder = folder_of(path);
    if (!folder) return status_fail(status, STATUS_MACHINE, "out of memory");
    *descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool done = *descriptor >= 0 || errno == EACCES ||
                status_fail_errno(status, STATUS_MACHINE, errno, "cannot open the folder of '%s'", path);
    free(folder);
    return done;
}

/* Makes the new directory entry durable. Some file systems cannot sync a folder; that is no failure. */
static bool sync_folder(int descriptor, const char *path, struct status *status)
{
    if (descriptor < 0 || fsync(descriptor) == 0 || errno == EINVAL || errno == ENOSYS || errno == EROFS) return true;
    return status_fail_errno(status, STATUS_MACHINE, errno, "cannot sync the folder of '%s'", path);
}

bool file_output_sync(struct file_output *output, struct status *status)
{
    return fsync(output->descriptor) == 0 ||
           status_fail_errno(status, STATUS_MACHINE, errno, "cannot sync '%s' to disk", output->path);
}

bool file_output_commit(struct file_output *output, struct status *status)
{
    bool done = false, linked_to_target = false;
    int folder = -1;
    if (output->descriptor < 0)
        return status_fail(status, STATUS_INTERNAL, "commit of the closed output '%s'",
                           output->path ? output->path : "");
    if (!file_output_sync(output, status) || !open_folder(output->path, &folder, status)) goto done;
    if (!output->temporary && !link_unnamed(output, &linked_to_target, status)) goto done;
    if (!linked_to_target) {
        if (rename(output->temporary, output->path) != 0) {
            status_fail_errno(status, STATUS_MACHINE, errno, "cannot rename the finished file to '%s'", output->path);
            goto done;
        }
        free(output->temporary);
        output->temporary = NULL;
    }
    done = sync_folder(folder, output->path, status);
done:
    if (folder >= 0) close(folder);
    file_output_abandon(output);
    return done;
}

void file_output_abandon(struct file_output *output)
{
    if (output->temporary) unlink(output->temporary);
    if (output->descriptor >= 0) close(output->descriptor);
    free(output->temporary);
    free(output->path);
    *output = (struct file_output){.descriptor = -1};
}

bool file_has_suffix(const char *name, const char *suffix)
{
    size_t length = strlen(name), tail = strlen(suffix);
    return length >= tail && strcmp(name + length - tail, suffix) == 0;
}
