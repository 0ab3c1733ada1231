/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu: out[r, j] = silu(gate[r, j]) * up[r, j], gate and up in groups of 8 columns by turns (contract:
 * swiglu_device.h). A thread does one group. */
#include "kernels/cuda/include/device.cuh"

#ifndef ROWS
#define ROWS 16
#endif
#ifndef COUNT_INDEX
#define COUNT_INDEX 0
#endif
#ifndef WIDTH
#define WIDTH 8192
#endif
#ifndef X_DTYPE
#define X_DTYPE DTYPE_BF16
#endif

constexpr int SWIGLU_THREADS = 256; /* as swiglu_device.c */
constexpr int GROUPS = WIDTH / 8;   /* of a row */

__device__ __forceinline__ float silu_times(u16 gate, u16 up)
{
    const float g = float_of_half<X_DTYPE>(gate);
    return __fdividef(g, 1.0f + __expf(-g)) * float_of_half<X_DTYPE>(up);
}

__device__ __forceinline__ u32 silu_times_pair(u32 gates, u32 ups)
{
    return pack_halves<X_DTYPE>(silu_times((u16)gates, (u16)ups), silu_times((u16)(gates >> 16), (u16)(ups >> 16)));
}

extern "C" __global__ void __launch_bounds__(SWIGLU_THREADS)
    swiglu(const int *__restrict__ counts, const uint4 *__restrict__ gate_up, uint4 *__restrict__ out)
{
    device_trigger();
    const i64 group = (i64)blockIdx.x * SWIGLU_THREADS + threadIdx.x;
    device_wait();
    if (group >= (i64)ROWS * GROUPS || group >= (i64)counts[COUNT_INDEX] * GROUPS) return;
    const uint4 gate = gate_up[2 * group], up = gate_up[2 * group + 1];
    out[group] = make_uint4(silu_times_pair(gate.x, up.x), silu_times_pair(gate.y, up.y), silu_times_pair(gate.z, up.z),
                            silu_times_pair(gate.w, up.w));
}
