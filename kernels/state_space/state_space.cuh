/* SPDX-License-Identifier: Apache-2.0 */
/* state_space (contract: state_space.h). A head is the work of SPLIT blocks, which divide the columns of the state; these stay in
 * registers while the rows of a slot follow each other. LANES lanes of a warp share the rows of neighbouring columns, so that the product
 * with C is a sum over these lanes. Rows are prepared in stages: while a stage is computed, B, C, x and z of the next one are copied to
 * shared memory.
 */
#ifndef KERNELS_STATE_SPACE_STATE_SPACE_CUH
#define KERNELS_STATE_SPACE_STATE_SPACE_CUH

#include "kernels/delta_rule/delta_rule_walk.cuh"
#include "kernels/state_space/state_space_layout.cuh"

template <class P> struct state_space_body {
    typedef delta_rule_walk<P, P::STATE_DIM, P::HEAD_DIM, P::HEADS> walk;
    typedef typename walk::part part;
    static constexpr int THREADS = 32 * P::WARPS, LANES = P::LANES, STAGE = walk::STAGE;
    static constexpr int COLUMNS = walk::COLUMNS, ROWS = walk::ROWS; /* of a lane */
    static constexpr int STATE_ROWS = walk::ALL_ROWS, BLOCK_COLUMNS = walk::BLOCK_COLUMNS, SPLIT = walk::SPLIT;
    static constexpr int ELEMENT_BYTES = P::X_DTYPE == DTYPE_F32 ? 4 : 2, PIECE = 16 / ELEMENT_BYTES;
    static constexpr bool COPIES = delta_rule_copies(P::STATE_DIM, P::HEAD_DIM, BLOCK_COLUMNS, ELEMENT_BYTES) != 0;
    static constexpr state_space_shared AT =
        state_space_shared_memory(P::STATE_DIM, P::HEAD_DIM, LANES, P::WARPS, P::SCATTERED, ELEMENT_BYTES);
    static constexpr int OUT_WIDTH = P::HEADS * P::HEAD_DIM, OF_GROUPS = P::GROUPS * P::STATE_DIM;
    static constexpr int XBC_WIDTH = OUT_WIDTH + 2 * OF_GROUPS, RAW_WIDTH = 2 * P::STATE_DIM + 2 * BLOCK_COLUMNS;

    /* The block's operands and place, the same for all rows. */
    struct block {
        u8 *memory;
        const void *xbc, *z;
        const float *dt;
        void *out;
        const int *slots;
        int rows, head, first_column; /* of the head */
        float rate, dt_bias, d;
    };

    static __device__ __forceinline__ float *floats(const block &b, layout_size at) { return (float *)(b.memory + at); }

    /* Element of x or B of a row, or of z: in the operand. C comes OF_GROUPS after B. */
    static __device__ __forceinline__ i64 x_index(const block &b, int row)
    {
        return (i64)row * XBC_WIDTH + b.head * P::HEAD_DIM + b.first_column;
    }
    static __device__ __forceinline__ i64 b_index(const block &b, int row)
    {
        return (i64)row * XBC_WIDTH + OUT_WIDTH + b.head / (P::HEADS / P::GROUPS) * P::STATE_DIM;
    }
    static __device__ __forceinline__ i64 z_index(const block &b, int row)
    {
        return (i64)row * OUT_WIDTH + b.head * P::HEAD_DIM + b.first_column;
    }

    /* ---- a stage of `count` rows ---- */

    static __device__ __forceinline__ void copy_stage(const block &b, int row, int count)
    {
        if constexpr (COPIES) {
            constexpr int STATE_PIECES = P::STATE_DIM / PIECE, COLUMN_PIECES = BLOCK_COLUMNS / PIECE;
            constexpr int PIECES = 2 * STATE_PIECES + 2 * COLUMN_PIECES;
            const u32 raw = shared_address(b.memory + AT.raw);
            for (int i = (int)threadIdx.x; i < count * PIECES; i += THREADS) {
                const int r = i / PIECES, piece = i % PIECES;
                const int column = (piece - 2 * STATE_PIECES) % COLUMN_PIECES * PIECE; /* of x or z */
                const u8 *from;
                if (piece < 2 * STATE_PIECES)
                    from = (const u8 *)b.xbc +
                           (b_index(b, row + r) + piece / STATE_PIECES * OF_GROUPS + piece % STATE_PIECES * PIECE) *
                               ELEMENT_BYTES;
                else if (piece < 2 * STATE_PIECES + COLUMN_PIECES)
                    from = (const u8 *)b.xbc + (x_index(b, row + r) + column) * ELEMENT_BYTES;
                else
                    from = (const u8 *)b.z + (z_index(b, row + r) + column) * ELEMENT_BYTES;
                if (piece < 2 * STATE_PIECES || walk::has_column(b.first_column + column))
                    copy_async<16>(raw + (u32)((r * RAW_WIDTH + piece * PIECE) * ELEMENT_BYTES), from);
            }
            copy_commit();
        }
    }

    /* Element `index` of an operand, which is element `place` of a row's copy. */
    static __device__ __forceinline__ float stage_element(const block &b, int r, int place, const void *operand,
                                                          i64 index)
    {
        if constexpr (COPIES)
            return load_element<P::X_DTYPE>(b.memory + AT.raw, r * RAW_WIDTH + place);
        else
            return load_element<P::X_DTYPE>(operand, index);
    }

    static __device__ __forceinline__ void prepare_factors(const block &b, int row, int r)
    {
        const float least = float_of_bits(P::DT_MIN_BITS), most = float_of_bits(P::DT_MAX_BITS);
        const float x = load_written_float(b.dt + (i64)(row + r) * P::HEADS + b.head) + b.dt_bias;
        float dt = x > 40 ? x : log1pf(expf(x));
        dt = dt < least ? least : dt > most ? most : dt; /* NaN stays */
        *(float2 *)(floats(b, AT.factors) + 2 * r) = make_float2(expf(-b.rate * dt), dt);
    }

    static __device__ __forceinline__ void prepare_stage(const block &b, int row, int count)
    {
        for (int r = (int)threadIdx.x; r < count; r += THREADS) prepare_factors(b, row, r);
        for (int i = (int)threadIdx.x; i < count * P::STATE_DIM; i += THREADS) {
            const int r = i / P::STATE_DIM, n = i % P::STATE_DIM;
            const i64 index = b_index(b, row + r) + n;
            floats(b, AT.b)[r * STATE_ROWS + n] = stage_element(b, r, n, b.xbc, index);
            floats(b, AT.c)[r * STATE_ROWS + n] = stage_element(b, r, P::STATE_DIM + n, b.xbc, index + OF_GROUPS);
        }
        for (int i = (int)threadIdx.x; i < count * BLOCK_COLUMNS; i += THREADS) {
            const int r = i / BLOCK_COLUMNS, column = i % BLOCK_COLUMNS;
            float x = 0, z = 0;
            if (walk::has_column(b.first_column + column)) {
                x = stage_element(b, r, 2 * P::STATE_DIM + column, b.xbc, x_index(b, row + r) + column);
                z = stage_element(b, r, 2 * P::STATE_DIM + BLOCK_COLUMNS + column, b.z, z_index(b, row + r) + column);
            }
            floats(b, AT.x)[i] = x;
            floats(b, AT.z)[i] = z;
        }
    }

    /* The state after a row, and its product with C. */
    static __device__ __forceinline__ void advance(const block &b, int r, part &state)
    {
        const int lane = (int)threadIdx.x % LANES, column = walk::lane_column();
        const float2 factors = *(const float2 *)(floats(b, AT.factors) + 2 * r);
        const float decay = factors.x, dt = factors.y;
        const float *from_b = floats(b, AT.b) + r * STATE_ROWS, *from_c = floats(b, AT.c) + r * STATE_ROWS;
        float made[COLUMNS] = {}, added[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) added[c] = dt * floats(b, AT.x)[r * BLOCK_COLUMNS + column + c];
#pragma unroll
        for (int n = 0; n < ROWS; n += 4) {
            const float4 of_b = *(const float4 *)(from_b + (n * LANES + 4 * lane));
            const float4 of_c = *(const float4 *)(from_c + (n * LANES + 4 * lane));
            const float in[4] = {of_b.x, of_b.y, of_b.z, of_b.w}, read[4] = {of_c.x, of_c.y, of_c.z, of_c.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    state.at[n + i][c] = fmaf(in[i], added[c], decay * state.at[n + i][c]);
                    made[c] = fmaf(state.at[n + i][c], read[i], made[c]);
                }
        }
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) made[c] += __shfl_xor_sync(0xffffffffu, made[c], offset);
        if (lane != 0) return;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) floats(b, AT.o)[r * BLOCK_COLUMNS + column + c] = made[c];
    }

    /* The skip and the gate. By all threads, after o is visible in the block. */
    static __device__ __forceinline__ void finish_stage(const block &b, int row, int count)
    {
        for (int i = (int)threadIdx.x; i < count * BLOCK_COLUMNS; i += THREADS) {
            const int r = i / BLOCK_COLUMNS, column = i % BLOCK_COLUMNS;
            if (!walk::has_column(b.first_column + column)) continue;
            const float z = floats(b, AT.z)[i], made = fmaf(b.d, floats(b, AT.x)[i], floats(b, AT.o)[i]);
            store_element<P::X_DTYPE>(b.out, z_index(b, row + r) + column, made * (z / (1 + expf(-z))));
        }
    }

    /* `memory`: shared, AT.bytes. `state`: of slot 0. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const void *xbc, const void *z,
                                               const float *dt, const void *a_log, const void *dt_bias, const void *d,
                                               void *out, const int *slots, const int *positions, u8 *state)
    {
        const int head = walk::block_head();
        device_trigger();
        block b = {memory,
                   xbc,
                   z,
                   dt,
                   out,
                   slots,
                   0,
                   head,
                   walk::block_column(),
                   expf(load_element<P::A_DTYPE>(a_log, head)),
                   load_element<P::DT_DTYPE>(dt_bias, head),
                   load_element<P::D_DTYPE>(d, head)};
        if constexpr (STATE_ROWS != P::STATE_DIM) { /* the rows of the state that are zero */
            constexpr int ZEROS = STATE_ROWS - P::STATE_DIM;
            for (int i = (int)threadIdx.x; i < STAGE * ZEROS; i += THREADS) {
                const int at = i / ZEROS * STATE_ROWS + P::STATE_DIM + i % ZEROS;
                floats(b, AT.b)[at] = floats(b, AT.c)[at] = 0;
            }
        }
        device_wait();
        b.rows = min(counts[P::COUNT_INDEX], P::ROWS);
        walk::template run_slots<state_space_body>(b, positions, state);
    }
};

#endif
