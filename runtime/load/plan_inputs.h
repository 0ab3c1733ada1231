/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a plan that no single launch can show: operands in STEP and STATE are fields, no launch writes a field that its
 * op's schema does not write, a sampler knows of drafted tokens in verification plans alone, and a decode plan on a GPU leaves the inputs of the next step in the step block. */
#ifndef RUNTIME_LOAD_PLAN_INPUTS_H
#define RUNTIME_LOAD_PLAN_INPUTS_H

#include "formats/engine/manifest.h"

/* `name` is for messages. Requires: the plan has passed plan_verify. */
bool plan_inputs_verify(const struct plan *plan, enum engine_target target, const struct plan_geometry *geometry,
                        const char *name, struct status *status);

#endif
