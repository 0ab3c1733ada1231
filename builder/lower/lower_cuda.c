/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering for GPUs: the parameters and operands of each node by its op's schema, and the first kernel that takes them. */
#include <stdlib.h>
#include <string.h>

#include "builder/lower/lower_cuda.h"
#include "builder/lower/operands.h"
#include "builder/lower/plan_memory.h"

/* The first tactic that is legal for these parameters. */
static bool find_tactic(enum plan_op op, const int64_t *params, const struct device_facts *gpu,
                        struct device_tactic *tactic, struct status *status)
{
    const char *why = op_params_illegal(op_find(op), params);
    if (!why && device_tactics(op, params, gpu, tactic, 1) == 1) return true;
    return status_fail(status, STATUS_BAD_INPUT, "%s of %lld rows: no kernel for this model on '%s': %s",
                       op_find(op)->name, (long long)params[OP_PARAM_ROWS], gpu->name,
                       why ? why : device_tactics_reason(op, params, gpu));
}

static bool emit_node(const struct operand_writer *writer, int n, const struct device_facts *gpu,
                      struct device_launch *launch, struct status *status)
{
    const struct graph_node *node = &writer->graph->nodes[n];
    int64_t params[PLAN_MAX_PARAMS] = {0};
    lower_params(writer->graph, writer->lowering, writer->rows, writer->out_rows, node, params);
    launch->op = node->op;
    launch->layer = node->layer;
    launch->record = launch->problem = PLAN_NO_TACTIC;
    launch->operand_count = lower_operands(writer, n, params, launch->operands);
    if (!find_tactic(node->op, params, gpu, &launch->tactic, status)) return false;
    const struct device_kernel *kernel = launch->tactic.kernel;
    const uint64_t counters = kernel->counter_bytes ? kernel->counter_bytes(launch->tactic.params) : 0;
    return counters <= writer->lowering->scratch_bytes ||
           status_fail(status, STATUS_INTERNAL, "%s of %u rows: %llu bytes of counters do not fit the scratch memory",
                       kernel->name, writer->rows, (unsigned long long)counters);
}

bool device_takes_graph(const struct graph *graph, const struct lowering *lowering, const struct device_facts *gpu,
                        uint32_t rows, struct status *status)
{
    struct device_tactic tactic;
    const uint64_t out_rows = plan_out_rows(graph->kind, rows, lowering->geometry.slots);
    for (int n = 0; n < graph->node_count; n++) {
        int64_t params[PLAN_MAX_PARAMS] = {0};
        lower_params(graph, lowering, rows, out_rows, &graph->nodes[n], params);
        if (!find_tactic(graph->nodes[n].op, params, gpu, &tactic, status)) return false;
    }
    return true;
}

uint64_t device_scratch_bytes(const struct graph *graph, const struct lowering *lowering,
                              const struct device_facts *gpu, uint32_t rows)
{
    struct device_tactic tactics[DEVICE_MOST_TACTICS];
    uint64_t most = PLAN_ALIGNMENT;
    for (int n = 0; n < graph->node_count; n++) {
        const enum plan_op op = graph->nodes[n].op;
        if (op != OP_ROPE_ATTENTION && op != OP_ATTENTION && op != OP_ROUTED_MATMUL && op != OP_ROUTED_MLP) continue;
        int64_t params[PLAN_MAX_PARAMS] = {0};
        lower_params(graph, lowering, rows, rows, &graph->nodes[n], params);
        int count = device_tactics(op, params, gpu, tactics, DEVICE_MOST_TACTICS);
        for (int i = 0; i < count; i++) {
            if (!tactics[i].kernel->counter_bytes) continue;
            const uint64_t bytes = tactics[i].kernel->counter_bytes(tactics[i].params);
            if (bytes > most) most = bytes;
        }
    }
    return (most + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

bool lower_device_plan(const struct graph *graph, const struct lowering *lowering, const struct device_facts *gpu,
                       uint32_t rows, struct device_plan *plan, struct status *status)
{
    bool ok = false;
    struct memory_plan memory = {0};
    struct operand_writer writer;
    memset(plan, 0, sizeof *plan);
    if (!operands_begin(&writer, graph, lowering, &memory, rows, status) ||
        !plan_memory(graph, lowering, rows, writer.out_rows, &memory, status))
        return false;
    plan->launches = calloc((size_t)graph->node_count + 1, sizeof *plan->launches);
    if (!plan->launches) {
        status_fail(status, STATUS_MACHINE, "out of memory while lowering");
        goto done;
    }
    plan->header.kind = graph->kind;
    plan->header.rows = rows;
    plan->header.out_rows = writer.out_rows;
    plan->header.arena_bytes = memory.arena_bytes;
    plan->header.step_bytes = writer.step_bytes;
    plan->vocab_size = lowering->geometry.vocab_size;
    plan->hidden_size = lowering->geometry.hidden_size;
    plan->drafts = lowering->geometry.drafts;
    for (int n = 0; n < graph->node_count; n++, plan->count++)
        if (!emit_node(&writer, n, gpu, &plan->launches[n], status)) goto done;
    ok = true;
done:
    memory_plan_free(&memory);
    if (!ok) device_plan_free(plan);
    return ok;
}
