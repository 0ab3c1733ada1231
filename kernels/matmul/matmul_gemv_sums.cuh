/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_gemv over experts whose products are summed over the choices of a row (matmul.h), made of the parts of matmul_gemv_body.
 *
 * A thread block takes a tile's rows of W of all choices, one after the other, through its ring. All steps of all choices are in one
 * order, in which the consumer warps take turns: step s is of warp s % WARPS, so that none is idle where a choice has few steps. A warp
 * multiplies the sums of each stage by the weight of its choice and by the factors of the rows, which come with the stage, and adds them
 * to its total. The totals of the warps meet once for each tile.
 *
 * With EARLY_ROUTES the producer takes the experts' numbers as soon as the routed_matmul before, which may still run, has written them. */
#ifndef KERNELS_MATMUL_MATMUL_GEMV_SUMS_CUH
#define KERNELS_MATMUL_MATMUL_GEMV_SUMS_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/tma.cuh"
#include "kernels/matmul/fragment.cuh"
#include "kernels/matmul/matmul_gemv_layout.cuh"
#include "kernels/matmul/strip_product.cuh"

/* MATMUL: the matmul_gemv_body of P. */
template <class P, class MATMUL> struct matmul_gemv_sums_body {
    typedef MATMUL matmul;
    typedef typename matmul::weights_operand weights_operand;
    typedef typename matmul::shared_layout shared_layout;
    typedef typename matmul::block_work block_work;
    typedef typename matmul::choices choices;
    typedef typename matmul::vector vector;
    static_assert(matmul::SUMMED && P::X_SHARED, "sums over choices");

    static constexpr int THREADS = matmul::THREADS, BLOCKS = matmul::BLOCKS, TOP_K = matmul::TOP_K;
    static constexpr int TILE = matmul::TILE, TILES = matmul::TILES, STEP = matmul::STEP, PART = matmul::PART;
    static constexpr int PANELS = (P::GROUPS + 1) / 2; /* of 16 rows */
    static constexpr int STEPS = PART / STEP;          /* of a choice */
    static constexpr int WARP_STEPS = (TOP_K * STEPS + P::WARPS - 1) / P::WARPS;
    static constexpr int STAGE_STEPS = P::CHUNK / STEP, LAST_STEPS = STEPS - (matmul::CHUNKS - 1) * STAGE_STEPS;
    static constexpr int STRIPS_AT = (int)matmul::LAYOUT.strips; /* in a stage; the factors of its rows come before */
    static constexpr bool FACTORS = matmul::FRAGMENTS.factors;
    static_assert(TILE <= 32, "an output for each lane");

    /* Tile `i` of a block: the row of x, the first of its choices, and the first row of the tile in a matrix. */
    struct place {
        int row, choice, first;
    };

    static __device__ __forceinline__ place find_place(const block_work work, int i)
    {
        const int tile = work.tile + i * work.tile_step, row = tile / TILES;
        return {row, row * TOP_K, tile % TILES * TILE};
    }

    /* The factors of rows that are copied next: part of the same phase of `full`. */
    static __device__ __forceinline__ void copy_factors(const u8 *weights, int first_row, int rows, u32 target,
                                                        u32 full, u64 policy)
    {
        constexpr i64 PANEL_BYTES = fragment_panel_bytes(matmul::FRAGMENTS, P::K);
        const int lane = (int)threadIdx.x % 32, panels = (rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS;
        const u8 *source = weights + first_row / FRAGMENT_ROWS * PANEL_BYTES;
        if constexpr (P::COPY == GEMV_COPY_THREADS) {
            const int panel = lane / 4, at = lane % 4 * 16;
            if (panel < panels)
                copy_async_hinted(target + (u32)(panel * FRAGMENT_FACTOR_BYTES + at), source + panel * PANEL_BYTES + at,
                                  policy);
        } else {
            if (lane == 0) barrier_expect(full, (u32)(panels * FRAGMENT_FACTOR_BYTES));
            __syncwarp();
            if (lane < panels)
                bulk_copy_hinted(target + (u32)(lane * FRAGMENT_FACTOR_BYTES), source + lane * PANEL_BYTES,
                                 FRAGMENT_FACTOR_BYTES, full, policy);
        }
    }

    /* The producer warp: fills the ring. */
    static __device__ __forceinline__ void produce(const weights_operand &weights, const void *bias,
                                                   const block_work work, const choices &held,
                                                   const shared_layout shared)
    {
        const u64 policy = policy_evict_first();
        int stage = 0;
        u32 parity = 1; /* of the phase before the first: the ring begins empty */
        for (int i = 0; i < work.count; i++) {
            const place at = find_place(work, i);
            const int rows = min(TILE, matmul::MATRIX_N - at.first);
            for (int c = 0; c < TOP_K; c++) {
                /* A choice of no expert: rows of expert 0, which are not used. */
                const int first_row = max(held.expert_of(at.choice + c), 0) * matmul::MATRIX_N + at.first;
                if (work.rank == 0) matmul::prefetch_bias(bias, first_row, rows);
                for (int chunk = 0; chunk < matmul::CHUNKS; chunk++) {
                    const int length = max(0, min(P::CHUNK, work.part_k - chunk * P::CHUNK));
                    const int first_k = work.first_k + chunk * P::CHUNK;
                    const u32 target = shared.ring + (u32)(stage * matmul::STAGE_BYTES),
                              full = shared.full + 8 * (u32)stage;
                    barrier_wait(shared.empty + 8 * (u32)stage, parity);
                    if constexpr (FACTORS) copy_factors((const u8 *)weights, first_row, rows, target, full, policy);
                    if constexpr (matmul::CODED)
                        matmul::copy_coded_stage((const u8 *)weights, first_row, first_k, rows, length,
                                                 target + STRIPS_AT, full, policy);
                    else
                        matmul::copy_stage(weights, first_row, first_k, rows, length, target, full, policy);
                    if (++stage == P::STAGES) stage = 0, parity ^= 1;
                }
            }
        }
        if constexpr (P::COPY == GEMV_COPY_THREADS) copy_wait_all();
    }

    /* What a lane stages at once: vectors, their rows of x, of which there is none from X_ROWS on, and their k of this block's part. */
    static constexpr int STEP_VECTORS = STEP / 8, ROW_VECTORS = WARP_STEPS * STEP_VECTORS; /* of a row's choices */
    static constexpr int LANE_VECTORS = (P::ROWS * ROW_VECTORS + 31) / 32, MOST_LOADS = P::WARPS > 8 ? 4 : 8;
    static constexpr int BATCH = LANE_VECTORS < MOST_LOADS ? LANE_VECTORS : MOST_LOADS; /* loads under way */
    typedef vector batch_vectors[BATCH];
    typedef int batch_places[BATCH];

    /* A consumer warp stages what it multiplies of the x of all choices, so that it waits for no other warp. */
    static __device__ __forceinline__ void stage_x(const void *x, const block_work work, const shared_layout shared)
    {
        stage_x_by(
            [&](batch_vectors &values, const batch_places &x_row, const batch_places &k) {
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    values[i] = {};
                    if (x_row[i] < matmul::X_ROWS && k[i] < work.part_k)
                        values[i] = matmul::load_x(x, x_row[i], work.first_k + k[i]).low;
                }
            },
            work, shared);
    }

    /* `load`: zeros where there is nothing. */
    template <class LOAD>
    static __device__ __forceinline__ void stage_x_by(LOAD load, const block_work work, const shared_layout shared)
    {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        for (int first = lane; first - lane < work.rows * ROW_VECTORS; first += 32 * BATCH) {
            batch_places x_row, k;
            batch_vectors values;
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int v = first + 32 * i, row = v / ROW_VECTORS;
                const int step = warp + v % ROW_VECTORS / STEP_VECTORS * P::WARPS;
                k[i] = step % STEPS * STEP + v % STEP_VECTORS * 8;
                x_row[i] = row < work.rows && step < TOP_K * STEPS ? row * TOP_K + step / STEPS : matmul::X_ROWS;
            }
            load(values, x_row, k);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                if constexpr (matmul::ZEROS) matmul::store_x_sum(values[i], x_row[i], k[i], shared);
                /* Zeros beyond K, where a strip has codes, too. */
                if (x_row[i] < matmul::X_ROWS)
                    store_shared(shared.x + (u32)(x_row[i] * matmul::X_PITCH + k[i] * 2),
                                 make_uint4(values[i].pair[0], values[i].pair[1], values[i].pair[2],
                                            values[i].pair[3]));
            }
        }
        __syncwarp();
    }

    /* Row `row` of a fragment is this one of a tile's 8 rows: matmul_gemv_body::consume_plain. */
    static __device__ __forceinline__ int row_of_fragment(int row)
    {
        return matmul::BOXES ? row % 2 * 4 + row / 2 : row;
    }

    /* Adds the products of a step, the stage's `step`-th and from k on of its choice, to the accumulators of mma.m16n8k16 with W as A. Its
     * columns are alike. */
    static __device__ __forceinline__ void multiply_step(float (&sums)[PANELS][4], u32 stage, int step, int x_row,
                                                         int k, int part_k, const shared_layout shared)
    {
        const int lane = (int)threadIdx.x % 32, row = lane / 4, quarter = lane % 4;
        const u32 x_at = shared.x + (u32)(x_row * matmul::X_PITCH + k * 2);
        if constexpr (matmul::CODED) {
            const u32 x_sums =
                shared.x_sums +
                (u32)(x_row * 4 + (matmul::ZEROS ? k / matmul::FRAGMENTS.group * matmul::X_SUM_BYTES : 0));
            multiply_strips<P::DTYPE, matmul::WEIGHT_PITCH>(sums,
                                                            stage +
                                                                (u32)(STRIPS_AT + step * matmul::FRAGMENTS.strip_bytes),
                                                            x_at + (u32)(lane / 8 * 16), FRAGMENT_STRIP_K,
                                                            typename matmul::strip_x_sums{x_sums});
        } else {
            const bool valid = !matmul::RAGGED || k + quarter * 8 < part_k; /* x has zeros there */
            const int weight_row = row_of_fragment(row), in_box = step * STEP % matmul::BOX / 8 + quarter;
            const u32 at =
                stage + (u32)(weight_row * matmul::WEIGHT_PITCH) +
                (u32)(matmul::BOXES ? step * STEP / matmul::BOX * matmul::BOX_BYTES + (in_box ^ weight_row) * 16
                                    : step * STEP * 2 + quarter * 16);
            vector values, weights[2 * PANELS] = {};
            load_shared(values.pair, x_at + (u32)(quarter * 16));
#pragma unroll
            for (int group = 0; group < P::GROUPS; group++)
                if (valid) load_shared(weights[group].pair, at + (u32)(group * 8 * matmul::WEIGHT_PITCH));
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    const u32 *const low = weights[2 * panel].pair + i, *const high = weights[2 * panel + 1].pair + i;
                    mma<matmul::ELEMENT>(sums[panel], low[0], high[0], low[1], high[1], values.pair[i],
                                         values.pair[i + 1]);
                }
        }
    }

    /* A row of the accumulators: of a panel, the lane's upper or lower one. */
    typedef float panel_rows[PANELS][2];

    static __device__ __forceinline__ void load_factors(panel_rows &factors, u32 stage, float weight)
    {
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = panel * FRAGMENT_ROWS + half * 8 + (int)threadIdx.x % 32 / 4;
                factors[panel][half] = FACTORS ? load_shared_float(stage + (u32)(4 * row)) * weight : weight;
            }
    }

    /* A consumer warp: its steps of every tile. Requires: x is staged. */
    static __device__ __forceinline__ void consume(const block_work work, const choices &held,
                                                   const shared_layout shared)
    {
        constexpr int UNROLLED = (STAGE_STEPS + P::WARPS - 1) / P::WARPS;
        const int warp = (int)threadIdx.x / 32;
        const float unit = scaled<P::SCALE_BITS>(fragment_unit<P::DTYPE>());
        u32 named[choices::PER_LANE];
        held.find_named(named);
        int stage = 0;
        u32 parity = 0;
        for (int i = 0; i < work.count; i++) {
            const int first_choice = find_place(work, i).choice;
            int next = warp; /* the warp's next step, from the beginning of the stage on */
            panel_rows total = {};
            for (int choice = first_choice; choice < first_choice + TOP_K; choice++) {
                const bool counts = choices::is_named(named, choice);
                const float weight = held.weight_of(choice) * unit;
                for (int chunk = 0; chunk < matmul::CHUNKS; chunk++) {
                    const int steps = chunk == matmul::CHUNKS - 1 ? LAST_STEPS : STAGE_STEPS;
                    const u32 stage_at = shared.ring + (u32)(stage * matmul::STAGE_BYTES);
                    barrier_wait(shared.full + 8 * (u32)stage, parity);
                    if (counts && next < steps) {
                        float sums[PANELS][4] = {};
                        panel_rows factors;
                        load_factors(factors, stage_at, weight);
#pragma unroll
                        for (int j = 0; j < UNROLLED; j++) {
                            const int step = next + j * P::WARPS, k = chunk * P::CHUNK + step * STEP;
                            if (step >= steps || k >= work.part_k) break;
                            multiply_step(sums, stage_at, step, choice, k, work.part_k, shared);
                        }
#pragma unroll
                        for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
                            for (int half = 0; half < 2; half++)
                                total[panel][half] += sums[panel][half * 2] * factors[panel][half];
                    }
                    barrier_arrive(shared.empty + 8 * (u32)stage);
                    next -= steps % P::WARPS;
                    if (next < 0) next += P::WARPS;
                    if (++stage == P::STAGES) stage = 0, parity ^= 1;
                }
            }
            leave_total(total, i, shared);
        }
    }

    static __device__ __forceinline__ void leave_total(const panel_rows &total, int i, const shared_layout shared)
    {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, buffer = i % 2;
        barrier_wait(shared.sums_empty + 8 * (u32)buffer, (u32)(i / 2 + 1) % 2);
        const u32 target = shared.sums + 4 * (u32)((buffer * P::WARPS + warp) * matmul::SUM_FLOATS);
#pragma unroll
        for (int group = 0; group < P::GROUPS; group++)
            if (lane % 4 == 0)
                store_shared(target + 4 * (u32)(group * 8 + row_of_fragment(lane / 4)), total[group / 2][group % 2]);
        barrier_arrive(shared.sums_full + 8 * (u32)buffer);
    }

    /* The last warp writes the outputs of every tile, of which a lane has one. */
    static __device__ __forceinline__ void finish(void *out, const void *bias, const float *residual,
                                                  const block_work work, const choices &held,
                                                  const shared_layout shared)
    {
        constexpr int PARTS = P::SPLIT_K > 1 ? P::SPLIT_K : P::WARPS, UNROLLED = TOP_K < 8 ? TOP_K : 8;
        const int lane = (int)threadIdx.x % 32;
        for (int i = 0; i < work.count; i++) {
            const place at = find_place(work, i);
            const int column = at.first + lane, buffer = i % 2;
            const bool has_output = work.rank == 0 && lane < TILE && column < matmul::MATRIX_N;
            float add = 0;
            if constexpr (P::HAS_BIAS) {
#pragma unroll UNROLLED
                for (int choice = at.choice; choice < at.choice + TOP_K; choice++) {
                    const int expert = held.expert_of(choice);
                    const float weight = held.weight_of(choice);
                    if (has_output && expert >= 0)
                        add += weight * scaled<P::SCALE_BITS>(
                                            load_element<P::BIAS_DTYPE>(bias, (i64)expert * matmul::MATRIX_N + column));
                }
            }
            if (P::HAS_RESIDUAL && has_output)
                add += load_written_float(residual + (i64)at.row * matmul::MATRIX_N + column);
            barrier_wait(shared.sums_full + 8 * (u32)buffer, (u32)(i / 2) % 2);
            u32 source = shared.sums + 4 * (u32)(buffer * P::WARPS * matmul::SUM_FLOATS);
            if constexpr (P::SPLIT_K > 1) {
                matmul::send_sums(i, work, shared);
                if (work.rank != 0) continue;
                barrier_wait_cluster(shared.cluster_full + 8 * (u32)buffer, (u32)(i / 2) % 2);
                source = shared.cluster_sums + 4 * (u32)(buffer * P::SPLIT_K * matmul::SUM_FLOATS);
            }
            if (has_output)
                store_element<P::OUT_DTYPE>(out, (i64)at.row * matmul::MATRIX_N + column,
                                            matmul::template ordered_sum<PARTS>(source, 0, lane) + add);
            if constexpr (P::SPLIT_K > 1) {
#pragma unroll
                for (int rank = 0; rank < P::SPLIT_K; rank++)
                    barrier_arrive_cluster(cluster_address(shared.cluster_empty, (u32)rank) + 8 * (u32)buffer);
            } else {
                barrier_arrive(shared.sums_empty + 8 * (u32)buffer);
            }
        }
    }

    /* As matmul_gemv_body::run. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const void *x,
                                               const weights_operand &weights, void *out, const void *bias,
                                               const float *residual, const void *, const float *routes)
    {
        const shared_layout shared = matmul::shared_addresses(memory);
        const int warp = (int)threadIdx.x / 32;
        const bool early = P::EARLY_ROUTES && warp == P::WARPS + 1;
        int rows = P::ROWS;
        choices held = {};
        if constexpr (P::EARLY_ROUTES)
            rows = min(counts[P::COUNT_INDEX], P::ROWS); /* no launch of the step writes counts */
        if (early) held.ask(routes);
        if (threadIdx.x == 0) matmul::init_barriers(shared);
        device_trigger(); /* as matmul_gemv_body's */
        __syncthreads();
        if constexpr (P::SPLIT_K > 1)
            cluster_arrive_aligned(); /* no block writes into another before its barriers are set up */
        if (early) {
            held.await(routes, rows);
        } else {
            device_wait();
            held.load(routes);
        }
        if constexpr (!P::EARLY_ROUTES) rows = min(counts[P::COUNT_INDEX], P::ROWS);
        const block_work work = matmul::find_work(rows);
        if (warp == P::WARPS + 1) {
            produce(weights, bias, work, held, shared);
            if constexpr (P::SPLIT_K > 1) cluster_wait_aligned();
        } else {
            if constexpr (P::SPLIT_K > 1) cluster_wait_aligned();
            if (warp < P::WARPS) {
                stage_x(x, work, shared);
                consume(work, held, shared);
            } else {
                finish(out, bias, residual, work, held, shared);
            }
        }
        if constexpr (P::SPLIT_K > 1) {
            cluster_arrive_aligned(); /* no block ends while another may still write into it */
            cluster_wait_aligned();
        }
    }
};

#endif
