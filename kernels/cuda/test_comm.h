/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for the tests of collectives (kernels/cuda/include/comm.cuh): one that stands alone on the tests' GPU, or several, each with a
 * stream and a COMM space of its own, on as many GPUs or all on one. Ranks on one GPU must run side by side: only few
 * and small blocks do. */
#ifndef KERNELS_CUDA_TEST_COMM_H
#define KERNELS_CUDA_TEST_COMM_H

#include "kernels/cuda/comm.h"
#include "kernels/cuda/test_device.h"

enum { TEST_COMM_BUFFERS = 2, TEST_COMM_MOST_MEMORIES = 16 };

/* GPUs of the model of the tests' own that see each other's memory, that one first; opened on first use. At most 8; needs
 * test_device(). */
int test_comm_gpus(void);

/* Under a tool that lets one kernel run at a time (compute-sanitizer) ranks cannot meet. */
bool test_comm_ranks_can_meet(void);

struct test_comm_rank {
    const struct device *device;
    cu_stream stream;
    cu_deviceptr space; /* header, buffers, a canary behind each */
    cu_deviceptr memories[TEST_COMM_MOST_MEMORIES];
    int memory_count;
};
struct test_comm {
    int ranks, members; /* members: 1 where a rank stands alone, else as ranks */
    size_t buffer_bytes;
    enum cuda_link link;                        /* on one GPU: none, so that tools know where each allocation ends */
    struct test_comm_rank rank[PLAN_MAX_RANKS]; /* [members] */
    volatile uint32_t *fault;                   /* [members], on the host: struct comm_header.fault */
};
/* Ranks share `gpus` GPUs evenly; timeout_ns 0: the usual one. */
void test_comm_open(struct test_comm *comm, int ranks, int gpus, size_t buffer_bytes, uint64_t timeout_ns);
void test_comm_open_alone(struct test_comm *comm, int ranks, size_t buffer_bytes);
void test_comm_close(struct test_comm *comm);

cu_deviceptr test_comm_header(const struct test_comm *comm, int rank);
cu_deviceptr test_comm_buffer(const struct test_comm *comm, int rank, int which);
void test_comm_read_header(const struct test_comm *comm, int rank, struct comm_header *header);
/* Nobody was waited for in vain, both buffers of all ranks are empty, and nothing beside them was written. */
void test_comm_assert_done(const struct test_comm *comm, const char *what);

/* Memory of a rank until test_comm_close, with this content (NULL: poison). Every access waits for the rank's stream. */
cu_deviceptr test_comm_memory(struct test_comm *comm, int rank, const void *from, size_t bytes);
void test_comm_write(const struct test_comm *comm, int rank, cu_deviceptr to, const void *from, size_t bytes);
void test_comm_read(const struct test_comm *comm, int rank, cu_deviceptr from, void *to, size_t bytes);

/* Queues one launch, or a replay, and returns; test_comm_wait waits for all ranks. No kernel may be opened between the
 * first rank's launch and the last one's: opening waits for the GPU. */
struct test_comm_kernel {
    const struct test_kernel *kernel;
    cu_function functions[PLAN_MAX_RANKS]; /* [members] */
};
void test_comm_kernel_open(const struct test_comm *comm, struct test_comm_kernel *bound,
                           const struct test_kernel *kernel);
void test_comm_launch(const struct test_comm *comm, int rank, const struct test_comm_kernel *kernel,
                      const cu_deviceptr *operands, int count);
/* `launches` in one chain, joined as in an engine, with the operand sets, [sets][count], in turn. */
cu_graph_exec test_comm_graph(const struct test_comm *comm, int rank, const struct test_comm_kernel *kernel,
                              const cu_deviceptr *operand_sets, int sets, int count, int launches);
void test_comm_replay(const struct test_comm *comm, int rank, cu_graph_exec exec);
void test_comm_graph_free(const struct test_comm *comm, int rank, cu_graph_exec exec);
void test_comm_wait(const struct test_comm *comm);

#endif
