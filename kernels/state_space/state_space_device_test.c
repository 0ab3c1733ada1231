/* SPDX-License-Identifier: Apache-2.0 */
/* state_space on the GPU against the reference, from launch to launch, with several tactics of each problem. */
#include "kernels/cuda/registry.h"
#include "kernels/cuda/test_recurrent.h"
#include "kernels/state_space/state_space.h"

struct shape {
    int64_t rows, groups, heads, state_dim, head_dim;
    enum dtype dtype, x_dtype;
    bool scattered;
    int steps;
};

static void fill_params(const struct shape *shape, int64_t *params)
{
    const uint64_t part =
        state_space_state_bytes((uint64_t)shape->heads, (uint64_t)shape->state_dim, (uint64_t)shape->head_dim);
    const int64_t values[STATE_SPACE_PARAMS] = {
        [STATE_SPACE_ROWS] = shape->rows,
        [STATE_SPACE_GROUPS] = shape->groups,
        [STATE_SPACE_HEADS] = shape->heads,
        [STATE_SPACE_STATE_DIM] = shape->state_dim,
        [STATE_SPACE_HEAD_DIM] = shape->head_dim,
        [STATE_SPACE_DT_MIN_BITS] = test_float_bits(0.05f),
        [STATE_SPACE_DT_MAX_BITS] = test_float_bits(2.0f),
        [STATE_SPACE_A_DTYPE] = shape->dtype,
        [STATE_SPACE_DT_DTYPE] = shape->dtype,
        [STATE_SPACE_D_DTYPE] = shape->dtype,
        [STATE_SPACE_RECURRENT_BYTES] = test_recurrent_bytes(part),
        [STATE_SPACE_SLOT_COUNT] = TEST_RECURRENT_SLOTS,
        [STATE_SPACE_X_DTYPE] = shape->x_dtype,
        [STATE_SPACE_SCATTERED] = shape->scattered,
    };
    memcpy(params, values, sizeof values);
}

/* `decode`: of the steps of a row of each slot, NULL: the same kernel. */
static void check_tactic(const struct shape *shape, const struct device_tactic *tactic,
                         const struct device_tactic *decode)
{
    struct test_random random = {(uint64_t)(shape->state_dim * 31 + shape->head_dim + shape->rows)};
    struct test_launch launch;
    struct test_kernel decode_kernel;
    test_launch_open(&launch, tactic->kernel, tactic->params, shape->rows);
    if (decode) test_kernel_open(&decode_kernel, decode->kernel, decode->params);
    test_launch_fill(&launch, STATE_SPACE_A_LOG, &random, -3, 1);
    test_launch_fill(&launch, STATE_SPACE_DT_BIAS, &random, -1, 1);
    test_launch_fill(&launch, STATE_SPACE_D, &random, 0.5f, 1.5f);
    const struct test_recurrent op = {
        .decode = decode ? &decode_kernel : NULL,
        .slots = STATE_SPACE_SLOTS,
        .positions = STATE_SPACE_POSITIONS,
        .state = STATE_SPACE_STATE,
        .out = STATE_SPACE_OUT,
        .inputs = {STATE_SPACE_XBC, STATE_SPACE_Z, STATE_SPACE_DT},
        .absolute = 1e-4,
        .relative = shape->x_dtype == DTYPE_F32   ? 1e-4
                    : shape->x_dtype == DTYPE_F16 ? 6e-4
                                                  : 4.2e-3,
        .part = state_space_state_bytes((uint64_t)shape->heads, (uint64_t)shape->state_dim, (uint64_t)shape->head_dim),
    };
    test_recurrent_walk(&launch, &op, &random, shape->steps);
    if (decode) test_kernel_close(&decode_kernel);
    test_launch_close(&launch);
}

static int find_tactics(const struct shape *shape, struct device_tactic *tactics)
{
    int64_t params[PLAN_MAX_PARAMS] = {0};
    fill_params(shape, params);
    const int count =
        device_tactics(OP_STATE_SPACE, params, &test_device()->device.facts, tactics, DEVICE_MOST_TACTICS);
    assert_true(count > 0);
    return count;
}

/* Every tactic, or the first one of each kernel and the last two, each of which the compiler needs time for. */
static void check(const struct shape *shape, bool all)
{
    static struct device_tactic tactics[DEVICE_MOST_TACTICS];
    const int count = find_tactics(shape, tactics);
    for (int t = 0; t < count; t++)
        if (all || t == 0 || tactics[t].kernel != tactics[t - 1].kernel || t >= count - 2)
            check_tactic(shape, &tactics[t], NULL);
}

TEST(equals_reference)
{
    static const struct shape shapes[] = {
        {300, 2, 4, 128, 64, DTYPE_BF16, DTYPE_BF16, false, 6}, {7, 1, 4, 128, 64, DTYPE_F32, DTYPE_BF16, true, 30},
        {1, 8, 32, 128, 80, DTYPE_BF16, DTYPE_BF16, true, 6},   {16, 1, 2, 128, 128, DTYPE_F32, DTYPE_F32, false, 20},
        {130, 2, 4, 16, 16, DTYPE_F16, DTYPE_F16, false, 20},   {40, 1, 3, 7, 13, DTYPE_F32, DTYPE_BF16, false, 20},
        {33, 1, 1, 256, 256, DTYPE_BF16, DTYPE_BF16, false, 6}, {45, 3, 3, 40, 72, DTYPE_F32, DTYPE_F32, false, 20},
        {64, 1, 2, 64, 512, DTYPE_BF16, DTYPE_F16, true, 20},
    };
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check(&shapes[i], i < 2);
}

/* Prompts in chunks, decode row by row, and the other way round, on one state. */
TEST(kernels_take_turns)
{
    static const struct shape shape = {1100, 1, 2, 128, 64, DTYPE_BF16, DTYPE_BF16, false, 12};
    static struct device_tactic tactics[DEVICE_MOST_TACTICS];
    TEST_NEEDS_DEVICE();
    const int count = find_tactics(&shape, tactics);
    const struct device_tactic *last = &tactics[count - 1];
    assert_ptr_equal(tactics->kernel, &device_state_space_chunk);
    assert_ptr_equal(last->kernel, &device_state_space);
    check_tactic(&shape, tactics, last);
    check_tactic(&shape, last, tactics);
}

/* What lowering and the tuner are offered without a GPU. */
TEST(prompts_are_for_chunks)
{
    static struct device_tactic tactics[DEVICE_MOST_TACTICS];
    const struct device_facts gpu = test_facts(90), before = test_facts(80);
    int64_t params[PLAN_MAX_PARAMS] = {0};
    fill_params(&(struct shape){512, 8, 64, 128, 64, DTYPE_BF16, DTYPE_BF16, false, 0}, params);
    assert_in_range(device_tactics(OP_STATE_SPACE, params, &gpu, tactics, DEVICE_MOST_TACTICS), 5, DEVICE_MOST_TACTICS);
    assert_ptr_equal(tactics[0].kernel, &device_state_space_chunk);
    assert_int_equal(tactics[0].params[STATE_SPACE_CHUNK_ROWS], 64);
    assert_ptr_equal(tactics[3].kernel, &device_state_space_chunk);
    assert_ptr_equal(tactics[4].kernel, &device_state_space);
    assert_in_range(device_tactics(OP_STATE_SPACE, params, &before, tactics, DEVICE_MOST_TACTICS), 1,
                    DEVICE_MOST_TACTICS);
    assert_ptr_equal(tactics[0].kernel, &device_state_space_chunk); /* it needs no clusters */
    static const struct shape others[] = {
        {512, 8, 64, 128, 64, DTYPE_BF16, DTYPE_BF16, true, 0}, {512, 8, 64, 128, 64, DTYPE_BF16, DTYPE_F16, false, 0},
        {8, 8, 64, 128, 64, DTYPE_BF16, DTYPE_BF16, false, 0},  {512, 8, 64, 256, 64, DTYPE_BF16, DTYPE_BF16, false, 0},
        {512, 8, 64, 72, 64, DTYPE_BF16, DTYPE_BF16, false, 0}, {512, 8, 64, 128, 40, DTYPE_BF16, DTYPE_BF16, false, 0},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        fill_params(&others[i], params);
        assert_in_range(device_tactics(OP_STATE_SPACE, params, &gpu, tactics, DEVICE_MOST_TACTICS), 1,
                        DEVICE_MOST_TACTICS);
        assert_ptr_equal(tactics[0].kernel, &device_state_space);
    }
}

TEST(hostile_params_of_chunks_are_refused)
{
    int64_t params[STATE_SPACE_CHUNK_PARAMS];
    fill_params(&(struct shape){512, 2, 4, 128, 64, DTYPE_BF16, DTYPE_BF16, false, 0}, params);
    params[STATE_SPACE_CHUNK_ROWS] = 64;
    params[STATE_SPACE_CHUNK_COLUMN_WARPS] = 2;
    test_hostile_launches(&device_state_space_chunk, params);
    test_launch_refuses(&device_state_space_chunk, params,
                        TEST_CHANGES({STATE_SPACE_GROUPS, 3}, {STATE_SPACE_HEAD_DIM, 48}, {STATE_SPACE_HEAD_DIM, 513},
                                     {STATE_SPACE_STATE_DIM, 120}, {STATE_SPACE_STATE_DIM, 144},
                                     {STATE_SPACE_RECURRENT_BYTES, 4 * 4 * 128 * 64}, {STATE_SPACE_X_DTYPE, DTYPE_F16},
                                     {STATE_SPACE_X_DTYPE, DTYPE_F32}, {STATE_SPACE_SCATTERED, 1},
                                     {STATE_SPACE_CHUNK_ROWS, 0}, {STATE_SPACE_CHUNK_ROWS, 16},
                                     {STATE_SPACE_CHUNK_ROWS, 48}, {STATE_SPACE_CHUNK_ROWS, 128},
                                     {STATE_SPACE_CHUNK_COLUMN_WARPS, 0}, {STATE_SPACE_CHUNK_COLUMN_WARPS, 3},
                                     {STATE_SPACE_CHUNK_COLUMN_WARPS, 4}));
}

TEST(hostile_params_are_refused)
{
    int64_t params[STATE_SPACE_DEVICE_PARAMS];
    fill_params(&(struct shape){4, 2, 4, 128, 128, DTYPE_BF16, DTYPE_BF16, false, 0}, params);
    params[STATE_SPACE_DEVICE_LANES] = 16;
    params[STATE_SPACE_DEVICE_WARPS] = 4;
    test_hostile_launches(&device_state_space, params);
    test_launch_refuses(&device_state_space, params,
                        TEST_CHANGES({STATE_SPACE_GROUPS, 3}, {STATE_SPACE_HEAD_DIM, 513},
                                     {STATE_SPACE_DT_MIN_BITS, test_float_bits(3.0f)},
                                     {STATE_SPACE_RECURRENT_BYTES, 4 * 4 * 128 * 128},
                                     {STATE_SPACE_RECURRENT_BYTES, INT64_C(64) * 16387}, {STATE_SPACE_DEVICE_LANES, 2},
                                     {STATE_SPACE_DEVICE_LANES, 12}, {STATE_SPACE_DEVICE_WARPS, 0},
                                     {STATE_SPACE_DEVICE_WARPS, 17}, {STATE_SPACE_DEVICE_LANES, 4}));
    assert_true(test_launch_accepts(&device_state_space, params, 80)); /* which has no clusters */
}

int main(void) { return test_run(); }
