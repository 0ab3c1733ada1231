/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels that take the rows of a slot in chunks, by products on tensor cores, have in common: operands of products from matrices
 * of 16-bit elements in shared memory, in tiles of 16 x 16, and the rows of a slot. A matrix is its address and the elements from a row
 * to the next. All functions: by the whole warp. */
#ifndef KERNELS_OP_RECURRENT_CHUNK_CUH
#define KERNELS_OP_RECURRENT_CHUNK_CUH

#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/ptx.cuh"

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

#endif
