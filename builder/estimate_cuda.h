/* SPDX-License-Identifier: Apache-2.0 */
/* What a step on GPUs will take, from what it moves and computes: for plans that nobody has timed. */
#ifndef BUILDER_ESTIMATE_CUDA_H
#define BUILDER_ESTIMATE_CUDA_H

#include "builder/tune_plans.h"
#include "kernels/cuda/device.h"

/* Fills the ceilings of `machine` with the shares of the GPU's nominal ones that whole plans reach. False where the driver
 * does not tell them. */
bool estimate_cuda_ceilings(const struct device *device, struct machine *machine);

/* Microseconds of a step: of each launch what it moves or computes, whichever takes longer, and what a launch costs besides;
 * of a collective what goes over the link. */
double estimate_cuda_plan_us(const struct plan *plan, const struct machine *machine, uint64_t ranks);

#endif
