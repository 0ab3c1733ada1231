/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that are killed and stopped, and connections of somebody who does not keep to the protocol. */
#include "formats/base/test_support.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "runtime/distributed/test_world.h"

/* ---- those who do not keep to the protocol ---- */

static void strangers_do_not_disturb(void **state)
{
    (void)state;
    enum { SILENT = 40 }; /* more than process 0 keeps */
    int silent[SILENT];
    test_world_plan(3, 5, test_world_gathers);
    test_world_members[1].delay_ms = test_world_members[2].delay_ms = 1500; /* after all strangers */
    test_world_start(3);
    for (int i = 0; i < SILENT; i++) silent[i] = test_world_connect(NULL);
    int talker = test_world_connect(NULL), half = test_world_connect(NULL);
    const char *request = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything there is to accept\r\n\r\n";
    test_world_send(talker, request, strlen(request));
    struct test_world_frame hello = test_world_frame(1, 1, 3, 3, TEST_WORLD_FINGERPRINT);
    test_world_send(half, &hello, 30);
    /* Known frames, but of one who has not introduced himself. */
    int fails = test_world_connect(NULL);
    struct test_world_frame failure = test_world_frame(2, 1, 4, 3, 0);
    test_world_send(fails, &failure, sizeof failure);
    char end_of_talk;
    assert_true(recv(talker, &end_of_talk, 1, 0) <= 0);
    assert_true(recv(fails, &end_of_talk, 1, 0) <= 0);
    test_world_finish(6);
    for (int i = 0; i < SILENT; i++) close(silent[i]);
    close(talker), close(half), close(fails);
    for (uint32_t i = 0; i < 3; i++) test_world_expect_ok(i);
}

static void another_version_is_told(void **state)
{
    (void)state;
    test_world_plan(3, 1, test_world_stay);
    test_world_members[2].script = NULL;
    test_world_start(3);
    int other = test_world_connect(NULL);
    struct test_world_frame hello = test_world_frame(1, 2, 4, 3, TEST_WORLD_FINGERPRINT), answer;
    hello.version = 9;
    test_world_send(other, &hello, sizeof hello);
    test_world_send(other, "h\x1b\n!", 4);
    do {
        assert_int_equal(recv(other, &answer, sizeof answer, MSG_WAITALL), sizeof answer);
    } while (answer.type == 4);
    assert_int_equal(answer.type, 2);
    char text[512] = "";
    assert_true(answer.bytes < sizeof text);
    assert_int_equal(recv(other, text, answer.bytes, MSG_WAITALL), answer.bytes);
    close(other);
    assert_non_null(strstr(text, "version 9"));
    test_world_finish(4);
    for (uint32_t i = 0; i < 2; i++)
        test_world_expect_message(i, "process 2 of 3 did not come|process 2 (h  !): |version 9|expected 2");
}

static void large_gathers(const struct test_world_member *member, struct world *world, struct test_world_report *report)
{
    report->ok = true;
    for (uint32_t round = 0; report->ok && round < 3; round++)
        report->ok = test_world_gather(member, world, round, WORLD_GATHER_BYTES, report);
}

/* Sockets of small packets hold little: parts wait for this reader while the others begin the next gather. */
static void a_slow_reader_gets_all_in_order(void **state)
{
    (void)state;
    enum { GATHERS = 4 }; /* the names, then those of the script */
    static uint8_t data[WORLD_GATHER_BYTES];
    int small = 536;
    uint64_t parts[2] = {0};
    bool welcome = false;
    test_world_plan(3, 5, large_gathers);
    test_world_members[2].script = NULL;
    test_world_start(3);
    int raw = test_world_connect(&small);
    struct test_world_frame hello = test_world_frame(1, 2, 0, 3, TEST_WORLD_FINGERPRINT), in;
    test_world_send(raw, &hello, sizeof hello);
    for (uint64_t given = 0; parts[0] < GATHERS || parts[1] < GATHERS;) {
        if (welcome && given < GATHERS && parts[0] == given && parts[1] == given) {
            struct test_world_frame part = test_world_frame(3, 2, given ? WORLD_GATHER_BYTES : 96, given, 0);
            for (size_t i = 0; i < part.bytes; i++)
                data[i] = given ? test_world_byte(2, (uint32_t)given - 1, i) : (uint8_t)(i ? 0 : 'r');
            test_world_send(raw, &part, sizeof part);
            test_world_send(raw, data, part.bytes);
            if (given++) test_world_sleep_ms(200);
        }
        assert_int_equal(recv(raw, &in, sizeof in, MSG_WAITALL), sizeof in);
        assert_true(in.bytes <= sizeof data);
        if (in.bytes) assert_int_equal(recv(raw, data, in.bytes, MSG_WAITALL), in.bytes);
        if (in.type == 1) welcome = true;
        if (in.type != 3) continue;
        assert_true(in.process < 2);
        /* None of the next gather while one of this is missing. */
        assert_int_equal(in.number, parts[in.process]++);
        assert_true(in.number <= parts[!in.process]);
        for (size_t i = 0; in.number && i < in.bytes; i += 97)
            assert_int_equal(data[i], test_world_byte(in.process, (uint32_t)in.number - 1, i));
    }
    struct test_world_frame bye = test_world_frame(5, 2, 0, 0, 0);
    test_world_send(raw, &bye, sizeof bye);
    test_world_finish(4);
    close(raw);
    test_world_expect_ok(0);
    test_world_expect_ok(1);
}

/* One hostile member for each kind of wrong frame; the world fails, and names it. */
static void wrong_frames_of_a_member(void **state)
{
    (void)state;
    const struct test_world_frame wrong[] = {
        test_world_frame(1, 1, 0, 2, TEST_WORLD_FINGERPRINT), /* hello again */
        test_world_frame(2, 1, 0xffffffff, 3, 0),             /* a long message */
        test_world_frame(2, 1, STATUS_MESSAGE_BYTES, 3, 0),   /* a little too long */
        test_world_frame(3, 1, WORLD_GATHER_BYTES + 1, 0, 0), /* a long part */
        test_world_frame(3, 1, 0xffffffff, 0, 0),             /* a very long one */
        test_world_frame(3, 0, 8, 0, 0),                      /* another's part */
        test_world_frame(3, 20, 8, 0, 0),                     /* nobody's */
        test_world_frame(3, 1, 8, 2, 0),                      /* of a gather to come */
        test_world_frame(4, 1, 1, 0, 0),                      /* a beat with data */
        test_world_frame(5, 1, 1, 0, 0),                      /* a goodbye with data */
        test_world_frame(6, 1, 0, 0, 0),
        test_world_frame(0, 1, 0, 0, 0),                                        /* no such type */
        {1, 1, 4, 1, 0, 0, 0},                                                  /* no magic */
        {UINT64_C(0x31646c726f776e65), TEST_WORLD_PROTOCOL + 1, 4, 1, 0, 0, 0}, /* version */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        test_world_plan(2, 2, test_world_stay);
        test_world_members[1].script = NULL;
        test_world_start(2);
        int raw = test_world_connect(NULL);
        struct test_world_frame hello = test_world_frame(1, 1, 3, 2, TEST_WORLD_FINGERPRINT);
        char name[96] = "raw";
        test_world_send(raw, &hello, sizeof hello);
        test_world_send(raw, name, 3);
        struct test_world_frame welcome;
        do {
            assert_int_equal(recv(raw, &welcome, sizeof welcome, MSG_WAITALL), sizeof welcome);
            assert_true(welcome.bytes < sizeof name);
            if (welcome.bytes) assert_int_equal(recv(raw, name, welcome.bytes, MSG_WAITALL), welcome.bytes);
        } while (welcome.type != 1);
        test_world_send(raw, &wrong[i], sizeof wrong[i]);
        test_world_finish(3);
        close(raw);
        assert_false(test_world_reports[0].ok);
        struct status status;
        memcpy(status.message, test_world_reports[0].message, sizeof status.message);
        test_expect_message(&status, "process 1 (raw): sent what is not expected");
        test_world_begin(NULL);
    }
}

/* Its part would take the place of one that others still have to get. */
static void a_part_that_comes_too_early(void **state)
{
    (void)state;
    test_world_plan(3, 2, test_world_stay);
    test_world_members[1].script = test_world_members[2].script = NULL;
    test_world_start(3);
    int early = test_world_connect(NULL), late = test_world_connect(NULL);
    struct test_world_frame hello = test_world_frame(1, 2, 0, 3, TEST_WORLD_FINGERPRINT), in;
    test_world_send(late, &hello, sizeof hello);
    hello.process = 1;
    test_world_send(early, &hello, sizeof hello);
    do {
        assert_int_equal(recv(early, &in, sizeof in, MSG_WAITALL), sizeof in);
    } while (in.type != 1);
    for (uint64_t number = 0; number < 2; number++) {
        struct test_world_frame part = test_world_frame(3, 1, 0, number, 0); /* nothing yet came of the other */
        test_world_send(early, &part, sizeof part);
    }
    test_world_finish(4);
    close(early);
    close(late);
    test_world_expect_message(0, "process 1 (): sent what is not expected of it (frame type 3)");
}

/* Bytes at random behind right magics, also goodbyes, notes of any step, and parts: whatever follows is an end. */
static void random_frames_of_a_member(void **state)
{
    (void)state;
    srand(5);
    for (int round = 0; round < 40; round++) {
        test_world_plan(2, 1, test_world_gather_once);
        test_world_members[1].script = NULL;
        test_world_start(2);
        int raw = test_world_connect(NULL);
        struct test_world_frame hello = test_world_frame(1, 1, 0, 2, TEST_WORLD_FINGERPRINT);
        test_world_send(raw, &hello, sizeof hello);
        for (int i = 0; i < 30; i++) {
            struct test_world_frame any =
                test_world_frame(1 + (uint32_t)rand() % 5, (uint32_t)rand() % 20, (uint32_t)rand() % 600,
                                 (uint64_t)rand() % 2, (uint64_t)rand());
            if (any.type > 3 && rand() % 8) any.bytes = 0;
            if (any.type == 4) any.number = (uint64_t)rand() << rand() % 40;
            if (any.type == 3 && rand() % 8) any.process = 1;
            uint8_t data[600];
            memset(data, rand(), sizeof data);
            if (send(raw, &any, sizeof any, MSG_NOSIGNAL) < 0) break;
            if (send(raw, data, any.bytes, MSG_NOSIGNAL) < 0) break;
        }
        close(raw);
        test_world_finish(4);
        test_world_begin(NULL);
    }
}

/* ---- faults ---- */

static void expect_noticed(uint32_t count, uint32_t victim, double since, double within, const char *words)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i == victim) continue;
        test_world_expect_message(i, words);
        double seconds = test_world_reports[i].end_seconds - since;
        if (seconds < 0 || seconds > within) fail_msg("member %u noticed it after %g s", i, seconds);
    }
}

static void a_killed_process_is_noticed(void **state)
{
    (void)state;
    for (int victim = 0; victim < 3; victim++)
        for (int in_gather = 0; in_gather < 2; in_gather++) {
            char words[64];
            test_world_plan(4, 20, in_gather ? test_world_gather_once : test_world_stay);
            test_world_members[victim].script = test_world_stay;
            test_world_start(4);
            test_world_wait_joined(4);
            test_world_sleep_ms(50);
            double since = test_world_seconds();
            test_world_signal(victim, SIGKILL);
            test_world_finish(4);
            snprintf(words, sizeof words, "process %d (|pid |has ended", victim);
            expect_noticed(4, (uint32_t)victim, since, 1, words);
            test_world_begin(NULL);
        }
}

static void stop_one(int victim)
{
    char words[64];
    test_world_plan(3, 20, test_world_stay);
    test_world_members[victim == 1 ? 2 : 1].script = test_world_gather_once;
    test_world_start(3);
    test_world_wait_joined(3);
    test_world_sleep_ms(50);
    double since = test_world_seconds();
    test_world_signal(victim, SIGSTOP);
    for (int i = 0; i < 3; i++)
        while (i != victim && waitpid(test_world_members[i].pid, NULL, WNOHANG) == 0 &&
               test_world_seconds() < since + 7.5)
            test_world_sleep_ms(5);
    for (int i = 0; i < 3; i++)
        if (i != victim) test_world_members[i].pid = 0;
    snprintf(words, sizeof words, "process %d (|pid |does not answer", victim);
    expect_noticed(3, (uint32_t)victim, since, 6.2, words);
    for (uint32_t i = 0; i < 3; i++)
        if ((int)i != victim) assert_true(test_world_reports[i].end_seconds - since > 4);
    /* Once it goes on, it hears what the others made of it, or finds them gone. */
    test_world_signal(victim, SIGCONT);
    test_world_finish(2);
    assert_false(test_world_reports[victim].ok);
}

static void a_stopped_process_is_noticed(void **state)
{
    (void)state;
    stop_one(1);
}

static void a_stopped_process_0_is_noticed(void **state)
{
    (void)state;
    stop_one(0);
}

/* As launchers do when they are suspended: longer than the limit for one of them. */
static void a_stop_of_all_does_no_harm(void **state)
{
    (void)state;
    test_world_plan(3, 20, test_world_stay);
    test_world_start(3);
    test_world_wait_joined(3);
    for (int i = 0; i < 3; i++) test_world_signal(i, SIGSTOP);
    test_world_sleep_ms(5500);
    for (int i = 0; i < 3; i++) test_world_signal(i, SIGCONT);
    test_world_sleep_ms(600);
    atomic_store(test_world_flag, 1);
    test_world_finish(3);
    for (uint32_t i = 0; i < 3; i++) test_world_expect_ok(i);
}

static void fails_with_a_long_message(const struct test_world_member *member, struct world *world,
                                      struct test_world_report *report)
{
    char message[2000];
    memset(message, 'x', sizeof message);
    message[sizeof message - 1] = '\0';
    memcpy(message, "GPU 3:\nline\x1b[2J ", 16);
    if (member->options.process == 2) {
        test_world_sleep_ms(50);
        world_fail(world, message);
        world_fail(world, "second");
        report->ok = world_ok(world, NULL);
        test_world_stay(member, world, report);
    } else {
        test_world_gather_once(member, world, report);
        struct status status;
        if (report->ok || world_ok(world, &status) || strcmp(status.message, report->message)) report->ok = true;
    }
}

static void a_failure_is_told_to_all(void **state)
{
    (void)state;
    test_world_plan(5, 20, fails_with_a_long_message);
    test_world_start(5);
    test_world_wait_joined(5);
    double since = test_world_seconds();
    test_world_finish(4);
    expect_noticed(5, 2, since, 1.0, "process 2 (|pid |): GPU 3: line [2J xxx");
    test_world_expect_message(2, "process 2 (|GPU 3: line");
    assert_string_equal(test_world_reports[0].message, test_world_reports[2].message);
    assert_string_equal(test_world_reports[0].message, test_world_reports[4].message);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, test_world_begin, test_world_end)
    const struct CMUnitTest tests[] = {
        TEST(strangers_do_not_disturb),    TEST(another_version_is_told),      TEST(a_slow_reader_gets_all_in_order),
        TEST(wrong_frames_of_a_member),    TEST(a_part_that_comes_too_early),  TEST(random_frames_of_a_member),
        TEST(a_killed_process_is_noticed), TEST(a_stopped_process_is_noticed), TEST(a_stopped_process_0_is_noticed),
        TEST(a_stop_of_all_does_no_harm),  TEST(a_failure_is_told_to_all),
    };
    return cmocka_run_group_tests(tests, test_world_share, NULL);
}
