/* SPDX-License-Identifier: Apache-2.0 */
/* quantise: rows of codes of 8 bits for tensor cores that multiply them (GPUs).
 *
 *   scales[r] = largest |x[r, k]| / L,  out[r, place(k)] = code of x[r, k] / scales[r], rounded to nearest even
 *
 * Codes are e4m3 (OUT_DTYPE F8_E4M3, L = 448) or int8 (I8, L = 127; -128 does not occur).
 *
 * Order: of each QUANTISE_GROUP elements, code 4 t + i (t, i from 0 to 3) is of element 2 t + i / 2 + 8 * (i % 2). A thread of
 * mma.m16n8k16 has these four of a row, in this order where a mask takes the codes of 4 bits of two rows apart, and so weights in
 * FRAGMENT16 layout (kernels/matmul/panel.h) are multiplied as they lie.
 *
 * Zeros have the code 0. A row of zeros has the scale 0 and codes of 0, one with a NaN or an infinity the scale NaN and codes of 0. x / scale is rounded as
 * a float32 before it is rounded to a code. A row's result does not depend on the other rows. Rows at and after the count:
 * outputs unspecified. */
#ifndef KERNELS_QUANTISE_QUANTISE_H
#define KERNELS_QUANTISE_QUANTISE_H

#include "kernels/op/op.h"

enum { QUANTISE_GROUP = 16 };

/* Element of a group whose code is at `place` (0 to 15). */
static inline int quantise_element(int place) { return place / 4 * 2 + place % 4 / 2 + place % 2 * 8; }

enum quantise_operand {
    QUANTISE_COUNTS,
    QUANTISE_X,      /* X_DTYPE[rows, WIDTH] */
    QUANTISE_OUT,    /* OUT_DTYPE[rows, WIDTH] */
    QUANTISE_SCALES, /* f32[rows] */
    QUANTISE_OPERANDS
};
enum quantise_param {
    QUANTISE_ROWS,
    QUANTISE_COUNT_INDEX,
    QUANTISE_WIDTH, /* a multiple of QUANTISE_GROUP */
    QUANTISE_X_DTYPE,
    QUANTISE_OUT_DTYPE, /* F8_E4M3 or I8 */
    QUANTISE_PARAMS
};

enum quantise_device_param {
    QUANTISE_THREADS =
        QUANTISE_PARAMS, /* tunable: a multiple of 32 in 32..1024, at least WIDTH / 128; one block per row */
    QUANTISE_DEVICE_PARAMS
};

extern const struct op_descriptor op_quantise;
extern const struct device_kernel device_quantise;

#endif
