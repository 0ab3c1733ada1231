/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of all_reduce over the link beside NCCL's, in microseconds for one of 64 in a CUDA graph.
 *
 *   collectives-bench [-g GPUS] [-m] [-s] [-t SECONDS]
 *
 * For 2, 4 and 8 GPUs, or GPUS alone, and messages of bf16 from 4 KB to 16 MB: the best of the first candidates of
 * all_reduce_one_shot and all_reduce_two_shot, each with residual and norm inside (-s: the sum alone), through the GPUs'
 * memory (-m: the host's), and NCCL's sum alone, on plain memory and on symmetric windows. As in an engine, the residual of
 * rows that are too many for one_shot is kept by the rows' owners. Each figure is the median of 20 replays, by the GPU that
 * took least (it began last), with the difference between the slowest and the fastest replay. Results are checked before they
 * are timed. The program ends after SECONDS (default 120) whatever happens.
 *
 * NCCL (libnccl.so.2 in the library path) runs without NVLink multicast: our kernels do without it, too, and a program
 * that uses it can put the GPUs of a shared host out of service. */
#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/encoding/dtype.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/cuda/comm.h"
#include "kernels/cuda/nvrtc.h"

enum {
    MOST_GPUS = 8,
    HIDDEN = 4096,
    MESSAGES = 13,
    FIRST_MESSAGE_BYTES = 4096,
    LARGEST_BYTES = FIRST_MESSAGE_BYTES << (MESSAGES - 1),
    LARGEST_ELEMENTS = LARGEST_BYTES / 2,
    TRIED = 6, /* candidates of each kernel */
    KERNELS = 2,
    VARIANTS = MESSAGES * KERNELS * TRIED,
    LAUNCHES = 64, /* in a graph; even, since buffers take turns */
    BUFFERS = 2,
    HEADER_BYTES = 256,
    WARM_UP = 3,
    REPLAYS = 20,
    DEFAULT_SECONDS = 120,
    MOST_THREADS = 64,
};
enum exit_code { EXIT_USAGE = 2, EXIT_NO_GPUS = 3, EXIT_WRONG = 4, EXIT_LATE = 5 };

/* From nccl.h, 2.28 and later; unchanged since 2.27, the first version with windows. */
typedef struct nccl_comm_opaque *nccl_comm;
typedef struct nccl_window_opaque *nccl_window;
enum { NCCL_BFLOAT16 = 9, NCCL_SUM = 0, NCCL_WINDOW_SYMMETRIC = 1, NCCL_WINDOW_VERSION = 22800 };
#define NCCL_FUNCTIONS(X)                                                                                    \
    X(GetVersion, int, (int *version))                                                                       \
    X(GetErrorString, const char *, (int result))                                                            \
    X(CommInitAll, int, (nccl_comm * comms, int count, const int *devices))                                  \
    X(CommDestroy, int, (nccl_comm comm))                                                                    \
    X(AllReduce, int,                                                                                        \
      (const void *from, void *to, size_t count, int type, int operation, nccl_comm comm, cu_stream stream)) \
    X(MemAlloc, int, (void **memory, size_t bytes))                                                          \
    X(MemFree, int, (void *memory))                                                                          \
    X(CommWindowRegister, int, (nccl_comm comm, void *memory, size_t bytes, nccl_window *window, int flags)) \
    X(CommWindowDeregister, int, (nccl_comm comm, nccl_window window))
struct nccl {
    int version; /* 10000 * major + 100 * minor + patch; 0: there is none */
#define MEMBER(name, result, parameters) result(*name) parameters;
    NCCL_FUNCTIONS(MEMBER)
#undef MEMBER
};

struct variant {
    const struct device_kernel *kernel;
    int64_t params[PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    int message;
    void *cubin;
    size_t cubin_bytes;
    cu_library library;
};

struct rank {
    struct device device;
    cu_deviceptr comm, counts, x, out, weight, normed; /* normed: also where NCCL's sum goes */
    void *send, *receive;                              /* of the windows */
    nccl_window windows[2];
    nccl_comm nccl;
    cu_event begin, end;
    cu_graph_exec graph;
    double us[REPLAYS];
    bool symmetric;
};

struct bench {
    int gpus;
    enum cuda_link link;
    bool only_sums;
    struct rank ranks[MOST_GPUS];
    struct nvrtc *nvrtc;
    struct nccl nccl;
    volatile uint32_t *fault; /* [gpus], on the host */
    pthread_barrier_t barrier;
    struct variant variants[VARIANTS];
    int variant_count;
    _Atomic int next_variant;
    uint64_t buffer_bytes;
    float *sums; /* [LARGEST_ELEMENTS], in rising order of the ranks */

    /* of the measurement at hand */
    const struct variant *variant; /* NULL: NCCL */
    bool windows;
    uint64_t bytes;
};

struct result {
    double us, spread_us; /* us 0: none */
    const struct variant *variant;
};

/* ---- failing: at once, without waiting for GPUs or threads that may never come ---- */

static void fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
static void fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "collectives-bench: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    _exit(code);
}

static void watchdog(int signal)
{
    static const char message[] = "collectives-bench: out of time (-t SECONDS)\n";
    (void)signal;
    if (write(STDERR_FILENO, message, sizeof message - 1) < 0) _exit(EXIT_LATE);
    _exit(EXIT_LATE);
}

static void check(const struct rank *rank, cu_result result, const char *what)
{
    struct status status = {0};
    if (!cuda_ok(&rank->device.driver, result, &status, "GPU %d: %s", rank->device.ordinal, what))
        fail(EXIT_WRONG, "%s", status.message);
}

static void must(bool ok, const struct status *status)
{
    if (!ok) fail(EXIT_WRONG, "%s", status->message);
}

static void *must_allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) fail(EXIT_WRONG, "out of memory");
    return memory;
}

/* ---- a thread for each GPU ---- */

typedef void rank_function(struct bench *bench, int rank);

struct rank_thread {
    struct bench *bench;
    rank_function *function;
    int rank;
    pthread_t thread;
};

static void *run_rank(void *argument)
{
    const struct rank_thread *own = argument;
    const struct device *device = &own->bench->ranks[own->rank].device;
    struct status status = {0};
    must(device_enter(device, &status), &status);
    own->function(own->bench, own->rank);
    device_leave(device);
    return NULL;
}

static void run_ranks(struct bench *bench, rank_function *function)
{
    struct rank_thread threads[MOST_GPUS];
    for (int r = 0; r < bench->gpus; r++) {
        threads[r] = (struct rank_thread){.bench = bench, .function = function, .rank = r};
        if (pthread_create(&threads[r].thread, NULL, run_rank, &threads[r])) fail(EXIT_WRONG, "no thread");
    }
    for (int r = 0; r < bench->gpus; r++) pthread_join(threads[r].thread, NULL);
}

static void wait_for(const struct rank *rank, const char *what)
{
    check(rank, rank->device.driver.StreamSynchronize(rank->device.stream), what);
}

/* ---- data ---- */

/* Rank r's element i as bf16: a number in (-2, 2), from the bits of a hash. */
static uint16_t element(int r, uint32_t i)
{
    uint32_t hash = (i * 16u + (uint32_t)r + 1u) * 2654435761u;
    hash ^= hash >> 15, hash *= 2246822519u, hash ^= hash >> 13;
    return bf16_from_float(((float)(hash >> 8) * 0x1p-24f - 0.5f) * 4);
}

static cu_deviceptr allocate(const struct rank *rank, uint64_t bytes)
{
    cu_deviceptr memory = 0;
    check(rank, rank->device.driver.MemAlloc(&memory, bytes), "allocating memory");
    check(rank, rank->device.driver.MemsetD8Async(memory, 0, bytes, rank->device.stream), "clearing memory");
    return memory;
}

static void open_rank(struct bench *bench, int r)
{
    struct rank *rank = &bench->ranks[r];
    const struct cuda_driver *driver = &rank->device.driver;
    struct status status = {0};
    uint16_t *x = must_allocate(LARGEST_BYTES), weight[HIDDEN];
    const uint64_t comm_bytes = HEADER_BYTES + BUFFERS * bench->buffer_bytes;
    const struct device *devices[MOST_GPUS];
    for (int k = 0; k < bench->gpus; k++) devices[k] = &bench->ranks[k].device;
    must(cuda_comm_allocate(&rank->device, devices, (uint32_t)bench->gpus, bench->link, comm_bytes, &rank->comm,
                            &status),
         &status);
    rank->counts = allocate(rank, 2 * sizeof(int32_t));
    rank->x = allocate(rank, LARGEST_BYTES);
    rank->out = allocate(rank, 2 * LARGEST_BYTES);
    rank->weight = allocate(rank, sizeof weight);
    rank->normed = allocate(rank, LARGEST_BYTES);
    must(cuda_comm_clear(&rank->device, rank->comm, comm_bytes, &status), &status);
    for (uint32_t i = 0; i < LARGEST_ELEMENTS; i++) x[i] = element(r, i);
    for (int i = 0; i < HIDDEN; i++) weight[i] = bf16_from_float(1);
    check(rank, driver->MemcpyHtoDAsync(rank->x, x, LARGEST_BYTES, rank->device.stream), "writing data");
    check(rank, driver->MemcpyHtoDAsync(rank->weight, weight, sizeof weight, rank->device.stream), "writing data");
    check(rank, driver->EventCreate(&rank->begin, 0), "making an event");
    check(rank, driver->EventCreate(&rank->end, 0), "making an event");
    wait_for(rank, "writing data");
    free(x);
}

static void write_header(struct bench *bench, int r)
{
    uint64_t comm[MOST_GPUS];
    struct comm_header header;
    struct status status = {0};
    for (int k = 0; k < bench->gpus; k++) comm[k] = bench->ranks[k].comm;
    cuda_comm_header(&header, (uint32_t)r, (uint32_t)bench->gpus, comm, (uint64_t)(uintptr_t)&bench->fault[r]);
    must(cuda_comm_write(&bench->ranks[r].device, comm[r], &header, &status), &status);
}

static void close_rank(struct bench *bench, int r)
{
    struct rank *rank = &bench->ranks[r];
    const struct cuda_driver *driver = &rank->device.driver;
    cuda_comm_free(&rank->device, bench->link, rank->comm, HEADER_BYTES + BUFFERS * bench->buffer_bytes);
    const cu_deviceptr memories[] = {rank->counts, rank->x, rank->out, rank->weight, rank->normed};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        check(rank, driver->MemFree(memories[i]), "freeing memory");
    check(rank, driver->EventDestroy(rank->begin), "destroying an event");
    check(rank, driver->EventDestroy(rank->end), "destroying an event");
}

static void make_sums(struct bench *bench)
{
    for (uint32_t i = 0; i < LARGEST_ELEMENTS; i++) {
        float sum = 0;
        for (int r = 0; r < bench->gpus; r++) sum += bf16_to_float(element(r, i));
        bench->sums[i] = sum;
    }
}

/* ---- kernels ---- */

static uint64_t message_bytes(int message) { return (uint64_t)FIRST_MESSAGE_BYTES << message; }

static void message_shape(int message, int64_t *rows, int64_t *width)
{
    int64_t elements = (int64_t)message_bytes(message) / 2;
    *width = elements < HIDDEN ? elements : HIDDEN;
    *rows = elements / *width;
}

static void add_variants(struct bench *bench, int message)
{
    static const struct device_kernel *const kernels[KERNELS] = {&device_all_reduce_one_shot,
                                                                 &device_all_reduce_two_shot};
    const struct device_facts *facts = &bench->ranks[0].device.facts;
    int64_t rows, width, candidates[TRIED][PLAN_MAX_PARAMS];
    uint64_t bytes;
    message_shape(message, &rows, &width);
    const bool large = all_reduce_device_is_large((uint64_t)rows, (uint64_t)width, (uint64_t)bench->gpus, DTYPE_BF16);
    const int64_t whose = bench->only_sums ? ALL_REDUCE_NO_ROWS : large ? ALL_REDUCE_OWN_ROWS : ALL_REDUCE_EVERY_ROW;
    const int64_t params[PLAN_MAX_PARAMS] = {
        [ALL_REDUCE_ROWS] = rows,
        [ALL_REDUCE_WIDTH] = width,
        [ALL_REDUCE_RANKS] = bench->gpus,
        [ALL_REDUCE_X_DTYPE] = DTYPE_BF16,
        [ALL_REDUCE_HAS_RESIDUAL] = whose,
        [ALL_REDUCE_HAS_NORM] = whose,
        [ALL_REDUCE_NORM_DTYPE] = DTYPE_BF16,
        [ALL_REDUCE_EPS_BITS] = (int64_t)float_to_bits(1e-5f),
        [ALL_REDUCE_OUT_DTYPE] = DTYPE_BF16,
    };
    if (!all_reduce_device_buffer_bytes((uint64_t)rows, (uint64_t)width, (uint64_t)bench->gpus, DTYPE_BF16, DTYPE_BF16,
                                        &bytes))
        fail(EXIT_WRONG, "the buffer's size overflows");
    if (bytes > bench->buffer_bytes) bench->buffer_bytes = (bytes + HEADER_BYTES - 1) / HEADER_BYTES * HEADER_BYTES;
    for (int k = 0; k < KERNELS; k++) {
        int count = kernels[k]->candidates(params, facts, candidates, TRIED);
        for (int c = 0; c < count; c++) {
            struct variant *variant = &bench->variants[bench->variant_count++];
            *variant = (struct variant){.kernel = kernels[k], .message = message};
            memcpy(variant->params, candidates[c], sizeof variant->params);
            const char *illegal = kernels[k]->launch(variant->params, facts, &variant->geometry);
            if (illegal) fail(EXIT_WRONG, "%s: %s", kernels[k]->name, illegal);
        }
    }
}

static void *compile_some(void *argument)
{
    struct bench *bench = argument;
    for (int i; (i = bench->next_variant++) < bench->variant_count;) {
        struct variant *variant = &bench->variants[i];
        struct status status = {0};
        must(nvrtc_compile(bench->nvrtc, variant->kernel, variant->params, bench->ranks[0].device.facts.capability,
                           &variant->cubin, &variant->cubin_bytes, &status),
             &status);
    }
    return NULL;
}

static void compile_variants(struct bench *bench)
{
    pthread_t threads[MOST_THREADS];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int started = 0;
    bench->variant_count = bench->next_variant = 0;
    bench->buffer_bytes = 0;
    for (int m = 0; m < MESSAGES; m++) add_variants(bench, m);
    while (started < MOST_THREADS && started < processors &&
           pthread_create(&threads[started], NULL, compile_some, bench) == 0)
        started++;
    if (!started) compile_some(bench);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

/* `launches` of the variant at hand in one chain. */
static cu_graph_exec make_graph(struct bench *bench, struct rank *rank, int launches)
{
    const struct cuda_driver *driver = &rank->device.driver;
    const struct variant *variant = bench->variant;
    const struct device_geometry *geometry = &variant->geometry;
    const struct cu_graph_edge programmatic = {.from_port = CU_GRAPH_PORT_PROGRAMMATIC,
                                               .type = CU_GRAPH_EDGE_PROGRAMMATIC};
    const struct cu_graph_edge full = {0};
    union cu_launch_attribute_value cluster = {{0}};
    cu_kernel kernel = NULL;
    cu_function function = NULL;
    cu_graph graph = NULL;
    cu_graph_node last = NULL;
    cu_graph_exec exec = NULL;
    cluster.cluster.x = geometry->cluster[0], cluster.cluster.y = cluster.cluster.z = 1;
    check(rank, driver->LibraryGetKernel(&kernel, variant->library, variant->kernel->name), "finding a kernel");
    check(rank, driver->KernelGetFunction(&function, kernel), "loading a kernel");
    check(rank, driver->GraphCreate(&graph, 0), "making a graph");
    for (int i = 0; i < launches; i++) {
        cu_deviceptr operands[ALL_REDUCE_OPERANDS] =
            {rank->counts, rank->x,
             rank->comm,   rank->comm + HEADER_BYTES + (uint64_t)(i % BUFFERS) * bench->buffer_bytes,
             rank->out,    rank->out,
             rank->weight, rank->normed};
        void *pointers[ALL_REDUCE_OPERANDS];
        struct cu_graph_node_params params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
        cu_graph_node node = NULL;
        for (int p = 0; p < ALL_REDUCE_OPERANDS; p++) pointers[p] = &operands[p];
        params.kernel.function = function;
        params.kernel.params = pointers;
        params.kernel.shared_bytes = geometry->shared_bytes;
        memcpy(params.kernel.grid, geometry->grid, sizeof params.kernel.grid);
        memcpy(params.kernel.block, geometry->block, sizeof params.kernel.block);
        const struct cu_graph_edge *edge = rank->device.facts.capability >= 90 ? &programmatic : &full;
        check(rank, driver->GraphAddNode(&node, graph, i ? &last : NULL, i ? edge : NULL, i ? 1 : 0, &params),
              "adding a kernel to a graph");
        if (geometry->cluster[0] > 1)
            check(rank, driver->GraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster),
                  "setting a cluster");
        last = node;
    }
    check(rank, driver->GraphInstantiate(&exec, graph, 0), "instantiating a graph");
    check(rank, driver->GraphDestroy(graph), "freeing a graph");
    check(rank, driver->GraphUpload(exec, rank->device.stream), "uploading a graph");
    wait_for(rank, "uploading a graph");
    return exec;
}

static void check_fault(const struct bench *bench, int r)
{
    if (bench->fault[r])
        fail(EXIT_WRONG, "%s, %" PRIu64 " bytes: GPU %d waited until its time limit for rank %u",
             bench->variant->kernel->name, bench->bytes, bench->ranks[r].device.ordinal, bench->fault[r] - 1);
}

static void check_norm(const struct bench *bench, const struct rank *rank)
{
    const int64_t *params = bench->variant->params;
    const int64_t rows = params[ALL_REDUCE_ROWS], width = params[ALL_REDUCE_WIDTH];
    uint16_t *normed = must_allocate(bench->bytes);
    check(rank, rank->device.driver.MemcpyDtoHAsync(normed, rank->normed, bench->bytes, rank->device.stream),
          "reading norms");
    wait_for(rank, "reading norms");
    for (int64_t r = 0; r < rows; r++) {
        const float *sum = bench->sums + r * width;
        double squares = 0;
        for (int64_t c = 0; c < width; c++) squares += (double)sum[c] * (double)sum[c];
        const double factor = 1 / sqrt(squares / (double)width + 1e-5);
        for (int64_t c = 0; c < width; c++) {
            const double expected = (double)sum[c] * factor, found = (double)bf16_to_float(normed[r * width + c]);
            if (!(fabs(found - expected) <= 0x1p-7 * fabs(expected) + 1e-6)) /* bf16, once or twice */
                fail(EXIT_WRONG, "%s, %" PRIu64 " bytes, GPU %d: normed row %d, column %d: expected %.6g, found %.6g",
                     bench->variant->kernel->name, bench->bytes, rank->device.ordinal, (int)r, (int)c, expected, found);
        }
    }
    free(normed);
}

/* One launch with a residual of zero: the sum's bits are known. Then the graph to time. */
static void prepare_ours(struct bench *bench, int r)
{
    struct rank *rank = &bench->ranks[r];
    const struct cuda_driver *driver = &rank->device.driver;
    const int64_t *of_kernel = bench->variant->params;
    const int32_t rows = (int32_t)of_kernel[ALL_REDUCE_ROWS], counts[2] = {rows, rows};
    const size_t elements = bench->bytes / 2, width = (size_t)of_kernel[ALL_REDUCE_WIDTH];
    const bool own_rows = of_kernel[ALL_REDUCE_HAS_NORM] == ALL_REDUCE_OWN_ROWS;
    const bool rounded = bench->variant->kernel == &device_all_reduce_two_shot && !own_rows;
    float *out = must_allocate(4 * elements);
    check(rank, driver->MemcpyHtoDAsync(rank->counts, counts, sizeof counts, rank->device.stream), "writing counts");
    check(rank, driver->MemsetD8Async(rank->out, 0, 4 * elements, rank->device.stream), "clearing memory");
    check(rank, driver->MemsetD8Async(rank->normed, 0xff, 2 * elements, rank->device.stream), "poisoning memory");
    cu_graph_exec one = make_graph(bench, rank, 1);
    rank->graph = make_graph(bench, rank, LAUNCHES);
    pthread_barrier_wait(&bench->barrier);
    check(rank, driver->GraphLaunch(one, rank->device.stream), "a launch");
    wait_for(rank, "a launch");
    check_fault(bench, r);
    check(rank, driver->MemcpyDtoHAsync(out, rank->out, 4 * elements, rank->device.stream), "reading a sum");
    wait_for(rank, "reading a sum");
    for (size_t i = 0; i < elements; i++) {
        float expected = rounded ? bf16_to_float(bf16_from_float(bench->sums[i])) : bench->sums[i];
        if (own_rows && i / width % (size_t)bench->gpus != (size_t)r) expected = 0; /* as it was */
        if (out[i] != expected)
            fail(EXIT_WRONG, "%s, %" PRIu64 " bytes, GPU %d: element %zu: expected %.9g, found %.9g",
                 bench->variant->kernel->name, bench->bytes, rank->device.ordinal, i, (double)expected, (double)out[i]);
    }
    if (!bench->only_sums) check_norm(bench, rank);
    check(rank, driver->GraphExecDestroy(one), "freeing a graph");
    free(out);
}

/* ---- NCCL ---- */

static void nccl_open(struct nccl *nccl)
{
    *nccl = (struct nccl){0};
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("NCCL: none (%s)\n", dlerror());
        return;
    }
#define FIND(name, result, parameters)                 \
    {                                                  \
        void *address = dlsym(library, "nccl" #name);  \
        memcpy(&nccl->name, &address, sizeof address); \
    }
    NCCL_FUNCTIONS(FIND)
#undef FIND
    bool whole = nccl->GetVersion && nccl->GetErrorString && nccl->CommInitAll && nccl->CommDestroy &&
                 nccl->AllReduce && nccl->MemAlloc && nccl->MemFree;
    if (!whole || nccl->GetVersion(&nccl->version) != 0) {
        printf("NCCL: a library without its functions\n");
        nccl->version = 0;
        return;
    }
    printf("NCCL %d.%d.%d, without NVLink multicast\n", nccl->version / 10000, nccl->version / 100 % 100,
           nccl->version % 100);
}

static bool has_windows(const struct nccl *nccl)
{
    return nccl->version >= NCCL_WINDOW_VERSION && nccl->CommWindowRegister && nccl->CommWindowDeregister;
}

static void check_nccl(const struct bench *bench, int result, const char *what)
{
    if (result) fail(EXIT_WRONG, "NCCL: %s: %s", what, bench->nccl.GetErrorString(result));
}

static void nccl_join(struct bench *bench)
{
    nccl_comm comms[MOST_GPUS];
    int ordinals[MOST_GPUS];
    if (!bench->nccl.version) return;
    for (int r = 0; r < bench->gpus; r++) ordinals[r] = bench->ranks[r].device.ordinal;
    check_nccl(bench, bench->nccl.CommInitAll(comms, bench->gpus, ordinals), "making communicators");
    for (int r = 0; r < bench->gpus; r++) bench->ranks[r].nccl = comms[r];
}

/* Every rank at the same time: the registration is itself a collective. */
static void open_windows(struct bench *bench, int r)
{
    const struct nccl *nccl = &bench->nccl;
    struct rank *rank = &bench->ranks[r];
    const struct cuda_driver *driver = &rank->device.driver;
    check_nccl(bench, nccl->MemAlloc(&rank->send, LARGEST_BYTES), "allocating memory");
    check_nccl(bench, nccl->MemAlloc(&rank->receive, LARGEST_BYTES), "allocating memory");
    check(rank,
          driver->MemcpyDtoDAsync((cu_deviceptr)(uintptr_t)rank->send, rank->x, LARGEST_BYTES, rank->device.stream),
          "copying data");
    wait_for(rank, "copying data");
    rank->symmetric = true;
    void *const memories[2] = {rank->send, rank->receive};
    for (int w = 0; w < 2; w++) {
        rank->windows[w] = NULL;
        int result =
            nccl->CommWindowRegister(rank->nccl, memories[w], LARGEST_BYTES, &rank->windows[w], NCCL_WINDOW_SYMMETRIC);
        /* NULL: these GPUs cannot. */
        if (result != 0 || !rank->windows[w]) rank->symmetric = false;
    }
}

static void nccl_leave(struct bench *bench, int r)
{
    const struct nccl *nccl = &bench->nccl;
    struct rank *rank = &bench->ranks[r];
    for (int w = 0; w < 2; w++)
        if (rank->windows[w]) nccl->CommWindowDeregister(rank->nccl, rank->windows[w]);
    check_nccl(bench, nccl->CommDestroy(rank->nccl), "destroying a communicator");
    if (rank->send) nccl->MemFree(rank->send);
    if (rank->receive) nccl->MemFree(rank->receive);
    rank->send = rank->receive = NULL;
    rank->windows[0] = rank->windows[1] = NULL;
}

static void nccl_reduce(const struct bench *bench, const struct rank *rank)
{
    const void *from = bench->windows ? rank->send : (const void *)(uintptr_t)rank->x;
    void *to = bench->windows ? rank->receive : (void *)(uintptr_t)rank->normed;
    check_nccl(bench,
               bench->nccl.AllReduce(from, to, bench->bytes / 2, NCCL_BFLOAT16, NCCL_SUM, rank->nccl,
                                     rank->device.stream),
               "an all-reduce");
}

/* The order of NCCL's sum is its own affair. */
static void check_nccl_sum(const struct bench *bench, const struct rank *rank)
{
    const struct cuda_driver *driver = &rank->device.driver;
    const cu_deviceptr from = bench->windows ? (cu_deviceptr)(uintptr_t)rank->receive : rank->normed;
    uint16_t *out = must_allocate(bench->bytes);
    check(rank, driver->MemcpyDtoHAsync(out, from, bench->bytes, rank->device.stream), "reading a sum");
    wait_for(rank, "reading a sum");
    for (size_t i = 0; i < bench->bytes / 2; i++) {
        const double expected = (double)bench->sums[i], found = (double)bf16_to_float(out[i]);
        if (!(fabs(found - expected) <= 0x1p-8 * bench->gpus * bench->gpus)) /* bf16 at every hop */
            fail(EXIT_WRONG, "NCCL, %" PRIu64 " bytes, GPU %d: element %zu: expected %.4g, found %.4g", bench->bytes,
                 rank->device.ordinal, i, expected, found);
    }
    free(out);
}

static void prepare_nccl(struct bench *bench, int r)
{
    struct rank *rank = &bench->ranks[r];
    const struct cuda_driver *driver = &rank->device.driver;
    cu_graph graph = NULL;
    /* Outside of a graph first: it connects what the message's size needs. */
    nccl_reduce(bench, rank);
    wait_for(rank, "an all-reduce of NCCL");
    check_nccl_sum(bench, rank);
    pthread_barrier_wait(&bench->barrier);
    check(rank, driver->StreamBeginCapture(rank->device.stream, CU_STREAM_CAPTURE_MODE_RELAXED), "capturing");
    for (int i = 0; i < LAUNCHES; i++) nccl_reduce(bench, rank);
    check(rank, driver->StreamEndCapture(rank->device.stream, &graph), "capturing");
    check(rank, driver->GraphInstantiate(&rank->graph, graph, 0), "instantiating a graph");
    check(rank, driver->GraphDestroy(graph), "freeing a graph");
    check(rank, driver->GraphUpload(rank->graph, rank->device.stream), "uploading a graph");
    wait_for(rank, "uploading a graph");
}

/* ---- timing ---- */

static void time_rank(struct bench *bench, int r)
{
    struct rank *rank = &bench->ranks[r];
    const struct cuda_driver *driver = &rank->device.driver;
    const cu_stream stream = rank->device.stream;
    for (int i = -WARM_UP; i < REPLAYS; i++) {
        float milliseconds = 0;
        pthread_barrier_wait(&bench->barrier);
        /* Two replays: while the first runs, the second is queued, and the ranks come into step. */
        check(rank, driver->GraphLaunch(rank->graph, stream), "a replay");
        check(rank, driver->EventRecord(rank->begin, stream), "an event");
        check(rank, driver->GraphLaunch(rank->graph, stream), "a replay");
        check(rank, driver->EventRecord(rank->end, stream), "an event");
        wait_for(rank, "a replay");
        if (bench->variant) check_fault(bench, r);
        check(rank, driver->EventElapsedTime(&milliseconds, rank->begin, rank->end), "a time");
        if (i >= 0) rank->us[i] = 1e3 * (double)milliseconds / LAUNCHES;
    }
    check(rank, driver->GraphExecDestroy(rank->graph), "freeing a graph");
    rank->graph = NULL;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct result measure(struct bench *bench, rank_function *prepare)
{
    double us[REPLAYS];
    run_ranks(bench, prepare);
    run_ranks(bench, time_rank);
    for (int i = 0; i < REPLAYS; i++) {
        us[i] = bench->ranks[0].us[i];
        for (int r = 1; r < bench->gpus; r++) us[i] = fmin(us[i], bench->ranks[r].us[i]);
    }
    qsort(us, REPLAYS, sizeof *us, compare_doubles);
    return (struct result){us[REPLAYS / 2], us[REPLAYS - 1] - us[0], bench->variant};
}

static struct result measure_kernel(struct bench *bench, const struct device_kernel *kernel, int message)
{
    const struct rank *rank = &bench->ranks[0];
    const struct cuda_driver *driver = &rank->device.driver;
    struct result best = {0};
    bench->bytes = message_bytes(message);
    for (int v = 0; v < bench->variant_count; v++) {
        struct variant *variant = &bench->variants[v];
        if (variant->kernel != kernel || variant->message != message) continue;
        check(rank, driver->LibraryLoadData(&variant->library, variant->cubin, NULL, NULL, 0, NULL, NULL, 0),
              "loading a kernel");
        bench->variant = variant;
        struct result result = measure(bench, prepare_ours);
        check(rank, driver->LibraryUnload(variant->library), "unloading a kernel");
        if (!best.us || result.us < best.us) best = result;
    }
    return best;
}

static struct result measure_nccl(struct bench *bench, bool windows, int message)
{
    bool possible = bench->nccl.version != 0;
    for (int r = 0; windows && r < bench->gpus; r++) possible = possible && bench->ranks[r].symmetric;
    if (!possible) return (struct result){0};
    bench->variant = NULL;
    bench->windows = windows;
    bench->bytes = message_bytes(message);
    return measure(bench, prepare_nccl);
}

static void print_result(const struct result *result)
{
    if (result->us)
        printf(" %9.2f %6.2f", result->us, result->spread_us);
    else
        printf(" %9s %6s", "-", "");
}

static void print_tunables(const struct result *result)
{
    if (!result->us) return;
    const int64_t *params = result->variant->params;
    printf("  %" PRId64 " x %" PRId64, params[ALL_REDUCE_DEVICE_THREADS], params[ALL_REDUCE_DEVICE_BLOCKS]);
    if (params[ALL_REDUCE_DEVICE_HALVES]) printf(" x %" PRId64, params[ALL_REDUCE_DEVICE_HALVES]);
}

static void print_table(struct bench *bench)
{
    printf("\n%d GPUs, %s; us of one all-reduce, and slowest less fastest replay\n", bench->gpus,
           bench->ranks[0].device.facts.name);
    printf("%9s %16s %16s %16s %16s  %s\n", "bytes", "one_shot", "two_shot", bench->nccl.version ? "NCCL" : "no NCCL",
           bench->nccl.version ? "NCCL symmetric" : "no NCCL", "tunables of ours: threads x blocks x halves");
    for (int m = 0; m < MESSAGES; m++) {
        const struct result results[] = {measure_kernel(bench, &device_all_reduce_one_shot, m),
                                         measure_kernel(bench, &device_all_reduce_two_shot, m),
                                         measure_nccl(bench, false, m), measure_nccl(bench, true, m)};
        printf("%9" PRIu64, message_bytes(m));
        for (int i = 0; i < 4; i++) print_result(&results[i]);
        print_tunables(&results[0]);
        print_tunables(&results[1]);
        printf("\n");
        fflush(stdout);
    }
}

static void bench_gpus(struct bench *bench, int gpus)
{
    const struct device *devices[MOST_GPUS];
    struct status status = {0};
    void *fault = NULL;
    bench->gpus = gpus;
    for (int r = 0; r < gpus; r++) {
        devices[r] = &bench->ranks[r].device;
        must(device_open(&bench->ranks[r].device, r, &status), &status);
    }
    struct status reason = {0};
    if (bench->link != CUDA_LINK_HOST)
        must(cuda_comm_find_link(devices, (uint32_t)gpus, &bench->link, &reason, &status), &status);
    printf("%d GPUs, %s%s%s\n", gpus, cuda_link_name(bench->link), *reason.message ? ": " : "", reason.message);
    must(device_enter(devices[0], &status), &status);
    check(&bench->ranks[0], devices[0]->driver.MemHostAlloc(&fault, MOST_GPUS * sizeof *bench->fault, 0),
          "allocating host memory");
    memset(fault, 0, MOST_GPUS * sizeof *bench->fault);
    bench->fault = fault;
    if (pthread_barrier_init(&bench->barrier, NULL, (unsigned)gpus)) fail(EXIT_WRONG, "no barrier");
    compile_variants(bench);
    run_ranks(bench, open_rank);
    run_ranks(bench, write_header);
    make_sums(bench);
    nccl_join(bench);
    if (has_windows(&bench->nccl)) run_ranks(bench, open_windows);
    print_table(bench);
    if (bench->nccl.version) run_ranks(bench, nccl_leave);
    run_ranks(bench, close_rank);
    check(&bench->ranks[0], devices[0]->driver.MemFreeHost(fault), "freeing host memory");
    device_leave(devices[0]);
    pthread_barrier_destroy(&bench->barrier);
    for (int v = 0; v < bench->variant_count; v++) free(bench->variants[v].cubin);
    for (int r = 0; r < gpus; r++) device_close(&bench->ranks[r].device);
}

static int count_gpus(void)
{
    struct cuda_driver driver;
    struct status status = {0};
    int count = 0;
    if (!cuda_driver_open(&driver, &status) || !cuda_ok(&driver, driver.DeviceGetCount(&count), &status, "counting"))
        fail(EXIT_NO_GPUS, "%s", status.message);
    cuda_driver_close(&driver);
    return count;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    struct status status = {0};
    int option, only = 0, seconds = DEFAULT_SECONDS, done = 0;
    while ((option = getopt(argc, argv, "g:t:ms")) != -1) {
        if (option == 'g')
            only = atoi(optarg);
        else if (option == 'm')
            bench.link = CUDA_LINK_HOST;
        else if (option == 's')
            bench.only_sums = true;
        else if (option == 't')
            seconds = atoi(optarg);
        if (option == '?' || seconds < 1 || only < 0 || only == 1 || only > MOST_GPUS) {
            fprintf(stderr, "usage: collectives-bench [-g GPUS (2 to 8)] [-m] [-s] [-t SECONDS]\n");
            return EXIT_USAGE;
        }
    }
    signal(SIGALRM, watchdog);
    alarm((unsigned)seconds);
    int present = count_gpus();
    bench.nvrtc = nvrtc_open(device_sources, device_source_count, NULL, &status);
    if (!bench.nvrtc) fail(EXIT_NO_GPUS, "%s", status.message);
    bench.sums = must_allocate(LARGEST_ELEMENTS * sizeof *bench.sums);
    if (present >= 2) nccl_open(&bench.nccl);
    for (int gpus = 2; gpus <= MOST_GPUS; gpus++) {
        bool wanted = only ? gpus == only : (gpus & (gpus - 1)) == 0;
        if (!wanted || gpus > present) continue;
        bench_gpus(&bench, gpus);
        done++;
    }
    free(bench.sums);
    nvrtc_close(bench.nvrtc);
    if (!done) fail(EXIT_NO_GPUS, "expected %d GPUs or more, found %d", only ? only : 2, present);
    return 0;
}
