/* SPDX-License-Identifier: Apache-2.0 */
/* router: which experts a row is for, and with which weights.
 *
 * scores = softmax or sigmoid of the row's logits. An expert's claim is its score (+ bias). With GROUPS above 1 only the experts
 * of the TOP_GROUPS best groups can be chosen; a group's claim is its best one, or the sum of its best two. The TOP_K experts
 * with the greatest claims are chosen, of equal ones the lower index. Their weights are their scores, by falling claims, then
 * as RENORMALISE says, times SCALE, and with scales times that of the expert. Claims are logits for a softmax without bias and groups,
 * and for ROUTER_SOFTMAX_CHOSEN, whose softmax is over the chosen experts alone: logits differ also where rounding makes scores equal.
 *
 * A row whose seed is not 0 has claims that follow from the seed alone (router_seeded_claim), so that rounding does not change which
 * experts are chosen: checks compare logits of different plans and targets so. The weights follow from the scores as ever.
 *
 * After the TOP_K chosen experts a row has SHARED more choices, which are the same for all rows: the experts that follow the routed ones.
 * Their weight is 1, with SHARED_GATE the sigmoid of the row's last logit, which is then no expert's. SCALE and scales do not apply to
 * them.
 *
 * float32; sums in the order of experts or choices. NaN is greater than all numbers, so that a row with a NaN has weights
 * that are NaN, and always experts that there are. */
#ifndef KERNELS_ROUTER_ROUTER_H
#define KERNELS_ROUTER_ROUTER_H

#include "kernels/op/op.h"
#include "kernels/router/router_kinds.cuh"

enum { ROUTER_MAX_EXPERTS = 1024, ROUTER_MAX_TOP_K = 64 };

enum router_operand {
    ROUTER_COUNTS,
    ROUTER_LOGITS, /* f32[rows, EXPERTS] */
    ROUTER_OUT,    /* f32[rows, ROUTE_WIDTH]: routes, of each row TOP_K + SHARED weights, then as many ids as floats */
    ROUTER_BIAS,   /* HAS_BIAS: BIAS_DTYPE[EXPERTS] */
    ROUTER_LISTS,  /* CUDA: i32[rows, router_list_width]: router_lists of all valid rows */
    ROUTER_SEEDS,  /* HAS_SEEDS: i32[STEP_ROWS]: of the step's token rows */
    ROUTER_INDEX,  /* COUNT_INDEX 1: i32[rows]: the token row of each row */
    ROUTER_SCALES, /* HAS_SCALES: SCALES_DTYPE[EXPERTS] */
    ROUTER_OPERANDS
};
enum router_param {
    ROUTER_ROWS,
    ROUTER_COUNT_INDEX,
    ROUTER_EXPERTS,     /* logits of a row */
    ROUTER_ROUTE_WIDTH, /* 2 * (TOP_K + SHARED) */
    ROUTER_SCORE,       /* enum router_score */
    ROUTER_RENORMALISE, /* enum router_renormalise */
    ROUTER_EPS_BITS,
    ROUTER_SCALE_BITS,
    ROUTER_GROUPS, /* a divisor of the routed experts */
    ROUTER_TOP_GROUPS,
    ROUTER_GROUP_SCORE, /* enum router_group_score */
    ROUTER_HAS_BIAS,
    ROUTER_BIAS_DTYPE,
    ROUTER_HAS_SEEDS,
    ROUTER_STEP_ROWS,
    ROUTER_HAS_SCALES,
    ROUTER_SCALES_DTYPE,
    ROUTER_SHARED,
    ROUTER_SHARED_GATE,
    ROUTER_PARAMS
};

extern const struct op_descriptor op_router;
extern const struct device_kernel device_router;

/* Lists of the choices of each of EXPERTS experts, routed and shared, TOP_K of them by each row, at the start of an array of ROWS rows:
 * where the list of each begins and the last one ends, EXPERTS + 1 numbers, then the choices, ROWS * TOP_K numbers
 * row * TOP_K + choice, those of an expert by rising rows. */
static inline int64_t router_list_width(int64_t experts, int64_t top_k) { return experts + 1 + top_k; }

/* The weight of a choice in a row's routes, and its expert; -1 where the id names none. */
static inline float router_weight(const float *routes, int64_t choice) { return routes[choice]; }
static inline int64_t router_expert(const float *routes, int64_t top_k, int64_t choice, int64_t experts)
{
    const float id = routes[top_k + choice];
    return id >= 0 && id < (float)experts ? (int64_t)id : -1;
}

#endif
