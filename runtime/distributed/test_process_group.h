/* SPDX-License-Identifier: Apache-2.0 */
/* A group of real processes for tests: each joins, runs a script and writes a report into shared memory. */
#ifndef RUNTIME_DISTRIBUTED_TEST_PROCESS_GROUP_H
#define RUNTIME_DISTRIBUTED_TEST_PROCESS_GROUP_H

#include "formats/base/test_support.h"

#include <stdatomic.h>
#include <sys/types.h>

#include "runtime/distributed/process_group.h"

enum {
    TEST_GROUP_MOST = PROCESS_GROUP_MOST_PROCESSES,
    TEST_GROUP_FINGERPRINT = 77,
    TEST_GROUP_PROTOCOL = 2,
    TEST_GROUP_ENOUGH_SECONDS = 60, /* for what a group must do at once, on a machine that is busy */
};

struct test_group_report {
    bool has_joined, ok;
    char message[STATUS_MESSAGE_BYTES]; /* why not ok */
    double end_seconds;                 /* when the script, or joining, had ended */
    double left_seconds;                /* when it had left the group */
};

struct test_group_member {
    struct process_group_options options;
    int delay_ms; /* of its start */
    pid_t pid;    /* 0: none runs */
    void (*script)(const struct test_group_member *member, struct process_group *group,
                   struct test_group_report *report);
    struct test_group_report *report;
};

extern struct test_group_member test_group_members[TEST_GROUP_MOST];
extern struct test_group_report *test_group_reports; /* [TEST_GROUP_MOST] */
extern atomic_int *test_group_flag;                  /* what a test tells its processes; 0 at first */
extern char test_group_address[64];                  /* for process 0, on this machine */

/* Setup of a group; setup and teardown of a test. */
int test_group_share(void **state);
int test_group_begin(void **state);
int test_group_end(void **state);

/* Member i is process i of `count`; a test may change members, script NULL leaves one out. */
void test_group_plan(uint32_t count, double longest_seconds,
                     void (*script)(const struct test_group_member *member, struct process_group *group,
                                    struct test_group_report *report));
void test_group_start(uint32_t count);
void test_group_start_one(uint32_t member);
void test_group_wait_joined(int count);
/* A member that is killed is no longer waited for. */
void test_group_signal(int member, int signal);
/* Until one member has ended, in whatever way. */
void test_group_await(int member);
/* All that run must end by themselves. */
void test_group_finish(void);
void test_group_expect_ok(uint32_t member);
void test_group_expect_message(uint32_t member, const char *words);

/* What a member's process does; tests may do it in a thread. */
void test_group_run(const struct test_group_member *member);

/* Scripts: 24 gathers of all sizes; until something has failed or test_group_flag is set; one gather. */
void test_group_gathers(const struct test_group_member *member, struct process_group *group,
                        struct test_group_report *report);
void test_group_stay(const struct test_group_member *member, struct process_group *group,
                     struct test_group_report *report);
void test_group_gather_once(const struct test_group_member *member, struct process_group *group,
                            struct test_group_report *report);
/* Bytes that tell process, round and place apart, and are checked. */
uint8_t test_group_byte(uint32_t process, uint32_t round, size_t i);
bool test_group_gather(const struct test_group_member *member, struct process_group *group, uint32_t round,
                       size_t bytes, struct test_group_report *report);

/* A connection to process 0 that speaks as the test wants, with frames as group.c has them. */
struct test_group_frame {
    uint64_t magic;
    uint32_t version, type, process, bytes;
    uint64_t number, value;
};
struct test_group_frame test_group_frame(uint32_t type, uint32_t process, uint32_t bytes, uint64_t number,
                                         uint64_t value);
/* Tries again while no process listens. packet_bytes: the size of packets; NULL: as the system has it. */
int test_group_connect(const int *packet_bytes);
void test_group_send(int descriptor, const void *data, size_t bytes);
void test_group_send_hello(int descriptor, struct test_group_frame hello, const char *name);
/* The next frame, and its data as a text; false at the end of the connection. */
bool test_group_receive(int descriptor, struct test_group_frame *frame, char text[STATUS_MESSAGE_BYTES]);
/* A socket that listens at test_group_address in process 0's place. */
int test_group_listen(void);

double test_group_seconds(void);
void test_group_sleep_ms(int ms);

#endif
