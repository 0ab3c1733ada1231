/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of launches, for engines of any target. */
#ifndef RUNTIME_CLI_CLI_LAUNCH_H
#define RUNTIME_CLI_CLI_LAUNCH_H

#include "formats/engine/engine_file.h"
#include "formats/tuning/tuning_record.h"

enum { LAUNCH_TEXT_BYTES = 128, LAUNCH_TUNABLES_BYTES = TUNING_MAX_VALUES * (TUNING_NAME_BYTES + 24) };

/* The op with its shape: "matmul 4096 x 14336 +residual" (rows and columns of the matrix), "attention 32/8 heads of
 * 128". The number of rows is included if it differs from the plan's. */
void launch_shape(const struct engine *file, const struct plan *plan, const struct plan_launch *launch,
                  char text[LAUNCH_TEXT_BYTES]);

/* The kernel named by a record's values; NULL on the CPU, where all values are tunables. */
const char *tactic_kernel(const struct tuning_value *values, int count, enum engine_target target);
/* "warps=8 stages=6"; if `other` (values of the same kernel) is not NULL, only the values that differ. */
void tactic_tunables(const struct tuning_value *values, int count, enum engine_target target,
                     const struct tuning_value *other, int other_count, char text[LAUNCH_TUNABLES_BYTES]);

#endif
