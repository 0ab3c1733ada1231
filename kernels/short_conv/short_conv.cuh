/* SPDX-License-Identifier: Apache-2.0 */
/* short_conv (contract: short_conv.h). A block has a part of the channels of a row, and a thread VECTOR of them.
 *
 * A row after KERNEL - 1 rows of the same slot needs x alone. The blocks of a slot's first row compute the first KERNEL - 1 rows and
 * the new state: no others read or write the state, whose old and new copy may be the same one. */
#ifndef KERNELS_SHORT_CONV_SHORT_CONV_CUH
#define KERNELS_SHORT_CONV_SHORT_CONV_CUH

#include "kernels/cuda/include/activation.cuh"
#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/ptx.cuh"
#include "kernels/op/recurrent_copies.cuh"
#include "kernels/short_conv/short_conv_layout.cuh"

template <class P> struct short_conv_body {
    static constexpr int THREADS = SHORT_CONV_THREADS, BEFORE = P::KERNEL - 1;
    static constexpr int VECTOR = (int)short_conv_vector(P::CHANNELS, P::KERNEL);
    static constexpr int ROW_BLOCKS = (int)short_conv_row_blocks(P::CHANNELS, P::KERNEL);
    static constexpr int X_WIDTH = P::GATED ? 3 * P::CHANNELS : P::CHANNELS;

    template <int ELEMENT> static __device__ __forceinline__ void load(float (&to)[VECTOR], const void *from, i64 index)
    {
        if constexpr (VECTOR > 1)
            load_elements<ELEMENT>(to, from, index);
        else
            to[0] = load_element<ELEMENT>(from, index);
    }

    /* What the convolution is over, of a row of this step. */
    static __device__ __forceinline__ void load_value(float (&to)[VECTOR], const void *x, i64 row, int channel)
    {
        load<P::X_DTYPE>(to, x, row * X_WIDTH + channel);
        if constexpr (P::GATED) {
            float by[VECTOR];
            load<P::X_DTYPE>(by, x, row * X_WIDTH + 2 * P::CHANNELS + channel);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) to[i] *= by[i];
        }
    }

    static __device__ __forceinline__ void load_state(float (&to)[VECTOR], const float *from)
    {
        if constexpr (VECTOR > 1) {
#pragma unroll
            for (int i = 0; i < VECTOR; i += 4) {
                u32 words[4];
                load_written(words, from + i);
#pragma unroll
                for (int j = 0; j < 4; j++) to[i + j] = float_of_bits(words[j]);
            }
        } else {
            to[0] = load_written_float(from);
        }
    }

    struct weights {
        float at[P::KERNEL][VECTOR], bias[VECTOR];
    };

    /* Tap j of channel c is element c * KERNEL + j. */
    static __device__ __forceinline__ void load_weights(weights &to, const void *w, const void *bias, int channel)
    {
        if constexpr (VECTOR > 1) {
#pragma unroll
            for (int part = 0; part < P::KERNEL; part++) {
                float values[VECTOR];
                load_elements<P::W_DTYPE>(values, w, (i64)channel * P::KERNEL + part * VECTOR);
#pragma unroll
                for (int i = 0; i < VECTOR; i++)
                    to.at[(part * VECTOR + i) % P::KERNEL][(part * VECTOR + i) / P::KERNEL] = values[i];
            }
        } else {
#pragma unroll
            for (int j = 0; j < P::KERNEL; j++) to.at[j][0] = load_element<P::W_DTYPE>(w, (i64)channel * P::KERNEL + j);
        }
#pragma unroll
        for (int i = 0; i < VECTOR; i++) to.bias[i] = 0;
        if constexpr (P::HAS_BIAS) load<P::BIAS_DTYPE>(to.bias, bias, channel);
    }

    /* The sum of a row, whose values in the order of the taps are `values`. */
    static __device__ __forceinline__ void finish(const float (&values)[P::KERNEL][VECTOR], const weights &by,
                                                  const void *x, void *out, i64 row, int channel)
    {
        float sum[VECTOR] = {};
#pragma unroll
        for (int j = 0; j < P::KERNEL; j++)
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[i] = fmaf(by.at[j][i], values[j][i], sum[i]);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if constexpr (P::HAS_BIAS) sum[i] += by.bias[i];
            if constexpr (P::ACTIVATION == ACTIVATION_SILU) sum[i] = sum[i] / (1 + expf(-sum[i]));
        }
        if constexpr (P::GATED) {
            float gate[VECTOR];
            load<P::X_DTYPE>(gate, x, row * X_WIDTH + P::CHANNELS + channel);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[i] *= gate[i];
        }
        if constexpr (VECTOR > 1)
            store_elements<P::X_DTYPE>(out, row * P::CHANNELS + channel, sum);
        else
            store_element<P::X_DTYPE>(out, row * P::CHANNELS + channel, sum[0]);
    }

    /* Rows from `row` on that are of the same slot, by all lanes of a warp. */
    static __device__ __forceinline__ int count_rows(const int *slots, int slot, int row, int rows)
    {
        const int lane = (int)threadIdx.x % 32;
        for (int count = 0;; count += 32) {
            const int at = row + count + lane;
            const u32 others = __ballot_sync(0xffffffffu, at >= rows || slots[at] != slot);
            if (others) return count + __ffs((int)others) - 1;
        }
    }

    /* The first BEFORE of a slot's `count` rows, and the state after the last one. */
    static __device__ __forceinline__ void run_first(const weights &by, const void *x, void *out, int row, int count,
                                                     int position, u8 *block, int channel)
    {
        constexpr i64 COPY = P::RECURRENT_BYTES / RECURRENT_COPIES_CUDA;
        const float *old = (const float *)(block + (position + 1) % RECURRENT_COPIES_CUDA * COPY) + channel;
        float *made = (float *)(block + (position + count - 1) % RECURRENT_COPIES_CUDA * COPY) + channel;
        float values[P::KERNEL][VECTOR] = {};
#pragma unroll
        for (int j = 0; j < BEFORE; j++)
            if (position + j >= BEFORE) load_state(values[j + 1], old + j * P::CHANNELS);
        const int most = min(count, BEFORE);
#pragma unroll 1
        for (int r = 0; r < most; r++) {
#pragma unroll
            for (int j = 0; j < BEFORE; j++)
#pragma unroll
                for (int i = 0; i < VECTOR; i++) values[j][i] = values[j + 1][i];
            load_value(values[BEFORE], x, row + r, channel);
            finish(values, by, x, out, row + r, channel);
        }
#pragma unroll
        for (int j = 0; j < BEFORE; j++) {
            float last[VECTOR];
            if (count > BEFORE) {
                load_value(last, x, row + count - BEFORE + j, channel);
            } else {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) last[i] = values[j + 1][i];
            }
            if constexpr (VECTOR > 1)
                store_elements<DTYPE_F32>(made, j * P::CHANNELS, last);
            else
                made[j * P::CHANNELS] = last[0];
        }
    }

    /* `state`: of slot 0. `bias`: null without HAS_BIAS. */
    static __device__ __forceinline__ void run(const int *counts, const void *x, const void *w, void *out,
                                               const int *slots, const int *positions, u8 *state, const void *bias)
    {
        const int row = (int)blockIdx.x / ROW_BLOCKS;
        const int channel = ((int)blockIdx.x % ROW_BLOCKS * THREADS + (int)threadIdx.x) * VECTOR;
        const bool has_channel = channel < P::CHANNELS;
        weights by;
        device_trigger();
        if (has_channel) load_weights(by, w, bias, channel); /* constants: before the wait */
        device_wait();
        const int rows = min(counts[P::COUNT_INDEX], P::ROWS);
        if (row >= rows) return;
        const int slot = slots[row];
        bool is_first = true, is_inside = true; /* rows before it that are of the slot: none, BEFORE */
#pragma unroll
        for (int back = 1; back <= BEFORE; back++) {
            const bool is_same = row >= back && slots[row - back] == slot;
            if (back == 1) is_first = !is_same;
            is_inside = is_inside && is_same;
        }
        if (is_first) {
            const int count = count_rows(slots, slot, row, rows);
            if (has_channel)
                run_first(by, x, out, row, count, positions[row], state + (i64)slot * P::RECURRENT_BYTES, channel);
        } else if (is_inside && has_channel) {
            float values[P::KERNEL][VECTOR];
#pragma unroll
            for (int j = 0; j < P::KERNEL; j++) load_value(values[j], x, row - BEFORE + j, channel);
            finish(values, by, x, out, row, channel);
        }
    }
};

#endif
