/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for devices while they are being built: every launch with its kernel and parameters, so that the tuner can put
 * another tactic in its place. Finishing a plan fixes geometry and kernel numbers and gives the engine's form. */
#ifndef KERNELS_CUDA_PLAN_DEVICE_PLAN_H
#define KERNELS_CUDA_PLAN_DEVICE_PLAN_H

#include "kernels/cuda/plan/kernel_set.h"

struct device_launch {
    enum plan_op op;
    struct device_tactic tactic; /* params: the op's, then the kernel's tunables */
    struct plan_operand operands[PLAN_MAX_OPERANDS];
    uint32_t operand_count;
    uint32_t layer;
    uint32_t record;  /* line of the tactics section, PLAN_NO_TACTIC if nothing was tuned */
    uint32_t problem; /* of the tuner: launches of one problem can have each other's tactics; PLAN_NO_TACTIC: none */
};

struct device_plan {
    struct plan_header header;                /* counts are set by finishing */
    uint64_t vocab_size, hidden_size, drafts; /* as in struct plan_geometry */
    struct device_launch *launches;           /* owned */
    uint32_t count;
};

bool device_plan_copy(const struct device_plan *plan, struct device_plan *copy, struct status *status);
void device_plan_free(struct device_plan *plan);

/* A hash of all launches' kernels and parameters, in order, carried on from `hash`: what the time of a plan depends on. */
uint64_t device_plan_hash(const struct device_plan *plan, uint64_t hash);

/* The plan as the engine holds it; the caller frees it with plan_free. Adds its kernels to the set. */
bool device_plan_finish(const struct device_plan *plan, const struct device_facts *gpu, struct kernel_set *set,
                        struct plan *finished, struct status *status);

#endif
