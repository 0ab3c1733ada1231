/* SPDX-License-Identifier: Apache-2.0 */
/* matmul by mma.sync, for GPUs from compute capability 8.0 on and any number of rows: contract in matmul_device.h, without
 * HAS_NORM.
 *
 * As in matmul_wgmma the product is computed transposed: rows of W are the M operand of mma.m16n8k16, rows of x its N
 * operand, so that gate and up of a SwiGLU pair (rows g and g + 8 of 16) meet in one thread. A block computes TILE_N rows
 * of W times TILE_M rows of x. All threads copy both tiles with cp.async into a ring of STAGES stages. WARPS_N * WARPS_M
 * warps share the tile; WARPS_K sets of them share the k of every stage, and their sums are added in the order of the
 * sets, through shared memory. The finished tile leaves through shared memory, transposed.
 *
 * Rows in shared memory are TILE_K elements long, in chunks of 16 bytes; chunk c of row r stands at c ^ (r % 8) (TILE_K
 * 32: c ^ (r / 2 % 4)), so that ldmatrix, which reads 8 rows at once, meets all banks.
 *
 * Errors: as a float32 sum in any order; 16-bit outputs are rounded once. Legal tunables: matmul_mma.h. */
#ifndef ROWS
#define ROWS         16
#define COUNT_INDEX  0
#define N            4096
#define K            4096
#define DTYPE        3
#define OUT_DTYPE    3
#define EPILOGUE     0
#define HAS_BIAS     0
#define BIAS_DTYPE   1
#define HAS_RESIDUAL 0
#define HAS_NORM     0
#define NORM_DTYPE   1
#define EPS_BITS     0
#define TILE_N       64 /* rows of W in a tile: 16, 32 or 64 for each of WARPS_N */
#define TILE_M       16 /* rows of x in a tile: 8 to 64 for each of WARPS_M */
#define TILE_K       64 /* k in a stage: 32, 64, 128 */
#define STAGES       4
#define WARPS_N      2
#define WARPS_M      1
#define WARPS_K      2 /* a multiple of 16 k of each stage for each */
#endif

/* Names of the parameters that would disturb the headers. */
constexpr int COLUMNS = N, DEPTH = K, X_DTYPE = DTYPE;
#undef N
#undef K
#undef DTYPE

#include "kernels/cuda/include/device.cuh"

constexpr bool SWIGLU = EPILOGUE == 1;
constexpr int OUT_COLUMNS = SWIGLU ? COLUMNS / 2 : COLUMNS;
constexpr int SET_THREADS = 32 * WARPS_N * WARPS_M, THREADS = SET_THREADS * WARPS_K;
constexpr int ROW_TILES = (ROWS + TILE_M - 1) / TILE_M;
constexpr int STEPS = (DEPTH + TILE_K - 1) / TILE_K;
constexpr int PARTS = TILE_N / WARPS_N / 16; /* tiles of 16 rows of W that a warp multiplies */
constexpr int BLOCKS = TILE_M / WARPS_M / 8; /* by blocks of 8 rows of x: 4 sums in each thread */

/* Shared memory: the ring; afterwards the sums of a set of warps, then the tile of out. */
constexpr int PITCH = TILE_K * 2, CHUNKS = TILE_K / 8;
constexpr int W_BYTES = TILE_N * PITCH, STAGE_BYTES = W_BYTES + TILE_M * PITCH;
constexpr int OUT_BYTES = OUT_DTYPE == DTYPE_F32 ? 4 : 2;
constexpr int STAGED_COLUMNS = SWIGLU ? TILE_N / 2 : TILE_N;
constexpr int STAGED_PITCH = STAGED_COLUMNS * OUT_BYTES + 16; /* 16: rows begin in other banks */
constexpr int VECTOR = 16 / OUT_BYTES, VECTORS = STAGED_COLUMNS / VECTOR;
constexpr bool ALIGNED = OUT_COLUMNS % VECTOR == 0;

static_assert(TILE_N % (16 * WARPS_N) == 0 && TILE_M % (8 * WARPS_M) == 0 && TILE_K % (16 * WARPS_K) == 0, "tile");
static_assert(TILE_K == 32 || TILE_K == 64 || TILE_K == 128, "TILE_K");
static_assert(HAS_NORM == 0, "HAS_NORM");

extern __shared__ __align__(128) unsigned char shared[];

/* Bytes from the start of a tile to 16-byte chunk `chunk` of row `row`. */
static __device__ __forceinline__ u32 place(int row, int chunk)
{
    const int mixed = TILE_K == 32 ? chunk ^ row / 2 % 4 : chunk ^ row % 8;
    return (u32)(row * PITCH + mixed * 16);
}

/* Copies rows [first, first + COUNT) of a [rows, DEPTH] matrix, k from `step` * TILE_K on; zero outside the matrix. */
template <int COUNT>
static __device__ __forceinline__ void copy_tile(u32 to, const u16 *from, int first, int rows, int step)
{
#pragma unroll
    for (int i = (int)threadIdx.x; i < COUNT * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS, k = step * TILE_K + chunk * 8;
        const bool inside = first + row < rows && k < DEPTH;
        const u16 *source = inside ? from + (i64)(first + row) * DEPTH + k : from;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + place(row, chunk)), "l"(source),
                     "r"(inside ? 16 : 0)
                     : "memory");
    }
}

static __device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING> static __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* 16 x 16 of W: the A operand. */
static __device__ __forceinline__ void load_w(u32 (&a)[4], u32 tile, int row, int chunk)
{
    const int lane = (int)threadIdx.x % 32;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(tile + place(row + lane % 16, chunk + lane / 16))
                 : "memory");
}

/* 8 rows of x, 16 k: the B operand. */
static __device__ __forceinline__ void load_x(u32 (&b)[2], u32 tile, int row, int chunk)
{
    const int lane = (int)threadIdx.x % 32;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1])
                 : "r"(tile + place(row + lane % 8, chunk + lane / 8 % 2))
                 : "memory");
}

/* Two of them. */
static __device__ __forceinline__ void load_x_pair(u32 (&b)[2], u32 (&next)[2], u32 tile, int row, int chunk)
{
    const int lane = (int)threadIdx.x % 32;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(next[0]), "=r"(next[1])
                 : "r"(tile + place(row + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2))
                 : "memory");
}

static __device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    if constexpr (X_DTYPE == DTYPE_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The quick division is within 2 ulp, and 0 where the divisor overflows, which is right here. */
static __device__ __forceinline__ float silu(float value) { return __fdividef(value, 1.0f + __expf(-value)); }

static __device__ __forceinline__ void stage(int row, int column, float value)
{
    unsigned char *to = shared + row * STAGED_PITCH + column * OUT_BYTES;
    if constexpr (OUT_BYTES == 4)
        *(float *)to = value;
    else
        *(u16 *)to = half_of_float<OUT_DTYPE>(value);
}

/* `bias` and `residual`: null without HAS_BIAS, HAS_RESIDUAL. */
static __device__ __forceinline__ void run(const int *counts, const u16 *x, const u16 *w, void *out, const void *bias,
                                           const float *residual)
{
    const u32 base = shared_address(shared);
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread % SET_THREADS / 32,
              set = thread / SET_THREADS;
    const int warp_n = warp % WARPS_N * (TILE_N / WARPS_N), warp_m = warp / WARPS_N * (TILE_M / WARPS_M);
    /* Neighbours share rows of W. */
    const int row = (int)blockIdx.x % ROW_TILES * TILE_M, column = (int)blockIdx.x / ROW_TILES * TILE_N;

    device_trigger();
    /* Weights are there before the launches before this one have ended. */
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++)
        if (step < STEPS) copy_tile<TILE_N>(base + (u32)(step * STAGE_BYTES), w, column, COLUMNS, step);
    device_wait();
    const int rows = min(counts[COUNT_INDEX], ROWS);
    if (row >= rows) {
        copy_commit();
        copy_wait<0>();
        return;
    }
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < STEPS) copy_tile<TILE_M>(base + (u32)(step * STAGE_BYTES) + W_BYTES, x, row, rows, step);
        copy_commit();
    }

    float sums[PARTS][BLOCKS][4];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[part][block][i] = 0;
    int slot = 0, next_slot = STAGES - 1;
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        copy_wait<STAGES - 2>(); /* this step has come */
        __syncthreads();         /* for all threads, and the step before has been used */
        if (step + STAGES - 1 < STEPS) {
            const u32 to = base + (u32)(next_slot * STAGE_BYTES);
            copy_tile<TILE_N>(to, w, column, COLUMNS, step + STAGES - 1);
            copy_tile<TILE_M>(to + W_BYTES, x, row, rows, step + STAGES - 1);
        }
        copy_commit();
        const u32 w_tile = base + (u32)(slot * STAGE_BYTES), x_tile = w_tile + W_BYTES;
#pragma unroll
        for (int k = 0; k < TILE_K / WARPS_K; k += 16) {
            const int chunk = (set * (TILE_K / WARPS_K) + k) / 8;
            u32 a[PARTS][4], b[BLOCKS][2];
#pragma unroll
            for (int part = 0; part < PARTS; part++) load_w(a[part], w_tile, warp_n + part * 16, chunk);
#pragma unroll
            for (int block = 0; block + 1 < BLOCKS; block += 2)
                load_x_pair(b[block], b[block + 1], x_tile, warp_m + block * 8, chunk);
            if (BLOCKS % 2) load_x(b[BLOCKS - 1], x_tile, warp_m + (BLOCKS - 1) * 8, chunk);
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int block = 0; block < BLOCKS; block++) multiply(sums[part][block], a[part], b[block]);
        }
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        next_slot = next_slot + 1 == STAGES ? 0 : next_slot + 1;
    }
    copy_wait<0>();
    __syncthreads(); /* the ring is free */

    /* The sums of the other sets come to the first, one set after the other. */
#pragma unroll
    for (int from = 1; from < WARPS_K; from++) {
        float4 *place_of_sums = (float4 *)shared + thread % SET_THREADS;
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
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int n = warp_n + part * 16 + lane / 4;
            float low = 0, high = 0;
            if constexpr (HAS_BIAS) {
                if (column + n < COLUMNS) low = load_element<BIAS_DTYPE>(bias, column + n);
                if (column + n + 8 < COLUMNS) high = load_element<BIAS_DTYPE>(bias, column + n + 8);
            }
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                const float *v = sums[part][block];
                const int m = warp_m + block * 8 + lane % 4 * 2;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    if constexpr (SWIGLU) {
                        stage(m + i, (warp_n + part * 16) / 2 + lane / 4, silu(v[i] + low) * (v[i + 2] + high));
                    } else {
                        stage(m + i, n, v[i] + low);
                        stage(m + i, n + 8, v[i + 2] + high);
                    }
                }
            }
        }
    }
    __syncthreads();

    const int first_column = SWIGLU ? column / 2 : column;
    for (int i = thread; i < TILE_M * VECTORS; i += THREADS) {
        const int m = i / VECTORS, within = i % VECTORS * VECTOR;
        if (row + m >= rows || first_column + within >= OUT_COLUMNS) continue;
        const i64 index = (i64)(row + m) * OUT_COLUMNS + first_column + within;
        const unsigned char *staged = shared + m * STAGED_PITCH + within * OUT_BYTES;
        if constexpr (ALIGNED) {
            uint4 bits = *(const uint4 *)staged;
            if constexpr (HAS_RESIDUAL) {
                const float4 add = *(const float4 *)(residual + index);
                bits.x = bits_of_float(float_of_bits(bits.x) + add.x);
                bits.y = bits_of_float(float_of_bits(bits.y) + add.y);
                bits.z = bits_of_float(float_of_bits(bits.z) + add.z);
                bits.w = bits_of_float(float_of_bits(bits.w) + add.w);
            }
            *(uint4 *)((unsigned char *)out + index * OUT_BYTES) = bits;
        } else {
            for (int j = 0; j < VECTOR && first_column + within + j < OUT_COLUMNS; j++) {
                if constexpr (OUT_BYTES == 4)
                    ((float *)out)[index + j] =
                        ((const float *)staged)[j] + (HAS_RESIDUAL ? residual[index + j] : 0.0f);
                else
                    ((u16 *)out)[index + j] = ((const u16 *)staged)[j];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_mma(const int *counts, const void *x, const void *w, void *out
#if HAS_BIAS
               ,
               const void *bias
#endif
#if HAS_RESIDUAL
               ,
               const float *residual
#endif
    )
{
#if !HAS_BIAS
    const void *bias = nullptr;
#endif
#if !HAS_RESIDUAL
    const float *residual = nullptr;
#endif
    run(counts, (const u16 *)x, (const u16 *)w, out, bias, residual);
}
