/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/memory_limit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "formats/base/file.h"

enum { PATH_BYTES = 1024, TEXT_BYTES = 16384, MOST_LEVELS = 64 };

static bool parse_number(const char *text, uint64_t *value)
{
    if (*text < '0' || *text > '9') return false; /* "max": no limit */
    *value = strtoull(text, NULL, 10);
    return true;
}

/* The number after `key` at the start of a line. */
static bool find_number(const char *text, const char *key, uint64_t *value)
{
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, length) != 0) continue;
        const char *number = line + length;
        while (*number == ' ' || *number == ':' || *number == '\t') number++;
        return parse_number(number, value);
    }
    return false;
}

static bool read_number(const char *folder, const char *name, uint64_t *value)
{
    char path[PATH_BYTES], text[64];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path) return false;
    return file_read_start(path, text, sizeof text) && parse_number(text, value);
}

static void lower(struct memory_limit *memory, uint64_t bytes, const char *limit)
{
    if (bytes >= memory->bytes) return;
    memory->bytes = bytes;
    memory->name = limit;
}

struct group_files {
    const char *mount; /* below the root */
    const char *limit, *usage;
    const char *cache; /* line of memory.stat with the page cache, which the kernel reclaims when memory is needed */
    const char *name;
};

/* A group and all its ancestors: the kernel enforces every level. */
static void apply_group(const char *root, const struct group_files *files, const char *group,
                        struct memory_limit *memory)
{
    char folder[PATH_BYTES];
    int length = snprintf(folder, sizeof folder, "%s%s%s", root, files->mount, group);
    if (length < 0 || (size_t)length >= sizeof folder) return;
    size_t top = strlen(root) + strlen(files->mount);
    for (int level = 0; level < MOST_LEVELS; level++) {
        uint64_t limit, usage, cache = 0;
        char path[PATH_BYTES], text[TEXT_BYTES];
        if (read_number(folder, files->limit, &limit) && read_number(folder, files->usage, &usage)) {
            if ((size_t)snprintf(path, sizeof path, "%s/memory.stat", folder) < sizeof path &&
                file_read_start(path, text, sizeof text))
                find_number(text, files->cache, &cache);
            usage -= cache < usage ? cache : usage;
            lower(memory, usage < limit ? limit - usage : 0, files->name);
        }
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < top) break;
        *slash = '\0';
    }
}

void memory_limit_available(const char *root, struct memory_limit *memory)
{
    static const struct group_files version2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "file ",
                                                "the control group's memory limit"};
    static const struct group_files version1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                                "memory.usage_in_bytes", "total_cache ",
                                                "the control group's memory limit"};
    *memory = (struct memory_limit){UINT64_MAX, "no limit"};
    char path[PATH_BYTES], text[TEXT_BYTES];
    uint64_t kilobytes;
    if ((size_t)snprintf(path, sizeof path, "%s/proc/meminfo", root) < sizeof path &&
        file_read_start(path, text, sizeof text) && find_number(text, "MemAvailable", &kilobytes))
        lower(memory, kilobytes * 1024, "available memory (MemAvailable)");

    if ((size_t)snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= sizeof path ||
        !file_read_start(path, text, sizeof text))
        return;
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        /* hierarchy:controllers:path; version 2 has no controllers. */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        controllers++;
        if (!*controllers)
            apply_group(root, &version2, strcmp(group, "/") ? group : "", memory);
        else if (!strcmp(controllers, "memory"))
            apply_group(root, &version1, strcmp(group, "/") ? group : "", memory);
    }
}

void memory_limit_address_space(struct memory_limit *memory)
{
    *memory = (struct memory_limit){UINT64_MAX, "no limit"};
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return;
    char text[256];
    uint64_t pages = 0;
    if (file_read_start("/proc/self/statm", text, sizeof text)) parse_number(text, &pages);
    uint64_t used = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    lower(memory, used < limit.rlim_cur ? limit.rlim_cur - used : 0, "the address space limit (ulimit -v)");
}

bool memory_limit_check(const char *what, uint64_t bytes, uint64_t private_bytes, const char *remedy,
                        struct status *status)
{
    struct memory_limit available, space;
    memory_limit_available("", &available);
    memory_limit_address_space(&space);
    uint64_t needed = bytes;
    if (available.bytes >= bytes) {
        /* Mapped files have their address space already; only private memory needs more. */
        if (space.bytes >= private_bytes) return true;
        available = space;
        needed = private_bytes;
    }
    return status_fail(status, STATUS_MACHINE, "%s: %" PRIu64 " bytes needed, %" PRIu64 " left by %s; %s", what, needed,
                       available.bytes, available.name, remedy);
}
