/* SPDX-License-Identifier: Apache-2.0 */
/* How router scores experts, weighs the chosen ones and ranks groups: one list for host and device code. */
#ifndef KERNELS_ROUTER_ROUTER_KINDS_CUH
#define KERNELS_ROUTER_ROUTER_KINDS_CUH

enum router_score { ROUTER_SOFTMAX, ROUTER_SIGMOID, ROUTER_SOFTMAX_CHOSEN, ROUTER_SCORES };
enum router_renormalise {
    ROUTER_AS_THEY_ARE,
    ROUTER_SUM_PLUS_EPS, /* divided by their sum + EPS */
    ROUTER_SUM_OR_EPS,   /* divided by their sum, at least EPS */
    ROUTER_RENORMALISES
};
enum router_group_score { ROUTER_GROUP_BEST, ROUTER_GROUP_BEST_TWO, ROUTER_GROUP_SCORES };

#endif
