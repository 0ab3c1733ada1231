/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the driver and a device with the fake driver (tests/fake_cuda): the program runs itself again with the fake's
 * folder in LD_LIBRARY_PATH. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <dlfcn.h>
#include <limits.h>
#include <sys/wait.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/test_fake_cuda.h"

static const char fake_folder[] = "tests/fake_cuda/whole", incomplete_folder[] = "tests/fake_cuda/incomplete";

static struct test_fake_cuda fake;

static int begin(void **state)
{
    (void)state;
    test_fake_cuda_begin(&fake);
    return 0;
}

/* No test may leak resources or misuse the driver. */
static int end(void **state)
{
    (void)state;
    assert_int_equal(fake.live(-1), 0);
    assert_int_equal(fake.misuse(), 0);
    return 0;
}

static void assert_all_zero(const void *object, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) assert_int_equal(((const char *)object)[i], 0);
}

static void expect_refused(int ordinal, const char *expected)
{
    struct device device;
    struct status status = {0};
    memset(&device, 0x55, sizeof device);
    assert_false(device_open(&device, ordinal, &status));
    assert_int_equal(status.code, STATUS_MACHINE);
    if (!strstr(status.message, expected)) fail_msg("expected \"%s\" in \"%s\"", expected, status.message);
    assert_all_zero(&device, sizeof device);
    assert_int_equal(fake.live(-1), 0);
}

TEST(test_facts)
{
    struct device device;
    struct status status = {0};
    test_fake_cuda_set(&fake, "FAKE_CUDA_DEVICES", 3);
    test_fake_cuda_set(&fake, "FAKE_CUDA_MEMORY", 123456789);
    test_fake_cuda_set(&fake, "FAKE_CUDA_CAPABILITY", 103);
    if (!device_open(&device, 2, &status)) fail_msg("%s", status.message);
    assert_string_equal(device.facts.name, "Fake GPU");
    assert_int_equal(strncmp(device.facts.uuid, "GPU-20212223-2425-2627-2829-2a2b2c2d2e2f",
                             sizeof device.facts.uuid - 1),
                     0);
    assert_int_equal(device.facts.capability, 103);
    assert_int_equal(device.facts.multiprocessors, 132);
    assert_int_equal(device.facts.shared_per_sm, 228 << 10);
    assert_int_equal(device.facts.shared_per_block, 227 << 10);
    assert_int_equal(device.facts.l2_bytes, 60 << 20);
    assert_int_equal(device.facts.maps_memory, 1);
    assert_int_equal(device.mapping_bytes, 2 << 20);
    assert_int_equal(device.facts.driver_version, 13000);
    assert_int_equal(device.facts.memory_bytes, 123456789);
    assert_int_equal(device.ordinal, 2);
    assert_non_null(device.stream);
    device_close(&device);
    assert_all_zero(&device, sizeof device);
    device_close(&device);
    cuda_driver_close(&device.driver);
}

TEST(test_context_is_current_inside_only)
{
    enum { CURRENT = 1 }; /* FAKE_CUDA_CURRENT */
    struct device device;
    struct status status = {0};
    uint64_t free_bytes = 0;
    cu_deviceptr memory = 0;
    assert_true(device_open(&device, 0, &status));
    assert_int_equal(fake.live(CURRENT), 0);
    assert_true(device_enter(&device, &status));
    assert_true(device_enter(&device, &status));
    assert_int_equal(fake.live(CURRENT), 2);
    assert_int_equal(device.driver.MemAlloc(&memory, 1000), CU_SUCCESS);
    assert_true(device_free_memory(&device, &free_bytes, &status));
    assert_int_equal(free_bytes, (1 << 30) - 1000);
    assert_int_equal(device.driver.MemFree(memory), CU_SUCCESS);
    device_leave(&device);
    device_leave(&device);
    assert_int_equal(fake.live(CURRENT), 0);
    device_close(&device);
}

TEST(test_refusals)
{
    test_fake_cuda_set(&fake, "FAKE_CUDA_DRIVER_VERSION", 12030);
    expect_refused(0, "NVIDIA driver: expected one for CUDA 12.4 or later, found one for CUDA 12.3; update the driver");
    test_fake_cuda_set(&fake, "FAKE_CUDA_DRIVER_VERSION", 11080);
    expect_refused(0, "found one for CUDA 11.8");
    test_fake_cuda_set(&fake, "FAKE_CUDA_DRIVER_VERSION", 12040);
    test_fake_cuda_set(&fake, "FAKE_CUDA_DEVICES", 0);
    expect_refused(0, "expected cuInit to succeed, found: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected); "
                      "check that nvidia-smi lists a GPU");
    test_fake_cuda_set(&fake, "FAKE_CUDA_DEVICES", 2);
    expect_refused(2, "GPU 2: expected a number below 2");
    expect_refused(-1, "GPU -1: expected a number below 2");
    expect_refused(INT_MAX, "choose another, or check CUDA_VISIBLE_DEVICES");
}

/* Every call of the driver fails once: the failure is reported, and nothing stays open. */
TEST(test_each_call_failing)
{
    unsigned failed_opens = 0, call = 1;
    for (uint64_t calls = UINT64_MAX; call <= calls; call++) {
        struct device device;
        struct status status = {0};
        uint64_t bytes = 0;
        test_fake_cuda_set(&fake, "FAKE_CUDA_FAIL_CALL", call);
        bool opened = device_open(&device, 0, &status);
        if (opened && !device_free_memory(&device, &bytes, &status)) opened = false;
        if (!opened) {
            failed_opens++;
            assert_int_equal(status.code, STATUS_MACHINE);
            if (!strstr(status.message, "CUDA_ERROR_UNKNOWN (unknown error)") && !strstr(status.message, "error 999"))
                fail_msg("call %u: %s", call, status.message);
        } else {
            assert_int_equal(status.code, STATUS_OK);
        }
        device_close(&device);
        assert_int_equal(fake.live(-1), 0);
        assert_int_equal(fake.misuse(), 0);
        if (opened && fake.calls() < call) calls = fake.calls();
    }
    /* Version, init, count, get, name, seven attributes, UUID, memory, context, push, granularity, stream; push and free
     * memory. */
    assert_int_equal(failed_opens, 20);
    assert_true(call > failed_opens + 5); /* and some in device_leave and device_close, whose failures are ignored */
}

TEST(test_cuda_ok)
{
    struct cuda_driver driver, none = {0};
    struct status status = {0};
    assert_true(cuda_driver_open(&driver, &status));
    assert_int_equal(driver.version, 13000);
    assert_true(cuda_ok(&driver, CU_SUCCESS, &status, "x"));
    assert_int_equal(status.code, STATUS_OK);
    assert_false(cuda_ok(&driver, CU_ERROR_OUT_OF_MEMORY, &status, "allocating %d bytes", 5));
    assert_string_equal(status.message, "allocating 5 bytes: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
    assert_int_equal(status.code, STATUS_MACHINE);
    assert_false(cuda_ok(&driver, 123456, &status, "x"));
    assert_string_equal(status.message, "x: error 123456 (no description)");
    assert_false(cuda_ok(&none, 1, &status, "x"));
    assert_string_equal(status.message, "x: error 1 (no description)");
    assert_false(cuda_ok(&driver, 1, NULL, "no status"));
    cuda_driver_close(&driver);
    assert_all_zero(&driver, sizeof driver);
}

TEST(test_architecture_names)
{
    char name[16];
    const struct {
        int capability;
        const char *name;
    } cases[] = {{80, "sm_80"}, {89, "sm_89"}, {90, "sm_90a"}, {100, "sm_100a"}, {120, "sm_120a"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        device_architecture(cases[i].capability, name);
        assert_string_equal(name, cases[i].name);
    }
}

/* Output of --open with another folder for the library. */
static void expect_message_with(const char *folder, const char *expected)
{
    int ends[2];
    char message[STATUS_MESSAGE_BYTES] = "";
    size_t used = 0;
    ssize_t count;
    int result = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("LD_LIBRARY_PATH", folder, 1);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execl("/proc/self/exe", "driver_test", "--open", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while ((count = read(ends[0], message + used, sizeof message - 1 - used)) > 0) used += (size_t)count;
    close(ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(WEXITSTATUS(result), STATUS_MACHINE);
    if (!strstr(message, expected)) fail_msg("expected \"%s\" in \"%s\"", expected, message);
}

TEST(test_library_without_a_function)
{
    expect_message_with(incomplete_folder, "NVIDIA driver: expected the function cuKernelGetParamInfo, found a "
                                           "libcuda.so.1 13.0 without it; reinstall the driver");
}

/* A file of that name that is no library hides the machine's libraries. */
TEST(test_no_library)
{
    char *folder = test_folder();
    test_write(test_path(folder, "libcuda.so.1"), "no library", 10);
    expect_message_with(folder, "NVIDIA driver: expected libcuda.so.1, found none (");
    expect_message_with(folder, "); install the driver, or use --target cpu");
    test_folder_remove(folder);
}

static int open_and_tell(void)
{
    struct device device;
    struct status status = {0};
    if (device_open(&device, 0, &status)) device_close(&device);
    printf("%s", status.message);
    return (int)status.code;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--open") == 0) return open_and_tell();
    int result;
    if (!test_with_libraries(fake_folder, argv, &result)) return result;
    fake = test_fake_cuda_find();
    return test_run_with(NULL, begin, end, NULL);
}
