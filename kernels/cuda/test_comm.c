/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/test_comm.h"

enum {
    MOST_GPUS = 8,
    CANARY_BYTES = 256,
    CANARY = 0xa5,
    EMPTY = 0xff, /* every byte of COMM_EMPTY; also the poison */
    HEADER_BYTES = 256,
    HOPPER = 90,
};
_Static_assert(sizeof(struct comm_header) <= HEADER_BYTES, "room of the header");

static const struct cuda_driver *driver(void) { return &test_device()->device.driver; }

static void check(cu_result result, const char *what)
{
    struct status status = {0};
    if (!cuda_ok(driver(), result, &status, "%s", what)) fail_msg("%s", status.message);
}

static void must(bool ok, const struct status *status)
{
    if (!ok) fail_msg("%s", status->message);
}

/* ---- GPUs ---- */

static struct device others[MOST_GPUS]; /* from 1 on; 0: that of the tests */

static const struct device *gpu(int index) { return index ? &others[index] : &test_device()->device; }

static void close_others(void)
{
    for (int g = 1; g < MOST_GPUS; g++)
        if (others[g].context) device_close(&others[g]);
}

static enum cuda_link link_of_gpus; /* set by test_comm_gpus */

int test_comm_gpus(void)
{
    static int found;
    const struct device *devices[MOST_GPUS] = {gpu(0)};
    struct status status = {0};
    int present = 0;
    if (found) return found;
    check(driver()->DeviceGetCount(&present), "counting the GPUs");
    found = 1;
    atexit(close_others);
    while (found < present && found < MOST_GPUS) {
        if (!device_open(&others[found], found, &status) || strcmp(others[found].facts.name, gpu(0)->facts.name) != 0)
            break;
        devices[found] = &others[found];
        found++;
    }
    enum cuda_link link = CUDA_LINK_NVLINK;
    struct status reason = {0};
    if (found > 1) must(cuda_comm_find_link(devices, (uint32_t)found, &link, &reason, &status), &status);
    if (link == CUDA_LINK_HOST) {
        print_message("one GPU of %d is used: %s\n", found, reason.message);
        found = 1;
    }
    link_of_gpus = link;
    return found;
}

bool test_comm_ranks_can_meet(void) { return getenv("ENG_TEST_SANITIZED") == NULL; }

static void enter(const struct test_comm_rank *rank)
{
    struct status status = {0};
    must(device_enter(rank->device, &status), &status);
}

/* ---- spaces ---- */

static size_t buffer_offset(const struct test_comm *comm, int which)
{
    size_t room = (comm->buffer_bytes + CANARY_BYTES - 1) / CANARY_BYTES * CANARY_BYTES + CANARY_BYTES;
    return HEADER_BYTES + CANARY_BYTES + (size_t)which * room;
}

static size_t space_bytes(const struct test_comm *comm) { return buffer_offset(comm, TEST_COMM_BUFFERS); }

static void fill(const struct test_comm_rank *rank, cu_deviceptr to, unsigned char byte, size_t bytes)
{
    if (bytes) check(driver()->MemsetD8Async(to, byte, bytes, rank->stream), "filling memory");
}

static void wait_for(const struct test_comm_rank *rank) { check(driver()->StreamSynchronize(rank->stream), "waiting"); }

static void open_rank(struct test_comm *comm, int index, const struct device *device,
                      const struct device *const *members)
{
    struct status status = {0};
    struct test_comm_rank *rank = &comm->rank[index];
    rank->device = device;
    enter(rank);
    check(driver()->StreamCreate(&rank->stream, CU_STREAM_NON_BLOCKING), "making a stream");
    must(cuda_comm_allocate(device, members, (uint32_t)comm->members, comm->link, space_bytes(comm), &rank->space,
                            &status),
         &status);
    fill(rank, rank->space, CANARY, space_bytes(comm));
    for (int b = 0; b < TEST_COMM_BUFFERS; b++)
        fill(rank, rank->space + buffer_offset(comm, b), EMPTY, comm->buffer_bytes);
    wait_for(rank);
    device_leave(device);
}

static void write_header(const struct test_comm *comm, int index, const struct comm_header *header)
{
    struct status status = {0};
    const struct test_comm_rank *rank = &comm->rank[index];
    enter(rank);
    must(cuda_comm_write(rank->device, rank->space, header, &status), &status);
    device_leave(rank->device);
}

static void open_all(struct test_comm *comm, int ranks, int members, int gpus, size_t buffer_bytes)
{
    void *fault = NULL;
    *comm = (struct test_comm){.ranks = ranks, .members = members, .buffer_bytes = buffer_bytes};
    assert_in_range(ranks, 2, PLAN_MAX_RANKS);
    assert_in_range(gpus, 1, test_comm_gpus());
    check(driver()->MemHostAlloc(&fault, PLAN_MAX_RANKS * sizeof *comm->fault, 0), "allocating host memory");
    memset(fault, 0, PLAN_MAX_RANKS * sizeof *comm->fault);
    comm->fault = fault;
    const struct device *devices[PLAN_MAX_RANKS];
    if (gpus > 1) comm->link = link_of_gpus;
    for (int r = 0; r < members; r++) devices[r] = gpu(r * gpus / members);
    for (int r = 0; r < members; r++) open_rank(comm, r, devices[r], devices);
}

void test_comm_open(struct test_comm *comm, int ranks, int gpus, size_t buffer_bytes, uint64_t timeout_ns)
{
    uint64_t spaces[PLAN_MAX_RANKS];
    open_all(comm, ranks, ranks, gpus, buffer_bytes);
    for (int r = 0; r < ranks; r++) spaces[r] = comm->rank[r].space;
    for (int r = 0; r < ranks; r++) {
        struct comm_header header;
        /* Pinned memory has one address for host and devices. */
        cuda_comm_header(&header, (uint32_t)r, (uint32_t)ranks, spaces, (uint64_t)(uintptr_t)&comm->fault[r]);
        if (timeout_ns) header.timeout_ns = timeout_ns;
        write_header(comm, r, &header);
    }
}

void test_comm_open_alone(struct test_comm *comm, int ranks, size_t buffer_bytes)
{
    struct comm_header header;
    open_all(comm, ranks, 1, 1, buffer_bytes);
    cuda_comm_header_alone(&header, (uint32_t)ranks, comm->rank[0].space);
    header.fault = (uint64_t)(uintptr_t)comm->fault;
    write_header(comm, 0, &header);
}

void test_comm_close(struct test_comm *comm)
{
    for (int r = 0; r < comm->members; r++) {
        struct test_comm_rank *rank = &comm->rank[r];
        enter(rank);
        wait_for(rank);
        for (int m = 0; m < rank->memory_count; m++) check(driver()->MemFree(rank->memories[m]), "freeing memory");
        cuda_comm_free(rank->device, comm->link, rank->space, space_bytes(comm));
        check(driver()->StreamDestroy(rank->stream), "destroying a stream");
        device_leave(rank->device);
    }
    check(driver()->MemFreeHost((void *)(uintptr_t)comm->fault), "freeing host memory");
    *comm = (struct test_comm){0};
}

cu_deviceptr test_comm_header(const struct test_comm *comm, int rank) { return comm->rank[rank].space; }

cu_deviceptr test_comm_buffer(const struct test_comm *comm, int rank, int which)
{
    return comm->rank[rank].space + buffer_offset(comm, which);
}

void test_comm_read_header(const struct test_comm *comm, int rank, struct comm_header *header)
{
    test_comm_read(comm, rank, comm->rank[rank].space, header, sizeof *header);
}

static void assert_bytes(const uint8_t *space, size_t begin, size_t end, uint8_t expected, const char *what, int rank)
{
    for (size_t i = begin; i < end; i++)
        if (space[i] != expected)
            fail_msg("%s: rank %d: byte %zu of the COMM space is %02x, expected %02x (%s)", what, rank, i, space[i],
                     expected, expected == EMPTY ? "an empty buffer" : "a canary");
}

void test_comm_assert_done(const struct test_comm *comm, const char *what)
{
    uint8_t *space = malloc(space_bytes(comm));
    assert_non_null(space);
    for (int r = 0; r < comm->members; r++) {
        struct comm_header header;
        test_comm_read(comm, r, comm->rank[r].space, space, space_bytes(comm));
        memcpy(&header, space, sizeof header);
        if (header.timed_out || header.stop || comm->fault[r])
            fail_msg("%s: rank %d: timed_out %u, stop %u, fault %u", what, r, header.timed_out, header.stop,
                     comm->fault[r]);
        size_t from = sizeof header;
        for (int b = 0; b < TEST_COMM_BUFFERS; b++) {
            size_t begin = buffer_offset(comm, b);
            assert_bytes(space, from, begin, CANARY, what, r);
            from = begin + comm->buffer_bytes;
            assert_bytes(space, begin, from, EMPTY, what, r);
        }
        assert_bytes(space, from, space_bytes(comm), CANARY, what, r);
    }
    free(space);
}

/* ---- memory ---- */

cu_deviceptr test_comm_memory(struct test_comm *comm, int rank, const void *from, size_t bytes)
{
    struct test_comm_rank *own = &comm->rank[rank];
    cu_deviceptr memory = 0;
    assert_in_range(own->memory_count, 0, TEST_COMM_MOST_MEMORIES - 1);
    enter(own);
    check(driver()->MemAlloc(&memory, bytes), "allocating memory");
    own->memories[own->memory_count++] = memory;
    if (!from) fill(own, memory, EMPTY, bytes);
    wait_for(own);
    device_leave(own->device);
    if (from) test_comm_write(comm, rank, memory, from, bytes);
    return memory;
}

void test_comm_write(const struct test_comm *comm, int rank, cu_deviceptr to, const void *from, size_t bytes)
{
    const struct test_comm_rank *own = &comm->rank[rank];
    enter(own);
    check(driver()->MemcpyHtoDAsync(to, from, bytes, own->stream), "writing memory");
    wait_for(own);
    device_leave(own->device);
}

void test_comm_read(const struct test_comm *comm, int rank, cu_deviceptr from, void *to, size_t bytes)
{
    const struct test_comm_rank *own = &comm->rank[rank];
    enter(own);
    check(driver()->MemcpyDtoHAsync(to, from, bytes, own->stream), "reading memory");
    wait_for(own);
    device_leave(own->device);
}

/* ---- launches ---- */

void test_comm_kernel_open(const struct test_comm *comm, struct test_comm_kernel *bound,
                           const struct test_kernel *kernel)
{
    *bound = (struct test_comm_kernel){.kernel = kernel};
    assert_int_equal(kernel->geometry.shared_bytes, 0); /* otherwise every context would have to allow it */
    for (int r = 0; r < comm->members; r++) {
        cu_kernel handle = NULL;
        enter(&comm->rank[r]);
        check(driver()->LibraryGetKernel(&handle, kernel->library, kernel->kernel->name), kernel->kernel->name);
        check(driver()->KernelGetFunction(&bound->functions[r], handle), kernel->kernel->name);
        device_leave(comm->rank[r].device);
    }
}

static void point_to(const cu_deviceptr *operands, int count, const void **pointers)
{
    assert_in_range(count, 1, PLAN_MAX_OPERANDS);
    for (int i = 0; i < count; i++) pointers[i] = &operands[i];
}

static union cu_launch_attribute_value cluster_of(const struct device_geometry *geometry)
{
    union cu_launch_attribute_value value = {{0}};
    value.cluster.x = geometry->cluster[0];
    value.cluster.y = value.cluster.z = 1;
    return value;
}

void test_comm_launch(const struct test_comm *comm, int rank, const struct test_comm_kernel *kernel,
                      const cu_deviceptr *operands, int count)
{
    const struct test_comm_rank *own = &comm->rank[rank];
    const struct device_geometry *geometry = &kernel->kernel->geometry;
    const void *pointers[PLAN_MAX_OPERANDS];
    struct cu_launch_attribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value = cluster_of(geometry)};
    struct cu_launch_config config = {.stream = own->stream,
                                      .attributes = &cluster,
                                      .attribute_count = geometry->cluster[0] > 1};
    memcpy(config.grid, geometry->grid, sizeof config.grid);
    memcpy(config.block, geometry->block, sizeof config.block);
    point_to(operands, count, pointers);
    enter(own);
    check(driver()->LaunchKernelEx(&config, kernel->functions[rank], (void **)(uintptr_t)pointers, NULL), "a launch");
    device_leave(own->device);
}

cu_graph_exec test_comm_graph(const struct test_comm *comm, int rank, const struct test_comm_kernel *kernel,
                              const cu_deviceptr *operand_sets, int sets, int count, int launches)
{
    const struct test_comm_rank *own = &comm->rank[rank];
    const struct device_geometry *geometry = &kernel->kernel->geometry;
    const struct cu_graph_edge programmatic = {.from_port = CU_GRAPH_PORT_PROGRAMMATIC,
                                               .type = CU_GRAPH_EDGE_PROGRAMMATIC};
    const struct cu_graph_edge full = {0};
    const struct cu_graph_edge *edge = own->device->facts.capability >= HOPPER ? &programmatic : &full;
    const union cu_launch_attribute_value cluster = cluster_of(geometry);
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    cu_graph_node last = NULL;
    enter(own);
    check(driver()->GraphCreate(&graph, 0), "making a graph");
    for (int i = 0; i < launches; i++) {
        struct cu_graph_node_params params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
        const void *pointers[PLAN_MAX_OPERANDS];
        cu_graph_node node = NULL;
        point_to(operand_sets + (size_t)(i % sets) * (size_t)count, count, pointers);
        params.kernel.function = kernel->functions[rank];
        params.kernel.params = (void **)(uintptr_t)pointers;
        memcpy(params.kernel.grid, geometry->grid, sizeof params.kernel.grid);
        memcpy(params.kernel.block, geometry->block, sizeof params.kernel.block);
        check(driver()->GraphAddNode(&node, graph, i ? &last : NULL, i ? edge : NULL, i ? 1 : 0, &params),
              "adding a kernel to a graph");
        if (geometry->cluster[0] > 1)
            check(driver()->GraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster),
                  "setting a node's cluster");
        last = node;
    }
    check(driver()->GraphInstantiate(&exec, graph, 0), "instantiating a graph");
    check(driver()->GraphDestroy(graph), "freeing a graph");
    check(driver()->GraphUpload(exec, own->stream), "uploading a graph");
    wait_for(own);
    device_leave(own->device);
    return exec;
}

void test_comm_replay(const struct test_comm *comm, int rank, cu_graph_exec exec)
{
    const struct test_comm_rank *own = &comm->rank[rank];
    enter(own);
    check(driver()->GraphLaunch(exec, own->stream), "a replay");
    device_leave(own->device);
}

void test_comm_graph_free(const struct test_comm *comm, int rank, cu_graph_exec exec)
{
    enter(&comm->rank[rank]);
    check(driver()->GraphExecDestroy(exec), "freeing a graph");
    device_leave(comm->rank[rank].device);
}

void test_comm_wait(const struct test_comm *comm)
{
    for (int r = 0; r < comm->members; r++) {
        enter(&comm->rank[r]);
        wait_for(&comm->rank[r]);
        device_leave(comm->rank[r].device);
    }
}
