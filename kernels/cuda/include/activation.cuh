/* SPDX-License-Identifier: Apache-2.0 */
/* The activations of kernels/op/activation.cuh. */
#ifndef KERNELS_CUDA_INCLUDE_ACTIVATION_CUH
#define KERNELS_CUDA_INCLUDE_ACTIVATION_CUH

#include "kernels/cuda/include/device.cuh"
#include "kernels/op/activation.cuh"

/* value / 2 * erfc(-value / sqrt(2)), within 3e-7, and 4e-6 of the result above -5. With x = |value| / sqrt(2) and
 * t = 1 / (1 + x / 2), erfc(x) = t * exp(p(t) - x^2); p interpolates log(erfc(x) / t) + x^2 at the Chebyshev nodes of [1/6, 1].
 * erfcf needs more registers than the largest tiles of matmul leave. */
__device__ __forceinline__ float gelu_by_erfc(float value)
{
    constexpr float beyond = 14.0f; /* erfc is 0 in float32, and 1 / 6 < t */
    const float size = fabsf(value) > beyond ? beyond : fabsf(value);
    const float x = size * 0.70710678f;
    const float t = __fdividef(1.0f, 1.0f + 0.5f * x);
    float p = -0.19474163f;
    p = p * t + 0.780082931f;
    p = p * t - 1.04894112f;
    p = p * t + 0.392304935f;
    p = p * t - 0.0609186538f;
    p = p * t + 0.399914723f;
    p = p * t + 0.997725689f;
    p = p * t - 1.26542778f;
    const float tail = 0.5f * size * t * __expf(p - x * x);
    return value > 0 ? value - tail : -tail;
}

/* QUICK: the division of SILU, GELU_TANH and CLAMPED is within 2 ulp, and 0 where the divisor overflows, which is the limit; else it
 * is exact. SOFTCAP: with cap 1. CLAMPED: of a gate that is clamped. */
template <int ACTIVATION, bool QUICK> __device__ __forceinline__ float activate(float value)
{
    static_assert(ACTIVATION > ACTIVATION_NONE && ACTIVATION < ACTIVATION_COUNT, "an enum activation");
    if constexpr (ACTIVATION == ACTIVATION_GELU) {
        return gelu_by_erfc(value);
    } else if constexpr (ACTIVATION == ACTIVATION_RELU2) {
        return value < 0 ? 0 : value * value;
    } else if constexpr (ACTIVATION == ACTIVATION_RELU) {
        return value < 0 ? 0 : value;
    } else if constexpr (ACTIVATION == ACTIVATION_SOFTCAP) {
        return tanhf(value);
    } else {
        float exponent = ACTIVATION == ACTIVATION_CLAMPED ? value * (float)-CLAMPED_SLOPE : -value;
        if constexpr (ACTIVATION == ACTIVATION_GELU_TANH)
            exponent = value * (value * value * (float)(-2 * GELU_TANH_CUBIC) + (float)(-2 * GELU_TANH_LINEAR));
        const float divisor = 1.0f + __expf(exponent);
        return QUICK ? __fdividef(value, divisor) : value / divisor;
    }
}

#endif
