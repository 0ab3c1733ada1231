/* SPDX-License-Identifier: Apache-2.0 */
/* delta_rule (contract: delta_rule.h) of prompts: CHUNK rows of a slot at a time, by products on tensor cores. Yang, Wang, Zhang, Shen,
 * Kim 2024, "Parallelizing linear transformers with the delta rule over sequence length", arXiv:2406.06484; with decays: section 3.3 of
 * arXiv:2412.06464. With rows i and j of a chunk, b the sigmoids, G the sums of the logarithms of the decays from the chunk's first
 * row on, S the state before the chunk, and D the differences that the rows add to the state:
 *
 *   A[i, j] = b_i (k_i . k_j) exp(G_i - G_j) for j < i, else 0
 *   (I + A) D = b V - b exp(G) K S
 *   O = exp(G) Q S + M D,  M[i, j] = (q_i . k_j) exp(G_i - G_j) for j <= i, else 0
 *   S = exp(G_last) S + transpose(K) (exp(G_last - G) D)
 *
 * A head is the work of a cluster, whose blocks divide the columns of the state. Its columns are independent: each of COLUMN_WARPS warps
 * has sixteen of them, transposed, in registers as the result of products, which is also how products take them (mma.cuh); O and D are
 * computed in its registers, too. Meanwhile other warps prepare what does not depend on the state for the next
 * chunk, each block of the cluster for itself, and others finish the chunk before: the norm over all columns of the head, and the gate.
 * Blocks of a cluster meet once in a chunk.
 *
 * Precision: q, k and v of 16 bits are exact operands, and their norms multiply the results. S, D, M and the inverse are each two bfloat16,
 * whose sum has 16 significant bits; the product of the lower parts is left out. I + A is solved in blocks of sixteen rows, whose own
 * inverses are float32. Sums and the state between chunks are float32, G is double: its differences count. */
#ifndef KERNELS_DELTA_RULE_DELTA_RULE_CHUNK_CUH
#define KERNELS_DELTA_RULE_DELTA_RULE_CHUNK_CUH

#include "kernels/delta_rule/delta_rule_chunk_layout.cuh"
#include "kernels/op/recurrent_chunk.cuh"

template <class P> struct delta_rule_chunk_body : recurrent_chunk {
    static constexpr int CHUNK = P::CHUNK, WARPS = P::COLUMN_WARPS, THREADS = (int)delta_rule_chunk_threads(WARPS);
    static constexpr int PREPARERS = DELTA_RULE_CHUNK_PREPARERS, FINISHERS = DELTA_RULE_CHUNK_FINISHERS; /* warps */
    static constexpr int TILE = DELTA_RULE_CHUNK_TILE, TILES = CHUNK / TILE, KEY_TILES = P::KEY_DIM / TILE;
    static constexpr int COLUMNS = TILE * WARPS, SPLIT = P::VALUE_DIM / COLUMNS; /* of a block; blocks of a head */
    static constexpr delta_rule_chunk_shared AT = delta_rule_chunk_shared_memory(P::KEY_DIM, CHUNK, WARPS);
    static constexpr int KEY_STRIDE = (int)delta_rule_chunk_half_stride(P::KEY_DIM);
    static constexpr int VALUE_STRIDE = (int)delta_rule_chunk_half_stride(COLUMNS);
    static constexpr int MATRIX_STRIDE = (int)delta_rule_chunk_half_stride(CHUNK);
    static constexpr int OUT_STRIDE = (int)delta_rule_chunk_float_stride(COLUMNS);
    static constexpr int OUT_WIDTH = P::VALUE_HEADS * P::VALUE_DIM, K_COLUMN = P::KEY_HEADS * P::KEY_DIM;
    static constexpr int QKV_WIDTH = 2 * K_COLUMN + OUT_WIDTH;
    static constexpr int STAGES = DELTA_RULE_CHUNK_STAGES;
    enum { PREPARERS_BARRIER = 1, FINISHERS_BARRIER, ALL_BARRIER };
    static constexpr float LOG2_E = 1.44269504f;
    /* Decays below 2^-160 are zero, and G must stay small enough for its differences. */
    static constexpr float LEAST_LOG = -160;
    static_assert(P::X_DTYPE == DTYPE_BF16 && SPLIT * COLUMNS == P::VALUE_DIM && KEY_TILES * TILE == P::KEY_DIM &&
                      P::KEY_DIM <= DELTA_RULE_CHUNK_MOST_KEY,
                  "launch checks");

    /* The block's operands and place, and the rows of the slot in hand. */
    struct block {
        u8 *memory;
        const void *qkv, *z, *norm;
        const float *ba;
        void *out;
        int head, first_column; /* of the head */
        float rate, dt_bias;
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
    static __device__ __forceinline__ void meet_finishers() { named_barrier(FINISHERS_BARRIER, 32 * FINISHERS); }
    /* All threads of all blocks of the cluster, each at its own place in the code. */
    static __device__ __forceinline__ void meet_all()
    {
        if constexpr (SPLIT > 1) {
#if __CUDA_ARCH__ >= 900 || defined(KERNELS_ON_HOST)
            cluster_sync();
#endif
        } else {
            named_barrier(ALL_BARRIER, THREADS);
        }
    }

    /* A number as two bfloat16, pairs of neighbours. */
    static __device__ __forceinline__ void split(u32 &high, u32 &low, float first, float second)
    {
        high = take_bf16(first, second);
        low = pack_halves<DTYPE_BF16>(first, second);
    }
    /* Operand a of 16 x 16 numbers, which are the results of two products. */
    struct operand {
        u32 high[4], low[4];
    };
    static __device__ __forceinline__ void split(operand &a, const float (&left)[4], const float (&right)[4])
    {
        split(a.high[0], a.low[0], left[0], left[1]);
        split(a.high[1], a.low[1], left[2], left[3]);
        split(a.high[2], a.low[2], right[0], right[1]);
        split(a.high[3], a.low[3], right[2], right[3]);
    }
    /* Adds a * transpose(tile) to two results; the tile of a matrix of numbers in two parts begins at `row`, `column`. */
    static __device__ __forceinline__ void multiply_matrix(float (&left)[4], float (&right)[4], const operand &a,
                                                           u32 matrix, int row, int column)
    {
        u32 high[4], low[4];
        load_columns(high, matrix, MATRIX_STRIDE, row, column);
        load_columns(low, matrix + (u32)AT.low, MATRIX_STRIDE, row, column);
        multiply(left, right, a.high, high);
        multiply(left, right, a.high, low);
        multiply(left, right, a.low, high);
    }

    /* ---- preparers: q, k and v of a chunk come, and what does not depend on the state ---- */

    /* Rows after the last one are zero: they change nothing. */
    static __device__ __forceinline__ void copy_chunk(const block &b, int chunk)
    {
        constexpr int KEY_PIECES = P::KEY_DIM / 8, VALUE_PIECES = COLUMNS / 8, PIECES = 2 * KEY_PIECES + VALUE_PIECES;
        if (chunk < b.chunks) {
#pragma unroll 4
            for (int i = preparer(); i < CHUNK * PIECES; i += 32 * PREPARERS) {
                const int r = i / PIECES, piece = i % PIECES, row = chunk * CHUNK + r;
                const bool is_value = piece >= 2 * KEY_PIECES;
                const int matrix = piece / KEY_PIECES, part = piece % KEY_PIECES; /* of q and k */
                const int value = piece - 2 * KEY_PIECES;
                const int column =
                    is_value ? 2 * K_COLUMN + b.head * P::VALUE_DIM + b.first_column + value * 8
                             : matrix * K_COLUMN + b.head / (P::VALUE_HEADS / P::KEY_HEADS) * P::KEY_DIM + part * 8;
                const u32 to =
                    is_value ? stage(b, chunk, AT.v) + (u32)((r * VALUE_STRIDE + value * 8) * 2)
                             : stage(b, chunk, AT.q) + (u32)matrix * (u32)AT.k + (u32)((r * KEY_STRIDE + part * 8) * 2);
                const bool is_valid = row < b.count;
                copy_async_if<16>(to,
                                  (const u16 *)b.qkv + (i64)(b.first_row + (is_valid ? row : 0)) * QKV_WIDTH + column,
                                  is_valid);
            }
        }
        copy_commit();
    }

    /* b and a of the chunk's row that is the thread's. */
    struct gates {
        float b, a;
    };
    static __device__ __forceinline__ gates load_gates(const block &b, int chunk)
    {
        const int row = chunk * CHUNK + preparer();
        if (preparer() >= CHUNK || row >= b.count) return {0, 0};
        const float *from = b.ba + (i64)(b.first_row + row) * 2 * P::VALUE_HEADS + b.head;
        return {load_written_float(from), load_written_float(from + P::VALUE_HEADS)};
    }

    static __device__ __forceinline__ void prepare_factors(const block &b, int chunk, const gates &own_gates)
    {
        const int t = preparer();
        float beta = 0;
        for (int i = t; i < 2 * CHUNK; i += 32 * PREPARERS) { /* norms */
            const int r = i % CHUNK;
            const bool is_key = i >= CHUNK;
            const u32 row = stage(b, chunk, is_key ? AT.k : AT.q) + (u32)(r * KEY_STRIDE * 2);
            float squares[2] = {1e-6f, 0};
#pragma unroll 4
            for (int part = 0; part < P::KEY_DIM / 8; part++) {
                u32 pairs[4];
                load_shared(pairs, row + (u32)(part * 16));
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const float low = float_of_bits(pairs[n] << 16), high = float_of_bits(pairs[n] & 0xffff0000);
                    squares[0] = fmaf(low, low, squares[0]);
                    squares[1] = fmaf(high, high, squares[1]);
                }
            }
            const float scale = 1 / sqrtf((squares[0] + squares[1]) * (is_key ? 1.0f : (float)P::KEY_DIM));
            scratch(b, is_key ? AT.k_scales : AT.q_scales)[r] = scale;
        }
        if (t < CHUNK) {
            float log = 0;
            if (chunk * CHUNK + t < b.count) {
                const float alpha = own_gates.a + b.dt_bias;
                const float softplus = alpha > 40 ? alpha : log1pf(expf(alpha));
                beta = 1 / (1 + expf(-own_gates.b));
                log = -b.rate * softplus * LOG2_E;
                if (log < LEAST_LOG) log = LEAST_LOG; /* NaN stays */
            }
            scratch(b, AT.logs)[t] = log;
        }
        meet_preparers();
        if (t < CHUNK) {
            const float q_scale = scratch(b, AT.q_scales)[t], k_scale = scratch(b, AT.k_scales)[t];
            double sum = 0, own = 0;
#pragma unroll 8
            for (int i = 0; i < CHUNK; i++) {
                sum += (double)scratch(b, AT.logs)[i];
                if (i == t) own = sum;
            }
            const float decay = exp2_approximate((float)own);
            ((double *)(b.memory + AT.sums))[t] = own;
            turn(b, chunk, AT.betas)[t] = beta;
            turn(b, chunk, AT.held)[t] = beta * k_scale * decay;
            turn(b, chunk, AT.read)[t] = q_scale * decay;
            turn(b, chunk, AT.after)[t] = k_scale * exp2_approximate((float)(sum - own));
            if (t == 0) *turn(b, chunk, AT.whole) = exp2_approximate((float)sum);
        }
        meet_preparers();
    }

    /* Sixteen rows of M (`of_weights`), or of -A with the inverses of the blocks of I + A in its diagonal; by a warp. */
    static __device__ __forceinline__ void prepare_matrix(const block &b, int chunk, bool of_weights, int tile)
    {
        const int lane = (int)threadIdx.x % 32;
        const u32 keys = stage(b, chunk, AT.k), from = of_weights ? stage(b, chunk, AT.q) : keys;
        float products[2 * TILES][4] = {};
#pragma unroll
        for (int kk = 0; kk < KEY_TILES; kk++) {
            u32 rows[4], columns[4];
            load_rows(rows, from, KEY_STRIDE, tile * TILE, kk * TILE);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                if (t > tile) continue;
                load_columns(columns, keys, KEY_STRIDE, t * TILE, kk * TILE);
                multiply(products[2 * t], products[2 * t + 1], rows, columns);
            }
        }
        u8 *matrix = (u8 *)turn(b, chunk, of_weights ? AT.weights : AT.solve);
        const double *sums = (const double *)(b.memory + AT.sums);
        float *own_block = scratch(b, AT.blocks) + tile * TILE * TILE;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int in_tile = lane / 4 + 8 * half, r = tile * TILE + in_tile;
            const double sum = sums[r];
            const float factor =
                of_weights ? scratch(b, AT.q_scales)[r] : -turn(b, chunk, AT.betas)[r] * scratch(b, AT.k_scales)[r];
#pragma unroll
            for (int t = 0; t < 2 * TILES; t++) {
                const int c = 8 * t + lane % 4 * 2;
                if (t / 2 > tile) continue;
                float values[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float value = products[t][2 * half + e] * factor * scratch(b, AT.k_scales)[c + e] *
                                        exp2_approximate((float)(sum - sums[c + e]));
                    values[e] = c + e < r || (of_weights && c + e == r) ? value : 0;
                }
                if (!of_weights && t / 2 == tile) {
                    *(float2 *)(own_block + in_tile * TILE + c % TILE) = make_float2(values[0], values[1]);
                } else {
                    u32 high, low;
                    split(high, low, values[0], values[1]);
                    *(u32 *)(matrix + (r * MATRIX_STRIDE + c) * 2) = high;
                    *(u32 *)(matrix + AT.low + (r * MATRIX_STRIDE + c) * 2) = low;
                }
            }
        }
        if (of_weights) return;
        __syncwarp();
        invert_block(own_block, matrix, tile * TILE);
    }

    /* The inverse of I - `from`, a lower triangle, into the diagonal at `first`; lane n has column n. */
    static __device__ __forceinline__ void invert_block(const float *from, u8 *matrix, int first)
    {
        const int lane = (int)threadIdx.x % 32;
        float inverse[TILE];
#pragma unroll
        for (int i = 0; i < TILE; i++) {
            float sums[2] = {i == lane ? 1.0f : 0.0f, 0};
#pragma unroll
            for (int j = 0; j < i; j++) sums[j % 2] = fmaf(from[i * TILE + j], inverse[j], sums[j % 2]);
            inverse[i] = sums[0] + sums[1];
        }
        if (lane >= TILE) return;
#pragma unroll
        for (int i = 0; i < TILE; i++) {
            const int at = ((first + i) * MATRIX_STRIDE + first + lane) * 2;
            const u16 high = half_of_float<DTYPE_BF16>(inverse[i]);
            *(u16 *)(matrix + at) = high;
            *(u16 *)(matrix + AT.low + at) = half_of_float<DTYPE_BF16>(inverse[i] - float_of_half<DTYPE_BF16>(high));
        }
    }

    /* After the copies of all preparers have come. */
    static __device__ __forceinline__ void prepare_chunk(const block &b, int chunk, const gates &own_gates)
    {
        prepare_factors(b, chunk, own_gates);
#pragma unroll 1
        for (int n = preparer() / 32; n < 2 * TILES; n += PREPARERS) prepare_matrix(b, chunk, n >= TILES, n % TILES);
    }

    /* ---- finishers: the norm of o, times the gate, after all blocks of the cluster have computed the chunk ---- */

    static __device__ __forceinline__ void finish_chunk(const block &b, int chunk)
    {
        constexpr int PARTS = COLUMNS / 8, COUNT = CHUNK * PARTS,
                      OF_THREAD = (COUNT + 32 * FINISHERS - 1) / (32 * FINISHERS);
        const int t = finisher(), valid = b.count - chunk * CHUNK;
        const i64 first = (i64)(b.first_row + chunk * CHUNK) * OUT_WIDTH + b.head * P::VALUE_DIM + b.first_column;
        u32 z[OF_THREAD][4];
#pragma unroll
        for (int n = 0; n < OF_THREAD; n++) {
            const int i = t + n * 32 * FINISHERS, r = i / PARTS;
            if (i < COUNT && r < valid)
                load_written(z[n], (const u16 *)b.z + first + (i64)r * OUT_WIDTH + i % PARTS * 8);
        }
        if (t < CHUNK) {
            const float *squares = turn(b, chunk, AT.squares) + t;
            float sum = 0;
#pragma unroll
            for (int rank = 0; rank < SPLIT; rank++)
#pragma unroll
                for (int warp = 0; warp < WARPS; warp++) {
                    if constexpr (SPLIT > 1) {
#if __CUDA_ARCH__ >= 900 || defined(KERNELS_ON_HOST)
                        sum += float_of_bits(
                            cluster_load_word(cluster_address(shared_address(squares + warp * CHUNK), (u32)rank)));
#endif
                    } else {
                        sum += squares[warp * CHUNK];
                    }
                }
            scratch(b, AT.scales)[t] = 1 / sqrtf(sum * (1.0f / P::VALUE_DIM) + float_of_bits(P::EPS_BITS));
        }
        meet_finishers();
#pragma unroll
        for (int n = 0; n < OF_THREAD; n++) {
            const int i = t + n * 32 * FINISHERS, r = i / PARTS, column = i % PARTS * 8;
            if (i >= COUNT || r >= valid) continue;
            const float scale = scratch(b, AT.scales)[r];
            const float4 *o = (const float4 *)(turn(b, chunk, AT.o) + r * OUT_STRIDE + column);
            const float4 left = o[0], right = o[1];
            float values[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const float gate = float_of_half<P::X_DTYPE>((u16)(z[n][e / 2] >> (e % 2 * 16)));
                const float weight = load_element<P::NORM_DTYPE>(b.norm, b.first_column + column + e);
                values[e] *= scale * weight * (gate / (1 + expf(-gate)));
            }
            store_elements<P::X_DTYPE>(b.out, first + (i64)r * OUT_WIDTH + column, values);
        }
    }

    /* ---- the first warps: the state ---- */

    /* A warp's columns of the state. Row i / 2 of the two that lane / 4 says is column, tile n's column 2 * (lane % 4) + i % 2 is row of
     * the state. */
    struct part {
        float at[2 * KEY_TILES][4];
    };

    /* Where a lane's elements of a head's state begin, and element at[n][i] after it. */
    static __device__ __forceinline__ int state_begin(const block &b)
    {
        const int lane = (int)threadIdx.x % 32;
        return lane % 4 * 2 * P::VALUE_DIM + b.first_column + (int)threadIdx.x / 32 * TILE + lane / 4;
    }
    static __device__ __forceinline__ int state_offset(int n, int i)
    {
        return (8 * n + i % 2) * P::VALUE_DIM + i / 2 * 8;
    }

    /* transpose(S) times q and k of the chunk as they come. */
    static __device__ __forceinline__ void read_state(const part &state, u32 keys, u32 queries,
                                                      float (&held)[2 * TILES][4], float (&read)[2 * TILES][4])
    {
#pragma unroll
        for (int kk = 0; kk < KEY_TILES; kk++) {
            operand a;
            split(a, state.at[2 * kk], state.at[2 * kk + 1]);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                u32 k[4], q[4];
                load_columns(k, keys, KEY_STRIDE, t * TILE, kk * TILE);
                load_columns(q, queries, KEY_STRIDE, t * TILE, kk * TILE);
                multiply(held[2 * t], held[2 * t + 1], a.high, k);
                multiply(read[2 * t], read[2 * t + 1], a.high, q);
                multiply(held[2 * t], held[2 * t + 1], a.low, k);
                multiply(read[2 * t], read[2 * t + 1], a.low, q);
            }
        }
    }

    static __device__ __forceinline__ void compute_chunk(const block &b, int chunk, part &state)
    {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, pair = lane % 4 * 2;
        const u32 keys = stage(b, chunk, AT.k);
        float delta[2 * TILES][4] = {}, o[2 * TILES][4] = {};
        read_state(state, keys, stage(b, chunk, AT.q), delta, o);
        const u32 solve = shared_address(turn(b, chunk, AT.solve)),
                  weights = shared_address(turn(b, chunk, AT.weights));
        operand deltas[TILES];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            u32 values[4];
            load_values(values, stage(b, chunk, AT.v), VALUE_STRIDE, t * TILE, warp * TILE);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const int c = t * TILE + n / 2 * 8 + pair;
                const float2 betas = *(const float2 *)(turn(b, chunk, AT.betas) + c);
                const float2 held = *(const float2 *)(turn(b, chunk, AT.held) + c);
                const float2 read = *(const float2 *)(turn(b, chunk, AT.read) + c);
                float(&d)[4] = delta[2 * t + n / 2], (&own)[4] = o[2 * t + n / 2];
                const int at = n % 2 * 2;
                d[at] = betas.x * float_of_bits(values[n] << 16) - held.x * d[at];
                d[at + 1] = betas.y * float_of_bits(values[n] & 0xffff0000) - held.y * d[at + 1];
                own[at] *= read.x, own[at + 1] *= read.y;
            }
            float(&left)[4] = delta[2 * t], (&right)[4] = delta[2 * t + 1];
#pragma unroll
            for (int j = 0; j < t; j++) multiply_matrix(left, right, deltas[j], solve, t * TILE, j * TILE);
            operand unsolved;
            split(unsolved, left, right);
#pragma unroll
            for (int i = 0; i < 4; i++) left[i] = right[i] = 0;
            multiply_matrix(left, right, unsolved, solve, t * TILE, t * TILE);
            split(deltas[t], left, right);
#pragma unroll
            for (int j = 0; j <= t; j++)
                multiply_matrix(o[2 * t], o[2 * t + 1], deltas[j], weights, t * TILE, j * TILE);
            leave_out(b, chunk, 2 * t, o[2 * t]);
            leave_out(b, chunk, 2 * t + 1, o[2 * t + 1]);
        }
        const float whole = *turn(b, chunk, AT.whole);
#pragma unroll
        for (int n = 0; n < 2 * KEY_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) state.at[n][i] *= whole;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float2 after = *(const float2 *)(turn(b, chunk, AT.after) + t * TILE + 8 * n + pair);
                float(&d)[4] = delta[2 * t + n];
                d[0] *= after.x, d[1] *= after.y, d[2] *= after.x, d[3] *= after.y;
            }
            operand a;
            split(a, delta[2 * t], delta[2 * t + 1]);
#pragma unroll
            for (int kk = 0; kk < KEY_TILES; kk++) {
                u32 k[4];
                load_straight(k, keys, KEY_STRIDE, t * TILE, kk * TILE);
                multiply(state.at[2 * kk], state.at[2 * kk + 1], a.high, k);
                multiply(state.at[2 * kk], state.at[2 * kk + 1], a.low, k);
            }
        }
    }

    /* Eight rows of o from row 8 * t on, and the sums of their squares over the warp's columns. */
    static __device__ __forceinline__ void leave_out(const block &b, int chunk, int t, const float (&o)[4])
    {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, c = 8 * t + lane % 4 * 2;
        float *to = turn(b, chunk, AT.o) + c * OUT_STRIDE + warp * TILE + lane / 4;
        float sums[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            to[e * OUT_STRIDE] = o[e];
            to[e * OUT_STRIDE + 8] = o[e + 2];
            sums[e] = fmaf(o[e], o[e], o[e + 2] * o[e + 2]);
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) sums[e] += __shfl_xor_sync(0xffffffffu, sums[e], offset);
        }
        if (lane < 4) *(float2 *)(turn(b, chunk, AT.squares) + warp * CHUNK + c) = make_float2(sums[0], sums[1]);
    }

    /* ---- the rows of a slot ---- */

    /* `memory`: shared, AT.bytes. `state`: of slot 0. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const void *qkv, const void *z,
                                               const float *ba, const void *a_log, const void *dt_bias,
                                               const void *norm, void *out, const int *slots, const int *positions,
                                               u8 *state)
    {
        constexpr i64 HEAD_BYTES = (i64)sizeof(float) * P::KEY_DIM * P::VALUE_DIM;
        const int head = (int)blockIdx.x / SPLIT;
        device_trigger();
        block b = {memory,
                   qkv,
                   z,
                   norm,
                   ba,
                   out,
                   head,
                   (int)blockIdx.x % SPLIT * COLUMNS,
                   expf(load_element<P::A_DTYPE>(a_log, head)),
                   load_element<P::DT_DTYPE>(dt_bias, head),
                   0,
                   0,
                   0};
        device_wait();
        const int rows = min(counts[P::COUNT_INDEX], P::ROWS);
        recurrent_turns<delta_rule_chunk_body>::run(b, rows, slots, positions, state, P::RECURRENT_BYTES, HEAD_BYTES);
    }
};

#endif
