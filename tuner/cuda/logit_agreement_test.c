/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/logit_agreement.h"

#include <math.h>
#include <string.h>

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

enum { VOCAB = 7, MOST_ROWS = 200 };
static const double tolerance = 3e-2;

/* The largest logit of each row is 10; theirs differ by so much of it in the first `count` rows. */
static bool agree(size_t rows, size_t count, double difference)
{
    static float ours[MOST_ROWS * VOCAB], theirs[MOST_ROWS * VOCAB];
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < VOCAB; i++) ours[r * VOCAB + i] = i == 3 ? -10 : (float)i;
    memcpy(theirs, ours, sizeof ours);
    for (size_t r = 0; r < count; r++) theirs[r * VOCAB + (r + 5) % VOCAB] += (float)(10 * difference);
    return logits_agree(ours, theirs, rows, VOCAB, tolerance);
}

TEST(every_row_within_the_tolerance)
{
    assert_true(agree(1, 0, 0));
    assert_true(agree(1, 1, 0.029));
    assert_true(agree(64, 64, 0.029));
    assert_true(agree(MOST_ROWS, MOST_ROWS, -0.029));
}

TEST(few_rows_beyond_it)
{
    assert_false(agree(1, 1, 0.031));
    assert_false(agree(7, 1, 0.031));
    assert_true(agree(8, 1, 0.031));
    assert_true(agree(64, 1, 0.059));
    assert_false(agree(64, 2, 0.031));
    assert_true(agree(MOST_ROWS, 3, 0.031));
    assert_false(agree(MOST_ROWS, 4, 0.031));
}

TEST(none_far_beyond_it)
{
    assert_false(agree(MOST_ROWS, 1, 0.061));
    assert_false(agree(MOST_ROWS, 1, -1));
    assert_false(agree(MOST_ROWS, 1, (double)NAN));
    assert_false(agree(MOST_ROWS, 1, (double)INFINITY));
}

TEST(rows_of_zeros)
{
    const float zeros[VOCAB] = {0}, others[VOCAB] = {1};
    assert_true(logits_agree(zeros, zeros, 1, VOCAB, tolerance));
    assert_false(logits_agree(zeros, others, 1, VOCAB, tolerance));
}

int main(void) { return test_run(); }
