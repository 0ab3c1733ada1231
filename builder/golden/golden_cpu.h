/* SPDX-License-Identifier: Apache-2.0 */
/* Golden outputs on processors: the engine's plans on memory of their own, all ranks at once. */
#ifndef BUILDER_GOLDEN_GOLDEN_CPU_H
#define BUILDER_GOLDEN_GOLDEN_CPU_H

#include "builder/golden/task.h"
#include "formats/engine/manifest.h"
#include "kernels/cpu/team.h"
#include "kernels/op/op.h"
#include "tuner/progress.h"

/* The prompt runs through the plain references; the rows of the plans, too, if that takes at
 * most 2e8 floating-point operations, else through the decode plan of one row and, for contexts, the smallest prefill plan. `weights` is the
 * packed weight section. The plans run with instruction set `isa`. Logits that are not finite are a failure, and so is a plan that
 * differs by more than the tolerance. */
bool compute_golden(const struct manifest *manifest, const struct plan *plans, size_t plan_count,
                    const uint8_t *weights, struct team *team, enum cpu_isa isa, struct progress *progress,
                    struct golden_outputs *outputs, struct status *status);

#endif
