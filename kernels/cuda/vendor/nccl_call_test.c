/* SPDX-License-Identifier: Apache-2.0 */
/* Data of an NCCL call in an engine, and which data are accepted. */
#include "kernels/cuda/vendor/nccl_call.h"

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/cuda/vendor/nccl.h"

static const int64_t params[PLAN_MAX_PARAMS];

static struct engine_call made(void)
{
    struct engine_call call = {.library = LIBRARY_NCCL, .operand_count = 3};
    assert_true(nccl_make_call(params, NULL, 0, &call));
    return call;
}

TEST(makes_zeros_of_the_least_version)
{
    static const uint8_t zeros[NCCL_CALL_BYTES];
    struct engine_call call = made();
    assert_int_equal(call.bytes, 8);
    assert_memory_equal(call.data, zeros, sizeof zeros);
    assert_int_equal(call.version, NCCL_LEAST_VERSION);
    assert_int_equal(call.library, LIBRARY_NCCL); /* unchanged, as is the count */
    assert_int_equal(call.operand_count, 3);
    free((void *)call.data);
}

TEST(takes_what_it_makes)
{
    static const uint32_t versions[] = {NCCL_LEAST_VERSION, NCCL_LEAST_VERSION + 1, 22809, UINT32_MAX};
    struct engine_call call = made();
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        struct status status = {0};
        test_expect_success(nccl_check_call(&call, versions[i], &status), &status);
    }
    free((void *)call.data);
}

TEST(refuses_other_data)
{
    struct engine_call call = made();
    for (size_t i = 0; i < NCCL_CALL_BYTES; i++)
        for (int bit = 0; bit < 8; bit++) {
            struct status status = {0};
            ((uint8_t *)call.data)[i] = (uint8_t)(1u << bit);
            test_expect_failure(nccl_check_call(&call, NCCL_LEAST_VERSION, &status), &status, STATUS_CORRUPT,
                                "NCCL: expected 8 bytes of zero, found 8 bytes");
            ((uint8_t *)call.data)[i] = 0;
        }
    free((void *)call.data);
}

/* The data have exactly that size, so that a sanitizer detects reads beyond it. */
TEST(refuses_other_sizes)
{
    for (uint64_t bytes = 0; bytes <= 17; bytes++) {
        struct status status = {0};
        struct engine_call call = {.version = NCCL_LEAST_VERSION, .data = calloc(1, bytes ? bytes : 1), .bytes = bytes};
        assert_non_null(call.data);
        bool ok = nccl_check_call(&call, NCCL_LEAST_VERSION, &status);
        if (bytes == NCCL_CALL_BYTES)
            test_expect_success(ok, &status);
        else
            test_expect_failure(ok, &status, STATUS_CORRUPT, "NCCL: expected 8 bytes of zero, found ");
        free((void *)call.data);
    }
}

TEST(refuses_older_versions)
{
    struct status status = {0};
    struct engine_call call = made();
    test_expect_failure(nccl_check_call(&call, NCCL_LEAST_VERSION - 1, &status), &status, STATUS_MACHINE,
                        "NCCL: expected version 21800 or later, found 21799; install a later one");
    call.version = 22809;
    status_clear(&status);
    test_expect_failure(nccl_check_call(&call, 22808, &status), &status, STATUS_MACHINE, "22809|22808");
    status_clear(&status);
    test_expect_success(nccl_check_call(&call, 22809, &status), &status);
    free((void *)call.data);
}

int main(void) { return test_run(); }
