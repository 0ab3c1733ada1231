/* SPDX-License-Identifier: Apache-2.0 */
/* Upload with the fake driver, which delays copies as long as allowed: every byte arrives where it belongs, and every
 * failure is reported. */
#include "formats/base/hash.h"
#include "formats/base/test_support.h"
#include "kernels/cuda/test_fake_cuda.h"
#include "runtime/load/upload.h"

enum { CHUNKS = 9, WEIGHTS = (CHUNKS - 1) * ENGINE_WEIGHT_CHUNK_BYTES + 4321 };

static struct test_fake_cuda fake;
static struct device device;
static uint8_t *weights;
static uint64_t hashes[CHUNKS];
static struct engine file;

static int find_fake(void **state)
{
    uint64_t word = 1;
    fake = test_fake_cuda_find();
    weights = malloc(WEIGHTS);
    assert_non_null(weights);
    for (size_t i = 0; i < WEIGHTS; i++) weights[i] = (uint8_t)test_random(&word);
    return 0;
}

static int forget(void **state)
{
    free(weights);
    return 0;
}

static int begin(void **state)
{
    struct status status = {0};
    unsetenv("FAKE_CUDA_FAIL_CALL");
    fake.reset();
    for (uint64_t c = 0; c < CHUNKS; c++) {
        const uint64_t offset = c * ENGINE_WEIGHT_CHUNK_BYTES, rest = WEIGHTS - offset;
        hashes[c] = hash64(weights + offset, rest < ENGINE_WEIGHT_CHUNK_BYTES ? rest : ENGINE_WEIGHT_CHUNK_BYTES);
    }
    file = (struct engine){.weights = weights, .weight_hashes = hashes, .weight_chunks = CHUNKS};
    file.manifest.weights_bytes = WEIGHTS;
    snprintf(file.manifest.builder_version, sizeof file.manifest.builder_version, "test");
    test_expect_success(device_open(&device, 0, &status), &status);
    return 0;
}

static int end(void **state)
{
    device_close(&device);
    assert_int_equal(fake.live(-1), 0);
    return 0;
}

static bool upload(cu_deviceptr to, struct upload_range range, uint32_t gpus, uint32_t threads, struct status *status)
{
    struct upload *upload = upload_open(&file, &device, to, range, gpus, threads, NULL, status);
    bool ok = upload && upload_run(upload, status);
    upload_close(upload);
    return ok;
}

/* With memory for that many bytes, all set to wrong values. */
static cu_deviceptr allocate(uint64_t bytes)
{
    struct status status = {0};
    cu_deviceptr memory = 0;
    test_expect_success(device_enter(&device, &status), &status);
    assert_int_equal(device.driver.MemAlloc(&memory, bytes), CU_SUCCESS);
    memset((void *)(uintptr_t)memory, 0xa5, bytes);
    device_leave(&device);
    return memory;
}

static void give_back(cu_deviceptr memory)
{
    struct status status = {0};
    test_expect_success(device_enter(&device, &status), &status);
    device.driver.MemFree(memory);
    device_leave(&device);
}

static void check_upload(struct upload_range range, uint32_t gpus, uint32_t threads)
{
    struct status status = {0};
    const uint64_t begin = range.first * ENGINE_WEIGHT_CHUNK_BYTES, all = range.count * ENGINE_WEIGHT_CHUNK_BYTES;
    const uint64_t bytes = begin + all < WEIGHTS ? all : WEIGHTS - begin;
    cu_deviceptr memory = allocate(bytes + 1);
    test_expect_success(upload(memory, range, gpus, threads, &status), &status);
    assert_memory_equal((void *)(uintptr_t)memory, weights + begin, bytes);
    assert_int_equal(((uint8_t *)(uintptr_t)memory)[bytes], 0xa5);
    give_back(memory);
    assert_int_equal(fake.misuse(), 0);
}

static void every_byte_arrives(void **state)
{
    const struct upload_range ranges[] = {{0, CHUNKS}, {3, 4}, {CHUNKS - 1, 1}};
    const uint32_t threads[] = {1, 2, 5, 16, 0};
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
            for (uint32_t gpus = 1; gpus <= 2; gpus++) check_upload(ranges[r], gpus, threads[t]);
}

/* The driver allocates the pinned memory. */
static void memory_that_cannot_be_pinned(void **state)
{
    setenv("FAKE_CUDA_NO_REGISTER", "1", 1);
    check_upload((struct upload_range){0, CHUNKS}, 1, 3);
    unsetenv("FAKE_CUDA_NO_REGISTER");
}

static void a_wrong_chunk_is_named(void **state)
{
    cu_deviceptr memory = allocate(WEIGHTS);
    for (uint32_t threads = 1; threads <= 16; threads += 5) {
        struct status status = {0};
        hashes[5] ^= 1;
        test_expect_failure(upload(memory, (struct upload_range){0, CHUNKS}, 1, threads, &status), &status,
                            STATUS_CORRUPT, "chunk 5 of 9");
        hashes[5] ^= 1;
    }
    give_back(memory);
    assert_int_equal(fake.misuse(), 0);
}

/* The sanitized run takes every STRIDE-th call; a prime, so that it falls on different calls of repeated patterns. */
#if defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 5 };
#else
enum { STRIDE = 1 };
#endif

/* Each driver call fails once: the failure is reported or harmless, no thread waits for ever, and nothing leaks. */
static void each_call_failing(void **state)
{
    uint64_t opening = 0, made = UINT64_MAX;
    int64_t kept = 0;
    int failed = 0;
    device_close(&device);
    for (uint64_t call = 0; call <= made; call += call ? STRIDE : 1) { /* 0: none fails */
        struct status status = {0};
        test_fake_cuda_set(&fake, "FAKE_CUDA_FAIL_CALL", call ? opening + call : 0);
        test_expect_success(device_open(&device, 0, &status), &status);
        cu_deviceptr memory = allocate(WEIGHTS);
        opening = fake.calls();
        bool ok = upload(memory, (struct upload_range){0, CHUNKS}, 2, 2, &status);
        if (!call) made = fake.calls() - opening;
        if (ok) assert_memory_equal((void *)(uintptr_t)memory, weights, WEIGHTS);
        if (!ok) assert_int_equal(status.code, STATUS_MACHINE);
        failed += !ok;
        assert_int_equal(fake.misuse(), 0);
        give_back(memory);
        device_close(&device);
        /* Only the buffers remain, if entering the context failed at the end. */
        if (!ok) assert_int_equal(fake.live(-1), kept);
        kept = fake.live(-1);
    }
    assert_true(kept <= 1);
    assert_true(failed > 4 * CHUNKS / STRIDE); /* at least a copy and an event for each MiB */
    test_fake_cuda_begin(&fake);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_byte_arrives, begin, end),
        cmocka_unit_test_setup_teardown(memory_that_cannot_be_pinned, begin, end),
        cmocka_unit_test_setup_teardown(a_wrong_chunk_is_named, begin, end),
        cmocka_unit_test_setup(each_call_failing, begin),
    };
    int result;
    (void)argc;
    if (!test_with_libraries("tests/fake_cuda/whole", argv, &result)) return result;
    return cmocka_run_group_tests(tests, find_fake, forget);
}
