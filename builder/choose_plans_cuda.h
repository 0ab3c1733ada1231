/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner's last word: whole plans. What wins alone need not win in the chain, where a launch begins while the one
 * before still runs and both share the multiprocessors. So decode plans are timed as a whole: plans of few rows in either
 * fusion, with each matmul's own winner or with one choice of tunables for all of them; then, problem after problem, with
 * each tactic of the problem's shortlist. At level full prefill plans, too. Private to build*.c. */
#ifndef BUILDER_CHOOSE_PLANS_CUDA_H
#define BUILDER_CHOOSE_PLANS_CUDA_H

#include "builder/build_state.h"

/* Puts the fastest form of every plan into build->cuda.plans and frees the alternatives. The choice is a tuning record
 * (behind those of tune_cuda), so that the cache makes it the same in the next build; where nothing may be measured and
 * nothing is known the plan stays as it is. */
bool choose_plans_cuda(struct build *build, enum tune_level level, struct status *status);

/* A hash of all launches' kernels and parameters, in order, carried on from `hash`: what the time of a plan depends on. */
uint64_t hash_device_plan(const struct device_plan *plan, uint64_t hash);

#endif
