/* SPDX-License-Identifier: Apache-2.0 */
/* rope_query (contract: rope_query.h): rope_append without KV heads. */
#ifndef KERNELS_ROPE_QUERY_ROPE_QUERY_CUH
#define KERNELS_ROPE_QUERY_ROPE_QUERY_CUH

#include "kernels/rope_append/rope_append.cuh"

/* The problem as one of rope_append, whose pages are never reached. */
template <class P> struct rope_query_as_append : P {
    static constexpr int KV_HEADS = 0, PAGE_TOKENS = 1, PAGES_PER_SLOT = 1, PAGE_BYTES = 0, KV_DTYPE = DTYPE_BF16;
    static constexpr int NORM_SCOPE = ROPE_APPEND_NORM_HEAD, NORM_V = 0, CENTRED = 0, HAS_KV_SCALES = 0, HAS_MEANS = 0;
};

template <class P> struct rope_query_body {
    typedef rope_append_body<rope_query_as_append<P>> append;
    static constexpr int THREADS = append::THREADS;

    /* `out` may be `x`: the lanes of a head read all of it before they write. `norm`: null without HAS_NORM. */
    static __device__ __forceinline__ void run(const int *counts, const u16 *x, const float *table, u16 *out,
                                               const void *norm)
    {
        append::run(counts, x, table, nullptr, nullptr, nullptr, nullptr, out, norm, nullptr, nullptr, nullptr);
    }
};

#endif
