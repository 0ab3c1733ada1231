/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL for the fake driver (fake_cuda.h), which computes: every collective queues one kernel `fake_nccl`, and where that
 * runs the ranks, threads of one process or several processes, meet in a shared memory segment that is named after the
 * id. A library libnccl.so.2 in a folder of its own. Sums are taken in rising order of ranks, in F32, and rounded once.
 *
 * As with the real one, calls return ncclInProgress, and until ncclCommGetAsyncError no longer says so no other may
 * follow. Unlike there, a kernel ends by itself if other ranks keep away, and that is an asynchronous error, as are
 * collectives that differ between ranks. Streams run at once: a collective returns when all ranks have queued theirs,
 * so that a thread can be one rank only, in groups too.
 *
 * Settings, read when they are needed:
 *   FAKE_NCCL_VERSION=N      default 22809
 *   FAKE_NCCL_TIMEOUT=N      seconds that a kernel waits for other ranks, default 10
 *   FAKE_NCCL_FAIL=1         collectives fail
 *   FAKE_NCCL_NEVER=1        operations in progress (joining, queueing, finalizing) never end
 *   FAKE_NCCL_LOST=PATH      while a rank joins there is a file PATH.joins, and joining fails with ncclRemoteError once there
 *                            is a file PATH
 *   FAKE_NCCL_LOST_LATER=PATH  the same of the first collective, which waits for PATH and fails with ncclSystemError
 *   FAKE_NCCL_SLOW_END=N     seconds that it takes to abort or destroy
 *   FAKE_NCCL_ASYNC_ERROR=1  once all have joined, ncclCommGetAsyncError finds ncclRemoteError */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/vendor/nccl.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/library.h"

#define EXPORTED                                         __attribute__((visibility("default")))
#define FAKE_DECLARE(member, symbol, result, parameters) EXPORTED result symbol parameters;
NCCL_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

enum {
    SYSTEM_ERROR = 2,
    MOST_RANKS = 16,
    CHUNK = 1 << 18, /* bytes that ranks exchange at a time */
    POLLS = 2,       /* how often what was called is still in progress */
    SPINS = 1000,    /* before a rank that waits sleeps between looks */
    SPIN_PAUSE = 50000,
};
enum { ALL_REDUCE = 1, ALL_GATHER = 2 };

struct part { /* what a rank shows the others; lines of their own */
    _Alignas(64) _Atomic uint64_t meeting;
    uint64_t operation; /* kind, type */
    uint64_t count;
};
struct segment { /* begins as zeros */
    _Atomic uint32_t ranks, joined;
    struct part parts[MOST_RANKS];
    _Alignas(64) uint8_t data[MOST_RANKS][CHUNK];
};

struct nccl_comm_opaque { /* never freed, so that the use of a dead one is seen */
    struct fake_library library;
    struct segment *segment;
    char name[32];
    int rank, ranks;
    bool ready, finalizing; /* all have joined, as the caller knows */
    int polls;              /* how often it is still in progress; 0: nothing is */
    uint64_t meeting;       /* the last one */
    _Atomic int error, running;
    _Atomic bool aborted, dead;
    struct nccl_comm_opaque *next;
};
static struct nccl_comm_opaque *_Atomic comms; /* all that were ever made */

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* ---- the kernel ---- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Waits until all ranks are here. What they wrote before is seen afterwards. */
static bool meet(nccl_comm comm)
{
    const double end = now() + (double)setting("FAKE_NCCL_TIMEOUT", 10);
    const struct timespec pause = {.tv_nsec = SPIN_PAUSE};
    struct part *parts = comm->segment->parts;
    atomic_store(&parts[comm->rank].meeting, ++comm->meeting);
    for (int rank = 0; rank < comm->ranks; rank++)
        for (int looks = 0; atomic_load(&parts[rank].meeting) < comm->meeting; looks++) {
            if (atomic_load(&comm->aborted)) return false;
            if (now() > end) {
                atomic_store(&comm->error, NCCL_REMOTE_ERROR);
                return false;
            }
            if (looks < SPINS)
                sched_yield();
            else
                nanosleep(&pause, NULL);
        }
    return true;
}

static size_t element_bytes(int type)
{
    switch (type) {
    case NCCL_UINT8: return 1;
    case NCCL_FLOAT16:
    case NCCL_BFLOAT16: return 2;
    case NCCL_FLOAT32: return 4;
    default: return 0;
    }
}

static float read_element(const uint8_t *from, int type)
{
    uint16_t half;
    float value;
    memcpy(&half, from, sizeof half);
    if (type == NCCL_FLOAT16) return f16_to_float(half);
    if (type == NCCL_BFLOAT16) return bf16_to_float(half);
    memcpy(&value, from, sizeof value);
    return value;
}

static void write_element(uint8_t *to, int type, float value)
{
    const uint16_t half = type == NCCL_FLOAT16 ? f16_from_float(value) : bf16_from_float(value);
    if (type == NCCL_FLOAT32)
        memcpy(to, &value, sizeof value);
    else
        memcpy(to, &half, sizeof half);
}

static void add_up(nccl_comm comm, uint8_t *to, size_t bytes, int type)
{
    for (size_t at = 0; at < bytes; at += element_bytes(type)) {
        float sum = read_element(&comm->segment->data[0][at], type);
        for (int rank = 1; rank < comm->ranks; rank++) sum += read_element(&comm->segment->data[rank][at], type);
        write_element(to + at, type, sum);
    }
}

/* Whether all ranks do the same. */
static bool agree(nccl_comm comm)
{
    const struct part *parts = comm->segment->parts, *own = &parts[comm->rank];
    for (int rank = 0; rank < comm->ranks; rank++)
        if (parts[rank].operation != own->operation || parts[rank].count != own->count) {
            atomic_store(&comm->error, NCCL_INVALID_USAGE);
            return false;
        }
    return true;
}

static void exchange(nccl_comm comm, const uint8_t *from, uint8_t *to, uint64_t count, uint64_t operation)
{
    const int kind = (int)(operation >> 8), type = (int)(operation & 0xff);
    const size_t bytes = count * element_bytes(type);
    struct part *own = &comm->segment->parts[comm->rank];
    own->operation = operation;
    own->count = count;
    for (size_t at = 0; at < bytes; at += CHUNK) {
        size_t length = bytes - at < CHUNK ? bytes - at : CHUNK;
        memcpy(comm->segment->data[comm->rank], from + at, length);
        if (!meet(comm) || !agree(comm)) return;
        if (kind == ALL_REDUCE)
            add_up(comm, to + at, length, type);
        else
            for (int rank = 0; rank < comm->ranks; rank++)
                memcpy(to + (size_t)rank * bytes + at, comm->segment->data[rank], length);
        if (!meet(comm)) return; /* all have read */
    }
}

static void run_kernel(const char *entry, void *const *arguments, const unsigned grid[3], const unsigned block[3],
                       void *context)
{
    nccl_comm comm = *(nccl_comm *)arguments[0];
    uint64_t count = *(uint64_t *)arguments[3], operation = *(uint64_t *)arguments[4];
    (void)entry, (void)grid, (void)block, (void)context;
    atomic_fetch_add(&comm->running, 1);
    if (atomic_load(&comm->dead) && !atomic_load(&comm->aborted)) {
        fprintf(stderr, "fake NCCL: a kernel of a communicator that was destroyed\n");
        abort();
    }
    if (!atomic_load(&comm->aborted) && !atomic_load(&comm->error))
        exchange(comm, *(uint8_t **)arguments[1], *(uint8_t **)arguments[2], count, operation);
    atomic_fetch_sub(&comm->running, 1);
}

static void teach(void)
{
    void (*learn)(const char *name, fake_cuda_kernel *kernel, void *context);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *address = driver ? dlsym(driver, "fake_cuda_register_waiting") : NULL;
    if (!address) return;
    memcpy(&learn, &address, sizeof learn);
    learn("fake_nccl", run_kernel, NULL);
    dlclose(driver);
}

/* ---- the library as a whole ---- */

nccl_result ncclGetVersion(int *version)
{
    *version = (int)setting("FAKE_NCCL_VERSION", 22809);
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(nccl_result result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(nccl_comm comm)
{
    (void)comm;
    return "a fake one says\nno more"; /* two lines, as real ones can have */
}

nccl_result ncclGetUniqueId(struct nccl_id *id)
{
    uint64_t number;
    memset(id, 0, sizeof *id);
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) return SYSTEM_ERROR;
    snprintf((char *)id->bytes, sizeof id->bytes, "/fake-nccl-%016llx", (unsigned long long)number);
    return NCCL_SUCCESS;
}

/* ---- communicators ---- */

static bool open_segment(nccl_comm comm)
{
    int file = shm_open(comm->name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) return false;
    void *memory = MAP_FAILED;
    if (ftruncate(file, sizeof *comm->segment) == 0)
        memory = mmap(NULL, sizeof *comm->segment, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) {
        shm_unlink(comm->name);
        return false;
    }
    comm->segment = memory;
    return true;
}

/* The last rank to come removes the name. */
static nccl_result join(nccl_comm comm)
{
    uint32_t ranks = 0;
    if (!atomic_compare_exchange_strong(&comm->segment->ranks, &ranks, (uint32_t)comm->ranks) &&
        ranks != (uint32_t)comm->ranks)
        return NCCL_INVALID_USAGE;
    if (atomic_fetch_add(&comm->segment->joined, 1) + 1 == (uint32_t)comm->ranks) shm_unlink(comm->name);
    return NCCL_IN_PROGRESS;
}

nccl_result ncclCommInitRankConfig(nccl_comm *comm, int ranks, struct nccl_id id, int rank, struct nccl_config *config)
{
    static const char cubin[] = "FAKE CUBIN 90\nkernel fake_nccl 8 8 8 8 8\nend\n";
    static pthread_once_t taught = PTHREAD_ONCE_INIT;
    const char *multicast = getenv("NCCL_NVLS_ENABLE");
    *comm = NULL;
    if (config->bytes < sizeof *config || config->magic != NCCL_CONFIG_MAGIC || config->version < 21400 ||
        config->blocking || config->cluster_size != NCCL_CONFIG_UNDEFINED || config->net_name || ranks < 1 ||
        ranks > MOST_RANKS || rank < 0 || rank >= ranks || !memchr(id.bytes, 0, sizeof(*comm)->name))
        return NCCL_INVALID_ARGUMENT;
    if (!multicast || strcmp(multicast, "0") != 0) return NCCL_INVALID_USAGE;
    pthread_once(&taught, teach);
    nccl_comm made = calloc(1, sizeof *made);
    if (!made) return SYSTEM_ERROR;
    made->rank = rank;
    made->ranks = ranks;
    made->polls = POLLS;
    memcpy(made->name, id.bytes, sizeof made->name);
    if (!fake_library_open(&made->library, cubin, "fake_nccl") || !open_segment(made)) {
        fake_library_close(&made->library);
        free(made);
        return SYSTEM_ERROR;
    }
    made->next = atomic_load(&comms);
    while (!atomic_compare_exchange_weak(&comms, &made->next, made)) continue;
    *comm = made;
    return join(made);
}

static bool in_progress(nccl_comm comm)
{
    if (!comm->polls) return false;
    if (setting("FAKE_NCCL_NEVER", 0)) return true;
    if (!comm->ready && atomic_load(&comm->segment->joined) < (uint32_t)comm->ranks) return true;
    if (comm->finalizing && atomic_load(&comm->running)) return true;
    return --comm->polls > 0;
}

/* Whether there is a file `lost`; leaves a file `lost`.joins. */
static bool is_lost(const char *lost)
{
    char path[256];
    snprintf(path, sizeof path, "%s.joins", lost);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    return access(lost, F_OK) == 0;
}

nccl_result ncclCommGetAsyncError(nccl_comm comm, nccl_result *result)
{
    const char *lost = getenv("FAKE_NCCL_LOST");
    *result = NCCL_IN_PROGRESS;
    if (atomic_load(&comm->dead)) return NCCL_INVALID_ARGUMENT;
    if (!comm->ready && lost && is_lost(lost)) {
        *result = NCCL_REMOTE_ERROR;
        return NCCL_SUCCESS;
    }
    if (in_progress(comm)) return NCCL_SUCCESS;
    *result = atomic_load(&comm->error);
    if (comm->ready && !*result && setting("FAKE_NCCL_ASYNC_ERROR", 0)) *result = NCCL_REMOTE_ERROR;
    comm->ready = true;
    return NCCL_SUCCESS;
}

static nccl_result destroy(nccl_comm comm)
{
    sleep((unsigned)setting("FAKE_NCCL_SLOW_END", 0));
    if (atomic_exchange(&comm->dead, true)) return NCCL_INVALID_ARGUMENT;
    while (atomic_load(&comm->running)) sched_yield();
    if (!comm->ready) shm_unlink(comm->name); /* a rank that comes now does not wait */
    munmap(comm->segment, sizeof *comm->segment);
    fake_library_close(&comm->library);
    return NCCL_SUCCESS;
}

nccl_result ncclCommAbort(nccl_comm comm)
{
    atomic_store(&comm->aborted, true);
    return destroy(comm);
}

nccl_result ncclCommDestroy(nccl_comm comm) { return destroy(comm); }

nccl_result ncclCommFinalize(nccl_comm comm)
{
    if (atomic_load(&comm->dead) || comm->polls || comm->finalizing) return NCCL_INVALID_ARGUMENT;
    comm->finalizing = true;
    comm->polls = POLLS;
    return NCCL_IN_PROGRESS;
}

/* ---- collectives ---- */

static nccl_result collective(nccl_comm comm, const void *from, void *to, uint64_t count, uint64_t operation,
                              cu_stream stream)
{
    void *arguments[] = {&comm, &from, &to, &count, &operation};
    if (atomic_load(&comm->dead) || comm->finalizing || !comm->ready || comm->polls || !from || !to)
        return NCCL_INVALID_ARGUMENT;
    if (setting("FAKE_NCCL_FAIL", 0)) return SYSTEM_ERROR;
    const char *lost = getenv("FAKE_NCCL_LOST_LATER");
    const struct timespec pause = {.tv_nsec = SPIN_PAUSE};
    while (lost && !is_lost(lost)) nanosleep(&pause, NULL);
    if (lost) return SYSTEM_ERROR;
    comm->polls = POLLS;
    if (!fake_library_launch(&comm->library, arguments, stream)) atomic_store(&comm->error, 1);
    return NCCL_IN_PROGRESS;
}

nccl_result ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, nccl_comm comm,
                          cu_stream stream)
{
    if (operation != NCCL_SUM || element_bytes(type) < 2) return NCCL_INVALID_ARGUMENT;
    return collective(comm, from, to, count, ALL_REDUCE << 8 | (uint64_t)type, stream);
}

nccl_result ncclAllGather(const void *from, void *to, size_t count, int type, nccl_comm comm, cu_stream stream)
{
    if (!element_bytes(type)) return NCCL_INVALID_ARGUMENT;
    return collective(comm, from, to, count, ALL_GATHER << 8 | (uint64_t)type, stream);
}
