/* SPDX-License-Identifier: Apache-2.0 */
/* Random coded weights for tests. */
#ifndef KERNELS_MATMUL_TEST_CODED_H
#define KERNELS_MATMUL_TEST_CODED_H

#include "kernels/matmul/panel.h"
#include "kernels/op/test_support.h"

/* Buffers for a row of k elements. */
void test_coded_row_open(struct test_memory *memory, uint64_t k, struct coded_row *row);
/* Codes at random, all of which are numbers, with scales that make elements of about 1; and what they stand for:
 * values[k], which may be NULL. */
void test_coded_row(struct test_random *random, const struct panel_form *form, uint64_t k, struct coded_row *row,
                    float *values);
/* A packed matrix [n, k] of such rows, and its values[n, k]. `panels` has whole panels; rows after the last are 0. */
void test_coded_matrix(struct test_random *random, const struct panel_form *form, uint64_t panel_size, uint64_t n,
                       uint64_t k, uint8_t *panels, float *values);

#endif
