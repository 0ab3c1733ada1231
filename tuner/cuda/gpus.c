/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/gpus.h"

#include <inttypes.h>

struct working {
    rank_work *work;
    void *context;
    struct rank_outcome *outcomes;
};

static void work_member(void *argument, struct team_member *member)
{
    const struct working *working = argument;
    struct rank_outcome *outcome = &working->outcomes[member->index];
    status_clear(&outcome->status);
    outcome->ok = working->work(working->context, (uint32_t)member->index, &outcome->status);
}

void gpus_work(struct team *team, rank_work *work, void *context, struct rank_outcome outcomes[PLAN_MAX_RANKS])
{
    struct working working = {work, context, outcomes};
    struct team_member alone = {.index = 0, .count = 1};
    if (team)
        team_run(team, work_member, &working);
    else
        work_member(&working, &alone);
}

bool gpus_borrow_calls(const struct gpus *gpus, uint32_t rank, bool joined, struct cuda_calls *calls,
                       struct status *status)
{
    static const struct cublaslt no_cublaslt;
    static const struct cudnn no_cudnn;
    const struct nccl_rank *nccl = joined && gpus->nccl_ranks[rank].nccl ? &gpus->nccl_ranks[rank] : NULL;
    return cuda_calls_borrow(calls, rank == 0 ? &gpus->cublaslt : &no_cublaslt, rank == 0 ? &gpus->cudnn : &no_cudnn,
                             nccl, status);
}

uint32_t gpus_library_version(const struct gpus *gpus, enum plan_library library)
{
    if (library == LIBRARY_CUBLASLT && gpus->cublaslt.library) return gpus->cublaslt.version;
    if (library == LIBRARY_CUDNN && gpus->cudnn.library) return (uint32_t)gpus->cudnn.version;
    if (library == LIBRARY_NCCL && gpus->nccl.library) return gpus->nccl.version;
    return 0;
}

/* ---- NCCL ---- */

struct joining {
    struct gpus *gpus;
    struct nccl_id id;
};

static bool join_rank(void *context, uint32_t rank, struct status *status)
{
    const double longest_seconds = 30; /* NCCL's first inspection of the machine */
    const struct joining *joining = context;
    struct gpus *gpus = joining->gpus;
    const struct device *device = &gpus->devices[rank];
    if (!device_enter(device, status)) return false;
    bool ok = nccl_join(&gpus->nccl_ranks[rank], &gpus->nccl, device, &joining->id, rank, gpus->ranks, longest_seconds,
                        NULL, status);
    device_leave(device);
    return ok;
}

static bool join_all(struct gpus *gpus, struct status *missing, struct status *status)
{
    struct joining joining = {.gpus = gpus};
    struct rank_outcome outcomes[PLAN_MAX_RANKS];
    if (!nccl_make_id(&gpus->nccl, &joining.id, missing)) return true;
    struct team *team = team_create((int)gpus->ranks, status);
    if (!team) return false;
    gpus_work(team, join_rank, &joining, outcomes);
    team_destroy(team);
    for (uint32_t r = 0; r < gpus->ranks; r++)
        if (!outcomes[r].ok) *missing = outcomes[r].status;
    return true;
}

static void leave_nccl(struct gpus *gpus)
{
    for (uint32_t r = 0; r < PLAN_MAX_RANKS; r++) nccl_leave(&gpus->nccl_ranks[r]);
    nccl_close(&gpus->nccl);
}

bool gpus_join_nccl(struct gpus *gpus, struct status *missing, struct status *status)
{
    status_clear(missing);
    if (nccl_open(&gpus->nccl, missing) && !join_all(gpus, missing, status)) return false;
    if (missing->code != STATUS_OK) leave_nccl(gpus);
    return true;
}

bool gpus_have_nccl(const struct gpus *gpus) { return gpus->nccl_ranks[0].nccl != NULL; }

/* ---- weights ---- */

bool gpus_upload_weights(struct gpus *gpus, const struct manifest *manifest, const uint8_t *weights, uint32_t rank,
                         struct progress *progress, struct status *status)
{
    enum { PIECE_BYTES = 256 << 20 };
    const struct device *device = &gpus->devices[rank];
    uint64_t bytes = manifest_rank_weights(manifest), free_bytes = 0;
    cu_deviceptr *to = &gpus->weights[rank];
    weights += rank * bytes;
    if (!device_free_memory(device, &free_bytes, status)) return false;
    if (bytes > free_bytes)
        return status_fail(status, STATUS_MACHINE,
                           "the weights need %" PRIu64 " bytes of GPU memory to be tuned, %" PRIu64
                           " are free on GPU %d; end other programs on the GPU, or use a larger one",
                           bytes, free_bytes, device->ordinal);
    if (!device_enter(device, status)) return false;
    bool ok = cuda_ok(&device->driver, device->driver.MemAlloc(to, bytes), status,
                      "allocating %" PRIu64 " bytes for the weights", bytes);
    const uint64_t all = gpus->ranks * bytes;
    for (uint64_t done = 0; ok && done < bytes; done += PIECE_BYTES) {
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        ok = device_write(device, *to + done, weights + done, piece, "copying the weights", status);
        if (progress) progress_update(progress, rank * bytes + done + piece, all, NULL);
    }
    device_leave(device);
    return ok;
}

void gpus_free_weights(struct gpus *gpus)
{
    for (uint32_t r = 0; r < gpus->ranks; r++) {
        if (gpus->weights[r]) gpus->devices[0].driver.MemFree(gpus->weights[r]);
        gpus->weights[r] = 0;
    }
}

void gpus_release(struct gpus *gpus)
{
    leave_nccl(gpus);
    cudnn_close(&gpus->cudnn);
    cublaslt_close(&gpus->cublaslt);
    gpus_free_weights(gpus);
}
