/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that call libraries: made from the plans of our own kernels by putting a library's tactic where it won, kept
 * where the whole plan is then faster. Private to build*.c. */
#ifndef BUILDER_VENDOR_LIBRARY_PLANS_CUDA_H
#define BUILDER_VENDOR_LIBRARY_PLANS_CUDA_H

#include "builder/build_state.h"

/* What library launches need of the arena: one area behind what the plan itself uses, which each call in turn has for
 * itself from its beginning. Workspace first; behind cuBLASLt's, a projection that waits for its SwiGLU. */
struct library_space {
    uint64_t workspace, projection, end; /* offsets */
};
struct library_space library_space_begin(uint64_t arena_bytes, uint64_t projection_bytes);
/* Of a launch that applies SwiGLU: what a library's tactic leaves for a launch of its own. 0: of any other. */
uint64_t library_projection_bytes(const struct device_launch *site);

/* The library that takes the launch's problem, and the problem as it sees it; 0: none that is open. */
enum plan_library library_problem(const struct build *build, const struct device_launch *site,
                                  int64_t params[PLAN_MAX_PARAMS]);
uint32_t library_version(const struct build *build, enum plan_library library); /* 0: not open */

enum { LIBRARY_MOST_LAUNCHES = 2 }; /* that take the place of one */
/* The launches that compute `site` with the library's tactic, the call and its companions, which are kernels of ours;
 * `space` grows as they need. Returns how many. */
uint32_t library_launches(const struct device_launch *site, const struct device_tactic *tactic,
                          struct library_space *space, struct device_launch launches[LIBRARY_MOST_LAUNCHES]);

/* Bytes of arena that racing library tactics for the build's plans may take. */
uint64_t library_arena_bytes(const struct build *build);

/* Makes build->cuda.library_plans, for plans where a library's tactic won a race (tune_cuda), the whole plan is faster with
 * it, and all plans together save more than opening the library at every start takes (library_worth). After
 * choose_plans_cuda. */
bool library_plans_cuda(struct build *build, enum tune_level level, struct status *status);

#endif
