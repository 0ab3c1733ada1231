/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that find each other, gather, part, fail and leave. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"

#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "runtime/distributed/test_process_group.h"

/* ---- joining and gathering ---- */

static void all_gather(uint32_t count, const int *delays_ms)
{
    test_group_plan(count, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
    for (uint32_t i = 0; i < count; i++)
        test_group_members[i].delay_ms = delays_ms ? delays_ms[i] : (int)(i * 7 % 5 * 30);
    test_group_start(count);
    test_group_finish();
    for (uint32_t i = 0; i < count; i++) test_group_expect_ok(i);
    test_group_begin(NULL);
}

TEST(any_order_of_start)
{
    all_gather(2, (const int[]){0, 100});
    all_gather(2, (const int[]){200, 0});
    all_gather(3, (const int[]){100, 0, 200});
    all_gather(3, (const int[]){0, 100, 50});
    all_gather(16, NULL);
}

static void unequal_sizes(const struct test_group_member *member, struct process_group *group,
                          struct test_group_report *report)
{
    uint8_t bytes[16 * 3] = {0};
    struct status status = {0};
    report->ok = process_group_gather(group, bytes, member->options.process == 2 ? 12 : 16, bytes, &status);
    memcpy(report->message, status.message, sizeof report->message);
}

TEST(gathers_of_different_sizes_fail)
{
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, unequal_sizes);
    test_group_start(3);
    test_group_finish();
    for (uint32_t i = 0; i < 3; i++)
        test_group_expect_message(i, "sent |12|16|bytes, expected|as from process|make the same calls");
}

TEST(nobody_waits_for_ever_in_a_gather)
{
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_gather_once);
    for (int i = 0; i < 3; i++) test_group_members[i].options.gather_seconds = 3; /* of the names, too */
    test_group_members[1].script = test_group_stay;
    test_group_start(3);
    test_group_finish();
    for (uint32_t i = 0; i < 3; i++) test_group_expect_message(i, "process 1 (|pid |did not answer within 3.0");
}

/* ---- refusals, of processes that have shown that they are of the job; without a token they are strangers ---- */

/* Those who come after the refusal do not hear of it. */
enum { WHEN_OTHERS_ARE_THERE_MS = 2000 };

static void refused_everywhere(uint32_t count, const char *words)
{
    for (uint32_t i = 0; i < count; i++) test_group_members[i].options.token = "one for all";
    test_group_start(count);
    test_group_finish();
    for (uint32_t i = 0; i < count; i++) {
        assert_false(test_group_reports[i].has_joined);
        test_group_expect_message(i, words);
    }
}

TEST(another_engine_file)
{
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
    test_group_members[1].options.fingerprint++;
    test_group_members[2].script = NULL;
    test_group_members[0].options.token = test_group_members[1].options.token = "one for all";
    test_group_start(3);
    test_group_finish();
    test_group_expect_message(0, "process 1 has another engine file than process 0|000000000000004e|000000000000004d");
    test_group_expect_message(1, "process 1 has another engine file than process 0");
}

TEST(everybody_hears_of_a_refusal)
{
    test_group_plan(4, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
    test_group_members[1].options.fingerprint++;
    test_group_members[1].delay_ms = WHEN_OTHERS_ARE_THERE_MS;
    refused_everywhere(4, "process 1 has another engine file than process 0");
}

TEST(a_number_that_is_there_twice)
{
    test_group_plan(4, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
    test_group_members[3].options.process = 1;
    test_group_members[3].delay_ms = WHEN_OTHERS_ARE_THERE_MS;
    refused_everywhere(4, "process 1 exists twice|pid");
}

TEST(another_count)
{
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
    test_group_members[2].options.processes = 4;
    test_group_members[2].delay_ms = WHEN_OTHERS_ARE_THERE_MS;
    refused_everywhere(3, "process 2 (|one of 4 processes|one of 3");
}

TEST(missing_processes_are_named)
{
    test_group_plan(5, 4, test_group_stay);
    test_group_members[1].script = test_group_members[3].script = NULL;
    test_group_start(5);
    test_group_finish();
    for (uint32_t i = 0; i < 5; i += 2) test_group_expect_message(i, "1, 3 of 5|did not connect");
}

TEST(process_0_does_not_come)
{
    test_group_plan(2, 0.5, test_group_stay);
    test_group_members[0].script = NULL;
    double begun = test_group_seconds();
    test_group_start(2);
    test_group_finish();
    test_group_expect_message(1, "cannot connect to process 0|127.0.0.1");
    assert_true(test_group_reports[1].end_seconds - begun > 0.45);
}

TEST(wrong_options)
{
    static const char *const bad[] = {"localhost", "localhost:",   "localhost:0", "localhost:65536", "localhost:12x",
                                      ":5000",     "::1:5000",     "[::1]",       "localhost:-1",    "[::1]:0",
                                      "a:999999",  "localhost: 1", "\n:12"};
    struct status status;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (uint32_t process = 0; process < 2; process++) {
            struct process_group_options options = {process, 2, bad[i], 0.05, 1, 1, NULL, false};
            status_clear(&status);
            if (process_group_join(&options, &status)) fail_msg("took '%s'", bad[i]);
            assert_int_equal(status.code, STATUS_USAGE);
            test_expect_message(&status, "address");
        }
    const struct process_group_options wrong[] = {{0, 1, test_group_address, 1, 1, 1, NULL, false},
                                                  {0, 17, test_group_address, 1, 1, 1, NULL, false},
                                                  {2, 2, test_group_address, 1, 1, 1, NULL, false},
                                                  {0, 2, test_group_address, 0, 1, 1, NULL, false},
                                                  {0, 2, test_group_address, -1, 1, 1, NULL, false},
                                                  {0, 2, test_group_address, 1, 0, 1, NULL, false},
                                                  {0, 2, NULL, 1, 1, 1, NULL, false}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        status_clear(&status);
        assert_null(process_group_join(&wrong[i], &status));
        assert_int_equal(status.code, STATUS_USAGE);
    }
    struct process_group *none = NULL;
    process_group_leave(&none);
}

TEST(a_port_that_is_taken)
{
    int taken = test_group_listen();
    struct status status;
    struct process_group_options options = {0, 2, test_group_address, 1, 1, 1, NULL, false};
    test_expect_failure(process_group_join(&options, &status) != NULL, &status, STATUS_USAGE,
                        "cannot listen|free port|in use");
    close(taken);
}

TEST(version_6_of_ip)
{
    char port[16];
    snprintf(port, sizeof port, "%s", strchr(test_group_address, ':') + 1);
    int probe = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 own = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool has_any = probe >= 0 && !bind(probe, (struct sockaddr *)&own, sizeof own);
    if (probe >= 0) close(probe);
    if (!has_any) skip();
    snprintf(test_group_address, sizeof test_group_address, "[::1]:%s", port);
    test_group_plan(2, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
    test_group_start(2);
    test_group_finish();
    test_group_expect_ok(0);
    test_group_expect_ok(1);
}

/* ---- notes ---- */

static int pace_ms[3];            /* between two notes */
static uint64_t parts_at[3];      /* from this step on its digests differ; 0: never */
static const uint64_t STEPS = 16; /* of one note to the next: not each is one that is compared */

static void note_steps(const struct test_group_member *member, struct process_group *group,
                       struct test_group_report *report)
{
    uint32_t self = member->options.process;
    struct status status = {0};
    report->ok = true;
    for (uint64_t step = 0; step <= 2048 && report->ok && !atomic_load(test_group_flag); step += STEPS) {
        process_group_note(group, step, step * 31 + 7 + (parts_at[self] && step >= parts_at[self]));
        test_group_sleep_ms(pace_ms[self]);
        report->ok = process_group_ok(group, &status);
    }
    if (report->ok) test_group_stay(member, group, report);
    if (!report->ok) {
        process_group_ok(group, &status);
        memcpy(report->message, status.message, sizeof report->message);
    }
}

static void note_with(const int *paces_ms, uint32_t who, uint64_t at)
{
    memcpy(pace_ms, paces_ms, sizeof pace_ms);
    memset(parts_at, 0, sizeof parts_at);
    parts_at[who] = at;
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, note_steps);
    test_group_start(3);
}

TEST(equal_notes_at_any_pace)
{
    note_with((const int[]){7, 1, 20}, 0, 0);
    test_group_wait_joined(3);
    test_group_sleep_ms(3000);
    atomic_store(test_group_flag, 1);
    test_group_finish();
    for (uint32_t i = 0; i < 3; i++) test_group_expect_ok(i);
}

TEST(parted_processes_are_noticed)
{
    /* Slower than process 0, as fast, faster; and when process 0 itself is the odd one. */
    static const int paces[][3] = {{1, 10, 1}, {5, 5, 5}, {10, 1, 1}};
    for (int i = 0; i < 4; i++) {
        note_with(paces[i % 3], i == 3 ? 0 : 1, 640);
        test_group_finish();
        for (uint32_t p = 0; p < 3; p++) test_group_expect_message(p, "was given other inputs than process 0 (step ");
        /* The first step that was compared, and not one before the inputs differed. */
        const char *step = strstr(test_group_reports[2].message, "(step ");
        assert_true(strtoull(step + 6, NULL, 10) >= 640);
        assert_int_equal(strtoull(step + 6, NULL, 10) % PROCESS_GROUP_NOTE_STEPS, 0);
        if (i < 3) test_group_expect_message(0, "process 1 was");
        test_group_begin(NULL);
    }
}

static void note_640_alone(const struct test_group_member *member, struct process_group *group,
                           struct test_group_report *report)
{
    if (member->options.process < 2) process_group_note(group, 640, member->options.process);
    test_group_stay(member, group, report);
}

TEST(the_step_is_named)
{
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, note_640_alone);
    test_group_start(3);
    test_group_finish();
    for (uint32_t i = 0; i < 3; i++)
        test_group_expect_message(i, "process 1 was given other inputs than process 0 (step 640)");
}

/* ---- leaving ---- */

static void leave_one_by_one(const struct test_group_member *member, struct process_group *group,
                             struct test_group_report *report)
{
    struct status status = {0};
    report->ok = test_group_gather(member, group, 1, 1000, report);
    double until =
        test_group_seconds() + 0.3 * ((member->options.process + 3 - (uint32_t)atomic_load(test_group_flag)) % 3);
    while (report->ok && test_group_seconds() < until) {
        report->ok = process_group_ok(group, &status);
        test_group_sleep_ms(2);
    }
    if (!report->ok && status.code) memcpy(report->message, status.message, sizeof report->message);
}

/* The longest time that one of them took to leave. */
static double leave_in_turn(int first)
{
    double longest = 0;
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, leave_one_by_one);
    atomic_store(test_group_flag, first);
    test_group_start(3);
    test_group_finish();
    for (uint32_t i = 0; i < 3; i++) {
        const double seconds = test_group_reports[i].left_seconds - test_group_reports[i].end_seconds;
        test_group_expect_ok(i);
        if (seconds > longest) longest = seconds;
    }
    test_group_begin(NULL);
    return longest;
}

TEST(leaving_is_no_failure)
{
    enum { ATTEMPTS = 8 }; /* that a busy machine may make slow */
    for (int first = 0; first < 3; first++) {
        double seconds = leave_in_turn(first);
        for (int i = 1; i < ATTEMPTS && seconds > 0.5; i++) seconds = leave_in_turn(first);
        assert_true(seconds <= 0.5); /* one who waits for those that stay does so for a second */
    }
}

static void leave_at_once(const struct test_group_member *member, struct process_group *group,
                          struct test_group_report *report)
{
    (void)member;
    report->ok = process_group_ok(group, NULL);
}

TEST(who_has_left_is_not_waited_for)
{
    for (int first = 0; first < 2; first++) {
        char words[64];
        test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_gather_once);
        test_group_members[first].script = leave_at_once;
        test_group_start(3);
        double begun = test_group_seconds();
        test_group_finish();
        assert_true(test_group_seconds() - begun < TEST_GROUP_ENOUGH_SECONDS / 2.0);
        snprintf(words, sizeof words, "process %d (|closed the engine while process ", first);
        for (uint32_t i = 0; i < 3; i++)
            if ((int)i != first) test_group_expect_message(i, words);
        test_group_begin(NULL);
    }
}

TEST(leaving_does_not_wait_for_the_stopped)
{
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
    test_group_start(3);
    test_group_wait_joined(3);
    test_group_signal(1, SIGSTOP);
    atomic_store(test_group_flag, 1);
    for (int i = 0; i < 3; i += 2) {
        test_group_await(i);
        test_group_expect_ok((uint32_t)i);
        /* They give it a second; silence is a failure after 5 s. */
        assert_true(test_group_reports[i].left_seconds - test_group_reports[i].end_seconds < 4);
    }
    test_group_signal(1, SIGCONT);
    test_group_finish();
}

static void fail_first(const struct test_group_member *member, struct process_group *group,
                       struct test_group_report *report)
{
    if (member->options.process == 2) process_group_fail(group, "no more");
    test_group_stay(member, group, report);
}

/* ---- leaks: all in this process, in threads ---- */

static void *run_in_thread(void *argument)
{
    test_group_run(argument);
    return NULL;
}

static void *do_nothing(void *argument) { return argument; }

static void run_in_threads(uint32_t count)
{
    pthread_t threads[TEST_GROUP_MOST];
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_in_thread, &test_group_members[i]), 0);
    for (uint32_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

TEST(nothing_stays_behind)
{
    /* A sanitizer starts a thread of its own with the first. */
    pthread_t first;
    assert_int_equal(pthread_create(&first, NULL, do_nothing, NULL), 0);
    pthread_join(first, NULL);
    int descriptors = test_count_entries("/proc/self/fd"), threads = test_count_entries("/proc/self/task");
    test_group_plan(4, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
    run_in_threads(4);
    for (uint32_t i = 0; i < 4; i++) test_group_expect_ok(i);
    assert_int_equal(test_count_entries("/proc/self/fd"), descriptors);

    test_group_begin(NULL);
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
    for (uint32_t i = 0; i < 3; i++) test_group_members[i].options.token = "one for all";
    test_group_members[1].options.fingerprint++;
    test_group_members[1].delay_ms = 50;
    run_in_threads(3);
    test_group_expect_message(0, "another engine file");
    assert_int_equal(test_count_entries("/proc/self/fd"), descriptors);

    test_group_begin(NULL);
    test_group_plan(3, 2, test_group_stay);
    run_in_threads(2);
    test_group_expect_message(1, "process 2 of 3");

    test_group_begin(NULL);
    test_group_plan(3, TEST_GROUP_ENOUGH_SECONDS, fail_first);
    run_in_threads(3);
    test_group_expect_message(0, "process 2");

    test_group_begin(NULL);
    test_group_plan(2, TEST_GROUP_ENOUGH_SECONDS, note_640_alone);
    run_in_threads(2);
    test_group_expect_message(0, "step 640");
    assert_int_equal(test_count_entries("/proc/self/fd"), descriptors);
    /* A thread that was joined may be listed for a moment. */
    for (int i = 0; i < 2000 && test_count_entries("/proc/self/task") != threads; i++) test_group_sleep_ms(5);
    assert_int_equal(test_count_entries("/proc/self/task"), threads);
}

int main(void) { return test_run_with(test_group_share, test_group_begin, test_group_end, NULL); }
