/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives by NCCL in the place of ours, for ranks in different processes, or where they are faster. */
#ifndef TUNER_CUDA_NCCL_LAUNCHES_H
#define TUNER_CUDA_NCCL_LAUNCHES_H

#include "tuner/cuda/library_launches.h"

/* Bytes that NCCL's call leaves for the kernel that follows it; 0: not a collective. Not 0 for any collective of a lowered
 * plan. */
uint64_t nccl_result_bytes(const struct device_launch *site);
/* The call and the kernel that compute `site`; the result lies in the space's projection. Returns how many. */
uint32_t nccl_launches(const struct device_launch *site, struct library_space *space,
                       struct device_launch launches[LIBRARY_MOST_LAUNCHES]);

#endif
