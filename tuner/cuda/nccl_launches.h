/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives by NCCL instead of our own, for ranks in different processes or where they are faster. */
#ifndef TUNER_CUDA_NCCL_LAUNCHES_H
#define TUNER_CUDA_NCCL_LAUNCHES_H

#include "tuner/cuda/library_launches.h"

/* Bytes of the result that NCCL's call leaves for the kernel after it; 0: the launch is no collective. Every collective
 * of a lowered plan has more than 0. */
uint64_t nccl_result_bytes(const struct device_launch *site);
/* Writes the call and the kernel that compute `site`; NCCL's result lies in the space's projection. Returns their
 * number. */
uint32_t nccl_launches(const struct device_launch *site, struct library_space *space,
                       struct device_launch launches[LIBRARY_MOST_LAUNCHES]);

#endif
