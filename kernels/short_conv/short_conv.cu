/* SPDX-License-Identifier: Apache-2.0 */
/* short_conv as a kernel of its own: short_conv.cuh. */
#include "kernels/short_conv/short_conv.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                    \
    PARAM(ROWS) = 2048;                  \
    PARAM(COUNT_INDEX) = 0;              \
    PARAM(CHANNELS) = 8192;              \
    PARAM(KERNEL) = 4;                   \
    PARAM(GATED) = 0;                    \
    PARAM(ACTIVATION) = ACTIVATION_SILU; \
    PARAM(W_DTYPE) = DTYPE_BF16;         \
    PARAM(HAS_BIAS) = 0;                 \
    PARAM(BIAS_DTYPE) = DTYPE_F32;       \
    PARAM(RECURRENT_BYTES) = 4390912;    \
    PARAM(SLOT_COUNT) = 16;              \
    PARAM(X_DTYPE) = DTYPE_BF16;
#define PARAM_HAS_BIAS 0
#endif

struct short_conv_params {
    KERNEL_PARAMS
};
typedef short_conv_body<short_conv_params> short_conv_kernel;

extern "C" __global__ void __launch_bounds__(short_conv_kernel::THREADS)
    short_conv(const int *counts, const void *x, const void *w, void *out, const int *slots, const int *positions,
               u8 *state OPTIONAL(PARAM_HAS_BIAS, const void *bias))
{
    short_conv_kernel::run(counts, x, w, out, slots, positions, state, IF_PRESENT(PARAM_HAS_BIAS, bias));
}
