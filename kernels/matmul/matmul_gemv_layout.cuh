/* matmul_gemv: how a thread block's shared memory is laid out, as macros that the kernel and its host file share. All
 * sizes are bytes unless they say otherwise; the arguments are the kernel's parameters. */
#ifndef KERNELS_MATMUL_MATMUL_GEMV_LAYOUT_CUH
#define KERNELS_MATMUL_MATMUL_GEMV_LAYOUT_CUH

#define GEMV_CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define GEMV_ROUND_UP(a, b) (GEMV_CEIL_DIV(a, b) * (b))

/* k that one thread block of a cluster takes; the last one's part may be smaller. Whole 128-byte lines. */
#define GEMV_PART(K, SPLIT_K) GEMV_ROUND_UP(GEMV_CEIL_DIV(K, SPLIT_K), 64)

/* A quarter of a warp reads 64 bytes of two neighbouring rows at once: rows 64 bytes more than a multiple of 128 apart
 * lie in different banks. */
#define GEMV_WEIGHT_PITCH(CHUNK)        ((CHUNK)*2 + 64)
#define GEMV_STAGE_BYTES(GROUPS, CHUNK) (16 * (GROUPS)*GEMV_WEIGHT_PITCH(CHUNK))
#define GEMV_X_PITCH(K, SPLIT_K)        (GEMV_PART(K, SPLIT_K) * 2 + 64)

/* Partial sums of one warp, [ROWS][16 * GROUPS] floats; the padding spreads what a warp stores over all banks. */
#define GEMV_SUM_PITCH(GROUPS)       (16 * (GROUPS) + 4) /* floats */
#define GEMV_SUM_BYTES(ROWS, GROUPS) (4 * (ROWS)*GEMV_SUM_PITCH(GROUPS))

/* In this order: ring of weights, x, sums of the warps (two tiles), sums of the cluster's blocks (two tiles), squares of
 * the warps and of the blocks, mbarriers. */
#define GEMV_RING_OFFSET                     0
#define GEMV_X_OFFSET(GROUPS, CHUNK, STAGES) ((STAGES)*GEMV_STAGE_BYTES(GROUPS, CHUNK))
#define GEMV_SUMS_OFFSET(ROWS, K, GROUPS, CHUNK, STAGES, SPLIT_K, X_SHARED) \
    (GEMV_X_OFFSET(GROUPS, CHUNK, STAGES) + (X_SHARED) * (ROWS)*GEMV_X_PITCH(K, SPLIT_K))
#define GEMV_CLUSTER_SUMS_OFFSET(ROWS, K, WARPS, GROUPS, CHUNK, STAGES, SPLIT_K, X_SHARED) \
    (GEMV_SUMS_OFFSET(ROWS, K, GROUPS, CHUNK, STAGES, SPLIT_K, X_SHARED) + 2 * (WARPS)*GEMV_SUM_BYTES(ROWS, GROUPS))
#define GEMV_SQUARES_OFFSET(ROWS, K, WARPS, GROUPS, CHUNK, STAGES, SPLIT_K, X_SHARED)     \
    (GEMV_CLUSTER_SUMS_OFFSET(ROWS, K, WARPS, GROUPS, CHUNK, STAGES, SPLIT_K, X_SHARED) + \
     ((SPLIT_K) > 1 ? 2 * (SPLIT_K)*GEMV_SUM_BYTES(ROWS, GROUPS) : 0))
#define GEMV_BARRIERS_OFFSET(ROWS, K, WARPS, GROUPS, CHUNK, STAGES, SPLIT_K, X_SHARED)            \
    GEMV_ROUND_UP(GEMV_SQUARES_OFFSET(ROWS, K, WARPS, GROUPS, CHUNK, STAGES, SPLIT_K, X_SHARED) + \
                      4 * (ROWS) * ((WARPS) + (SPLIT_K)),                                         \
                  8)
#define GEMV_SHARED_BYTES(ROWS, K, WARPS, GROUPS, CHUNK, STAGES, SPLIT_K, X_SHARED) \
    (GEMV_BARRIERS_OFFSET(ROWS, K, WARPS, GROUPS, CHUNK, STAGES, SPLIT_K, X_SHARED) + 8 * (2 * (STAGES) + 8))

#endif
