/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that are not of the job while processes find each other: they are sent away, and the start goes on. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include "runtime/distributed/test_process_group.h"

enum { HELLO = 1, FAIL = 2, PART = 3, BEAT = 4 };

static const char garbage[] = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html, application/xhtml+xml\r\n\r\n";

static struct test_group_frame hello_of(uint32_t process, uint32_t count)
{
    return test_group_frame(HELLO, process, 0, count, TEST_GROUP_FINGERPRINT);
}

static void expect_end(int descriptor)
{
    char text[256];
    while (recv(descriptor, text, sizeof text, 0) > 0) continue;
    close(descriptor);
}

/* An answer that says why, then the end. */
static void expect_refusal(int descriptor, const char *words)
{
    struct test_group_frame frame;
    struct status status;
    if (!test_group_receive(descriptor, &frame, status.message)) fail_msg("no answer, expected: %s", words);
    assert_int_equal(frame.type, FAIL);
    assert_int_equal(frame.version, TEST_GROUP_PROTOCOL);
    test_expect_message(&status, words);
    expect_end(descriptor);
}

/* Each of them, then the processes that process 0 waits for. */
TEST(wrong_hellos_end_nothing)
{
    struct {
        struct test_group_frame hello;
        const char *name, *words;
    } wrong[] = {
        {hello_of(1, 3), "version", "protocol: expected version 2, found version 9|same release"},
        {hello_of(1, 4), "count", "process 1 (count) was started as one of 4 processes, process 0 as one of 3: "},
        {hello_of(9, 3), "number", "process 9 (number): |out of range|the last of 3 processes is 2"},
        {hello_of(UINT32_MAX, 3), "number", "process 4294967295 (number): |out of range"},
        {hello_of(0, 3), "zero", "process 0 exists twice|zero"},
        {hello_of(2, 3), "file",
         "process 2 has another engine file than process 0 (file|give all processes the same file"},
        {hello_of(2, 3), "\x1b[31m red", "process 2: |name|not printable text"},
        {hello_of(2, 3), "half a \xe2\x80", "process 2: |name|not printable text"},
    };
    wrong[0].hello.version = 9;
    wrong[5].hello.value++;
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
    test_group_start_one(0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int stranger = test_group_connect(NULL);
        test_group_send_hello(stranger, wrong[i].hello, wrong[i].name);
        expect_refusal(stranger, wrong[i].words);
    }
    test_group_start_one(1);
    test_group_start_one(2);
    test_group_finish();
    for (uint32_t i = 0; i < 3; i++) test_group_expect_ok(i);
}

/* A connection without a hello gets no answer. */
TEST(what_is_no_hello_ends_nothing)
{
    struct test_group_frame frames[] = {hello_of(1, 2),
                                        hello_of(1, 2),
                                        hello_of(1, 2),
                                        test_group_frame(FAIL, 1, 0, 3, 0),
                                        test_group_frame(PART, 1, 0, 0, 0),
                                        test_group_frame(BEAT, 1, 0, 0, 0),
                                        test_group_frame(6, 1, 0, 0, 0),
                                        test_group_frame(7, 1, 64, 0, 0)};
    frames[0].magic++;
    frames[1].bytes = UINT32_MAX;
    frames[2].bytes = 96;
    test_group_plan(2, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
    test_group_start_one(0);
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        int stranger = test_group_connect(NULL);
        test_group_send(stranger, &frames[i], sizeof frames[i]);
        expect_end(stranger);
    }
    int talker = test_group_connect(NULL), half = test_group_connect(NULL);
    test_group_send(talker, garbage, sizeof garbage - 1);
    expect_end(talker);
    test_group_send(half, &frames[3], 30);
    close(half);
    close(test_group_connect(NULL));
    test_group_start_one(1);
    test_group_finish();
    for (uint32_t i = 0; i < 2; i++) test_group_expect_ok(i);
}

/* The number belongs to the process that came first. */
TEST(a_number_that_is_taken)
{
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
    test_group_start_one(0);
    struct test_group_frame frame;
    char text[STATUS_MESSAGE_BYTES];
    int first = test_group_connect(NULL);
    test_group_send_hello(first, hello_of(1, 3), "first");
    assert_true(test_group_receive(first, &frame, text));
    assert_int_equal(frame.type, BEAT); /* it is in */
    int second = test_group_connect(NULL);
    test_group_send_hello(second, hello_of(1, 3), "second");
    expect_refusal(second, "process 1 exists twice (first; second)");
    close(first); /* this one was in: what becomes of it is all processes' affair */
    test_group_finish();
    test_group_expect_message(
        0, "process 1 (first) stopped responding: it closed the connection before all processes had joined");
}

/* The expected fingerprint would let a stranger in. */
TEST(a_refusal_gives_nothing_away)
{
    struct test_group_frame hello = hello_of(1, 2), frame;
    char text[STATUS_MESSAGE_BYTES];
    hello.value = 0xabcdef;
    test_group_plan(2, 4, test_group_stay);
    test_group_start_one(0);
    int stranger = test_group_connect(NULL);
    test_group_send_hello(stranger, hello, "s");
    assert_true(test_group_receive(stranger, &frame, text));
    assert_non_null(strstr(text, "found fingerprint 0000000000abcdef"));
    assert_null(strstr(text, "000000000000004d"));
    expect_end(stranger);
    test_group_finish();
    test_group_expect_message(0, "process 1 of 2 did not connect|expected 000000000000004d");
}

/* A process of the job itself learns the reason at once; process 0 knows no better than to wait, and names it then. */
TEST(the_time_out_names_who_was_refused)
{
    test_group_plan(3, 5, test_group_stay);
    test_group_members[1].options.fingerprint++;
    test_group_start_one(0);
    for (int i = 0; i < 3; i++) {
        int stranger = test_group_connect(NULL);
        test_group_send(stranger, garbage, sizeof garbage - 1);
        expect_end(stranger);
    }
    test_group_start_one(1);
    test_group_start_one(2);
    test_group_finish();
    test_group_expect_message(1, "process 1 has another engine file than process 0|found fingerprint 000000000000004e");
    assert_true(test_group_reports[1].end_seconds < test_group_reports[0].end_seconds);
    for (uint32_t i = 0; i < 3; i += 2)
        test_group_expect_message(i,
                                  "process 1 of 3 did not connect to|4 connections were refused|127.0.0.1:|process 1 "
                                  "has another engine file|pid |4e, expected 000000000000004d|127.0.0.1:|no hello");
}

TEST(a_silent_stranger_is_named)
{
    test_group_plan(2, 12, test_group_stay);
    test_group_start_one(0);
    int silent = test_group_connect(NULL), slow = test_group_connect(NULL);
    struct test_group_frame hello = hello_of(1, 2);
    /* A byte at intervals does not keep a stranger connected. */
    double begun = test_group_seconds();
    for (size_t i = 0; i < sizeof hello - 1 && test_group_seconds() - begun < 3; i++) {
        if (send(slow, (const uint8_t *)&hello + i, 1, MSG_NOSIGNAL) != 1) break;
        test_group_sleep_ms(100);
    }
    expect_end(silent);
    expect_end(slow);
    assert_true(test_group_seconds() - begun > 4);
    test_group_finish();
    test_group_expect_message(
        0, "process 1 of 2 did not connect|2 connections were refused|127.0.0.1:|no whole hello within 5 s");
}

TEST(a_thousand_idle_connections_starve_nobody)
{
    enum { IDLE = 1000 };
    static int idle[IDLE];
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    test_group_plan(4, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
    test_group_start_one(0);
    for (int i = 0; i < IDLE; i++) {
        idle[i] = test_group_connect(NULL);
        if (i == 300 || i == 600) test_group_start_one((uint32_t)i / 300);
    }
    test_group_start_one(3);
    test_group_finish();
    for (int i = 0; i < IDLE; i++) close(idle[i]);
    for (uint32_t i = 0; i < 4; i++) test_group_expect_ok(i);
}

/* Process 0 may have had no room for it, or something else had its port for a while. */
TEST(a_process_that_got_no_answer_comes_again)
{
    test_group_plan(2, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
    test_group_start_one(1); /* before the listener, which it would inherit */
    int listener = test_group_listen();
    for (int i = 0; i < 3; i++) {
        int came = accept(listener, NULL, NULL);
        assert_true(came >= 0);
        close(came);
    }
    close(listener);
    test_group_start_one(0);
    test_group_finish();
    for (uint32_t i = 0; i < 2; i++) test_group_expect_ok(i);
}

TEST(another_program_at_the_address)
{
    test_group_plan(2, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
    int listener = test_group_listen();
    test_group_start_one(1);
    int came = accept(listener, NULL, NULL);
    test_group_send(came, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 67);
    test_group_finish();
    test_group_expect_message(1, "process 0 (127.0.0.1:|another program");
    close(came);
    close(listener);
}

int main(void) { return test_run_with(test_group_share, test_group_begin, test_group_end, NULL); }
