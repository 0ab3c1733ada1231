/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile parameters for the launch functions of device kernels. */
#ifndef KERNELS_EMBED_TEST_HOSTILE_H
#define KERNELS_EMBED_TEST_HOSTILE_H

#include "kernels/cuda/test_device.h"

static inline struct device_facts test_facts(int capability)
{
    return (struct device_facts){.name = "test",
                                 .capability = capability,
                                 .multiprocessors = 132,
                                 .shared_per_sm = 233472,
                                 .shared_per_block = 232448,
                                 .l2_bytes = 50 << 20};
}

static inline bool test_launch_accepts(const struct device_kernel *kernel, const int64_t *params, int capability)
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

/* `params`, which are legal, with extreme values in one parameter, then in any three: refused with a reason or accepted
 * with a geometry that makes sense. */
static inline void test_hostile_launches(const struct device_kernel *kernel, const int64_t *params)
{
    static const int64_t extremes[] = {INT64_MIN,
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
                                       (int64_t)INT32_MAX + 1,
                                       UINT32_MAX,
                                       (int64_t)1 << 40,
                                       INT64_MAX - 1,
                                       INT64_MAX};
    enum { EXTREMES = sizeof extremes / sizeof extremes[0] };
    struct test_random random = {77};
    assert_true(test_launch_accepts(kernel, params, 90));
    for (int i = 0; i < kernel->own_count; i++) assert_non_null(kernel->own_names[i]); /* the compiler gets them */
    for (int round = 0; round < 4000; round++) {
        int64_t hostile[PLAN_MAX_PARAMS];
        memcpy(hostile, params, (size_t)device_param_count(kernel) * sizeof *params);
        for (int i = 0; i < (round < device_param_count(kernel) * EXTREMES ? 1 : 3); i++) {
            int index = round < device_param_count(kernel) * EXTREMES
                            ? round / EXTREMES
                            : (int)test_random_range(&random, 0, device_param_count(kernel) - 1);
            hostile[index] = extremes[round < device_param_count(kernel) * EXTREMES
                                          ? round % EXTREMES
                                          : (int)test_random_range(&random, 0, EXTREMES - 1)];
        }
        test_launch_accepts(kernel, hostile, round % 2 ? 90 : 80);
    }
}

static inline void test_launch_refuses(const struct device_kernel *kernel, const int64_t *params, int index,
                                       int64_t value)
{
    int64_t hostile[PLAN_MAX_PARAMS];
    memcpy(hostile, params, (size_t)device_param_count(kernel) * sizeof *params);
    hostile[index] = value;
    if (test_launch_accepts(kernel, hostile, 90))
        fail_msg("%s: %s = %lld was accepted", kernel->name, device_param_name(kernel, index), (long long)value);
}

/* A buffer with this content. */
static inline struct test_device_buffer test_upload(const void *from, size_t bytes)
{
    struct test_device_buffer buffer = test_device_buffer_new(bytes);
    test_device_write(&buffer, from, bytes);
    return buffer;
}

#endif
