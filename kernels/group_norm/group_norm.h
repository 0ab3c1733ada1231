/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm: root mean square norm of each of GROUPS equal groups of columns.
 *
 *   out[r, c] = x[r, c] / sqrt(mean of x[r, columns of c's group]^2 + EPS) * weight[c]
 *
 * With HAS_MEANS (GROUPS is 1) the mean comes from there: ranks share the columns, and mean_squares and all_reduce made it. float32; a
 * row's result does not depend on the other rows. GPUs: rounded once to X_DTYPE; operands begin at multiples of 16 bytes. */
#ifndef KERNELS_GROUP_NORM_GROUP_NORM_H
#define KERNELS_GROUP_NORM_GROUP_NORM_H

#include "kernels/op/op.h"

enum group_norm_operand {
    GROUP_NORM_COUNTS,
    GROUP_NORM_X,      /* X_DTYPE[rows, WIDTH] */
    GROUP_NORM_WEIGHT, /* WEIGHT_DTYPE[WIDTH] */
    GROUP_NORM_OUT,    /* X_DTYPE[rows, WIDTH] */
    GROUP_NORM_MEANS, /* HAS_MEANS: f32[rows, MEAN_SQUARES_WIDTH], the sum over ranks of mean_squares' output; its first column */
    GROUP_NORM_OPERANDS
};
enum group_norm_param {
    GROUP_NORM_ROWS,
    GROUP_NORM_COUNT_INDEX,
    GROUP_NORM_GROUPS,
    GROUP_NORM_WIDTH, /* a multiple of GROUPS */
    GROUP_NORM_EPS_BITS,
    GROUP_NORM_WEIGHT_DTYPE,
    GROUP_NORM_HAS_MEANS,
    GROUP_NORM_X_DTYPE, /* CPU: F32 */
    GROUP_NORM_PARAMS
};

extern const struct op_descriptor op_group_norm;
extern const struct device_kernel device_group_norm;
op_cost group_norm_cost;

#endif
