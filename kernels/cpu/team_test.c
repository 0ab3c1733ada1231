/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/team.h"
#include "kernels/op/test_support.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/processors.h"
#include "kernels/cpu/share.h"

enum { ROUNDS = 2000, MEMBERS_MAX = 16 };

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

struct shared {
    int rounds;
    uint64_t slots[MEMBERS_MAX][8]; /* plain memory: only the barrier orders accesses */
    atomic_int errors;
    atomic_int taken[512];
};

static void rotate_values(void *argument, struct team_member *member)
{
    struct shared *shared = argument;
    for (int round = 0; round < shared->rounds; round++) {
        shared->slots[member->index][0] = (uint64_t)round * 1000 + (uint64_t)member->index;
        team_barrier(member);
        for (int other = 0; other < member->count; other++)
            if (shared->slots[other][0] != (uint64_t)round * 1000 + (uint64_t)other)
                atomic_fetch_add(&shared->errors, 1);
        team_barrier(member);
    }
}

TEST(barriers_order_memory)
{
    for (int members = 1; members <= MEMBERS_MAX; members = members * 2 + (members == 1)) {
        struct status status = {0};
        struct team *team = team_create(members, &status);
        assert_non_null(team);
        assert_int_equal(team_size(team), members);
        struct shared shared = {.rounds = ROUNDS / members};
        for (int run = 0; run < 5; run++) team_run(team, rotate_values, &shared);
        assert_int_equal(atomic_load(&shared.errors), 0);
        team_destroy(team);
    }
}

static void take_tickets(void *argument, struct team_member *member)
{
    struct shared *shared = argument;
    for (int round = 0; round < shared->rounds; round++) {
        uint32_t ticket;
        while ((ticket = team_ticket(member)) < 512) atomic_fetch_add(&shared->taken[ticket], 1);
        team_barrier(member);
    }
}

TEST(tickets_are_unique_and_start_anew)
{
    for (int members = 1; members <= 5; members += 2) {
        struct team *team = team_create(members, NULL);
        assert_non_null(team);
        struct shared shared = {.rounds = 20};
        for (int run = 0; run < 3; run++) team_run(team, take_tickets, &shared);
        for (int i = 0; i < 512; i++) assert_int_equal(atomic_load(&shared.taken[i]), 60);
        team_destroy(team);
    }
}

/* Processor time of this process: what other programs take does not count. */
static double processor_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Sixteen members on any number of processors: spinning must yield. */
TEST(oversubscribed_team_is_fast)
{
    struct team *team = team_create(16, NULL);
    assert_non_null(team);
    struct shared shared = {.rounds = 500};
    double begin = processor_s();
    team_run(team, rotate_values, &shared);
    double each_us = (processor_s() - begin) * 1e6 / (2 * shared.rounds);
    print_message("16 members: %.1f us of processor time per barrier\n", each_us);
    assert_int_equal(atomic_load(&shared.errors), 0);
    /* Sanitizers slow everything down; a barrier that spins for whole time slices takes 10,000 us and more. */
    assert_true(each_us < 5000);
    team_destroy(team);
}

static void only_barriers(void *argument, struct team_member *member)
{
    int rounds = *(int *)argument;
    for (int i = 0; i < rounds; i++) team_barrier(member);
}

TEST(barrier_time_is_shown)
{
    struct team *team = team_create(0, NULL);
    assert_non_null(team);
    int rounds = 200;
    double best_us = 1e9;
    for (int repetition = 0; repetition < 100; repetition++) { /* the best of them: the machine may be busy */
        double begin = now_s();
        team_run(team, only_barriers, &rounds);
        double each_us = (now_s() - begin) * 1e6 / rounds;
        if (each_us < best_us) best_us = each_us;
    }
    print_message("%d members: %.2f us per barrier\n", team_size(team), best_us);
    team_destroy(team);
}

TEST(sleeping_members_wake)
{
    struct team *team = team_create(4, NULL);
    assert_non_null(team);
    struct shared shared = {.rounds = 1};
    for (int run = 0; run < 20; run++) {
        struct timespec pause = {.tv_nsec = 2000000}; /* far longer than they spin */
        nanosleep(&pause, NULL);
        team_run(team, rotate_values, &shared);
    }
    assert_int_equal(atomic_load(&shared.errors), 0);
    team_destroy(team);
}

TEST(bad_sizes_are_refused)
{
    int sizes[] = {-1, TEAM_MAX_THREADS + 1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct status status = {0};
        assert_null(team_create(sizes[i], &status));
        assert_int_equal(status.code, STATUS_USAGE);
        assert_true(strlen(status.message) > 0);
    }
    team_destroy(NULL);
    struct team *team = team_create(TEAM_MAX_THREADS, NULL);
    if (team) {
        int rounds = 3;
        team_run(team, only_barriers, &rounds);
        team_destroy(team);
    }
}

TEST(shares_cover_everything_once)
{
    for (int members = 1; members <= 9; members++) {
        for (int64_t units = 0; units < 70; units++) {
            for (int64_t grain = 1; grain < 20; grain += 6) {
                int64_t next = 0;
                for (int index = 0; index < members; index++) {
                    struct team_member member = {.index = index, .count = members};
                    struct share share = team_share(&member, units, grain);
                    if (share.first == share.last) continue;
                    assert_int_equal(share.first, next);
                    assert_true(share.last > share.first);
                    assert_true(share.last - share.first >= grain || share.last == units);
                    next = share.last;
                }
                assert_int_equal(next, units);
            }
        }
    }
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = strchr(path + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int quota_of(const char *folder, const char *membership)
{
    char path[512];
    write_file(folder, "membership", membership);
    snprintf(path, sizeof path, "%s/membership", folder);
    return processors_quota(path, folder);
}

TEST(quotas_of_both_versions_are_found)
{
    const char *base = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    char folder[256], command[512];
    snprintf(folder, sizeof folder, "%s/processors_testXXXXXX", base);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(quota_of(folder, "0::/\n"), 0);
    write_file(folder, "cpu.max", "max 100000\n");
    assert_int_equal(quota_of(folder, "0::/\n"), 0);
    write_file(folder, "cpu.max", "150000 100000\n");
    assert_int_equal(quota_of(folder, "0::/\n"), 2);
    write_file(folder, "a/b/cpu.max", "max 100000\n");
    assert_int_equal(quota_of(folder, "0::/a/b\n"), 2); /* from an ancestor */
    write_file(folder, "a/cpu.max", "100000 100000\n");
    assert_int_equal(quota_of(folder, "0::/a/b\n"), 1);
    assert_int_equal(quota_of(folder, "0::/not/here\n"), 2); /* a container's own root */
    write_file(folder, "cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    write_file(folder, "cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota_of(folder, "4:memory:/x\n3:cpu,cpuacct:/job\n"), 0);
    write_file(folder, "cpu,cpuacct/job/cpu.cfs_quota_us", "350000\n");
    assert_int_equal(quota_of(folder, "4:memory:/x\n3:cpu,cpuacct:/job\n"), 4);
    write_file(folder, "cpu,cpuacct/job/cpu.cfs_quota_us", "junk\n");
    assert_int_equal(quota_of(folder, "garbage\n\n::\n3:cpu,cpuacct:/job\n4:cpuset:/job\n"), 2); /* "::" is v2's root */
    assert_int_equal(processors_quota("/nonexistent", folder), 0);
    assert_true(processors_available() >= 1);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

int main(void) { return test_run(); }
