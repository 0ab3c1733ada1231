/* SPDX-License-Identifier: Apache-2.0 */
/* What an encoding of fewer bits costs: the distance between the distributions of the next token. */
#ifndef BUILDER_GOLDEN_ACCURACY_H
#define BUILDER_GOLDEN_ACCURACY_H

#include "formats/engine/manifest.h"
#include "kernels/cpu/team.h"
#include "kernels/op/op.h"
#include "tuner/progress.h"

/* A decode plan and the weights that it reads; the manifest has their sizes. */
struct accuracy_model {
    const struct manifest *manifest;
    const struct plan *plan;
    const uint8_t *weights;
};

/* Runs both models over texts that the unquantised one draws (temperature 1, the same for every build of as many threads), as many
 * sequences at once as the plans have rows: cpu_replay_affordable tokens of each. For each token the distance is
 * the Kullback-Leibler divergence of the quantised model's distribution from the other's, in nats. Requires: plans of equal rows, manifests that differ in sizes alone. */
bool measure_accuracy(const struct accuracy_model *unquantised, const struct accuracy_model *quantised,
                      struct team *team, enum cpu_isa isa, struct progress *progress,
                      struct manifest_accuracy *accuracy, struct status *status);

#endif
