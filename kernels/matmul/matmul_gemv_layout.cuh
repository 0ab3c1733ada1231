/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_gemv: how a thread block's shared memory is laid out, as macros that the kernel and its host file share. All
 * sizes are bytes unless they say otherwise; the arguments are the kernel's parameters. */
#ifndef KERNELS_MATMUL_MATMUL_GEMV_LAYOUT_CUH
#define KERNELS_MATMUL_MATMUL_GEMV_LAYOUT_CUH

/* COPY: how weights come into shared memory. */
#define GEMV_COPY_THREADS 0 /* 16 bytes per thread: any GPU */
#define GEMV_COPY_ROWS    1 /* a bulk copy per row: from 2 KiB (CHUNK 1024) on as fast as the memory */
#define GEMV_COPY_BOXES   2 /* a tensor map, boxes of 64 k x all rows of the tile */

#define GEMV_CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define GEMV_ROUND_UP(a, b) (GEMV_CEIL_DIV(a, b) * (b))

/* k that one thread block of a cluster takes; the last one's part may be smaller. Whole boxes and 128-byte lines. */
#define GEMV_PART(K, SPLIT_K) GEMV_ROUND_UP(GEMV_CEIL_DIV(K, SPLIT_K), 64)

/* A quarter of a warp reads 64 bytes of two rows at once. Boxes have rows of 128 bytes, in which the hardware swaps
 * pieces; other rows lie 64 bytes more than a multiple of 128 apart. Either way the two rows are in different banks. */
#define GEMV_WEIGHT_PITCH(CHUNK) ((CHUNK)*2 + 64)
#define GEMV_STAGE_BYTES(GROUPS, CHUNK, COPY) \
    (8 * (GROUPS) * ((COPY) == GEMV_COPY_BOXES ? (CHUNK)*2 : GEMV_WEIGHT_PITCH(CHUNK)))
#define GEMV_X_PITCH(K, SPLIT_K) (GEMV_PART(K, SPLIT_K) * 2 + 64)

/* Partial sums of one warp, [ROWS][8 * GROUPS] floats; the padding spreads what a warp stores over all banks. */
#define GEMV_SUM_PITCH(GROUPS)       (8 * (GROUPS) + 4) /* floats */
#define GEMV_SUM_BYTES(ROWS, GROUPS) (4 * (ROWS)*GEMV_SUM_PITCH(GROUPS))

/* In this order: ring of weights, x, sums of the warps (two tiles), sums of the cluster's blocks (two tiles), squares
 * of the warps and of the blocks, mbarriers. Each macro takes the offset before it. */
#define GEMV_SUMS_OFFSET(X_OFFSET, ROWS, K, SPLIT_K, X_SHARED) \
    ((X_OFFSET) + (X_SHARED) * (ROWS)*GEMV_X_PITCH(K, SPLIT_K))
#define GEMV_CLUSTER_SUMS_OFFSET(SUMS_OFFSET, ROWS, GROUPS, WARPS) \
    ((SUMS_OFFSET) + 2 * (WARPS)*GEMV_SUM_BYTES(ROWS, GROUPS))
#define GEMV_SQUARES_OFFSET(CLUSTER_SUMS_OFFSET, ROWS, GROUPS, SPLIT_K) \
    ((CLUSTER_SUMS_OFFSET) + ((SPLIT_K) > 1 ? 2 * (SPLIT_K)*GEMV_SUM_BYTES(ROWS, GROUPS) : 0))
#define GEMV_BARRIERS_OFFSET(SQUARES_OFFSET, ROWS, WARPS, SPLIT_K) \
    GEMV_ROUND_UP((SQUARES_OFFSET) + 4 * (ROWS) * ((WARPS) + (SPLIT_K)), 8)
#define GEMV_BARRIERS(STAGES) (2 * (STAGES) + 8)

#endif
