/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of GPUs that this machine may not have, so that a dry run can plan for them. */
#ifndef BUILDER_GPU_RECORD_H
#define BUILDER_GPU_RECORD_H

#include "tuner/cuda/estimate.h"

struct gpu_record {
    const char *name; /* as users give it, in any case */
    struct device_facts facts;
    struct device_clocks clocks;
};

/* Finds the record of a GPU; NULL as `name` gives the first one. STATUS_USAGE with the known names. */
const struct gpu_record *gpu_record_find(const char *name, struct status *status);

#endif
