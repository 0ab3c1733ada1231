/* SPDX-License-Identifier: Apache-2.0 */
/* norm_router: a norm, the matrix of the router that reads it, and the router in one launch (CUDA, few rows):
 *   y = what rms_norm (rms_norm.h) makes of the residual stream x, in 16 bits,
 *   logits[r, e] = y[r] . MATRIX[e] (+ ROUTER_BIAS[e]),
 *   ROUTES, LISTS = what router (router.h) makes of the logits.
 * The three launches depend on each other and read hardly any bytes: nearly all of their time is that of beginning and ending.
 *
 * Numerics: as the three ops; the product takes y as it is rounded, sums of logits are float32 in an order that is fixed by the parameters.
 * Rows at and after min(counts[COUNT_INDEX], ROWS) are not written; LISTS has the valid ones alone. */
#ifndef KERNELS_NORM_ROUTER_NORM_ROUTER_H
#define KERNELS_NORM_ROUTER_NORM_ROUTER_H

#include "kernels/cuda/kernel.h"
#include "kernels/router/router.h"

enum norm_router_operand {
    NORM_ROUTER_COUNTS,
    NORM_ROUTER_X,           /* f32[rows, K] */
    NORM_ROUTER_NORM,        /* NORM_DTYPE[K] */
    NORM_ROUTER_OUT,         /* OUT_DTYPE[rows, K]: y */
    NORM_ROUTER_ROUTES,      /* f32[rows, ROUTE_WIDTH]: as ROUTER_OUT */
    NORM_ROUTER_LISTS,       /* i32[rows, router_list_width]: as ROUTER_LISTS */
    NORM_ROUTER_MATRIX,      /* MATRIX_DTYPE[ROUTED, K]: that of OUT */
    NORM_ROUTER_ROUTER_BIAS, /* HAS_ROUTER_BIAS: ROUTER_BIAS_DTYPE[ROUTED], of logits */
    NORM_ROUTER_CLAIM_BIAS,  /* HAS_CLAIM_BIAS: as ROUTER_BIAS */
    NORM_ROUTER_SEEDS,       /* as ROUTER_SEEDS */
    NORM_ROUTER_INDEX,       /* as ROUTER_INDEX */
    NORM_ROUTER_SCALES,      /* as ROUTER_SCALES */
    NORM_ROUTER_OPERANDS
};
enum norm_router_param {
    NORM_ROUTER_ROWS,
    NORM_ROUTER_COUNT_INDEX,
    NORM_ROUTER_K,
    NORM_ROUTER_NORM_DTYPE,
    NORM_ROUTER_EPS_BITS, /* of the norm */
    NORM_ROUTER_OUT_DTYPE,
    NORM_ROUTER_MATRIX_DTYPE,
    NORM_ROUTER_ROUTED, /* rows of the router's matrix: EXPERTS of ROUTER_EXPERTS */
    NORM_ROUTER_HAS_ROUTER_BIAS,
    NORM_ROUTER_ROUTER_BIAS_DTYPE,
    NORM_ROUTER_ROUTE_WIDTH, /* from here on as the parameters of router */
    NORM_ROUTER_SCORE,
    NORM_ROUTER_RENORMALISE,
    NORM_ROUTER_ROUTER_EPS_BITS,
    NORM_ROUTER_ROUTER_SCALE_BITS,
    NORM_ROUTER_ROUTER_GROUPS,
    NORM_ROUTER_TOP_GROUPS,
    NORM_ROUTER_GROUP_SCORE,
    NORM_ROUTER_HAS_CLAIM_BIAS,
    NORM_ROUTER_CLAIM_BIAS_DTYPE,
    NORM_ROUTER_HAS_SEEDS,
    NORM_ROUTER_STEP_ROWS,
    NORM_ROUTER_HAS_SCALES,
    NORM_ROUTER_SCALES_DTYPE,
    NORM_ROUTER_SHARED,
    NORM_ROUTER_SHARED_GATE,
    NORM_ROUTER_PROBLEM_PARAMS,
    /* Tunables. */
    NORM_ROUTER_BLOCKS = NORM_ROUTER_PROBLEM_PARAMS, /* thread blocks, all in one cluster: 2, 4 or 8 */
    NORM_ROUTER_WARPS,                               /* of a block: 4, 8 or 16 */
    NORM_ROUTER_PARAMS
};

/* The router that it contains: params[ROUTER_PARAMS]. */
void norm_router_as_router(const int64_t *params, int64_t *router);

extern const struct op_descriptor op_norm_router;
extern const struct device_kernel device_norm_router;

#endif
