/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the fake driver (tests/fake_cuda/fake_cuda.h, which this folder may not include), for tests that run
 * with it as libcuda.so.1. */
#ifndef KERNELS_CUDA_TEST_FAKE_CUDA_H
#define KERNELS_CUDA_TEST_FAKE_CUDA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct test_fake_cuda {
    void (*reset)(void);
    uint64_t (*calls)(void), (*kernels)(void), (*misuse)(void);
    int64_t (*live)(int kind);
    uint64_t (*waits)(int kind);
    uint64_t (*overlaps)(void);
    void (*fail_next)(uint64_t call);
    void (*learn)(const char *entry,
                  void (*kernel)(const char *entry, void *const *arguments, const unsigned grid[3],
                                 const unsigned block[3], void *context),
                  void *context);
};

/* Fails the test if the linker finds another driver than the fake one. */
static inline struct test_fake_cuda test_fake_cuda_find(void)
{
    struct test_fake_cuda fake;
    const struct {
        const char *name;
        void *function;
    } functions[] = {
        {"fake_cuda_reset", &fake.reset},       {"fake_cuda_calls", &fake.calls},
        {"fake_cuda_kernels", &fake.kernels},   {"fake_cuda_misuse", &fake.misuse},
        {"fake_cuda_live", &fake.live},         {"fake_cuda_register", &fake.learn},
        {"fake_cuda_waits", &fake.waits},       {"fake_cuda_fail_next", &fake.fail_next},
        {"fake_cuda_overlaps", &fake.overlaps},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    assert_non_null(library);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(library, functions[i].name);
        assert_non_null(address);
        memcpy(functions[i].function, &address, sizeof address);
    }
    return fake;
}

/* A setting of fake_cuda.h, in effect at once. */
static inline void test_fake_cuda_set(const struct test_fake_cuda *fake, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    setenv(name, text, 1);
    fake->reset();
}

/* Every number that a test may have set has its default again. */
static inline void test_fake_cuda_begin(const struct test_fake_cuda *fake)
{
    static const char *const names[] = {"FAKE_CUDA_DEVICES", "FAKE_CUDA_CAPABILITY", "FAKE_CUDA_MEMORY",
                                        "FAKE_CUDA_DRIVER_VERSION", "FAKE_CUDA_FAIL_CALL"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    fake->reset();
}

#endif
