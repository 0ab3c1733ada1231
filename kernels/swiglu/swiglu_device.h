/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu on the GPU: out[r, j] = act(gate[r, j]) * up[r, j], for a gate/up projection that
 * was not fused with it. Columns 16i..16i+7 of GATE_UP are gate columns 8i..8i+7, columns 16i+8..16i+15 are up columns
 * 8i..8i+7. Float32 inside, relative error 3e-6 before the rounding to X_DTYPE. */
#ifndef KERNELS_SWIGLU_SWIGLU_DEVICE_H
#define KERNELS_SWIGLU_SWIGLU_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/swiglu/swiglu.h"

extern const struct device_kernel device_swiglu;

#endif
