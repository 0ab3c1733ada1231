/* SPDX-License-Identifier: Apache-2.0 */
/* matmul by Hopper's wgmma, for any number of rows: contract in matmul_device.h, without HAS_NORM.
 *
 * The product is computed transposed, D = W tile . x tile^T: TILE_N rows of W are wgmma's M operand, so that a
 * decode batch of 9..64 rows uses most of it, and TILE_M rows of x are its N operand. Producer warps stream both
 * tiles through a ring of STAGES stages (tiled copies, mbarriers); each of WARPGROUPS consumer warpgroups multiplies
 * its rows of W and keeps the sums in registers. Sums are transposed through shared memory, so that rows of out are
 * written in whole sectors.
 *
 * SPLIT_K blocks of a cluster share a tile, each with its part of K; their sums are added in the order of the ranks.
 * MULTICAST blocks of a cluster take neighbouring tiles of W for the same rows of x and each loads its part of the x
 * tile for all. Errors: as a float32 sum in any order; 16-bit outputs are rounded once.
 *
 * Coded weights (fragment.cuh) come as strips of 128 k, by plain or tiled copies, and a warp's panel of 16 rows becomes wgmma's first
 * operand in registers. If x has codes, too (quantise.h), codes are multiplied; the scales of rows of W and of x multiply the sums of
 * all k, those of groups the groups' sums. Sums of e4m3 codes are computed for 512 k at most by themselves; those of int8 codes, which
 * int4 codes become, are integers, which 32 bits hold.
 *
 * Operands: counts, x and W (tensor maps: boxes of 128 bytes and TILE_M / MULTICAST or TILE_N rows, 128-byte swizzle; a coded W is a
 * pointer or, in tiles, a map of 64-bit words: a row for each panel, boxes of a strip of TILE_N / 16 panels), out, bias, residual,
 * x_scales. Legal tunables and the shared memory they need: matmul_wgmma.c. */
#ifndef KERNELS_MATMUL_MATMUL_WGMMA_CUH
#define KERNELS_MATMUL_MATMUL_WGMMA_CUH

#include "kernels/cuda/include/epilogue.cuh"
#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/tma.cuh"
#include "kernels/cuda/include/wgmma.cuh"
#include "kernels/matmul/fragment.cuh"
#include "kernels/matmul/matmul_wgmma_layout.cuh"

/* Type of the operand W. */
template <bool HAS_MAP> struct wgmma_weights {
    typedef tensor_map type;
};
template <> struct wgmma_weights<false> {
    typedef const u8 *type;
};

template <class P> struct matmul_wgmma_body {
    static constexpr bool CODED = fragment_is_coded(P::DTYPE);
    static constexpr fragment_layout FRAGMENTS = fragment_lay_out(P::DTYPE);
    static constexpr int STRIPS = P::TILE_K / FRAGMENT_STRIP_K; /* of a panel in a stage, if coded */
    static constexpr bool HAS_TILES = matmul_wgmma_has_tiles(P::DTYPE, P::ROWS, P::TILE_M),
                          HAS_MAP = !CODED || HAS_TILES;
    typedef typename wgmma_weights<HAS_MAP>::type weights_operand;
    static constexpr bool GATED = epilogue_is_gated(P::EPILOGUE);
    static constexpr int OUT_COLUMNS = GATED ? P::N / 2 : P::N;
    static constexpr bool INTEGERS = P::INPUT_DTYPE == DTYPE_I8; /* x has codes, too: of int8 */
    static constexpr bool GROUP_INTEGERS = INTEGERS && fragment_sum_scales(FRAGMENTS);
    static constexpr bool CODES = INTEGERS || P::INPUT_DTYPE == DTYPE_F8_E4M3;
    static constexpr int X_BYTES = CODES ? 1 : 2;
    static constexpr int BOX_BYTES = 128, BOX_K = BOX_BYTES / X_BYTES; /* the width of the swizzle */
    static constexpr int CLUSTER = P::SPLIT_K * P::MULTICAST;
    static constexpr int PARTS =
        P::TILE_N / (64 * P::WARPGROUPS);        /* tiles of 64 rows of W that a warpgroup multiplies */
    static constexpr int BLOCKS = P::TILE_M / 8; /* of 8 rows of x: 4 sums in each thread */
    static constexpr int SUMS =
        (int)matmul_wgmma_sums(P::DTYPE, X_BYTES, P::TILE_N, P::TILE_M, P::TILE_K, P::WARPGROUPS, P::MULTICAST);
    static constexpr int LEAST_BLOCKS = (int)matmul_wgmma_blocks(P::DTYPE, SUMS, P::WARPGROUPS);
    /* Registers: of 512 in each lane of a quarter of a multiprocessor, 168 * 3 become 232 * 2 + 40, 128 * 4 become 152
     * * 3 + 56. */
    static constexpr bool REALLOCATE = matmul_wgmma_reallocates(LEAST_BLOCKS, P::WARPGROUPS);
    static constexpr int CONSUMERS = 128 * P::WARPGROUPS;
    /* Warps that load W, stage by stage in turn; one more loads x. To ask for the strips of all panels of a stage takes one about as long as to
     * multiply them. */
    static constexpr int PRODUCERS = CODED && REALLOCATE ? 2 : 1;
    static constexpr int THREADS = (int)matmul_wgmma_threads(LEAST_BLOCKS, P::WARPGROUPS);
    static constexpr int ROW_TILES = (P::ROWS + P::TILE_M - 1) / P::TILE_M;
    static constexpr int COLUMN_TILES =
        (P::N + P::TILE_N * P::MULTICAST - 1) / (P::TILE_N * P::MULTICAST); /* of a cluster */
    static constexpr int STEPS = (P::K + P::TILE_K - 1) / P::TILE_K;

    static constexpr int OUT_BYTES = P::OUT_DTYPE == DTYPE_F32 ? 4 : 2;
    static constexpr matmul_wgmma_layout LAYOUT =
        matmul_wgmma_lay_out(P::DTYPE, X_BYTES, P::ROWS, P::TILE_N, P::TILE_M, P::TILE_K, P::WARPGROUPS, P::STAGES,
                             OUT_BYTES, GATED);
    static constexpr int W_BYTES = (int)LAYOUT.w_bytes, STAGE_BYTES = (int)LAYOUT.stage_bytes;
    static constexpr u32 PANEL_PITCH = (u32)LAYOUT.panel_pitch, STRIP_PITCH = (u32)LAYOUT.strip_pitch;
    static constexpr int X_TILE_BYTES = STAGE_BYTES - W_BYTES;
    static constexpr int STAGED_COLUMNS = (int)LAYOUT.staged_columns, STAGED_PITCH = (int)LAYOUT.staged_pitch;
    static constexpr int STAGED_BLOCKS = (int)LAYOUT.staged_rows / 8, STAGED_BYTES = (int)LAYOUT.staged_bytes;
    static constexpr int STAGING = (int)LAYOUT.staging, BARRIERS = (int)LAYOUT.barriers; /* full, empty: STAGES each */

    static_assert(P::TILE_N == 64 * P::WARPGROUPS * PARTS && (PARTS == 1 || PARTS == 2), "TILE_N");
    static_assert(P::TILE_K == 128 || P::TILE_K == (CODED ? 256 : 64), "TILE_K");
    static_assert(!CODED || fragment_strips(P::K) % STRIPS == 0, "stages of whole strips");
    static_assert(P::SPLIT_K == 1 || (P::MULTICAST == 1 && P::PERSISTENT == 0), "SPLIT_K");
    static_assert(P::HAS_NORM == 0, "HAS_NORM");
    static_assert(!CODES || FRAGMENTS.code == (!INTEGERS        ? FRAGMENT_E4M3
                                               : GROUP_INTEGERS ? FRAGMENT_UINT4
                                                                : FRAGMENT_INT8),
                  "codes of x and of W");

    /* How a warpgroup writes staged sums: 16 bytes a thread. */
    static constexpr int VECTOR = 16 / OUT_BYTES;
    static constexpr int VECTORS = STAGED_COLUMNS / VECTOR; /* of a row */
    static constexpr int PASS_ROWS = 128 / VECTORS;
    static constexpr int PASSES = (STAGED_BLOCKS * 8 + PASS_ROWS - 1) / PASS_ROWS;
    static constexpr bool ALIGNED = OUT_COLUMNS % VECTOR == 0;
    /* Residuals are loaded before a tile is multiplied, as many as there are free registers for; the others follow
     * as these are used. */
    static constexpr int CHUNKS = (BLOCKS + STAGED_BLOCKS - 1) / STAGED_BLOCKS; /* of 64 rows of W */
    static constexpr int FREE_CHUNKS = !REALLOCATE || CODED ? 1 : P::WARPGROUPS == 2 ? 5 : 2;
    static constexpr int AHEAD = FREE_CHUNKS < PARTS * CHUNKS ? FREE_CHUNKS : PARTS * CHUNKS;

    struct tile {
        int row, column; /* of x, of W */
    };

    /* Order of the tiles: within a group of ROW_GROUP row tiles, column after column. */
    static __device__ __forceinline__ tile tile_at(int index, int row_tiles, int rank)
    {
        int row = 0, column = index;
        if (ROW_TILES > 1) {
            const int group = index / (P::ROW_GROUP * COLUMN_TILES), first = group * P::ROW_GROUP;
            const int rows = min(row_tiles - first, P::ROW_GROUP), within = index - first * COLUMN_TILES;
            row = first + within % rows;
            column = within / rows;
        }
        return {row * P::TILE_M, (column * P::MULTICAST + rank % P::MULTICAST) * P::TILE_N};
    }

    /* Bytes that arrive with a W tile. */
    static __device__ __forceinline__ u32 w_bytes(tile at)
    {
        if constexpr (!CODED) return W_BYTES;
        return (u32)((HAS_TILES ? P::TILE_N / FRAGMENT_ROWS : panels_at(at)) * STRIPS * FRAGMENTS.strip_bytes);
    }

    /* Coded: panels of the tile that there are. */
    static __device__ __forceinline__ int panels_at(tile at)
    {
        /* With MULTICAST the last block may have no rows of W. */
        return max(0, min(P::TILE_N, P::N - at.column + FRAGMENT_ROWS - 1)) / FRAGMENT_ROWS;
    }

    /* Strips of the panel that a lane loads: it takes a thread too long to ask for those of all panels one after the
     * other. */
    static __device__ __forceinline__ void load_coded(u32 to, const u8 *weights, tile at, int step, u32 full,
                                                      u64 policy)
    {
        constexpr i64 PANEL_BYTES = fragment_panel_bytes(FRAGMENTS, P::K);
        const int panel = (int)threadIdx.x % 32;
        if (panel >= panels_at(at)) return;
        const u8 *from = weights + (at.column / FRAGMENT_ROWS + panel) * PANEL_BYTES +
                         fragment_factor_bytes(FRAGMENTS) + (i64)step * STRIPS * FRAGMENTS.strip_bytes;
        constexpr u32 bytes = STRIPS * FRAGMENTS.strip_bytes;
        const u32 place = to + (u32)panel * PANEL_PITCH;
        if (ROW_TILES == 1) /* not read again in this step */
            bulk_copy_hinted(place, from, bytes, full, policy);
        else
            bulk_copy(place, from, bytes, full);
    }

    /* The strip of all panels that a lane loads. */
    static __device__ __forceinline__ void load_strips(u32 to, const tensor_map *map, tile at, int step, u32 full,
                                                       u64 policy)
    {
        const int strip = (int)threadIdx.x % 32, column = (step * STRIPS + strip) * (FRAGMENTS.strip_bytes / 8);
        if (strip >= STRIPS) return;
        tile_load_hinted(to + (u32)strip * STRIP_PITCH, map, column, at.column / FRAGMENT_ROWS, full, policy);
    }

    /* By the threads that produce. */
    static __device__ __forceinline__ void load_w(u32 to, const weights_operand &weights, tile at, int step, u32 full,
                                                  u64 policy)
    {
        if constexpr (HAS_TILES)
            load_strips(to, &weights, at, step, full, policy);
        else if constexpr (CODED)
            load_coded(to, weights, at, step, full, policy);
        else
            load_boxes(to, &weights, at, step, full, policy);
    }

    static __device__ __forceinline__ void load_boxes(u32 to, const tensor_map *map, tile at, int step, u32 full,
                                                      u64 policy)
    {
#pragma unroll
        for (int box = 0; box < P::TILE_K / BOX_K; box++) {
            const u32 place = to + (u32)(box * P::TILE_N * BOX_BYTES);
            const int k = step * P::TILE_K + box * BOX_K;
            if (ROW_TILES == 1)
                tile_load_hinted(place, map, k, at.column, full, policy);
            else
                tile_load(place, map, k, at.column, full);
        }
    }

    static __device__ __forceinline__ void load_x(u32 to, const tensor_map *map, tile at, int step, u32 full, int rank)
    {
#pragma unroll
        for (int box = 0; box < P::TILE_K / BOX_K; box++) {
            const int k = step * P::TILE_K + box * BOX_K,
                      part = P::MULTICAST == 1 ? 0 : rank * (P::TILE_M / P::MULTICAST);
            const u32 place = to + (u32)((box * P::TILE_M + part) * BOX_BYTES);
            if (P::MULTICAST == 1)
                tile_load(place, map, k, at.row, full);
            else
                tile_load_multicast(place, map, k, at.row + part, full, (1 << P::MULTICAST) - 1);
        }
    }

    /* Sums of a group, times its scales. */
    template <class SUM>
    static __device__ __forceinline__ void add_group(float (&sums)[P::TILE_M / 2], SUM (&group)[P::TILE_M / 2],
                                                     const float (&scales)[2])
    {
        wgmma_keep(group);
#pragma unroll
        for (int i = 0; i < P::TILE_M / 2; i++) {
            if constexpr (fragment_sum_scales(FRAGMENTS))
                sums[i] += (float)group[i] * scales[i % 4 / 2];
            else
                sums[i] += (float)group[i];
        }
    }

    /* Coded weights: what a warpgroup has computed. Where scales multiply sums, a group has sums of its own until it has
     * been multiplied: SETS groups at once, of which the last one of a stage is in the last set. */
    static constexpr int SETS =
        matmul_wgmma_group_sets(P::DTYPE, X_BYTES, P::TILE_N, P::TILE_M, P::TILE_K, P::WARPGROUPS);
    static_assert(!INTEGERS || GROUP_INTEGERS || (SETS == 0 && FRAGMENTS.factors && P::K <= MATMUL_WGMMA_MOST_INTEGERS),
                  "sums of all k");
    /* Stages of a group, where no scale ends it earlier: as many as 512 k have. */
    static constexpr int GROUP_STAGES = SETS && !fragment_sum_scales(FRAGMENTS) ? 512 / P::TILE_K : 1;
    template <class SUM> struct group_sums {
        SUM set[SETS ? SETS : 1][P::TILE_M / 2];
        float scales[SETS ? SETS : 1][2];
    };

    static __device__ __forceinline__ void multiply(float (&to)[P::TILE_M / 2], const u32 (&a)[4], u64 x, int add)
    {
        if constexpr (CODES)
            wgmma_codes<P::TILE_M>::run(to, a, x, add);
        else
            wgmma_rows<P::TILE_M>::run(to, a, x, add);
    }

    static __device__ __forceinline__ void multiply(int (&to)[P::TILE_M / 2], const u32 (&a)[4], u64 x, int add)
    {
        wgmma_integers<P::TILE_M>::run(to, a, x, add);
    }

    /* Codes of a turn. */
    template <int STEPS_> struct turn_codes {
        typedef fragment_strip<P::DTYPE> codes;
        static constexpr int LOADS = (STEPS_ + codes::PART_STEPS - 1) / codes::PART_STEPS;
        u32 words[LOADS][4];
        typename codes::head head;

        __device__ __forceinline__ void load(u32 strip, int first)
        {
            head = codes::load_head(strip);
#pragma unroll
            for (int i = 0; i < LOADS; i++) codes::load_codes(words[i], strip, first / codes::PART_STEPS + i);
        }
    };

    /* Coded weights: adds the products of the stage at `stage` to the sums. Each warp decodes its panels TURN
     * steps at a time, while the tensor cores multiply what it decoded before, and asks for the codes of the next turn before
     * that. One group is scaled while the next is multiplied, the last one of a stage with the next stage. The stage before
     * may be filled again once the first turn has begun: `empty` is its mbarrier, 0: there was none. `begins_group`: GROUP_STAGES. */
    template <class SUM, class GROUP>
    static __device__ __forceinline__ void multiply_strips(SUM (&sums)[PARTS][P::TILE_M / 2], group_sums<GROUP> &groups,
                                                           u32 stage, u32 empty, bool begins_group)
    {
        typedef fragment_strip<P::DTYPE> codes;
        constexpr int TURN = codes::GROUP_STEPS < 4 ? codes::GROUP_STEPS : 4; /* steps of 16 k */
        constexpr int STEP = CODES ? 2 : 1;                                   /* those of one instruction */
        constexpr int PART_TURNS = codes::STEPS / TURN, STRIP_TURNS = PARTS * PART_TURNS, TURNS = STRIPS * STRIP_TURNS;
        constexpr int GROUP_TURNS = codes::GROUP_STEPS / TURN, GROUPS = TURNS / GROUP_TURNS;
        const u32 panel = threadIdx.x / 128 * PARTS * 4 + threadIdx.x / 32 % 4; /* of the first part */
        u32 a[2][TURN / STEP][4];
        turn_codes<TURN> loaded[2];
        loaded[0].load(stage + panel * PANEL_PITCH, 0);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int strip = turn / STRIP_TURNS, part = turn % STRIP_TURNS / PART_TURNS;
            const int first = turn % PART_TURNS * TURN;
            const int group = turn / GROUP_TURNS, set = SETS ? SETS - 1 - (GROUPS - 1 - group) % SETS : 0;
            const bool begins =
                SETS && turn % GROUP_TURNS == 0 && (GROUP_STAGES == 1 || (turn == 0 && begins_group)); /* a group */
            const bool drains = begins && (SETS == 1 || turn == 0);
            const int part_before = (turn + TURNS - 1) % STRIP_TURNS / PART_TURNS;
            const turn_codes<TURN> &now = loaded[turn % 2];
            if (turn + 1 < TURNS) {
                const int next = turn + 1, next_part = next % STRIP_TURNS / PART_TURNS;
                loaded[next % 2].load(stage + (panel + (u32)next_part * 4) * PANEL_PITCH +
                                          (u32)(next / STRIP_TURNS) * STRIP_PITCH,
                                      next % PART_TURNS * TURN);
            }
#pragma unroll
            for (int i = 0; i < TURN / STEP; i++) {
                if constexpr (CODES) {
                    codes::template keep<ROW_TILES == 1>(a[turn % 2][i], now.words[i * 2 / codes::PART_STEPS],
                                                         first + i * 2);
                    wgmma_keep(a[turn % 2][i]);
                } else
                    codes::decode(a[turn % 2][i], now.words[i / codes::PART_STEPS], now.head, first + i);
            }
            if constexpr (SETS != 0) {
                if (drains) {
                    wgmma_wait<0>();
                    add_group(sums[part_before], groups.set[SETS - 1], groups.scales[SETS - 1]);
                }
                if constexpr (codes::SUM_SCALES) {
                    if (begins)
#pragma unroll
                        for (int half = 0; half < 2; half++)
                            groups.scales[set][half] = codes::scale(now.head, first / codes::GROUP_STEPS, half) *
                                                       (CODES ? 1 / codes::KEPT_UNITS : 1);
                }
            }
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < TURN / STEP; i++) {
                const int step = (strip * codes::STEPS + first) / STEP + i;
                const u64 x = wgmma_tile(stage + W_BYTES) + (u64)(step / 4 * P::TILE_M * BOX_BYTES / 16 + step % 4 * 2);
                if constexpr (SETS != 0)
                    multiply(groups.set[set], a[turn % 2][i], x, !begins || i > 0);
                else
                    multiply(sums[part], a[turn % 2][i], x, 1);
            }
            wgmma_commit();
            wgmma_wait<1>(); /* the turn before has been multiplied: the registers of its operands are free */
            if constexpr (SETS == 2) {
                if (begins && !drains) add_group(sums[part_before], groups.set[1 - set], groups.scales[1 - set]);
            }
            if (turn == 0 && empty) release(empty);
        }
    }

    /* Coded weights: the sums of a warpgroup's rows of W and the rows of x, over steps first_step to end_step. */
    template <class GROUP, class SUM>
    static __device__ __forceinline__ void multiply_coded(SUM (&sums)[PARTS][P::TILE_M / 2], u32 base, u32 *slot,
                                                          u32 *parity, int first_step, int end_step)
    {
        const u32 full = base + BARRIERS, empty = full + 8 * P::STAGES;
        group_sums<GROUP> groups = {};
        u32 last = 0; /* mbarrier of the stage before */
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int i = 0; i < P::TILE_M / 2; i++) sums[part][i] = 0;
#pragma unroll 1
        for (int step = first_step; step < end_step; step++) {
            const u32 stage = base + *slot * STAGE_BYTES;
            barrier_wait(full + 8 * *slot, *parity);
            multiply_strips(sums, groups, stage, last, (step - first_step) % GROUP_STAGES == 0);
            last = empty + 8 * *slot;
            if (++*slot == P::STAGES) *slot = 0, *parity ^= 1;
        }
        wgmma_wait<0>();
        if (last) release(last);
        if constexpr (SETS != 0) add_group(sums[PARTS - 1], groups.set[SETS - 1], groups.scales[SETS - 1]);
#pragma unroll
        for (int part = 0; part < PARTS; part++) wgmma_keep(sums[part]);
    }

    static __device__ __forceinline__ void multiply_integers(float (&sums)[PARTS][P::TILE_M / 2], u32 base, u32 *slot,
                                                             u32 *parity, int first_step, int end_step)
    {
        int exact[PARTS][P::TILE_M / 2];
        multiply_coded<int>(exact, base, slot, parity, first_step, end_step);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int i = 0; i < P::TILE_M / 2; i++) sums[part][i] = (float)exact[part][i];
    }

    /* Scales that the two rows of W of a thread's sums may have. */
    struct row_factors {
        float value[2];
    };

    static __device__ __forceinline__ row_factors load_factors(const weights_operand &weights, int row)
    {
        row_factors factors = {{1, 1}};
        if constexpr (FRAGMENTS.factors)
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (row + 8 * half < P::N)
                    factors.value[half] = fragment_factor<P::DTYPE>(weights, row + 8 * half, P::K);
        return factors;
    }

    static __device__ __forceinline__ void multiply_rows(float (&sums)[P::TILE_M / 2], const row_factors &factors)
    {
        if constexpr (FRAGMENTS.factors)
#pragma unroll
            for (int i = 0; i < P::TILE_M / 2; i++) sums[i] *= factors.value[i % 4 / 2];
    }

    /* x with codes: a warpgroup brings the scales of the tile's rows to shared memory at `to` while the tile is multiplied. */
    static __device__ __forceinline__ void fetch_scales(u32 to, const float *x_scales, int first_row)
    {
        if constexpr (CODES)
            for (int i = (int)threadIdx.x % 128; i < P::TILE_M; i += 128)
                store_shared(to + (u32)i * 4, x_scales[min(first_row + i, P::ROWS - 1)]);
    }

    static __device__ __forceinline__ void multiply_columns(float (&sums)[P::TILE_M / 2], u32 scales)
    {
        if constexpr (CODES)
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                u32 pair[2];
                load_shared(pair, scales + (u32)(block * 32) + threadIdx.x % 4 * 8);
#pragma unroll
                for (int i = 0; i < 4; i++) sums[block * 4 + i] *= float_of_bits(pair[i % 2]);
            }
    }

    /* The 4 sums of block `block`, staged transposed: rows of x, columns of out. */
    static __device__ __forceinline__ void stage(u32 staged, int block, float v0, float v1, float v2, float v3)
    {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        v0 = scaled<P::SCALE_BITS>(v0), v1 = scaled<P::SCALE_BITS>(v1);
        v2 = scaled<P::SCALE_BITS>(v2), v3 = scaled<P::SCALE_BITS>(v3);
        if constexpr (!GATED) {
            v0 = plain_product<P, true>(v0), v1 = plain_product<P, true>(v1);
            v2 = plain_product<P, true>(v2), v3 = plain_product<P, true>(v3);
        }
        if constexpr (OUT_BYTES == 4) {
            const u32 row = (u32)block * 8 + lane % 4 * 2, column = warp * (STAGED_COLUMNS / 4) + lane / 4;
            const u32 at = staged + row * STAGED_PITCH + column * 4;
            if constexpr (GATED) {
                store_shared(at, gated_product<P, true>(v0, v2));
                store_shared(at + STAGED_PITCH, gated_product<P, true>(v1, v3));
            } else {
                store_shared(at, v0);
                store_shared(at + STAGED_PITCH, v1);
                store_shared(at + 32, v2);
                store_shared(at + STAGED_PITCH + 32, v3);
            }
        } else {
            const u32 row = (u32)block * 8 + lane % 8;
            const u32 at = staged + row * STAGED_PITCH + warp * (STAGED_COLUMNS / 4) * 2;
            if constexpr (GATED)
                store_matrix_transposed(at, pack_halves<P::OUT_DTYPE>(gated_product<P, true>(v0, v2),
                                                                      gated_product<P, true>(v1, v3)));
            else
                store_matrices_transposed(at + lane / 8 % 2 * 16, pack_halves<P::OUT_DTYPE>(v0, v1),
                                          pack_halves<P::OUT_DTYPE>(v2, v3));
        }
    }

    /* Destination of a warpgroup's staged sums, and the operands that are added to them. */
    struct destination {
        void *out;
        const float *residual;
        const void *bias;
        int first_column, rows; /* of out; valid ones */
    };

    struct residual_part {
        float4 value[PASSES];
    };

    static __device__ __forceinline__ int staged_row(int pass)
    {
        return pass * PASS_ROWS + (int)threadIdx.x % 128 / VECTORS;
    }

    static __device__ __forceinline__ void load_residual(residual_part *part, const destination &to, int first_row,
                                                         int rows)
    {
        if constexpr (P::HAS_RESIDUAL && ALIGNED) {
            const int column = to.first_column + (int)threadIdx.x % VECTORS * VECTOR;
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) {
                const int local = staged_row(pass), row = first_row + local;
                part->value[pass] = make_float4(0, 0, 0, 0);
                if (local < rows && row < to.rows && column < OUT_COLUMNS)
                    part->value[pass] = *(const float4 *)(to.residual + (i64)row * OUT_COLUMNS + column);
            }
        }
    }

    /* First column of out that comes from the 64 rows of W of a warpgroup's `part`. */
    static __device__ __forceinline__ int first_column(tile at, int warpgroup, int part)
    {
        const int w_row = at.column + (warpgroup * PARTS + part) * 64;
        return GATED ? w_row / 2 : w_row;
    }

    /* Brings the residual of a warpgroup's part of the tile into the L2 cache while the tile is multiplied: at its
     * end all SMs will want theirs at the same time. */
    static __device__ __forceinline__ void prefetch_residual(const destination &to, tile at, int warpgroup)
    {
        constexpr int LINES = PARTS * 2; /* 128 bytes: 32 columns */
        if constexpr (P::HAS_RESIDUAL && ROW_TILES > 1)
            for (int i = (int)threadIdx.x % 128; i < P::TILE_M * LINES; i += 128) {
                const int row = at.row + i / LINES, column = at.column + warpgroup * PARTS * 64 + i % LINES * 32;
                if (row < to.rows && column < OUT_COLUMNS) prefetch_l2(to.residual + (i64)row * OUT_COLUMNS + column);
            }
    }

    /* What will be added to the `chunk`-th staged rows of a warpgroup's tile. */
    static __device__ __forceinline__ void load_chunk(residual_part *part, destination to, tile at, int warpgroup,
                                                      int chunk)
    {
        const int first = chunk % CHUNKS * STAGED_BLOCKS, count = min(BLOCKS - first, STAGED_BLOCKS);
        to.first_column = first_column(at, warpgroup, chunk / CHUNKS);
        load_residual(part, to, at.row + first * 8, count * 8);
    }

    /* Writes `rows` staged rows to out, from first_row on. */
    static __device__ __forceinline__ void write(u32 staged, const destination &to, const residual_part &part,
                                                 int first_row, int rows)
    {
        const int vector = (int)threadIdx.x % VECTORS, column = to.first_column + vector * VECTOR;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const int local = staged_row(pass), row = first_row + local;
            if (local >= rows || row >= to.rows || column >= OUT_COLUMNS) continue;
            const u32 at = staged + (u32)(local * STAGED_PITCH + vector * 16);
            const i64 index = (i64)row * OUT_COLUMNS + column;
            store_staged<P::OUT_DTYPE, P::HAS_RESIDUAL, ALIGNED>(to.out, to.residual, index, OUT_COLUMNS - column,
                                                                 load_shared_ordered(at), part.value[pass]);
        }
    }

    /* SPLIT_K: shares of a tile, 8 rows of x and 64 of W each for every warpgroup, of which a block of the cluster has one in SPLIT_K;
     * as many at once as the staging area holds, whose sums fit the registers. */
    static constexpr int SHARES = PARTS * BLOCKS, OWN_SHARES = (SHARES + P::SPLIT_K - 1) / P::SPLIT_K;
    static constexpr int MOST_ADDED = !CODED && LEAST_BLOCKS > 1 && SUMS >= 48 ? 1 : 9; /* of 4 registers each */
    static constexpr int MOST_SHARES = P::SPLIT_K > MOST_ADDED ? 1 : MOST_ADDED / P::SPLIT_K;
    static constexpr int STAGED_SHARES = 2 * STAGED_BLOCKS < MOST_SHARES ? 2 * STAGED_BLOCKS : MOST_SHARES;
    static constexpr int BATCH = OWN_SHARES < STAGED_SHARES ? OWN_SHARES : STAGED_SHARES;

    /* Sums of this block itself. */
    static __device__ __forceinline__ float4 load_sums(u32 at)
    {
        const uint4 bits = load_shared_ordered(at);
        return make_float4(float_of_bits(bits.x), float_of_bits(bits.y), float_of_bits(bits.z), float_of_bits(bits.w));
    }

    /* What will be added to a batch of shares, of which `first` is the first. */
    static __device__ __forceinline__ void load_shares(residual_part (&parts)[BATCH], destination to, tile at,
                                                       int warpgroup, int first)
    {
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int share = first + j * P::SPLIT_K;
            to.first_column = first_column(at, warpgroup, share / BLOCKS);
            if (share < SHARES) load_residual(&parts[j], to, at.row + share % BLOCKS * 8, 8);
        }
    }

    /* The first of the two rows of W whose sums a thread holds. */
    static __device__ __forceinline__ int bias_row(tile at, int warpgroup, int part)
    {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
        return at.column + (warpgroup * PARTS + part) * 64 + warp * 16 + lane / 4;
    }

    /* A stage may be filled again, for all this warp has to do with it. */
    static __device__ __forceinline__ void release(u32 empty)
    {
        const u32 lane = threadIdx.x % 32;
        if (lane >= P::MULTICAST) return;
        if (P::MULTICAST == 1)
            barrier_arrive(empty);
        else
            barrier_arrive_at(empty, lane);
    }

    /* `memory`: shared, laid out as matmul_wgmma_layout.cuh says, aligned to 1024. `bias`, `residual`, `x_scales`: null
     * without HAS_... Which sum a register holds: wgmma.cuh. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const tensor_map &x_map,
                                               const weights_operand &weights, void *out, const void *bias,
                                               const float *residual, const float *x_scales)
    {
        const u32 base = shared_address(memory), full = base + BARRIERS, empty = full + 8 * P::STAGES;
        const int cluster = (int)blockIdx.x / CLUSTER, clusters = (int)gridDim.x / CLUSTER;
        const int rank = (int)blockIdx.x % CLUSTER; /* in the cluster */
        const int first_step = P::SPLIT_K == 1 ? 0 : (int)((i64)rank * STEPS / P::SPLIT_K);
        const int end_step = P::SPLIT_K == 1 ? STEPS : (int)((i64)(rank + 1) * STEPS / P::SPLIT_K);
        const bool producer = threadIdx.x >= CONSUMERS;

        device_trigger();
        /* Read before the wait: this step's launches do not write it. */
        const int rows = min(counts[P::COUNT_INDEX], P::ROWS), row_tiles = (rows + P::TILE_M - 1) / P::TILE_M;
        if (threadIdx.x == CONSUMERS) {
            tile_prefetch_map(&x_map);
            if constexpr (HAS_MAP) tile_prefetch_map(&weights);
            for (u32 i = 0; i < P::STAGES; i++) {
                barrier_init(full + 8 * i, 2);                                 /* the producers of W and of x */
                barrier_init(empty + 8 * i, P::WARPGROUPS * 4 * P::MULTICAST); /* a consumer warp each */
            }
            barrier_init_done();
        }
        if (P::MULTICAST > 1)
            cluster_sync();
        else
            __syncthreads();

        if (producer) {
            if constexpr (REALLOCATE) registers_decrease<P::WARPGROUPS == 2 ? 40 : 56>();
            const bool leads = threadIdx.x % 32 == 0; /* the others help to load coded weights */
            const int warp = ((int)threadIdx.x - CONSUMERS) / 32;
            if (warp < PRODUCERS && (CODED || leads)) {
                const u64 policy = policy_evict_first();
                constexpr int AHEAD_STAGES = ROW_TILES > 1 ? 0 : P::PREFETCH == 1 ? P::STAGES : P::PREFETCH;
                u32 slot = 0, parity = 1;
                int count = 0; /* of stages, of all warps */
                for (int index = cluster; index < row_tiles * COLUMN_TILES; index += clusters) {
                    const tile at = tile_at(index, row_tiles, rank);
#pragma unroll 1
                    for (int step = first_step; step < end_step; step++, count++) {
                        const u32 barrier = full + 8 * slot;
                        if (PRODUCERS == 1 || count % PRODUCERS == warp) {
                            if (count / PRODUCERS == AHEAD_STAGES / PRODUCERS) device_wait();
                            barrier_wait(empty + 8 * slot, parity);
                            if (leads) barrier_arrive_expect(barrier, w_bytes(at));
                            if (CODED) __syncwarp();
                            load_w(base + slot * STAGE_BYTES, weights, at, step, barrier, policy);
                        }
                        if (++slot == P::STAGES) slot = 0, parity ^= 1;
                    }
                }
            } else if (warp == PRODUCERS && leads) { /* x alone must wait: weights are constants */
                device_wait();
                u32 slot = 0, parity = 1;
                for (int index = cluster; index < row_tiles * COLUMN_TILES; index += clusters) {
                    const tile at = tile_at(index, row_tiles, rank);
#pragma unroll 1
                    for (int step = first_step; step < end_step; step++) {
                        const u32 barrier = full + 8 * slot;
                        barrier_wait(empty + 8 * slot, parity);
                        barrier_arrive_expect(barrier, X_TILE_BYTES);
                        load_x(base + slot * STAGE_BYTES + W_BYTES, &x_map, at, step, barrier, rank);
                        if (++slot == P::STAGES) slot = 0, parity ^= 1;
                    }
                }
            }
            __syncwarp();
            if (P::SPLIT_K > 1) {
                device_wait();
                if (cluster < row_tiles * COLUMN_TILES) { /* the consumers have one tile at most and do the same */
                    cluster_sync();
                    cluster_sync();
                }
            }
        } else {
            if constexpr (REALLOCATE) registers_increase<P::WARPGROUPS == 2 ? 232 : 152>();
            device_wait();
            const u32 warpgroup = threadIdx.x / 128;
            const u32 staging = base + STAGING + warpgroup * 2 * STAGED_BYTES;
            const u32 scales = base + (u32)LAYOUT.scales + warpgroup * P::TILE_M * 4;
            const u32 w_tile = warpgroup * PARTS * 64 * BOX_BYTES;
            u32 slot = 0, parity = 0;
            for (int index = cluster; index < row_tiles * COLUMN_TILES; index += clusters) {
                const tile at = tile_at(index, row_tiles, rank);
                destination to = {out, residual, bias, 0, rows};
                prefetch_residual(to, at, (int)warpgroup);
                residual_part residuals[AHEAD];
                if constexpr (P::SPLIT_K == 1) {
#pragma unroll
                    for (int chunk = 0; chunk < AHEAD; chunk++)
                        load_chunk(&residuals[chunk], to, at, (int)warpgroup, chunk);
                }
                float sums[PARTS][P::TILE_M / 2];
                if constexpr (CODED) {
                    row_factors factors[PARTS];
#pragma unroll
                    for (int part = 0; part < PARTS; part++)
                        factors[part] = load_factors(weights, bias_row(at, (int)warpgroup, part));
                    fetch_scales(scales, x_scales, at.row);
                    if constexpr (INTEGERS && !GROUP_INTEGERS)
                        multiply_integers(sums, base, &slot, &parity, first_step, end_step);
                    else if constexpr (GROUP_INTEGERS)
                        multiply_coded<int>(sums, base, &slot, &parity, first_step, end_step);
                    else
                        multiply_coded<float>(sums, base, &slot, &parity, first_step, end_step);
                    if constexpr (CODES) named_barrier(1 + (int)warpgroup, 128); /* the scales are there */
#pragma unroll
                    for (int part = 0; part < PARTS; part++) {
                        multiply_rows(sums[part], factors[part]);
                        multiply_columns(sums[part], scales);
                    }
                } else {
                    u32 last = 0;
#pragma unroll 1
                    for (int step = first_step; step < end_step; step++) {
                        barrier_wait(full + 8 * slot, parity);
                        const u64 w = wgmma_tile(base + slot * STAGE_BYTES + w_tile);
                        const u64 x = wgmma_tile(base + slot * STAGE_BYTES + W_BYTES);
                        wgmma_begin();
#pragma unroll
                        for (int k = 0; k < P::TILE_K; k += 16) {
                            const int box = k / BOX_K, within = k % BOX_K * 2 / 16; /* descriptors count 16 bytes */
#pragma unroll
                            for (int part = 0; part < PARTS; part++)
                                wgmma<P::TILE_M, P::DTYPE>::run(
                                    sums[part], w + (u64)((box * P::TILE_N + part * 64) * BOX_BYTES / 16 + within),
                                    x + (u64)(box * P::TILE_M * BOX_BYTES / 16 + within), step > first_step || k > 0);
                        }
                        wgmma_commit();
                        wgmma_wait<1>(); /* the step before has been multiplied: its stage is free */
                        if (step > first_step) release(empty + 8 * last);
                        last = slot;
                        if (++slot == P::STAGES) slot = 0, parity ^= 1;
                    }
                    wgmma_wait<0>();
                    release(empty + 8 * last);
                }

                if constexpr (P::SPLIT_K == 1) {
                    int chunk = 0;
#pragma unroll
                    for (int part = 0; part < PARTS; part++) {
                        to.first_column = first_column(at, (int)warpgroup, part);
                        const bias_pair add =
                            load_bias<P::HAS_BIAS, P::BIAS_DTYPE>(bias, bias_row(at, (int)warpgroup, part), P::N);
#pragma unroll
                        for (int first = 0; first < BLOCKS; first += STAGED_BLOCKS, chunk++) {
                            const int count = BLOCKS - first < STAGED_BLOCKS ? BLOCKS - first : STAGED_BLOCKS;
                            const u32 staged =
                                staging + (u32)(chunk % 2 * STAGED_BYTES); /* the other may still be read */
#pragma unroll
                            for (int block = 0; block < count; block++) {
                                const float *v = &sums[part][(first + block) * 4];
                                stage(staged, block, v[0] + add.low, v[1] + add.low, v[2] + add.high, v[3] + add.high);
                            }
                            named_barrier(1 + (int)warpgroup, 128);
                            write(staged, to, residuals[chunk % AHEAD], at.row + first * 8, count * 8);
                            if (chunk + AHEAD < PARTS * CHUNKS)
                                load_chunk(&residuals[chunk % AHEAD], to, at, (int)warpgroup, chunk + AHEAD);
                        }
                    }
                    if (chunk % 2)
                        named_barrier(1 + (int)warpgroup, 128); /* the next tile begins with the first half */
                } else {
                    /* Every block of the cluster adds up and writes its shares of the tile. */
                    named_barrier(15, CONSUMERS);
                    float4 *mine = (float4 *)memory + threadIdx.x;
#pragma unroll
                    for (int part = 0; part < PARTS; part++)
#pragma unroll
                        for (int block = 0; block < BLOCKS; block++) {
                            const float *v = &sums[part][block * 4];
                            mine[(part * BLOCKS + block) * CONSUMERS] = make_float4(v[0], v[1], v[2], v[3]);
                        }
                    residual_part residual_rows[BATCH];
                    load_shares(residual_rows, to, at, (int)warpgroup, rank); /* while the others finish */
                    cluster_sync();
                    if (rank >= SHARES) cluster_arrive();
#pragma unroll 1
                    for (int first = rank; first < SHARES; first += BATCH * P::SPLIT_K) {
                        const bool is_last = first + BATCH * P::SPLIT_K >= SHARES;
                        float4 v[BATCH][P::SPLIT_K];
#pragma unroll
                        for (int j = 0; j < BATCH; j++)
#pragma unroll
                            for (int i = 0; i < P::SPLIT_K; i++) {
                                const int share = min(first + j * P::SPLIT_K, SHARES - 1);
                                const u32 place = base + (u32)(share * CONSUMERS + (int)threadIdx.x) * 16;
                                v[j][i] = i == rank ? load_sums(place) : cluster_load(cluster_address(place, (u32)i));
                            }
#pragma unroll
                        for (int j = 0; j < BATCH; j++) {
                            const int part = min(first + j * P::SPLIT_K, SHARES - 1) / BLOCKS;
                            const bias_pair add =
                                load_bias<P::HAS_BIAS, P::BIAS_DTYPE>(bias, bias_row(at, (int)warpgroup, part), P::N);
#pragma unroll
                            for (int i = 1; i < P::SPLIT_K; i++) {
                                v[j][0].x += v[j][i].x;
                                v[j][0].y += v[j][i].y;
                                v[j][0].z += v[j][i].z;
                                v[j][0].w += v[j][i].w;
                            }
                            stage(staging, j, v[j][0].x + add.low, v[j][0].y + add.low, v[j][0].z + add.high,
                                  v[j][0].w + add.high);
                        }
                        named_barrier(1 + (int)warpgroup, 128);
                        if (is_last) cluster_arrive(); /* this block has read what it wants of the others */
#pragma unroll
                        for (int j = 0; j < BATCH; j++) {
                            const int share = first + j * P::SPLIT_K;
                            to.first_column = first_column(at, (int)warpgroup, share / BLOCKS);
                            if (share < SHARES)
                                write(staging + (u32)(j * 8 * STAGED_PITCH), to, residual_rows[j],
                                      at.row + share % BLOCKS * 8, 8);
                        }
                        if (is_last) break;
                        load_shares(residual_rows, to, at, (int)warpgroup, first + BATCH * P::SPLIT_K);
                        named_barrier(1 + (int)warpgroup, 128); /* all staged rows have been written */
                    }
                    cluster_wait(); /* no block ends while another reads its sums */
                }
            }
        }
        if (P::MULTICAST > 1) cluster_sync(); /* no block ends while another copies to it */
    }
};

#endif
