/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/load_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/processors.h"
#include "kernels/cpu/team.h"
#include "runtime/load/join_cuda.h"
#include "runtime/load/memory_contract.h"
#include "runtime/load/upload.h"
#include "runtime/distributed/process_group.h"

enum {
    /* For all GPUs. More are slower: 128 threads read 62 to 69 GB/s from the page cache, 64 threads 101 to 103. */
    MOST_UPLOAD_THREADS = 64,
};

static bool check_capability(const struct eng_engine *engine, const struct device *device, struct status *status)
{
    int expected = (int)engine->file.manifest.target_capability, found = device->facts.capability;
    if (found == expected) return true;
    return status_fail(status, STATUS_MACHINE,
                       "expected a GPU of compute capability %d.%d, which this engine's code is for, found GPU %d (%s) "
                       "of %d.%d; choose another GPU (device), or build the engine for this one: 'engbuild --model "
                       "CHECKPOINT -o FILE'",
                       expected / 10, expected % 10, device->ordinal, device->facts.name, found / 10, found % 10);
}

static double nominal_rate(const struct device *device)
{
    const struct cuda_driver *driver = &device->driver;
    int kilohertz = 0, bits = 0;
    if (driver->DeviceGetAttribute(&kilohertz, CU_ATTRIBUTE_MEMORY_CLOCK_RATE, device->handle) != CU_SUCCESS ||
        driver->DeviceGetAttribute(&bits, CU_ATTRIBUTE_MEMORY_BUS_WIDTH, device->handle) != CU_SUCCESS)
        return 0;
    return 2.0 * kilohertz * 1e3 * bits / 8 * 1e-9; /* two transfers per clock */
}

/* Requires the same model for all ranks: they compute the same amount, and each step takes as long as on the
 * slowest. */
static bool check_alike(const struct eng_engine *engine, uint32_t rank, struct status *status)
{
    const struct device *first = &engine->cuda[0].device, *found = &engine->cuda[rank].device;
    for (uint32_t r = 0; r < rank; r++)
        if (engine->cuda[r].device.ordinal == found->ordinal)
            return status_fail(status, STATUS_USAGE, "devices: GPU %d stands there twice", found->ordinal);
    if (strcmp(first->facts.name, found->facts.name) == 0) return true;
    return status_fail(status, STATUS_MACHINE,
                       "expected GPUs of one model, found GPU %d: %s and GPU %d: %s; choose others (devices, "
                       "CUDA_VISIBLE_DEVICES)",
                       first->ordinal, first->facts.name, found->ordinal, found->facts.name);
}

/* Determines how the ranks exchange data, and why not over peer access. */
static bool link_ranks(struct eng_engine *engine, const struct device *const *devices, uint32_t ranks,
                       bool no_peer_access, struct status *status)
{
    enum cuda_link link = CUDA_LINK_HOST;
    struct status reason;
    status_fail(&reason, STATUS_MACHINE, "access to each other's memory was declined (no_peer_access)");
    if (!no_peer_access && !cuda_comm_find_link(devices, ranks, &link, &reason, status)) return false;
    for (uint32_t r = 0; r < ranks; r++) engine->cuda[r].link = link;
    if (link != CUDA_LINK_HOST) return true;
    engine->cuda[0].detour = strdup(reason.message);
    return engine->cuda[0].detour || status_fail(status, STATUS_MACHINE, "out of memory");
}

struct beginning {
    struct eng_engine *engine;
    struct status status[PLAN_MAX_RANKS];
};

static void begin_device(void *argument, struct team_member *member)
{
    struct beginning *beginning = argument;
    device_begin(&beginning->engine->cuda[member->index].device, &beginning->status[member->index]);
}

/* Creating a context is slow: all at the same time. */
static bool begin_devices(struct eng_engine *engine, struct status *status)
{
    struct beginning beginning = {.engine = engine};
    if (!team_run_once((int)engine->rank_count, begin_device, &beginning, status)) return false;
    for (uint32_t r = 0; r < engine->rank_count; r++) {
        if (beginning.status[r].code == STATUS_OK) continue;
        *status = beginning.status[r];
        return false;
    }
    return true;
}

/* All GPUs are found before the first context is created. */
bool load_cuda_open(struct eng_engine *engine, const int *ordinals, const int *indices, bool no_peer_access,
                    struct status *status)
{
    const struct device *devices[PLAN_MAX_RANKS];
    uint32_t ranks = engine->rank_count;
    engine->cuda = calloc(ranks, sizeof *engine->cuda);
    if (!engine->cuda) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (uint32_t r = 0; r < ranks; r++) {
        struct load_cuda *cuda = &engine->cuda[r];
        devices[r] = &cuda->device;
        cuda->is_apart = engine->process_group != NULL;
        if (!device_find_at(&cuda->device, indices[r], ordinals[r], status))
            return ranks == 1 ? false : status_prefix(status, "this engine is for %" PRIu32 " GPUs", ranks);
        cuda->nominal_gb_per_second = nominal_rate(&cuda->device);
        if (!check_capability(engine, &cuda->device, status) || !check_alike(engine, r, status)) return false;
    }
    return (ranks == 1 || engine->process_group || link_ranks(engine, devices, ranks, no_peer_access, status)) &&
           begin_devices(engine, status);
}

/* Memory of the engine and of a small session with an arena of this size. */
static struct memory_contract whole_contract(const struct engine *file, const struct load_cuda *cuda,
                                             uint64_t arena_bytes)
{
    const struct manifest *manifest = &file->manifest;
    return (struct memory_contract){
        .weights = manifest_rank_weights(manifest),
        .kernels = memory_contract_code(file) + memory_contract_graphs(file),
        .arena = arena_bytes,
        .step = manifest->step_bytes,
        .state = manifest->state_bytes,
        .kv = manifest->geometry.page_bytes,
        .comm = cuda->link == CUDA_LINK_HOST ? 0 : manifest->comm_bytes,
    };
}

/* Includes a small session: a shortage is reported before the upload instead of after it. */
static bool check_memory(const struct eng_engine *engine, struct load_cuda *cuda, struct status *status)
{
    const struct manifest *manifest = &engine->file.manifest;
    const struct memory_contract whole = whole_contract(&engine->file, cuda, manifest->arena_bytes);
    const struct memory_contract own = {.weights = manifest_rank_weights(manifest),
                                        .kernels = memory_contract_code(&engine->file)};
    return device_free_memory(&cuda->device, &cuda->free_bytes, status) &&
           memory_contract_check(&whole, cuda->free_bytes, &cuda->device, status) &&
           memory_contract_total(&own, &cuda->contract_bytes);
}

static bool allocate_weights(struct load_cuda *cuda, uint64_t bytes, struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    if (!device_enter(&cuda->device, status)) return false;
    bool ok = cuda_ok(driver, driver->MemAlloc(&cuda->weights, bytes), status,
                      "%" PRIu64 " bytes of GPU memory for weights", bytes);
    device_leave(&cuda->device);
    return ok;
}

const struct plan *load_cuda_plan(const struct engine *file, const struct load_cuda *cuda, size_t index)
{
    bool library = cuda && cuda->uses_libraries && file->library_plans[index].header.launch_count > 0 &&
                   (cuda->is_apart || file->library_plans[index].header.use == PLAN_USE_ALWAYS);
    return library ? &file->library_plans[index] : &file->plans[index];
}

static bool check_calls(const struct engine *file, const struct cuda_calls *calls, const struct device *device,
                        struct status *status)
{
    if (!device_enter(device, status)) return false;
    bool ok = true;
    for (size_t p = 0; ok && p < file->plan_count; p++) {
        const struct plan *plan = &file->library_plans[p];
        for (uint32_t i = 0; ok && i < plan->header.launch_count; i++)
            if (plan->launches[i].attributes & LAUNCH_LIBRARY)
                ok = cuda_call_check(calls, plan, &plan->launches[i], status) ||
                     status_prefix(status, "library plan %zu: launch %" PRIu32, p, i);
    }
    device_leave(device);
    return ok;
}

/* False: the engine is at fault. Otherwise `missing` says why the libraries cannot be used, if they cannot. */
static bool open_libraries(struct load_cuda *cuda, const struct engine *file, struct status *missing)
{
    const struct memory_contract contract =
        whole_contract(file, cuda,
                       file->library_arena_bytes > file->manifest.arena_bytes ? file->library_arena_bytes
                                                                              : file->manifest.arena_bytes);
    cuda->uses_libraries = memory_contract_check(&contract, cuda->free_bytes, &cuda->device, missing) &&
                           cuda_calls_open(&cuda->calls, &cuda->device, file->calls, file->call_count,
                                           cuda->nccl_rank.nccl ? &cuda->nccl_rank : NULL, missing) &&
                           check_calls(file, &cuda->calls, &cuda->device, missing);
    if (cuda->uses_libraries) cuda->kernels.calls = &cuda->calls;
    return cuda->uses_libraries || missing->code == STATUS_MACHINE;
}

/* State of loading all ranks: first kernels and, at the same time, the upload's buffers; then weights and, at the
 * same time, libraries. Loading kernels while weights are copied takes the driver five times as long and delays
 * the copies. */
struct filling {
    struct eng_engine *engine;
    uint32_t threads;  /* of each rank, for the upload */
    struct nccl_id id; /* of the communicator, if there is one */
    struct {
        bool ok;
        struct upload *upload;
        struct status status;
    } weights[PLAN_MAX_RANKS];
    struct {
        bool ok;
        struct status status, missing; /* missing: why the libraries cannot be used */
    } kernels[PLAN_MAX_RANKS];
};

static bool open_upload(struct filling *filling, uint32_t r)
{
    const struct engine *file = &filling->engine->file;
    struct load_cuda *cuda = &filling->engine->cuda[r];
    struct status *status = &filling->weights[r].status;
    const uint32_t ranks = (uint32_t)plan_ranks(&file->manifest.geometry);
    const uint64_t chunks = file->weight_chunks / ranks;
    const struct upload_range range = {(filling->engine->first_rank + r) * chunks, chunks};
    if (!allocate_weights(cuda, manifest_rank_weights(&file->manifest), status)) return false;
    filling->weights[r].upload = upload_open(file, &cuda->device, cuda->weights, range, ranks, filling->threads,
                                             &filling->engine->progress, status);
    return filling->weights[r].upload != NULL;
}

/* Two threads for each rank: kernels, and weight memory with upload buffers. */
static void prepare_member(void *argument, struct team_member *member)
{
    struct filling *filling = argument;
    const struct engine *file = &filling->engine->file;
    const uint32_t r = (uint32_t)member->index / 2;
    struct load_cuda *cuda = &filling->engine->cuda[r];
    if (member->index % 2) {
        filling->weights[r].ok = open_upload(filling, r);
    } else {
        filling->kernels[r].ok = cuda_kernels_load(&cuda->kernels, &cuda->device, file->kernels, file->kernel_count,
                                                   &filling->kernels[r].status);
    }
}

/* Uploads the weights of each rank; with one rank, another thread opens the libraries. */
static void fill_member(void *argument, struct team_member *member)
{
    struct filling *filling = argument;
    const struct eng_engine *engine = filling->engine;
    const uint32_t r = (uint32_t)member->index;
    if (r < engine->rank_count) {
        filling->weights[r].ok = upload_run(filling->weights[r].upload, &filling->weights[r].status);
        upload_close(filling->weights[r].upload);
        filling->weights[r].upload = NULL;
        return;
    }
    struct status *missing = &filling->kernels[0].missing;
    filling->kernels[0].ok = open_libraries(&engine->cuda[0], &engine->file, missing);
    filling->kernels[0].status = *missing;
}

/* Several ranks, after all have their kernels: joining waits for all others. */
static void join_member(void *argument, struct team_member *member)
{
    struct filling *filling = argument;
    uint32_t r = (uint32_t)member->index;
    struct status *missing = &filling->kernels[r].missing;
    filling->kernels[r].ok = !join_cuda_rank(filling->engine, r, &filling->id, missing) ||
                             open_libraries(&filling->engine->cuda[r], &filling->engine->file, missing);
    filling->kernels[r].status = *missing;
}

/* If one rank cannot use the libraries, none does. */
static bool settle_libraries(struct eng_engine *engine, const struct status *missing, struct status *status)
{
    if (missing->code == STATUS_OK) return true;
    for (uint32_t r = 0; r < engine->rank_count; r++) {
        struct load_cuda *cuda = &engine->cuda[r];
        cuda->uses_libraries = false;
        cuda->kernels.calls = NULL;
        cuda_calls_close(&cuda->calls, &cuda->device);
        nccl_leave(&cuda->nccl_rank);
    }
    if (engine->process_group) {
        *status = *missing;
        return false;
    }
    engine->cuda[0].fallback = strdup(missing->message);
    return engine->cuda[0].fallback || status_fail(status, STATUS_MACHINE, "out of memory");
}

static bool first_failure(const struct filling *filling, struct status *missing, struct status *status)
{
    const struct eng_engine *engine = filling->engine;
    bool several = plan_ranks(&engine->file.manifest.geometry) > 1;
    for (uint32_t r = 0; r < engine->rank_count; r++) {
        if (filling->kernels[r].missing.code != STATUS_OK) *missing = filling->kernels[r].missing;
        if (filling->weights[r].ok && filling->kernels[r].ok) continue;
        *status = filling->kernels[r].ok ? filling->weights[r].status : filling->kernels[r].status;
        return several ? status_prefix(status, "rank %" PRIu32, engine->first_rank + r) : false;
    }
    return true;
}

static bool run_filling(struct filling *filling, struct status *status)
{
    struct eng_engine *engine = filling->engine;
    const bool libraries =
        !engine->no_libraries && engine->file.call_count > 0 && plan_ranks(&engine->file.manifest.geometry) == 1;
    struct status missing = {0};
    bool joins = join_cuda_wanted(engine) && join_cuda_open(engine, &filling->id, &missing);
    if (engine->process_group && !joins) {
        *status = missing;
        return false;
    }
    if (!team_run_once((int)(2 * engine->rank_count), prepare_member, filling, status) ||
        !first_failure(filling, &missing, status))
        return false;
    for (uint32_t r = 0; r < engine->rank_count; r++)
        engine->load_threads += upload_threads(filling->weights[r].upload);
    if (!team_run_once((int)(engine->rank_count + libraries), fill_member, filling, status)) return false;
    if (!first_failure(filling, &missing, status) || !join_cuda_agree(engine, status)) return false;
    if (joins && (!team_run_once((int)engine->rank_count, join_member, filling, status) ||
                  !first_failure(filling, &missing, status)))
        return false;
    return settle_libraries(engine, &missing, status) && join_cuda_agree(engine, status);
}

/* Upload threads for each rank. Several GPUs share the processors, also with other processes, which may all be on this
 * machine. 0: one GPU, default. */
static uint32_t threads_of_each(const struct eng_engine *engine, uint32_t threads)
{
    const uint32_t ranks = threads ? engine->rank_count : (uint32_t)plan_ranks(&engine->file.manifest.geometry);
    uint32_t all = threads ? threads : (uint32_t)processors_available();
    if (ranks == 1) return threads;
    if (!threads && all > MOST_UPLOAD_THREADS) all = MOST_UPLOAD_THREADS;
    return all > ranks ? all / ranks : 1;
}

bool load_cuda_fill(struct eng_engine *engine, uint32_t threads, struct status *status)
{
    uint32_t ranks = engine->rank_count;
    struct filling *filling = calloc(1, sizeof *filling);
    if (!filling) return status_fail(status, STATUS_MACHINE, "out of memory");
    double start = load_seconds();
    filling->engine = engine;
    filling->threads = threads_of_each(engine, threads);
    bool ok = true;
    for (uint32_t r = 0; ok && r < ranks; r++)
        ok = check_memory(engine, &engine->cuda[r], status) ||
             (plan_ranks(&engine->file.manifest.geometry) > 1 &&
              status_prefix(status, "rank %" PRIu32, engine->first_rank + r));
    ok = ok && run_filling(filling, status);
    engine->verify_seconds = load_seconds() - start;
    for (uint32_t r = 0; r < ranks; r++) upload_close(filling->weights[r].upload);
    free(filling);
    return ok;
}

bool load_cuda_is_well(struct eng_engine *engine, const struct load_cuda *cuda, struct status *status)
{
    if (engine->process_group && !process_group_ok(engine->process_group, status)) return false;
    if (!cuda->nccl_rank.nccl || nccl_ok(&cuda->nccl_rank, status)) return true;
    load_hear_of_others(engine);
    return false;
}

static void close_rank(struct load_cuda *cuda)
{
    struct status ignored = {0};
    cuda_kernels_free(&cuda->kernels, &cuda->device);
    cuda_calls_close(&cuda->calls, &cuda->device);
    nccl_leave(&cuda->nccl_rank);
    free(cuda->fallback);
    free(cuda->detour);
    /* If the GPU was lost every call fails, and the failures do not matter. */
    if (cuda->weights) {
        bool entered = device_enter(&cuda->device, &ignored);
        if (entered) cuda->device.driver.MemFree(cuda->weights);
        if (entered) device_leave(&cuda->device);
    }
    device_close(&cuda->device);
}

void load_cuda_close(struct eng_engine *engine)
{
    if (!engine->cuda || atomic_load(&engine->is_lost)) return;
    for (uint32_t r = 0; r < engine->rank_count; r++) close_rank(&engine->cuda[r]);
    nccl_close(&engine->cuda[0].nccl);
    free(engine->cuda);
    engine->cuda = NULL;
}
