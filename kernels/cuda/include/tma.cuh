/* SPDX-License-Identifier: Apache-2.0 */
/* Copies from global to shared memory by the copy engine (compute capability 9.0): rows of bytes, and tiles of a
 * tensor map. Each completes at an mbarrier, of which the bytes are expected before (ptx.cuh). */
#ifndef KERNELS_CUDA_INCLUDE_TMA_CUH
#define KERNELS_CUDA_INCLUDE_TMA_CUH

#include "kernels/cuda/include/ptx.cuh"

#ifndef KERNELS_ON_HOST /* tests/emulation has its own */

/* Weights that are read once a step: the rest of the L2 cache is worth more. */
__device__ __forceinline__ u64 policy_evict_first()
{
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/* `bytes`: a multiple of 16; both sides aligned to 16. */
__device__ __forceinline__ void bulk_copy(u32 to, const void *from, u32 bytes, u32 barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void bulk_copy_hinted(u32 to, const void *from, u32 bytes, u32 barrier, u64 policy)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
        "%4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

/* Tiled copies. `column` counts elements, `row` rows of the tensor map; what lies outside the matrix becomes zero, and
 * the barrier counts the bytes of the whole box. */
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
#endif

#endif
