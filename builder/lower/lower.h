/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering: a graph and a row count become a plan. */
#ifndef BUILDER_LOWER_LOWER_H
#define BUILDER_LOWER_LOWER_H

#include "builder/lower/lowering.h"

/* The plan for `rows` token rows; the caller frees it with plan_free. Tunables are the defaults. */
bool lower_plan(const struct graph *graph, const struct lowering *lowering, uint32_t rows, struct plan *plan,
                struct status *status);

#endif
