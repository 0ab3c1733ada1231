/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by tests of device kernels: one GPU, one compiler, launches between canaries, timing. Every test program first
 * calls test_device(); without a GPU it returns NULL, and the test is skipped. */
#ifndef KERNELS_CUDA_TEST_DEVICE_H
#define KERNELS_CUDA_TEST_DEVICE_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/kernel.h"
#include "kernels/op/test_support.h"

struct test_device {
    struct device device;
    struct nvrtc *nvrtc;
};
/* The GPU, opened on first use and shared by all tests of the program. Without a GPU NULL, with one line on stderr, or
 * a failed test if ENG_TEST_NEEDS_GPU is set. Cubins are kept for the next program in the folder ENG_TEST_CUBINS. */
struct test_device *test_device(void);
/* if (!test_device()) skip(); for cmocka tests. */
#define TEST_NEEDS_DEVICE()         \
    do {                            \
        if (!test_device()) skip(); \
    } while (0)

/* Device memory between canaries, filled with poison (NaN in every float type). */
struct test_device_buffer {
    cu_deviceptr data;
    size_t bytes;
    cu_deviceptr base; /* of the allocation */
};
struct test_device_buffer test_device_buffer_new(size_t bytes);
void test_device_buffer_free(struct test_device_buffer *buffer);
void test_device_buffer_poison(struct test_device_buffer *buffer);
void test_device_write(struct test_device_buffer *buffer, const void *from, size_t bytes);
void test_device_read(const struct test_device_buffer *buffer, void *to, size_t bytes);
void test_device_assert_intact(const struct test_device_buffer *buffer, const char *what);

/* A specialised kernel, ready to launch. Fails the test with the compiler's messages. */
struct test_kernel {
    const struct device_kernel *kernel;
    int64_t params[PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    cu_library library;
    cu_function function;
    int registers, local_bytes, static_shared_bytes; /* local_bytes > 0: the kernel spills */
};
void test_kernel_open(struct test_kernel *test, const struct device_kernel *kernel, const int64_t *params);
void test_kernel_close(struct test_kernel *test);
/* "kernel param=value ...", in memory that the next call takes. */
const char *test_describe(const struct device_kernel *kernel, const int64_t *params);

/* Kernels that test_kernel_open will request. With ENG_TEST_CUBINS they can be compiled in advance, by all processors. */
struct test_variants {
    const struct device_kernel *kernels[4096];
    int64_t params[4096][PLAN_MAX_PARAMS];
    int count;
};
int test_variants_add(struct test_variants *variants, const struct device_kernel *kernel, const int64_t *params);
void test_variants_compile(const struct test_variants *variants);
/* Runs one launch with operands at these addresses (operands that are tensor maps are encoded for them; map.rows 0 uses
 * space_rows), then a synchronisation that must succeed. */
void test_kernel_run(struct test_kernel *test, const cu_deviceptr *operands, int count, uint64_t space_rows);

/* Median microseconds of a launch in a graph of `copies` launches, each with its own operand set (in rotation, so that
 * the L2 cache is cold if the sets exceed it), joined by programmatic edges as in an engine. operand_sets:
 * [copies][count]. For benchmarks. */
double test_kernel_time(struct test_kernel *test, const cu_deviceptr *operand_sets, int count, int copies,
                        uint64_t space_rows);

/* Bytes per second, read plus written, of a copy within the device's memory: the limit of a kernel. */
double test_copy_bandwidth(void);

/* float <-> bf16/f16 arrays on the host: values are rounded to the dtype, so that the reference uses the same values as
 * the device. */
void test_encode(const float *from, void *to, size_t count, enum dtype dtype);
void test_decode(const void *from, float *to, size_t count, enum dtype dtype);

#endif
