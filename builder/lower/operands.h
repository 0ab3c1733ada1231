/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of a launch, in the order of the op's contract: where lowering turns weights, values and fields of the step
 * into places in the memory spaces. */
#ifndef BUILDER_LOWER_OPERANDS_H
#define BUILDER_LOWER_OPERANDS_H

#include "builder/lower/lower.h"

/* Which of STEP_COUNTS a row space's valid count is. */
enum { COUNT_TOKENS = 0, COUNT_OUT = 1 };

struct operand_writer {
    const struct graph *graph;
    const struct lowering *lowering;
    const struct memory_plan *memory;
    struct plan_field step[STEP_FIELD_COUNT], state[STATE_FIELD_COUNT];
    uint64_t step_bytes;
    uint32_t rows, out_rows;
    struct plan_operand *operands; /* the caller sees to the room */
    uint32_t count;
};

/* Lays out step and state for plans of `rows` token rows. False on overflow. */
bool operands_begin(struct operand_writer *writer, const struct graph *graph, const struct lowering *lowering,
                    const struct memory_plan *memory, uint32_t rows, struct plan_operand *operands,
                    struct status *status);

void put_operand(struct operand_writer *writer, enum plan_space space, enum plan_access access, uint64_t offset,
                 uint64_t bytes);
void put_step(struct operand_writer *writer, enum step_field field, enum plan_access access);
void put_state(struct operand_writer *writer, enum state_field field, enum plan_access access);
void put_weight(struct operand_writer *writer, int id);
void put_value(struct operand_writer *writer, int id, enum plan_access access);
void put_workspace(struct operand_writer *writer, const struct graph_node *node);
void put_kv(struct operand_writer *writer, const struct graph_node *node, enum plan_access access);

/* The header of the COMM space, and the buffer of a collective in it. */
void put_comm_header(struct operand_writer *writer, enum plan_access access);
void put_exchange(struct operand_writer *writer, const struct graph_node *node);

/* Row count and index of the valid count of a value's row space. */
uint32_t operand_rows(const struct operand_writer *writer, int value);
int64_t operand_count_index(const struct operand_writer *writer, int value);

#endif
