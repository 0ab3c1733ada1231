/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu: out[r, j] = act(gate[r, j]) * up[r, j], gate and up in groups of 8 columns by turns (contract:
 * swiglu.h). A thread does one group. */
#ifndef KERNELS_SWIGLU_SWIGLU_CUH
#define KERNELS_SWIGLU_SWIGLU_CUH

#include "kernels/cuda/include/activation.cuh"
#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"

template <class P> struct swiglu_body {
    static constexpr int THREADS = LAYOUT_ELEMENTWISE_THREADS;
    static constexpr int GROUPS = P::WIDTH / 8; /* of a row */

    static __device__ __forceinline__ float gated(u16 gate, u16 up)
    {
        return activate<P::ACTIVATION, true>(float_of_half<P::X_DTYPE>(gate)) * float_of_half<P::X_DTYPE>(up);
    }

    static __device__ __forceinline__ u32 gated_pair(u32 gates, u32 ups)
    {
        return pack_halves<P::X_DTYPE>(gated((u16)gates, (u16)ups), gated((u16)(gates >> 16), (u16)(ups >> 16)));
    }

    static __device__ __forceinline__ void run(const int *counts, const uint4 *gate_up, uint4 *out)
    {
        device_trigger();
        const i64 group = (i64)blockIdx.x * THREADS + threadIdx.x;
        device_wait();
        if (group >= (i64)P::ROWS * GROUPS || group >= (i64)counts[P::COUNT_INDEX] * GROUPS) return;
        const uint4 gate = gate_up[2 * group], up = gate_up[2 * group + 1];
        out[group] = make_uint4(gated_pair(gate.x, up.x), gated_pair(gate.y, up.y), gated_pair(gate.z, up.z),
                                gated_pair(gate.w, up.w));
    }
};

#endif
