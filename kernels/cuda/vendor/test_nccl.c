/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/vendor/test_nccl.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

static const char driver_folder[] = "tests/fake_cuda/whole", library_folder[] = "tests/fake_cuda/libraries";
static const double enough_seconds = 30;

struct test_nccl test_nccl;

bool test_nccl_with_libraries(char **argv, int *result)
{
    /* After the driver's folder, which comes first. */
    const char *folders = getenv("LD_LIBRARY_PATH");
    if ((!folders || !strstr(folders, driver_folder)) && !test_with_libraries(library_folder, argv, result))
        return false;
    return test_with_libraries(driver_folder, argv, result);
}

int test_nccl_find(void **state)
{
    (void)state;
    test_nccl.driver = test_fake_cuda_find();
    return 0;
}

int test_nccl_begin(void **state)
{
    static const char *const settings[] = {"FAKE_NCCL_VERSION", "FAKE_NCCL_TIMEOUT",  "FAKE_NCCL_FAIL",
                                           "FAKE_NCCL_NEVER",   "FAKE_NCCL_SLOW_END", "FAKE_NCCL_ASYNC_ERROR"};
    (void)state;
    struct status status = {0};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) unsetenv(settings[i]);
    setenv("FAKE_CUDA_DEVICES", "3", 1);
    test_nccl.driver.reset();
    test_expect_success(nccl_open(&test_nccl.nccl, &status), &status);
    return 0;
}

int test_nccl_end(void **state)
{
    (void)state;
    nccl_close(&test_nccl.nccl);
    assert_int_equal(test_nccl.driver.live(-1), 0);
    assert_int_equal(test_nccl.driver.misuse(), 0);
    return 0;
}

double test_nccl_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void test_nccl_expect_no_segment(const struct nccl_id *id)
{
    int file = shm_open((const char *)id->bytes, O_RDWR, 0);
    if (file < 0) return;
    close(file);
    fail_msg("%s was not removed", (const char *)id->bytes);
}

/* ---- ranks ---- */

static bool attend(struct test_nccl_rank *self)
{
    EXPECT(nccl_join(&self->rank, &test_nccl.nccl, &self->device, &self->id, self->number, self->ranks,
                     self->join_seconds, NULL, &self->status));
    CALL(MemAlloc, &self->from, TEST_NCCL_BYTES);
    CALL(MemAlloc, &self->to, TEST_NCCL_RANKS * TEST_NCCL_BYTES);
    return self->body(self);
}

void *test_nccl_be_rank(void *argument)
{
    struct test_nccl_rank *self = argument;
    const struct cuda_driver *driver = &self->device.driver;
    if (!device_open(&self->device, (int)self->number, &self->status) || !device_enter(&self->device, &self->status)) {
        snprintf(self->failure, sizeof self->failure, "%s", self->status.message);
        return NULL;
    }
    attend(self);
    nccl_leave(&self->rank);
    if (self->from) driver->MemFree(self->from);
    if (self->to) driver->MemFree(self->to);
    device_leave(&self->device);
    device_close(&self->device);
    return NULL;
}

void test_nccl_prepare(struct test_nccl_rank *group, uint32_t ranks, bool (*body)(struct test_nccl_rank *self))
{
    struct nccl_id id;
    struct status status = {0};
    test_expect_success(nccl_make_id(&test_nccl.nccl, &id, &status), &status);
    for (uint32_t r = 0; r < ranks; r++)
        group[r] = (struct test_nccl_rank){.id = id,
                                           .number = r,
                                           .ranks = ranks,
                                           .join_seconds = enough_seconds,
                                           .body = body,
                                           .first = group};
}

void test_nccl_run(uint32_t ranks, bool (*body)(struct test_nccl_rank *self))
{
    struct test_nccl_rank group[TEST_NCCL_RANKS];
    pthread_t threads[TEST_NCCL_RANKS];
    test_nccl_prepare(group, ranks, body);
    for (uint32_t r = 0; r < ranks; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, test_nccl_be_rank, &group[r]), 0);
    for (uint32_t r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    test_nccl_expect_no_segment(&group[0].id);
    for (uint32_t r = 0; r < ranks; r++)
        if (group[r].failure[0]) fail_msg("%s", group[r].failure);
}

void test_nccl_wait(struct test_nccl_rank *other, int phase)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    while (atomic_load(&other->phase) < phase) nanosleep(&pause, NULL);
}

/* ---- data ---- */

/* About +-2, with all bits of the fraction. */
float test_nccl_number(uint32_t round, uint32_t r, uint64_t i)
{
    uint64_t bits = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (r + 1) * UINT64_C(0xbf58476d1ce4e5b9) ^
                    (round + 1) * UINT64_C(0x94d049bb133111eb);
    bits ^= bits >> 29;
    bits *= UINT64_C(0xbf58476d1ce4e5b9);
    bits ^= bits >> 32;
    return (float)(int32_t)(uint32_t)bits * 0x1p-30f;
}

/* Device memory of the fake driver is host memory. */
float test_nccl_get(cu_deviceptr at, enum dtype dtype, uint64_t i)
{
    const void *data = (const void *)(uintptr_t)at;
    if (dtype == DTYPE_F16) return f16_to_float(((const uint16_t *)data)[i]);
    if (dtype == DTYPE_BF16) return bf16_to_float(((const uint16_t *)data)[i]);
    return ((const float *)data)[i];
}

void test_nccl_fill(const struct test_nccl_rank *self, cu_deviceptr to, enum dtype dtype, uint64_t count,
                    uint32_t round)
{
    void *data = (void *)(uintptr_t)to;
    for (uint64_t i = 0; i < count; i++) {
        float value = test_nccl_number(round, self->number, i);
        if (dtype == DTYPE_F16)
            ((uint16_t *)data)[i] = f16_from_float(value);
        else if (dtype == DTYPE_BF16)
            ((uint16_t *)data)[i] = bf16_from_float(value);
        else
            ((float *)data)[i] = value;
    }
}

static float rounded(float value, enum dtype dtype)
{
    if (dtype == DTYPE_F16) return f16_to_float(f16_from_float(value));
    if (dtype == DTYPE_BF16) return bf16_to_float(bf16_from_float(value));
    return value;
}

bool test_nccl_is_sum(struct test_nccl_rank *self, cu_deviceptr at, enum dtype dtype, uint64_t count, uint32_t round)
{
    for (uint64_t i = 0; i < count; i++) {
        float sum = 0;
        for (uint32_t r = 0; r < self->ranks; r++) sum += rounded(test_nccl_number(round, r, i), dtype);
        float found = test_nccl_get(at, dtype, i);
        if (found == rounded(sum, dtype)) continue;
        return status_fail(&self->status, STATUS_INTERNAL, "%s %llu of %llu: %g, expected %g", dtype_name(dtype),
                           (unsigned long long)i, (unsigned long long)count, (double)found, (double)sum);
    }
    return true;
}

bool test_nccl_is_gathered(const struct test_nccl_rank *self, cu_deviceptr at, uint64_t count, uint32_t round)
{
    for (uint32_t r = 0; r < self->ranks; r++)
        for (uint64_t i = 0; i < count; i++)
            if (test_nccl_get(at, DTYPE_F32, r * count + i) != test_nccl_number(round, r, i)) return false;
    return true;
}

/* ---- graphs ---- */

bool test_nccl_queue_three(struct test_nccl_rank *self)
{
    const struct nccl_rank *rank = &self->rank;
    cu_stream stream = self->device.stream;
    return nccl_all_reduce(rank, DTYPE_F32, self->from, self->from, TEST_NCCL_THREE, stream, &self->status) &&
           nccl_all_gather(rank, self->from, self->to, 4 * TEST_NCCL_THREE, stream, &self->status) &&
           nccl_all_reduce(rank, DTYPE_F32, self->to, self->to, (uint64_t)self->ranks * TEST_NCCL_THREE, stream,
                           &self->status);
}

bool test_nccl_capture_three(struct test_nccl_rank *self, cu_graph *graph, cu_graph_exec *exec)
{
    CALL(StreamBeginCapture, self->device.stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT(test_nccl_queue_three(self));
    CALL(StreamEndCapture, self->device.stream, graph);
    CALL(GraphInstantiate, exec, *graph, 0);
    return true;
}

bool test_nccl_release(struct test_nccl_rank *self, cu_graph graph, cu_graph_exec exec)
{
    CALL(GraphExecDestroy, exec);
    CALL(GraphDestroy, graph);
    return true;
}
