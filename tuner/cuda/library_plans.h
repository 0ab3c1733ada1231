/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that call libraries: made from the plans of our own kernels by putting a library's tactic where it won, kept
 * where the whole plan is then faster. */
#ifndef TUNER_CUDA_LIBRARY_PLANS_H
#define TUNER_CUDA_LIBRARY_PLANS_H

#include "tuner/cuda/context.h"

/* Bytes of arena that racing library tactics for the variants of a plan may take. */
uint64_t library_arena_bytes(const struct gpus *gpus, const struct plan_variants *variants);

/* Adds a second variant to plans where a library's tactic won a race (library_races.h), the whole plan is faster with it, and all
 * plans together save more than opening the library at every start takes (library_worth.h); of several ranks, where NCCL is
 * open, to all. Requires: end-to-end tuning is done. */
bool tune_library_plans(struct tune_context *context, struct status *status);

#endif
