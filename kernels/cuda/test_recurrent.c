/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/test_recurrent.h"

#include "kernels/op/recurrent_copies.cuh"

struct walk {
    struct test_launch *launch;
    const struct test_recurrent *op;
    struct test_random *random;
    uint8_t *reference_state; /* one copy in each slot's block */
    int32_t done[TEST_RECURRENT_SLOTS];
    int64_t block_bytes;
};

static int64_t aligned(uint64_t bytes)
{
    return (int64_t)((bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT);
}

int64_t test_recurrent_bytes(uint64_t part)
{
    return RECURRENT_COPIES_CUDA * (2 * TEST_RECURRENT_BEFORE + aligned(part));
}

/* Rows that are not valid have NaN, and no slot. */
static void fill_inputs(struct walk *walk)
{
    struct test_launch *launch = walk->launch;
    const size_t rows = (size_t)launch->params[OP_PARAM_ROWS], valid = (size_t)launch->valid;
    for (const int *input = walk->op->inputs; *input; input++) {
        const size_t row_bytes = launch->device[*input].bytes / rows;
        test_launch_fill(launch, *input, walk->random, -2, 2);
        memset((uint8_t *)launch->host[*input] + valid * row_bytes, 0xff, (rows - valid) * row_bytes);
    }
    int32_t *slots = launch->host[walk->op->slots], *positions = launch->host[walk->op->positions];
    for (size_t r = valid; r < rows; r++) slots[r] = positions[r] = INT32_MAX;
}

static void run_reference(struct walk *walk)
{
    struct test_launch *launch = walk->launch;
    struct op_call call = test_launch_call(launch);
    struct test_memory memory = {0};
    for (const int *input = walk->op->inputs; *input; input++) {
        const size_t count = test_launch_count(launch, *input);
        call.operands[*input] = test_take(&memory, count * sizeof(float));
        test_decode(launch->host[*input], call.operands[*input], count, test_launch_dtype(launch, *input));
    }
    const size_t count = test_launch_count(launch, walk->op->out);
    const size_t valid = count / (size_t)launch->params[OP_PARAM_ROWS] * (size_t)launch->valid;
    float *found = test_take(&memory, count * sizeof *found);
    call.operands[walk->op->out] = test_take(&memory, count * sizeof(float));
    call.operands[walk->op->state] = walk->reference_state;
    launch->op->reference(&call);
    test_decode(launch->found[walk->op->out], found, count, test_launch_dtype(launch, walk->op->out));
    test_assert_close(found, call.operands[walk->op->out], valid, walk->op->absolute, walk->op->relative,
                      test_describe(walk->op->kernel, launch->kernel.params));
    test_release(&memory);
}

/* The state stays on the GPU from launch to launch: what a launch leaves is what the next one finds. */
static void launch_once(struct walk *walk)
{
    struct test_launch *launch = walk->launch;
    test_launch_run(launch);
    memcpy(launch->host[walk->op->state], launch->found[walk->op->state], launch->device[walk->op->state].bytes);
    test_launch_assert_rows_untouched(launch, walk->op->out);
}

static void set_rows(struct walk *walk, const int32_t *slots, const int32_t *positions, int64_t count)
{
    struct test_launch *launch = walk->launch;
    memcpy(launch->host[walk->op->slots], slots, (size_t)count * sizeof *slots);
    memcpy(launch->host[walk->op->positions], positions, (size_t)count * sizeof *positions);
    test_launch_set_valid(launch, count);
    fill_inputs(walk);
}

static void chunk(struct walk *walk, int32_t slot, int64_t count)
{
    struct test_memory memory = {0};
    int32_t *slots = test_take(&memory, (size_t)count * sizeof *slots),
            *positions = test_take(&memory, (size_t)count * sizeof *positions);
    for (int64_t r = 0; r < count; r++) {
        slots[r] = slot;
        positions[r] = walk->done[slot]++;
    }
    set_rows(walk, slots, positions, count);
    launch_once(walk);
    run_reference(walk);
    test_release(&memory);
}

/* A row of each of some slots; first, now and then, a step that is discarded, and the step a second time. */
static void batch(struct walk *walk, int64_t most)
{
    int32_t slots[TEST_RECURRENT_SLOTS], positions[TEST_RECURRENT_SLOTS];
    for (int32_t s = 0; s < TEST_RECURRENT_SLOTS; s++) slots[s] = s;
    test_shuffle(walk->random, slots, TEST_RECURRENT_SLOTS);
    const int64_t count = test_random_range(walk->random, 1, most < TEST_RECURRENT_SLOTS ? most : TEST_RECURRENT_SLOTS);
    for (int64_t r = 0; r < count; r++) positions[r] = walk->done[slots[r]];
    if (test_random_range(walk->random, 0, 1)) {
        set_rows(walk, slots, positions, count);
        launch_once(walk);
    }
    set_rows(walk, slots, positions, count);
    launch_once(walk);
    const int out = walk->op->out;
    if (test_random_range(walk->random, 0, 1)) {
        struct test_memory memory = {0};
        const size_t bytes = walk->launch->device[out].bytes;
        void *first = memcpy(test_take(&memory, bytes), walk->launch->found[out], bytes);
        launch_once(walk);
        test_assert_same_bits(walk->launch->found[out], first, bytes, "the same step again");
        test_release(&memory);
    }
    for (int64_t r = 0; r < count; r++) walk->done[slots[r]]++;
    run_reference(walk);
}

static void expect_others_untouched(const struct walk *walk)
{
    const uint8_t *found = walk->launch->found[walk->op->state];
    const int64_t copy = walk->block_bytes / RECURRENT_COPIES_CUDA,
                  end = TEST_RECURRENT_BEFORE + (int64_t)walk->op->part;
    for (int64_t i = 0; i < TEST_RECURRENT_SLOTS * RECURRENT_COPIES_CUDA; i++, found += copy) {
        assert_true(test_is_poison(found, TEST_RECURRENT_BEFORE));
        assert_true(test_is_poison(found + end, (size_t)(copy - end)));
    }
}

void test_recurrent_walk(struct test_launch *launch, const struct test_recurrent *op, struct test_random *random,
                         int steps)
{
    struct walk walk = {launch, op, random, NULL, {0}, test_recurrent_bytes(op->part)};
    const size_t bytes = (size_t)(TEST_RECURRENT_SLOTS * walk.block_bytes);
    const int64_t rows = launch->params[OP_PARAM_ROWS];
    test_launch_resize(launch, op->state, bytes, TEST_RECURRENT_BEFORE);
    walk.reference_state = memset(test_take(&launch->memory, bytes), 0xff, bytes);
    chunk(&walk, 1, rows);
    for (int step = 0; step < steps; step++) {
        const int32_t slot = (int32_t)test_random_range(random, 0, TEST_RECURRENT_SLOTS - 1);
        if (test_random_range(random, 0, 3) == 0) walk.done[slot] = 0;
        if (test_random_range(random, 0, 2) == 0)
            chunk(&walk, slot, test_random_range(random, 1, rows));
        else
            batch(&walk, rows);
    }
    expect_others_untouched(&walk);
}
