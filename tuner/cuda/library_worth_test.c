/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/library_worth.h"
#include "formats/base/test_program.h"

#include "formats/base/test_support.h"

enum { CUBLASLT = 1 << LIBRARY_CUBLASLT, CUDNN = 1 << LIBRARY_CUDNN };

static unsigned worth(struct library_gain first, struct library_gain second, struct library_gain third)
{
    const struct library_gain gains[] = {first, {0, 1e9}, second, third};
    return library_worth(gains, 4);
}

TEST(a_small_gain_is_not_worth_a_start)
{
    /* A chunk of 512 tokens of the shape of Llama-3.2-1B: 1 % of 1.9 ms. */
    assert_int_equal(worth((struct library_gain){CUBLASLT, 19}, (struct library_gain){0, 0},
                           (struct library_gain){0, 0}),
                     0);
    /* The same, 8 %. */
    assert_int_equal(worth((struct library_gain){CUBLASLT, 166}, (struct library_gain){0, 0},
                           (struct library_gain){0, 0}),
                     CUBLASLT);
    /* A chunk of 2048 tokens of the shape of Llama-3.1-8B: 1 % of 45 ms. */
    assert_int_equal(worth((struct library_gain){CUBLASLT, 450}, (struct library_gain){0, 0},
                           (struct library_gain){0, 0}),
                     CUBLASLT);
    assert_int_equal(library_worth(NULL, 0), 0);
}

TEST(gains_of_plans_add_up)
{
    const struct library_gain gain = {CUBLASLT, 18}, none = {0, 0};
    assert_int_equal(worth(gain, gain, none), 0);
    assert_int_equal(worth(gain, gain, gain), CUBLASLT);
}

TEST(each_library_must_be_worth_its_own_start)
{
    const struct library_gain large = {CUBLASLT, 100}, small = {CUDNN, 20};
    assert_int_equal(worth(large, small, (struct library_gain){0, 0}), CUBLASLT);
    /* A plan that calls both libraries counts only if both are opened. */
    assert_int_equal(worth(large, small, (struct library_gain){CUBLASLT | CUDNN, 30}), CUBLASLT | CUDNN);
    assert_int_equal(worth((struct library_gain){CUBLASLT | CUDNN, 60}, small, (struct library_gain){0, 0}), 0);
    assert_int_equal(worth((struct library_gain){CUBLASLT | CUDNN, 61}, small, (struct library_gain){0, 0}),
                     CUBLASLT | CUDNN);
}

int main(void) { return test_run(); }
