/* SPDX-License-Identifier: Apache-2.0 */
/* The job token: who has it joins, who has not does not, and nothing that was overheard helps. */
#include "runtime/distributed/process_group_token.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "runtime/distributed/test_process_group.h"

enum { HELLO = 1, FAIL = 2, BEAT = 4, CHALLENGE = 6, PROOF = 7 };

#define HAS_TOKEN UINT64_C(0x100000000)

static const char token[] = "correct horse battery staple";

static void plan_with_token(uint32_t count, double longest_seconds,
                            void (*script)(const struct test_group_member *member, struct process_group *group,
                                           struct test_group_report *report))
{
    test_group_plan(count, longest_seconds, script);
    for (uint32_t i = 0; i < count; i++) test_group_members[i].options.token = token;
}

/* No message contains the secret. */
static void expect_no_token(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) assert_null(strstr(test_group_reports[i].message, token));
}

/* ---- proofs ---- */

/* HMAC-SHA-256 as Python's hmac module has it, over the same bytes: label, nonces, hello. */
TEST(a_proof_is_an_hmac)
{
    static const uint8_t expected[2][PROCESS_GROUP_PROOF_BYTES] =
        {{0x84, 0x87, 0x63, 0x6c, 0x46, 0x3a, 0xd7, 0xc3, 0xed, 0x37, 0xff, 0x62, 0x6b, 0x32, 0x4c, 0x13,
          0x4d, 0x3e, 0x05, 0x4e, 0xe5, 0x77, 0xd5, 0xd1, 0x6d, 0x7e, 0xd7, 0xa5, 0xfd, 0xef, 0xce, 0xeb},
         {0x77, 0xdc, 0xd5, 0xdd, 0xec, 0xb1, 0x4a, 0xb0, 0x80, 0xf3, 0x4f, 0x55, 0xda, 0x12, 0x49, 0x22,
          0x83, 0x59, 0xbc, 0xd6, 0xa2, 0xdc, 0x43, 0x10, 0x84, 0x06, 0x4f, 0xd0, 0x8e, 0x71, 0x8a, 0xb2}};
    struct process_group_nonces nonces;
    uint8_t proof[PROCESS_GROUP_PROOF_BYTES];
    for (int i = 0; i < PROCESS_GROUP_NONCE_BYTES; i++) {
        nonces.of_first[i] = (uint8_t)i;
        nonces.of_other[i] = (uint8_t)(100 + i);
    }
    for (int side = PROCESS_GROUP_SIDE_FIRST; side <= PROCESS_GROUP_SIDE_OTHER; side++) {
        process_group_token_prove("key", (enum process_group_side)side, &nonces, "hello", 5, proof);
        assert_memory_equal(proof, expected[side], sizeof proof);
        assert_true(process_group_token_check("key", (enum process_group_side)side, &nonces, "hello", 5, proof));
        assert_false(process_group_token_check("Key", (enum process_group_side)side, &nonces, "hello", 5, proof));
        assert_false(process_group_token_check("key", (enum process_group_side) !side, &nonces, "hello", 5, proof));
        assert_false(process_group_token_check("key", (enum process_group_side)side, &nonces, "hallo", 5, proof));
        for (int bit = 0; bit < 8 * PROCESS_GROUP_PROOF_BYTES; bit += 7) {
            proof[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_false(process_group_token_check("key", (enum process_group_side)side, &nonces, "hello", 5, proof));
            proof[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        nonces.of_first[31] ^= 1;
        assert_false(process_group_token_check("key", (enum process_group_side)side, &nonces, "hello", 5, proof));
        nonces.of_first[31] ^= 1;
        nonces.of_other[0] ^= 1;
        assert_false(process_group_token_check("key", (enum process_group_side)side, &nonces, "hello", 5, proof));
        nonces.of_other[0] ^= 1;
    }
}

TEST(nonces_differ)
{
    uint8_t nonces[20][PROCESS_GROUP_NONCE_BYTES];
    for (int i = 0; i < 20; i++) {
        assert_true(process_group_token_draw_nonce(nonces[i], NULL));
        for (int j = 0; j < i; j++) assert_memory_not_equal(nonces[i], nonces[j], PROCESS_GROUP_NONCE_BYTES);
    }
}

/* ---- processes ---- */

TEST(one_token_for_all)
{
    for (uint32_t count = 2; count <= 16; count += 7) {
        plan_with_token(count, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
        test_group_start(count);
        test_group_finish();
        for (uint32_t i = 0; i < count; i++) test_group_expect_ok(i);
        test_group_begin(NULL);
    }
}

TEST(tokens_of_any_size)
{
    char longest[PROCESS_GROUP_TOKEN_BYTES + 1];
    memset(longest, 't', sizeof longest);
    longest[PROCESS_GROUP_TOKEN_BYTES] = '\0';
    struct status status;
    struct process_group_options options = {0, 2, test_group_address, 1, 1, 1, longest, false};
    test_expect_failure(process_group_join(&options, &status) != NULL, &status, STATUS_USAGE,
                        "job token: expected at most 255 bytes, found 256");
    longest[PROCESS_GROUP_TOKEN_BYTES - 1] = '\0';
    static const char *const sizes[] = {"x", NULL};
    for (int i = 0; i < 2; i++) {
        plan_with_token(2, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
        for (int p = 0; p < 2; p++) test_group_members[p].options.token = sizes[i] ? sizes[i] : longest;
        test_group_start(2);
        test_group_finish();
        for (uint32_t p = 0; p < 2; p++) test_group_expect_ok(p);
        test_group_begin(NULL);
    }
}

/* Process 1 is refused at once; the start of the others goes on without it. */
static void refused_alone(const char *of_first, const char *of_other, const char *words)
{
    char late[256];
    test_group_plan(3, 4, test_group_stay);
    test_group_members[0].options.token = test_group_members[2].options.token = of_first;
    test_group_members[1].options.token = of_other;
    test_group_start(3);
    test_group_finish();
    assert_false(test_group_reports[1].has_joined);
    test_group_expect_message(1, words);
    snprintf(late, sizeof late, "process 1 of 3 did not connect|1 connection was refused|127.0.0.1:|%s", words);
    test_group_expect_message(0, late);
    test_group_expect_message(2, late);
    assert_true(test_group_reports[1].end_seconds < test_group_reports[0].end_seconds);
    expect_no_token(3);
    test_group_begin(NULL);
}

TEST(other_tokens_are_refused)
{
    refused_alone(token, "correct horse battery stapler", "process 1 (|has another job token than process 0 (");
    refused_alone(token, NULL, "process 1 (|was started without a job token, but process 0 (|with one|ENG_JOB_TOKEN");
    refused_alone(token, "", "process 1 (|was started without a job token, but process 0 (|with one");
    refused_alone(NULL, token, "process 1 (|was started with a job token, but process 0 (|without one|ENG_JOB_TOKEN");
}

/* A stranger without the token does not take the number of the process that has it. */
TEST(strangers_take_no_number)
{
    plan_with_token(2, TEST_GROUP_ENOUGH_SECONDS, test_group_gathers);
    test_group_start_one(0);
    struct test_group_frame hello = test_group_frame(HELLO, 1, 0, 2 | HAS_TOKEN, TEST_GROUP_FINGERPRINT), frame;
    char text[STATUS_MESSAGE_BYTES];
    int waiting = test_group_connect(NULL), wrong = test_group_connect(NULL), eager = test_group_connect(NULL);
    test_group_send_hello(waiting, hello, "waits");
    test_group_send_hello(wrong, hello, "guesses");
    assert_true(test_group_receive(wrong, &frame, text));
    assert_int_equal(frame.type, CHALLENGE);
    assert_int_equal(frame.bytes, PROCESS_GROUP_NONCE_BYTES);
    uint8_t proof[PROCESS_GROUP_NONCE_BYTES + PROCESS_GROUP_PROOF_BYTES] = {1};
    frame = test_group_frame(PROOF, 1, sizeof proof, 0, 0);
    test_group_send(wrong, &frame, sizeof frame);
    test_group_send(wrong, proof, sizeof proof);
    assert_true(test_group_receive(wrong, &frame, text));
    assert_int_equal(frame.type, FAIL);
    assert_non_null(strstr(text, "another job token"));
    /* As a member would go on. */
    test_group_send_hello(eager, hello, "eager");
    frame = test_group_frame(BEAT, 1, 0, 0, 0);
    test_group_send(eager, &frame, sizeof frame);
    while (test_group_receive(eager, &frame, text)) assert_int_equal(frame.type, CHALLENGE);
    test_group_start_one(1);
    test_group_finish();
    test_group_expect_ok(0);
    test_group_expect_ok(1);
    close(waiting), close(wrong), close(eager);
}

/* ---- between the two ---- */

/* Passes on what process 1 sends to `to` and the other way round, as an attacker on the network could. */
struct relay {
    int listener, to, from;
    pthread_t thread;
    size_t flipped; /* this byte of process 1's, if not SIZE_MAX */
    size_t bytes;
    uint8_t heard[8192]; /* what process 1 sent */
};

static void pass_on(struct relay *relay)
{
    struct pollfd polls[2] = {{relay->from, POLLIN, 0}, {relay->to, POLLIN, 0}};
    for (;;) {
        uint8_t data[4096];
        if (poll(polls, 2, TEST_GROUP_ENOUGH_SECONDS * 1000) <= 0) return;
        for (int i = 0; i < 2; i++) {
            if (!polls[i].revents) continue;
            ssize_t got = recv(polls[i].fd, data, sizeof data, 0);
            if (got <= 0) return;
            for (ssize_t b = 0; i == 0 && b < got && relay->bytes < sizeof relay->heard; b++) {
                if (relay->bytes == relay->flipped) data[b] ^= 1;
                relay->heard[relay->bytes++] = data[b];
            }
            if (send(polls[!i].fd, data, (size_t)got, MSG_NOSIGNAL) != got) return;
        }
    }
}

static void *run_relay(void *argument)
{
    struct relay *relay = argument;
    relay->from = accept(relay->listener, NULL, NULL);
    if (relay->from >= 0) pass_on(relay);
    if (relay->from >= 0) close(relay->from);
    close(relay->to);
    close(relay->listener);
    return NULL;
}

/* Both processes run, process 1 by way of the relay. Takes the setup's address for the relay, and another for process 0. */
static void run_by_relay(struct relay *relay, char to_address[64], size_t flipped, double longest_seconds,
                         void (*script)(const struct test_group_member *member, struct process_group *group,
                                        struct test_group_report *report))
{
    static char relay_address[64];
    memset(relay, 0, sizeof *relay);
    relay->flipped = flipped;
    test_group_begin(NULL);
    strcpy(to_address, test_group_address);
    test_group_begin(NULL);
    strcpy(relay_address, test_group_address);
    plan_with_token(2, longest_seconds, script);
    test_group_members[0].options.address = to_address;
    test_group_members[1].options.address = relay_address;
    test_group_start(2);
    relay->listener = test_group_listen();
    strcpy(test_group_address, to_address);
    relay->to = test_group_connect(NULL);
    assert_int_equal(pthread_create(&relay->thread, NULL, run_relay, relay), 0);
    test_group_finish();
    pthread_join(relay->thread, NULL);
}

TEST(a_recorded_hello_is_worth_nothing)
{
    struct relay relay;
    char address[64];
    run_by_relay(&relay, address, SIZE_MAX, TEST_GROUP_ENOUGH_SECONDS, test_group_gather_once);
    for (uint32_t i = 0; i < 2; i++) test_group_expect_ok(i);
    assert_true(relay.bytes > sizeof(struct test_group_frame) * 2 + PROCESS_GROUP_PROOF_BYTES);
    assert_null(memmem(relay.heard, relay.bytes, token, strlen(token)));
    /* The same once more, byte by byte, to another process 0 of the job. */
    test_group_begin(NULL);
    plan_with_token(2, TEST_GROUP_ENOUGH_SECONDS, test_group_gather_once);
    test_group_members[0].options.address = test_group_members[1].options.address = test_group_address;
    test_group_start_one(0);
    struct test_group_frame frame;
    char text[STATUS_MESSAGE_BYTES];
    int again = test_group_connect(NULL);
    test_group_send(again, relay.heard, relay.bytes);
    do { /* which has perhaps no time to ask before it has the answer */
        assert_true(test_group_receive(again, &frame, text));
    } while (frame.type == CHALLENGE);
    assert_int_equal(frame.type, FAIL);
    assert_non_null(strstr(text, "another job token"));
    close(again);
    test_group_start_one(1);
    test_group_finish();
    for (uint32_t i = 0; i < 2; i++) test_group_expect_ok(i);
}

/* The proof is about all of the hello. */
TEST(a_changed_hello_is_refused)
{
    /* Number, count, fingerprint, name. */
    static const size_t places[] = {16, 24, 39, 40};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct relay relay;
        char address[64];
        run_by_relay(&relay, address, places[i], 3, test_group_stay);
        for (uint32_t p = 0; p < 2; p++) {
            assert_false(test_group_reports[p].has_joined);
            test_group_expect_message(p, "another job token");
        }
    }
}

/* ---- who is not process 0 ---- */

static const struct impostor {
    const char *words;
    bool asks, sends_back; /* a challenge; the other's own proof as its own */
} impostors[] = {
    {"process 0 (|did not prove that it has the job token of process 1", false, false},
    {"process 0 (|did not prove that it has the job token of process 1", true, false},
    {"process 0 (|its proof that it has the job token is wrong", true, true},
};

TEST(an_impostor_is_noticed)
{
    for (size_t i = 0; i < sizeof impostors / sizeof *impostors; i++) {
        uint8_t nonce[PROCESS_GROUP_NONCE_BYTES] = {0}, answer[PROCESS_GROUP_NONCE_BYTES + PROCESS_GROUP_PROOF_BYTES];
        struct test_group_frame frame;
        char text[STATUS_MESSAGE_BYTES];
        plan_with_token(2, TEST_GROUP_ENOUGH_SECONDS, test_group_stay);
        test_group_start_one(1);
        int listener = test_group_listen(), came = accept(listener, NULL, NULL);
        assert_true(came >= 0);
        assert_true(test_group_receive(came, &frame, text));
        assert_int_equal(frame.type, HELLO);
        assert_int_equal(frame.number, 2 | HAS_TOKEN);
        if (impostors[i].asks) {
            frame = test_group_frame(CHALLENGE, 0, sizeof nonce, 0, 0);
            test_group_send(came, &frame, sizeof frame);
            test_group_send(came, nonce, sizeof nonce);
            assert_int_equal(recv(came, &frame, sizeof frame, MSG_WAITALL), sizeof frame);
            assert_int_equal(frame.type, PROOF);
            assert_int_equal(frame.bytes, sizeof answer);
            assert_int_equal(recv(came, answer, sizeof answer, MSG_WAITALL), sizeof answer);
        }
        if (impostors[i].sends_back) {
            frame = test_group_frame(PROOF, 0, PROCESS_GROUP_PROOF_BYTES, 0, 0);
            test_group_send(came, &frame, sizeof frame);
            test_group_send(came, answer + PROCESS_GROUP_NONCE_BYTES, PROCESS_GROUP_PROOF_BYTES);
        } else {
            test_group_send_hello(came, test_group_frame(HELLO, 0, 0, 2, TEST_GROUP_FINGERPRINT), "me");
        }
        test_group_finish();
        assert_false(test_group_reports[1].has_joined);
        test_group_expect_message(1, impostors[i].words);
        close(came);
        close(listener);
        test_group_begin(NULL);
    }
}

int main(void) { return test_run_with(test_group_share, test_group_begin, test_group_end, NULL); }
