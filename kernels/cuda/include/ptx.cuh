/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions that CUDA C++ does not expose, each written once: mbarriers, clusters, asynchronous copies by
 * threads, shared and global memory with the cache and memory order that a kernel needs, quick arithmetic. Names
 * follow the PTX manual; addresses of shared memory are u32 (shared_address). Products: mma.cuh, wgmma.cuh. Copies
 * by the copy engine: tma.cuh. */
#ifndef KERNELS_CUDA_INCLUDE_PTX_CUH
#define KERNELS_CUDA_INCLUDE_PTX_CUH

#include "kernels/cuda/include/device.cuh"

#ifndef KERNELS_ON_HOST /* tests/emulation has its own */

/* mbarriers: 8 bytes of shared memory. A phase is complete when `count` arrivals and all expected bytes have come in;
 * wait(parity) returns at once when the phase of that parity is complete, so parity 1 passes on a fresh barrier. Init,
 * arrive and wait: compute capability 8.0; the others: 9.0. */
__device__ __forceinline__ void barrier_init(u32 barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/* Orders this thread's accesses of shared memory before those that it asks the copy engine for. */
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* After the last barrier_init, before any other thread, copy engine or block of the cluster uses the barriers. */
__device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_shared();
}
__device__ __forceinline__ void barrier_arrive(u32 barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrival at the same barrier of the cluster's block `rank`. Releases no stores to that block (a release at cluster
 * scope costs a fence): for consumers that have only read. */
__device__ __forceinline__ void barrier_arrive_at(u32 barrier, u32 rank)
{
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                 "}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}
/* Arrival at a barrier of any block of the cluster (cluster_address), which releases this thread's stores to that
 * block. */
__device__ __forceinline__ void barrier_arrive_cluster(u32 remote)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
/* More bytes to wait for, without an arrival. */
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expect(u32 barrier, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity)
{
    u32 done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
                     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#endif
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}
/* The same with the loop in the assembly, where the compiler schedules nothing into it: attention_prefill was measured
 * with it. */
__device__ __forceinline__ void barrier_wait_tight(u32 barrier, u32 parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni ready;\n"
                 "bra.uni again;\n"
                 "ready:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* Also acquires what other blocks of the cluster released (barrier_arrive_cluster). */
__device__ __forceinline__ void barrier_wait_cluster(u32 barrier, u32 parity)
{
    u32 done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}

/* Named barriers of a block: `threads` threads, id 1..15 (0 is __syncthreads). */
__device__ __forceinline__ void named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Clusters (compute capability 9.0). Every thread of every block arrives, then waits; _aligned: all threads of a
 * warp at once. Before 9.0 a block is alone, and addresses in the cluster's window are those of its own shared
 * memory. */
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync()
{
    cluster_arrive();
    cluster_wait();
}
__device__ __forceinline__ void cluster_arrive_aligned()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait_aligned()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ u32 cluster_rank()
{
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ u32 cluster_address(u32 address, u32 rank)
{
    u32 remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define PTX_CLUSTER_SHARED ".shared"
#else
#define PTX_CLUSTER_SHARED ".shared::cluster"
#endif
__device__ __forceinline__ float4 cluster_load(u32 remote)
{
    float4 value;
    asm volatile("ld" PTX_CLUSTER_SHARED ".v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(remote)
                 : "memory");
    return value;
}
__device__ __forceinline__ u32 cluster_load_word(u32 remote)
{
    u32 value;
    asm volatile("ld" PTX_CLUSTER_SHARED ".u32 %0, [%1];" : "=r"(value) : "r"(remote) : "memory");
    return value;
}
__device__ __forceinline__ void cluster_store(u32 remote, float value)
{
    asm volatile("st" PTX_CLUSTER_SHARED ".f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
}
__device__ __forceinline__ void cluster_store(u32 remote, u64 value)
{
    asm volatile("st" PTX_CLUSTER_SHARED ".u64 [%0], %1;" ::"r"(remote), "l"(value) : "memory");
}
__device__ __forceinline__ u32 cluster_add(u32 remote, u32 value)
{
    u32 old;
    asm volatile("atom" PTX_CLUSTER_SHARED ".add.u32 %0, [%1], %2;" : "=r"(old) : "r"(remote), "r"(value) : "memory");
    return old;
}
#undef PTX_CLUSTER_SHARED
/* Stores in a block of the cluster, which count as bytes of a barrier of the same block once they are there (barrier_wait_cluster): neither a
 * fence nor an arrival. */
__device__ __forceinline__ void cluster_store_async(u32 remote, u32 value, u32 remote_barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote),
                 "r"(value), "r"(remote_barrier)
                 : "memory");
}
__device__ __forceinline__ void cluster_store_async(u32 remote, u64 value, u32 remote_barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(remote),
                 "l"(value), "r"(remote_barrier)
                 : "memory");
}

/* Asynchronous copies of a thread to shared memory, both sides aligned to BYTES. A thread's groups complete in the
 * order in which they were committed. */
template <int BYTES> __device__ __forceinline__ void copy_async(u32 to, const void *from)
{
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}
/* Zeros, and no access of `from`, unless `valid`. */
template <int BYTES> __device__ __forceinline__ void copy_async_if(u32 to, const void *from, bool valid)
{
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                     "r"(valid ? BYTES : 0)
                     : "memory");
}
__device__ __forceinline__ void copy_async_hinted(u32 to, const void *from, u64 policy) /* 16 bytes */
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
                 : "memory");
}
/* Arrives at an mbarrier when all copies of this thread so far have completed; the barrier's count includes it. */
__device__ __forceinline__ void copy_arrive(u32 barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until at most PENDING groups of this thread are unfinished. */
template <int PENDING> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* Shared memory by address. Loads may be moved before stores that the compiler sees; _ordered ones are not. */
__device__ __forceinline__ float load_shared_float(u32 address)
{
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
    return value;
}
__device__ __forceinline__ void load_shared(u32 (&to)[4], u32 address)
{
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}
__device__ __forceinline__ void load_shared(u32 (&to)[2], u32 address)
{
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address));
}
__device__ __forceinline__ void load_shared(u32 (&to)[1], u32 address)
{
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(address));
}
__device__ __forceinline__ u32 load_shared_half(u32 address) /* 16 bits */
{
    u16 value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address));
    return value;
}
__device__ __forceinline__ uint4 load_shared_ordered(u32 address)
{
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}
__device__ __forceinline__ u32 load_shared_word_ordered(u32 address)
{
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}
__device__ __forceinline__ void store_shared(u32 address, float value)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared(u32 address, float2 value)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value.x), "f"(value.y) : "memory");
}
__device__ __forceinline__ void store_shared(u32 address, uint4 value)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

/* Global memory. load_written: of what an earlier launch wrote, past the L1 cache, which may hold the line of
 * before. */
__device__ __forceinline__ void load_written(u32 (&to)[4], const void *address)
{
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(address));
}
__device__ __forceinline__ float load_written_float(const float *address)
{
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(address));
    return value;
}
__device__ __forceinline__ int load_written_int(const int *address)
{
    int value;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(value) : "l"(address));
    return value;
}
__device__ __forceinline__ void prefetch_l2(const void *address)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
/* What this thread has written can be read by others before what it writes, or lets begin, from now on. */
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ void nanosleep(u32 time) { asm volatile("nanosleep.u32 %0;" ::"r"(time)); }
/* load_relaxed, store_relaxed, count_relaxed: words that other blocks read or write at the same time. */
__device__ __forceinline__ u32 load_relaxed(const u32 *from)
{
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ void store_relaxed(u32 *to, u32 value)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(u16 *to, u16 value)
{
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(to), "h"(value) : "memory");
}
__device__ __forceinline__ float4 load_relaxed(const float4 *from)
{
    float4 value;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}
__device__ __forceinline__ float2 load_relaxed(const float2 *from)
{
    float2 value;
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(from) : "memory");
    return value;
}
/* Adds one, or makes `most` zero again. The compiler gathers additions of a warp's lanes into one atomic, whose result all lanes then
 * wait for at once; it does not gather these. */
__device__ __forceinline__ u32 count_relaxed(u32 *to, u32 most)
{
    u32 old;
    asm volatile("atom.inc.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(to), "r"(most) : "memory");
    return old;
}

/* Registers of each thread of the calling warpgroup (9.0a): all its warps take part; what one gives back another may
 * take. */
template <int COUNT> __device__ __forceinline__ void registers_decrease()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void registers_increase()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* a & mask | bits, a & mask ^ bits in one instruction, which the compiler does not make of it where both are constants. */
__device__ __forceinline__ u32 and_or(u32 a, u32 mask, u32 bits)
{
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
    return d;
}
__device__ __forceinline__ u32 and_xor(u32 a, u32 mask, u32 bits)
{
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
    return d;
}

/* Arithmetic. exp2_approximate: within 2 ulp, subnormals become zero. reciprocal: within 1 ulp (a division is a call).
 * max_or_nan: NaN where one of the two is NaN. */
__device__ __forceinline__ float infinity() { return float_of_bits(0x7f800000); }
__device__ __forceinline__ float exp2_approximate(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float max_or_nan(float a, float b)
{
    float largest;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(a), "f"(b));
    return largest;
}
#endif

#endif
