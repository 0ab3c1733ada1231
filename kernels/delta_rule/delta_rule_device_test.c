/* SPDX-License-Identifier: Apache-2.0 */
/* delta_rule on the GPU against the reference, from launch to launch, with several tactics of each problem. */
#include "kernels/cuda/registry.h"
#include "kernels/cuda/test_recurrent.h"
#include "kernels/delta_rule/delta_rule.h"

struct shape {
    int64_t rows, key_heads, value_heads, key_dim, value_dim;
    enum dtype dtype, x_dtype;
    bool scattered;
    int steps;
};

static void fill_params(const struct shape *shape, int64_t *params)
{
    const uint64_t part =
        delta_rule_state_bytes((uint64_t)shape->value_heads, (uint64_t)shape->key_dim, (uint64_t)shape->value_dim);
    const int64_t values[DELTA_RULE_PARAMS] = {
        [DELTA_RULE_ROWS] = shape->rows,
        [DELTA_RULE_KEY_HEADS] = shape->key_heads,
        [DELTA_RULE_VALUE_HEADS] = shape->value_heads,
        [DELTA_RULE_KEY_DIM] = shape->key_dim,
        [DELTA_RULE_VALUE_DIM] = shape->value_dim,
        [DELTA_RULE_EPS_BITS] = test_float_bits(1e-6f),
        [DELTA_RULE_A_DTYPE] = shape->dtype,
        [DELTA_RULE_DT_DTYPE] = shape->dtype,
        [DELTA_RULE_NORM_DTYPE] = shape->dtype,
        [DELTA_RULE_RECURRENT_BYTES] = test_recurrent_bytes(part),
        [DELTA_RULE_SLOT_COUNT] = TEST_RECURRENT_SLOTS,
        [DELTA_RULE_X_DTYPE] = shape->x_dtype,
        [DELTA_RULE_SCATTERED] = shape->scattered,
    };
    memcpy(params, values, sizeof values);
}

static void check_tactic(const struct shape *shape, const int64_t *params)
{
    struct test_random random = {(uint64_t)(shape->key_dim * 31 + shape->value_dim + shape->rows)};
    struct test_launch launch;
    test_launch_open(&launch, &device_delta_rule, params, shape->rows);
    test_launch_fill(&launch, DELTA_RULE_A_LOG, &random, -3, 1);
    test_launch_fill(&launch, DELTA_RULE_DT_BIAS, &random, -1, 1);
    test_launch_fill(&launch, DELTA_RULE_NORM, &random, 0.5f, 1.5f);
    const struct test_recurrent op = {
        .kernel = &device_delta_rule,
        .slots = DELTA_RULE_SLOTS,
        .positions = DELTA_RULE_POSITIONS,
        .state = DELTA_RULE_STATE,
        .out = DELTA_RULE_OUT,
        .inputs = {DELTA_RULE_QKV, DELTA_RULE_Z, DELTA_RULE_BA},
        .absolute = 1e-4,
        .relative = shape->x_dtype == DTYPE_F32   ? 1e-4
                    : shape->x_dtype == DTYPE_F16 ? 6e-4
                                                  : 4.2e-3,
        .part =
            delta_rule_state_bytes((uint64_t)shape->value_heads, (uint64_t)shape->key_dim, (uint64_t)shape->value_dim),
    };
    test_recurrent_walk(&launch, &op, &random, shape->steps);
    test_launch_close(&launch);
}

/* Every tactic, or the first one and the last two, each of which the compiler needs time for. */
static void check(const struct shape *shape, bool all)
{
    static struct device_tactic tactics[DEVICE_MOST_TACTICS];
    int64_t params[PLAN_MAX_PARAMS] = {0};
    fill_params(shape, params);
    const int count = device_tactics(OP_DELTA_RULE, params, &test_device()->device.facts, tactics, DEVICE_MOST_TACTICS);
    assert_true(count > 0);
    for (int t = 0; t < count; t++)
        if (all || t == 0 || t >= count - 2) check_tactic(shape, tactics[t].params);
}

TEST(equals_reference)
{
    static const struct shape shapes[] = {
        {300, 2, 4, 128, 128, DTYPE_BF16, DTYPE_BF16, false, 6}, {7, 2, 4, 128, 128, DTYPE_F32, DTYPE_BF16, true, 30},
        {1, 16, 32, 128, 128, DTYPE_BF16, DTYPE_BF16, true, 6},  {16, 1, 2, 128, 128, DTYPE_F32, DTYPE_F32, false, 20},
        {130, 2, 4, 16, 16, DTYPE_F16, DTYPE_F16, false, 20},    {40, 1, 3, 7, 13, DTYPE_F32, DTYPE_BF16, false, 20},
        {33, 1, 1, 256, 256, DTYPE_BF16, DTYPE_BF16, false, 6},  {45, 3, 3, 40, 72, DTYPE_F32, DTYPE_F32, false, 20},
        {64, 1, 2, 64, 512, DTYPE_BF16, DTYPE_F16, true, 20},
    };
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check(&shapes[i], i < 2);
}

TEST(hostile_params_are_refused)
{
    int64_t params[DELTA_RULE_DEVICE_PARAMS];
    fill_params(&(struct shape){4, 2, 4, 128, 128, DTYPE_BF16, DTYPE_BF16, false, 0}, params);
    params[DELTA_RULE_DEVICE_LANES] = 16;
    params[DELTA_RULE_DEVICE_WARPS] = 4;
    test_hostile_launches(&device_delta_rule, params);
    test_launch_refuses(&device_delta_rule, params,
                        TEST_CHANGES({DELTA_RULE_KEY_HEADS, 3}, {DELTA_RULE_VALUE_DIM, 513},
                                     {DELTA_RULE_RECURRENT_BYTES, 4 * 4 * 128 * 128},
                                     {DELTA_RULE_RECURRENT_BYTES, INT64_C(64) * 16387}, {DELTA_RULE_DEVICE_LANES, 2},
                                     {DELTA_RULE_DEVICE_LANES, 12}, {DELTA_RULE_DEVICE_WARPS, 0},
                                     {DELTA_RULE_DEVICE_WARPS, 17}, {DELTA_RULE_DEVICE_LANES, 4},
                                     {DELTA_RULE_DEVICE_WARPS, 1}));
    assert_false(test_launch_accepts(&device_delta_rule, params, 80)); /* no clusters */
    params[DELTA_RULE_DEVICE_WARPS] = 16;
    assert_true(test_launch_accepts(&device_delta_rule, params, 80));
}

int main(void) { return test_run(); }
