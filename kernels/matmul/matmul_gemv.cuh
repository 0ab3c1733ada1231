/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_gemv: a matrix times 1..8 rows of x at the speed of the memory. The contract is in matmul_device.h, which
 * also lists the tunables; shared memory is laid out in matmul_gemv_layout.cuh.
 *
 * A tile is 8 * GROUPS rows of W; a cluster of SPLIT_K thread blocks takes one tile after the other, each block its
 * part of K. In a block a producer warp streams the weights through a ring of STAGES stages. Weights are constant,
 * so it begins before the previous launch has ended: the memory stays busy between launches. WARPS consumer warps
 * share the k of every stage: each takes steps of 32 k, multiplies 8 rows of x with 8 rows of W on the tensor cores
 * and leaves its sums in shared memory; one more warp adds the sums of the warps, then of the cluster's blocks,
 * always in the same order, and writes the outputs, while the consumers go on.
 *
 * Fragments are plain 16-byte loads: the order of k within a step does not matter as long as W and x agree, so
 * thread t of a quad takes 8 k from 8 * t and treats them as the k of two products. */
#ifndef KERNELS_MATMUL_MATMUL_GEMV_CUH
#define KERNELS_MATMUL_MATMUL_GEMV_CUH

#include "kernels/cuda/include/epilogue.cuh"
#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/reduce.cuh"
#include "kernels/cuda/include/tma.cuh"
#include "kernels/matmul/matmul_gemv_layout.cuh"

/* Type of the operand W: rows of 16-bit elements, or with boxes a tensor map. */
template <int COPY> struct gemv_weights {
    typedef const u16 *type;
};
template <> struct gemv_weights<GEMV_COPY_BOXES> {
    typedef tensor_map type;
};

template <class P> struct matmul_gemv_body {
    static constexpr bool GATED = epilogue_is_gated(P::EPILOGUE);
    static_assert(P::ROWS >= 1 && P::ROWS <= 8, "the columns of a product");
    static_assert(P::K % 8 == 0, "rows of W begin at multiples of 16 bytes");
    static_assert(P::CHUNK % (32 * P::WARPS) == 0 && P::CHUNK % 64 == 0,
                  "every warp takes as many steps of a stage; pitch");
    static_assert(P::GROUPS == 4 || P::GROUPS == 2 || (P::GROUPS == 1 && !GATED), "gate and up rows alternate by 8");
    static_assert(P::SPLIT_K >= 1 && P::SPLIT_K <= 8, "clusters that every GPU can hold");

    static constexpr int TILE = 8 * P::GROUPS; /* rows of W */
    static constexpr int TILES = GEMV_CEIL_DIV(P::N, TILE);
    static constexpr int PART = GEMV_PART(P::K, P::SPLIT_K); /* k of a block */
    static constexpr int CHUNKS = GEMV_CEIL_DIV(PART, P::CHUNK);
    static constexpr int STEP = 32;                                    /* k that a warp takes at once */
    static constexpr int STEPS_PER_STAGE = P::CHUNK / STEP / P::WARPS; /* of one warp */
    static constexpr int STEPS_PER_WARP = CHUNKS * STEPS_PER_STAGE;
    static constexpr bool RAGGED = P::K % STEP != 0; /* the last step has threads without k */
    static constexpr bool BOXES = P::COPY == GEMV_COPY_BOXES;
    static constexpr int BOX = 64; /* k */
    static constexpr int BOX_BYTES = TILE * BOX * 2;
    static constexpr int WEIGHT_PITCH = BOXES ? BOX * 2 : GEMV_WEIGHT_PITCH(P::CHUNK);
    static constexpr int STAGE_BYTES = GEMV_STAGE_BYTES(P::GROUPS, P::CHUNK, P::COPY);
    static constexpr int X_PITCH = GEMV_X_PITCH(P::K, P::SPLIT_K);
    static constexpr int SUM_PITCH = GEMV_SUM_PITCH(P::GROUPS);
    static constexpr int SUM_FLOATS = P::ROWS * SUM_PITCH;
    static constexpr int OUT_COLUMNS = GATED ? P::N / 2 : P::N;
    static constexpr int TILE_OUT = GATED ? TILE / 2 : TILE;
    static constexpr int OUT_PER_LANE = GEMV_CEIL_DIV(TILE_OUT * P::ROWS, 32);
    static constexpr int THREADS = 32 * (P::WARPS + 2);
    /* Room for a second thread block, or for those of the launches before and after; but spills cost more. */
    static constexpr int BLOCKS = P::WARPS > 8 && (P::GROUPS > 2 || P::ROWS > 4) ? 1 : 2;

    struct vector { /* 8 elements of 16 bits */
        u32 pair[4];
    };

    /* sums[8 rows of x][8 rows of W] += x W^T over the 16 k of two registers of each fragment. The product has 16
     * rows of x; the upper half is zero. */
    static __device__ __forceinline__ void multiply(float sums[2], u32 x0, u32 x1, u32 w0, u32 w1)
    {
        float d[4] = {sums[0], sums[1], 0, 0};
        mma<P::DTYPE>(d, x0, 0, x1, 0, w0, w1);
        sums[0] = d[0], sums[1] = d[1];
    }

    /* Work of this block: tiles tile, tile + tile_step, ... and k from first_k. */
    struct block_work {
        int tile, tile_step, tile_count;
        int rank; /* in the cluster */
        int first_k, part_k;
    };

    static __device__ __forceinline__ block_work find_work()
    {
        block_work work;
        const int cluster = (int)blockIdx.x / P::SPLIT_K, clusters = (int)gridDim.x / P::SPLIT_K;
        work.tile = cluster;
        work.tile_step = clusters;
        work.tile_count = (TILES - work.tile + work.tile_step - 1) / work.tile_step;
        work.rank = (int)blockIdx.x % P::SPLIT_K;
        work.first_k = work.rank * PART;
        work.part_k = P::K % PART == 0 ? PART : min(PART, P::K - work.first_k);
        return work;
    }

    /* Shared memory, as addresses. */
    struct shared_layout {
        u32 ring, x, sums, cluster_sums, squares, cluster_squares;
        u32 full, empty;                 /* [STAGES] */
        u32 sums_full, sums_empty;       /* [2] */
        u32 cluster_full, cluster_empty; /* [2]: of rank 0; of every rank */
    };

    static __device__ __forceinline__ shared_layout shared_addresses(const void *base)
    {
        const u32 start = shared_address(base);
        shared_layout s;
        s.ring = start;
        s.x = s.ring + P::STAGES * STAGE_BYTES;
        s.sums = GEMV_SUMS_OFFSET(s.x, P::ROWS, P::K, P::SPLIT_K, P::X_SHARED);
        s.cluster_sums = GEMV_CLUSTER_SUMS_OFFSET(s.sums, P::ROWS, P::GROUPS, P::WARPS);
        s.squares = GEMV_SQUARES_OFFSET(s.cluster_sums, P::ROWS, P::GROUPS, P::SPLIT_K);
        s.cluster_squares = s.squares + 4 * P::ROWS * P::WARPS;
        s.full = GEMV_BARRIERS_OFFSET(s.squares, P::ROWS, P::WARPS, P::SPLIT_K);
        s.empty = s.full + 8 * P::STAGES;
        s.sums_full = s.empty + 8 * P::STAGES;
        s.sums_empty = s.sums_full + 16;
        s.cluster_full = s.sums_empty + 16;
        s.cluster_empty = s.cluster_full + 16;
        return s;
    }

    typedef typename gemv_weights<P::COPY>::type weights_operand;

    /* A stage: `rows` rows of W from first_row, `length` k from first_k. By the whole producer warp; completes a
     * phase of the mbarrier `full` once all has arrived. */
    static __device__ __forceinline__ void copy_stage(const weights_operand &weights, int first_row, int first_k,
                                                      int rows, int length, u32 target, u32 full, u64 policy)
    {
        const int lane = (int)threadIdx.x % 32;
        if constexpr (P::COPY == GEMV_COPY_THREADS) {
            const u16 *source = weights + (i64)first_row * P::K + first_k;
            for (int row = 0; row < rows; row++)
                for (int at = lane * 8; at < length; at += 32 * 8)
                    copy_async_hinted(target + (u32)(row * WEIGHT_PITCH + at * 2), source + (i64)row * P::K + at,
                                      policy);
            copy_arrive(full);
        } else {
            /* Boxes count in full where they reach beyond W; the hardware fills in zeros. */
            const int boxes = GEMV_CEIL_DIV(length, BOX);
            if (lane == 0) barrier_arrive_expect(full, (u32)(BOXES ? boxes * BOX_BYTES : rows * length * 2));
            __syncwarp();
            if constexpr (BOXES) {
                for (int box = lane; box < boxes; box += 32)
                    tile_load_hinted(target + (u32)(box * BOX_BYTES), &weights, first_k + box * BOX, first_row, full,
                                     policy);
            } else if (lane < rows && length > 0) {
                bulk_copy_hinted(target + (u32)(lane * WEIGHT_PITCH),
                                 weights + (i64)(first_row + lane) * P::K + first_k, (u32)(length * 2), full, policy);
            }
        }
    }

    /* The producer warp: fills the ring. */
    static __device__ __forceinline__ void produce(const weights_operand &weights, const block_work work,
                                                   const shared_layout shared)
    {
        const u64 policy = policy_evict_first();
        int stage = 0;
        u32 parity = 1; /* of the phase before the first: the ring begins empty */
        for (int i = 0; i < work.tile_count; i++) {
            const int first_row = (work.tile + i * work.tile_step) * TILE;
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                const int length = max(0, min(P::CHUNK, work.part_k - chunk * P::CHUNK));
                barrier_wait(shared.empty + 8 * (u32)stage, parity);
                copy_stage(weights, first_row, work.first_k + chunk * P::CHUNK, min(TILE, P::N - first_row), length,
                           shared.ring + (u32)(stage * STAGE_BYTES), shared.full + 8 * (u32)stage, policy);
                if (++stage == P::STAGES) stage = 0, parity ^= 1;
            }
        }
        if constexpr (P::COPY == GEMV_COPY_THREADS) copy_wait_all();
    }

    /* 8 elements of a row of x as stored in memory: 16 bits each, or floats with HAS_NORM. */
    struct raw_x {
        vector low, high;
    };

    static __device__ __forceinline__ raw_x load_x(const void *x, int row, int k)
    {
        raw_x raw = {};
        if constexpr (P::HAS_NORM) {
            const float *from = (const float *)x + (i64)row * P::K + k;
            load_written(raw.low.pair, from);
            load_written(raw.high.pair, from + 4);
        } else {
            load_written(raw.low.pair, (const u16 *)x + (i64)row * P::K + k);
        }
        return raw;
    }

    /* 8 norm weights from `k`. */
    struct norm_weights {
        float value[8];
    };

    static __device__ __forceinline__ norm_weights load_norm(const void *norm, int k)
    {
        norm_weights weights = {};
        if constexpr (P::HAS_NORM) load_elements<P::NORM_DTYPE>(weights.value, norm, k);
        return weights;
    }

    /* Converts to the elements that are multiplied and adds the squares of the loaded values to *squares. */
    static __device__ __forceinline__ vector convert_x(const raw_x raw, const norm_weights norm, float *squares)
    {
        vector v = raw.low;
        if constexpr (P::HAS_NORM) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 *pair = i < 2 ? &raw.low.pair[2 * i] : &raw.high.pair[2 * i - 4];
                const float first = float_of_bits(pair[0]), second = float_of_bits(pair[1]);
                *squares += first * first;
                *squares += second * second;
                v.pair[i] = pack_halves<P::DTYPE>(first * norm.value[2 * i], second * norm.value[2 * i + 1]);
            }
        }
        return v;
    }

    /* A consumer warp stages the part of x that it needs itself, so that it waits for no other warp. Loads go out in
     * batches of VECTORS x BATCH_ROWS, as many as there are registers for: each takes a round trip to the L2 cache. */
    static __device__ __forceinline__ void stage_x(const void *x, const void *norm, const block_work work,
                                                   const shared_layout shared)
    {
        constexpr int BATCH = (P::HAS_NORM ? 4 : 8) / (P::WARPS > 8 ? 2 : 1);
        constexpr int BATCH_ROWS = P::ROWS < BATCH ? P::ROWS : BATCH;
        constexpr int LANE_VECTORS = GEMV_CEIL_DIV(STEPS_PER_WARP * (STEP / 8), 32);
        constexpr int VECTORS = LANE_VECTORS < BATCH / BATCH_ROWS ? LANE_VECTORS : BATCH / BATCH_ROWS;
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        float squares[P::ROWS] = {};
        for (int first = lane; first < STEPS_PER_WARP * (STEP / 8); first += 32 * VECTORS) {
            int k[VECTORS];
            norm_weights weights[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                const int v = first + 32 * i;
                k[i] = (warp + v / (STEP / 8) * P::WARPS) * STEP + v % (STEP / 8) * 8;
                if (k[i] < work.part_k) weights[i] = load_norm(norm, work.first_k + k[i]);
            }
#pragma unroll
            for (int first_row = 0; first_row < P::ROWS; first_row += BATCH_ROWS) {
                raw_x raw[VECTORS][BATCH_ROWS];
#pragma unroll
                for (int i = 0; i < VECTORS * BATCH_ROWS; i++)
                    if (k[i / BATCH_ROWS] < work.part_k && first_row + i % BATCH_ROWS < P::ROWS)
                        raw[i / BATCH_ROWS][i % BATCH_ROWS] =
                            load_x(x, first_row + i % BATCH_ROWS, work.first_k + k[i / BATCH_ROWS]);
#pragma unroll
                for (int i = 0; i < VECTORS * BATCH_ROWS; i++) {
                    const int row = first_row + i % BATCH_ROWS, at = k[i / BATCH_ROWS];
                    if (at >= work.part_k || row >= P::ROWS) continue;
                    const vector values =
                        convert_x(raw[i / BATCH_ROWS][i % BATCH_ROWS], weights[i / BATCH_ROWS], &squares[row]);
                    if constexpr (P::X_SHARED)
                        store_shared(shared.x + (u32)(row * X_PITCH + at * 2),
                                     make_uint4(values.pair[0], values.pair[1], values.pair[2], values.pair[3]));
                }
            }
        }
        if constexpr (P::HAS_NORM) {
#pragma unroll
            for (int row = 0; row < P::ROWS; row++) {
                const float sum = warp_sum(squares[row]);
                if (lane == 0) store_shared(shared.squares + 4 * (u32)(warp * P::ROWS + row), sum);
            }
        }
        __syncwarp();
    }

    static __device__ __forceinline__ void consume(const void *x, const void *norm, const block_work work,
                                                   const shared_layout shared)
    {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        const int row = lane / 4, quarter = lane % 4; /* of the fragments */
        /* Columns of the product beyond ROWS multiply row 0 again and are dropped. */
        const int x_row = row < P::ROWS ? row : 0;
        if constexpr (P::X_SHARED || P::HAS_NORM) stage_x(x, norm, work, shared);

        /* In boxes, 16-byte pieces of row r lie at their number xor r % 8: what a quarter of a warp reads of two
         * rows is in different banks if the rows' numbers differ by 4. So fragment row 0, 1, 2, 3, ... is row 0, 4,
         * 1, 5, ... of W. */
        const int weight_row = BOXES ? row % 2 * 4 + row / 2 : row;
        const u32 weight_at = shared.ring + (u32)(weight_row * WEIGHT_PITCH + (BOXES ? 0 : quarter * 16));
        const u32 x_at = shared.x + (u32)(x_row * X_PITCH + quarter * 16);
        int stage = 0;
        u32 parity = 0;
        for (int i = 0; i < work.tile_count; i++) {
            float sums[P::GROUPS][2] = {};
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                barrier_wait(shared.full + 8 * (u32)stage, parity);
#pragma unroll
                for (int j = 0; j < STEPS_PER_STAGE; j++) {
                    const int in_stage = (warp + j * P::WARPS) * STEP, k = chunk * P::CHUNK + in_stage;
                    if (k >= work.part_k) break;
                    const bool valid = !RAGGED || k + quarter * 8 < work.part_k;
                    vector x_values = {};
                    if (valid) {
                        const int at = work.first_k + k + quarter * 8;
                        float ignored = 0;
                        if constexpr (P::X_SHARED)
                            load_shared(x_values.pair, x_at + (u32)k * 2);
                        else
                            x_values = convert_x(load_x(x, x_row, at), load_norm(norm, at), &ignored);
                    }
                    const int piece = in_stage % BOX / 8 + quarter;
                    const u32 at = weight_at + (u32)(stage * STAGE_BYTES) +
                                   (u32)(BOXES ? in_stage / BOX * BOX_BYTES + (piece ^ weight_row) * 16 : in_stage * 2);
#pragma unroll
                    for (int group = 0; group < P::GROUPS; group++) {
                        vector weights = {};
                        if (valid) load_shared(weights.pair, at + (u32)(group * 8 * WEIGHT_PITCH));
                        multiply(sums[group], x_values.pair[0], x_values.pair[1], weights.pair[0], weights.pair[1]);
                        multiply(sums[group], x_values.pair[2], x_values.pair[3], weights.pair[2], weights.pair[3]);
                    }
                }
                barrier_arrive(shared.empty + 8 * (u32)stage);
                if (++stage == P::STAGES) stage = 0, parity ^= 1;
            }
            const int buffer = i % 2;
            barrier_wait(shared.sums_empty + 8 * (u32)buffer, (u32)(i / 2 + 1) % 2);
            if (row < P::ROWS) {
                const u32 target = shared.sums + 4 * (u32)((buffer * P::WARPS + warp) * SUM_FLOATS + row * SUM_PITCH);
#pragma unroll
                for (int group = 0; group < P::GROUPS; group++)
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const int fragment_row = quarter * 2 + c;
                        const int column = group * 8 + (BOXES ? fragment_row % 2 * 4 + fragment_row / 2 : fragment_row);
                        store_shared(target + 4 * (u32)column, sums[group][c]);
                    }
            }
            barrier_arrive(shared.sums_full + 8 * (u32)buffer);
        }
    }

    /* Output `index` of a tile: row of x, and the rows of W, in the tile, that it comes from (gate and up with
     * a gate). */
    struct output {
        int row, column; /* in the tile's outputs */
        int first, second;
    };

    static __device__ __forceinline__ output tile_output(int index)
    {
        output out;
        out.row = index / TILE_OUT;
        out.column = index % TILE_OUT;
        out.first = GATED ? out.column / 8 * 16 + out.column % 8 : out.column;
        out.second = out.first + 8;
        return out;
    }

    /* Sum of `count` arrays of SUM_FLOATS floats at one place of them, in order. */
    template <int COUNT> static __device__ __forceinline__ float ordered_sum(u32 address, int row, int column)
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            sum += load_shared_float(address + 4 * (u32)(i * SUM_FLOATS + row * SUM_PITCH + column));
        return sum;
    }

    template <int COUNT> static __device__ __forceinline__ float ordered_squares(u32 address, int row)
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) sum += load_shared_float(address + 4 * (u32)(i * P::ROWS + row));
        return sum;
    }

    /* Adds the sums of this block's warps and hands them to block 0 of the cluster. */
    static __device__ __forceinline__ void send_sums(int i, const block_work work, const shared_layout shared)
    {
        const int lane = (int)threadIdx.x % 32, buffer = i % 2;
        barrier_wait_cluster(shared.cluster_empty + 8 * buffer, (u32)(i / 2 + 1) % 2);
        const u32 source = shared.sums + 4 * (u32)(buffer * P::WARPS * SUM_FLOATS);
        const u32 target =
            cluster_address(shared.cluster_sums, 0) + 4 * (u32)((buffer * P::SPLIT_K + work.rank) * SUM_FLOATS);
#pragma unroll
        for (int index = lane; index < TILE * P::ROWS; index += 32) {
            const int row = index / TILE, column = index % TILE;
            cluster_store(target + 4 * (u32)(row * SUM_PITCH + column), ordered_sum<P::WARPS>(source, row, column));
        }
        if (P::HAS_NORM && i == 0 && lane < P::ROWS)
            cluster_store(cluster_address(shared.cluster_squares, 0) + 4 * (u32)(work.rank * P::ROWS + lane),
                          ordered_squares<P::WARPS>(shared.squares, lane));
        barrier_arrive(shared.sums_empty + 8 * buffer);
        barrier_arrive_cluster(cluster_address(shared.cluster_full, 0) + 8 * buffer);
    }

    /* Replaces the squares of block or warp 0 by the factors of the rows' norms. */
    template <int COUNT> static __device__ __forceinline__ void make_factors(u32 squares)
    {
        const int row = min((int)threadIdx.x % 32, P::ROWS - 1);
        const float factor = rsqrtf(ordered_squares<COUNT>(squares, row) / P::K + float_of_bits(P::EPS_BITS));
        __syncwarp();
        store_shared(squares + 4 * (u32)row, factor);
        __syncwarp();
    }

    /* The last warp writes the outputs of every tile. */
    static __device__ __forceinline__ void finish(void *out, const void *bias, const float *residual,
                                                  const block_work work, const shared_layout shared)
    {
        constexpr int PARTS = P::SPLIT_K > 1 ? P::SPLIT_K : P::WARPS;
        const int lane = (int)threadIdx.x % 32;
        const u32 squares = P::SPLIT_K > 1 ? shared.cluster_squares : shared.squares;
        for (int i = 0; i < work.tile_count; i++) {
            const int first = (work.tile + i * work.tile_step) * TILE, buffer = i % 2;
            float add[OUT_PER_LANE] = {}, add_second[OUT_PER_LANE] = {};
            if (work.rank == 0) {
#pragma unroll
                for (int j = 0; j < OUT_PER_LANE; j++) {
                    const output o = tile_output(lane + 32 * j);
                    if (o.row >= P::ROWS || first + o.first >= P::N) continue;
                    if constexpr (P::HAS_BIAS)
                        add[j] = scaled<P::SCALE_BITS>(load_element<P::BIAS_DTYPE>(bias, first + o.first));
                    if constexpr (P::HAS_BIAS && GATED)
                        add_second[j] = load_element<P::BIAS_DTYPE>(bias, first + o.second);
                    if constexpr (P::HAS_RESIDUAL)
                        add[j] += load_written_float(residual + (i64)o.row * P::N + first + o.first);
                }
            }
            barrier_wait(shared.sums_full + 8 * buffer, (u32)(i / 2) % 2);
            u32 source = shared.sums + 4 * (u32)(buffer * P::WARPS * SUM_FLOATS);
            if constexpr (P::SPLIT_K > 1) {
                send_sums(i, work, shared);
                if (work.rank != 0) continue;
                barrier_wait_cluster(shared.cluster_full + 8 * buffer, (u32)(i / 2) % 2);
                source = shared.cluster_sums + 4 * (u32)(buffer * P::SPLIT_K * SUM_FLOATS);
            }
            if (P::HAS_NORM && i == 0) make_factors<PARTS>(squares);
#pragma unroll
            for (int j = 0; j < OUT_PER_LANE; j++) {
                const output o = tile_output(lane + 32 * j);
                if (o.row >= P::ROWS || first + o.first >= P::N) continue;
                const float factor =
                    scaled<P::SCALE_BITS>(P::HAS_NORM ? load_shared_float(squares + 4 * (u32)o.row) : 1.0f);
                float value = ordered_sum<PARTS>(source, o.row, o.first) * factor + add[j];
                if constexpr (GATED) {
                    const float up = ordered_sum<PARTS>(source, o.row, o.second) * factor + add_second[j];
                    value = gated_product<P::EPILOGUE, false>(value, up);
                }
                const int column = (GATED ? first / 2 : first) + o.column;
                store_element<P::OUT_DTYPE>(out, (i64)o.row * OUT_COLUMNS + column, value);
            }
            if constexpr (P::SPLIT_K > 1) {
#pragma unroll
                for (int rank = 0; rank < P::SPLIT_K; rank++)
                    barrier_arrive_cluster(cluster_address(shared.cluster_empty, (u32)rank) + 8 * (u32)buffer);
            } else {
                barrier_arrive(shared.sums_empty + 8 * (u32)buffer);
            }
        }
    }

    /* Prefetches constants that this launch reads soon into the L2 cache. */
    static __device__ __forceinline__ void prefetch_constants(const void *bias, const void *norm, const block_work work)
    {
        constexpr int NORM_BYTES = P::NORM_DTYPE == DTYPE_F32 ? 4 : 2;
        const int thread = (int)threadIdx.x;
        if constexpr (P::HAS_NORM)
            for (int at = thread * 128; at < work.part_k * NORM_BYTES; at += 32 * P::WARPS * 128)
                prefetch_l2((const u8 *)norm + (i64)work.first_k * NORM_BYTES + at);
        if constexpr (P::HAS_BIAS)
            for (int i = thread; i < work.tile_count; i += 32 * P::WARPS)
                prefetch_l2((const u8 *)bias +
                            (i64)(work.tile + i * work.tile_step) * TILE * (P::BIAS_DTYPE == DTYPE_F32 ? 4 : 2));
    }

    /* `memory`: shared, gemv's layout, aligned to 1024. `bias`, `residual`, `norm`: null without HAS_... */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const void *x,
                                               const weights_operand &weights, void *out, const void *bias,
                                               const float *residual, const void *norm)
    {
        (void)counts; /* rows beyond the valid ones cost no time */
        const shared_layout shared = shared_addresses(memory);
        const block_work work = find_work();
        const int warp = (int)threadIdx.x / 32;

        /* Every lane arrives that has read or written what a barrier guards. One arrival of each warp after
         * __syncwarp would be correct and is no faster, but compute-sanitizer's racecheck does not understand it. */
        if (threadIdx.x == 0) {
            for (int i = 0; i < P::STAGES; i++) {
                barrier_init(shared.full + 8 * i, P::COPY == GEMV_COPY_THREADS ? 32 : 1);
                barrier_init(shared.empty + 8 * i, 32 * P::WARPS);
            }
            for (int i = 0; i < 2; i++) {
                barrier_init(shared.sums_full + 8 * i, 32 * P::WARPS);
                barrier_init(shared.sums_empty + 8 * i, 32);
                barrier_init(shared.cluster_full + 8 * i, 32 * P::SPLIT_K);
                barrier_init(shared.cluster_empty + 8 * i, 32);
            }
#if __CUDA_ARCH__ >= 900 /* for the copy engine and for the other blocks of the cluster */
            barrier_init_done();
#endif
        }
        /* Early, so that the next launch fills its ring as soon as this one leaves room; a later trigger was slower. */
        device_trigger();
        __syncthreads();
        if constexpr (P::SPLIT_K > 1)
            cluster_arrive_aligned(); /* no block writes into another before its barriers are set up */

        if (warp == P::WARPS + 1) {
            produce(weights, work, shared);
            if constexpr (P::SPLIT_K > 1) cluster_wait_aligned();
        } else {
            if constexpr (P::SPLIT_K > 1) cluster_wait_aligned();
            if (warp < P::WARPS) {
                prefetch_constants(bias, norm, work);
                device_wait();
                consume(x, norm, work, shared);
            } else {
                device_wait();
                finish(out, bias, residual, work, shared);
            }
        }
        if constexpr (P::SPLIT_K > 1)
            cluster_arrive_aligned(); /* no block ends while another may still write into it */
        if constexpr (P::SPLIT_K > 1) cluster_wait_aligned();
    }
};

#endif
