/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU: every plan is a graph. On one stream, inputs and changed rows of the state are copied to the device before it. Its last kernel
 * writes the tokens into the host's memory; with several ranks they are copied. Logits are copied only on request. */
#include "runtime/backend/backend_cuda.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/checked.h"
#include "formats/base/memory_limit.h"
#include "runtime/backend/turns.h"

/* Memory of a session, computed before any is taken. */
struct cuda_sizes {
    struct memory_contract device;
    uint64_t pages;
    uint64_t input_bytes, next_tokens_bytes, pinned_bytes; /* each part a multiple of PLAN_ALIGNMENT */
    uint64_t results_bytes;
};

static struct cuda_backend *cuda_of(struct backend *backend) { return (struct cuda_backend *)(void *)backend; }

static void find_fields(const struct plan *plan, struct cuda_step *step)
{
    step->input_bytes = plan_input_bytes(plan);
    step->counts_offset = plan->step[STEP_COUNTS].offset;
    step->next_tokens_offset = plan->step[STEP_NEXT_TOKENS].offset;
    step->drafted_offset = plan->step[STEP_DRAFTED].offset;
    step->logits_offset = plan->step[STEP_LOGITS].offset;
    step->hidden_offset = plan->step[STEP_HIDDEN].offset;
}

/* ---- memory ---- */

static bool host_sizes(const struct cuda_backend *cuda, struct cuda_sizes *sizes)
{
    const struct plan_geometry *geometry = &cuda->manifest->geometry;
    uint64_t state, columns;
    for (size_t i = 0; i < cuda->plan_count; i++)
        if (cuda->plans[i].input_bytes > sizes->input_bytes) sizes->input_bytes = cuda->plans[i].input_bytes;
    if (!checked_add(geometry->vocab_size, geometry->hidden_size, &columns)) return false;
    const uint64_t results[] = {cuda->out_rows, columns, sizeof(float)};
    return checked_product(results, 3, &sizes->results_bytes) &&
           checked_align(sizes->input_bytes, PLAN_ALIGNMENT, &sizes->input_bytes) &&
           checked_align(cuda->out_rows * sizeof(int32_t), PLAN_ALIGNMENT, &sizes->next_tokens_bytes) &&
           checked_align(plan_host_state_bytes(geometry), PLAN_ALIGNMENT, &state) &&
           checked_add(sizes->input_bytes, state, &sizes->pinned_bytes) &&
           checked_add(sizes->pinned_bytes,
                       BACKEND_MOST_IN_FLIGHT * (geometry->drafts ? 2u : 1u) * sizes->next_tokens_bytes,
                       &sizes->pinned_bytes) &&
           checked_add(sizes->pinned_bytes, PLAN_ALIGNMENT, &sizes->pinned_bytes);
}

static bool plan_sizes(const struct cuda_backend *cuda, const struct engine *file,
                       const struct backend_options *options, struct cuda_sizes *sizes, struct status *status)
{
    const struct manifest *manifest = cuda->manifest;
    struct memory_contract *contract = &sizes->device;
    uint64_t free_bytes, taken, host_bytes, checkpoints, arena = manifest->arena_bytes;
    if (cuda->engine->uses_libraries && file->library_arena_bytes > arena) arena = file->library_arena_bytes;
    *contract = (struct memory_contract){.kernels = memory_contract_graphs(file),
                                         .arena = arena,
                                         .step = manifest->step_bytes,
                                         .state = manifest->state_bytes,
                                         .comm = cuda->engine->link == CUDA_LINK_HOST ? 0 : manifest->comm_bytes};
    if (!checked_mul(manifest->geometry.recurrent_bytes, options->checkpoints, &checkpoints) ||
        !checked_align(contract->state, PLAN_ALIGNMENT, &contract->state) ||
        !checked_add(contract->state, checkpoints, &contract->state) || !host_sizes(cuda, sizes) ||
        !memory_contract_total(contract, &taken) ||
        !checked_add(options->host_bytes, sizes->pinned_bytes, &host_bytes) ||
        !checked_add(host_bytes, sizes->results_bytes, &host_bytes) ||
        !checked_add(host_bytes, manifest->comm_bytes - contract->comm, &host_bytes))
        return status_fail(status, STATUS_MACHINE, "session: its memory size exceeds 64 bits");
    if (!device_free_memory(&cuda->device, &free_bytes, status)) return false;
    /* Nine tenths of the rest: the driver and other programs on this GPU need some later. */
    uint64_t room = free_bytes > taken ? (free_bytes - taken) / 10 * 9 : 0;
    if (!backend_kv_pages(&manifest->geometry, options, room, &sizes->pages, status)) return false;
    if (!checked_mul(sizes->pages, manifest->geometry.page_bytes, &contract->kv))
        return status_fail(status, STATUS_MACHINE, "session: its memory size exceeds 64 bits");
    return memory_contract_check(contract, free_bytes, &cuda->device, status) &&
           memory_limit_check("session (on the host)", host_bytes, host_bytes,
                              "free memory, or ask for fewer sequences", status);
}

/* Cleared, too. */
static bool allocate_space(struct cuda_backend *cuda, enum plan_space space, uint64_t bytes, struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    cu_deviceptr *base = &cuda->memory.base[space];
    cuda->memory.bytes[space] = bytes;
    if (!bytes) return true;
    return cuda_ok(driver, driver->MemAlloc(base, bytes), status, "%" PRIu64 " bytes of GPU memory for the %s space",
                   bytes, plan_space_name(space)) &&
           cuda_ok(driver, driver->MemsetD8Async(*base, 0, bytes, cuda->device.stream), status, "clearing the %s space",
                   plan_space_name(space));
}

static bool allocate_host(struct cuda_backend *cuda, const struct cuda_sizes *sizes, struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    void *pinned = NULL;
    if (!cuda_ok(driver, driver->MemHostAlloc(&pinned, sizes->pinned_bytes, CU_MEMHOSTALLOC_PORTABLE), status,
                 "%" PRIu64 " bytes of pinned memory", sizes->pinned_bytes))
        return false;
    memset(pinned, 0, sizes->pinned_bytes);
    cuda->pinned = pinned;
    cuda->common.step = cuda->pinned;
    uint8_t *next_tokens = cuda->pinned + sizes->input_bytes;
    for (int i = 0; i < BACKEND_MOST_IN_FLIGHT; i++, next_tokens += sizes->next_tokens_bytes) {
        cuda->next_tokens[i] = (int32_t *)(void *)next_tokens;
        if (cuda->manifest->geometry.drafts) {
            next_tokens += sizes->next_tokens_bytes;
            cuda->drafted[i] = (int32_t *)(void *)next_tokens;
        }
        for (unsigned sleeps = 0; sleeps < 2; sleeps++) {
            const unsigned flags = CU_EVENT_DISABLE_TIMING | (sleeps ? CU_EVENT_BLOCKING_SYNC : 0);
            if (!cuda_ok(driver, driver->EventCreate(&cuda->done[i][sleeps], flags), status, "making an event"))
                return false;
        }
    }
    cuda->common.state = next_tokens;
    cuda->fault = (volatile uint32_t *)(volatile void *)(cuda->pinned + sizes->pinned_bytes - PLAN_ALIGNMENT);
    return state_shadow_open(&cuda->shadow, &cuda->manifest->geometry, cuda->common.state, status) &&
           host_memory_map(&cuda->results, sizes->results_bytes, "results", &cuda->owner->memory_hooks, status);
}

/* The COMM space is cleared before any other rank learns its address. */
static bool allocate_comm(struct cuda_backend *cuda, uint64_t bytes, struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    if (!bytes) return true;
    const struct device *ranks[PLAN_MAX_RANKS];
    for (uint32_t r = 0; r < cuda->owner->rank_count; r++) ranks[r] = &cuda->owner->cuda[r].device;
    cuda->memory.bytes[SPACE_COMM] = bytes;
    if (!cuda_comm_allocate(&cuda->device, ranks, cuda->owner->rank_count, cuda->engine->link, bytes,
                            &cuda->memory.base[SPACE_COMM], status))
        return false;
    cuda->common.comm = cuda->memory.base[SPACE_COMM];
    return cuda_ok(driver, driver->StreamCreate(&cuda->stop_stream, CU_STREAM_NON_BLOCKING), status,
                   "making a stream") &&
           cuda_comm_clear(&cuda->device, cuda->memory.base[SPACE_COMM], bytes, status);
}

/* The arena must be zero at first, since kernels keep counters in it. KV pages are cleared because attention reads
 * whole tiles: masked values must not be leftovers of another process. Requires: the device's context is current. */
static bool allocate(struct cuda_backend *cuda, const struct cuda_sizes *sizes, struct status *status)
{
    cuda->memory.base[SPACE_WEIGHTS] = cuda->engine->weights;
    cuda->memory.bytes[SPACE_WEIGHTS] = manifest_rank_weights(cuda->manifest);
    return allocate_comm(cuda, cuda->manifest->comm_bytes, status) &&
           allocate_space(cuda, SPACE_ARENA, sizes->device.arena, status) &&
           allocate_space(cuda, SPACE_STEP, sizes->device.step, status) &&
           allocate_space(cuda, SPACE_STATE, sizes->device.state, status) &&
           allocate_space(cuda, SPACE_KV, sizes->device.kv, status) && allocate_host(cuda, sizes, status);
}

static bool bind_plan(struct cuda_backend *cuda, size_t index, const struct plan *plan, struct status *status)
{
    struct cuda_step *step = &cuda->plans[index];
    struct cuda_memory memory = cuda->memory;
    char name[64];
    snprintf(name, sizeof name, "plan %zu", index);
    step->source = plan;
    for (uint32_t i = 0; i < plan->header.launch_count && !cuda->common.comm; i++)
        step->takes_turns |= (plan->launches[i].attributes & LAUNCH_CORESIDENT) != 0;
    step->bound_count = memory_contract_plan_graphs(&cuda->owner->file, plan);
    memory.moved_offset = step->next_tokens_offset;
    memory.moved_bytes = cuda->copies_tokens ? 0 : plan->header.out_rows * sizeof(int32_t);
    const struct cuda_kernels *kernels = &cuda->engine->kernels;
    const uint32_t layers = memory_contract_plan_layers(&cuda->owner->file, plan);
    for (int i = 0; i < step->bound_count; i++) {
        memory.moved_to = (uint64_t)(uintptr_t)cuda->next_tokens[i]; /* pinned: one address for host and device */
        if (!cuda_plan_bind(&step->bound[i], &cuda->device, kernels, plan, &memory, name, status) ||
            (layers && !cuda_plan_bind_part(&step->rest[i], &cuda->device, kernels, plan, layers,
                                            plan->header.launch_count, &memory, name, status)))
            return false;
    }
    return !layers ||
           cuda_plan_bind_part(&step->layers, &cuda->device, kernels, plan, 0, layers, &memory, name, status);
}

static void free_plan(struct cuda_backend *cuda, size_t index)
{
    struct cuda_step *step = &cuda->plans[index];
    for (int i = 0; i < MEMORY_CONTRACT_MOST_GRAPHS; i++) {
        cuda_plan_free(&step->bound[i], &cuda->device);
        cuda_plan_free(&step->rest[i], &cuda->device);
    }
    cuda_plan_free(&step->layers, &cuda->device);
}

/* A library may refuse to queue a call that it accepted when it was checked. The engine's own plan is used then, but
 * with several ranks no rank can decide that alone. */
static bool bind_plans(struct cuda_backend *cuda, const struct engine *file, struct status *status)
{
    cuda->copies_tokens = cuda->common.comm || cuda->manifest->geometry.drafts;
    cuda->common.fallback = cuda->engine->fallback;
    cuda->common.detour = cuda->engine->detour;
    for (size_t i = 0; i < file->plan_count; i++) {
        const struct plan *own = &file->plans[i], *plan = load_cuda_plan(file, cuda->engine, i);
        struct status refused = {0};
        if (bind_plan(cuda, i, plan, &refused)) continue;
        free_plan(cuda, i);
        if (plan == own || refused.code != STATUS_MACHINE || cuda->common.comm) {
            if (plan != own)
                load_hear_of_others(
                    cuda->owner); /* NCCL connects here; the cause may be another process, which it cannot name */
            *status = refused;
            return false;
        }
        if (!cuda->fallback) cuda->fallback = strdup(refused.message);
        cuda->common.fallback = cuda->fallback;
        if (!cuda->fallback) return status_fail(status, STATUS_MACHINE, "out of memory");
        if (!bind_plan(cuda, i, own, status)) return false;
    }
    return true;
}

static void free_memory(struct cuda_backend *cuda)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    for (int space = SPACE_ARENA; space < SPACE_COUNT; space++)
        if (cuda->memory.base[space] && space != SPACE_COMM) driver->MemFree(cuda->memory.base[space]);
    cuda_comm_free(&cuda->device, cuda->engine->link, cuda->memory.base[SPACE_COMM], cuda->memory.bytes[SPACE_COMM]);
    if (cuda->pinned) driver->MemFreeHost(cuda->pinned);
}

static void destroy(struct backend *backend)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const struct cuda_driver *driver = &cuda->device.driver;
    struct status ignored = {0};
    /* If the GPU was lost every call fails, and the failures do not matter. If only its context cannot be entered,
     * everything that does not need the context is released. */
    if (cuda->device.context) {
        bool entered = device_enter(&cuda->device, &ignored);
        if (entered) driver->StreamSynchronize(cuda->device.stream);
        turn_forget(&cuda->device, cuda);
        for (size_t i = 0; i < cuda->plan_count; i++) free_plan(cuda, i);
        for (int i = 0; i < BACKEND_MOST_IN_FLIGHT; i++)
            for (int sleeps = 0; sleeps < 2; sleeps++)
                if (cuda->done[i][sleeps]) driver->EventDestroy(cuda->done[i][sleeps]);
        if (cuda->stop_stream) driver->StreamDestroy(cuda->stop_stream);
        if (entered) {
            free_memory(cuda);
            device_leave(&cuda->device);
        }
    }
    state_shadow_close(&cuda->shadow);
    host_memory_unmap(&cuda->results);
    device_close(&cuda->device);
    free(cuda->plans);
    free(cuda->fallback);
    free(cuda);
}

static bool compare_memory(struct cuda_backend *cuda, const struct memory_contract *contract, struct status *status)
{
    uint64_t free_bytes, session;
    if (!device_free_memory(&cuda->device, &free_bytes, status) || !memory_contract_total(contract, &session))
        return false;
    cuda->common.device_contract_bytes = cuda->engine->contract_bytes + session;
    cuda->common.device_taken_bytes = cuda->engine->free_bytes > free_bytes ? cuda->engine->free_bytes - free_bytes : 0;
    return true;
}

static bool fill(struct cuda_backend *cuda, const struct engine *file, const struct backend_options *options,
                 struct status *status)
{
    struct cuda_sizes sizes = {0};
    if (options->instruction_set)
        return status_fail(status, STATUS_USAGE,
                           "instruction set: expected none, since this engine runs on a GPU, found '%s'",
                           options->instruction_set);
    cuda->plans = calloc(file->plan_count, sizeof *cuda->plans);
    if (!cuda->plans) return status_fail(status, STATUS_MACHINE, "out of memory");
    cuda->plan_count = file->plan_count;
    cuda->checkpoints = options->checkpoints;
    for (size_t i = 0; i < file->plan_count; i++) find_fields(&file->plans[i], &cuda->plans[i]);
    if (!device_open_again(&cuda->device, &cuda->engine->device, status) ||
        (options->stream && !device_check_stream(&cuda->device, options->stream, status)) ||
        !plan_sizes(cuda, file, options, &sizes, status) || !device_enter(&cuda->device, status))
        return false;
    bool ok = allocate(cuda, &sizes, status);
    double start = load_seconds();
    ok = ok && bind_plans(cuda, file, status);
    cuda->common.graph_seconds = load_seconds() - start;
    ok = ok && cuda_ok(&cuda->device.driver, cuda->device.driver.StreamSynchronize(cuda->device.stream), status,
                       "preparing the GPU");
    ok = ok && compare_memory(cuda, &sizes.device, status);
    /* Not before: calls of libraries are captured, and what the caller queues meanwhile must not be. */
    if (ok && options->stream) device_use_stream(&cuda->device, options->stream);
    device_leave(&cuda->device);
    device_architecture(cuda->device.facts.capability, cuda->architecture);
    cuda->common.pages = (uint32_t)sizes.pages;
    cuda->common.threads = 1;
    cuda->common.instruction_set = cuda->architecture;
    cuda->common.device_name = cuda->device.facts.name;
    cuda->common.host_bytes = sizes.pinned_bytes + sizes.results_bytes + cuda->manifest->comm_bytes - sizes.device.comm;
    cuda->common.kv_bytes = sizes.device.kv;
    cuda->common.device_bytes =
        sizes.device.arena + sizes.device.step + sizes.device.state + sizes.device.kv + sizes.device.comm;
    return ok;
}

static struct backend *create(struct eng_engine *engine, const struct backend_options *options, struct status *status)
{
    struct cuda_backend *cuda = calloc(1, sizeof *cuda);
    if (!cuda) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        return NULL;
    }
    cuda->common.type = &backend_cuda;
    cuda->rank = engine->first_rank + options->rank;
    cuda->owner = engine;
    cuda->engine = &engine->cuda[options->rank];
    cuda->out_rows = plan_most_out_rows(engine->file.plans, engine->file.plan_count);
    cuda->manifest = &engine->file.manifest;
    if (fill(cuda, &engine->file, options, status)) return &cuda->common;
    destroy(&cuda->common);
    return NULL;
}

/* ---- replays ---- */

static void state_changed(struct backend *backend, int32_t slot, unsigned what)
{
    state_shadow_changed(&cuda_of(backend)->shadow, slot, what);
}

static void drew(struct backend *backend, int32_t slot, int32_t token)
{
    state_shadow_drew(&cuda_of(backend)->shadow, slot, token);
}

static bool send_row(void *argument, uint64_t offset, uint64_t bytes, struct status *status)
{
    const struct cuda_backend *cuda = argument;
    const struct cuda_driver *driver = &cuda->device.driver;
    return cuda_ok(driver,
                   driver->MemcpyHtoDAsync(cuda->memory.base[SPACE_STATE] + offset, cuda->common.state + offset, bytes,
                                           cuda->device.stream),
                   status, "copying a slot's state to the GPU");
}

static bool send_inputs(struct cuda_backend *cuda, const struct cuda_step *step, struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    memcpy(&cuda->last_out_rows, cuda->common.step + step->counts_offset + sizeof(int32_t), sizeof(int32_t));
    return state_shadow_send(&cuda->shadow, send_row, cuda, status) &&
           cuda_ok(driver,
                   driver->MemcpyHtoDAsync(cuda->memory.base[SPACE_STEP], cuda->common.step, step->input_bytes,
                                           cuda->device.stream),
                   status, "copying a step's inputs to the GPU");
}

static bool record_done(const struct cuda_backend *cuda, struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    return cuda_ok(driver, driver->EventRecord(done_event(cuda, cuda->submitted - 1), cuda->device.stream), status,
                   "recording an event");
}

/* Queues a replay, or the rest of one, and, where its kernels leave the tokens on the GPU, a copy of these. This replay is counted. */
static bool launch(struct cuda_backend *cuda, const struct cuda_step *step, bool is_rest, struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    const uint64_t turn = (cuda->submitted - 1) % BACKEND_MOST_IN_FLIGHT;
    const uint64_t graph = step->bound_count > 1 ? turn : 0;
    const size_t bytes = (size_t)cuda->last_out_rows * sizeof(int32_t);
    int32_t *const tokens = cuda->next_tokens[cuda->copies_tokens ? turn : graph];
    cuda->awaited[turn] = tokens;
    cuda->awaited_count[turn] = cuda->drafted[turn] ? 0 : cuda->last_out_rows; /* other copies follow */
    cuda->sleeps[turn] = !step_pace_is_known(&cuda->pace) && !step_pace_is_short(&cuda->pace);
    for (int32_t i = 0; i < cuda->last_out_rows; i++) tokens[i] = NOT_ARRIVED;
    if (!cuda_plan_launch(is_rest ? &step->rest[graph] : &step->bound[graph], &cuda->device, status)) return false;
    if (bytes && cuda->copies_tokens &&
        !cuda_ok(driver,
                 driver->MemcpyDtoHAsync(tokens, cuda->memory.base[SPACE_STEP] + step->next_tokens_offset, bytes,
                                         cuda->device.stream),
                 status, "copying tokens from the GPU"))
        return false;
    if (bytes && cuda->drafted[turn] &&
        !cuda_ok(driver,
                 driver->MemcpyDtoHAsync(cuda->drafted[turn], cuda->memory.base[SPACE_STEP] + step->drafted_offset,
                                         bytes, cuda->device.stream),
                 status, "copying drafted tokens from the GPU"))
        return false;
    return record_done(cuda, status);
}

/* Queues a replay's part before its sampler. The event is for other sessions, whose turn may come before the rest is queued. */
static bool launch_layers(const struct cuda_backend *cuda, const struct cuda_step *step, struct status *status)
{
    return cuda_plan_launch(&step->layers, &cuda->device, status) && (!step->takes_turns || record_done(cuda, status));
}

/* To the host or from there, when all that was queued before has run. */
static bool copy(struct cuda_backend *cuda, cu_deviceptr own, uint8_t *bytes, uint64_t size, bool to_own,
                 const char *what, struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    if (!device_enter(&cuda->device, status)) return false;
    const cu_result result = to_own ? driver->MemcpyHtoDAsync(own, bytes, size, cuda->device.stream)
                                    : driver->MemcpyDtoHAsync(bytes, own, size, cuda->device.stream);
    bool ok = cuda_ok(driver, result, status, "copying %s", what) &&
              cuda_ok(driver, driver->StreamSynchronize(cuda->device.stream), status, "copying %s", what);
    device_leave(&cuda->device);
    return ok;
}

/* Later steps follow on the same stream. */
static bool repeat(struct cuda_backend *cuda, cu_deviceptr from, cu_deviceptr to, uint64_t size, const char *what,
                   struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    if (!device_enter(&cuda->device, status)) return false;
    bool ok = cuda_ok(driver, driver->MemcpyDtoDAsync(to, from, size, cuda->device.stream), status, "copying %s", what);
    device_leave(&cuda->device);
    return ok;
}

static cu_deviceptr page_address(const struct cuda_backend *cuda, int32_t page)
{
    return cuda->memory.base[SPACE_KV] + (uint64_t)page * cuda->manifest->geometry.page_bytes;
}

static bool copy_page(struct backend *backend, int32_t page, uint8_t *bytes, bool to_pool, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    return copy(cuda, page_address(cuda, page), bytes, cuda->manifest->geometry.page_bytes, to_pool, "a KV page",
                status);
}

static bool repeat_page(struct backend *backend, int32_t from, int32_t to, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    return repeat(cuda, page_address(cuda, from), page_address(cuda, to), cuda->manifest->geometry.page_bytes,
                  "a KV page", status);
}

/* Blocks of checkpoints lie at the end of the state. */
static cu_deviceptr recurrent_address(const struct cuda_backend *cuda, int32_t block)
{
    const struct plan_geometry *geometry = &cuda->manifest->geometry;
    const uint64_t index = (uint64_t)block, size = geometry->recurrent_bytes;
    const cu_deviceptr state = cuda->memory.base[SPACE_STATE];
    if (index < geometry->slots) return state + geometry->state[STATE_RECURRENT].offset + index * size;
    return state + cuda->memory.bytes[SPACE_STATE] - (geometry->slots + cuda->checkpoints - index) * size;
}

static bool copy_recurrent(struct backend *backend, int32_t block, uint8_t *bytes, bool to_block, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    return copy(cuda, recurrent_address(cuda, block), bytes, cuda->manifest->geometry.recurrent_bytes, to_block,
                "recurrent state", status);
}

static bool repeat_recurrent(struct backend *backend, int32_t from, int32_t to, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    return repeat(cuda, recurrent_address(cuda, from), recurrent_address(cuda, to),
                  cuda->manifest->geometry.recurrent_bytes, "recurrent state", status);
}

static bool submit(struct backend *backend, size_t plan, enum backend_inputs inputs, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const struct cuda_step *step = &cuda->plans[plan];
    cuda->common.failure = BACKEND_FAILED;
    cuda->sampled_late[cuda->submitted % BACKEND_MOST_IN_FLIGHT] = false;
    cuda->submitted++;
    cuda->last_plan = plan;
    if (!device_enter(&cuda->device, status)) return false;
    bool ok = (inputs != INPUTS_FROM_HOST || send_inputs(cuda, step, status)) &&
              (!step->takes_turns || turn_begin(&cuda->device, cuda, status));
    if (ok) {
        ok = inputs == INPUTS_UP_TO_SAMPLER ? launch_layers(cuda, step, status) : launch(cuda, step, false, status);
        if (step->takes_turns) turn_end(&cuda->device, cuda, done_event(cuda, cuda->submitted - 1));
    }
    device_leave(&cuda->device);
    return ok;
}

static bool splits(const struct backend *backend, size_t plan)
{
    return ((const struct cuda_backend *)(const void *)backend)->plans[plan].layers.launch_count > 0;
}

static bool sample(struct backend *backend, const int32_t *slots, uint32_t count, bool late, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    cuda->sampled_late[(cuda->submitted - 1) % BACKEND_MOST_IN_FLIGHT] = late;
    const struct cuda_step *step = &cuda->plans[cuda->last_plan];
    if (!device_enter(&cuda->device, status)) return false;
    bool ok = state_shadow_send_allowed(&cuda->shadow, slots, count, send_row, cuda, status) &&
              (!step->takes_turns || turn_begin(&cuda->device, cuda, status));
    if (ok) {
        ok = launch(cuda, step, true, status);
        if (step->takes_turns) turn_end(&cuda->device, cuda, done_event(cuda, cuda->submitted - 1));
    }
    device_leave(&cuda->device);
    return ok;
}

/* The next replay follows on the same stream. */
static void abandon(struct backend *backend) { cuda_of(backend)->submitted--; }

static const int32_t *wait_for(struct backend *backend, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const uint64_t turn = cuda->waited % BACKEND_MOST_IN_FLIGHT;
    cuda->done_plan = cuda->last_plan; /* all replays in flight are of one plan */
    if (!device_enter(&cuda->device, status)) return NULL;
    const bool ok = cuda_wait(cuda, status);
    device_leave(&cuda->device);
    cuda->waited++;
    backend->drafted = cuda->drafted[turn];
    return ok ? cuda->awaited[turn] : NULL;
}

/* Copies bytes of the step block to `to`. */
static const float *fetch(struct cuda_backend *cuda, uint64_t offset, uint64_t bytes, uint8_t *to, const char *what,
                          struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    const cu_deviceptr from = cuda->memory.base[SPACE_STEP] + offset;
    if (!device_enter(&cuda->device, status)) return NULL;
    bool ok = cuda_ok(driver, driver->MemcpyDtoHAsync(to, from, bytes, cuda->device.stream), status,
                      "copying %s from the GPU", what) &&
              cuda_ok(driver, driver->StreamSynchronize(cuda->device.stream), status, "copying %s from the GPU", what);
    device_leave(&cuda->device);
    return ok ? (const float *)(void *)to : NULL;
}

static const float *logits(struct backend *backend, uint32_t row, uint32_t count, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const uint64_t row_bytes = cuda->manifest->geometry.vocab_size * sizeof(float), offset = row * row_bytes;
    return fetch(cuda, cuda->plans[cuda->done_plan].logits_offset + offset, count * row_bytes,
                 (uint8_t *)cuda->results.base + offset, "logits", status);
}

static const float *hidden(struct backend *backend, uint32_t row, uint32_t count, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const struct plan_geometry *geometry = &cuda->manifest->geometry;
    const uint64_t row_bytes = geometry->hidden_size * sizeof(float), offset = row * row_bytes;
    const uint64_t all_logits = cuda->out_rows * geometry->vocab_size * sizeof(float);
    return fetch(cuda, cuda->plans[cuda->done_plan].hidden_offset + offset, count * row_bytes,
                 (uint8_t *)cuda->results.base + all_logits + offset, "hidden states", status);
}

static void view_results(const struct backend *backend, struct backend_view *view)
{
    const struct cuda_backend *cuda = (const struct cuda_backend *)(const void *)backend;
    const struct cuda_step *step = &cuda->plans[cuda->done_plan];
    const cu_deviceptr base = cuda->memory.base[SPACE_STEP];
    *view = (struct backend_view){.stream = cuda->device.stream,
                                  .device = cuda->device.index,
                                  .ready = done_event(cuda, cuda->waited + BACKEND_MOST_IN_FLIGHT - 1),
                                  .logits = base + step->logits_offset,
                                  .hidden = base + step->hidden_offset};
}

/* Replays the step, so that the GPU is busy while the host queues the launches to be timed; otherwise it would wait for
 * the host between them. */
static bool keep_busy(struct cuda_backend *cuda, const struct cuda_step *step, uint32_t replays, struct status *status)
{
    /* A decode plan overwrites its inputs with those of the next step: send them again. */
    for (uint32_t i = 0; i < replays; i++)
        if (!send_inputs(cuda, step, status) || !cuda_plan_launch(step->bound, &cuda->device, status)) return false;
    return send_inputs(cuda, step, status);
}

/* Time of a replay from its first to its last kernel, by the GPU's clock. */
static bool time_replay(struct cuda_backend *cuda, const struct cuda_step *step, double *us, struct status *status)
{
    const struct cuda_driver *driver = &cuda->device.driver;
    cu_event start = NULL, end = NULL;
    float milliseconds = 0;
    bool ok =
        cuda_ok(driver, driver->EventCreate(&start, CU_EVENT_DEFAULT), status, "making an event") &&
        cuda_ok(driver, driver->EventCreate(&end, CU_EVENT_DEFAULT), status, "making an event") &&
        keep_busy(cuda, step, 1, status) &&
        cuda_ok(driver, driver->EventRecord(start, cuda->device.stream), status, "recording an event") &&
        cuda_plan_launch(step->bound, &cuda->device, status) &&
        cuda_ok(driver, driver->EventRecord(end, cuda->device.stream), status, "recording an event") &&
        cuda_ok(driver,
                cuda->common.comm ? cuda_poll_event(cuda, end, CUDA_LONGEST_STEP, NULL) : driver->EventSynchronize(end),
                status, "running a step") &&
        cuda_ok(driver, driver->EventElapsedTime(&milliseconds, start, end), status, "reading a time");
    *us = (double)milliseconds * 1e3;
    if (start) driver->EventDestroy(start);
    if (end) driver->EventDestroy(end);
    return ok;
}

static bool trace(struct backend *backend, size_t plan, double *replay_us, double *launch_us, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const struct cuda_step *step = &cuda->plans[plan];
    /* Upper bound of the host's time to create two events, record them and launch a kernel. */
    enum { QUEUE_US = 10, MOST_REPLAYS = 64, RANKS_REPLAYS = 4 };
    if (!device_enter(&cuda->device, status)) return false;
    bool ok = time_replay(cuda, step, replay_us, status);
    double queue_us = (double)QUEUE_US * step->bound->launch_count;
    uint32_t replays = *replay_us * MOST_REPLAYS > queue_us ? 1 + (uint32_t)(queue_us / *replay_us) : MOST_REPLAYS;
    if (cuda->common.comm) replays = RANKS_REPLAYS; /* the same number on all ranks */
    ok = ok && keep_busy(cuda, step, replays, status) &&
         cuda_plan_run_timed(&cuda->device, &cuda->engine->kernels, step->source, &cuda->memory, launch_us, status);
    device_leave(&cuda->device);
    return ok && cuda_check_fault(cuda, status);
}

static const struct plan *source(const struct backend *backend, size_t plan)
{
    return ((const struct cuda_backend *)(const void *)backend)->plans[plan].source;
}

static bool connect_ranks(struct backend *backend, const uint64_t *comm, struct status *status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    struct comm_header header;
    uint32_t ranks = (uint32_t)plan_ranks(&cuda->manifest->geometry);
    /* Pinned memory has one address for host and device. */
    cuda_comm_header(&header, cuda->rank, ranks, comm, (uint64_t)(uintptr_t)cuda->fault);
    if (!device_enter(&cuda->device, status)) return false;
    bool ok = cuda_comm_write(&cuda->device, cuda->common.comm, &header, status);
    device_leave(&cuda->device);
    return ok;
}

static void stop(struct backend *backend)
{
    static const uint32_t one = 1;
    struct cuda_backend *cuda = cuda_of(backend);
    struct status ignored = {0};
    atomic_store(&cuda->stopping, true);
    if (cuda->engine->nccl_rank.nccl) nccl_abort(&cuda->engine->nccl_rank);
    /* If the GPU was lost nothing runs. */
    if (!cuda->stop_stream || !device_enter(&cuda->device, &ignored)) return;
    cuda->device.driver.MemcpyHtoDAsync(cuda->common.comm + offsetof(struct comm_header, stop), &one, sizeof one,
                                        cuda->stop_stream);
    device_leave(&cuda->device);
}

/* Records an event after all queued work. */
static bool settle(struct backend *backend)
{
    const double longest = 1.0;
    struct cuda_backend *cuda = cuda_of(backend);
    struct status ignored = {0};
    /* If the GPU was lost nothing runs; calls fail at once. */
    const cu_event event = cuda->done[0][0];
    if (!event || !device_enter(&cuda->device, &ignored)) return true;
    cu_result result = cuda->device.driver.EventRecord(event, cuda->device.stream);
    if (result == CU_SUCCESS) result = cuda_poll_event(cuda, event, longest, NULL);
    device_leave(&cuda->device);
    return result != CU_ERROR_NOT_READY;
}

const struct backend_type backend_cuda = {
    .lookahead = true,
    .create = create,
    .destroy = destroy,
    .state_changed = state_changed,
    .submit = submit,
    .splits = splits,
    .sample = sample,
    .abandon = abandon,
    .wait = wait_for,
    .drew = drew,
    .logits = logits,
    .hidden = hidden,
    .view = view_results,
    .source = source,
    .trace = trace,
    .copy_page = copy_page,
    .copy_recurrent = copy_recurrent,
    .repeat_page = repeat_page,
    .repeat_recurrent = repeat_recurrent,
    .connect = connect_ranks,
    .stop = stop,
    .settle = settle,
};
