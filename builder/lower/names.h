/* SPDX-License-Identifier: Apache-2.0 */
/* The names section of an engine: names of the ops, parameters, kernels and library calls of its plans. */
#ifndef BUILDER_LOWER_NAMES_H
#define BUILDER_LOWER_NAMES_H

#include "kernels/cuda/plan/kernel_set.h"

/* `set`: the kernels and calls of the engine; NULL on the CPU target. */
bool write_names(struct engine_writer *writer, const struct plan *plans, size_t count, const struct kernel_set *set,
                 struct status *status);

#endif
