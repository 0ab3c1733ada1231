/* SPDX-License-Identifier: Apache-2.0 */
/* select_columns as a kernel of its own: select_columns.cuh. */
#include "kernels/select_columns/select_columns.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS            \
    PARAM(ROWS) = 512;           \
    PARAM(COUNT_INDEX) = 0;      \
    PARAM(WIDTH) = 4096;         \
    PARAM(X_DTYPE) = DTYPE_BF16; \
    PARAM(OUT_DTYPE) = DTYPE_BF16;
#endif

struct select_columns_params {
    KERNEL_PARAMS
};
typedef select_columns_body<select_columns_params> select_columns_kernel;

extern "C" __global__ void __launch_bounds__(select_columns_kernel::THREADS)
    select_columns(const int *counts, const void *x, const float *__restrict__ order, void *out)
{
    select_columns_kernel::run(counts, x, order, out);
}
