/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for tests of nccl.h, as threads, with the fake driver and the fake NCCL (tests/fake_cuda), whose collectives
 * compute. */
#ifndef KERNELS_CUDA_VENDOR_TEST_NCCL_H
#define KERNELS_CUDA_VENDOR_TEST_NCCL_H

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/cuda/vendor/nccl.h"
#include "kernels/cuda/test_fake_cuda.h"

enum {
    TEST_NCCL_RANKS = 3,
    TEST_NCCL_COUNT = 150000, /* elements of F32 from each rank: more than the fake exchanges at a time */
    TEST_NCCL_BYTES = 4 * TEST_NCCL_COUNT,
};

extern struct test_nccl {
    struct test_fake_cuda driver;
    struct nccl nccl; /* open within a test */
} test_nccl;

/* Group setup; setup; teardown, which detects leaks and misuse. */
int test_nccl_find(void **state);
int test_nccl_begin(void **state);
int test_nccl_end(void **state);
/* For main(): like test_with_libraries, with the libraries that these tests need. */
bool test_nccl_with_libraries(char **argv, int *result);

struct test_nccl_rank {
    struct device device;
    struct nccl_rank rank;
    struct nccl_id id;
    uint32_t number, ranks;
    double join_seconds;
    bool (*body)(struct test_nccl_rank *self);
    cu_deviceptr from, to;        /* [TEST_NCCL_BYTES], [TEST_NCCL_RANKS * TEST_NCCL_BYTES] */
    _Atomic int phase;            /* of a body, for others that wait for it */
    struct test_nccl_rank *first; /* rank 0 */
    struct status status;
    char failure[1024]; /* empty: none. An assertion of cmocka would end another thread's test */
};

/* In a body: returns false and records the place. */
#define EXPECT(condition)                                                                                             \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            snprintf(self->failure, sizeof self->failure, "rank %u, %s:%d: expected %s (%s)", self->number, __FILE__, \
                     __LINE__, #condition, self->status.message);                                                     \
            return false;                                                                                             \
        }                                                                                                             \
    } while (0)
#define CALL(function, ...) \
    EXPECT(cuda_ok(&self->device.driver, self->device.driver.function(__VA_ARGS__), &self->status, #function))

/* `ranks` ranks of one id. A rank joins, allocates memory, runs its body and leaves; as a thread's start routine. */
void test_nccl_prepare(struct test_nccl_rank *group, uint32_t ranks, bool (*body)(struct test_nccl_rank *self));
void *test_nccl_be_rank(void *self);
void test_nccl_run(uint32_t ranks, bool (*body)(struct test_nccl_rank *self)); /* all as threads; fails the test */
void test_nccl_wait(struct test_nccl_rank *other, int phase);

void test_nccl_expect_no_segment(const struct nccl_id *id); /* no shared memory of this id exists any more */
double test_nccl_now(void);                                 /* seconds */

/* Data: number() is element i of rank r in round `round`; fill writes those of a rank. */
float test_nccl_number(uint32_t round, uint32_t r, uint64_t i);
float test_nccl_get(cu_deviceptr at, enum dtype dtype, uint64_t i);
void test_nccl_fill(const struct test_nccl_rank *self, cu_deviceptr to, enum dtype dtype, uint64_t count,
                    uint32_t round);
/* Whether the memory has the collective's result for data that `fill` has written on every rank. */
bool test_nccl_is_sum(struct test_nccl_rank *self, cu_deviceptr at, enum dtype dtype, uint64_t count, uint32_t round);
bool test_nccl_is_gathered(const struct test_nccl_rank *self, cu_deviceptr at, uint64_t count, uint32_t round);

/* Three collectives of TEST_NCCL_THREE elements: a sum in `from`, which is gathered in `to` and summed there. */
enum { TEST_NCCL_THREE = 1000 };
bool test_nccl_queue_three(struct test_nccl_rank *self);
bool test_nccl_capture_three(struct test_nccl_rank *self, cu_graph *graph, cu_graph_exec *exec);
bool test_nccl_release(struct test_nccl_rank *self, cu_graph graph, cu_graph_exec exec);

#endif
