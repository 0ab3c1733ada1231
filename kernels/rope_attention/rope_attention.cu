/* rope_attention: one step of decode attention. Head norms, rotary embedding, append of k and v, attention over the
 * sequence's pages and the merge of its splits, in one launch. The contract stands in rope_attention.h.
 *
 * One block serves one split of one (row, kv head): K and V are loaded once for all query heads of the group. Every
 * warp takes tiles of TILE_TOKENS tokens of its own, straight from global memory into the registers of mma.m16n8k16,
 * without shared memory and without a barrier in the loop: 4 to 16 KB in flight per warp. K and V are the 16-row
 * operand, the query heads the 8 columns. A lane's 16-byte load holds 8 neighbours of the head dimension; an mma wants
 * other elements in this lane, but the order within a sum (QK: of the dimension, the same for q) and of result rows
 * (PV: of the dimension) is ours to choose, so the loaded registers are used as they lie (V needs a byte permutation
 * to pair tokens).
 *
 * The maximum that the exponentials refer to moves only when a score exceeds it by RESCALE_LOG2: most tiles need one
 * vote and no shuffle. Warps merge through shared memory, splits through the shared memory of their cluster (every
 * block merges a slice of the result) or through the workspace (the last block merges), always in
 * rising order: results are the same bits in every run. */
#include "kernels/device.cuh"

#ifndef ROWS
#define ROWS           4 /* 1 to 65535 */
#define COUNT_INDEX    0
#define HEADS          32 /* a multiple of KV_HEADS */
#define KV_HEADS       8
#define HEAD_DIM       128 /* even, 2 to 256; multiples of 8 are fast */
#define PAGE_TOKENS    64  /* a power of two, a multiple of TILE_TOKENS */
#define PAGES_PER_SLOT 128
#define PAGE_BYTES     262144 /* a multiple of 16 */
#define SLOT_COUNT     4
#define KV_DTYPE       DTYPE_BF16 /* F16, BF16 */
#define X_DTYPE        DTYPE_BF16 /* F16, BF16 */
#define WINDOW         0          /* 0: none */
#define SCALE_BITS     0x3db504f3 /* float bits */
#define HAS_NORM       1
#define NORM_DTYPE     DTYPE_BF16 /* F32, F16, BF16 */
#define EPS_BITS       0x358637bd /* float bits */
/* Tunables. */
#define SPLITS      8 /* blocks per (row, kv head, head block): 1 to 64; with CLUSTER at most 16, above 8 not portable */
#define WARPS       8  /* per block, 1 to 16 */
#define TILE_TOKENS 16 /* 16, 32, 64: more bytes in flight per warp, more registers */
#define HEAD_TILES \
    1 /* query heads per block / 8: 1, 2, 4; a larger group takes several blocks, which read K and V again */
#define CLUSTER 1 /* 1: the splits are a cluster (sm_90); 0: they merge through the workspace */
#define EARLY \
    1                   /* tiles per warp that are asked for before the wait for the launch before: the first comes into
                         * registers, further ones into the L2 cache; 0 to 32 */
#define LEAST_TILES   1 /* per warp, before another split takes part: 1 to 64 */
#define BLOCKS_PER_SM 1 /* 1 to 4: registers are limited so that as many fit */
#endif

#include "kernels/rope_attention/rope_attention_merge.cuh"

namespace
{

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int TILE_HEADS = 8 * HEAD_TILES;
constexpr int HEAD_BLOCKS = (GROUP + TILE_HEADS - 1) / TILE_HEADS;
constexpr int BLOCK_HEADS = GROUP < TILE_HEADS ? GROUP : TILE_HEADS; /* the last block may have fewer */
constexpr int THREADS = 32 * WARPS;
constexpr bool USE_CLUSTER = CLUSTER && SPLITS > 1;
constexpr bool USE_WORKSPACE = !CLUSTER && SPLITS > 1;

constexpr int TOKEN_TILES = TILE_TOKENS / 16;          /* mma tiles of a warp's tile */
constexpr int K_BLOCKS = (HEAD_DIM + 31) / 32;         /* 4 lanes x 8 elements: what one load per row covers */
constexpr int V_BLOCKS = (HEAD_DIM + 63) / 64;         /* 8 lanes x 8 elements, likewise */
constexpr int DIM_8 = (HEAD_DIM + 7) / 8 * 8;          /* partial results: whole groups of 8 */
constexpr int QUADS = BLOCK_HEADS * (DIM_8 / 4);       /* a block's result as float4 */
constexpr int Q_PITCH = K_BLOCKS * 32 + 32;            /* two rows of 64 bytes lie in different banks */
constexpr int PART_PITCH = (DIM_8 + 31) / 32 * 32 + 4; /* 8 lanes of store_partial lie in different banks */
constexpr float RESCALE_LOG2 = 8;                      /* exponentials reach 2^8, harmless in f16, bf16 and f32 */
constexpr i64 PAGE_ELEMENTS = (i64)(PAGE_BYTES) / 2;
constexpr int V_OFFSET = KV_HEADS * PAGE_TOKENS * HEAD_DIM;

/* With large heads K and V do not fit into the registers together: then V is loaded when K has been used. */
constexpr int TILE_REGISTERS = TOKEN_TILES * (K_BLOCKS * 8 + V_BLOCKS * 16);
constexpr int HELD_REGISTERS = HEAD_TILES * V_BLOCKS * 16;
constexpr bool V_AHEAD = TILE_REGISTERS + HELD_REGISTERS <= 168;

constexpr int PAIRS = HEAD_DIM / 2; /* rotated together: i and i + HEAD_DIM / 2 */
constexpr int VECTOR = PAIRS % 2 == 0 ? 2 : 1;
constexpr int ROUNDS = (PAIRS + 32 * VECTOR - 1) / (32 * VECTOR);
constexpr int TASKS = BLOCK_HEADS + 2; /* vectors to prepare: q heads, k, v */
constexpr int WARP_TASKS = (TASKS + WARPS - 1) / WARPS;

static_assert(HEADS % KV_HEADS == 0 && HEAD_DIM % 2 == 0 && PAGE_TOKENS % TILE_TOKENS == 0, "shapes");
static_assert(TILE_TOKENS % 16 == 0 && SPLITS >= 1 && (!USE_CLUSTER || SPLITS <= 16), "tunables");

struct shared_data {
    alignas(16) u16 q[TILE_HEADS][Q_PITCH];
    alignas(16) u16 k[K_BLOCKS * 32], v[V_BLOCKS * 64]; /* of the new token */
    alignas(16) float part[WARPS][BLOCK_HEADS][PART_PITCH];
    float2 part_sums[WARPS][BLOCK_HEADS]; /* maximum (log2) and sum of exponentials */
    /* What the other blocks of the cluster send: their results for the slice that this block merges. */
    alignas(16) float4 received[USE_CLUSTER ? QUADS + SPLITS : 1];
    float2 received_sums[USE_CLUSTER ? SPLITS : 1][BLOCK_HEADS];
    alignas(8) u64 arrival;
    bool last;
};

/* What one row's sequence means for one block. */
struct work {
    int position, first; /* tokens first..position take part */
    int active;          /* splits that have tiles */
    int tile, end;       /* this warp's next tile, in steps of WARPS; end of the split's tiles */
    const i32 *pages;    /* of the slot */
};

__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)
{
    if constexpr (KV_DTYPE == DTYPE_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* An 8x8 matrix of halves, a row per 4 lanes, transposed. */
__device__ __forceinline__ u32 transpose_8x8(u32 pair)
{
    u32 result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
}

/* 8 elements of a row of K or V from dimension d on; zeros beyond HEAD_DIM. INSIDE: all lanes are. Volatile: loads stay
 * where they are written, early. */
template <bool INSIDE> __device__ __forceinline__ void load_8(u32 (&to)[4], const u16 *row, int d)
{
    if constexpr (HEAD_DIM % 8 == 0) {
        to[0] = to[1] = to[2] = to[3] = 0;
        if (INSIDE || d < HEAD_DIM)
            asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                         : "l"(row + d));
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[i] = 0;
            if (d + 2 * i < HEAD_DIM) asm volatile("ld.global.u32 %0, [%1];" : "=r"(to[i]) : "l"(row + d + 2 * i));
        }
    }
}

struct k_tile {
    u32 part[TOKEN_TILES][K_BLOCKS][2][4]; /* [..][1]: 8 tokens further */
};
struct v_tile {
    u32 part[TOKEN_TILES][V_BLOCKS][4][4]; /* tokens 2t, 2t + 1, 2t + 8, 2t + 9 */
};

/* Token of a tile of 16 that lane (g, t) = (lane / 4, lane % 4) holds as number i of its V registers. */
__device__ __forceinline__ int v_token(int lane, int i) { return lane % 4 * 2 + i % 2 + i / 2 * 8; }

__device__ __forceinline__ void load_k(k_tile &k, const u16 *base, int lane)
{
    const u16 *row = base + lane / 4 * HEAD_DIM;
#pragma unroll
    for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
        for (int b = 0; b < K_BLOCKS; b++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u16 *at = row + (tt * 16 + half * 8) * HEAD_DIM;
                if (b * 32 + 32 <= HEAD_DIM)
                    load_8<true>(k.part[tt][b][half], at, b * 32 + lane % 4 * 8);
                else
                    load_8<false>(k.part[tt][b][half], at, b * 32 + lane % 4 * 8);
            }
}

__device__ __forceinline__ void load_v(v_tile &v, const u16 *base, int lane)
{
    const u16 *row = base + V_OFFSET + lane % 4 * 2 * HEAD_DIM;
#pragma unroll
    for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
        for (int b = 0; b < V_BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u16 *at = row + (tt * 16 + i % 2 + i / 2 * 8) * HEAD_DIM;
                if (b * 64 + 64 <= HEAD_DIM)
                    load_8<true>(v.part[tt][b][i], at, b * 64 + lane / 4 * 8);
                else
                    load_8<false>(v.part[tt][b][i], at, b * 64 + lane / 4 * 8);
            }
}

__device__ __forceinline__ void copy_4(u32 (&to)[4], const u16 *from)
{
    uint4 value = *(const uint4 *)from;
    to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
}

/* Volatile: not held in registers from one tile to the next. */
__device__ __forceinline__ void load_q(u32 (&q)[4], const u16 *from)
{
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q[0]), "=r"(q[1]), "=r"(q[2]), "=r"(q[3])
                 : "r"(shared_address(from)));
}

/* Row `token` of the tile becomes the new token's k. */
__device__ __forceinline__ void patch_k(k_tile &k, const shared_data &shared, int token, int lane)
{
#pragma unroll
    for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (tt * 16 + half * 8 + lane / 4 == token) {
#pragma unroll
                for (int b = 0; b < K_BLOCKS; b++) copy_4(k.part[tt][b][half], shared.k + b * 32 + lane % 4 * 8);
            }
}

/* Row `token` becomes the new token's v; rows beyond it and before `first` become zero: their weight is zero, but what
 * lies there may be NaN. */
__device__ __forceinline__ void patch_v(v_tile &v, const shared_data &shared, int first, int token, int lane)
{
#pragma unroll
    for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = tt * 16 + v_token(lane, i);
#pragma unroll
            for (int b = 0; b < V_BLOCKS; b++) {
                if (row == token) copy_4(v.part[tt][b][i], shared.v + b * 64 + lane / 4 * 8);
                if (row > token || row < first)
                    v.part[tt][b][i][0] = v.part[tt][b][i][1] = v.part[tt][b][i][2] = v.part[tt][b][i][3] = 0;
            }
        }
}

/* Running attention of one warp. Lane (g, t) holds heads 8n + 2t and 8n + 2t + 1 and, of block b, dimensions
 * 64 b + 8 g + 2 j (out[n][b][j][0 and 1]) and one more (out[n][b][j][2 and 3]). */
struct state {
    float out[HEAD_TILES][V_BLOCKS][4][4];
    float maximum[HEAD_TILES][2], sum[HEAD_TILES][2]; /* sum: of this lane's tokens */
};

/* scores[tt][n]: tokens 16 tt + g (0, 1) and 16 tt + g + 8 (2, 3), in units of log2. q is read from shared memory for
 * every tile: registers are dearer. */
__device__ __forceinline__ void score(float (&scores)[TOKEN_TILES][HEAD_TILES][4], const k_tile &k,
                                      const shared_data &shared, int lane)
{
    const float scale = float_of_bits(SCALE_BITS) * 1.44269504f;
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++) {
        float sums[TOKEN_TILES][2][4] = {}; /* two chains: half the latency */
#pragma unroll
        for (int b = 0; b < K_BLOCKS; b++) {
            u32 q[4];
            load_q(q, &shared.q[n * 8 + lane / 4][b * 32 + lane % 4 * 8]);
#pragma unroll
            for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
                for (int s = 0; s < 2; s++)
                    mma(sums[tt][s], k.part[tt][b][0][2 * s], k.part[tt][b][1][2 * s], k.part[tt][b][0][2 * s + 1],
                        k.part[tt][b][1][2 * s + 1], q[2 * s], q[2 * s + 1]);
        }
#pragma unroll
        for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores[tt][n][i] = (sums[tt][0][i] + sums[tt][1][i]) * scale;
    }
}

/* Scores become weights relative to the running maximum, as columns of the second mma. */
__device__ __forceinline__ void weigh(u32 (&weights)[TOKEN_TILES][HEAD_TILES][2], state &state,
                                      const float (&scores)[TOKEN_TILES][HEAD_TILES][4])
{
    bool exceeds = false;
#pragma unroll
    for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) exceeds |= scores[tt][n][i] > state.maximum[n][i % 2] + RESCALE_LOG2;
    if (__any_sync(0xffffffffu, exceeds)) {
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float maximum = state.maximum[n][c];
#pragma unroll
                for (int tt = 0; tt < TOKEN_TILES; tt++)
                    maximum = fmaxf(maximum, fmaxf(scores[tt][n][c], scores[tt][n][c + 2]));
#pragma unroll
                for (int offset = 4; offset < 32; offset *= 2)
                    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
                float factor = exp2_fast(state.maximum[n][c] - maximum);
                state.maximum[n][c] = maximum;
                state.sum[n][c] *= factor;
#pragma unroll
                for (int b = 0; b < V_BLOCKS; b++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        state.out[n][b][j][c] *= factor;
                        state.out[n][b][j][c + 2] *= factor;
                    }
            }
    }
#pragma unroll
    for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++) {
            float w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                w[i] = exp2_fast(scores[tt][n][i] - state.maximum[n][i % 2]);
                state.sum[n][i % 2] += w[i];
            }
            weights[tt][n][0] = transpose_8x8(pack_halves<KV_DTYPE>(w[0], w[1]));
            weights[tt][n][1] = transpose_8x8(pack_halves<KV_DTYPE>(w[2], w[3]));
        }
}

__device__ __forceinline__ void accumulate(state &state, const v_tile &v,
                                           const u32 (&weights)[TOKEN_TILES][HEAD_TILES][2])
{
#pragma unroll
    for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
        for (int b = 0; b < V_BLOCKS; b++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32(&x)[4][4] = v.part[tt][b];
                u32 a0 = __byte_perm(x[0][j], x[1][j], 0x5410), a1 = __byte_perm(x[0][j], x[1][j], 0x7632);
                u32 a2 = __byte_perm(x[2][j], x[3][j], 0x5410), a3 = __byte_perm(x[2][j], x[3][j], 0x7632);
#pragma unroll
                for (int n = 0; n < HEAD_TILES; n++)
                    mma(state.out[n][b][j], a0, a1, a2, a3, weights[tt][n][0], weights[tt][n][1]);
            }
}

/* The warp's result to shared memory. */
__device__ __forceinline__ void store_partial(shared_data &shared, state &state, int warp, int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float sum = state.sum[n][c];
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            int head = n * 8 + t * 2 + c;
            if (head >= BLOCK_HEADS) continue;
            if (g == 0) shared.part_sums[warp][head] = make_float2(state.maximum[n][c], sum);
#pragma unroll
            for (int b = 0; b < V_BLOCKS; b++) {
                if (b * 64 + g * 8 >= DIM_8) continue;
                const float(&o)[4][4] = state.out[n][b];
                float4 low = make_float4(o[0][c], o[0][c + 2], o[1][c], o[1][c + 2]);
                float4 high = make_float4(o[2][c], o[2][c + 2], o[3][c], o[3][c + 2]);
                float4 *to = (float4 *)&shared.part[warp][head][b * 64 + g * 8];
                to[g % 2] = g % 2 ? high : low; /* odd lanes the other half first: no bank conflicts */
                to[1 - g % 2] = g % 2 ? low : high;
            }
        }
}

/* Quad number `quad` of the block's result, divided by the sum, to OUT. */
__device__ __forceinline__ void store_out(u16 *out, int quad, const merged &all, int heads)
{
    int head = quad / (DIM_8 / 4), d = quad % (DIM_8 / 4) * 4;
    if (head >= heads) return;
    u16 *to = out + head * HEAD_DIM + d;
    float inverse = 1 / all.sum;
    u32 low = pack_halves<X_DTYPE>(all.value.x * inverse, all.value.y * inverse);
    u32 high = pack_halves<X_DTYPE>(all.value.z * inverse, all.value.w * inverse);
    if constexpr (HEAD_DIM % 4 == 0) {
        if (HEAD_DIM % 8 == 0 || d < HEAD_DIM) *(uint2 *)to = make_uint2(low, high);
    } else {
        if (d < HEAD_DIM) *(u32 *)to = low;
        if (d + 2 < HEAD_DIM) *(u32 *)(to + 2) = high;
    }
}

/* `bytes` from `address` on, both multiples of 16, into the L2 cache. */
__device__ __forceinline__ void prefetch_l2(const void *address, u32 bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
#endif
}

/* Elements of the head vectors that this lane prepares. */
__device__ __forceinline__ int pair_index(int lane, int round) { return (round * 32 + lane) * VECTOR; }

/* q, k and v of this block: norm, rope, rounding; into shared memory and, k and v, to their page. */
__device__ __forceinline__ void prepare(shared_data &shared, const u16 *qkv, const float *table, const void *norm_q,
                                        const void *norm_k, u16 *page_row, int kv_head, int head_block, int heads,
                                        bool with_new, int warp, int lane)
{
    float low[WARP_TASKS][ROUNDS][VECTOR], high[WARP_TASKS][ROUNDS][VECTOR];
    float cosine[ROUNDS][VECTOR], sine[ROUNDS][VECTOR];
    (void)norm_q, (void)norm_k;
#pragma unroll
    for (int k = 0; k < WARP_TASKS; k++) {
        int task = warp + k * WARPS;
        bool used = task < BLOCK_HEADS ? task < heads : task < TASKS && with_new;
        int head = task < BLOCK_HEADS ? kv_head * GROUP + head_block * TILE_HEADS + task
                                      : HEADS + kv_head + (task - BLOCK_HEADS) * KV_HEADS;
        const u16 *x = qkv + (i64)head * HEAD_DIM;
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            int i = pair_index(lane, r);
            bool inside = used && i < PAIRS;
            if constexpr (VECTOR == 2) {
                u32 a = inside ? *(const u32 *)(x + i) : 0, b = inside ? *(const u32 *)(x + PAIRS + i) : 0;
                low[k][r][0] = float_of_half<X_DTYPE>((u16)a), low[k][r][1] = float_of_half<X_DTYPE>((u16)(a >> 16));
                high[k][r][0] = float_of_half<X_DTYPE>((u16)b), high[k][r][1] = float_of_half<X_DTYPE>((u16)(b >> 16));
            } else {
                low[k][r][0] = inside ? float_of_half<X_DTYPE>(x[i]) : 0;
                high[k][r][0] = inside ? float_of_half<X_DTYPE>(x[PAIRS + i]) : 0;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; r++)
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
            int i = pair_index(lane, r) + e;
            cosine[r][e] = i < PAIRS ? table[i] : 0;
            sine[r][e] = i < PAIRS ? table[PAIRS + i] : 0;
        }
#pragma unroll
    for (int k = 0; k < WARP_TASKS; k++) {
        int task = warp + k * WARPS;
        if (task < BLOCK_HEADS ? task >= heads : task >= TASKS || !with_new) continue;
        bool is_v = task == BLOCK_HEADS + 1;
        float scale = 1;
        if constexpr (HAS_NORM) {
            float squares = 0;
#pragma unroll
            for (int r = 0; r < ROUNDS; r++)
#pragma unroll
                for (int e = 0; e < VECTOR; e++) squares += low[k][r][e] * low[k][r][e] + high[k][r][e] * high[k][r][e];
            scale = rsqrtf(warp_sum(squares) / HEAD_DIM + float_of_bits(EPS_BITS));
        }
        u16 *to = task < BLOCK_HEADS ? shared.q[task] : is_v ? shared.v : shared.k;
        u16 *page = page_row + (is_v ? V_OFFSET : 0);
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            int i = pair_index(lane, r);
            if (i >= PAIRS) continue;
            float a[VECTOR], b[VECTOR];
#pragma unroll
            for (int e = 0; e < VECTOR; e++) {
                float x = low[k][r][e], y = high[k][r][e];
                if (HAS_NORM && !is_v) {
                    const void *norm = task < BLOCK_HEADS ? norm_q : norm_k;
                    x *= scale * load_element<NORM_DTYPE>(norm, i + e);
                    y *= scale * load_element<NORM_DTYPE>(norm, PAIRS + i + e);
                }
                a[e] = is_v ? x : x * cosine[r][e] - y * sine[r][e];
                b[e] = is_v ? y : y * cosine[r][e] + x * sine[r][e];
            }
            if constexpr (VECTOR == 2) {
                u32 first = pack_halves<KV_DTYPE>(a[0], a[1]), second = pack_halves<KV_DTYPE>(b[0], b[1]);
                *(u32 *)(to + i) = first, *(u32 *)(to + PAIRS + i) = second;
                if (task >= BLOCK_HEADS && head_block == 0)
                    *(u32 *)(page + i) = first, *(u32 *)(page + PAIRS + i) = second;
            } else {
                u16 first = half_of_float<KV_DTYPE>(a[0]), second = half_of_float<KV_DTYPE>(b[0]);
                to[i] = first, to[PAIRS + i] = second;
                if (task >= BLOCK_HEADS && head_block == 0) page[i] = first, page[PAIRS + i] = second;
            }
        }
    }
}

/* Tiles of the row, split evenly among the splits that get LEAST_TILES tiles per warp. */
__device__ __forceinline__ work plan_work(const i32 *slots, const i32 *positions, const i32 *page_table, int row,
                                          int split, int warp)
{
    work work;
    work.position = positions[row];
    work.first = WINDOW > 0 && work.position >= WINDOW ? work.position - WINDOW + 1 : 0;
    work.pages = page_table + (i64)slots[row] * PAGES_PER_SLOT;
    int first_tile = work.first / TILE_TOKENS, tiles = work.position / TILE_TOKENS + 1 - first_tile;
    work.active = min(SPLITS, (tiles + WARPS * LEAST_TILES - 1) / (WARPS * LEAST_TILES));
    int each = tiles / work.active, more = tiles % work.active; /* the first `more` splits take one more */
    work.tile = first_tile + split * each + min(split, more) + warp;
    work.end = work.tile - warp + each + (split < more);
    return work;
}

} // namespace

/* Grid: SPLITS (the cluster), KV_HEADS * HEAD_BLOCKS, ROWS. Counts, slots, positions and page table come from the host
 * and are read before the wait; so, with EARLY, is KV of tokens before the row's: earlier steps wrote it. */
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    rope_attention(const i32 *counts, const u16 *qkv, const float *table, const i32 *slots, const i32 *positions,
                   const i32 *page_table, u16 *kv, u16 *out, void *workspace
#if HAS_NORM
                   ,
                   const void *norm_q, const void *norm_k
#endif
    )
{
#if !HAS_NORM
    const void *norm_q = nullptr, *norm_k = nullptr;
#endif
    __shared__ shared_data shared;
    const int split = (int)blockIdx.x, row = (int)blockIdx.z, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    const int kv_head = (int)blockIdx.y / HEAD_BLOCKS, head_block = (int)blockIdx.y % HEAD_BLOCKS;
    const int heads = min(TILE_HEADS, GROUP - head_block * TILE_HEADS);
    device_trigger();
    work work = plan_work(slots, positions, page_table, row, split, warp);
    if (row >= counts[COUNT_INDEX]) { /* slots and positions were read, and are not used */
        device_wait();
        return;
    }
    if constexpr (USE_CLUSTER) {
        if (threadIdx.x == 0) arrival_init(&shared.arrival);
        cluster_arrive();
    }

    /* Pages are looked up two tiles ahead. */
    auto page_of = [&](int tile) {
        return split < work.active && tile < work.end ? work.pages[tile / (PAGE_TOKENS / TILE_TOKENS)] : 0;
    };
    int page = page_of(work.tile), next_page = page_of(work.tile + WARPS);
    const bool with_new = split == work.active - 1;
    int new_page = with_new ? work.pages[work.position / PAGE_TOKENS] : 0;
    for (int i = (int)threadIdx.x; i < (int)sizeof shared.q / 4; i += THREADS) ((u32 *)shared.q)[i] = 0;
    for (int i = (int)threadIdx.x; i < (int)(sizeof shared.k + sizeof shared.v) / 4; i += THREADS)
        ((u32 *)shared.k)[i] = 0;

    auto tile_base = [&](int page, int tile) {
        int token = tile % (PAGE_TOKENS / TILE_TOKENS) * TILE_TOKENS;
        return (const u16 *)kv + (i64)page * PAGE_ELEMENTS + (kv_head * PAGE_TOKENS + token) * HEAD_DIM;
    };
    k_tile k;
    v_tile v;
    const u16 *base = tile_base(page, work.tile);
    const bool any = split < work.active && work.tile < work.end;
    if (EARLY && any) {
        load_k(k, base, lane);
        if constexpr (V_AHEAD) load_v(v, base, lane);
    }
    if constexpr (EARLY > 1 && HEAD_DIM % 8 == 0) {
        int tile = work.tile + lane * WARPS;
        if (any && lane > 0 && lane < EARLY && tile < work.end) {
            const u16 *ahead = tile_base(page_of(tile), tile);
            prefetch_l2(ahead, TILE_TOKENS * HEAD_DIM * 2);
            prefetch_l2(ahead + V_OFFSET, TILE_TOKENS * HEAD_DIM * 2);
        }
    }
    if constexpr (USE_CLUSTER) cluster_wait();
    __syncthreads();
    device_wait();
    if (split >= work.active) return;
    if (!EARLY && any) {
        load_k(k, base, lane);
        if constexpr (V_AHEAD) load_v(v, base, lane);
    }

    u16 *page_row =
        kv + (i64)new_page * PAGE_ELEMENTS + (kv_head * PAGE_TOKENS + work.position % PAGE_TOKENS) * HEAD_DIM;
    const int block = (int)blockIdx.z * (int)gridDim.y + (int)blockIdx.y;
    prepare(shared, qkv + (i64)row * (HEADS + 2 * KV_HEADS) * HEAD_DIM, table + (i64)row * HEAD_DIM, norm_q, norm_k,
            page_row, kv_head, head_block, heads, with_new, warp, lane);
    __syncthreads();
    state state = {};
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++) state.maximum[n][0] = state.maximum[n][1] = MINUS_INFINITY;
    while (work.tile < work.end) {
        const int start = work.tile * TILE_TOKENS, first = work.first - start, token = work.position - start;
        const bool edge = first > 0 || token < TILE_TOKENS;
        work.tile += WARPS;
        const u16 *next = tile_base(next_page, work.tile);
        next_page = page_of(work.tile + WARPS);
        float scores[TOKEN_TILES][HEAD_TILES][4];
        u32 weights[TOKEN_TILES][HEAD_TILES][2];
        if (edge) patch_k(k, shared, token, lane);
        score(scores, k, shared, lane);
        if (V_AHEAD && work.tile < work.end) load_k(k, next, lane);
        if constexpr (!V_AHEAD) load_v(v, base, lane);
        if (edge) {
#pragma unroll
            for (int tt = 0; tt < TOKEN_TILES; tt++)
#pragma unroll
                for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int at = tt * 16 + i / 2 * 8 + lane / 4;
                        if (at < first || at > token) scores[tt][n][i] = MINUS_INFINITY;
                    }
            patch_v(v, shared, first, token, lane);
        }
        weigh(weights, state, scores);
        accumulate(state, v, weights);
        if (work.tile < work.end) {
            if constexpr (V_AHEAD)
                load_v(v, next, lane);
            else
                load_k(k, next, lane);
        }
        base = next;
    }
    /* The ticket comes while the warps' results are merged. */
    u32 *tickets = (u32 *)workspace + block;
    u32 ticket = 0;
    if (USE_WORKSPACE && threadIdx.x == 0 && work.active > 1) ticket = take_ticket(tickets);
    store_partial(shared, state, warp, lane);
    __syncthreads();

    u16 *block_out = out + (i64)row * HEADS * HEAD_DIM + (kv_head * GROUP + head_block * TILE_HEADS) * HEAD_DIM;
    const int slice = (QUADS + work.active - 1) / work.active; /* of the result, merged by one block of the cluster */
    const int owners = (QUADS + slice - 1) / slice;
    constexpr i64 TICKET_BYTES = ((i64)ROWS * KV_HEADS * HEAD_BLOCKS * 4 + 63) / 64 * 64;
    float4 *space = (float4 *)((u8 *)workspace + TICKET_BYTES) + (i64)block * SPLITS * QUADS;
    float2 *space_sums =
        (float2 *)((u8 *)workspace + TICKET_BYTES + (i64)ROWS * KV_HEADS * HEAD_BLOCKS * SPLITS * QUADS * 16) +
        (i64)block * SPLITS * BLOCK_HEADS;
    if (USE_CLUSTER && work.active > 1 && threadIdx.x == 0) {
        int mine = max(0, min(slice, QUADS - split * slice));
        arrival_expect(&shared.arrival, mine ? (u32)work.active * (u32)(mine * 16 + BLOCK_HEADS * 8) : 0);
    }
    for (int quad = (int)threadIdx.x; quad < QUADS; quad += THREADS) {
        int head = quad / (DIM_8 / 4), column = quad % (DIM_8 / 4);
        merged all = merge(&shared.part_sums[0][head], BLOCK_HEADS, (const float4 *)&shared.part[0][head][column * 4],
                           BLOCK_HEADS * PART_PITCH / 4, WARPS);
        if (SPLITS == 1 || work.active == 1) {
            store_out(block_out, quad, all, heads);
        } else if constexpr (USE_CLUSTER) {
            u32 owner = (u32)(quad / slice);
            send(remote_address(&shared.received[split * slice + quad % slice], owner), all.value,
                 remote_address(&shared.arrival, owner));
            if (column == 0)
                for (u32 other = 0; other < (u32)owners; other++)
                    send(remote_address(&shared.received_sums[split][head], other), make_float2(all.maximum, all.sum),
                         remote_address(&shared.arrival, other));
        } else {
            space[split * QUADS + quad] =
                make_float4(marked(all.value.x), marked(all.value.y), marked(all.value.z), marked(all.value.w));
            if (column == 0) space_sums[split * BLOCK_HEADS + head] = make_float2(marked(all.maximum), marked(all.sum));
        }
    }
    if (SPLITS == 1 || work.active == 1) return;
    if constexpr (USE_CLUSTER) {
        if (split >= owners) return;
        arrival_wait(&shared.arrival);
        for (int i = (int)threadIdx.x; i < min(slice, QUADS - split * slice); i += THREADS) {
            int quad = split * slice + i;
            store_out(block_out, quad,
                      merge(&shared.received_sums[0][quad / (DIM_8 / 4)], BLOCK_HEADS, &shared.received[i], slice,
                            work.active),
                      heads);
        }
    }
    if constexpr (USE_WORKSPACE) {
        if (threadIdx.x == 0) shared.last = ticket == (u32)work.active - 1;
        __syncthreads();
        if (!shared.last)
            return; /* the last merges: those whose results are still on their way have all but finished */
        for (int quad = (int)threadIdx.x; quad < QUADS; quad += THREADS)
            store_out(block_out, quad,
                      merge_arriving<(SPLITS < 8 ? SPLITS : 8)>(space_sums + quad / (DIM_8 / 4), BLOCK_HEADS,
                                                                space + quad, QUADS, work.active),
                      heads);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < work.active * BLOCK_HEADS; i += THREADS) space_sums[i] = make_float2(0, 0);
        if (threadIdx.x == 0) *tickets = 0;
    }
}
