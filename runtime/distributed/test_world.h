/* SPDX-License-Identifier: Apache-2.0 */
/* A world of real processes for tests: each joins, runs a script and leaves behind a report, in shared memory. */
#ifndef RUNTIME_DISTRIBUTED_TEST_WORLD_H
#define RUNTIME_DISTRIBUTED_TEST_WORLD_H

#include "formats/base/test_support.h"

#include <stdatomic.h>
#include <sys/types.h>

#include "runtime/distributed/world.h"

enum { TEST_WORLD_MOST = WORLD_MOST_PROCESSES, TEST_WORLD_FINGERPRINT = 77, TEST_WORLD_PROTOCOL = 2 };

struct test_world_report {
    bool has_joined, ok;
    char message[STATUS_MESSAGE_BYTES]; /* why not ok */
    double end_seconds;                 /* when the script, or joining, had ended */
};

struct test_world_member {
    struct world_options options;
    int delay_ms; /* of its start */
    pid_t pid;    /* 0: none runs */
    void (*script)(const struct test_world_member *member, struct world *world, struct test_world_report *report);
    struct test_world_report *report;
};

extern struct test_world_member test_world_members[TEST_WORLD_MOST];
extern struct test_world_report *test_world_reports; /* [TEST_WORLD_MOST] */
extern atomic_int *test_world_flag;                  /* what a test tells its processes; 0 at first */
extern char test_world_address[64];                  /* for process 0, on this machine */

/* Setup of a group; setup and teardown of a test. */
int test_world_share(void **state);
int test_world_begin(void **state);
int test_world_end(void **state);

/* Member i is process i of `count`; a test may change members, script NULL leaves one out. */
void test_world_plan(uint32_t count, double longest_seconds,
                     void (*script)(const struct test_world_member *member, struct world *world,
                                    struct test_world_report *report));
void test_world_start(uint32_t count);
void test_world_start_one(uint32_t member);
void test_world_wait_joined(int count);
/* A member that is killed is no longer waited for. */
void test_world_signal(int member, int signal);
/* All that run must end by themselves in this time. */
void test_world_finish(double seconds);
void test_world_expect_ok(uint32_t member);
void test_world_expect_message(uint32_t member, const char *words);

/* What a member's process does; tests may do it in a thread. */
void test_world_run(const struct test_world_member *member);

/* Scripts: 24 gathers of all sizes; until something has failed or test_world_flag is set; one gather. */
void test_world_gathers(const struct test_world_member *member, struct world *world, struct test_world_report *report);
void test_world_stay(const struct test_world_member *member, struct world *world, struct test_world_report *report);
void test_world_gather_once(const struct test_world_member *member, struct world *world,
                            struct test_world_report *report);
/* Bytes that tell process, round and place apart, and are checked. */
uint8_t test_world_byte(uint32_t process, uint32_t round, size_t i);
bool test_world_gather(const struct test_world_member *member, struct world *world, uint32_t round, size_t bytes,
                       struct test_world_report *report);

/* A connection to process 0 that speaks as the test wants, with frames as world.c has them. */
struct test_world_frame {
    uint64_t magic;
    uint32_t version, type, process, bytes;
    uint64_t number, value;
};
struct test_world_frame test_world_frame(uint32_t type, uint32_t process, uint32_t bytes, uint64_t number,
                                         uint64_t value);
/* Tries while nobody listens. packet_bytes: the size of packets; NULL: as the system has it. */
int test_world_connect(const int *packet_bytes);
void test_world_send(int descriptor, const void *data, size_t bytes);
void test_world_send_hello(int descriptor, struct test_world_frame hello, const char *name);
/* The next frame, and its data as a text; false at the end of the connection. */
bool test_world_receive(int descriptor, struct test_world_frame *frame, char text[STATUS_MESSAGE_BYTES]);
/* A socket that listens at test_world_address in process 0's place. */
int test_world_listen(void);

double test_world_seconds(void);
void test_world_sleep_ms(int ms);

#endif
