/* SPDX-License-Identifier: Apache-2.0 */
/* state_space (contract: state_space.h) of prompts: CHUNK rows of a slot at a time, by products on tensor cores. Dao and Gu 2024,
 * arXiv:2405.21060, section 6. With rows i and j of a chunk, t the time steps, G the sums of the logarithms of the decays from the
 * chunk's first row on, and S the state before the chunk:
 *
 *   Y = exp(G) C S + M X,  M[i, j] = (C_i . B_j) exp(G_i - G_j) t_j for j <= i, else 0
 *   S = exp(G_last) S + transpose(B) (exp(G_last - G) t X)
 *
 * A head is the work of SPLIT blocks, which divide the columns of the state. Columns are independent: each of COLUMN_WARPS warps has
 * sixteen of them, transposed, in registers as the result of products, which is also how products take them (mma.cuh); Y is computed in
 * its registers, too. Meanwhile other warps prepare what does not depend on the state for the next chunk, and others finish the chunk
 * before, by its gate. Warps meet once in a chunk.
 *
 * Precision: B, C and x of 16 bits are exact operands. S, M and what x is multiplied by are three bfloat16 each, whose sum has all bits of
 * a float32: outputs are sums of large numbers of either sign. Sums and the state between chunks are float32, G is double: its
 * differences count. */
#ifndef KERNELS_STATE_SPACE_STATE_SPACE_CHUNK_CUH
#define KERNELS_STATE_SPACE_STATE_SPACE_CHUNK_CUH

#include "kernels/op/recurrent_chunk.cuh"
#include "kernels/state_space/state_space_chunk_layout.cuh"

template <class P> struct state_space_chunk_body : recurrent_chunk {
    static constexpr int CHUNK = P::CHUNK, WARPS = P::COLUMN_WARPS, THREADS = (int)delta_rule_chunk_threads(WARPS);
    static constexpr int PREPARERS = DELTA_RULE_CHUNK_PREPARERS, FINISHERS = DELTA_RULE_CHUNK_FINISHERS; /* warps */
    static constexpr int TILE = DELTA_RULE_CHUNK_TILE, TILES = CHUNK / TILE, STATE_TILES = P::STATE_DIM / TILE;
    static constexpr int COLUMNS = TILE * WARPS, SPLIT = P::HEAD_DIM / COLUMNS; /* of a block; blocks of a head */
    static constexpr int PARTS = STATE_SPACE_CHUNK_PARTS, STAGES = DELTA_RULE_CHUNK_STAGES;
    static constexpr state_space_chunk_shared AT = state_space_chunk_shared_memory(P::STATE_DIM, CHUNK, WARPS);
    static constexpr int STATE_STRIDE = (int)delta_rule_chunk_half_stride(P::STATE_DIM);
    static constexpr int COLUMN_STRIDE = (int)delta_rule_chunk_half_stride(COLUMNS);
    static constexpr int WEIGHT_STRIDE = (int)delta_rule_chunk_half_stride(CHUNK);
    static constexpr int OUT_STRIDE = (int)delta_rule_chunk_float_stride(COLUMNS);
    static constexpr int OUT_WIDTH = P::HEADS * P::HEAD_DIM, OF_GROUPS = P::GROUPS * P::STATE_DIM;
    static constexpr int XBC_WIDTH = OUT_WIDTH + 2 * OF_GROUPS;
    enum { PREPARERS_BARRIER = 1, ALL_BARRIER };
    static constexpr float LOG2_E = 1.44269504f;
    /* Decays below 2^-160 are zero, and G must stay small enough for its differences. */
    static constexpr float LEAST_LOG = -160;
    static_assert(P::X_DTYPE == DTYPE_BF16 && SPLIT * COLUMNS == P::HEAD_DIM && STATE_TILES * TILE == P::STATE_DIM &&
                      P::STATE_DIM <= STATE_SPACE_CHUNK_MOST_STATE && CHUNK <= 32 * PREPARERS,
                  "launch checks");

    /* The block's operands and place, and the rows of the slot in hand. */
    struct block {
        u8 *memory;
        const void *xbc, *z;
        const float *dt;
        void *out;
        int head, first_column; /* of the head */
        float rate, dt_bias, d;
        int first_row, count, chunks;
    };

    static __device__ __forceinline__ float *turn(const block &b, int chunk, layout_size at)
    {
        return (float *)(b.memory + AT.turns + chunk % 2 * AT.turn_bytes + at);
    }
    static __device__ __forceinline__ float *scratch(const block &b, layout_size at)
    {
        return (float *)(b.memory + at);
    }
    static __device__ __forceinline__ u32 stage(const block &b, int chunk, layout_size at)
    {
        return shared_address(b.memory) + (u32)(chunk % STAGES * AT.stage_bytes + at);
    }
    static __device__ __forceinline__ int preparer() { return (int)threadIdx.x - 32 * WARPS; } /* thread */
    static __device__ __forceinline__ int finisher() { return (int)threadIdx.x - 32 * (WARPS + PREPARERS); }
    static __device__ __forceinline__ void meet_preparers() { named_barrier(PREPARERS_BARRIER, 32 * PREPARERS); }
    static __device__ __forceinline__ void meet_all() { named_barrier(ALL_BARRIER, THREADS); }

    /* Pairs of neighbours in parts. */
    static __device__ __forceinline__ void split(u32 (&parts)[PARTS], float first, float second)
    {
#pragma unroll
        for (int part = 0; part < PARTS; part++) parts[part] = take_bf16(first, second);
    }
    /* Operand a of 16 x 16 numbers, which are the results of two products. */
    struct operand {
        u32 parts[PARTS][4];
    };
    static __device__ __forceinline__ void split(operand &a, const float (&left)[4], const float (&right)[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *from = i < 2 ? left : right;
            u32 parts[PARTS];
            split(parts, from[i % 2 * 2], from[i % 2 * 2 + 1]);
#pragma unroll
            for (int part = 0; part < PARTS; part++) a.parts[part][i] = parts[part];
        }
    }
    /* Adds products with all parts, the small ones first. */
    static __device__ __forceinline__ void multiply_parts(float (&left)[4], float (&right)[4], const operand &a,
                                                          const u32 (&b)[4])
    {
#pragma unroll
        for (int part = PARTS - 1; part >= 0; part--) multiply(left, right, a.parts[part], b);
    }

    /* ---- preparers: B, C and x of a chunk come, and what does not depend on the state ---- */

    /* Rows after the last one are zero: they change nothing. */
    static __device__ __forceinline__ void copy_chunk(const block &b, int chunk)
    {
        constexpr int STATE_PIECES = P::STATE_DIM / 8, COLUMN_PIECES = COLUMNS / 8;
        constexpr int PIECES = 2 * STATE_PIECES + COLUMN_PIECES;
        if (chunk < b.chunks) {
#pragma unroll 4
            for (int i = preparer(); i < CHUNK * PIECES; i += 32 * PREPARERS) {
                const int r = i / PIECES, piece = i % PIECES, row = chunk * CHUNK + r;
                const bool is_x = piece >= 2 * STATE_PIECES;
                const int matrix = piece / STATE_PIECES, within = piece % STATE_PIECES; /* of B and C */
                const int column = piece - 2 * STATE_PIECES;
                const int from =
                    is_x ? b.head * P::HEAD_DIM + b.first_column + column * 8
                         : OUT_WIDTH + matrix * OF_GROUPS + b.head / (P::HEADS / P::GROUPS) * P::STATE_DIM + within * 8;
                const u32 to =
                    is_x ? stage(b, chunk, AT.x) + (u32)((r * COLUMN_STRIDE + column * 8) * 2)
                         : stage(b, chunk, AT.b) + (u32)matrix * (u32)AT.c + (u32)((r * STATE_STRIDE + within * 8) * 2);
                const bool is_valid = row < b.count;
                copy_async_if<16>(to, (const u16 *)b.xbc + (i64)(b.first_row + (is_valid ? row : 0)) * XBC_WIDTH + from,
                                  is_valid);
            }
        }
        copy_commit();
    }

    /* dt of the chunk's row that is the thread's. */
    static __device__ __forceinline__ float load_gates(const block &b, int chunk)
    {
        const int row = chunk * CHUNK + preparer();
        if (preparer() >= CHUNK || row >= b.count) return 0;
        return load_written_float(b.dt + (i64)(b.first_row + row) * P::HEADS + b.head);
    }

    static __device__ __forceinline__ void prepare_factors(const block &b, int chunk, float own_dt)
    {
        const float least = float_of_bits(P::DT_MIN_BITS), most = float_of_bits(P::DT_MAX_BITS);
        const int t = preparer();
        float log = 0, step = 0;
        if (t < CHUNK) {
            if (chunk * CHUNK + t < b.count) {
                const float raw = own_dt + b.dt_bias;
                step = raw > 40 ? raw : log1pf(expf(raw));
                step = step < least ? least : step > most ? most : step; /* NaN stays */
                log = -b.rate * step * LOG2_E;
                if (log < LEAST_LOG) log = LEAST_LOG; /* NaN stays */
            }
            scratch(b, AT.logs)[t] = log;
            scratch(b, AT.steps)[t] = step;
        }
        meet_preparers();
        if (t < CHUNK) {
            double sum = 0, own = 0;
#pragma unroll 8
            for (int i = 0; i < CHUNK; i++) {
                sum += (double)scratch(b, AT.logs)[i];
                if (i == t) own = sum;
            }
            ((double *)(b.memory + AT.sums))[t] = own;
            turn(b, chunk, AT.read)[t] = exp2_approximate((float)own);
            turn(b, chunk, AT.after)[t] = step * exp2_approximate((float)(sum - own));
            if (t == 0) *turn(b, chunk, AT.whole) = exp2_approximate((float)sum);
        }
        meet_preparers();
    }

    /* Sixteen rows of M; by a warp. */
    static __device__ __forceinline__ void prepare_weights(const block &b, int chunk, int tile)
    {
        const int lane = (int)threadIdx.x % 32;
        float products[2 * TILES][4] = {};
#pragma unroll
        for (int kk = 0; kk < STATE_TILES; kk++) {
            u32 rows[4], columns[4];
            load_rows(rows, stage(b, chunk, AT.c), STATE_STRIDE, tile * TILE, kk * TILE);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                if (t > tile) continue;
                load_columns(columns, stage(b, chunk, AT.b), STATE_STRIDE, t * TILE, kk * TILE);
                multiply(products[2 * t], products[2 * t + 1], rows, columns);
            }
        }
        u8 *matrix = (u8 *)turn(b, chunk, AT.weights);
        const double *sums = (const double *)(b.memory + AT.sums);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = tile * TILE + lane / 4 + 8 * half;
            const double sum = sums[r];
#pragma unroll
            for (int t = 0; t < 2 * TILES; t++) {
                const int c = 8 * t + lane % 4 * 2;
                if (t / 2 > tile) continue;
                float values[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float value = products[t][2 * half + e] * scratch(b, AT.steps)[c + e] *
                                        exp2_approximate((float)(sum - sums[c + e]));
                    values[e] = c + e <= r ? value : 0;
                }
                u32 parts[PARTS];
                split(parts, values[0], values[1]);
#pragma unroll
                for (int part = 0; part < PARTS; part++)
                    *(u32 *)(matrix + part * AT.part + (r * WEIGHT_STRIDE + c) * 2) = parts[part];
            }
        }
    }

    /* After the copies of all preparers have come. */
    static __device__ __forceinline__ void prepare_chunk(const block &b, int chunk, float own_dt)
    {
        prepare_factors(b, chunk, own_dt);
#pragma unroll 1
        for (int n = preparer() / 32; n < TILES; n += PREPARERS) prepare_weights(b, chunk, n);
    }

    /* ---- finishers: the gate, after the chunk is computed ---- */

    static __device__ __forceinline__ void finish_chunk(const block &b, int chunk)
    {
        constexpr int VECTORS = COLUMNS / 8, COUNT = CHUNK * VECTORS, LANES = 32 * FINISHERS, AT_ONCE = 4;
        const int valid = b.count - chunk * CHUNK;
        const i64 first = (i64)(b.first_row + chunk * CHUNK) * OUT_WIDTH + b.head * P::HEAD_DIM + b.first_column;
#pragma unroll 1
        for (int begin = finisher(); begin < COUNT; begin += AT_ONCE * LANES) {
            u32 z[AT_ONCE][4];
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                const int i = begin + n * LANES, r = i / VECTORS;
                if (i < COUNT && r < valid)
                    load_written(z[n], (const u16 *)b.z + first + (i64)r * OUT_WIDTH + i % VECTORS * 8);
            }
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                const int i = begin + n * LANES, r = i / VECTORS, column = i % VECTORS * 8;
                if (i >= COUNT || r >= valid) continue;
                const float4 *o = (const float4 *)(turn(b, chunk, AT.o) + r * OUT_STRIDE + column);
                const float4 left = o[0], right = o[1];
                float values[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const float gate = float_of_half<P::X_DTYPE>((u16)(z[n][e / 2] >> (e % 2 * 16)));
                    values[e] *= gate / (1 + expf(-gate));
                }
                store_elements<P::X_DTYPE>(b.out, first + (i64)r * OUT_WIDTH + column, values);
            }
        }
    }

    /* ---- the first warps: the state ---- */

    /* A warp's columns of the state. Row i / 2 of the two that lane / 4 says is column, tile n's column 2 * (lane % 4) + i % 2 is row of
     * the state. */
    struct part {
        float at[2 * STATE_TILES][4];
    };

    /* Where a lane's elements of a head's state begin, and element at[n][i] after it. */
    static __device__ __forceinline__ int state_begin(const block &b)
    {
        const int lane = (int)threadIdx.x % 32;
        return lane % 4 * 2 * P::HEAD_DIM + b.first_column + (int)threadIdx.x / 32 * TILE + lane / 4;
    }
    static __device__ __forceinline__ int state_offset(int n, int i)
    {
        return (8 * n + i % 2) * P::HEAD_DIM + i / 2 * 8;
    }

    /* transpose(S) times C of the chunk. */
    static __device__ __forceinline__ void read_state(const part &state, u32 c, float (&y)[2 * TILES][4])
    {
#pragma unroll
        for (int kk = 0; kk < STATE_TILES; kk++) {
            operand a;
            split(a, state.at[2 * kk], state.at[2 * kk + 1]);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                u32 columns[4];
                load_columns(columns, c, STATE_STRIDE, t * TILE, kk * TILE);
                multiply_parts(y[2 * t], y[2 * t + 1], a, columns);
            }
        }
    }

    /* Sixteen rows of Y from row t * TILE on: what they read of the state, M and the skip. */
    static __device__ __forceinline__ void read_rows(const block &b, int chunk, int t, float (&left)[4],
                                                     float (&right)[4])
    {
        const u32 from = stage(b, chunk, AT.x), weights = shared_address(turn(b, chunk, AT.weights));
        const int warp = (int)threadIdx.x / 32, pair = (int)threadIdx.x % 32 % 4 * 2;
        u32 x[4];
        load_values(x, from, COLUMN_STRIDE, t * TILE, warp * TILE);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float2 read = *(const float2 *)(turn(b, chunk, AT.read) + t * TILE + n / 2 * 8 + pair);
            float(&y)[4] = n < 2 ? left : right;
            const int at = n % 2 * 2;
            y[at] = fmaf(y[at], read.x, b.d * float_of_bits(x[n] << 16));
            y[at + 1] = fmaf(y[at + 1], read.y, b.d * float_of_bits(x[n] & 0xffff0000));
        }
#pragma unroll 1
        for (int j = 0; j <= t; j++) { /* more at once need too many registers */
            load_values(x, from, COLUMN_STRIDE, j * TILE, warp * TILE);
#pragma unroll
            for (int part = PARTS - 1; part >= 0; part--) {
                u32 columns[4];
                load_columns(columns, weights + (u32)(part * AT.part), WEIGHT_STRIDE, t * TILE, j * TILE);
                multiply(left, right, x, columns);
            }
        }
    }

    /* Eight rows of Y from row 8 * t on. */
    static __device__ __forceinline__ void leave_out(const block &b, int chunk, int t, const float (&y)[4])
    {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, c = 8 * t + lane % 4 * 2;
        float *to = turn(b, chunk, AT.o) + c * OUT_STRIDE + warp * TILE + lane / 4;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            to[e * OUT_STRIDE] = y[e];
            to[e * OUT_STRIDE + 8] = y[e + 2];
        }
    }

    /* The state after the chunk. */
    static __device__ __forceinline__ void advance(const block &b, int chunk, part &state)
    {
        const int warp = (int)threadIdx.x / 32, pair = (int)threadIdx.x % 32 % 4 * 2;
        const float whole = *turn(b, chunk, AT.whole);
#pragma unroll
        for (int n = 0; n < 2 * STATE_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) state.at[n][i] *= whole;
#pragma unroll 1
        for (int t = 0; t < TILES; t++) {
            u32 x[4];
            float added[2][4];
            load_values(x, stage(b, chunk, AT.x), COLUMN_STRIDE, t * TILE, warp * TILE);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const float2 after = *(const float2 *)(turn(b, chunk, AT.after) + t * TILE + n / 2 * 8 + pair);
                added[n / 2][n % 2 * 2] = after.x * float_of_bits(x[n] << 16);
                added[n / 2][n % 2 * 2 + 1] = after.y * float_of_bits(x[n] & 0xffff0000);
            }
            operand a;
            split(a, added[0], added[1]);
#pragma unroll
            for (int kk = 0; kk < STATE_TILES; kk++) {
                u32 rows[4];
                load_straight(rows, stage(b, chunk, AT.b), STATE_STRIDE, t * TILE, kk * TILE);
                multiply_parts(state.at[2 * kk], state.at[2 * kk + 1], a, rows);
            }
        }
    }

    static __device__ __forceinline__ void compute_chunk(const block &b, int chunk, part &state)
    {
        float y[2 * TILES][4] = {};
        read_state(state, stage(b, chunk, AT.c), y);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            read_rows(b, chunk, t, y[2 * t], y[2 * t + 1]);
            leave_out(b, chunk, 2 * t, y[2 * t]);
            leave_out(b, chunk, 2 * t + 1, y[2 * t + 1]);
        }
        advance(b, chunk, state);
    }

    /* ---- the rows of a slot ---- */

    /* `memory`: shared, AT.bytes. `state`: of slot 0. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const void *xbc, const void *z,
                                               const float *dt, const void *a_log, const void *dt_bias, const void *d,
                                               void *out, const int *slots, const int *positions, u8 *state)
    {
        constexpr i64 HEAD_BYTES = (i64)sizeof(float) * P::STATE_DIM * P::HEAD_DIM;
        const int head = (int)blockIdx.x / SPLIT;
        device_trigger();
        block b = {memory,
                   xbc,
                   z,
                   dt,
                   out,
                   head,
                   (int)blockIdx.x % SPLIT * COLUMNS,
                   expf(load_element<P::A_DTYPE>(a_log, head)),
                   load_element<P::DT_DTYPE>(dt_bias, head),
                   load_element<P::D_DTYPE>(d, head),
                   0,
                   0,
                   0};
        device_wait();
        const int rows = min(counts[P::COUNT_INDEX], P::ROWS);
        recurrent_turns<state_space_chunk_body>::run(b, rows, slots, positions, state, P::RECURRENT_BYTES, HEAD_BYTES);
    }
};

#endif
