/* Which of two ways of computing a step is faster, by timing both as whole plans. Private to build*.c. */
#ifndef BUILDER_CHOOSE_PLANS_CUDA_H
#define BUILDER_CHOOSE_PLANS_CUDA_H

#include "builder/build_state.h"

/* For every plan that has an alternative: keeps the faster one in build->cuda.plans and frees the other. The choice is a
 * tuning record (behind those of tune_cuda), so that the cache makes it the same in the next build; where nothing may be
 * measured and nothing is known the plan stays. */
bool choose_plans_cuda(struct build *build, enum tune_level level, struct status *status);

#endif
