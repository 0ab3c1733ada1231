/* SPDX-License-Identifier: Apache-2.0 */
/* rope_query as a kernel of its own: rope_query.cuh. */
#include "kernels/rope_query/rope_query.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS               \
    PARAM(ROWS) = 512;              \
    PARAM(COUNT_INDEX) = 0;         \
    PARAM(HEADS) = 8;               \
    PARAM(HEAD_DIM) = 512;          \
    PARAM(ROTARY_DIM) = 512;        \
    PARAM(HAS_NORM) = 1;            \
    PARAM(NORM_DTYPE) = DTYPE_BF16; \
    PARAM(EPS_BITS) = 0x358637bd;   \
    PARAM(X_DTYPE) = DTYPE_BF16;
#define PARAM_HAS_NORM 1
#endif

struct rope_query_params {
    KERNEL_PARAMS
};
typedef rope_query_body<rope_query_params> rope_query_kernel;

extern "C" __global__ void __launch_bounds__(rope_query_kernel::THREADS)
    rope_query(const int *counts, const u16 *x, const float *table,
               u16 *out OPTIONAL(PARAM_HAS_NORM, const void *__restrict__ norm))
{
    rope_query_kernel::run(counts, x, table, out, IF_PRESENT(PARAM_HAS_NORM, norm));
}
