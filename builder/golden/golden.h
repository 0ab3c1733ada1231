/* SPDX-License-Identifier: Apache-2.0 */
/* Golden outputs: what the plans compute through the plain references, kept in the engine for --selftest. */
#ifndef BUILDER_GOLDEN_GOLDEN_H
#define BUILDER_GOLDEN_GOLDEN_H

#include "tuner/progress.h"
#include "formats/engine/engine_file.h"
#include "kernels/cpu/team.h"

/* Runs, on all ranks at once, a short prompt and a greedy continuation through the smallest prefill plan and the one-row decode plan.
 * `weights` is the packed weight section. golden's arrays are allocated; golden_free. Token count 0 where the
 * context is too short for both. Logits that are not finite are a failure. */
bool compute_golden(const struct manifest *manifest, const struct plan *plans, size_t plan_count,
                    const uint8_t *weights, struct team *team, struct progress *progress, struct engine_golden *golden,
                    struct status *status);

/* The steps of it that every target shares. Begin: sizes, memory and the prompt; token_count 0 where the context is too
 * short. End: checks that all logits are finite, and sets the tolerance to `relative` of the largest one (at least 1). */
bool golden_begin(const struct manifest *manifest, struct engine_golden *golden, struct status *status);
bool golden_end(struct engine_golden *golden, float relative, struct status *status);
void golden_free(struct engine_golden *golden);

#endif
