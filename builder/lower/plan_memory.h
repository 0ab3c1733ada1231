/* SPDX-License-Identifier: Apache-2.0 */
/* Memory planning: every value, workspace and exchange buffer of a graph gets its offset. */
#ifndef BUILDER_LOWER_PLAN_MEMORY_H
#define BUILDER_LOWER_PLAN_MEMORY_H

#include "builder/lower/lowering.h"

/* The largest buffer of a collective in a plan of these rows, for struct lowering; 0: there is none. */
bool lower_exchange_bytes(const struct graph *graph, const struct lowering *lowering, uint64_t rows, uint64_t out_rows,
                          uint64_t *bytes, struct status *status);

/* Assigns offsets by lifetime: a value lives from the node that makes it to the last that reads it, takes the
 * smallest hole that fits, and takes over the memory of an input that dies where the op's contract allows it.
 * `rows` and `out_rows` as in the plan header. */
bool plan_memory(const struct graph *graph, const struct lowering *lowering, uint64_t rows, uint64_t out_rows,
                 struct memory_plan *memory, struct status *status);
void memory_plan_free(struct memory_plan *memory);

#endif
