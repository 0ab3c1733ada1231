/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for tests of collectives (kernels/cuda/include/comm.cuh): a single rank on the tests' GPU, or several, each
 * with a stream and a COMM space, on as many GPUs or all on one. Requires for ranks on one GPU: few and small blocks,
 * since all must be co-resident. */
#ifndef KERNELS_CUDA_TEST_COMM_H
#define KERNELS_CUDA_TEST_COMM_H

#include "kernels/cuda/comm.h"
#include "kernels/cuda/test_device.h"

enum { TEST_COMM_BUFFERS = 2, TEST_COMM_MOST_MEMORIES = 16 };

/* Number of GPUs of the tests' model that can access each other's memory, that of the tests first; opened on first use.
 * At most 8. Requires: test_device() was called. */
int test_comm_gpus(void);

/* A tool that serialises kernels (compute-sanitizer) prevents ranks from waiting for each other. */
bool test_comm_ranks_can_meet(void);

struct test_comm_rank {
    const struct device *device;
    cu_stream stream;
    cu_deviceptr space; /* header and buffers, a canary after each */
    cu_deviceptr memories[TEST_COMM_MOST_MEMORIES];
    int memory_count;
};
struct test_comm {
    int ranks, members; /* members: 1 for a single rank, else as ranks */
    size_t buffer_bytes;
    enum cuda_link link;                        /* on one GPU: none, so that tools know where each allocation ends */
    struct test_comm_rank rank[PLAN_MAX_RANKS]; /* [members] */
    volatile uint32_t *fault;                   /* [members], on the host: struct comm_header.fault */
};
/* Distributes ranks evenly over `gpus` GPUs; timeout_ns 0: the default. */
void test_comm_open(struct test_comm *comm, int ranks, int gpus, size_t buffer_bytes, uint64_t timeout_ns);
void test_comm_open_alone(struct test_comm *comm, int ranks, size_t buffer_bytes);
void test_comm_close(struct test_comm *comm);

cu_deviceptr test_comm_header(const struct test_comm *comm, int rank);
cu_deviceptr test_comm_buffer(const struct test_comm *comm, int rank, int which);
void test_comm_read_header(const struct test_comm *comm, int rank, struct comm_header *header);
/* Asserts that no wait timed out, both buffers of all ranks are empty, and nothing beside them was written. */
void test_comm_assert_done(const struct test_comm *comm, const char *what);

/* Memory of a rank until test_comm_close, with this content (NULL: poison). Every access waits for the rank's stream. */
cu_deviceptr test_comm_memory(struct test_comm *comm, int rank, const void *from, size_t bytes);
void test_comm_write(const struct test_comm *comm, int rank, cu_deviceptr to, const void *from, size_t bytes);
void test_comm_read(const struct test_comm *comm, int rank, cu_deviceptr from, void *to, size_t bytes);

/* Queues one launch, or a replay, and returns; test_comm_wait waits for all ranks. Requires: no kernel is opened
 * between the first rank's launch and the last one's, since opening waits for the GPU. */
struct test_comm_kernel {
    const struct test_kernel *kernel;
    cu_function functions[PLAN_MAX_RANKS]; /* [members] */
};
void test_comm_kernel_open(const struct test_comm *comm, struct test_comm_kernel *bound,
                           const struct test_kernel *kernel);
void test_comm_launch(const struct test_comm *comm, int rank, const struct test_comm_kernel *kernel,
                      const cu_deviceptr *operands, int count);
/* `launches` in one chain with edges as in an engine; they use the operand sets, [sets][count], in rotation. */
cu_graph_exec test_comm_graph(const struct test_comm *comm, int rank, const struct test_comm_kernel *kernel,
                              const cu_deviceptr *operand_sets, int sets, int count, int launches);
void test_comm_replay(const struct test_comm *comm, int rank, cu_graph_exec exec);
void test_comm_graph_free(const struct test_comm *comm, int rank, cu_graph_exec exec);
void test_comm_wait(const struct test_comm *comm);

#endif
