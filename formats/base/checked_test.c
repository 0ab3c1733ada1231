/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/checked.h"

#include "formats/base/test_support.h"

TEST(test_arithmetic)
{
    uint64_t out;
    assert_true(checked_add(UINT64_MAX - 1, 1, &out));
    assert_true(out == UINT64_MAX);
    assert_false(checked_add(UINT64_MAX, 1, &out));
    assert_true(checked_sub(5, 5, &out));
    assert_true(out == 0);
    assert_false(checked_sub(5, 6, &out));
    assert_true(checked_mul(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &out));
    assert_true(out == UINT64_MAX - UINT32_MAX);
    assert_false(checked_mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
}

TEST(test_align)
{
    uint64_t out;
    static const uint64_t cases[][3] = {{0, 64, 0}, {1, 64, 64}, {64, 64, 64}, {65, 64, 128}, {7, 1, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(checked_align(cases[i][0], cases[i][1], &out));
        assert_true(out == cases[i][2]);
    }
    assert_true(checked_align(UINT64_MAX - 63, 64, &out));
    assert_false(checked_align(UINT64_MAX - 62, 64, &out));
}

TEST(test_product)
{
    uint64_t out;
    assert_true(checked_product(NULL, 0, &out));
    assert_true(out == 1);
    assert_true(checked_product((const uint64_t[]){3, 5, 7}, 3, &out));
    assert_true(out == 105);
    assert_true(checked_product((const uint64_t[]){0, UINT64_MAX, UINT64_MAX}, 3, &out));
    assert_true(out == 0);
    assert_false(checked_product((const uint64_t[]){UINT64_MAX, 2, 0}, 3, &out));
}

TEST(test_range)
{
    assert_true(checked_range(0, 0, 0));
    assert_true(checked_range(10, 0, 10));
    assert_true(checked_range(4, 6, 10));
    assert_false(checked_range(4, 7, 10));
    assert_false(checked_range(11, 0, 10));
    assert_false(checked_range(UINT64_MAX, 2, UINT64_MAX));
    assert_false(checked_range(2, UINT64_MAX, UINT64_MAX));
}

int main(void) { return test_run(); }
