/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/engine/golden.h"

#include "formats/base/test_support.h"

/* The chunks of as many items as a mixed plan takes fit its rows, however small it is. */
TEST(items_of_mixed_plans_fit)
{
    enum { MOST_ROWS = 70, POSITION = 1000 };
    static const struct golden_row rows[] = {{.position = POSITION}};
    static const uint32_t items[MOST_ROWS] = {0};
    const struct golden_cases cases = {.rows = rows, .items = items};
    for (uint32_t count = 1; count <= MOST_ROWS; count++)
        for (uint32_t out_rows = 1; out_rows <= count; out_rows++) {
            const struct plan_header header = {.kind = PLAN_MIXED, .rows = count, .out_rows = out_rows};
            const struct golden_case one = {.kind = PLAN_MIXED, .rows = count, .count = golden_most_items(&header)};
            uint32_t sum = 0;
            for (uint32_t i = 0; i < golden_case_items(&one); i++) sum += golden_chunk(&cases, &one, i);
            assert_true(golden_case_items(&one) >= 1 && golden_case_items(&one) <= out_rows);
            assert_true(sum >= 1 && sum <= count);
            if (out_rows == count && count > 3) assert_true(golden_case_items(&one) > GOLDEN_MIXED_CHUNKS);
        }
}

TEST(chunks_begin_in_the_sequence)
{
    static const struct golden_row rows[] = {{.position = 2}, {.position = 40}};
    static const uint32_t items[] = {0, 0, 1};
    const struct golden_cases cases = {.rows = rows, .items = items};
    const struct golden_case mixed = {.kind = PLAN_MIXED, .rows = 64, .count = 3};
    const struct golden_case decode = {.kind = PLAN_DECODE, .rows = 64, .count = 3};
    const struct golden_case prefill = {.kind = PLAN_PREFILL, .rows = 64, .count = 17};
    assert_int_equal(golden_chunk(&cases, &mixed, 0), 3);
    assert_int_equal(golden_chunk(&cases, &mixed, 1), 3);
    assert_int_equal(golden_chunk(&cases, &mixed, 2), 1);
    assert_int_equal(golden_chunk(&cases, &decode, 0), 1);
    assert_int_equal(golden_chunk(&cases, &prefill, 0), 17);
    assert_int_equal(golden_case_items(&mixed), 3);
    assert_int_equal(golden_case_items(&prefill), 1);
}

TEST(out_rows_end_their_slots)
{
    static const int32_t slots[] = {3, 3, 3, 0, 5, 5};
    int32_t found[4] = {-1, -1, -1, -1};
    golden_out_rows(&(struct golden_step){.count = 6, .out_rows = 3, .slots = slots}, found);
    assert_int_equal(found[0], 2);
    assert_int_equal(found[1], 3);
    assert_int_equal(found[2], 5);
    assert_int_equal(found[3], -1);
    golden_out_rows(&(struct golden_step){.count = 6, .slots = slots}, found + 3);
    assert_int_equal(found[3], -1);
}

TEST(what_follows_a_row)
{
    static const int32_t slots[] = {3, 3, 0, 5, 5}, tokens[] = {10, 11, 12, 13, 14};
    int32_t found[5];
    struct golden_step step = {.count = 5, .out_rows = 3, .tokens = tokens, .slots = slots, .after = 99};
    golden_following(&step, found);
    static const int32_t drawn[] = {11, ~0, ~1, 14, ~2};
    assert_memory_equal(found, drawn, sizeof drawn);
    step = (struct golden_step){.count = 2, .tokens = tokens, .slots = slots, .after = 99};
    golden_following(&step, found);
    assert_int_equal(found[0], 11);
    assert_int_equal(found[1], 99);
}

int main(void) { return test_run(); }
