/* SPDX-License-Identifier: Apache-2.0 */
/* State of tuning for GPUs: input, machine and results. All stages (races.h, library_races.h, end_to_end.h,
 * library_plans.h) share it; the measuring code (bench.h, plan_timer.h) sees the rig only. */
#ifndef TUNER_CUDA_CONTEXT_H
#define TUNER_CUDA_CONTEXT_H

#include "tuner/cuda/keys.h"
#include "tuner/cuda/memory.h"
#include "tuner/cuda/vendor_cache.h"

/* Variants of one step. After lowering: the competing fusions. After tuning: first the plan that runs everywhere, then,
 * if there is one, the plan that calls libraries. */
enum { PLAN_VARIANTS = 2 };
struct plan_variants {
    struct device_plan plans[PLAN_VARIANTS]; /* owned */
    uint32_t count;
};
void plan_variants_free(struct plan_variants *variants);

enum { SHORTLIST = 8 };
struct shortlisted {
    struct device_tactic tactic;
    struct tuning_record record; /* its measurement */
};
/* Result of tuning one problem; launches refer to it by index. */
struct tuned_problem {
    struct device_tactic best;    /* best tactic of our own kernels; the record with the problem's number describes
                                   * it */
    struct device_tactic library; /* the library tactic that beat it; kernel NULL: none did */
    uint32_t library_record;      /* line of the tactics section */
    struct shortlisted
        shortlist[SHORTLIST]; /* the best, then other candidates for whole plans; empty if nothing was measured */
    int shortlist_count;
};

struct tune_context {
    struct cuda_rig rig;
    uint64_t scratch_bytes; /* at the start of the arena: zero between launches */
    struct kernel_compiler *compiler;
    struct vendor_cache *vendor_cache; /* owns the library plans that tactics refer to */
    struct tactics *tactics;
    struct machine *machine; /* receives the measured ceilings of the GPU */
    struct progress *progress;
    enum tune_level level;
    bool measures; /* level is not TUNE_OFF, and the weights are on the GPUs */

    struct plan_variants *plans;
    size_t plan_count;
    struct key_parts keys;          /* this field and those below belong to the tuner */
    struct tuned_problem *problems; /* owned */
};

#endif
