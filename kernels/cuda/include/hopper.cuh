/* SPDX-License-Identifier: Apache-2.0 */
/* What Hopper's tensor cores and copy engine need, in the words of the PTX manual: mbarriers, tiled copies from global
 * to shared memory (cp.async.bulk.tensor), clusters, and the frame of wgmma.
 *
 * For kernels inside `#if defined(__CUDA_ARCH_FEAT_SM90_ALL)`; barrier_init, barrier_arrive and barrier_wait for any
 * GPU from compute capability 8.0 on, what matmul_gemv takes besides from 9.0 on. Addresses of shared memory are u32
 * (shared_address). */
#ifndef KERNELS_CUDA_INCLUDE_HOPPER_CUH
#define KERNELS_CUDA_INCLUDE_HOPPER_CUH

#include "kernels/cuda/include/device.cuh"

/* mbarriers: 8 bytes of shared memory. A phase is complete when `count` arrivals and all expected bytes have come in;
 * wait(parity) returns at once when the phase of that parity is complete, so parity 1 passes on a fresh barrier. */
__device__ __forceinline__ void barrier_init(u32 barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/* After the last barrier_init, before any other thread, copy engine or block of the cluster uses the barriers. */
__device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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

/* The same with the loop in the assembly, where the compiler schedules nothing into it: what attention_prefill was
 * measured with. */
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

/* Named barriers of a block: `threads` threads, id 1..15 (0 is __syncthreads). */
__device__ __forceinline__ void named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Clusters. Every thread of every block takes part in cluster_sync. */
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ u32 cluster_address(u32 address, u32 rank)
{
    u32 remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
__device__ __forceinline__ float4 cluster_load(u32 remote)
{
    float4 value;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(remote)
                 : "memory");
    return value;
}

/* Tiled copies. `column` counts elements, `row` rows of the tensor map; what lies outside the matrix becomes zero, and
 * the barrier counts the bytes of the whole box. */
__device__ __forceinline__ u64 policy_evict_first()
{
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void tile_prefetch_map(const tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void tile_load(u32 to, const tensor_map *map, int column, int row, u32 barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void tile_load_hinted(u32 to, const tensor_map *map, int column, int row, u32 barrier,
                                                 u64 policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
                 : "memory");
}
/* To the same place in the shared memory of every block of `blocks` (a bit each), counted by each one's own barrier. */
__device__ __forceinline__ void tile_load_multicast(u32 to, const tensor_map *map, int column, int row, u32 barrier,
                                                    u16 blocks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
                 : "memory");
}

/* A warpgroup's wgmma: begin before the first of a group, commit after the last, wait before the sums are read. */
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Until at most PENDING groups are unfinished. */
template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Registers of each thread of the calling warpgroup: all its warps take part; what one gives back another may take. */
template <int COUNT> __device__ __forceinline__ void registers_decrease()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void registers_increase()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#endif
