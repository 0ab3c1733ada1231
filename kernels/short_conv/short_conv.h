/* SPDX-License-Identifier: Apache-2.0 */
/* short_conv: a causal convolution over the latest KERNEL tokens of a sequence, of each channel by itself.
 *
 *   v[r, c]   = x[r, c], with GATED x[r, c] * x[r, 2 * CHANNELS + c]
 *   y[r, c]   = act(sum over j < KERNEL of w[c, j] * v[r - (KERNEL - 1) + j, c]  (+ bias[c]))
 *   out[r, c] = y[r, c], with GATED x[r, CHANNELS + c] * y[r, c]
 *
 * where rows before the sequence's first are 0. The state (kernels/op/recurrent.h) is f32[KERNEL - 1, CHANNELS]: v of the latest
 * tokens, the oldest first. float32; the sum is in the order of j, whatever else is in the step. GPUs: v, sums and the state are float32,
 * the output is rounded once to X_DTYPE, and the kernels take KERNEL up to 16 as the CPU does. */
#ifndef KERNELS_SHORT_CONV_SHORT_CONV_H
#define KERNELS_SHORT_CONV_SHORT_CONV_H

#include "kernels/op/op.h"

enum { SHORT_CONV_MAX_KERNEL = 16 };

enum short_conv_operand {
    SHORT_CONV_COUNTS,
    SHORT_CONV_X,         /* X_DTYPE[rows, CHANNELS], with GATED [rows, 3 * CHANNELS] */
    SHORT_CONV_W,         /* W_DTYPE[CHANNELS, KERNEL] */
    SHORT_CONV_OUT,       /* X_DTYPE[rows, CHANNELS] */
    SHORT_CONV_SLOTS,     /* i32[rows] */
    SHORT_CONV_POSITIONS, /* i32[rows] */
    SHORT_CONV_STATE,
    SHORT_CONV_BIAS, /* HAS_BIAS: BIAS_DTYPE[CHANNELS] */
    SHORT_CONV_OPERANDS
};
enum short_conv_param {
    SHORT_CONV_ROWS,
    SHORT_CONV_COUNT_INDEX,
    SHORT_CONV_CHANNELS,
    SHORT_CONV_KERNEL, /* 2 to SHORT_CONV_MAX_KERNEL */
    SHORT_CONV_GATED,
    SHORT_CONV_ACTIVATION, /* enum activation: NONE or SILU */
    SHORT_CONV_W_DTYPE,
    SHORT_CONV_HAS_BIAS,
    SHORT_CONV_BIAS_DTYPE,
    SHORT_CONV_RECURRENT_BYTES,
    SHORT_CONV_SLOT_COUNT,
    SHORT_CONV_X_DTYPE, /* CPU: F32 */
    SHORT_CONV_PARAMS
};

/* Bytes of a layer's part of a slot's state. */
static inline uint64_t short_conv_state_bytes(uint64_t channels, uint64_t kernel)
{
    return (kernel - 1) * channels * sizeof(float);
}

extern const struct op_descriptor op_short_conv;
extern const struct device_kernel device_short_conv;
op_cost short_conv_cost;

#endif
