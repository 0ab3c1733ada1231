/* SPDX-License-Identifier: Apache-2.0 */
/* Which launches a library can compute, and what takes their place then: the call and its companions, which are kernels of
 * ours. */
#ifndef TUNER_CUDA_LIBRARY_LAUNCHES_H
#define TUNER_CUDA_LIBRARY_LAUNCHES_H

#include "kernels/cuda/plan/device_plan.h"
#include "tuner/cuda/gpus.h"

/* What library launches need of the arena: one area after what the plan itself uses, which each call in turn has for
 * itself from its beginning. First what a call leaves for its companion (a projection that waits for its SwiGLU, NCCL's
 * result), then the workspace. */
struct library_space {
    uint64_t workspace, projection, end; /* offsets */
};
struct library_space library_space_begin(uint64_t arena_bytes, uint64_t projection_bytes);
void library_space_grow(struct library_space *space, uint64_t end);
/* Of a launch that applies SwiGLU: what a library's tactic leaves for a launch of its own. 0: of any other. */
uint64_t library_projection_bytes(const struct device_launch *site);

/* The library that takes the launch's problem, and the problem as it sees it; 0: none that is open. */
enum plan_library library_problem(const struct gpus *gpus, const struct device_launch *site,
                                  int64_t params[PLAN_MAX_PARAMS]);
/* Most bytes of workspace that a tactic of such a problem takes. */
uint64_t library_workspace_bytes(enum plan_library library, const int64_t *params);

enum { LIBRARY_MOST_LAUNCHES = 2 }; /* that take the place of one */
/* The launches that compute `site` with the library's tactic; `space` grows as they need. Returns how many. */
uint32_t library_launches(const struct device_launch *site, const struct device_tactic *tactic,
                          struct library_space *space, struct device_launch launches[LIBRARY_MOST_LAUNCHES]);

#endif
