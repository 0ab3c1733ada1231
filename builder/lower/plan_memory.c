/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "builder/lower/lower.h"
#include "builder/lower/residual_rows.h"
#include "formats/base/checked.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_gather/all_gather_device.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/all_reduce/all_reduce_device.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "kernels/sample/sample.h"

enum { NOWHERE = -1 };

/* The arena as a list of blocks in use, sorted by offset. */
struct arena {
    struct block {
        uint64_t offset, bytes;
    } * blocks;
    size_t count;
    uint64_t high_water;
};

static bool arena_take(struct arena *arena, uint64_t bytes, uint64_t *offset)
{
    uint64_t best = UINT64_MAX, best_slack = UINT64_MAX, end = 0;
    size_t at = arena->count;
    for (size_t i = 0; i <= arena->count; i++) {
        uint64_t limit = i < arena->count ? arena->blocks[i].offset : UINT64_MAX / 2;
        uint64_t hole = limit - end;
        /* The open end counts as a hole too, but only when nothing else fits. */
        uint64_t slack = i < arena->count ? hole - bytes : UINT64_MAX - 1;
        if (hole >= bytes && slack < best_slack) {
            best = end;
            best_slack = slack;
            at = i;
        }
        if (i < arena->count) end = arena->blocks[i].offset + arena->blocks[i].bytes;
    }
    if (best == UINT64_MAX) return false;
    memmove(&arena->blocks[at + 1], &arena->blocks[at], (arena->count - at) * sizeof *arena->blocks);
    arena->blocks[at] = (struct block){best, bytes};
    arena->count++;
    if (best + bytes > arena->high_water) arena->high_water = best + bytes;
    *offset = best;
    return true;
}

static void arena_give_back(struct arena *arena, uint64_t offset)
{
    for (size_t i = 0; i < arena->count; i++) {
        if (arena->blocks[i].offset != offset) continue;
        arena->count--;
        memmove(&arena->blocks[i], &arena->blocks[i + 1], (arena->count - i) * sizeof *arena->blocks);
        return;
    }
}

static bool value_bytes(const struct graph *graph, int value, uint64_t rows, uint64_t out_rows, uint64_t *bytes)
{
    const struct graph_value *v = &graph->values[value];
    uint64_t factors[] = {v->rows == ROWS_TOKENS ? rows : out_rows, v->width, dtype_bytes(v->dtype)};
    return checked_product(factors, 3, bytes) && checked_align(*bytes, PLAN_ALIGNMENT, bytes) &&
           *bytes < UINT64_MAX / 4;
}

static bool workspace_bytes(const struct graph *graph, const struct graph_node *node, const struct lowering *lowering,
                            uint64_t rows, uint64_t out_rows, uint64_t *bytes)
{
    const struct model_config *config = graph->config;
    *bytes = 0;
    if (graph->target != TARGET_CPU) return true;
    if (node->op == OP_MATMUL) {
        const struct graph_value *x = &graph->values[node->inputs[0]];
        *bytes = matmul_workspace_bytes(x->rows == ROWS_TOKENS ? rows : out_rows, x->width);
    } else if (node->op == OP_ATTENTION) {
        if (!attention_workspace_bytes(rows, config->heads, config->head_dim, &lowering->geometry, bytes)) return false;
    } else if (node->op == OP_SAMPLE) {
        *bytes = sample_workspace_bytes(out_rows, config->vocab_size);
    }
    return checked_align(*bytes, PLAN_ALIGNMENT, bytes);
}

static bool exchange_bytes(const struct graph *graph, const struct graph_node *node, uint64_t rows, uint64_t out_rows,
                           uint64_t *bytes)
{
    const struct graph_value *x = &graph->values[node->inputs[0]];
    uint64_t x_rows = x->rows == ROWS_TOKENS ? rows : out_rows;
    if (graph->target == TARGET_CPU)
        return node->op == OP_ALL_REDUCE ? all_reduce_buffer_bytes(x_rows, x->width, bytes)
                                         : all_gather_buffer_bytes(x_rows, x->width, bytes);
    if (node->op == OP_ALL_GATHER) return all_gather_device_buffer_bytes(x_rows, x->width, graph->ranks, bytes);
    return all_reduce_device_buffer_bytes(x_rows, x->width, graph->ranks, x->dtype,
                                          residual_rows(graph, node, rows, out_rows).given, bytes);
}

bool lower_exchange_bytes(const struct graph *graph, uint64_t rows, uint64_t out_rows, uint64_t *bytes,
                          struct status *status)
{
    *bytes = 0;
    for (int n = 0; n < graph->node_count; n++) {
        uint64_t own;
        if (!plan_op_is_collective(graph->nodes[n].op)) continue;
        if (!exchange_bytes(graph, &graph->nodes[n], rows, out_rows, &own) ||
            !checked_align(own, LOWER_EXCHANGE_OFFSET, &own))
            return status_fail(status, STATUS_BAD_INPUT, "what ranks exchange for %llu rows does not fit into 64 bits",
                               (unsigned long long)rows);
        if (own > *bytes) *bytes = own;
    }
    return true;
}

bool lower_comm_bytes(const struct lowering *lowering, uint64_t *bytes)
{
    *bytes = 0;
    return plan_ranks(&lowering->geometry) == 1 ||
           (checked_mul(lowering->exchange_bytes, LOWER_EXCHANGE_BUFFERS, bytes) &&
            checked_add(*bytes, LOWER_EXCHANGE_OFFSET, bytes));
}

/* Two buffers in turn. A plan with an odd number of collectives ends in a third one, for the next plan begins in the
 * first (struct comm_header says why). */
static bool place_exchange(const struct graph *graph, const struct lowering *lowering, uint64_t rows, uint64_t out_rows,
                           struct memory_plan *memory)
{
    int last = -1;
    uint64_t turn = 0;
    for (int n = 0; n < graph->node_count; n++) {
        if (!plan_op_is_collective(graph->nodes[n].op)) continue;
        if (!exchange_bytes(graph, &graph->nodes[n], rows, out_rows, &memory->exchange_bytes[n])) return false;
        if (memory->exchange_bytes[n] > lowering->exchange_bytes) return false;
        memory->exchange_offset[n] = LOWER_EXCHANGE_OFFSET + turn++ % 2 * lowering->exchange_bytes;
        last = n;
    }
    if (turn % 2) memory->exchange_offset[last] = LOWER_EXCHANGE_OFFSET + 2 * lowering->exchange_bytes;
    return true;
}

static void find_last_uses(const struct graph *graph, int *last_use)
{
    for (int v = 0; v < graph->value_count; v++) last_use[v] = NOWHERE;
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < GRAPH_MAX_INPUTS; i++)
            if (graph->nodes[n].inputs[i] >= 0) last_use[graph->nodes[n].inputs[i]] = n;
}

/* The input whose memory output `o` of this node may take over, by the contracts in kernels/; -1 if none. */
static int alias_candidate(const struct graph *graph, const struct graph_node *node, int o)
{
    if (graph->target != TARGET_CPU)
        return node->op == OP_MATMUL || (node->op == OP_ALL_REDUCE && o == 0) ? node->inputs[1] : -1;
    switch (node->op) {
    case OP_RMS_NORM: return o == 0 ? node->inputs[0] : node->inputs[1];
    case OP_ATTENTION:
    case OP_SWIGLU:
    case OP_ADD:
    case OP_ALL_REDUCE: return node->inputs[0];
    case OP_MATMUL: return node->inputs[1]; /* the residual */
    default: return -1;
    }
}

struct planner {
    const struct graph *graph;
    struct memory_plan *memory;
    struct arena arena;
    uint64_t *bytes;  /* [value_count] */
    int *last_use;    /* [value_count]: node index */
    bool *taken_over; /* [value_count]: another value lives in its memory now */
};

static bool place_output(struct planner *planner, int n, int o)
{
    const struct graph_node *node = &planner->graph->nodes[n];
    int value = node->outputs[o];
    if (value < 0 || planner->graph->values[value].place != VALUE_ARENA) return true;
    int input = alias_candidate(planner->graph, node, o);
    if (input >= 0 && planner->last_use[input] == n && !planner->taken_over[input] &&
        planner->bytes[input] == planner->bytes[value] && planner->memory->value_offset[input] != UINT64_MAX) {
        planner->memory->value_offset[value] = planner->memory->value_offset[input];
        planner->taken_over[input] = true;
        return true;
    }
    return arena_take(&planner->arena, planner->bytes[value], &planner->memory->value_offset[value]);
}

static bool plan_node(struct planner *planner, int n)
{
    const struct graph_node *node = &planner->graph->nodes[n];
    struct memory_plan *memory = planner->memory;
    for (int o = 0; o < GRAPH_MAX_OUTPUTS; o++)
        if (!place_output(planner, n, o)) return false;
    if (memory->workspace_bytes[n]) {
        if (!arena_take(&planner->arena, memory->workspace_bytes[n], &memory->workspace_offset[n])) return false;
        arena_give_back(&planner->arena, memory->workspace_offset[n]);
    }
    for (int i = 0; i < GRAPH_MAX_INPUTS; i++) {
        int value = node->inputs[i];
        if (value < 0 || planner->last_use[value] != n || planner->taken_over[value]) continue;
        if (memory->value_offset[value] == UINT64_MAX) continue;
        arena_give_back(&planner->arena, memory->value_offset[value]);
        planner->taken_over[value] = true; /* an input named twice is given back once */
    }
    for (int o = 0; o < GRAPH_MAX_OUTPUTS; o++) {
        int value = node->outputs[o];
        if (value >= 0 && planner->last_use[value] == NOWHERE && memory->value_offset[value] != UINT64_MAX)
            arena_give_back(&planner->arena, memory->value_offset[value]);
    }
    return true;
}

bool plan_memory(const struct graph *graph, const struct lowering *lowering, uint64_t rows, uint64_t out_rows,
                 struct memory_plan *memory, struct status *status)
{
    size_t values = (size_t)graph->value_count, nodes = (size_t)graph->node_count;
    bool ok = false;
    struct planner planner = {.graph = graph, .memory = memory};
    memory->arena_bytes = 0;
    memory->value_offset = malloc((values + 1) * sizeof *memory->value_offset);
    memory->workspace_offset = calloc(nodes + 1, sizeof *memory->workspace_offset);
    memory->workspace_bytes = calloc(nodes + 1, sizeof *memory->workspace_bytes);
    memory->exchange_offset = calloc(nodes + 1, sizeof *memory->exchange_offset);
    memory->exchange_bytes = calloc(nodes + 1, sizeof *memory->exchange_bytes);
    planner.bytes = calloc(values + 1, sizeof *planner.bytes);
    planner.last_use = calloc(values + 1, sizeof *planner.last_use);
    planner.taken_over = calloc(values + 1, sizeof *planner.taken_over);
    planner.arena.blocks = calloc(values + nodes + 2, sizeof *planner.arena.blocks);
    if (!memory->value_offset || !memory->workspace_offset || !memory->workspace_bytes || !memory->exchange_offset ||
        !memory->exchange_bytes || !planner.bytes || !planner.last_use || !planner.taken_over ||
        !planner.arena.blocks) {
        status_fail(status, STATUS_MACHINE, "out of memory while planning memory");
        goto done;
    }
    uint64_t scratch;
    if (lowering->scratch_bytes && !arena_take(&planner.arena, lowering->scratch_bytes, &scratch)) {
        status_fail(status, STATUS_BAD_INPUT, "the scratch memory does not fit into 64-bit sizes");
        goto done;
    }
    if (!place_exchange(graph, lowering, rows, out_rows, memory)) {
        status_fail(status, STATUS_BAD_INPUT, "what ranks exchange for %llu rows does not fit into 64 bits",
                    (unsigned long long)rows);
        goto done;
    }
    find_last_uses(graph, planner.last_use);
    for (size_t v = 0; v < values; v++) {
        memory->value_offset[v] = UINT64_MAX;
        if (!value_bytes(graph, (int)v, rows, out_rows, &planner.bytes[v])) {
            status_fail(status, STATUS_BAD_INPUT, "value '%s' of %llu rows does not fit into 64-bit sizes",
                        graph->values[v].name, (unsigned long long)rows);
            goto done;
        }
    }
    for (size_t n = 0; n < nodes; n++) {
        if (!workspace_bytes(graph, &graph->nodes[n], lowering, rows, out_rows, &memory->workspace_bytes[n]) ||
            !plan_node(&planner, (int)n)) {
            status_fail(status, STATUS_BAD_INPUT, "the arena for %llu rows does not fit into 64-bit sizes",
                        (unsigned long long)rows);
            goto done;
        }
    }
    memory->arena_bytes = planner.arena.high_water;
    ok = true;
done:
    free(planner.bytes);
    free(planner.last_use);
    free(planner.taken_over);
    free(planner.arena.blocks);
    if (!ok) memory_plan_free(memory);
    return ok;
}

void memory_plan_free(struct memory_plan *memory)
{
    free(memory->value_offset);
    free(memory->workspace_offset);
    free(memory->workspace_bytes);
    free(memory->exchange_offset);
    free(memory->exchange_bytes);
    memset(memory, 0, sizeof *memory);
}
