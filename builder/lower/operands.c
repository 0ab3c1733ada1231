/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/operands.h"

#include "builder/lower/page_groups.h"
#include "builder/lower/recurrent.h"
#include "kernels/all_reduce/all_reduce.h"

bool operands_begin(struct operand_writer *writer, const struct graph *graph, const struct lowering *lowering,
                    const struct memory_plan *memory, uint32_t rows, struct status *status)
{
    uint64_t state_bytes;
    *writer = (struct operand_writer){.graph = graph, .lowering = lowering, .memory = memory, .rows = rows};
    writer->out_rows = (uint32_t)plan_out_rows(graph->kind, rows, lowering->geometry.slots);
    if (step_layout(rows, writer->out_rows, lowering->geometry.vocab_size, lowering->geometry.hidden_size,
                    lowering->geometry.drafts, writer->step, &writer->step_bytes) &&
        state_layout(&lowering->geometry, writer->state, &state_bytes))
        return true;
    return status_fail(status, STATUS_BAD_INPUT, "a step of %u rows does not fit into 64-bit sizes", rows);
}

/* ---- the residual stream on GPUs ----
 *
 * In plans of many rows each rank keeps the residual stream of the rows that it owns: the owner of a row adds to its stream
 * and computes its norm, and the other ranks receive the normed row alone. This holds for a sum only where all later
 * readers of its stream are sums that do the same; for any other reader every rank gets every row. */

static bool works_on_own_rows(const struct graph *graph, const struct graph_node *node, uint64_t rows,
                              uint64_t out_rows)
{
    if (node->op != OP_ALL_REDUCE || node->operands[ALL_REDUCE_NORMED] < 0) return false;
    const struct graph_value *x = &graph->values[node->operands[ALL_REDUCE_X]];
    return all_reduce_device_is_large(x->rows == ROWS_TOKENS ? rows : out_rows, x->width, graph->ranks, x->dtype);
}

static bool own_rows_suffice(const struct graph *graph, int value, uint64_t rows, uint64_t out_rows)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *reader = &graph->nodes[n];
        for (int i = 0; !reader->removed && i < PLAN_MAX_OPERANDS; i++)
            if (graph_reads(reader, i) && reader->operands[i] == value &&
                (i != ALL_REDUCE_RESIDUAL || !works_on_own_rows(graph, reader, rows, out_rows)))
                return false;
    }
    return true;
}

/* For the all_reduce `node`: HAS_RESIDUAL and HAS_NORM become ALL_REDUCE_OWN_ROWS if a rank keeps only its own rows.
 * `params`: those of the schema otherwise. */
static void residual_rows(const struct graph *graph, const struct graph_node *node, uint64_t rows, uint64_t out_rows,
                          int64_t *params)
{
    if (!works_on_own_rows(graph, node, rows, out_rows)) return;
    if (params[ALL_REDUCE_HAS_RESIDUAL]) params[ALL_REDUCE_HAS_RESIDUAL] = ALL_REDUCE_OWN_ROWS;
    if (own_rows_suffice(graph, node->operands[ALL_REDUCE_OUT], rows, out_rows))
        params[ALL_REDUCE_HAS_NORM] = ALL_REDUCE_OWN_ROWS;
}

/* ---- parameters and operands ---- */

void lower_params(const struct graph *graph, const struct lowering *lowering, uint64_t rows, uint64_t out_rows,
                  const struct graph_node *node, int64_t *params)
{
    const struct graph_step step = {.rows = (int64_t)rows,
                                    .out_rows = (int64_t)out_rows,
                                    .geometry = &lowering->geometry,
                                    .kv_dtype = lowering->kv_dtype};
    graph_node_params(graph, node, &step, params);
    if (node->op == OP_ALL_REDUCE && graph->target == TARGET_CUDA) residual_rows(graph, node, rows, out_rows, params);
}

static struct plan_operand place_field(enum plan_space space, const struct plan_field *field)
{
    return (struct plan_operand){.space = (uint8_t)space, .offset = field->offset, .bytes = field->bytes};
}

static struct plan_operand place_value(const struct operand_writer *writer, int id)
{
    const struct graph_value *value = &writer->graph->values[id];
    const uint64_t rows = value->rows == ROWS_TOKENS ? writer->rows : writer->out_rows;
    if (value->place != VALUE_ARENA)
        return place_field(SPACE_STEP, &writer->step[value->place == VALUE_LOGITS ? STEP_LOGITS : STEP_HIDDEN]);
    return (struct plan_operand){.space = SPACE_ARENA,
                                 .offset = writer->memory->value_offset[id],
                                 .bytes = rows * value->width * dtype_bytes(value->dtype)};
}

static struct plan_operand place_weight(const struct graph_weight *weight)
{
    return (struct plan_operand){.space = SPACE_WEIGHTS, .offset = weight->offset, .bytes = weight->bytes};
}

/* The block that holds the keys and values which the layer reads. */
static struct page_place kv_place(const struct operand_writer *writer, uint32_t layer)
{
    const struct lowering *lowering = writer->lowering;
    const struct model_config *config = writer->graph->config;
    return page_place_of(config, lowering->kv_dtype, &lowering->geometry, model_kv_layer(config, layer));
}

static struct plan_operand place(const struct operand_writer *writer, int n, int operand)
{
    const struct graph_node *node = &writer->graph->nodes[n];
    const struct op_operand *schema = &op_find(node->op)->operands[operand];
    const struct lowering *lowering = writer->lowering;
    const struct memory_plan *memory = writer->memory;
    struct page_place page;
    struct plan_operand table;
    switch ((enum op_role)schema->role) {
    case ROLE_INPUT:
    case ROLE_OUTPUT: return place_value(writer, node->operands[operand]);
    case ROLE_WEIGHT: return place_weight(&writer->graph->weights[node->operands[operand]]);
    case ROLE_STEP: return place_field(SPACE_STEP, &writer->step[schema->field]);
    case ROLE_STATE:
        table = place_field(SPACE_STATE, &writer->state[schema->field]);
        if (schema->field == STATE_RECURRENT) {
            const uint64_t offset = recurrent_offset(writer->graph->config, node->layer, node->op);
            table.offset += offset;
            table.bytes -= offset;
        }
        if (schema->field != STATE_PAGE_TABLE) return table;
        page = kv_place(writer, node->layer);
        table.offset += page.group * plan_page_table_stride(&lowering->geometry);
        table.bytes = lowering->geometry.slots * lowering->geometry.pages_per_slot * sizeof(int32_t);
        return table;
    case ROLE_KV:
        page = kv_place(writer, node->layer);
        return (struct plan_operand){.space = SPACE_KV, .offset = page.offset, .bytes = page.bytes};
    case ROLE_HEADER: return (struct plan_operand){.space = SPACE_COMM, .bytes = sizeof(struct comm_header)};
    case ROLE_EXCHANGE:
        return (struct plan_operand){.space = SPACE_COMM,
                                     .offset = memory->exchange_offset[n],
                                     .bytes = memory->exchange_bytes[n]};
    case ROLE_WORKSPACE:
        return (struct plan_operand){.space = SPACE_ARENA,
                                     .offset = memory->workspace_offset[n],
                                     .bytes = memory->workspace_bytes[n]};
    case ROLE_COUNTERS: break;
    }
    return (struct plan_operand){.space = SPACE_ARENA, .bytes = lowering->scratch_bytes};
}

uint32_t lower_operands(const struct operand_writer *writer, int n, const int64_t *params,
                        struct plan_operand *operands)
{
    const struct op_descriptor *op = op_find(writer->graph->nodes[n].op);
    uint32_t count = 0;
    for (int i = 0; i < op->operand_count; i++) {
        if (!op_has_operand(op, writer->graph->target, params, i)) continue;
        operands[count] = place(writer, n, i);
        operands[count++].access = op_operand_access(&op->operands[i]);
    }
    return count;
}
