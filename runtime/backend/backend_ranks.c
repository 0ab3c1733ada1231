/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs from the host are submitted only when nothing is in flight on any rank, as collectives without rows require
 * (struct comm_header).
 *
 * The session uses rank 0: it fills that rank's step and state, and reads its tokens and logits. A submit copies inputs
 * and changed rows to the other ranks, so that all replay the same step and must draw the same tokens. */
#include "runtime/backend/backend_ranks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"
#include "kernels/cpu/team.h"
#include "runtime/backend/state_shadow.h"
#include "runtime/distributed/process_group.h"

enum command { COMMAND_CREATE, COMMAND_SUBMIT, COMMAND_TRACE };

struct rank {
    struct backend *backend;
    struct state_shadow shadow; /* all but rank 0: of rank 0's state */
    bool ok;                    /* of the last command */
    struct status status;
    double replay_us, *launch_us; /* of a trace; only rank 0's are used */
};

struct ranks_backend {
    struct backend common;
    const struct backend_type *rank_type;
    struct eng_engine *engine;
    struct team *rank_team; /* a member for each rank */
    bool alone;             /* holds engine->ranks_taken */
    bool failed;            /* a rank has failed */
    struct rank ranks[PLAN_MAX_RANKS];
    uint32_t count;
    uint32_t out_rows[BACKEND_MOST_IN_FLIGHT]; /* valid out rows of the replays in flight */
    uint64_t submitted, waited;
    uint64_t digest; /* several processes: of all inputs and tokens so far */

    /* arguments of the current command */
    enum command command;
    const struct backend_options *options;
    size_t plan;
    enum backend_inputs inputs;
};

static struct ranks_backend *ranks_of(struct backend *backend) { return (struct ranks_backend *)(void *)backend; }

/* ---- what every rank does with a command ---- */

static bool copy_row(void *argument, uint64_t offset, uint64_t bytes, struct status *status)
{
    struct rank *rank = argument;
    (void)status;
    memcpy(rank->backend->state + offset, rank->shadow.state + offset, bytes);
    return true;
}

/* Copies rank 0's inputs and the rows of its state that the host changed. */
static void copy_inputs(const struct ranks_backend *all, struct rank *rank)
{
    memcpy(rank->backend->step, all->ranks[0].backend->step, plan_input_bytes(&all->engine->file.plans[all->plan]));
    state_shadow_send(&rank->shadow, copy_row, rank, &rank->status);
}

/* Stops all ranks: others would wait for one that has failed. */
static void stop_all(const struct ranks_backend *all)
{
    for (uint32_t r = 0; r < all->count; r++)
        if (all->ranks[r].backend) all->rank_type->stop(all->ranks[r].backend);
}

static void run_command(void *argument, struct team_member *member)
{
    struct ranks_backend *all = argument;
    struct rank *rank = &all->ranks[member->index];
    const struct backend_type *type = all->rank_type;
    status_clear(&rank->status);
    rank->ok = false;
    switch (all->command) {
    case COMMAND_CREATE: {
        rank->ok = rank->backend != NULL; /* rank 0 may exist already */
        if (rank->ok) return;
        struct backend_options options = *all->options;
        options.rank = (uint32_t)member->index;
        if (all->rank_type->shares_memory) options.pages = all->ranks[0].backend->pages;
        rank->backend = type->create(all->engine, &options, &rank->status);
        rank->ok = rank->backend != NULL;
        if (!rank->ok) atomic_store(&all->engine->rank_failed, true); /* others may wait for it in their own create */
        return;
    }
    case COMMAND_SUBMIT:
        if (all->inputs == INPUTS_FROM_HOST && member->index > 0) copy_inputs(all, rank);
        rank->ok = type->submit(rank->backend, all->plan, all->inputs, &rank->status);
        break;
    case COMMAND_TRACE:
        if (member->index > 0) copy_inputs(all, rank);
        rank->ok = type->trace(rank->backend, all->plan, &rank->replay_us, rank->launch_us, &rank->status);
        break;
    }
    if (!rank->ok) stop_all(all);
}

/* Reports the failure of the rank that failed first: the others only stopped because of it. */
static bool first_failure(const struct ranks_backend *all, struct status *status)
{
    const struct rank *found = NULL;
    enum backend_failure least = BACKEND_FAILED;
    for (uint32_t r = 0; r < all->count; r++) {
        const struct rank *rank = &all->ranks[r];
        enum backend_failure failure = rank->backend ? rank->backend->failure : BACKEND_FAILED;
        if (rank->ok || (found && failure >= least)) continue;
        found = rank;
        least = failure;
    }
    if (!found) return true;
    *status = found->status;
    status_prefix(status, "rank %" PRIu32, all->engine->first_rank + (uint32_t)(found - all->ranks));
    load_tell_others(all->engine, status);
    return false;
}

static bool command(struct ranks_backend *all, enum command command, struct status *status)
{
    all->command = command;
    team_run(all->rank_team, run_command, all);
    if (first_failure(all, status)) return true;
    all->failed = true;
    return false;
}

/* ---- the backend ---- */

/* No rank may be released while another may still write to its memory. The memory of a rank that never ends remains, as
 * does all memory that it can access. */
static bool settle_all(struct ranks_backend *all)
{
    bool settled = true;
    for (uint32_t r = 0; r < all->count && all->rank_type->settle; r++)
        if (all->ranks[r].backend && !all->rank_type->settle(all->ranks[r].backend)) settled = false;
    return settled;
}

void backend_ranks_destroy(struct backend *backend)
{
    struct ranks_backend *all = ranks_of(backend);
    /* A step in flight ends by itself, since all ranks have it. Stopping it would damage the COMM spaces. */
    if (all->failed) stop_all(all);
    bool settled = settle_all(all);
    if (!settled && !all->failed) {
        stop_all(all);
        settled = settle_all(all);
    }
    if (!settled) atomic_store(&all->engine->is_lost, true);
    for (uint32_t r = 0; r < all->count; r++) {
        if (settled && all->ranks[r].backend) all->rank_type->destroy(all->ranks[r].backend);
        state_shadow_close(&all->ranks[r].shadow);
        free(all->ranks[r].launch_us);
    }
    team_destroy(all->rank_team);
    if (all->alone) atomic_store(&all->engine->ranks_taken, false);
    free(all);
}

static bool connect_all(struct ranks_backend *all, struct status *status)
{
    uint64_t comm[PLAN_MAX_RANKS];
    memset(comm, 0, sizeof comm); /* 0 for ranks of other processes */
    for (uint32_t r = 0; r < all->count; r++) comm[all->engine->first_rank + r] = all->ranks[r].backend->comm;
    for (uint32_t r = 0; r < all->count; r++)
        if (!all->rank_type->connect(all->ranks[r].backend, comm, status))
            return status_prefix(status, "rank %" PRIu32, all->engine->first_rank + r);
    return true;
}

static void add_facts(struct ranks_backend *all)
{
    struct backend *common = &all->common;
    const struct backend_type *type = common->type;
    *common = *all->ranks[0].backend;
    common->type = type;
    for (uint32_t r = 1; r < all->count; r++) {
        const struct backend *rank = all->ranks[r].backend;
        if (rank->pages < common->pages) common->pages = rank->pages;
        common->threads += rank->threads;
        common->host_bytes += rank->host_bytes;
        common->device_bytes += rank->device_bytes;
        common->device_contract_bytes += rank->device_contract_bytes;
        common->device_taken_bytes += rank->device_taken_bytes;
        if (rank->graph_seconds > common->graph_seconds) common->graph_seconds = rank->graph_seconds;
        if (!common->fallback) common->fallback = rank->fallback;
    }
    common->kv_bytes =
        common->pages * all->engine->file.manifest.geometry.page_bytes * all->count; /* only these are used */
}

/* Scheduling depends on free pages, so all processes must have the same number: the smallest. */
static bool agree_on_pages(struct ranks_backend *all, struct status *status)
{
    uint32_t pages[PROCESS_GROUP_MOST_PROCESSES];
    const struct eng_engine *engine = all->engine;
    if (!engine->process_group) return true;
    if (!process_group_gather(engine->process_group, &all->common.pages, sizeof *pages, pages, status)) return false;
    for (uint64_t p = 0; p < load_processes(engine); p++)
        if (pages[p] < all->common.pages) all->common.pages = pages[p];
    all->common.kv_bytes = all->common.pages * engine->file.manifest.geometry.page_bytes * all->count;
    return true;
}

/* Updates the digest of all inputs and tokens; it must be the same in all processes. */
static void digest(struct ranks_backend *all, const void *bytes, size_t count)
{
    const uint64_t parts[2] = {all->digest, hash64(bytes, count)};
    all->digest = hash64(parts, sizeof parts);
}

static void digest_inputs(struct ranks_backend *all)
{
    digest(all, &all->plan, sizeof all->plan);
    if (all->inputs == INPUTS_FROM_HOST)
        digest(all, all->ranks[0].backend->step, plan_input_bytes(&all->engine->file.plans[all->plan]));
}

/* Compares the inputs of all processes before a step. Steps with INPUTS_OF_LAST_REPLAY are compared from time to time
 * instead (process_group_note), at no cost. */
static bool agree_on_inputs(struct ranks_backend *all, struct status *status)
{
    struct eng_engine *engine = all->engine;
    uint64_t digests[PROCESS_GROUP_MOST_PROCESSES];
    if (!engine->process_group) return true;
    digest_inputs(all);
    if (all->inputs == INPUTS_OF_LAST_REPLAY) return true;
    if (!process_group_gather(engine->process_group, &all->digest, sizeof all->digest, digests, status)) return false;
    for (uint64_t p = 1; p < load_processes(engine); p++)
        if (digests[p] != digests[0]) {
            status_fail(status, STATUS_USAGE,
                        "process %" PRIu64 " was given other inputs than process 0, or drew other tokens, up to step "
                        "%" PRIu64 ": make the same calls in all processes",
                        p, all->submitted);
            process_group_fail(engine->process_group, status->message);
            return false;
        }
    return true;
}

struct backend *backend_ranks_create(const struct backend_type *type, const struct backend_type *rank_type,
                                     struct eng_engine *engine, const struct backend_options *options,
                                     struct status *status)
{
    const struct plan_geometry *geometry = &engine->file.manifest.geometry;
    struct ranks_backend *all = calloc(1, sizeof *all);
    if (!all) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        return NULL;
    }
    all->common.type = type;
    all->rank_type = rank_type;
    all->engine = engine;
    all->options = options;
    all->count = engine->rank_count;
    atomic_store(&engine->rank_failed, false);
    all->rank_team = team_create((int)all->count, status);
    if (!all->rank_team) goto fail;
    if (rank_type->shares_memory) {
        all->ranks[0].backend = rank_type->create(engine, options, status);
        if (!all->ranks[0].backend) {
            status_prefix(status, "rank 0");
            goto fail;
        }
    }
    if (!command(all, COMMAND_CREATE, status) || !connect_all(all, status)) goto fail;
    for (uint32_t r = 1; r < all->count; r++)
        if (!state_shadow_open(&all->ranks[r].shadow, geometry, all->ranks[0].backend->state, status)) goto fail;
    add_facts(all);
    if (!agree_on_pages(all, status)) goto fail;
    return &all->common;

fail:
    load_tell_others(engine, status);
    backend_ranks_destroy(&all->common);
    return NULL;
}

/* A slot's sampler is an input, too. */
static void digest_sampler(struct ranks_backend *all, int32_t slot)
{
    const struct plan_field *samplers = &all->engine->file.manifest.geometry.state[STATE_SAMPLERS];
    digest(all, &slot, sizeof slot);
    digest(all, all->ranks[0].backend->state + samplers->offset + (size_t)slot * sizeof(struct sampler_state),
           sizeof(struct sampler_state));
}

void backend_ranks_state_changed(struct backend *backend, int32_t slot, unsigned what)
{
    struct ranks_backend *all = ranks_of(backend);
    if (all->engine->process_group && (what & BACKEND_SAMPLER)) digest_sampler(all, slot);
    for (uint32_t r = 0; r < all->count; r++) {
        if (r > 0) state_shadow_changed(&all->ranks[r].shadow, slot, what);
        if (all->rank_type->state_changed) all->rank_type->state_changed(all->ranks[r].backend, slot, what);
    }
}

void backend_ranks_agree(struct backend *backend, const void *bytes, size_t count)
{
    struct ranks_backend *all = ranks_of(backend);
    if (all->engine->process_group) digest(all, bytes, count);
}

bool backend_ranks_submit(struct backend *backend, size_t plan, enum backend_inputs inputs, struct status *status)
{
    struct ranks_backend *all = ranks_of(backend);
    const int32_t *counts =
        (const int32_t *)(const void *)(all->common.step + all->engine->file.plans[plan].step[STEP_COUNTS].offset);
    all->plan = plan;
    all->inputs = inputs;
    all->out_rows[all->submitted++ % BACKEND_MOST_IN_FLIGHT] = (uint32_t)counts[1];
    if (!agree_on_inputs(all, status)) {
        all->failed = true;
        return false;
    }
    return command(all, COMMAND_SUBMIT, status);
}

const int32_t *backend_ranks_wait(struct backend *backend, struct status *status)
{
    struct ranks_backend *all = ranks_of(backend);
    uint32_t rows = all->out_rows[all->waited++ % BACKEND_MOST_IN_FLIGHT];
    const int32_t *drawn[PLAN_MAX_RANKS];
    for (uint32_t r = 0; r < all->count; r++) {
        struct rank *rank = &all->ranks[r];
        status_clear(&rank->status);
        drawn[r] = all->rank_type->wait(rank->backend, &rank->status);
        rank->ok = drawn[r] != NULL;
        if (!rank->ok) stop_all(all);
    }
    if (!first_failure(all, status)) {
        all->failed = true;
        return NULL;
    }
    all->common.drafted = all->ranks[0].backend->drafted;
    for (uint32_t r = 1; r < all->count; r++)
        for (uint32_t i = 0; i < rows; i++)
            if (drawn[r][i] != drawn[0][i]) {
                status_fail(status, STATUS_INTERNAL,
                            "rank %" PRIu32 ": row %" PRIu32 ": expected token %d as on rank %" PRIu32
                            ", found %d: the ranks compute different results",
                            all->engine->first_rank + r, i, drawn[0][i], all->engine->first_rank, drawn[r][i]);
                load_tell_others(all->engine, status);
                all->failed = true;
                return NULL;
            }
    if (all->engine->process_group) {
        digest(all, drawn[0], rows * sizeof *drawn[0]);
        if (all->common.drafted) digest(all, all->common.drafted, rows * sizeof *all->common.drafted);
        process_group_note(all->engine->process_group, ++all->engine->noted_steps, all->digest);
    }
    return drawn[0];
}

void backend_ranks_drew(struct backend *backend, int32_t slot, int32_t token)
{
    struct ranks_backend *all = ranks_of(backend);
    for (uint32_t r = 0; all->rank_type->drew && r < all->count; r++)
        all->rank_type->drew(all->ranks[r].backend, slot, token);
}

const float *backend_ranks_logits(struct backend *backend, uint32_t row, uint32_t count, struct status *status)
{
    struct ranks_backend *all = ranks_of(backend);
    return all->rank_type->logits(all->ranks[0].backend, row, count, status);
}

const float *backend_ranks_hidden(struct backend *backend, uint32_t row, uint32_t count, struct status *status)
{
    struct ranks_backend *all = ranks_of(backend);
    return all->rank_type->hidden(all->ranks[0].backend, row, count, status);
}

const struct plan *backend_ranks_source(const struct backend *backend, size_t plan)
{
    const struct ranks_backend *all = (const struct ranks_backend *)(const void *)backend;
    const struct plan *own = &all->engine->file.plans[plan];
    return all->rank_type->source ? all->rank_type->source(all->ranks[0].backend, plan) : own;
}

bool backend_ranks_copy_page(struct backend *backend, int32_t page, uint8_t *bytes, bool to_pool, struct status *status)
{
    const struct ranks_backend *all = ranks_of(backend);
    const uint64_t size = all->engine->file.manifest.geometry.page_bytes;
    for (uint32_t r = 0; r < all->count; r++)
        if (!all->rank_type->copy_page(all->ranks[r].backend, page, bytes + r * size, to_pool, status))
            return status_prefix(status, "rank %" PRIu32, all->engine->first_rank + r);
    return true;
}

bool backend_ranks_copy_recurrent(struct backend *backend, int32_t block, uint8_t *bytes, bool to_block,
                                  struct status *status)
{
    const struct ranks_backend *all = ranks_of(backend);
    const uint64_t size = all->engine->file.manifest.geometry.recurrent_bytes;
    for (uint32_t r = 0; r < all->count; r++)
        if (!all->rank_type->copy_recurrent(all->ranks[r].backend, block, bytes + r * size, to_block, status))
            return status_prefix(status, "rank %" PRIu32, all->engine->first_rank + r);
    return true;
}

bool backend_ranks_repeat_page(struct backend *backend, int32_t from, int32_t to, struct status *status)
{
    const struct ranks_backend *all = ranks_of(backend);
    for (uint32_t r = 0; r < all->count; r++)
        if (!all->rank_type->repeat_page(all->ranks[r].backend, from, to, status))
            return status_prefix(status, "rank %" PRIu32, all->engine->first_rank + r);
    return true;
}

bool backend_ranks_repeat_recurrent(struct backend *backend, int32_t from, int32_t to, struct status *status)
{
    const struct ranks_backend *all = ranks_of(backend);
    for (uint32_t r = 0; r < all->count; r++)
        if (!all->rank_type->repeat_recurrent(all->ranks[r].backend, from, to, status))
            return status_prefix(status, "rank %" PRIu32, all->engine->first_rank + r);
    return true;
}

bool backend_ranks_trace(struct backend *backend, size_t plan, double *replay_us, double *launch_us,
                         struct status *status)
{
    struct ranks_backend *all = ranks_of(backend);
    uint32_t launches = backend_ranks_source(backend, plan)->header.launch_count;
    for (uint32_t r = 0; r < all->count; r++) {
        free(all->ranks[r].launch_us);
        all->ranks[r].launch_us = calloc(launches, sizeof *launch_us);
        if (!all->ranks[r].launch_us) return status_fail(status, STATUS_MACHINE, "out of memory");
    }
    all->plan = plan;
    if (!command(all, COMMAND_TRACE, status)) return false;
    *replay_us = all->ranks[0].replay_us;
    memcpy(launch_us, all->ranks[0].launch_us, launches * sizeof *launch_us);
    return true;
}

/* ---- processors ---- */

static struct backend *create_on_cpu(struct eng_engine *engine, const struct backend_options *options,
                                     struct status *status)
{
    return backend_ranks_create(&backend_cpu_ranks, &backend_cpu, engine, options, status);
}

/* ---- GPUs ---- */

/* Only one session: the kernels of two could each fill one GPU and wait for each other's counterpart on another GPU for
 * ever. */
static struct backend *create_on_cuda(struct eng_engine *engine, const struct backend_options *options,
                                      struct status *status)
{
    if (atomic_exchange(&engine->ranks_taken, true)) {
        status_fail(status, STATUS_USAGE,
                    "eng_session_create: expected no other session of this engine for several GPUs, found one; destroy "
                    "it first");
        return NULL;
    }
    struct backend *made = backend_ranks_create(&backend_cuda_ranks, &backend_cuda, engine, options, status);
    if (made)
        ranks_of(made)->alone = true;
    else
        atomic_store(&engine->ranks_taken, false);
    return made;
}

const struct backend_type backend_cuda_ranks = {
    .lookahead = true,
    .create = create_on_cuda,
    BACKEND_RANKS_FUNCTIONS,
};

const struct backend_type backend_cpu_ranks = {
    .host_logits = true,
    .create = create_on_cpu,
    BACKEND_RANKS_FUNCTIONS,
};
