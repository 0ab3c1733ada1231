/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce in two trips: every row has an owner, which receives it from all ranks, adds it up and sends the result
 * to all (contract: all_reduce.h). Each rank sends (RANKS - 1) / RANKS of its data twice: suited to many
 * rows.
 *
 * The second trip carries:
 *   HAS_NORM 2       the normed row, which needs nothing more than its place
 *   HAS_RESIDUAL 2   the row of `out`, as float32, of which every rank forms the norm
 *   else             the sum, rounded to X_DTYPE, to which every rank adds the residual
 *
 * With two HALVES one half of the grid sends rows to their owners and then receives the results, while the other
 * half forms the sums of this rank's rows; with one half each block does all of it in turn. Requires: all blocks are
 * resident on every rank, since they wait for each other. Each half has BLOCKS blocks; a multiprocessor holds at
 * least BLOCKS_PER_SM of them. Row r belongs to rank r % RANKS. The buffer: [RANKS] parts of OWNED_ROWS rows of
 * X_DTYPE, for the first trip, then ROWS rows for the second.
 *
 * A rank without peers (struct comm_header, slots) receives its own data in place of theirs; it owns the last rows
 * alone if there are fewer of them than ranks. */
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_TWO_SHOT_CUH
#define KERNELS_ALL_REDUCE_ALL_REDUCE_TWO_SHOT_CUH

#include "kernels/all_reduce/all_reduce_layout.cuh"
#include "kernels/all_reduce/all_reduce_row.cuh"

template <class P> struct all_reduce_two_shot_body : all_reduce_row<P> {
    typedef all_reduce_row<P> base;
    using base::STEPS, base::VECTOR, base::VECTORS, base::finish_row, base::load_residual, base::store_normed_row;
    using typename base::row_end;

    static constexpr int BLOCKS_PER_SM = (int)all_reduce_two_shot_resident(P::RANKS, VECTORS, P::THREADS);

    static constexpr int OWNED_ROWS = (P::ROWS + P::RANKS - 1) / P::RANKS;
    static constexpr u64 ROW_BYTES = (u64)VECTORS * 16;
    static constexpr u64 PART_BYTES = OWNED_ROWS * ROW_BYTES;

    static constexpr bool NORM_BY_OWNER = P::HAS_NORM == 2, WHOLE_ROWS = !NORM_BY_OWNER && P::HAS_RESIDUAL == 2;
    static constexpr bool SUM_IS_GIVEN = !NORM_BY_OWNER && !WHOLE_ROWS;
    static constexpr int GIVEN_DTYPE = NORM_BY_OWNER ? P::OUT_DTYPE : WHOLE_ROWS ? DTYPE_F32 : P::X_DTYPE;
    static constexpr u64 GIVEN_ROW_BYTES = (u64)P::WIDTH * (GIVEN_DTYPE == DTYPE_F32 ? 4 : 2);
    static constexpr int GIVEN_WORDS =
        VECTOR * (GIVEN_DTYPE == DTYPE_F32 ? 4 : 2) / 4; /* of a thread's part of a row */

    /* Row number `index` of those that other ranks own. */
    static __device__ __forceinline__ int others_row(int index, u32 rank)
    {
        const u32 owner = index % (P::RANKS - 1);
        return index / (P::RANKS - 1) * P::RANKS + (int)(owner + (owner >= rank));
    }

    /* Packs a thread's part of a row into words that are not empty. */
    static __device__ __forceinline__ void pack_given(const float value[VECTOR], u32 words[GIVEN_WORDS])
    {
#pragma unroll
        for (int w = 0; w < GIVEN_WORDS; w++) {
            if constexpr (GIVEN_DTYPE == DTYPE_F32)
                words[w] = comm_clean(bits_of_float(value[w]));
            else
                words[w] = comm_clean(pack_halves<GIVEN_DTYPE>(value[2 * w], value[2 * w + 1]));
        }
    }

    static __device__ __forceinline__ void unpack_given(const u32 words[GIVEN_WORDS], float value[VECTOR])
    {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if constexpr (GIVEN_DTYPE == DTYPE_F32)
                value[i] = float_of_bits(words[i]);
            else
                value[i] = float_of_half<GIVEN_DTYPE>((u16)(words[i / 2] >> (16 * (i % 2))));
        }
    }

    static __device__ __forceinline__ void give(u8 *to, const u32 words[GIVEN_WORDS])
    {
        if constexpr (GIVEN_WORDS < 4) {
#pragma unroll
            for (int w = 0; w < GIVEN_WORDS; w++) comm_store(to + 4 * w, words[w]);
        } else {
#pragma unroll
            for (int w = 0; w < GIVEN_WORDS; w += 4)
                comm_store(to + 4 * w, make_uint4(words[w], words[w + 1], words[w + 2], words[w + 3]));
        }
    }

    static __device__ __forceinline__ void take_given(u8 *from, u32 words[GIVEN_WORDS], u32 owner,
                                                      const comm_header *header, u32 &timed_out)
    {
        static_assert(NORM_BY_OWNER || GIVEN_WORDS % 4 == 0, "whole vectors: rows of X_DTYPE or wider");
#pragma unroll
        for (int w = 0; w < GIVEN_WORDS; w += 4) {
            const uint4 vector = comm_take_one<COMM_LONGER_PATIENCE>((uint4 *)from + w / 4, owner, header, timed_out);
            words[w] = vector.x, words[w + 1] = vector.y, words[w + 2] = vector.z, words[w + 3] = vector.w;
        }
    }

    struct exchange {
        const comm_header *header;
        const uint4 *x;
        u8 *buffer, *given; /* this rank's buffers of the first trip and of the second */
        u32 rank;
        bool alone;
        int rows;
    };

    static __device__ __forceinline__ void send_to_owners(const exchange &own, int block)
    {
        u8 *to[P::RANKS];
#pragma unroll
        for (int r = 0; r < P::RANKS; r++) to[r] = comm_part(own.header, own.buffer, r, PART_BYTES);
        for (int index = block, row; (row = others_row(index, own.rank)) < own.rows; index += P::BLOCKS) {
            const u32 owner = row % P::RANKS;
            if (own.alone && row / P::RANKS * P::RANKS + P::RANKS > own.rows) continue;
            u8 *at = to[0];
#pragma unroll
            for (int r = 1; r < P::RANKS; r++)
                if (r == owner) at = to[r];
            at += row / P::RANKS * ROW_BYTES;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int vector = threadIdx.x + s * P::THREADS;
                if (vector < VECTORS) comm_store(at + vector * 16, comm_clean(own.x[(i64)row * VECTORS + vector]));
            }
        }
    }

    /* Adds up this rank's rows, sends them to all and finishes them. */
    static __device__ __forceinline__ void sum_own(const exchange &own, int block, const row_end &end, u32 &timed_out)
    {
        u8 *whole[P::RANKS];
        int slot[P::RANKS];
#pragma unroll
        for (int r = 0; r < P::RANKS; r++) {
            whole[r] = (u8 *)own.header->peers[r] + ((u64)own.given - (u64)own.header);
            slot[r] = own.header->slots[r];
        }
        for (int group = block; group * P::RANKS + own.rank < own.rows; group += P::BLOCKS) {
            const int row = group * P::RANKS + own.rank;
            const bool shared = !own.alone || group * P::RANKS + P::RANKS <= own.rows;
            const auto give_all = [&](int vector, const u32 words[GIVEN_WORDS]) {
#pragma unroll
                for (int r = 0; r < P::RANKS; r++)
                    if (r != own.rank && group * P::RANKS + slot[r] < own.rows)
                        give(whole[r] + (group * P::RANKS + slot[r]) * GIVEN_ROW_BYTES + vector * (GIVEN_WORDS * 4),
                             words);
            };
            float sum[STEPS][VECTOR];
            u32 words[GIVEN_WORDS];
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int vector = threadIdx.x + s * P::THREADS;
                if (vector >= VECTORS) continue;
                const uint4 mine = own.x[(i64)row * VECTORS + vector];
                float base[VECTOR];
                load_residual(row, s, base, end);
                uint4 part[P::RANKS];
#pragma unroll
                for (int r = 0; r < P::RANKS; r++) part[r] = mine;
                if (shared)
                    comm_take<P::RANKS>((uint4 *)own.buffer + (i64)group * VECTORS + vector, PART_BYTES / 16, own.rank,
                                        part, own.header, timed_out);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[s][i] = 0;
#pragma unroll
                for (int r = 0; r < P::RANKS; r++) {
                    float value[VECTOR];
                    unpack_elements<P::X_DTYPE>(value, r == own.rank ? mine : part[r]);
#pragma unroll
                    for (int i = 0; i < VECTOR; i++) sum[s][i] += value[i];
                }
                if constexpr (SUM_IS_GIVEN) {
                    pack_given(sum[s], words);
                    give_all(vector, words);
                    unpack_given(words, sum[s]); /* all ranks continue with the same bits */
                }
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[s][i] += base[i];
                if constexpr (WHOLE_ROWS) {
                    pack_given(sum[s], words);
                    give_all(vector, words);
                    unpack_given(words, sum[s]);
                }
            }
            finish_row(row, sum, end);
#pragma unroll
            for (int s = 0; NORM_BY_OWNER && s < STEPS; s++) {
                const int vector = threadIdx.x + s * P::THREADS;
                if (vector >= VECTORS) continue;
                pack_given(sum[s], words);
                give_all(vector, words);
                unpack_given(words, sum[s]);
            }
            store_normed_row(row, sum, end);
        }
    }

    /* Receives the rows of other ranks, already normed. */
    static __device__ __forceinline__ void take_normed(const exchange &own, int block, const row_end &end,
                                                       u32 &timed_out)
    {
        constexpr int GIVEN_VECTORS = GIVEN_ROW_BYTES / 16;
        for (int index = block, row; (row = others_row(index, own.rank)) < own.rows; index += P::BLOCKS) {
            uint4 *from = (uint4 *)(own.given + row * GIVEN_ROW_BYTES);
            uint4 *to = (uint4 *)((u8 *)end.normed + row * GIVEN_ROW_BYTES);
            for (int vector = threadIdx.x; vector < GIVEN_VECTORS; vector += P::THREADS)
                to[vector] = comm_take_one<COMM_LONGER_PATIENCE>(from + vector, row % P::RANKS, own.header, timed_out);
        }
    }

    static __device__ __forceinline__ void finish_others(const exchange &own, int block, const row_end &end,
                                                         u32 &timed_out)
    {
        for (int index = block, row; (row = others_row(index, own.rank)) < own.rows; index += P::BLOCKS) {
            float sum[STEPS][VECTOR];
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int vector = threadIdx.x + s * P::THREADS;
                if (vector >= VECTORS) continue;
                u32 words[GIVEN_WORDS];
                float base[VECTOR];
                if constexpr (SUM_IS_GIVEN) load_residual(row, s, base, end);
                take_given(own.given + row * GIVEN_ROW_BYTES + vector * (GIVEN_WORDS * 4), words, row % P::RANKS,
                           own.header, timed_out);
                unpack_given(words, sum[s]);
#pragma unroll
                for (int i = 0; i < VECTOR; i++)
                    if constexpr (SUM_IS_GIVEN) sum[s][i] += base[i];
            }
            finish_row(row, sum, end);
            store_normed_row(row, sum, end);
        }
    }

    /* `residual`: null without HAS_RESIDUAL; `weight`, `normed`: without HAS_NORM. */
    static __device__ __forceinline__ void run(const int *counts, const uint4 *x, comm_header *header, u8 *buffer,
                                               float *out, const float *residual, const void *weight, void *normed)
    {
        device_trigger();
        exchange own =
            {header, x, buffer, buffer + P::RANKS * PART_BYTES, header->rank, header->peers[0] == header->peers[1], 0};
        const row_end end = {out, residual, weight, normed};
        const int block = blockIdx.x % P::BLOCKS;
        device_wait();
        own.rows = counts[P::COUNT_INDEX] < P::ROWS ? counts[P::COUNT_INDEX] : P::ROWS;
        u32 timed_out = 0;
        const bool sums = P::HALVES == 1 || blockIdx.x >= P::BLOCKS, exchanges = blockIdx.x < P::BLOCKS;
        if (exchanges) send_to_owners(own, block);
        if (sums) sum_own(own, block, end, timed_out);
        if (exchanges) {
            if constexpr (NORM_BY_OWNER)
                take_normed(own, block, end, timed_out);
            else
                finish_others(own, block, end, timed_out);
        }
        comm_end(header, timed_out);
    }
};

#endif
