/* SPDX-License-Identifier: Apache-2.0 */
/* rope_append: rotates the heads of q and k and files k and v into their pages (contract: rope_append.h).
 *
 * A head of a row is the work of a group of lanes, a power of two. A head is pairs of elements: those that are rotated
 * together, then those of the rest, its first half with its second; a lane holds both elements of VECTOR neighbouring
 * pairs, so that a rotation stays inside a lane. With NORM_SCOPE 1 a block has a row, and sums all of it first, unless the means are
 * given. rope_query is the same without KV heads. */
#ifndef KERNELS_ROPE_APPEND_ROPE_APPEND_CUH
#define KERNELS_ROPE_APPEND_ROPE_APPEND_CUH

#include "kernels/cuda/include/kv.cuh"
#include "kernels/cuda/include/reduce.cuh"
#include "kernels/mean_squares/mean_squares_layout.cuh"
#include "kernels/rope_append/rope_append_layout.cuh"

template <class P> struct rope_append_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int HALF = P::HEAD_DIM / 2;                                      /* pairs of a head */
    static constexpr int ROTATED = (P::ROTARY_DIM ? P::ROTARY_DIM : P::HEAD_DIM) / 2; /* those that are rotated */
    static constexpr bool ALL_ROTATED = ROTATED == HALF;
    static constexpr int ALL_HEADS = P::HEADS + 2 * P::KV_HEADS;
    static constexpr int VECTOR = (int)rope_append_vector(HALF, ROTATED), VECTORS = HALF / VECTOR;
    static constexpr int LANES = (int)rope_append_lanes(HALF, ROTATED);
    static constexpr int STEPS = (VECTORS + LANES - 1) / LANES; /* more than 1 where VECTOR is small */
    static constexpr bool NORM_AFTER = P::NORM_SCOPE == ROPE_APPEND_NORM_ROTATED;
    static constexpr bool SUMS_ROWS = P::NORM_SCOPE == ROPE_APPEND_NORM_WIDTH && !P::HAS_MEANS;

    typedef kv_pages<P> pages;

    /* VECTOR 16-bit elements, or codes, of one access. */
    struct alignas(2 * VECTOR) halves {
        u16 at[VECTOR];
    };
    struct alignas(VECTOR) codes {
        u8 at[VECTOR];
    };
    struct alignas(VECTOR >= 4 ? 16 : 4 * VECTOR) floats {
        float at[VECTOR];
    };
    /* What a lane holds of a head. */
    struct pairs {
        float low[STEPS][VECTOR], high[STEPS][VECTOR];
    };

    /* From a pair's number to its elements. */
    static __device__ __forceinline__ int to_low(int pair) { return ALL_ROTATED || pair < ROTATED ? 0 : ROTATED; }
    static __device__ __forceinline__ int to_high(int pair) { return ALL_ROTATED || pair >= ROTATED ? HALF : ROTATED; }

    static __device__ __forceinline__ void load(pairs &head, const u16 *from, int lane, bool valid)
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int i = (s * LANES + lane) * VECTOR;
            if (!valid || i >= HALF) continue;
            const halves first = *(const halves *)(from + to_low(i) + i),
                         second = *(const halves *)(from + to_high(i) + i);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                head.low[s][j] = float_of_half<P::X_DTYPE>(first.at[j]);
                head.high[s][j] = float_of_half<P::X_DTYPE>(second.at[j]);
            }
        }
    }

    static __device__ __forceinline__ float scale_of_mean(float mean)
    {
        return 1.0f / sqrtf(mean + float_of_bits(P::EPS_BITS));
    }

    /* 1 / sqrt(mean(x^2) + EPS) of `count` elements with that sum of squares. */
    static __device__ __forceinline__ float scale_of(float squares, int count)
    {
        return scale_of_mean(squares * (1.0f / count));
    }

    /* Store of a head's numbers, to elements of 16 bits. */
    template <int ELEMENT> static __device__ __forceinline__ void store_halves(u16 *to, const pairs &head, int lane)
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int i = (s * LANES + lane) * VECTOR;
            if (i >= HALF) continue;
            halves first, second;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                first.at[j] = half_of_float<ELEMENT>(head.low[s][j]);
                second.at[j] = half_of_float<ELEMENT>(head.high[s][j]);
            }
            *(halves *)(to + to_low(i) + i) = first;
            *(halves *)(to + to_high(i) + i) = second;
        }
    }

    /* The same to codes with a scale; by all lanes of the head. `given`: with HAS_KV_SCALES, the static scale. */
    static __device__ __forceinline__ void store_codes(u8 *to, float *scale_to, const float *given, const pairs &head,
                                                       int lane)
    {
        const u32 lanes = (LANES < 32 ? (1u << LANES % 32) - 1 : 0xffffffffu) << threadIdx.x % 32 / LANES * LANES;
        float largest = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                if ((s * LANES + lane) * VECTOR < HALF)
                    largest = max_or_nan(largest, max_or_nan(fabsf(head.low[s][j]), fabsf(head.high[s][j])));
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2)
            largest = max_or_nan(largest, __shfl_xor_sync(lanes, largest, offset));
        float scale;
        if constexpr (P::HAS_KV_SCALES)
            scale = codes_given_scale(largest, *given);
        else
            scale = codes_scale<P::KV_DTYPE>(largest);
        if (lane == 0) *scale_to = scale;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int i = (s * LANES + lane) * VECTOR;
            if (i >= HALF) continue;
            codes first, second;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                float low = head.low[s][j], high = head.high[s][j];
                if constexpr (P::HAS_KV_SCALES) low = codes_limited(low, scale), high = codes_limited(high, scale);
                first.at[j] = (u8)code_of<P::KV_DTYPE>(low, scale);
                second.at[j] = (u8)code_of<P::KV_DTYPE>(high, scale);
            }
            *(codes *)(to + to_low(i) + i) = first;
            *(codes *)(to + to_high(i) + i) = second;
        }
    }

    /* Sum over the lanes of a head. By all lanes of the warp. */
    static __device__ __forceinline__ float sum_of_lanes(float sum)
    {
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        return sum;
    }

    /* Takes the mean off the elements of a head. By all lanes of the warp; `applies`: to the lane's head. */
    static __device__ __forceinline__ void centre(pairs &head, int lane, bool applies)
    {
        float sum = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                if (applies && (s * LANES + lane) * VECTOR < HALF) sum += head.low[s][j] + head.high[s][j];
        const float mean = sum_of_lanes(sum) * (1.0f / P::HEAD_DIM);
        if (!applies) return;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++) head.low[s][j] -= mean, head.high[s][j] -= mean;
    }

    /* The factor of the norm of a head. By all lanes of the warp. */
    static __device__ __forceinline__ float factor_of(const pairs &head, int lane, bool valid)
    {
        float squares = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                if (valid && (s * LANES + lane) * VECTOR < HALF)
                    squares = fmaf(head.low[s][j], head.low[s][j], fmaf(head.high[s][j], head.high[s][j], squares));
        return scale_of(sum_of_lanes(squares), P::HEAD_DIM);
    }

    /* Stores head `head` of a row, normalised with `factor` times weight[first...] and rotated, where that is its due. */
    static __device__ __forceinline__ void store(pairs &held, i64 row, int head, int lane, float factor,
                                                 const void *weight, int first_weight, const float *table,
                                                 const int *slots, const int *positions, const int *page_table, u8 *kv,
                                                 u16 *q, const float *kv_scales)
    {
        const bool is_query = P::KV_HEADS == 0 || head < P::HEADS;
        const bool is_value = !is_query && head >= P::HEADS + P::KV_HEADS;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int i = (s * LANES + lane) * VECTOR;
            if (i >= HALF) continue;
            const bool rotates = !is_value && (ALL_ROTATED || i < ROTATED);
            floats cosine, sine;
            if (rotates) {
                const float *angles = table + row * (2 * ROTATED) + i;
                cosine = *(const floats *)angles;
                sine = *(const floats *)(angles + ROTATED);
            }
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                float a = held.low[s][j], b = held.high[s][j];
                float low_weight = 1, high_weight = 1;
                if constexpr (P::NORM_V) {
                    if (is_value) a *= factor, b *= factor;
                }
                if constexpr (P::HAS_NORM) {
                    if (!is_value) {
                        low_weight = load_element<P::NORM_DTYPE>(weight, first_weight + to_low(i) + i + j);
                        high_weight = load_element<P::NORM_DTYPE>(weight, first_weight + to_high(i) + i + j);
                        a *= NORM_AFTER ? factor : factor * low_weight;
                        b *= NORM_AFTER ? factor : factor * high_weight;
                    }
                }
                if (rotates) {
                    const float rotated = a * cosine.at[j] - b * sine.at[j];
                    b = b * cosine.at[j] + a * sine.at[j];
                    a = rotated;
                }
                if constexpr (NORM_AFTER) a *= low_weight, b *= high_weight; /* of a value they are 1 */
                held.low[s][j] = a, held.high[s][j] = b;
            }
        }
        if (is_query) {
            store_halves<P::X_DTYPE>(q + (row * P::HEADS + head) * P::HEAD_DIM, held, lane);
            return;
        }
        const int position = positions[row], kv_head = is_value ? head - P::HEADS - P::KV_HEADS : head - P::HEADS;
        const int page = page_table[(i64)slots[row] * P::PAGES_PER_SLOT + position / P::PAGE_TOKENS];
        const i64 place = (i64)kv_head * P::PAGE_TOKENS + position % P::PAGE_TOKENS;
        u8 *block = kv + (i64)page * P::PAGE_BYTES + (is_value ? pages::VALUES : 0);
        if constexpr (pages::CODED)
            store_codes(block + place * pages::ROW_BYTES, (float *)(block + pages::SCALES) + place,
                        P::HAS_KV_SCALES ? kv_scales + (2 * kv_head + is_value) : nullptr, held, lane);
        else
            store_halves<P::KV_DTYPE>((u16 *)(block + place * pages::ROW_BYTES), held, lane);
    }

    /* Sum of the squares of `heads` heads that lie at `from`, over the block. */
    template <bool AGAIN> static __device__ __forceinline__ float squares_of(const u16 *from, int heads)
    {
        float squares = 0;
        for (int i = threadIdx.x * VECTOR; i < heads * P::HEAD_DIM; i += THREADS * VECTOR) {
            const halves values = *(const halves *)(from + i);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                const float value = float_of_half<P::X_DTYPE>(values.at[j]);
                squares = fmaf(value, value, squares);
            }
        }
        return block_sum<THREADS, AGAIN>(squares);
    }

    /* A block has a row; its groups of lanes take the heads in turn. */
    static __device__ __forceinline__ void run_row(const int *counts, const u16 *qkv, const float *table,
                                                   const int *slots, const int *positions, const int *page_table,
                                                   u8 *kv, u16 *q, const void *norm_q, const void *norm_k,
                                                   const float *kv_scales)
    {
        const i64 row = blockIdx.x;
        const int lane = threadIdx.x % LANES;
        if (row >= counts[P::COUNT_INDEX]) return;
        const u16 *from = qkv + row * ALL_HEADS * P::HEAD_DIM;
        const float q_factor = scale_of(squares_of<false>(from, P::HEADS), P::HEADS * P::HEAD_DIM);
        const float k_factor =
            scale_of(squares_of<true>(from + P::HEADS * P::HEAD_DIM, P::KV_HEADS), P::KV_HEADS * P::HEAD_DIM);
        for (int head = threadIdx.x / LANES; head < ALL_HEADS; head += THREADS / LANES) {
            const bool is_query = head < P::HEADS;
            pairs held;
            load(held, from + head * P::HEAD_DIM, lane, true);
            store(held, row, head, lane, is_query ? q_factor : k_factor, is_query ? norm_q : norm_k,
                  (is_query ? head : head - P::HEADS) * P::HEAD_DIM, table, slots, positions, page_table, kv, q,
                  kv_scales);
        }
    }

    /* `norm_q`, `norm_k`: null without HAS_NORM; `kv_scales`: without HAS_KV_SCALES; `means`: without HAS_MEANS. */
    static __device__ __forceinline__ void run(const int *counts, const u16 *qkv, const float *table, const int *slots,
                                               const int *positions, const int *page_table, u8 *kv, u16 *q,
                                               const void *norm_q, const void *norm_k, const float *kv_scales,
                                               const float *means)
    {
        device_trigger();
        device_wait();
        if constexpr (SUMS_ROWS) {
            run_row(counts, qkv, table, slots, positions, page_table, kv, q, norm_q, norm_k, kv_scales);
        } else {
            const i64 item = ((i64)blockIdx.x * THREADS + threadIdx.x) / LANES;
            const int lane = threadIdx.x % LANES;
            const i64 row = item / ALL_HEADS;
            const int head = (int)(item % ALL_HEADS);
            /* No early return: the lanes of a warp meet in the sums of the norm. */
            const bool valid = row < P::ROWS && row < counts[P::COUNT_INDEX];
            pairs held;
            load(held, qkv + item * P::HEAD_DIM, lane, valid); /* item counts heads of all rows */
            float factor = 1;
            if constexpr (P::CENTRED) centre(held, lane, valid && head < P::HEADS + P::KV_HEADS);
            if constexpr ((P::HAS_NORM && !P::HAS_MEANS) || P::NORM_V) factor = factor_of(held, lane, valid);
            if (!valid) return;
            const bool is_query = head < P::HEADS;
            if constexpr (P::HAS_MEANS)
                factor =
                    scale_of_mean(means[row * MEAN_SQUARES_WIDTH + (is_query ? MEAN_SQUARES_OF_Q : MEAN_SQUARES_OF_K)]);
            const int first = rope_append_own_weights(P::NORM_SCOPE) ? (is_query ? head : head - P::HEADS) : 0;
            store(held, row, head, lane, factor, is_query ? norm_q : norm_k, first * P::HEAD_DIM, table, slots,
                  positions, page_table, kv, q, kv_scales);
        }
    }
};

#endif
