/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that call libraries: plans of our own kernels in which library tactics that won their race replace launches.
 * Such a plan is kept if it is faster as a whole. */
#ifndef TUNER_CUDA_LIBRARY_PLANS_H
#define TUNER_CUDA_LIBRARY_PLANS_H

#include "tuner/cuda/context.h"

/* Arena bytes that library tactics need while plan variants are raced. */
uint64_t library_arena_bytes(const struct gpus *gpus, const struct plan_variants *variants);

/* Adds a second variant to each plan in which a library's tactic won a race (library_races.h), if the whole plan is
 * faster with it and all plans together save more time than opening the library at every start takes (library_worth.h).
 * With several ranks and NCCL open, adds one to every plan. Requires: end-to-end tuning is done. */
bool tune_library_plans(struct tune_context *context, struct status *status);

#endif
