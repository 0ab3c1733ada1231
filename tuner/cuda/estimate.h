/* SPDX-License-Identifier: Apache-2.0 */
/* Estimated time of a step on GPUs, from the bytes it moves and the operations it computes: for plans that were not
 * timed. */
#ifndef TUNER_CUDA_ESTIMATE_H
#define TUNER_CUDA_ESTIMATE_H

#include "formats/engine/plan.h"
#include "kernels/cuda/device.h"
#include "tuner/machine.h"

struct device_clocks {
    int memory_khz, bus_bits, clock_khz;
};
/* All 0 if the driver does not report them. */
void estimate_cuda_clocks(const struct device *device, struct device_clocks *clocks);

/* Fills the ceilings of `machine`: the fractions of the GPU's nominal rates that whole plans reach; 0 if the nominal
 * rates are unknown. */
void estimate_cuda_ceilings(const struct device_facts *facts, const struct device_clocks *clocks,
                            struct machine *machine);

/* Microseconds of a step: per launch the time of its memory traffic or of its operations, whichever is longer, plus a
 * fixed cost; per collective also the time on the link. */
double estimate_cuda_plan_us(const struct plan *plan, const struct machine *machine, uint64_t ranks);

#endif
