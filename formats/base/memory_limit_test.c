/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest of all limits applies, for all kinds of control groups; uses artificial proc and sys folders. */
#include "formats/base/test_folder.h"
#include "formats/base/memory_limit.h"

#include <sys/stat.h>

static void write_file(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s/%s", folder, path);
    for (char *slash = strchr(whole + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static uint64_t available(void)
{
    struct memory_limit limit;
    memory_limit_available(folder, &limit);
    return limit.bytes;
}

TEST(test_nothing_known) { assert_true(available() == UINT64_MAX); }

TEST(test_meminfo)
{
    write_file("proc/meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    8000 kB\nCached: 5 kB\n");
    assert_int_equal(available(), 8000 * 1024);
}

TEST(test_groups_of_version_2)
{
    write_file("proc/meminfo", "MemAvailable: 8000 kB\n");
    write_file("proc/self/cgroup", "0::/outer/inner\n");
    write_file("sys/fs/cgroup/outer/inner/memory.max", "max\n");
    write_file("sys/fs/cgroup/outer/inner/memory.current", "100\n");
    assert_int_equal(available(), 8000 * 1024);
    /* The limit of the outer group applies; its page cache counts as free. */
    write_file("sys/fs/cgroup/outer/memory.max", "1000000\n");
    write_file("sys/fs/cgroup/outer/memory.current", "700000\n");
    assert_int_equal(available(), 300000);
    write_file("sys/fs/cgroup/outer/memory.stat", "anon 1\nfile 200000\nfile_mapped 5\n");
    assert_int_equal(available(), 500000);
    write_file("sys/fs/cgroup/outer/inner/memory.max", "150000\n");
    assert_int_equal(available(), 149900);
    write_file("sys/fs/cgroup/outer/inner/memory.current", "160000\n"); /* above its limit */
    assert_int_equal(available(), 0);
}

TEST(test_groups_of_version_1)
{
    write_file("proc/meminfo", "MemAvailable: 8000 kB\n");
    write_file("proc/self/cgroup", "9:name=systemd:/\n4:memory:/box\n1:cpu:/\n0::/\n");
    write_file("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "400000\n");
    write_file("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "300000\n");
    write_file("sys/fs/cgroup/memory/box/memory.stat", "cache 1\ntotal_cache 50000\n");
    assert_int_equal(available(), 150000);
}

TEST(test_this_machine)
{
    struct memory_limit limit;
    memory_limit_available("", &limit);
    assert_true(limit.bytes > 1 << 20);
    memory_limit_address_space(&limit);
    assert_true(limit.bytes > 1 << 20);
}

TEST(test_message)
{
    struct status status;
    status_clear(&status);
    assert_true(memory_limit_check("scratch", 1, 1, "free memory", &status));
    test_expect_failure(memory_limit_check("scratch", UINT64_MAX - 1, 1, "free memory", &status), &status,
                        STATUS_MACHINE, "scratch: 18446744073709551614 bytes needed");
    assert_non_null(strstr(status.message, "free memory"));
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
