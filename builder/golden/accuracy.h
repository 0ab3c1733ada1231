/* SPDX-License-Identifier: Apache-2.0 */
/* What an encoding of fewer bits costs: the distance between the distributions of the next token. Processors: accuracy_cpu.h, GPUs:
 * accuracy_cuda.h. */
#ifndef BUILDER_GOLDEN_ACCURACY_H
#define BUILDER_GOLDEN_ACCURACY_H

#include "builder/golden/task.h"
#include "kernels/cpu/team.h"

/* A decode plan that `run` replays. *found is valid until the next replay of this model. */
struct accuracy_runner {
    bool (*run)(void *context, const struct golden_step *step, struct golden_found *found, struct status *status);
    void *context;
};

/* Runs both models over texts that the unquantised one draws (temperature 1, the same for every build of this kind of machine), `texts` times
 * one after the other: `rows` sequences, in slots 0 and on, of `tokens` tokens. For each token the distance is the Kullback-Leibler divergence of the quantised
 * model's distribution from the other's, in nats. `manifest`: of either; `team` compares and draws. */
bool measure_accuracy(const struct accuracy_runner *unquantised, const struct accuracy_runner *quantised,
                      const struct manifest *manifest, uint32_t rows, uint32_t tokens, uint32_t texts,
                      struct team *team, struct progress *progress, struct manifest_accuracy *accuracy,
                      struct status *status);

#endif
