/* SPDX-License-Identifier: Apache-2.0 */
/* norm_router: a norm, the matrix of the router that reads it, and the router, for 1..64 rows (contract: norm_router.h).
 *
 * The launch is one cluster, so that its blocks exchange all they need in shared memory. They share k: each has a slice of MATRIX,
 * copied before the launches before have ended, and the same slice of all rows of x. Three exchanges, each counted by an mbarrier of
 * its own in every block:
 *   sums of squares of each slice, after which every block normalises its slice of y;
 *   sums of products over each slice, to the block that routes the row, which adds them in a fixed order;
 *   choices, to all blocks, each of which writes the lists of its experts.
 * A barrier of the whole cluster would take a fence each time, which waits for all stores of a thread. */
#ifndef KERNELS_NORM_ROUTER_NORM_ROUTER_CUH
#define KERNELS_NORM_ROUTER_NORM_ROUTER_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/ptx.cuh"
#include "kernels/cuda/include/reduce.cuh"
#include "kernels/norm_router/norm_router_layout.cuh"
#include "kernels/router/router.cuh"

template <class P> struct norm_router_body {
    struct router_params : P { /* biases of claims and scales become float32 in shared memory */
        static constexpr int EXPERTS = P::ROUTED, GROUPS = P::ROUTER_GROUPS, HAS_BIAS = P::HAS_CLAIM_BIAS;
        static constexpr int BIAS_DTYPE = DTYPE_F32, SCALES_DTYPE = DTYPE_F32;
        static constexpr auto EPS_BITS = P::ROUTER_EPS_BITS, SCALE_BITS = P::ROUTER_SCALE_BITS;
    };
    typedef router_body<router_params> router;

    static constexpr int THREADS = 32 * P::WARPS, BLOCKS = P::BLOCKS, TOP_K = P::ROUTE_WIDTH / 2;
    static constexpr int ELEMENT = P::MATRIX_DTYPE;
    static constexpr norm_router_layout LAYOUT =
        norm_router_lay_out(P::ROWS, P::K, P::ROUTED, P::ROUTER_GROUPS, TOP_K, BLOCKS, P::WARPS);
    static constexpr int SLICE = (int)LAYOUT.slice, PITCH = (int)LAYOUT.pitch, TILES = (int)LAYOUT.tiles;
    static constexpr int COLUMNS = TILES * NORM_ROUTER_TILE, OWN_ROWS = (int)LAYOUT.own_rows;
    static constexpr int ROW_TILES = (P::ROWS + NORM_ROUTER_TILE_ROWS - 1) / NORM_ROUTER_TILE_ROWS;
    static constexpr int ROWS_PER_WARP = (ROW_TILES * NORM_ROUTER_TILE_ROWS + P::WARPS - 1) / P::WARPS;
    static constexpr int LOADS = (SLICE + 127) / 128;             /* of a lane, of a row's slice */
    static constexpr bool KEEP = ROWS_PER_WARP * LOADS * 4 <= 32; /* x in registers, else it is read again */
    static_assert(P::ROWS <= NORM_ROUTER_MOST_ROWS && OWN_ROWS <= P::WARPS, "a warp routes one row");
    static_assert(P::K % 8 == 0 && P::OUT_DTYPE == ELEMENT, "launch checks");

    /* Operands of the router, null where there is none. */
    struct router_operands {
        const u16 *matrix;
        const void *bias, *claim_bias, *scales;
        const int *seeds, *index;
    };

    static __device__ __forceinline__ int first_k() { return (int)cluster_rank() * SLICE; }

    /* An exchange: by its number, the mbarrier of this block. */
    enum exchange { SQUARES, ADDENDS, CHOICES, EXCHANGES };
    static __device__ __forceinline__ u32 barrier_of(u32 memory, exchange which)
    {
        return memory + (u32)LAYOUT.barriers + 8 * (u32)which;
    }
    /* A word or two to the same place in block `rank`. */
    template <class T>
    static __device__ __forceinline__ void send(u32 memory, exchange which, layout_size place, T value, int rank)
    {
        cluster_store_async(cluster_address(memory + (u32)place, (u32)rank), value,
                            cluster_address(barrier_of(memory, which), (u32)rank));
    }
    static __device__ __forceinline__ void await(u32 memory, exchange which)
    {
        barrier_wait_cluster(barrier_of(memory, which), 0);
    }

    /* By one thread. */
    static __device__ __forceinline__ void expect(u32 memory, int rows)
    {
        const int rank = (int)cluster_rank(), own = rank < rows ? (rows - rank + BLOCKS - 1) / BLOCKS : 0;
        barrier_arrive_expect(barrier_of(memory, SQUARES), (u32)(4 * BLOCKS * rows));
        barrier_arrive_expect(barrier_of(memory, ADDENDS), (u32)(4 * (int)LAYOUT.sources * own * COLUMNS));
        barrier_arrive_expect(barrier_of(memory, CHOICES), (u32)(4 * rows * TOP_K));
    }

    /* ---- before the wait ---- */

    static __device__ __forceinline__ void copy_matrix(const u16 *matrix, u32 to)
    {
        constexpr int VECTORS = SLICE / 8; /* 16 bytes */
#pragma unroll 8
        for (int at = (int)threadIdx.x; at < COLUMNS * VECTORS; at += THREADS) {
            const int expert = at / VECTORS, k = first_k() + at % VECTORS * 8;
            const bool valid = expert < P::ROUTED && k < P::K;
            copy_async_if<16>(to + (u32)(expert * PITCH + at % VECTORS * 16),
                              matrix + (valid ? (i64)expert * P::K + k : 0), valid);
        }
    }

    template <int DTYPE> static __device__ __forceinline__ void copy_constants(const void *from, int which, u8 *memory)
    {
        float *const to = (float *)(memory + LAYOUT.constants) + which * COLUMNS;
        for (int i = (int)threadIdx.x; i < P::ROUTED; i += THREADS) to[i] = load_element<DTYPE>(from, i);
    }

    static __device__ __forceinline__ float *constants_of(u8 *memory, int which)
    {
        return (float *)(memory + LAYOUT.constants) + which * COLUMNS;
    }

    /* ---- the norm ---- */

    /* Columns of a slice that a lane has: 4 from column(i) on. */
    static __device__ __forceinline__ int column(int load) { return (int)threadIdx.x % 32 * 4 + load * 128; }
    static __device__ __forceinline__ bool has_column(int load)
    {
        return column(load) < SLICE && first_k() + column(load) < P::K;
    }

    static __device__ __forceinline__ void load_row(float (&value)[LOADS][4], const float *x, int row)
    {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            u32 bits[4] = {};
            if (has_column(i)) load_written(bits, x + (i64)row * P::K + first_k() + column(i));
#pragma unroll
            for (int j = 0; j < 4; j++) value[i][j] = float_of_bits(bits[j]);
        }
    }

    /* The sum of squares of this slice of the row, to all blocks. */
    static __device__ __forceinline__ void send_squares(const float (&value)[LOADS][4], int row, u32 memory)
    {
        const int lane = (int)threadIdx.x % 32;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < LOADS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum = fmaf(value[i][j], value[i][j], sum);
        sum = warp_sum(sum);
        if (lane < BLOCKS)
            send(memory, SQUARES, LAYOUT.squares + 4 * ((int)cluster_rank() * P::ROWS + row), bits_of_float(sum), lane);
    }

    /* This slice of y into shared memory, zeros where there is none. */
    static __device__ __forceinline__ void store_y(const float (&value)[LOADS][4], const float (&weight)[LOADS][4],
                                                   int row, int rows, u8 *memory)
    {
        const float *const squares = (const float *)(memory + LAYOUT.squares);
        float factor = 0;
        if (row < rows) {
            float sum = 0;
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) sum += squares[block * P::ROWS + row];
            factor = 1.0f / sqrtf(sum * (1.0f / P::K) + float_of_bits(P::EPS_BITS));
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            if (column(i) >= SLICE) continue;
            float y[4];
#pragma unroll
            for (int j = 0; j < 4; j++) y[j] = has_column(i) && row < rows ? value[i][j] * factor * weight[i][j] : 0;
            store_elements<ELEMENT>(memory + LAYOUT.y + row * PITCH, column(i), y);
        }
    }

    static __device__ __forceinline__ void normalise(const float *x, const float (&weight)[LOADS][4], int rows,
                                                     u8 *memory)
    {
        const int warp = (int)threadIdx.x / 32;
        float value[KEEP ? ROWS_PER_WARP : 1][LOADS][4];
        if constexpr (KEEP) /* all loads under way at once */
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; i++)
                if (warp + i * P::WARPS < rows) load_row(value[i], x, warp + i * P::WARPS);
        cluster_wait(); /* all blocks have begun */
#pragma unroll(KEEP ? ROWS_PER_WARP : 1)
        for (int i = 0; i < ROWS_PER_WARP; i++) {
            const int row = warp + i * P::WARPS;
            if (row >= rows) continue;
            if constexpr (!KEEP) load_row(value[0], x, row);
            send_squares(value[KEEP ? i : 0], row, shared_address(memory));
        }
        await(shared_address(memory), SQUARES);
#pragma unroll(KEEP ? ROWS_PER_WARP : 1)
        for (int i = 0; i < ROWS_PER_WARP; i++) {
            const int row = warp + i * P::WARPS;
            if (row >= ROW_TILES * NORM_ROUTER_TILE_ROWS) continue;
            if constexpr (!KEEP)
                if (row < rows) load_row(value[0], x, row);
            store_y(value[KEEP ? i : 0], weight, row, rows, memory);
        }
    }

    /* ---- the product ---- */

    /* Sums over this slice, or over a warp's part of it, to the blocks that route the rows. */
    static __device__ __forceinline__ void multiply(int rows, u32 memory)
    {
        constexpr int STEPS = SLICE / NORM_ROUTER_STEP, K_PARTS = (int)LAYOUT.k_parts;
        constexpr int TURNS =
            ROW_TILES == 1 ? 2 : 1; /* of the sums: a product waits for the one before with the same sums */
        constexpr int UNROLLED = K_PARTS == 1 && STEPS <= 16 ? STEPS : 4;
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        for (int unit = warp; unit < TILES * K_PARTS; unit += P::WARPS) {
            const int tile = unit % TILES, part = K_PARTS == 1 ? 0 : unit / TILES;
            const u32 matrix =
                memory + (u32)LAYOUT.matrix + (u32)((tile * NORM_ROUTER_TILE + lane % 8) * PITCH + lane / 8 * 16);
            const u32 y = memory + (u32)LAYOUT.y + (u32)(lane % 16 * PITCH + lane / 16 * 16);
            float sums[ROW_TILES][2 * TURNS][4] = {};
#pragma unroll UNROLLED
            for (int i = 0; i < (STEPS + K_PARTS - 1) / K_PARTS; i++) {
                const int step = part + i * K_PARTS;
                if (STEPS % K_PARTS && step >= STEPS) continue;
                u32 b[4];
                load_matrices(b, matrix + (u32)(step * NORM_ROUTER_STEP * 2));
#pragma unroll
                for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        u32 a[4];
                        load_matrices(a, y + (u32)(m * NORM_ROUTER_TILE_ROWS * PITCH + step * NORM_ROUTER_STEP * 2 +
                                                   half * 32));
                        mma<ELEMENT>(sums[m][i % TURNS * 2 + half], a[0], a[1], a[2], a[3], b[2 * half],
                                     b[2 * half + 1]);
                    }
            }
            const int source = (int)cluster_rank() * K_PARTS + part;
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
                for (int upper = 0; upper < 2; upper++) {
                    const int row = m * NORM_ROUTER_TILE_ROWS + upper * 8 + lane / 4;
                    const int place =
                        (source * OWN_ROWS + row / BLOCKS) * COLUMNS + tile * NORM_ROUTER_TILE + lane % 4 * 2;
                    float pair[2] = {};
#pragma unroll
                    for (int chain = 0; chain < 2 * TURNS; chain++)
#pragma unroll
                        for (int i = 0; i < 2; i++) pair[i] += sums[m][chain][2 * upper + i];
                    if (row < rows)
                        send(memory, ADDENDS, LAYOUT.addends + 4 * place,
                             (u64)bits_of_float(pair[1]) << 32 | bits_of_float(pair[0]), row % BLOCKS);
                }
        }
    }

    /* ---- the router ---- */

    /* The row that this warp routes: of the warps of all blocks. */
    static __device__ __forceinline__ int own_row()
    {
        const int warp = (int)threadIdx.x / 32;
        return warp < OWN_ROWS ? warp * BLOCKS + (int)cluster_rank() : P::ROWS;
    }

    /* The row's routes to global memory, its choices to all blocks. By a warp. */
    static __device__ __forceinline__ void route(int row, int seed, u8 *memory, float *routes)
    {
        constexpr int SOURCES = (int)LAYOUT.sources;
        const int lane = (int)threadIdx.x % 32, own = row / BLOCKS;
        const float *const addends = (const float *)(memory + LAYOUT.addends) + own * COLUMNS;
        u16 *const kept = (u16 *)(memory + LAYOUT.kept) + own * TOP_K;
        typename router::inputs in = {};
        in.seed = seed;
#pragma unroll
        for (int i = 0; i < router::PER_LANE; i++) {
            const int expert = lane + 32 * i;
            if (expert >= P::ROUTED) continue;
            float sum = 0;
#pragma unroll
            for (int source = 0; source < SOURCES; source++) sum += addends[source * OWN_ROWS * COLUMNS + expert];
            in.logits[i] = P::HAS_ROUTER_BIAS ? sum + constants_of(memory, 0)[expert] : sum;
        }
        router::route_row(in, constants_of(memory, 1), constants_of(memory, 2), routes + row * (2 * TOP_K),
                          (float *)(memory + LAYOUT.claims) + (P::ROUTER_GROUPS > 1 ? own * COLUMNS : 0), kept);
        __syncwarp();
        for (int i = lane; i < BLOCKS * TOP_K; i += 32)
            send(shared_address(memory), CHOICES, LAYOUT.choices + 4 * (row * TOP_K + i % TOP_K), (u32)kept[i % TOP_K],
                 i / TOP_K);
    }

    /* Lists of every BLOCKS * WARPS-th expert: where one begins is the number of choices of lower experts. */
    static __device__ __forceinline__ void write_lists(int rows, const u8 *memory, int *lists)
    {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, count = rows * TOP_K;
        const int *const choices = (const int *)(memory + LAYOUT.choices);
        const auto expert_of = [=](int choice) { return choice < count ? choices[choice] : -1; };
        for (int expert = (int)cluster_rank() + BLOCKS * warp; expert <= router::EXPERTS; expert += BLOCKS * P::WARPS) {
            int begin = 0, own = 0;
#pragma unroll 4
            for (int base = 0; base < count; base += 32) {
                const int other = expert_of(base + lane);
                begin += __popc(__ballot_sync(0xffffffffu, other >= 0 && other < expert));
                own += __popc(__ballot_sync(0xffffffffu, other == expert));
            }
            if (lane == 0) lists[expert] = begin;
            router::write_list_of(expert_of, count, expert, begin, begin + own, lists + router::EXPERTS + 1);
        }
    }

    static __device__ __forceinline__ void write_out(int rows, const u8 *memory, void *out)
    {
        constexpr int VECTORS = SLICE / 8;
        for (int at = (int)threadIdx.x; at < rows * VECTORS; at += THREADS) {
            const int row = at / VECTORS, k = first_k() + at % VECTORS * 8;
            if (k < P::K)
                *(uint4 *)((u16 *)out + (i64)row * P::K + k) =
                    *(const uint4 *)(memory + LAYOUT.y + row * PITCH + at % VECTORS * 16);
        }
    }

    /* `memory`: shared, LAYOUT.bytes, aligned to 16. The grid is one cluster. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const float *x, const void *norm,
                                               void *out, float *routes, int *lists, const router_operands operands)
    {
        const u32 address = shared_address(memory);
        /* No launch of the step writes counts, seeds or the index of rows. */
        const int rows = min(counts[P::COUNT_INDEX], P::ROWS), row = own_row();
        if (threadIdx.x == 0) {
            for (int which = 0; which < EXCHANGES; which++) barrier_init(barrier_of(address, (exchange)which), 1);
            barrier_init_done();
            expect(address, rows);
        }
        cluster_arrive();
        device_trigger();
        copy_matrix(operands.matrix, address + (u32)LAYOUT.matrix);
        float weight[LOADS][4] = {};
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            if (has_column(i)) load_elements<P::NORM_DTYPE>(weight[i], norm, first_k() + column(i));
        if constexpr (P::HAS_ROUTER_BIAS) copy_constants<P::ROUTER_BIAS_DTYPE>(operands.bias, 0, memory);
        if constexpr (P::HAS_CLAIM_BIAS) copy_constants<P::CLAIM_BIAS_DTYPE>(operands.claim_bias, 1, memory);
        if constexpr (P::HAS_SCALES) copy_constants<P::SCALES_DTYPE>(operands.scales, 2, memory);
        int seed = 0;
        if constexpr (P::HAS_SEEDS)
            if (row < rows) seed = operands.seeds[P::COUNT_INDEX ? operands.index[row] : row];
        device_wait();
        normalise(x, weight, rows, memory);
        copy_wait_all();
        __syncthreads();
        multiply(rows, address);
        write_out(rows, memory, out);
        if (row < rows) {
            await(address, ADDENDS);
            route(row, seed, memory, routes);
        }
        await(address, CHOICES);
        write_lists(rows, memory, lists);
    }
};

#endif
