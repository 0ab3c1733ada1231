/* all_reduce, each rank sending all it has to every other: one trip over the link, for few rows (contract:
 * all_reduce_device.h). CLUSTER thread blocks share a row, so that its stores leave from as many multiprocessors; each
 * thread keeps its part of the row in registers from the load of x to the norm. */
#include "kernels/all_reduce/all_reduce_layout.cuh"
#include "kernels/hopper.cuh"

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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    all_reduce_one_shot(const int *__restrict__ counts, const uint4 *x, comm_header *header, u8 *buffer, float *out
#if HAS_RESIDUAL
                        ,
                        const float *residual
#endif
#if HAS_NORM
                        ,
                        const void *__restrict__ weight, void *__restrict__ normed
#endif
    )
{
    device_trigger();
    /* Constants of the session: read while the launch before runs. */
    const u32 rank = header->rank;
    const int row = blockIdx.x / CLUSTER, first = blockIdx.x % CLUSTER * THREADS + threadIdx.x;
    u8 *to[RANKS];
#pragma unroll
    for (int r = 0; r < RANKS; r++) to[r] = comm_part(header, buffer, r, PART_BYTES);
#if HAS_NORM
    float scale[STEPS][VECTOR];
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (first + s * STRIDE < VECTORS) load_scale(weight, (first + s * STRIDE) * VECTOR, scale[s]);
#endif
    if constexpr (CLUSTER > 1) cluster_sync(); /* all blocks have begun: row_sum stores into their shared memory */
    device_wait();
    /* Beside the count, not behind it: rows that are not valid can be read. */
    uint4 own[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (first + s * STRIDE < VECTORS) own[s] = x[(i64)row * VECTORS + first + s * STRIDE];
    if (row >= counts[COUNT_INDEX]) return; /* all blocks of the cluster alike */
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (first + s * STRIDE >= VECTORS) continue;
        const u64 at = ((u64)row * VECTORS + first + s * STRIDE) * 16;
        const uint4 sent = comm_clean(own[s]);
#pragma unroll
        for (int r = 0; r < RANKS; r++)
            if (r != rank) comm_store(to[r] + at, sent);
    }
    float sum[STEPS][VECTOR], squares = 0;
    u32 late = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (first + s * STRIDE >= VECTORS) continue;
        const i64 index = (i64)row * VECTORS + first + s * STRIDE;
#if HAS_RESIDUAL
        float base[VECTOR];
        load_floats(residual + index * VECTOR, base);
#endif
        uint4 part[RANKS];
        comm_take<RANKS>((uint4 *)buffer + index, PART_BYTES / 16, rank, part, header, late);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum[s][i] = 0;
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
            float value[VECTOR];
            unpack(r == rank ? own[s] : part[r], value);
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
        store_floats(out + index * VECTOR, sum[s]);
    }
#if HAS_NORM
    const float factor = rsqrtf(row_sum(squares) * (1.0f / WIDTH) + float_of_bits(EPS_BITS));
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (first + s * STRIDE >= VECTORS) continue;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum[s][i] = sum[s][i] * factor * scale[s][i];
        store_normed(normed, ((i64)row * VECTORS + first + s * STRIDE) * VECTOR, sum[s]);
    }
#endif
    comm_end(header, late);
}
