/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_gemv: a matrix times 1..8 rows of x at the speed of the memory. The contract is in matmul_device.h, which also
 * lists the tunables; shared memory is laid out in matmul_gemv_layout.cuh.
 *
 * A tile is 8 * GROUPS rows of W; a cluster of SPLIT_K thread blocks takes one tile after the other, each block its
 * part of K. In a block a producer warp streams the weights through a ring of STAGES stages. Weights never change, so
 * it begins before the launch before this one has ended: the memory stays busy while launches change. WARPS consumer
 * warps share the k of every stage: each takes steps of 32 k, multiplies 8 rows of x with 8 rows of W on the tensor
 * cores and leaves its sums in shared memory; one more warp adds the sums of the warps, then of the cluster's blocks,
 * always in the same order, and writes the outputs, while the consumers go on.
 *
 * Fragments are plain 16-byte loads: the order of k within a step does not matter as long as W and x agree, so thread t
 * of a quad takes 8 k from 8 * t and treats them as the k of two products. */
#ifndef ROWS
#define ROWS         1
#define COUNT_INDEX  0
#define N            2048
#define K            2048
#define DTYPE        3
#define OUT_DTYPE    1
#define EPILOGUE     0
#define HAS_BIAS     1
#define BIAS_DTYPE   3
#define HAS_RESIDUAL 1
#define HAS_NORM     1
#define NORM_DTYPE   3
#define EPS_BITS     925353388
#define WARPS        8
#define STAGES       5
#define CHUNK        512
#define SPLIT_K      1
#define GROUPS       2
#define CTAS_PER_SM  1
#define X_SHARED     1
#if __CUDA_ARCH__ >= 900
#define COPY 2
#else
#define COPY 0
#endif
#endif

enum { WEIGHT_DTYPE = DTYPE };
#undef DTYPE /* a parameter of the templates in device.cuh */
#include "kernels/cuda/include/device.cuh"
#include "kernels/cuda/include/hopper.cuh"
#include "kernels/matmul/matmul_gemv_layout.cuh"

#define SWIGLU 1 /* enum matmul_epilogue */

static_assert(ROWS >= 1 && ROWS <= 8, "the columns of a product");
static_assert(K % 8 == 0, "rows of W begin at multiples of 16 bytes");
static_assert(CHUNK % (32 * WARPS) == 0 && CHUNK % 64 == 0, "every warp takes as many steps of a stage; pitch");
static_assert(GROUPS == 4 || GROUPS == 2 || (GROUPS == 1 && EPILOGUE == 0), "gate and up rows alternate by 8");
static_assert(SPLIT_K >= 1 && SPLIT_K <= 8, "clusters that every GPU can hold");

static constexpr int TILE = 8 * GROUPS; /* rows of W */
static constexpr int TILES = GEMV_CEIL_DIV(N, TILE);
static constexpr int PART = GEMV_PART(K, SPLIT_K); /* k of a block */
static constexpr int CHUNKS = GEMV_CEIL_DIV(PART, CHUNK);
static constexpr int STEP = 32;                              /* k that a warp takes at once */
static constexpr int STEPS_PER_STAGE = CHUNK / STEP / WARPS; /* of one warp */
static constexpr int STEPS_PER_WARP = CHUNKS * STEPS_PER_STAGE;
static constexpr bool RAGGED = K % STEP != 0; /* the last step has threads without k */
static constexpr bool BOXES = COPY == GEMV_COPY_BOXES;
static constexpr int BOX = 64; /* k */
static constexpr int BOX_BYTES = TILE * BOX * 2;
static constexpr int WEIGHT_PITCH = BOXES ? BOX * 2 : GEMV_WEIGHT_PITCH(CHUNK);
static constexpr int STAGE_BYTES = GEMV_STAGE_BYTES(GROUPS, CHUNK, COPY);
static constexpr int X_PITCH = GEMV_X_PITCH(K, SPLIT_K);
static constexpr int SUM_PITCH = GEMV_SUM_PITCH(GROUPS);
static constexpr int SUM_FLOATS = ROWS * SUM_PITCH;
static constexpr int OUT_COLUMNS = EPILOGUE == SWIGLU ? N / 2 : N;
static constexpr int TILE_OUT = EPILOGUE == SWIGLU ? TILE / 2 : TILE;
static constexpr int OUT_PER_LANE = GEMV_CEIL_DIV(TILE_OUT * ROWS, 32);
static constexpr int THREADS = 32 * (WARPS + 2);
/* Room for a second thread block, or for those of the launches before and after; but spills cost more. */
static constexpr int BLOCKS = WARPS > 8 && (GROUPS > 2 || ROWS > 4) ? 1 : 2;

struct vector { /* 8 elements of 16 bits */
    u32 pair[4];
};

/* Clusters: addresses are those that cluster_address returns. */
__device__ __forceinline__ void cluster_store(u32 address, float value)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#endif
}

__device__ __forceinline__ void cluster_arrive(u32 barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

__device__ __forceinline__ void cluster_wait(u32 barrier, u32 parity)
{
#if __CUDA_ARCH__ >= 900
    u32 done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
#endif
}

/* All threads of the cluster meet: each arrives, then waits. */
__device__ __forceinline__ void cluster_meet_arrive()
{
#if __CUDA_ARCH__ >= 900
    if constexpr (SPLIT_K > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_meet_wait()
{
#if __CUDA_ARCH__ >= 900
    if constexpr (SPLIT_K > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ vector load_shared(u32 address)
{
    vector v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.pair[0]), "=r"(v.pair[1]), "=r"(v.pair[2]), "=r"(v.pair[3])
                 : "r"(address));
    return v;
}

__device__ __forceinline__ void store_shared(u32 address, vector v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.pair[0]), "r"(v.pair[1]),
                 "r"(v.pair[2]), "r"(v.pair[3])
                 : "memory");
}

/* 16 bytes of what an earlier launch wrote: past the L1 cache, which may hold the line of before. */
__device__ __forceinline__ vector load_written(const void *address)
{
    vector v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.pair[0]), "=r"(v.pair[1]), "=r"(v.pair[2]), "=r"(v.pair[3])
                 : "l"(address));
    return v;
}

__device__ __forceinline__ float load_written_float(const float *address)
{
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(address));
    return value;
}

__device__ __forceinline__ void prefetch(const void *address)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* sums[8 rows of x][8 rows of W] += x W^T over the 16 k of two registers of each fragment. The product has 16 rows of
 * x; the upper half is zero. */
__device__ __forceinline__ void multiply(float sums[2], u32 x0, u32 x1, u32 w0, u32 w1)
{
    float unused0 = 0, unused1 = 0;
    if constexpr (WEIGHT_DTYPE == DTYPE_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(unused0), "+f"(unused1)
            : "r"(x0), "r"(0), "r"(x1), "r"(0), "r"(w0), "r"(w1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(unused0), "+f"(unused1)
            : "r"(x0), "r"(0), "r"(x1), "r"(0), "r"(w0), "r"(w1));
}

/* What this block does: tiles tile, tile + tile_step, ... and k from first_k. */
struct block_work {
    int tile, tile_step, tile_count;
    int rank; /* in the cluster */
    int first_k, part_k;
};

__device__ __forceinline__ block_work find_work()
{
    block_work work;
    const int cluster = (int)blockIdx.x / SPLIT_K, clusters = (int)gridDim.x / SPLIT_K;
    work.tile = cluster;
    work.tile_step = clusters;
    work.tile_count = (TILES - work.tile + work.tile_step - 1) / work.tile_step;
    work.rank = (int)blockIdx.x % SPLIT_K;
    work.first_k = work.rank * PART;
    work.part_k = K % PART == 0 ? PART : min(PART, K - work.first_k);
    return work;
}

/* Shared memory, as addresses. */
struct shared_layout {
    u32 ring, x, sums, cluster_sums, squares, cluster_squares;
    u32 full, empty;                 /* [STAGES] */
    u32 sums_full, sums_empty;       /* [2] */
    u32 cluster_full, cluster_empty; /* [2]: of rank 0; of every rank */
};

__device__ __forceinline__ shared_layout shared_addresses(const void *base)
{
    const u32 start = shared_address(base);
    shared_layout s;
    s.ring = start;
    s.x = s.ring + STAGES * STAGE_BYTES;
    s.sums = GEMV_SUMS_OFFSET(s.x, ROWS, K, SPLIT_K, X_SHARED);
    s.cluster_sums = GEMV_CLUSTER_SUMS_OFFSET(s.sums, ROWS, GROUPS, WARPS);
    s.squares = GEMV_SQUARES_OFFSET(s.cluster_sums, ROWS, GROUPS, SPLIT_K);
    s.cluster_squares = s.squares + 4 * ROWS * WARPS;
    s.full = GEMV_BARRIERS_OFFSET(s.squares, ROWS, WARPS, SPLIT_K);
    s.empty = s.full + 8 * STAGES;
    s.sums_full = s.empty + 8 * STAGES;
    s.sums_empty = s.sums_full + 16;
    s.cluster_full = s.sums_empty + 16;
    s.cluster_empty = s.cluster_full + 16;
    return s;
}

__device__ __forceinline__ float load_shared_float(u32 address)
{
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
    return value;
}

__device__ __forceinline__ void store_shared_float(u32 address, float value)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

#if COPY == GEMV_COPY_BOXES
typedef tensor_map weights_operand;
#else
typedef const u16 *weights_operand;
#endif

/* A stage: `rows` rows of W from first_row, `length` k from first_k. By the whole producer warp; completes a phase of
 * the mbarrier `full` once all has arrived. */
__device__ __forceinline__ void copy_stage(const weights_operand &weights, int first_row, int first_k, int rows,
                                           int length, u32 target, u32 full, u64 policy)
{
    const int lane = (int)threadIdx.x % 32;
#if COPY == GEMV_COPY_THREADS
    const u16 *source = weights + (i64)first_row * K + first_k;
    for (int row = 0; row < rows; row++)
        for (int at = lane * 8; at < length; at += 32 * 8)
            asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                             target + (u32)(row * WEIGHT_PITCH + at * 2)),
                         "l"(source + (i64)row * K + at), "l"(policy)
                         : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
#else
    /* Boxes count in full where they reach beyond W; the hardware fills in zeros. */
    const int boxes = GEMV_CEIL_DIV(length, BOX);
    if (lane == 0) barrier_arrive_expect(full, (u32)(BOXES ? boxes * BOX_BYTES : rows * length * 2));
    __syncwarp();
#if COPY == GEMV_COPY_ROWS
    if (lane < rows && length > 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(target + (u32)(lane * WEIGHT_PITCH)),
                     "l"(weights + (i64)(first_row + lane) * K + first_k), "r"(length * 2), "r"(full), "l"(policy)
                     : "memory");
#else
    for (int box = lane; box < boxes; box += 32)
        tile_load_hinted(target + (u32)(box * BOX_BYTES), &weights, first_k + box * BOX, first_row, full, policy);
#endif
#endif
}

/* The producer warp: fills the ring. */
__device__ __forceinline__ void produce(const weights_operand &weights, const block_work work,
                                        const shared_layout shared)
{
    const u64 policy =
        policy_evict_first(); /* every weight is read once a step: the rest of the L2 cache is worth more */
    int stage = 0;
    u32 parity = 1; /* of the phase before the first: the ring begins empty */
    for (int i = 0; i < work.tile_count; i++) {
        const int first_row = (work.tile + i * work.tile_step) * TILE;
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const int length = max(0, min(CHUNK, work.part_k - chunk * CHUNK));
            barrier_wait(shared.empty + 8 * (u32)stage, parity);
            copy_stage(weights, first_row, work.first_k + chunk * CHUNK, min(TILE, N - first_row), length,
                       shared.ring + (u32)(stage * STAGE_BYTES), shared.full + 8 * (u32)stage, policy);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
#if COPY == GEMV_COPY_THREADS
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* 8 elements of a row of x as they lie in memory: 16 bits each, or floats with HAS_NORM. */
struct raw_x {
    vector low, high;
};

__device__ __forceinline__ raw_x load_x(const void *x, int row, int k)
{
    raw_x raw = {};
    if constexpr (HAS_NORM) {
        const float *from = (const float *)x + (i64)row * K + k;
        raw.low = load_written(from), raw.high = load_written(from + 4);
    } else {
        raw.low = load_written((const u16 *)x + (i64)row * K + k);
    }
    return raw;
}

/* 8 norm weights from `k`. */
struct norm_weights {
    float value[8];
};

__device__ __forceinline__ norm_weights load_norm(const void *norm, int k)
{
    norm_weights weights = {};
    if constexpr (HAS_NORM && NORM_DTYPE == DTYPE_F32) {
        const float4 low = ((const float4 *)norm)[k / 4], high = ((const float4 *)norm)[k / 4 + 1];
        weights = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    } else if constexpr (HAS_NORM) {
        const uint4 packed = ((const uint4 *)norm)[k / 8];
        const u32 pair[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 8; i++) weights.value[i] = float_of_half<NORM_DTYPE>((u16)(pair[i / 2] >> i % 2 * 16));
    }
    return weights;
}

/* As they are multiplied; *squares gains the squares of what was read. */
__device__ __forceinline__ vector convert_x(const raw_x raw, const norm_weights norm, float *squares)
{
    vector v = raw.low;
    if constexpr (HAS_NORM) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 *pair = i < 2 ? &raw.low.pair[2 * i] : &raw.high.pair[2 * i - 4];
            const float first = float_of_bits(pair[0]), second = float_of_bits(pair[1]);
            *squares += first * first;
            *squares += second * second;
            v.pair[i] = pack_halves<WEIGHT_DTYPE>(first * norm.value[2 * i], second * norm.value[2 * i + 1]);
        }
    }
    return v;
}

/* A consumer warp stages the k of x that it needs, so that it waits for no other. Loads go out in batches of
 * VECTORS x BATCH_ROWS, as many as there are registers for: each takes a round trip to the L2 cache. */
__device__ __forceinline__ void stage_x(const void *x, const void *norm, const block_work work,
                                        const shared_layout shared)
{
    constexpr int BATCH = (HAS_NORM ? 4 : 8) / (WARPS > 8 ? 2 : 1);
    constexpr int BATCH_ROWS = ROWS < BATCH ? ROWS : BATCH;
    constexpr int LANE_VECTORS = GEMV_CEIL_DIV(STEPS_PER_WARP * (STEP / 8), 32);
    constexpr int VECTORS = LANE_VECTORS < BATCH / BATCH_ROWS ? LANE_VECTORS : BATCH / BATCH_ROWS;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float squares[ROWS] = {};
    for (int first = lane; first < STEPS_PER_WARP * (STEP / 8); first += 32 * VECTORS) {
        int k[VECTORS];
        norm_weights weights[VECTORS];
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const int v = first + 32 * i;
            k[i] = (warp + v / (STEP / 8) * WARPS) * STEP + v % (STEP / 8) * 8;
            if (k[i] < work.part_k) weights[i] = load_norm(norm, work.first_k + k[i]);
        }
#pragma unroll
        for (int first_row = 0; first_row < ROWS; first_row += BATCH_ROWS) {
            raw_x raw[VECTORS][BATCH_ROWS];
#pragma unroll
            for (int i = 0; i < VECTORS * BATCH_ROWS; i++)
                if (k[i / BATCH_ROWS] < work.part_k && first_row + i % BATCH_ROWS < ROWS)
                    raw[i / BATCH_ROWS][i % BATCH_ROWS] =
                        load_x(x, first_row + i % BATCH_ROWS, work.first_k + k[i / BATCH_ROWS]);
#pragma unroll
            for (int i = 0; i < VECTORS * BATCH_ROWS; i++) {
                const int row = first_row + i % BATCH_ROWS, at = k[i / BATCH_ROWS];
                if (at >= work.part_k || row >= ROWS) continue;
                const vector values =
                    convert_x(raw[i / BATCH_ROWS][i % BATCH_ROWS], weights[i / BATCH_ROWS], &squares[row]);
                if constexpr (X_SHARED) store_shared(shared.x + (u32)(row * X_PITCH + at * 2), values);
            }
        }
    }
    if constexpr (HAS_NORM) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float sum = warp_sum(squares[row]);
            if (lane == 0) store_shared_float(shared.squares + 4 * (u32)(warp * ROWS + row), sum);
        }
    }
    __syncwarp();
}

__device__ __forceinline__ void consume(const void *x, const void *norm, const block_work work,
                                        const shared_layout shared)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int row = lane / 4, quarter = lane % 4; /* of the fragments */
    /* Columns of the product beyond ROWS multiply row 0 again and are dropped. */
    const int x_row = row < ROWS ? row : 0;
    if constexpr (X_SHARED || HAS_NORM) stage_x(x, norm, work, shared);

    /* In boxes, 16-byte pieces of row r lie at their number xor r % 8: what a quarter of a warp reads of two rows is in
     * different banks if the rows' numbers differ by 4. So fragment row 0, 1, 2, 3, ... is row 0, 4, 1, 5, ... of W. */
    const int weight_row = BOXES ? row % 2 * 4 + row / 2 : row;
    const u32 weight_at = shared.ring + (u32)(weight_row * WEIGHT_PITCH + (BOXES ? 0 : quarter * 16));
    const u32 x_at = shared.x + (u32)(x_row * X_PITCH + quarter * 16);
    int stage = 0;
    u32 parity = 0;
    for (int i = 0; i < work.tile_count; i++) {
        float sums[GROUPS][2] = {};
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            barrier_wait(shared.full + 8 * (u32)stage, parity);
#pragma unroll
            for (int j = 0; j < STEPS_PER_STAGE; j++) {
                const int in_stage = (warp + j * WARPS) * STEP, k = chunk * CHUNK + in_stage;
                if (k >= work.part_k) break;
                const bool valid = !RAGGED || k + quarter * 8 < work.part_k;
                vector x_values = {};
                if (valid) {
                    const int at = work.first_k + k + quarter * 8;
                    float ignored = 0;
                    x_values = X_SHARED ? load_shared(x_at + (u32)k * 2)
                                        : convert_x(load_x(x, x_row, at), load_norm(norm, at), &ignored);
                }
                const int piece = in_stage % BOX / 8 + quarter;
                const u32 at = weight_at + (u32)(stage * STAGE_BYTES) +
                               (u32)(BOXES ? in_stage / BOX * BOX_BYTES + (piece ^ weight_row) * 16 : in_stage * 2);
#pragma unroll
                for (int group = 0; group < GROUPS; group++) {
                    vector weights = {};
                    if (valid) weights = load_shared(at + (u32)(group * 8 * WEIGHT_PITCH));
                    multiply(sums[group], x_values.pair[0], x_values.pair[1], weights.pair[0], weights.pair[1]);
                    multiply(sums[group], x_values.pair[2], x_values.pair[3], weights.pair[2], weights.pair[3]);
                }
            }
            barrier_arrive(shared.empty + 8 * (u32)stage);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        const int buffer = i % 2;
        barrier_wait(shared.sums_empty + 8 * (u32)buffer, (u32)(i / 2 + 1) % 2);
        if (row < ROWS) {
            const u32 target = shared.sums + 4 * (u32)((buffer * WARPS + warp) * SUM_FLOATS + row * SUM_PITCH);
#pragma unroll
            for (int group = 0; group < GROUPS; group++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const int fragment_row = quarter * 2 + c;
                    const int column = group * 8 + (BOXES ? fragment_row % 2 * 4 + fragment_row / 2 : fragment_row);
                    store_shared_float(target + 4 * (u32)column, sums[group][c]);
                }
        }
        barrier_arrive(shared.sums_full + 8 * (u32)buffer);
    }
}

/* Output `index` of a tile: row of x, and the rows of W, in the tile, that it comes from (gate and up with SWIGLU). */
struct output {
    int row, column; /* in the tile's outputs */
    int first, second;
};

__device__ __forceinline__ output tile_output(int index)
{
    output out;
    out.row = index / TILE_OUT;
    out.column = index % TILE_OUT;
    out.first = EPILOGUE == SWIGLU ? out.column / 8 * 16 + out.column % 8 : out.column;
    out.second = out.first + 8;
    return out;
}

/* Sum of `count` arrays of SUM_FLOATS floats at one place of them, in order. */
template <int COUNT> __device__ __forceinline__ float ordered_sum(u32 address, int row, int column)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sum += load_shared_float(address + 4 * (u32)(i * SUM_FLOATS + row * SUM_PITCH + column));
    return sum;
}

template <int COUNT> __device__ __forceinline__ float ordered_squares(u32 address, int row)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) sum += load_shared_float(address + 4 * (u32)(i * ROWS + row));
    return sum;
}

/* Adds the sums of this block's warps and hands them to block 0 of the cluster. */
__device__ __forceinline__ void send_sums(int i, const block_work work, const shared_layout shared)
{
    const int lane = (int)threadIdx.x % 32, buffer = i % 2;
    cluster_wait(shared.cluster_empty + 8 * buffer, (u32)(i / 2 + 1) % 2);
    const u32 source = shared.sums + 4 * (u32)(buffer * WARPS * SUM_FLOATS);
    const u32 target = cluster_address(shared.cluster_sums, 0) + 4 * (u32)((buffer * SPLIT_K + work.rank) * SUM_FLOATS);
#pragma unroll
    for (int index = lane; index < TILE * ROWS; index += 32) {
        const int row = index / TILE, column = index % TILE;
        cluster_store(target + 4 * (u32)(row * SUM_PITCH + column), ordered_sum<WARPS>(source, row, column));
    }
    if (HAS_NORM && i == 0 && lane < ROWS)
        cluster_store(cluster_address(shared.cluster_squares, 0) + 4 * (u32)(work.rank * ROWS + lane),
                      ordered_squares<WARPS>(shared.squares, lane));
    barrier_arrive(shared.sums_empty + 8 * buffer);
    cluster_arrive(cluster_address(shared.cluster_full, 0) + 8 * buffer);
}

/* Leaves what the rows' norms multiply by in place of block or warp 0's squares. */
template <int COUNT> __device__ __forceinline__ void make_factors(u32 squares)
{
    const int row = min((int)threadIdx.x % 32, ROWS - 1);
    const float factor = rsqrtf(ordered_squares<COUNT>(squares, row) / K + float_of_bits(EPS_BITS));
    __syncwarp();
    store_shared_float(squares + 4 * (u32)row, factor);
    __syncwarp();
}

/* The last warp: outputs of every tile. */
__device__ __forceinline__ void finish(void *out, const void *bias, const float *residual, const block_work work,
                                       const shared_layout shared)
{
    constexpr int PARTS = SPLIT_K > 1 ? SPLIT_K : WARPS;
    const int lane = (int)threadIdx.x % 32;
    const u32 squares = SPLIT_K > 1 ? shared.cluster_squares : shared.squares;
    for (int i = 0; i < work.tile_count; i++) {
        const int first = (work.tile + i * work.tile_step) * TILE, buffer = i % 2;
        float add[OUT_PER_LANE] = {}, add_second[OUT_PER_LANE] = {};
        if (work.rank == 0) {
#pragma unroll
            for (int j = 0; j < OUT_PER_LANE; j++) {
                const output o = tile_output(lane + 32 * j);
                if (o.row >= ROWS || first + o.first >= N) continue;
                if constexpr (HAS_BIAS) add[j] = load_element<BIAS_DTYPE>(bias, first + o.first);
                if constexpr (HAS_BIAS && EPILOGUE == SWIGLU)
                    add_second[j] = load_element<BIAS_DTYPE>(bias, first + o.second);
                if constexpr (HAS_RESIDUAL) add[j] += load_written_float(residual + (i64)o.row * N + first + o.first);
            }
        }
        barrier_wait(shared.sums_full + 8 * buffer, (u32)(i / 2) % 2);
        u32 source = shared.sums + 4 * (u32)(buffer * WARPS * SUM_FLOATS);
        if constexpr (SPLIT_K > 1) {
            send_sums(i, work, shared);
            if (work.rank != 0) continue;
            cluster_wait(shared.cluster_full + 8 * buffer, (u32)(i / 2) % 2);
            source = shared.cluster_sums + 4 * (u32)(buffer * SPLIT_K * SUM_FLOATS);
        }
        if (HAS_NORM && i == 0) make_factors<PARTS>(squares);
#pragma unroll
        for (int j = 0; j < OUT_PER_LANE; j++) {
            const output o = tile_output(lane + 32 * j);
            if (o.row >= ROWS || first + o.first >= N) continue;
            const float factor = HAS_NORM ? load_shared_float(squares + 4 * (u32)o.row) : 1.0f;
            float value = ordered_sum<PARTS>(source, o.row, o.first) * factor + add[j];
            if constexpr (EPILOGUE == SWIGLU) {
                const float up = ordered_sum<PARTS>(source, o.row, o.second) * factor + add_second[j];
                value = value / (1.0f + __expf(-value)) * up;
            }
            const int column = (EPILOGUE == SWIGLU ? first / 2 : first) + o.column;
            store_element<OUT_DTYPE>(out, (i64)o.row * OUT_COLUMNS + column, value);
        }
        if constexpr (SPLIT_K > 1) {
#pragma unroll
            for (int rank = 0; rank < SPLIT_K; rank++)
                cluster_arrive(cluster_address(shared.cluster_empty, (u32)rank) + 8 * (u32)buffer);
        } else {
            barrier_arrive(shared.sums_empty + 8 * (u32)buffer);
        }
    }
}

/* What the launches before left untouched and this one reads soon: brings it into the L2 cache. */
__device__ __forceinline__ void prefetch_constants(const void *bias, const void *norm, const block_work work)
{
    constexpr int NORM_BYTES = NORM_DTYPE == DTYPE_F32 ? 4 : 2;
    const int thread = (int)threadIdx.x;
    if constexpr (HAS_NORM)
        for (int at = thread * 128; at < work.part_k * NORM_BYTES; at += 32 * WARPS * 128)
            prefetch((const u8 *)norm + (i64)work.first_k * NORM_BYTES + at);
    if constexpr (HAS_BIAS)
        for (int i = thread; i < work.tile_count; i += 32 * WARPS)
            prefetch((const u8 *)bias +
                     (i64)(work.tile + i * work.tile_step) * TILE * (BIAS_DTYPE == DTYPE_F32 ? 4 : 2));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    matmul_gemv(const int *counts, const void *x, const __grid_constant__ weights_operand weights, void *out
#if HAS_BIAS
                ,
                const void *bias
#endif
#if HAS_RESIDUAL
                ,
                const float *residual
#endif
#if HAS_NORM
                ,
                const void *norm
#endif
    )
{
#if !HAS_BIAS
    const void *bias = nullptr;
#endif
#if !HAS_RESIDUAL
    const float *residual = nullptr;
#endif
#if !HAS_NORM
    const void *norm = nullptr;
#endif
    (void)counts; /* rows beyond the valid ones cost nothing */
    extern __shared__ __align__(1024) u8 memory[];
    const shared_layout shared = shared_addresses(memory);
    const block_work work = find_work();
    const int warp = (int)threadIdx.x / 32;

    /* Every lane arrives that has read or written what a barrier guards. One of its warp, after __syncwarp, would do
     * for the hardware and is no faster, but compute-sanitizer's racecheck does not follow it. */
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared.full + 8 * i, COPY == GEMV_COPY_THREADS ? 32 : 1);
            barrier_init(shared.empty + 8 * i, 32 * WARPS);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(shared.sums_full + 8 * i, 32 * WARPS);
            barrier_init(shared.sums_empty + 8 * i, 32);
            barrier_init(shared.cluster_full + 8 * i, 32 * SPLIT_K);
            barrier_init(shared.cluster_empty + 8 * i, 32);
        }
#if __CUDA_ARCH__ >= 900 /* for the copy engine and for the other blocks of the cluster */
        barrier_init_done();
#endif
    }
    /* At once, so that the next launch fills its ring as soon as this one leaves room: later was slower. */
    device_trigger();
    __syncthreads();
    cluster_meet_arrive(); /* nobody writes into another block before its barriers are set up */

    if (warp == WARPS + 1) {
        produce(weights, work, shared);
        cluster_meet_wait();
    } else {
        cluster_meet_wait();
        if (warp < WARPS) {
            prefetch_constants(bias, norm, work);
            device_wait();
            consume(x, norm, work, shared);
        } else {
            device_wait();
            finish(out, bias, residual, work, shared);
        }
    }
    cluster_meet_arrive(); /* nobody ends while another block may still write into it */
    cluster_meet_wait();
}
