/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of a build that differ for a GPU. Private to build.c. */
#ifndef BUILDER_BUILD_CUDA_H
#define BUILDER_BUILD_CUDA_H

#include "builder/build_state.h"
#include "builder/golden/task.h"
#include "kernels/cuda/device.h"

/* Opens the GPU and the run-time compiler. */
bool build_cuda_open(struct build *build, struct status *status);
void build_cuda_close(struct build *build);

const struct device_facts *build_cuda_facts(const struct build *build);
bool build_cuda_is_on_record(const struct build *build); /* the GPU is not on this machine: only its facts are known */
/* Fills the ceilings of build->machine with the rates that the GPU's plans are assumed to reach. */
void build_cuda_estimate(struct build *build);

/* Lowers every plan with default tactics; build->plans get only headers, which the manifest needs. */
bool build_cuda_lower(struct build *build, struct status *status);

/* Prints the candidates that the tuner would race. */
bool build_cuda_list_candidates(struct build *build, struct status *status);

/* Chooses tactics, compiles their kernels and finishes build->plans. `weights` is the packed weight section, NULL if
 * nothing may be measured. */
bool build_cuda_tune(struct build *build, const uint8_t *weights, enum tune_level level, struct status *status);

bool build_cuda_golden(struct build *build, struct golden_outputs *golden, struct status *status);
/* Whether the GPUs have kernels for the decode graph of another model, whose manifest is given, and memory for its weights beside the
 * engine's, with a plan of `rows` rows. */
bool build_cuda_takes_model(const struct build *build, const struct graph *graph, const struct manifest *manifest,
                            uint32_t rows);
/* Measures the engine beside that model (accuracy_cuda.h), `plan` being the engine's. `weights`: the model's, packed. The manifest gets
 * the sizes of the model's plan. */
bool build_cuda_accuracy(struct build *build, const struct graph *graph, struct manifest *manifest,
                         const uint8_t *weights, const struct plan *plan, struct manifest_accuracy *accuracy,
                         struct status *status);
bool build_cuda_write_kernels(struct build *build, struct status *status);

#endif
