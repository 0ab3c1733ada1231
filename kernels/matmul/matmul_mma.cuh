/* SPDX-License-Identifier: Apache-2.0 */
/* matmul by mma.sync, for GPUs from compute capability 8.0 on and any number of rows: contract in matmul_device.h,
 * without HAS_NORM.
 *
 * As in matmul_wgmma the product is computed transposed: rows of W are the M operand of mma.m16n8k16, rows of x its
 * N operand, so that gate and up of a SwiGLU pair (rows g and g + 8 of 16) meet in one thread. A block computes
 * TILE_N rows of W times TILE_M rows of x. All threads copy both tiles with cp.async into a ring of STAGES stages.
 * WARPS_N * WARPS_M warps share the tile; WARPS_K sets of them share the k of every stage, and their sums are added
 * in the order of the sets, through shared memory. The finished tile is transposed through shared memory.
 *
 * Rows in shared memory are TILE_K elements long, in chunks of 16 bytes; chunk c of row r stands at c ^ (r % 8)
 * (TILE_K 32: c ^ (r / 2 % 4)), so that ldmatrix, which reads 8 rows at once, meets all banks.
 *
 * Coded weights (fragment.cuh) come as strips of 128 k of each panel of 16 rows. TILE_K is one strip or more for each
 * set of warps, so that the codes, scales and sums of a group stay inside one warp. Each warp of WARPS_M decodes the
 * panels again. Codes of K's padding are multiplied by zeros of x.
 *
 * Over experts (matmul.h) each tile of x has rows that chose the same expert, gathered by the router's lists. Each warp finds
 * the expert of the block's tile by itself. W waits for earlier launches, too, since it depends on the lists.
 *
 * With BLOCK_N (matmul.h) a tile of x has part b of some rows, all for block b of W; rows of x may have X_PITCH elements.
 *
 * Errors: as a float32 sum in any order; 16-bit outputs are rounded once. Legal tunables: matmul_device.h. */
#ifndef KERNELS_MATMUL_MATMUL_MMA_CUH
#define KERNELS_MATMUL_MATMUL_MMA_CUH

#include "kernels/cuda/include/epilogue.cuh"
#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/ptx.cuh"
#include "kernels/matmul/fragment.cuh"
#include "kernels/matmul/matmul_mma_layout.cuh"

template <class P> struct matmul_mma_body {
    static constexpr bool GATED = epilogue_is_gated(P::EPILOGUE);
    static constexpr bool CODED = fragment_is_coded(P::DTYPE);
    static constexpr int ELEMENT = CODED ? DTYPE_BF16 : P::DTYPE; /* that is multiplied */
    static constexpr fragment_layout FRAGMENTS = fragment_lay_out(P::DTYPE);
    static constexpr int EXPERTS = P::EXPERTS, TOP_K = EXPERTS ? P::ROUTE_WIDTH / 2 : 1, CHOICES = P::ROWS * TOP_K;
    static constexpr bool SHARES_X = EXPERTS && P::EPILOGUE != ACTIVATION_NONE; /* by the choices of a row */
    static constexpr int BLOCK_ROWS = (P::BLOCK_N + 15) / 16 * 16;              /* of a block in W */
    static constexpr int DIAGONAL = P::BLOCK_N ? P::N / BLOCK_ROWS : 0;         /* blocks; 0: W is not block diagonal */
    static constexpr bool GATHERED = EXPERTS || DIAGONAL; /* a tile's rows of x and of out are listed */
    static constexpr int N = EXPERTS ? P::N / EXPERTS : DIAGONAL ? P::BLOCK_N : P::N; /* rows of a matrix */
    static constexpr int OUT_COLUMNS = GATED ? N / 2 : N;
    static constexpr int SET_THREADS = 32 * P::WARPS_N * P::WARPS_M, THREADS = SET_THREADS * P::WARPS_K;
    /* On a multiprocessor, for the compiler. Unless told it may spill registers to have room for one more; 0: not told. */
    static constexpr int LEAST_BLOCKS = CODED ? 1 : 0;
    static constexpr int TILES_OF_ROWS = (P::ROWS + P::TILE_M - 1) / P::TILE_M;
    static constexpr int ROW_TILES =
        EXPERTS ? (int)expert_tiles(CHOICES, EXPERTS, P::TILE_M) : TILES_OF_ROWS * (DIAGONAL ? DIAGONAL : 1);
    static constexpr int STEPS = (P::K + P::TILE_K - 1) / P::TILE_K;
    static constexpr int PARTS = P::TILE_N / P::WARPS_N / 16; /* tiles of 16 rows of W that a warp multiplies */
    static constexpr int BLOCKS = P::TILE_M / P::WARPS_M / 8; /* by blocks of 8 rows of x: 4 sums in each thread */

    static constexpr int PITCH = P::TILE_K * 2, CHUNKS = P::TILE_K / 8; /* of a row of a tile */
    static constexpr int OUT_BYTES = P::OUT_DTYPE == DTYPE_F32 ? 4 : 2;
    static constexpr matmul_mma_layout LAYOUT = matmul_mma_lay_out(P::DTYPE, P::TILE_N, P::TILE_M, P::TILE_K, P::STAGES,
                                                                   P::WARPS_K, OUT_BYTES, GATED, GATHERED);
    static constexpr int W_BYTES = (int)LAYOUT.w_bytes, STAGE_BYTES = (int)LAYOUT.stage_bytes;
    static constexpr int PANEL_BYTES = (int)LAYOUT.panel_bytes;
    static constexpr int STAGED_COLUMNS = (int)LAYOUT.staged_columns, STAGED_PITCH = (int)LAYOUT.staged_pitch;
    static constexpr int VECTOR = 16 / OUT_BYTES, VECTORS = STAGED_COLUMNS / VECTOR;
    static constexpr bool ALIGNED = OUT_COLUMNS % VECTOR == 0;

    static_assert(P::TILE_N % (16 * P::WARPS_N) == 0 && P::TILE_M % (8 * P::WARPS_M) == 0 &&
                      P::TILE_K % (16 * P::WARPS_K) == 0,
                  "tile");
    static_assert(CODED ? P::TILE_K % (FRAGMENT_STRIP_K * P::WARPS_K) == 0
                        : P::TILE_K == 32 || P::TILE_K == 64 || P::TILE_K == 128,
                  "TILE_K");
    static_assert(P::HAS_NORM == 0, "HAS_NORM");

    /* Bytes from the start of a tile to 16-byte chunk `chunk` of row `row`. */
    static __device__ __forceinline__ u32 place(int row, int chunk)
    {
        const int mixed = P::TILE_K == 32 ? chunk ^ row / 2 % 4 : chunk ^ row % 8;
        return (u32)(row * PITCH + mixed * 16);
    }

    /* Copies rows [first, first + COUNT) of a [rows, P::K] matrix, k from `step` * TILE_K on; zero outside the
     * matrix. */
    template <int COUNT>
    static __device__ __forceinline__ void copy_tile(u32 to, const u16 *from, int first, int rows, int step)
    {
#pragma unroll
        for (int i = (int)threadIdx.x; i < COUNT * CHUNKS; i += THREADS) {
            const int row = i / CHUNKS, chunk = i % CHUNKS, k = step * P::TILE_K + chunk * 8;
            const bool inside = first + row < rows && k < P::K;
            const u16 *source = inside ? from + (i64)(first + row) * P::K + k : from;
            copy_async_if<16>(to + place(row, chunk), source, inside);
        }
    }

    /* The tile of x over experts: the rows of `count` choices. With blocks a choice is a part of a row. */
    static __device__ __forceinline__ void copy_choices(u32 to, const u16 *x, const int *choices, int count, int step)
    {
#pragma unroll
        for (int i = (int)threadIdx.x; i < P::TILE_M * CHUNKS; i += THREADS) {
            const int row = i / CHUNKS, chunk = i % CHUNKS, k = step * P::TILE_K + chunk * 8;
            const bool inside = row < count && k < P::K;
            i64 from = (i64)(SHARES_X ? choices[row] / TOP_K : choices[row]) * P::K;
            if constexpr (P::X_PITCH)
                from = (i64)(choices[row] / DIAGONAL) * P::X_PITCH + choices[row] % DIAGONAL * P::K;
            copy_async_if<16>(to + place(row, chunk), inside ? x + from + k : x, inside);
        }
    }

    /* The same of coded weights: the strips of each panel of the tile; zero beyond the matrix. */
    static __device__ __forceinline__ void copy_panels(u32 to, const u8 *weights, int first, int step)
    {
        constexpr i64 PITCH_BYTES = fragment_panel_bytes(FRAGMENTS, P::K);
        constexpr i64 STRIP_BYTES = fragment_strips(P::K) * FRAGMENTS.strip_bytes; /* of a panel */
        constexpr int PIECES = PANEL_BYTES / 16;
        const int panels = (N - first + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS;
        const u8 *source =
            weights + first / FRAGMENT_ROWS * PITCH_BYTES + fragment_factor_bytes(FRAGMENTS) + (i64)step * PANEL_BYTES;
#pragma unroll
        for (int i = (int)threadIdx.x; i < P::TILE_N / FRAGMENT_ROWS * PIECES; i += THREADS) {
            const int panel = i / PIECES, at = i % PIECES * 16;
            const bool inside = panel < panels && (i64)step * PANEL_BYTES + at < STRIP_BYTES;
            copy_async_if<16>(to + (u32)(i * 16), inside ? source + panel * PITCH_BYTES + at : weights, inside);
        }
    }

    static __device__ __forceinline__ void copy_w(u32 to, const u16 *w, int first, int step)
    {
        if constexpr (CODED)
            copy_panels(to, (const u8 *)w, first, step);
        else
            copy_tile<P::TILE_N>(to, w, first, N, step);
    }

    static __device__ __forceinline__ void copy_x(u32 to, const u16 *x, const int *choices, int row, int rows, int step)
    {
        if constexpr (GATHERED)
            copy_choices(to, x, choices, rows, step);
        else
            copy_tile<P::TILE_M>(to, x, row, rows, step);
    }

    /* 16 x 16 of W: the A operand. */
    static __device__ __forceinline__ void load_w(u32 (&a)[4], u32 tile, int row, int chunk)
    {
        const int lane = (int)threadIdx.x % 32;
        load_matrices(a, tile + place(row + lane % 16, chunk + lane / 16));
    }

    /* 8 rows of x, 16 k: the B operand. */
    static __device__ __forceinline__ void load_x(u32 (&b)[2], u32 tile, int row, int chunk)
    {
        const int lane = (int)threadIdx.x % 32;
        load_matrices(b, tile + place(row + lane % 8, chunk + lane / 8 % 2));
    }

    /* Two of them. */
    static __device__ __forceinline__ void load_x_pair(u32 (&b)[2], u32 (&next)[2], u32 tile, int row, int chunk)
    {
        const int lane = (int)threadIdx.x % 32;
        u32 both[4];
        load_matrices(both, tile + place(row + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2));
        b[0] = both[0], b[1] = both[1], next[0] = both[2], next[1] = both[3];
    }

    /* All blocks of x, 16 k. */
    static __device__ __forceinline__ void load_blocks(u32 (&b)[BLOCKS][2], u32 x_tile, int warp_m, int chunk)
    {
#pragma unroll
        for (int block = 0; block + 1 < BLOCKS; block += 2)
            load_x_pair(b[block], b[block + 1], x_tile, warp_m + block * 8, chunk);
        if (BLOCKS % 2) load_x(b[BLOCKS - 1], x_tile, warp_m + (BLOCKS - 1) * 8, chunk);
    }

    /* A set's part of a stage. */
    static __device__ __forceinline__ void multiply_rows(float (&sums)[PARTS][BLOCKS][4], u32 w_tile, u32 x_tile,
                                                         int warp_n, int warp_m, int set)
    {
#pragma unroll
        for (int k = 0; k < P::TILE_K / P::WARPS_K; k += 16) {
            const int chunk = (set * (P::TILE_K / P::WARPS_K) + k) / 8;
            u32 a[PARTS][4], b[BLOCKS][2];
#pragma unroll
            for (int part = 0; part < PARTS; part++) load_w(a[part], w_tile, warp_n + part * 16, chunk);
            load_blocks(b, x_tile, warp_m, chunk);
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int block = 0; block < BLOCKS; block++)
                    mma<ELEMENT>(sums[part][block], a[part][0], a[part][1], a[part][2], a[part][3], b[block][0],
                                 b[block][1]);
        }
    }

    /* Strip `index` of the warp's panels in a stage. Sums of a group are multiplied by its scales. A turn of the loop is a
     * group, or else what a load of codes brings: with more at once the compiler spills. */
    static __device__ __forceinline__ void multiply_strip(float (&sums)[PARTS][BLOCKS][4], u32 w_tile, u32 x_tile,
                                                          int warp_n, int warp_m, int index)
    {
        typedef fragment_strip<P::DTYPE> whole;
        typedef fragment_strip<P::DTYPE, whole::SUM_SCALES ? whole::GROUP_STEPS : whole::PART_STEPS> strip;
        constexpr bool ROOMY = THREADS <= 256 && PARTS * BLOCKS <= 4;
        constexpr int UNROLLED = ROOMY ? 2 : 1, PIECES_UNROLLED = ROOMY ? strip::PARTS : 1;
        const u32 strips = w_tile + (u32)(warp_n / FRAGMENT_ROWS * PANEL_BYTES + index * FRAGMENTS.strip_bytes);
#pragma unroll UNROLLED
        for (int unit = 0; unit < strip::UNITS; unit++) {
            typename strip::head heads[PARTS];
            float group_sums[PARTS][BLOCKS][4] = {};
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                heads[part] = strip::load_head(strips + (u32)(part * PANEL_BYTES), unit);
#pragma unroll PIECES_UNROLLED
            for (int piece = 0; piece < strip::PARTS; piece++) {
                u32 codes[PARTS][strip::CODE_WORDS];
#pragma unroll
                for (int part = 0; part < PARTS; part++)
                    strip::load_codes(codes[part], strips + (u32)(part * PANEL_BYTES), unit * strip::PARTS + piece);
#pragma unroll
                for (int i = 0; i < strip::PART_STEPS; i++) {
                    const int step = unit * strip::STEPS + piece * strip::PART_STEPS + i;
                    u32 b[BLOCKS][2];
                    load_blocks(b, x_tile, warp_m, (index * whole::STEPS + step) * 2);
#pragma unroll
                    for (int part = 0; part < PARTS; part++) {
                        u32 a[4];
                        strip::decode(a, codes[part], heads[part], i);
#pragma unroll
                        for (int block = 0; block < BLOCKS; block++)
                            mma<ELEMENT>(strip::SUM_SCALES ? group_sums[part][block] : sums[part][block], a[0], a[1],
                                         a[2], a[3], b[block][0], b[block][1]);
                    }
                }
            }
            if constexpr (strip::SUM_SCALES) {
#pragma unroll
                for (int part = 0; part < PARTS; part++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float scale = strip::scale(heads[part], 0, i / 2);
#pragma unroll
                        for (int block = 0; block < BLOCKS; block++)
                            sums[part][block][i] += group_sums[part][block][i] * scale;
                    }
            }
        }
    }

    /* Multiplies the warp's sums by the factors of coded rows of W, the first of which is `row`. */
    static __device__ __forceinline__ void multiply_factors(float (&sums)[PARTS][BLOCKS][4], const u16 *w, int row)
    {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            if (row + part * 16 >= N) continue; /* no such panel */
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float factor =
                    fragment_factor<P::DTYPE>(w, row + part * 16 + half * 8 + (int)threadIdx.x % 32 / 4, P::K);
#pragma unroll
                for (int block = 0; block < BLOCKS; block++) {
                    sums[part][block][half * 2] *= factor;
                    sums[part][block][half * 2 + 1] *= factor;
                }
            }
        }
    }

    static __device__ __forceinline__ void stage(u8 *memory, int row, int column, float value)
    {
        u8 *to = memory + row * STAGED_PITCH + column * OUT_BYTES;
        if constexpr (OUT_BYTES == 4)
            *(float *)to = value;
        else
            *(u16 *)to = half_of_float<P::OUT_DTYPE>(value);
    }

    /* W from matrix `index` on. */
    static __device__ __forceinline__ const u16 *find_matrix(const u16 *w, int index)
    {
        constexpr int ROWS_OF_MATRIX = DIAGONAL ? BLOCK_ROWS : N;
        if constexpr (CODED)
            return (const u16 *)((const u8 *)w +
                                 index * (ROWS_OF_MATRIX / FRAGMENT_ROWS) * fragment_panel_bytes(FRAGMENTS, P::K));
        else
            return w + (i64)index * ROWS_OF_MATRIX * P::K;
    }

    /* Lists part `block` of `rows` rows from `first` on. */
    static __device__ __forceinline__ void list_parts(int *choices, int block, int first, int rows)
    {
        for (int i = (int)threadIdx.x; i < P::TILE_M; i += THREADS)
            choices[i] = i < rows ? (first + i) * DIAGONAL + block : 0;
        __syncthreads();
    }

    /* What a block multiplies: rows from `row` on of x and the result, or over experts so many choices of an expert. */
    struct tile {
        int expert, row, rows;
    };

    /* Tile `index` of the router's lists, its choices and their weights into shared memory; without rows if there is no such
     * tile. No number of the lists is trusted. */
    static __device__ __forceinline__ tile find_tile(int index, const int *lists, const float *routes, int *choices,
                                                     float *weights)
    {
        const int lane = (int)threadIdx.x % 32;
        tile found = {0, 0, 0};
        int before = 0; /* tiles of the experts so far */
        for (int base = 0; base < EXPERTS && before <= index; base += 32) {
            const int expert = min(base + lane, EXPERTS - 1);
            const int begin = min(max(load_written_int(lists + expert), 0), CHOICES);
            const int end = min(max(load_written_int(lists + expert + 1), begin), CHOICES);
            const int count = base + lane < EXPERTS ? end - begin : 0, tiles = (count + P::TILE_M - 1) / P::TILE_M;
            int up_to = tiles;
#pragma unroll
            for (int offset = 1; offset < 32; offset *= 2) {
                const int more = __shfl_up_sync(0xffffffffu, up_to, offset);
                if (lane >= offset) up_to += more;
            }
            up_to += before;
            const u32 beyond = __ballot_sync(0xffffffffu, up_to > index);
            const int first = (index - (up_to - tiles)) * P::TILE_M;
            if (beyond && found.rows == 0) {
                const int lane_of = __ffs((int)beyond) - 1;
                found.expert = base + lane_of;
                found.row = __shfl_sync(0xffffffffu, begin + first, lane_of);
                found.rows = __shfl_sync(0xffffffffu, min(count - first, P::TILE_M), lane_of);
            }
            before = __shfl_sync(0xffffffffu, up_to, 31);
        }
        for (int i = (int)threadIdx.x; i < P::TILE_M; i += THREADS) {
            int choice = 0;
            if (i < found.rows)
                choice = min(max(load_written_int(lists + EXPERTS + 1 + found.row + i), 0), CHOICES - 1);
            choices[i] = choice;
            if constexpr (P::PARTS)
                weights[i] = load_written_float(routes + (i64)(choice / TOP_K) * (2 * TOP_K) + choice % TOP_K);
        }
        __syncthreads();
        return found;
    }

    /* `memory`: shared, laid out as matmul_mma_layout.cuh says, aligned to 128. `bias` and `residual`: null without
     * HAS_BIAS, HAS_RESIDUAL; `routes` and `lists` without experts. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const u16 *x, const u16 *w, void *out,
                                               const void *bias, const float *residual, const float *routes = nullptr,
                                               const int *lists = nullptr)
    {
        const u32 base = shared_address(memory);
        const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread % SET_THREADS / 32,
                  set = thread / SET_THREADS;
        const int warp_n = warp % P::WARPS_N * (P::TILE_N / P::WARPS_N),
                  warp_m = warp / P::WARPS_N * (P::TILE_M / P::WARPS_M);
        /* Neighbours share rows of W. */
        int row = (int)blockIdx.x % ROW_TILES * P::TILE_M;
        const int column = (int)blockIdx.x / ROW_TILES * P::TILE_N;
        int *const choices = (int *)(memory + LAYOUT.choices);
        float *const weights = (float *)(choices + P::TILE_M);
        int rows, first_n = 0; /* of the expert's matrix in all of W */

        if constexpr (SHARES_X) device_wait(); /* for EARLY_ROUTES of the launch that follows (matmul.h) */
        device_trigger();
        if constexpr (EXPERTS) {
            device_wait();
            const tile found = find_tile((int)blockIdx.x % ROW_TILES, lists, routes, choices, weights);
            if (found.rows == 0) return;
            row = 0, rows = found.rows, first_n = found.expert * N;
            w = find_matrix(w, found.expert);
        }
        const int block = DIAGONAL ? (int)blockIdx.x % ROW_TILES / TILES_OF_ROWS : 0;
        if constexpr (DIAGONAL) {
            row = (int)blockIdx.x % TILES_OF_ROWS * P::TILE_M; /* ROW_TILES is a multiple of TILES_OF_ROWS */
            w = find_matrix(w, block);
        }
        /* Weights do not depend on earlier launches, so their copies begin before those have completed. */
#pragma unroll
        for (int step = 0; step < P::STAGES - 1; step++)
            if (step < STEPS) copy_w(base + (u32)(step * STAGE_BYTES), w, column, step);
        if constexpr (!EXPERTS) {
            device_wait();
            rows = min(counts[P::COUNT_INDEX], P::ROWS);
            if (row >= rows) {
                copy_commit();
                copy_wait<0>();
                return;
            }
            if constexpr (DIAGONAL) {
                rows = min(rows - row, P::TILE_M);
                list_parts(choices, block, row, rows);
                row = 0;
            }
        }
#pragma unroll
        for (int step = 0; step < P::STAGES - 1; step++) {
            if (step < STEPS) copy_x(base + (u32)(step * STAGE_BYTES) + W_BYTES, x, choices, row, rows, step);
            copy_commit();
        }

        float sums[PARTS][BLOCKS][4];
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int block = 0; block < BLOCKS; block++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[part][block][i] = 0;
        int slot = 0, next_slot = P::STAGES - 1;
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
            copy_wait<P::STAGES - 2>(); /* this thread's copies of the step have completed */
            __syncthreads();            /* now those of all threads have, and the previous step has been used */
            if (step + P::STAGES - 1 < STEPS) {
                const u32 to = base + (u32)(next_slot * STAGE_BYTES);
                copy_w(to, w, column, step + P::STAGES - 1);
                copy_x(to + W_BYTES, x, choices, row, rows, step + P::STAGES - 1);
            }
            copy_commit();
            const u32 w_tile = base + (u32)(slot * STAGE_BYTES), x_tile = w_tile + W_BYTES;
            if constexpr (CODED) {
#pragma unroll 1
                for (int i = 0; i < P::TILE_K / FRAGMENT_STRIP_K / P::WARPS_K; i++)
                    multiply_strip(sums, w_tile, x_tile, warp_n, warp_m,
                                   set * (P::TILE_K / FRAGMENT_STRIP_K / P::WARPS_K) + i);
            } else {
                multiply_rows(sums, w_tile, x_tile, warp_n, warp_m, set);
            }
            slot = slot + 1 == P::STAGES ? 0 : slot + 1;
            next_slot = next_slot + 1 == P::STAGES ? 0 : next_slot + 1;
        }
        copy_wait<0>();
        __syncthreads(); /* the ring is free */

        /* The first set adds the sums of the other sets, one set after the other. */
#pragma unroll
        for (int from = 1; from < P::WARPS_K; from++) {
            float4 *place_of_sums = (float4 *)memory + thread % SET_THREADS;
            if (set == from) {
#pragma unroll
                for (int part = 0; part < PARTS; part++)
#pragma unroll
                    for (int block = 0; block < BLOCKS; block++) {
                        const float *v = sums[part][block];
                        place_of_sums[(part * BLOCKS + block) * SET_THREADS] = make_float4(v[0], v[1], v[2], v[3]);
                    }
            }
            __syncthreads();
            if (set == 0) {
#pragma unroll
                for (int part = 0; part < PARTS; part++)
#pragma unroll
                    for (int block = 0; block < BLOCKS; block++) {
                        const float4 v = place_of_sums[(part * BLOCKS + block) * SET_THREADS];
                        sums[part][block][0] += v.x;
                        sums[part][block][1] += v.y;
                        sums[part][block][2] += v.z;
                        sums[part][block][3] += v.w;
                    }
            }
            __syncthreads();
        }

        /* Sum i of a thread: row lane / 4 + i / 2 * 8 of W's 16, row lane % 4 * 2 + i % 2 of x's 8. */
        if (set == 0) {
            if constexpr (FRAGMENTS.factors) multiply_factors(sums, w, column + warp_n);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const int n = warp_n + part * 16 + lane / 4;
                const bias_pair add = load_bias<P::HAS_BIAS, P::BIAS_DTYPE>(bias, first_n + column + n, first_n + N);
#pragma unroll
                for (int block = 0; block < BLOCKS; block++) {
                    const float *v = sums[part][block];
                    const int m = warp_m + block * 8 + lane % 4 * 2;
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        if constexpr (GATED) {
                            stage(memory, m + i, (warp_n + part * 16) / 2 + lane / 4,
                                  gated_product<P, true>(v[i] + add.low, v[i + 2] + add.high));
                        } else {
                            const float weight = P::PARTS ? weights[m + i] : 1;
                            stage(memory, m + i, n,
                                  plain_product<P, true>(scaled<P::SCALE_BITS>(v[i] + add.low)) * weight);
                            stage(memory, m + i, n + 8,
                                  plain_product<P, true>(scaled<P::SCALE_BITS>(v[i + 2] + add.high)) * weight);
                        }
                    }
                }
            }
        }
        __syncthreads();

        const int first_column = GATED ? column / 2 : column;
        for (int i = thread; i < P::TILE_M * VECTORS; i += THREADS) {
            const int m = i / VECTORS, within = i % VECTORS * VECTOR;
            if (row + m >= rows || first_column + within >= OUT_COLUMNS) continue;
            const i64 index = (i64)(GATHERED ? choices[m] : row + m) * OUT_COLUMNS + first_column + within;
            float4 add = make_float4(0, 0, 0, 0);
            if constexpr (P::HAS_RESIDUAL && ALIGNED) add = *(const float4 *)(residual + index);
            const uint4 staged = *(const uint4 *)(memory + m * STAGED_PITCH + within * OUT_BYTES);
            store_staged<P::OUT_DTYPE, P::HAS_RESIDUAL, ALIGNED>(out, residual, index,
                                                                 OUT_COLUMNS - first_column - within, staged, add);
        }
    }
};

#endif
