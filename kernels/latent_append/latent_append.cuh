/* SPDX-License-Identifier: Apache-2.0 */
/* latent_append: the rows of latent attention from what its projections give (contract: latent_append.h).
 *
 * A warp makes a row of one head of q, or the row of keys, which comes after those of q. A lane takes pairs of neighbouring
 * elements of the latent part, every 32nd, and of the part that rotates both elements of a rotation. */
#ifndef KERNELS_LATENT_APPEND_LATENT_APPEND_CUH
#define KERNELS_LATENT_APPEND_LATENT_APPEND_CUH

#include "kernels/cuda/include/kv.cuh"
#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/include/reduce.cuh"

template <class P> struct latent_append_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int ROPE = P::HEAD_DIM - P::VALUE_DIM, HALF = ROPE / 2;
    static constexpr int PAIRS = P::VALUE_DIM / 2; /* of the latent part */
    static constexpr i64 Q_PITCH = P::Q_PITCH ? P::Q_PITCH : P::HEADS * ROPE;
    static constexpr i64 KV_PITCH = P::KV_PITCH ? P::KV_PITCH : P::HEAD_DIM;
    static constexpr int STEPS = (PAIRS + 31) / 32, TURNS = (HALF + 31) / 32;

    typedef kv_pages<P> pages;

    /* What a lane holds of the row of keys. */
    struct key {
        float latent[STEPS][2], low[TURNS], high[TURNS];
    };

    static __device__ __forceinline__ void rotate(const u16 *x, const float *table, int i, float &low, float &high)
    {
        const float a = float_of_half<P::X_DTYPE>(x[i]), b = float_of_half<P::X_DTYPE>(x[HALF + i]);
        const float cosine = table[i], sine = table[HALF + i];
        low = a * cosine - b * sine;
        high = b * cosine + a * sine;
    }

    static __device__ __forceinline__ void make_query(u16 *q, const u16 *latent, const u16 *rope, const float *table,
                                                      int lane)
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (s * 32 + lane < PAIRS) ((u32 *)q)[s * 32 + lane] = ((const u32 *)latent)[s * 32 + lane];
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            const int i = t * 32 + lane;
            if (i >= HALF) continue;
            float low, high;
            rotate(rope, table, i, low, high);
            q[P::VALUE_DIM + i] = half_of_float<P::X_DTYPE>(low);
            q[P::VALUE_DIM + HALF + i] = half_of_float<P::X_DTYPE>(high);
        }
    }

    static __device__ __forceinline__ void make_key(struct key &key, const u16 *x, const float *table, const void *norm,
                                                    int lane)
    {
        float squares = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const u32 pair = s * 32 + lane < PAIRS ? ((const u32 *)x)[s * 32 + lane] : 0;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                key.latent[s][j] = float_of_half<P::X_DTYPE>((u16)(pair >> j * 16));
                squares = fmaf(key.latent[s][j], key.latent[s][j], squares);
            }
        }
        const float factor = 1.0f / sqrtf(warp_sum(squares) * (1.0f / P::VALUE_DIM) + float_of_bits(P::EPS_BITS));
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (s * 32 + lane < PAIRS)
                    key.latent[s][j] *= factor * load_element<P::NORM_DTYPE>(norm, 2 * (s * 32 + lane) + j);
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            key.low[t] = key.high[t] = 0;
            if (t * 32 + lane < HALF) rotate(x + P::VALUE_DIM, table, t * 32 + lane, key.low[t], key.high[t]);
        }
    }

    static __device__ __forceinline__ void store_halves(u16 *to, const struct key &key, int lane)
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (s * 32 + lane < PAIRS)
                ((u32 *)to)[s * 32 + lane] = pack_halves<P::KV_DTYPE>(key.latent[s][0], key.latent[s][1]);
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            const int i = t * 32 + lane;
            if (i >= HALF) continue;
            to[P::VALUE_DIM + i] = half_of_float<P::KV_DTYPE>(key.low[t]);
            to[P::VALUE_DIM + HALF + i] = half_of_float<P::KV_DTYPE>(key.high[t]);
        }
    }

    static __device__ __forceinline__ void store_codes(u8 *to, float *scale_to, const struct key &key, int lane)
    {
        float largest = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (s * 32 + lane < PAIRS)
                largest = max_or_nan(largest, max_or_nan(fabsf(key.latent[s][0]), fabsf(key.latent[s][1])));
#pragma unroll
        for (int t = 0; t < TURNS; t++)
            largest = max_or_nan(largest, max_or_nan(fabsf(key.low[t]), fabsf(key.high[t])));
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2)
            largest = max_or_nan(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
        const float scale = codes_scale<P::KV_DTYPE>(largest);
        if (lane == 0) *scale_to = scale;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (s * 32 + lane < PAIRS)
                ((u16 *)to)[s * 32 + lane] = (u16)(code_of<P::KV_DTYPE>(key.latent[s][0], scale) |
                                                   code_of<P::KV_DTYPE>(key.latent[s][1], scale) << 8);
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            const int i = t * 32 + lane;
            if (i >= HALF) continue;
            to[P::VALUE_DIM + i] = (u8)code_of<P::KV_DTYPE>(key.low[t], scale);
            to[P::VALUE_DIM + HALF + i] = (u8)code_of<P::KV_DTYPE>(key.high[t], scale);
        }
    }

    static __device__ __forceinline__ void run(const int *counts, const u16 *q_latent, const u16 *q_rope,
                                               const u16 *kv_row, const float *table, const int *slots,
                                               const int *positions, const int *page_table, u8 *kv, u16 *q,
                                               const void *norm)
    {
        device_trigger();
        device_wait();
        const i64 item = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32; /* the same in all lanes of a warp */
        const int lane = threadIdx.x % 32, head = (int)(item % (P::HEADS + 1));
        const i64 row = item / (P::HEADS + 1);
        if (row >= P::ROWS || row >= counts[P::COUNT_INDEX]) return;
        const float *angles = table + row * ROPE;
        if (head < P::HEADS) {
            const i64 of_head = row * P::HEADS + head;
            make_query(q + of_head * P::HEAD_DIM, q_latent + of_head * P::VALUE_DIM,
                       q_rope + row * Q_PITCH + P::Q_FIRST + head * ROPE, angles, lane);
            return;
        }
        struct key key;
        make_key(key, kv_row + row * KV_PITCH + (KV_PITCH - P::HEAD_DIM), angles, norm, lane);
        const int position = positions[row], place = position % P::PAGE_TOKENS;
        const int page = page_table[(i64)slots[row] * P::PAGES_PER_SLOT + position / P::PAGE_TOKENS];
        u8 *block = kv + (i64)page * P::PAGE_BYTES, *to = block + (i64)place * pages::ROW_BYTES;
        if constexpr (pages::CODED)
            store_codes(to, (float *)(block + pages::SCALES) + place, key, lane);
        else
            store_halves((u16 *)to, key, lane);
    }
};

#endif
