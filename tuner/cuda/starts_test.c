/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/starts.h"
#include "formats/base/test_program.h"

#include <math.h>

#include "formats/base/test_support.h"

TEST(takes_the_fastest_of_each_kind)
{
    const struct form_time forms[] = {{0, false, 731}, {1, false, 729}, {0, true, 740}, {0, true, 728}, {1, true, 735}};
    size_t starts[MOST_STARTS];
    assert_int_equal(choose_starts(forms, 5, MOST_STARTS, starts), 4);
    assert_int_equal(starts[0], 3);
    assert_int_equal(starts[1], 1);
    assert_int_equal(starts[2], 0);
    assert_int_equal(starts[3], 4);
    assert_int_equal(choose_starts(forms, 5, 1, starts), 1);
    assert_int_equal(starts[0], 3);
}

TEST(leaves_out_the_slow_and_what_cannot_run)
{
    const struct form_time forms[] = {{0, false, 109}, {1, false, 112}, {0, true, 100}, {1, true, (double)INFINITY}};
    size_t starts[MOST_STARTS];
    assert_int_equal(choose_starts(forms, 4, MOST_STARTS, starts), 2);
    assert_int_equal(starts[0], 2);
    assert_int_equal(starts[1], 0);
    assert_int_equal(choose_starts(&forms[3], 1, MOST_STARTS, starts), 0);
    assert_int_equal(choose_starts(forms, 0, MOST_STARTS, starts), 0);
}

TEST(takes_the_first_of_equals)
{
    const struct form_time forms[] = {{1, false, 5}, {0, false, 5}, {1, false, 5}};
    size_t starts[MOST_STARTS];
    assert_int_equal(choose_starts(forms, 3, MOST_STARTS, starts), 2);
    assert_int_equal(starts[0], 0);
    assert_int_equal(starts[1], 1);
}

int main(void) { return test_run(); }
