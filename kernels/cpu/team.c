/* SPDX-License-Identifier: Apache-2.0 */
/* The primitive of a team is a barrier of two counters: members that have arrived, and a generation that the last of
 * them advances. Between runs the workers wait in the same barrier, so the caller's arrival starts a run. */
#include "kernels/cpu/team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/processors.h"

enum {
    CACHE_LINE = 64,
    /* The default of Linux, for any limit of the process: members of some teams call drivers and compilers, whose needs
     * are unknown. */
    STACK_BYTES = 8 << 20,
    /* How long a member spins before it sleeps, if every member has a processor: several times the cost of a wake-up through the
     * kernel, 50 us, since another program that wants the processor has it for far longer. Teams of several processes have the same
     * processors: 2 ms made two of them slower. If members outnumber processors, the awaited one may need this processor. */
    SPIN_NS = 300000,
    SPIN_OVERSUBSCRIBED_NS = 2000,
    PAUSES_PER_CLOCK = 32, /* pauses between two reads of the clock */
};

/* Last arrival of a member: generation of that barrier << 32 | processor. */
struct arrival {
    _Alignas(CACHE_LINE) _Atomic uint64_t at;
};

struct worker {
    pthread_t thread;
    struct team_member member;
};

struct team {
    /* On separate cache lines: spinning on one must not slow down arrivals at the other. */
    _Alignas(CACHE_LINE) _Atomic uint32_t generation; /* also the futex */
    _Alignas(CACHE_LINE) _Atomic uint32_t arrived;
    _Atomic uint32_t sleepers;
    _Alignas(CACHE_LINE) _Atomic uint32_t ticket;
    _Alignas(CACHE_LINE) int size;
    int started; /* worker threads that exist */
    int64_t spin_ns;
    /* Written by the caller before the barrier that starts a run. */
    void (*function)(void *argument, struct team_member *member);
    void *argument;
    bool quit;
    pid_t process;    /* that has the threads */
    uint8_t *scratch; /* [size, TEAM_SCRATCH_BYTES] */
    struct team_member caller;
    struct worker workers[TEAM_MAX_THREADS - 1];
    struct arrival arrivals[TEAM_MAX_THREADS];
};

static inline void processor_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Whether a member that has not arrived was last seen on this processor. A busy scheduler may keep two members on one
 * processor; each would then wait for the other's spin to end at every barrier. */
static bool blocks_another(struct team *team, int index, uint32_t generation)
{
    int processor = sched_getcpu();
    for (int i = 0; i < team->size; i++) {
        uint64_t at = atomic_load_explicit(&team->arrivals[i].at, memory_order_relaxed);
        if (i != index && (uint32_t)(at >> 32) != generation && (int)(uint32_t)at == processor) return processor >= 0;
    }
    return false;
}

/* Waits until the generation differs from `generation`. */
static void wait_for_generation(struct team *team, int index, uint32_t generation)
{
    int64_t begin_ns = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_PER_CLOCK; i++) {
            if (atomic_load_explicit(&team->generation, memory_order_acquire) != generation) return;
            processor_pause();
        }
        int64_t time_ns = now_ns();
        if (!begin_ns) begin_ns = time_ns;
        if (time_ns - begin_ns >= team->spin_ns || blocks_another(team, index, generation)) break;
    }
    /* This member announces that it sleeps and then polls again; the last arriver advances and then looks for sleepers.
     * Both are sequentially consistent, so at least one sees the other. The kernel compares the generation again under
     * its lock. */
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->generation) == generation)
        syscall(SYS_futex, &team->generation, FUTEX_WAIT_PRIVATE, generation, NULL, NULL, 0);
    atomic_fetch_sub(&team->sleepers, 1);
}

void team_barrier(struct team_member *member)
{
    struct team *team = member->team;
    uint32_t generation = atomic_load_explicit(&team->generation, memory_order_relaxed);
    uint64_t at = (uint64_t)generation << 32 | (uint32_t)sched_getcpu();
    atomic_store_explicit(&team->arrivals[member->index].at, at, memory_order_relaxed);
    /* Release: this member's stores. Acquire: those of earlier arrivals, which the generation passes on. */
    uint32_t before = atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel);
    if (before + 1 < (uint32_t)team->size) {
        wait_for_generation(team, member->index, generation);
        return;
    }
    /* All others wait for the generation, so no other thread accesses the counters now. */
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&team->ticket, 0, memory_order_relaxed);
    atomic_fetch_add(&team->generation, 1);
    if (atomic_load(&team->sleepers)) syscall(SYS_futex, &team->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

uint32_t team_ticket(struct team_member *member)
{
    return atomic_fetch_add_explicit(&member->team->ticket, 1, memory_order_relaxed);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct team *team = worker->member.team;
    for (;;) {
        team_barrier(&worker->member);
        if (team->quit) return NULL;
        team->function(team->argument, &worker->member);
        team_barrier(&worker->member);
    }
}

/* The threads block all signals: they are for the program's own threads. */
static int start_worker(struct worker *worker)
{
    sigset_t all, previous;
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error) return error;
    error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    if (!error) error = pthread_create(&worker->thread, &attributes, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

static void stop_workers(struct team *team)
{
    team->quit = true;
    team_barrier(&team->caller);
    for (int i = 0; i < team->started; i++) pthread_join(team->workers[i].thread, NULL);
}

static void release(struct team *team)
{
    free(team->scratch);
    free(team);
}

int team_size_of(int threads)
{
    if (threads) return threads;
    int processors = processors_available();
    return processors < TEAM_MAX_THREADS ? processors : TEAM_MAX_THREADS;
}

static struct team_member member_of(struct team *team, int index)
{
    return (struct team_member){.team = team,
                                .index = index,
                                .count = team->size,
                                .scratch = team->scratch + (size_t)index * TEAM_SCRATCH_BYTES};
}

struct team *team_create(int threads, struct status *status)
{
    int processors = processors_available();
    threads = team_size_of(threads);
    if (threads < 1 || threads > TEAM_MAX_THREADS) {
        status_fail(status, STATUS_USAGE, "the number of threads is %d, expected 1 to %d, or 0 for one per processor",
                    threads, (int)TEAM_MAX_THREADS);
        return NULL;
    }
    /* Scratch pages that are not touched take no memory. */
    struct team *team = aligned_alloc(CACHE_LINE, sizeof *team);
    uint8_t *scratch = team ? aligned_alloc(CACHE_LINE, (size_t)threads * TEAM_SCRATCH_BYTES) : NULL;
    if (!scratch) {
        free(team);
        status_fail(status, STATUS_MACHINE, "out of memory for a team of %d threads", threads);
        return NULL;
    }
    *team = (struct team){.size = threads,
                          .spin_ns = threads > processors ? SPIN_OVERSUBSCRIBED_NS : SPIN_NS,
                          .process = getpid(),
                          .scratch = scratch};
    team->caller = member_of(team, 0);
    for (int i = 0; i < threads - 1; i++) {
        struct worker *worker = &team->workers[i];
        worker->member = member_of(team, i + 1);
        int error = start_worker(worker);
        if (error) {
            status_fail_errno(status, STATUS_MACHINE, error,
                              "cannot start thread %d of %d (too little memory for its stack, or too many threads)",
                              i + 2, threads);
            /* Running workers wait at a barrier of the full size: arrive for the missing ones. */
            atomic_fetch_add(&team->arrived, (uint32_t)(threads - 1 - team->started));
            stop_workers(team);
            release(team);
            return NULL;
        }
        team->started++;
    }
    return team;
}

void team_destroy(struct team *team)
{
    if (!team) return;
    if (team->process == getpid()) stop_workers(team);
    release(team);
}

int team_size(const struct team *team) { return team->size; }

void team_run(struct team *team, void (*function)(void *argument, struct team_member *member), void *argument)
{
    team->function = function;
    team->argument = argument;
    team_barrier(&team->caller);
    function(argument, &team->caller);
    team_barrier(&team->caller);
}

bool team_run_once(int threads, void (*function)(void *argument, struct team_member *member), void *argument,
                   struct status *status)
{
    struct team *team = team_create(threads, status);
    if (!team) return false;
    team_run(team, function, argument);
    team_destroy(team);
    return true;
}
