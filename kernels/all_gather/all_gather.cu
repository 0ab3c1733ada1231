/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather: every rank sends its columns to every other, which puts them beside its own (contract:
 * all_gather_device.h). A thread takes the same columns from all ranks. The buffer: [RANKS] parts of [ROWS, WIDTH]. */
#include "kernels/cuda/include/comm.cuh"

#ifndef ROWS
#define ROWS 1
#endif
#ifndef COUNT_INDEX
#define COUNT_INDEX 1
#endif
#ifndef WIDTH
#define WIDTH 64128
#endif
#ifndef OUT_WIDTH
#define OUT_WIDTH 128256
#endif
#ifndef RANKS
#define RANKS 2
#endif
#ifndef THREADS
#define THREADS 256
#endif

/* Words of one access: four where no row begins or ends inside one. */
constexpr int VECTOR = WIDTH % 4 == 0 && OUT_WIDTH % 4 == 0 ? 4 : 1;
constexpr int VECTORS = WIDTH / VECTOR;
constexpr u64 PART_BYTES = (u64)ROWS * WIDTH * 4;

template <int WORDS> struct words {
    typedef u32 type;
};
template <> struct words<4> {
    typedef uint4 type;
};
typedef words<VECTOR>::type vector_words;

extern "C" __global__ void __launch_bounds__(THREADS)
    all_gather(const int *__restrict__ counts, const vector_words *x, comm_header *header, u8 *buffer,
               vector_words *__restrict__ out)
{
    device_trigger();
    const u32 rank = header->rank;
    const i64 index = (i64)blockIdx.x * THREADS + threadIdx.x;
    const int row = (int)(index / VECTORS), vector = (int)(index % VECTORS);
    u8 *to[RANKS];
#pragma unroll
    for (int r = 0; r < RANKS; r++) to[r] = comm_part(header, buffer, r, PART_BYTES);
    device_wait();
    if (index >= (i64)ROWS * VECTORS) return;
    /* Beside the count, not behind it: rows that are not valid can be read. */
    const vector_words sent = comm_clean(x[index]); /* here, too: all ranks have the same bits */
    if (row >= counts[COUNT_INDEX]) return;
#pragma unroll
    for (int r = 0; r < RANKS; r++)
        if (r != rank) comm_store(to[r] + index * sizeof(vector_words), sent);
    u32 late = 0;
    vector_words part[RANKS];
    comm_take<RANKS>((vector_words *)buffer + index, PART_BYTES / sizeof(vector_words), rank, part, header, late);
#pragma unroll
    for (int r = 0; r < RANKS; r++) {
        const i64 column = (i64)r * VECTORS + vector;
        if (column < OUT_WIDTH / VECTOR) out[(i64)row * (OUT_WIDTH / VECTOR) + column] = r == rank ? sent : part[r];
    }
    comm_end(header, late);
}
