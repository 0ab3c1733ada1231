/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver itself: what it runs, what it refuses, what it counts. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"
#include "kernels/cuda/test_fake_cuda.h"

#include <dlfcn.h>
#include <sys/wait.h>

#include "kernels/cuda/device.h"
#include "tests/fake_cuda/fake_cuda.h"

static const char fake_folder[] = "tests/fake_cuda/whole";

static struct test_fake_cuda fake;

static struct device device;
static const struct cuda_driver *const driver = &device.driver;

static int find_fake(void **state)
{
    fake = test_fake_cuda_find();
    return 0;
}

static int begin(void **state)
{
    struct status status = {0};
    fake.reset();
    if (!device_open(&device, 0, &status) || !device_enter(&device, &status)) fail_msg("%s", status.message);
    return 0;
}

static int end(void **state)
{
    device_leave(&device);
    device_close(&device);
    assert_int_equal(fake.live(-1), 0);
    return 0;
}

static void ok(cu_result result)
{
    struct status status = {0};
    if (!cuda_ok(driver, result, &status, "call")) fail_msg("%s", status.message);
}

static const char cubin[] = "FAKE CUBIN 90\nkernel add 8 8\nkernel mapped 8 128\nkernel none\nend\n";

static cu_function find_kernel(cu_library library, const char *name, cu_kernel *kernel)
{
    cu_function function = NULL;
    ok(driver->LibraryGetKernel(kernel, library, name));
    ok(driver->KernelGetFunction(&function, *kernel));
    return function;
}

/* Adds the integer at argument 1 to that at argument 0; notes the grid. */
static void add(const char *entry, void *const *arguments, const unsigned grid[3], const unsigned block[3],
                void *context)
{
    int *const *pointers[2] = {arguments[0], arguments[1]};
    assert_string_equal(entry, "add");
    assert_int_equal(block[0], 32);
    *(unsigned *)context = grid[0];
    **pointers[0] += **pointers[1];
}

TEST(test_launches_and_graphs)
{
    cu_library library = NULL;
    cu_kernel kernel = NULL;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    cu_graph_node nodes[3] = {NULL};
    cu_deviceptr memory[2] = {0};
    int values[2] = {5, 7}, result = 0;
    unsigned grid = 0;
    size_t offset = 0, bytes = 0;
    ok(driver->LibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0));
    cu_function function = find_kernel(library, "add", &kernel);
    ok(driver->KernelGetParamInfo(kernel, 1, &offset, &bytes));
    assert_int_equal(bytes, 8);
    assert_int_equal(driver->KernelGetParamInfo(kernel, 2, &offset, &bytes), CU_ERROR_INVALID_VALUE);
    for (int i = 0; i < 2; i++) {
        ok(driver->MemAlloc(&memory[i], sizeof values[i]));
        ok(driver->MemcpyHtoDAsync(memory[i], &values[i], sizeof values[i], device.stream));
    }
    fake.learn("add", add, &grid);
    void *arguments[] = {&memory[0], &memory[1]};
    struct cu_launch_attribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.cluster = {4, 1, 1}};
    struct cu_launch_config config = {.grid = {8, 1, 1},
                                      .block = {32, 1, 1},
                                      .stream = device.stream,
                                      .attributes = &cluster,
                                      .attribute_count = 1};
    ok(driver->LaunchKernelEx(&config, function, arguments, NULL));
    assert_int_equal(grid, 8);

    struct cu_graph_node_params params =
        {.type = CU_GRAPH_NODE_TYPE_KERNEL,
         .kernel = {.function = function, .grid = {4, 1, 1}, .block = {32, 1, 1}, .params = arguments}};
    const struct cu_graph_edge edge = {.from_port = CU_GRAPH_PORT_PROGRAMMATIC, .type = CU_GRAPH_EDGE_PROGRAMMATIC};
    ok(driver->GraphCreate(&graph, 0));
    for (int i = 0; i < 3; i++)
        ok(driver->GraphAddNode(&nodes[i], graph, i ? &nodes[i - 1] : NULL, i ? &edge : NULL, i ? 1 : 0, &params));
    ok(driver->GraphKernelNodeSetAttribute(nodes[2], CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster.value));
    ok(driver->GraphInstantiate(&exec, graph, 0));
    ok(driver->GraphDestroy(graph));
    arguments[0] = NULL; /* the nodes have copies */
    ok(driver->GraphLaunch(exec, device.stream));
    ok(driver->GraphLaunch(exec, device.stream));
    ok(driver->MemcpyDtoHAsync(&result, memory[0], sizeof result, device.stream));
    ok(driver->StreamSynchronize(device.stream));
    assert_int_equal(grid, 4);
    assert_int_equal(result, 5 + 7 * 7);
    assert_int_equal(fake.kernels(), 7);

    arguments[0] = &memory[0];
    ok(driver->StreamBeginCapture(device.stream, 0));
    ok(driver->LaunchKernelEx(&config, function, arguments, NULL));
    assert_int_equal(fake.kernels(), 7);
    ok(driver->StreamEndCapture(device.stream, &graph));
    ok(driver->GraphDestroy(graph));
    fake.learn("add", NULL, NULL);
    assert_int_equal(fake.misuse(), 0);
    ok(driver->GraphExecDestroy(exec));
    ok(driver->LibraryUnload(library));
    for (int i = 0; i < 2; i++) ok(driver->MemFree(memory[i]));
}

TEST(test_refusals)
{
    cu_library library = NULL;
    cu_kernel kernel = NULL;
    cu_deviceptr memory = 0;
    struct cu_launch_config config = {.grid = {8, 1, 1}, .block = {32, 1, 1}, .stream = device.stream};
    char byte = 0;
    uint64_t expected_misuses = 0;
    assert_int_equal(driver->LibraryLoadData(&library, "no cubin", NULL, NULL, 0, NULL, NULL, 0), 200);
    assert_int_equal(driver->LibraryLoadData(&library, "FAKE CUBIN 80\nend\n", NULL, NULL, 0, NULL, NULL, 0),
                     CU_ERROR_NO_BINARY_FOR_GPU);
    assert_int_equal(driver->LibraryLoadData(&library, "FAKE CUBIN 90\nkernel x eight\nend\n", NULL, NULL, 0, NULL,
                                             NULL, 0),
                     200);
    ok(driver->LibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0));
    assert_int_equal(driver->LibraryGetKernel(&kernel, library, "absent"), 500);
    cu_function function = find_kernel(library, "none", &kernel);
    assert_int_equal(driver->MemAlloc(&memory, (size_t)2 << 30), CU_ERROR_OUT_OF_MEMORY);
    assert_int_equal(fake.misuse(), 0);

    config.block[0] = 1025;
    assert_int_equal(driver->LaunchKernelEx(&config, function, NULL, NULL), CU_ERROR_INVALID_VALUE);
    config.block[0] = 32;
    config.grid[1] = 0;
    assert_int_equal(driver->LaunchKernelEx(&config, function, NULL, NULL), CU_ERROR_INVALID_VALUE);
    config.grid[1] = 1;
    config.shared_bytes = 100000;
    assert_int_equal(driver->LaunchKernelEx(&config, function, NULL, NULL), CU_ERROR_INVALID_VALUE);
    ok(driver->KernelSetAttribute(CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000, kernel, 0));
    ok(driver->LaunchKernelEx(&config, function, NULL, NULL));
    expected_misuses += 3;

    ok(driver->MemAlloc(&memory, 100));
    assert_int_equal(driver->MemcpyHtoDAsync(memory + 100, &byte, 1, device.stream), CU_ERROR_INVALID_VALUE);
    assert_int_equal(driver->MemsetD8Async(memory + 1, 0, 100, device.stream), CU_ERROR_INVALID_VALUE);
    assert_int_equal(driver->MemFree(memory + 1), CU_ERROR_INVALID_VALUE);
    ok(driver->MemFree(memory));
    assert_int_equal(driver->MemFree(memory), CU_ERROR_INVALID_VALUE);
    expected_misuses += 4;

    ok(driver->LibraryUnload(library));
    assert_int_equal(driver->LibraryUnload(library), 400);
    assert_int_equal(driver->LaunchKernelEx(&config, function, NULL, NULL), 400);
    device_leave(&device);
    assert_int_equal(driver->MemAlloc(&memory, 100), 201);
    assert_true(device_enter(&device, NULL));
    expected_misuses += 3;
    assert_int_equal(fake.misuse(), expected_misuses);
}

TEST(test_tensor_maps)
{
    struct cu_tensor_map map;
    cu_deviceptr memory = 0;
    ok(driver->MemAlloc(&memory, 64 * 128 * 2));
    for (int wrong = 0; wrong < 6; wrong++) {
        const uint64_t dimensions[2] = {64, wrong == 1 ? 0 : 128}, strides[1] = {wrong == 2 ? 120 : 128};
        const unsigned box[2] = {wrong == 3 ? 128 : 64, wrong == 4 ? 257 : 64}, ones[2] = {1, 1};
        void *address = (void *)(uintptr_t)(memory + (wrong == 5 ? 8 : 0));
        cu_result result =
            driver->TensorMapEncodeTiled(&map, CU_TENSOR_MAP_BFLOAT16, 2, address, dimensions, strides, box, ones,
                                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_OOB_FILL_NONE);
        assert_int_equal(result, wrong ? CU_ERROR_INVALID_VALUE : CU_SUCCESS);
        if (!wrong) assert_int_equal(map.opaque[0], memory);
    }
    ok(driver->MemFree(memory));
}

TEST(test_events)
{
    cu_event events[2] = {NULL};
    float milliseconds = -1;
    for (int i = 0; i < 2; i++) {
        ok(driver->EventCreate(&events[i], CU_EVENT_DEFAULT));
        ok(driver->EventRecord(events[i], device.stream));
    }
    ok(driver->EventQuery(events[1]));
    ok(driver->EventElapsedTime(&milliseconds, events[0], events[1]));
    assert_true(milliseconds >= 0);
    for (int i = 0; i < 2; i++) ok(driver->EventDestroy(events[i]));
    assert_int_equal(driver->EventRecord(events[0], device.stream), 400);
}

/* The driver tells waits that spin, waits that sleep and questions apart. */
TEST(test_waits)
{
    const unsigned flags[] = {CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC};
    for (int i = 0; i < 2; i++) {
        cu_event event = NULL;
        ok(driver->EventCreate(&event, flags[i]));
        ok(driver->EventRecord(event, device.stream));
        ok(driver->EventQuery(event));
        ok(driver->EventSynchronize(event));
        ok(driver->EventDestroy(event));
        assert_int_equal(fake.waits(FAKE_CUDA_SPUN), 1);
        assert_int_equal(fake.waits(FAKE_CUDA_SLEPT), i);
        assert_int_equal(fake.waits(FAKE_CUDA_ASKED), i + 1);
    }
}

/* A child that leaks memory: the file says so. */
TEST(test_leak_file)
{
    char *folder = test_folder();
    const char *path = test_path(folder, "leaks");
    char text[512] = "";
    int result = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("FAKE_CUDA_LEAK_FILE", path, 1);
        execl("/proc/self/exe", "fake_cuda_test", "--leak", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(WEXITSTATUS(result), 0);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    assert_non_null(strstr(text, "context 1\ncurrent 1\nmemory 2\nhost_memory 1\nstream 1\nevent 0\nlibrary 0\n"
                                 "graph 0\ngraph_exec 0\nphysical 0\nreserved 0\nmisuse 0\ncalls "));
    assert_non_null(strstr(text, "\nkernels 0\n"));
    test_folder_remove(folder);
}

static int leak(void)
{
    struct status status = {0};
    cu_deviceptr memory;
    void *host;
    if (!device_open(&device, 0, &status) || !device_enter(&device, &status)) return 1;
    if (driver->MemAlloc(&memory, 10) || driver->MemAlloc(&memory, 10) || driver->MemHostAlloc(&host, 10, 0)) return 1;
    return 0;
}

int main(int argc, char **argv)
{
    int result;
    if (!test_with_libraries(fake_folder, argv, &result)) return result;
    if (argc == 2 && strcmp(argv[1], "--leak") == 0) return leak();
    return test_run_with(find_fake, begin, end, NULL);
}
