/* SPDX-License-Identifier: Apache-2.0 */
/* Epilogue of a matmul: bias, activation, scale, residual, store. EPILOGUE is one of kernels/op/activation.cuh. */
#ifndef KERNELS_CUDA_INCLUDE_EPILOGUE_CUH
#define KERNELS_CUDA_INCLUDE_EPILOGUE_CUH

#include "kernels/cuda/include/activation.cuh"
#include "kernels/cuda/include/element.cuh"

/* Rows of W come in groups of 8 by turns, gate and up, and out has a column for each pair. */
__device__ constexpr bool epilogue_is_gated(int epilogue) { return EPILOGUE_IS_GATED(epilogue); }

template <class P, bool QUICK> __device__ __forceinline__ float gated_product(float gate, float up)
{
    if constexpr (P::EPILOGUE == ACTIVATION_CLAMPED) {
        const float limit = float_of_bits(P::CAP_BITS);
        gate = gate > limit ? limit : gate; /* NaN stays */
        up = (up > limit ? limit : up < -limit ? -limit : up) + 1;
    }
    return activate<P::EPILOGUE, QUICK>(gate) * up;
}

/* A product without a gate. */
template <class P, bool QUICK> __device__ __forceinline__ float plain_product(float value)
{
    constexpr int ACTIVATION = EPILOGUE_ACTIVATION(P::EPILOGUE);
    if constexpr (ACTIVATION == ACTIVATION_NONE) return value;
    if constexpr (ACTIVATION == ACTIVATION_SOFTCAP)
        return float_of_bits(P::CAP_BITS) * activate<ACTIVATION, QUICK>(value / float_of_bits(P::CAP_BITS));
    if constexpr (ACTIVATION != ACTIVATION_NONE && ACTIVATION != ACTIVATION_SOFTCAP)
        return activate<ACTIVATION, QUICK>(value);
}

/* Bias of the rows `n` and n + 8 of W, both of whose sums a thread holds. */
struct bias_pair {
    float low, high;
};
template <bool HAS_BIAS, int BIAS_DTYPE>
__device__ __forceinline__ bias_pair load_bias(const void *bias, int n, int columns)
{
    bias_pair pair = {0, 0};
    if constexpr (HAS_BIAS) {
        if (n < columns) pair.low = load_element<BIAS_DTYPE>(bias, n);
        if (n + 8 < columns) pair.high = load_element<BIAS_DTYPE>(bias, n + 8);
    }
    return pair;
}

/* Stores 16 bytes of a row of out, staged in OUT_DTYPE, from `index` on. `left`: columns of the row from there on.
 * ALIGNED: rows begin at multiples of 16 bytes, and `add` is the residual; otherwise the residual is read here. */
template <int OUT_DTYPE, bool HAS_RESIDUAL, bool ALIGNED>
__device__ __forceinline__ void store_staged(void *out, const float *residual, i64 index, int left, uint4 bits,
                                             float4 add)
{
    constexpr int OUT_BYTES = OUT_DTYPE == DTYPE_F32 ? 4 : 2, VECTOR = 16 / OUT_BYTES;
    static_assert(!HAS_RESIDUAL || OUT_DTYPE == DTYPE_F32, "a residual is added to float32");
    if constexpr (ALIGNED) {
        if constexpr (HAS_RESIDUAL) {
            bits.x = bits_of_float(float_of_bits(bits.x) + add.x);
            bits.y = bits_of_float(float_of_bits(bits.y) + add.y);
            bits.z = bits_of_float(float_of_bits(bits.z) + add.z);
            bits.w = bits_of_float(float_of_bits(bits.w) + add.w);
        }
        *(uint4 *)((u8 *)out + index * OUT_BYTES) = bits;
    } else {
        const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if (i >= left) continue;
            if constexpr (OUT_BYTES == 4) {
                float value = float_of_bits(words[i]);
                if constexpr (HAS_RESIDUAL) value += residual[index + i];
                ((float *)out)[index + i] = value;
            } else {
                ((u16 *)out)[index + i] = (u16)(words[i / 2] >> (i % 2 * 16));
            }
        }
    }
}

#endif
