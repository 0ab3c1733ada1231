/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels that take the rows of a slot in chunks, by products on tensor cores, have in common: operands of products from matrices
 * of 16-bit elements in shared memory, in tiles of 16 x 16, and the turns of the warps. A matrix is its address and the elements from a row
 * to the next. All functions of recurrent_chunk: by the whole warp. */
#ifndef KERNELS_OP_RECURRENT_CHUNK_CUH
#define KERNELS_OP_RECURRENT_CHUNK_CUH

#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/ptx.cuh"
#include "kernels/op/recurrent_copies.cuh"

struct recurrent_chunk {
    /* Operand a: rows from `row` on, columns from `column` on. */
    static __device__ __forceinline__ void load_rows(u32 (&a)[4], u32 matrix, int stride, int row, int column)
    {
        const int lane = (int)threadIdx.x % 32;
        load_matrices(a, matrix + (u32)(((row + lane % 16) * stride + column + lane / 16 * 8) * 2));
    }
    /* Two operands b, whose columns are rows of the matrix from `row` on, and their rows its columns. */
    static __device__ __forceinline__ void load_columns(u32 (&b)[4], u32 matrix, int stride, int row, int column)
    {
        const int lane = (int)threadIdx.x % 32;
        load_matrices(b, matrix + (u32)(((row + lane / 16 * 8 + lane % 8) * stride + column + lane / 8 % 2 * 8) * 2));
    }
    /* Two operands b, whose rows and columns are those of the matrix. */
    static __device__ __forceinline__ void load_straight(u32 (&b)[4], u32 matrix, int stride, int row, int column)
    {
        const int lane = (int)threadIdx.x % 32;
        load_matrices_transposed(b, matrix +
                                        (u32)(((row + lane / 8 % 2 * 8 + lane % 8) * stride + column + lane / 16 * 8) *
                                              2));
    }
    /* Sixteen rows as results of products have them, and as their transpose is operand a: words 2 * n + i are column lane / 4 + 8 * i,
     * rows 8 * n + 2 * (lane % 4) and the next. */
    static __device__ __forceinline__ void load_values(u32 (&values)[4], u32 matrix, int stride, int row, int column)
    {
        const int lane = (int)threadIdx.x % 32;
        load_matrices_transposed(values, matrix + (u32)(((row + lane / 16 * 8 + lane % 8) * stride + column +
                                                         lane / 8 % 2 * 8) *
                                                        2));
    }

    /* The bfloat16 nearest to a pair of numbers, which are then less by them. */
    static __device__ __forceinline__ u32 take_bf16(float &first, float &second)
    {
        const u32 taken = pack_halves<DTYPE_BF16>(first, second);
        first -= float_of_bits(taken << 16);
        second -= float_of_bits(taken & 0xffff0000);
        return taken;
    }

    static __device__ __forceinline__ void multiply(float (&left)[4], float (&right)[4], const u32 (&a)[4],
                                                    const u32 (&b)[4])
    {
        mma<DTYPE_BF16>(left, a[0], a[1], a[2], a[3], b[0], b[1]);
        mma<DTYPE_BF16>(right, a[0], a[1], a[2], a[3], b[2], b[3]);
    }

    /* Rows from `row` on that are of the slot of the first of them. A launch has mostly one slot. */
    static __device__ __forceinline__ int count_rows(const int *slots, int row, int rows)
    {
        const int slot = slots[row];
        if (slots[rows - 1] == slot) return rows - row;
        for (int first = row;; first += 32) {
            const int own = first + (int)threadIdx.x % 32;
            const u32 others = __ballot_sync(0xffffffffu, slots[min(own, rows - 1)] != slot);
            if (others) return first - row + __ffs((int)others) - 1;
        }
    }
};

/* The turns of a thread block: warps that compute with the state, then BODY::PREPARERS warps that prepare the next chunk, then those that
 * finish the one before. They meet after each chunk. BODY has the work of each: load_gates, copy_chunk and prepare_chunk; compute_chunk,
 * with the block's part of the state in registers; finish_chunk. */
template <class BODY> struct recurrent_turns {
    typedef typename BODY::block block;
    typedef typename BODY::part part;
    static constexpr int PIECES = (int)(sizeof(part::at) / sizeof(part::at[0]));

    static __device__ __forceinline__ void finish(const block &b)
    {
        BODY::meet_all();
#pragma unroll 1
        for (int chunk = 0; chunk <= b.chunks; chunk++) {
            if (chunk > 0) BODY::finish_chunk(b, chunk - 1);
            BODY::meet_all();
        }
    }

    static __device__ __forceinline__ void prepare(const block &b)
    {
        auto next = BODY::load_gates(b, 0);
        BODY::copy_chunk(b, 0);
#pragma unroll 1
        for (int chunk = -1; chunk <= b.chunks; chunk++) {
            const auto own = next;
            next = BODY::load_gates(b, chunk + 2);
            BODY::copy_chunk(b, chunk + 2);
            copy_wait<1>();
            BODY::meet_preparers(); /* the next chunk has come, of all of them */
            if (chunk + 1 < b.chunks) BODY::prepare_chunk(b, chunk + 1, own);
            BODY::meet_all();
        }
    }

    static __device__ __forceinline__ void compute(const block &b, int position, u8 *heads, i64 copy_bytes)
    {
        part state = {};
        if (position > 0) {
            const float *before =
                (const float *)(heads + (position + 1) % RECURRENT_COPIES_CUDA * copy_bytes) + BODY::state_begin(b);
#pragma unroll
            for (int n = 0; n < PIECES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) state.at[n][i] = load_written_float(before + BODY::state_offset(n, i));
        }
        BODY::meet_all();
#pragma unroll 1
        for (int chunk = 0; chunk < b.chunks; chunk++) {
            BODY::compute_chunk(b, chunk, state);
            BODY::meet_all();
        }
        float *after =
            (float *)(heads + (position + b.count - 1) % RECURRENT_COPIES_CUDA * copy_bytes) + BODY::state_begin(b);
#pragma unroll
        for (int n = 0; n < PIECES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) after[BODY::state_offset(n, i)] = state.at[n][i];
        BODY::meet_all();
    }

    /* The first `rows` rows, slot after slot. `state`: of slot 0; `slot_bytes` of a slot, in all its copies, `head_bytes` of a head. */
    static __device__ __forceinline__ void run(block &b, int rows, const int *slots, const int *positions, u8 *state,
                                               i64 slot_bytes, i64 head_bytes)
    {
        const int warp = (int)threadIdx.x / 32;
#pragma unroll 1
        for (int row = 0; row < rows; row += b.count) {
            b.first_row = row;
            b.count = recurrent_chunk::count_rows(slots, row, rows);
            b.chunks = (b.count + BODY::CHUNK - 1) / BODY::CHUNK;
            if (warp >= BODY::WARPS + BODY::PREPARERS)
                finish(b);
            else if (warp >= BODY::WARPS)
                prepare(b);
            else
                compute(b, positions[row], state + (i64)slots[row] * slot_bytes + b.head * head_bytes,
                        slot_bytes / RECURRENT_COPIES_CUDA);
        }
    }
};

#endif
