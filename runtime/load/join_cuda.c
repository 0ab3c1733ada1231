/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/join_cuda.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/distributed/process_group.h"

/* Exchanged by the processes before any of them takes GPU memory. */
struct introduction {
    struct nccl_id id; /* set by process 0 */
    uint32_t nccl_version;
    char gpu[sizeof((struct device_facts *)0)->name];
};

bool join_cuda_wanted(const struct eng_engine *engine)
{
    const struct engine *file = &engine->file;
    if (engine->process_group) return true;
    if (plan_ranks(&file->manifest.geometry) == 1 || !file->library_plans || engine->no_libraries) return false;
    for (size_t p = 0; p < file->plan_count; p++)
        if (file->library_plans[p].header.launch_count > 0 && file->library_plans[p].header.use == PLAN_USE_ALWAYS)
            return true;
    return false;
}

/* Every collective must go through NCCL: ranks of different processes cannot access each other's COMM spaces. */
static bool check_plans(const struct engine *file, struct status *status)
{
    for (size_t p = 0; p < file->plan_count; p++) {
        const struct plan *plan = file->library_plans ? &file->library_plans[p] : NULL;
        bool whole = plan && plan->header.launch_count > 0;
        for (uint32_t l = 0; whole && l < plan->header.launch_count; l++)
            whole = !plan_op_is_collective(plan->launches[l].op) || plan_calls_collective(&plan->launches[l]);
        if (!whole)
            return status_fail(status, STATUS_MACHINE,
                               "plan %zu: expected one that exchanges data through NCCL, for several processes, found "
                               "none; build the engine without --lean on a machine that has NCCL, or run it in one "
                               "process",
                               p);
    }
    return true;
}

static bool introduce(struct eng_engine *engine, struct nccl_id *id, struct status *status)
{
    struct introduction mine = {.id = *id, .nccl_version = engine->cuda[0].nccl.version},
                        all[PROCESS_GROUP_MOST_PROCESSES];
    const uint32_t processes = load_processes(engine);
    memcpy(mine.gpu, engine->cuda[0].device.facts.name, sizeof mine.gpu);
    if (!process_group_gather(engine->process_group, &mine, sizeof mine, all, status)) return false;
    *id = all[0].id;
    for (uint32_t p = 1; p < processes; p++) {
        if (all[p].nccl_version != all[0].nccl_version)
            return status_fail(status, STATUS_MACHINE,
                               "expected one version of NCCL, found %" PRIu32 " in process 0 and %" PRIu32
                               " in process %" PRIu32,
                               all[0].nccl_version, all[p].nccl_version, p);
        if (strncmp(all[p].gpu, all[0].gpu, sizeof mine.gpu) != 0)
            return status_fail(status, STATUS_MACHINE,
                               "expected GPUs of one model, found %.95s in process 0 and %.95s in process %" PRIu32,
                               all[0].gpu, all[p].gpu, p);
    }
    return true;
}

bool join_cuda_open(struct eng_engine *engine, struct nccl_id *id, struct status *status)
{
    struct nccl *nccl = &engine->cuda[0].nccl;
    memset(id, 0, sizeof *id);
    if (engine->process_group && !check_plans(&engine->file, status)) return false;
    return nccl_open(nccl, status) && (engine->first_rank > 0 || nccl_make_id(nccl, id, status)) &&
           (!engine->process_group || introduce(engine, id, status));
}

static bool is_well(void *context)
{
    struct eng_engine *engine = context;
    struct status ignored;
    return !atomic_load(&engine->rank_failed) &&
           (!engine->process_group || process_group_ok(engine->process_group, &ignored));
}

bool join_cuda_rank(struct eng_engine *engine, uint32_t rank, const struct nccl_id *id, struct status *status)
{
    const double longest_seconds = 60;
    struct load_cuda *cuda = &engine->cuda[rank];
    const struct nccl_watch watch = {is_well, engine};
    if (!device_enter(&cuda->device, status)) return false;
    bool ok = nccl_join(&cuda->nccl_rank, &engine->cuda[0].nccl, &cuda->device, id, engine->first_rank + rank,
                        (uint32_t)plan_ranks(&engine->file.manifest.geometry), longest_seconds, &watch, status);
    device_leave(&cuda->device);
    if (ok) return true;
    load_hear_of_others(engine); /* the cause may be another process, which NCCL cannot name */
    atomic_store(&engine->rank_failed, true);
    return false;
}

bool join_cuda_agree(const struct eng_engine *engine, struct status *status)
{
    uint8_t nothing[1] = {0};
    return !engine->process_group || process_group_gather(engine->process_group, nothing, 0, nothing, status);
}
