/* SPDX-License-Identifier: Apache-2.0 */
/* delta_rule (contract: delta_rule.h). A head is the work of a cluster: its blocks divide the columns of the state, which stay in
 * registers while the rows of a slot follow each other. LANES lanes of a warp share the rows of neighbouring columns, so that the two
 * products with the state are sums over these lanes. Since o = transpose(S) q of the new state is
 *
 *   o = decay * transpose(S before) q + delta * (k * q),  delta = beta * (v - decay * transpose(S before) k)
 *
 * both products are of the state before, and one pass over it gives them. Rows are prepared in stages: while a stage is computed, q,
 * k, v and z of the next one are copied to shared memory. The blocks of a cluster meet once in a stage, for the norm of o.
 *
 * A walker (delta_rule_walk.cuh) is a cluster for each head. */
#ifndef KERNELS_DELTA_RULE_DELTA_RULE_CUH
#define KERNELS_DELTA_RULE_DELTA_RULE_CUH

#include "kernels/cuda/include/reduce.cuh"
#include "kernels/delta_rule/delta_rule_walk.cuh"

template <class P> struct delta_rule_body {
    typedef delta_rule_walk<P, P::KEY_DIM, P::VALUE_DIM, P::VALUE_HEADS> walk;
    typedef typename walk::part part;
    static constexpr int THREADS = 32 * P::WARPS, LANES = P::LANES, STAGE = walk::STAGE;
    static constexpr int COLUMNS = walk::COLUMNS, ROWS = walk::ROWS; /* of a lane */
    static constexpr int KEYS = walk::ALL_ROWS, BLOCK_COLUMNS = walk::BLOCK_COLUMNS, SPLIT = walk::SPLIT;
    static constexpr int ELEMENT_BYTES = P::X_DTYPE == DTYPE_F32 ? 4 : 2, PIECE = 16 / ELEMENT_BYTES;
    static constexpr bool COPIES = delta_rule_copies(P::KEY_DIM, P::VALUE_DIM, BLOCK_COLUMNS, ELEMENT_BYTES) != 0;
    static constexpr delta_rule_shared AT =
        delta_rule_shared_memory(P::KEY_DIM, P::VALUE_DIM, LANES, P::WARPS, P::SCATTERED, ELEMENT_BYTES);
    static constexpr int OUT_WIDTH = P::VALUE_HEADS * P::VALUE_DIM, K_COLUMN = P::KEY_HEADS * P::KEY_DIM;
    static constexpr int QKV_WIDTH = 2 * K_COLUMN + OUT_WIDTH, RAW_WIDTH = 2 * P::KEY_DIM + 2 * BLOCK_COLUMNS;
    static constexpr float Q_FACTOR_SQUARED = 1.0f / P::KEY_DIM;

    /* The block's operands and place, the same for all rows. */
    struct block {
        u8 *memory;
        const void *qkv, *z, *norm;
        const float *ba;
        void *out;
        const int *slots;
        int rows, head, first_column; /* of the head */
        float rate, dt_bias;
        int turn; /* of `squares` */
    };

    static __device__ __forceinline__ float *floats(const block &b, layout_size at) { return (float *)(b.memory + at); }

    /* Element of q, k or v of a row, or of z: in the operand. */
    static __device__ __forceinline__ i64 q_index(const block &b, int row)
    {
        return (i64)row * QKV_WIDTH + b.head / (P::VALUE_HEADS / P::KEY_HEADS) * P::KEY_DIM;
    }
    static __device__ __forceinline__ i64 v_index(const block &b, int row)
    {
        return (i64)row * QKV_WIDTH + 2 * K_COLUMN + b.head * P::VALUE_DIM + b.first_column;
    }
    static __device__ __forceinline__ i64 z_index(const block &b, int row)
    {
        return (i64)row * OUT_WIDTH + b.head * P::VALUE_DIM + b.first_column;
    }

    /* ---- a stage of `count` rows ---- */

    static __device__ __forceinline__ void copy_stage(const block &b, int row, int count)
    {
        if constexpr (COPIES) {
            constexpr int Q_PIECES = P::KEY_DIM / PIECE, V_PIECES = BLOCK_COLUMNS / PIECE;
            constexpr int PIECES = 2 * Q_PIECES + 2 * V_PIECES;
            const u32 raw = shared_address(b.memory + AT.raw);
            for (int i = (int)threadIdx.x; i < count * PIECES; i += THREADS) {
                const int r = i / PIECES, piece = i % PIECES;
                const int value = (piece - 2 * Q_PIECES) % V_PIECES * PIECE; /* column, of v or z */
                const u8 *from;
                if (piece < 2 * Q_PIECES)
                    from =
                        (const u8 *)b.qkv +
                        (q_index(b, row + r) + piece / Q_PIECES * K_COLUMN + piece % Q_PIECES * PIECE) * ELEMENT_BYTES;
                else if (piece < 2 * Q_PIECES + V_PIECES)
                    from = (const u8 *)b.qkv + (v_index(b, row + r) + value) * ELEMENT_BYTES;
                else
                    from = (const u8 *)b.z + (z_index(b, row + r) + value) * ELEMENT_BYTES;
                if (piece < 2 * Q_PIECES || walk::has_column(b.first_column + value))
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

    /* q and k of a row, normalised, and its factors; by a warp. */
    static __device__ __forceinline__ void prepare_keys(const block &b, int row, int r)
    {
        constexpr int PER_LANE = (P::KEY_DIM + 31) / 32;
        const int lane = (int)threadIdx.x % 32;
        const float beta = load_written_float(b.ba + (i64)(row + r) * 2 * P::VALUE_HEADS + b.head);
        const float alpha =
            load_written_float(b.ba + (i64)(row + r) * 2 * P::VALUE_HEADS + P::VALUE_HEADS + b.head) + b.dt_bias;
        float q[PER_LANE], k[PER_LANE], q_squares = 0, k_squares = 0, product = 0;
#pragma unroll
        for (int n = 0; n < PER_LANE; n++) {
            const int i = n * 32 + lane;
            q[n] = k[n] = 0;
            if (i < P::KEY_DIM) {
                q[n] = stage_element(b, r, i, b.qkv, q_index(b, row + r) + i);
                k[n] = stage_element(b, r, P::KEY_DIM + i, b.qkv, q_index(b, row + r) + K_COLUMN + i);
            }
            q_squares = fmaf(q[n], q[n], q_squares);
            k_squares = fmaf(k[n], k[n], k_squares);
            product = fmaf(q[n], k[n], product);
        }
        const float q_scale = sqrtf(Q_FACTOR_SQUARED / (warp_sum(q_squares) + 1e-6f));
        const float k_scale = 1 / sqrtf(warp_sum(k_squares) + 1e-6f);
        product = warp_sum(product) * q_scale * k_scale;
#pragma unroll
        for (int n = 0; n < PER_LANE; n++) {
            const int i = n * 32 + lane;
            if (i >= P::KEY_DIM) continue;
            floats(b, AT.q)[r * KEYS + i] = q[n] * q_scale;
            floats(b, AT.k)[r * KEYS + i] = k[n] * k_scale;
        }
        if (lane == 0) {
            const float softplus = alpha > 40 ? alpha : log1pf(expf(alpha));
            *(float4 *)(floats(b, AT.factors) + 4 * r) =
                make_float4(expf(-b.rate * softplus), 1 / (1 + expf(-beta)), product, 0);
        }
    }

    static __device__ __forceinline__ void prepare_stage(const block &b, int row, int count)
    {
        for (int r = (int)threadIdx.x / 32; r < count; r += P::WARPS) prepare_keys(b, row, r);
        for (int i = (int)threadIdx.x; i < count * BLOCK_COLUMNS; i += THREADS) {
            const int r = i / BLOCK_COLUMNS, column = i % BLOCK_COLUMNS;
            float v = 0, z = 0;
            if (walk::has_column(b.first_column + column)) {
                v = stage_element(b, r, 2 * P::KEY_DIM + column, b.qkv, v_index(b, row + r) + column);
                z = stage_element(b, r, 2 * P::KEY_DIM + BLOCK_COLUMNS + column, b.z, z_index(b, row + r) + column);
            }
            floats(b, AT.v)[i] = v;
            floats(b, AT.z)[i] = z;
        }
    }

    /* o of a row, and the state after it. */
    static __device__ __forceinline__ void advance(const block &b, int r, part &state)
    {
        const int lane = (int)threadIdx.x % LANES, column = walk::lane_column();
        const float4 factors = *(const float4 *)(floats(b, AT.factors) + 4 * r);
        const float decay = factors.x, beta = factors.y, product = factors.z;
        const float *from_k = floats(b, AT.k) + r * KEYS, *from_q = floats(b, AT.q) + r * KEYS;
        float k[ROWS], held[COLUMNS] = {}, read[COLUMNS] = {}, delta[COLUMNS];
#pragma unroll
        for (int n = 0; n < ROWS; n += 4) {
            const float4 four = *(const float4 *)(from_k + (n * LANES + 4 * lane));
            const float4 of_q = *(const float4 *)(from_q + (n * LANES + 4 * lane));
            const float q[4] = {of_q.x, of_q.y, of_q.z, of_q.w};
            k[n] = four.x, k[n + 1] = four.y, k[n + 2] = four.z, k[n + 3] = four.w;
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    held[c] = fmaf(state.at[n + i][c], k[n + i], held[c]);
                    read[c] = fmaf(state.at[n + i][c], q[i], read[c]);
                }
        }
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                held[c] += __shfl_xor_sync(0xffffffffu, held[c], offset);
                read[c] += __shfl_xor_sync(0xffffffffu, read[c], offset);
            }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            delta[c] = beta * (floats(b, AT.v)[r * BLOCK_COLUMNS + column + c] - decay * held[c]);
            if (lane == 0) floats(b, AT.o)[r * BLOCK_COLUMNS + column + c] = fmaf(decay, read[c], delta[c] * product);
        }
#pragma unroll
        for (int n = 0; n < ROWS; n++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) state.at[n][c] = fmaf(k[n], delta[c], decay * state.at[n][c]);
    }

    /* The norm of o, times the gate. By all threads, after o is visible in the block. */
    static __device__ __forceinline__ void finish_stage(block &b, int row, int count)
    {
        constexpr int NUMBERS = (int)(AT.scales - AT.squares) / 8; /* of a turn */
        const int lane = (int)threadIdx.x % 32;
        float *squares = floats(b, AT.squares) + b.turn * NUMBERS, *scales = floats(b, AT.scales);
        b.turn ^= 1;
        for (int r = (int)threadIdx.x / 32; r < count; r += P::WARPS) {
            float sum = 0;
            for (int c = lane; c < BLOCK_COLUMNS; c += 32) {
                const float value = floats(b, AT.o)[r * BLOCK_COLUMNS + c];
                sum = fmaf(value, value, sum);
            }
            sum = warp_sum(sum);
            if (lane == 0) squares[r] = sum;
        }
        if constexpr (SPLIT > 1) {
#if __CUDA_ARCH__ >= 900 || defined(KERNELS_ON_HOST)
            cluster_sync();
#endif
        } else {
            __syncthreads();
        }
        if ((int)threadIdx.x < count) {
            float sum = 0;
#pragma unroll
            for (int rank = 0; rank < SPLIT; rank++) {
                if constexpr (SPLIT > 1) {
#if __CUDA_ARCH__ >= 900 || defined(KERNELS_ON_HOST)
                    sum += float_of_bits(
                        cluster_load_word(cluster_address(shared_address(squares + threadIdx.x), (u32)rank)));
#endif
                } else {
                    sum += squares[threadIdx.x];
                }
            }
            scales[threadIdx.x] = 1 / sqrtf(sum * (1.0f / P::VALUE_DIM) + float_of_bits(P::EPS_BITS));
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < count * BLOCK_COLUMNS; i += THREADS) {
            const int r = i / BLOCK_COLUMNS, column = i % BLOCK_COLUMNS;
            if (!walk::has_column(b.first_column + column)) continue;
            const float z = floats(b, AT.z)[i];
            const float weight = load_element<P::NORM_DTYPE>(b.norm, b.first_column + column);
            store_element<P::X_DTYPE>(b.out, z_index(b, row + r) + column,
                                      floats(b, AT.o)[i] * scales[r] * weight * (z / (1 + expf(-z))));
        }
    }

    /* `memory`: shared, AT.bytes. `state`: of slot 0. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const void *qkv, const void *z,
                                               const float *ba, const void *a_log, const void *dt_bias,
                                               const void *norm, void *out, const int *slots, const int *positions,
                                               u8 *state)
    {
        const int head = walk::block_head();
        device_trigger();
        block b = {memory,
                   qkv,
                   z,
                   norm,
                   ba,
                   out,
                   slots,
                   0,
                   head,
                   walk::block_column(),
                   expf(load_element<P::A_DTYPE>(a_log, head)),
                   load_element<P::DT_DTYPE>(dt_bias, head),
                   0};
        if constexpr (KEYS != P::KEY_DIM) { /* the rows of the state that are zero */
            for (int i = (int)threadIdx.x; i < STAGE * (KEYS - P::KEY_DIM); i += THREADS) {
                const int at = i / (KEYS - P::KEY_DIM) * KEYS + P::KEY_DIM + i % (KEYS - P::KEY_DIM);
                floats(b, AT.q)[at] = floats(b, AT.k)[at] = 0;
            }
        }
        device_wait();
        b.rows = min(counts[P::COUNT_INDEX], P::ROWS);
        walk::template run_slots<delta_rule_body>(b, positions, state);
        if constexpr (SPLIT > 1) { /* others may still read this block's sums */
#if __CUDA_ARCH__ >= 900 || defined(KERNELS_ON_HOST)
            cluster_sync();
#endif
        }
    }
};

#endif
