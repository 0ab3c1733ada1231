/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/distributed/test_process_group.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

struct test_group_member test_group_members[TEST_GROUP_MOST];
struct test_group_report *test_group_reports;
atomic_int *test_group_flag;
char test_group_address[64];

static atomic_int *joined_count; /* shared */
static int reserved = -1;        /* keeps the port of test_group_address from all that ask for any; never listens */

double test_group_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void test_group_sleep_ms(int ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time) && errno == EINTR) continue;
}

/* A port that no other program gets: one that asks for this very port, as process 0 does, may share it. */
static void choose_address(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof any;
    int one = 1, descriptor = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(descriptor, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    assert_int_equal(getsockname(descriptor, (struct sockaddr *)&any, &bytes), 0);
    if (reserved >= 0) close(reserved);
    reserved = descriptor;
    snprintf(test_group_address, sizeof test_group_address, "127.0.0.1:%d", ntohs(any.sin_port));
}

/* ---- processes ---- */

int test_group_begin(void **state)
{
    memset(test_group_members, 0, sizeof test_group_members);
    memset(test_group_reports, 0, TEST_GROUP_MOST * sizeof *test_group_reports);
    atomic_store(test_group_flag, 0);
    atomic_store(joined_count, 0);
    choose_address();
    return 0;
}

/* Also what a failed test has left. */
int test_group_end(void **state)
{
    for (int i = 0; i < TEST_GROUP_MOST; i++) {
        if (test_group_members[i].pid <= 0) continue;
        kill(test_group_members[i].pid, SIGKILL);
        waitpid(test_group_members[i].pid, NULL, 0);
    }
    return 0;
}

void test_group_run(const struct test_group_member *member)
{
    struct test_group_report *report = member->report;
    struct status status = {0};
    test_group_sleep_ms(member->delay_ms);
    struct process_group *group = process_group_join(&member->options, &status);
    report->has_joined = group != NULL;
    if (group) {
        atomic_fetch_add(joined_count, 1);
        member->script(member, group, report);
    } else {
        memcpy(report->message, status.message, sizeof report->message);
    }
    report->end_seconds = test_group_seconds();
    process_group_leave(&group);
    report->left_seconds = test_group_seconds();
}

/* Member i is process i of `count`, until a test changes that before start(). */
void test_group_plan(uint32_t count, double longest_seconds,
                     void (*script)(const struct test_group_member *member, struct process_group *group,
                                    struct test_group_report *report))
{
    for (uint32_t i = 0; i < count; i++)
        test_group_members[i] = (struct test_group_member){.options = {.process = i,
                                                                       .processes = count,
                                                                       .address = test_group_address,
                                                                       .longest_seconds = longest_seconds,
                                                                       .gather_seconds = longest_seconds,
                                                                       .fingerprint = TEST_GROUP_FINGERPRINT},
                                                           .script = script,
                                                           .report = &test_group_reports[i]};
}

void test_group_start_one(uint32_t member)
{
    test_group_members[member].pid = fork();
    assert_true(test_group_members[member].pid >= 0);
    if (test_group_members[member].pid) return;
    test_group_run(&test_group_members[member]);
    _exit(0);
}

void test_group_start(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (test_group_members[i].script) test_group_start_one(i);
}

/* For those that were not killed: all must end by themselves. */
void test_group_finish(void)
{
    for (double until = test_group_seconds() + TEST_GROUP_ENOUGH_SECONDS;;) {
        int running = 0;
        for (int i = 0; i < TEST_GROUP_MOST; i++) {
            int result;
            if (test_group_members[i].pid <= 0) continue;
            if (waitpid(test_group_members[i].pid, &result, WNOHANG) == 0) {
                running++;
                continue;
            }
            test_group_members[i].pid = 0;
            if (!WIFEXITED(result) || WEXITSTATUS(result)) fail_msg("process %d ended with %#x", i, (unsigned)result);
        }
        if (!running) return;
        if (test_group_seconds() > until)
            fail_msg("%d processes still run after %d s", running, TEST_GROUP_ENOUGH_SECONDS);
        test_group_sleep_ms(5);
    }
}

void test_group_signal(int member, int signal)
{
    assert_int_equal(kill(test_group_members[member].pid, signal), 0);
    if (signal != SIGKILL) return;
    waitpid(test_group_members[member].pid, NULL, 0);
    test_group_members[member].pid = 0;
}

void test_group_await(int member)
{
    const double until = test_group_seconds() + TEST_GROUP_ENOUGH_SECONDS;
    for (; waitpid(test_group_members[member].pid, NULL, WNOHANG) == 0; test_group_sleep_ms(5))
        if (test_group_seconds() > until) fail_msg("member %d still runs", member);
    test_group_members[member].pid = 0;
}

void test_group_wait_joined(int count)
{
    const double until = test_group_seconds() + TEST_GROUP_ENOUGH_SECONDS;
    for (; atomic_load(joined_count) < count; test_group_sleep_ms(2))
        if (test_group_seconds() > until) fail_msg("%d of %d have joined", atomic_load(joined_count), count);
}

void test_group_expect_ok(uint32_t member)
{
    if (!test_group_reports[member].ok) fail_msg("member %u: %s", member, test_group_reports[member].message);
}

void test_group_expect_message(uint32_t member, const char *words)
{
    struct status status;
    memcpy(status.message, test_group_reports[member].message, sizeof status.message);
    if (test_group_reports[member].ok) fail_msg("member %u noticed nothing, expected: %s", member, words);
    test_expect_message(&status, words);
}

/* ---- connections of the test's own ---- */

struct test_group_frame test_group_frame(uint32_t type, uint32_t process, uint32_t bytes, uint64_t number,
                                         uint64_t value)
{
    return (struct test_group_frame){
        UINT64_C(0x31646c726f776e65), TEST_GROUP_PROTOCOL, type, process, bytes, number, value};
}

static struct sockaddr_in own_address(void)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    own.sin_port = htons((uint16_t)atoi(strchr(test_group_address, ':') + 1));
    return own;
}

int test_group_connect(const int *packet_bytes)
{
    const struct sockaddr_in to = own_address();
    const double until = test_group_seconds() + TEST_GROUP_ENOUGH_SECONDS;
    for (; test_group_seconds() < until; test_group_sleep_ms(10)) {
        int descriptor = socket(AF_INET, SOCK_STREAM, 0);
        if (packet_bytes) setsockopt(descriptor, IPPROTO_TCP, TCP_MAXSEG, packet_bytes, sizeof *packet_bytes);
        if (packet_bytes) setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, packet_bytes, sizeof *packet_bytes);
        if (!connect(descriptor, (const struct sockaddr *)&to, sizeof to)) return descriptor;
        close(descriptor);
    }
    fail_msg("cannot connect to %s", test_group_address);
    return -1;
}

int test_group_listen(void)
{
    const struct sockaddr_in own = own_address();
    int one = 1, descriptor = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    assert_int_equal(bind(descriptor, (const struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(listen(descriptor, 16), 0);
    /* A process that does not come fails the test instead of stopping it. */
    const struct timeval enough = {.tv_sec = TEST_GROUP_ENOUGH_SECONDS};
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &enough, sizeof enough);
    return descriptor;
}

void test_group_send(int descriptor, const void *data, size_t bytes)
{
    assert_int_equal(send(descriptor, data, bytes, MSG_NOSIGNAL), bytes);
}

void test_group_send_hello(int descriptor, struct test_group_frame hello, const char *name)
{
    hello.bytes = (uint32_t)strlen(name);
    test_group_send(descriptor, &hello, sizeof hello);
    test_group_send(descriptor, name, hello.bytes);
}

bool test_group_receive(int descriptor, struct test_group_frame *frame, char text[STATUS_MESSAGE_BYTES])
{
    memset(text, 0, STATUS_MESSAGE_BYTES);
    if (recv(descriptor, frame, sizeof *frame, MSG_WAITALL) != sizeof *frame) return false;
    assert_true(frame->bytes < STATUS_MESSAGE_BYTES);
    return !frame->bytes || recv(descriptor, text, frame->bytes, MSG_WAITALL) == (ssize_t)frame->bytes;
}

/* ---- what they do ---- */

uint8_t test_group_byte(uint32_t process, uint32_t round, size_t i)
{
    uint64_t x = (uint64_t)process << 40 ^ (uint64_t)round << 20 ^ i;
    x *= 0x9e3779b97f4a7c15u;
    return (uint8_t)(x >> 56);
}

bool test_group_gather(const struct test_group_member *member, struct process_group *group, uint32_t round,
                       size_t bytes, struct test_group_report *report)
{
    uint8_t *mine = malloc(bytes + 1), *all = malloc(bytes * member->options.processes + 1);
    struct status status = {0};
    for (size_t i = 0; i < bytes; i++) mine[i] = test_group_byte(member->options.process, round, i);
    bool ok = process_group_gather(group, mine, bytes, all, &status);
    memcpy(report->message, status.message, sizeof report->message);
    for (uint32_t p = 0; ok && p < member->options.processes; p++)
        for (size_t i = 0; ok && i < bytes; i++)
            if (all[p * bytes + i] != test_group_byte(p, round, i)) {
                ok = false;
                snprintf(report->message, sizeof report->message, "round %u: byte %zu of process %u is wrong", round, i,
                         p);
            }
    free(mine);
    free(all);
    return ok;
}

void test_group_gathers(const struct test_group_member *member, struct process_group *group,
                        struct test_group_report *report)
{
    static const size_t sizes[] = {0, 1, 7, 64, 5000, PROCESS_GROUP_GATHER_BYTES};
    report->ok = true;
    for (uint32_t round = 0; report->ok && round < 24; round++) {
        if ((round + member->options.process) % 5 == 0) test_group_sleep_ms(3);
        report->ok = test_group_gather(member, group, round, sizes[round * 7 % 6], report);
    }
}

/* Until something has failed, or the test says that it is enough. */
void test_group_stay(const struct test_group_member *member, struct process_group *group,
                     struct test_group_report *report)
{
    (void)member;
    struct status status = {0};
    do {
        report->ok = process_group_ok(group, &status);
        test_group_sleep_ms(2);
    } while (report->ok && !atomic_load(test_group_flag));
    memcpy(report->message, status.message, sizeof report->message);
}

void test_group_gather_once(const struct test_group_member *member, struct process_group *group,
                            struct test_group_report *report)
{
    report->ok = test_group_gather(member, group, 0, 100, report);
}

int test_group_share(void **state)
{
    char *shared = mmap(NULL, TEST_GROUP_MOST * sizeof *test_group_reports + 64, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return -1;
    test_group_flag = (atomic_int *)(void *)shared;
    joined_count = test_group_flag + 1;
    test_group_reports = (struct test_group_report *)(void *)(shared + 64);
    return 0;
}
