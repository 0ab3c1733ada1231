/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu on the GPU: out[r, j] = silu(gate[r, j]) * up[r, j], silu(g) = g / (1 + exp(-g)), for a gate/up projection that
 * was not fused with it. Columns 16i..16i+7 of GATE_UP are gate columns 8i..8i+7, columns 16i+8..16i+15 are up columns
 * 8i..8i+7. Float32 inside, relative error 3e-6 before the rounding to X_DTYPE. */
#ifndef KERNELS_SWIGLU_SWIGLU_DEVICE_H
#define KERNELS_SWIGLU_SWIGLU_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/swiglu/swiglu.h"

enum {
    SWIGLU_DEVICE_COUNTS = SWIGLU_COUNTS,
    SWIGLU_DEVICE_GATE_UP = SWIGLU_GATE_UP,
    SWIGLU_DEVICE_OUT = SWIGLU_OUT,
    SWIGLU_DEVICE_OPERANDS = SWIGLU_OPERANDS,
    SWIGLU_DEVICE_ROWS = SWIGLU_ROWS,
    SWIGLU_DEVICE_COUNT_INDEX = SWIGLU_COUNT_INDEX,
    SWIGLU_DEVICE_WIDTH = SWIGLU_WIDTH,
    SWIGLU_DEVICE_X_DTYPE = SWIGLU_X_DTYPE,
    SWIGLU_DEVICE_PARAMS = SWIGLU_PARAMS
};
extern const struct device_kernel device_swiglu;

#endif
