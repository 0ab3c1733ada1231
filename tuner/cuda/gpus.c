/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/gpus.h"

#include <inttypes.h>

#include "kernels/cpu/team.h"

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
    struct {
        bool ok;
        struct status status;
    } ranks[PLAN_MAX_RANKS];
};

static void join_rank(void *argument, struct team_member *member)
{
    const double longest_seconds = 30; /* NCCL's first inspection of the machine */
    struct joining *joining = argument;
    struct gpus *gpus = joining->gpus;
    uint32_t rank = (uint32_t)member->index;
    const struct device *device = &gpus->devices[rank];
    struct status *status = &joining->ranks[rank].status;
    status_clear(status);
    if (!device_enter(device, status)) return;
    joining->ranks[rank].ok = nccl_join(&gpus->nccl_ranks[rank], &gpus->nccl, device, &joining->id, rank, gpus->ranks,
                                        longest_seconds, NULL, status);
    device_leave(device);
}

static bool join_all(struct gpus *gpus, struct status *missing, struct status *status)
{
    struct joining joining = {.gpus = gpus};
    if (!nccl_make_id(&gpus->nccl, &joining.id, missing)) return true;
    struct team *team = team_create((int)gpus->ranks, status);
    if (!team) return false;
    team_run(team, join_rank, &joining);
    team_destroy(team);
    for (uint32_t r = 0; r < gpus->ranks; r++)
        if (!joining.ranks[r].ok) *missing = joining.ranks[r].status;
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
        ok = cuda_ok(&device->driver, device->driver.MemcpyHtoDAsync(*to + done, weights + done, piece, device->stream),
                     status, "copying the weights") &&
             cuda_ok(&device->driver, device->driver.StreamSynchronize(device->stream), status, "copying the weights");
        progress_update(progress, rank * bytes + done + piece, all, NULL);
    }
    device_leave(device);
    return ok;
}

void gpus_release(struct gpus *gpus)
{
    leave_nccl(gpus);
    cudnn_close(&gpus->cudnn);
    cublaslt_close(&gpus->cublaslt);
    for (uint32_t r = 0; r < gpus->ranks; r++)
        if (gpus->weights[r]) gpus->devices[0].driver.MemFree(gpus->weights[r]);
}
