/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/vendor/nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/symbols.h"

static const char library_name[] = "libnccl.so.2";
static const char remedy[] = "install NCCL 2.18 or later (the pip wheel nvidia-nccl-cu13 has it too), and name its "
                             "folder in LD_LIBRARY_PATH";

static const double gate_seconds = 1;  /* limit of the wait of an abort for calls on other threads, which notice it */
static const double end_seconds = 5;   /* limit of the time for NCCL to release its resources */
static const long first_pause = 20000; /* nanoseconds between two polls: doubles ... */
static const long last_pause = 1000000;

struct ending;
struct nccl_gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    unsigned inside; /* calls of NCCL on this communicator */
    bool aborted;
    struct ending *ending; /* in progress; NULL: none */
};

/* ---- the library ---- */

static bool look_up(const struct nccl *nccl, const struct symbol *symbols, size_t count, struct status *status)
{
    const char *missing = symbols_missing(nccl->library, symbols, count);
    return !missing || status_fail(status, STATUS_MACHINE, "NCCL: expected the function %s, found a %s without it; %s",
                                   missing, library_name, remedy);
}

/* The version is checked first: an old library lacks functions, and the remedy is to update it. */
static bool check_version(struct nccl *nccl, struct status *status)
{
    int version = 0;
    const struct symbol symbol = {"ncclGetVersion", &nccl->GetVersion};
    if (!look_up(nccl, &symbol, 1, status)) return false;
    nccl_result result = nccl->GetVersion(&version);
    if (result != NCCL_SUCCESS)
        return status_fail(status, STATUS_MACHINE, "NCCL: expected its version, found error %d of ncclGetVersion; %s",
                           result, remedy);
    if (version < NCCL_LEAST_VERSION) {
        int major = version < 10000 ? 1000 : 10000; /* up to 2.8 */
        return status_fail(status, STATUS_MACHINE, "NCCL: expected version %d.%d or later, found %d.%d.%d; %s",
                           NCCL_LEAST_VERSION / 10000, NCCL_LEAST_VERSION % 10000 / 100, version / major,
                           version % major / 100, version % 100, remedy);
    }
    nccl->version = (uint32_t)version;
    return true;
}

bool nccl_open(struct nccl *nccl, struct status *status)
{
    memset(nccl, 0, sizeof *nccl);
    /* NVLink multicast stays off: a process that ends while it holds multicast memory can put all GPUs of a host out of
     * service until the fabric is reset, and our own collectives do not need it. An existing setting is overridden,
     * since the host may be shared. */
    if (setenv("NCCL_NVLS_ENABLE", "0", 1) != 0)
        return status_fail_errno(status, STATUS_MACHINE, errno, "NCCL: setting NCCL_NVLS_ENABLE=0");
    /* Stays loaded, as the driver does: its threads may outlive the handle. */
    nccl->library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!nccl->library) {
        const char *reason = dlerror();
        return status_fail(status, STATUS_MACHINE, "NCCL: expected %s, found none (%s); %s", library_name,
                           reason ? reason : "no reason given", remedy);
    }
#define SYMBOL(member, symbol, result, parameters) {#symbol, &nccl->member},
    const struct symbol symbols[] = {NCCL_FUNCTIONS(SYMBOL)};
#undef SYMBOL
    if (check_version(nccl, status) && look_up(nccl, symbols, sizeof symbols / sizeof *symbols, status)) return true;
    nccl_close(nccl);
    return false;
}

void nccl_close(struct nccl *nccl)
{
    if (nccl->library) dlclose(nccl->library);
    memset(nccl, 0, sizeof *nccl);
}

/* True for success; else fills status with "WHAT: text of NCCL". */
__attribute__((format(printf, 4, 5))) static bool succeeded(const struct nccl *nccl, nccl_result result,
                                                            struct status *status, const char *format, ...)
{
    if (result == NCCL_SUCCESS) return true;
    char what[STATUS_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    const char *name = nccl->GetErrorString(result), *last = nccl->GetLastError(NULL);
    return status_fail(status, STATUS_MACHINE, "%s: error %d (%s): %s", what, result, name ? name : "no name",
                       last && *last ? last : "no description");
}

bool nccl_make_id(const struct nccl *nccl, struct nccl_id *id, struct status *status)
{
    return succeeded(nccl, nccl->GetUniqueId(id), status, "NCCL: making an id for the ranks");
}

/* ---- waiting ---- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static struct timespec after(double seconds)
{
    double end = now() + seconds;
    return (struct timespec){.tv_sec = (time_t)end, .tv_nsec = (long)(1e9 * (end - (double)(time_t)end))};
}

/* Both use the clock of after(). */
static bool make_lock(pthread_mutex_t *mutex, pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) return false;
    bool ok =
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 && pthread_cond_init(condition, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    if (!ok) return false;
    if (pthread_mutex_init(mutex, NULL) == 0) return true;
    pthread_cond_destroy(condition);
    return false;
}

static void free_lock(pthread_mutex_t *mutex, pthread_cond_t *condition)
{
    pthread_mutex_destroy(mutex);
    pthread_cond_destroy(condition);
}

/* ---- the gate: an abort frees the communicator, so that no other call may be in it ---- */

static struct nccl_gate *gate_new(void)
{
    struct nccl_gate *gate = calloc(1, sizeof *gate);
    if (gate && make_lock(&gate->mutex, &gate->changed)) return gate;
    free(gate);
    return NULL;
}

static void gate_free(struct nccl_gate *gate)
{
    free_lock(&gate->mutex, &gate->changed);
    free(gate);
}

static bool was_aborted(struct nccl_gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    bool aborted = gate->aborted;
    pthread_mutex_unlock(&gate->mutex);
    return aborted;
}

/* Returns false, for a message that is already set. */
static bool name_rank(const struct nccl_rank *rank, struct status *status)
{
    return status_prefix(status, "NCCL: rank %" PRIu32 " of %" PRIu32 " (GPU %d)", rank->rank, rank->ranks,
                         rank->device->ordinal);
}

static bool fail_aborted(const struct nccl_rank *rank, struct status *status)
{
    status_fail(status, STATUS_MACHINE, "aborted; start all ranks again");
    return name_rank(rank, status);
}

static bool gate_enter(const struct nccl_rank *rank, struct status *status)
{
    struct nccl_gate *gate = rank->gate;
    if (!gate) return status_fail(status, STATUS_INTERNAL, "NCCL: a rank that has not joined");
    pthread_mutex_lock(&gate->mutex);
    bool aborted = gate->aborted;
    if (!aborted) gate->inside++;
    pthread_mutex_unlock(&gate->mutex);
    return !aborted || fail_aborted(rank, status);
}

static void gate_leave(const struct nccl_rank *rank)
{
    struct nccl_gate *gate = rank->gate;
    pthread_mutex_lock(&gate->mutex);
    gate->inside--;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->mutex);
}

/* Prevents further calls and waits for those in progress. False: this was done before. */
static bool gate_shut(struct nccl_gate *gate)
{
    const struct timespec end = after(gate_seconds);
    pthread_mutex_lock(&gate->mutex);
    bool first = !gate->aborted;
    gate->aborted = true;
    /* A call that hangs in NCCL, or in a queue that is full since a kernel waits, only returns because of the abort. */
    while (first && gate->inside && pthread_cond_timedwait(&gate->changed, &gate->mutex, &end) == 0) continue;
    pthread_mutex_unlock(&gate->mutex);
    return first;
}

static bool is_well(const struct nccl_rank *rank)
{
    return !rank->watch.is_well || rank->watch.is_well(rank->watch.context);
}

/* Requires: inside the gate. Waits until nothing is in progress. *finished is false if the time was up, the rank was
 * aborted or the watch reported a failure. */
static nccl_result settle(const struct nccl_rank *rank, double longest_seconds, bool *finished)
{
    const double end = now() + longest_seconds;
    struct timespec pause = {.tv_nsec = first_pause};
    *finished = false;
    while (!was_aborted(rank->gate)) { /* afterwards NCCL must not be called */
        nccl_result state = NCCL_SUCCESS, result = rank->nccl->CommGetAsyncError(rank->comm, &state);
        *finished = result != NCCL_SUCCESS || state != NCCL_IN_PROGRESS;
        if (*finished) return result != NCCL_SUCCESS ? result : state;
        if (now() >= end || !is_well(rank)) break;
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < last_pause) pause.tv_nsec *= 2;
    }
    return NCCL_IN_PROGRESS;
}

/* ---- ends ---- */

/* ncclCommAbort and ncclCommDestroy wait for kernels, graphs and other work of the GPU. They run on a separate thread
 * while the caller ends the work that they wait for; if that takes too long, the thread continues alone. */
struct ending {
    nccl_result (*end)(nccl_comm comm);
    nccl_comm comm;
    struct device device; /* a copy, since the rank's may be closed before this ends */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool done, left_behind;
};

static void ending_free(struct ending *ending)
{
    free_lock(&ending->mutex, &ending->changed);
    free(ending);
}

static void *run_ending(void *argument)
{
    struct ending *ending = argument;
    /* Otherwise NCCL, which restores the thread's GPU at the end, would create a context on GPU 0. */
    bool entered = device_enter(&ending->device, NULL);
    ending->end(ending->comm);
    if (entered) device_leave(&ending->device);
    pthread_mutex_lock(&ending->mutex);
    ending->done = true;
    bool left_behind = ending->left_behind;
    pthread_cond_broadcast(&ending->changed);
    pthread_mutex_unlock(&ending->mutex);
    if (left_behind) ending_free(ending);
    return NULL;
}

static struct ending *ending_new(const struct nccl_rank *rank, nccl_result (*end)(nccl_comm comm))
{
    struct ending *ending = calloc(1, sizeof *ending);
    if (!ending) return NULL;
    ending->end = end;
    ending->comm = rank->comm;
    ending->device = *rank->device;
    if (make_lock(&ending->mutex, &ending->changed)) return ending;
    free(ending);
    return NULL;
}

/* Begins the ending. Without memory or a thread it runs here, synchronously. */
static void begin_ending(const struct nccl_rank *rank, nccl_result (*end)(nccl_comm comm))
{
    struct ending *ending = ending_new(rank, end);
    if (ending && pthread_create(&ending->thread, NULL, run_ending, ending) == 0) {
        rank->gate->ending = ending;
        return;
    }
    end(rank->comm);
    if (ending) ending_free(ending);
}

/* Waits for an ending in progress. */
static void wait_for_ending(const struct nccl_rank *rank)
{
    struct ending *ending = rank->gate->ending;
    const struct timespec time = after(end_seconds);
    if (!ending) return;
    pthread_mutex_lock(&ending->mutex);
    while (!ending->done && pthread_cond_timedwait(&ending->changed, &ending->mutex, &time) == 0) continue;
    bool done = ending->done;
    pthread_t thread = ending->thread;
    ending->left_behind = !done;
    pthread_mutex_unlock(&ending->mutex);
    rank->gate->ending = NULL;
    if (done) {
        pthread_join(thread, NULL);
        ending_free(ending);
    } else {
        pthread_detach(thread); /* the ending frees itself */
    }
}

void nccl_abort(const struct nccl_rank *rank)
{
    if (rank->gate && gate_shut(rank->gate)) begin_ending(rank, rank->nccl->CommAbort);
}

static bool finalize(const struct nccl_rank *rank)
{
    bool finished = false;
    if (!gate_enter(rank, NULL)) return false;
    bool entered = device_enter(rank->device, NULL);
    nccl_result result = rank->nccl->CommFinalize(rank->comm);
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) result = settle(rank, end_seconds, &finished);
    if (entered) device_leave(rank->device);
    gate_leave(rank);
    return finished && result == NCCL_SUCCESS;
}

void nccl_leave(struct nccl_rank *rank)
{
    if (rank->gate) {
        if (!was_aborted(rank->gate) && finalize(rank))
            begin_ending(rank, rank->nccl->CommDestroy);
        else
            nccl_abort(rank);
        wait_for_ending(rank);
        gate_free(rank->gate);
    }
    memset(rank, 0, sizeof *rank);
}

/* ---- joining and collectives ---- */

static bool wait_for_others(const struct nccl_rank *rank, struct status *status)
{
    bool finished;
    nccl_result result = settle(rank, rank->longest_seconds, &finished);
    if (finished) return succeeded(rank->nccl, result, status, "joining");
    if (!is_well(rank))
        return status_fail(status, STATUS_MACHINE, "expected all ranks to join, found that some have ended or failed");
    return status_fail(status, STATUS_MACHINE,
                       "expected all ranks to join, found that some had not after %.3g s; see that each of them runs, "
                       "with the same id and count",
                       rank->longest_seconds);
}

bool nccl_join(struct nccl_rank *joined, const struct nccl *nccl, const struct device *device, const struct nccl_id *id,
               uint32_t rank, uint32_t ranks, double longest_seconds, const struct nccl_watch *watch,
               struct status *status)
{
    struct nccl_config config = {
        .bytes = sizeof config,
        .magic = NCCL_CONFIG_MAGIC,
        .version = NCCL_LEAST_VERSION,
        .blocking = 0,
        .cluster_size = NCCL_CONFIG_UNDEFINED,
        .least_blocks = NCCL_CONFIG_UNDEFINED,
        .most_blocks = NCCL_CONFIG_UNDEFINED,
        .split_share = NCCL_CONFIG_UNDEFINED,
        .later = NCCL_CONFIG_UNDEFINED,
    };
    memset(joined, 0, sizeof *joined);
    if (rank >= ranks || ranks > INT32_MAX)
        return status_fail(status, STATUS_INTERNAL, "NCCL: rank %" PRIu32 " of %" PRIu32, rank, ranks);
    struct nccl_gate *gate = gate_new();
    if (!gate) return status_fail(status, STATUS_MACHINE, "NCCL: out of memory");
    *joined = (struct nccl_rank){.nccl = nccl,
                                 .device = device,
                                 .rank = rank,
                                 .ranks = ranks,
                                 .longest_seconds = longest_seconds,
                                 .gate = gate};
    if (watch) joined->watch = *watch;
    nccl_result result = nccl->CommInitRankConfig(&joined->comm, (int)ranks, *id, (int)rank, &config);
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) {
        if (wait_for_others(joined, status)) return true;
    } else {
        succeeded(nccl, result, status, "joining");
    }
    name_rank(joined, status);
    if (joined->comm) nccl_abort(joined);
    wait_for_ending(joined);
    gate_free(gate);
    memset(joined, 0, sizeof *joined);
    return false;
}

bool nccl_ok(const struct nccl_rank *rank, struct status *status)
{
    nccl_result state = NCCL_SUCCESS;
    if (!gate_enter(rank, status)) return false;
    nccl_result result = rank->nccl->CommGetAsyncError(rank->comm, &state);
    gate_leave(rank);
    if (result == NCCL_SUCCESS && state != NCCL_IN_PROGRESS) result = state;
    return succeeded(rank->nccl, result, status, "working") || name_rank(rank, status);
}

/* Requires: inside the gate. Waits until a collective that was called with that result is queued. */
static bool queued(const struct nccl_rank *rank, nccl_result result, const char *what, struct status *status)
{
    bool finished = true;
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) result = settle(rank, rank->longest_seconds, &finished);
    if (finished) return succeeded(rank->nccl, result, status, "queueing an %s", what) || name_rank(rank, status);
    if (was_aborted(rank->gate)) return fail_aborted(rank, status);
    if (!is_well(rank)) {
        status_fail(status, STATUS_MACHINE, "expected an %s to be queued, found that some ranks have ended or failed",
                    what);
        return name_rank(rank, status);
    }
    status_fail(status, STATUS_MACHINE,
                "expected an %s to be queued, found it in progress after %.3g s; see that all ranks run", what,
                rank->longest_seconds);
    return name_rank(rank, status);
}

static void *pointer(cu_deviceptr address) { return (void *)(uintptr_t)address; }

bool nccl_all_reduce(const struct nccl_rank *rank, enum dtype dtype, cu_deviceptr from, cu_deviceptr to, uint64_t count,
                     cu_stream stream, struct status *status)
{
    int type;
    switch (dtype) {
    case DTYPE_F32: type = NCCL_FLOAT32; break;
    case DTYPE_F16: type = NCCL_FLOAT16; break;
    case DTYPE_BF16: type = NCCL_BFLOAT16; break;
    default:
        return status_fail(status, STATUS_INTERNAL, "NCCL: all_reduce: expected F32, F16 or BF16, found %s",
                           dtype_name(dtype));
    }
    if (!gate_enter(rank, status)) return false;
    nccl_result result = rank->nccl->AllReduce(pointer(from), pointer(to), count, type, NCCL_SUM, rank->comm, stream);
    bool ok = queued(rank, result, "all_reduce", status);
    gate_leave(rank);
    return ok;
}

bool nccl_all_gather(const struct nccl_rank *rank, cu_deviceptr from, cu_deviceptr to, uint64_t bytes, cu_stream stream,
                     struct status *status)
{
    if (!gate_enter(rank, status)) return false;
    nccl_result result = rank->nccl->AllGather(pointer(from), pointer(to), bytes, NCCL_UINT8, rank->comm, stream);
    bool ok = queued(rank, result, "all_gather", status);
    gate_leave(rank);
    return ok;
}
