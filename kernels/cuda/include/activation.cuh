/* SPDX-License-Identifier: Apache-2.0 */
/* Activations. A further one is a further value of enum activation_kind and a case of activate(). */
#ifndef KERNELS_CUDA_INCLUDE_ACTIVATION_CUH
#define KERNELS_CUDA_INCLUDE_ACTIVATION_CUH

#include "kernels/cuda/include/device.cuh"

enum activation_kind { ACTIVATION_SILU };

/* QUICK: the division is within 2 ulp, and 0 where the divisor overflows, which is the limit; else it is exact. */
template <int ACTIVATION, bool QUICK> __device__ __forceinline__ float activate(float value)
{
    static_assert(ACTIVATION == ACTIVATION_SILU, "an enum activation_kind");
    const float divisor = 1.0f + __expf(-value);
    return QUICK ? __fdividef(value, divisor) : value / divisor;
}

#endif
