/* SPDX-License-Identifier: Apache-2.0 */
/* Each rank counts its own arrivals in its own header, and the others wait for that count. There is no common counter:
 * ranks only write `sleepers` and, once, `stop` in the header of another. */
#include "kernels/cpu/rendezvous.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    /* How long a rank polls before it sleeps: about the cost of a wake-up through the kernel (see team.c). It yields
     * its processor between two polls, since the awaited rank may need it: ranks and their teams may outnumber the
     * processors. */
    YIELD_NS = 60000,
    /* Limit of one sleep, and so the delay of noticing a stop that comes between the last poll and the sleep. */
    SLICE_NS = 10000000,
    SECOND_NS = 1000000000,
};

void comm_header_init(struct comm_header *header, uint32_t rank, uint32_t ranks, uint64_t timeout_ns)
{
    *header =
        (struct comm_header){.rank = rank, .ranks = ranks, .timeout_ns = timeout_ns ? timeout_ns : COMM_TIMEOUT_NS};
    header->peers[rank] = (uintptr_t)header;
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

/* Not a private futex: ranks may be processes that share the memory. */
static void sleep_while(const uint32_t *word, uint32_t value, uint64_t most_ns)
{
    if (most_ns > SLICE_NS) most_ns = SLICE_NS;
    const struct timespec time = {.tv_nsec = (long)most_ns};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &time, NULL, 0);
}

static void wake_sleepers(const uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

static struct comm_header *header_of(const struct comm_header *header, uint32_t rank)
{
    return comm_peer(header, header, rank);
}

static bool is_stopped(const struct comm_header *header) { return __atomic_load_n(&header->stop, __ATOMIC_SEQ_CST); }

/* Whether a rank with this count has arrived for turn `turn`; it may be one ahead. */
static bool has_come(uint32_t arrived, uint32_t turn) { return arrived - turn <= INT32_MAX; }

/* Waits until the peer has arrived; false if this rank is told to stop or runs out of time before. */
static bool wait_for(const struct comm_header *header, struct comm_header *peer, uint32_t turn, uint64_t begin_ns)
{
    uint64_t first_look_ns = 0;
    for (;;) {
        if (has_come(__atomic_load_n(&peer->arrived, __ATOMIC_ACQUIRE), turn)) return true;
        if (is_stopped(header)) return false;
        uint64_t time_ns = now_ns();
        if (!first_look_ns) first_look_ns = time_ns;
        if (time_ns - first_look_ns >= YIELD_NS) break;
        sched_yield();
    }
    /* This rank announces that it sleeps and then polls again; the peer advances and then looks for sleepers. Both are
     * sequentially consistent, so at least one sees the other. The kernel compares the count again under its lock. */
    __atomic_fetch_add(&peer->sleepers, 1, __ATOMIC_SEQ_CST);
    bool come;
    for (;;) {
        uint32_t arrived = __atomic_load_n(&peer->arrived, __ATOMIC_SEQ_CST);
        uint64_t waited_ns = now_ns() - begin_ns;
        come = has_come(arrived, turn);
        if (come || is_stopped(header) || waited_ns >= header->timeout_ns) break;
        sleep_while(&peer->arrived, arrived, header->timeout_ns - waited_ns);
    }
    __atomic_fetch_sub(&peer->sleepers, 1, __ATOMIC_SEQ_CST);
    return come;
}

bool comm_meet(struct comm_header *header)
{
    if (is_stopped(header)) return false;
    /* Releases this rank's stores; the others acquire them with the count. */
    uint32_t turn = __atomic_add_fetch(&header->arrived, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&header->sleepers, __ATOMIC_SEQ_CST)) wake_sleepers(&header->arrived);
    uint64_t begin_ns = now_ns();
    for (uint32_t rank = 0; rank < header->ranks; rank++) {
        if (rank == header->rank || wait_for(header, header_of(header, rank), turn, begin_ns)) continue;
        if (!is_stopped(header)) {
            __atomic_store_n(&header->timed_out, 1 + rank, __ATOMIC_SEQ_CST);
            comm_stop(header);
        }
        return false;
    }
    return true;
}

bool comm_meet_team(struct comm_header *header, struct team_member *member)
{
    team_barrier(member);
    if (member->index == 0) comm_meet(header);
    team_barrier(member);
    return !is_stopped(header);
}

void comm_stop(struct comm_header *header)
{
    for (uint32_t rank = 0; rank < header->ranks; rank++)
        if (header->peers[rank]) __atomic_store_n(&header_of(header, rank)->stop, 1, __ATOMIC_SEQ_CST);
    for (uint32_t rank = 0; rank < header->ranks; rank++)
        if (header->peers[rank]) wake_sleepers(&header_of(header, rank)->arrived);
}
