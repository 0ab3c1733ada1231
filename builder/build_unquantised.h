/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of a build that run the model with the weights that the checkpoint has: calibration, on the processor whatever the target, and
 * the accuracy of encodings, on the engine's GPU where that can hold both models, else on the processor, as for several GPUs. Private to
 * build.c. */
#ifndef BUILDER_BUILD_UNQUANTISED_H
#define BUILDER_BUILD_UNQUANTISED_H

#include "builder/build_state.h"

/* With --calibrate: notes how activations vary, for the weights that are about to be packed. */
bool build_calibrate(struct build *build, struct status *status);
/* Where the builder made codes of fewer bits: fills the manifest's accuracy. `weights`: the engine's. A machine that cannot
 * hold the weights twice, on its disk and for a while, builds the engine all the same, after a warning. */
bool build_find_accuracy(struct build *build, const uint8_t *weights, struct status *status);
void build_unquantised_close(struct build *build); /* harmless twice */

#endif
