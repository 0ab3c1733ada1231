/* SPDX-License-Identifier: Apache-2.0 */
/* What a step on GPUs will take, from what it moves and computes: for plans that nobody has timed. */
#ifndef TUNER_CUDA_ESTIMATE_H
#define TUNER_CUDA_ESTIMATE_H

#include "formats/engine/plan.h"
#include "kernels/cuda/device.h"
#include "tuner/machine.h"

struct device_clocks {
    int memory_khz, bus_bits, clock_khz;
};
/* All 0 where the driver does not tell them. */
void estimate_cuda_clocks(const struct device *device, struct device_clocks *clocks);

/* Fills the ceilings of `machine` with the shares of the GPU's nominal ones that whole plans reach; 0 where they are unknown. */
void estimate_cuda_ceilings(const struct device_facts *facts, const struct device_clocks *clocks,
                            struct machine *machine);

/* Microseconds of a step: of each launch what it moves or computes, whichever takes longer, and what a launch costs besides;
 * of a collective what goes over the link. */
double estimate_cuda_plan_us(const struct plan *plan, const struct machine *machine, uint64_t ranks);

#endif
