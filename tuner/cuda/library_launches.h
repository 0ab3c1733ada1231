/* SPDX-License-Identifier: Apache-2.0 */
/* Which launches a library can compute, and their replacement: the library call and its companions, which are kernels
 * of ours. */
#ifndef TUNER_CUDA_LIBRARY_LAUNCHES_H
#define TUNER_CUDA_LIBRARY_LAUNCHES_H

#include "kernels/cuda/plan/device_plan.h"
#include "tuner/cuda/gpus.h"

/* Arena space of library launches: one area after the plan's own, which each call in turn uses from its start. It holds
 * the call's output for its companion (a projection before SwiGLU, NCCL's result), then the workspace. */
struct library_space {
    uint64_t workspace, projection, end; /* offsets */
};
struct library_space library_space_begin(uint64_t arena_bytes, uint64_t projection_bytes);
void library_space_grow(struct library_space *space, uint64_t end);
/* Bytes of the output that a library's tactic leaves for the SwiGLU companion of this launch; 0: the launch applies no
 * SwiGLU. */
uint64_t library_projection_bytes(const struct device_launch *site);

/* The library that can compute the launch, and the problem in the library's terms; 0: no open library can. */
enum plan_library library_problem(const struct gpus *gpus, const struct device_launch *site,
                                  int64_t params[PLAN_MAX_PARAMS]);
/* Largest workspace of a tactic for such a problem. */
uint64_t library_workspace_bytes(enum plan_library library, const int64_t *params);

enum { LIBRARY_MOST_LAUNCHES = 2 }; /* launches that replace one */
/* Writes the launches that compute `site` with the library's tactic, and enlarges `space` as they need. Returns their
 * number. */
uint32_t library_launches(const struct device_launch *site, const struct device_tactic *tactic,
                          struct library_space *space, struct device_launch launches[LIBRARY_MOST_LAUNCHES]);

#endif
