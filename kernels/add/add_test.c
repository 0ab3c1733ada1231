/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/add/add.h"
#include "kernels/op/test_support.h"

TEST(adds)
{
    struct test_random random = {1};
    for (int round = 0; round < 60; round++) {
        int64_t rows = test_random_range(&random, 1, 9), width = test_random_range(&random, 1, round < 40 ? 70 : 5000);
        int64_t valid = test_random_range(&random, 0, rows);
        const int64_t params[ADD_PARAMS] = {rows, 0, width};
        int alias = round % 3; /* out apart, out = a, out = b */
        TEST_FOR_EACH_ISA(isa)
        {
            struct test_case test;
            test_case_open(&test, &op_add, params, &test_geometry, (int32_t)valid);
            size_t count = (size_t)(valid * width), all = (size_t)(rows * width);
            float *a = test.call.operands[ADD_A], *b = test.call.operands[ADD_B];
            test_fill(&random, a, count, DTYPE_F32, -2, 2);
            test_fill(&random, b, count, DTYPE_F32, -2, 2);
            float *expected = malloc(all * sizeof *expected);
            for (size_t i = 0; i < count; i++) expected[i] = a[i] + b[i];
            if (alias) test.call.operands[ADD_OUT] = alias == 1 ? a : b;
            float *out = test.call.operands[ADD_OUT];
            test_run_op(&op_add, isa, &test.call, test_teams[round % TEST_TEAMS]);
            test_assert_same_bits(out, expected, count * sizeof *out, "add");
            assert_true(test_is_poison(out + count, (all - count) * sizeof *out));
            free(expected);
            test_case_close(&test);
        }
    }
}

TEST(reference_adds)
{
    const int64_t params[ADD_PARAMS] = {2, 1, 3};
    struct test_case test;
    test_case_open(&test, &op_add, params, &test_geometry, 1);
    const float a[3] = {1, 2, 3}, b[3] = {10, 20, 30}, sum[3] = {11, 22, 33};
    memcpy(test.call.operands[ADD_A], a, sizeof a);
    memcpy(test.call.operands[ADD_B], b, sizeof b);
    op_add.reference(&test.call);
    test_assert_same_bits(test.call.operands[ADD_OUT], sum, sizeof sum, "reference");
    test_case_close(&test);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[ADD_PARAMS] = {4, 0, 64};
    test_hostile_params(&op_add, params, &test_geometry);
    test_refuses(&op_add, params, &test_geometry, TEST_CHANGES({ADD_WIDTH, 0}, {ADD_WIDTH, (int64_t)INT32_MAX + 1}));
}

int main(void) { return test_run(); }
