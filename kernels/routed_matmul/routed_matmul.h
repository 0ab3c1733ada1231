/* SPDX-License-Identifier: Apache-2.0 */
/* routed_matmul: the matrix of a router, its choice of experts and the first matmul over them in one launch (CUDA, few rows):
 *   logits[r, e] = y[r] . MATRIX[e] (+ ROUTER_BIAS[e]),
 *   ROUTES = what router (router.h) makes of the logits, LISTS likewise,
 *   out[r, c] = what matmul (matmul.h) with an activation makes of y[r] and expert id[r, c],
 * y being x, or with HAS_NORM the normed residual stream x (matmul_device.h). Three launches that depend on each other take
 * 2 to 3 us each beyond their bytes; the experts' matrices cannot be read before the choice is known, so that nothing else fills that time.
 *
 * Numerics: as the three ops; sums of logits are float32 in an order that is fixed by the parameters.
 * Rows at and after min(counts[COUNT_INDEX], ROWS): out and routes unspecified; LISTS has the valid ones alone. A launch that follows may
 * read the experts of ROUTES while this one runs (expert_choices::await in matmul/expert_choices.cuh). */
#ifndef KERNELS_ROUTED_MATMUL_ROUTED_MATMUL_H
#define KERNELS_ROUTED_MATMUL_ROUTED_MATMUL_H

#include "kernels/cuda/kernel.h"
#include "kernels/matmul/matmul.h"

enum routed_matmul_operand {
    ROUTED_MATMUL_COUNTS,
    ROUTED_MATMUL_X,           /* INPUT_DTYPE[rows, K] */
    ROUTED_MATMUL_W,           /* as MATMUL_W, with experts */
    ROUTED_MATMUL_OUT,         /* OUT_DTYPE[rows, TOP_K * N / EXPERTS], gated: half as wide */
    ROUTED_MATMUL_ROUTES,      /* f32[rows, ROUTE_WIDTH]: as ROUTER_OUT */
    ROUTED_MATMUL_LISTS,       /* i32[rows, router_list_width]: as ROUTER_LISTS */
    ROUTED_MATMUL_MATRIX,      /* MATRIX_DTYPE[ROUTED, K], 16 bits */
    ROUTED_MATMUL_WORKSPACE,   /* the logits, for the launch's blocks */
    ROUTED_MATMUL_BIAS,        /* HAS_BIAS: BIAS_DTYPE[N] */
    ROUTED_MATMUL_NORM,        /* HAS_NORM: NORM_DTYPE[K] */
    ROUTED_MATMUL_ROUTER_BIAS, /* HAS_ROUTER_BIAS: ROUTER_BIAS_DTYPE[ROUTED], of logits */
    ROUTED_MATMUL_CLAIM_BIAS,  /* HAS_CLAIM_BIAS: as ROUTER_BIAS */
    ROUTED_MATMUL_SEEDS,       /* as ROUTER_SEEDS */
    ROUTED_MATMUL_INDEX,       /* as ROUTER_INDEX */
    ROUTED_MATMUL_SCALES,      /* as ROUTER_SCALES */
    ROUTED_MATMUL_OPERANDS
};
enum routed_matmul_param {
    ROUTED_MATMUL_ROWS,
    ROUTED_MATMUL_COUNT_INDEX,
    ROUTED_MATMUL_N, /* of all experts; with a gate, gate and up */
    ROUTED_MATMUL_K,
    ROUTED_MATMUL_DTYPE,
    ROUTED_MATMUL_OUT_DTYPE,
    ROUTED_MATMUL_EPILOGUE, /* as MATMUL_EPILOGUE, an activation */
    ROUTED_MATMUL_HAS_BIAS,
    ROUTED_MATMUL_BIAS_DTYPE,
    ROUTED_MATMUL_HAS_NORM,
    ROUTED_MATMUL_NORM_DTYPE,
    ROUTED_MATMUL_EPS_BITS, /* of the norm */
    ROUTED_MATMUL_INPUT_DTYPE,
    ROUTED_MATMUL_CAP_BITS,
    ROUTED_MATMUL_EXPERTS,
    ROUTED_MATMUL_ROUTE_WIDTH,
    ROUTED_MATMUL_MATRIX_DTYPE,
    ROUTED_MATMUL_ROUTED, /* rows of the router's matrix: EXPERTS of ROUTER_EXPERTS */
    ROUTED_MATMUL_HAS_ROUTER_BIAS,
    ROUTED_MATMUL_ROUTER_BIAS_DTYPE,
    ROUTED_MATMUL_SCORE, /* from here on as the parameters of router */
    ROUTED_MATMUL_RENORMALISE,
    ROUTED_MATMUL_ROUTER_EPS_BITS,
    ROUTED_MATMUL_ROUTER_SCALE_BITS,
    ROUTED_MATMUL_ROUTER_GROUPS,
    ROUTED_MATMUL_TOP_GROUPS,
    ROUTED_MATMUL_GROUP_SCORE,
    ROUTED_MATMUL_HAS_CLAIM_BIAS,
    ROUTED_MATMUL_CLAIM_BIAS_DTYPE,
    ROUTED_MATMUL_HAS_SEEDS,
    ROUTED_MATMUL_STEP_ROWS,
    ROUTED_MATMUL_HAS_SCALES,
    ROUTED_MATMUL_SCALES_DTYPE,
    ROUTED_MATMUL_SHARED,
    ROUTED_MATMUL_SHARED_GATE,
    ROUTED_MATMUL_PROBLEM_PARAMS,
    /* Tunables: as those of matmul_gemv, without clusters that split K and with x in shared memory. */
    ROUTED_MATMUL_WARPS = ROUTED_MATMUL_PROBLEM_PARAMS,
    ROUTED_MATMUL_STAGES,
    ROUTED_MATMUL_CHUNK,
    ROUTED_MATMUL_TILE_GROUPS, /* GROUPS of matmul_gemv */
    ROUTED_MATMUL_CTAS_PER_SM,
    ROUTED_MATMUL_COPY,
    ROUTED_MATMUL_SHARE, /* rows of the router's matrix for which a thread block has room: 1..8, at least what each has */
    ROUTED_MATMUL_PARAMS
};

/* The two ops that it is made of: params[MATMUL_FIRST_TUNABLE], params[ROUTER_PARAMS]. */
void routed_matmul_as_matmul(const int64_t *params, int64_t *matmul);
void routed_matmul_as_router(const int64_t *params, int64_t *router);

extern const struct op_descriptor op_routed_matmul;
extern const struct device_kernel device_routed_matmul;

#endif
