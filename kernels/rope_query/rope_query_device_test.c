/* SPDX-License-Identifier: Apache-2.0 */
/* rope_query on the GPU against the reference, also where the output takes the place of the input. */
#include "kernels/cuda/test_launch.h"
#include "kernels/rope_query/rope_query.h"

static void check(int64_t rows, int64_t valid, int64_t heads, int64_t head_dim, int64_t rotary_dim, enum dtype norm,
                  enum dtype dtype, bool in_place)
{
    const int64_t params[ROPE_QUERY_PARAMS] = {[ROPE_QUERY_ROWS] = rows,
                                               [ROPE_QUERY_HEADS] = heads,
                                               [ROPE_QUERY_HEAD_DIM] = head_dim,
                                               [ROPE_QUERY_ROTARY_DIM] = rotary_dim,
                                               [ROPE_QUERY_HAS_NORM] = norm != DTYPE_NONE,
                                               [ROPE_QUERY_NORM_DTYPE] = norm == DTYPE_NONE ? DTYPE_F32 : norm,
                                               [ROPE_QUERY_EPS_BITS] = test_float_bits(1e-6f),
                                               [ROPE_QUERY_X_DTYPE] = dtype};
    struct test_random random = {(uint64_t)(rows * 5 + head_dim)};
    struct test_launch launch;
    test_launch_open(&launch, &device_rope_query, params, valid);
    test_launch_fill(&launch, ROPE_QUERY_X, &random, -2, 2);
    test_launch_fill(&launch, ROPE_QUERY_TABLE, &random, -1, 1);
    if (norm != DTYPE_NONE) test_launch_fill(&launch, ROPE_QUERY_NORM, &random, 0.5f, 1.5f);
    struct op_call call = test_launch_call(&launch);
    const size_t count = (size_t)(valid * heads * head_dim);
    float *expected = test_take(&launch.memory, test_launch_count(&launch, ROPE_QUERY_OUT) * sizeof *expected);
    call.operands[ROPE_QUERY_X] = test_launch_decode(&launch, ROPE_QUERY_X);
    call.operands[ROPE_QUERY_OUT] = expected;
    op_rope_query.reference(&call);
    if (in_place) test_launch_alias(&launch, ROPE_QUERY_X, ROPE_QUERY_OUT);
    test_launch_run(&launch);
    test_assert_close(test_launch_found(&launch, ROPE_QUERY_OUT), expected, count, 4e-6,
                      dtype == DTYPE_F16 ? 5.5e-4 : 4.4e-3, "q");
    test_launch_assert_rows_untouched(&launch, ROPE_QUERY_OUT);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 8, 512, 512, DTYPE_BF16, DTYPE_BF16, true);
    check(33, 31, 8, 256, 256, DTYPE_BF16, DTYPE_BF16, false);
    check(9, 7, 3, 128, 32, DTYPE_F32, DTYPE_F16, true);
    check(5, 5, 2, 20, 6, DTYPE_NONE, DTYPE_BF16, false);
    check(3, 2, 1, 254, 2, DTYPE_F16, DTYPE_F16, false);
    check(700, 650, 32, 512, 512, DTYPE_BF16, DTYPE_BF16, true);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[ROPE_QUERY_PARAMS] = {4, 0, 8, 64, 32, 1, DTYPE_BF16, test_float_bits(1e-6f), DTYPE_BF16};
    test_hostile_launches(&device_rope_query, params);
    test_launch_refuses(&device_rope_query, params,
                        TEST_CHANGES({ROPE_QUERY_HEADS, 0}, {ROPE_QUERY_HEAD_DIM, 63}, {ROPE_QUERY_ROTARY_DIM, 66},
                                     {ROPE_QUERY_ROTARY_DIM, 31}, {ROPE_QUERY_X_DTYPE, DTYPE_F32},
                                     {ROPE_QUERY_X_DTYPE, DTYPE_F8_E4M3}, {ROPE_QUERY_NORM_DTYPE, DTYPE_F8_E4M3}));
}

int main(void) { return test_run(); }
