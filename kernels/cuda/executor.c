/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/executor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/engine/cubin.h"

/* ---- kernels ---- */

/* As cuda_ok where only the engine's code can be at fault. */
static bool code_ok(const struct cuda_driver *driver, cu_result result, struct status *status, const char *what,
                    const char *entry)
{
    if (cuda_ok(driver, result, status, "kernel '%s': %s", entry, what)) return true;
    if (result == CU_ERROR_INVALID_VALUE || result == CU_ERROR_INVALID_IMAGE || result == CU_ERROR_INVALID_PTX ||
        result == CU_ERROR_NOT_FOUND)
        status->code = STATUS_CORRUPT;
    return false;
}

static bool read_parameters(struct cuda_kernel *kernel, const struct device *device, cu_kernel handle,
                            const char *entry, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    size_t offset, bytes;
    for (uint32_t i = 0; i < kernel->operand_count; i++) {
        char what[64];
        snprintf(what, sizeof what, "parameter %" PRIu32 " of %" PRIu32, i, kernel->operand_count);
        if (!code_ok(driver, driver->KernelGetParamInfo(handle, i, &offset, &bytes), status, what, entry)) return false;
        if (bytes != sizeof(cu_deviceptr) && bytes != sizeof(struct cu_tensor_map))
            return status_fail(status, STATUS_CORRUPT,
                               "kernel '%s': parameter %" PRIu32 " has %zu bytes, expected %zu or %zu", entry, i, bytes,
                               sizeof(cu_deviceptr), sizeof(struct cu_tensor_map));
        kernel->parameter_bytes[i] = (uint32_t)bytes;
    }
    /* A launch with fewer operands than the kernel has parameters would pass indeterminate values. */
    if (driver->KernelGetParamInfo(handle, kernel->operand_count, &offset, &bytes) == CU_SUCCESS)
        return status_fail(status, STATUS_CORRUPT, "kernel '%s': has more parameters than the %" PRIu32 " stated",
                           entry, kernel->operand_count);
    return true;
}

/* From capability 90 on a launch begins beside the one before. A multiprocessor divides its memory between shared memory and L1 for
 * one launch at a time, so all launches ask for the same division; left to the driver, blocks of two launches that fit side by side
 * wait for each other. */
static bool set_attribute(const struct device *device, cu_kernel handle, enum cu_function_attribute attribute,
                          int value, const char *name, struct status *status)
{
    return cuda_ok(&device->driver, device->driver.KernelSetAttribute(attribute, value, handle, device->handle), status,
                   "kernel '%s': function attribute %d = %d", name, (int)attribute, value);
}

static bool load_kernel(struct cuda_kernel *kernel, const struct device *device, const struct engine_kernel *entry,
                        struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    cu_kernel handle = NULL;
    int threads = 0, shared = 0;
    if (!cubin_verify(entry->cubin, entry->cubin_bytes, status))
        return status_prefix(status, "kernel '%s': its code", entry->entry);
    cu_result result = driver->LibraryLoadData(&kernel->library, entry->cubin, NULL, NULL, 0, NULL, NULL, 0);
    if (result == CU_ERROR_NO_BINARY_FOR_GPU)
        return status_fail(status, STATUS_VERSION,
                           "kernel '%s': its code is for another GPU than '%s' (compute capability %d.%d); build the "
                           "engine on this machine",
                           entry->entry, device->facts.name, device->facts.capability / 10,
                           device->facts.capability % 10);
    kernel->operand_count = entry->operand_count;
    if (!code_ok(driver, result, status, "loading its code", entry->entry) ||
        !code_ok(driver, driver->LibraryGetKernel(&handle, kernel->library, entry->entry), status, "looking it up",
                 entry->entry) ||
        !read_parameters(kernel, device, handle, entry->entry, status) ||
        !cuda_ok(driver,
                 driver->KernelGetAttribute(&threads, CU_FUNCTION_MAX_THREADS_PER_BLOCK, handle, device->handle),
                 status, "kernel '%s': threads", entry->entry) ||
        !cuda_ok(driver, driver->KernelGetAttribute(&shared, CU_FUNCTION_SHARED_SIZE_BYTES, handle, device->handle),
                 status, "kernel '%s': shared memory", entry->entry))
        return false;
    kernel->max_threads = (uint32_t)threads;
    kernel->static_shared_bytes = (uint32_t)shared;
    return set_attribute(device, handle, CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                         device->facts.shared_per_block - shared, entry->entry, status) &&
           (device->facts.capability < 90 ||
            (set_attribute(device, handle, CU_FUNCTION_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, entry->entry, status) &&
             set_attribute(device, handle, CU_FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT, 100, entry->entry, status))) &&
           cuda_ok(driver, driver->KernelGetFunction(&kernel->function, handle), status,
                   "kernel '%s': bringing it to the device", entry->entry);
}

bool cuda_kernels_load(struct cuda_kernels *kernels, const struct device *device, const struct engine_kernel *entries,
                       size_t count, struct status *status)
{
    memset(kernels, 0, sizeof *kernels);
    if (!device_enter(device, status)) return false;
    bool ok = false;
    kernels->kernels = calloc(count ? count : 1, sizeof *kernels->kernels);
    if (!kernels->kernels) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        goto done;
    }
    for (; kernels->count < count; kernels->count++)
        if (!load_kernel(&kernels->kernels[kernels->count], device, &entries[kernels->count], status)) {
            kernels->count++; /* its library may be loaded */
            goto done;
        }
    ok = true;
done:
    device_leave(device);
    if (!ok) cuda_kernels_free(kernels, device);
    return ok;
}

void cuda_kernels_free(struct cuda_kernels *kernels, const struct device *device)
{
    /* Given back even where the context cannot be entered: a lost device must not cost memory as well. */
    bool entered = kernels->kernels && device_enter(device, NULL);
    for (size_t i = 0; i < kernels->count; i++)
        if (kernels->kernels[i].library) device->driver.LibraryUnload(kernels->kernels[i].library);
    if (entered) device_leave(device);
    free(kernels->kernels);
    memset(kernels, 0, sizeof *kernels);
}

/* ---- one launch ---- */

/* The parameters of a launch as the driver takes them. */
struct arguments {
    cu_deviceptr pointers[PLAN_MAX_OPERANDS];
    struct cu_tensor_map maps[PLAN_MAX_OPERANDS];
    void *values[PLAN_MAX_OPERANDS];
};

/* On the heap: their alignment is more than a stack frame promises everywhere. */
static struct arguments *arguments_new(void)
{
    return aligned_alloc(_Alignof(struct arguments), sizeof(struct arguments));
}

/* The driver's number of an element type or of a swizzle; false for a value that is not in the list. */
static bool find_map_type(int64_t dtype, int *type)
{
    switch (dtype) {
    case DTYPE_F32: *type = CU_TENSOR_MAP_FLOAT32; return true;
    case DTYPE_F16: *type = CU_TENSOR_MAP_FLOAT16; return true;
    case DTYPE_BF16: *type = CU_TENSOR_MAP_BFLOAT16; return true;
    case DTYPE_F8_E4M3:
    case DTYPE_I8: *type = CU_TENSOR_MAP_UINT8; return true;
    case DTYPE_I64: *type = CU_TENSOR_MAP_INT64; return true;
    default: return false;
    }
}

static bool find_swizzle(int64_t bytes, int *swizzle)
{
    switch (bytes) {
    case 0: *swizzle = CU_TENSOR_MAP_SWIZZLE_NONE; return true;
    case 32: *swizzle = CU_TENSOR_MAP_SWIZZLE_32B; return true;
    case 64: *swizzle = CU_TENSOR_MAP_SWIZZLE_64B; return true;
    case 128: *swizzle = CU_TENSOR_MAP_SWIZZLE_128B; return true;
    default: return false;
    }
}

static bool encode_map(struct cu_tensor_map *encoded, const struct device *device, const struct plan_tensor_map *map,
                       cu_deviceptr address, uint64_t space_bytes, struct status *status)
{
    int type, swizzle;
    if (!find_map_type(map->dtype, &type) || !find_swizzle(map->swizzle, &swizzle))
        return status_fail(status, STATUS_CORRUPT,
                           "tensor map: expected elements of F32, F16 or BF16 and a swizzle of 0, 32, 64 or 128 bytes, "
                           "found dtype %" PRId64 " and %" PRId64 " bytes",
                           map->dtype, map->swizzle);
    uint64_t rows = map->rows ? (uint64_t)map->rows : space_bytes / (uint64_t)map->pitch;
    const uint64_t dimensions[2] = {(uint64_t)map->columns, rows}, strides[1] = {(uint64_t)map->pitch};
    const unsigned box[2] = {(unsigned)map->box_columns, (unsigned)map->box_rows}, element_strides[2] = {1, 1};
    return cuda_ok(&device->driver,
                   device->driver.TensorMapEncodeTiled(encoded, type, 2, (void *)(uintptr_t)address, dimensions,
                                                       strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                                       swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                                       CU_TENSOR_MAP_OOB_FILL_NONE),
                   status, "tensor map of %" PRIu64 " x %" PRId64 " elements", rows, map->columns);
}

static bool check_launch(const struct plan_launch *launch, const struct cuda_kernel *kernel,
                         const struct device_facts *gpu, struct status *status)
{
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    uint64_t shared = (uint64_t)launch->shared_bytes + kernel->static_shared_bytes;
    if (threads > kernel->max_threads)
        return status_fail(status, STATUS_MACHINE, "%" PRIu64 " threads a block, at most %" PRIu32 " are possible",
                           threads, kernel->max_threads);
    if (shared > (uint64_t)gpu->shared_per_block)
        return status_fail(status, STATUS_MACHINE, "%" PRIu64 " bytes of shared memory a block, the GPU '%s' has %d",
                           shared, gpu->name, gpu->shared_per_block);
    return true;
}

/* The GPU that the engine was built on may be larger than this one of its kind. */
static bool check_coresident(const struct device *device, const struct plan_launch *launch,
                             const struct cuda_kernel *kernel, struct status *status)
{
    const uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    const int threads = (int)(launch->block[0] * launch->block[1] * launch->block[2]);
    int each = 0;
    if (!(launch->attributes & LAUNCH_CORESIDENT)) return true;
    if (!cuda_ok(&device->driver,
                 device->driver.OccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel->function, threads,
                                                                          launch->shared_bytes),
                 status, "how many blocks run at once"))
        return false;
    const uint64_t most = (uint64_t)(each > 0 ? each : 0) * (uint64_t)device->facts.multiprocessors;
    return blocks <= most ||
           status_fail(status, STATUS_MACHINE,
                       "%" PRIu64 " thread blocks must be co-resident, but the GPU '%s' holds %" PRIu64
                       " of them at a time; build the engine on this machine",
                       blocks, device->facts.name, most);
}

static cu_deviceptr address_of(const struct cuda_memory *memory, const struct plan_operand *operand)
{
    const uint64_t moved = operand->offset - memory->moved_offset;
    if (operand->space == SPACE_STEP && operand->offset >= memory->moved_offset && moved < memory->moved_bytes)
        return memory->moved_to + moved;
    return memory->base[operand->space] + operand->offset;
}

static bool resolve(struct arguments *arguments, const struct device *device, const struct cuda_kernel *kernel,
                    const struct plan *plan, const struct plan_launch *launch, const struct cuda_memory *memory,
                    struct status *status)
{
    if (!check_launch(launch, kernel, &device->facts, status) || !check_coresident(device, launch, kernel, status))
        return false;
    for (uint32_t i = 0; i < launch->operand_count; i++) {
        const struct plan_operand *operand = &plan->operands[launch->first_operand + i];
        uint32_t expected = operand->tensor_map ? sizeof arguments->maps[i] : sizeof arguments->pointers[i];
        if (kernel->parameter_bytes[i] != expected)
            return status_fail(status, STATUS_CORRUPT,
                               "operand %" PRIu32 ": the kernel takes %" PRIu32 " bytes, the plan passes %" PRIu32, i,
                               kernel->parameter_bytes[i], expected);
        arguments->pointers[i] = address_of(memory, operand);
        arguments->values[i] = &arguments->pointers[i];
        if (!operand->tensor_map) continue;
        arguments->values[i] = &arguments->maps[i];
        if (!encode_map(&arguments->maps[i], device, &plan->tensor_maps[operand->tensor_map - 1],
                        arguments->pointers[i], memory->bytes[operand->space] - operand->offset, status))
            return status_prefix(status, "operand %" PRIu32, i);
    }
    return true;
}

static bool has_cluster(const struct plan_launch *launch)
{
    return launch->cluster[0] > 1 || launch->cluster[1] > 1 || launch->cluster[2] > 1;
}

/* ---- graphs ---- */

/* Dependencies of a launch as the driver takes them. */
struct node_edges {
    cu_graph_node before[PLAN_MAX_DEPENDENCIES];
    struct cu_graph_edge edges[PLAN_MAX_DEPENDENCIES];
    uint32_t count;
};

static bool is_library(const struct plan_launch *launch) { return launch->attributes & LAUNCH_LIBRARY; }

/* Launches before `first` are in no node of this graph: the stream orders them. */
static bool find_edges(const cu_graph_node *nodes, const struct plan *plan, uint32_t first, uint32_t index,
                       struct node_edges *found, struct status *status)
{
    const struct plan_launch *launch = &plan->launches[index];
    const uint32_t *dependencies = plan->dependencies + launch->first_dependency;
    bool programmatic = launch->attributes & LAUNCH_PROGRAMMATIC;
    bool behind = index == first || (launch->dependency_count == 1 && dependencies[0] == index - 1);
    if (programmatic && !behind)
        return status_fail(status, STATUS_CORRUPT, "begins early, but does not depend on the launch before it alone");
    if (is_library(launch) && !behind)
        return status_fail(status, STATUS_CORRUPT,
                           "calls a library, but does not depend on the launch before it alone");
    /* It waits for that launch alone, so that one must have waited for the rest: a library call has, by a full edge. */
    if (programmatic && index > first + 1 && !is_library(&launch[-1]) && !(launch[-1].attributes & LAUNCH_PROGRAMMATIC))
        return status_fail(status, STATUS_CORRUPT, "begins early after a launch that does not");
    bool early = programmatic && index > first && !is_library(&launch[-1]);
    memset(found, 0, sizeof *found);
    for (uint32_t d = 0; d < launch->dependency_count; d++) {
        if (dependencies[d] < first) continue;
        struct cu_graph_edge *edge = &found->edges[found->count];
        found->before[found->count++] = nodes[dependencies[d]];
        if (!early) continue;
        edge->from_port = CU_GRAPH_PORT_PROGRAMMATIC;
        edge->type = CU_GRAPH_EDGE_PROGRAMMATIC;
    }
    return true;
}

static bool add_kernel(cu_graph graph, cu_graph_node *node, const struct node_edges *edges, struct arguments *arguments,
                       const struct device *device, const struct cuda_kernel *kernel, const struct plan *plan,
                       const struct plan_launch *launch, const struct cuda_memory *memory, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    if (!resolve(arguments, device, kernel, plan, launch, memory, status)) return false;
    struct cu_graph_node_params params;
    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_KERNEL;
    params.kernel.function = kernel->function;
    memcpy(params.kernel.grid, launch->grid, sizeof params.kernel.grid);
    memcpy(params.kernel.block, launch->block, sizeof params.kernel.block);
    params.kernel.shared_bytes = launch->shared_bytes;
    params.kernel.params = arguments->values;
    if (!cuda_ok(driver, driver->GraphAddNode(node, graph, edges->before, edges->edges, edges->count, &params), status,
                 "adding it to the graph"))
        return false;
    if (!has_cluster(launch)) return true;
    union cu_launch_attribute_value value;
    memset(&value, 0, sizeof value);
    value.cluster.x = launch->cluster[0];
    value.cluster.y = launch->cluster[1];
    value.cluster.z = launch->cluster[2];
    return cuda_ok(driver, driver->GraphKernelNodeSetAttribute(*node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value),
                   status, "clusters of %" PRIu32 " blocks",
                   launch->cluster[0] * launch->cluster[1] * launch->cluster[2]);
}

static void call_operands(const struct plan *plan, const struct plan_launch *launch, const struct cuda_memory *memory,
                          cu_deviceptr operands[PLAN_MAX_OPERANDS])
{
    for (uint32_t i = 0; i < launch->operand_count; i++) {
        const struct plan_operand *operand = &plan->operands[launch->first_operand + i];
        operands[i] = address_of(memory, operand);
    }
}

static bool add_call(cu_graph graph, cu_graph_node *node, const struct node_edges *edges, const struct device *device,
                     const struct cuda_calls *calls, const struct plan *plan, const struct plan_launch *launch,
                     const struct cuda_memory *memory, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    cu_deviceptr operands[PLAN_MAX_OPERANDS];
    struct cu_graph_node_params params;
    cu_graph captured = NULL;
    call_operands(plan, launch, memory, operands);
    /* Relaxed: the library may load code of its own meanwhile. */
    if (!cuda_ok(driver, driver->StreamBeginCapture(device->stream, CU_STREAM_CAPTURE_MODE_RELAXED), status,
                 "capturing a library call"))
        return false;
    bool ok = cuda_call_run(calls, plan, launch, operands, memory->bytes[SPACE_KV], device->stream, status);
    struct status ended;
    status_clear(&ended);
    bool closed =
        cuda_ok(driver, driver->StreamEndCapture(device->stream, &captured), &ended, "capturing a library call");
    if (ok && !closed) *status = ended;
    memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_GRAPH;
    params.graph.graph = captured;
    ok = ok && closed &&
         cuda_ok(driver, driver->GraphAddNode(node, graph, edges->before, edges->edges, edges->count, &params), status,
                 "adding a library call to the graph");
    if (captured) driver->GraphDestroy(captured);
    return ok;
}

static bool add_node(cu_graph graph, cu_graph_node *nodes, uint32_t first, uint32_t index, struct arguments *arguments,
                     const struct device *device, const struct cuda_kernels *kernels, const struct plan *plan,
                     const struct cuda_memory *memory, struct status *status)
{
    const struct plan_launch *launch = &plan->launches[index];
    struct node_edges edges;
    if (!find_edges(nodes, plan, first, index, &edges, status)) return false;
    return is_library(launch)
               ? add_call(graph, &nodes[index], &edges, device, kernels->calls, plan, launch, memory, status)
               : add_kernel(graph, &nodes[index], &edges, arguments, device, &kernels->kernels[launch->kernel], plan,
                            launch, memory, status);
}

static bool check_indices(const struct cuda_kernels *kernels, const struct plan_launch *launch, struct status *status)
{
    if (is_library(launch))
        return kernels->calls || status_fail(status, STATUS_INTERNAL, "a library call, but no library is open");
    if (launch->kernel < kernels->count && launch->operand_count == kernels->kernels[launch->kernel].operand_count)
        return true;
    return status_fail(status, STATUS_INTERNAL, "kernel %" PRIu32 " of %zu with %u operands", launch->kernel,
                       kernels->count, launch->operand_count);
}

bool cuda_plan_bind_part(struct cuda_plan *bound, const struct device *device, const struct cuda_kernels *kernels,
                         const struct plan *plan, uint32_t first, uint32_t end, const struct cuda_memory *memory,
                         const char *name, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    bool ok = false;
    cu_graph graph = NULL;
    memset(bound, 0, sizeof *bound);
    cu_graph_node *nodes = calloc(plan->header.launch_count, sizeof(cu_graph_node));
    struct arguments *arguments = arguments_new();
    if (!nodes || !arguments || !device_enter(device, status)) {
        if (!nodes || !arguments) status_fail(status, STATUS_MACHINE, "out of memory");
        free(nodes);
        free(arguments);
        return false;
    }
    if (!cuda_ok(driver, driver->GraphCreate(&graph, 0), status, "%s: creating a graph", name)) goto done;
    for (uint32_t i = first; i < end; i++)
        if (!check_indices(kernels, &plan->launches[i], status) ||
            !add_node(graph, nodes, first, i, arguments, device, kernels, plan, memory, status)) {
            status_prefix(status, "%s: launch %" PRIu32 " (%s)", name, i, plan_op_name(plan->launches[i].op));
            goto done;
        }
    ok = cuda_ok(driver, driver->GraphInstantiate(&bound->exec, graph, 0), status, "%s: instantiating the graph",
                 name) &&
         cuda_ok(driver, driver->GraphUpload(bound->exec, device->stream), status, "%s: uploading the graph", name);
    bound->launch_count = end - first;
done:
    if (graph) driver->GraphDestroy(graph);
    device_leave(device);
    free(nodes);
    free(arguments);
    if (!ok) cuda_plan_free(bound, device);
    return ok;
}

bool cuda_plan_bind(struct cuda_plan *bound, const struct device *device, const struct cuda_kernels *kernels,
                    const struct plan *plan, const struct cuda_memory *memory, const char *name, struct status *status)
{
    return cuda_plan_bind_part(bound, device, kernels, plan, 0, plan->header.launch_count, memory, name, status);
}

void cuda_plan_free(struct cuda_plan *bound, const struct device *device)
{
    if (bound->exec) {
        bool entered = device_enter(device, NULL);
        device->driver.GraphExecDestroy(bound->exec);
        if (entered) device_leave(device);
    }
    memset(bound, 0, sizeof *bound);
}

bool cuda_plan_launch(const struct cuda_plan *bound, const struct device *device, struct status *status)
{
    if (!device_enter(device, status)) return false;
    bool ok = cuda_ok(&device->driver, device->driver.GraphLaunch(bound->exec, device->stream), status,
                      "launching a graph of %" PRIu32 " kernels", bound->launch_count);
    device_leave(device);
    return ok;
}

/* ---- one after the other ---- */

static bool launch_alone(const struct device *device, const struct cuda_kernels *kernels, const struct plan *plan,
                         uint32_t index, const struct cuda_memory *memory, struct arguments *arguments,
                         struct status *status)
{
    const struct plan_launch *launch = &plan->launches[index];
    if (!check_indices(kernels, launch, status)) return false;
    if (is_library(launch)) {
        cu_deviceptr operands[PLAN_MAX_OPERANDS];
        call_operands(plan, launch, memory, operands);
        return cuda_call_run(kernels->calls, plan, launch, operands, memory->bytes[SPACE_KV], device->stream, status);
    }
    if (!resolve(arguments, device, &kernels->kernels[launch->kernel], plan, launch, memory, status)) return false;
    struct cu_launch_attribute cluster;
    memset(&cluster, 0, sizeof cluster);
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.cluster.x = launch->cluster[0];
    cluster.value.cluster.y = launch->cluster[1];
    cluster.value.cluster.z = launch->cluster[2];
    struct cu_launch_config config = {.shared_bytes = launch->shared_bytes, .stream = device->stream};
    memcpy(config.grid, launch->grid, sizeof config.grid);
    memcpy(config.block, launch->block, sizeof config.block);
    config.attributes = &cluster;
    config.attribute_count = has_cluster(launch);
    return cuda_ok(&device->driver,
                   device->driver.LaunchKernelEx(&config, kernels->kernels[launch->kernel].function, arguments->values,
                                                 NULL),
                   status, "launching it");
}

bool cuda_plan_run_timed(const struct device *device, const struct cuda_kernels *kernels, const struct plan *plan,
                         const struct cuda_memory *memory, double *launch_us, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    uint32_t count = plan->header.launch_count, made = 0;
    bool ok = false;
    cu_event *events = calloc((size_t)count + 1, sizeof(cu_event));
    struct arguments *arguments = arguments_new();
    if (!events || !arguments || !device_enter(device, status)) {
        if (!events || !arguments) status_fail(status, STATUS_MACHINE, "out of memory");
        free(events);
        free(arguments);
        return false;
    }
    for (; made <= count; made++)
        if (!cuda_ok(driver, driver->EventCreate(&events[made], CU_EVENT_DEFAULT), status, "creating an event"))
            goto done;
    for (uint32_t i = 0; i <= count; i++) {
        if (!cuda_ok(driver, driver->EventRecord(events[i], device->stream), status, "recording an event")) goto done;
        if (i < count && !launch_alone(device, kernels, plan, i, memory, arguments, status)) {
            status_prefix(status, "launch %" PRIu32 " (%s)", i, plan_op_name(plan->launches[i].op));
            goto done;
        }
    }
    if (!cuda_ok(driver, driver->StreamSynchronize(device->stream), status, "waiting for the launches")) goto done;
    for (uint32_t i = 0; i < count; i++) {
        float milliseconds = 0;
        if (!cuda_ok(driver, driver->EventElapsedTime(&milliseconds, events[i], events[i + 1]), status,
                     "reading a time"))
            goto done;
        launch_us[i] = (double)milliseconds * 1e3;
    }
    ok = true;
done:
    for (uint32_t i = 0; i < made; i++) driver->EventDestroy(events[i]);
    device_leave(device);
    free(events);
    free(arguments);
    return ok;
}
