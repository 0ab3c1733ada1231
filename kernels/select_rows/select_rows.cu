/* SPDX-License-Identifier: Apache-2.0 */
/* select_rows as a kernel of its own: select_rows.cuh. */
#include "kernels/select_rows/select_rows.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS       \
    PARAM(ROWS) = 1;        \
    PARAM(COUNT_INDEX) = 1; \
    PARAM(WIDTH) = 4096;    \
    PARAM(IN_ROWS) = 512;   \
    PARAM(X_DTYPE) = DTYPE_F32;
#endif

struct select_rows_params {
    KERNEL_PARAMS
};
typedef select_rows_body<select_rows_params> select_rows_kernel;

extern "C" __global__ void __launch_bounds__(select_rows_kernel::THREADS)
    select_rows(const int *__restrict__ counts, const float *__restrict__ x, const int *__restrict__ index,
                float *__restrict__ out)
{
    select_rows_kernel::run(counts, x, index, out);
}
