/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/test_launch.h"

/* The engine that the parameters fit. */
static struct plan_geometry geometry_of(const struct op_descriptor *op, const int64_t *params)
{
    struct plan_geometry geometry = {.slots = TEST_LAUNCH_SLOTS};
    for (int i = 0; i < op->param_count; i++) {
        const uint64_t value = (uint64_t)params[i];
        if (op->params[i].source == PARAM_OF_ENGINE)
            memcpy((char *)&geometry + op->params[i].field, &value, sizeof value);
    }
    return geometry;
}

static bool is_written(const struct test_launch *launch, int operand)
{
    return launch->host[operand] && op_operand_access(&launch->op->operands[operand]) & ACCESS_WRITE;
}

enum dtype test_launch_dtype(const struct test_launch *launch, int operand)
{
    const struct op_operand *schema = &launch->op->operands[operand];
    return schema->dtype ? (enum dtype)launch->params[schema->dtype] : (enum dtype)schema->fixed;
}

static void *poisoned(struct test_launch *launch, size_t bytes)
{
    return memset(test_take(&launch->memory, bytes), 0xff, bytes);
}

void test_launch_resize(struct test_launch *launch, int operand, size_t bytes, size_t offset)
{
    test_device_buffer_free(&launch->device[operand]);
    launch->device[operand] = test_device_buffer_new(bytes);
    launch->addresses[operand] = launch->device[operand].data + offset;
    launch->host[operand] = poisoned(launch, bytes);
    if (is_written(launch, operand)) launch->found[operand] = poisoned(launch, bytes);
}

void test_launch_open_operands(struct test_launch *launch, const struct op_descriptor *op, const int64_t *params,
                               int64_t valid)
{
    const struct plan_geometry geometry = geometry_of(op, params);
    *launch = (struct test_launch){.op = op};
    memcpy(launch->params, params, (size_t)op->param_count * sizeof *params);
    for (int i = 0; i < op->operand_count; i++) {
        uint64_t bytes = 0;
        if (!op_has_operand(op, TARGET_CUDA, params, i)) continue;
        assert_true(op_operand_bytes(op, TARGET_CUDA, params, &geometry, i, &bytes));
        test_launch_resize(launch, i, (size_t)bytes, 0);
    }
    test_launch_set_valid(launch, valid);
}

void test_launch_open(struct test_launch *launch, const struct device_kernel *kernel, const int64_t *params,
                      int64_t valid)
{
    test_launch_open_operands(launch, kernel->problem, params, valid);
    test_kernel_open(&launch->kernel, kernel, params);
    if (launch->kernel.local_bytes)
        fail_msg("%s: %d bytes of spilled registers", test_describe(kernel, params), launch->kernel.local_bytes);
}

void test_launch_close(struct test_launch *launch)
{
    for (int i = 0; i < launch->op->operand_count; i++) test_device_buffer_free(&launch->device[i]);
    test_release(&launch->memory);
    test_kernel_close(&launch->kernel);
}

void test_launch_set_valid(struct test_launch *launch, int64_t valid)
{
    int32_t *counts = launch->host[OP_OPERAND_COUNTS];
    launch->valid = valid;
    counts[0] = counts[1] = INT32_MAX; /* the other count must not matter */
    counts[launch->params[OP_PARAM_COUNT_INDEX]] = (int32_t)valid;
}

void test_launch_alias(struct test_launch *launch, int operand, int written)
{
    launch->addresses[operand] = launch->addresses[written];
    memcpy(launch->host[written], launch->host[operand], launch->device[operand].bytes);
}

size_t test_launch_count(const struct test_launch *launch, int operand)
{
    return launch->device[operand].bytes / dtype_bytes(test_launch_dtype(launch, operand));
}

void test_launch_fill(struct test_launch *launch, int operand, struct test_random *random, float low, float high)
{
    test_fill(random, launch->host[operand], test_launch_count(launch, operand), test_launch_dtype(launch, operand),
              low, high);
}

void test_launch_encode(struct test_launch *launch, int operand, const float *from)
{
    test_encode(from, launch->host[operand], test_launch_count(launch, operand), test_launch_dtype(launch, operand));
}

static float *decoded(struct test_launch *launch, int operand, const void *from)
{
    const size_t count = test_launch_count(launch, operand);
    float *values = test_take(&launch->memory, count * sizeof *values);
    test_decode(from, values, count, test_launch_dtype(launch, operand));
    return values;
}

float *test_launch_decode(struct test_launch *launch, int operand)
{
    return decoded(launch, operand, launch->host[operand]);
}

float *test_launch_found(struct test_launch *launch, int operand)
{
    return decoded(launch, operand, launch->found[operand]);
}

void test_launch_write(struct test_launch *launch)
{
    for (int i = 0; i < launch->op->operand_count; i++)
        if (launch->host[i]) test_device_write(&launch->device[i], launch->host[i], launch->device[i].bytes);
}

int test_launch_list(const struct test_launch *launch, cu_deviceptr *operands)
{
    int count = 0;
    for (int i = 0; i < launch->op->operand_count; i++)
        if (launch->host[i]) operands[count++] = launch->addresses[i];
    return count;
}

void test_launch_read(struct test_launch *launch)
{
    for (int i = 0; i < launch->op->operand_count; i++) {
        char what[128];
        snprintf(what, sizeof what, "%s: %s", launch->op->name, launch->op->operands[i].name);
        if (launch->host[i]) test_device_assert_intact(&launch->device[i], what);
        if (is_written(launch, i)) test_device_read(&launch->device[i], launch->found[i], launch->device[i].bytes);
    }
}

void test_launch_run(struct test_launch *launch)
{
    cu_deviceptr operands[PLAN_MAX_OPERANDS];
    const int count = test_launch_list(launch, operands);
    test_launch_write(launch);
    test_kernel_run(&launch->kernel, operands, count, launch->space_rows);
    test_launch_read(launch);
}

/* Bytes of the valid rows; all, where the rows are not the launch's. */
static size_t valid_bytes(const struct test_launch *launch, int operand)
{
    const size_t bytes = launch->device[operand].bytes;
    const struct op_operand *schema = &launch->op->operands[operand];
    if (schema->bytes || schema->rows != OP_PARAM_ROWS) return bytes;
    return bytes / (size_t)launch->params[OP_PARAM_ROWS] * (size_t)launch->valid;
}

void test_launch_run_twice(struct test_launch *launch)
{
    void *first[PLAN_MAX_OPERANDS] = {NULL};
    test_launch_run(launch);
    for (int i = 0; i < launch->op->operand_count; i++)
        if (is_written(launch, i)) {
            first[i] = launch->found[i];
            launch->found[i] = poisoned(launch, launch->device[i].bytes);
        }
    test_launch_run(launch);
    for (int i = 0; i < launch->op->operand_count; i++)
        if (first[i])
            test_assert_same_bits(launch->found[i], first[i], valid_bytes(launch, i), launch->op->operands[i].name);
}

void test_launch_assert_rows_untouched(const struct test_launch *launch, int operand)
{
    const size_t done = valid_bytes(launch, operand), rest = launch->device[operand].bytes - done;
    assert_memory_equal((uint8_t *)launch->found[operand] + done, (uint8_t *)launch->host[operand] + done, rest);
}

struct op_call test_launch_call(const struct test_launch *launch)
{
    struct op_call call = {.params = launch->params};
    memcpy(call.operands, launch->host, sizeof call.operands);
    return call;
}

/* ---- refusals ---- */

struct device_facts test_facts(int capability)
{
    return (struct device_facts){.name = "test",
                                 .capability = capability,
                                 .multiprocessors = 132,
                                 .shared_per_sm = 233472,
                                 .shared_per_block = 232448,
                                 .l2_bytes = 50 << 20};
}

bool test_launch_accepts(const struct device_kernel *kernel, const int64_t *params, int capability)
{
    const struct device_facts facts = test_facts(capability);
    struct device_geometry geometry;
    const char *why = kernel->launch(params, &facts, &geometry);
    if (why) {
        assert_true(*why);
        return false;
    }
    uint64_t threads = 1, bytes, flops;
    for (int d = 0; d < 3; d++) {
        assert_in_range(geometry.grid[d], 1, d == 0 ? INT32_MAX : 65535);
        assert_in_range(geometry.cluster[d], 1, 8);
        assert_int_equal(geometry.grid[d] % geometry.cluster[d], 0);
        threads *= geometry.block[d];
    }
    assert_in_range(threads, 1, 1024);
    assert_in_range(geometry.shared_bytes, 0, facts.shared_per_block);
    kernel->cost(params, 1, &bytes, &flops);
    assert_true(bytes > 0);
    return true;
}

bool test_call_accepts(const struct device_kernel *kernel, const int64_t *params)
{
    const struct device_facts facts = test_facts(90);
    struct device_geometry geometry;
    memset(&geometry, 0xff, sizeof geometry);
    const char *why = kernel->launch(params, &facts, &geometry);
    if (why) {
        assert_true(*why);
        return false;
    }
    for (int d = 0; d < 3; d++) assert_int_equal(geometry.grid[d] | geometry.block[d] | geometry.cluster[d], 0);
    assert_int_equal(geometry.shared_bytes, 0);
    return true;
}

void test_hostile_launches(const struct device_kernel *kernel, const int64_t *params)
{
    static const int64_t extremes[] = {
        INT64_MIN,
        -1,
        0,
        1,
        2,
        3,
        7,
        255,
        257,
        1025,
        INT32_MAX,
        INT64_C(1) << 31,
        UINT32_MAX,
        INT64_C(1) << 40,
        INT64_MAX - 1,
        INT64_MAX,
    };
    enum { EXTREMES = sizeof extremes / sizeof extremes[0] };
    const int count = device_param_count(kernel);
    struct test_random random = {77};
    assert_true(test_launch_accepts(kernel, params, 90));
    for (int i = 0; i < kernel->own_count; i++) assert_non_null(kernel->own_names[i]); /* the compiler gets them */
    for (int round = 0; round < 4000; round++) {
        int64_t hostile[PLAN_MAX_PARAMS];
        memcpy(hostile, params, (size_t)count * sizeof *params);
        if (round < count * EXTREMES)
            hostile[round / EXTREMES] = extremes[round % EXTREMES];
        else
            for (int i = 0; i < 3; i++) {
                const int64_t index = test_random_range(&random, 0, count - 1);
                hostile[index] = extremes[test_random_range(&random, 0, EXTREMES - 1)];
            }
        test_launch_accepts(kernel, hostile, round % 2 ? 90 : 80);
    }
}

void test_launch_refuses(const struct device_kernel *kernel, const int64_t *params, const struct test_change *changes,
                         size_t count)
{
    for (const struct test_change *change = changes; change < changes + count; change++) {
        int64_t hostile[PLAN_MAX_PARAMS];
        memcpy(hostile, params, (size_t)device_param_count(kernel) * sizeof *params);
        hostile[change->index] = change->value;
        if (test_launch_accepts(kernel, hostile, 90))
            fail_msg("%s: %s = %lld was accepted", kernel->name, device_param_name(kernel, change->index),
                     (long long)change->value);
    }
}
