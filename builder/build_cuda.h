/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of a build that are different for a GPU. Private to build.c. */
#ifndef BUILDER_BUILD_CUDA_H
#define BUILDER_BUILD_CUDA_H

#include "builder/build_state.h"
#include "kernels/cuda/device.h"

/* Opens the GPU and the run-time compiler. */
bool build_cuda_open(struct build *build, struct status *status);
void build_cuda_close(struct build *build);

const struct device_facts *build_cuda_facts(const struct build *build);
bool build_cuda_is_on_record(
    const struct build *build); /* the GPU is one of which this machine knows the facts alone */
/* Fills the ceilings of build->machine with what the GPU's plans are assumed to reach. */
void build_cuda_estimate(struct build *build);

/* Lowers every plan with default tactics; build->plans get headers only, which is what the manifest needs. */
bool build_cuda_lower(struct build *build, const uint32_t *batches, int batch_count, const uint32_t *chunks,
                      int chunk_count, struct status *status);

/* Prints what the tuner would race. */
bool build_cuda_list_candidates(struct build *build, struct status *status);

/* Chooses tactics, then compiles what was chosen and finishes build->plans. `weights` is the packed weight section,
 * NULL when nothing may be measured. */
bool build_cuda_tune(struct build *build, const uint8_t *weights, enum tune_level level, struct status *status);

bool build_cuda_golden(struct build *build, struct engine_golden *golden, struct status *status);
bool build_cuda_write_kernels(struct build *build, struct status *status);

#endif
