/* SPDX-License-Identifier: Apache-2.0 */
/* What rope_attention attends with: head norms, rotary embedding and rounding of a block's heads of q and of its new k and v.
 * SHARED: the block's shared memory (rope_attention.cuh). */
#ifndef KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_PREPARE_CUH
#define KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_PREPARE_CUH

#include "kernels/cuda/include/kv.cuh"
#include "kernels/cuda/include/reduce.cuh"
#include "kernels/mean_squares/mean_squares_layout.cuh"
#include "kernels/rope_append/rope_append_layout.cuh"

template <class P> struct rope_attention_preparation {
    static constexpr int GROUP = P::HEADS / P::KV_HEADS;
    static constexpr int TILE_HEADS = 8 * P::HEAD_TILES;
    static constexpr int BLOCK_HEADS = GROUP < TILE_HEADS ? GROUP : TILE_HEADS;
    typedef kv_pages<P> pages;
    static constexpr bool CODED = pages::CODED;
    static constexpr int ROW_BYTES = pages::ROW_BYTES;
    static constexpr int MMA_DTYPE = CODED ? DTYPE_F16 : (int)P::KV_DTYPE; /* of q, and of k and v without codes */

    static constexpr int PAIRS = P::HEAD_DIM / 2;                                     /* of elements: see to_low */
    static constexpr int ROTATED = (P::ROTARY_DIM ? P::ROTARY_DIM : P::HEAD_DIM) / 2; /* the first ones: are rotated */
    static constexpr bool ALL_ROTATED = ROTATED == PAIRS;
    static constexpr int VECTOR = PAIRS % 2 == 0 && ROTATED % 2 == 0 ? 2 : 1;
    static constexpr int ROUNDS = (PAIRS + 32 * VECTOR - 1) / (32 * VECTOR);
    static constexpr int TASKS = BLOCK_HEADS + (P::APPENDED ? 0 : 2); /* vectors to prepare: q heads, k, v */
    static constexpr int WARP_TASKS = (TASKS + P::WARPS - 1) / P::WARPS;

    /* Pairs of the head vectors that this lane prepares. */
    static __device__ __forceinline__ int pair_index(int lane, int round) { return (round * 32 + lane) * VECTOR; }
    /* From a pair's number to its elements: of the rotated part its two halves, then those of the rest. */
    static __device__ __forceinline__ int to_low(int pair) { return ALL_ROTATED || pair < ROTATED ? 0 : ROTATED; }
    static __device__ __forceinline__ int to_high(int pair) { return ALL_ROTATED || pair >= ROTATED ? PAIRS : ROTATED; }

    typedef float round_values[ROUNDS][VECTOR];

    /* Weights of the norms of a warp's vectors, which are read before the launches before have completed, if registers hold
     * them. */
    static constexpr bool NORM_AFTER = P::NORM_SCOPE == ROPE_APPEND_NORM_ROTATED; /* the rotation */
    static constexpr bool NORMS_EARLY = P::HAS_NORM && WARP_TASKS * ROUNDS * VECTOR <= 8;
    struct norms {
        float low[NORMS_EARLY ? WARP_TASKS : 1][ROUNDS][VECTOR], high[NORMS_EARLY ? WARP_TASKS : 1][ROUNDS][VECTOR];
    };

    static __device__ __forceinline__ bool is_value(int task) { return task == BLOCK_HEADS + 1; }

    /* A vector's first weight: 0 where all heads have the same. */
    static __device__ __forceinline__ int first_weight(int task, int kv_head, int head_block)
    {
        return !rope_append_own_weights(P::NORM_SCOPE) ? 0
               : task < BLOCK_HEADS ? (kv_head * GROUP + head_block * TILE_HEADS + task) * P::HEAD_DIM
                                    : kv_head * P::HEAD_DIM;
    }

    static __device__ __forceinline__ void load_norms(norms &norms, const void *norm_q, const void *norm_k, int kv_head,
                                                      int head_block, int warp, int lane)
    {
        (void)norm_q, (void)norm_k;
        if constexpr (NORMS_EARLY) {
#pragma unroll
            for (int k = 0; k < WARP_TASKS; k++) {
                const int task = warp + k * P::WARPS;
                const void *norm = task < BLOCK_HEADS ? norm_q : norm_k;
                const int first = first_weight(task, kv_head, head_block);
#pragma unroll
                for (int r = 0; r < ROUNDS; r++)
#pragma unroll
                    for (int e = 0; e < VECTOR; e++) {
                        const int i = pair_index(lane, r);
                        const bool used = i < PAIRS && task < TASKS && !is_value(task) &&
                                          (task >= BLOCK_HEADS || head_block * TILE_HEADS + task < GROUP);
                        norms.low[k][r][e] = used ? load_element<P::NORM_DTYPE>(norm, first + to_low(i) + i + e) : 0;
                        norms.high[k][r][e] = used ? load_element<P::NORM_DTYPE>(norm, first + to_high(i) + i + e) : 0;
                    }
            }
        }
    }

    /* Largest magnitude of a vector whose pairs the warp holds; NaN if there is one. */
    static __device__ __forceinline__ float largest_of(const round_values &low, const round_values &high, int lane)
    {
        float largest = 0;
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                if (pair_index(lane, r) < PAIRS)
                    largest = max_or_nan(largest, max_or_nan(fabsf(low[r][e]), fabsf(high[r][e])));
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2)
            largest = max_or_nan(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
        return largest;
    }

    /* The power of two by which a head of q is divided: numbers below 2 in magnitude remain. */
    static __device__ __forceinline__ float q_factor_of(float largest)
    {
        return float_of_bits(
            max(0x0d800000u, min(0x71800000u, bits_of_float(largest) & 0x7f800000u))); /* 2^-100, 2^100 */
    }

    /* A vector times `factor` as MMA_DTYPE, its pairs from pair `i` on, to one or two places. */
    static __device__ __forceinline__ void store_halves(u16 *to, u16 *also, const float (&low)[VECTOR],
                                                        const float (&high)[VECTOR], float factor, int i)
    {
        if constexpr (VECTOR == 2) {
            u32 first = pack_halves<MMA_DTYPE>(low[0] * factor, low[1] * factor),
                second = pack_halves<MMA_DTYPE>(high[0] * factor, high[1] * factor);
            *(u32 *)(to + to_low(i) + i) = first, *(u32 *)(to + to_high(i) + i) = second;
            if (also) *(u32 *)(also + to_low(i) + i) = first, *(u32 *)(also + to_high(i) + i) = second;
        } else {
            u16 first = half_of_float<MMA_DTYPE>(low[0] * factor), second = half_of_float<MMA_DTYPE>(high[0] * factor);
            to[to_low(i) + i] = first, to[to_high(i) + i] = second;
            if (also) also[to_low(i) + i] = first, also[to_high(i) + i] = second;
        }
    }

    /* A vector as codes to one or two places. */
    static __device__ __forceinline__ void store_codes(u8 *to, u8 *also, const round_values &low,
                                                       const round_values &high, float scale, int lane)
    {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int e = 0; e < VECTOR; e++) {
                int i = pair_index(lane, r);
                if (i >= PAIRS) continue;
                float a = low[r][e], b = high[r][e];
                if constexpr (P::HAS_KV_SCALES) a = codes_limited(a, scale), b = codes_limited(b, scale);
                const u8 first = (u8)code_of<P::KV_DTYPE>(a, scale), second = (u8)code_of<P::KV_DTYPE>(b, scale);
                to[to_low(i) + i + e] = first, to[to_high(i) + i + e] = second;
                if (also) also[to_low(i) + i + e] = first, also[to_high(i) + i + e] = second;
            }
    }

    /* Takes the mean off the elements of a vector whose pairs the warp holds. */
    static __device__ __forceinline__ void centre(round_values &low, round_values &high, int lane)
    {
        float sum = 0; /* what a lane holds beyond the vector is 0 */
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int e = 0; e < VECTOR; e++) sum += low[r][e] + high[r][e];
        const float mean = warp_sum(sum) / P::HEAD_DIM;
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                if (pair_index(lane, r) < PAIRS) low[r][e] -= mean, high[r][e] -= mean;
    }

    /* With APPENDED: the row's k and v, as they are in row `place` of their page, into shared memory. By the block. */
    template <class SHARED> static __device__ __forceinline__ void take(SHARED &shared, const u8 *block, i64 place)
    {
        constexpr int WORDS = ROW_BYTES / 4;
        for (int i = (int)threadIdx.x; i < 2 * WORDS; i += 32 * P::WARPS) {
            const bool is_v = i >= WORDS;
            const int word = is_v ? i - WORDS : i;
            const u8 *row = block + (is_v ? pages::VALUES : 0) + place * ROW_BYTES;
            ((int *)(is_v ? shared.v : shared.k))[word] = load_written_int((const int *)row + word);
        }
        if (CODED && threadIdx.x < 2) {
            const bool is_v = threadIdx.x == 1;
            const u8 *scales = block + (is_v ? pages::VALUES : 0) + pages::SCALES;
            (is_v ? shared.v_scale : shared.k_scale) = load_written_float((const float *)scales + place);
        }
    }

    /* q, k and v of this block: norm, rope, rounding; into shared memory and, k and v, to row `place` of their page. `means`: of the
     * row, with HAS_MEANS. */
    template <class SHARED>
    static __device__ __forceinline__ void run(SHARED &shared, const u16 *qkv, const float *table, const norms &norms,
                                               const void *norm_q, const void *norm_k, const float *kv_scales,
                                               const float *means, u8 *block, i64 place, int kv_head, int head_block,
                                               int heads, bool with_new, int warp, int lane)
    {
        float low[WARP_TASKS][ROUNDS][VECTOR], high[WARP_TASKS][ROUNDS][VECTOR];
        float cosine[ROUNDS][VECTOR], sine[ROUNDS][VECTOR];
        (void)norms, (void)norm_q, (void)norm_k, (void)kv_scales, (void)means;
#pragma unroll
        for (int k = 0; k < WARP_TASKS; k++) {
            int task = warp + k * P::WARPS;
            bool used = task < BLOCK_HEADS ? task < heads : task < TASKS && with_new;
            int head = task < BLOCK_HEADS ? kv_head * GROUP + head_block * TILE_HEADS + task
                                          : P::HEADS + kv_head + (task - BLOCK_HEADS) * P::KV_HEADS;
            const u16 *x = qkv + (i64)head * P::HEAD_DIM;
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                int i = pair_index(lane, r);
                bool inside = used && i < PAIRS;
                if constexpr (VECTOR == 2) {
                    u32 a = inside ? *(const u32 *)(x + to_low(i) + i) : 0,
                        b = inside ? *(const u32 *)(x + to_high(i) + i) : 0;
                    low[k][r][0] = float_of_half<P::X_DTYPE>((u16)a),
                    low[k][r][1] = float_of_half<P::X_DTYPE>((u16)(a >> 16));
                    high[k][r][0] = float_of_half<P::X_DTYPE>((u16)b),
                    high[k][r][1] = float_of_half<P::X_DTYPE>((u16)(b >> 16));
                } else {
                    low[k][r][0] = inside ? float_of_half<P::X_DTYPE>(x[to_low(i) + i]) : 0;
                    high[k][r][0] = inside ? float_of_half<P::X_DTYPE>(x[to_high(i) + i]) : 0;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int e = 0; e < VECTOR; e++) {
                int i = pair_index(lane, r) + e;
                cosine[r][e] = i < ROTATED ? table[i] : ALL_ROTATED ? 0 : 1; /* by no angle: as they are */
                sine[r][e] = i < ROTATED ? table[ROTATED + i] : 0;
            }
#pragma unroll
        for (int k = 0; k < WARP_TASKS; k++) {
            int task = warp + k * P::WARPS;
            if (task < BLOCK_HEADS ? task >= heads : task >= TASKS || !with_new) continue;
            const bool is_v = is_value(task);
            float scale = 1;
            if constexpr (P::CENTRED) {
                if (!is_v) centre(low[k], high[k], lane);
            }
            if constexpr (P::HAS_MEANS) {
                const int column = task < BLOCK_HEADS ? MEAN_SQUARES_OF_Q : MEAN_SQUARES_OF_K; /* v takes no part */
                scale = rsqrtf(means[column] + float_of_bits(P::EPS_BITS));
            } else if constexpr (P::HAS_NORM || P::NORM_V) {
                float squares = 0;
#pragma unroll
                for (int r = 0; r < ROUNDS; r++)
#pragma unroll
                    for (int e = 0; e < VECTOR; e++)
                        squares += low[k][r][e] * low[k][r][e] + high[k][r][e] * high[k][r][e];
                scale = rsqrtf(warp_sum(squares) / P::HEAD_DIM + float_of_bits(P::EPS_BITS));
            }
            const int first = first_weight(task, kv_head, head_block);
            u16 *to = task < BLOCK_HEADS ? shared.q[task] : (u16 *)(is_v ? shared.v : shared.k);
            u8 *page = task >= BLOCK_HEADS && head_block == 0 ? block + (is_v ? pages::VALUES : 0) : nullptr;
            u16 *also = page ? (u16 *)(page + place * ROW_BYTES) : nullptr;
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                int i = pair_index(lane, r);
                if (i >= PAIRS) continue;
#pragma unroll
                for (int e = 0; e < VECTOR; e++) {
                    float x = low[k][r][e], y = high[k][r][e], x_weight = 1, y_weight = 1;
                    if (P::HAS_NORM && !is_v) {
                        const void *norm = task < BLOCK_HEADS ? norm_q : norm_k;
                        if constexpr (NORMS_EARLY) {
                            x_weight = norms.low[k][r][e];
                            y_weight = norms.high[k][r][e];
                        } else {
                            x_weight = load_element<P::NORM_DTYPE>(norm, first + to_low(i) + i + e);
                            y_weight = load_element<P::NORM_DTYPE>(norm, first + to_high(i) + i + e);
                        }
                        x *= NORM_AFTER ? scale : scale * x_weight;
                        y *= NORM_AFTER ? scale : scale * y_weight;
                    }
                    if (P::NORM_V && is_v) x *= scale, y *= scale;
                    low[k][r][e] = is_v ? x : x * cosine[r][e] - y * sine[r][e];
                    high[k][r][e] = is_v ? y : y * cosine[r][e] + x * sine[r][e];
                    if constexpr (NORM_AFTER) low[k][r][e] *= x_weight, high[k][r][e] *= y_weight; /* of v they are 1 */
                }
                if constexpr (!CODED) store_halves(to, also, low[k][r], high[k][r], 1, i);
            }
            if constexpr (CODED) {
                const float largest = largest_of(low[k], high[k], lane);
                if (task < BLOCK_HEADS) {
                    const float factor = q_factor_of(largest);
                    if (lane == 0) shared.q_factor[task] = factor;
#pragma unroll
                    for (int r = 0; r < ROUNDS; r++)
                        if (pair_index(lane, r) < PAIRS)
                            store_halves(to, nullptr, low[k][r], high[k][r], 1 / factor, pair_index(lane, r));
                } else {
                    float row_scale;
                    if constexpr (P::HAS_KV_SCALES)
                        row_scale = codes_given_scale(largest, kv_scales[2 * kv_head + is_v]);
                    else
                        row_scale = codes_scale<P::KV_DTYPE>(largest);
                    if (lane == 0) (is_v ? shared.v_scale : shared.k_scale) = row_scale;
                    if (lane == 0 && page) ((float *)(page + pages::SCALES))[place] = row_scale;
                    store_codes((u8 *)to, (u8 *)also, low[k], high[k], row_scale, lane);
                }
            }
        }
    }
};

#endif
