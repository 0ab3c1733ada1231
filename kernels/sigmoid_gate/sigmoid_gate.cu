/* SPDX-License-Identifier: Apache-2.0 */
/* sigmoid_gate as a kernel of its own: sigmoid_gate.cuh. */
#include "kernels/sigmoid_gate/sigmoid_gate.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS       \
    PARAM(ROWS) = 16;       \
    PARAM(COUNT_INDEX) = 0; \
    PARAM(WIDTH) = 4096;    \
    PARAM(X_DTYPE) = DTYPE_BF16;
#endif

struct sigmoid_gate_params {
    KERNEL_PARAMS
};
typedef sigmoid_gate_body<sigmoid_gate_params> sigmoid_gate_kernel;

extern "C" __global__ void __launch_bounds__(sigmoid_gate_kernel::THREADS)
    sigmoid_gate(const int *counts, const void *x, const void *gate, void *out)
{
    sigmoid_gate_kernel::run(counts, x, gate, out);
}
