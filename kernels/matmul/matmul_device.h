/* SPDX-License-Identifier: Apache-2.0 */
/* matmul on the GPU: the contract that all device matmuls share, and what each of them adds.
 *
 *   out[r, n] = SCALE * (sum over k of y[r, k] * W[n, k]  (+ bias[n])) (+ residual[r, n])
 *   y = x, or with HAS_NORM x is the float32 residual stream and
 *   y[r, k] = x[r, k] * rsqrt(mean over k of x[r, k]^2 + EPS) * norm[k]
 *
 * With X_SCALES (matmul_wgmma alone) x and W have codes, which are multiplied as such (kernels/quantise/quantise.h):
 * out[r, n] = X_SCALES[r] * sum over k of code of x[r, k] * W[n, k], ...; of sums of e4m3 the tensor cores keep about 14 bits, those of
 * integers are exact.
 *
 * With a gate rows 16i..16i+7 of W are rows 8i..8i+7 of the gate matrix and rows 16i+8..16i+15 are rows
 * 8i..8i+7 of the up matrix, and out has N / 2 columns: out[r, j] = act(g) * u, g and u with their biases.
 *
 * Weights are row-major [N, K], K contiguous, or coded: panels in FRAGMENT16 layout (panel.h), multiplied as bfloat16, which
 * holds every code less its zero (numbers of tables are rounded to it), with scales in float32. Every operand begins at a multiple of 64 bytes. Sums are float32, in an
 * order that is fixed by the parameters: two runs give the same bits. With HAS_NORM, x * norm is rounded to the element
 * type that is multiplied and the row's factor multiplies the sum. Rows at and after min(counts[COUNT_INDEX], ROWS): outputs unspecified. */
#ifndef KERNELS_MATMUL_MATMUL_DEVICE_H
#define KERNELS_MATMUL_MATMUL_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/matmul/matmul.h"

/* Operands of a launch: COUNTS, X, W, OUT, then those of BIAS, RESIDUAL, NORM and X_SCALES that it has. */
enum { MATMUL_DEVICE_OPERANDS = MATMUL_OUT + 1, MATMUL_DEVICE_MOST_OPERANDS = MATMUL_DEVICE_OPERANDS + 4 };

/* Limits of all device matmuls, so that every index fits 64 bits and every tile count 32. */
enum { MATMUL_DEVICE_MOST_N = 1 << 24, MATMUL_DEVICE_MOST_K = 1 << 24 };

/* The operand's place in a launch; -1: absent. */
int matmul_device_operand(const int64_t *params, enum matmul_operand operand);
int matmul_device_operand_count(const int64_t *params);
uint64_t matmul_device_operand_bytes(const int64_t *params, int operand); /* of legal params; 0: no such operand */

/* The element type that is multiplied: x has it without a norm. */
int64_t matmul_device_element(const int64_t *params);

/* Why the shared parameters are illegal, NULL if they are legal. Never trusts a parameter. */
const char *matmul_device_illegal(const int64_t *params);
/* struct device_kernel.cost of every device matmul; needs legal params. */
void matmul_device_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops);

/* Shared memory that a thread block may use so that per_sm of them share a multiprocessor. */
int64_t matmul_device_most_shared(const struct device_facts *gpu, int64_t per_sm);
/* Lower bound of the shared memory: no multiprocessor ever has room for one more block than per_sm. Blocks of a launch start on
 * multiprocessors as the previous launch leaves them; those free early would take the blocks of others, and stream
 * twice as much as the rest. After matmul_mma a quarter of an H200's multiprocessors had no thread block. */
int64_t matmul_device_least_shared(const struct device_facts *gpu, int64_t per_sm);

/* Shared memory of a thread block that starts while each multiprocessor still has one, of the launch before, with that lower bound. */
int64_t matmul_device_second_shared(const struct device_facts *gpu);

/* Candidates in order of an estimate of their time, in any unit; the earlier of equals first. */
struct matmul_ranking {
    int count, most; /* kept */
    struct matmul_estimate {
        double cost;
        int64_t params[PLAN_MAX_PARAMS];
    } list[24];
};
void matmul_device_rank(struct matmul_ranking *ranking, const int64_t *params, double cost);
/* As device_kernel.candidates. */
int matmul_device_ranked(const struct matmul_ranking *ranking, int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity);

/* matmul_gemv: ROWS 1..8, bound by the bandwidth of the memory; its tunables. */
enum matmul_gemv_param {
    MATMUL_GEMV_WARPS = MATMUL_FIRST_TUNABLE, /* that multiply: 1..16 */
    MATMUL_GEMV_STAGES,                       /* of the ring of weights in shared memory: 2..64 */
    MATMUL_GEMV_CHUNK,   /* k of one stage: multiple of 64 (boxes) and of 32 * WARPS (equal shares), coded of 128 *
                              * WARPS; with a sum over choices of 64, coded of 128; at most 4096 */
    MATMUL_GEMV_SPLIT_K, /* thread blocks of a cluster, each with its part of K: 1..8; 1 below capability 90 */
    MATMUL_GEMV_GROUPS, /* groups of 8 weight rows in a tile: 1, 2, 4; not 1 with a gate (gate and up) or coded (panels) */
    MATMUL_GEMV_CTAS_PER_SM, /* thread blocks launched for each multiprocessor: 1..4 */
    MATMUL_GEMV_X_SHARED, /* 1: x is staged in shared memory; 0: read where it is used (x too large), not coded, no sum over choices */
    MATMUL_GEMV_COPY, /* enum matmul_gemv_copy; above 0 from capability 90 on */
    MATMUL_GEMV_PARAMS
};
/* How weights are copied to shared memory. BOXES: operand W is a tensor map; N >= 8 * GROUPS, K >= 64, not coded. */
enum matmul_gemv_copy { MATMUL_GEMV_COPY_THREADS = 0, MATMUL_GEMV_COPY_ROWS = 1, MATMUL_GEMV_COPY_BOXES = 2 };
enum { MATMUL_GEMV_MOST_ROWS = 8, MATMUL_GEMV_MOST_K = 65536, MATMUL_GEMV_MOST_CHOICES = 64 };
/* Whether matmul_gemv, which alone has a sum over experts without PARTS, is to do one: it reads the matrix of an expert once for
 * each row that chose it, and keeps x of all choices in shared memory. */
bool matmul_gemv_sums_choices(int64_t rows, int64_t experts, int64_t top_k, int64_t k);
extern const struct device_kernel device_matmul_gemv;

/* matmul_grouped: experts of few rows each, up to 1024 choices, without HAS_NORM and without a sum over choices, K a multiple of 32;
 * compute capability 9.0 and later; bound by the bandwidth of the memory. Its tunables. */
enum matmul_grouped_param {
    MATMUL_GROUPED_WARPS = MATMUL_FIRST_TUNABLE, /* that multiply: 1..16 */
    MATMUL_GROUPED_STAGES,                       /* of the ring of weights and x in shared memory: 2..32 */
    MATMUL_GROUPED_CHUNK,   /* k of one stage: a multiple of 128 and of 32 * WARPS, coded of 128 * WARPS, up to 4096 */
    MATMUL_GROUPED_GROUPS,  /* groups of 8 weight rows in a tile: 2, 4, 8 */
    MATMUL_GROUPED_COLUMNS, /* most rows of x that are multiplied with a tile at once: 1..8 */
    MATMUL_GROUPED_CTAS_PER_SM, /* thread blocks launched for each multiprocessor: 1..4 */
    MATMUL_GROUPED_PARAMS
};
extern const struct device_kernel device_matmul_grouped;

/* matmul_mma: any number of rows, without HAS_NORM; its tunables. */
enum matmul_mma_param {
    MATMUL_MMA_TILE_N =
        MATMUL_FIRST_TUNABLE, /* rows of W in a tile: 16, 32, 48 or 64 for each of WARPS_N, at most 256 */
    MATMUL_MMA_TILE_M,  /* rows of x in a tile: 8, 16, ... 64 for each of WARPS_M. A thread keeps TILE_N * TILE_M / 32
                         * sums of its warp in registers: at most 64, or 128 with at most 256 threads. Coded weights: 32 or
                         * 128, halved if groups have scales that multiply sums: all but those of nvfp4 */
    MATMUL_MMA_TILE_K,  /* k in a stage: 32, 64, 128; a multiple of 16 * WARPS_K. Coded weights: 128, 256, 512, 1024; a
                         * multiple of 128 * WARPS_K */
    MATMUL_MMA_STAGES,  /* of the ring: 2..8, as shared memory allows */
    MATMUL_MMA_WARPS_N, /* warps along W: 1, 2, 4, 8; at most 512 threads in all */
    MATMUL_MMA_WARPS_M, /* warps along x: 1, 2, 4 */
    MATMUL_MMA_WARPS_K, /* sets of warps that share the k of a stage: 1, 2, 4, 8 */
    MATMUL_MMA_PARAMS
};
extern const struct device_kernel device_matmul_mma;

/* matmul_wgmma: any number of rows on Hopper (compute capability 9.0), without HAS_NORM; its tunables. */
enum matmul_wgmma_param {
    MATMUL_WGMMA_TILE_N = MATMUL_FIRST_TUNABLE, /* rows of W in a tile: 64 or 128 times WARPGROUPS, at most 256 (rows
                                                        * of a tensor map's box) */
    MATMUL_WGMMA_TILE_M,     /* rows of x in a tile: 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256. A thread keeps
                              * TILE_N / 64 / WARPGROUPS * TILE_M / 2 sums in registers: at most 128, 96 with 3
                              * warpgroups; coded (matmul_wgmma_sums): 208, 120 */
    MATMUL_WGMMA_TILE_K,     /* k in a stage: 64, 128; coded: 128, or 256 if K has an even number of strips */
    MATMUL_WGMMA_WARPGROUPS, /* that multiply: 1..3 */
    MATMUL_WGMMA_STAGES,     /* of the ring: 2..24, as shared memory allows */
    MATMUL_WGMMA_SPLIT_K,   /* blocks of a cluster that share a tile: 1..8, at most one for each TILE_K of K, whose sums
                              * must fit the ring; without MULTICAST and PERSISTENT if more than 1 */
    MATMUL_WGMMA_MULTICAST, /* blocks of a cluster that share an x tile: 1, 2; TILE_M is a multiple of 8 times it */
    MATMUL_WGMMA_PERSISTENT, /* blocks on each SM that take tiles in turn: 0 (a block for each tile), 1..4 */
    MATMUL_WGMMA_ROW_GROUP,  /* row tiles that take the same rows of W at about the same time: 1..1024 */
    MATMUL_WGMMA_PREFETCH, /* with one row tile: stages of weights that are requested before the previous launches have ended: 0..24;
                              * 1: all of the ring */
    MATMUL_WGMMA_PARAMS
};
enum { MATMUL_WGMMA_LEAST_ROWS = 1, MATMUL_WGMMA_MOST_STAGES = 24, MATMUL_WGMMA_MOST_SPLIT = 8 };
extern const struct device_kernel device_matmul_wgmma;

#endif
