/* SPDX-License-Identifier: Apache-2.0 */
/* The environment that the driver sees, and its restoration, with the fake driver, which tells GPUs apart. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/test_fake_cuda.h"
#include "runtime/load/cuda_environment.h"

static const char connections[] = "CUDA_DEVICE_MAX_CONNECTIONS", visible[] = "CUDA_VISIBLE_DEVICES";
static struct test_fake_cuda fake;

static int find_fake(void **state)
{
    setenv("FAKE_CUDA_DEVICES", "8", 1);
    fake = test_fake_cuda_find();
    return 0;
}

static void put(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void expect(const char *name, const char *value)
{
    const char *found = getenv(name);
    if (!value) assert_null(found);
    if (value) assert_non_null(found);
    if (value) assert_string_equal(found, value);
}

/* Sets it for `count` GPUs; `inside` is the expected CUDA_VISIBLE_DEVICES during that time. Everything is restored at
 * the end. */
static void check(const char *before, const int *ordinals, uint32_t count, bool hide_others, const char *inside,
                  bool hidden)
{
    struct cuda_environment environment;
    struct status status = {0};
    int indices[8];
    fake.reset();
    put(visible, before);
    put(connections, NULL);
    assert_true(cuda_environment_set(&environment, ordinals, count, true, hide_others, indices, &status));
    expect(visible, inside);
    expect(connections, "1");
    for (uint32_t i = 0; i < count; i++) assert_int_equal(indices[i], hidden ? (int)i : ordinals[i]);
    cuda_environment_restore(&environment);
    expect(visible, before);
    expect(connections, NULL);
    cuda_environment_restore(&environment);
}

TEST(gpus_are_hidden)
{
    const int one[] = {3}, first[] = {0}, several[] = {2, 0, 1}, twice[] = {1, 1}, far[] = {7, 12};
    check(NULL, one, 1, true, "3", true);
    check(NULL, first, 1, true, "0", true);
    check(NULL, several, 3, true, "2,0,1", true);
    check(NULL, far, 2, true, "7,12", true);
    check("5,GPU-1a2b,7,6", several, 3, true, "7,5,GPU-1a2b", true);
    check("5,GPU-1a2b,7,6", one, 1, true, "6", true);
    check("MIG-4/1/0", first, 1, true, "MIG-4/1/0", true);
    /* Lists that cannot be determined, and GPUs that do not exist. */
    check("5,6,7", one, 1, true, "5,6,7", false);
    check("5,-1,6,7", one, 1, true, "5,-1,6,7", false);
    check("5,,6,7", one, 1, true, "5,,6,7", false);
    check("", first, 1, true, "", false);
    check("-1", first, 1, true, "-1", false);
    check(NULL, twice, 2, true, NULL, false);
    check("1,2", twice, 2, true, "1,2", false);
    check(NULL, one, 1, false, NULL, false);
}

TEST(connections_stay_as_they_are)
{
    struct cuda_environment environment;
    struct status status = {0};
    const int ordinal = 4;
    int index;
    fake.reset();
    put(visible, NULL);
    put(connections, "8");
    assert_true(cuda_environment_set(&environment, &ordinal, 1, true, true, &index, &status));
    expect(connections, "8");
    cuda_environment_restore(&environment);
    expect(connections, "8");
    put(connections, NULL);
}

/* The driver is asked for the changed numbers; a process that already uses CUDA keeps its numbers. */
TEST(the_driver_shows_them)
{
    struct cuda_environment environment;
    struct status status = {0};
    struct device all, one;
    const int ordinals[] = {6, 2};
    int indices[2];
    fake.reset();
    put(visible, NULL);
    assert_false(cuda_driver_is_in_use());
    assert_true(cuda_environment_set(&environment, ordinals, 2, true, true, indices, &status));
    test_expect_success(device_find_at(&one, indices[1], ordinals[1], &status), &status);
    cuda_environment_restore(&environment);
    assert_true(cuda_driver_is_in_use());
    assert_int_equal(one.ordinal, 2);
    assert_int_equal(one.index, 1);
    test_expect_failure(device_find_at(&all, 2, 5, &status), &status, STATUS_MACHINE, "GPU 5: expected among the GPUs");

    /* In another order, one of them, or other GPUs. */
    const int turned[] = {2, 6}, other[] = {6, 1};
    for (int for_one = 0; for_one < 2; for_one++) {
        assert_true(cuda_environment_set(&environment, turned, 2, for_one, true, indices, &status));
        assert_int_equal(indices[0], 1);
        assert_int_equal(indices[1], 0);
        expect(visible, NULL);
        expect(connections, NULL);
        cuda_environment_restore(&environment);
        assert_true(cuda_environment_set(&environment, turned, 1, for_one, true, indices, &status));
        assert_int_equal(indices[0], 1);
        test_expect_failure(cuda_environment_set(&environment, other, 2, for_one, true, indices, &status), &status,
                            STATUS_MACHINE, "GPU 1: expected one that|2 of them, GPU 6 the first");
    }

    fake.reset();
    assert_true(cuda_environment_set(&environment, other, 2, false, true, indices, &status));
    assert_int_equal(indices[0], 6);
    test_expect_success(device_find(&all, 2, &status), &status);
    assert_string_equal(all.facts.uuid, one.facts.uuid);
    /* Something else has initialised CUDA. */
    assert_true(cuda_environment_set(&environment, other, 2, true, true, indices, &status));
    assert_int_equal(indices[0], 6);
    assert_int_equal(indices[1], 1);
    expect(visible, NULL);
    device_close(&all);
    device_close(&one);
    assert_int_equal(fake.misuse(), 0);
}

int main(int argc, char **argv)
{
    int result;
    (void)argc;
    if (!test_with_libraries("tests/fake_cuda/whole", argv, &result)) return result;
    return test_run_with(find_fake, NULL, NULL, NULL);
}
