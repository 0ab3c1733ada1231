#include "runtime/load_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/processors.h"
#include "kernels/cpu/team.h"
#include "runtime/memory_contract.h"
#include "runtime/upload.h"

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
    return 2.0 * kilohertz * 1e3 * bits / 8 * 1e-9; /* two transfers a clock */
}

static uint32_t ranks_of(const struct eng_engine *engine)
{
    return (uint32_t)plan_ranks(&engine->file.manifest.geometry);
}

/* What holds for one GPU must hold for all: the ranks compute the same, one by one, and wait for the slowest. */
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

/* Which way they exchange, and why not the fast one. */
static bool link_ranks(struct eng_engine *engine, const struct device *const *devices, uint32_t ranks,
                       bool no_peer_access, struct status *status)
{
    enum cuda_link link = CUDA_LINK_HOST;
    struct status reason;
    status_fail(&reason, STATUS_MACHINE, "access to each other's memory was declined (no_peer_access)");
    if (!no_peer_access && !cuda_comm_enable_peers(devices, ranks, &link, &reason, status)) return false;
    for (uint32_t r = 0; r < ranks; r++) engine->cuda[r].link = link;
    if (link != CUDA_LINK_HOST) return true;
    engine->cuda[0].detour = strdup(reason.message);
    return engine->cuda[0].detour || status_fail(status, STATUS_MACHINE, "out of memory");
}

bool load_cuda_open(struct eng_engine *engine, const int *ordinals, bool no_peer_access, struct status *status)
{
    const struct device *devices[PLAN_MAX_RANKS];
    uint32_t ranks = ranks_of(engine);
    engine->cuda = calloc(ranks, sizeof *engine->cuda);
    if (!engine->cuda) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (uint32_t r = 0; r < ranks; r++) {
        struct load_cuda *cuda = &engine->cuda[r];
        devices[r] = &cuda->device;
        if (!device_open(&cuda->device, ordinals[r], status))
            return ranks == 1 ? false : status_prefix(status, "this engine is for %" PRIu32 " GPUs", ranks);
        cuda->nominal_gb_per_second = nominal_rate(&cuda->device);
        if (!check_capability(engine, &cuda->device, status) || !check_alike(engine, r, status)) return false;
    }
    return ranks == 1 || link_ranks(engine, devices, ranks, no_peer_access, status);
}

/* Of the engine and a small session with an arena of this size. */
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

/* What a session will need is counted, too: better now than after the upload. */
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
    bool library = cuda && cuda->uses_libraries && file->library_plans[index].header.launch_count > 0;
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

static bool open_libraries(struct load_cuda *cuda, const struct engine *file, struct status *status)
{
    struct status missing;
    status_clear(&missing);
    if (file->call_count == 0) return true;
    const struct memory_contract contract =
        whole_contract(file, cuda,
                       file->library_arena_bytes > file->manifest.arena_bytes ? file->library_arena_bytes
                                                                              : file->manifest.arena_bytes);
    if (memory_contract_check(&contract, cuda->free_bytes, &cuda->device, &missing) &&
        cuda_calls_open(&cuda->calls, &cuda->device, file->calls, file->call_count, &missing) &&
        check_calls(file, &cuda->calls, &cuda->device, &missing)) {
        cuda->kernels.calls = &cuda->calls;
        cuda->uses_libraries = true;
        return true;
    }
    cuda_calls_close(&cuda->calls, &cuda->device);
    if (missing.code == STATUS_MACHINE) {
        cuda->fallback = strdup(missing.message);
        return cuda->fallback || status_fail(status, STATUS_MACHINE, "out of memory");
    }
    *status = missing; /* the engine is at fault */
    return false;
}

static bool prepare(const struct eng_engine *engine, struct load_cuda *cuda, struct status *status)
{
    const struct engine *file = &engine->file;
    return check_memory(engine, cuda, status) &&
           cuda_kernels_load(&cuda->kernels, &cuda->device, file->kernels, file->kernel_count, status) &&
           open_libraries(cuda, file, status) && allocate_weights(cuda, manifest_rank_weights(&file->manifest), status);
}

/* One rank's share of the load, by a thread for each. */
struct filling {
    struct eng_engine *engine;
    uint32_t threads; /* of each rank */
    struct {
        bool ok;
        int threads;
        struct status status;
    } ranks[PLAN_MAX_RANKS];
};

static void fill_rank(void *argument, struct team_member *member)
{
    struct filling *filling = argument;
    const struct engine *file = &filling->engine->file;
    int r = member->index;
    struct load_cuda *cuda = &filling->engine->cuda[r];
    struct status *status = &filling->ranks[r].status;
    const struct upload_range range = {(uint64_t)r * file->weight_chunks / (uint64_t)member->count,
                                       file->weight_chunks / (uint64_t)member->count};
    status_clear(status);
    filling->ranks[r].ok =
        prepare(filling->engine, cuda, status) &&
        upload_weights(file, &cuda->device, cuda->weights, range, filling->threads, &filling->ranks[r].threads, status);
}

bool load_cuda_fill(struct eng_engine *engine, uint32_t threads, struct status *status)
{
    uint32_t ranks = ranks_of(engine);
    struct filling filling = {.engine = engine, .threads = threads};
    if (ranks > 1) { /* links to several GPUs share the processors */
        uint32_t all = threads ? threads : (uint32_t)processors_available();
        filling.threads = all > ranks ? all / ranks : 1;
    }
    struct team *team = team_create((int)ranks, status);
    if (!team) return false;
    double start = load_seconds();
    team_run(team, fill_rank, &filling);
    team_destroy(team);
    engine->verify_seconds = load_seconds() - start;
    for (uint32_t r = 0; r < ranks; r++) {
        engine->load_threads += filling.ranks[r].threads;
        if (filling.ranks[r].ok) continue;
        *status = filling.ranks[r].status;
        return ranks == 1 ? false : status_prefix(status, "rank %" PRIu32, r);
    }
    return true;
}

static void close_rank(struct load_cuda *cuda)
{
    struct status ignored;
    status_clear(&ignored);
    cuda_kernels_free(&cuda->kernels, &cuda->device);
    cuda_calls_close(&cuda->calls, &cuda->device);
    free(cuda->fallback);
    free(cuda->detour);
    /* On a GPU that was lost every call fails: there is nobody left to tell. */
    if (cuda->weights) {
        bool entered = device_enter(&cuda->device, &ignored);
        cuda->device.driver.MemFree(cuda->weights);
        if (entered) device_leave(&cuda->device);
    }
    device_close(&cuda->device);
}

void load_cuda_close(struct eng_engine *engine)
{
    if (!engine->cuda || atomic_load(&engine->is_lost)) return;
    for (uint32_t r = 0; r < ranks_of(engine); r++) close_rank(&engine->cuda[r]);
    free(engine->cuda);
    engine->cuda = NULL;
}
