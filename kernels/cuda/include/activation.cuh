/* SPDX-License-Identifier: Apache-2.0 */
/* The activations of kernels/op/activation.cuh. */
#ifndef KERNELS_CUDA_INCLUDE_ACTIVATION_CUH
#define KERNELS_CUDA_INCLUDE_ACTIVATION_CUH

#include "kernels/cuda/include/device.cuh"
#include "kernels/op/activation.cuh"

/* QUICK: the division of SILU and GELU_TANH is within 2 ulp, and 0 where the divisor overflows, which is the limit; else it
 * is exact. SOFTCAP: with cap 1. */
template <int ACTIVATION, bool QUICK> __device__ __forceinline__ float activate(float value)
{
    static_assert(ACTIVATION > ACTIVATION_NONE && ACTIVATION <= ACTIVATION_SOFTCAP, "an activation with device code");
    if constexpr (ACTIVATION == ACTIVATION_GELU) {
        return value * 0.5f * erfcf(value * -0.70710678f);
    } else if constexpr (ACTIVATION == ACTIVATION_RELU2) {
        return value < 0 ? 0 : value * value;
    } else if constexpr (ACTIVATION == ACTIVATION_SOFTCAP) {
        return tanhf(value);
    } else {
        float exponent = -value;
        if constexpr (ACTIVATION == ACTIVATION_GELU_TANH)
            exponent = value * (value * value * (float)(-2 * GELU_TANH_CUBIC) + (float)(-2 * GELU_TANH_LINEAR));
        const float divisor = 1.0f + __expf(exponent);
        return QUICK ? __fdividef(value, divisor) : value / divisor;
    }
}

#endif
