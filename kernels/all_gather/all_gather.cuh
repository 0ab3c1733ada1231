/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather: every rank sends its columns to every other rank, which places them next to its own (contract:
 * all_gather.h). A thread takes the same columns from all ranks. The buffer: [RANKS] parts of [ROWS, WIDTH]. */
#ifndef KERNELS_ALL_GATHER_ALL_GATHER_CUH
#define KERNELS_ALL_GATHER_ALL_GATHER_CUH

#include "kernels/cuda/include/comm.cuh"

template <class P> struct all_gather_body {
    /* Words of one access: four where no row begins or ends inside one. */
    static constexpr int VECTOR = P::WIDTH % 4 == 0 && P::OUT_WIDTH % 4 == 0 ? 4 : 1;
    static constexpr int VECTORS = P::WIDTH / VECTOR;
    static constexpr u64 PART_BYTES = (u64)P::ROWS * P::WIDTH * 4;

    typedef typename comm_words<VECTOR>::type vector_words;

    static __device__ __forceinline__ void run(const int *counts, const vector_words *x, comm_header *header,
                                               u8 *buffer, vector_words *out)
    {
        device_trigger();
        const u32 rank = header->rank;
        const i64 index = (i64)blockIdx.x * P::THREADS + threadIdx.x;
        const int row = (int)(index / VECTORS), vector = (int)(index % VECTORS);
        u8 *to[P::RANKS];
#pragma unroll
        for (int r = 0; r < P::RANKS; r++) to[r] = comm_part(header, buffer, r, PART_BYTES);
        device_wait();
        if (index >= (i64)P::ROWS * VECTORS) return;
        /* Loaded together with the count, not after it: rows that are not valid can be read. */
        const vector_words sent =
            comm_clean(x[index]); /* this rank uses the cleaned words too: all ranks have the same bits */
        if (row >= counts[P::COUNT_INDEX]) return;
#pragma unroll
        for (int r = 0; r < P::RANKS; r++)
            if (r != rank) comm_store(to[r] + index * sizeof(vector_words), sent);
        u32 timed_out = 0;
        vector_words part[P::RANKS];
        comm_take<P::RANKS>((vector_words *)buffer + index, PART_BYTES / sizeof(vector_words), rank, part, header,
                            timed_out);
#pragma unroll
        for (int r = 0; r < P::RANKS; r++) {
            const i64 column = (i64)r * VECTORS + vector;
            if (column < P::OUT_WIDTH / VECTOR)
                out[(i64)row * (P::OUT_WIDTH / VECTOR) + column] = r == rank ? sent : part[r];
        }
        comm_end(header, timed_out);
    }
};

#endif
