/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA C++ on the host, as far as the kernels that are tested here use it: a block is a thread, and its threads are contexts that take
 * turns in it (makecontext starts them, longjmp switches, without system calls). They give way where they wait: at barriers, in shuffles, and whenever they look at memory that
 * another GPU may write. What runs in another order here than on a GPU must not matter; how fast anything is cannot be seen.
 * Clusters (run_cluster) have barriers of all their blocks, loads, stores and additions; nothing else of them is there. */
#ifndef TESTS_EMULATION_CUDA_ON_HOST_H
#define TESTS_EMULATION_CUDA_ON_HOST_H

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#define KERNELS_ON_HOST
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__
#define __shared__       static thread_local /* a block's threads are one thread of the host */
#define __align__(bytes) __attribute__((aligned(bytes)))

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

struct index_of {
    unsigned x, y, z;
};
static thread_local index_of threadIdx, blockIdx, gridDim;

/* ---- a block ---- */

struct meeting {
    int arrived = 0, generation = 0;
};
struct place {
    jmp_buf jump;
};
struct mbarrier { /* of a phase: arrivals in all and still to come, bytes to come; phases that have ended */
    int count, pending, bytes;
    unsigned phases;
    std::vector<std::function<void()>> copies; /* of the copy engine, that a wait completes: copies_are_late */
};
struct thread_copy { /* cp.async that is not complete */
    unsigned to;
    const void *from;
    int bytes, group;
    bool valid; /* else zeros */
};
struct thread_copies {
    std::vector<thread_copy> pending;
    int groups = 0; /* that have been committed */
};
struct block {
    std::vector<ucontext_t> contexts;
    std::vector<place> places; /* where those that have begun go on */
    std::vector<bool> begun, ended;
    std::unique_ptr<char[]> stacks;                 /* not filled: few of their pages are touched */
    std::vector<std::map<unsigned, meeting>> warps; /* by the lanes that meet */
    std::vector<unsigned> lanes;                    /* what each thread of a shuffle or a vote gives */
    std::vector<thread_copies> copies;
    std::vector<std::array<unsigned, 6>> words; /* that threads give to others of their warp */
    std::map<unsigned, mbarrier> mbarriers;     /* by address in shared memory */
    meeting all, named[16];
    ucontext_t caller;
    int threads, current = 0;
    bool waits = false; /* since the last barrier a thread looked at memory so often that it looked at the clock, too */
    void (*body)();
};
static thread_local block *running;
/* Asynchronous copies are complete as late as the waits permit, which shows a wait that is missing; false: at once, which
 * shows a copy into memory that is still read. */
static bool copies_are_late;
enum { SHARED_BYTES = 256 << 10 };
alignas(1024) static thread_local char shared_memory[SHARED_BYTES];

static void switch_to(int next)
{
    block *own = running;
    const int before = own->current;
    own->current = next;
    threadIdx.x = (unsigned)next;
    if (!_setjmp(own->places[before].jump)) {
        if (own->begun[next]) _longjmp(own->places[next].jump, 1);
        own->begun[next] = true;
        setcontext(&own->contexts[next]);
    }
    threadIdx.x = (unsigned)own->current;
}

static void give_way()
{
    block *own = running;
    int next = own->current;
    do next = (next + 1) % own->threads;
    while (own->ended[next] && next != own->current);
    if (next <= own->current) { /* once around: now other blocks */
        const struct timespec time = {0, 200000};
        if (own->waits)
            nanosleep(&time, nullptr);
        else
            sched_yield();
    }
    if (next != own->current) switch_to(next);
}

/* To another thread of the warp: it runs ahead of the others up to the next barrier of the block, which shows one that is
 * missing. */
static void give_way_in_warp()
{
    block *own = running;
    const int first = own->current / 32 * 32;
    int next = own->current;
    do next = first + (next + 1) % 32;
    while (own->ended[next] && next != own->current);
    if (next != own->current) switch_to(next);
}

static void arrive(meeting &where, int count)
{
    if (++where.arrived < count) return;
    where.arrived = 0;
    where.generation++;
    running->waits = false;
}

static void meet(meeting &where, int count)
{
    const int generation = where.generation;
    arrive(where, count);
    while (where.generation == generation) give_way();
}

/* As meet, for these lanes of one warp. */
static void meet_in_warp(unsigned lanes)
{
    enum { TURNS = 4 }; /* then some of the warp's threads wait for something else */
    meeting &where = running->warps[threadIdx.x / 32][lanes];
    const int generation = where.generation;
    arrive(where, __builtin_popcount(lanes));
    for (int i = 0; where.generation == generation; i++) i < TURNS ? give_way_in_warp() : give_way();
}

static void run_thread()
{
    block *own = running;
    own->body();
    own->ended[own->current] = true;
    for (int i = 0; i < own->threads; i++)
        if (!own->ended[i]) switch_to(i); /* does not come back */
    setcontext(&own->caller);
}

/* The blocks of a cluster, each on a thread of its own. Where there is none, a block is alone. */
struct cluster_of {
    std::vector<char *> memories; /* shared_memory of each block */
    pthread_barrier_t meeting;
};
static thread_local cluster_of *own_cluster;
static thread_local unsigned own_rank;

/* Runs `body` as `threads` threads, a multiple of 32, of block `number`. */
static void run_block(int number, int threads, void (*body)())
{
    enum { STACK_BYTES = 64 << 10 };
    block own;
    running = &own;
    own.body = body;
    own.threads = threads;
    own.contexts.resize(threads);
    own.places.resize(threads);
    own.begun.assign(threads, false);
    own.ended.assign(threads, false);
    own.stacks.reset(new char[(size_t)threads * STACK_BYTES]);
    own.warps.resize(threads / 32);
    own.lanes.resize(threads);
    own.words.resize(threads);
    own.copies.resize(threads);
    for (int i = 0; i < threads; i++) {
        getcontext(&own.contexts[i]);
        own.contexts[i].uc_stack.ss_sp = own.stacks.get() + (size_t)i * STACK_BYTES;
        own.contexts[i].uc_stack.ss_size = STACK_BYTES;
        makecontext(&own.contexts[i], run_thread, 0);
    }
    blockIdx.x = (unsigned)number;
    threadIdx.x = 0;
    own.begun[0] = true;
    swapcontext(&own.caller, &own.contexts[0]);
}

/* Runs a cluster of `blocks` blocks, the first of which is block `first`, of a grid of `all` blocks. */
static void run_cluster(int first, int blocks, int all, int threads, void (*body)())
{
    cluster_of cluster;
    std::vector<std::thread> runners;
    cluster.memories.resize((size_t)blocks);
    pthread_barrier_init(&cluster.meeting, nullptr, (unsigned)blocks);
    for (int rank = 0; rank < blocks; rank++)
        runners.emplace_back([&cluster, rank, first, all, threads, body] {
            own_cluster = &cluster;
            own_rank = (unsigned)rank;
            gridDim.x = (unsigned)all;
            cluster.memories[(size_t)rank] = shared_memory;
            memset(shared_memory, 0xff, SHARED_BYTES);
            pthread_barrier_wait(&cluster.meeting);
            run_block(first + rank, threads, body);
        });
    for (std::thread &runner : runners) runner.join();
    pthread_barrier_destroy(&cluster.meeting);
}

/* ---- what kernels call ---- */

static void __syncthreads() { meet(running->all, running->threads); }
/* How many threads of the block have the condition. */
static int __syncthreads_count(bool condition)
{
    int count = 0;
    running->lanes[threadIdx.x] = condition;
    __syncthreads();
    for (int i = 0; i < running->threads; i++) count += (int)running->lanes[i];
    __syncthreads();
    return count;
}

/* The value that lane `from` of the warp gives. Requires: every lane of `lanes`, which has this one, calls it. */
template <class T> static T __shfl_sync(unsigned lanes, T value, int from)
{
    static_assert(sizeof value % 4 == 0, "registers");
    for (size_t i = 0; i < sizeof value; i += 4) {
        memcpy(&running->lanes[threadIdx.x], (char *)&value + i, 4);
        meet_in_warp(lanes);
        memcpy((char *)&value + i, &running->lanes[threadIdx.x / 32 * 32 + (unsigned)from], 4);
        meet_in_warp(lanes);
    }
    return value;
}
template <class T> static T __shfl_up_sync(unsigned lanes, T value, int offset)
{
    const int lane = (int)(threadIdx.x % 32);
    return __shfl_sync(lanes, value, lane >= offset ? lane - offset : lane);
}
static int __ffs(int value) { return __builtin_ffs(value); }
static int __clz(int value) { return value ? __builtin_clz((unsigned)value) : 32; }
static int __clzll(long long value) { return value ? __builtin_clzll((unsigned long long)value) : 64; }
static int __popc(unsigned value) { return __builtin_popcount(value); }
template <class T> static T __shfl_xor_sync(unsigned lanes, T value, int offset)
{
    return __shfl_sync(lanes, value, (int)(threadIdx.x % 32) ^ offset);
}
static unsigned __ballot_sync(unsigned lanes, bool value)
{
    unsigned votes = 0;
    running->lanes[threadIdx.x] = value;
    meet_in_warp(lanes);
    for (int lane = 0; lane < 32; lane++)
        votes |= (lanes >> lane & 1 & running->lanes[threadIdx.x / 32 * 32 + (unsigned)lane]) << lane;
    meet_in_warp(lanes);
    return votes;
}
/* Requires: all lanes of the warp call it. */
template <class F> static unsigned reduce_on_host(unsigned lanes, unsigned value, F better)
{
    running->lanes[threadIdx.x] = value;
    meet_in_warp(lanes);
    for (unsigned lane = 0; lane < 32; lane++) value = better(value, running->lanes[threadIdx.x / 32 * 32 + lane]);
    meet_in_warp(lanes);
    return value;
}
static unsigned __reduce_max_sync(unsigned lanes, unsigned value)
{
    return reduce_on_host(lanes, value, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
static unsigned __reduce_min_sync(unsigned lanes, unsigned value)
{
    return reduce_on_host(lanes, value, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
static int atomicAdd(int *to, int value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
static unsigned atomicAdd(unsigned *to, unsigned value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
static bool __any_sync(unsigned lanes, bool value) { return __ballot_sync(lanes, value) != 0; }
static bool __all_sync(unsigned lanes, bool value)
{
    const bool all = __ballot_sync(lanes, value) == lanes;
    if (!all)
        give_way(); /* the warp may look again until other warps have written, and some lanes look at nothing themselves */
    return all;
}

inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
inline float __int_as_float(int bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline int __float_as_int(float value)
{
    int bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline unsigned long __cvta_generic_to_shared(const void *pointer)
{
    return (unsigned long)((const char *)pointer - shared_memory);
}

/* ---- in the place of instructions (element.cuh, comm.cuh) ---- */

template <int ELEMENT> static float float_of_half(unsigned short half)
{
    if (ELEMENT == 3) return __int_as_float((int)((unsigned)half << 16));
    static_assert(ELEMENT == 2 || ELEMENT == 3, "fp16 or bf16");
    const bool is_finite = (half >> 10 & 31) != 31;
    /* The exponent's field counts from 127 - 15 less than a float's, which a multiplication makes up for. */
    const float magnitude =
        is_finite ? __int_as_float((half & 0x7fff) << 13) * 0x1p112f : __int_as_float(0x7f800000 | (half & 1023) << 13);
    return half >> 15 ? -magnitude : magnitude;
}

/* To nearest even. */
template <int ELEMENT> static unsigned short half_of_float(float value)
{
    static_assert(ELEMENT == 2 || ELEMENT == 3, "fp16 or bf16");
    const unsigned bits = (unsigned)__float_as_int(value);
    if (std::isnan(value)) return 0x7fff;
    if (ELEMENT == 3) return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    const float magnitude = fabsf(value);
    const unsigned short sign = (unsigned short)(bits >> 16 & 0x8000);
    if (magnitude >= 65520) return sign | 0x7c00;
    const int unit = magnitude < 0x1p-14f ? -24 : ilogbf(magnitude) - 10; /* exponent of the last place */
    return (unsigned short)(sign + ((unsigned)(unit + 24) << 10) + (unsigned)nearbyintf(ldexpf(magnitude, -unit)));
}

static unsigned fma_bf16_pair(unsigned a, unsigned b, unsigned c)
{
    unsigned result = 0;
    for (int i = 0; i < 32; i += 16)
        result |= (unsigned)half_of_float<3>(fmaf(float_of_half<3>((unsigned short)(a >> i)),
                                                  float_of_half<3>((unsigned short)(b >> i)),
                                                  float_of_half<3>((unsigned short)(c >> i))))
                  << i;
    return result;
}

template <int HALF> static unsigned multiply_bf16_pair_by(unsigned a, unsigned b)
{
    const unsigned number = b >> 16 * HALF & 0xffff;
    return fma_bf16_pair(a, number << 16 | number, 0x80008000);
}

static unsigned subtract_f16_pair(unsigned a, unsigned b)
{
    unsigned result = 0;
    for (int i = 0; i < 32; i += 16)
        result |= (unsigned)half_of_float<2>(float_of_half<2>((unsigned short)(a >> i)) -
                                             float_of_half<2>((unsigned short)(b >> i)))
                  << i;
    return result;
}

template <int ELEMENT> static unsigned pack_halves(float low, float high)
{
    return half_of_float<ELEMENT>(low) | (unsigned)half_of_float<ELEMENT>(high) << 16;
}

/* Word by word, as nothing else is promised. */
static void comm_store(void *to, unsigned value) { __atomic_store_n((unsigned *)to, value, __ATOMIC_RELAXED); }
static void comm_store(void *to, uint4 value)
{
    const unsigned words[4] = {value.x, value.y, value.z, value.w};
    for (int w = 0; w < 4; w++) comm_store((unsigned *)to + w, words[w]);
}
static unsigned comm_load(const unsigned *from)
{
    give_way();
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}
static uint4 comm_load(const uint4 *from)
{
    const unsigned *words = (const unsigned *)from;
    give_way();
    return make_uint4(__atomic_load_n(words, __ATOMIC_RELAXED), __atomic_load_n(words + 1, __ATOMIC_RELAXED),
                      __atomic_load_n(words + 2, __ATOMIC_RELAXED), __atomic_load_n(words + 3, __ATOMIC_RELAXED));
}
static unsigned long long comm_clock_ns()
{
    struct timespec time;
    running->waits = true;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (unsigned long long)time.tv_sec * 1000000000 + (unsigned long long)time.tv_nsec;
}

#include "tests/emulation/instructions_on_host.h"

#endif
