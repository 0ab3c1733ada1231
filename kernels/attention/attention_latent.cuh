/* SPDX-License-Identifier: Apache-2.0 */
/* attention_latent: attention over the rows of latent attention, of which each head reads all, k as well as v (contract:
 * attention_device.h).
 *
 * A block has 16 * WARPS_Q entries, an entry being one (row, head), and walks over the tokens of each slot that its rows
 * belong to, KEY_TILE at a time, so that a token's row is read once for all of them; v is a part of it in shared memory.
 * WARPS_V warps share 16 entries: each scores its part of a tile's tokens, of at least 8, where two warps may share the columns, then
 * all exchange their weights through shared memory, and each adds up its part of v's columns. GROUPS clusters of SPLIT blocks share the tokens of the same entries:
 * tiles are dealt to the blocks in turn, and each block of a cluster merges a part of the columns at the end. The last of the
 * clusters that have tokens takes over the results of the others, which they leave in the counters, whose words are zero until
 * they are written, and makes them zero again. Two tiles are in flight (cp.async). Where a block's entries belong to one row,
 * which decode has, the tiles in flight at the beginning are asked for before the launches before have completed, and a context
 * of up to SPLIT tiles goes another way (attention_latent_short.cuh).
 *
 * Accumulation f32, online softmax in base 2, products of X_DTYPE, weights and codes of the pages rounded to it. A row's
 * result depends on nothing but the row, its tokens and the tunables. */
#ifndef KERNELS_ATTENTION_ATTENTION_LATENT_CUH
#define KERNELS_ATTENTION_ATTENTION_LATENT_CUH

#include "kernels/attention/attention_latent_short.cuh"
#include "kernels/attention/attention_latent_tile.cuh"
#include "kernels/rope_attention/rope_attention_merge.cuh"

template <class P> struct attention_latent_body {
    typedef attention_latent_tile<P> tiles;
    typedef typename tiles::place place;
    typedef typename tiles::sequence sequence;
    static constexpr int threads = tiles::threads;
    /* On a multiprocessor, for the compiler, which otherwise may spill registers to have room for one more. */
    static constexpr int LEAST_BLOCKS = 1;
    static constexpr int warp_keys = tiles::warp_keys;
    static constexpr int DEALT = P::SPLIT * P::GROUPS; /* blocks that share the tokens of an entry */
    static constexpr attention_latent_layout layout = tiles::layout;
    static constexpr int tile = tiles::tile, dim = tiles::dim, row_bytes = tiles::row_bytes;
    static constexpr int stage_offset = tiles::stage_offset, stage_bytes = tiles::stage_bytes;
    static constexpr int weights_offset = (int)layout.weights_offset, weights_row = (int)layout.weights_row_bytes;
    static constexpr int value_blocks = (P::VALUE_DIM + 15) / 16; /* of 16 columns */
    static constexpr int own_blocks = (value_blocks + P::WARPS_V - 1) / P::WARPS_V;
    static constexpr int partial_floats = (int)layout.partial_floats;
    static constexpr int MERGE_BATCH =
        P::GROUPS < 9 ? P::GROUPS : 8; /* loads of other clusters' results that are in flight */
    /* Whether a block's entries belong to one row: what earlier steps wrote of its sequence is then read before the launches
     * before have completed. With more rows it would take too long to find out what that is. */
    static constexpr bool ONE_ROW = P::HEADS % tile == 0 && P::ROWS <= 256;
    static constexpr bool SHORT = ONE_ROW && layout.has_slab;
    /* Tiles that a block takes before one more cluster takes part, whose results cost more to merge than 64 tokens. */
    static constexpr int LEAST_TILES = ONE_ROW ? 64 / P::KEY_TILE : 1;

    /* Asks for those of tokens [begin, end) that are in the tile of `first`, into its stage. */
    static __device__ __forceinline__ void load_keys(u8 *stage, const sequence &from, int first, int begin, int end)
    {
        const int low = max(begin, first), high = min(end, first + P::KEY_TILE);
        tiles::template load_tokens<P::HEAD_DIM, row_bytes, true>(stage + (low - first) * row_bytes, from, low, high,
                                                                  0);
    }
    /* All of the tile of `first`: zeros after token `last`. */
    static __device__ __forceinline__ void load_tile(u8 *stage, const sequence &from, int first, int last)
    {
        load_keys(stage, from, first, first, last + 1);
        clear_after(stage, first, last);
        copy_commit();
    }
    static __device__ __forceinline__ void clear_after(u8 *stage, int first, int last)
    {
        const int there = last + 1 - first;
        tiles::template clear_tokens<P::HEAD_DIM, row_bytes>(stage + there * row_bytes, P::KEY_TILE - there);
    }

    /* State of a thread's two entries (rows lane / 4 and lane / 4 + 8 of the warp's sixteen). */
    struct entries {
        int row[2], last[2];  /* tokens up to `last` */
        float max[2], sum[2]; /* of the scores; sum: of this thread's tokens */
        float out[2 * own_blocks][4];
    };
    /* Scores of entries of rows outside [begin, end) and of tokens that the entry does not see become -infinity. */
    static __device__ __forceinline__ void mask_keys(float (&scores)[warp_keys / 8][4], const struct entries &e,
                                                     int begin, int end, int token)
    {
        const int column = 2 * ((int)threadIdx.x % 4);
#pragma unroll
        for (int n = 0; n < warp_keys / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int t = token + 8 * n + column + i % 2, row = e.row[i / 2];
                if (row < begin || row >= end || t > e.last[i / 2]) scores[n][i] = -infinity();
            }
        }
    }

    /* Scores become weights in shared memory; maximum, sum and what was accumulated follow. */
    static __device__ __forceinline__ void weigh_keys(u8 *memory, const float (&scores)[warp_keys / 8][4],
                                                      struct entries &e, const place &at)
    {
        const float scale = float_of_bits(P::SCALE_BITS) * SCORES_LOG2_E;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int entry = at.warp_q * 16 + at.lane / 4 + 8 * i;
            float max = e.max[i];
#pragma unroll
            for (int part = 0; part < tiles::key_warps; part++)
                max = fmaxf(max, tiles::maxima(memory)[part * tile + entry]);
            /* No token seen yet: any finite number works. */
            const float base = max == -infinity() ? 0 : max * scale;
            const float factor = exp2_approximate(e.max[i] * scale - base);
            u8 *weights =
                memory + weights_offset + entry * weights_row + (tiles::key_part(at) * warp_keys + at.lane % 4 * 2) * 2;
            float sum = 0;
            e.max[i] = max;
#pragma unroll
            for (int n = 0; n < warp_keys / 8; n++) {
                if (!tiles::has_scores(at)) continue;
                const float low = exp2_approximate(scores[n][2 * i] * scale - base);
                const float high = exp2_approximate(scores[n][2 * i + 1] * scale - base);
                sum += low + high;
                *(u32 *)(weights + n * 16) = pack_halves<P::X_DTYPE>(low, high);
            }
            e.sum[i] = e.sum[i] * factor + sum;
#pragma unroll
            for (int d = 0; d < 2 * own_blocks; d++) {
                e.out[d][2 * i] *= factor;
                e.out[d][2 * i + 1] *= factor;
            }
        }
    }

    /* e.out += weights * the warp's columns of v. */
    static __device__ __forceinline__ void add_values(struct entries &e, u32 weights, u32 stage, const place &at)
    {
        const int first = at.part * own_blocks;
        weights += (u32)((at.warp_q * 16 + at.lane % 16) * weights_row + at.lane / 16 * 16);
        stage += (u32)(at.lane % 16 * row_bytes + at.lane / 16 * 16 + first * 32);
#pragma unroll
        for (int k = 0; k < P::KEY_TILE / 16; k++) {
            u32 a[4];
            load_matrices(a, weights + 32 * k);
#pragma unroll
            for (int d = 0; d < own_blocks; d++) {
                if (value_blocks % P::WARPS_V && first + d >= value_blocks) continue;
                u32 b[4];
                load_matrices_transposed(b, stage + k * 16 * row_bytes + 32 * d);
                mma<P::X_DTYPE>(e.out[2 * d], a[0], a[1], a[2], a[3], b[0], b[1]);
                mma<P::X_DTYPE>(e.out[2 * d + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            }
        }
    }

    /* Rows [begin, end) of one slot, which see nothing after token `last`. */
    struct row_run {
        int begin, end, last;
    };

    /* Tile `first`, then every `stride`-th, of a run for the entries of its rows. `asked`: tiles that are on their way. */
    static __device__ __forceinline__ void walk_run(u8 *memory, struct entries &e, const struct row_run &run,
                                                    const sequence &from, const place &at, int first, int stride,
                                                    int asked)
    {
        u8 *stages = memory + stage_offset;
        const u32 q = tiles::query_address(memory, at), key_offset = tiles::key_offset(at);
        const int end = run.last / P::KEY_TILE + 1;
        if (asked < 1 && first < end) load_tile(stages, from, first * P::KEY_TILE, run.last);
        for (int i = first, turn = 0; i < end; i += stride, turn ^= 1, asked--) {
            u8 *stage = stages + turn * stage_bytes;
            copy_wait<0>();
            __syncthreads(); /* the tile has come; the tile before and its weights have been used */
            if (asked < 2 && i + stride < end)
                load_tile(stages + (turn ^ 1) * stage_bytes, from, (i + stride) * P::KEY_TILE, run.last);
            float scores[warp_keys / 8][4];
            tiles::score_keys(memory, scores, q, shared_address(stage) + key_offset, at);
            if (tiles::has_scores(at)) {
                mask_keys(scores, e, run.begin, run.end, i * P::KEY_TILE + tiles::key_part(at) * warp_keys);
                tiles::leave_maxima(memory, scores, at);
            }
            __syncthreads();
            weigh_keys(memory, scores, e, at);
            __syncthreads();
            add_values(e, shared_address(memory + weights_offset), shared_address(stage), at);
        }
        __syncthreads(); /* the stages are free */
    }

    /* The sums of all tokens of the block. */
    static __device__ __forceinline__ void add_sums(u8 *memory, struct entries &e, const place &at)
    {
        float *sums = tiles::maxima(memory);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            e.sum[i] += __shfl_xor_sync(0xffffffffu, e.sum[i], 1);
            e.sum[i] += __shfl_xor_sync(0xffffffffu, e.sum[i], 2);
            if (at.lane % 4 == 0) sums[at.part * tile + at.warp_q * 16 + at.lane / 4 + 8 * i] = e.sum[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            e.sum[i] = 0;
#pragma unroll
            for (int part = 0; part < P::WARPS_V; part++)
                e.sum[i] += sums[part * tile + at.warp_q * 16 + at.lane / 4 + 8 * i];
        }
    }

    static __device__ __forceinline__ void store_entries(u16 *out, const struct entries &e, int first_entry,
                                                         int entries, const place &at)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int entry = at.warp_q * 16 + at.lane / 4 + 8 * i;
            if (entry >= entries) continue;
            const float factor = reciprocal(e.sum[i]);
            u16 *row = out + ((i64)first_entry + entry) * P::VALUE_DIM;
#pragma unroll
            for (int d = 0; d < 2 * own_blocks; d++) {
                const int column = at.part * own_blocks * 16 + 8 * d + at.lane % 4 * 2;
                if (column >= P::VALUE_DIM) continue;
                *(u32 *)(row + column) =
                    pack_halves<P::X_DTYPE>(e.out[d][2 * i] * factor, e.out[d][2 * i + 1] * factor);
            }
        }
    }

    /* What this block has of each entry, into shared memory. */
    static __device__ __forceinline__ void leave_partials(u8 *memory, const struct entries &e, const place &at)
    {
        __syncthreads(); /* everything in shared memory has been read */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *to = (float *)memory + (at.warp_q * 16 + at.lane / 4 + 8 * i) * partial_floats;
#pragma unroll
            for (int d = 0; d < 2 * own_blocks; d++) {
                const int column = at.part * own_blocks * 16 + 8 * d + at.lane % 4 * 2;
                if (column < P::VALUE_DIM) *(float2 *)(to + column) = make_float2(e.out[d][2 * i], e.out[d][2 * i + 1]);
            }
            if (at.part == 0 && at.lane % 4 == 0) {
                to[P::VALUE_DIM] = e.max[i] * (float_of_bits(P::SCALE_BITS) * SCORES_LOG2_E);
                to[P::VALUE_DIM + 1] = e.sum[i];
            }
        }
        if constexpr (P::SPLIT > 1)
            cluster_sync();
        else
            __syncthreads();
    }

    /* The place `address` of this block's shared memory in another block of the cluster. */
    static __device__ __forceinline__ u32 of_block(u32 address, int block)
    {
        if constexpr (P::SPLIT > 1) return cluster_address(address, (u32)block);
        return address;
    }

    /* Four columns of an entry of all blocks of the cluster, in their order. `from`: the entry's place in shared memory. */
    static __device__ __forceinline__ merged merge_blocks(u32 from, int column)
    {
        merged all = {make_float4(0, 0, 0, 0), -infinity(), 0};
#pragma unroll
        for (int block = 0; block < P::SPLIT; block++)
            all.maximum =
                fmaxf(all.maximum, float_of_bits(cluster_load_word(of_block(from + P::VALUE_DIM * 4, block))));
        const float base =
            all.maximum == -infinity() ? 0 : all.maximum; /* the cluster may have no token of the entry */
#pragma unroll
        for (int block = 0; block < P::SPLIT; block++) {
            const u32 theirs = of_block(from, block);
            const float factor = exp2_approximate(float_of_bits(cluster_load_word(theirs + P::VALUE_DIM * 4)) - base);
            const float4 value = cluster_load(theirs + (u32)column * 4);
            all.sum += factor * float_of_bits(cluster_load_word(theirs + P::VALUE_DIM * 4 + 4));
            all.value.x += factor * value.x;
            all.value.y += factor * value.y;
            all.value.z += factor * value.z;
            all.value.w += factor * value.w;
        }
        return all;
    }

    static __device__ __forceinline__ void add_part(merged &all, float4 value, float2 part)
    {
        const float maximum = fmaxf(all.maximum, part.x), base = maximum == -infinity() ? 0 : maximum;
        const float old = exp2_approximate(all.maximum - base), factor = exp2_approximate(part.x - base);
        all.maximum = maximum;
        all.sum = all.sum * old + factor * part.y;
        all.value.x = all.value.x * old + factor * value.x;
        all.value.y = all.value.y * old + factor * value.y;
        all.value.z = all.value.z * old + factor * value.z;
        all.value.w = all.value.w * old + factor * value.w;
    }

    /* The results of a tile of entries, of which `groups` clusters have tokens; this one is `group`. */
    static __device__ __forceinline__ void merge_all(u8 *memory, u16 *out, float4 *counters, int block, int group,
                                                     int groups, int first_entry, int entries, int rank)
    {
        constexpr int pieces = P::VALUE_DIM / 4, tile_pieces = tile * pieces;
        constexpr int tiles = (P::ROWS * P::HEADS + tile - 1) / tile;
        float4 *quads = counters + (i64)block * (P::GROUPS - 1) * tile_pieces;
        float2 *sums = (float2 *)(counters + (i64)tiles * (P::GROUPS - 1) * tile_pieces) +
                       (i64)block * (P::GROUPS - 1) * tile_pieces;
        for (int i = rank * threads + (int)threadIdx.x; i < entries * pieces; i += P::SPLIT * threads) {
            const int entry = i / pieces, column = i % pieces * 4;
            merged all = merge_blocks(shared_address((float *)memory + entry * partial_floats), column);
            if (group + 1 < groups) {
                const float4 v = all.value;
                quads[(i64)group * tile_pieces + i] = make_float4(marked(v.x), marked(v.y), marked(v.z), marked(v.w));
                sums[(i64)group * tile_pieces + i] = make_float2(marked(all.maximum), marked(all.sum));
                continue;
            }
            for (int start = 0; start + 1 < groups; start += MERGE_BATCH) {
                float4 values[MERGE_BATCH];
                float2 parts[MERGE_BATCH];
#pragma unroll
                for (int j = 0; j < MERGE_BATCH; j++) {
                    const i64 other = (i64)min(start + j, groups - 2) * tile_pieces + i;
                    values[j] = load_relaxed(quads + other);
                    parts[j] = load_relaxed(sums + other);
                }
#pragma unroll
                for (int j = 0; j < MERGE_BATCH; j++) {
                    if (start + j + 1 >= groups) continue;
                    const i64 other = (i64)(start + j) * tile_pieces + i;
                    while (!is_written(values[j])) values[j] = load_relaxed(quads + other);
                    while (!is_written(parts[j])) parts[j] = load_relaxed(sums + other);
                    quads[other] = make_float4(0, 0, 0, 0);
                    sums[other] = make_float2(0, 0);
                    add_part(all, values[j], parts[j]);
                }
            }
            const float factor = reciprocal(all.sum);
            const float values[4] = {all.value.x * factor, all.value.y * factor, all.value.z * factor,
                                     all.value.w * factor};
            store_elements<P::X_DTYPE>(out, ((i64)first_entry + entry) * P::VALUE_DIM + column, values);
        }
        if constexpr (P::SPLIT > 1) cluster_sync(); /* the others have read */
    }

    /* Clusters that share the tokens of rows [begin, end). */
    static __device__ __forceinline__ int groups_of(const i32 *positions, int begin, int end)
    {
        int last = 0;
        for (int row = begin; row < end; row++) last = max(last, positions[row]);
        return min(P::GROUPS, last / (P::KEY_TILE * P::SPLIT * LEAST_TILES) + 1);
    }

    /* Tokens of `slot` before this one were written by earlier steps: it is the first of the slot's rows. By whole warps. */
    static __device__ __forceinline__ int first_of_step(const i32 *slots, const i32 *positions, int slot, int valid)
    {
        if constexpr (P::ROWS == 1) return positions[0];
        int first = 0x7fffffff;
#pragma unroll
        for (int base = 0; base < P::ROWS; base += 32) {
            const int row = base + (int)threadIdx.x % 32, at = min(row, P::ROWS - 1);
            const int other = slots[at], position = positions[at];
            if (row < valid && other == slot) first = min(first, position);
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) first = min(first, __shfl_xor_sync(0xffffffffu, first, offset));
        return first;
    }

    /* Grid: SPLIT * GROUPS blocks of each tile of entries. Counts, slots, positions, the page table and tokens that earlier steps
     * wrote are read before the launches before have completed, which write none of them. `memory`: shared, laid out as
     * attention_layout.cuh says, aligned to 128. */
    static __device__ __forceinline__ void run(u8 *memory, const i32 *counts, const u16 *q, const i32 *slots,
                                               const i32 *positions, const i32 *page_table, const u8 *kv, u16 *out,
                                               float4 *counters)
    {
        device_trigger();
        const int rank = (int)blockIdx.x % P::SPLIT, group = (int)blockIdx.x / P::SPLIT % P::GROUPS;
        const int block = (int)gridDim.x / DEALT - 1 - (int)blockIdx.x / DEALT; /* longest contexts first */
        const int first_entry = block * tile, first_tile = rank + P::SPLIT * group;
        const place at = {(int)threadIdx.x / 32 % P::WARPS_Q, (int)threadIdx.x / 32 / P::WARPS_Q,
                          (int)threadIdx.x % 32};
        /* Clears the padding, which the copies never write. */
        if constexpr (dim > P::HEAD_DIM) {
            for (int i = (int)threadIdx.x; i < 2 * P::KEY_TILE; i += threads)
                *(uint4 *)(memory + stage_offset + i * row_bytes + P::HEAD_DIM * 2) = make_uint4(0, 0, 0, 0);
            if constexpr (SHORT) __syncthreads(); /* the slab may lie there */
        }
        /* Loads that do not wait for one another. Rows that are not valid have numbers, too, which are not used. */
        int row[2], position[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            row[i] = (first_entry + at.warp_q * 16 + at.lane / 4 + 8 * i) / P::HEADS;
            position[i] = positions[min(row[i], P::ROWS - 1)];
        }
        const int first_slot = slots[first_entry / P::HEADS];
        const int valid = min(counts[P::COUNT_INDEX], P::ROWS);
        const int entries = min(valid * P::HEADS - first_entry, tile); /* that there are */
        const int row_end = (first_entry + entries - 1) / P::HEADS + 1;
        int groups = 1;
        if constexpr (P::GROUPS > 1) {
            if (entries > 0) groups = groups_of(positions, first_entry / P::HEADS, row_end);
        }
        if (entries <= 0 || group >= groups) { /* the whole cluster */
            device_wait();
            return;
        }

        struct entries e;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int entry = at.warp_q * 16 + at.lane / 4 + 8 * i;
            e.row[i] = entry < entries ? row[i] : row_end;
            e.last[i] = entry < entries ? position[i] : -1;
            e.max[i] = -infinity();
            e.sum[i] = 0;
        }
#pragma unroll
        for (int d = 0; d < 2 * own_blocks; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) e.out[d][i] = 0;

        struct row_run run;
        run.begin = first_entry / P::HEADS;
        if constexpr (ONE_ROW) {
            run.end = row_end, run.last = position[0];
            const sequence from = {kv, page_table + (i64)first_slot * P::PAGES_PER_SLOT};
            const int written = first_of_step(slots, positions, first_slot, valid);
            if constexpr (SHORT) {
                if (run.last < P::SPLIT * P::KEY_TILE) {
                    attention_latent_short<P>::run(memory, q, out, from, first_entry, run.last, written, rank, at);
                    return;
                }
            }
            u8 *const stages = memory + stage_offset;
            const int stride = P::SPLIT * groups;
            const int tokens[2] = {first_tile * P::KEY_TILE, (first_tile + stride) * P::KEY_TILE};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (tokens[i] > run.last) continue;
                load_keys(stages + i * stage_bytes, from, tokens[i], 0, written);
                clear_after(stages + i * stage_bytes, tokens[i], run.last);
            }
            device_wait();
            tiles::load_queries(memory, q, first_entry, entries);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (tokens[i] <= run.last) load_keys(stages + i * stage_bytes, from, tokens[i], written, run.last + 1);
            copy_commit();
            walk_run(memory, e, run, from, at, first_tile, stride, 2);
        } else {
            device_wait();
            tiles::load_queries(memory, q, first_entry, entries);
            copy_commit();
            for (; run.begin < row_end; run.begin = run.end) {
                const int slot = run.begin == first_entry / P::HEADS ? first_slot : slots[run.begin];
                const sequence from = {kv, page_table + (i64)slot * P::PAGES_PER_SLOT};
                run.last = 0;
                for (run.end = run.begin; run.end < row_end && slots[run.end] == slot; run.end++)
                    run.last = max(run.last, positions[run.end]);
                walk_run(memory, e, run, from, at, first_tile, DEALT, 0);
            }
        }
        copy_wait<0>(); /* q of a block without a tile */
        add_sums(memory, e, at);
        if constexpr (DEALT > 1) {
            leave_partials(memory, e, at);
            merge_all(memory, out, counters, block, group, groups, first_entry, entries, rank);
        } else {
            store_entries(out, e, first_entry, entries, at);
        }
    }
};

#endif
