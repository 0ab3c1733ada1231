/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of a plan in words, for engines of any target. */
#ifndef RUNTIME_CLI_CLI_LAUNCH_H
#define RUNTIME_CLI_CLI_LAUNCH_H

#include "formats/engine/engine_file.h"
#include "formats/tuning/tuning_record.h"

enum { LAUNCH_TEXT_BYTES = 128, LAUNCH_TUNABLES_BYTES = TUNING_MAX_VALUES * (TUNING_NAME_BYTES + 24) };

/* A parameter of the launch's op by its name, in whatever case; false: it has none, or its kernel is unknown here. */
bool launch_param(const struct engine *file, const struct plan *plan, const struct plan_launch *launch,
                  const char *name, int64_t *value);
/* The op with its shape: "matmul 4096 x 14336 +residual" (rows and columns of the matrix), "attention 32/8 heads of 128".
 * The rows of the step are the plan's; an op with others says how many. */
void launch_shape(const struct engine *file, const struct plan *plan, const struct plan_launch *launch,
                  char text[LAUNCH_TEXT_BYTES]);
/* What computes it: the kernel's entry on a device, the op's code on the CPU. Borrowed from the engine or constant. */
const char *launch_kernel(const struct engine *file, const struct plan_launch *launch);

/* The kernel that a record's values name; NULL on the CPU, where they are tunables alone. */
const char *tactic_kernel(const struct tuning_value *values, int count, enum engine_target target);
/* "warps=8 stages=6"; of the values that differ from `other` (the same kernel's), if that is not NULL. */
void tactic_tunables(const struct tuning_value *values, int count, enum engine_target target,
                     const struct tuning_value *other, int other_count, char text[LAUNCH_TUNABLES_BYTES]);

#endif
