/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a KV pool in the tests of the ops on it. */
#ifndef KERNELS_CPU_TEST_PAGES_H
#define KERNELS_CPU_TEST_PAGES_H

#include "kernels/cpu/pages.h"
#include "kernels/op/test_support.h"

/* Numbers in [-1, 1] for the keys and the values of a token, of all heads that have none yet. `params`: of the op. Codes of
 * e4m3 are all but NaN. */
void test_pages_fill(struct test_random *random, const struct pages *pages, const int64_t *params, int64_t slot,
                     int64_t token);

/* Two pools with codes, `bytes` each, whose layer's block is at `layer`, after a launch that appended rows [0, count):
 * scales of keys, with_values of values, too, may differ by rounding and codes by one step, all else is equal. `pages`: of one of them. */
void test_pages_assert_coded_close(const struct pages *pages, const int64_t *params, const int32_t *slots,
                                   const int32_t *positions, int64_t count, size_t layer, bool with_values,
                                   const void *found, const void *expected, size_t bytes);

/* The same of pools of 16-bit numbers, which may differ by `relative`. What no row has written is poison in both. */
void test_pages_assert_close(const void *found, const void *expected, size_t bytes, enum dtype dtype, double relative);

#endif
