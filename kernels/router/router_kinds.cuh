/* SPDX-License-Identifier: Apache-2.0 */
/* How router scores experts, weighs the chosen ones and ranks groups: one list for host and device code. */
#ifndef KERNELS_ROUTER_ROUTER_KINDS_CUH
#define KERNELS_ROUTER_ROUTER_KINDS_CUH

#include "kernels/cuda/include/layout.cuh"

enum router_score { ROUTER_SOFTMAX, ROUTER_SIGMOID, ROUTER_SOFTMAX_CHOSEN, ROUTER_SCORES };
/* Whether claims are logits, in whose order the scores are, and so are known before any exponential. */
LAYOUT_FUNCTION int router_claims_are_logits(layout_size score, layout_size has_bias, layout_size groups)
{
    return score != ROUTER_SIGMOID && !has_bias && groups == 1;
}

enum router_renormalise {
    ROUTER_AS_THEY_ARE,
    ROUTER_SUM_PLUS_EPS, /* divided by their sum + EPS */
    ROUTER_SUM_OR_EPS,   /* divided by their sum, at least EPS */
    ROUTER_RENORMALISES
};
/* The claim of an expert where a row has a seed: in [0, 1), unlike those of other experts and seeds (an integer hash by Chris Wellons,
 * "lowbias32", of both). The same on every target. */
#ifdef __CUDACC__
#define ROUTER_FUNCTION static __device__ __forceinline__
#else
#define ROUTER_FUNCTION static inline
#endif
ROUTER_FUNCTION float router_seeded_claim(int seed, int expert)
{
    unsigned bits = (unsigned)seed * 0x9e3779b9u ^ ((unsigned)expert + 1) * 0x85ebca6bu;
    bits ^= bits >> 16;
    bits *= 0x7feb352du;
    bits ^= bits >> 15;
    bits *= 0x846ca68bu;
    bits ^= bits >> 16;
    return (float)(bits >> 8) * 0x1p-24f;
}

enum router_group_score { ROUTER_GROUP_BEST, ROUTER_GROUP_BEST_TWO, ROUTER_GROUP_SCORES };

#endif
