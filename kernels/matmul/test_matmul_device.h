/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the device matmuls share: one launch on random data against sums in double, and what every kernel
 * must do with its tunables. */
#ifndef KERNELS_MATMUL_TEST_MATMUL_DEVICE_H
#define KERNELS_MATMUL_TEST_MATMUL_DEVICE_H

#include "kernels/cuda/test_launch.h"
#include "kernels/matmul/matmul_device.h"

/* For tables of problems. */
#define NONE DTYPE_NONE
#define F32  DTYPE_F32
#define F16  DTYPE_F16
#define BF16 DTYPE_BF16
#define SILU ACTIVATION_SILU

/* The parameters of a problem, tunables zero. */
struct matmul_device_problem {
    int64_t rows, n, k;
    enum dtype dtype; /* of W; an encoding, too */
    enum dtype out_dtype;
    int activation;        /* of the epilogue: NONE, an enum activation, gated, or EPILOGUE_PLAIN + one */
    enum dtype bias, norm; /* DTYPE_NONE: without */
    bool residual;         /* in place: out is the residual's memory */
    bool codes;            /* x of the codes that W has, with scales */
    float scale;           /* 0: 1 */
    int valid;             /* rows; 0: all, -1: none */
};
void matmul_device_problem_params(const struct matmul_device_problem *problem, int64_t params[PLAN_MAX_PARAMS]);

enum { MATMUL_DEVICE_MOST_TUNABLES = 16 };
struct matmul_device_tunables {
    int64_t value[MATMUL_DEVICE_MOST_TUNABLES];
};
struct matmul_device_case {
    struct matmul_device_problem problem;
    struct matmul_device_tunables tunables;
};

/* Runs the kernel twice on the same random operands: both runs give the same bits, no canary is touched, outputs of valid
 * rows are right (all of them, or `samples` random ones and the corners if samples > 0), and the kernel does not spill.
 * Rows of x and of the residual that are not valid hold NaN. Requires: no norm. */
void matmul_device_check(const struct device_kernel *kernel, const struct matmul_device_problem *problem,
                         struct matmul_device_tunables tunables, int samples);
void matmul_device_check_cases(const struct device_kernel *kernel, const struct matmul_device_case *cases,
                               size_t count);
/* Each also with a scale, or with every activation. */
void matmul_device_check_epilogues(const struct device_kernel *kernel, const struct matmul_device_case *cases,
                                   size_t count);

/* An H200 and an A10, for what needs no GPU. */
extern const struct device_facts matmul_test_h200, matmul_test_a10;

/* The encodings that matrices may have on GPUs, in turn. */
bool matmul_device_next_coded(size_t *index, enum encoding_id *encoding);
/* matmul_device_check_cases with each of them, every other case in turn. */
void matmul_device_check_coded(const struct device_kernel *kernel, const struct matmul_device_case *cases,
                               size_t count);
/* There are candidates for the problem with this encoding on `gpu`, legal ones; every other one of those for this machine's
 * GPU computes what it should. */
void matmul_device_check_coded_candidates(const struct device_kernel *kernel, const struct device_facts *gpu,
                                          const struct matmul_device_problem *problem, enum encoding_id encoding);

/* Random codes as the launch's W, and the values that they stand for, in memory of the launch. Requires: W is coded. */
float *matmul_device_fill_coded(struct test_launch *launch, struct test_random *random);
/* The same of a matrix [n, k] that another operand is. */
float *matmul_device_fill_matrix(struct test_launch *launch, int operand, int64_t encoding, int64_t n, int64_t k,
                                 struct test_random *random);

/* The same of anything that computes the contract: `run` with the addresses of the operands. */
typedef void matmul_device_run(void *context, const cu_deviceptr *operands, int count);
void matmul_device_check_run(const char *what, const int64_t *params, int valid, int samples, matmul_device_run *run,
                             void *context);

/* The candidates for `first` and problems of more rows on `gpu` are legal, differ, and are `least` to 32; those for this
 * machine's GPU compute what they should. */
void matmul_device_check_candidates(const struct device_kernel *kernel, const struct device_facts *gpu, int least,
                                    struct matmul_device_problem first);

/* Extreme values of each parameter must be refused or give a geometry that makes sense. */
void matmul_device_check_hostile(const struct device_kernel *kernel, const struct device_facts *gpu,
                                 const struct matmul_device_problem *problem, struct matmul_device_tunables tunables);

/* The same beside each of these tunables; a norm and the `older` GPU are refused. */
void matmul_device_check_refusals(const struct device_kernel *kernel, const struct device_facts *gpu, int older,
                                  const struct matmul_device_tunables tunables[2]);

#endif
