/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/operands.h"

bool operands_begin(struct operand_writer *writer, const struct graph *graph, const struct lowering *lowering,
                    const struct memory_plan *memory, uint32_t rows, struct plan_operand *operands,
                    struct status *status)
{
    uint64_t state_bytes;
    *writer = (struct operand_writer){.graph = graph,
                                      .lowering = lowering,
                                      .memory = memory,
                                      .rows = rows,
                                      .operands = operands};
    writer->out_rows = graph->kind == PLAN_DECODE ? rows : 1;
    if (step_layout(rows, writer->out_rows, lowering->geometry.vocab_size, writer->step, &writer->step_bytes) &&
        state_layout(&lowering->geometry, writer->state, &state_bytes))
        return true;
    return status_fail(status, STATUS_BAD_INPUT, "a step of %u rows does not fit into 64-bit sizes", rows);
}

void put_operand(struct operand_writer *writer, enum plan_space space, enum plan_access access, uint64_t offset,
                 uint64_t bytes)
{
    writer->operands[writer->count++] =
        (struct plan_operand){.space = (uint8_t)space, .access = (uint8_t)access, .offset = offset, .bytes = bytes};
}

void put_step(struct operand_writer *writer, enum step_field field, enum plan_access access)
{
    put_operand(writer, SPACE_STEP, access, writer->step[field].offset, writer->step[field].bytes);
}

void put_state(struct operand_writer *writer, enum state_field field, enum plan_access access)
{
    put_operand(writer, SPACE_STATE, access, writer->state[field].offset, writer->state[field].bytes);
}

void put_weight(struct operand_writer *writer, int id)
{
    const struct graph_weight *weight = &writer->graph->weights[id];
    put_operand(writer, SPACE_WEIGHTS, ACCESS_READ, weight->offset, weight->bytes);
}

void put_value(struct operand_writer *writer, int id, enum plan_access access)
{
    const struct graph_value *value = &writer->graph->values[id];
    if (value->place == VALUE_LOGITS)
        put_step(writer, STEP_LOGITS, access);
    else if (value->place == VALUE_NEXT_TOKENS)
        put_step(writer, STEP_NEXT_TOKENS, access);
    else
        put_operand(writer, SPACE_ARENA, access, writer->memory->value_offset[id],
                    operand_rows(writer, id) * value->width * dtype_bytes(value->dtype));
}

void put_workspace(struct operand_writer *writer, const struct graph_node *node)
{
    size_t n = (size_t)(node - writer->graph->nodes);
    put_operand(writer, SPACE_ARENA, ACCESS_READ_WRITE, writer->memory->workspace_offset[n],
                writer->memory->workspace_bytes[n]);
}

void put_kv(struct operand_writer *writer, const struct graph_node *node, enum plan_access access)
{
    const struct lowering *lowering = writer->lowering;
    uint64_t bytes = kv_layer_bytes(writer->graph->config, lowering->geometry.page_tokens, lowering->kv_dtype);
    put_operand(writer, SPACE_KV, access, node->layer * bytes, bytes);
}

void put_comm_header(struct operand_writer *writer, enum plan_access access)
{
    put_operand(writer, SPACE_COMM, access, 0, sizeof(struct comm_header));
}

void put_exchange(struct operand_writer *writer, const struct graph_node *node)
{
    size_t n = (size_t)(node - writer->graph->nodes);
    put_operand(writer, SPACE_COMM, ACCESS_READ_WRITE, writer->memory->exchange_offset[n],
                writer->memory->exchange_bytes[n]);
}

uint32_t operand_rows(const struct operand_writer *writer, int value)
{
    return writer->graph->values[value].rows == ROWS_TOKENS ? writer->rows : writer->out_rows;
}

int64_t operand_count_index(const struct operand_writer *writer, int value)
{
    return writer->graph->values[value].rows == ROWS_TOKENS ? COUNT_TOKENS : COUNT_OUT;
}
