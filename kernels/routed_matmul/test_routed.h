/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of routed_matmul and of routed_mlp share: problems, their operands, and in double what the launches compute. Operands and
 * parameters have the same numbers in both. */
#ifndef KERNELS_ROUTED_MATMUL_TEST_ROUTED_H
#define KERNELS_ROUTED_MATMUL_TEST_ROUTED_H

#include "kernels/matmul/test_matmul_device.h"
#include "kernels/routed_matmul/routed_matmul.h"

enum test_routed_flag { NORMED = 1, BIASED = 2, CLAIMED = 4, SCALED = 8, SEEDED = 16, OF_OUT_ROWS = 32, GATED = 64 };

struct test_routed_problem {
    int64_t rows, valid, experts, top_k, n, k; /* n: of one expert; with a gate, gate and up */
    enum encoding_id dtype;
    int epilogue; /* as MATMUL_EPILOGUE, an activation */
    int64_t score, renormalise, groups, top_groups;
    unsigned flags; /* enum test_routed_flag */
    int64_t shared; /* of the experts and of top_k */
};

/* The dtype of elements that are multiplied, which activations have, too. */
int64_t test_routed_element(const struct test_routed_problem *problem);
int64_t test_routed_columns(const struct test_routed_problem *problem); /* of a choice's activations */
/* params[ROUTED_MATMUL_PROBLEM_PARAMS], and zeros after them. */
void test_routed_params(const struct test_routed_problem *problem, int64_t params[PLAN_MAX_PARAMS]);

struct test_routed_launch {
    struct test_launch test;
    const float *weights, *matrix; /* [experts * n, k], [rows of the router's matrix, k] */
};

/* Opens the operands and fills those that both ops have; `random` is for others. */
void test_routed_open(struct test_routed_launch *launch, const struct device_kernel *kernel,
                      const struct test_routed_problem *problem, const int64_t *params, struct test_random *random);
/* Fills a matrix [n, k], coded or not; returns what it stands for, in memory of the launch. */
const float *test_routed_fill_matrix(struct test_launch *test, int operand, int64_t encoding, int64_t n, int64_t k,
                                     struct test_random *random);
/* The workspace as the launch leaves it. */
void test_routed_assert_workspace(const struct test_launch *test);

/* Element `at` of an operand; 0 where there is none. */
double test_routed_bias(const struct test_launch *test, int operand, int64_t at, enum dtype dtype);
/* f32[valid, 2 * top_k] as router's reference has them, of logits in double; in memory of the launch. */
const float *test_routed_routes(struct test_routed_launch *launch, const struct test_routed_problem *problem);
/* Activation `column` of a choice by such routes; *error: how far off it may be before it is rounded. */
double test_routed_activation(const struct test_routed_launch *launch, const struct test_routed_problem *problem,
                              const float *routes, int64_t choice, int64_t column, double *error);

bool test_routed_has_gpu(void); /* that takes the kernels. Requires: a device */

#endif
