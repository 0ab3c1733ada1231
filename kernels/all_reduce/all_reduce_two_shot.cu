/* all_reduce in two trips: every row has an owner, who gets it from all ranks, adds, and gives the sum, rounded to
 * X_DTYPE, to all (contract: all_reduce_device.h). Each rank sends (RANKS - 1) / RANKS of its data twice, whatever RANKS
 * is: for many rows.
 *
 * All blocks must run at once on every rank, since the first part of each block's work is what the second part of
 * another's waits for: at most one block for each multiprocessor. Row r belongs to rank r % RANKS. The buffer: [RANKS]
 * parts of OWNED_ROWS rows, for the first trip, then ROWS rows for the second.
 *
 * A rank that stands alone (struct comm_header, slots) takes what it sends to others for what they send; rows at the end
 * that not all ranks would own are then its own alone. */
#ifndef THREADS
#define THREADS 256
#endif
#include "kernels/all_reduce/all_reduce_row.cuh"
#ifndef BLOCKS
#define BLOCKS 128
#endif

constexpr int OWNED_ROWS = (ROWS + RANKS - 1) / RANKS;
constexpr u64 ROW_BYTES = (u64)WIDTH * ELEMENT_BYTES;
constexpr u64 PART_BYTES = OWNED_ROWS * ROW_BYTES;

/* Row number `index` of those that other ranks own. */
__device__ __forceinline__ int others_row(int index, u32 rank)
{
    const u32 owner = index % (RANKS - 1);
    return index / (RANKS - 1) * RANKS + (int)(owner + (owner >= rank));
}

__device__ __forceinline__ void finish_packed(int row, const uint4 sums[STEPS], const row_end &end)
{
    float sum[STEPS][VECTOR];
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (threadIdx.x + s * THREADS < VECTORS) unpack(sums[s], sum[s]);
    finish_row(row, sum, end);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    all_reduce_two_shot(const int *__restrict__ counts, const uint4 *x, comm_header *header, u8 *buffer, float *out
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
    const u32 rank = header->rank;
    const bool alone = header->peers[0] == header->peers[1];
    u8 *to[RANKS], *whole[RANKS];
    int slot[RANKS];
    row_end end = {out, nullptr, nullptr, nullptr};
#if HAS_RESIDUAL
    end.residual = residual;
#endif
#if HAS_NORM
    end.weight = weight, end.normed = normed;
#endif
#pragma unroll
    for (int r = 0; r < RANKS; r++) {
        to[r] = comm_part(header, buffer, r, PART_BYTES);
        slot[r] = header->slots[r];
        whole[r] = (u8 *)header->peers[r] + ((u64)buffer - (u64)header) + RANKS * PART_BYTES;
    }
    device_wait();
    u32 late = 0;
    const int rows = counts[COUNT_INDEX] < ROWS ? counts[COUNT_INDEX] : ROWS;

    /* To the owners. */
    for (int index = blockIdx.x, row; (row = others_row(index, rank)) < rows; index += BLOCKS) {
        const u32 owner = row % RANKS;
        if (alone && row / RANKS * RANKS + RANKS > rows) continue;
        u8 *at = to[0];
#pragma unroll
        for (int r = 1; r < RANKS; r++)
            if (r == owner) at = to[r];
        at += row / RANKS * ROW_BYTES;
        for (int vector = threadIdx.x; vector < VECTORS; vector += THREADS)
            comm_store(at + vector * 16, comm_clean(x[(i64)row * VECTORS + vector]));
    }
    /* The rows of this rank: added, given to all, finished here. */
    for (int own = blockIdx.x; own * RANKS + rank < rows; own += BLOCKS) {
        const int row = own * RANKS + rank;
        const bool shared = !alone || own * RANKS + RANKS <= rows;
        uint4 sums[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int vector = threadIdx.x + s * THREADS;
            if (vector >= VECTORS) continue;
            const uint4 mine = x[(i64)row * VECTORS + vector];
            uint4 part[RANKS];
            float sum[VECTOR];
#pragma unroll
            for (int r = 0; r < RANKS; r++) part[r] = mine;
            if (shared)
                comm_take<RANKS>((uint4 *)buffer + (i64)own * VECTORS + vector, PART_BYTES / 16, rank, part, header,
                                 late);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[i] = 0;
#pragma unroll
            for (int r = 0; r < RANKS; r++) {
                float value[VECTOR];
                unpack(r == rank ? mine : part[r], value);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[i] += value[i];
            }
            sums[s] = comm_clean(pack(sum));
#pragma unroll
            for (int r = 0; r < RANKS; r++)
                if (r != rank && own * RANKS + slot[r] < rows)
                    comm_store(whole[r] + (own * RANKS + slot[r]) * ROW_BYTES + vector * 16, sums[s]);
        }
        finish_packed(row, sums, end);
    }
    /* The others' rows. */
    for (int index = blockIdx.x, row; (row = others_row(index, rank)) < rows; index += BLOCKS) {
        uint4 *from = (uint4 *)(buffer + RANKS * PART_BYTES) + (i64)row * VECTORS, sums[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (threadIdx.x + s * THREADS < VECTORS)
                sums[s] = comm_take_one(from + threadIdx.x + s * THREADS, row % RANKS, header, late);
        finish_packed(row, sums, end);
    }
    comm_end(header, late);
}
