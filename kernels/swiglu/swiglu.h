/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu: out[r, i] = silu(gate[r, i]) * up[r, i]. Shazeer 2020. Usually fused into the matmul; this is the plain form. */
#ifndef KERNELS_SWIGLU_SWIGLU_H
#define KERNELS_SWIGLU_SWIGLU_H

#include "kernels/op/op.h"

enum swiglu_operand {
    SWIGLU_COUNTS,
    SWIGLU_GATE, /* f32[rows, WIDTH] */
    SWIGLU_UP,   /* f32[rows, WIDTH] */
    SWIGLU_OUT,  /* f32[rows, WIDTH]; may be GATE or UP */
    SWIGLU_OPERANDS
};
enum swiglu_param { SWIGLU_ROWS, SWIGLU_COUNT_INDEX, SWIGLU_WIDTH, SWIGLU_PARAMS };

extern const struct op_descriptor op_swiglu;
void swiglu_reference(const struct op_call *call);

#endif
