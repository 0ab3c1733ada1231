/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce, each rank sending all it has to every other: one trip over the link, for few rows (contract:
 * all_reduce.h). CLUSTER thread blocks share a row, so that its stores leave from as many multiprocessors; each
 * thread keeps its part of the row in registers from the load of x to the norm. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_ONE_SHOT_CUH
#define KERNELS_ALL_REDUCE_ALL_REDUCE_ONE_SHOT_CUH

#include "kernels/cuda/include/comm.cuh"
#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/ptx.cuh"
#include "kernels/cuda/include/reduce.cuh"

template <class P> struct all_reduce_one_shot_body {
    static constexpr int VECTOR = VECTOR_OF<P::X_DTYPE>; /* elements of one 16-byte access */
    static constexpr int VECTORS = P::WIDTH / VECTOR;    /* of a row */
    static_assert(P::WIDTH % VECTOR == 0, "whole vectors");
    static constexpr int STRIDE = P::THREADS * P::CLUSTER;
    static constexpr int STEPS = (VECTORS + STRIDE - 1) / STRIDE;
    static constexpr u64 PART_BYTES = (u64)P::ROWS * VECTORS * 16;

    /* Returns the sum over the blocks of a row, the same bits in every thread. */
    static __device__ __forceinline__ float row_sum(float value)
    {
        constexpr int WARPS = P::THREADS / 32;
        __shared__ __align__(16) float partial[WARPS];
        __shared__ float blocks[P::CLUSTER];
        value = warp_sum(value);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
        __syncthreads();
        /* Every thread adds all of them: reads of the same words complete together, a second tree of shuffles is
         * serial. */
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
        if constexpr (P::CLUSTER > 1) {
            const u32 own = blockIdx.x % P::CLUSTER;
            if (threadIdx.x < P::CLUSTER)
                cluster_store(cluster_address(shared_address(&blocks[own]), threadIdx.x), value);
            cluster_sync();
            value = blocks[0];
#pragma unroll
            for (int i = 1; i < P::CLUSTER; i++) value += blocks[i];
        }
        return value;
    }

    /* The part of a thread's work that depends on constants of the session alone and is done before x is ready. */
    struct setup_of_thread {
        u32 rank;
        int first; /* the first of its vectors; the others follow STRIDE apart */
        u8 *to[P::RANKS];
        float scale[STEPS][VECTOR];
    };

    static __device__ __forceinline__ void prepare(setup_of_thread &setup, const comm_header *header, const u8 *buffer,
                                                   const void *weight)
    {
        setup.rank = header->rank;
        setup.first = blockIdx.x % P::CLUSTER * P::THREADS + threadIdx.x;
#pragma unroll
        for (int r = 0; r < P::RANKS; r++) setup.to[r] = comm_part(header, buffer, r, PART_BYTES);
        if constexpr (P::HAS_NORM) {
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                if (setup.first + s * STRIDE < VECTORS)
                    load_elements<P::NORM_DTYPE>(setup.scale[s], weight, (setup.first + s * STRIDE) * VECTOR);
        }
    }

    struct operands {
        const uint4 *x;
        u8 *buffer;
        float *out;
        const float *residual;
        void *normed;
    };

    /* Reduces row `row`. Requires: all threads of the cluster call it, all blocks of the cluster have begun, and the
     * threads of a block have met between two calls. Returns the outcome that comm_end takes. */
    static __device__ __forceinline__ u32 reduce_row(int row, const int *counts, const setup_of_thread &setup,
                                                     const comm_header *header, const operands &all)
    {
        u32 timed_out = 0;
        /* Loaded together with the count, not after it: rows that are not valid can be read. */
        uint4 own[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (setup.first + s * STRIDE < VECTORS) own[s] = all.x[(i64)row * VECTORS + setup.first + s * STRIDE];
        if (row >= counts[P::COUNT_INDEX]) return timed_out;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (setup.first + s * STRIDE >= VECTORS) continue;
            const u64 at = ((u64)row * VECTORS + setup.first + s * STRIDE) * 16;
            const uint4 sent = comm_clean(own[s]);
#pragma unroll
            for (int r = 0; r < P::RANKS; r++)
                if (r != setup.rank) comm_store(setup.to[r] + at, sent);
        }
        float sum[STEPS][VECTOR], squares = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (setup.first + s * STRIDE >= VECTORS) continue;
            const i64 index = (i64)row * VECTORS + setup.first + s * STRIDE;
            float base[VECTOR];
            if constexpr (P::HAS_RESIDUAL) load_elements<DTYPE_F32>(base, all.residual, index * VECTOR);
            uint4 part[P::RANKS];
            comm_take<P::RANKS>((uint4 *)all.buffer + index, PART_BYTES / 16, setup.rank, part, header, timed_out);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[s][i] = 0;
#pragma unroll
            for (int r = 0; r < P::RANKS; r++) {
                float value[VECTOR];
                unpack_elements<P::X_DTYPE>(value, r == setup.rank ? own[s] : part[r]);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[s][i] += value[i];
            }
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                if constexpr (P::HAS_RESIDUAL) sum[s][i] += base[i];
                squares = fmaf(sum[s][i], sum[s][i], squares);
            }
            store_elements<DTYPE_F32>(all.out, index * VECTOR, sum[s]);
        }
        if constexpr (P::HAS_NORM) {
            const float factor = rsqrtf(row_sum(squares) * (1.0f / P::WIDTH) + float_of_bits(P::EPS_BITS));
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                if (setup.first + s * STRIDE >= VECTORS) continue;
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[s][i] = sum[s][i] * factor * setup.scale[s][i];
                store_elements<P::OUT_DTYPE>(all.normed, ((i64)row * VECTORS + setup.first + s * STRIDE) * VECTOR,
                                             sum[s]);
            }
        }
        return timed_out;
    }

    /* `residual`: null without HAS_RESIDUAL; `weight`, `normed`: without HAS_NORM. */
    static __device__ __forceinline__ void run(const int *counts, const uint4 *x, comm_header *header, u8 *buffer,
                                               float *out, const float *residual, const void *weight, void *normed)
    {
        device_trigger();
        setup_of_thread setup;
        prepare(setup, header, buffer, weight);
        if constexpr (P::CLUSTER > 1)
            cluster_sync(); /* all blocks have begun: row_sum stores into their shared memory */
        device_wait();
        comm_end(header,
                 reduce_row(blockIdx.x / P::CLUSTER, counts, setup, header, {x, buffer, out, residual, normed}));
    }
};

#endif
