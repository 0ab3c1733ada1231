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
 * thread t of a quad takes 8 k from 8 * t and treats them as the k of two products. Coded weights (fragment.cuh) come as
 * whole strips of 128 k instead, of which a warp takes one after the other and multiplies 16 rows of W with 8 rows of x
 * at once.
 *
 * Over experts (matmul.h) a tile is of the matrix that one choice of a row names, and its products have one row of x; choices that
 * name the same expert read it again. The producer waits for the routes. Sums over a row's choices: matmul_gemv_sums.cuh. */
#ifndef KERNELS_MATMUL_MATMUL_GEMV_CUH
#define KERNELS_MATMUL_MATMUL_GEMV_CUH

#include "kernels/cuda/include/epilogue.cuh"
#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/reduce.cuh"
#include "kernels/cuda/include/tma.cuh"
#include "kernels/matmul/expert_choices.cuh"
#include "kernels/matmul/fragment.cuh"
#include "kernels/matmul/matmul_gemv_layout.cuh"
#include "kernels/matmul/matmul_gemv_sums.cuh"
#include "kernels/matmul/strip_product.cuh"

/* Type of the operand W: rows of 16-bit elements or panels, or with boxes a tensor map. */
template <int COPY> struct gemv_weights {
    typedef const u16 *type;
};
template <> struct gemv_weights<GEMV_COPY_BOXES> {
    typedef tensor_map type;
};

/* ROUTES_HERE: a caller of the parts makes the routes, and with HAS_NORM the factors of the rows, before tiles are finished
 * (routed_matmul). */
template <class P, bool ROUTES_HERE = false> struct matmul_gemv_body {
    static constexpr bool GATED = epilogue_is_gated(P::EPILOGUE);
    static_assert(P::ROWS >= 1 && P::ROWS <= 8, "the columns of a product");
    static_assert(P::K % 8 == 0, "rows of W begin at multiples of 16 bytes");
    static_assert(P::CHUNK % 64 == 0, "pitch");
    static_assert(P::GROUPS == 4 || P::GROUPS == 2 || (P::GROUPS == 1 && !GATED), "gate and up rows alternate by 8");
    static_assert(P::SPLIT_K >= 1 && P::SPLIT_K <= 8, "clusters that every GPU can hold");

    static constexpr bool EXPERTS = P::EXPERTS > 0;
    static constexpr bool SHARES_X = EXPERTS && P::EPILOGUE != ACTIVATION_NONE; /* by the choices of a row */
    static constexpr bool WEIGHED = EXPERTS && !SHARES_X;
    static constexpr int TOP_K = EXPERTS ? P::ROUTE_WIDTH / 2 : 1, CHOICES = P::ROWS * TOP_K;
    /* Choices of every row, the last ones, that are known before the routes: their tiles come first. */
    template <bool HERE> static __device__ constexpr int shared_choices()
    {
        if constexpr (HERE)
            return P::SHARED;
        else
            return 0;
    }
    static constexpr int SHARED = shared_choices<ROUTES_HERE>(), CHOSEN = TOP_K - SHARED;
    static constexpr bool SUMMED =
        WEIGHED && !P::PARTS; /* over the choices of a row: parts of it for matmul_gemv_sums_body */
    static constexpr int MATRIX_N = EXPERTS ? P::N / P::EXPERTS : P::N;
    static constexpr int X_ROWS = WEIGHED ? CHOICES : P::ROWS;
    static constexpr int ROWS = EXPERTS ? 1 : P::ROWS; /* of x in a tile */
    static_assert(!EXPERTS || ((SHARES_X || P::HAS_NORM == 0) && CHOICES <= GEMV_MOST_CHOICES), "experts");

    static constexpr bool CODED = fragment_is_coded(P::DTYPE);
    static constexpr int ELEMENT = CODED ? DTYPE_BF16 : P::DTYPE; /* that is multiplied */
    static constexpr gemv_layout LAYOUT = gemv_lay_out(P::DTYPE, ROWS, X_ROWS, P::K, P::WARPS, P::STAGES, P::CHUNK,
                                                       P::SPLIT_K, P::GROUPS, P::X_SHARED, P::COPY, SUMMED);
    static constexpr fragment_layout FRAGMENTS = fragment_lay_out(P::DTYPE);
    static constexpr int PANELS = CODED ? P::GROUPS / 2 : 1; /* of a tile, if coded */
    /* Zeros of int4 are subtracted from the sums of a group, times the sum of its x, not from each code. */
    static constexpr bool ZEROS = FRAGMENTS.code == FRAGMENT_UINT4;
    static_assert(!CODED || (P::GROUPS != 1 && P::X_SHARED && P::COPY != GEMV_COPY_BOXES), "coded weights");

    static constexpr int TILE = 8 * P::GROUPS;                 /* rows of W */
    static constexpr int TILES = (MATRIX_N + TILE - 1) / TILE; /* of a matrix */
    static constexpr int PART = (int)LAYOUT.part;              /* k of a block */
    static constexpr int CHUNKS = (PART + P::CHUNK - 1) / P::CHUNK;
    static constexpr int STEP = CODED ? FRAGMENT_STRIP_K : 32;         /* k that a warp takes at once */
    static constexpr int STEPS_PER_STAGE = P::CHUNK / STEP / P::WARPS; /* of one warp */
    static_assert(SUMMED || P::CHUNK % (STEP * P::WARPS) == 0, "every warp takes as many steps of a stage");
    static constexpr int STEPS_PER_WARP = CHUNKS * STEPS_PER_STAGE;
    static constexpr bool RAGGED = P::K % STEP != 0; /* the last step has threads without k */
    static constexpr bool BOXES = P::COPY == GEMV_COPY_BOXES;
    static constexpr int BOX = 64; /* k */
    static constexpr int BOX_BYTES = TILE * BOX * 2;
    static constexpr int WEIGHT_PITCH = (int)LAYOUT.weight_pitch, STAGE_BYTES = (int)LAYOUT.stage_bytes;
    static constexpr int X_SUM_BYTES = (int)LAYOUT.x_sum_bytes;
    static constexpr int X_PITCH = (int)LAYOUT.x_pitch, SUM_PITCH = (int)LAYOUT.sum_pitch;
    static constexpr int SUM_FLOATS = ROWS * SUM_PITCH;
    static constexpr int OUT_COLUMNS = GATED ? MATRIX_N / 2 : MATRIX_N;
    static constexpr int TILE_OUT = GATED ? TILE / 2 : TILE;
    static constexpr int OUT_PER_LANE = (TILE_OUT * ROWS + 31) / 32;
    static constexpr int THREADS = 32 * (P::WARPS + 2);
    /* Room for a second thread block, or for those of the launches before and after; but spills cost more. */
    static constexpr int BLOCKS = P::WARPS > 8 && (CODED || P::GROUPS > 2 || ROWS > 4) ? 1 : 2;

    typedef expert_choices<P::EXPERTS, P::ROWS, TOP_K> choices;

    struct vector { /* 8 elements of 16 bits */
        u32 pair[4];
    };

    /* sums[8 rows of x][8 rows of W] += x W^T over the 16 k of two registers of each fragment. The product has 16
     * rows of x; the upper half is zero. */
    static __device__ __forceinline__ void multiply(float sums[2], u32 x0, u32 x1, u32 w0, u32 w1)
    {
        float d[4] = {sums[0], sums[1], 0, 0};
        mma<ELEMENT>(d, x0, 0, x1, 0, w0, w1);
        sums[0] = d[0], sums[1] = d[1];
    }

    /* Work of this block: tiles tile, tile + tile_step, ..., and k from first_k. */
    struct block_work {
        int tile, tile_step, count;
        int rank; /* in the cluster */
        int first_k, part_k;
        int rows; /* of x that are valid */
    };

    /* `rows`: of x that are valid. */
    static __device__ __forceinline__ block_work find_work(int rows)
    {
        block_work work;
        const int cluster = (int)blockIdx.x / P::SPLIT_K, clusters = (int)gridDim.x / P::SPLIT_K;
        const int tiles = EXPERTS ? rows * (SUMMED ? 1 : TOP_K) * TILES : TILES;
        work.tile = cluster;
        work.tile_step = clusters;
        work.count = (tiles - work.tile + work.tile_step - 1) / work.tile_step;
        work.rank = (int)blockIdx.x % P::SPLIT_K;
        work.rows = rows;
        work.first_k = work.rank * PART;
        work.part_k = P::K % PART == 0 ? PART : min(PART, P::K - work.first_k);
        return work;
    }

    /* Tile `i` of a block: the choice, 0 without experts, and the first row of the tile in its matrix. */
    struct piece {
        int choice, first;
    };

    static __device__ __forceinline__ piece find_piece(const block_work work, int i)
    {
        const int tile = work.tile + i * work.tile_step;
        if constexpr (SHARED > 0) {
            const int slot = tile / TILES, later = slot - work.rows * SHARED;
            const int choice =
                later < 0 ? slot / SHARED * TOP_K + CHOSEN + slot % SHARED : later / CHOSEN * TOP_K + later % CHOSEN;
            return {choice, tile % TILES * TILE};
        }
        if constexpr (EXPERTS) return {tile / TILES, tile % TILES * TILE};
        return {0, tile * TILE};
    }

    /* The row of x as it is staged. */
    static __device__ __forceinline__ int x_row_of(int choice) { return SHARES_X ? choice / TOP_K : choice; }

    /* Shared memory, as addresses. */
    struct shared_layout {
        u32 ring, x, x_sums, sums, cluster_sums, squares, cluster_squares;
        u32 full, empty;                 /* [STAGES] */
        u32 sums_full, sums_empty;       /* [2] */
        u32 cluster_full, cluster_empty; /* [2]: of rank 0; of every rank */
    };

    static __device__ __forceinline__ shared_layout shared_addresses(const void *base)
    {
        const u32 start = shared_address(base);
        shared_layout s;
        s.ring = start;
        s.x = start + (u32)LAYOUT.x;
        s.x_sums = start + (u32)LAYOUT.x_sums;
        s.sums = start + (u32)LAYOUT.sums;
        s.cluster_sums = start + (u32)LAYOUT.cluster_sums;
        s.squares = start + (u32)LAYOUT.squares;
        s.cluster_squares = start + (u32)LAYOUT.cluster_squares;
        s.full = start + (u32)LAYOUT.barriers;
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
            const int boxes = (length + BOX - 1) / BOX;
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

    /* The same of coded weights: the strips of `length` k of each panel. */
    static __device__ __forceinline__ void copy_coded_stage(const u8 *weights, int first_row, int first_k, int rows,
                                                            int length, u32 target, u32 full, u64 policy)
    {
        constexpr i64 PANEL_BYTES = fragment_panel_bytes(FRAGMENTS, P::K);
        const int lane = (int)threadIdx.x % 32, first_panel = first_row / FRAGMENT_ROWS;
        const int panels = min(PANELS, (rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS);
        const int bytes = (length + FRAGMENT_STRIP_K - 1) / FRAGMENT_STRIP_K * FRAGMENTS.strip_bytes;
        const u8 *source = weights + first_panel * PANEL_BYTES + fragment_factor_bytes(FRAGMENTS) +
                           first_k / FRAGMENT_STRIP_K * FRAGMENTS.strip_bytes;
        if constexpr (P::COPY == GEMV_COPY_THREADS) {
            for (int panel = 0; panel < panels; panel++)
                for (int at = lane * 16; at < bytes; at += 32 * 16)
                    copy_async_hinted(target + (u32)(panel * WEIGHT_PITCH + at), source + panel * PANEL_BYTES + at,
                                      policy);
            copy_arrive(full);
        } else {
            if (lane == 0) barrier_arrive_expect(full, (u32)(panels * bytes));
            __syncwarp();
            if (lane < panels && bytes > 0)
                bulk_copy_hinted(target + (u32)(lane * WEIGHT_PITCH), source + lane * PANEL_BYTES, (u32)bytes, full,
                                 policy);
        }
    }

    /* The producer warp: fills the ring. */
    static __device__ __forceinline__ void produce(const weights_operand &weights, const void *bias,
                                                   const block_work work, const choices &held,
                                                   const shared_layout shared)
    {
        produce_by([&](int choice) { return held.expert_of(choice); }, weights, bias, work, shared);
    }

    /* Requests into the L2 cache what `finish` reads of a tile beside its sums, rows of W from first_row on: it comes to each tile late,
     * and would wait for the memory once for each. */
    static __device__ __forceinline__ void prefetch_factors(const weights_operand &weights, int first_row, int rows)
    {
        const int lane = (int)threadIdx.x % 32;
        if constexpr (FRAGMENTS.factors)
            if (lane * FRAGMENT_ROWS < rows)
                prefetch_l2((const u8 *)weights +
                            (first_row / FRAGMENT_ROWS + lane) * (i64)fragment_panel_bytes(FRAGMENTS, P::K));
    }
    static __device__ __forceinline__ void prefetch_bias(const void *bias, int first_row, int rows)
    {
        constexpr int BYTES = P::BIAS_DTYPE == DTYPE_F32 ? 4 : 2, SECTOR = 32 / BYTES;
        const int lane = (int)threadIdx.x % 32;
        if constexpr (P::HAS_BIAS)
            if (lane * SECTOR < rows) prefetch_l2((const u8 *)bias + (i64)(first_row + lane * SECTOR) * BYTES);
    }

    /* `expert_of`: by the whole warp, of choices in the order of tiles. */
    template <class EXPERT_OF>
    static __device__ __forceinline__ void produce_by(EXPERT_OF expert_of, const weights_operand &weights,
                                                      const void *bias, const block_work work,
                                                      const shared_layout shared)
    {
        const u64 policy = policy_evict_first();
        int stage = 0;
        u32 parity = 1; /* of the phase before the first: the ring begins empty */
        for (int i = 0; i < work.count; i++) {
            const piece of = find_piece(work, i);
            const int rows = min(TILE, MATRIX_N - of.first); /* of no expert: those of expert 0, which are not used */
            const int first_row = max(expert_of(of.choice), 0) * MATRIX_N + of.first;
            if (work.rank == 0) {
                prefetch_factors(weights, first_row, rows);
                prefetch_bias(bias, first_row, rows);
            }
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                const int length = max(0, min(P::CHUNK, work.part_k - chunk * P::CHUNK));
                barrier_wait(shared.empty + 8 * (u32)stage, parity);
                const int first_k = work.first_k + chunk * P::CHUNK;
                const u32 target = shared.ring + (u32)(stage * STAGE_BYTES), full = shared.full + 8 * (u32)stage;
                if constexpr (CODED)
                    copy_coded_stage((const u8 *)weights, first_row, first_k, rows, length, target, full, policy);
                else
                    copy_stage(weights, first_row, first_k, rows, length, target, full, policy);
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
                v.pair[i] = pack_halves<ELEMENT>(first * norm.value[2 * i], second * norm.value[2 * i + 1]);
            }
        }
        return v;
    }

    /* The sum of a group's x as they are multiplied, by the lanes that have it; all lanes of a warp at once. */
    static __device__ __forceinline__ void store_x_sum(const vector values, int row, int k, const shared_layout shared)
    {
        constexpr int LANES = FRAGMENTS.group / 8;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum += float_of_half<ELEMENT>((u16)values.pair[i]) + float_of_half<ELEMENT>((u16)(values.pair[i] >> 16));
#pragma unroll
        for (int lanes = 1; lanes < LANES; lanes *= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
        if (row < X_ROWS && k < PART && k % FRAGMENTS.group == 0)
            store_shared(shared.x_sums + (u32)(k / FRAGMENTS.group * X_SUM_BYTES + row * 4), sum);
    }

    /* A consumer warp stages the part of x that it needs itself, so that it waits for no other warp. Loads go out in
     * batches of VECTORS x BATCH_ROWS, as many as there are registers for: each takes a round trip to the L2 cache. */
    static __device__ __forceinline__ void stage_x(const void *x, const void *norm, const block_work work,
                                                   const shared_layout shared)
    {
        stage_x_by([](const vector &, int, int) {}, x, norm, work, shared);
    }

    /* `use`: of 8 elements as they are multiplied, their row and their first k, by the lane that has them. */
    template <class USE>
    static __device__ __forceinline__ void stage_x_by(USE use, const void *x, const void *norm, const block_work work,
                                                      const shared_layout shared)
    {
        constexpr int BATCH = (P::HAS_NORM ? 4 : 8) / (P::WARPS > 8 ? 2 : 1);
        constexpr int BATCH_ROWS = X_ROWS < BATCH ? X_ROWS : BATCH;
        constexpr int UNROLLED = X_ROWS > 8 ? 1 : X_ROWS;
        constexpr int LANE_VECTORS = (STEPS_PER_WARP * (STEP / 8) + 31) / 32;
        constexpr int VECTORS = LANE_VECTORS < BATCH / BATCH_ROWS ? LANE_VECTORS : BATCH / BATCH_ROWS;
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        float squares[P::ROWS] = {};
        /* Vectors beyond the last have k beyond K. */
        for (int first = lane; first - lane < STEPS_PER_WARP * (STEP / 8); first += 32 * VECTORS) {
            int k[VECTORS];
            norm_weights weights[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                const int v = first + 32 * i;
                k[i] = (warp + v / (STEP / 8) * P::WARPS) * STEP + v % (STEP / 8) * 8;
                if (k[i] < work.part_k) weights[i] = load_norm(norm, work.first_k + k[i]);
            }
#pragma unroll UNROLLED
            for (int first_row = 0; first_row < X_ROWS; first_row += BATCH_ROWS) {
                raw_x raw[VECTORS][BATCH_ROWS];
#pragma unroll
                for (int i = 0; i < VECTORS * BATCH_ROWS; i++)
                    if (k[i / BATCH_ROWS] < work.part_k && first_row + i % BATCH_ROWS < X_ROWS)
                        raw[i / BATCH_ROWS][i % BATCH_ROWS] =
                            load_x(x, first_row + i % BATCH_ROWS, work.first_k + k[i / BATCH_ROWS]);
#pragma unroll
                for (int i = 0; i < VECTORS * BATCH_ROWS; i++) {
                    const int row = first_row + i % BATCH_ROWS, at = k[i / BATCH_ROWS];
                    vector values = {};
                    if (at < work.part_k && row < X_ROWS)
                        values = convert_x(raw[i / BATCH_ROWS][i % BATCH_ROWS], weights[i / BATCH_ROWS],
                                           &squares[P::HAS_NORM ? row : 0]);
                    if constexpr (ZEROS) store_x_sum(values, row, at, shared);
                    /* Coded: zeros beyond K, where a strip has codes, too. */
                    if (at >= (CODED ? PART : work.part_k) || row >= X_ROWS) continue;
                    if constexpr (P::X_SHARED)
                        store_shared(shared.x + (u32)(row * X_PITCH + at * 2),
                                     make_uint4(values.pair[0], values.pair[1], values.pair[2], values.pair[3]));
                    use(values, row, at);
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

    /* A consumer warp: its products of every stage. Requires: x is staged, where it is. */
    static __device__ __forceinline__ void consume(const void *x, const void *norm, const block_work work,
                                                   const shared_layout shared)
    {
        if constexpr (CODED)
            consume_coded(work, shared);
        else
            consume_plain(x, norm, work, shared);
    }

    static __device__ __forceinline__ void consume_plain(const void *x, const void *norm, const block_work work,
                                                         const shared_layout shared)
    {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        const int row = lane / 4, quarter = lane % 4; /* of the fragments */
        /* Columns of the product beyond ROWS multiply the first row again and are dropped. */
        const int tile_row = row < ROWS ? row : 0;

        /* In boxes, 16-byte pieces of row r lie at their number xor r % 8: what a quarter of a warp reads of two
         * rows is in different banks if the rows' numbers differ by 4. So fragment row 0, 1, 2, 3, ... is row 0, 4,
         * 1, 5, ... of W. */
        const int weight_row = BOXES ? row % 2 * 4 + row / 2 : row;
        const u32 weight_at = shared.ring + (u32)(weight_row * WEIGHT_PITCH + (BOXES ? 0 : quarter * 16));
        int stage = 0;
        u32 parity = 0;
        for (int i = 0; i < work.count; i++) {
            const int x_row = EXPERTS ? x_row_of(find_piece(work, i).choice) : tile_row;
            const u32 x_at = shared.x + (u32)(x_row * X_PITCH + quarter * 16);
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
                    const int in_box = in_stage % BOX / 8 + quarter;
                    const u32 at =
                        weight_at + (u32)(stage * STAGE_BYTES) +
                        (u32)(BOXES ? in_stage / BOX * BOX_BYTES + (in_box ^ weight_row) * 16 : in_stage * 2);
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
            if (row < ROWS) {
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

    /* Sums of x over the groups of a strip, for encodings with zeros. Those of two rows of x; over experts a product has one. */
    struct strip_x_sums {
        static constexpr bool PRESENT = ZEROS;
        u32 at;

        __device__ __forceinline__ void load(u32 (&sums)[2], int group) const
        {
            const u32 from = at + (u32)(group * X_SUM_BYTES);
            if constexpr (EXPERTS)
                sums[0] = sums[1] = bits_of_float(load_shared_float(from));
            else
                load_shared(sums, from);
        }
    };

    static __device__ __forceinline__ void consume_coded(const block_work work, const shared_layout shared)
    {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        /* Rows of x beyond ROWS are the first again, and what comes of them is dropped. */
        const int tile_row = lane % 8 < ROWS ? lane % 8 : 0;
        int stage = 0;
        u32 parity = 0;
        for (int i = 0; i < work.count; i++) {
            const int x_row = EXPERTS ? x_row_of(find_piece(work, i).choice) : tile_row;
            const u32 x_at = shared.x + (u32)(x_row * X_PITCH + lane / 8 * 16);
            const u32 x_sums =
                shared.x_sums + (u32)(EXPERTS ? x_row * 4 : lane % 4 * 8); /* of rows that the lane has */
            float sums[PANELS][4] = {};
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                barrier_wait(shared.full + 8 * (u32)stage, parity);
#pragma unroll
                for (int j = 0; j < STEPS_PER_STAGE; j++) {
                    const int in_stage = warp + j * P::WARPS, k = chunk * P::CHUNK + in_stage * STEP;
                    if (k >= work.part_k) break;
                    const u32 strips = shared.ring + (u32)(stage * STAGE_BYTES + in_stage * FRAGMENTS.strip_bytes);
                    multiply_strips<P::DTYPE, WEIGHT_PITCH>(sums, strips, x_at + (u32)k * 2, FRAGMENT_STRIP_K,
                                                            strip_x_sums{
                                                                x_sums +
                                                                (u32)(ZEROS ? k / FRAGMENTS.group * X_SUM_BYTES : 0)});
                }
                barrier_arrive(shared.empty + 8 * (u32)stage);
                if (++stage == P::STAGES) stage = 0, parity ^= 1;
            }
            const int buffer = i % 2;
            barrier_wait(shared.sums_empty + 8 * (u32)buffer, (u32)(i / 2 + 1) % 2);
            const u32 target = shared.sums + 4 * (u32)((buffer * P::WARPS + warp) * SUM_FLOATS + lane / 4);
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int row = lane % 4 * 2 + j % 2; /* of x */
                    if (j % 2 < ROWS && row < ROWS)       /* with one row the compiler drops the sums of the others */
                        store_shared(target + 4 * (u32)(row * SUM_PITCH + panel * 16 + j / 2 * 8), sums[panel][j]);
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
        for (int index = lane; index < TILE * ROWS; index += 32) {
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
    static __device__ __forceinline__ void finish(const weights_operand &weights, void *out, const void *bias,
                                                  const float *residual, const block_work work, const choices &held,
                                                  const shared_layout shared)
    {
        finish_by([&](i64 at, float value) { store_element<P::OUT_DTYPE>(out, at, value); }, weights, bias, residual,
                  work, held, shared);
    }

    /* `store`: of an output, by its place and its value. */
    template <class STORE>
    static __device__ __forceinline__ void finish_by(STORE store, const weights_operand &weights, const void *bias,
                                                     const float *residual, const block_work work, const choices &held,
                                                     const shared_layout shared)
    {
        constexpr int PARTS = P::SPLIT_K > 1 ? P::SPLIT_K : P::WARPS;
        const int lane = (int)threadIdx.x % 32;
        const u32 squares = P::SPLIT_K > 1 ? shared.cluster_squares : shared.squares;
        for (int i = 0; i < work.count; i++) {
            const piece of = find_piece(work, i);
            const int expert = held.expert_of(of.choice), buffer = i % 2;
            const int first = max(expert, 0) * MATRIX_N + of.first; /* row of W */
            const float weight = WEIGHED && expert >= 0 ? held.weight_of(of.choice) : 0;
            float add[OUT_PER_LANE] = {}, add_second[OUT_PER_LANE] = {};
            float row_factor[OUT_PER_LANE], second_factor[OUT_PER_LANE]; /* of coded weights */
            if (work.rank == 0) {
#pragma unroll
                for (int j = 0; j < OUT_PER_LANE; j++) {
                    const output o = tile_output(lane + 32 * j);
                    if (o.row >= ROWS || of.first + o.first >= MATRIX_N) continue;
                    if constexpr (FRAGMENTS.factors) {
                        row_factor[j] = fragment_factor<P::DTYPE>(weights, first + o.first, P::K);
                        if constexpr (GATED)
                            second_factor[j] = fragment_factor<P::DTYPE>(weights, first + o.second, P::K);
                    }
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
            if (P::HAS_NORM && !ROUTES_HERE && i == 0) make_factors<PARTS>(squares);
#pragma unroll
            for (int j = 0; j < OUT_PER_LANE; j++) {
                const output o = tile_output(lane + 32 * j);
                if (o.row >= ROWS || of.first + o.first >= MATRIX_N || expert < 0) continue;
                const int normed = EXPERTS ? of.choice / TOP_K : o.row;
                const float factor =
                    scaled<P::SCALE_BITS>(P::HAS_NORM ? load_shared_float(squares + 4 * (u32)normed) : 1.0f);
                float sum = ordered_sum<PARTS>(source, o.row, o.first);
                if constexpr (FRAGMENTS.factors) sum *= row_factor[j];
                float value = sum * factor + add[j];
                if constexpr (GATED) {
                    float up = ordered_sum<PARTS>(source, o.row, o.second);
                    if constexpr (FRAGMENTS.factors) up *= second_factor[j];
                    up = up * factor + add_second[j];
                    value = gated_product<P, false>(value, up);
                } else {
                    value = plain_product<P, false>(value);
                }
                if constexpr (WEIGHED) value *= weight;
                const int column = (GATED ? of.first / 2 : of.first) + o.column;
                store((i64)(EXPERTS ? of.choice : o.row) * OUT_COLUMNS + column, value);
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

    /* Requests the norm's weights into the L2 cache. */
    static __device__ __forceinline__ void prefetch_norm(const void *norm, const block_work work)
    {
        constexpr int NORM_BYTES = P::NORM_DTYPE == DTYPE_F32 ? 4 : 2;
        const int thread = (int)threadIdx.x;
        if constexpr (P::HAS_NORM)
            for (int at = thread * 128; at < work.part_k * NORM_BYTES; at += 32 * P::WARPS * 128)
                prefetch_l2((const u8 *)norm + (i64)work.first_k * NORM_BYTES + at);
    }

    /* By one thread, before any other uses them. Every lane arrives that has read or written what a barrier guards. One arrival of
     * each warp after __syncwarp would be correct and is no faster, but compute-sanitizer's racecheck does not understand it. */
    static __device__ __forceinline__ void init_barriers(const shared_layout shared)
    {
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

    /* `memory`: shared, gemv's layout, aligned to 1024. `bias`, `residual`, `norm`, `routes`: null without HAS_..., ROUTE_WIDTH. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const void *x,
                                               const weights_operand &weights, void *out, const void *bias,
                                               const float *residual, const void *norm, const float *routes)
    {
        static_assert(!SUMMED, "matmul_gemv_sums_body runs");
        const shared_layout shared = shared_addresses(memory);
        const int warp = (int)threadIdx.x / 32;

        if (threadIdx.x == 0) init_barriers(shared);
        /* With experts and an activation only after the wait: EARLY_ROUTES of the launch that follows (matmul.h). */
        if constexpr (SHARES_X) device_wait();
        /* Early, so that the next launch fills its ring as soon as this one leaves room; a later trigger was slower. */
        device_trigger();
        __syncthreads();
        if constexpr (P::SPLIT_K > 1)
            cluster_arrive_aligned(); /* no block writes into another before its barriers are set up */

        /* Without experts rows beyond the valid ones cost no time. */
        int rows = P::ROWS;
        choices held = {};
        if constexpr (EXPERTS) {
            device_wait();
            if (warp >= P::WARPS) held.load(routes);
            rows = min(counts[P::COUNT_INDEX], P::ROWS);
        }
        const block_work work = find_work(rows);
        if (warp == P::WARPS + 1) {
            produce(weights, bias, work, held, shared);
            if constexpr (P::SPLIT_K > 1) cluster_wait_aligned();
        } else {
            if constexpr (P::SPLIT_K > 1) cluster_wait_aligned();
            if (warp < P::WARPS) {
                prefetch_norm(norm, work);
                device_wait();
                if constexpr (P::X_SHARED || P::HAS_NORM) stage_x(x, norm, work, shared);
                consume(x, norm, work, shared);
            } else {
                device_wait();
                finish(weights, out, bias, residual, work, held, shared);
            }
        }
        if constexpr (P::SPLIT_K > 1)
            cluster_arrive_aligned(); /* no block ends while another may still write into it */
        if constexpr (P::SPLIT_K > 1) cluster_wait_aligned();
    }
};

/* The body that runs a problem. */
template <class P, bool SUMMED = matmul_gemv_body<P>::SUMMED> struct matmul_gemv_choice {
    typedef matmul_gemv_body<P> body;
};
template <class P> struct matmul_gemv_choice<P, true> {
    typedef matmul_gemv_sums_body<P, matmul_gemv_body<P>> body;
};

#endif
