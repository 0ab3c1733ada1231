/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that no single op can make: integers that a plan reads as indices (tokens, slots, positions, row numbers, page
 * tables, samplers) are fields that the runtime fills, and no launch writes to them. */
#ifndef RUNTIME_LOAD_PLAN_INPUTS_H
#define RUNTIME_LOAD_PLAN_INPUTS_H

#include "formats/engine/manifest.h"

/* `name` is for messages. Requires: the plan has passed plan_verify and op_verify. */
bool plan_inputs_verify(const struct plan *plan, enum engine_target target, const struct plan_geometry *geometry,
                        const char *name, struct status *status);

#endif
