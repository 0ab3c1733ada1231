/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_reduce/test_all_reduce.h"

#include <math.h>

const float all_reduce_test_eps = 1e-5f;
const enum dtype all_reduce_test_dtypes[3] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};

void all_reduce_check_row(const float *expected, const float *found, int64_t width, int64_t row, const char *what)
{
    for (int64_t c = 0; c < width; c++)
        if (isnan(expected[c]) ? !isnan(found[c]) : float_to_bits(found[c]) != float_to_bits(expected[c]))
            fail_msg("%s: row %d, column %d: expected %.9g, found %.9g", what, (int)row, (int)c, (double)expected[c],
                     (double)found[c]);
}

void all_reduce_check_normed_row(const float *out, const float *weight, const void *normed, enum dtype dtype,
                                 int64_t width, int64_t row, const char *what)
{
    const double tolerance = dtype == DTYPE_F32 ? 2e-6 : dtype == DTYPE_F16 ? 5.5e-4 : 4.4e-3;
    double squares = 0;
    for (int64_t c = 0; c < width; c++) squares += (double)out[c] * (double)out[c];
    const double factor = 1 / sqrt(squares / (double)width + (double)all_reduce_test_eps);
    for (int64_t c = 0; c < width; c++) {
        const double expected = (double)out[c] * factor * (double)weight[c];
        const double found = (double)op_element(normed, c, dtype);
        const bool ok = isnan(expected) ? isnan(found) : fabs(found - expected) <= 1e-6 + tolerance * fabs(expected);
        if (!ok)
            fail_msg("%s: normed row %d, column %d: expected %.9g, found %.9g", what, (int)row, (int)c, expected,
                     found);
    }
}
