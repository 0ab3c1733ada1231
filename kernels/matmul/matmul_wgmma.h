/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_wgmma: the matmul of matmul_device.h for any number of rows on Hopper (compute capability 9.0), without HAS_NORM. */
#ifndef KERNELS_MATMUL_MATMUL_WGMMA_H
#define KERNELS_MATMUL_MATMUL_WGMMA_H

#include "kernels/matmul/matmul_device.h"

enum matmul_wgmma_param {
    MATMUL_WGMMA_TILE_N = MATMUL_FIRST_TUNABLE, /* rows of W in a tile: 64 or 128 times WARPGROUPS, at most 256 (rows
                                                        * of a tensor map's box) */
    MATMUL_WGMMA_TILE_M,     /* rows of x in a tile: 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256. A thread keeps
                              * TILE_N / 64 / WARPGROUPS * TILE_M / 2 sums in registers: at most 128, 96 with 3
                              * warpgroups */
    MATMUL_WGMMA_TILE_K,     /* k in a stage: 64, 128 */
    MATMUL_WGMMA_WARPGROUPS, /* that multiply: 1..3 */
    MATMUL_WGMMA_STAGES,     /* of the ring: 2..24, as shared memory allows */
    MATMUL_WGMMA_SPLIT_K,   /* blocks of a cluster that share a tile: 1..8, at most one for each TILE_K of K, whose sums
                              * must fit the ring; without MULTICAST and PERSISTENT if more than 1 */
    MATMUL_WGMMA_MULTICAST, /* blocks of a cluster that share an x tile: 1, 2; TILE_M is a multiple of 8 times it */
    MATMUL_WGMMA_PERSISTENT, /* blocks on each SM that take tiles in turn: 0 (a block for each tile), 1..4 */
    MATMUL_WGMMA_ROW_GROUP,  /* row tiles that take the same rows of W at about the same time: 1..1024 */
    MATMUL_WGMMA_PREFETCH,   /* with one row tile: request weights before the previous launches have ended */
    MATMUL_WGMMA_PARAMS
};
enum { MATMUL_WGMMA_LEAST_ROWS = 1, MATMUL_WGMMA_MOST_STAGES = 24, MATMUL_WGMMA_MOST_SPLIT = 8 };
extern const struct device_kernel device_matmul_wgmma;

/* Complete legal params for the problem in params[0..MATMUL_DEVICE_FIRST_TUNABLE), the best guess first, the others
 * from promising to less so, always in the same order. Returns their number, at most `capacity`; 0: this kernel does
 * not solve the problem. */
int matmul_wgmma_candidates(const int64_t *params, const struct device_facts *gpu,
                            int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity);

#endif
