/* SPDX-License-Identifier: Apache-2.0 */
/* xielu as a kernel of its own: xielu.cuh. */
#include "kernels/xielu/xielu.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                  \
    PARAM(ROWS) = 16;                  \
    PARAM(COUNT_INDEX) = 0;            \
    PARAM(WIDTH) = 21504;              \
    PARAM(NUMBERS_DTYPE) = DTYPE_BF16; \
    PARAM(X_DTYPE) = DTYPE_BF16;
#endif

struct xielu_params {
    KERNEL_PARAMS
};
typedef xielu_body<xielu_params> xielu_kernel;

extern "C" __global__ void __launch_bounds__(xielu_kernel::THREADS)
    xielu(const int *counts, const void *x, const void *numbers, void *out)
{
    xielu_kernel::run(counts, x, numbers, out);
}
