/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks on GPUs exchange data: each stores into the COMM spaces of the others over peer memory, and a receiver
 * polls its own memory until the data have arrived. There is no flag and no barrier: a buffer that is not in use
 * holds COMM_EMPTY in every 32-bit word, data never do (comm_clean), and the receiver empties each word after
 * reading it. Each word is valid by itself, so stores may arrive in any order.
 *
 * A block waits for data of the same block of other ranks, which must therefore be able to run: thread blocks begin
 * in rising order, and the ranks of an engine have one session at a time.
 *
 * Two alternating buffers are enough (struct comm_header): a rank fills a peer's buffer for collective t + 2 after
 * the end of collective t + 1, so the peer has begun that one, and a launch of the peer begins after all earlier
 * work has completed, which includes the emptying of that buffer in collective t.
 *
 * Where buffers lie in the host's memory (kernels/cuda/comm.h), a rank's own stores, which empty, and a peer's come
 * from different devices. Stores of one GPU arrive there in order: a rank that sees a peer's data of collective t +
 * 1 also sees the words empty that the peer emptied in t. */
#ifndef KERNELS_CUDA_INCLUDE_COMM_CUH
#define KERNELS_CUDA_INCLUDE_COMM_CUH

#include "kernels/cuda/include/device.cuh"

#define COMM_EMPTY     0xffffffffu /* a NaN as float32, two as 16-bit floats */
#define COMM_MAX_RANKS 16

/* struct comm_header of formats/engine/plan.h; a test compares the two. */
struct comm_header {
    u32 rank, ranks, stop, timed_out;
    u64 timeout_ns;
    u32 arrived, sleepers;
    u64 fault;
    u8 slots[COMM_MAX_RANKS];
    u64 reserved;
    u64 peers[COMM_MAX_RANKS];
};
static_assert(sizeof(comm_header) == 192, "layout");

#ifndef KERNELS_ON_HOST /* tests/emulation has its own */
__device__ __forceinline__ void comm_store(void *to, uint4 value)
{
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}
__device__ __forceinline__ void comm_store(void *to, u32 value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint4 comm_load(const uint4 *from)
{
    uint4 value;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}
__device__ __forceinline__ u32 comm_load(const u32 *from)
{
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ u64 comm_clock_ns()
{
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}
#endif

__device__ __forceinline__ u32 comm_clean(u32 word) { return word == COMM_EMPTY ? 0x7fffffffu : word; }
__device__ __forceinline__ uint4 comm_clean(uint4 value)
{
    return make_uint4(comm_clean(value.x), comm_clean(value.y), comm_clean(value.z), comm_clean(value.w));
}
__device__ __forceinline__ bool comm_is_here(u32 word) { return word != COMM_EMPTY; }
__device__ __forceinline__ bool comm_is_here(uint4 value)
{
    return value.x != COMM_EMPTY && value.y != COMM_EMPTY && value.z != COMM_EMPTY && value.w != COMM_EMPTY;
}
__device__ __forceinline__ void comm_empty(u32 *at) { comm_store(at, COMM_EMPTY); }
__device__ __forceinline__ void comm_empty(uint4 *at)
{
    comm_store(at, make_uint4(COMM_EMPTY, COMM_EMPTY, COMM_EMPTY, COMM_EMPTY));
}

/* Outcome of a thread's waits: 0, COMM_STOPPED, or 1 + the rank that did not send in time. */
#define COMM_STOPPED 0xffu

/* Waits for a word or a vector in this rank's buffer from each of COUNT ranks except this one, `stride` apart, and
 * empties them. The values are undefined after a timeout or a stop by another rank. One loop serves all ranks: many
 * small ones cost registers. PATIENCE: quarters of the timeout; more for data of a rank that itself waits for
 * others, so that the rank that waits for the culprit reports first. */
#define COMM_PATIENCE        4
#define COMM_LONGER_PATIENCE 5
template <int COUNT, int PATIENCE = COMM_PATIENCE, typename V>
__device__ __forceinline__ void comm_take(V *from, i64 stride, u32 rank, V value[COUNT], const comm_header *header,
                                          u32 &timed_out)
{
    enum { LOOKS = 1024 }; /* between two looks at the clock */
    u64 end = 0;
#pragma unroll
    for (int r = 0; r < COUNT; r++)
        if (r != rank) value[r] = comm_load(from + r * stride);
    for (u32 looks = 1; !timed_out; looks++) {
        u32 missing = COMM_STOPPED;
#pragma unroll
        for (int r = 0; r < COUNT; r++)
            if (r != rank && !comm_is_here(value[r])) {
                value[r] = comm_load(from + r * stride);
                missing = r;
            }
        if (missing == COMM_STOPPED) break;
        if (looks % LOOKS == 0) {
            const u64 now = comm_clock_ns();
            end = end ? end : now + header->timeout_ns / 4 * PATIENCE;
            timed_out = *(const volatile u32 *)&header->stop ? COMM_STOPPED : now >= end ? missing + 1 : 0;
        }
    }
#pragma unroll
    for (int r = 0; r < COUNT; r++)
        if (r != rank) comm_empty(from + r * stride);
}
/* comm_take from one rank. */
template <int PATIENCE = COMM_PATIENCE, typename V>
__device__ __forceinline__ V comm_take_one(V *from, u32 waited_for, const comm_header *header, u32 &timed_out)
{
    V value[1];
    u32 outcome = timed_out; /* after one timeout a thread waits no more */
    comm_take<1, PATIENCE>(from, 0, COMM_STOPPED, value, header, outcome);
    if (outcome != timed_out) timed_out = outcome == COMM_STOPPED ? outcome : waited_for + 1;
    return value[0];
}

/* Called by every thread that has waited, at its end: tells the host and all ranks about a rank that did not send. */
__device__ __forceinline__ void comm_end(comm_header *header, u32 timed_out)
{
    if (timed_out == 0 || timed_out == COMM_STOPPED) return;
    *(volatile u32 *)&header->timed_out = timed_out;
    if (header->fault) *(volatile u32 *)header->fault = timed_out;
    for (u32 r = 0; r < header->ranks; r++) *(volatile u32 *)&((comm_header *)header->peers[r])->stop = 1;
    __threadfence_system();
}

/* A type of WORDS words that travels in one access. */
template <int WORDS> struct comm_words {
    typedef u32 type;
};
template <> struct comm_words<4> {
    typedef uint4 type;
};

/* Address of this rank's part in rank r's copy of `buffer`, which has one part of part_bytes for each rank. */
__device__ __forceinline__ u8 *comm_part(const comm_header *header, const void *buffer, u32 r, u64 part_bytes)
{
    const u64 at = (u64)buffer - (u64)header;
    return (u8 *)(header->peers[r] + at + header->slots[r] * part_bytes);
}

#endif
