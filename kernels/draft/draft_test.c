/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/draft/draft.h"
#include "kernels/op/test_support.h"

TEST(largest_logit)
{
    struct test_random random = {3};
    for (int round = 0; round < 40; round++) {
        const int64_t rows = test_random_range(&random, 1, 9), valid = test_random_range(&random, 0, rows);
        const int64_t vocab = test_random_range(&random, 1, round < 30 ? 40 : 9000);
        const int64_t params[DRAFT_PARAMS] = {rows, 1, vocab, rows};
        struct plan_geometry geometry = test_geometry;
        geometry.vocab_size = (uint64_t)vocab;
        for (int run = 0; run <= TEST_TEAMS; run++) {
            int32_t expected[9] = {0};
            struct test_case test;
            test_case_open(&test, &op_draft, params, &geometry, (int32_t)valid);
            float *logits = test.call.operands[DRAFT_LOGITS];
            const int32_t *drafted = test.call.operands[DRAFT_DRAFTED];
            test_fill(&random, logits, (size_t)(rows * vocab), DTYPE_F32, -8, 4);
            for (int64_t r = 0; r < rows; r++) {
                const int64_t token = test_random_range(&random, 0, vocab - 1);
                float *row = logits + r * vocab;
                expected[r] = (int32_t)token;
                row[token] = round % 3 ? 5 : INFINITY;
                if (token + 1 < vocab) row[vocab - 1] = row[token]; /* the lowest id among equals */
                if (token > 0) row[0] = NAN;
            }
            test_case_run(&test, DRAFT_DRAFTED, run);
            for (int64_t r = 0; r < valid; r++) assert_int_equal(drafted[r], expected[r]);
            assert_true(test_is_poison(drafted + valid, (size_t)(rows - valid) * sizeof *drafted));
            test_case_close(&test);
        }
    }
}

TEST(rows_without_numbers_draft_token_0)
{
    const int64_t params[DRAFT_PARAMS] = {2, 1, 3, 2};
    struct plan_geometry geometry = test_geometry;
    struct test_case test;
    geometry.vocab_size = 3;
    test_case_open(&test, &op_draft, params, &geometry, 2);
    const float logits[2][3] = {{NAN, NAN, NAN}, {NAN, -INFINITY, NAN}};
    memcpy(test.call.operands[DRAFT_LOGITS], logits, sizeof logits);
    test_run_op(&op_draft, CPU_PORTABLE, &test.call, 1);
    const int32_t *drafted = test.call.operands[DRAFT_DRAFTED];
    assert_int_equal(drafted[0], 0);
    assert_int_equal(drafted[1], 1);
    test_case_close(&test);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[DRAFT_PARAMS] = {4, 1, 40, 8};
    struct plan_geometry geometry = test_geometry;
    geometry.vocab_size = 40;
    test_hostile_params(&op_draft, params, &geometry);
    test_refuses(&op_draft, params, &geometry,
                 TEST_CHANGES({DRAFT_COUNT_INDEX, 0}, {DRAFT_VOCAB, 39}, {DRAFT_IN_ROWS, 0}, {DRAFT_FEEDBACK, 1}));
}

int main(void) { return test_run(); }
