/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning for GPUs: what is tuned, on what, and where the outcome goes. The stages (races.h, library_races.h, end_to_end.h,
 * library_plans.h) share it; what measures (bench.h, plan_timer.h) knows its rig alone. */
#ifndef TUNER_CUDA_CONTEXT_H
#define TUNER_CUDA_CONTEXT_H

#include "tuner/cuda/keys.h"
#include "tuner/cuda/memory.h"
#include "tuner/cuda/vendor_cache.h"

/* The ways to run a step that are left: as lowered the fusions that compete; when tuning is done the plan that runs everywhere,
 * then, where there is one, that which calls libraries instead. */
enum { PLAN_VARIANTS = 2 };
struct plan_variants {
    struct device_plan plans[PLAN_VARIANTS]; /* owned */
    uint32_t count;
};
void plan_variants_free(struct plan_variants *variants);

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

struct tune_context {
    struct cuda_rig rig;
    uint64_t scratch_bytes; /* at the start of the arena: zero between launches */
    struct kernel_compiler *compiler;
    struct vendor_cache *vendor_cache; /* owns the blobs of tactics */
    struct tactics *tactics;
    struct machine *machine; /* gets the measured ceilings of the GPU */
    struct progress *progress;
    enum tune_level level;
    bool measures; /* level is not TUNE_OFF, and the weights are on the GPUs */

    struct plan_variants *plans;
    size_t plan_count;
    struct key_parts keys;          /* the tuner's; likewise below */
    struct tuned_problem *problems; /* owned */
};

#endif
