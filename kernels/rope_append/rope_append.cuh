/* SPDX-License-Identifier: Apache-2.0 */
/* rope_append: rotates the heads of q and k and files k and v into their pages (contract: rope_append_device.h).
 *
 * A head of a row is the work of a group of lanes, a power of two; a lane holds VECTOR elements of the head's first
 * half and the VECTOR elements of the second half that they are rotated with, so that a rotation stays inside a
 * lane. */
#ifndef KERNELS_ROPE_APPEND_ROPE_APPEND_CUH
#define KERNELS_ROPE_APPEND_ROPE_APPEND_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/rope_append/rope_append_layout.cuh"

template <class P> struct rope_append_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int HALF = P::HEAD_DIM / 2;
    static constexpr int ALL_HEADS = P::HEADS + 2 * P::KV_HEADS;
    static constexpr int VECTOR = (int)rope_append_vector(HALF), VECTORS = HALF / VECTOR;
    static constexpr int LANES = (int)rope_append_lanes(HALF);
    static constexpr int STEPS = (VECTORS + LANES - 1) / LANES; /* more than 1 for odd halves above 32 alone */

    /* VECTOR 16-bit elements of one access. */
    struct alignas(2 * VECTOR) halves {
        u16 at[VECTOR];
    };
    struct alignas(VECTOR >= 4 ? 16 : 4 * VECTOR) floats {
        float at[VECTOR];
    };

    /* `norm_q`, `norm_k`: null without HAS_NORM. */
    static __device__ __forceinline__ void run(const int *counts, const u16 *qkv, const float *table, const int *slots,
                                               const int *positions, const int *page_table, u8 *kv, u16 *q,
                                               const void *norm_q, const void *norm_k)
    {
        device_trigger();
        device_wait();
        const i64 item = ((i64)blockIdx.x * THREADS + threadIdx.x) / LANES;
        const int lane = threadIdx.x % LANES;
        const i64 row = item / ALL_HEADS;
        const int head = (int)(item % ALL_HEADS);
        /* No early return: the lanes of a warp meet in the sums of the norm. */
        const bool valid = row < P::ROWS && row < counts[P::COUNT_INDEX];
        const bool is_query = head < P::HEADS, is_value = head >= P::HEADS + P::KV_HEADS;

        const u16 *from = qkv + item * P::HEAD_DIM; /* item counts heads of all rows */
        float low[STEPS][VECTOR], high[STEPS][VECTOR];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int i = (s * LANES + lane) * VECTOR;
            if (!valid || i >= HALF) continue;
            const halves first = *(const halves *)(from + i), second = *(const halves *)(from + HALF + i);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                low[s][j] = float_of_half<P::X_DTYPE>(first.at[j]);
                high[s][j] = float_of_half<P::X_DTYPE>(second.at[j]);
            }
        }
        float factor = 1;
        const void *weight = is_query ? norm_q : norm_k;
        if constexpr (P::HAS_NORM) {
            float squares = 0;
#pragma unroll
            for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int j = 0; j < VECTOR; j++)
                    if (valid && (s * LANES + lane) * VECTOR < HALF)
                        squares = fmaf(low[s][j], low[s][j], fmaf(high[s][j], high[s][j], squares));
#pragma unroll
            for (int offset = LANES / 2; offset > 0; offset /= 2)
                squares += __shfl_xor_sync(0xffffffffu, squares, offset);
            factor = 1.0f / sqrtf(squares * (1.0f / P::HEAD_DIM) + float_of_bits(P::EPS_BITS));
        }
        if (!valid) return;

        u16 *to;
        if (is_query) {
            to = q + (row * P::HEADS + head) * P::HEAD_DIM;
        } else {
            const int position = positions[row], kv_head = is_value ? head - P::HEADS - P::KV_HEADS : head - P::HEADS;
            const int page = page_table[(i64)slots[row] * P::PAGES_PER_SLOT + position / P::PAGE_TOKENS];
            to = (u16 *)(kv + (i64)page * P::PAGE_BYTES) +
                 ((i64)((is_value ? P::KV_HEADS : 0) + kv_head) * P::PAGE_TOKENS + position % P::PAGE_TOKENS) *
                     P::HEAD_DIM;
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int i = (s * LANES + lane) * VECTOR;
            if (i >= HALF) continue;
            floats cosine, sine;
            if (!is_value) {
                const float *angles = table + row * P::HEAD_DIM + i;
                cosine = *(const floats *)angles;
                sine = *(const floats *)(angles + HALF);
            }
            halves first, second;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                float a = low[s][j], b = high[s][j];
                if (!is_value) {
                    if constexpr (P::HAS_NORM) {
                        a *= factor * load_element<P::NORM_DTYPE>(weight, i + j);
                        b *= factor * load_element<P::NORM_DTYPE>(weight, HALF + i + j);
                    }
                    const float rotated = a * cosine.at[j] - b * sine.at[j];
                    b = b * cosine.at[j] + a * sine.at[j];
                    a = rotated;
                }
                first.at[j] = is_query ? half_of_float<P::X_DTYPE>(a) : half_of_float<P::KV_DTYPE>(a);
                second.at[j] = is_query ? half_of_float<P::X_DTYPE>(b) : half_of_float<P::KV_DTYPE>(b);
            }
            *(halves *)(to + i) = first;
            *(halves *)(to + HALF + i) = second;
        }
    }
};

#endif
