/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cuda/test_launch.h"
#include "kernels/draft/draft.h"

static void check(int64_t rows, int64_t valid, int64_t vocab, bool feedback)
{
    const int64_t params[DRAFT_PARAMS] = {rows, 1, vocab, rows, feedback};
    struct test_random random = {(uint64_t)(rows * 3 + vocab)};
    struct test_launch launch;
    test_launch_open(&launch, &device_draft, params, valid);
    test_launch_fill(&launch, DRAFT_LOGITS, &random, -3, 3);
    float *logits = launch.host[DRAFT_LOGITS];
    for (int64_t r = 0; r < valid; r++) {
        float *row = logits + r * vocab;
        row[test_random_range(&random, 0, vocab - 1)] = row[test_random_range(&random, 0, vocab - 1)] = 4;
        row[test_random_range(&random, 0, vocab - 1)] = NAN;
    }
    int32_t *out_rows = launch.host[DRAFT_OUT_ROWS], *next = launch.host[DRAFT_NEXT_TOKENS];
    int32_t *tokens = launch.host[DRAFT_TOKENS], *positions = launch.host[DRAFT_POSITIONS];
    for (int64_t r = 0; feedback && r < rows; r++) {
        out_rows[r] = r < valid ? (int32_t)(valid - 1 - r) : INT32_MAX;
        next[r] = (int32_t)r * 7, tokens[r] = -9, positions[r] = 100 + (int32_t)r;
    }
    if (feedback) out_rows[0] = -1; /* outside */
    test_launch_run(&launch);
    struct op_call call = test_launch_call(&launch);
    op_draft.reference(&call);
    test_assert_same_bits(launch.found[DRAFT_DRAFTED], call.operands[DRAFT_DRAFTED], (size_t)valid * sizeof(int32_t),
                          "draft");
    const int32_t *found = launch.found[DRAFT_TOKENS], *moved = launch.found[DRAFT_POSITIONS];
    for (int32_t r = 0; feedback && r < rows; r++) {
        const int32_t out_row = (int32_t)valid - 1 - r;
        assert_int_equal(found[r], out_row > 0 ? out_row * 7 : -9);
        assert_int_equal(moved[r], 100 + r + (out_row > 0));
    }
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    for (int feedback = 0; feedback < 2; feedback++) {
        check(1, 1, 128256, feedback);
        check(16, 9, 2048, feedback);
        check(7, 7, 33, feedback);
        check(3, 2, 1, feedback);
        check(64, 50, 5003, feedback);
    }
}

TEST(hostile_params_are_refused)
{
    const int64_t params[DRAFT_PARAMS] = {4, 1, 64, 8};
    test_hostile_launches(&device_draft, params);
    test_launch_refuses(&device_draft, params, TEST_CHANGES({DRAFT_VOCAB, 0}, {DRAFT_IN_ROWS, 0}, {DRAFT_FEEDBACK, 2}));
}

int main(void) { return test_run(); }
