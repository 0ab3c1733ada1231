/* SPDX-License-Identifier: Apache-2.0 */
/* To what matrix products round activations: what --compute asks for, what a checkpoint does where it does not, and what the target
 * can. Private to build*.c. */
#ifndef BUILDER_BUILD_COMPUTE_H
#define BUILDER_BUILD_COMPUTE_H

#include "builder/build_state.h"
#include "kernels/cuda/kernel.h"

/* Refuses values of --compute that the target does not have. Requires: the checkpoint is open. */
bool build_compute_check(const struct build *build, struct status *status);

/* CUDA: decides whether plans of many rows multiply codes of activations, makes their graphs if they do, and sets
 * build->eight_bit_rows. Requires: the weights have their places. */
bool build_compute_choose(struct build *build, const struct device_facts *gpu, struct status *status);

/* Whether matrices of experts, or blocks of latent attention, are multiplied in bf16 in plans of any number of rows, since
 * eight_bit_inputs leaves them out. False where no plan multiplies codes of activations. */
bool build_compute_leaves_experts(const struct build *build);
bool build_compute_leaves_blocks(const struct build *build);

#endif
