/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and operands of a launch by its op's schema: lowering turns weights, values and fields of the step into
 * places in the memory spaces here. */
#ifndef BUILDER_LOWER_OPERANDS_H
#define BUILDER_LOWER_OPERANDS_H

#include "builder/lower/lowering.h"

struct operand_writer {
    const struct graph *graph;
    const struct lowering *lowering;
    const struct memory_plan *memory;
    struct plan_field step[STEP_FIELD_COUNT], state[STATE_FIELD_COUNT];
    uint64_t step_bytes;
    uint32_t rows, out_rows;
};

/* Lays out step and state for plans of `rows` token rows. False on overflow. */
bool operands_begin(struct operand_writer *writer, const struct graph *graph, const struct lowering *lowering,
                    const struct memory_plan *memory, uint32_t rows, struct status *status);

/* The schema's parameters of a node in a plan of these rows. params: [PLAN_MAX_PARAMS]. */
void lower_params(const struct graph *graph, const struct lowering *lowering, uint64_t rows, uint64_t out_rows,
                  const struct graph_node *node, int64_t *params);

/* Operands of node number `n`, in the order of a launch on the graph's target. operands: [PLAN_MAX_OPERANDS]. Returns
 * their number. */
uint32_t lower_operands(const struct operand_writer *writer, int n, const int64_t *params,
                        struct plan_operand *operands);

#endif
