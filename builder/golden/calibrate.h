/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a model over a text and notes how the activations of its matmuls vary. */
#ifndef BUILDER_GOLDEN_CALIBRATE_H
#define BUILDER_GOLDEN_CALIBRATE_H

#include "builder/golden/accuracy_cpu.h"
#include "builder/weights/calibration.h"

/* `graph` made the model's plan and has the weights of `calibration` in the same order. text[count] is divided among as many
 * sequences as the plan has rows; NULL: the model draws its own. At most cpu_replay_affordable tokens of each sequence. */
bool calibrate(const struct accuracy_model *model, const struct graph *graph, const int32_t *text, uint64_t count,
               struct team *team, enum cpu_isa isa, struct progress *progress, struct calibration *calibration,
               struct status *status);

#endif
