/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels have in common that take the rows of a slot one after the other, with the state of a head in registers: delta_rule and
 * state_space. A head's state is f32[STATE_ROWS, STATE_COLUMNS], divided as delta_rule_layout.cuh says.
 *
 * A walker, SPLIT blocks for each head, takes the first rows of slots that are at its places, and the rows of the slot after them. Rows are
 * prepared in stages: while a stage is computed, the operands of the next one come.
 *
 * BODY, a kernel's: `block`, of which slots, rows, head and first_column are read here; copy_stage, prepare_stage and finish_stage of
 * `count` rows from `row` on, by all threads; advance, which makes the state after row r of the stage and leaves its output. */
#ifndef KERNELS_DELTA_RULE_DELTA_RULE_WALK_CUH
#define KERNELS_DELTA_RULE_DELTA_RULE_WALK_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/ptx.cuh"
#include "kernels/delta_rule/delta_rule_layout.cuh"
#include "kernels/op/recurrent_copies.cuh"

template <class P, int STATE_ROWS, int STATE_COLUMNS, int HEADS> struct delta_rule_walk {
    static constexpr int LANES = P::LANES, STAGE = (int)delta_rule_stage(P::SCATTERED);
    static constexpr int COLUMNS = (int)delta_rule_lane_columns(STATE_COLUMNS); /* of a lane, as the next */
    static constexpr int ROWS = (int)delta_rule_lane_rows(STATE_ROWS, LANES);
    static constexpr int ALL_ROWS = LANES * ROWS; /* STATE_ROWS and zeros */
    static constexpr int WARP_COLUMNS = (int)delta_rule_warp_columns(STATE_COLUMNS, LANES);
    static constexpr int BLOCK_COLUMNS = P::WARPS * WARP_COLUMNS;
    static constexpr int SPLIT = (int)delta_rule_split(STATE_COLUMNS, LANES, P::WARPS);
    static constexpr bool WHOLE = SPLIT * BLOCK_COLUMNS == STATE_COLUMNS; /* no block has columns after the last one */

    static __device__ __forceinline__ bool has_column(int column) /* of the head */
    {
        return WHOLE || column < STATE_COLUMNS;
    }

    /* A lane's part of the state. */
    struct part {
        float at[ROWS][COLUMNS];
    };

    /* Row `n` of a lane's part is row to_row(n) of the state. */
    static __device__ __forceinline__ int to_row(int n)
    {
        return (n / 4 * LANES + (int)threadIdx.x % LANES) * 4 + n % 4;
    }
    static __device__ __forceinline__ bool has_row(int n) { return ALL_ROWS == STATE_ROWS || to_row(n) < STATE_ROWS; }
    /* A lane's first column, of those of the block. */
    static __device__ __forceinline__ int lane_column()
    {
        return (int)threadIdx.x / 32 * WARP_COLUMNS + (int)threadIdx.x % 32 / LANES * COLUMNS;
    }

    /* The lane's part of a head's state, which begins at `from`. Requires: it is zero. */
    static __device__ __forceinline__ void load_part(part &state, const float *from, int column)
    {
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            if (!has_row(n) || !has_column(column)) continue;
            if constexpr (COLUMNS == 4) {
                u32 words[4];
                load_written(words, from + to_row(n) * STATE_COLUMNS + column);
#pragma unroll
                for (int c = 0; c < 4; c++) state.at[n][c] = float_of_bits(words[c]);
            } else {
                state.at[n][0] = load_written_float(from + to_row(n) * STATE_COLUMNS + column);
            }
        }
    }

    static __device__ __forceinline__ void store_part(const part &state, float *to, int column)
    {
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            if (!has_row(n) || !has_column(column)) continue;
            if constexpr (COLUMNS == 4)
                store_elements<DTYPE_F32>(to, to_row(n) * STATE_COLUMNS + column, state.at[n]);
            else
                to[to_row(n) * STATE_COLUMNS + column] = state.at[n][0];
        }
    }

    /* Rows from `row` on that are of the slot, at most a stage of them; by whole warps. */
    template <class BLOCK> static __device__ __forceinline__ int count_rows(const BLOCK &b, int slot, int row)
    {
        const int lane = (int)threadIdx.x % 32;
        const bool is_same = lane < STAGE && row + lane < b.rows && b.slots[row + lane] == slot;
        const u32 others = ~__ballot_sync(0xffffffffu, is_same);
        return others ? __ffs((int)others) - 1 : 32;
    }

    /* All rows of the slot from `row` on, the first of them; returns their number. `heads`: the slot's state of this head, in the first
     * copy. */
    template <class BODY>
    static __device__ __forceinline__ int run_slot(typename BODY::block &b, int slot, int row, int position, u8 *heads)
    {
        constexpr i64 COPY = P::RECURRENT_BYTES / RECURRENT_COPIES_CUDA;
        const int column = b.first_column + lane_column();
        part state = {};
        int count = count_rows(b, slot, row), done = 0;
        if (position > 0)
            load_part(state, (const float *)(heads + (position + 1) % RECURRENT_COPIES_CUDA * COPY), column);
        BODY::copy_stage(b, row, count);
        while (count > 0) {
            copy_wait_all();
            __syncthreads(); /* the copies of all threads have come, and the stage before is finished */
            BODY::prepare_stage(b, row + done, count);
            const int next = count == STAGE ? count_rows(b, slot, row + done + count) : 0;
            __syncthreads();
            if (next > 0) BODY::copy_stage(b, row + done + count, next);
#pragma unroll 1
            for (int r = 0; r < count; r++) BODY::advance(b, r, state);
            __syncthreads();
            BODY::finish_stage(b, row + done, count);
            done += count;
            count = next;
        }
        store_part(state, (float *)(heads + (position + done - 1) % RECURRENT_COPIES_CUDA * COPY), column);
        return done;
    }

    /* The block's head, and its first column of that. */
    static __device__ __forceinline__ int block_head() { return (int)blockIdx.x / SPLIT % HEADS; }
    static __device__ __forceinline__ int block_column() { return (int)blockIdx.x % SPLIT * BLOCK_COLUMNS; }

    /* The block's rows of a step. `state`: of slot 0. */
    template <class BODY>
    static __device__ __forceinline__ void run_slots(typename BODY::block &b, const int *positions, u8 *state)
    {
        constexpr i64 HEAD_BYTES = (i64)sizeof(float) * STATE_ROWS * STATE_COLUMNS;
        constexpr int BLOCKS = SPLIT * HEADS; /* of a walker */
        const int walker = (int)blockIdx.x / BLOCKS, walkers = (int)gridDim.x / BLOCKS;
        int row = walker;
        while (row < b.rows) {
            const int slot = b.slots[row];
            const int done = row > 0 && b.slots[row - 1] == slot
                                 ? 1
                                 : run_slot<BODY>(b, slot, row, positions[row],
                                                  state + (i64)slot * P::RECURRENT_BYTES + b.head * HEAD_BYTES);
            row += (done + walkers - 1) / walkers * walkers;
        }
    }
};

#endif
