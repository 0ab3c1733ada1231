/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL with the fake driver and the fake NCCL (tests/fake_cuda): results of collectives in threads, processes and
 * graphs. Failures are in nccl_failure_test.c. */
#include "kernels/cuda/vendor/test_nccl.h"

#include <sys/wait.h>

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
static const uint64_t counts[] = {1, 2, 1001, TEST_NCCL_COUNT};

static bool sum_all(struct test_nccl_rank *self)
{
    uint32_t round = 0;
    cu_stream stream = self->device.stream;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            test_nccl_fill(self, self->from, dtypes[d], counts[c], ++round);
            EXPECT(nccl_all_reduce(&self->rank, dtypes[d], self->from, self->to, counts[c], stream, &self->status));
            CALL(StreamSynchronize, stream);
            EXPECT(nccl_ok(&self->rank, &self->status));
            EXPECT(test_nccl_is_sum(self, self->to, dtypes[d], counts[c], round));
            EXPECT(nccl_all_reduce(&self->rank, dtypes[d], self->from, self->from, counts[c], stream, &self->status));
            EXPECT(test_nccl_is_sum(self, self->from, dtypes[d], counts[c], round));
        }
    return true;
}

TEST(test_sums)
{
    for (uint32_t ranks = 1; ranks <= TEST_NCCL_RANKS; ranks++) test_nccl_run(ranks, sum_all);
}

static bool gather_all(struct test_nccl_rank *self)
{
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        const uint64_t count = counts[c], bytes = 4 * count;
        const uint32_t round = (uint32_t)(2 * c);
        cu_deviceptr place = self->to + self->number * bytes;
        test_nccl_fill(self, self->from, DTYPE_F32, count, round);
        EXPECT(nccl_all_gather(&self->rank, self->from, self->to, bytes, self->device.stream, &self->status));
        EXPECT(test_nccl_is_gathered(self, self->to, count, round));
        test_nccl_fill(self, place, DTYPE_F32, count, round + 1);
        EXPECT(nccl_all_gather(&self->rank, place, self->to, bytes, self->device.stream, &self->status));
        EXPECT(test_nccl_is_gathered(self, self->to, count, round + 1));
    }
    return true;
}

TEST(test_gathers)
{
    for (uint32_t ranks = 1; ranks <= TEST_NCCL_RANKS; ranks++) test_nccl_run(ranks, gather_all);
}

TEST(test_processes)
{
    enum { PROCESSES = 2 };
    struct test_nccl_rank group[PROCESSES];
    pid_t children[PROCESSES];
    test_nccl_prepare(group, PROCESSES, sum_all);
    for (int r = 0; r < PROCESSES; r++) {
        children[r] = fork();
        assert_true(children[r] >= 0);
        if (children[r] == 0) {
            test_nccl_be_rank(&group[r]);
            if (group[r].failure[0]) fprintf(stderr, "%s\n", group[r].failure);
            _exit(group[r].failure[0] || test_nccl.driver.live(-1) || test_nccl.driver.misuse() ? 1 : 0);
        }
    }
    for (int r = 0; r < PROCESSES; r++) {
        int result = -1;
        assert_int_equal(waitpid(children[r], &result, 0), children[r]);
        assert_int_equal(result, 0);
    }
    test_nccl_expect_no_segment(&group[0].id);
}

static bool replay(struct test_nccl_rank *self)
{
    enum { REPLAYS = 4 };
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    test_nccl_fill(self, self->from, DTYPE_F32, TEST_NCCL_THREE, 0);
    if (!test_nccl_capture_three(self, &graph, &exec)) return false;
    for (uint64_t i = 0; i < TEST_NCCL_THREE; i++) /* nothing ran so far */
        EXPECT(test_nccl_get(self->from, DTYPE_F32, i) == test_nccl_number(0, self->number, i));
    for (uint32_t round = 0; round < REPLAYS; round++) {
        test_nccl_fill(self, self->from, DTYPE_F32, TEST_NCCL_THREE, round);
        CALL(GraphLaunch, exec, self->device.stream);
        CALL(StreamSynchronize, self->device.stream);
        EXPECT(nccl_ok(&self->rank, &self->status));
        EXPECT(test_nccl_is_sum(self, self->from, DTYPE_F32, TEST_NCCL_THREE, round));
        for (uint64_t i = 0; i < (uint64_t)self->ranks * TEST_NCCL_THREE; i++) {
            float one = test_nccl_get(self->from, DTYPE_F32, i % TEST_NCCL_THREE), sum = 0;
            for (uint32_t r = 0; r < self->ranks; r++) sum += one;
            EXPECT(test_nccl_get(self->to, DTYPE_F32, i) == sum);
        }
    }
    return test_nccl_release(self, graph, exec);
}

TEST(test_graphs)
{
    for (uint32_t ranks = 2; ranks <= TEST_NCCL_RANKS; ranks++) test_nccl_run(ranks, replay);
}

int main(int argc, char **argv)
{
    (void)argc;
    int result;
    if (!test_nccl_with_libraries(argv, &result)) return result;
    return test_run_with(test_nccl_find, test_nccl_begin, test_nccl_end, NULL);
}
