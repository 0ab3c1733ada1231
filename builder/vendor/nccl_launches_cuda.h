/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives by NCCL in the place of ours, for ranks in different processes, or where they are faster. Private to
 * build*.c. */
#ifndef BUILDER_VENDOR_NCCL_LAUNCHES_CUDA_H
#define BUILDER_VENDOR_NCCL_LAUNCHES_CUDA_H

#include "builder/vendor/library_plans_cuda.h"

/* Opens NCCL and makes all ranks' GPUs one communicator. A build goes on without: then it warns, and nccl_is_open stays
 * false. For builds of several ranks. */
bool nccl_ranks_open(struct build *build, struct status *status);
void nccl_ranks_close(struct build *build); /* harmless when it is not open */
bool nccl_is_open(const struct build *build);

/* What NCCL leaves for the kernel behind it; 0: not a collective. Not 0 for any collective of a lowered plan. */
uint64_t nccl_result_bytes(const struct device_launch *site);
/* The call and the kernel that compute `site`; the result lies in the space's projection. Returns how many. */
uint32_t nccl_launches(const struct device_launch *site, struct library_space *space,
                       struct device_launch launches[LIBRARY_MOST_LAUNCHES]);

#endif
