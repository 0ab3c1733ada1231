/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/lower.h"

#include <stdlib.h>
#include <string.h>

#include "builder/lower/operands.h"
#include "builder/lower/plan_memory.h"
#include "formats/base/checked.h"
#include "kernels/attention/attention.h"

struct emitter {
    const struct graph *graph;
    const struct lowering *lowering;
    struct plan_geometry geometry; /* of the lowering, its state placed */
    struct operand_writer writer;
    /* the plan under construction; capacities are the worst case */
    struct plan_header header;
    struct plan_launch *launches;
    struct plan_operand *operands;
    struct plan_param *params;
    uint32_t *dependencies;
};

/* ---- dependencies ---- */

static bool conflict(const struct plan_operand *a, const struct plan_operand *b)
{
    if (a->space != b->space || a->space == SPACE_WEIGHTS) return false;
    if (!((a->access | b->access) & ACCESS_WRITE)) return false;
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static bool launches_conflict(const struct emitter *e, const struct plan_launch *a, const struct plan_launch *b)
{
    for (uint32_t i = 0; i < a->operand_count; i++)
        for (uint32_t j = 0; j < b->operand_count; j++)
            if (conflict(&e->operands[a->first_operand + i], &e->operands[b->first_operand + j])) return true;
    return false;
}

/* Direct predecessors only: from the latest launch backwards, one that an already found predecessor waits for
 * (bit set in `reach`) adds nothing. */
static bool find_dependencies(struct emitter *e, uint64_t *reach, size_t words, struct status *status)
{
    for (uint32_t n = 0; n < e->header.launch_count; n++) {
        struct plan_launch *launch = &e->launches[n];
        uint64_t *mine = reach + n * words;
        launch->first_dependency = e->header.dependency_count;
        for (uint32_t p = n; p-- > 0;) {
            if (mine[p / 64] >> (p % 64) & 1) continue;
            if (!launches_conflict(e, &e->launches[p], launch)) continue;
            if (launch->dependency_count == PLAN_MAX_DEPENDENCIES)
                return status_fail(status, STATUS_INTERNAL, "launch %u has more than %d direct dependencies", n,
                                   PLAN_MAX_DEPENDENCIES);
            e->dependencies[e->header.dependency_count++] = p;
            launch->dependency_count++;
            for (size_t w = 0; w < words; w++) mine[w] |= reach[p * words + w];
            mine[p / 64] |= UINT64_C(1) << (p % 64);
        }
        /* Found from the latest backwards; the encoding wants them rising. */
        uint32_t *first = e->dependencies + launch->first_dependency, *last = first + launch->dependency_count;
        while (last - first > 1) {
            uint32_t swap = *first;
            *first++ = *--last;
            *last = swap;
        }
    }
    return true;
}

/* Bytes and operations at the context that estimates are made for. Rows of a prefill share one sequence's KV
 * cache, which the op, knowing only rows, counts once for each; most rows of a mixed step do so, too. */
static void set_cost(const struct emitter *e, const struct op_descriptor *op, const int64_t *params,
                     struct plan_launch *launch)
{
    const uint64_t half = e->lowering->geometry.max_context / 2;
    const uint64_t context = half < PLAN_COST_CONTEXT ? half : PLAN_COST_CONTEXT;
    uint64_t unused;
    op->cost(params, context, &launch->bytes, &launch->flops);
    if (op->id != OP_ATTENTION || e->graph->kind == PLAN_DECODE) return;
    int64_t one_row[PLAN_MAX_PARAMS];
    memcpy(one_row, params, (size_t)op->param_count * sizeof *params);
    one_row[OP_PARAM_ROWS] = 1;
    op->cost(one_row, context, &launch->bytes, &unused);
    launch->bytes += 2 * (uint64_t)(params[OP_PARAM_ROWS] - 1) * (uint64_t)params[ATTENTION_HEADS] *
                     (uint64_t)params[ATTENTION_HEAD_DIM] * sizeof(float);
}

/* ---- plan ---- */

static struct plan plan_of(const struct emitter *e)
{
    struct plan plan = {
        .header = e->header,
        .launches = e->launches,
        .operands = e->operands,
        .params = e->params,
        .dependencies = e->dependencies,
    };
    memcpy(plan.step, e->writer.step, sizeof plan.step);
    return plan;
}

static bool emit_node(struct emitter *e, int n, struct status *status)
{
    const struct graph_node *node = &e->graph->nodes[n];
    const struct op_descriptor *op = op_find(node->op);
    struct plan_launch *launch = &e->launches[e->header.launch_count++];
    int64_t params[PLAN_MAX_PARAMS];
    lower_params(e->graph, e->lowering, e->writer.rows, e->writer.out_rows, node, params);
    if (op->default_tunables)
        op->default_tunables(params, e->lowering->isa, e->lowering->threads, params + op->param_count);
    *launch = (struct plan_launch){.op = (uint16_t)node->op,
                                   .first_operand = e->header.operand_count,
                                   .first_param = e->header.param_count,
                                   .tactic = PLAN_NO_TACTIC,
                                   .layer = node->layer};
    launch->operand_count = (uint16_t)lower_operands(&e->writer, n, params, e->operands + launch->first_operand);
    launch->param_count =
        (uint16_t)op_list_params(op, params, op->tunable_count, true, e->params + launch->first_param);
    e->header.param_count += launch->param_count;
    e->header.operand_count += launch->operand_count;

    const struct plan view = plan_of(e);
    if (op_verify(&view, e->header.launch_count - 1, TARGET_CPU, &e->geometry, "lowering", status)) {
        set_cost(e, op, params, launch);
        return true;
    }
    /* Sizes too large for an op come from the configuration or the flags: an error of the user's input. */
    status->code = STATUS_BAD_INPUT;
    return false;
}

bool lower_plan(const struct graph *graph, const struct lowering *lowering, uint32_t rows, struct plan *plan,
                struct status *status)
{
    bool ok = false;
    size_t nodes = (size_t)graph->node_count, words = nodes / 64 + 1;
    struct memory_plan memory = {0};
    uint64_t *reach = NULL;
    struct emitter e = {.graph = graph, .lowering = lowering};
    memset(plan, 0, sizeof *plan);
    if (graph->node_count > PLAN_MAX_LAUNCHES)
        return status_fail(status, STATUS_BAD_INPUT, "the model needs %d launches a step; the limit is %d",
                           graph->node_count, PLAN_MAX_LAUNCHES);
    if (!operands_begin(&e.writer, graph, lowering, &memory, rows, status) ||
        !plan_memory(graph, lowering, rows, e.writer.out_rows, &memory, status))
        return false;

    e.geometry = lowering->geometry;
    memcpy(e.geometry.state, e.writer.state, sizeof e.geometry.state);
    e.launches = calloc(nodes + 1, sizeof *e.launches);
    e.operands = calloc(nodes * PLAN_MAX_OPERANDS + 1, sizeof *e.operands);
    e.params = calloc(nodes * PLAN_MAX_PARAMS + 1, sizeof *e.params);
    e.dependencies = calloc(nodes * PLAN_MAX_DEPENDENCIES + 1, sizeof *e.dependencies);
    reach = calloc(nodes * words + 1, sizeof *reach);
    if (!e.launches || !e.operands || !e.params || !e.dependencies || !reach) {
        status_fail(status, STATUS_MACHINE, "out of memory while lowering");
        goto done;
    }
    e.header.kind = graph->kind;
    e.header.rows = rows;
    e.header.out_rows = e.writer.out_rows;
    e.header.arena_bytes = memory.arena_bytes;
    e.header.step_bytes = e.writer.step_bytes;
    e.header.field_count = step_field_count(lowering->geometry.hidden_size, lowering->geometry.drafts);
    for (size_t n = 0; n < nodes; n++)
        if (!emit_node(&e, (int)n, status)) goto done;
    if (!find_dependencies(&e, reach, words, status)) goto done;
    *plan = plan_of(&e);
    ok = true;
done:
    free(reach);
    memory_plan_free(&memory);
    if (!ok) {
        struct plan partial = plan_of(&e);
        plan_free(&partial);
    }
    return ok;
}
