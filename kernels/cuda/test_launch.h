/* SPDX-License-Identifier: Apache-2.0 */
/* One launch of a device kernel, its operands by the schema; and parameters that a launch must refuse. */
#ifndef KERNELS_CUDA_TEST_LAUNCH_H
#define KERNELS_CUDA_TEST_LAUNCH_H

#include "kernels/cuda/test_device.h"

enum { TEST_LAUNCH_SLOTS = 5 }; /* of the engine, where the parameters do not say */

/* Every operand on the host and, between canaries, on the GPU; by its number in the schema. */
struct test_launch {
    const struct op_descriptor *op;
    int64_t params[PLAN_MAX_PARAMS], valid;
    struct test_kernel kernel;
    void *host[PLAN_MAX_OPERANDS];  /* what the operand has before a launch: poison until the test fills it */
    void *found[PLAN_MAX_OPERANDS]; /* of operands that the launch writes: after it */
    struct test_device_buffer device[PLAN_MAX_OPERANDS];
    cu_deviceptr addresses[PLAN_MAX_OPERANDS];
    uint64_t space_rows;       /* of test_kernel_run */
    struct test_memory memory; /* of the host, until the launch is closed: for the test, too */
};
/* COUNTS say `valid`. Fails if the kernel spills registers. */
void test_launch_open(struct test_launch *launch, const struct device_kernel *kernel, const int64_t *params,
                      int64_t valid);
/* The operands alone, for what runs without a kernel. */
void test_launch_open_operands(struct test_launch *launch, const struct op_descriptor *op, const int64_t *params,
                               int64_t valid);
void test_launch_close(struct test_launch *launch);

void test_launch_set_valid(struct test_launch *launch, int64_t valid);
/* Makes the operand larger (the KV pool); the launch gets the address `offset` bytes into it. */
void test_launch_resize(struct test_launch *launch, int operand, size_t bytes, size_t offset);
/* `operand` gets the memory of `written`, as the schema's `replaces` allows; its content is what `operand` has on the host. */
void test_launch_alias(struct test_launch *launch, int operand, int written);
enum dtype test_launch_dtype(const struct test_launch *launch, int operand);
size_t test_launch_count(const struct test_launch *launch, int operand); /* elements of its dtype */
/* Fills the operand with elements of its dtype: random ones, or those of `from`, rounded. */
void test_launch_fill(struct test_launch *launch, int operand, struct test_random *random, float low, float high);
void test_launch_encode(struct test_launch *launch, int operand, const float *from);
/* The operand as floats, in memory of the launch: before it, and after it. */
float *test_launch_decode(struct test_launch *launch, int operand);
float *test_launch_found(struct test_launch *launch, int operand);

/* Writes all operands, runs, reads those that are written, and asserts that nothing beside them was. */
void test_launch_run(struct test_launch *launch);
/* Twice: the second run gives the same bits, except in rows that are not valid. */
void test_launch_run_twice(struct test_launch *launch);
/* The parts of test_launch_run. operands: [PLAN_MAX_OPERANDS]; returns their number. */
void test_launch_write(struct test_launch *launch);
int test_launch_list(const struct test_launch *launch, cu_deviceptr *operands);
void test_launch_read(struct test_launch *launch);
/* Rows of an operand that are not valid are as they were. */
void test_launch_assert_rows_untouched(const struct test_launch *launch, int operand);

/* The same operands on the host, for a reference: the caller replaces those of other dtypes. */
struct op_call test_launch_call(const struct test_launch *launch);

/* ---- refusals ---- */

struct device_facts test_facts(int capability);
/* Whether it launches; asserts that a refusal has a reason, and that a launch has a geometry and costs that make sense. */
bool test_launch_accepts(const struct device_kernel *kernel, const int64_t *params, int capability);
/* The same of a library's call, which has no grid. */
bool test_call_accepts(const struct device_kernel *kernel, const int64_t *params);
/* `params`, which are legal, with extreme values in one parameter, then in any three: refused with a reason or accepted
 * with a geometry that makes sense. */
void test_hostile_launches(const struct device_kernel *kernel, const int64_t *params);
/* `params`, changed in any one of these ways, is refused. */
void test_launch_refuses(const struct device_kernel *kernel, const int64_t *params, const struct test_change *changes,
                         size_t count);

#endif
