/* SPDX-License-Identifier: Apache-2.0 */
/* routed_mlp: all of an MLP over experts in one launch (CUDA, few rows): the router with its matrix, the first matmul over the experts
 * that it chooses, and the second one with the weighted sum over a row's choices:
 *   a[r, c] = what routed_matmul (routed_matmul.h) makes of x[r] for choice c of row r,
 *   out[r]  = what matmul (matmul.h) over the same experts makes of a[r, *] and of the weights of the choices (+ RESIDUAL[r]).
 * Between two launches the memory is idle while the last tiles of the first are multiplied, its stores become visible and the second
 * begins; here the second matmul's weights are asked for meanwhile.
 *
 * Numerics: as the ops; activations are rounded to OUT_DTYPE, and a zero among them is -0. Sums have a fixed order.
 * Rows at and after min(counts[COUNT_INDEX], ROWS): out unspecified. Operands and parameters have the numbers of routed_matmul where
 * they are the same. */
#ifndef KERNELS_ROUTED_MLP_ROUTED_MLP_H
#define KERNELS_ROUTED_MLP_ROUTED_MLP_H

#include "kernels/routed_matmul/routed_matmul.h"

enum routed_mlp_operand {
    ROUTED_MLP_W = ROUTED_MATMUL_W,
    /* DOWN_OUT_DTYPE[rows, DOWN_N / EXPERTS]. May be X: a block writes only when it has every logit and the activations of all valid
     * rows, and those that made them have read x. */
    ROUTED_MLP_OUT = ROUTED_MATMUL_OUT,
    ROUTED_MLP_DOWN = ROUTED_MATMUL_ROUTES,         /* as MATMUL_W, with experts: DOWN_DTYPE[DOWN_N, DOWN_K] */
    ROUTED_MLP_DOWN_BIAS = ROUTED_MATMUL_LISTS,     /* HAS_DOWN_BIAS: DOWN_BIAS_DTYPE[DOWN_N] */
    ROUTED_MLP_WORKSPACE = ROUTED_MATMUL_WORKSPACE, /* logits and activations, for the launch's blocks */
    ROUTED_MLP_RESIDUAL = ROUTED_MATMUL_OPERANDS,   /* HAS_RESIDUAL: f32[rows, DOWN_N / EXPERTS]; may be OUT */
    ROUTED_MLP_OPERANDS
};
/* OUT_DTYPE of routed_matmul is that of the activations, 16 bits. */
enum routed_mlp_param {
    ROUTED_MLP_DOWN_N = ROUTED_MATMUL_PROBLEM_PARAMS, /* of all experts */
    ROUTED_MLP_DOWN_K,                                /* activations of a choice */
    ROUTED_MLP_DOWN_DTYPE,                            /* coded if and only if DTYPE is */
    ROUTED_MLP_DOWN_OUT_DTYPE,
    ROUTED_MLP_DOWN_SCALE_BITS, /* as MATMUL_SCALE_BITS */
    ROUTED_MLP_HAS_DOWN_BIAS,
    ROUTED_MLP_DOWN_BIAS_DTYPE,
    ROUTED_MLP_HAS_RESIDUAL,
    ROUTED_MLP_PROBLEM_PARAMS,
    /* Tunables: as those of routed_matmul, with one thread block a multiprocessor; then those of the second matmul. */
    ROUTED_MLP_WARPS = ROUTED_MLP_PROBLEM_PARAMS,
    ROUTED_MLP_STAGES,
    ROUTED_MLP_CHUNK,
    ROUTED_MLP_TILE_GROUPS,
    ROUTED_MLP_COPY, /* of both */
    ROUTED_MLP_SHARE,
    ROUTED_MLP_DOWN_STAGES,
    ROUTED_MLP_DOWN_CHUNK,
    ROUTED_MLP_DOWN_GROUPS,
    ROUTED_MLP_PARAMS
};

/* The second matmul: params[MATMUL_FIRST_TUNABLE]. */
void routed_mlp_as_down(const int64_t *params, int64_t *matmul);

/* Whether x of `rows`, of k elements, so many rows of the router's matrix, activations of all choices, of inner_k, and rings of a
 * useful size fit into that much shared memory of a thread block. */
bool routed_mlp_fits(int64_t rows, int64_t k, int64_t matrix_rows, int64_t top_k, int64_t inner_k,
                     int64_t shared_bytes);
/* Whether the thread blocks have about as many tiles of the second matmul each, of so many columns, or there is a multiprocessor for
 * each tile: a matmul alone may divide k instead. */
bool routed_mlp_is_balanced(int64_t columns, int64_t multiprocessors);

extern const struct op_descriptor op_routed_mlp;
extern const struct device_kernel device_routed_mlp;

#endif
