/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of matmul for tests, and the instruction sets that they run on: those of the processor, and AMX with tile registers in
 * plain C where it has VNNI but no tile registers. */
#ifndef KERNELS_MATMUL_TEST_MATMUL_H
#define KERNELS_MATMUL_TEST_MATMUL_H

#include "kernels/matmul/matmul.h"
#include "kernels/op/test_support.h"

extern const struct plan_geometry test_matmul_geometry;

/* A launch with random weights, activations, bias (DTYPE_NONE: none) and residual, all rows valid. */
void test_matmul_open(struct test_random *random, struct test_case *launch, int64_t rows, int64_t n, int64_t k,
                      enum encoding_id encoding, int epilogue, enum dtype bias_dtype, bool residual);
void test_matmul_set_rows(struct test_case *launch, int64_t rows); /* how many are valid */
/* Tunables that are legal for some instruction set, for a team of up to TEST_MATMUL_THREADS. */
enum { TEST_MATMUL_THREADS = 3 };
void test_matmul_tunables(struct test_random *random, struct test_case *launch);
/* Everything that the launch should write is NaN before, so that a hole shows. */
void test_matmul_run(struct test_case *launch, enum cpu_isa isa, struct team *with);

bool test_matmul_runs(enum cpu_isa isa);
/* matmul as it runs here: with code for all that test_matmul_runs. */
const struct op_descriptor *test_matmul_op(void);

/* matmul_run_amx with tile registers in plain C. Requires: CPU_AVX512VNNI is supported. Without CPU_AVX512BF16 launches whose
 * activations are not int8 take the code for VNNI: those for tile registers are made of bf16 by its instructions. */
op_run test_matmul_run_emulated;

#endif
