/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs on which a build measures, one for each rank, and the libraries opened on them. */
#ifndef TUNER_CUDA_GPUS_H
#define TUNER_CUDA_GPUS_H

#include "formats/engine/manifest.h"
#include "kernels/cpu/team.h"
#include "kernels/cuda/calls.h"
#include "kernels/cuda/comm.h"
#include "kernels/cuda/vendor/cublaslt.h"
#include "kernels/cuda/vendor/cudnn.h"
#include "kernels/cuda/vendor/nccl.h"
#include "tuner/progress.h"

struct gpus {
    uint32_t ranks;
    struct device devices[PLAN_MAX_RANKS]; /* the first may hold facts only */
    cu_deviceptr weights[PLAN_MAX_RANKS];  /* each rank's weights; 0: not uploaded */
    enum cuda_link link;                   /* several ranks: how they exchange data */
    struct cublaslt cublaslt;              /* of the first GPU; all zero unless open, as are the fields below */
    struct cudnn cudnn;
    struct nccl nccl;
    struct nccl_rank nccl_ranks[PLAN_MAX_RANKS];
};

/* Work of all ranks at once, each on a thread of the team; without a team that of rank 0, on this thread. */
typedef bool rank_work(void *context, uint32_t rank, struct status *status);
struct rank_outcome {
    bool ok;
    struct status status;
};
void gpus_work(struct team *team, rank_work *work, void *context, struct rank_outcome outcomes[PLAN_MAX_RANKS]);
/* Calls with the open libraries, of which cuBLASLt and cuDNN serve rank 0 alone; with NCCL's, if it
 * is open, where `joined`. cuda_calls_close follows. */
bool gpus_borrow_calls(const struct gpus *gpus, uint32_t rank, bool joined, struct cuda_calls *calls,
                       struct status *status);

uint32_t gpus_library_version(const struct gpus *gpus, enum plan_library library); /* 0: not open */

/* Opens NCCL and makes all GPUs one communicator. If that fails, *missing gives the reason and NCCL is not open. */
bool gpus_join_nccl(struct gpus *gpus, struct status *missing, struct status *status);
bool gpus_have_nccl(const struct gpus *gpus);

/* Uploads the rank's region of `weights`, the packed weight section, to its GPU. */
bool gpus_upload_weights(struct gpus *gpus, const struct manifest *manifest, const uint8_t *weights, uint32_t rank,
                         struct progress *progress, struct status *status);

void gpus_free_weights(struct gpus *gpus); /* of all ranks; requires: the first GPU's context is current */
/* Closes the libraries and frees the weights; the devices stay open. Requires: the first GPU's context is current. */
void gpus_release(struct gpus *gpus);

#endif
