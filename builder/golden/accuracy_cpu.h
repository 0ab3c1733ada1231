/* SPDX-License-Identifier: Apache-2.0 */
/* Accuracy of an encoding, measured on the processor (accuracy.h). */
#ifndef BUILDER_GOLDEN_ACCURACY_CPU_H
#define BUILDER_GOLDEN_ACCURACY_CPU_H

#include "formats/engine/manifest.h"
#include "kernels/cpu/team.h"
#include "kernels/op/op.h"
#include "tuner/progress.h"

/* A decode plan of the processor and the weights that it reads; the manifest has their sizes. */
struct accuracy_model {
    const struct manifest *manifest;
    const struct plan *plan;
    const uint8_t *weights;
};

/* measure_accuracy with as many sequences as the plans have rows, cpu_replay_affordable tokens of each. Requires: plans of equal rows,
 * manifests that differ in sizes alone. */
bool measure_accuracy_cpu(const struct accuracy_model *unquantised, const struct accuracy_model *quantised,
                          struct team *team, enum cpu_isa isa, struct progress *progress,
                          struct manifest_accuracy *accuracy, struct status *status);

#endif
