/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that are killed and stopped, and connections that violate the protocol. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "runtime/distributed/test_process_group.h"

/* ---- those who do not keep to the protocol ---- */

TEST(strangers_do_not_disturb)
{
    enum { SILENT = 40 }; /* more than process 0 keeps */
    int silent[SILENT];
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
    test_group_start_one(0);
    for (int i = 0; i < SILENT; i++) silent[i] = test_group_connect(NULL);
    int talker = test_group_connect(NULL), half = test_group_connect(NULL);
    const char *request = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything there is to accept\r\n\r\n";
    test_group_send(talker, request, strlen(request));
    struct test_group_frame hello = test_group_frame(1, 1, 3, 3, TEST_GROUP_FINGERPRINT);
    test_group_send(half, &hello, 30);
    /* Known frames, but of one who has not introduced himself. */
    int fails = test_group_connect(NULL);
    struct test_group_frame failure = test_group_frame(2, 1, 4, 3, 0);
    test_group_send(fails, &failure, sizeof failure);
    char end_of_talk;
    assert_true(recv(talker, &end_of_talk, 1, 0) <= 0);
    assert_true(recv(fails, &end_of_talk, 1, 0) <= 0);
    test_group_start_one(1);
    test_group_start_one(2);
    test_group_finish();
    for (int i = 0; i < SILENT; i++) close(silent[i]);
    close(talker), close(half), close(fails);
    for (uint32_t i = 0; i < 3; i++) test_group_expect_ok(i);
}

TEST(another_version_is_told)
{
    test_group_plan(3, 4, test_group_stay);
    test_group_members[2].script = NULL;
    test_group_start(3);
    int other = test_group_connect(NULL);
    struct test_group_frame hello = test_group_frame(1, 2, 4, 3, TEST_GROUP_FINGERPRINT), answer;
    hello.version = 9;
    test_group_send(other, &hello, sizeof hello);
    test_group_send(other, "h\x1b\n!", 4);
    do {
        assert_int_equal(recv(other, &answer, sizeof answer, MSG_WAITALL), sizeof answer);
    } while (answer.type == 4);
    assert_int_equal(answer.type, 2);
    char text[512] = "";
    assert_true(answer.bytes < sizeof text);
    assert_int_equal(recv(other, text, answer.bytes, MSG_WAITALL), answer.bytes);
    close(other);
    assert_non_null(strstr(text, "version 9"));
    test_group_finish();
    for (uint32_t i = 0; i < 2; i++)
        test_group_expect_message(
            i, "process 2 of 3 did not connect|process 2 (h  !): |expected version 2|found version 9");
}

static void large_gathers(const struct test_group_member *member, struct process_group *group,
                          struct test_group_report *report)
{
    report->ok = true;
    for (uint32_t round = 0; report->ok && round < 3; round++)
        report->ok = test_group_gather(member, group, round, PROCESS_GROUP_GATHER_BYTES, report);
}

/* Sockets of small packets hold little: parts wait for this reader while the others begin the next gather. */
TEST(a_slow_reader_gets_all_in_order)
{
    enum { GATHERS = 4 }; /* the names, then those of the script */
    static uint8_t data[PROCESS_GROUP_GATHER_BYTES];
    int small = 536;
    uint64_t parts[2] = {0};
    bool welcome = false;
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, large_gathers);
    test_group_members[2].script = NULL;
    test_group_start(3);
    int raw = test_group_connect(&small);
    struct test_group_frame hello = test_group_frame(1, 2, 0, 3, TEST_GROUP_FINGERPRINT), in;
    test_group_send(raw, &hello, sizeof hello);
    for (uint64_t given = 0; parts[0] < GATHERS || parts[1] < GATHERS;) {
        if (welcome && given < GATHERS && parts[0] == given && parts[1] == given) {
            struct test_group_frame part = test_group_frame(3, 2, given ? PROCESS_GROUP_GATHER_BYTES : 96, given, 0);
            for (size_t i = 0; i < part.bytes; i++)
                data[i] = given ? test_group_byte(2, (uint32_t)given - 1, i) : (uint8_t)(i ? 0 : 'r');
            test_group_send(raw, &part, sizeof part);
            test_group_send(raw, data, part.bytes);
            if (given++) test_group_sleep_ms(200);
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
            assert_int_equal(data[i], test_group_byte(in.process, (uint32_t)in.number - 1, i));
    }
    struct test_group_frame bye = test_group_frame(5, 2, 0, 0, 0);
    test_group_send(raw, &bye, sizeof bye);
    test_group_finish();
    close(raw);
    test_group_expect_ok(0);
    test_group_expect_ok(1);
}

/* One hostile member for each kind of wrong frame; the group fails, and names it. */
TEST(wrong_frames_of_a_member)
{
    const struct test_group_frame wrong[] = {
        test_group_frame(1, 1, 0, 2, TEST_GROUP_FINGERPRINT),         /* hello again */
        test_group_frame(2, 1, 0xffffffff, 3, 0),                     /* a long message */
        test_group_frame(2, 1, STATUS_MESSAGE_BYTES, 3, 0),           /* a little too long */
        test_group_frame(3, 1, PROCESS_GROUP_GATHER_BYTES + 1, 0, 0), /* a long part */
        test_group_frame(3, 1, 0xffffffff, 0, 0),                     /* a very long one */
        test_group_frame(3, 0, 8, 0, 0),                              /* another's part */
        test_group_frame(3, 20, 8, 0, 0),                             /* of a process that does not exist */
        test_group_frame(3, 1, 8, 2, 0),                              /* of a gather to come */
        test_group_frame(4, 1, 1, 0, 0),                              /* a beat with data */
        test_group_frame(5, 1, 1, 0, 0),                              /* a goodbye with data */
        test_group_frame(6, 1, 0, 0, 0),
        test_group_frame(0, 1, 0, 0, 0),                                        /* no such type */
        {1, 1, 4, 1, 0, 0, 0},                                                  /* no magic */
        {UINT64_C(0x31646c726f776e65), TEST_GROUP_PROTOCOL + 1, 4, 1, 0, 0, 0}, /* version */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        test_group_plan(2, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
        test_group_members[1].script = NULL;
        test_group_start(2);
        int raw = test_group_connect(NULL);
        struct test_group_frame hello = test_group_frame(1, 1, 3, 2, TEST_GROUP_FINGERPRINT);
        char name[96] = "raw";
        test_group_send(raw, &hello, sizeof hello);
        test_group_send(raw, name, 3);
        struct test_group_frame welcome;
        do {
            assert_int_equal(recv(raw, &welcome, sizeof welcome, MSG_WAITALL), sizeof welcome);
            assert_true(welcome.bytes < sizeof name);
            if (welcome.bytes) assert_int_equal(recv(raw, name, welcome.bytes, MSG_WAITALL), welcome.bytes);
        } while (welcome.type != 1);
        test_group_send(raw, &wrong[i], sizeof wrong[i]);
        test_group_finish();
        close(raw);
        assert_false(test_group_reports[0].ok);
        struct status status;
        memcpy(status.message, test_group_reports[0].message, sizeof status.message);
        test_expect_message(&status, "process 1 (raw) sent an unexpected message");
        test_group_begin(NULL);
    }
}

/* Its part would take the place of one that others still have to get. */
TEST(a_part_that_comes_too_early)
{
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
    test_group_members[1].script = test_group_members[2].script = NULL;
    test_group_start(3);
    int early = test_group_connect(NULL), late = test_group_connect(NULL);
    struct test_group_frame hello = test_group_frame(1, 2, 0, 3, TEST_GROUP_FINGERPRINT), in;
    test_group_send(late, &hello, sizeof hello);
    hello.process = 1;
    test_group_send(early, &hello, sizeof hello);
    do {
        assert_int_equal(recv(early, &in, sizeof in, MSG_WAITALL), sizeof in);
    } while (in.type != 1);
    for (uint64_t number = 0; number < 2; number++) {
        struct test_group_frame part = test_group_frame(3, 1, 0, number, 0); /* nothing yet came of the other */
        test_group_send(early, &part, sizeof part);
    }
    test_group_finish();
    close(early);
    close(late);
    test_group_expect_message(0, "process 1 () sent an unexpected message (frame type 3)");
}

/* Random bytes after correct magics, also goodbyes, notes of any step, and parts: whatever follows is an end. */
TEST(random_frames_of_a_member)
{
    srand(5);
    for (int round = 0; round < 40; round++) {
        test_group_plan(2, TEST_GROUP_ENOUGH_SECONDS, test_group_gather_once);
        test_group_members[1].script = NULL;
        test_group_start(2);
        int raw = test_group_connect(NULL);
        struct test_group_frame hello = test_group_frame(1, 1, 0, 2, TEST_GROUP_FINGERPRINT);
        test_group_send(raw, &hello, sizeof hello);
        for (int i = 0; i < 30; i++) {
            struct test_group_frame any =
                test_group_frame(1 + (uint32_t)rand() % 5, (uint32_t)rand() % 20, (uint32_t)rand() % 600,
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
        test_group_finish();
        test_group_begin(NULL);
    }
}

/* ---- faults ---- */

static void expect_noticed(uint32_t count, uint32_t victim, double since, double within, const char *words)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i == victim) continue;
        test_group_expect_message(i, words);
        double seconds = test_group_reports[i].end_seconds - since;
        if (seconds < 0 || seconds > within) fail_msg("member %u noticed it after %g s", i, seconds);
    }
}

TEST(a_killed_process_is_noticed)
{
    for (int victim = 0; victim < 3; victim++)
        for (int in_gather = 0; in_gather < 2; in_gather++) {
            char words[64];
            test_group_plan(4, TEST_GROUP_ENOUGH_SECONDS, in_gather ? test_group_gather_once : test_group_stay);
            test_group_members[victim].script = test_group_stay;
            test_group_start(4);
            test_group_wait_joined(4);
            test_group_sleep_ms(50);
            double since = test_group_seconds();
            test_group_signal(victim, SIGKILL);
            test_group_finish();
            snprintf(words, sizeof words, "process %d (|pid |stopped responding: its process has ended", victim);
            expect_noticed(4, (uint32_t)victim, since, 4, words); /* before silence alone tells it */
            test_group_begin(NULL);
        }
}

static void stop_one(int victim)
{
    char words[64];
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
    test_group_members[victim == 1 ? 2 : 1].script = test_group_gather_once;
    test_group_start(3);
    test_group_wait_joined(3);
    test_group_sleep_ms(50);
    double since = test_group_seconds();
    test_group_signal(victim, SIGSTOP);
    for (int i = 0; i < 3; i++)
        if (i != victim) test_group_await(i);
    snprintf(words, sizeof words, "process %d (|pid |stopped responding: nothing received for 5 s", victim);
    /* It is last heard of a beat before it stops, or earlier on a busy machine. */
    expect_noticed(3, (uint32_t)victim, since, 20, words);
    for (uint32_t i = 0; i < 3; i++)
        if ((int)i != victim) assert_true(test_group_reports[i].end_seconds - since > 2);
    /* Once it goes on, it hears what the others made of it, or finds them gone. */
    test_group_signal(victim, SIGCONT);
    test_group_finish();
    assert_false(test_group_reports[victim].ok);
}

TEST(a_stopped_process_is_noticed) { stop_one(1); }

TEST(a_stopped_process_0_is_noticed) { stop_one(0); }

/* As launchers do when they are suspended: longer than the limit for one of them. */
TEST(a_stop_of_all_does_no_harm)
{
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
    test_group_start(3);
    test_group_wait_joined(3);
    for (int i = 0; i < 3; i++) test_group_signal(i, SIGSTOP);
    test_group_sleep_ms(5500);
    for (int i = 0; i < 3; i++) test_group_signal(i, SIGCONT);
    test_group_sleep_ms(600);
    atomic_store(test_group_flag, 1);
    test_group_finish();
    for (uint32_t i = 0; i < 3; i++) test_group_expect_ok(i);
}

static void fails_with_a_long_message(const struct test_group_member *member, struct process_group *group,
                                      struct test_group_report *report)
{
    char message[2000];
    memset(message, 'x', sizeof message);
    message[sizeof message - 1] = '\0';
    memcpy(message, "GPU 3:\nline\x1b[2J ", 16);
    if (member->options.process == 2) {
        test_group_sleep_ms(50);
        process_group_fail(group, message);
        process_group_fail(group, "second");
        report->ok = process_group_ok(group, NULL);
        test_group_stay(member, group, report);
    } else {
        test_group_gather_once(member, group, report);
        struct status status;
        if (report->ok || process_group_ok(group, &status) || strcmp(status.message, report->message))
            report->ok = true;
    }
}

TEST(a_failure_is_told_to_all)
{
    test_group_plan(5, TEST_GROUP_ENOUGH_SECONDS, fails_with_a_long_message);
    double since = test_group_seconds();
    test_group_start(5);
    test_group_finish();
    expect_noticed(5, 2, since, TEST_GROUP_ENOUGH_SECONDS / 2.0, "process 2 (|pid |): GPU 3: line [2J xxx");
    test_group_expect_message(2, "process 2 (|GPU 3: line");
    assert_string_equal(test_group_reports[0].message, test_group_reports[2].message);
    assert_string_equal(test_group_reports[0].message, test_group_reports[4].message);
}

int main(void) { return test_run_with(test_group_share, test_group_begin, test_group_end, NULL); }
