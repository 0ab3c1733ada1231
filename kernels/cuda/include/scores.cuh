/* SPDX-License-Identifier: Apache-2.0 */
/* What attention kernels do with scores besides the softmax: caps and sinks (contract: kernels/attention/attention.h). */
#ifndef KERNELS_CUDA_INCLUDE_SCORES_CUH
#define KERNELS_CUDA_INCLUDE_SCORES_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/ptx.cuh"

#define SCORES_LOG2_E 1.44269504088896f

/* `score` times `unit` is the score in units of e. -infinity, a token that is not seen, stays. */
template <class P> __device__ __forceinline__ float capped_score(float score, float unit)
{
    if constexpr (P::CAP_BITS == 0) {
        return score;
    } else {
        const float cap = float_of_bits(P::CAP_BITS);
        /* An infinite divisor gives 0. */
        const float tangent = 1 - __fdividef(2.0f, exp2_approximate(score * (2 * SCORES_LOG2_E * unit / cap)) + 1);
        return score == -infinity() ? score : tangent * (cap / unit);
    }
}

/* What the sink of a head adds to a sum of exponentials relative to `maximum`, in units of log2. */
template <class P> __device__ __forceinline__ float sink_term(const void *sinks, int head, float maximum)
{
    if constexpr (P::HAS_SINKS)
        return exp2_approximate(load_element<P::SINKS_DTYPE>(sinks, head) * SCORES_LOG2_E - maximum);
    else
        return 0;
}

#endif
