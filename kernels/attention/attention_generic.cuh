/* SPDX-License-Identifier: Apache-2.0 */
/* attention_generic: causal grouped-query attention over KV pages, for shapes that no faster kernel supports.
 *
 *   out[r, h, :] = sum over t of softmax_t(SCALE * q[r, h] . k[t, g]) * v[t, g],  g = h / (HEADS / KV_HEADS),
 *   t from max(0, positions[r] - WINDOW + 1) (WINDOW 0: from 0) to positions[r] inclusive.
 *
 * Operands: counts i32[2]; q X_DTYPE[ROWS, HEADS * HEAD_DIM]; slots i32[ROWS]; positions i32[ROWS];
 * page_table i32[SLOT_COUNT, PAGES_PER_SLOT]; kv (pages as in rope_append.h); out as q, may be q itself if HEAD_DIM is at most 256. All
 * 16-byte aligned. Rows may belong to any slots in any order; consecutive rows of one slot share its tokens. With SCATTERED the rows of
 * each slot follow each other, and a block has rows of one slot alone: grid x is as many tiles as that takes at most.
 *
 * A block has 16 * WARPS_Q entries, of heads above 256 a part of their columns of v (grid z), an entry being one (row, head of the group), and walks over the tokens of each slot
 * that its rows belong to, KEY_TILE at a time, masked entry by entry. SPLIT warps share the tokens of a tile and merge
 * at the end. Two tiles are in flight (cp.async).
 *
 * Accumulation f32, online softmax in base 2. X_DTYPE = KV_DTYPE = 16-bit: products of these, p rounded to X_DTYPE; k
 * and v in codes become X_DTYPE, rounded once. Any other mixture: tf32 products (exact for 16-bit inputs; f32 inputs and p lose all but 10 bits of fraction). A
 * row's result depends on nothing but the row, its tokens and the tunables. */
#ifndef KERNELS_ATTENTION_ATTENTION_GENERIC_CUH
#define KERNELS_ATTENTION_ATTENTION_GENERIC_CUH

#include "kernels/attention/attention_layout.cuh"
#include "kernels/cuda/include/kv.cuh"
#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/ptx.cuh"
#include "kernels/cuda/include/scores.cuh"

template <class P> struct attention_generic_body {
    static constexpr int group = P::HEADS / P::KV_HEADS;
    static constexpr int threads = 32 * P::WARPS_Q * P::SPLIT;
    static constexpr int warp_keys = P::KEY_TILE / P::SPLIT;
    static_assert(P::HEADS % P::KV_HEADS == 0 && P::HEAD_DIM % 2 == 0 && warp_keys % 16 == 0 && P::PAGE_BYTES % 16 == 0,
                  "launch checks");

    /* Elements in shared memory: as they are, or as f32 of which the tensor cores take the upper 19 bits. */
    typedef kv_pages<P> pages_layout;
    static constexpr bool coded = pages_layout::CODED;
    static constexpr bool halves = P::X_DTYPE != DTYPE_F32 && (coded || P::X_DTYPE == P::KV_DTYPE);
    static constexpr int element = halves ? 2 : 4;
    static constexpr int kv_element = pages_layout::ELEMENT_BYTES;
    static constexpr int step = 32 / element; /* depth of one product */
    static constexpr attention_generic_layout layout =
        attention_generic_lay_out(P::HEAD_DIM, element, P::WARPS_Q, P::SPLIT, P::KEY_TILE);
    static constexpr int tile = (int)layout.entries;
    static constexpr int dim = (int)layout.dim;
    static constexpr int row_bytes = (int)layout.row_bytes;
    static constexpr int parts = (int)layout.parts, value_dim = (int)layout.value_dim;
    static constexpr int value_row_bytes = (int)layout.value_row_bytes;

    /* Bytes of one asynchronous copy: what divides a token's k and keeps it aligned, at most 16. */
    static constexpr int token_bytes = P::HEAD_DIM * kv_element;
    static constexpr int copy = token_bytes % 16 == 0 ? 16 : token_bytes % 8 == 0 ? 8 : 4;
    static constexpr bool verbatim = !coded && (halves || P::KV_DTYPE == DTYPE_F32);
    static constexpr int copy_elements = copy / kv_element;
    static constexpr int copies = token_bytes / copy; /* of one token */

    static constexpr int q_offset = 0;
    static constexpr int stage_offset = (int)layout.stages_offset, stage_bytes = (int)layout.stage_bytes;
    static constexpr int partial_floats = (int)layout.partial_floats;

    /* The block's first column of v. */
    static __device__ __forceinline__ int first_value() { return parts == 1 ? 0 : (int)blockIdx.z * value_dim; }

    /* d[16, 8] += a[16, step] * b[step, 8] */
    static __device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
    {
        if constexpr (halves)
            mma<P::X_DTYPE>(d, a[0], a[1], a[2], a[3], b0, b1);
        else
            mma_tf32(d, a[0], a[1], a[2], a[3], b0, b1);
    }

    /* k and v of tokens [token, token + KEY_TILE) into a stage; tokens outside [first, last] become zero: their
     * memory may hold NaN, and 0 * NaN is NaN. */
    static __device__ __forceinline__ void load_keys(u8 *stage, const u8 *kv, const i32 *pages, int g, int token,
                                                     int first, int last)
    {
        constexpr i64 head_bytes = (i64)P::PAGE_TOKENS * token_bytes;
        for (int i = (int)threadIdx.x; i < P::KEY_TILE * copies; i += threads) {
            int entry = i / copies, part = i % copies, t = token + entry;
            const int column = part * copy_elements - first_value();
            const bool has_value = parts == 1 || (column >= 0 && column < value_dim);
            u8 *k = stage + entry * row_bytes + part * copy_elements * element;
            u8 *v = stage + P::KEY_TILE * row_bytes + entry * value_row_bytes + column * element;
            if (t < first || t > last) {
#pragma unroll
                for (int j = 0; j < copy_elements * element; j += 4) {
                    *(u32 *)(k + j) = 0;
                    if (has_value) *(u32 *)(v + j) = 0;
                }
                continue;
            }
            const u8 *block = kv + pages[t / P::PAGE_TOKENS] * (i64)P::PAGE_BYTES;
            const u8 *from = block + g * head_bytes + (t % P::PAGE_TOKENS) * token_bytes + part * copy;
            const u8 *from_v = from + pages_layout::VALUES;
            if constexpr (coded) {
                const u8 *scales = block + pages_layout::SCALES + (g * P::PAGE_TOKENS + t % P::PAGE_TOKENS) * 4;
                const float scale_v = *(const float *)(scales + pages_layout::VALUES);
                kv_load_codes<P::KV_DTYPE, P::X_DTYPE>(k, from, *(const float *)scales * kv_codes<P::KV_DTYPE>::FACTOR);
                if (has_value)
                    kv_load_codes<P::KV_DTYPE, P::X_DTYPE>(v, from_v, scale_v * kv_codes<P::KV_DTYPE>::FACTOR);
            } else if constexpr (verbatim) {
                copy_async<copy>(shared_address(k), from);
                if (has_value) copy_async<copy>(shared_address(v), from_v);
            } else {
#pragma unroll
                for (int j = 0; j < copy_elements; j++) {
                    ((float *)k)[j] = load_element<P::KV_DTYPE>(from, j);
                    if (has_value) ((float *)v)[j] = load_element<P::KV_DTYPE>(from_v, j);
                }
            }
        }
        copy_commit();
    }

    static __device__ __forceinline__ void load_queries(u8 *memory, const void *q, int g, int first_entry, int valid)
    {
        for (int i = (int)threadIdx.x; i < tile * dim; i += threads) {
            int entry = i / dim, column = i % dim, row = (first_entry + entry) / group;
            int head = g * group + (first_entry + entry) % group;
            u8 *to = memory + q_offset + entry * row_bytes + column * element;
            bool is_zero = column >= P::HEAD_DIM || row >= valid;
            i64 index = ((i64)row * P::HEADS + head) * P::HEAD_DIM + column;
            if constexpr (halves)
                *(u16 *)to = is_zero ? (u16)0 : ((const u16 *)q)[index];
            else
                *(float *)to = is_zero ? 0.0f : load_element<P::X_DTYPE>(q, index);
        }
    }

    /* State of a thread's two entries (rows lane / 4 and lane / 4 + 8 of the warp's sixteen). */
    struct entries {
        int row[2], first[2], last[2]; /* tokens first to last */
        float max[2], sum[2];          /* of the scores; sum: of this thread's columns */
        float out[value_dim / 8][4];
    };

    static __device__ __forceinline__ void score_keys(float (&scores)[warp_keys / 8][4], u32 q, u32 k)
    {
#pragma unroll
        for (int n = 0; n < warp_keys / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores[n][i] = 0;
#pragma unroll
        for (int s = 0; s < dim / step; s++) {
            u32 a[4];
            load_matrices(a, q + 32 * s);
#pragma unroll
            for (int n = 0; n < warp_keys / 8; n += 2) {
                u32 b[4];
                load_matrices(b, k + n * 8 * row_bytes + 32 * s);
                multiply(scores[n], a, b[0], b[1]);
                multiply(scores[n + 1], a, b[2], b[3]);
            }
        }
    }

    /* Scores of entries of rows outside [begin, end) and of tokens that the entry does not see become -infinity. */
    static __device__ __forceinline__ void mask_keys(float (&scores)[warp_keys / 8][4], const struct entries &e,
                                                     int begin, int end, int token)
    {
        bool is_whole = true;
#pragma unroll
        for (int i = 0; i < 2; i++)
            is_whole = is_whole && e.row[i] >= begin && e.row[i] < end && e.first[i] <= token &&
                       token + warp_keys - 1 <= e.last[i];
        if (__all_sync(0xffffffffu, is_whole)) return;
        int column = 2 * ((int)threadIdx.x % 4);
#pragma unroll
        for (int n = 0; n < warp_keys / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int t = token + 8 * n + column + i % 2, row = e.row[i / 2];
                if (row < begin || row >= end || t < e.first[i / 2] || t > e.last[i / 2]) scores[n][i] = -infinity();
            }
        }
    }

    /* scores becomes the weights; maximum, sum and what was accumulated follow. */
    static __device__ __forceinline__ void weigh_keys(float (&scores)[warp_keys / 8][4], struct entries &e)
    {
        const float scale = float_of_bits(P::SCALE_BITS) * SCORES_LOG2_E;
#pragma unroll
        for (int n = 0; n < warp_keys / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores[n][i] = capped_score<P>(scores[n][i], float_of_bits(P::SCALE_BITS));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float max = e.max[i];
#pragma unroll
            for (int n = 0; n < warp_keys / 8; n++) max = fmaxf(max, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
            /* No token seen yet: any finite number works. */
            float base = max == -infinity() ? 0 : max * scale;
            float factor = exp2_approximate(e.max[i] * scale - base), sum = 0;
            e.max[i] = max;
#pragma unroll
            for (int n = 0; n < warp_keys / 8; n++) {
#pragma unroll
                for (int j = 2 * i; j < 2 * i + 2; j++) {
                    scores[n][j] = exp2_approximate(scores[n][j] * scale - base);
                    sum += scores[n][j];
                }
            }
            e.sum[i] = e.sum[i] * factor + sum;
#pragma unroll
            for (int d = 0; d < value_dim / 8; d++) {
                e.out[d][2 * i] *= factor;
                e.out[d][2 * i + 1] *= factor;
            }
        }
    }

    /* e.out += weights * v. v: shared address of this warp's first token. */
    static __device__ __forceinline__ void add_values(struct entries &e, const float (&weights)[warp_keys / 8][4],
                                                      u32 v)
    {
        int lane = (int)threadIdx.x % 32;
        if constexpr (halves) {
            v += (u32)((lane % 16) * value_row_bytes + lane / 16 * 16);
#pragma unroll
            for (int k = 0; k < warp_keys / 16; k++) {
                const u32 a[4] = {
                    pack_halves<P::X_DTYPE>(weights[2 * k][0], weights[2 * k][1]),
                    pack_halves<P::X_DTYPE>(weights[2 * k][2], weights[2 * k][3]),
                    pack_halves<P::X_DTYPE>(weights[2 * k + 1][0], weights[2 * k + 1][1]),
                    pack_halves<P::X_DTYPE>(weights[2 * k + 1][2], weights[2 * k + 1][3]),
                };
#pragma unroll
                for (int d = 0; d < value_dim / 16; d++) {
                    u32 b[4];
                    load_matrices_transposed(b, v + k * 16 * value_row_bytes + 32 * d);
                    multiply(e.out[2 * d], a, b[0], b[1]);
                    multiply(e.out[2 * d + 1], a, b[2], b[3]);
                }
            }
        } else {
            /* Weights of tokens 2c and 2c + 1 stand where the product wants steps c and c + 4: so do the values. */
            v += (u32)((lane % 4) * 2 * value_row_bytes + lane / 4 * 4);
#pragma unroll
            for (int k = 0; k < warp_keys / 8; k++) {
                const u32 a[4] = {bits_of_float(weights[k][0]), bits_of_float(weights[k][2]),
                                  bits_of_float(weights[k][1]), bits_of_float(weights[k][3])};
#pragma unroll
                for (int d = 0; d < value_dim / 8; d++) {
                    u32 b[2];
                    b[0] = load_shared_word_ordered(v + k * 8 * value_row_bytes + 32 * d);
                    b[1] = load_shared_word_ordered(v + (k * 8 + 1) * value_row_bytes + 32 * d);
                    multiply(e.out[d], a, b[0], b[1]);
                }
            }
        }
    }

    /* Warp `part` 0 merges the partial results of the other warps of its entries, in their order. */
    static __device__ __forceinline__ void merge_parts(u8 *memory, struct entries &e, int warp_q, int part)
    {
        const float scale = float_of_bits(P::SCALE_BITS) * SCORES_LOG2_E;
        int lane = (int)threadIdx.x % 32;
        float *partial = (float *)(memory + stage_offset);
        if (part > 0) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float *to = partial + ((part - 1) * tile + warp_q * 16 + lane / 4 + 8 * i) * partial_floats;
#pragma unroll
                for (int d = 0; d < value_dim / 8; d++) {
                    to[8 * d + lane % 4 * 2] = e.out[d][2 * i];
                    to[8 * d + lane % 4 * 2 + 1] = e.out[d][2 * i + 1];
                }
                if (lane % 4 == 0) {
                    to[value_dim] = e.max[i];
                    to[value_dim + 1] = e.sum[i];
                }
            }
        }
        __syncthreads();
        if (part > 0) return;
        for (int other = 1; other < P::SPLIT; other++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *from = partial + ((other - 1) * tile + warp_q * 16 + lane / 4 + 8 * i) * partial_floats;
                const u32 values = shared_address(from + lane % 4 * 2); /* in order: all at once they would spill */
                float max = fmaxf(e.max[i], from[value_dim]);
                float base = max == -infinity() ? 0 : max * scale;
                float mine = exp2_approximate(e.max[i] * scale - base);
                float theirs = exp2_approximate(from[value_dim] * scale - base);
                e.max[i] = max;
                e.sum[i] = e.sum[i] * mine + from[value_dim + 1] * theirs;
#pragma unroll
                for (int d = 0; d < value_dim / 8; d++) {
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        e.out[d][2 * i + j] =
                            e.out[d][2 * i + j] * mine +
                            float_of_bits(load_shared_word_ordered(values + (u32)(8 * d + j) * 4)) * theirs;
                }
            }
        }
    }

    static __device__ __forceinline__ void store_entry(void *out, int row, int head, const struct entries &e, int i,
                                                       const void *sinks)
    {
        const float max = e.max[i] * (float_of_bits(P::SCALE_BITS) * SCORES_LOG2_E);
        float factor = reciprocal(e.sum[i] + sink_term<P>(sinks, head, max));
#pragma unroll
        for (int d = 0; d < value_dim / 8; d++) {
            int column = first_value() + 8 * d + (int)threadIdx.x % 4 * 2;
            if (column >= P::HEAD_DIM) continue;
            i64 index = ((i64)row * P::HEADS + head) * P::HEAD_DIM + column;
            float low = e.out[d][2 * i] * factor, high = e.out[d][2 * i + 1] * factor;
            if constexpr (P::X_DTYPE == DTYPE_F32)
                *(float2 *)((float *)out + index) = make_float2(low, high);
            else
                *(u32 *)((u16 *)out + index) = pack_halves<P::X_DTYPE>(low, high);
        }
    }

    /* Rows [begin, end) of one slot, which see nothing outside tokens [first, last]. */
    struct row_run {
        int begin, end, first, last;
    };

    /* All tokens of a run for the entries of its rows. */
    static __device__ __forceinline__ void walk_run(u8 *memory, struct entries &e, const struct row_run &run,
                                                    const u8 *kv, const i32 *pages, int g, int warp_q, int part)
    {
        int lane = (int)threadIdx.x % 32;
        u8 *stages = memory + stage_offset;
        u32 q = shared_address(memory + q_offset) + (u32)((warp_q * 16 + lane % 16) * row_bytes + lane / 16 * 16);
        u32 key_offset = (u32)((part * warp_keys + lane % 8 + lane / 16 * 8) * row_bytes + lane / 8 % 2 * 16);
        int begin = run.first / P::KEY_TILE, end = run.last / P::KEY_TILE + 1;
        load_keys(stages, kv, pages, g, begin * P::KEY_TILE, run.first, run.last);
        for (int i = begin; i < end; i++) {
            u8 *stage = stages + (i - begin) % 2 * stage_bytes;
            if (i + 1 < end) {
                load_keys(stages + (i + 1 - begin) % 2 * stage_bytes, kv, pages, g, (i + 1) * P::KEY_TILE, run.first,
                          run.last);
                copy_wait<1>();
            } else {
                copy_wait<0>();
            }
            __syncthreads();
            float scores[warp_keys / 8][4];
            score_keys(scores, q, shared_address(stage) + key_offset);
            mask_keys(scores, e, run.begin, run.end, i * P::KEY_TILE + part * warp_keys);
            weigh_keys(scores, e);
            add_values(e, scores,
                       shared_address(stage) + (u32)(P::KEY_TILE * row_bytes + part * warp_keys * value_row_bytes));
            __syncthreads();
        }
    }

    /* The rows of the slot that a block has a tile of, and the tile's first entry; begin == end: there is no such tile. */
    struct row_tile {
        int begin, end, first_entry;
    };

    /* The block's tile, with SCATTERED: found by every warp for itself. */
    static __device__ __forceinline__ struct row_tile find_tile(const i32 *slots, int valid)
    {
        int number = (int)blockIdx.x, begin = 0, lane = (int)threadIdx.x % 32;
        for (int first = 0; first < valid; first += 32) {
            int row = first + lane;
            u32 last_rows =
                __ballot_sync(0xffffffffu, row < valid && (row + 1 == valid || slots[row + 1] != slots[row]));
            for (; last_rows != 0; last_rows &= last_rows - 1) {
                int end = first + __ffs((int)last_rows), tiles = ((end - begin) * group + tile - 1) / tile;
                if (number < tiles) return row_tile{begin, end, begin * group + number * tile};
                number -= tiles;
                begin = end;
            }
        }
        return row_tile{valid, valid, 0};
    }

    /* `memory`: shared, laid out as attention_layout.cuh says, aligned to 128. `sinks`: null without HAS_SINKS. */
    static __device__ __forceinline__ void run(u8 *memory, const i32 *counts, const void *q, const i32 *slots,
                                               const i32 *positions, const i32 *page_table, const u8 *kv, void *out,
                                               const void *sinks)
    {
        __shared__ i32 row_slot[tile], row_position[tile];
        static_assert(sizeof row_slot + sizeof row_position == layout.static_bytes, "as the host counts");
        device_trigger();
        int g = (int)blockIdx.y, first_entry = (int)(gridDim.x - 1 - blockIdx.x) * tile; /* longest contexts first */
        int warp_q = (int)threadIdx.x / 32 % P::WARPS_Q, part = (int)threadIdx.x / 32 / P::WARPS_Q,
            lane = (int)threadIdx.x % 32;
        /* Clears the padding, which the copies never write. */
        for (int i = (int)threadIdx.x; i < 2 * P::KEY_TILE; i += threads) {
            u8 *stage = memory + stage_offset + i / P::KEY_TILE * stage_bytes;
            u8 *k = stage + i % P::KEY_TILE * row_bytes;
            u8 *v = stage + P::KEY_TILE * row_bytes + i % P::KEY_TILE * value_row_bytes;
            for (int column = P::HEAD_DIM; column < dim; column += 4 / element) *(u32 *)(k + column * element) = 0;
            for (int column = P::HEAD_DIM - first_value(); column < value_dim; column += 4 / element)
                *(u32 *)(v + column * element) = 0;
        }
        device_wait();
        int valid = min(counts[P::COUNT_INDEX], P::ROWS);
        if constexpr (P::SCATTERED) {
            const struct row_tile own = find_tile(slots, valid);
            if (own.begin == own.end) return;
            first_entry = own.first_entry;
            valid = own.end;
        }
        int row_begin = first_entry / group, row_end = min((first_entry + tile - 1) / group + 1, valid);
        if (row_begin >= row_end) return;
        for (int i = (int)threadIdx.x; i < row_end - row_begin; i += threads) {
            row_slot[i] = slots[row_begin + i];
            row_position[i] = positions[row_begin + i];
        }
        load_queries(memory, q, g, first_entry, valid);
        __syncthreads();

        struct entries e;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = (first_entry + warp_q * 16 + lane / 4 + 8 * i) / group;
            int position = row < row_end ? row_position[row - row_begin] : -1;
            e.row[i] = row;
            e.first[i] = P::WINDOW > 0 ? max(0, position - P::WINDOW + 1) : 0;
            e.last[i] = position;
            e.max[i] = -infinity();
            e.sum[i] = 0;
        }
#pragma unroll
        for (int d = 0; d < value_dim / 8; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) e.out[d][i] = 0;

        struct row_run run;
        run.begin = row_begin;
        for (; run.begin < row_end; run.begin = run.end) {
            int slot = row_slot[run.begin - row_begin];
            run.first = 0x7fffffff;
            run.last = 0;
            for (run.end = run.begin; run.end < row_end && row_slot[run.end - row_begin] == slot; run.end++) {
                int position = row_position[run.end - row_begin];
                run.first = min(run.first, P::WINDOW > 0 ? max(0, position - P::WINDOW + 1) : 0);
                run.last = max(run.last, position);
            }
            walk_run(memory, e, run, kv, page_table + (i64)slot * P::PAGES_PER_SLOT, g, warp_q, part);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            e.sum[i] += __shfl_xor_sync(0xffffffffu, e.sum[i], 1);
            e.sum[i] += __shfl_xor_sync(0xffffffffu, e.sum[i], 2);
        }
        if constexpr (P::SPLIT > 1) merge_parts(memory, e, warp_q, part);
        if (part > 0) return;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int entry = first_entry + warp_q * 16 + lane / 4 + 8 * i;
            if (entry / group < row_end) store_entry(out, entry / group, g * group + entry % group, e, i, sinks);
        }
    }
};

#endif
