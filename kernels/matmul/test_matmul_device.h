/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the device matmuls share: one launch on random data against sums in double. */
#ifndef KERNELS_MATMUL_TEST_MATMUL_DEVICE_H
#define KERNELS_MATMUL_TEST_MATMUL_DEVICE_H

#include "kernels/cuda/test_device.h"
#include "kernels/matmul/matmul_device.h"

/* The parameters of a problem without HAS_NORM, tunables zero. */
struct matmul_device_problem {
    int64_t rows, n, k;
    enum dtype dtype, out_dtype;
    enum activation activation; /* NONE: not gated */
    enum dtype bias;            /* DTYPE_NONE: without */
    float scale;                /* 0: 1 */
    bool residual;              /* in place: out is the residual's memory */
    int valid;                  /* rows; 0: all, -1: none */
};
void matmul_device_problem_params(const struct matmul_device_problem *problem, int64_t params[PLAN_MAX_PARAMS]);

/* Runs the kernel with these params twice on the same random operands: both runs give the same bits, no canary is
 * touched, outputs of valid rows are right (all of them, or `samples` random ones and the corners if samples > 0), and
 * the kernel does not spill. Rows of x and of the residual that are not valid hold NaN. */
void matmul_device_check(const struct device_kernel *kernel, const int64_t *params, int valid, int samples);

/* The same of anything that computes the contract: `run` with the addresses of the operands. */
typedef void matmul_device_run(void *context, const cu_deviceptr *operands, int count);
void matmul_device_check_run(const char *what, const int64_t *params, int valid, int samples, matmul_device_run *run,
                             void *context);

/* Extreme values of each parameter must be refused or give a geometry that makes sense. */
void matmul_device_check_hostile(const struct device_kernel *kernel, const int64_t *params,
                                 const struct device_facts *gpu);

#endif
