/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/processors.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "formats/base/file.h"

enum { PATH_BYTES = 4096, TEXT_BYTES = 128, MEMBERSHIP_BYTES = 8192, MOST_PROCESSORS = 1 << 16 };

static int quota_in_processors(int64_t quota_us, int64_t period_us)
{
    if (quota_us <= 0 || period_us <= 0) return 0;
    int64_t whole = quota_us / period_us + (quota_us % period_us != 0);
    return whole > INT16_MAX ? INT16_MAX : (int)whole;
}

/* The limit of one group. Version 2: "max 100000" or "150000 100000"; version 1: two files, -1 for none. */
static int group_quota(const char *folder, bool version_2)
{
    char path[PATH_BYTES + TEXT_BYTES], text[TEXT_BYTES];
    int64_t quota = 0, period = 0;
    if (version_2) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (!file_read_start(path, text, sizeof text) || sscanf(text, "%" SCNd64 " %" SCNd64, &quota, &period) != 2)
            return 0;
        return quota_in_processors(quota, period);
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!file_read_start(path, text, sizeof text) || sscanf(text, "%" SCNd64, &quota) != 1) return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (!file_read_start(path, text, sizeof text) || sscanf(text, "%" SCNd64, &period) != 1) return 0;
    return quota_in_processors(quota, period);
}

static int smaller_quota(int a, int b)
{
    if (!a || !b) return a ? a : b;
    return a < b ? a : b;
}

/* The smallest quota of the group and its ancestors. Inside a container the path may not exist below the mount, which
 * is then the container's own group: only the root is read. */
static int path_quota(const char *hierarchy, const char *group, bool version_2)
{
    char folder[PATH_BYTES];
    int length = snprintf(folder, sizeof folder, "%s%s", hierarchy, group);
    if (length < 0 || (size_t)length >= sizeof folder) return 0;
    size_t floor = strlen(hierarchy);
    int quota = 0;
    for (;;) {
        quota = smaller_quota(quota, group_quota(folder, version_2));
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < floor) return quota;
        *slash = '\0';
    }
}

static bool names_controller(const char *list, const char *controller)
{
    size_t length = strlen(controller);
    for (const char *item = list; *item;) {
        size_t item_length = strcspn(item, ",");
        if (item_length == length && memcmp(item, controller, length) == 0) return true;
        item += item_length;
        item += *item == ',';
    }
    return false;
}

int processors_quota(const char *membership, const char *root)
{
    char text[MEMBERSHIP_BYTES], *rest = text;
    int quota = 0;
    if (!file_read_start(membership, text, sizeof text)) return 0;
    for (char *line; (line = strsep(&rest, "\n"));) {
        /* "hierarchy-id:controllers:path"; version 2 has the id 0 and no controllers. */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *controllers++ = '\0';
        *group++ = '\0';
        if (strcmp(group, "/") == 0) group = "";
        char hierarchy[PATH_BYTES];
        if (*controllers == '\0') {
            quota = smaller_quota(quota, path_quota(root, group, true));
            snprintf(hierarchy, sizeof hierarchy, "%s/unified",
                     root); /* mount of version 2 if both versions are mounted */
            quota = smaller_quota(quota, path_quota(hierarchy, group, true));
        } else if (names_controller(controllers, "cpu")) {
            int length = snprintf(hierarchy, sizeof hierarchy, "%s/%s", root, controllers);
            if (length < 0 || (size_t)length >= sizeof hierarchy) continue;
            quota = smaller_quota(quota, path_quota(hierarchy, group, false));
            snprintf(hierarchy, sizeof hierarchy, "%s/cpu", root);
            quota = smaller_quota(quota, path_quota(hierarchy, group, false));
        }
    }
    return quota;
}

/* Processors in the affinity mask. The kernel refuses a mask that is smaller than its own. */
static int affinity_count(void)
{
    cpu_set_t sets[MOST_PROCESSORS / CPU_SETSIZE];
    if (sched_getaffinity(0, sizeof sets, sets) == 0) return CPU_COUNT_S(sizeof sets, sets);
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

int processors_available(void)
{
    int count = affinity_count();
    int quota = processors_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota && quota < count) count = quota;
    return count < 1 ? 1 : count;
}
