/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the device kernels of all_reduce share: sums are compared as bits, norms with float64. */
#ifndef KERNELS_ALL_REDUCE_TEST_ALL_REDUCE_H
#define KERNELS_ALL_REDUCE_TEST_ALL_REDUCE_H

#include "kernels/cuda/test_launch.h"

extern const float all_reduce_test_eps;
extern const enum dtype all_reduce_test_dtypes[3]; /* BF16, F16, F32 */

/* Row `row`: the same bits; for NaN any NaN. */
void all_reduce_check_row(const float *expected, const float *found, int64_t width, int64_t row, const char *what);
/* normed: of `dtype`, [width]: out, normalised with this weight. */
void all_reduce_check_normed_row(const float *out, const float *weight, const void *normed, enum dtype dtype,
                                 int64_t width, int64_t row, const char *what);

#endif
