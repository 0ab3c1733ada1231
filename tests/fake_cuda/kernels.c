/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries, kernels, launches, graphs, tensor maps. */
#include "tests/fake_cuda/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 64, MAX_PARAMETERS = 32, MAX_BEHAVIOURS = 64, MAX_CLUSTER = 16, PORTABLE_CLUSTER = 8 };

struct kernel { /* the object that cu_kernel and cu_function point to */
    struct cu_library_opaque *library;
    char name[MAX_NAME];
    int parameter_count;
    size_t parameter_bytes[MAX_PARAMETERS];
    unsigned shared_most;
    bool large_cluster;
};

struct cu_library_opaque {
    struct fake_object object;
    int kernel_count, kernel_capacity;
    struct kernel kernels[]; /* no more than the cubin has, for dead libraries stay */
};

struct cu_graph_node_opaque {
    struct cu_graph_opaque *graph;
    const struct kernel *kernel;
    unsigned grid[3], block[3], cluster[3], shared_bytes;
    char *arguments; /* one after the other, each aligned */
    bool ends_child; /* the last node of a child graph, which stands for all of it */
    struct cu_graph_node_opaque *next;
};

struct cu_graph_opaque {
    struct fake_object object;
    struct cu_graph_node_opaque *first, *last; /* in order of addition, which no dependency contradicts */
};

/* A copy of the graph's nodes. */
struct cu_graph_exec_opaque {
    struct fake_object object;
    struct cu_graph_opaque nodes;
};

static struct behaviour {
    char entry[MAX_NAME];
    fake_cuda_kernel *run;
    void *context;
    bool waits;
} behaviours[MAX_BEHAVIOURS];
static int behaviour_count;

static void learn(const char *entry, fake_cuda_kernel *kernel, void *context, bool waits)
{
    struct behaviour *behaviour = behaviours;
    while (behaviour < behaviours + behaviour_count && strcmp(behaviour->entry, entry) != 0) behaviour++;
    if (behaviour == behaviours + behaviour_count) {
        if (behaviour_count == MAX_BEHAVIOURS || strlen(entry) >= MAX_NAME) return;
        behaviour_count++;
    }
    snprintf(behaviour->entry, sizeof behaviour->entry, "%s", entry);
    behaviour->run = kernel;
    behaviour->context = context;
    behaviour->waits = waits;
}

EXPORTED void fake_cuda_register(const char *entry, fake_cuda_kernel *kernel, void *context)
{
    learn(entry, kernel, context, false);
}

EXPORTED void fake_cuda_register_waiting(const char *entry, fake_cuda_kernel *kernel, void *context)
{
    fake_lock(); /* other ranks may be at work */
    learn(entry, kernel, context, true);
    fake_unlock();
}

/* Libraries */

static bool parse_kernel(struct kernel *kernel, const char *line, const char *line_end)
{
    char *end;
    int used = 0;
    if (sscanf(line, "kernel %63[A-Za-z0-9_]%n", kernel->name, &used) != 1) return false;
    for (const char *at = line + used; at < line_end; at = end) {
        size_t bytes = strtoul(at, &end, 10);
        if (end == at || end > line_end || !bytes || kernel->parameter_count == MAX_PARAMETERS) return false;
        kernel->parameter_bytes[kernel->parameter_count++] = bytes;
    }
    kernel->shared_most = FAKE_SHARED_DEFAULT;
    return true;
}

static const char magic[] = "FAKE CUBIN ";

static int count_kernels(const char *text)
{
    static const char line[] = "\nkernel ";
    int count = 0;
    if (strncmp(text, magic, strlen(magic)) != 0) return 0;
    while ((text = strstr(text, line))) {
        text += strlen(line);
        count++;
    }
    return count;
}

static cu_result parse(struct cu_library_opaque *library, const char *text)
{
    int capability = 0, used = 0;
    if (strncmp(text, magic, strlen(magic)) != 0) return FAKE_INVALID_IMAGE;
    text += strlen(magic);
    if (sscanf(text, "%d%n", &capability, &used) != 1 || text[used] != '\n') return FAKE_INVALID_IMAGE;
    if (capability != fake_settings.capability) return CU_ERROR_NO_BINARY_FOR_GPU;
    for (text += used + 1; strncmp(text, "end\n", 4) != 0;) {
        const char *end = strchr(text, '\n');
        if (!end || library->kernel_count == library->kernel_capacity) return FAKE_INVALID_IMAGE;
        struct kernel *kernel = &library->kernels[library->kernel_count++];
        kernel->library = library;
        if (!parse_kernel(kernel, text, end)) return FAKE_INVALID_IMAGE;
        text = end + 1;
    }
    return CU_SUCCESS;
}

cu_result cuLibraryLoadData(cu_library *library, const void *code, void *jit_options, void **jit_values,
                            unsigned jit_count, void *library_options, void **library_values, unsigned library_count)
{
    (void)jit_options, (void)jit_values, (void)library_options, (void)library_values;
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(code && !jit_count && !library_count, CU_ERROR_INVALID_VALUE);
    if (memcmp(code, ELFMAG, SELFMAG) == 0) code = (const char *)code + sizeof(Elf64_Ehdr);
    int capacity = count_kernels(code);
    struct cu_library_opaque *loaded =
        fake_object_new(FAKE_CUDA_LIBRARY, sizeof *loaded + (size_t)capacity * sizeof loaded->kernels[0]);
    if (!loaded) LEAVE(CU_ERROR_OUT_OF_MEMORY);
    loaded->kernel_capacity = capacity;
    cu_result result = parse(loaded, code);
    if (result == CU_SUCCESS)
        *library = loaded;
    else
        fake_object_kill(loaded);
    LEAVE(result);
}

cu_result cuLibraryUnload(cu_library library)
{
    ENTER_FREEING;
    REQUIRE_ALIVE(library, FAKE_CUDA_LIBRARY);
    fake_object_kill(library);
    LEAVE_FREEING(CU_SUCCESS);
}

cu_result cuLibraryGetKernel(cu_kernel *kernel, cu_library library, const char *name)
{
    ENTER;
    REQUIRE_ALIVE(library, FAKE_CUDA_LIBRARY);
    for (int i = 0; i < library->kernel_count; i++) {
        if (strcmp(library->kernels[i].name, name) != 0) continue;
        *kernel = (cu_kernel)&library->kernels[i];
        LEAVE(CU_SUCCESS);
    }
    LEAVE(FAKE_NOT_FOUND);
}

static bool kernel_alive(const struct kernel *kernel)
{
    return kernel && fake_alive(kernel->library, FAKE_CUDA_LIBRARY);
}

cu_result cuKernelGetFunction(cu_function *function, cu_kernel handle)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(kernel_alive((struct kernel *)handle), FAKE_INVALID_HANDLE);
    *function = (cu_function)handle;
    LEAVE(CU_SUCCESS);
}

cu_result cuKernelSetAttribute(int attribute, int value, cu_kernel handle, cu_device device)
{
    struct kernel *kernel = (struct kernel *)handle;
    ENTER;
    REQUIRE(kernel_alive(kernel), FAKE_INVALID_HANDLE);
    REQUIRE(device >= 0 && device < fake_settings.devices, FAKE_INVALID_DEVICE);
    switch (attribute) {
    case CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        REQUIRE(value >= 0 && value <= FAKE_SHARED_MOST, CU_ERROR_INVALID_VALUE);
        kernel->shared_most = (unsigned)value;
        break;
    case CU_FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT:
        REQUIRE(value >= -1 && value <= 100, CU_ERROR_INVALID_VALUE);
        break;
    case CU_FUNCTION_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: kernel->large_cluster = value != 0; break;
    default: LEAVE(fake_misuse(CU_ERROR_INVALID_VALUE));
    }
    LEAVE(CU_SUCCESS);
}

cu_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, cu_function function, int threads,
                                                      size_t shared_bytes)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(kernel_alive((struct kernel *)function), FAKE_INVALID_HANDLE);
    REQUIRE(threads > 0 && threads <= FAKE_MAX_THREADS && shared_bytes <= FAKE_SHARED_MOST, CU_ERROR_INVALID_VALUE);
    *blocks = fake_settings.resident_threads / threads;
    LEAVE(CU_SUCCESS);
}

cu_result cuKernelGetAttribute(int *value, int attribute, cu_kernel handle, cu_device device)
{
    struct kernel *kernel = (struct kernel *)handle;
    ENTER;
    REQUIRE(kernel_alive(kernel), FAKE_INVALID_HANDLE);
    REQUIRE(device >= 0 && device < fake_settings.devices, FAKE_INVALID_DEVICE);
    switch (attribute) {
    case CU_FUNCTION_MAX_THREADS_PER_BLOCK: *value = FAKE_MAX_THREADS; break;
    case CU_FUNCTION_SHARED_SIZE_BYTES: *value = 0; break;
    case CU_FUNCTION_LOCAL_SIZE_BYTES: *value = 0; break;
    case CU_FUNCTION_NUM_REGS: *value = 32; break;
    case CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = (int)kernel->shared_most; break;
    case CU_FUNCTION_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: *value = kernel->large_cluster; break;
    default: LEAVE(fake_misuse(CU_ERROR_INVALID_VALUE));
    }
    LEAVE(CU_SUCCESS);
}

static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

cu_result cuKernelGetParamInfo(cu_kernel handle, size_t index, size_t *offset, size_t *bytes)
{
    const struct kernel *kernel = (const struct kernel *)handle;
    ENTER;
    REQUIRE(kernel_alive(kernel), FAKE_INVALID_HANDLE);
    if (index >= (size_t)kernel->parameter_count) LEAVE(CU_ERROR_INVALID_VALUE); /* how the end is found */
    *offset = 0;
    for (size_t i = 0; i < index; i++) *offset += aligned(kernel->parameter_bytes[i]);
    if (bytes) *bytes = kernel->parameter_bytes[index];
    LEAVE(CU_SUCCESS);
}

/* Launches */

/* What the driver refuses of a launch. cluster: at least 1, 1, 1. */
static cu_result check_launch(const struct kernel *kernel, const unsigned grid[3], const unsigned block[3],
                              const unsigned cluster[3], unsigned shared_bytes)
{
    uint64_t blocks = 1;
    for (int i = 0; i < 3; i++) {
        if (!grid[i] || !block[i] || !cluster[i] || grid[i] % cluster[i]) return CU_ERROR_INVALID_VALUE;
        if (grid[i] > (i ? 65535u : 2147483647u) || block[i] > (i == 2 ? 64u : FAKE_MAX_THREADS))
            return CU_ERROR_INVALID_VALUE;
        blocks *= cluster[i];
    }
    if ((uint64_t)block[0] * block[1] * block[2] > FAKE_MAX_THREADS) return CU_ERROR_INVALID_VALUE;
    if (blocks > 1 && fake_settings.capability < 90) return FAKE_NOT_SUPPORTED;
    if (blocks > (kernel->large_cluster ? MAX_CLUSTER : PORTABLE_CLUSTER)) return CU_ERROR_INVALID_VALUE;
    return shared_bytes > kernel->shared_most ? CU_ERROR_INVALID_VALUE : CU_SUCCESS;
}

static void spoil(const struct kernel *kernel, void *const *arguments)
{
    static const float wrong = 1e9f;
    for (int i = 0; i < kernel->parameter_count; i++) {
        uint64_t address;
        if (kernel->parameter_bytes[i] != sizeof address) continue;
        memcpy(&address, arguments[i], sizeof address);
        if (fake_find_memory(address, sizeof wrong)) memcpy((void *)(uintptr_t)address, &wrong, sizeof wrong);
    }
}

/* Whether its operands are spoilt. */
static bool run(const struct kernel *kernel, const unsigned grid[3], const unsigned block[3], void *const *arguments)
{
    const bool is_spoilt = fake_kernel_ran(kernel->name);
    for (int i = 0; i < behaviour_count; i++) {
        const struct behaviour *behaviour = &behaviours[i];
        const bool waits = behaviour->waits;
        if (!behaviour->run || strcmp(behaviour->entry, kernel->name) != 0) continue;
        if (waits) fake_unlock();
        behaviour->run(kernel->name, arguments, grid, block, behaviour->context);
        if (waits) fake_lock();
    }
    if (is_spoilt) spoil(kernel, arguments);
    return is_spoilt;
}

static bool run_node(const struct cu_graph_node_opaque *node)
{
    void *arguments[MAX_PARAMETERS];
    char *at = node->arguments;
    for (int i = 0; i < node->kernel->parameter_count; at += aligned(node->kernel->parameter_bytes[i++]))
        arguments[i] = at;
    return run(node->kernel, node->grid, node->block, arguments);
}

/* A sampler without a registered behaviour draws token 0, which is seen as late as may be. */
static bool draw(cu_stream stream, const struct cu_graph_node_opaque *node)
{
    enum { COUNTS, NEXT_TOKENS = 6 }; /* operands of kernels/sample/sample.cu */
    const struct kernel *kernel = node->kernel;
    uint64_t counts, tokens;
    for (int i = 0; i < behaviour_count; i++)
        if (behaviours[i].run && strcmp(behaviours[i].entry, kernel->name) == 0) return true;
    if (strncmp(kernel->name, "sample", strlen("sample")) != 0 || kernel->parameter_count <= NEXT_TOKENS) return true;
    const char *at = node->arguments;
    for (int i = 0; i <= NEXT_TOKENS; at += aligned(kernel->parameter_bytes[i++])) {
        if (kernel->parameter_bytes[i] != sizeof tokens) return true;
        if (i == COUNTS) memcpy(&counts, at, sizeof counts);
        memcpy(&tokens, at, sizeof tokens);
    }
    if (!fake_find_memory(counts, 2 * sizeof(int32_t))) return true;
    int32_t rows;
    memcpy(&rows, (const char *)(uintptr_t)counts + sizeof rows, sizeof rows);
    return rows <= 0 || fake_clear_late(stream, tokens, (size_t)rows * sizeof rows);
}

/* Graphs */

static size_t argument_bytes(const struct kernel *kernel)
{
    size_t bytes = 0;
    for (int i = 0; i < kernel->parameter_count; i++) bytes += aligned(kernel->parameter_bytes[i]);
    return bytes;
}

static struct cu_graph_node_opaque *append(struct cu_graph_opaque *graph, const struct cu_graph_node_opaque *model)
{
    struct cu_graph_node_opaque *node = malloc(sizeof *node);
    size_t bytes = argument_bytes(model->kernel);
    char *arguments = aligned_alloc(64, bytes ? bytes : 64);
    if (!node || !arguments) {
        free(node);
        free(arguments);
        return NULL;
    }
    *node = *model;
    node->graph = graph;
    node->next = NULL;
    node->arguments = arguments;
    if (model->arguments) memcpy(arguments, model->arguments, bytes);
    *(graph->last ? &graph->last->next : &graph->first) = node;
    graph->last = node;
    return node;
}

static struct cu_graph_node_opaque *append_launch(struct cu_graph_opaque *graph, const struct kernel *kernel,
                                                  const unsigned grid[3], const unsigned block[3],
                                                  const unsigned cluster[3], unsigned shared_bytes, void **arguments)
{
    struct cu_graph_node_opaque model = {.kernel = kernel, .shared_bytes = shared_bytes};
    memcpy(model.grid, grid, sizeof model.grid);
    memcpy(model.block, block, sizeof model.block);
    memcpy(model.cluster, cluster, sizeof model.cluster);
    struct cu_graph_node_opaque *node = append(graph, &model);
    char *at = node ? node->arguments : NULL;
    for (int i = 0; at && i < kernel->parameter_count; at += aligned(kernel->parameter_bytes[i++]))
        memcpy(at, arguments[i], kernel->parameter_bytes[i]);
    return node;
}

static void free_nodes(struct cu_graph_opaque *graph)
{
    for (struct cu_graph_node_opaque *node = graph->first, *next; node; node = next) {
        next = node->next;
        free(node->arguments);
        free(node);
    }
    graph->first = graph->last = NULL;
}

static bool has_node(const struct cu_graph_opaque *graph, const struct cu_graph_node_opaque *sought)
{
    /* The newest first would need a list in both directions: chains depend on the last. */
    if (graph->last && graph->last == sought) return true;
    for (const struct cu_graph_node_opaque *node = graph->first; node; node = node->next)
        if (node == sought) return true;
    return false;
}

cu_result cuGraphCreate(cu_graph *graph, unsigned flags)
{
    ENTER;
    REQUIRE(fake_initialized(), CU_ERROR_NOT_INITIALIZED);
    REQUIRE(flags == 0, CU_ERROR_INVALID_VALUE);
    *graph = fake_object_new(FAKE_CUDA_GRAPH, sizeof **graph);
    LEAVE(*graph ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY);
}

cu_result cuGraphDestroy(cu_graph graph)
{
    ENTER_FREEING;
    REQUIRE_ALIVE(graph, FAKE_CUDA_GRAPH);
    free_nodes(graph);
    fake_object_kill(graph);
    LEAVE_FREEING(CU_SUCCESS);
}

static cu_result check_edges(const struct cu_graph_opaque *graph, const cu_graph_node *dependencies,
                             const struct cu_graph_edge *edges, size_t count)
{
    static const unsigned char zeros[sizeof edges->reserved];
    for (size_t i = 0; i < count; i++) {
        if (!has_node(graph, dependencies[i])) return FAKE_INVALID_HANDLE;
        if (!edges) continue;
        bool programmatic = edges[i].type == CU_GRAPH_EDGE_PROGRAMMATIC;
        if (edges[i].type > CU_GRAPH_EDGE_PROGRAMMATIC || edges[i].to_port) return CU_ERROR_INVALID_VALUE;
        if (memcmp(edges[i].reserved, zeros, sizeof zeros) != 0) return CU_ERROR_INVALID_VALUE;
        if (programmatic != (edges[i].from_port == CU_GRAPH_PORT_PROGRAMMATIC)) return CU_ERROR_INVALID_VALUE;
        if (programmatic && fake_settings.capability < 90) return FAKE_NOT_SUPPORTED;
    }
    return CU_SUCCESS;
}

cu_result cuGraphAddNode_v2(cu_graph_node *node, cu_graph graph, const cu_graph_node *dependencies,
                            const struct cu_graph_edge *edges, size_t dependency_count,
                            struct cu_graph_node_params *params)
{
    static const unsigned single[3] = {1, 1, 1};
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE_ALIVE(graph, FAKE_CUDA_GRAPH);
    REQUIRE(params->type == CU_GRAPH_NODE_TYPE_KERNEL || params->type == CU_GRAPH_NODE_TYPE_GRAPH, FAKE_NOT_SUPPORTED);
    cu_result result = check_edges(graph, dependencies, edges, dependency_count);
    REQUIRE(result == CU_SUCCESS, result);
    for (size_t i = 0; i < dependency_count; i++) /* a child graph has no port but the end */
        REQUIRE(!dependencies[i]->ends_child || !edges || edges[i].type == CU_GRAPH_EDGE_FULL, CU_ERROR_INVALID_VALUE);
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        const struct cu_graph_opaque *child = params->graph.graph;
        REQUIRE_ALIVE(child, FAKE_CUDA_GRAPH);
        REQUIRE(child != graph && child->first && params->graph.ownership == 0, CU_ERROR_INVALID_VALUE);
        for (const struct cu_graph_node_opaque *copied = child->first; copied; copied = copied->next)
            if (!(*node = append(graph, copied))) LEAVE(CU_ERROR_OUT_OF_MEMORY);
        (*node)->ends_child = true;
        LEAVE(CU_SUCCESS);
    }
    const struct cu_kernel_node_params *launch = &params->kernel;
    const struct kernel *kernel =
        (struct kernel *)(launch->function ? (void *)launch->function : (void *)launch->kernel);
    REQUIRE(!launch->function || !launch->kernel, CU_ERROR_INVALID_VALUE);
    REQUIRE(kernel_alive(kernel), FAKE_INVALID_HANDLE);
    REQUIRE(!launch->extra && (launch->params || !kernel->parameter_count), CU_ERROR_INVALID_VALUE);
    result = check_launch(kernel, launch->grid, launch->block, single, launch->shared_bytes);
    REQUIRE(result == CU_SUCCESS, result);
    *node = append_launch(graph, kernel, launch->grid, launch->block, single, launch->shared_bytes, launch->params);
    LEAVE(*node ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY);
}

cu_result cuGraphKernelNodeSetAttribute(cu_graph_node node, int attribute, const union cu_launch_attribute_value *value)
{
    ENTER;
    REQUIRE(node && fake_alive(node->graph, FAKE_CUDA_GRAPH), FAKE_INVALID_HANDLE);
    REQUIRE(attribute == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_ERROR_INVALID_VALUE);
    const unsigned cluster[3] = {value->cluster.x, value->cluster.y, value->cluster.z};
    cu_result result = check_launch(node->kernel, node->grid, node->block, cluster, node->shared_bytes);
    REQUIRE(result == CU_SUCCESS, result);
    memcpy(node->cluster, cluster, sizeof node->cluster);
    LEAVE(CU_SUCCESS);
}

cu_result cuGraphInstantiateWithFlags(cu_graph_exec *exec, cu_graph graph, unsigned long long flags)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE_ALIVE(graph, FAKE_CUDA_GRAPH);
    REQUIRE(flags == 0, CU_ERROR_INVALID_VALUE);
    struct cu_graph_exec_opaque *made = fake_object_new(FAKE_CUDA_GRAPH_EXEC, sizeof *made);
    if (!made) LEAVE(CU_ERROR_OUT_OF_MEMORY);
    for (const struct cu_graph_node_opaque *node = graph->first; node; node = node->next) {
        if (append(&made->nodes, node)) continue;
        free_nodes(&made->nodes);
        fake_object_kill(made);
        LEAVE(CU_ERROR_OUT_OF_MEMORY);
    }
    *exec = made;
    LEAVE(CU_SUCCESS);
}

cu_result cuGraphExecDestroy(cu_graph_exec exec)
{
    ENTER_FREEING;
    REQUIRE_ALIVE(exec, FAKE_CUDA_GRAPH_EXEC);
    free_nodes(&exec->nodes);
    fake_object_kill(exec);
    LEAVE_FREEING(CU_SUCCESS);
}

cu_result cuGraphUpload(cu_graph_exec exec, cu_stream stream)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE_ALIVE(exec, FAKE_CUDA_GRAPH_EXEC);
    REQUIRE_ALIVE(stream, FAKE_CUDA_STREAM);
    LEAVE(CU_SUCCESS);
}

cu_result cuGraphLaunch(cu_graph_exec exec, cu_stream stream)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE_ALIVE(exec, FAKE_CUDA_GRAPH_EXEC);
    REQUIRE_ALIVE(stream, FAKE_CUDA_STREAM);
    REQUIRE(!stream->capture, FAKE_CAPTURE_UNSUPPORTED);
    for (const struct cu_graph_node_opaque *node = exec->nodes.first; node; node = node->next)
        REQUIRE(kernel_alive(node->kernel), FAKE_INVALID_HANDLE); /* unloaded under the graph */
    fake_catch_up(stream, stream->queued);
    /* From here on other threads may run, if a kernel waits for them: launches in flight continue. */
    for (const struct cu_graph_node_opaque *node = exec->nodes.first; node; node = node->next) {
        const bool is_spoilt = run_node(node);
        REQUIRE(is_spoilt || draw(stream, node), CU_ERROR_OUT_OF_MEMORY);
    }
    stream->has_graphs = true;
    fake_note_graph(stream);
    LEAVE(CU_SUCCESS);
}

/* A launch into a stream, or into the graph that the stream captures. */
cu_result cuLaunchKernelEx(const struct cu_launch_config *config, cu_function function, void **params, void **extra)
{
    unsigned cluster[3] = {1, 1, 1};
    const struct kernel *kernel = (struct kernel *)function;
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(kernel_alive(kernel), FAKE_INVALID_HANDLE);
    REQUIRE_ALIVE(config->stream, FAKE_CUDA_STREAM);
    REQUIRE(!extra && (params || !kernel->parameter_count), CU_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const struct cu_launch_attribute *attribute = &config->attributes[i];
        bool is_cluster = attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        REQUIRE(is_cluster || attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                CU_ERROR_INVALID_VALUE);
        if (!is_cluster) continue;
        cluster[0] = attribute->value.cluster.x;
        cluster[1] = attribute->value.cluster.y;
        cluster[2] = attribute->value.cluster.z;
    }
    cu_result result = check_launch(kernel, config->grid, config->block, cluster, config->shared_bytes);
    REQUIRE(result == CU_SUCCESS, result);
    if (!config->stream->capture) {
        fake_catch_up(config->stream, config->stream->queued);
        run(kernel, config->grid, config->block, params);
    } else if (!append_launch(config->stream->capture, kernel, config->grid, config->block, cluster,
                              config->shared_bytes, params)) {
        LEAVE(CU_ERROR_OUT_OF_MEMORY);
    }
    LEAVE(CU_SUCCESS);
}

cu_result cuStreamBeginCapture_v2(cu_stream stream, int mode)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE_ALIVE(stream, FAKE_CUDA_STREAM);
    REQUIRE(mode >= 0 && mode <= 2 && !stream->capture, CU_ERROR_INVALID_VALUE);
    stream->capture = fake_object_new(FAKE_CUDA_GRAPH, sizeof *stream->capture);
    LEAVE(stream->capture ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY);
}

/* Ends the capture whatever happens: a failed one leaves no graph. */
cu_result cuStreamEndCapture(cu_stream stream, cu_graph *graph)
{
    ENTER_FREEING;
    REQUIRE_CONTEXT;
    REQUIRE_ALIVE(stream, FAKE_CUDA_STREAM);
    REQUIRE(stream->capture, CU_ERROR_INVALID_VALUE);
    *graph = injected == CU_SUCCESS ? stream->capture : NULL;
    if (!*graph) {
        free_nodes(stream->capture);
        fake_object_kill(stream->capture);
    }
    stream->capture = NULL;
    LEAVE_FREEING(CU_SUCCESS);
}

/* Tensor maps: the driver's own conditions (manual, cuTensorMapEncodeTiled), for the types that driver.h names. */

static size_t element_bytes(int type)
{
    switch (type) {
    case CU_TENSOR_MAP_UINT8: return 1;
    case CU_TENSOR_MAP_FLOAT16:
    case CU_TENSOR_MAP_BFLOAT16: return 2;
    case CU_TENSOR_MAP_FLOAT32: return 4;
    case CU_TENSOR_MAP_INT64: return 8;
    default: return 0;
    }
}

cu_result cuTensorMapEncodeTiled(struct cu_tensor_map *map, int type, unsigned rank, void *address,
                                 const uint64_t *dimensions, const uint64_t *strides, const unsigned *box,
                                 const unsigned *element_strides, int interleave, int swizzle, int promotion, int fill)
{
    ENTER;
    uint64_t element = element_bytes(type), location = (uint64_t)(uintptr_t)address;
    REQUIRE(fake_settings.capability >= 90, FAKE_NOT_SUPPORTED);
    REQUIRE((uintptr_t)map % 64 == 0 && element && rank >= 1 && rank <= 5, CU_ERROR_INVALID_VALUE);
    REQUIRE(location && location % 16 == 0, CU_ERROR_INVALID_VALUE);
    REQUIRE(!interleave && !fill && swizzle >= CU_TENSOR_MAP_SWIZZLE_NONE && swizzle <= CU_TENSOR_MAP_SWIZZLE_128B,
            CU_ERROR_INVALID_VALUE);
    REQUIRE(promotion >= CU_TENSOR_MAP_L2_PROMOTION_NONE && promotion <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            CU_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < rank; i++) {
        REQUIRE(dimensions[i] >= 1 && dimensions[i] <= UINT64_C(1) << 32, CU_ERROR_INVALID_VALUE);
        REQUIRE(box[i] >= 1 && box[i] <= 256 && element_strides[i] >= 1 && element_strides[i] <= 8,
                CU_ERROR_INVALID_VALUE);
        REQUIRE(i == rank - 1 || (strides[i] % 16 == 0 && strides[i] < UINT64_C(1) << 40), CU_ERROR_INVALID_VALUE);
    }
    REQUIRE(box[0] * element % 16 == 0, CU_ERROR_INVALID_VALUE);
    REQUIRE(swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || box[0] * element <= UINT64_C(16) << swizzle,
            CU_ERROR_INVALID_VALUE);
    /* Enough for a kernel of a test: the address, sizes of rows, the box. */
    *map = (struct cu_tensor_map){.opaque = {location, dimensions[0], rank > 1 ? dimensions[1] : 1,
                                             rank > 1 ? strides[0] : 0, box[0], rank > 1 ? box[1] : 1}};
    LEAVE(CU_SUCCESS);
}
