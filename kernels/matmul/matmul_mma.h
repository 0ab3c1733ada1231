/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_mma: the matmul of matmul_device.h for any GPU from compute capability 8.0 on and any number of rows, without
 * HAS_NORM. */
#ifndef KERNELS_MATMUL_MATMUL_MMA_H
#define KERNELS_MATMUL_MATMUL_MMA_H

#include "kernels/matmul/matmul_device.h"

enum matmul_mma_param {
    MATMUL_MMA_TILE_N =
        MATMUL_FIRST_TUNABLE, /* rows of W in a tile: 16, 32, 48 or 64 for each of WARPS_N, at most 256 */
    MATMUL_MMA_TILE_M,  /* rows of x in a tile: 8, 16, ... 64 for each of WARPS_M. A thread keeps TILE_N * TILE_M / 32
                         * sums of its warp in registers: at most 64, or 128 with at most 256 threads */
    MATMUL_MMA_TILE_K,  /* k in a stage: 32, 64, 128; a multiple of 16 * WARPS_K */
    MATMUL_MMA_STAGES,  /* of the ring: 2..8, as shared memory allows */
    MATMUL_MMA_WARPS_N, /* warps along W: 1, 2, 4, 8; at most 512 threads in all */
    MATMUL_MMA_WARPS_M, /* warps along x: 1, 2, 4 */
    MATMUL_MMA_WARPS_K, /* sets of warps that share the k of a stage: 1, 2, 4, 8 */
    MATMUL_MMA_PARAMS
};
extern const struct device_kernel device_matmul_mma;

/* Complete legal params for the problem in params[0..MATMUL_DEVICE_FIRST_TUNABLE), the best guess first, the others
 * from promising to less so, always in the same order. Returns their number, at most `capacity`; 0: this kernel does
 * not solve the problem. */
int matmul_mma_candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                          int capacity);

#endif
