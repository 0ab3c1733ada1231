/* SPDX-License-Identifier: Apache-2.0 */
/* attention_prefill: causal grouped-query attention of the rows of one prompt chunk over its sequence's KV pages, or of rows of several
 * sequences over theirs.
 *
 *   out[r, h, :] = sum over t of softmax_t(SCALE * q[r, h] . k[t, g]) * v[t, g],  g = h / (HEADS / KV_HEADS),
 *   t from max(0, positions[r] - WINDOW + 1) (WINDOW 0: from 0) to positions[r] inclusive.
 *
 * All valid rows belong to slots[0], and positions[r] = positions[0] + r; k and v of the chunk are in the pages. With SCATTERED that holds
 * for each run of rows of one slot; no slot has two runs, and counts, slots and positions are read before the launches before have
 * completed.
 *
 * Operands: counts i32[2]; q: tensor map of X_DTYPE[ROWS, HEADS * HEAD_DIM], boxes of 64 columns x 64 rows, with SCATTERED of
 * attention_prefill_part_rows; slots i32[ROWS];
 * positions i32[ROWS]; page_table i32[SLOT_COUNT, PAGES_PER_SLOT]; kv: tensor map of KV_DTYPE[rows, HEAD_DIM] over
 * the pool from the layer's offset on, boxes of 64 columns x min(PAGE_TOKENS, KEY_TILE) rows, or where KV_DTYPE has codes
 * the address of the layer's block in page 0; out X_DTYPE[ROWS, HEADS * HEAD_DIM], 16-byte aligned, may be q's memory.
 *
 * As FlashAttention-3: a block has a producer warp and TILE_Q / 64 consumer warpgroups of 64 rows each. The producer
 * loads q tiles and a ring of STAGES tiles of k, and of v, KEY_TILE tokens each, by TMA. A consumer issues the
 * scores of the next tile and the second product of the current one together; with PING_PONG the warpgroups take
 * turns at that, so that one computes exponentials while the other multiplies. Keys are taken from the last tile
 * down: only the first and, with a window, the last ones need masks.
 *
 * Codes become X_DTYPE on their way into the ring, rounded once: all four warps of the producer's warpgroup load and
 * convert them.
 *
 * Blocks are persistent. Tiles of q are numbered from the longest context to the shortest, heads of a group side by
 * side so that they meet in L2, and dealt to the blocks to and fro, which gives all about the same number of
 * products. With SCATTERED they are numbered from the last row to the first, whatever their contexts.
 *
 * With SCATTERED a tile has rows of one slot and all heads of a group, unless those are more than 8. Each block lists the tiles.
 *
 * With SPLIT > 1 every tile of q has a cluster of its own, the blocks of which share its keys. They leave their
 * partial results in shared memory, and each merges some of the rows, always in the same order.
 *
 * Accumulation f32, softmax online in base 2, p rounded to X_DTYPE before the second product but summed unrounded.
 * Two runs give the same bits; another chunking of the prompt or other tunables give other roundings. */
#ifndef KERNELS_ATTENTION_ATTENTION_PREFILL_CUH
#define KERNELS_ATTENTION_ATTENTION_PREFILL_CUH

#include "kernels/attention/attention_layout.cuh"
#include "kernels/cuda/include/scores.cuh"
#include "kernels/cuda/include/kv.cuh"
#include "kernels/cuda/include/tma.cuh"
#include "kernels/cuda/include/wgmma.cuh"

/* The operand kv. */
template <bool CODED> struct attention_prefill_kv {
    typedef tensor_map type;
};
template <> struct attention_prefill_kv<true> {
    typedef const u8 *type;
};

template <class P> struct attention_prefill_body {
    static constexpr int consumers = P::TILE_Q / 64; /* warpgroups */
    static constexpr int threads = (int)attention_prefill_threads(P::TILE_Q);
    static constexpr int group = P::HEADS / P::KV_HEADS;
    static constexpr int tile_heads = (int)attention_prefill_tile_heads(group, P::SCATTERED);
    static constexpr int part_rows = (int)attention_prefill_part_rows(tile_heads); /* of a warpgroup */
    static constexpr int tile_rows = consumers * part_rows;
    static constexpr int head_tiles = P::HEADS / tile_heads;
    static constexpr int most_tiles =
        P::SCATTERED ? (int)attention_prefill_most_tiles(P::ROWS, P::SLOT_COUNT, tile_rows) : 0;
    static constexpr attention_prefill_layout layout =
        attention_prefill_lay_out(P::HEAD_DIM, P::TILE_Q, P::KEY_TILE, P::STAGES, most_tiles);
    static constexpr int columns = (int)layout.column_blocks; /* blocks of 64 columns */
    static constexpr int box_rows = P::PAGE_TOKENS < P::KEY_TILE ? P::PAGE_TOKENS : P::KEY_TILE;
    static constexpr int boxes = P::KEY_TILE / box_rows; /* of a tile and 64 columns */
    typedef kv_pages<P> pages_layout;
    static constexpr bool coded = pages_layout::CODED;
    typedef typename attention_prefill_kv<coded>::type kv_operand;
    static constexpr int page_rows = (int)(P::PAGE_BYTES / (P::HEAD_DIM * 2));
    static constexpr int v_rows = P::KV_HEADS * P::PAGE_TOKENS; /* from a token's k to its v */
    static_assert((coded || P::KV_DTYPE == P::X_DTYPE) && P::HEADS % P::KV_HEADS == 0 && P::HEAD_DIM % 16 == 0 &&
                      (coded || P::PAGE_BYTES % (P::HEAD_DIM * 2) == 0),
                  "launch checks");

    static constexpr u32 q_block = 64 * ATTENTION_PREFILL_BLOCK_ROW_BYTES;           /* 64 rows of 64 columns */
    static constexpr u32 part_bytes = part_rows * ATTENTION_PREFILL_BLOCK_ROW_BYTES; /* of a head and 64 columns */
    static constexpr u32 q_bytes = (u32)layout.q_bytes;
    static constexpr u32 key_block = P::KEY_TILE * ATTENTION_PREFILL_BLOCK_ROW_BYTES;
    static constexpr u32 key_bytes = (u32)layout.key_bytes;
    static constexpr u32 tiles_offset = (u32)layout.q_offset;

    /* Registers of a thread: the producer releases most of its own. With one consumer and one block there are
     * enough. */
    static constexpr int producer_registers = (int)attention_prefill_producer_registers(coded);
    static constexpr int consumer_registers = (int)attention_prefill_registers(P::TILE_Q, P::BLOCKS_PER_SM, coded);
    static constexpr bool moves_registers = consumers * P::BLOCKS_PER_SM > 1;

    enum {
        TURN_BARRIER = 1, /* and the next ones, one for each consumer */
        WARPGROUP_BARRIER = TURN_BARRIER + consumers,
        /* likewise, and one for all of them */
    };

    struct barriers {
        u64 q_full, q_empty;
        u64 k_full[P::STAGES], k_empty[P::STAGES], v_full[P::STAGES], v_empty[P::STAGES];
    };
    static_assert(sizeof(struct barriers) <= tiles_offset, "barriers before the tiles");

    /* A ring's next stage, and how often it came round. */
    struct ring {
        u32 stage, phase;
    };

    static __device__ __forceinline__ void advance(struct ring &ring)
    {
        if (++ring.stage == P::STAGES) {
            ring.stage = 0;
            ring.phase ^= 1;
        }
    }

    /* A tile in the list, by its first row. The list ends with the first row that is not valid; the last place has the number of tiles
     * as its slot. */
    struct listed_tile {
        int row, position, slot;
    };
    static_assert(sizeof(struct listed_tile) == ATTENTION_PREFILL_LISTED_BYTES, "as the layout counts");

    struct chunk {
        int valid, tiles;
        const i32 *page_table;
        int first_position, slot;       /* of row 0; not with SCATTERED */
        const struct listed_tile *list; /* with SCATTERED */
    };

    /* One tile of q: rows [row, valid) of heads [head, head + tile_heads), at most tile_rows; tiles of keys [begin, end), none for a part
     * of a short context. Positions of its first row and of the last token that exists. */
    struct work {
        int row, valid, head, begin, end, first_position, last_position;
        const i32 *pages;
    };

    /* Lists the tiles of the valid rows, by one warp. */
    static __device__ __forceinline__ void list_tiles(struct listed_tile *list, const i32 *slots, const i32 *positions,
                                                      int valid)
    {
        constexpr int batch = 8; /* loads in flight */
        const int lane = (int)threadIdx.x % 32;
        int count = 0, run = 0, slot_before = -1; /* run: first row of the slot's */
        for (int first = 0; first < valid; first += 32 * batch) {
            int slot[batch], position[batch];
#pragma unroll
            for (int b = 0; b < batch; b++) {
                const int row = first + 32 * b + lane;
                slot[b] = row < valid ? slots[row] : -1;
                position[b] = row < valid ? positions[row] : 0;
            }
#pragma unroll
            for (int b = 0; b < batch; b++) {
                const int row = first + 32 * b + lane;
                const int left = __shfl_sync(0xffffffffu, slot[b], (lane + 31) % 32);
                const u32 begins = __ballot_sync(0xffffffffu, row < valid && slot[b] != (lane ? left : slot_before));
                const u32 own = begins & (0xffffffffu >> (31 - lane));
                const int run_of_row = own ? row - lane + 31 - __clz((int)own) : run;
                const bool is_first = row < valid && (row - run_of_row) % tile_rows == 0;
                const u32 firsts = __ballot_sync(0xffffffffu, is_first);
                const int index = count + __popc(firsts & ((1u << lane) - 1));
                if (is_first && index < most_tiles) list[index] = listed_tile{row, position[b], slot[b]};
                count += __popc(firsts);
                run = __shfl_sync(0xffffffffu, run_of_row, 31);
                slot_before = __shfl_sync(0xffffffffu, slot[b], 31);
            }
        }
        count = min(count, most_tiles);
        if (lane == 0) {
            list[count].row = valid;
            list[most_tiles].slot = count;
        }
    }

    /* The block's n-th piece of work; false: there is none, and none after it. */
    static __device__ __forceinline__ bool next_work(struct work &work, const struct chunk &chunk, int n)
    {
        int blocks = (int)gridDim.x / P::SPLIT, block = (int)blockIdx.x / P::SPLIT, part = (int)blockIdx.x % P::SPLIT;
        int index = n * blocks + (n % 2 ? blocks - 1 - block : block);
        if (index >= chunk.tiles * head_tiles) return false;
        const int tile = chunk.tiles - 1 - index / head_tiles;
        int slot;
        work.head = index % head_tiles * tile_heads;
        if constexpr (P::SCATTERED) {
            const struct listed_tile found = chunk.list[tile];
            work.row = found.row;
            work.valid = chunk.list[tile + 1].row;
            work.first_position = found.position;
            work.last_position = found.position + work.valid - work.row - 1;
            slot = found.slot;
        } else {
            work.row = tile * tile_rows;
            work.valid = chunk.valid;
            work.first_position = chunk.first_position + work.row;
            work.last_position = chunk.first_position + chunk.valid - 1;
            slot = chunk.slot;
        }
        work.pages = chunk.page_table + (i64)slot * P::PAGES_PER_SLOT;
        int first = work.first_position, last = min(first + tile_rows - 1, work.last_position);
        int begin = P::WINDOW > 0 ? max(0, first - P::WINDOW + 1) / P::KEY_TILE : 0,
            count = last / P::KEY_TILE + 1 - begin;
        work.begin = begin + count * part / P::SPLIT;
        work.end = begin + count * (part + 1) / P::SPLIT;
        return true;
    }

    /* A tile's k (offset 0) or v (offset v_rows). Boxes after the last token use the last page, since their entries
     * of the page table are undefined; those tokens are masked. */
    static __device__ __forceinline__ void load_keys(u32 to, const tensor_map &map, const struct work &work, int tile,
                                                     int row_offset, u32 barrier)
    {
        barrier_arrive_expect(barrier, key_bytes);
#pragma unroll
        for (int i = 0; i < boxes; i++) {
            int token = tile * P::KEY_TILE + i * box_rows;
            int row = work.pages[min(token, work.last_position) / P::PAGE_TOKENS] * page_rows + token % P::PAGE_TOKENS +
                      row_offset;
#pragma unroll
            for (int c = 0; c < columns; c++)
                tile_load(to + c * key_block + i * box_rows * 128, &map, c * 64, row, barrier);
        }
    }

    /* The same with codes, by the producer's warpgroup; `row_offset`: of k, to which `values` is added for v. Tokens after the
     * last one become zero. */
    static __device__ __forceinline__ void convert_keys(u32 to, const u8 *kv, const struct work &work, int tile,
                                                        int row_offset, i64 values, u32 barrier)
    {
        constexpr int parts = P::HEAD_DIM / 16, count = P::KEY_TILE * parts; /* pieces of 16 codes */
        constexpr int batch = 4;                                             /* loads in flight */
#pragma unroll 1
        for (int first = (int)threadIdx.x; first < count; first += 128 * batch) {
            uint4 packed[batch];
            float scales[batch];
#pragma unroll
            for (int b = 0; b < batch; b++) {
                const int i = first + b * 128, token = tile * P::KEY_TILE + i / parts;
                packed[b] = make_uint4(0, 0, 0, 0), scales[b] = 0;
                if ((count % (128 * batch) && i >= count) || token > work.last_position) continue;
                const u8 *block = kv + (i64)work.pages[token / P::PAGE_TOKENS] * P::PAGE_BYTES + values;
                const int row = row_offset + token % P::PAGE_TOKENS;
                packed[b] = *(const uint4 *)(block + row * pages_layout::ROW_BYTES + i % parts * 16);
                scales[b] = ((const float *)(block + pages_layout::SCALES))[row] * kv_codes<P::KV_DTYPE>::FACTOR;
            }
#pragma unroll
            for (int b = 0; b < batch; b++) {
                const int i = first + b * 128, row = i / parts, part = i % parts;
                if (count % (128 * batch) && i >= count) continue;
                const u32 words[4] = {packed[b].x, packed[b].y, packed[b].z, packed[b].w};
                u32 pairs[8];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    u32 halves[2];
                    kv_codes<P::KV_DTYPE>::to_pairs(words[j], halves[0], halves[1]);
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        pairs[2 * j + h] =
                            pack_halves<P::X_DTYPE>(float_of_half<DTYPE_F16>((u16)halves[h]) * scales[b],
                                                    float_of_half<DTYPE_F16>((u16)(halves[h] >> 16)) * scales[b]);
                }
                const uint4 low = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                const uint4 high = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
                /* In the swizzle of 128 bytes. Pieces of odd blocks of columns begin with their second half: no bank
                 * conflicts. */
                const u32 at = to + part / 4 * key_block + (u32)row * 128, place = part % 4 * 2;
                const u32 odd = part / 4 % 2;
                store_shared(at + ((place + odd) ^ row % 8) * 16, odd ? high : low);
                store_shared(at + ((place + 1 - odd) ^ row % 8) * 16, odd ? low : high);
            }
        }
        fence_async_shared();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
    }

    static __device__ __forceinline__ void produce_keys(u32 to, const kv_operand &kv, const struct work &work, int tile,
                                                        int row_offset, bool is_v, u32 barrier)
    {
        if constexpr (coded)
            convert_keys(to, kv, work, tile, row_offset, is_v ? pages_layout::VALUES : 0, barrier);
        else
            load_keys(to, kv, work, tile, row_offset + (is_v ? v_rows : 0), barrier);
    }

    /* By one thread; with codes by the warpgroup. */
    static __device__ __forceinline__ void produce(const tensor_map *q_map, const kv_operand &kv,
                                                   const struct chunk &chunk, struct barriers *barriers, u32 q_tile,
                                                   u32 k_tiles, u32 v_tiles)
    {
        struct ring k_ring = {0, 1}, v_ring = {0, 1};
        struct work work;
        for (int n = 0; next_work(work, chunk, n); n++) {
            if (work.begin == work.end) continue;
            int k_offset = work.head / group * P::PAGE_TOKENS;
            /* The ring has room before q's tile has. */
            barrier_wait_tight(shared_address(&barriers->k_empty[k_ring.stage]), k_ring.phase);
            produce_keys(k_tiles + k_ring.stage * key_bytes, kv, work, work.end - 1, k_offset, false,
                         shared_address(&barriers->k_full[k_ring.stage]));
            advance(k_ring);
            if (!coded || threadIdx.x == 0) {
                barrier_wait_tight(shared_address(&barriers->q_empty), (u32)(n + 1) % 2);
                u32 q_full = shared_address(&barriers->q_full);
                barrier_arrive_expect(q_full, consumers * columns * tile_heads * part_bytes);
#pragma unroll
                for (int w = 0; w < consumers; w++) {
#pragma unroll
                    for (int c = 0; c < columns; c++)
#pragma unroll
                        for (int h = 0; h < tile_heads; h++)
                            tile_load(q_tile + (u32)(w * columns + c) * q_block + (u32)h * part_bytes, q_map,
                                      (work.head + h) * P::HEAD_DIM + c * 64, work.row + w * part_rows, q_full);
                }
            }
            /* k runs one tile ahead of v, as the consumers do. */
            for (int tile = work.end - 2; tile >= work.begin - 1; tile--) {
                if (tile >= work.begin) {
                    barrier_wait_tight(shared_address(&barriers->k_empty[k_ring.stage]), k_ring.phase);
                    produce_keys(k_tiles + k_ring.stage * key_bytes, kv, work, tile, k_offset, false,
                                 shared_address(&barriers->k_full[k_ring.stage]));
                    advance(k_ring);
                }
                barrier_wait_tight(shared_address(&barriers->v_empty[v_ring.stage]), v_ring.phase);
                produce_keys(v_tiles + v_ring.stage * key_bytes, kv, work, tile + 1, k_offset, true,
                             shared_address(&barriers->v_full[v_ring.stage]));
                advance(v_ring);
            }
        }
    }

    /* State of a consumer's thread for its rows lane / 4 and lane / 4 + 8 of the warp's sixteen. Element 4n + 2i +
     * j of an accumulator is row i, column 8n + 2 (lane % 4) + j. */
    struct consumer {
        float out[P::HEAD_DIM / 2];
        float max[2], sum[2]; /* of the scores; sum: of this thread's columns */
        u32 weights[P::KEY_TILE / 4];
    };

    static __device__ __forceinline__ void issue_scores(float (&scores)[P::KEY_TILE / 2], u32 q, u32 k)
    {
#pragma unroll
        for (int i = 0; i < P::HEAD_DIM / 16; i++)
            wgmma<P::KEY_TILE, P::X_DTYPE>::run(scores, wgmma_tile(q + i / 4 * q_block + i % 4 * 32),
                                                wgmma_tile(k + i / 4 * key_block + i % 4 * 32), i > 0);
    }

    static __device__ __forceinline__ void issue_values(struct consumer &c, u32 v)
    {
#pragma unroll
        for (int k = 0; k < P::KEY_TILE / 16; k++) {
#pragma unroll
            for (int d = 0; d < P::HEAD_DIM / 128; d++)
                wgmma_registers<128, P::X_DTYPE>::run(c.out + 64 * d, c.weights + 4 * k,
                                                      wgmma_tile(v + 2 * d * key_block + k * 2048, key_block));
            constexpr int rest = P::HEAD_DIM % 128, d = P::HEAD_DIM / 128 * 64;
            if constexpr (rest >= 64)
                wgmma_registers<64, P::X_DTYPE>::run(c.out + d, c.weights + 4 * k,
                                                     wgmma_tile(v + d / 32 * key_block + k * 2048, key_block));
            constexpr int tail = rest % 64, e = d + rest / 64 * 32;
            if constexpr (tail > 0)
                wgmma_registers<tail, P::X_DTYPE>::run(c.out + e, c.weights + 4 * k,
                                                       wgmma_tile(v + e / 32 * key_block + k * 2048, key_block));
        }
    }

    /* A thread's entries are 8 apart: lane / 4 and lane / 4 + 8 of the warp's sixteen. */
    struct entry {
        int row, head; /* in the tile */
    };
    static __device__ __forceinline__ struct entry entry_of(int number)
    {
        if constexpr (tile_heads == 1) return entry{number, 0};
        return entry{number / 64 * part_rows + number % 64 % part_rows, number % 64 / part_rows};
    }
    /* The last entries of a warpgroup belong to no head where heads do not fill it. */
    static __device__ __forceinline__ bool is_valid(const struct entry &entry, const struct work &work)
    {
        return work.row + entry.row < work.valid && (tile_heads * part_rows == 64 || entry.head < tile_heads);
    }

    /* Scores of tokens outside [position - WINDOW + 1, position] become -infinity. `token`: this thread's first
     * column; `position`: of its entries' rows. */
    static __device__ __forceinline__ void mask_scores(float (&scores)[P::KEY_TILE / 2], int token,
                                                       const int (&position)[2])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int last = position[i] - token, first = last - P::WINDOW + 1;
#pragma unroll
            for (int n = 0; n < P::KEY_TILE / 8; n++) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    if (8 * n + j > last || (P::WINDOW > 0 && 8 * n + j < first))
                        scores[4 * n + 2 * i + j] = -infinity();
                }
            }
        }
    }

    /* scores becomes the weights, maximum and sum follow; factor: what turns earlier sums into those of the new
     * maximum. */
    static __device__ __forceinline__ void weigh_scores(struct consumer &c, float (&scores)[P::KEY_TILE / 2],
                                                        float (&factor)[2])
    {
        const float scale = float_of_bits(P::SCALE_BITS) * SCORES_LOG2_E;
        if constexpr (P::CAP_BITS != 0)
#pragma unroll
            for (int i = 0; i < P::KEY_TILE / 2; i++)
                scores[i] = capped_score<P>(scores[i], float_of_bits(P::SCALE_BITS));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float even = c.max[i], odd = scores[2 * i + 1];
#pragma unroll
            for (int n = 0; n < P::KEY_TILE / 8; n++) {
                even = fmaxf(even, scores[4 * n + 2 * i]);
                odd = fmaxf(odd, scores[4 * n + 2 * i + 1]);
            }
            float max = fmaxf(even, odd);
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
            /* No token seen yet: any finite number serves. */
            float base = max == -infinity() ? 0 : max * scale;
            factor[i] = exp2_approximate(c.max[i] * scale - base);
            c.max[i] = max;
            even = c.sum[i] * factor[i];
            odd = 0;
#pragma unroll
            for (int n = 0; n < P::KEY_TILE / 8; n++) {
                float *pair = scores + 4 * n + 2 * i;
                pair[0] = exp2_approximate(pair[0] * scale - base);
                pair[1] = exp2_approximate(pair[1] * scale - base);
                even += pair[0];
                odd += pair[1];
            }
            c.sum[i] = even + odd;
        }
    }

    /* An accumulator's pairs of columns stand in the order in which the second product wants its left side. */
    static __device__ __forceinline__ void round_weights(struct consumer &c, const float (&scores)[P::KEY_TILE / 2])
    {
#pragma unroll
        for (int i = 0; i < P::KEY_TILE / 4; i++)
            c.weights[i] = pack_halves<P::X_DTYPE>(scores[2 * i], scores[2 * i + 1]);
    }

    static __device__ __forceinline__ void scale_out(struct consumer &c, const float (&factor)[2])
    {
        /* A new maximum is rare after the first tiles. */
        if (!__any_sync(0xffffffffu, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
        for (int i = 0; i < P::HEAD_DIM / 2; i++) c.out[i] *= factor[i / 2 % 2];
    }

    /* Clears v of tokens after the chunk: it may be NaN, and 0 * NaN is NaN. Each consumer clears all of it. */
    static __device__ __forceinline__ void clear_values(u32 v, int first, int consumer)
    {
        for (int i = (int)threadIdx.x % 128; i < columns * (P::KEY_TILE - first) * 8; i += 128) {
            int part = i % 8, row = first + i / 8 % (P::KEY_TILE - first), block = i / 8 / (P::KEY_TILE - first);
            store_shared(v + (u32)block * key_block + (u32)row * 128 + (u32)part * 16, make_uint4(0, 0, 0, 0));
        }
        fence_async_shared();
        named_barrier(WARPGROUP_BARRIER + consumer, 128);
    }

    /* Word `word` of the four lanes of a quad becomes four words of one lane: lane t gets word t of lanes 0 to 3. */
    static __device__ __forceinline__ uint4 transpose_quad(u32 w0, u32 w1, u32 w2, u32 w3)
    {
        bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
        u32 mine0 = upper ? w2 : w0, mine1 = upper ? w3 : w1;
        u32 theirs0 = __shfl_xor_sync(0xffffffffu, upper ? w0 : w2, 2);
        u32 theirs1 = __shfl_xor_sync(0xffffffffu, upper ? w1 : w3, 2);
        u32 a = odd ? mine1 : mine0, b = odd ? theirs1 : theirs0;
        u32 c = __shfl_xor_sync(0xffffffffu, odd ? mine0 : mine1, 1);
        u32 d = __shfl_xor_sync(0xffffffffu, odd ? theirs0 : theirs1, 1);
        u32 near0 = odd ? c : a, near1 = odd ? a : c, far0 = odd ? d : b, far1 = odd ? b : d;
        return upper ? make_uint4(far0, far1, near0, near1) : make_uint4(near0, near1, far0, far1);
    }

    /* number: of the thread's first entry. */
    static __device__ __forceinline__ void store_out(const struct consumer &c, u16 *out, const struct work &work,
                                                     int number, const void *sinks)
    {
        int lane = (int)threadIdx.x % 32, column = lane % 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const struct entry entry = entry_of(number + 8 * i);
            const bool stores = is_valid(entry, work);
            const int head = work.head + (stores ? entry.head : 0);
            float sum = c.sum[i];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            sum += sink_term<P>(sinks, head, c.max[i] * (float_of_bits(P::SCALE_BITS) * SCORES_LOG2_E));
            float factor = reciprocal(sum);
            u32 words[P::HEAD_DIM / 8];
#pragma unroll
            for (int n = 0; n < P::HEAD_DIM / 8; n++)
                words[n] = pack_halves<P::X_DTYPE>(c.out[4 * n + 2 * i] * factor, c.out[4 * n + 2 * i + 1] * factor);
            u16 *to = out + ((i64)(work.row + entry.row) * P::HEADS + head) * P::HEAD_DIM;
#pragma unroll
            for (int n = 0; n < P::HEAD_DIM / 32; n++) {
                uint4 quad = transpose_quad(words[4 * n], words[4 * n + 1], words[4 * n + 2], words[4 * n + 3]);
                if (stores) *(uint4 *)(to + 32 * n + 8 * column) = quad;
            }
#pragma unroll
            for (int n = P::HEAD_DIM / 32 * 4; n < P::HEAD_DIM / 8; n++)
                if (stores) *(u32 *)(to + 8 * n + 2 * column) = words[n];
        }
    }

    static __device__ __forceinline__ void release(u64 *barrier)
    {
        if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(barrier));
    }

    struct tiles {
        u32 q, k, v; /* shared addresses; q: of this warpgroup's rows */
    };

    /* One piece of work; n: how many came before. */
    static __device__ __forceinline__ void attend(struct consumer &c, const struct work &work,
                                                  struct barriers *barriers, const struct tiles &tiles,
                                                  struct ring &k_ring, struct ring &v_ring, int index, int n)
    {
        constexpr bool takes_turns = P::PING_PONG && consumers > 1;
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x % 128 / 32;
        /* first: position of the warpgroup's first row; position: of this thread's. Entries that are not valid may
         * become NaN, which affects no other entry. */
        int first = work.first_position + index * part_rows, entry = index * 64 + warp * 16 + lane / 4;
        const int position[2] = {work.first_position + entry_of(entry).row,
                                 work.first_position + entry_of(entry + 8).row};
        int existing = work.last_position + 1 - (work.end - 1) * P::KEY_TILE; /* tokens of the first tile that exist */
        float scores[P::KEY_TILE / 2], factor[2];

        barrier_wait_tight(shared_address(&barriers->q_full), (u32)n % 2);
        barrier_wait_tight(shared_address(&barriers->k_full[k_ring.stage]), k_ring.phase);
        wgmma_keep(scores);
        wgmma_begin();
        issue_scores(scores, tiles.q, tiles.k + k_ring.stage * key_bytes);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_keep(scores);
        release(&barriers->k_empty[k_ring.stage]);
        advance(k_ring);
        if (work.end - 1 == work.begin) release(&barriers->q_empty);
        mask_scores(scores, (work.end - 1) * P::KEY_TILE + 2 * (lane % 4), position);
        weigh_scores(c, scores, factor);
        round_weights(c, scores);
        barrier_wait_tight(shared_address(&barriers->v_full[v_ring.stage]), v_ring.phase);
        if (!coded && existing < P::KEY_TILE) clear_values(tiles.v + v_ring.stage * key_bytes, existing, index);

        for (int tile = work.end - 2; tile >= work.begin; tile--) {
            barrier_wait_tight(shared_address(&barriers->k_full[k_ring.stage]), k_ring.phase);
            if (takes_turns) named_barrier(TURN_BARRIER + index, 256);
            wgmma_keep(scores);
            wgmma_keep(c.out);
            wgmma_begin();
            issue_scores(scores, tiles.q, tiles.k + k_ring.stage * key_bytes);
            wgmma_commit();
            barrier_wait_tight(shared_address(&barriers->v_full[v_ring.stage]), v_ring.phase);
            wgmma_begin();
            issue_values(c, tiles.v + v_ring.stage * key_bytes);
            wgmma_commit();
            if (takes_turns) named_barrier_arrive(TURN_BARRIER + (index + 1) % consumers, 256);
            wgmma_wait<1>();
            wgmma_keep(scores);
            release(&barriers->k_empty[k_ring.stage]);
            advance(k_ring);
            if (tile == work.begin) release(&barriers->q_empty);
            bool is_last = (tile + 1) * P::KEY_TILE - 1 > first;
            bool is_first = P::WINDOW > 0 && tile * P::KEY_TILE < first + part_rows - 1 - P::WINDOW + 1;
            if (is_last || is_first) mask_scores(scores, tile * P::KEY_TILE + 2 * (lane % 4), position);
            weigh_scores(c, scores, factor);
            wgmma_wait<0>();
            wgmma_keep(c.out);
            release(&barriers->v_empty[v_ring.stage]);
            advance(v_ring);
            round_weights(c, scores);
            scale_out(c, factor);
        }
        barrier_wait_tight(shared_address(&barriers->v_full[v_ring.stage]), v_ring.phase);
        wgmma_keep(c.out);
        wgmma_begin();
        issue_values(c, tiles.v + v_ring.stage * key_bytes);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_keep(c.out);
        release(&barriers->v_empty[v_ring.stage]);
        advance(v_ring);
    }

    /* Partial results take the place of the tiles: for each row the accumulated v, then maximum and sum. */
    static constexpr int partial_floats = P::HEAD_DIM + 4; /* keeps 16-byte alignment and spreads rows over the banks */
    static_assert(P::TILE_Q * partial_floats * 4 <= q_bytes + 2 * P::STAGES * key_bytes,
                  "partial results fit the tiles");

    static __device__ __forceinline__ void leave_partial(const struct consumer &c, u32 partial, int row)
    {
        int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = c.sum[i];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            u32 to = partial + (u32)((row + 8 * i) * partial_floats * 4);
#pragma unroll
            for (int n = 0; n < P::HEAD_DIM / 8; n++)
                store_shared(to + 32 * n + 8 * (lane % 4), make_float2(c.out[4 * n + 2 * i], c.out[4 * n + 2 * i + 1]));
            if (lane % 4 == 0) store_shared(to + P::HEAD_DIM * 4, make_float2(c.max[i], sum));
        }
    }

    /* This block's entries of the tile, eight columns at a time, from the partial results of all blocks of the cluster. */
    static __device__ __forceinline__ void merge_partials(u16 *out, const struct work &work, u32 partial,
                                                          const void *sinks)
    {
        constexpr int entries = P::TILE_Q / P::SPLIT, chunks = P::HEAD_DIM / 8;
        const float scale = float_of_bits(P::SCALE_BITS) * SCORES_LOG2_E;
        int part = (int)blockIdx.x % P::SPLIT;
        for (int i = (int)threadIdx.x - 128; i < entries * chunks; i += 128 * consumers) {
            int number = part * entries + i / chunks, column = i % chunks * 8;
            const struct entry entry = entry_of(number);
            if (!is_valid(entry, work)) continue;
            u32 from = partial + (u32)(number * partial_floats * 4);
            float max = -infinity(), sum = 0, values[8] = {0};
#pragma unroll
            for (int b = 0; b < P::SPLIT; b++)
                max = fmaxf(max, cluster_load(cluster_address(from + P::HEAD_DIM * 4, b)).x);
#pragma unroll
            for (int b = 0; b < P::SPLIT; b++) {
                u32 address = cluster_address(from, b);
                float4 state = cluster_load(address + P::HEAD_DIM * 4);
                float4 low = cluster_load(address + column * 4), high = cluster_load(address + column * 4 + 16);
                float factor = exp2_approximate((state.x - max) * scale);
                sum += state.y * factor;
                const float eight[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (int j = 0; j < 8; j++) values[j] += eight[j] * factor;
            }
            float factor = reciprocal(sum + sink_term<P>(sinks, work.head + entry.head, max * scale));
            uint4 words = make_uint4(pack_halves<P::X_DTYPE>(values[0] * factor, values[1] * factor),
                                     pack_halves<P::X_DTYPE>(values[2] * factor, values[3] * factor),
                                     pack_halves<P::X_DTYPE>(values[4] * factor, values[5] * factor),
                                     pack_halves<P::X_DTYPE>(values[6] * factor, values[7] * factor));
            *(uint4 *)(out + ((i64)(work.row + entry.row) * P::HEADS + work.head + entry.head) * P::HEAD_DIM + column) =
                words;
        }
    }

    static __device__ __forceinline__ void consume(u16 *out, const struct chunk &chunk, struct barriers *barriers,
                                                   int index, u32 q_tile, u32 k_tiles, u32 v_tiles, const void *sinks)
    {
        struct ring k_ring = {0, 0}, v_ring = {0, 0};
        const struct tiles tiles = {q_tile + (u32)(index * columns) * q_block, k_tiles, v_tiles};
        int entry = index * 64 + (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4; /* in the tile */
        struct work work;
        if (P::PING_PONG && consumers > 1 && index == consumers - 1) named_barrier_arrive(TURN_BARRIER, 256);
        for (int n = 0; next_work(work, chunk, n); n++) {
            struct consumer c;
#pragma unroll
            for (int i = 0; i < P::HEAD_DIM / 2; i++) c.out[i] = 0;
            c.max[0] = c.max[1] = -infinity();
            c.sum[0] = c.sum[1] = 0;
            if (P::SPLIT == 1 || work.begin < work.end) attend(c, work, barriers, tiles, k_ring, v_ring, index, n);
            if constexpr (P::SPLIT == 1) {
                store_out(c, out, work, entry, sinks);
            } else {
                /* The last round of a cluster is its only one: nothing more is loaded into the tiles. */
                named_barrier(WARPGROUP_BARRIER + consumers, 128 * consumers);
                leave_partial(c, q_tile, entry);
                cluster_sync();
                merge_partials(out, work, q_tile, sinks);
                cluster_sync();
            }
        }
    }

    /* `memory`: shared, laid out as attention_layout.cuh says. `sinks`: null without HAS_SINKS. */
    static __device__ __forceinline__ void run(u8 *memory, const i32 *counts, const tensor_map &q_map, const i32 *slots,
                                               const i32 *positions, const i32 *page_table, const kv_operand &kv,
                                               u16 *out, const void *sinks)
    {
        u32 base = (shared_address(memory) + ATTENTION_PREFILL_SWIZZLE_BYTES - 1) &
                   ~(u32)(ATTENTION_PREFILL_SWIZZLE_BYTES - 1);
        struct barriers *barriers = (struct barriers *)(memory + (base - shared_address(memory)));
        u32 q_tile = base + tiles_offset, k_tiles = q_tile + q_bytes, v_tiles = k_tiles + P::STAGES * key_bytes;
        int warpgroup = (int)threadIdx.x / 128;
        device_trigger();
        if (threadIdx.x == 0) {
            tile_prefetch_map(&q_map);
            if constexpr (!coded) tile_prefetch_map(&kv);
            barrier_init(shared_address(&barriers->q_full), 1);
            barrier_init(shared_address(&barriers->q_empty), 4 * consumers);
            for (int i = 0; i < P::STAGES; i++) {
                barrier_init(shared_address(&barriers->k_full[i]), coded ? 4 : 1);
                barrier_init(shared_address(&barriers->v_full[i]), coded ? 4 : 1);
                barrier_init(shared_address(&barriers->k_empty[i]), 4 * consumers);
                barrier_init(shared_address(&barriers->v_empty[i]), 4 * consumers);
            }
            barrier_init_done();
        }
        struct chunk chunk;
        chunk.page_table = page_table;
        if constexpr (P::SCATTERED) {
            struct listed_tile *list = (struct listed_tile *)((u8 *)barriers + layout.list_offset);
            if (threadIdx.x < 32) list_tiles(list, slots, positions, min(counts[P::COUNT_INDEX], P::ROWS));
            __syncthreads();
            chunk.list = list;
            chunk.tiles = list[most_tiles].slot;
            device_wait();
        } else {
            __syncthreads();
            device_wait();
            chunk.valid = min(counts[P::COUNT_INDEX], P::ROWS);
            chunk.tiles = (chunk.valid + tile_rows - 1) / tile_rows;
            chunk.first_position = positions[0];
            chunk.slot = slots[0];
        }
        if (warpgroup == 0) {
            if constexpr (moves_registers) registers_decrease<producer_registers>();
            if ((coded || threadIdx.x == 0) && chunk.tiles > 0)
                produce(&q_map, kv, chunk, barriers, q_tile, k_tiles, v_tiles);
        } else {
            if constexpr (moves_registers) registers_increase<consumer_registers>();
            /* The value is the same in all threads of the warp; the shuffle tells the compiler. */
            consume(out, chunk, barriers, __shfl_sync(0xffffffffu, warpgroup - 1, 0), q_tile, k_tiles, v_tiles, sinks);
        }
    }
};

#endif
