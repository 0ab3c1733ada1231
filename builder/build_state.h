/* SPDX-License-Identifier: Apache-2.0 */
/* What a build holds between its stages. Private to build*.c. */
#ifndef BUILDER_BUILD_STATE_H
#define BUILDER_BUILD_STATE_H

#include "builder/build.h"
#include "builder/lower/device_plan.h"
#include "builder/gpu_record.h"
#include "builder/vendor/library_blobs.h"
#include "builder/lower/lower.h"
#include "builder/tune_plans.h"
#include "formats/checkpoint/checkpoint.h"
#include "kernels/cuda/comm.h"
#include "kernels/cuda/vendor/cublaslt.h"
#include "kernels/cuda/vendor/cudnn.h"
#include "kernels/cuda/vendor/nccl.h"

enum { SHORTLIST = 8 };
struct shortlisted {
    struct device_tactic tactic;
    struct tuning_record record; /* of what was measured of it */
};
/* What the tuner knows of a problem when it is done; launches name it by index. */
struct tuned_problem {
    struct device_tactic best;    /* of our own: what the record of the problem's number names */
    struct device_tactic library; /* that beat our own best; kernel NULL: none did */
    uint32_t library_record;      /* line of the tactics section */
    struct shortlisted
        shortlist[SHORTLIST]; /* the best, then what else may serve a whole plan; none without measuring */
    int shortlist_count;
};

/* The device half of a build: all zero for the CPU target. */
struct cuda_build {
    struct device device;
    const struct gpu_record *record; /* device holds facts alone, those of this record; NULL: a GPU of this machine */
    bool entered; /* its context is current as long as the build lasts, so that all that was taken can be freed */
    struct nvrtc *nvrtc;
    struct device_plan plans[2 * BUILD_MAX_PLANS];        /* as struct build.plans */
    struct device_plan alternatives[2 * BUILD_MAX_PLANS]; /* the same steps with other fusions; count 0: none */
    struct device_plan
        library_plans[2 * BUILD_MAX_PLANS]; /* instead of plans, where libraries are there; count 0: none */
    struct tuned_problem *problems;         /* owned */
    size_t problem_count;
    struct cublaslt cublaslt; /* open unless the build is lean or the library is missing; likewise cudnn */
    struct cudnn cudnn;
    struct library_blobs blobs; /* of tactics, which borrow them */
    struct kernel_set kernels;
    struct kernel_set compiled; /* everything that was, for races and plans */
    cu_deviceptr weights;       /* rank 0's on the device, for tuning and golden outputs; 0: not there */
    struct cuda_rank {
        struct device device;
        cu_deviceptr weights;
    } others[PLAN_MAX_RANKS - 1]; /* of ranks 1, 2, ... */
    enum cuda_link link;          /* several ranks: how they exchange */
    struct nccl nccl;             /* likewise: open unless the build is lean or NCCL is missing */
    struct nccl_rank nccl_ranks[PLAN_MAX_RANKS];
};

/* build_close releases it in any state. */
struct build {
    const struct build_options *options;
    enum engine_target target;
    struct checkpoint checkpoint;
    bool checkpoint_open, has_weights;
    struct model_config rank_config; /* several ranks: of each */
    struct graph decode, prefill;
    struct graph narrow; /* devices: decode of few rows */
    struct lowering lowering;
    struct team *team;
    struct machine machine;
    struct cuda_build cuda;
    struct plan plans[2 * BUILD_MAX_PLANS]; /* decode plans, then prefill plans */
    size_t plan_count;
    double plan_us[2 * BUILD_MAX_PLANS];            /* devices: measured time of each plan, 0: not measured */
    struct plan library_plans[2 * BUILD_MAX_PLANS]; /* devices: instead of plans; launch_count 0: none */
    struct manifest manifest;
    struct tuning_cache cache;
    bool cache_open;
    struct tactics tactics;
    uint8_t *tokenizer; /* image, NULL if the checkpoint has none */
    size_t tokenizer_bytes;
    uint32_t tokenizer_tokens;
    char no_tokenizer[320]; /* why there is none; empty: there is one */
    struct engine_writer *writer;
    struct progress progress;
    uint64_t file_bytes;
};

/* The GPU of a rank, and its share of the weights there. */
static inline const struct device *build_cuda_device(const struct build *build, uint32_t rank)
{
    return rank == 0 ? &build->cuda.device : &build->cuda.others[rank - 1].device;
}
static inline cu_deviceptr build_cuda_weights(const struct build *build, uint32_t rank)
{
    return rank == 0 ? build->cuda.weights : build->cuda.others[rank - 1].weights;
}

/* A line on options->warnings, if there is one: what does not stop the build. */
void build_warn(struct build *build, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
