/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/rendezvous.h"
#include "kernels/op/test_support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

static const int rank_counts[] = {2, 3, 8};

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

struct meeting {
    struct test_ranks ranks;
    int rounds;
    int dawdle_us; /* longest delay of a rank before it arrives */
    int members;   /* of each rank's team; 0: comm_meet without a team */
    int absent;    /* the rank that never arrives; -1: none */
    atomic_int errors, refused, entered;
};

static void meeting_open(struct meeting *meeting, int count, uint64_t timeout_ns)
{
    *meeting = (struct meeting){.absent = -1, .rounds = 1};
    test_ranks_open(&meeting->ranks, count, sizeof(uint64_t), timeout_ns);
}

/* Buffers are plain memory: only comm_meet orders accesses. */
static void exchange(struct meeting *meeting, struct comm_header *header, int rank, struct team_member *member)
{
    for (int round = 0; round < meeting->rounds; round++) {
        uint64_t *own = test_ranks_buffer(&meeting->ranks, rank, round % 2);
        if (!member || member->index == member->count - 1) *own = (uint64_t)(round * 100 + rank);
        if (meeting->dawdle_us && rank == round % meeting->ranks.count) usleep((useconds_t)meeting->dawdle_us);
        if (!(member ? comm_meet_team(header, member) : comm_meet(header))) {
            atomic_fetch_add(&meeting->refused, 1);
            return;
        }
        for (int peer = 0; peer < meeting->ranks.count; peer++)
            if (*(uint64_t *)comm_peer(header, own, (uint32_t)peer) != (uint64_t)(round * 100 + peer))
                atomic_fetch_add(&meeting->errors, 1);
    }
}

struct team_meeting {
    struct meeting *meeting;
    int rank;
};

static void exchange_member(void *argument, struct team_member *member)
{
    const struct team_meeting *job = argument;
    exchange(job->meeting, test_ranks_header(&job->meeting->ranks, job->rank), job->rank, member);
}

static void attend(void *argument, int rank)
{
    struct meeting *meeting = argument;
    atomic_fetch_add(&meeting->entered, 1);
    if (rank == meeting->absent) return;
    /* One who has not begun would be taken for the absent one. */
    while (meeting->absent >= 0 && atomic_load(&meeting->entered) < meeting->ranks.count) usleep(1000);
    if (meeting->members == 0) {
        exchange(meeting, test_ranks_header(&meeting->ranks, rank), rank, NULL);
        return;
    }
    struct team *team = team_create(meeting->members, NULL);
    if (!team) {
        atomic_fetch_add(&meeting->errors, 1);
        comm_stop(test_ranks_header(&meeting->ranks, rank));
        return;
    }
    struct team_meeting job = {.meeting = meeting, .rank = rank};
    team_run(team, exchange_member, &job);
    team_destroy(team);
}

static void meet_all(struct meeting *meeting)
{
    double begin = now_s();
    test_ranks_run(meeting->ranks.count, attend, meeting);
    if (meeting->rounds >= 50 && !meeting->dawdle_us)
        print_message("%d ranks, members %d: %.1f us per meeting\n", meeting->ranks.count, meeting->members,
                      (now_s() - begin) * 1e6 / meeting->rounds);
    assert_int_equal(atomic_load(&meeting->errors), 0);
}

TEST(header_is_filled)
{
    struct comm_header header;
    memset(&header, 0xff, sizeof header);
    comm_header_init(&header, 3, 5, 0);
    struct comm_header expected = {.rank = 3, .ranks = 5, .timeout_ns = COMM_TIMEOUT_NS};
    expected.peers[3] = (uintptr_t)&header;
    assert_memory_equal(&header, &expected, sizeof header);
    comm_header_init(&header, 0, 2, 17);
    assert_int_equal(header.timeout_ns, 17);
    header.peers[1] = 4096;
    assert_ptr_equal(comm_peer(&header, (uint8_t *)&header + 192, 1), (void *)(uintptr_t)(4096 + 192));
}

/* As if another rank could not be created. */
TEST(stop_before_connection)
{
    struct comm_header header;
    comm_header_init(&header, 1, 3, 0);
    comm_stop(&header);
    assert_int_equal(header.stop, 1);
    assert_false(comm_meet(&header));
}

TEST(meetings_order_memory)
{
    for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++) {
        for (int members = 0; members <= 3; members++) {
            struct meeting meeting;
            meeting_open(&meeting, rank_counts[i], 0);
            meeting.rounds = members ? 50 : 500;
            meeting.members = members;
            meet_all(&meeting);
            assert_int_equal(atomic_load(&meeting.refused), 0);
            for (int rank = 0; rank < rank_counts[i]; rank++) {
                assert_int_equal(test_ranks_header(&meeting.ranks, rank)->arrived, meeting.rounds);
                assert_int_equal(test_ranks_header(&meeting.ranks, rank)->stop, 0);
                assert_int_equal(test_ranks_header(&meeting.ranks, rank)->timed_out, 0);
            }
            test_ranks_close(&meeting.ranks);
        }
    }
}

TEST(counts_wrap_around)
{
    struct meeting meeting;
    meeting_open(&meeting, 3, 0);
    for (int rank = 0; rank < 3; rank++) test_ranks_header(&meeting.ranks, rank)->arrived = UINT32_MAX - 20;
    meeting.rounds = 50;
    meet_all(&meeting);
    assert_int_equal(atomic_load(&meeting.refused), 0);
    assert_int_equal(test_ranks_header(&meeting.ranks, 0)->arrived, 29);
    test_ranks_close(&meeting.ranks);
}

TEST(sleeping_ranks_wake)
{
    struct meeting meeting;
    meeting_open(&meeting, 4, 0);
    meeting.rounds = 40;
    meeting.dawdle_us = 3000; /* far longer than they poll */
    meet_all(&meeting);
    assert_int_equal(atomic_load(&meeting.refused), 0);
    test_ranks_close(&meeting.ranks);
}

TEST(absent_rank_is_named)
{
    for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++) {
        for (int members = 0; members <= 2; members += 2) {
            struct meeting meeting;
            int count = rank_counts[i], absent = (int)i % count, named = 0;
            meeting_open(&meeting, count, UINT64_C(1000000000));
            meeting.absent = absent;
            meeting.members = members;
            double begin = now_s();
            meet_all(&meeting);
            assert_true(now_s() - begin >= 1);
            assert_true(now_s() - begin < 60);
            assert_int_equal(atomic_load(&meeting.refused), (count - 1) * (members ? members : 1));
            for (int rank = 0; rank < count; rank++) {
                struct comm_header *header = test_ranks_header(&meeting.ranks, rank);
                assert_true(header->stop != 0);
                assert_true(header->timed_out == 0 || header->timed_out == 1 + (uint32_t)absent);
                named += header->timed_out != 0;
                assert_false(comm_meet(header)); /* from now on always, and at once */
            }
            assert_in_range(named, 1, count - 1);
            assert_int_equal(test_ranks_header(&meeting.ranks, absent)->timed_out, 0);
            assert_int_equal(test_ranks_header(&meeting.ranks, absent)->arrived, 0);
            test_ranks_close(&meeting.ranks);
        }
    }
}

static void *stop_soon(void *argument)
{
    struct meeting *meeting = argument;
    while (atomic_load(&meeting->entered) < meeting->ranks.count) usleep(1000);
    usleep(30000);
    comm_stop(test_ranks_header(&meeting->ranks, meeting->absent));
    return NULL;
}

TEST(stop_ends_waiting)
{
    for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++) {
        struct meeting meeting;
        meeting_open(&meeting, rank_counts[i], UINT64_C(60000000000));
        meeting.absent = rank_counts[i] - 1;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stop_soon, &meeting), 0);
        double begin = now_s();
        meet_all(&meeting);
        assert_true(now_s() - begin < 30);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(atomic_load(&meeting.refused), rank_counts[i] - 1);
        for (int rank = 0; rank < rank_counts[i]; rank++) {
            assert_true(test_ranks_header(&meeting.ranks, rank)->stop != 0);
            assert_int_equal(test_ranks_header(&meeting.ranks, rank)->timed_out, 0);
        }
        test_ranks_close(&meeting.ranks);
    }
}

int main(void) { return test_run(); }
