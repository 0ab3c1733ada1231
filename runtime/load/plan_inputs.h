/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what no single op can know: that the integers a plan reads as indices (tokens, slots, positions, row numbers,
 * page tables, samplers) are the fields that the runtime fills, and that no launch writes over them. */
#ifndef RUNTIME_LOAD_PLAN_INPUTS_H
#define RUNTIME_LOAD_PLAN_INPUTS_H

#include "formats/engine/manifest.h"

/* `name` is for messages. The plan has passed plan_verify and op_verify. */
bool plan_inputs_verify(const struct plan *plan, enum engine_target target, const struct plan_geometry *geometry,
                        const char *name, struct status *status);

#endif
