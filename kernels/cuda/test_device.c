/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/test_device.h"

#include <pthread.h>
#include <unistd.h>

#include "kernels/cuda/nvrtc.h"

enum {
    CANARY_BYTES = 256, /* before and after; a multiple of the alignment of allocations */
    CANARY = 0xa5,
    POISON = 0xff,
    WARM_UP_REPLAYS = 5,
    TIMED_REPLAYS = 31, /* fewer, at least LEAST_REPLAYS, if they would take longer than MOST_TIMED_MS */
    LEAST_REPLAYS = 5,
    MOST_TIMED_MS = 300,
    /* A replay takes longer than queueing the next one, so that the device's time is measured, not the host's. */
    LEAST_LAUNCHES = 64,
};

static struct test_device the_device;

static void close_device(void)
{
    device_leave(&the_device.device);
    nvrtc_close(the_device.nvrtc);
    device_close(&the_device.device);
}

/* Where a GPU is required, a skipped test is a failure. */
static struct test_device *without_device(const char *message)
{
    if (getenv("ENG_TEST_NEEDS_GPU")) fail_msg("no GPU: %s", message);
    fprintf(stderr, "skipped, no GPU: %s\n", message);
    return NULL;
}

struct test_device *test_device(void)
{
    static bool tried, opened;
    struct status status = {0};
    if (tried) return opened ? &the_device : NULL;
    tried = true;
    if (!device_open(&the_device.device, 0, &status)) return without_device(status.message);
    the_device.nvrtc = nvrtc_open(device_sources, device_source_count, getenv("ENG_TEST_CUBINS"), &status);
    /* The context stays current on the only thread of the tests. */
    if (!the_device.nvrtc || !device_enter(&the_device.device, &status)) {
        nvrtc_close(the_device.nvrtc);
        device_close(&the_device.device);
        return without_device(status.message);
    }
    atexit(close_device);
    opened = true;
    return &the_device;
}

static const struct cuda_driver *driver(void)
{
    struct test_device *test = test_device();
    assert_non_null(test);
    return &test->device.driver;
}

static cu_stream stream(void) { return test_device()->device.stream; }

static void check(cu_result result, const char *what)
{
    struct status status = {0};
    if (!cuda_ok(driver(), result, &status, "%s", what)) fail_msg("%s", status.message);
}

static void synchronize(const char *what) { check(driver()->StreamSynchronize(stream()), what); }

/* Buffers */

/* From the end of the data to the end of the allocation. */
static size_t tail_bytes(size_t bytes)
{
    return (bytes + CANARY_BYTES - 1) / CANARY_BYTES * CANARY_BYTES + CANARY_BYTES - bytes;
}

struct test_device_buffer test_device_buffer_new(size_t bytes)
{
    struct test_device_buffer buffer = {.bytes = bytes};
    check(driver()->MemAlloc(&buffer.base, CANARY_BYTES + bytes + tail_bytes(bytes)), "allocating a buffer");
    buffer.data = buffer.base + CANARY_BYTES;
    check(driver()->MemsetD8Async(buffer.base, CANARY, CANARY_BYTES, stream()), "filling the canary before a buffer");
    check(driver()->MemsetD8Async(buffer.data + bytes, CANARY, tail_bytes(bytes), stream()),
          "filling the canary after a buffer");
    test_device_buffer_poison(&buffer);
    return buffer;
}

void test_device_buffer_free(struct test_device_buffer *buffer)
{
    if (buffer->base) check(driver()->MemFree(buffer->base), "freeing a buffer");
    *buffer = (struct test_device_buffer){0};
}

void test_device_buffer_poison(struct test_device_buffer *buffer)
{
    if (buffer->bytes)
        check(driver()->MemsetD8Async(buffer->data, POISON, buffer->bytes, stream()), "poisoning a buffer");
    synchronize("poisoning a buffer");
}

void test_device_write(struct test_device_buffer *buffer, const void *from, size_t bytes)
{
    assert_true(bytes <= buffer->bytes);
    if (bytes) check(driver()->MemcpyHtoDAsync(buffer->data, from, bytes, stream()), "writing a buffer");
    synchronize("writing a buffer");
}

void test_device_read(const struct test_device_buffer *buffer, void *to, size_t bytes)
{
    assert_true(bytes <= buffer->bytes);
    if (bytes) check(driver()->MemcpyDtoHAsync(to, buffer->data, bytes, stream()), "reading a buffer");
    synchronize("reading a buffer");
}

void test_device_assert_intact(const struct test_device_buffer *buffer, const char *what)
{
    unsigned char canary[2 * CANARY_BYTES];
    size_t tail = tail_bytes(buffer->bytes);
    assert_true(tail <= sizeof canary);
    check(driver()->MemcpyDtoHAsync(canary, buffer->base, CANARY_BYTES, stream()), "reading a canary");
    synchronize("reading a canary");
    for (size_t i = 0; i < CANARY_BYTES; i++)
        if (canary[i] != CANARY) fail_msg("%s: byte %zu before the buffer was written", what, CANARY_BYTES - i);
    check(driver()->MemcpyDtoHAsync(canary, buffer->data + buffer->bytes, tail, stream()), "reading a canary");
    synchronize("reading a canary");
    for (size_t i = 0; i < tail; i++)
        if (canary[i] != CANARY) fail_msg("%s: byte %zu after the buffer was written", what, i);
}

/* Kernels */

static cu_kernel kernel_handle(const struct test_kernel *test)
{
    cu_kernel kernel = NULL;
    check(driver()->LibraryGetKernel(&kernel, test->library, test->kernel->name), test->kernel->name);
    return kernel;
}

static int kernel_attribute(cu_kernel kernel, int attribute)
{
    int value = 0;
    check(driver()->KernelGetAttribute(&value, attribute, kernel, test_device()->device.handle), "kernel attribute");
    return value;
}

static unsigned cluster_size(const struct device_geometry *geometry)
{
    return geometry->cluster[0] * geometry->cluster[1] * geometry->cluster[2];
}

void test_kernel_open(struct test_kernel *test, const struct device_kernel *kernel, const int64_t *params)
{
    enum { PORTABLE_CLUSTER = 8 };
    struct status status = {0};
    void *cubin = NULL;
    size_t size = 0;
    const struct device *device = &test_device()->device;
    *test = (struct test_kernel){.kernel = kernel};
    memcpy(test->params, params, (size_t)device_param_count(kernel) * sizeof *params);
    const char *illegal = kernel->launch(test->params, &device->facts, &test->geometry);
    if (illegal) fail_msg("%s: %s", kernel->name, illegal);
    if (!nvrtc_compile(test_device()->nvrtc, kernel, test->params, device->facts.capability, &cubin, &size, &status))
        fail_msg("%s", status.message);
    cu_result result = driver()->LibraryLoadData(&test->library, cubin, NULL, NULL, 0, NULL, NULL, 0);
    free(cubin);
    check(result, kernel->name);
    cu_kernel handle = kernel_handle(test);
    if (test->geometry.shared_bytes)
        check(driver()->KernelSetAttribute(CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)test->geometry.shared_bytes,
                                           handle, device->handle),
              "raising the limit of dynamic shared memory");
    if (cluster_size(&test->geometry) > PORTABLE_CLUSTER)
        check(driver()->KernelSetAttribute(CU_FUNCTION_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, handle, device->handle),
              "allowing a large cluster");
    check(driver()->KernelGetFunction(&test->function, handle), kernel->name);
    test->registers = kernel_attribute(handle, CU_FUNCTION_NUM_REGS);
    test->local_bytes = kernel_attribute(handle, CU_FUNCTION_LOCAL_SIZE_BYTES);
    test->static_shared_bytes = kernel_attribute(handle, CU_FUNCTION_SHARED_SIZE_BYTES);
}

const char *test_describe(const struct device_kernel *kernel, const int64_t *params)
{
    static char text[1024];
    size_t used = (size_t)snprintf(text, sizeof text, "%s", kernel->name);
    for (int i = 0; i < device_param_count(kernel) && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %s=%lld", device_param_name(kernel, i),
                                 (long long)params[i]);
    return text;
}

int test_variants_add(struct test_variants *variants, const struct device_kernel *kernel, const int64_t *params)
{
    const int added = variants->count++;
    assert_in_range(added, 0, sizeof variants->kernels / sizeof *variants->kernels - 1);
    variants->kernels[added] = kernel;
    memcpy(variants->params[added], params, (size_t)device_param_count(kernel) * sizeof *params);
    return added;
}

struct compiling {
    const struct test_variants *variants;
    _Atomic int next;
};

/* A failure here occurs again, with its message, in test_kernel_open. */
static void *compile_some(void *context)
{
    struct compiling *work = context;
    for (int i; (i = work->next++) < work->variants->count;) {
        struct status status = {0};
        void *cubin = NULL;
        size_t size = 0;
        if (nvrtc_compile(the_device.nvrtc, work->variants->kernels[i], work->variants->params[i],
                          the_device.device.facts.capability, &cubin, &size, &status))
            free(cubin);
    }
    return NULL;
}

void test_variants_compile(const struct test_variants *variants)
{
    enum { MOST_THREADS = 64 };
    pthread_t threads[MOST_THREADS];
    struct compiling work = {variants, 0};
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int started = 0;
    assert_non_null(test_device());
    if (!getenv("ENG_TEST_CUBINS")) return;
    while (started < MOST_THREADS && started < processors && started < variants->count &&
           pthread_create(&threads[started], NULL, compile_some, &work) == 0)
        started++;
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

void test_kernel_close(struct test_kernel *test)
{
    if (test->library) check(driver()->LibraryUnload(test->library), "unloading a kernel");
    *test = (struct test_kernel){0};
}

/* The arguments of one launch. Requires: it does not move while `pointers` is used. */
struct arguments {
    struct cu_tensor_map maps[PLAN_MAX_OPERANDS];
    cu_deviceptr addresses[PLAN_MAX_OPERANDS];
    void *pointers[PLAN_MAX_OPERANDS];
};

static int tensor_map_type(int64_t dtype)
{
    switch (dtype) {
    case DTYPE_F32: return CU_TENSOR_MAP_FLOAT32;
    case DTYPE_F16: return CU_TENSOR_MAP_FLOAT16;
    case DTYPE_BF16: return CU_TENSOR_MAP_BFLOAT16;
    case DTYPE_I64: return CU_TENSOR_MAP_INT64;
    default: return CU_TENSOR_MAP_UINT8;
    }
}

static int tensor_map_swizzle(int64_t bytes)
{
    switch (bytes) {
    case 0: return CU_TENSOR_MAP_SWIZZLE_NONE;
    case 32: return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64: return CU_TENSOR_MAP_SWIZZLE_64B;
    case 128: return CU_TENSOR_MAP_SWIZZLE_128B;
    default: fail_msg("tensor map: expected a swizzle of 0, 32, 64 or 128 bytes, found %lld", (long long)bytes);
    }
    return 0;
}

static void encode_tensor_map(struct cu_tensor_map *encoded, const struct plan_tensor_map *map, cu_deviceptr address,
                              uint64_t space_rows)
{
    const uint64_t dimensions[2] = {(uint64_t)map->columns, map->rows ? (uint64_t)map->rows : space_rows};
    const uint64_t strides[1] = {(uint64_t)map->pitch};
    const unsigned box[2] = {(unsigned)map->box_columns, (unsigned)map->box_rows}, element_strides[2] = {1, 1};
    check(driver()->TensorMapEncodeTiled(encoded, tensor_map_type(map->dtype), 2, (void *)(uintptr_t)address,
                                         dimensions, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                         tensor_map_swizzle(map->swizzle), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                         CU_TENSOR_MAP_OOB_FILL_NONE),
          "encoding a tensor map");
}

static void make_arguments(struct arguments *arguments, const struct test_kernel *test, const cu_deviceptr *operands,
                           int count, uint64_t space_rows)
{
    const struct device_kernel *kernel = test->kernel;
    assert_in_range(count, 1, PLAN_MAX_OPERANDS);
    for (int i = 0; i < count; i++) {
        struct plan_tensor_map map = {0};
        arguments->addresses[i] = operands[i];
        arguments->pointers[i] = &arguments->addresses[i];
        if (!kernel->tensor_map || !kernel->tensor_map(test->params, i, &map)) continue;
        encode_tensor_map(&arguments->maps[i], &map, operands[i], space_rows);
        arguments->pointers[i] = &arguments->maps[i];
    }
}

/* The driver reads as many arguments as the kernel has parameters, whatever the caller passed. */
static void check_parameters(const struct test_kernel *test, int count)
{
    cu_kernel kernel = kernel_handle(test);
    size_t offset = 0, bytes = 0;
    for (int i = 0; i < count; i++) {
        struct plan_tensor_map map = {0};
        bool is_map = test->kernel->tensor_map && test->kernel->tensor_map(test->params, i, &map);
        size_t expected = is_map ? sizeof(struct cu_tensor_map) : sizeof(cu_deviceptr);
        if (driver()->KernelGetParamInfo(kernel, (size_t)i, &offset, &bytes) != CU_SUCCESS)
            fail_msg("%s has %d parameters, the test passes %d operands", test->kernel->name, i, count);
        if (bytes != expected)
            fail_msg("%s: parameter %d: expected %zu bytes, found %zu", test->kernel->name, i, expected, bytes);
    }
    if (driver()->KernelGetParamInfo(kernel, (size_t)count, &offset, &bytes) == CU_SUCCESS)
        fail_msg("%s has more than the %d parameters that the test passes operands for", test->kernel->name, count);
}

static union cu_launch_attribute_value cluster_attribute(const struct device_geometry *geometry)
{
    union cu_launch_attribute_value value = {{0}};
    value.cluster.x = geometry->cluster[0];
    value.cluster.y = geometry->cluster[1];
    value.cluster.z = geometry->cluster[2];
    return value;
}

void test_kernel_run(struct test_kernel *test, const cu_deviceptr *operands, int count, uint64_t space_rows)
{
    const struct device_geometry *geometry = &test->geometry;
    struct arguments arguments;
    struct cu_launch_attribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                          .value = cluster_attribute(geometry)};
    struct cu_launch_config config = {.shared_bytes = geometry->shared_bytes,
                                      .stream = stream(),
                                      .attributes = &cluster,
                                      .attribute_count = cluster_size(geometry) > 1};
    memcpy(config.grid, geometry->grid, sizeof config.grid);
    memcpy(config.block, geometry->block, sizeof config.block);
    make_arguments(&arguments, test, operands, count, space_rows);
    check_parameters(test, count);
    check(driver()->LaunchKernelEx(&config, test->function, arguments.pointers, NULL), test->kernel->name);
    synchronize(test->kernel->name);
}

/* Timing */

/* `launches` nodes in one chain that use the operand sets in rotation. */
static cu_graph_exec build_chain(struct test_kernel *test, const cu_deviceptr *operand_sets, int count, int copies,
                                 int launches, uint64_t space_rows)
{
    enum { HOPPER = 90 };
    const struct device_geometry *geometry = &test->geometry;
    /* As in an engine: the next kernel's preamble overlaps, and its device_wait() orders it. */
    const struct cu_graph_edge programmatic = {.from_port = CU_GRAPH_PORT_PROGRAMMATIC,
                                               .type = CU_GRAPH_EDGE_PROGRAMMATIC};
    const struct cu_graph_edge full = {0};
    bool overlaps = test_device()->device.facts.capability >= HOPPER;
    const union cu_launch_attribute_value cluster = cluster_attribute(geometry);
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    cu_graph_node last = NULL;
    check(driver()->GraphCreate(&graph, 0), "making a graph");
    for (int i = 0; i < launches; i++) {
        struct arguments arguments;
        struct cu_graph_node_params params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
        cu_graph_node node = NULL;
        make_arguments(&arguments, test, operand_sets + (size_t)(i % copies) * (size_t)count, count, space_rows);
        params.kernel.function = test->function;
        params.kernel.shared_bytes = geometry->shared_bytes;
        params.kernel.params = arguments.pointers;
        memcpy(params.kernel.grid, geometry->grid, sizeof params.kernel.grid);
        memcpy(params.kernel.block, geometry->block, sizeof params.kernel.block);
        check(driver()->GraphAddNode(&node, graph, i ? &last : NULL, i ? (overlaps ? &programmatic : &full) : NULL,
                                     i ? 1 : 0, &params),
              "adding a kernel to a graph");
        if (cluster_size(geometry) > 1)
            check(driver()->GraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster),
                  "setting a node's cluster");
        last = node;
    }
    check(driver()->GraphInstantiate(&exec, graph, 0), "instantiating a graph");
    check(driver()->GraphDestroy(graph), "freeing a graph");
    check(driver()->GraphUpload(exec, stream()), "uploading a graph");
    return exec;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median milliseconds of a replay. All are queued without a pause: each event directly follows the replay before it. */
static double time_replays(cu_graph_exec exec, int warm_up, int replays)
{
    cu_event events[TIMED_REPLAYS + 1];
    float milliseconds[TIMED_REPLAYS];
    for (int i = 0; i <= replays; i++) check(driver()->EventCreate(&events[i], CU_EVENT_DEFAULT), "event");
    for (int i = 0; i < warm_up; i++) check(driver()->GraphLaunch(exec, stream()), "warming up");
    check(driver()->EventRecord(events[0], stream()), "event");
    for (int i = 0; i < replays; i++) {
        check(driver()->GraphLaunch(exec, stream()), "timed replay");
        check(driver()->EventRecord(events[i + 1], stream()), "event");
    }
    synchronize("timed replays");
    for (int i = 0; i < replays; i++)
        check(driver()->EventElapsedTime(&milliseconds[i], events[i], events[i + 1]), "elapsed time");
    for (int i = 0; i <= replays; i++) check(driver()->EventDestroy(events[i]), "event");
    qsort(milliseconds, (size_t)replays, sizeof *milliseconds, compare_floats);
    return (double)milliseconds[replays / 2];
}

double test_kernel_time(struct test_kernel *test, const cu_deviceptr *operand_sets, int count, int copies,
                        uint64_t space_rows)
{
    assert_true(copies > 0);
    int launches = copies * ((LEAST_LAUNCHES + copies - 1) / copies);
    check_parameters(test, count);
    cu_graph_exec exec = build_chain(test, operand_sets, count, copies, launches, space_rows);
    double replays = MOST_TIMED_MS / (time_replays(exec, 1, 1) + 1e-3);
    if (replays > TIMED_REPLAYS) replays = TIMED_REPLAYS;
    if (replays < LEAST_REPLAYS) replays = LEAST_REPLAYS;
    double milliseconds = time_replays(exec, WARM_UP_REPLAYS - 2, (int)replays);
    check(driver()->GraphExecDestroy(exec), "freeing a graph");
    return 1000.0 * milliseconds / launches;
}

double test_copy_bandwidth(void)
{
    enum { BYTES = 1 << 29, COPIES = 11 };
    cu_event events[COPIES + 1];
    float milliseconds[COPIES];
    struct test_device_buffer from = test_device_buffer_new(BYTES), to = test_device_buffer_new(BYTES);
    for (int i = 0; i <= COPIES; i++) {
        check(driver()->EventCreate(&events[i], CU_EVENT_DEFAULT), "event");
        check(driver()->MemcpyDtoDAsync(to.data, from.data, BYTES, stream()), "copying");
        check(driver()->EventRecord(events[i], stream()), "event");
    }
    synchronize("copying");
    for (int i = 0; i < COPIES; i++)
        check(driver()->EventElapsedTime(&milliseconds[i], events[i], events[i + 1]), "elapsed time");
    for (int i = 0; i <= COPIES; i++) check(driver()->EventDestroy(events[i]), "event");
    test_device_buffer_free(&from);
    test_device_buffer_free(&to);
    qsort(milliseconds, COPIES, sizeof *milliseconds, compare_floats);
    return 2.0 * BYTES / ((double)milliseconds[COPIES / 2] * 1e-3);
}

/* Arrays */

void test_encode(const float *from, void *to, size_t count, enum dtype dtype)
{
    assert_true(dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16);
    for (size_t i = 0; i < count; i++) {
        if (dtype == DTYPE_F32)
            ((float *)to)[i] = from[i];
        else
            ((uint16_t *)to)[i] = dtype == DTYPE_F16 ? f16_from_float(from[i]) : bf16_from_float(from[i]);
    }
}

void test_decode(const void *from, float *to, size_t count, enum dtype dtype)
{
    assert_true(dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16);
    for (size_t i = 0; i < count; i++) {
        if (dtype == DTYPE_F32) {
            to[i] = ((const float *)from)[i];
        } else {
            uint16_t value = ((const uint16_t *)from)[i];
            to[i] = dtype == DTYPE_F16 ? f16_to_float(value) : bf16_to_float(value);
        }
    }
}
