/* The tuner's last word: whole plans. What wins alone need not win in the chain, where a launch begins while the one
 * before still runs and both share the multiprocessors. So decode plans of few rows are timed as a whole in several
 * forms: either fusion, with each matmul's own winner, or with one choice of tunables for all of them. Private to
 * build*.c. */
#ifndef BUILDER_CHOOSE_PLANS_CUDA_H
#define BUILDER_CHOOSE_PLANS_CUDA_H

#include "builder/build_state.h"

/* For every plan that has an alternative: puts the fastest form into build->cuda.plans and frees the alternative. The
 * choice is a tuning record (behind those of tune_cuda), so that the cache makes it the same in the next build; where
 * nothing may be measured and nothing is known the plan stays as it is. */
bool choose_plans_cuda(struct build *build, enum tune_level level, struct status *status);

#endif
