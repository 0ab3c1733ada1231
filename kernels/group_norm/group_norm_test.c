/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/group_norm/group_norm.h"

#include "kernels/mean_squares/mean_squares_layout.cuh"
#include "kernels/op/test_support.h"

struct shape {
    int64_t rows, valid, groups, width;
    enum dtype dtype; /* of the weight */
    bool has_means;
};

static void open_case(struct test_case *test, const struct shape *shape)
{
    const int64_t params[GROUP_NORM_PARAMS] = {
        [GROUP_NORM_ROWS] = shape->rows,          [GROUP_NORM_GROUPS] = shape->groups,
        [GROUP_NORM_WIDTH] = shape->width,        [GROUP_NORM_EPS_BITS] = test_float_bits(1e-5f),
        [GROUP_NORM_WEIGHT_DTYPE] = shape->dtype, [GROUP_NORM_HAS_MEANS] = shape->has_means,
        [GROUP_NORM_X_DTYPE] = DTYPE_F32,
    };
    test_case_open(test, &op_group_norm, params, &test_geometry, (int32_t)shape->valid);
}

static void check(const struct shape *shape)
{
    struct test_random random = {(uint64_t)(shape->rows + shape->width)};
    const size_t count = (size_t)(shape->valid * shape->width);
    struct test_case test;
    open_case(&test, shape);
    test_fill(&random, test.call.operands[GROUP_NORM_X], count, DTYPE_F32, -3, 3);
    test_fill(&random, test.call.operands[GROUP_NORM_WEIGHT], (size_t)shape->width, shape->dtype, 0.5f, 1.5f);
    if (shape->has_means)
        test_fill(&random, test.call.operands[GROUP_NORM_MEANS], (size_t)(shape->valid * MEAN_SQUARES_WIDTH), DTYPE_F32,
                  0.1f, 4);
    float *out = test.call.operands[GROUP_NORM_OUT], *expected = malloc(count * sizeof *expected);
    op_group_norm.reference(&test.call);
    memcpy(expected, out, count * sizeof *expected);
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, GROUP_NORM_OUT, run);
        test_assert_close(out, expected, count, 1e-6, 1e-5, "group norm");
        assert_true(test_is_poison(out + count, (size_t)((shape->rows - shape->valid) * shape->width) * sizeof *out));
    }
    free(expected);
    test_case_close(&test);
}

TEST(equals_reference)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, DTYPE_F32, false},  {3, 2, 3, 21, DTYPE_BF16, false},     {5, 5, 8, 512, DTYPE_F16, false},
        {9, 8, 2, 74, DTYPE_F32, false}, {40, 33, 1, 1000, DTYPE_BF16, false}, {4, 3, 1, 37, DTYPE_BF16, true},
        {7, 7, 1, 256, DTYPE_F32, true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check(&shapes[i]);
}

/* By hand: two groups of two columns, one that is of zeros; then a mean that is given. */
TEST(small_case)
{
    static const float x[4] = {3, -1, 0, 0}, weight[4] = {1, 2, 3, 4}, mean = 16;
    struct test_case test;
    open_case(&test, &(struct shape){1, 1, 2, 4, DTYPE_F32, false});
    memcpy(test.call.operands[GROUP_NORM_X], x, sizeof x);
    memcpy(test.call.operands[GROUP_NORM_WEIGHT], weight, sizeof weight);
    op_group_norm.reference(&test.call);
    static const float expected[4] = {1.3416394f, -0.8944262f, 0, 0};
    test_assert_close(test.call.operands[GROUP_NORM_OUT], expected, 4, 0, 1e-6, "two groups");
    test_case_close(&test);

    open_case(&test, &(struct shape){1, 1, 1, 4, DTYPE_F32, true});
    memcpy(test.call.operands[GROUP_NORM_X], x, sizeof x);
    memcpy(test.call.operands[GROUP_NORM_WEIGHT], weight, sizeof weight);
    memcpy(test.call.operands[GROUP_NORM_MEANS], &mean, sizeof mean);
    op_group_norm.reference(&test.call);
    static const float of_mean[4] = {0.75f, -0.5f, 0, 0};
    test_assert_close(test.call.operands[GROUP_NORM_OUT], of_mean, 4, 0, 1e-6, "a mean that is given");
    test_case_close(&test);
}

TEST(hostile_params_are_refused)
{
    struct test_case test;
    open_case(&test, &(struct shape){3, 3, 2, 16, DTYPE_F32, false});
    test_refuses(&op_group_norm, test.params, &test.geometry,
                 TEST_CHANGES({GROUP_NORM_GROUPS, 0}, {GROUP_NORM_GROUPS, 3}, {GROUP_NORM_WIDTH, 17},
                              {GROUP_NORM_HAS_MEANS, 1}, {GROUP_NORM_ROWS, -1}, {GROUP_NORM_X_DTYPE, 0}));
    test_hostile_params(&op_group_norm, test.params, &test.geometry);
    test_case_close(&test);
}

int main(void) { return test_run(); }
