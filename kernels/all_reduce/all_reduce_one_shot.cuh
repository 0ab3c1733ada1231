/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce, each rank sending all it has to every other: one trip over the link, for few rows (contract:
 * all_reduce_device.h). CLUSTER thread blocks share a row, so that its stores leave from as many multiprocessors; each
 * thread keeps its part of the row in registers from the load of x to the norm. Device functions, for any kernel whose blocks
 * have THREADS threads and clusters of CLUSTER: all_reduce_one_shot.cu is one of a single collective. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_ONE_SHOT_CUH
#define KERNELS_ALL_REDUCE_ALL_REDUCE_ONE_SHOT_CUH

#include "kernels/all_reduce/all_reduce_layout.cuh"
#include "kernels/cuda/include/hopper.cuh"

#ifndef THREADS
#define THREADS 512
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif

constexpr int STRIDE = THREADS * CLUSTER;
constexpr int STEPS = (VECTORS + STRIDE - 1) / STRIDE;
constexpr u64 PART_BYTES = (u64)ROWS * WIDTH * ELEMENT_BYTES;

/* Sum over the blocks of a row, the same bits in every thread. */
__device__ __forceinline__ float row_sum(float value)
{
    constexpr int WARPS = THREADS / 32;
    __shared__ __align__(16) float partial[WARPS];
    __shared__ float blocks[CLUSTER];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    /* Every thread adds them all: reads of the same words come at once, a second tree of shuffles one by one. */
    float sum[4] = {0, 0, 0, 0};
    if constexpr (WARPS % 4 == 0) {
#pragma unroll
        for (int w = 0; w < WARPS; w += 4) {
            const float4 four = *(const float4 *)&partial[w];
            sum[0] += four.x, sum[1] += four.y, sum[2] += four.z, sum[3] += four.w;
        }
    } else {
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum[w % 4] += partial[w];
    }
    value = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    if constexpr (CLUSTER > 1) {
        const u32 own = blockIdx.x % CLUSTER;
        if (threadIdx.x < CLUSTER)
            asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(
                             cluster_address(shared_address(&blocks[own]), threadIdx.x)),
                         "f"(value)
                         : "memory");
        cluster_sync();
        value = blocks[0];
#pragma unroll
        for (int i = 1; i < CLUSTER; i++) value += blocks[i];
    }
    return value;
}

/* What a thread needs for its part of a row and can have before x is there: it comes from constants of the session. */
struct one_shot_setup {
    u32 rank;
    int first; /* the first of its vectors; the others follow STRIDE apart */
    u8 *to[RANKS];
    float scale[STEPS][VECTOR];
};

__device__ __forceinline__ void one_shot_prepare(one_shot_setup &setup, const comm_header *header, const u8 *buffer,
                                                 const void *weight)
{
    setup.rank = header->rank;
    setup.first = blockIdx.x % CLUSTER * THREADS + threadIdx.x;
#pragma unroll
    for (int r = 0; r < RANKS; r++) setup.to[r] = comm_part(header, buffer, r, PART_BYTES);
#if HAS_NORM
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (setup.first + s * STRIDE < VECTORS) load_scale(weight, (setup.first + s * STRIDE) * VECTOR, setup.scale[s]);
#endif
}

struct one_shot_operands {
    const uint4 *x;
    u8 *buffer;
    float *out;
    const float *residual;
    void *normed;
};

/* Row `row`, by all threads of a cluster alike; blocks of a cluster have begun. Whoever calls it twice sees to it that all
 * threads of the block have met in between. Returns what comm_end takes. */
__device__ __forceinline__ u32 one_shot_row(int row, const int *counts, const one_shot_setup &setup,
                                            const comm_header *header, const one_shot_operands &all)
{
    u32 late = 0;
    /* Beside the count, not behind it: rows that are not valid can be read. */
    uint4 own[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (setup.first + s * STRIDE < VECTORS) own[s] = all.x[(i64)row * VECTORS + setup.first + s * STRIDE];
    if (row >= counts[COUNT_INDEX]) return late;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (setup.first + s * STRIDE >= VECTORS) continue;
        const u64 at = ((u64)row * VECTORS + setup.first + s * STRIDE) * 16;
        const uint4 sent = comm_clean(own[s]);
#pragma unroll
        for (int r = 0; r < RANKS; r++)
            if (r != setup.rank) comm_store(setup.to[r] + at, sent);
    }
    float sum[STEPS][VECTOR], squares = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (setup.first + s * STRIDE >= VECTORS) continue;
        const i64 index = (i64)row * VECTORS + setup.first + s * STRIDE;
#if HAS_RESIDUAL
        float base[VECTOR];
        load_floats(all.residual + index * VECTOR, base);
#endif
        uint4 part[RANKS];
        comm_take<RANKS>((uint4 *)all.buffer + index, PART_BYTES / 16, setup.rank, part, header, late);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum[s][i] = 0;
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
            float value[VECTOR];
            unpack(r == setup.rank ? own[s] : part[r], value);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[s][i] += value[i];
        }
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
#if HAS_RESIDUAL
            sum[s][i] += base[i];
#endif
            squares = fmaf(sum[s][i], sum[s][i], squares);
        }
        store_floats(all.out + index * VECTOR, sum[s]);
    }
#if HAS_NORM
    const float factor = rsqrtf(row_sum(squares) * (1.0f / WIDTH) + float_of_bits(EPS_BITS));
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (setup.first + s * STRIDE >= VECTORS) continue;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum[s][i] = sum[s][i] * factor * setup.scale[s][i];
        store_normed(all.normed, ((i64)row * VECTORS + setup.first + s * STRIDE) * VECTOR, sum[s]);
    }
#endif
    return late;
}

#endif
